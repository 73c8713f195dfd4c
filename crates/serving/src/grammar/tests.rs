//! Random answers under real grammars, judged by an independent validator; and what is refused, by pointer.

use super::*;
use base::rng;
use engine::{Standing, TokenMask};
use serde_json::{Value, json};

/// About 700 tokens: all bytes, merges, `<tool_call>` as a token.
fn tokenizer() -> Tokenizer {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tokenizers/tiny/byte-level.json");
    Tokenizer::from_json(&std::fs::read(path).unwrap(), None).unwrap()
}

fn grammars() -> Grammars {
    let tokenizer = tokenizer();
    let stops = ["<|im_end|>", "<|endoftext|>"].map(|text| tokenizer.token_id(text).unwrap());
    // Rows of logits are often longer than the vocabulary.
    let vocab = tokenizer.vocab_size() + 11;
    Grammars::new(tokenizer, vocab, stops.to_vec())
}

fn json_rule(schema: Value) -> Rule {
    Rule::Json { schema, at: "response_format.json_schema.schema".to_owned(), exact: true }
}

fn lenient_rule(schema: Value) -> Rule {
    Rule::Json { schema, at: "tools[0].function.parameters".to_owned(), exact: false }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Whole,
    Cut,
}

/// Takes a random allowed token each time, and forced ones when there are any.
fn random_answer(grammars: &Grammars, compiled: &Arc<Compiled>, seed: u64, most: usize) -> (Vec<u32>, End) {
    let mut constraint = compiled.constraint();
    let mut allowed = TokenMask::none(grammars.works.vocab);
    let (mut ids, mut forced) = (Vec::new(), Vec::new());
    loop {
        forced.clear();
        constraint.forced(&mut forced);
        for id in &forced {
            ids.push(*id);
            constraint.accept(*id);
        }
        if ids.len() >= most {
            return (ids, End::Cut);
        }
        if !forced.is_empty() {
            continue;
        }
        match constraint.standing() {
            Standing::Ended => return (ids, End::Whole),
            Standing::Failed => panic!("failed after {:?}", text(grammars, &ids)),
            Standing::Open => {}
        }
        allowed.clear();
        match constraint.mask(&mut allowed) {
            Standing::Ended => return (ids, End::Whole),
            Standing::Failed => panic!("failed after {:?}", text(grammars, &ids)),
            Standing::Open => {}
        }
        let all: Vec<u32> = (0..grammars.works.vocab).filter(|id| allowed.allows(*id)).collect();
        assert!(!all.is_empty(), "an open answer can go on: {:?}", text(grammars, &ids));
        let stops = grammars.works.stop_tokens.iter().filter(|id| all.contains(id)).count();
        assert!(stops == 0 || stops == grammars.works.stop_tokens.len(), "all stop tokens or none");
        let pick = rng::uniform(seed, 0, ids.len() as u32) * all.len() as f64;
        let id = all[(pick as usize).min(all.len() - 1)];
        if grammars.works.stop_tokens.contains(&id) {
            return (ids, End::Whole);
        }
        ids.push(id);
        constraint.accept(id);
    }
}

fn text(grammars: &Grammars, ids: &[u32]) -> String {
    let bytes: Vec<u8> =
        ids.iter().flat_map(|id| grammars.works.tokenizer.token_bytes(*id).to_vec()).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

fn schemas() -> Option<Vec<(String, Value)>> {
    let shared = std::env::var("HEARTH_SHARED")
        .unwrap_or_else(|_| concat!(env!("CARGO_MANIFEST_DIR"), "/../../../shared").to_owned());
    let all = std::fs::read_to_string(format!("{shared}/data/json-schemas/tool-schemas.jsonl")).ok()?;
    let schemas = all.lines().map(|line| {
        let line: Value = serde_json::from_str(line).unwrap();
        (line["suite"].as_str().unwrap().to_owned(), line["schema"].clone())
    });
    Some(schemas.collect())
}

#[test]
fn random_documents_under_the_tool_schemas_validate_and_nearly_all_end() {
    let Some(schemas) = schemas() else {
        println!("skipped: random_documents_under_the_tool_schemas (no shared data)");
        return;
    };
    assert_eq!(schemas.len(), 106);
    let grammars = grammars();
    let (mut whole, mut all) = (0, 0);
    for (i, (suite, schema)) in schemas.iter().enumerate() {
        let compiled = grammars.compile(&json_rule(schema.clone()));
        let compiled = compiled.unwrap_or_else(|error| panic!("{suite} {schema}: {error:?}"));
        let validator = jsonschema::validator_for(schema).ok();
        for round in 0..4 {
            let (ids, end) = random_answer(&grammars, &compiled, (i * 10 + round) as u64, 4096);
            let text = text(&grammars, &ids);
            all += 1;
            match end {
                End::Whole => {
                    whole += 1;
                    let document: Value = serde_json::from_str(&text)
                        .unwrap_or_else(|error| panic!("{suite} {schema}: {error}: {text}"));
                    if let Some(validator) = &validator {
                        assert!(validator.is_valid(&document), "{suite} {schema}: {text}");
                    }
                }
                End::Cut => assert!(is_prefix(&compiled, &ids), "{suite} {schema}: {text}"),
            }
        }
    }
    println!("{whole} of {all} ended");
    assert!(whole * 100 >= all * 95, "{whole} of {all} documents ended");
}

/// Schemas as people write them, beyond those of the shared list.
fn odd_schemas() -> Vec<Value> {
    let event = |kind: &str, field: &str| {
        json!({"type": "object", "required": ["kind", field],
            "properties": {"kind": {"const": kind}, field: {"type": "integer", "minimum": 1}}})
    };
    vec![
        json!({"oneOf": [{"$ref": "#/$defs/a"}, {"$ref": "#/$defs/b"}], "discriminator": {"propertyName": "kind"},
            "$defs": {"a": event("a", "x"), "b": event("b", "y")}}),
        json!({"oneOf": [{"type": "string", "maxLength": 3}, {"type": "integer", "minimum": -5, "maximum": 17}, {"type": "null"}]}),
        json!({"oneOf": [{"type": "number", "maximum": 3}, {"type": "number", "exclusiveMinimum": 3}]}),
        json!({"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}),
        json!({"allOf": [{"properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"properties": {"b": {"enum": ["x", 3, null, [1], {"k": true}]}}, "required": ["b"]}], "type": "object"}),
        json!({"allOf": [{"$ref": "#/definitions/one"}], "definitions": {"one": {"type": "object", "properties": {"p": {"type": "boolean"}}}}}),
        json!({"type": "string", "format": "date-time"}),
        json!({"type": "string", "format": "date"}),
        json!({"type": "string", "format": "time"}),
        json!({"type": "string", "format": "duration"}),
        json!({"type": "string", "format": "email"}),
        json!({"type": "string", "format": "hostname"}),
        json!({"type": "string", "format": "ipv4"}),
        json!({"type": "string", "format": "ipv6"}),
        json!({"type": "string", "format": "uuid"}),
        json!({"type": "string", "format": "uri"}),
        json!({"type": "string", "format": "uri-reference"}),
        json!({"type": "string", "format": "json-pointer"}),
        json!({"type": "string", "format": "relative-json-pointer"}),
        json!({"type": "string", "format": "date", "pattern": "^2024"}),
        json!({"type": ["string", "integer"], "format": "ipv4", "pattern": "1", "minimum": 3}),
        json!({"type": "string", "format": "binary", "maxLength": 20}),
        json!({"type": "string", "pattern": "^[A-Z]{2}\\d{3,5}$"}),
        json!({"type": "string", "pattern": "[0-9]", "minLength": 3, "maxLength": 8}),
        json!({"type": "number", "exclusiveMinimum": 0.5, "exclusiveMaximum": 2.25}),
        json!({"type": "number", "multipleOf": 0.25, "minimum": -3, "maximum": 3}),
        json!({"type": "integer", "multipleOf": 7, "minimum": -30}),
        json!({"type": "integer", "minimum": 0, "exclusiveMinimum": true, "$schema": "http://json-schema.org/draft-04/schema#"}),
        json!({"type": "number"}),
        json!({"type": "integer", "minimum": i64::MIN, "maximum": i64::MAX}),
        json!({"type": "integer", "minimum": 9_007_199_254_740_989_i64, "exclusiveMaximum": u64::MAX}),
        json!({"type": "integer", "exclusiveMinimum": -1e300, "maximum": -9_007_199_254_740_990_i64}),
        json!({"type": "object", "patternProperties": {"^x-": {"type": "integer"}}, "additionalProperties": false, "maxProperties": 3}),
        json!({"type": "object", "propertyNames": {"pattern": "^[a-z]{1,3}$"}, "additionalProperties": {"type": "boolean"}, "maxProperties": 2}),
        json!({"type": "object", "propertyNames": {"enum": ["a", "b"]}, "additionalProperties": {"type": "integer"}}),
        json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "null"}}),
        json!({"type": "object", "properties": {}}),
        json!({"type": "object"}),
        json!({"type": "object", "properties": {"a": true, "b": {"not": {}}}, "required": ["a", "extra"]}),
        json!({"type": "array", "prefixItems": [{"type": "integer"}, {"type": "string"}], "items": false, "minItems": 1}),
        json!({"type": "array", "items": [{"type": "integer"}, {"type": "null"}], "additionalItems": {"type": "boolean"}, "maxItems": 4,
            "$schema": "http://json-schema.org/draft-07/schema#"}),
        json!({"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 3}),
        json!({"enum": ["a\nb", "\"quoted\"", "\\", "é😀", 1, 1.5, true, null, {"a": [1, "x"]}]}),
        json!({"const": {"deep": [{"er": "value"}]}}),
        json!({"properties": {"tree": {"$ref": "#/$defs/t"}, "lost": {"$ref": "#/$defs/endless"}}, "$defs": {
            "t": {"type": "object", "properties": {"v": {"type": "integer"}, "l": {"$ref": "#/$defs/t"}}, "required": ["v"]},
            "endless": {"type": "object", "properties": {"e": {"$ref": "#/$defs/endless"}}, "required": ["e"]}}}),
        json!({"$ref": "#item", "$defs": {"x": {"$anchor": "item", "type": "array", "items": {"type": "integer"}, "maxItems": 2}}}),
        json!({"type": "object", "minProperties": 1, "properties": {"a": {"type": "null"}, "b": {"type": "null"}}}),
        json!({"type": "object", "unevaluatedProperties": false, "properties": {"a": {"type": "null"}}, "x-vendor": 3, "nullable": true}),
        json!(true),
    ]
}

#[test]
fn random_documents_under_odd_schemas_validate_with_their_formats() {
    let grammars = grammars();
    let (mut whole, mut all) = (0, 0);
    for (i, schema) in odd_schemas().iter().enumerate() {
        let compiled = grammars.compile(&json_rule(schema.clone()));
        let compiled = compiled.unwrap_or_else(|error| panic!("{schema}: {error:?}"));
        let validator = jsonschema::options().should_validate_formats(true).build(schema).unwrap();
        for round in 0..12 {
            let (ids, end) = random_answer(&grammars, &compiled, (7000 + i * 100 + round) as u64, 4096);
            let text = text(&grammars, &ids);
            all += 1;
            if end == End::Whole {
                whole += 1;
                let document: Value =
                    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{schema}: {error}: {text}"));
                assert!(validator.is_valid(&document), "{schema}: {text}");
            }
        }
    }
    assert!(whole * 100 >= all * 95, "{whole} of {all} documents ended");
}

/// Whether a fresh constraint takes these tokens.
fn is_prefix(compiled: &Arc<Compiled>, ids: &[u32]) -> bool {
    let mut constraint = compiled.constraint();
    ids.iter().all(|id| {
        constraint.accept(*id);
        constraint.standing() != Standing::Failed
    })
}

#[test]
fn what_cannot_be_enforced_is_refused_by_its_pointer() {
    let grammars = grammars();
    let endless = json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "required": ["n"],
        "properties": {"n": {"$ref": "#/$defs/n"}}}}});
    for (schema, pointer) in [
        (json!(false), ""),
        (json!({"type": "text"}), "/type"),
        (
            json!({"type": "object", "properties": {"a": {"type": "array", "minItems": 3, "maxItems": 2}}, "required": ["a"]}),
            "/properties/a",
        ),
        (json!({"type": "string", "enum": [1, 2]}), "/enum"),
        (json!({"type": "object", "properties": {"x": false}, "required": ["x"]}), "/properties/x"),
        (json!({"type": "integer", "minimum": 5, "maximum": 4}), ""),
        (
            json!({"type": "integer", "minimum": 9_007_199_254_740_993_i64, "maximum": 9_007_199_254_740_995_i64}),
            "/minimum",
        ),
        (
            json!({"type": "integer", "minimum": -9_007_199_254_740_995_i64, "maximum": -9_007_199_254_740_993_i64}),
            "/maximum",
        ),
        (json!({"type": "number", "exclusiveMinimum": 9_007_199_254_740_991_i64}), "/exclusiveMinimum"),
        (json!({"type": "number", "exclusiveMaximum": -1e300}), "/exclusiveMaximum"),
        (json!({"type": "integer", "minimum": 1, "maximum": 2, "multipleOf": 5}), ""),
        (json!({"properties": {"a/b": {"type": "string", "pattern": "(?=x)y"}}}), "/properties/a~1b/pattern"),
        (json!({"type": "string", "pattern": "("}), "/pattern"),
        (json!({"if": {"type": "string"}, "then": {"minLength": 3}}), "/if"),
        (json!({"type": "array", "uniqueItems": true}), "/uniqueItems"),
        (json!({"type": "array", "contains": {"type": "string"}}), "/contains"),
        (json!({"type": "object", "dependentRequired": {"a": ["b"]}}), "/dependentRequired"),
        (json!({"not": {"type": "string"}}), "/not"),
        (json!({"items": {"$ref": "https://example.com/a.json"}}), "/items/$ref"),
        (json!({"properties": {"q": {"$ref": "#/$defs/none"}}}), "/properties/q/$ref"),
        (json!({"type": "string", "minLength": 99_999_999}), "/minLength"),
        (json!({"type": "array", "minItems": -1}), "/minItems"),
        (
            json!({"oneOf": [{"type": "object", "properties": {"a": {"type": "string"}}}, {"type": "object"}]}),
            "/oneOf",
        ),
        (json!({"type": "number", "multipleOf": 0}), "/multipleOf"),
        (json!({"anyOf": []}), "/anyOf"),
        (json!({"required": "a"}), "/required"),
        (json!({"properties": {"a": 3}}), "/properties/a"),
        (endless, "/$ref"),
        (json!({"$ref": "#"}), "/$ref"),
        (json!({"allOf": [{"type": "string"}, {"type": "integer"}]}), ""),
    ] {
        let error = grammars.compile(&json_rule(schema.clone())).err();
        let error = error.unwrap_or_else(|| panic!("{schema} was taken"));
        assert_eq!(error.kind.status(), 400, "{schema}");
        assert_eq!(
            error.param.as_deref(),
            Some(format!("response_format.json_schema.schema{pointer}").as_str()),
            "{schema}: {error}"
        );
        assert!(!error.message.contains("non-verbose") && error.message.len() < 500, "{error}");
    }
}

/// Schemas with keywords that no grammar enforces, and what is left of them.
fn lenient_schemas() -> Vec<(Value, Value)> {
    let numbers = |extra: Value| {
        let mut schema =
            json!({"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 4});
        schema.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        schema
    };
    let object = |extra: Value| {
        let mut schema = json!({"type": "object", "properties": {"a": {"type": "boolean"}, "b": {"enum": ["x", "y"]}},
            "required": ["a"], "additionalProperties": false});
        schema.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        schema
    };
    let cat = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 5}}, "required": ["name"]});
    let dog = json!({"type": "object", "properties": {"name": {"type": "string", "maxLength": 3}, "age": {"type": "integer", "minimum": 0, "maximum": 9}}});
    vec![
        (numbers(json!({"uniqueItems": true})), numbers(json!({}))),
        (numbers(json!({"contains": {"const": 3}, "minContains": 1})), numbers(json!({}))),
        (
            object(
                json!({"if": {"properties": {"a": {"const": true}}}, "then": {"required": ["b"]}, "else": false}),
            ),
            object(json!({})),
        ),
        (
            object(
                json!({"dependentRequired": {"a": ["b"]}, "dependentSchemas": {"a": {"required": ["b"]}}, "dependencies": {"a": ["b"]}}),
            ),
            object(json!({})),
        ),
        (object(json!({"not": {"required": ["b"]}})), object(json!({}))),
        (object(json!({"propertyNames": {"maxLength": 3}})), object(json!({}))),
        (object(json!({"unevaluatedProperties": false})), object(json!({}))),
        (object(json!({"$dynamicRef": "#node"})), object(json!({}))),
        (json!({"oneOf": [cat, dog]}), json!({"anyOf": [cat, dog]})),
        (
            json!({"$defs": {"c": cat}, "properties": {"pets": numbers(json!({"items": {"$ref": "#/$defs/c"}, "uniqueItems": true}))}, "required": ["pets"]}),
            json!({"$defs": {"c": cat}, "type": "object", "properties": {"pets": numbers(json!({"items": {"$ref": "#/$defs/c"}}))}, "required": ["pets"]}),
        ),
        (
            json!({"type": "object", "properties": {"o": {"$ref": "https://example.com/o.json#/x"}}, "required": ["o"]}),
            json!({"type": "object", "properties": {"o": true}, "required": ["o"]}),
        ),
        (
            json!({"type": "string", "minLength": 9_999_999, "maxLength": 4}),
            json!({"type": "string", "maxLength": 4}),
        ),
        (
            json!({"type": "string", "format": "date", "pattern": "^(?!1999)"}),
            json!({"type": "string", "format": "date"}),
        ),
        (
            json!({"type": "integer", "minimum": 0, "maximum": 1.7e308, "multipleOf": 1e-12}),
            json!({"type": "integer", "minimum": 0}),
        ),
    ]
}

#[test]
fn a_lenient_schema_loses_what_no_grammar_enforces_and_nothing_else() {
    let grammars = grammars();
    let mut whole = 0;
    for (i, (schema, left)) in lenient_schemas().iter().enumerate() {
        assert!(grammars.compile(&json_rule(schema.clone())).is_err(), "{schema} is not enforced whole");
        let compiled = grammars.compile(&lenient_rule(schema.clone()));
        let compiled = compiled.unwrap_or_else(|error| panic!("{schema}: {error:?}"));
        let twin = grammars.compile(&lenient_rule(left.clone())).unwrap();
        let validator = jsonschema::options().should_validate_formats(true).build(left).unwrap();
        for round in 0..6 {
            let (ids, end) = random_answer(&grammars, &compiled, (90_000 + i * 100 + round) as u64, 2048);
            assert!(is_prefix(&twin, &ids), "{schema}: {}", text(&grammars, &ids));
            if end == End::Whole {
                whole += 1;
                let text = text(&grammars, &ids);
                let document: Value =
                    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{schema}: {error}: {text}"));
                assert!(validator.is_valid(&document), "{schema}: {text}");
            }
        }
    }
    assert!(whole > 60, "{whole} ended");
}

#[test]
fn a_lenient_schema_that_is_broken_endless_or_hostile_is_still_refused_by_its_pointer() {
    let grammars = grammars();
    let mut deep = json!({"type": "string"});
    for _ in 0..70 {
        deep = json!({"type": "array", "items": deep, "uniqueItems": true});
    }
    let many: Vec<Value> = (0..30_000).map(Value::from).collect();
    for (schema, pointer) in [
        (json!({"type": "text"}), "/type"),
        (json!({"properties": {"q": {"$ref": "#/$defs/none"}}}), "/properties/q/$ref"),
        (json!({"$ref": "#"}), "/$ref"),
        (json!({"not": {}}), ""),
        (json!({"not": 3}), "/not"),
        (json!({"type": "integer", "minimum": 5, "maximum": 4}), ""),
        (json!({"type": "string", "pattern": "("}), "/pattern"),
        (json!({"type": "string", "minLength": -1}), "/minLength"),
        (json!({"type": "number", "multipleOf": 0}), "/multipleOf"),
        (json!({"oneOf": []}), "/oneOf"),
        (json!({"enum": many}), "/enum"),
    ] {
        let error = grammars.compile(&lenient_rule(schema.clone())).err();
        let error = error.unwrap_or_else(|| panic!("{schema} was taken"));
        assert_eq!(error.kind.status(), 400, "{schema}");
        let place = format!("tools[0].function.parameters{pointer}");
        assert_eq!(error.param.as_deref(), Some(place.as_str()), "{schema}: {error}");
    }
    let error = grammars.compile(&lenient_rule(deep)).err().expect("nests too deep");
    assert_eq!(error.kind.status(), 400);
}

/// The tokens of a text, and the constraint's standing and mask behind them.
fn follow(grammars: &Grammars, compiled: &Arc<Compiled>, text: &str) -> (Standing, Option<Vec<u32>>) {
    let ids = grammars.works.tokenizer.encode(&[tokenizer::Piece::Trusted(text)], None).unwrap();
    let mut constraint = compiled.constraint();
    for id in ids {
        constraint.accept(id);
    }
    let mut allowed = TokenMask::none(grammars.works.vocab);
    let standing = constraint.mask(&mut allowed);
    let all = (standing == Standing::Open)
        .then(|| (0..grammars.works.vocab).filter(|id| allowed.allows(*id)).collect::<Vec<u32>>());
    (standing, all)
}

fn literal(text: &str) -> Rule {
    Rule::Literal(text.to_owned())
}

fn marker(text: &str) -> Rule {
    Rule::Marker(text.to_owned())
}

/// Text, then any number of calls, as `tool_choice: auto` has it.
fn calls(open: &str, close: &str) -> Rule {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"]});
    let text = || Rule::Text { before: vec![open.to_owned()] };
    let call = vec![marker(open), literal("\n"), json_rule(schema), literal("\n"), marker(close), text()];
    Rule::Sequence(vec![text(), Rule::Repeat { rule: Box::new(Rule::Sequence(call)), least: 0, most: None }])
}

#[test]
fn text_is_free_up_to_a_marker_and_calls_are_constrained_behind_it() {
    let grammars = grammars();
    // A token of its own, and characters.
    for (open, close) in [("<tool_call>", "</tool_call>"), ("<fn>", "</fn>")] {
        let compiled = grammars.compile(&calls(open, close)).unwrap();
        let end = grammars.works.stop_tokens[0];
        for (text, ends) in [
            ("", true),
            ("Hello, { \"world\" } <fx> <tool", true),
            (&format!("Hi {open}"), false),
            (&format!("Hi {open}\n{{\"n\": "), false),
            (&format!("{open}\n{{\"n\": 3}}\n{close}"), true),
            (&format!("{open}\n{{\"n\": 3}}\n{close}\nand\n{open}\n{{\"n\": 4}}\n{close} so."), true),
            (&format!("a{open}\n{{\"n\": 3}}\n{close}{open}\n{{\"n\": 4"), false),
        ] {
            let (standing, allowed) = follow(&grammars, &compiled, text);
            assert_eq!(standing, Standing::Open, "{open} {text}");
            let allowed = allowed.unwrap();
            assert_eq!(allowed.contains(&end), ends, "{open} {text}");
            let x = grammars.works.tokenizer.token_id("x").unwrap();
            assert_eq!(allowed.contains(&x), ends, "{open} {text}: free text");
        }
        for text in [format!("Hi {open}x"), format!("Hi {open}\n{{\"m\""), format!("{open}\n{{\"n\": 12")] {
            assert_eq!(follow(&grammars, &compiled, &text).0, Standing::Failed, "{text}");
        }
        for seed in 0..6 {
            let (ids, _) = random_answer(&grammars, &compiled, seed, 600);
            let text = text(&grammars, &ids);
            let mut rest = text.as_str();
            while let Some((_, behind)) = rest.split_once(open) {
                let Some((call, behind)) = behind.split_once(close) else { break };
                let call: Value =
                    serde_json::from_str(call).unwrap_or_else(|error| panic!("{error}: {text}"));
                assert!(call["n"].as_u64().is_some_and(|n| n < 10), "{call}");
                rest = behind;
            }
        }
    }
}

#[test]
fn a_forced_call_is_forced_from_its_first_token() {
    let grammars = grammars();
    let schema = json!({"type": "object", "properties": {"city": {"const": "Paris"}}, "required": ["city"]});
    let rule = Rule::Sequence(vec![
        marker("<tool_call>"),
        literal("\n{\"name\": \"get_weather\", \"arguments\": "),
        json_rule(schema),
        literal("}\n"),
        marker("</tool_call>"),
    ]);
    let compiled = grammars.compile(&rule).unwrap();
    let (ids, end) = random_answer(&grammars, &compiled, 1, 500);
    assert_eq!(end, End::Whole);
    let expected =
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
    assert_eq!(text(&grammars, &ids), expected);
    let canonical = grammars.works.tokenizer.encode(&[tokenizer::Piece::Trusted(expected)], None).unwrap();
    assert_eq!(ids, canonical, "forced tokens are those that the tokenizer makes of the text");
}

#[test]
fn rules_combine_and_end_where_they_are_complete() {
    let grammars = grammars();
    let word = |text: &str| literal(text);
    let rule = Rule::Sequence(vec![
        Rule::OneOf(vec![word("yes"), word("no"), Rule::Sequence(vec![])]),
        Rule::Repeat { rule: Box::new(word("!")), least: 1, most: Some(3) },
        Rule::Regex { pattern: "[ab]{2}".to_owned(), at: "regex".to_owned() },
    ]);
    let compiled = grammars.compile(&rule).unwrap();
    for seed in 0..40 {
        let (ids, end) = random_answer(&grammars, &compiled, seed, 50);
        assert_eq!(end, End::Whole);
        let text = text(&grammars, &ids);
        let rest = text.trim_start_matches("yes").trim_start_matches("no");
        let marks = rest.chars().take_while(|c| *c == '!').count();
        assert!((1..=3).contains(&marks) && rest.len() == marks + 2, "{text}");
    }
    let empty = grammars.compile(&Rule::Sequence(vec![])).unwrap();
    assert_eq!(random_answer(&grammars, &empty, 0, 5), (vec![], End::Whole));
    let lark = "start: NAME (\",\" NAME)~0..2\nNAME: /[a-z]{1,3}/\n".replace("~0..2", "?");
    let compiled = grammars.compile(&Rule::Lark { grammar: lark, at: "lark".to_owned() }).unwrap();
    let (ids, end) = random_answer(&grammars, &compiled, 3, 50);
    assert_eq!(end, End::Whole);
    assert!(text(&grammars, &ids).split(',').all(|name| (1..=3).contains(&name.len())));
}

#[test]
fn bad_expressions_and_grammars_are_refused_where_they_stand() {
    let grammars = grammars();
    let lark = |grammar: String| Rule::Lark { grammar, at: "guided_grammar".to_owned() };
    let regex = |pattern: String| Rule::Regex { pattern, at: "guided_regex".to_owned() };
    let chain: String = (0..450).map(|i| format!("r{i}: r{}\n", i + 1)).collect();
    for rule in [
        lark("start: missing".to_owned()),
        lark("begin: \"a\"".to_owned()),
        lark("start: (".to_owned()),
        lark(format!("start: {}\"a\"{}", "(".repeat(30_000), ")".repeat(30_000))),
        lark(format!("start: r0\n{chain}")),
        lark("a".repeat(70_000)),
        lark(String::new()),
        lark("start: start".to_owned()),
        lark("start: \"a\" start".to_owned()),
        lark("start: \"a\" b\nb: \"c\" start | \"d\" b".to_owned()),
        lark("start: \"x\" | \"a\" b\nb: (\"c\" | \"d\"+) b".to_owned()),
        regex("[^\\s\\S]".to_owned()),
        regex("a[^\\s\\S]".to_owned()),
        regex("(".to_owned()),
        regex("(?=a)b".to_owned()),
        regex("a{5,2}".to_owned()),
        regex("(".repeat(2000)),
        regex("((a{0,9999}b){0,9999}c){0,9999}|x*?\\b".to_owned()),
        regex("[a&&b]".to_owned()),
    ] {
        let error = grammars.compile(&rule).err();
        let error = error.unwrap_or_else(|| panic!("{rule:?} was taken"));
        assert_eq!(error.kind.status(), 400);
        assert!(error.param.as_deref().is_some_and(|param| param.starts_with("guided_")), "{error:?}");
        let inside = ["NoExtensionBias", "start: /", "at 1(8)", "lexer configuration"];
        let shown =
            matches!(rule, Rule::Regex { .. }) && inside.iter().any(|word| error.message.contains(word));
        assert!(!shown, "{error:?}");
    }
}

#[test]
fn what_is_wrong_is_said_in_a_callers_words() {
    let grammars = grammars();
    let option = |i: u32| json!({"type": "object", "properties": {format!("name{i}"): {"type": "integer"}}, "required": [format!("name{i}")]});
    let many: Vec<Value> = (0..3000).map(option).collect();
    let regex = |pattern: &str| Rule::Regex { pattern: pattern.to_owned(), at: "guided_regex".to_owned() };
    for (rule, said) in [
        (regex("[^\\s\\S]"), "matches no text"),
        (regex("("), "the regular expression: unclosed group"),
        (json_rule(json!({"type": "string", "pattern": "^a{5}$", "maxLength": 3})), "exclude each other"),
        (json_rule(json!({"anyOf": many})), "too large"),
    ] {
        let error = grammars.compile(&rule).err().map(|error| error.message).unwrap_or_default();
        assert!(error.contains(said), "{said}: {error}");
    }
}

/// All that `constraint` may say next.
fn allowed(grammars: &Grammars, constraint: &mut dyn engine::Constraint) -> (Standing, Vec<u32>) {
    let mut mask = TokenMask::none(grammars.works.vocab);
    let standing = constraint.mask(&mut mask);
    (standing, (0..grammars.works.vocab).filter(|id| mask.allows(*id)).collect())
}

#[test]
fn masks_are_those_of_a_naive_twin() {
    let grammars = grammars();
    for seed in 0..12 {
        let draw = |i: u32, below: u64| (rng::bits(seed, 1, i) % below) as usize;
        let letters = ["a", "ab", "b", "the", " ", "0", "é", "🙂"];
        let words: Vec<String> = (0..5)
            .map(|word| (0..=draw(word, 5) as u32).map(|i| letters[draw(50 + word * 9 + i, 8)]).collect())
            .collect();
        let rule = Rule::OneOf(words.iter().map(|word| literal(word)).collect());
        let compiled = grammars.compile(&rule).unwrap();
        let mut constraint = compiled.constraint();
        let mut said = Vec::<u8>::new();
        for step in 0.. {
            let (standing, found) = allowed(&grammars, constraint.as_mut());
            let complete = words.iter().any(|word| word.as_bytes() == said);
            let expected: Vec<u32> = (0..grammars.works.vocab)
                .filter(|id| {
                    let bytes = grammars.works.tokenizer.token_bytes(*id);
                    let next = [said.as_slice(), bytes].concat();
                    let fits =
                        !bytes.is_empty() && words.iter().any(|word| word.as_bytes().starts_with(&next));
                    let stop = grammars.works.stop_tokens.contains(id);
                    if grammars.works.tokenizer.is_control(*id) { stop && complete } else { fits }
                })
                .collect();
            if standing == Standing::Ended {
                assert!(complete && expected.iter().all(|id| grammars.works.stop_tokens.contains(id)));
                break;
            }
            assert_eq!(standing, Standing::Open);
            if found.len() == 1 {
                // What is forced is the canonical token alone.
                assert!(expected.contains(&found[0]), "{words:?} {said:?}");
            } else {
                assert_eq!(found, expected, "{words:?} {said:?}");
            }
            let id = found[draw(500 + step, found.len() as u64)];
            if grammars.works.stop_tokens.contains(&id) {
                break;
            }
            constraint.accept(id);
            said.extend(grammars.works.tokenizer.token_bytes(id));
        }
    }
}

#[test]
fn a_failed_or_dropped_answer_leaves_others_of_its_grammar_alone() {
    let grammars = grammars();
    let rule =
        json_rule(json!({"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}));
    let compiled = grammars.compile(&rule).unwrap();
    let mut first = compiled.constraint();
    let x = grammars.works.tokenizer.token_id("x").unwrap();
    first.accept(x);
    assert_eq!(first.standing(), Standing::Failed, "what is not allowed fails");
    assert_eq!(allowed(&grammars, first.as_mut()), (Standing::Failed, vec![]));
    let mut forced = Vec::new();
    first.forced(&mut forced);
    assert!(forced.is_empty());
    assert_eq!(first.standing(), Standing::Failed, "for good");
    // A panic inside the library; and gone while a mask is asked for.
    let mut living = compiled.constraint();
    compiled.grammar().fail();
    drop(compiled.constraint());
    assert_eq!(allowed(&grammars, living.as_mut()).0, Standing::Open, "what runs goes on");
    assert_eq!(random_answer(&grammars, &compiled, 5, 4000).1, End::Whole);
}

#[test]
fn a_rule_that_takes_too_long_is_refused_and_its_compilation_left_to_itself() {
    let mut grammars = grammars();
    let names = |count: u32| (0..count).map(|i| (format!("p{i}"), json!({"type": "integer"})));
    let large = |count| json!({"type": "object", "properties": Value::Object(names(count).collect())});
    grammars.compile(&literal("a")).unwrap();
    grammars.patience = std::time::Duration::ZERO;
    for count in [1500, 1501] {
        let error = grammars.compile(&json_rule(large(count))).err().expect("nobody waits");
        assert_eq!(error.kind.status(), 400);
        assert_eq!(error.param.as_deref(), Some("response_format.json_schema.schema"));
    }
    // Too many are left to themselves, which is nobody's fault and passes.
    let rule = literal("b");
    let error = grammars.compile(&rule).err().expect("too busy");
    assert_eq!(error.kind, ErrorKind::Unavailable);
    while grammars.works.abandoned.load(Ordering::Acquire) > 0 {
        std::thread::yield_now();
    }
    grammars.patience = PATIENCE;
    grammars.compile(&rule).unwrap();
}

#[test]
fn many_long_bounded_texts_can_all_be_said_to_their_last_character() {
    let grammars = grammars();
    let names: Vec<String> = (0..10).map(|i| format!("f{i}")).collect();
    let text = |i: usize| json!({"type": "string", "minLength": 2000 + i, "maxLength": 2000 + i});
    let properties: Value = names.iter().enumerate().map(|(i, name)| (name.clone(), text(i))).collect();
    let schema = json!({"type": "object", "properties": properties, "required": names});
    let compiled = grammars.compile(&json_rule(schema.clone())).unwrap();
    let (ids, end) = random_answer(&grammars, &compiled, 8, 40_000);
    assert_eq!(end, End::Whole);
    let document: Value = serde_json::from_str(&self::text(&grammars, &ids)).unwrap();
    assert!(jsonschema::is_valid(&schema, &document));
}

#[test]
fn numbers_that_schemas_restrict_together_have_bounds_in_recursive_schemas_too() {
    let grammars = grammars();
    let both = json!({"type": "number", "allOf": [{"multipleOf": 1}, {"minimum": 0}]});
    let schema = json!({"$ref": "#/$defs/n", "$defs": {"n": {"type": "object", "required": ["v"],
        "properties": {"v": both, "next": {"$ref": "#/$defs/n"}}}}});
    let compiled = grammars.compile(&json_rule(schema)).unwrap();
    assert_eq!(follow(&grammars, &compiled, "{\"v\": 123456").0, Standing::Open);
    let long = format!("{{\"v\": {}", "9".repeat(40));
    assert_eq!(follow(&grammars, &compiled, &long).0, Standing::Failed);
}

#[test]
fn equal_rules_are_compiled_once_however_many_ask() {
    let grammars = grammars();
    let rule = json_rule(json!({"type": "array", "items": {"type": "integer"}}));
    let all: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| grammars.compile(&rule).unwrap())).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(all.iter().all(|compiled| Arc::ptr_eq(compiled, &all[0])));
    // The order of properties is a part of the rule, though not of the schemas' equality.
    let ordered = |text: &str| json_rule(serde_json::from_str(text).unwrap());
    for i in 0..300 {
        let one = ordered(&format!("{{\"properties\": {{\"a{i}\": {{}}, \"b\": {{}}}}}}"));
        let other = ordered(&format!("{{\"properties\": {{\"b\": {{}}, \"a{i}\": {{}}}}}}"));
        assert_ne!(grammars.keys.of(&one), grammars.keys.of(&other));
    }
    for i in 0..300 {
        grammars.compile(&literal(&format!("word {i}"))).unwrap();
    }
    assert!(!Arc::ptr_eq(&grammars.compile(&rule).unwrap(), &all[0]), "the cache is bounded");
}

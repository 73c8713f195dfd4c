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
    Rule::Json { schema, at: "response_format.json_schema.schema".to_owned() }
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum End {
    Whole,
    Cut,
}

/// Takes a random allowed token each time, and forced ones when there are any.
fn random_answer(grammars: &Grammars, compiled: &Arc<Compiled>, seed: u64, most: usize) -> (Vec<u32>, End) {
    let mut constraint = compiled.constraint();
    let mut allowed = TokenMask::none(grammars.vocab);
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
        let all: Vec<u32> = (0..grammars.vocab).filter(|id| allowed.allows(*id)).collect();
        assert!(!all.is_empty(), "an open answer can go on: {:?}", text(grammars, &ids));
        let stops = grammars.stop_tokens.iter().filter(|id| all.contains(id)).count();
        assert!(stops == 0 || stops == grammars.stop_tokens.len(), "all stop tokens or none");
        let pick = rng::uniform(seed, 0, ids.len() as u32) * all.len() as f64;
        let id = all[(pick as usize).min(all.len() - 1)];
        if grammars.stop_tokens.contains(&id) {
            return (ids, End::Whole);
        }
        ids.push(id);
        constraint.accept(id);
    }
}

fn text(grammars: &Grammars, ids: &[u32]) -> String {
    let bytes: Vec<u8> = ids.iter().flat_map(|id| grammars.tokenizer.token_bytes(*id).to_vec()).collect();
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
        (endless, "/$defs/n/properties/n/$ref"),
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

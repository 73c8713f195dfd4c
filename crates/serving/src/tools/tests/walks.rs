//! Random answers under compiled rules: what a grammar lets stand, token by token, is read as calls.

use super::*;
use crate::grammar::Grammars;
use engine::{Standing, TokenMask};
use tokenizer::Tokenizer;

/// The tiny tokenizer of the fixtures: all bytes, some merges, `<tool_call>` as a token.
fn grammars() -> (Grammars, Tokenizer, Vec<u32>) {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/tokenizers/tiny/byte-level.json");
    let tokenizer = Tokenizer::from_json(&std::fs::read(path).unwrap(), None).unwrap();
    let stops: Vec<u32> =
        ["<|im_end|>", "<|endoftext|>"].iter().filter_map(|text| tokenizer.token_id(text)).collect();
    (Grammars::new(tokenizer.clone(), tokenizer.vocab_size(), stops.clone()), tokenizer, stops)
}

/// An answer that takes any allowed token, and whether it ended by itself.
fn answer(
    grammars: &(Grammars, Tokenizer, Vec<u32>),
    rule: &crate::grammar::Rule,
    seed: u64,
) -> (Vec<u8>, bool) {
    let (compiler, tokenizer, stops) = grammars;
    let compiled = compiler.compile(rule).unwrap_or_else(|error| panic!("{rule:?}: {error:?}"));
    let mut constraint = compiled.constraint();
    let mut allowed = TokenMask::none(tokenizer.vocab_size());
    let mut bytes = Vec::new();
    for turn in 0..300 {
        let mut forced = Vec::new();
        constraint.forced(&mut forced);
        if let Some(id) = forced.first() {
            bytes.extend_from_slice(tokenizer.token_bytes(*id));
            constraint.accept(*id);
            continue;
        }
        if constraint.standing() == Standing::Ended {
            return (bytes, true);
        }
        allowed.clear();
        match constraint.mask(&mut allowed) {
            Standing::Ended => return (bytes, true),
            Standing::Failed => panic!("failed after {:?}", String::from_utf8_lossy(&bytes)),
            Standing::Open => {}
        }
        let all: Vec<u32> = (0..tokenizer.vocab_size()).filter(|id| allowed.allows(*id)).collect();
        // Markers are rare among all tokens; here they are not.
        let markers: Vec<u32> =
            all.iter().copied().filter(|id| tokenizer.is_control(*id) || stops.contains(id)).collect();
        let roll = base::rng::uniform(seed, 0, 2 * turn);
        let from = if roll < 0.3 && !markers.is_empty() { &markers } else { &all };
        let at = base::rng::uniform(seed, 0, 2 * turn + 1) * from.len() as f64;
        let id = from[(at as usize).min(from.len() - 1)];
        if stops.contains(&id) {
            return (bytes, true);
        }
        bytes.extend_from_slice(tokenizer.token_bytes(id));
        constraint.accept(id);
    }
    (bytes, false)
}

#[test]
fn what_grammars_let_stand_is_read_as_calls() {
    let grammars = grammars();
    let tools = tools();
    let (mut whole, mut calls) = (0, 0);
    for family in FAMILIES {
        for choice in [&ToolChoice::Required, &ToolChoice::Named("get_weather".into()), &ToolChoice::Auto] {
            for thinking in [Thinking::No, Thinking::Open, Thinking::May] {
                let ask = Ask { choice, thinking, ..ask(LIVE, &tools) };
                let rule = family.rule(&ask).unwrap();
                for seed in 0..6 {
                    let (bytes, ended) = answer(&grammars, &rule, seed);
                    let text = String::from_utf8_lossy(&bytes).into_owned();
                    let mut parser = family.parser(&ask);
                    let mut out = Vec::new();
                    parser.push(&text, &mut out);
                    let end = parser.finish(&mut out);
                    let out = merge(out);
                    if !ended {
                        continue;
                    }
                    whole += 1;
                    calls += end.calls;
                    let what = format!("{} {choice:?} {thinking:?}: {text:?} {out:?}", family.name);
                    assert!(!end.open && !out.contains(&Out::Malformed), "{what}");
                    if *choice != ToolChoice::Auto {
                        assert!(
                            end.calls > 0 && !out.iter().any(|out| matches!(out, Out::Text(_))),
                            "{what}"
                        );
                    }
                    for out in &out {
                        if let Out::Call(name, arguments) = out {
                            let schema = tools.iter().find(|tool| tool.name == *name).unwrap();
                            let schema =
                                schema.parameters.clone().unwrap_or_else(|| json!({"type": "object"}));
                            let arguments: Value = serde_json::from_str(arguments).unwrap();
                            assert!(jsonschema::is_valid(&schema, &arguments), "{what}");
                        }
                    }
                }
            }
        }
    }
    assert!(whole > 100 && calls > 50, "{whole} ended with {calls} calls");
}

#[test]
fn very_many_tools_make_no_grammar_too_large() {
    let grammars = grammars();
    let fields: serde_json::Map<String, Value> = (0..8)
        .map(|i| (format!("p{i}"), json!({"type": if i % 2 == 0 { "string" } else { "integer" }})))
        .collect();
    let schema = json!({"type": "object", "properties": fields, "required": ["p0"]});
    let tools: Vec<Tool> = (0..100).map(|i| tool(&format!("tool_{i}"), schema.clone())).collect();
    for family in ["hermes", "pythonic", "qwen3-coder"].map(named) {
        for choice in [&ToolChoice::Required, &ToolChoice::Auto] {
            let rule = family.rule(&Ask { choice, ..ask(LIVE, &tools) }).unwrap();
            if let Err(error) = grammars.0.compile(&rule) {
                panic!("{} {choice:?}: {error:?}", family.name);
            }
        }
    }
}

//! Grammars over the whole stack: a tiny random model of 400 tokens (`fixtures/grammar`) answers under every schema of
//! the shared list, as a document and as the arguments of a forced call; an independent validator judges.

#![allow(clippy::unwrap_used, clippy::print_stdout, clippy::print_stderr)]

mod common;

use base::{Bytes, SystemClock};
use futures::{StreamExt, stream};
use protocol::{
    Answer, Backend, Choice, Delta, FinishReason, GenerateRequest, Input, Message, ResponseFormat, Role,
    Sampling, Tool, ToolChoice,
};
use serde_json::{Value, json};
use serving::{Local, LocalConfig, ModelSource};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const MOST_TOKENS: u32 = 4096;
/// Answers to each schema.
const SEEDS: u64 = 2;
/// Requests at once, each with its grammar.
const AT_ONCE: usize = 16;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// The shared schemas, each with its line number; `None` where they are not on this machine.
fn schemas(test: &str) -> Option<Vec<(usize, Value)>> {
    let shared =
        std::env::var_os("HEARTH_SHARED").map_or_else(|| repository().join("../shared"), PathBuf::from);
    let path = shared.join("data/json-schemas/tool-schemas.jsonl");
    let Ok(text) = std::fs::read_to_string(path) else {
        eprintln!("skipped: {test} (HEARTH_SHARED names no folder with the schemas)");
        return None;
    };
    let schema = |line: &str| serde_json::from_str::<Value>(line).unwrap()["schema"].clone();
    Some(text.lines().enumerate().map(|(i, line)| (i + 1, schema(line))).collect())
}

fn random_model() -> Arc<Local> {
    let config =
        LocalConfig { threads: Some(2), kv_memory: Some(Bytes(256 << 20)), ..LocalConfig::default() };
    let local = Local::new(config, Arc::new(SystemClock::default())).unwrap();
    let path = repository().join("fixtures/grammar/model");
    local.load(ModelSource { path, ..common::source("m") }, &mut |_, _| ()).unwrap();
    local
}

fn request(seed: u64) -> GenerateRequest {
    GenerateRequest {
        model: "m".into(),
        input: Input::Chat(vec![Message::text(Role::User, "Go")]),
        choices: 1,
        max_tokens: Some(MOST_TOKENS),
        sampling: Sampling { temperature: Some(1.0), seed: Some(seed), ..Sampling::default() },
        ..GenerateRequest::default()
    }
}

/// The answer as gathered, and the text and arguments of its first call as they were streamed.
async fn answer(local: &Local, request: GenerateRequest) -> (Choice, String, String) {
    let mut gathered = Answer::new(1);
    let (mut text, mut arguments) = (String::new(), String::new());
    let mut deltas = local.generate(request).await.unwrap();
    while let Some(delta) = deltas.next().await {
        let delta = delta.unwrap();
        match &delta {
            Delta::Text { text: piece, .. } => text += piece,
            Delta::ToolCallArguments { arguments: piece, .. } => arguments += piece,
            _ => {}
        }
        gathered.push(delta);
    }
    assert!(gathered.is_complete());
    (gathered.choices.remove(0), text, arguments)
}

/// The list has schemas of older drafts that do not say so, and ids that are no URIs, which the validator refuses.
fn validator(schema: &Value) -> jsonschema::Validator {
    jsonschema::validator_for(schema)
        .or_else(|_| jsonschema::options().with_draft(jsonschema::Draft::Draft7).build(schema))
        .unwrap_or_else(|_| {
            let mut schema = schema.clone();
            schema.as_object_mut().unwrap().remove("$id");
            jsonschema::validator_for(&schema).unwrap()
        })
}

/// Judges one document; says whether it was whole.
fn judge(what: &str, schema: &Value, text: &str, whole: bool) -> bool {
    let document = serde_json::from_str::<Value>(text);
    if !whole {
        // Cut: what there is goes on to a document, or just became one.
        if let Err(error) = &document {
            assert!(error.is_eof(), "{what}: {error}: {text}");
        }
        return false;
    }
    let document = document.unwrap_or_else(|error| panic!("{what}: {error}: {text}"));
    let validator = validator(schema);
    if let Err(error) = validator.validate(&document) {
        panic!("{what}: {error} at {}: {text}\nunder {schema}", error.instance_path());
    }
    true
}

fn enough(whole: usize, all: usize) {
    println!("{whole} of {all} documents ended within {MOST_TOKENS} tokens");
    assert!(whole * 100 >= all * 95, "only {whole} of {all} documents ended within {MOST_TOKENS} tokens");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_random_model_says_under_any_schema_validates() {
    let Some(schemas) = schemas("what_a_random_model_says_under_any_schema_validates") else { return };
    let local = random_model();
    let cases = schemas.iter().flat_map(|(line, schema)| (0..SEEDS).map(move |seed| (*line, schema, seed)));
    let judged = stream::iter(cases).map(|(line, schema, seed)| {
        let local = &local;
        async move {
            let format =
                ResponseFormat::JsonSchema { name: None, schema: schema.clone(), strict: Some(true) };
            let asked = GenerateRequest { response_format: format, ..request(seed) };
            let (choice, streamed, _) = answer(local, asked.clone()).await;
            assert_eq!(choice.text, streamed);
            let whole = choice.finish == Some(FinishReason::Stop);
            assert!(whole || choice.finish == Some(FinishReason::Length), "{line}: {choice:?}");
            if seed == 0 {
                assert_eq!(answer(local, asked).await.0, choice, "{line}: the same seed, the same answer");
            } else {
                // What `max_tokens` cuts is the beginning of a document, and the finish says so.
                let most = 3 + (line as u32 % 20);
                let (cut, _, _) = answer(local, GenerateRequest { max_tokens: Some(most), ..asked }).await;
                assert!(choice.text.starts_with(&cut.text), "{line}: {cut:?} of {choice:?}");
                let short = cut.finish == Some(FinishReason::Length);
                assert!(short || cut == choice, "{line}: {cut:?} of {choice:?}");
            }
            judge(&format!("schema {line}, seed {seed}"), schema, &choice.text, whole)
        }
    });
    let judged: Vec<bool> = judged.buffer_unordered(AT_ONCE).collect().await;
    enough(judged.iter().filter(|whole| **whole).count(), judged.len());
}

/// A schema that a tool's parameters can be: an object, with the given schema inside where it may be something else.
fn parameters(schema: &Value) -> Value {
    if schema["type"] == "object" {
        return schema.clone();
    }
    let mut inner = schema.clone();
    let mut outer = json!({"type": "object", "required": ["value"], "additionalProperties": false});
    for definitions in ["$defs", "definitions"] {
        if let Some(moved) = inner.as_object_mut().and_then(|inner| inner.remove(definitions)) {
            outer[definitions] = moved;
        }
    }
    if let Some(inner) = inner.as_object_mut() {
        inner.remove("$id");
    }
    outer["properties"] = json!({"value": inner});
    outer
}

#[tokio::test(flavor = "multi_thread")]
async fn the_arguments_of_a_forced_call_validate() {
    let Some(schemas) = schemas("the_arguments_of_a_forced_call_validate") else { return };
    let local = random_model();
    let cases = schemas.iter().flat_map(|(line, schema)| (0..SEEDS).map(move |seed| (*line, schema, seed)));
    let judged = stream::iter(cases).map(|(line, schema, seed)| {
        let local = &local;
        let schema = parameters(schema);
        async move {
            let tool = Tool {
                name: "act".into(),
                description: Some("Does \"it\" — 行う.".into()),
                parameters: Some(schema.clone()),
                strict: None,
                cache: None,
            };
            let choice = if seed % 2 == 0 { ToolChoice::Named("act".into()) } else { ToolChoice::Required };
            let asked = GenerateRequest {
                tools: vec![tool],
                tool_choice: choice,
                parallel_tool_calls: Some(false),
                reasoning_effort: Some(protocol::ReasoningEffort::None),
                ..request(seed)
            };
            let (choice, text, streamed) = answer(local, asked).await;
            let what = format!("schema {line}, seed {seed}");
            assert_eq!(text, "", "{what}: a call and nothing else");
            assert!(choice.malformed_calls.is_empty(), "{what}: {choice:?}");
            let whole = choice.finish == Some(FinishReason::ToolCalls);
            assert!(whole || choice.finish == Some(FinishReason::Length), "{what}: {choice:?}");
            let Some(call) = choice.tool_calls.first() else {
                assert!(!whole, "{what}: {choice:?}");
                return false;
            };
            assert_eq!((choice.tool_calls.len(), call.name.as_str()), (1, "act"), "{what}");
            assert_eq!(call.arguments, streamed, "{what}");
            judge(&what, &schema, &call.arguments, whole)
        }
    });
    let judged: Vec<bool> = judged.buffer_unordered(AT_ONCE).collect().await;
    enough(judged.iter().filter(|whole| **whole).count(), judged.len());
}

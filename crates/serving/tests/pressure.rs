//! Grammars under pressure: answers that are preempted, penalised, biased and seeded are under their grammar what they
//! are alone, and come out again when they are asked for again.

#![allow(clippy::unwrap_used)]

mod common;

use base::{Bytes, SystemClock, Tokens};
use common::replay::gather;
use common::{chat, until};
use protocol::{Choice, FinishReason, GenerateRequest, ResponseFormat, Role, Sampling, Tool, ToolChoice};
use serde_json::{Value, json};
use serving::{Local, LocalConfig, ModelSource};
use std::path::Path;
use std::sync::Arc;

/// Tokens of a sequence.
const CONTEXT: u32 = 512;
const PAGE: u64 = 16;

/// Enough KV memory for all.
const AMPLE: Bytes = Bytes(64 << 20);

/// The random model of `fixtures/grammar`.
fn random_model(threads: usize, step_tokens: u32, kv_memory: Bytes) -> Arc<Local> {
    let config = LocalConfig {
        threads: Some(threads),
        kv_memory: Some(kv_memory),
        context: Some(Tokens(CONTEXT)),
        step_tokens: Tokens(step_tokens),
        ..LocalConfig::default()
    };
    let local = Local::new(config, Arc::new(SystemClock::default())).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/grammar/model");
    local.load(ModelSource { path, ..common::source("m") }, &mut |_, _| ()).unwrap();
    local
}

fn schema(i: u64) -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["list", format!("k{i}")],
        "properties": {
            (format!("k{i}")): {"type": "string", "minLength": 20, "maxLength": 60},
            "list": {"type": "array", "minItems": 4, "maxItems": 12,
                "items": {"anyOf": [{"type": "integer"}, {"type": "boolean"}, {"type": "string", "maxLength": 8}]}},
        },
    })
}

/// Requests that differ in grammar and in how tokens are chosen.
fn request(i: u64) -> GenerateRequest {
    let plain = Sampling { temperature: Some(1.0), seed: Some(i), ..Sampling::default() };
    let sampling = match i % 5 {
        0 => Sampling { temperature: Some(0.0), ..plain },
        1 => Sampling {
            repetition_penalty: Some(1.3),
            frequency_penalty: Some(0.7),
            presence_penalty: Some(0.4),
            ..plain
        },
        2 => Sampling { temperature: Some(2.0), top_p: Some(0.9), top_k: Some(40), ..plain },
        3 => Sampling { min_p: Some(0.05), logit_bias: vec![(65, 3.0), (66, -100.0), (70, -2.0)], ..plain },
        _ => plain,
    };
    let call = i % 2 == 1;
    let tool = Tool {
        name: "put".into(),
        description: None,
        parameters: Some(schema(i)),
        strict: None,
        cache: None,
    };
    let format = ResponseFormat::JsonSchema { name: None, schema: schema(i), strict: Some(true) };
    GenerateRequest {
        tools: if call { vec![tool] } else { Vec::new() },
        tool_choice: if call { ToolChoice::Named("put".into()) } else { ToolChoice::Auto },
        response_format: if call { ResponseFormat::Text } else { format },
        sampling,
        max_tokens: Some(if i % 4 == 3 { 40 } else { 250 }),
        logprobs: i.is_multiple_of(3).then_some(2),
        choices: 1 + u32::from(i % 4 == 2),
        ..chat(&[(Role::User, &format!("Say what number {i} is."))])
    }
}

/// What of an answer must not change; ids of calls are new each time.
fn told(choice: &Choice) -> impl PartialEq + std::fmt::Debug + use<> {
    let calls: Vec<_> =
        choice.tool_calls.iter().map(|call| (call.name.clone(), call.arguments.clone())).collect();
    (choice.text.clone(), calls, choice.finish, choice.logprobs.clone())
}

async fn ask(local: &Local, i: u64) -> (Vec<Choice>, u32) {
    let (answer, _) = gather(local, request(i)).await.unwrap();
    (answer.choices, answer.usage.unwrap().completion_tokens)
}

fn judge(i: u64, choice: &Choice) {
    let text = choice.tool_calls.first().map_or(&choice.text, |call| &call.arguments);
    let whole = matches!(choice.finish, Some(FinishReason::Stop | FinishReason::ToolCalls));
    assert_eq!(choice.finish == Some(FinishReason::ToolCalls), whole && i % 2 == 1, "{i}: {choice:?}");
    match serde_json::from_str::<Value>(text) {
        Ok(document) if whole => {
            let validator = jsonschema::validator_for(&schema(i)).unwrap();
            assert!(validator.is_valid(&document), "{i}: {document}");
        }
        Ok(_) => {}
        Err(error) => assert!(!whole && error.is_eof(), "{i}: {error}: {text}"),
    }
    if i % 5 == 3 {
        assert!(!text.contains('B') || i % 2 == 1, "{i}: a banned token is not said: {text}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn preempted_answers_are_under_their_grammar_what_they_are_alone() {
    const REQUESTS: u64 = 20;
    let calm = random_model(1, 512, AMPLE);
    let mut alone = Vec::new();
    let mut whole = 0;
    for i in 0..REQUESTS {
        let (choices, tokens) = ask(&calm, i).await;
        for choice in &choices {
            judge(i, choice);
            whole += u32::from(choice.finish != Some(FinishReason::Length));
        }
        alone.push((choices.iter().map(told).collect::<Vec<_>>(), tokens));
    }
    assert!(whole >= 10, "only {whole} answers are whole");
    let mut preemptions = 0;
    // Room for the longest sequence and little more, so that many are preempted.
    for (threads, step_tokens) in [(2, 64), (1, 3)] {
        let page = calm.stats()[0].engine.unwrap().pages.bytes.0;
        let tight = random_model(threads, step_tokens, Bytes(page * (u64::from(CONTEXT) / PAGE + 3)));
        let crowd = futures::future::join_all((0..REQUESTS).map(|i| ask(&tight, i))).await;
        for (i, ((choices, tokens), expected)) in crowd.iter().zip(&alone).enumerate() {
            assert_eq!((choices.iter().map(told).collect::<Vec<_>>(), *tokens), *expected, "{i}");
        }
        until(|| tight.stats()[0].engine.unwrap().pages.held == 0).await;
        preemptions += tight.stats()[0].engine.unwrap().counters.preemptions;
    }
    assert!(preemptions > 0, "none was preempted");
}

#[tokio::test(flavor = "multi_thread")]
async fn seeds_decide_and_penalties_and_biases_matter_under_a_grammar() {
    let local = random_model(2, 512, AMPLE);
    let with = async |sampling: Sampling| {
        let format = ResponseFormat::Regex("[a-z]{60}".into());
        let request = GenerateRequest { response_format: format, sampling, ..chat(&[(Role::User, "Go")]) };
        let (answer, _) = gather(&*local, request).await.unwrap();
        assert_eq!(answer.choices[0].finish, Some(FinishReason::Stop));
        let text = answer.choices[0].text.clone();
        assert!(text.len() == 60 && text.bytes().all(|b| b.is_ascii_lowercase()), "{text}");
        text
    };
    let seeded = |seed| Sampling { temperature: Some(1.0), seed: Some(seed), ..Sampling::default() };
    let first = with(seeded(1)).await;
    assert_eq!(with(seeded(1)).await, first);
    assert_ne!(with(seeded(2)).await, first);
    let greedy = Sampling { temperature: Some(0.0), ..Sampling::default() };
    let plain = with(greedy.clone()).await;
    assert_eq!(with(Sampling { seed: Some(9), ..greedy.clone() }).await, plain);
    let punished = with(Sampling { frequency_penalty: Some(2.0), ..greedy.clone() }).await;
    assert_ne!(punished, plain);
}

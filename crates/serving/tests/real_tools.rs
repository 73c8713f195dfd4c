//! Calls and structured answers of a real model, where there is one: valid whatever it samples, the same in a crowd and
//! alone, and found again in the next turn.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod common;

use base::{Bytes, SystemClock, Tokens};
use common::replay::gather;
use common::{chat, source, until};
use protocol::{
    FinishReason, GenerateRequest, Input, Message, ResponseFormat, Role, Sampling, Tool, ToolChoice,
};
use serde_json::{Value as Json, json};
use serving::{Local, LocalConfig, ModelSource};
use std::path::PathBuf;
use std::sync::Arc;

fn qwen(test: &str, threads: usize, step_tokens: u32) -> Option<Arc<Local>> {
    let Some(folder) = std::env::var_os("HEARTH_TEST_MODELS") else {
        println!("skipped: {test} (HEARTH_TEST_MODELS is not set)");
        return None;
    };
    let config = LocalConfig {
        threads: Some(threads),
        kv_memory: Some(Bytes(256 << 20)),
        context: Some(Tokens(2048)),
        step_tokens: Tokens(step_tokens),
        ..LocalConfig::default()
    };
    let local = Local::new(config, Arc::new(SystemClock::default())).unwrap();
    let path = PathBuf::from(folder).join("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf");
    local.load(ModelSource { path, ..source("m") }, &mut |_, _| ()).unwrap();
    Some(local)
}

fn tool(name: &str, parameters: Json) -> Tool {
    Tool {
        name: name.into(),
        description: Some(format!("The \"{name}\" tool.\nUse it.")),
        parameters: Some(parameters),
        strict: None,
        cache: None,
    }
}

fn weather() -> Tool {
    let city = json!({"type": "object", "properties": {"city": {"type": "string", "maxLength": 24}}, "required": ["city"],
        "additionalProperties": false});
    tool("get_weather", city)
}

fn seeded(seed: u64, temperature: f32) -> Sampling {
    Sampling { temperature: Some(temperature), seed: Some(seed), ..Sampling::default() }
}

fn asked(question: &str) -> GenerateRequest {
    GenerateRequest {
        tools: vec![weather(), tool("get time", json!({"type": "object", "properties": {}}))],
        sampling: seeded(1, 0.0),
        max_tokens: Some(120),
        ..chat(&[(Role::User, question)])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_parse_however_they_are_asked_for() {
    let Some(local) = qwen("calls_parse_however_they_are_asked_for", 2, 512) else { return };
    let question = "What is the weather in Paris and in Rome? Use the tool.";
    for (choice, parallel, temperature) in [
        (ToolChoice::Auto, None, 0.0),
        (ToolChoice::Required, Some(true), 1.5),
        (ToolChoice::Required, Some(false), 1.5),
        (ToolChoice::Named("get_weather".into()), None, 1.5),
        (ToolChoice::Named("get time".into()), None, 1.0),
    ] {
        let request = GenerateRequest {
            tool_choice: choice.clone(),
            parallel_tool_calls: parallel,
            sampling: seeded(7, temperature),
            choices: 2,
            ..asked(question)
        };
        let (answer, deltas) = gather(&*local, request).await.unwrap();
        for said in &answer.choices {
            let cut = said.finish == Some(FinishReason::Length);
            assert!(choice == ToolChoice::Auto || !said.tool_calls.is_empty(), "{choice:?} {deltas:?}");
            for (i, call) in said.tool_calls.iter().enumerate() {
                let arguments: Result<Json, _> = serde_json::from_str(&call.arguments);
                assert!(arguments.is_ok() || (cut && i + 1 == said.tool_calls.len()), "{call:?}");
                match &choice {
                    ToolChoice::Named(name) => assert_eq!(call.name, *name),
                    _ => assert!(["get_weather", "get time"].contains(&call.name.as_str())),
                }
            }
            if matches!(choice, ToolChoice::Named(_)) || parallel == Some(false) {
                assert!(said.tool_calls.len() <= 1);
            }
            if !cut && !said.tool_calls.is_empty() {
                assert_eq!(said.finish, Some(FinishReason::ToolCalls));
            }
            // A call that was cut before it could be told is text, and says so.
            let told = cut && !said.malformed_calls.is_empty();
            assert!(told || !said.text.contains("tool_call>"), "{:?}", said.text);
        }
    }
    until(|| local.stats()[0].engine.unwrap().pages.held == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loop_of_calls_finds_its_past_within_a_page() {
    let Some(local) = qwen("a_loop_of_calls_finds_its_past_within_a_page", 2, 512) else { return };
    let mut messages = vec![Message::text(Role::User, "What is the weather in Paris and in Rome?")];
    let mut before = None;
    for turn in 0..3 {
        let request = GenerateRequest {
            tool_choice: if turn < 2 { ToolChoice::Required } else { ToolChoice::Auto },
            input: Input::Chat(messages.clone()),
            // Odd tokens, so that the tokenizer would choose others.
            sampling: seeded(turn, 1.2),
            ..asked("")
        };
        let (answer, _) = gather(&*local, request).await.unwrap();
        let usage = answer.usage.unwrap();
        if let Some(whole) = before {
            assert!(usage.cached_tokens + 16 >= whole, "turn {turn}: {} of {whole}", usage.cached_tokens);
        }
        before = Some(usage.prompt_tokens + usage.completion_tokens);
        let said = &answer.choices[0];
        if said.finish != Some(FinishReason::ToolCalls) {
            break;
        }
        messages.push(Message {
            tool_calls: said.tool_calls.clone(),
            ..Message::text(Role::Assistant, said.text.clone())
        });
        for call in &said.tool_calls {
            let result = Message::text(Role::Tool, format!("{{\"of\": {turn}, \"degrees\": 21}}"));
            messages.push(Message { tool_call_id: Some(call.id.clone()), ..result });
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_limit_gives_a_beginning_of_the_same_call() {
    let Some(local) = qwen("every_limit_gives_a_beginning_of_the_same_call", 2, 512) else { return };
    let named = ToolChoice::Named("get_weather".into());
    let request = GenerateRequest { tool_choice: named, ..asked("What is the weather in Paris?") };
    let (whole, _) = gather(&*local, request.clone()).await.unwrap();
    let whole_arguments = &whole.choices[0].tool_calls[0].arguments;
    for most in 1..=40 {
        let request = GenerateRequest { max_tokens: Some(most), ..request.clone() };
        let (answer, _) = gather(&*local, request).await.unwrap();
        let said = &answer.choices[0];
        let arguments = said.tool_calls.first().map_or("", |call| call.arguments.as_str());
        assert!(whole_arguments.starts_with(arguments), "{most}: {arguments}");
        // What is left out when the arguments are whole are closing marks.
        let cut = arguments != whole_arguments;
        let expected = if cut { FinishReason::Length } else { FinishReason::ToolCalls };
        assert_eq!(said.finish, Some(expected), "{most}: {said:?}");
    }
}

/// A request with a grammar of its own.
fn bound(i: u64) -> GenerateRequest {
    let key = format!("k{i}");
    let item =
        json!({"anyOf": [{"enum": ["a", i, null, true]}, {"type": "integer", "minimum": 0, "maximum": 99}]});
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": [key, "list"],
        "properties": {(key): {"$ref": "#/$defs/item"}, "list": {"type": "array", "items": {"$ref": "#/$defs/item"},
            "minItems": 1, "maxItems": 3}},
        "$defs": {"item": item},
    });
    let format = match i % 3 {
        0 => ResponseFormat::Regex(format!("[a-c]{{3}}-{i}-[0-9]{{4}}")),
        _ => ResponseFormat::JsonSchema { name: None, schema, strict: Some(true) },
    };
    GenerateRequest {
        response_format: format,
        sampling: seeded(i, 1.0),
        max_tokens: Some(60),
        logprobs: (i % 4 == 1).then_some(1),
        choices: 1 + u32::from(i.is_multiple_of(5)),
        ..chat(&[(Role::User, &format!("Give me something like number {i}."))])
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_grammars_at_once_give_what_each_gives_alone() {
    const NAME: &str = "sixteen_grammars_at_once_give_what_each_gives_alone";
    let Some(local) = qwen(NAME, 2, 512) else { return };
    let ask = async |local: &Local, i: u64| {
        let (answer, _) = gather(local, bound(i)).await.unwrap();
        answer.choices.into_iter().map(|c| (c.text, c.finish, c.logprobs)).collect::<Vec<_>>()
    };
    let crowd = futures::future::join_all((0..16).map(|i| ask(&local, i))).await;
    for (i, said) in crowd.iter().enumerate() {
        for (text, finish, logprobs) in said {
            assert_eq!(*finish, Some(FinishReason::Stop), "{i}: {text}");
            if i % 3 == 0 {
                assert!(
                    text.len() == 9 + i.to_string().len() && text[3..].starts_with(&format!("-{i}-")),
                    "{text}"
                );
            } else {
                let value: Json = serde_json::from_str(text).unwrap();
                assert!(value.get(format!("k{i}")).is_some() && value["list"].is_array(), "{text}");
            }
            let bytes: usize = logprobs.iter().map(|entry| entry.chosen.bytes.len()).sum();
            assert!(logprobs.is_empty() || bytes == text.len(), "{i}: {text}");
        }
    }
    // Another schedule: one thread, small steps, alone.
    let Some(other) = qwen(NAME, 1, 5) else { return };
    for i in [0, 1, 5, 10, 15] {
        assert_eq!(ask(&other, i).await, crowd[i as usize], "{i}");
    }
    until(|| local.stats()[0].engine.unwrap().pages.held == 0).await;
}

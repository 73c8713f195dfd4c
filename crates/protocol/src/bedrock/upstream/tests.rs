//! Requests as Converse has them, and its answers, streamed and whole.

use super::*;
use crate::upstream::testing::{asked, gathered};
use crate::{AnswerReader, Delta, FinishReason, Maker as Whose, Thought, ToolCall, Usage};
use serde_json::{Value, json};

const CLAUDE: &str = "anthropic.claude-sonnet-4-5-20250929-v1:0";

#[track_caller]
fn written(body: Value, model: &str) -> Value {
    serde_json::from_str(&write(&asked(&body), model).unwrap()).unwrap()
}

#[test]
fn a_conversation_with_calls_is_turns_of_blocks() {
    let body = json!({"model": "m", "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [
            {"type": "text", "text": "Look"},
            {"type": "image_url", "image_url": {"url": "data:image/jpg;base64,AAAA"}}]},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "a.b", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}}]},
        {"role": "tool", "tool_call_id": "a.b", "content": "2"},
        {"role": "user", "content": "So?"}],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}],
        "tool_choice": "required", "max_tokens": 5, "temperature": 0.5, "stop": "x"});
    let expected = json!({
        "messages": [
            {"role": "user", "content": [{"text": "Look"}, {"image": {"format": "jpeg", "source": {"bytes": "AAAA"}}}]},
            {"role": "assistant", "content": [{"toolUse": {"toolUseId": "a.b", "name": "f", "input": {"x": 1}}}]},
            {"role": "user", "content": [
                {"toolResult": {"toolUseId": "a.b", "content": [{"text": "2"}]}}, {"text": "So?"}]}],
        "system": [{"text": "Be brief."}],
        "inferenceConfig": {"maxTokens": 5, "temperature": 0.5, "stopSequences": ["x"]},
        "toolConfig": {"tools": [{"toolSpec": {"name": "f", "inputSchema": {"json": {"type": "object"}}}}],
            "toolChoice": {"any": {}}},
    });
    assert_eq!(written(body, "amazon.nova-pro-v1:0"), expected);
}

#[test]
fn thought_has_a_budget_with_models_that_take_one_and_is_refused_with_others() {
    let body =
        json!({"model": "m", "messages": [{"role": "user", "content": "a"}], "reasoning_effort": "low"});
    let found = written(body.clone(), CLAUDE);
    assert_eq!(
        found["additionalModelRequestFields"],
        json!({"thinking": {"type": "enabled", "budget_tokens": 1024}})
    );
    assert_eq!(found["inferenceConfig"]["maxTokens"], 1024 + 8192);
    let error = write(&asked(&body), "amazon.nova-pro-v1:0").unwrap_err();
    assert_eq!(error.param.as_deref(), Some("reasoning_effort"));
}

#[test]
fn an_answer_is_the_same_streamed_and_whole() {
    let whole = json!({"output": {"message": {"role": "assistant", "content": [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "sig"}}},
        {"text": "Let me look."},
        {"toolUse": {"toolUseId": "t1", "name": "f", "input": {"x": "語🦀"}}},
        {"toolUse": {"toolUseId": "t2", "name": "g", "input": {}}}]}},
        "stopReason": "tool_use",
        "usage": {"inputTokens": 10, "outputTokens": 5, "totalTokens": 45, "cacheReadInputTokens": 30}});
    let events = [
        ("messageStart", json!({"role": "assistant"})),
        (
            "contentBlockDelta",
            json!({"contentBlockIndex": 0, "delta": {"reasoningContent": {"text": "Hm."}}}),
        ),
        (
            "contentBlockDelta",
            json!({"contentBlockIndex": 0, "delta": {"reasoningContent": {"signature": "sig"}}}),
        ),
        ("contentBlockStop", json!({"contentBlockIndex": 0})),
        ("contentBlockDelta", json!({"contentBlockIndex": 1, "delta": {"text": "Let me "}})),
        ("contentBlockDelta", json!({"contentBlockIndex": 1, "delta": {"text": "look."}})),
        ("contentBlockStop", json!({"contentBlockIndex": 1})),
        (
            "contentBlockStart",
            json!({"contentBlockIndex": 2, "start": {"toolUse": {"toolUseId": "t1", "name": "f"}}}),
        ),
        ("contentBlockDelta", json!({"contentBlockIndex": 2, "delta": {"toolUse": {"input": "{\"x\":"}}})),
        ("contentBlockDelta", json!({"contentBlockIndex": 2, "delta": {"toolUse": {"input": "\"語🦀\"}"}}})),
        ("contentBlockStop", json!({"contentBlockIndex": 2})),
        (
            "contentBlockStart",
            json!({"contentBlockIndex": 3, "start": {"toolUse": {"toolUseId": "t2", "name": "g"}}}),
        ),
        ("contentBlockStop", json!({"contentBlockIndex": 3})),
        ("messageStop", json!({"stopReason": "tool_use"})),
        ("metadata", json!({"usage": whole["usage"], "metrics": {"latencyMs": 5}})),
    ];
    let mut reader = Reader::new();
    let mut streamed = Vec::new();
    for (name, data) in &events {
        streamed.extend(reader.event(Some(name), &data.to_string()).unwrap());
    }
    streamed.extend(reader.end().unwrap());
    let thought = Thought::Signed { text: "Hm.".into(), signature: "sig".into(), maker: Whose::Anthropic };
    assert!(streamed.contains(&Delta::Thought { choice: 0, thought }));
    let streamed = gathered(streamed);
    assert_eq!(streamed, gathered(Reader::new().whole(whole.to_string().as_bytes()).unwrap()));
    let choice = &streamed.choices[0];
    assert_eq!((choice.text.as_str(), choice.reasoning.as_str()), ("Let me look.", "Hm."));
    let call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    assert_eq!(choice.tool_calls, [call("t1", "f", r#"{"x":"語🦀"}"#), call("t2", "g", "{}")]);
    assert_eq!(choice.finish, Some(FinishReason::ToolCalls));
    let expected = Usage { prompt_tokens: 40, cached_tokens: 30, completion_tokens: 5, ..Usage::default() };
    assert_eq!(streamed.usage, Some(expected));
}

#[test]
fn an_answer_that_ends_in_a_malformed_call_is_an_error_that_may_go_away() {
    for reason in ["malformed_tool_use", "malformed_model_output"] {
        let end = json!({"stopReason": reason});
        let whole = json!({"output": {"message": {"content": [{"text": "a"}]}}, "stopReason": reason});
        for error in [
            Reader::new().whole(whole.to_string().as_bytes()).unwrap_err(),
            Reader::new().event(Some("messageStop"), &end.to_string()).unwrap_err(),
        ] {
            assert!(error.kind.retryable() && error.message.contains(reason), "{error:?}");
        }
    }
}

#[test]
fn what_is_no_answer_is_an_error() {
    let error = Reader::new().event(Some("throttlingException"), r#"{"message":"slow down"}"#).unwrap_err();
    assert_eq!(error.message, "throttlingException: slow down");
    for body in ["", "{}", "[]"] {
        assert!(Reader::new().whole(body.as_bytes()).is_err(), "{body}");
    }
    let mut reader = Reader::new();
    reader.event(Some("contentBlockDelta"), r#"{"contentBlockIndex":0,"delta":{"text":"a"}}"#).unwrap();
    assert!(reader.end().is_err());
}

#[test]
fn counting_asks_with_the_prompt_alone() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "a"}], "max_tokens": 5});
    let counted: Value = serde_json::from_str(&write_count(&asked(&body), CLAUDE).unwrap()).unwrap();
    let messages = json!([{"role": "user", "content": [{"text": "a"}]}]);
    assert_eq!(counted, json!({"input": {"converse": {"messages": messages}}}));
    assert_eq!(read_count(br#"{"inputTokens":7}"#).unwrap(), 7);
    assert!(read_count(b"{}").is_err());
}

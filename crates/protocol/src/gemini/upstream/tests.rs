//! Requests as Gemini has them, and its answers, streamed and whole.

use super::*;
use crate::upstream::testing::{asked, gathered};
use crate::{AnswerReader, Delta, FinishReason, GenerateRequest, Maker, Thought, ToolCall, Usage};
use serde_json::{Value, json};

#[track_caller]
fn written(body: Value, model: &str) -> Value {
    serde_json::from_str(&write(&asked(&body), model).unwrap()).unwrap()
}

#[test]
fn a_conversation_with_calls_is_contents_with_parts() {
    let body = json!({"model": "m", "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [
            {"type": "text", "text": "Look"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\":1}"}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": ""}}]},
        {"role": "tool", "tool_call_id": "b", "content": "[1]"},
        {"role": "tool", "tool_call_id": "a", "content": "{\"y\":2}"},
        {"role": "user", "content": "So?"}],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {
            "type": "object", "properties": {"x": {"type": "integer"}}, "additionalProperties": false}}},
            {"type": "function", "function": {"name": "g", "parameters": {"type": "object", "properties": {}}}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "max_tokens": 5, "temperature": 0.5, "top_p": 0.25, "stop": ["x"], "n": 2, "seed": 7});
    let expected = json!({
        "contents": [
            {"role": "user", "parts": [{"text": "Look"}, {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]},
            {"role": "model", "parts": [
                {"functionCall": {"name": "f", "args": {"x": 1}}}, {"functionCall": {"name": "g", "args": {}}}]},
            {"role": "user", "parts": [
                {"functionResponse": {"name": "g", "response": {"result": "[1]"}}},
                {"functionResponse": {"name": "f", "response": {"y": 2}}}]},
            {"role": "user", "parts": [{"text": "So?"}]}],
        "systemInstruction": {"parts": [{"text": "Be brief."}]},
        "tools": [{"functionDeclarations": [
            {"name": "f", "description": "d",
                "parameters": {"type": "object", "properties": {"x": {"type": "integer"}}}},
            {"name": "g"}]}],
        "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
        "generationConfig": {"temperature": 0.5, "topP": 0.25, "seed": 7, "maxOutputTokens": 5,
            "stopSequences": ["x"], "candidateCount": 2},
    });
    assert_eq!(written(body, "gemini-2.5-flash"), expected);
}

#[test]
fn a_proof_goes_back_to_the_call_it_came_with() {
    let mut request = asked(&json!({"model": "m", "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}},
            {"id": "b", "type": "function", "function": {"name": "g", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "a", "content": "1"}, {"role": "tool", "tool_call_id": "b", "content": "2"}]}));
    let proofs = |request: &GenerateRequest, model: &str| {
        let body: Value = serde_json::from_str(&write(request, model).unwrap()).unwrap();
        [0, 1].map(|at| body["contents"][1]["parts"][at]["thoughtSignature"].as_str().map(str::to_owned))
    };
    assert_eq!(proofs(&request, "gemini-2.5-flash"), [None, None]);
    // Newer models refuse a call without one.
    let stand_in = Some("skip_thought_signature_validator".to_owned());
    assert_eq!(proofs(&request, "gemini-3.1-pro-preview"), [stand_in, None]);
    let crate::Input::Chat(messages) = &mut request.input else { unreachable!() };
    messages[1].thoughts =
        vec![Thought::Signed { text: "t".into(), signature: "s".into(), maker: Maker::Google }];
    assert_eq!(proofs(&request, "gemini-3.1-pro-preview"), [Some("s".to_owned()), None]);
}

#[test]
fn thought_is_a_budget_or_a_level_by_the_models_generation() {
    let config = |effort: &str, model: &str| {
        let body =
            json!({"model": "m", "messages": [{"role": "user", "content": "a"}], "reasoning_effort": effort});
        written(body, model)["generationConfig"]["thinkingConfig"].clone()
    };
    assert_eq!(config("low", "gemini-2.5-flash"), json!({"thinkingBudget": 1024, "includeThoughts": true}));
    assert_eq!(config("none", "gemini-2.5-flash"), json!({"thinkingBudget": 0, "includeThoughts": false}));
    assert_eq!(config("none", "gemini-2.5-pro"), json!({"thinkingBudget": 128, "includeThoughts": false}));
    assert_eq!(
        config("none", "gemini-3-flash"),
        json!({"thinkingLevel": "MINIMAL", "includeThoughts": false})
    );
    assert_eq!(config("minimal", "gemini-3-pro"), json!({"thinkingLevel": "LOW", "includeThoughts": true}));
    assert_eq!(config("high", "gemini-3-flash"), json!({"thinkingLevel": "HIGH", "includeThoughts": true}));
}

#[test]
fn a_schema_is_brought_into_the_subset_that_is_taken() {
    let schema = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object", "additionalProperties": false,
        "$defs": {"P": {"type": "object", "properties": {"next": {"$ref": "#/$defs/P"}, "at": {"type": "string", "format": "uri"}}}},
        "properties": {
            "a": {"type": ["string", "null"], "format": "date-time"},
            "b": {"anyOf": [{"type": "integer", "exclusiveMinimum": 0}, {"type": "null"}]},
            "c": {"oneOf": [{"const": "x"}, {"enum": [1, 2]}]},
            "d": {"allOf": [{"type": "object", "properties": {"e": {"type": "boolean"}}}], "required": ["e", "gone"]},
            "l": {"type": "array"}},
        "required": ["a"]});
    let expected = json!({"type": "object", "properties": {
        "a": {"type": "string", "nullable": true, "format": "date-time"},
        "b": {"nullable": true, "type": "integer"},
        "c": {"anyOf": [{"enum": ["x"], "type": "string"}, {}]},
        "d": {"type": "object", "properties": {"e": {"type": "boolean"}}, "required": ["e"]},
        "l": {"type": "array", "items": {}}}, "required": ["a"]});
    assert_eq!(schema::subset(&schema), expected);
    // A schema that holds itself ends.
    let holds = json!({"$defs": schema["$defs"], "$ref": "#/$defs/P"});
    assert!(schema::subset(&holds).to_string().len() < 2000);
}

#[test]
fn what_the_dialect_has_no_words_for_is_refused_by_name() {
    for (name, value) in
        [("logprobs", json!(true)), ("logit_bias", json!({"1": 5})), ("ignore_eos", json!(true))]
    {
        let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "a"}],
            "tools": [{"type": "function", "function": {"name": "f"}}]});
        body[name] = value;
        let error = write(&asked(&body), "g").unwrap_err();
        assert_eq!(error.param.as_deref(), Some(name), "{error}");
    }
    let body = json!({"model": "m", "messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "https://example.com/x"}}]}]});
    let error = write(&asked(&body), "g").unwrap_err();
    assert_eq!(error.param.as_deref(), Some("messages[0].content[0].image_url.url"));
}

const USAGE: &str = r#"{"promptTokenCount":10,"cachedContentTokenCount":4,"candidatesTokenCount":3,"thoughtsTokenCount":2,"totalTokenCount":15}"#;

/// Row 10 of the public faults: STOP with a call was told as `stop`, and the agent halted.
#[test]
fn a_call_ends_as_tool_calls_streamed_or_whole() {
    let parts = [
        r#"{"text":"Hm.","thought":true}"#,
        r#"{"text":"Let me look."}"#,
        r#"{"functionCall":{"name":"f","args":{"x":"語🦀"}},"thoughtSignature":"c2ln"}"#,
        r#"{"functionCall":{"name":"g"}}"#,
    ];
    let chunk = |parts: &str, more: &str| {
        format!(
            r#"{{"candidates":[{{"content":{{"parts":[{parts}],"role":"model"}}{more},"index":0}}],"responseId":"r1","usageMetadata":{USAGE}}}"#
        )
    };
    let stop = r#","finishReason":"STOP""#;
    let mut reader = Reader::new(1);
    let mut streamed = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        let more = if at + 1 == parts.len() { stop } else { "" };
        streamed.extend(reader.event(None, &chunk(part, more)).unwrap());
    }
    streamed.extend(reader.end().unwrap());
    let whole = Reader::new(1).whole(chunk(&parts.join(","), stop).as_bytes()).unwrap();
    assert_eq!(streamed, whole);
    let thought = Thought::Signed { text: "Hm.".into(), signature: "c2ln".into(), maker: Maker::Google };
    assert!(whole.contains(&Delta::Thought { choice: 0, thought }));
    let answer = gathered(whole);
    let choice = &answer.choices[0];
    assert_eq!((choice.text.as_str(), choice.reasoning.as_str()), ("Let me look.", "Hm."));
    let call = |id: &str, name: &str, arguments: &str| ToolCall {
        id: id.into(),
        name: name.into(),
        arguments: arguments.into(),
    };
    assert_eq!(
        choice.tool_calls,
        [call("call_r1_0_0", "f", r#"{"x":"語🦀"}"#), call("call_r1_0_1", "g", "{}")]
    );
    assert_eq!(choice.finish, Some(FinishReason::ToolCalls));
    let expected = Usage {
        prompt_tokens: 10,
        cached_tokens: 4,
        completion_tokens: 5,
        reasoning_tokens: 2,
        ..Usage::default()
    };
    assert_eq!(answer.usage, Some(expected));
}

#[test]
fn each_reason_of_an_end_has_a_canonical_one() {
    let ends = |reason: &str| {
        let body = format!(
            r#"{{"candidates":[{{"content":{{"parts":[{{"text":"a"}}]}},"finishReason":"{reason}"}}]}}"#
        );
        gathered(Reader::new(1).whole(body.as_bytes()).unwrap()).choices[0].finish
    };
    for (reason, expected) in [
        ("STOP", FinishReason::Stop),
        ("MAX_TOKENS", FinishReason::Length),
        ("SAFETY", FinishReason::ContentFilter),
        ("PROHIBITED_CONTENT", FinishReason::ContentFilter),
        ("SOMETHING_NEW", FinishReason::Stop),
    ] {
        assert_eq!(ends(reason), Some(expected), "{reason}");
    }
    let refused = r#"{"promptFeedback":{"blockReason":"SAFETY"},"usageMetadata":{"promptTokenCount":3}}"#;
    let answer = gathered(Reader::new(1).whole(refused.as_bytes()).unwrap());
    assert_eq!(answer.choices[0].finish, Some(FinishReason::ContentFilter));
    assert_eq!(answer.usage.unwrap().prompt_tokens, 3);
}

#[test]
fn an_answer_that_ends_in_a_malformed_call_is_an_error_that_may_go_away() {
    for reason in ["MALFORMED_FUNCTION_CALL", "UNEXPECTED_TOOL_CALL", "MISSING_THOUGHT_SIGNATURE"] {
        let body = format!(
            r#"{{"candidates":[{{"content":{{"parts":[{{"text":"a"}}]}},"finishReason":"{reason}","finishMessage":"Malformed function call: f("}}]}}"#
        );
        for error in [
            Reader::new(1).whole(body.as_bytes()).unwrap_err(),
            Reader::new(1).event(None, &body).unwrap_err(),
        ] {
            assert!(error.kind.retryable() && error.message.contains("call: f("), "{error:?}");
        }
    }
}

#[test]
fn what_is_no_answer_is_an_error() {
    let error = Reader::new(1).event(None, r#"{"error":{"code":503,"message":"busy"}}"#).unwrap_err();
    assert_eq!(error.message, "busy");
    for body in ["", "[]", "null", "{\"candidates\":[{\"index\":5}]}", "{}"] {
        assert!(Reader::new(1).whole(body.as_bytes()).is_err(), "{body}");
    }
    // A stream that stops before any candidate has.
    let mut reader = Reader::new(1);
    reader.event(None, r#"{"candidates":[{"content":{"parts":[{"text":"a"}]}}]}"#).unwrap();
    assert!(reader.end().is_err());
}

#[test]
fn counting_asks_with_the_prompt_as_each_of_googles_services_takes_it() {
    let body = json!({"model": "m", "messages": [{"role": "user", "content": "a"}],
        "tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": "required"});
    let request = asked(&body);
    let count = |of_vertex| -> Value {
        serde_json::from_str(&write_count(&request, "gemini-2.5-flash", of_vertex).unwrap()).unwrap()
    };
    let contents = json!([{"role": "user", "parts": [{"text": "a"}]}]);
    let whole = &count(false)["generateContentRequest"];
    assert_eq!((&whole["model"], &whole["contents"]), (&json!("models/gemini-2.5-flash"), &contents));
    assert!(whole["toolConfig"].is_object());
    assert_eq!(count(true), json!({"contents": contents, "tools": whole["tools"]}));
    assert_eq!(read_count(br#"{"totalTokens":7}"#).unwrap(), 7);
    assert!(read_count(b"{}").is_err());
}

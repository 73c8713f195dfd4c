//! Translation as a whole: answers from one dialect to the other, requests there and back. Claims that begin with a row
//! are public faults of other gateways.

use crate::anthropic::{self, EventWriter, MessageWriter};
use crate::openai::chat::{self, ChunkWriter};
use crate::openai::upstream::Speaker;
use crate::openai::{self, Head};
use crate::upstream::testing::gathered;
use crate::{
    AnswerReader, Delta, Error, Event, FinishReason, GenerateRequest, Input, Maker, Message, Part, Role,
    StreamWriter, Thought, ToolCall, Usage,
};
use proptest::prelude::*;
use serde_json::{Value, json};

fn read(reader: &mut dyn AnswerReader, events: &[Value]) -> Result<Vec<Delta>, Error> {
    let mut deltas = Vec::new();
    for event in events {
        let data = event.as_str().map_or_else(|| event.to_string(), str::to_owned);
        deltas.extend(reader.event(event["type"].as_str(), &data)?);
    }
    deltas.extend(reader.end()?);
    Ok(deltas)
}

fn from_openai(events: &[Value]) -> Result<Vec<Delta>, Error> {
    read(&mut openai::upstream::Reader::new(1), events)
}

fn from_anthropic(events: &[Value]) -> Result<Vec<Delta>, Error> {
    read(&mut anthropic::upstream::Reader::new(), events)
}

fn chunk(delta: Value) -> Value {
    json!({"id": "chatcmpl-1", "object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": null}]})
}

fn ending(reason: &str) -> Value {
    json!({"id": "chatcmpl-1", "choices": [{"index": 0, "delta": {}, "finish_reason": reason}]})
}

fn done() -> Value {
    json!("[DONE]")
}

fn call(index: u32, id: Option<&str>, name: Option<&str>, arguments: &str) -> Value {
    chunk(
        json!({"tool_calls": [{"index": index, "id": id, "function": {"name": name, "arguments": arguments}}]}),
    )
}

/// The events of Anthropic's stream for these deltas.
fn to_anthropic(deltas: Vec<Delta>) -> Vec<Value> {
    let head = anthropic::Head { id: "msg_1".into(), model: "m".into(), thoughts: true };
    let mut writer = EventWriter::new(head);
    let mut events: Vec<Event> = deltas.into_iter().flat_map(|delta| writer.delta(0, delta)).collect();
    events.extend(writer.finish());
    events.iter().map(|event| serde_json::from_str(&event.data).unwrap()).collect()
}

/// Row 35: a delta came before its block began. Events are those of Anthropic's grammar: blocks one after the other, each
/// with start, deltas of its own kind, and stop.
#[track_caller]
fn check_grammar(events: &[Value]) {
    let kind = |event: &Value| event["type"].as_str().unwrap().to_owned();
    let mut events = events.iter().filter(|event| event["type"] != "ping");
    assert_eq!(events.next().map(kind).as_deref(), Some("message_start"));
    let (mut open, mut next) = (None::<String>, 0);
    for event in events.by_ref() {
        match kind(event).as_str() {
            "content_block_start" => {
                assert!(open.is_none(), "{event}");
                assert_eq!(event["index"], next, "{event}");
                open = Some(event["content_block"]["type"].as_str().unwrap().to_owned());
            }
            "content_block_delta" => {
                assert_eq!(event["index"], next, "{event}");
                let of = match event["delta"]["type"].as_str().unwrap() {
                    "text_delta" => "text",
                    "thinking_delta" | "signature_delta" => "thinking",
                    "input_json_delta" => "tool_use",
                    other => panic!("{other}"),
                };
                assert_eq!(open.as_deref(), Some(of), "{event}");
            }
            "content_block_stop" => {
                assert!(open.take().is_some() && event["index"] == next, "{event}");
                next += 1;
            }
            "message_delta" => {
                assert!(open.is_none() && event["delta"]["stop_reason"].is_string(), "{event}");
                break;
            }
            other => panic!("{other}"),
        }
    }
    assert_eq!(events.map(kind).collect::<Vec<_>>(), ["message_stop"]);
}

/// What a client of Anthropic's gathers from a stream: its blocks and the reason of its end.
fn message_of(events: &[Value]) -> (Vec<Value>, String, Value) {
    let mut blocks: Vec<Value> = Vec::new();
    let (mut json, mut reason, mut usage) = (String::new(), String::new(), Value::Null);
    for event in events {
        match event["type"].as_str().unwrap() {
            "content_block_start" => {
                blocks.push(event["content_block"].clone());
                json.clear();
            }
            "content_block_delta" => {
                let (block, delta) = (blocks.last_mut().unwrap(), &event["delta"]);
                for name in ["text", "thinking", "signature"] {
                    if let Some(more) = delta[name].as_str() {
                        block[name] = format!("{}{more}", block[name].as_str().unwrap_or_default()).into();
                    }
                }
                if let Some(more) = delta["partial_json"].as_str() {
                    json.push_str(more);
                    block["input"] = serde_json::from_str(&json).unwrap_or(Value::Null);
                }
            }
            "message_delta" => {
                event["delta"]["stop_reason"].as_str().unwrap().clone_into(&mut reason);
                usage = event["usage"].clone();
            }
            _ => {}
        }
    }
    (blocks, reason, usage)
}

/// Row 1: usage in the last chunk beside a choice was dropped, and guessed. Row 2: `cached_tokens: 0` vanished.
#[test]
fn row_1_usage_counts_in_whatever_chunk_it_comes_and_the_last_one_holds() {
    let usage = |prompt: u32| json!({"prompt_tokens": prompt, "completion_tokens": 100, "prompt_tokens_details": {"cached_tokens": 600}});
    let early = json!({"choices": [{"index": 0, "delta": {"content": "a"}}], "usage": usage(1)});
    for last in [
        json!({"choices": [], "usage": usage(1000)}),
        json!({"choices": [{"index": 0, "delta": {}}], "usage": usage(1000)}),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": usage(1000)}),
        json!({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop", "usage": usage(1000)}]}),
    ] {
        let deltas = from_openai(&[early.clone(), ending("stop"), last.clone(), done()]).unwrap();
        let expected =
            Usage { prompt_tokens: 1000, cached_tokens: 600, completion_tokens: 100, ..Usage::default() };
        assert_eq!(deltas.last(), Some(&Delta::Usage(expected)), "{last}");
        let (_, _, told) = message_of(&to_anthropic(deltas));
        assert_eq!((&told["input_tokens"], &told["cache_read_input_tokens"]), (&json!(400), &json!(600)));
    }
}

/// Row 6: in a stream of Messages over an OpenAI upstream the cache's fields were 0.
#[test]
fn row_6_the_true_numbers_stand_in_the_message_delta() {
    let usage = json!({"prompt_tokens": 50, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 40, "cache_write_tokens": 8}});
    let events = to_anthropic(
        from_openai(&[
            chunk(json!({"content": "a"})),
            ending("stop"),
            json!({"choices": [], "usage": usage}),
            done(),
        ])
        .unwrap(),
    );
    let (_, _, told) = message_of(&events);
    for (name, value) in [
        ("input_tokens", 2),
        ("cache_read_input_tokens", 40),
        ("cache_creation_input_tokens", 8),
        ("output_tokens", 5),
    ] {
        assert_eq!(told[name], value, "{name}");
    }
}

#[test]
fn the_message_delta_tells_what_was_written_to_a_cache_and_for_how_long() {
    let mut reader = crate::bedrock::upstream::Reader::new();
    let mut deltas = Vec::new();
    for (name, data) in [
        ("contentBlockDelta", json!({"contentBlockIndex": 0, "delta": {"text": "a"}})),
        ("messageStop", json!({"stopReason": "end_turn"})),
        (
            "metadata",
            json!({"usage": {"inputTokens": 2, "outputTokens": 5, "totalTokens": 27, "cacheWriteInputTokens": 20,
                "cacheDetails": [{"ttl": "1h", "inputTokens": 12}, {"ttl": "5m", "inputTokens": 8}]}}),
        ),
    ] {
        deltas.extend(reader.event(Some(name), &data.to_string()).unwrap());
    }
    deltas.extend(reader.end().unwrap());
    let (_, _, told) = message_of(&to_anthropic(deltas));
    assert_eq!(told["cache_creation_input_tokens"], 20);
    assert_eq!(
        told["cache_creation"],
        json!({"ephemeral_5m_input_tokens": 8, "ephemeral_1h_input_tokens": 12})
    );
}

/// Row 7: name and all arguments in one chunk became a call without input.
#[test]
fn row_7_a_call_that_comes_in_one_chunk_keeps_its_input() {
    let deltas =
        from_openai(&[call(0, Some("call_a"), Some("f"), r#"{"x":1}"#), ending("tool_calls"), done()])
            .unwrap();
    let events = to_anthropic(deltas);
    check_grammar(&events);
    let (blocks, reason, _) = message_of(&events);
    assert_eq!(blocks, [json!({"type": "tool_use", "id": "toolu_a", "name": "f", "input": {"x": 1}})]);
    assert_eq!(reason, "tool_use");
}

/// Rows 10 and 11: an answer with calls said that it had just stopped, and agents halted.
#[test]
fn rows_10_and_11_an_answer_with_calls_ends_with_them_whatever_the_provider_says() {
    for said in ["stop", "tool_calls", "function_call", "STOP"] {
        let deltas = from_openai(&[
            chunk(json!({"content": "I look."})),
            call(0, Some("c"), Some("f"), "{}"),
            ending(said),
            done(),
        ]);
        let (_, reason, _) = message_of(&to_anthropic(deltas.unwrap()));
        assert_eq!(reason, "tool_use", "{said}");
    }
    let block = json!({"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}});
    let body = json!({"content": [{"type": "text", "text": "I look."}, block], "stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}});
    let deltas = anthropic::upstream::Reader::new().whole(body.to_string().as_bytes()).unwrap();
    assert_eq!(gathered(deltas).choices[0].finish, Some(FinishReason::ToolCalls));
    // An answer that was cut says so.
    let deltas = from_openai(&[call(0, Some("c"), Some("f"), "{"), ending("length"), done()]).unwrap();
    assert_eq!(gathered(deltas).choices[0].finish, Some(FinishReason::Length));
}

#[test]
fn calls_are_told_apart_however_a_provider_numbers_them() {
    let expected = [("c0", r#"{"a":1}"#), ("c1", r#"{"b":2}"#)];
    for chunks in [
        // As OpenAI has it.
        vec![
            call(0, Some("c0"), Some("f"), ""),
            call(0, None, None, r#"{"a""#),
            call(0, None, None, ":1}"),
            call(1, Some("c1"), Some("f"), r#"{"b":2}"#),
        ],
        // Every call has number 0.
        vec![call(0, Some("c0"), Some("f"), r#"{"a":1}"#), call(0, Some("c1"), Some("f"), r#"{"b":2}"#)],
        // Id and name stand in every chunk.
        vec![
            call(0, Some("c0"), Some("f"), r#"{"a""#),
            call(0, Some("c0"), Some("f"), ":1}"),
            call(1, Some("c1"), Some("f"), r#"{"b":2}"#),
        ],
        // By turns.
        vec![
            call(0, Some("c0"), Some("f"), r#"{"a""#),
            call(1, Some("c1"), Some("f"), r#"{"b":2}"#),
            call(0, None, None, ":1}"),
        ],
        // Both in one chunk, without numbers.
        vec![chunk(json!({"tool_calls": [
            {"id": "c0", "function": {"name": "f", "arguments": {"a": 1}}}, {"id": "c1", "function": {"name": "f", "arguments": "{\"b\":2}"}}
        ]}))],
        // The name comes behind arguments.
        vec![
            call(0, Some("c0"), None, r#"{"a""#),
            call(0, None, Some("f"), ":1}"),
            call(1, Some("c1"), Some("f"), r#"{"b":2}"#),
        ],
    ] {
        let events = [chunks.clone(), vec![ending("tool_calls"), done()]].concat();
        let answer = gathered(from_openai(&events).unwrap());
        let calls: Vec<_> = answer.choices[0]
            .tool_calls
            .iter()
            .map(|call| (call.id.as_str(), call.arguments.as_str()))
            .collect();
        assert_eq!(calls, expected, "{chunks:?}");
        check_grammar(&to_anthropic(from_openai(&events).unwrap()));
    }
}

#[test]
fn calls_without_an_id_get_one() {
    let deltas = from_openai(&[call(0, None, Some("f"), "{}"), ending("stop"), done()]).unwrap();
    assert_eq!(gathered(deltas).choices[0].tool_calls[0].id, "call_chatcmpl1_0");
}

#[test]
fn thoughts_come_under_either_name_and_once() {
    for delta in [
        json!({"reasoning_content": "hm", "reasoning": "hm"}),
        json!({"reasoning": "hm"}),
        json!({"reasoning_content": "hm"}),
        json!({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "hm"}]}]}),
        json!({"reasoning_details": [{"type": "reasoning.text", "text": "hm", "signature": "s"}]}),
    ] {
        let answer = gathered(from_openai(&[chunk(delta.clone()), ending("stop"), done()]).unwrap());
        assert_eq!(answer.choices[0].reasoning, "hm", "{delta}");
    }
}

#[test]
fn errors_inside_an_answer_and_answers_that_break_off_are_errors() {
    for event in [json!({"error": {"message": "overloaded", "code": 529}}), json!({"error": "overloaded"})] {
        assert_eq!(from_openai(&[event]).unwrap_err().message, "overloaded");
    }
    let event = json!({"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}});
    assert_eq!(from_anthropic(&[event]).unwrap_err().message, "overloaded");
    assert!(from_openai(&[chunk(json!({"content": "a"}))]).is_err());
    assert!(from_openai(&[json!("{")]).is_err());
    assert!(from_anthropic(&[json!({"type": "message_start", "message": {}})]).is_err());
    // Some end without `[DONE]`.
    assert!(from_openai(&[chunk(json!({"content": "a"})), ending("stop")]).is_ok());
}

/// An answer with all that an answer can have.
fn rich() -> Vec<Delta> {
    let text = |text: &str| Delta::Text { choice: 0, text: text.into(), logprobs: Vec::new() };
    let start =
        |index: u32, id: &str| Delta::ToolCallStart { choice: 0, index, id: id.into(), name: "f".into() };
    let more = |index, text: &str| Delta::ToolCallArguments { choice: 0, index, arguments: text.into() };
    vec![
        Delta::Started { prompt_tokens: 30, cached_tokens: 20 },
        Delta::Reasoning { choice: 0, text: "let me ".into() },
        Delta::Reasoning { choice: 0, text: "see 語".into() },
        Delta::Thought {
            choice: 0,
            thought: Thought::Signed {
                text: "let me see 語".into(),
                signature: "sig".into(),
                maker: Maker::Anthropic,
            },
        },
        Delta::Thought {
            choice: 0,
            thought: Thought::Redacted { data: "secret".into(), maker: Maker::Anthropic },
        },
        text("I ask 🦀 "),
        text("twice."),
        start(0, "call_a"),
        more(0, "{\"city\":"),
        more(0, "\"Zürich\"}"),
        start(1, "call_b"),
        more(1, "{}"),
        Delta::Finish { choice: 0, reason: FinishReason::ToolCalls, stop_text: None },
        Delta::Usage(Usage {
            prompt_tokens: 30,
            cached_tokens: 20,
            cache_write_tokens: 4,
            completion_tokens: 9,
            reasoning_tokens: 3,
            ..Usage::default()
        }),
    ]
}

#[test]
fn an_answer_comes_through_both_dialects_unchanged_streamed_or_whole() {
    let expected = gathered(rich());
    // OpenAI's.
    let head = Head { id: "x".into(), created: 0, model: "m".into() };
    let asked = chat::Asked { choices: 1, logprobs: false, include_usage: true };
    let mut writer = ChunkWriter::new(head.clone(), asked);
    let mut events: Vec<Event> = rich().into_iter().flat_map(|delta| writer.delta(0, delta)).collect();
    events.extend(writer.finish());
    let events: Vec<Value> = events
        .iter()
        .map(|event| serde_json::from_str(&event.data).unwrap_or_else(|_| json!(event.data)))
        .collect();
    assert_eq!(gathered(from_openai(&events).unwrap()), expected);
    let body = chat::completion(&head, &asked, &expected);
    assert_eq!(gathered(openai::upstream::Reader::new(1).whole(body.as_bytes()).unwrap()), expected);
    // Anthropic's.
    let events = to_anthropic(rich());
    check_grammar(&events);
    assert_eq!(gathered(from_anthropic(&events).unwrap()), expected);
    let mut writer =
        MessageWriter::new(anthropic::Head { id: "msg_1".into(), model: "m".into(), thoughts: true });
    rich().into_iter().for_each(|delta| writer.push(delta));
    let deltas = anthropic::upstream::Reader::new().whole(writer.finish().as_bytes()).unwrap();
    assert_eq!(gathered(deltas), expected);
}

fn chat_of(body: &Value) -> GenerateRequest {
    chat::parse(body.to_string().as_bytes()).unwrap_or_else(|error| panic!("{error}: {body}")).request
}

fn messages_of(body: &Value) -> GenerateRequest {
    anthropic::parse(body.to_string().as_bytes()).unwrap_or_else(|error| panic!("{error}: {body}")).request
}

fn as_openai(request: &GenerateRequest, speaker: &Speaker) -> Value {
    serde_json::from_str(&openai::upstream::write(request, "m", speaker, true).unwrap()).unwrap()
}

fn as_anthropic(request: &GenerateRequest) -> Value {
    serde_json::from_str(&anthropic::upstream::write(request, "m").unwrap()).unwrap()
}

/// Conversations as agents have them, in Anthropic's form: what must survive a way over OpenAI's and back.
fn conversations() -> Vec<Value> {
    let tools = json!([
        {"name": "look", "description": "Looks.", "input_schema": {"type": "object", "properties": {"z": {"type": "string"}, "a": {"enum": [1, null]}}, "required": ["z"]}},
        {"name": "now", "input_schema": {"type": "object", "properties": {}}},
    ]);
    let call = |id: &str, name: &str, input: Value| json!({"type": "tool_use", "id": id, "name": name, "input": input});
    let result =
        |id: &str, content: Value| json!({"type": "tool_result", "tool_use_id": id, "content": content});
    vec![
        json!({"messages": [{"role": "user", "content": "hi"}]}),
        json!({"system": "Be brief.", "messages": [{"role": "user", "content": "日本語 🦀 \"quoted\"\n{x}"}], "temperature": 0.7, "stop_sequences": ["END", "\n\n"]}),
        json!({"system": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "messages": [
            {"role": "user", "content": [{"type": "text", "text": "what is this?"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}, {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}}]},
            {"role": "assistant", "content": "A cat."},
            {"role": "user", "content": "Sure?"},
        ]}),
        json!({"tools": tools, "tool_choice": {"type": "any", "disable_parallel_tool_use": true}, "messages": [
            {"role": "user", "content": "look twice"},
            {"role": "assistant", "content": [{"type": "text", "text": "I do."}, call("toolu_1", "look", json!({"z": "é", "a": [1, {"b": null}]})), call("toolu_2", "now", json!({}))]},
            {"role": "user", "content": [result("toolu_1", json!("found")), result("toolu_2", json!("12:00")), {"type": "text", "text": "and?"}]},
        ]}),
        json!({"tools": tools, "tool_choice": {"type": "tool", "name": "now"}, "messages": [
            {"role": "user", "content": "a"},
            {"role": "assistant", "content": [call("toolu_1", "now", json!({}))]},
            {"role": "user", "content": [result("toolu_1", json!([{"type": "text", "text": "x"}]))]},
            {"role": "assistant", "content": [call("toolu_2", "now", json!({}))]},
            {"role": "user", "content": [result("toolu_2", json!("y"))]},
        ]}),
        json!({"output_config": {"format": {"type": "json_schema", "schema": {"type": "object", "properties": {"b": {}, "a": {}}, "additionalProperties": false}}}, "messages": [{"role": "user", "content": "as JSON"}]}),
    ]
    .into_iter()
    .map(|mut body| {
        body["model"] = "m".into();
        body["max_tokens"] = 100.into();
        body
    })
    .collect()
}

/// What is compared: switches for thinking that one dialect always says and the other does not are left out, as are marks
/// for caches, which plain speakers have no words for.
fn plain(mut request: GenerateRequest) -> GenerateRequest {
    request.template_variables.clear();
    request.reasoning_unsaid = false;
    if let crate::ResponseFormat::JsonSchema { name, .. } = &mut request.response_format {
        *name = None;
    }
    request
}

#[test]
fn conversations_survive_the_way_over_the_other_dialect_and_back() {
    for body in conversations() {
        let first = messages_of(&body);
        let over = chat_of(&as_openai(&first, &Speaker::OPENAI));
        assert_eq!(plain(over.clone()), plain(first.clone()), "{body}");
        let back = messages_of(&as_anthropic(&over));
        assert_eq!(plain(back), plain(first), "{body}");
    }
}

/// Row 29: the tools' order changed from request to request, and no cache found its prefix.
#[test]
fn row_29_the_same_request_is_written_in_the_same_bytes_in_the_clients_order() {
    for body in conversations() {
        let (one, two) = (messages_of(&body), messages_of(&body));
        for speaker in [Speaker::OPENAI, Speaker::PLAIN, Speaker::ENGINE, Speaker::ROUTER] {
            let write = |request| openai::upstream::write(request, "m", &speaker, true).unwrap();
            assert_eq!(write(&one), write(&two));
        }
        assert_eq!(anthropic::upstream::write(&one, "m"), anthropic::upstream::write(&two, "m"));
        let names = |tools: &Value| -> Vec<Value> {
            tools.as_array().into_iter().flatten().map(|tool| tool["name"].clone()).collect()
        };
        assert_eq!(names(&as_anthropic(&one)["tools"]), names(&body["tools"]));
        if let Some(schema) = body["tools"][0].get("input_schema") {
            let written = as_openai(&one, &Speaker::PLAIN)["tools"][0]["function"]["parameters"].to_string();
            assert_eq!(written, schema.to_string());
        }
    }
}

#[test]
fn marks_for_caches_stand_where_the_client_put_them() {
    let ephemeral = json!({"type": "ephemeral"});
    let hour = json!({"type": "ephemeral", "ttl": "1h"});
    let body = json!({
        "model": "m", "max_tokens": 10,
        "system": [{"type": "text", "text": "long", "cache_control": hour}, {"type": "text", "text": "short"}],
        "tools": [{"name": "f", "input_schema": {"type": "object"}, "cache_control": ephemeral}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "a", "cache_control": ephemeral}, {"type": "text", "text": "b"}]},
            {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}, "cache_control": ephemeral}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [{"type": "text", "text": "r"}], "cache_control": ephemeral}, {"type": "text", "text": "go on", "cache_control": hour}]},
        ],
    });
    assert_eq!(as_anthropic(&messages_of(&body)), body);
    // OpenRouter takes them in OpenAI's dialect; the others do not know them.
    let routed = as_openai(&messages_of(&body), &Speaker::ROUTER);
    assert_eq!(routed["messages"][0]["content"][0]["cache_control"], hour);
    assert_eq!(routed["messages"][1]["content"][0]["cache_control"], ephemeral);
    assert_eq!(routed["tools"][0]["cache_control"], ephemeral);
    assert_eq!(as_anthropic(&chat_of(&routed))["messages"][0], body["messages"][0]);
    assert!(!as_openai(&messages_of(&body), &Speaker::OPENAI).to_string().contains("cache_control"));
}

#[test]
fn signed_thoughts_come_back_to_the_service_that_thought_them() {
    let details = json!([
        {"type": "reasoning.text", "text": "hm", "signature": "sig"}, {"type": "reasoning.encrypted", "data": "xx"},
    ]);
    let body = json!({"model": "m", "reasoning_effort": "medium", "max_tokens": 9000, "messages": [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": null, "reasoning": "hm", "reasoning_details": details,
         "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
        {"role": "tool", "tool_call_id": "call_1", "content": "r"},
    ], "tools": [{"type": "function", "function": {"name": "f"}}]});
    let written = as_anthropic(&chat_of(&body));
    assert_eq!(written["thinking"], json!({"type": "enabled", "budget_tokens": 2048}));
    assert_eq!(
        written["messages"][1]["content"],
        json!([
            {"type": "thinking", "thinking": "hm", "signature": "sig"}, {"type": "redacted_thinking", "data": "xx"},
            {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}},
        ])
    );
    // Without them that API would refuse to think in the middle of the turn.
    let mut bare = body.clone();
    bare["messages"][1]["reasoning_details"] = Value::Null;
    let written = as_anthropic(&chat_of(&bare));
    assert_eq!(written.get("thinking"), None);
    assert_eq!(written["messages"][1]["content"].as_array().unwrap().len(), 1);
}

#[test]
fn how_long_to_think_has_a_counterpart_on_either_side() {
    let openai = |effort: &str| {
        let body =
            json!({"model": "m", "messages": [{"role": "user", "content": "a"}], "reasoning_effort": effort});
        as_anthropic(&chat_of(&body))
    };
    assert_eq!(openai("low")["thinking"]["budget_tokens"], 1024);
    assert_eq!(openai("high")["thinking"]["budget_tokens"], 4096);
    assert_eq!(openai("high")["max_tokens"], 4096 + 8192);
    assert_eq!(openai("none").get("thinking"), None);
    let anthropic = |thinking: Value| {
        let body = json!({"model": "m", "max_tokens": 9000, "messages": [{"role": "user", "content": "a"}], "thinking": thinking});
        as_openai(&messages_of(&body), &Speaker::OPENAI)
    };
    assert_eq!(anthropic(json!({"type": "enabled", "budget_tokens": 31999}))["reasoning_effort"], "high");
    assert_eq!(anthropic(json!({"type": "enabled", "budget_tokens": 2048}))["reasoning_effort"], "medium");
    assert_eq!(anthropic(json!({"type": "adaptive"}))["reasoning_effort"], "medium");
    assert_eq!(anthropic(json!({"type": "disabled"})).get("reasoning_effort"), None);
    assert_eq!(anthropic(Value::Null).get("reasoning_effort"), None);
}

#[test]
fn each_speaker_gets_what_it_takes() {
    let message = |role, text: &str| Message::text(role, text);
    let request = GenerateRequest {
        input: Input::Chat(vec![
            message(Role::Developer, "be brief"),
            Message {
                reasoning: Some("hm".into()),
                tool_calls: vec![ToolCall { id: "call_1".into(), name: "f".into(), arguments: "{}".into() }],
                ..Message { content: crate::Content::default(), ..message(Role::Assistant, "") }
            },
            Message {
                tool_call_id: Some("call_1".into()),
                content: crate::Content(vec![
                    Part::Text("see".into()),
                    Part::Image { url: "data:image/png;base64,AA==".into(), detail: None },
                ]),
                ..message(Role::Tool, "")
            },
        ]),
        max_tokens: Some(7),
        choices: 1,
        session: Some("s".repeat(70)),
        ..GenerateRequest::default()
    };
    let openai = as_openai(&request, &Speaker::OPENAI);
    assert_eq!(
        (&openai["max_completion_tokens"], &openai["messages"][0]["role"]),
        (&json!(7), &json!("developer"))
    );
    assert_eq!(openai["prompt_cache_key"].as_str().unwrap().len(), 64);
    assert_eq!(openai["messages"][1].get("reasoning_content"), None);
    // A tool's result is text; what it shows follows.
    assert_eq!(openai["messages"][2]["content"], "see");
    assert_eq!(openai["messages"][3]["role"], "user");
    assert_eq!(openai["messages"][3]["content"][1]["image_url"]["url"], "data:image/png;base64,AA==");
    let engine = as_openai(&request, &Speaker::ENGINE);
    assert_eq!((&engine["max_tokens"], &engine["messages"][0]["role"]), (&json!(7), &json!("system")));
    assert_eq!(engine["messages"][1]["reasoning_content"], "hm");
    let short = as_openai(&request, &Speaker { short_ids: true, ..Speaker::PLAIN });
    let id = short["messages"][1]["tool_calls"][0]["id"].as_str().unwrap();
    assert!(id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric()), "{id}");
    assert_eq!(short["messages"][2]["tool_call_id"], id);
}

proptest! {
    /// Row 7, for every way in which a call may be cut into chunks.
    #[test]
    fn a_call_is_the_same_however_its_chunks_were_cut(
        text in "[a-z語🦀\"\\\\]{0,8}", cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6), together in any::<bool>(),
    ) {
        let arguments = json!({"x": text, "y": [1, {}]}).to_string();
        let places: Vec<usize> = (0..=arguments.len()).filter(|at| arguments.is_char_boundary(*at)).collect();
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| places[cut.index(places.len())]).collect();
        cuts.extend([0, arguments.len()]);
        cuts.sort_unstable();
        let mut pieces = cuts.windows(2).map(|pair| &arguments[pair[0]..pair[1]]);
        let first = if together { pieces.next().unwrap_or_default() } else { "" };
        let mut events = vec![chunk(json!({"content": "a"})), call(0, Some("call_1"), Some("f"), first)];
        events.extend(pieces.map(|piece| call(0, None, None, piece)));
        events.extend([ending("stop"), done()]);
        let events = to_anthropic(from_openai(&events).unwrap());
        check_grammar(&events);
        let (blocks, reason, _) = message_of(&events);
        prop_assert_eq!(&blocks[1]["input"], &serde_json::from_str::<Value>(&arguments).unwrap());
        prop_assert_eq!(reason, "tool_use");
    }

    #[test]
    fn no_event_is_too_odd(data in "[\\[\\]{}\",:a1]{0,60}") {
        let _ = openai::upstream::Reader::new(1).event(None, &data);
        let _ = anthropic::upstream::Reader::new().event(None, &data);
        let _ = openai::upstream::Reader::new(1).whole(data.as_bytes());
        let _ = anthropic::upstream::Reader::new().whole(data.as_bytes());
    }
}

#[test]
fn whole_calls_of_one_number_without_ids_are_separate() {
    let call = |name: &str| {
        json!({"choices": [{"index": 0, "delta": {"tool_calls": [
            {"index": 0, "function": {"name": name, "arguments": "{}"}}]}}]})
    };
    let mut reader = crate::openai::upstream::Reader::new(1);
    let mut starts = 0;
    for name in ["f", "g", "g"] {
        let deltas = crate::AnswerReader::event(&mut reader, None, &call(name).to_string()).unwrap();
        starts += deltas.iter().filter(|delta| matches!(delta, crate::Delta::ToolCallStart { .. })).count();
    }
    let deltas = crate::AnswerReader::event(&mut reader, None, "[DONE]").unwrap();
    starts += deltas.iter().filter(|delta| matches!(delta, crate::Delta::ToolCallStart { .. })).count();
    assert_eq!(starts, 3);
}

#[test]
fn thoughts_beside_the_answer_count_and_an_empty_name_hides_no_thought() {
    let body = json!({
        "choices": [{"message": {"reasoning_content": "", "reasoning": "x", "content": "a"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 6, "completion_tokens_details": {"reasoning_tokens": 3}}
    });
    let mut reader = crate::openai::upstream::Reader::new(1);
    let deltas = crate::AnswerReader::whole(&mut reader, body.to_string().as_bytes()).unwrap();
    assert!(deltas.iter().any(|delta| matches!(delta, crate::Delta::Reasoning { text, .. } if text == "x")));
    assert!(matches!(deltas.last(), Some(crate::Delta::Usage(usage)) if usage.completion_tokens == 5));
}

#[test]
fn signed_details_with_their_own_texts_are_told_once_and_in_order() {
    let body = json!({"choices": [{"finish_reason": "stop", "message": {"reasoning": "ab", "content": "c", "reasoning_details": [
        {"type": "reasoning.text", "text": "a", "signature": "s", "format": "anthropic-claude-v1", "index": 0},
        {"type": "reasoning.text", "text": "b", "signature": "t", "format": "anthropic-claude-v1", "index": 1}]}}]});
    let mut reader = crate::openai::upstream::Reader::new(1);
    let deltas = crate::AnswerReader::whole(&mut reader, body.to_string().as_bytes()).unwrap();
    let told: Vec<_> = deltas
        .iter()
        .filter_map(|delta| match delta {
            crate::Delta::Reasoning { text, .. } => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(told, ["a", "b"]);
}

#[test]
fn what_anthropic_refuses_beside_thought_or_alone_is_left_out() {
    let user = crate::Message {
        role: crate::Role::User,
        content: crate::Content(vec![crate::Part::Text("a".to_owned()), crate::Part::Text(" ".to_owned())]),
        ..crate::Message::text(crate::Role::User, "")
    };
    let request = crate::GenerateRequest {
        input: crate::Input::Chat(vec![user]),
        choices: 1,
        sampling: crate::Sampling { temperature: Some(0.5), top_k: Some(3), ..crate::Sampling::default() },
        ..crate::GenerateRequest::default()
    };
    let write = |request: &crate::GenerateRequest| -> Value {
        serde_json::from_str(&crate::anthropic::upstream::write(request, "m").unwrap()).unwrap()
    };
    let plain = write(&request);
    assert_eq!((&plain["temperature"], &plain["top_k"]), (&json!(0.5), &json!(3)));
    assert_eq!(plain["messages"][0]["content"].as_array().unwrap().len(), 1);
    let variables = [("enable_thinking".to_owned(), json!(true))].into_iter().collect();
    let thinks = write(&crate::GenerateRequest {
        template_variables: variables,
        reasoning_budget: Some(2000),
        ..request
    });
    assert!(thinks["thinking"].is_object(), "{thinks}");
    assert_eq!((thinks.get("temperature"), thinks.get("top_k")), (None, None));
}

//! Answers: what a message looks like, which events may follow which, and that both say the same.

use super::super::models;
use super::super::{EventWriter, Head, MessageWriter, partial};
use crate::{Delta, Error, ErrorKind, Event, FinishReason, ModelInfo, ModelTask, StreamWriter, Usage};
use proptest::prelude::*;
use serde_json::{Value, json};

const USAGE: Usage = Usage {
    prompt_tokens: 10,
    cached_tokens: 8,
    cache_write_tokens: 0,
    cache_write_1h_tokens: 0,
    completion_tokens: 7,
    reasoning_tokens: 2,
    accepted_prediction_tokens: 0,
    rejected_prediction_tokens: 0,
};
const STARTED: Delta = Delta::Started { prompt_tokens: 10, cached_tokens: 8 };

fn head(thoughts: bool) -> Head {
    Head { id: "msg_1".into(), model: "m".into(), thoughts }
}

fn text(text: &str) -> Delta {
    Delta::Text { choice: 0, text: text.into(), logprobs: Vec::new() }
}

fn thought(text: &str) -> Delta {
    Delta::Reasoning { choice: 0, text: text.into() }
}

fn call(index: u32, name: &str) -> Delta {
    Delta::ToolCallStart { choice: 0, index, id: format!("call_{index}"), name: name.into() }
}

fn arguments(index: u32, arguments: &str) -> Delta {
    Delta::ToolCallArguments { choice: 0, index, arguments: arguments.into() }
}

fn finish(reason: FinishReason, stop_text: Option<&str>) -> Delta {
    Delta::Finish { choice: 0, reason, stop_text: stop_text.map(str::to_owned) }
}

fn whole(deltas: &[Delta], thoughts: bool) -> Value {
    let mut writer = MessageWriter::new(head(thoughts));
    for delta in deltas {
        assert!(!writer.is_complete());
        writer.push(delta.clone());
    }
    assert!(writer.is_complete());
    serde_json::from_str(&writer.finish()).unwrap()
}

fn events(deltas: &[Delta], thoughts: bool) -> Vec<Event> {
    let mut writer = EventWriter::new(head(thoughts));
    let mut events: Vec<Event> = deltas.iter().flat_map(|delta| writer.delta(0, delta.clone())).collect();
    events.extend(writer.finish());
    events
}

/// Reads a stream as clients do, and fails where an event may not stand.
fn rebuilt(events: &[Event]) -> Value {
    let mut message = Value::Null;
    let mut open: Option<(usize, String)> = None;
    let mut ended = false;
    for event in events {
        let data: Value = serde_json::from_str(&event.data).unwrap();
        let kind = data["type"].as_str().unwrap();
        assert_eq!(event.name, Some(kind));
        assert!(!ended, "{kind} after the end");
        assert_eq!(message.is_null(), kind == "message_start", "the start comes first, once");
        let index = data["index"].as_u64().map(|index| index as usize);
        match kind {
            "message_start" => message = data["message"].clone(),
            "ping" => {}
            "content_block_start" => {
                assert!(open.is_none(), "two blocks are open");
                let content = message["content"].as_array_mut().unwrap();
                assert_eq!(index, Some(content.len()));
                content.push(data["content_block"].clone());
                open = index.map(|index| (index, String::new()));
            }
            "content_block_delta" => {
                let (at, input) = open.as_mut().expect("a block is open");
                assert_eq!(index, Some(*at));
                let (block, delta) = (&mut message["content"][*at], &data["delta"]);
                let mut add = |field: &str, more: &Value| {
                    let more = more.as_str().unwrap();
                    assert!(!more.is_empty(), "an empty delta");
                    block[field] = format!("{}{more}", block[field].as_str().unwrap()).into();
                };
                bare(&data, delta);
                match delta["type"].as_str().unwrap() {
                    "text_delta" => add("text", &delta["text"]),
                    "thinking_delta" => add("thinking", &delta["thinking"]),
                    "signature_delta" => block["signature"] = delta["signature"].clone(),
                    "input_json_delta" => input.push_str(delta["partial_json"].as_str().unwrap()),
                    other => panic!("{other}"),
                }
            }
            "content_block_stop" => {
                let (at, input) = open.take().expect("a block is open");
                assert_eq!(index, Some(at));
                let block = &mut message["content"][at];
                if block["type"] == "tool_use" {
                    block["input"] = partial::object(&input).into();
                }
            }
            "message_delta" => {
                assert!(open.is_none(), "a block is open at the end");
                for (name, value) in data["delta"].as_object().unwrap() {
                    message[name] = value.clone();
                }
                for (name, value) in data["usage"].as_object().unwrap() {
                    message["usage"][name] = value.clone();
                }
            }
            "message_stop" => ended = true,
            other => panic!("{other}"),
        }
    }
    assert!(ended);
    message
}

/// A delta carries nothing but its kind and its text.
fn bare(data: &Value, delta: &Value) {
    assert_eq!((data.as_object().unwrap().len(), delta.as_object().unwrap().len()), (3, 2));
}

#[test]
fn a_message_has_anthropics_shape() {
    let deltas = [
        STARTED,
        thought("Hm."),
        text("Now"),
        call(0, "f"),
        arguments(0, r#"{"a": [1, "x"]}"#),
        call(1, "g"),
        finish(FinishReason::ToolCalls, None),
        Delta::Usage(USAGE),
    ];
    let message = whole(&deltas, true);
    assert_eq!(
        message,
        json!({
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "model": "m",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "bXNnXzE6MA=="},
                {"type": "text", "text": "Now", "citations": null},
                {"type": "tool_use", "id": "toolu_0", "name": "f", "input": {"a": [1, "x"]}},
                {"type": "tool_use", "id": "toolu_1", "name": "g", "input": {}},
            ],
            "stop_reason": "tool_use",
            "stop_sequence": null,
            "stop_details": null,
            "usage": {
                "input_tokens": 2,
                "cache_creation_input_tokens": 0,
                "cache_read_input_tokens": 8,
                "output_tokens": 7,
                "output_tokens_details": {"thinking_tokens": 2},
                "server_tool_use": null,
                "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
                "service_tier": "standard",
            },
        })
    );
    assert_eq!(rebuilt(&events(&deltas, true)), message);
    // Without their text thoughts are still blocks.
    let silent = whole(&deltas, false);
    assert_eq!(silent["content"][0]["thinking"], "");
    assert_eq!(rebuilt(&events(&deltas, false)), silent);
}

#[test]
fn a_stream_begins_with_the_prompts_counts_and_names_its_events() {
    let deltas = [STARTED, text("Hi"), finish(FinishReason::Stop, None), Delta::Usage(USAGE)];
    let events = events(&deltas, true);
    let names: Vec<_> = events.iter().map(|event| event.name.unwrap()).collect();
    assert_eq!(
        names,
        [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop"
        ]
    );
    let start: Value = serde_json::from_str(&events[0].data).unwrap();
    assert_eq!(start["message"]["usage"]["input_tokens"], 2);
    assert_eq!(start["message"]["usage"]["cache_read_input_tokens"], 8);
    assert_eq!(start["message"]["stop_reason"], Value::Null);
    assert_eq!(
        events[5].data,
        r#"{"type":"message_delta","delta":{"stop_reason":"end_turn","stop_sequence":null,"stop_details":null},"usage":{"input_tokens":2,"cache_creation_input_tokens":0,"cache_creation":{"ephemeral_5m_input_tokens":0,"ephemeral_1h_input_tokens":0},"cache_read_input_tokens":8,"output_tokens":7,"output_tokens_details":{"thinking_tokens":2},"server_tool_use":null}}"#
    );
}

#[test]
fn every_end_has_its_reason() {
    for (reason, stop_text, said, sequence) in [
        (FinishReason::Stop, None, "end_turn", json!(null)),
        (FinishReason::Stop, Some("END"), "stop_sequence", json!("END")),
        (FinishReason::Length, None, "max_tokens", json!(null)),
        (FinishReason::ToolCalls, Some("END"), "tool_use", json!(null)),
        (FinishReason::ContentFilter, None, "refusal", json!(null)),
    ] {
        let deltas = [STARTED, finish(reason, stop_text), Delta::Usage(USAGE)];
        let message = whole(&deltas, true);
        assert_eq!((&message["stop_reason"], &message["stop_sequence"]), (&json!(said), &sequence));
        assert_eq!(message["content"], json!([]));
        assert_eq!(rebuilt(&events(&deltas, true)), message);
    }
}

#[test]
fn a_call_that_was_cut_has_the_same_input_both_ways() {
    let deltas = [
        STARTED,
        call(0, "f"),
        arguments(0, r#"{"a": 1, "#),
        arguments(0, r#""b": {"c": "d", "e": "#),
        finish(FinishReason::Length, None),
        Delta::Usage(USAGE),
    ];
    let message = whole(&deltas, true);
    assert_eq!(message["content"][0]["input"], json!({"a": 1, "b": {"c": "d"}}));
    assert_eq!(rebuilt(&events(&deltas, true)), message);
}

#[test]
fn a_malformed_call_is_text_and_is_flagged() {
    let deltas = [
        STARTED,
        Delta::MalformedCall { choice: 0, why: "no name".into() },
        text("<tool_call>{}"),
        finish(FinishReason::Stop, None),
        Delta::Usage(USAGE),
    ];
    let message = whole(&deltas, true);
    assert_eq!(message["content"][0]["text"], "<tool_call>{}");
    assert_eq!(message["malformed_calls"], json!(["no name"]));
    assert_eq!(message["stop_reason"], "end_turn");
    assert_eq!(rebuilt(&events(&deltas, true)), message);
}

#[test]
fn a_failed_stream_ends_with_an_error() {
    let mut writer = EventWriter::new(head(true));
    writer.delta(0, STARTED);
    let events = writer.fail(&Error::new(ErrorKind::Unavailable, "the engine failed")).unwrap();
    assert_eq!(
        events[0].to_wire(),
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\",\"message\":\"the engine \
         failed\"}}\n\n"
    );
}

/// Pieces of an answer, whole; each may be cut when it is sent.
fn pieces() -> impl Strategy<Value = Vec<(u8, String)>> {
    prop::collection::vec((0u8..4, "[a-z\"{}\\\\ é🙂]{0,8}"), 0..8)
}

/// The deltas of pieces, cut after every `cut` characters.
fn deltas(pieces: &[(u8, String)], cut: usize) -> Vec<Delta> {
    let mut out = vec![STARTED];
    let mut calls = 0;
    for (kind, said) in pieces {
        let chars: Vec<char> = said.chars().collect();
        let parts: Vec<String> = chars.chunks(cut).map(|part| part.iter().collect()).collect();
        match kind {
            0 => out.extend(parts.iter().map(|part| text(part))),
            1 => out.extend(parts.iter().map(|part| thought(part))),
            kind => {
                out.push(call(calls, said));
                let full = json!({"k": said, "n": [1, {}]}).to_string();
                // Some calls are cut short.
                let full: Vec<char> = full.chars().take(if *kind == 2 { full.len() } else { 9 }).collect();
                out.extend(full.chunks(cut).map(|part| arguments(calls, &part.iter().collect::<String>())));
                calls += 1;
            }
        }
    }
    out.push(finish(if calls > 0 { FinishReason::ToolCalls } else { FinishReason::Stop }, None));
    out.push(Delta::Usage(USAGE));
    out
}

proptest! {
    #[test]
    fn a_stream_says_what_the_whole_says_however_it_is_cut(pieces in pieces(), cut in 1usize..9, thoughts in any::<bool>()) {
        let all = whole(&deltas(&pieces, usize::MAX), thoughts);
        prop_assert_eq!(&whole(&deltas(&pieces, cut), thoughts), &all);
        prop_assert_eq!(&rebuilt(&events(&deltas(&pieces, cut), thoughts)), &all);
        // Nothing that was said is lost.
        let count = |kind: &str| all["content"].as_array().unwrap().iter().filter(|block| block["type"] == kind).count();
        prop_assert_eq!(count("tool_use"), pieces.iter().filter(|(kind, _)| *kind > 1).count());
        let said: String = pieces.iter().filter(|(kind, _)| *kind == 0).map(|(_, said)| said.as_str()).collect();
        let written: String = all["content"].as_array().unwrap().iter().filter_map(|block| block["text"].as_str()).collect();
        prop_assert_eq!(written, said);
    }

    #[test]
    fn no_order_of_deltas_breaks_the_order_of_events(kinds in prop::collection::vec((0u8..5, 0u32..3), 0..12)) {
        let mut sent = vec![STARTED];
        sent.extend(kinds.iter().map(|(kind, index)| match kind {
            0 => text("t"),
            1 => thought("r"),
            2 => call(*index, "f"),
            3 => arguments(*index, "{"),
            _ => Delta::MalformedCall { choice: 0, why: "w".into() },
        }));
        sent.extend([finish(FinishReason::Stop, None), Delta::Usage(USAGE)]);
        prop_assert_eq!(rebuilt(&events(&sent, true)), whole(&sent, true));
    }
}

fn model(id: &str, task: ModelTask) -> ModelInfo {
    ModelInfo {
        id: id.to_owned(),
        aliases: Vec::new(),
        task,
        description: "A model".to_owned(),
        context: 4096,
        dimensions: None,
        tools: true,
        price: None,
        created: 1_770_026_400,
        ready: true,
    }
}

#[test]
fn models_come_in_pages_forward_and_back() {
    let mut all: Vec<_> =
        ["a", "b", "c", "d", "e"].iter().map(|id| model(id, ModelTask::TextGeneration)).collect();
    all.push(model("vectors", ModelTask::TextEmbeddings));
    let page = |query: &[(&str, &str)]| -> Value {
        let query: Vec<_> =
            query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        serde_json::from_str(&models::list(&models::parse(&query).unwrap(), &all).unwrap()).unwrap()
    };
    let ids = |page: &Value| -> String {
        page["data"].as_array().unwrap().iter().map(|model| model["id"].as_str().unwrap()).collect()
    };
    assert_eq!(ids(&page(&[])), "abcde");
    let first = page(&[("limit", "2")]);
    assert_eq!(
        (ids(&first).as_str(), &first["has_more"], &first["last_id"]),
        ("ab", &json!(true), &json!("b"))
    );
    let last = page(&[("limit", "3"), ("after_id", "b"), ("beta", "true")]);
    assert_eq!((ids(&last).as_str(), &last["has_more"]), ("cde", &json!(false)));
    let back = page(&[("limit", "2"), ("before_id", "d")]);
    assert_eq!(
        (ids(&back).as_str(), &back["has_more"], &back["first_id"]),
        ("bc", &json!(true), &json!("b"))
    );
    let none = page(&[("after_id", "e")]);
    assert_eq!(
        (&none["data"], &none["first_id"], &none["has_more"]),
        (&json!([]), &json!(null), &json!(false))
    );
    assert_eq!(
        first["data"][0],
        json!({
            "type": "model", "id": "a", "display_name": "a", "created_at": "2026-02-02T10:00:00Z",
            "lifecycle": "active", "deprecated_at": null, "retires_at": null,
            "max_input_tokens": 4096, "max_tokens": 4096,
        })
    );
    for query in [("limit", "0"), ("limit", "x"), ("limit", "1001")] {
        let query = [(query.0.to_owned(), query.1.to_owned())];
        assert_eq!(models::parse(&query).unwrap_err().param.as_deref(), Some("limit"));
    }
    let unknown = models::parse(&[("after_id".to_owned(), "z".to_owned())]).unwrap();
    assert_eq!(models::list(&unknown, &all).unwrap_err().param.as_deref(), Some("after_id"));
}

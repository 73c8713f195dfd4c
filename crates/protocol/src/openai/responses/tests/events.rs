//! Answers: what a client puts together from the events is the object, however the deltas were cut.

use crate::openai::responses::{Asked, Head, Responding, parse, place_of};
use crate::{Delta, Error, ErrorKind, FinishReason, Logprobs, StreamWriter, TokenLogprob, Usage};
use proptest::prelude::*;
use serde_json::{Value, json};

const TURN: &str = "0123456789abcdef0123456789abcdef";

fn asked(more: Value) -> Asked {
    let mut body = json!({"model": "m", "input": "hi"});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    parse(body.to_string().as_bytes()).unwrap()
}

fn responding(more: Value) -> Responding {
    let head = Head { id: format!("resp_{TURN}"), created: 17, model: "m".to_owned() };
    Responding::new(head, asked(more).form, 1, true)
}

fn text(text: &str) -> Delta {
    Delta::Text { choice: 0, text: text.to_owned(), logprobs: Vec::new() }
}

fn thought(text: &str) -> Delta {
    Delta::Reasoning { choice: 0, text: text.to_owned() }
}

fn call(index: u32, name: &str) -> Delta {
    Delta::ToolCallStart { choice: 0, index, id: format!("call_{index}"), name: name.to_owned() }
}

fn arguments(index: u32, arguments: &str) -> Delta {
    Delta::ToolCallArguments { choice: 0, index, arguments: arguments.to_owned() }
}

fn finish(reason: FinishReason) -> Delta {
    Delta::Finish { choice: 0, reason, stop_text: None }
}

fn usage() -> Delta {
    Delta::Usage(Usage {
        prompt_tokens: 9,
        cached_tokens: 4,
        cache_write_tokens: 3,
        completion_tokens: 5,
        reasoning_tokens: 2,
        ..Usage::default()
    })
}

/// All events of these deltas, and the object.
fn run(mut responding: Responding, deltas: impl IntoIterator<Item = Delta>) -> (Vec<Value>, Value) {
    let mut events = Vec::new();
    for delta in deltas {
        events.extend(responding.delta(0, delta));
    }
    responding.completed(18);
    let object = responding.object();
    events.extend(responding.finish());
    (events.iter().map(checked).collect(), object)
}

/// The data of an event, whose name stands inside too.
fn checked(event: &crate::Event) -> Value {
    let data: Value = serde_json::from_str(&event.data).unwrap();
    assert_eq!(data["type"], event.name.unwrap());
    data
}

fn names(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap().trim_start_matches("response.")).collect()
}

/// What a client makes of the events; checks their grammar on the way.
fn rebuilt(events: &[Value]) -> Value {
    let mut output: Vec<Value> = Vec::new();
    let mut open: Option<usize> = None;
    let (first, rest) = events.split_at(2);
    assert_eq!(names(first), ["created", "in_progress"]);
    assert_eq!(first[0]["response"]["output"], json!([]));
    let (last, rest) = rest.split_last().unwrap();
    for (number, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], number);
    }
    for event in rest {
        let index = event["output_index"].as_u64().unwrap() as usize;
        let name = event["type"].as_str().unwrap().trim_start_matches("response.");
        if name == "output_item.added" {
            assert_eq!((index, open), (output.len(), None));
            assert_eq!(event["item"]["status"], "in_progress");
            output.push(event["item"].clone());
            open = Some(index);
            continue;
        }
        assert_eq!(open, Some(index));
        let item = &mut output[index];
        if name == "output_item.done" {
            let done = &event["item"];
            assert_ne!(done["status"], "in_progress");
            for field in ["id", "type", "role", "name", "call_id", "arguments", "content", "summary"] {
                assert_eq!(done[field], item[field], "{field}");
            }
            *item = done.clone();
            open = None;
            continue;
        }
        assert_eq!(event["item_id"], item["id"]);
        let list = if name.contains("summary") { "summary" } else { "content" };
        match name {
            "content_part.added" | "reasoning_summary_part.added" => {
                item[list].as_array_mut().unwrap().push(event["part"].clone());
            }
            "content_part.done" | "reasoning_summary_part.done" => assert_eq!(event["part"], item[list][0]),
            "function_call_arguments.delta" => append(&mut item["arguments"], &event["delta"]),
            "function_call_arguments.done" => assert_eq!(event["arguments"], item["arguments"]),
            _ if name.ends_with(".delta") => {
                let part = &mut item[list][0];
                append(&mut part["text"], &event["delta"]);
                if let Some(logprobs) = event["logprobs"].as_array() {
                    part["logprobs"].as_array_mut().unwrap().extend(logprobs.clone());
                }
            }
            _ if name.ends_with(".done") => assert_eq!(event["text"], item[list][0]["text"]),
            other => panic!("unknown event {other}"),
        }
    }
    assert_eq!(open, None);
    let mut response = last["response"].clone();
    assert_eq!(last["type"], format!("response.{}", response["status"].as_str().unwrap()));
    assert_eq!(response["output"], json!(output));
    response["output"] = json!(output);
    response
}

fn append(to: &mut Value, more: &Value) {
    *to = json!(format!("{}{}", to.as_str().unwrap(), more.as_str().unwrap()));
}

/// What an answer consists of, before it is cut.
#[derive(Clone, Debug)]
enum Said {
    Text(String, bool),
    Thought(String),
    Proof(bool),
    Call(String),
    Malformed,
}

fn said() -> impl Strategy<Value = Said> {
    prop_oneof![
        ("[ -~é\u{1f600}]{0,9}", any::<bool>()).prop_map(|(text, logprobs)| Said::Text(text, logprobs)),
        "[ -~é]{0,9}".prop_map(Said::Thought),
        any::<bool>().prop_map(Said::Proof),
        "[ -~é]{0,9}".prop_map(Said::Call),
        Just(Said::Malformed),
    ]
}

fn entry(token: &str) -> Logprobs {
    let chosen =
        TokenLogprob { token: token.to_owned(), bytes: token.as_bytes().to_vec(), id: 1, logprob: -0.5 };
    Logprobs { top: vec![chosen.clone()], chosen }
}

/// The deltas, with every text cut into pieces of at most `size` characters.
fn deltas(said: &[Said], size: usize, reason: FinishReason) -> Vec<Delta> {
    let pieces = |text: &str| -> Vec<String> {
        let characters: Vec<char> = text.chars().collect();
        characters.chunks(size).map(|piece| piece.iter().collect()).collect()
    };
    let mut deltas = vec![Delta::Started { prompt_tokens: 9, cached_tokens: 4 }];
    let mut calls = 0;
    for said in said {
        match said {
            Said::Text(all, logprobs) => {
                let pieces = pieces(all);
                let count = pieces.len();
                for (number, piece) in pieces.into_iter().enumerate() {
                    // One token, which ends in the last piece.
                    let logprobs =
                        if *logprobs && number + 1 == count { vec![entry(all)] } else { Vec::new() };
                    deltas.push(Delta::Text { choice: 0, text: piece, logprobs });
                }
            }
            Said::Thought(text) => deltas.extend(pieces(text).iter().map(|piece| thought(piece))),
            Said::Proof(readable) => {
                let (proof, maker) = ("p".to_owned(), crate::Maker::Anthropic);
                let thought = if *readable {
                    crate::Thought::Signed { text: "t".to_owned(), signature: proof, maker }
                } else {
                    crate::Thought::Redacted { data: proof, maker }
                };
                deltas.push(Delta::Thought { choice: 0, thought });
            }
            Said::Call(text) => {
                deltas.push(call(calls, "f"));
                deltas.extend(pieces(text).iter().map(|piece| arguments(calls, piece)));
                calls += 1;
            }
            Said::Malformed => {
                deltas.push(Delta::MalformedCall { choice: 0, why: "not closed".to_owned() });
                deltas.push(text("<tool_call>"));
            }
        }
    }
    deltas.extend([finish(reason), usage()]);
    deltas
}

proptest! {
    #[test]
    fn events_make_the_object_however_the_deltas_were_cut(
        said in prop::collection::vec(said(), 0..6),
        size in 1usize..5,
        cut in any::<bool>(),
        summary in any::<bool>(),
    ) {
        let reason = if cut { FinishReason::Length } else { FinishReason::Stop };
        let form = || {
            let more = json!({"include": ["message.output_text.logprobs", "reasoning.encrypted_content"]});
            let mut form = more;
            if summary {
                form["reasoning"] = json!({"summary": "auto"});
            }
            responding(form)
        };
        let (events, object) = run(form(), deltas(&said, size, reason));
        let (_, whole) = run(form(), deltas(&said, usize::MAX, reason));
        prop_assert_eq!(rebuilt(&events), object.clone());
        prop_assert_eq!(object, whole);
    }
}

#[test]
fn a_text_has_the_events_that_clients_expect() {
    let (events, object) =
        run(responding(json!({})), [text("one"), text(" two"), finish(FinishReason::Stop), usage()]);
    assert_eq!(
        names(&events),
        [
            "created",
            "in_progress",
            "output_item.added",
            "content_part.added",
            "output_text.delta",
            "output_text.delta",
            "output_text.done",
            "content_part.done",
            "output_item.done",
            "completed",
        ]
    );
    assert_eq!(
        object,
        json!({
            "id": format!("resp_{TURN}"), "object": "response", "created_at": 17, "completed_at": 18,
            "status": "completed", "background": false, "error": null, "incomplete_details": null, "model": "m",
            "output": [{
                "id": format!("msg_{TURN}0001"), "type": "message", "status": "completed", "role": "assistant",
                "content": [{"type": "output_text", "text": "one two", "annotations": [], "logprobs": []}],
            }],
            "store": true,
            "usage": {
                "input_tokens": 9, "input_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 3},
                "output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 2}, "total_tokens": 14,
            },
            "instructions": null, "max_output_tokens": null, "max_tool_calls": null, "metadata": {},
            "parallel_tool_calls": true, "previous_response_id": null, "prompt_cache_key": null,
            "reasoning": {"effort": null, "summary": null}, "safety_identifier": null, "service_tier": "default",
            "temperature": null, "text": {"format": {"type": "text"}, "verbosity": "medium"},
            "tool_choice": "auto", "tools": [], "top_logprobs": 0, "top_p": null, "truncation": "disabled",
            "user": null,
        })
    );
    assert_eq!(place_of(&format!("msg_{TURN}0001")), Some((format!("resp_{TURN}"), 1)));
}

#[test]
fn calls_follow_each_other_and_each_is_closed_before_the_next() {
    let deltas =
        [call(0, "f"), arguments(0, "{\"a\":"), arguments(0, "1}"), call(1, "g"), arguments(1, "{}")];
    let end = [finish(FinishReason::ToolCalls), usage()];
    let (events, object) = run(responding(json!({})), deltas.into_iter().chain(end));
    assert_eq!(
        names(&events)[2..],
        [
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "output_item.added",
            "function_call_arguments.delta",
            "function_call_arguments.done",
            "output_item.done",
            "completed",
        ]
    );
    assert_eq!(
        object["output"][0],
        json!({
            "id": format!("fc_{TURN}0001"), "type": "function_call", "status": "completed",
            "call_id": "call_0", "name": "f", "arguments": "{\"a\":1}",
        })
    );
    assert_eq!(object["output"].as_array().unwrap().len(), 2);
}

#[test]
fn thoughts_are_raw_text_or_where_asked_for_a_summary() {
    let deltas = || [thought("hm"), text("yes"), finish(FinishReason::Stop), usage()];
    let (events, object) = run(responding(json!({})), deltas());
    assert_eq!(
        names(&events)[2..7],
        [
            "output_item.added",
            "content_part.added",
            "reasoning_text.delta",
            "reasoning_text.done",
            "content_part.done",
        ]
    );
    assert_eq!(object["output"][0]["content"], json!([{"type": "reasoning_text", "text": "hm"}]));
    assert_eq!(object["output"][0]["summary"], json!([]));
    let (events, object) = run(responding(json!({"reasoning": {"summary": "auto"}})), deltas());
    assert_eq!(
        names(&events)[2..7],
        [
            "output_item.added",
            "reasoning_summary_part.added",
            "reasoning_summary_text.delta",
            "reasoning_summary_text.done",
            "reasoning_summary_part.done",
        ]
    );
    assert_eq!(object["output"][0]["summary"], json!([{"type": "summary_text", "text": "hm"}]));
    assert_eq!(object["output"][0].get("content"), None);
}

#[test]
fn a_cut_answer_is_incomplete_and_says_why() {
    let (events, object) =
        run(responding(json!({})), [thought("h"), text("x"), finish(FinishReason::Length), usage()]);
    assert_eq!(events.last().unwrap()["type"], "response.incomplete");
    assert_eq!(object["status"], "incomplete");
    assert_eq!(object["completed_at"], Value::Null);
    assert_eq!(object["incomplete_details"], json!({"reason": "max_output_tokens"}));
    assert_eq!(object["output"][0]["status"], "completed");
    assert_eq!(object["output"][1]["status"], "incomplete");
    let (_, object) = run(responding(json!({})), [thought("h"), finish(FinishReason::Length), usage()]);
    assert_eq!(object["output"].as_array().unwrap().len(), 1);
}

#[test]
fn an_answer_of_no_words_is_an_empty_message() {
    let (_, object) = run(responding(json!({})), [thought("h"), finish(FinishReason::Stop), usage()]);
    assert_eq!(object["output"][1]["content"][0]["text"], "");
    let (_, object) = run(responding(json!({})), [call(0, "f"), finish(FinishReason::ToolCalls), usage()]);
    assert_eq!(object["output"].as_array().unwrap().len(), 1);
}

#[test]
fn a_malformed_call_is_text_with_a_flag() {
    let why = Delta::MalformedCall { choice: 0, why: "not closed".to_owned() };
    let deltas = [text("so: "), why, text("<tool_call>{"), finish(FinishReason::Stop), usage()];
    let (events, object) = run(responding(json!({})), deltas);
    rebuilt(&events);
    assert_eq!(object["output"][0]["malformed_calls"], json!(["not closed"]));
    assert_eq!(object["output"][0]["content"][0]["text"], "so: <tool_call>{");
}

#[test]
fn a_failed_answer_ends_with_an_error_and_the_failed_response() {
    let mut responding = responding(json!({}));
    let mut events = responding.delta(0, text("one"));
    let error = Error::new(ErrorKind::Unavailable, "the engine failed");
    events.extend(responding.fail(&error).unwrap());
    let events: Vec<Value> = events.iter().map(checked).collect();
    let [.., error, failed] = events.as_slice() else { panic!("{events:?}") };
    assert_eq!(
        *error,
        json!({"code": "service_unavailable", "message": "the engine failed", "param": null, "type": "error", "sequence_number": 5})
    );
    assert_eq!(failed["type"], "response.failed");
    assert_eq!(failed["response"]["status"], "failed");
    assert_eq!(failed["response"]["store"], false);
    assert_eq!(failed["response"]["error"], json!({"code": "server_error", "message": "the engine failed"}));
}

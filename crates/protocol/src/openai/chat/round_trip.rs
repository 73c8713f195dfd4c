//! Conversations and answers, canonical to wire and back: what is written is read as the same, in OpenAI's form and
//! in the flat one of Workers AI, and a stream put together is the whole answer, however it was cut.

use super::*;
use crate::workers_ai::generated::{self, FrameWriter};
use crate::workers_ai::{InputAt, generation};
use crate::{Content, Message, Part, ResponseFormat, Role, Tool, ToolCall, ToolChoice};
use proptest::prelude::*;
use serde_json::json;

/// Text with what breaks naive writers: quotes, newlines, braces, markup, emoji.
fn text() -> impl Strategy<Value = String> {
    prop_oneof!["[ -~]{0,12}", ".{0,8}", Just("a\n\"b\" {}\\ <tool_call> é 🦀 \u{2028}".to_owned())]
}

fn arguments() -> impl Strategy<Value = String> {
    prop::collection::vec(
        (text(), prop_oneof![text().prop_map(Value::from), any::<i32>().prop_map(Value::from)]),
        0..4,
    )
    .prop_map(|fields| Value::Object(fields.into_iter().collect()).to_string())
}

fn content() -> impl Strategy<Value = Content> {
    prop_oneof![
        text().prop_map(|text| Content(vec![Part::Text(text)])),
        prop::collection::vec(text().prop_map(Part::Text), 1..3).prop_map(Content),
    ]
}

/// A turn of the assistant with calls and all their answers, or a plain one.
fn turn() -> impl Strategy<Value = Vec<Message>> {
    let plain =
        (prop::sample::select(vec![Role::System, Role::Developer, Role::User, Role::Assistant]), content())
            .prop_map(|(role, content)| vec![Message { content, ..Message::text(role, "") }]);
    let calls = prop::collection::vec((prop::sample::select(vec!["f", "g"]), arguments(), content()), 1..4);
    let calling = (prop::option::of(content()), prop::option::of("[a-z]{1,5}"), calls).prop_map(
        |(said, reasoning, calls)| {
            let id = |index: usize| format!("id{index}");
            let mut turn = vec![Message {
                content: said.unwrap_or_default(),
                reasoning,
                tool_calls: calls
                    .iter()
                    .enumerate()
                    .map(|(index, (name, arguments, _))| ToolCall {
                        id: id(index),
                        name: (*name).to_owned(),
                        arguments: arguments.clone(),
                    })
                    .collect(),
                ..Message::text(Role::Assistant, "")
            }];
            turn.extend(calls.into_iter().enumerate().map(|(index, (_, _, content))| Message {
                content,
                tool_call_id: Some(id(index)),
                ..Message::text(Role::Tool, "")
            }));
            turn
        },
    );
    prop_oneof![plain, calling]
}

fn conversation() -> impl Strategy<Value = Vec<Message>> {
    prop::collection::vec(turn(), 1..5).prop_map(|turns| turns.into_iter().flatten().collect())
}

fn tools() -> impl Strategy<Value = Vec<Tool>> {
    let parameters =
        prop::option::of(text().prop_map(|name| json!({"type": "object", "properties": {name: {}}})));
    let tool = (text(), prop::option::of(text()), parameters, prop::option::of(any::<bool>())).prop_map(
        |(name, description, parameters, strict)| Tool {
            name: format!("t{name}"),
            description,
            parameters,
            strict,
            cache: None,
        },
    );
    prop::collection::vec(tool, 1..4)
}

fn formats() -> impl Strategy<Value = ResponseFormat> {
    prop_oneof![
        Just(ResponseFormat::Text),
        Just(ResponseFormat::JsonObject),
        (prop::option::of(text()), prop::option::of(any::<bool>())).prop_map(|(name, strict)| {
            ResponseFormat::JsonSchema {
                name,
                schema: json!({"type": "object", "properties": {"a": {}}}),
                strict,
            }
        }),
        ".{1,8}".prop_map(ResponseFormat::Regex),
        ".{1,8}".prop_map(ResponseFormat::Lark),
    ]
}

fn wire_content(content: &Content, none: Value) -> Value {
    match content.0.as_slice() {
        [] => none,
        [Part::Text(text)] => json!(text),
        parts => parts
            .iter()
            .map(|part| {
                let Part::Text(text) = part else { panic!("only text here") };
                json!({"type": "text", "text": text})
            })
            .collect(),
    }
}

/// As OpenAI's clients write a message.
fn wire_message(message: &Message) -> Value {
    let mut wire =
        json!({"role": message.role.as_str(), "content": wire_content(&message.content, Value::Null)});
    if !message.tool_calls.is_empty() {
        wire["tool_calls"] = message
            .tool_calls
            .iter()
            .map(|call| {
                json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
            })
            .collect();
    }
    wire["reasoning_content"] = json!(message.reasoning);
    wire["tool_call_id"] = json!(message.tool_call_id);
    wire
}

/// As native inputs have it: calls flat, arguments as objects, no ids.
fn flat_message(message: &Message) -> Value {
    let mut wire =
        json!({"role": message.role.as_str(), "content": wire_content(&message.content, json!([]))});
    if !message.tool_calls.is_empty() {
        wire["tool_calls"] = message
            .tool_calls
            .iter()
            .map(|call| {
                let arguments: Value = serde_json::from_str(&call.arguments).unwrap();
                json!({"name": call.name, "arguments": arguments})
            })
            .collect();
    }
    wire["reasoning"] = json!(message.reasoning);
    wire
}

fn wire_format(format: &ResponseFormat) -> Value {
    match format {
        ResponseFormat::Text => Value::Null,
        ResponseFormat::JsonObject => json!({"type": "json_object"}),
        ResponseFormat::JsonSchema { name, schema, strict } => {
            json!({"type": "json_schema", "json_schema": {"name": name, "schema": schema, "strict": strict}})
        }
        ResponseFormat::Regex(pattern) => json!({"type": "regex", "regex": pattern}),
        ResponseFormat::Lark(grammar) => json!({"type": "lark", "grammar": grammar}),
    }
}

fn wire_tool(tool: &Tool) -> Value {
    json!({"name": tool.name, "description": tool.description, "parameters": tool.parameters, "strict": tool.strict})
}

/// Deltas of one answer: text, thoughts, calls and malformed calls in any order, each cut anywhere.
fn deltas() -> impl Strategy<Value = Vec<Delta>> {
    #[derive(Clone, Debug)]
    enum Said {
        Text(String),
        Thought(String),
        Call(String),
        Malformed(String),
    }
    let said = prop_oneof![
        text().prop_map(Said::Text),
        text().prop_map(Said::Thought),
        arguments().prop_map(Said::Call),
        text().prop_map(Said::Malformed),
    ];
    let cuts = prop::collection::vec(0usize..12, 0..4);
    prop::collection::vec((said, cuts), 0..6).prop_map(|pieces| {
        let mut out = vec![Delta::Started { prompt_tokens: 1, cached_tokens: 0 }];
        let mut calls = 0;
        for (said, cuts) in pieces {
            let cut = |whole: &str, make: &dyn Fn(String) -> Delta, out: &mut Vec<Delta>| {
                let mut at: Vec<usize> =
                    cuts.iter().copied().filter(|at| whole.is_char_boundary(*at)).collect();
                at.extend([0, whole.len()]);
                at.sort_unstable();
                out.extend(at.windows(2).map(|piece| make(whole[piece[0]..piece[1]].to_owned())));
            };
            match said {
                Said::Text(whole) => {
                    cut(&whole, &|text| Delta::Text { choice: 0, text, logprobs: Vec::new() }, &mut out);
                }
                Said::Thought(whole) => cut(&whole, &|text| Delta::Reasoning { choice: 0, text }, &mut out),
                Said::Call(whole) => {
                    let index = calls;
                    calls += 1;
                    out.push(Delta::ToolCallStart {
                        choice: 0,
                        index,
                        id: format!("c{index}"),
                        name: "f".to_owned(),
                    });
                    cut(
                        &whole,
                        &|arguments| Delta::ToolCallArguments { choice: 0, index, arguments },
                        &mut out,
                    );
                }
                Said::Malformed(why) => out.push(Delta::MalformedCall { choice: 0, why }),
            }
        }
        let reason = if calls > 0 { FinishReason::ToolCalls } else { FinishReason::Stop };
        out.push(Delta::Finish { choice: 0, reason, stop_text: None });
        out.push(Delta::Usage(Usage { prompt_tokens: 1, completion_tokens: 2, ..Usage::default() }));
        out
    })
}

/// The data of a stream's events but `[DONE]`, which must be the last.
fn written(mut writer: impl StreamWriter, deltas: &[Delta]) -> Vec<Value> {
    let mut events: Vec<Event> = deltas.iter().flat_map(|delta| writer.delta(0, delta.clone())).collect();
    events.extend(writer.finish());
    assert_eq!(events.pop(), Some(Event::data("[DONE]")));
    events.iter().map(|event| serde_json::from_str(&event.data).unwrap()).collect()
}

/// All that is said in a field over the pieces of a stream.
fn joined<'a>(pieces: impl Iterator<Item = &'a Value>, field: &str) -> String {
    pieces.filter_map(|piece| piece[field].as_str()).collect()
}

/// All lists of a field over the pieces of a stream.
fn listed<'a>(pieces: impl Iterator<Item = &'a Value>, field: &str) -> Vec<Value> {
    pieces.filter_map(|piece| piece[field].as_array()).flatten().cloned().collect()
}

fn parts_or_nothing(list: Vec<Value>) -> Value {
    if list.is_empty() { Value::Null } else { list.into() }
}

proptest! {
    #[test]
    fn a_request_written_in_openais_form_is_read_as_the_same(
        messages in conversation(), tools in tools(), format in formats(),
    ) {
        let wire_tools: Value =
            tools.iter().map(|tool| json!({"type": "function", "function": wire_tool(tool)})).collect();
        let body = json!({
            "model": "m", "messages": messages.iter().map(wire_message).collect::<Value>(), "tools": wire_tools,
            "tool_choice": {"type": "function", "function": {"name": tools[0].name}},
            "response_format": wire_format(&format),
        });
        let read = parse(body.to_string().as_bytes()).unwrap().request;
        let tool_choice = ToolChoice::Named(tools[0].name.clone());
        prop_assert_eq!(read, GenerateRequest {
            model: "m".to_owned(), input: Input::Chat(messages), tools, tool_choice, response_format: format,
            choices: 1, ..GenerateRequest::default()
        });
    }

    #[test]
    fn a_request_written_flat_is_the_same_but_for_ids(messages in conversation(), tools in tools()) {
        let input = json!({
            "messages": messages.iter().map(flat_message).collect::<Value>(),
            "tools": tools.iter().map(wire_tool).collect::<Value>(),
        });
        let read = generation::parse("m", input, InputAt::Root).unwrap().request;
        prop_assert_eq!(&read.tools, &tools);
        let Input::Chat(read) = read.input else { panic!("a conversation") };
        // Which id a call has is free; that its answer has the same, and no other call, is not.
        let mut ids = std::collections::HashSet::new();
        for call in read.iter().flat_map(|message| &message.tool_calls) {
            prop_assert!(ids.insert(call.id.clone()), "{} twice", call.id);
        }
        let numbered = |messages: &[Message]| {
            let mut last = Vec::new();
            let mut messages = messages.to_vec();
            for message in &mut messages {
                if !message.tool_calls.is_empty() {
                    last = message.tool_calls.iter().map(|call| call.id.clone()).collect::<Vec<_>>();
                }
                for (index, call) in message.tool_calls.iter_mut().enumerate() {
                    call.id = index.to_string();
                }
                message.tool_call_id = message
                    .tool_call_id
                    .as_ref()
                    .map(|id| last.iter().position(|call| call == id).unwrap().to_string());
            }
            messages
        };
        prop_assert_eq!(numbered(&read), numbered(&messages));
    }

    #[test]
    fn a_stream_put_together_is_the_whole_answer(deltas in deltas()) {
        let head = Head { id: "x".to_owned(), created: 0, model: "m".to_owned() };
        let asked = Asked { choices: 1, logprobs: false, include_usage: true };
        let mut answer = Answer::new(1);
        deltas.iter().for_each(|delta| answer.push(delta.clone()));

        let whole: Value = serde_json::from_str(&completion(&head, &asked, &answer)).unwrap();
        let message = &whole["choices"][0]["message"];
        let chunks = written(ChunkWriter::new(head, asked), &deltas);
        let pieces = || chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]);
        prop_assert_eq!(joined(pieces(), "content"), message["content"].as_str().unwrap_or(""));
        prop_assert_eq!(joined(pieces(), "reasoning"), message["reasoning"].as_str().unwrap_or(""));
        prop_assert_eq!(&parts_or_nothing(listed(pieces(), "malformed_tool_calls")), &message["malformed_tool_calls"]);
        let mut calls: Vec<Value> = Vec::new();
        for call in listed(pieces(), "tool_calls") {
            let index = call["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                calls.push(json!({"id": call["id"], "type": call["type"], "function": call["function"]}));
            } else {
                let whole = &mut calls[index]["function"]["arguments"];
                let more = call["function"]["arguments"].as_str().unwrap();
                *whole = format!("{}{more}", whole.as_str().unwrap()).into();
            }
        }
        prop_assert_eq!(&parts_or_nothing(calls), &message["tool_calls"]);
        let reasons: Vec<&Value> = chunks
            .iter()
            .map(|chunk| &chunk["choices"][0]["finish_reason"])
            .filter(|reason| !reason.is_null())
            .collect();
        prop_assert_eq!(reasons, vec![&whole["choices"][0]["finish_reason"]]);
        prop_assert_eq!(&chunks.last().unwrap()["usage"], &whole["usage"]);

        let native: Value =
            serde_json::from_str(&generated::result(&ResponseFormat::Text, &answer).unwrap()).unwrap();
        let frames = written(FrameWriter::default(), &deltas);
        prop_assert_eq!(joined(frames.iter(), "response"), native["response"].as_str().unwrap());
        prop_assert_eq!(joined(frames.iter(), "reasoning"), native["reasoning"].as_str().unwrap_or(""));
        prop_assert_eq!(
            &parts_or_nothing(listed(frames.iter(), "malformed_tool_calls")),
            &native["malformed_tool_calls"]
        );
        let calls = listed(frames.iter(), "tool_calls").into_iter().enumerate().map(|(index, mut call)| {
            assert_eq!(call.as_object_mut().unwrap().shift_remove("index"), Some(json!(index)));
            call
        });
        prop_assert_eq!(&parts_or_nothing(calls.collect()), &native["tool_calls"]);
        let last = frames.last().unwrap();
        prop_assert_eq!((&last["finish_reason"], &last["usage"]), (&native["finish_reason"], &native["usage"]));
    }
}

//! A canonical request written as a body and read again is the same.
//!
//! Only here is one written: nothing of the program sends requests in this dialect.

use super::super::{parse, written_id};
use crate::{
    Content, GenerateRequest, Input, Message, Part, ResponseFormat, Role, Sampling, Tool, ToolCall,
    ToolChoice,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

fn text() -> impl Strategy<Value = String> {
    "[a-zA-Z \n\"\\\\{}é🙂]{1,12}"
}

/// A conversation: the system where there is one, then turns of the user and the assistant.
fn conversation() -> impl Strategy<Value = Vec<Message>> {
    let calls = prop::collection::vec(("[a-z_\"é]{1,6}", text()), 0..3);
    let turn = (prop::collection::vec(text(), 1..3), text(), prop::option::of(text()), calls);
    (prop::option::of(text()), prop::collection::vec(turn, 0..3), text()).prop_map(|(system, turns, last)| {
        let mut messages: Vec<Message> =
            system.map(|text| Message::text(Role::System, text)).into_iter().collect();
        for (t, (asked, said, reasoning, calls)) in turns.into_iter().enumerate() {
            let parts = asked.into_iter().map(Part::Text).collect();
            messages.push(Message { content: Content(parts), ..Message::text(Role::User, "") });
            let tool_calls: Vec<ToolCall> = calls
                .into_iter()
                .enumerate()
                .map(|(c, (name, value))| ToolCall {
                    id: format!("call_{t}_{c}"),
                    name,
                    arguments: json!({"value": value}).to_string(),
                })
                .collect();
            let results: Vec<Message> = tool_calls
                .iter()
                .map(|call| Message {
                    tool_call_id: Some(call.id.clone()),
                    ..Message::text(Role::Tool, format!("result of {}", call.name))
                })
                .collect();
            messages.push(Message { reasoning, tool_calls, ..Message::text(Role::Assistant, said) });
            messages.extend(results);
        }
        messages.push(Message::text(Role::User, last));
        messages
    })
}

prop_compose! {
    fn request()(
        messages in conversation(),
        names in prop::collection::hash_set("[a-z_\"é]{1,6}", 0..3),
        description in prop::option::of(text()),
        strict in prop::option::of(any::<bool>()),
        choice in 0u8..4,
        parallel in prop::option::of(any::<bool>()),
        schema in any::<bool>(),
        stop in prop::collection::vec(text(), 0..3),
        max_tokens in 0u32..1000,
        temperature in prop::option::of(0u8..=4),
        top_k in prop::option::of(0u32..100),
        thinks in any::<bool>(),
        session in prop::option::of("[a-z]{1,5}"),
    ) -> GenerateRequest {
        let tools: Vec<Tool> = names
            .into_iter()
            .map(|name| Tool {
                name,
                description: description.clone(),
                parameters: Some(json!({"type": "object", "properties": {"b": {}, "a": {"enum": [1, "x", null]}}})),
                strict,
                cache: None,
            })
            .collect();
        let tool_choice = match (choice, tools.first()) {
            (1, Some(_)) => ToolChoice::Required,
            (2, Some(tool)) => ToolChoice::Named(tool.name.clone()),
            (3, _) => ToolChoice::None,
            _ => ToolChoice::Auto,
        };
        GenerateRequest {
            model: "m".into(),
            input: Input::Chat(messages),
            tools,
            tool_choice,
            parallel_tool_calls: parallel,
            response_format: if schema {
                ResponseFormat::JsonSchema { name: None, schema: json!({"type": "object"}), strict: Some(true) }
            } else {
                ResponseFormat::Text
            },
            sampling: Sampling { temperature: temperature.map(|t| f32::from(t) / 4.0), top_k, ..Sampling::default() },
            max_tokens: Some(max_tokens),
            stop,
            choices: 1,
            template_variables: ["enable_thinking", "thinking"].map(|name| (name.to_owned(), thinks.into())).into(),
            user: session.clone(),
            session,
            reasoning_budget: thinks.then_some(1024),
            ..GenerateRequest::default()
        }
    }
}

fn body(request: &GenerateRequest) -> Value {
    let Input::Chat(all) = &request.input else { panic!("a conversation") };
    let blocks = |content: &Content| -> Vec<Value> {
        content
            .0
            .iter()
            .map(|part| {
                let Part::Text(text) = part else { panic!("text") };
                json!({"type": "text", "text": text})
            })
            .collect()
    };
    let mut body = json!({"model": request.model, "max_tokens": request.max_tokens});
    let mut messages: Vec<Value> = Vec::new();
    let mut results: Vec<Value> = Vec::new();
    for message in all {
        match message.role {
            Role::System => body["system"] = blocks(&message.content).into(),
            Role::Tool => results.push(json!({
                "type": "tool_result",
                "tool_use_id": written_id(message.tool_call_id.as_deref().unwrap()),
                "content": blocks(&message.content),
            })),
            Role::Assistant => {
                let mut content = Vec::new();
                if let Some(thought) = &message.reasoning {
                    content.push(json!({"type": "thinking", "thinking": thought}));
                }
                content.extend(blocks(&message.content));
                content.extend(message.tool_calls.iter().map(|call| {
                    let input: Map<String, Value> = serde_json::from_str(&call.arguments).unwrap();
                    json!({"type": "tool_use", "id": written_id(&call.id), "name": call.name, "input": input})
                }));
                messages.push(json!({"role": "assistant", "content": content}));
            }
            _ => {
                results.extend(blocks(&message.content));
                messages.push(json!({"role": "user", "content": std::mem::take(&mut results)}));
            }
        }
    }
    body["messages"] = messages.into();
    let tool = |tool: &Tool| json!({"name": tool.name, "description": tool.description, "input_schema": tool.parameters, "strict": tool.strict});
    body["tools"] = request.tools.iter().map(tool).collect();
    body["tool_choice"] = match &request.tool_choice {
        ToolChoice::Auto => json!({"type": "auto"}),
        ToolChoice::None => json!({"type": "none"}),
        ToolChoice::Required => json!({"type": "any"}),
        ToolChoice::Named(name) => json!({"type": "tool", "name": name}),
    };
    body["tool_choice"]["disable_parallel_tool_use"] = request.parallel_tool_calls.map(|on| !on).into();
    if let ResponseFormat::JsonSchema { schema, .. } = &request.response_format {
        body["output_config"] = json!({"format": {"type": "json_schema", "schema": schema}});
    }
    body["stop_sequences"] = request.stop.clone().into();
    body["temperature"] = request.sampling.temperature.into();
    body["top_k"] = request.sampling.top_k.into();
    let thinks = request.template_variables["thinking"] == true;
    body["thinking"] =
        if thinks { json!({"type": "enabled", "budget_tokens": 1024}) } else { json!({"type": "disabled"}) };
    body["metadata"] = json!({"user_id": request.session});
    body
}

proptest! {
    #[test]
    fn a_request_comes_back_from_its_body(request in request()) {
        let body = body(&request).to_string();
        let read = parse(body.as_bytes()).map_err(|error| TestCaseError::fail(format!("{error}: {body}")))?;
        prop_assert_eq!(read.request, request);
    }

    #[test]
    fn any_json_is_read_or_refused(body in "[\\[\\]{}\",:a1]{0,60}") {
        let _ = parse(body.as_bytes());
    }

    #[test]
    fn blocks_of_any_kind_are_read_or_refused_with_a_path(
        kinds in prop::collection::vec((prop::sample::select(vec![
            "text", "image", "tool_use", "tool_result", "thinking", "redacted_thinking", "document", "x",
        ]), any::<bool>(), 0u8..3), 0..6),
    ) {
        let messages: Vec<Value> = kinds.iter().map(|(kind, user, id)| json!({
            "role": if *user { "user" } else { "assistant" },
            "content": [{"type": kind, "text": "t", "id": id.to_string(), "tool_use_id": id.to_string()}],
        })).collect();
        let body = json!({"model": "m", "max_tokens": 1, "messages": messages}).to_string();
        if let Err(error) = parse(body.as_bytes()) {
            prop_assert!(error.param.is_some_and(|param| param.starts_with("messages")));
        }
    }
}

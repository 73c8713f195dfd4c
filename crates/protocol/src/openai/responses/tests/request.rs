//! Requests: what each field becomes, what is refused, and that nothing is lost on the way.

use crate::openai::responses::{Asked, Item, parse, written_input};
use crate::{
    Content, Error, ErrorKind, GenerateRequest, Input, Message, Part, ReasoningEffort, ResponseFormat, Role,
    Sampling, StreamWriter, Tool, ToolCall, ToolChoice,
};
use proptest::prelude::*;
use serde_json::{Value, json};
use std::collections::HashMap;

fn parsed(more: Value) -> Result<Asked, Error> {
    let mut body = json!({"model": "m", "input": "hi"});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    let mut asked = parse(body.to_string().as_bytes())?;
    asked.converse(Vec::new(), &HashMap::new())?;
    Ok(asked)
}

#[track_caller]
fn messages(asked: &Asked) -> &[Message] {
    let Input::Chat(messages) = &asked.request.input else { panic!("no chat") };
    messages
}

#[track_caller]
fn refused(more: Value, param: &str, message: &str) {
    let error = parsed(more).unwrap_err();
    assert_eq!(error.param.as_deref(), Some(param), "{error}");
    assert!(error.message.contains(message), "{error}");
}

#[test]
fn a_plain_text_is_a_message_of_the_user_and_instructions_go_before() {
    let asked = parsed(json!({"instructions": "be brief"})).unwrap();
    assert_eq!(messages(&asked), [Message::text(Role::System, "be brief"), Message::text(Role::User, "hi")]);
    assert_eq!((asked.store, asked.stream), (None, false));
}

#[test]
fn items_of_one_turn_of_the_model_are_one_message() {
    let input = json!([
        {"role": "user", "content": [{"type": "input_text", "text": "weather?"}]},
        {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "hm"}]},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
         "content": [{"type": "output_text", "text": "I look.", "annotations": [], "logprobs": []}]},
        {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "f", "arguments": "{}", "status": "completed"},
        {"type": "function_call", "call_id": "c2", "name": "g", "arguments": "{\"a\":1}"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"type": "function_call_output", "call_id": "c2", "output": [{"type": "input_text", "text": "rain"}]},
        {"role": "assistant", "content": "mixed"},
        {"role": "assistant", "content": "indeed"},
    ]);
    let asked = parsed(json!({"input": input})).unwrap();
    let calls = vec![
        ToolCall { id: "c1".to_owned(), name: "f".to_owned(), arguments: "{}".to_owned() },
        ToolCall { id: "c2".to_owned(), name: "g".to_owned(), arguments: "{\"a\":1}".to_owned() },
    ];
    let tool = |id: &str, text: &str| Message {
        tool_call_id: Some(id.to_owned()),
        ..Message::text(Role::Tool, text)
    };
    assert_eq!(
        messages(&asked),
        [
            Message::text(Role::User, "weather?"),
            Message {
                reasoning: Some("hm".to_owned()),
                tool_calls: calls,
                ..Message::text(Role::Assistant, "I look.")
            },
            tool("c1", "sun"),
            tool("c2", "rain"),
            Message::text(Role::Assistant, "mixed"),
            Message::text(Role::Assistant, "indeed"),
        ]
    );
}

#[test]
fn errors_of_a_backend_name_the_callers_fields() {
    let input = json!([
        {"role": "user", "content": "go"},
        {"type": "reasoning", "summary": []},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{"},
        {"type": "function_call_output", "call_id": "c1", "output": "sun"},
        {"role": "user", "content": [{"type": "input_text", "text": "a"},
                                     {"type": "input_image", "image_url": "data:,", "detail": "low"}]},
    ]);
    let tools = json!([
        {"type": "function", "name": "e"}, {"type": "function", "name": "f", "parameters": {"type": "object"}}
    ]);
    let choice =
        json!({"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]});
    let asked = parsed(json!({
        "input": input, "tools": tools, "tool_choice": choice, "instructions": "x",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}}},
    }))
    .unwrap();
    assert_eq!(asked.request.tool_choice, ToolChoice::Required);
    assert_eq!(asked.request.tools.len(), 1);
    for (canonical, written) in [
        ("messages[0].content", "instructions"),
        ("messages[1].content", "input[0].content"),
        ("messages[2].tool_calls[0].function.arguments", "input[2].arguments"),
        ("messages[3].tool_call_id", "input[3].call_id"),
        ("messages[3].content", "input[3].output"),
        ("messages[4].content[1]", "input[4].content[1]"),
        ("messages[4]", "input[4]"),
        ("tools[0].function.parameters/properties/x", "tools[1].parameters/properties/x"),
        ("response_format.json_schema.schema/properties/a", "text.format.schema/properties/a"),
        ("reasoning_effort", "reasoning.effort"),
        ("model", "model"),
    ] {
        let error = asked.locate(Error::invalid(canonical, format!("'{canonical}' is wrong")));
        assert_eq!(error.param.as_deref(), Some(written), "{canonical}");
    }
    assert_eq!(asked.locate(Error::new(ErrorKind::ContextLength, "long")).param.as_deref(), Some("input"));
    let plain = parsed(json!({})).unwrap();
    assert_eq!(plain.locate(Error::invalid("messages[0].content", "x")).param.as_deref(), Some("input"));
}

#[test]
fn what_is_kept_goes_before_and_faults_in_it_are_named_by_the_field_that_asks_for_it() {
    let mut asked =
        parse(br#"{"model":"m","input":"and?","instructions":"new","previous_response_id":"resp_1"}"#)
            .unwrap();
    let kept = vec![
        json!({"type": "message", "id": "msg_1", "role": "user", "content": [{"type": "input_text", "text": "hi"}]}),
        json!({"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{"}),
        json!({"type": "function_call_output", "id": "fco_1", "call_id": "c", "output": "x"}),
    ];
    asked.converse(kept, &HashMap::new()).unwrap();
    assert_eq!(messages(&asked).len(), 5);
    assert_eq!(messages(&asked)[0].content.joined_text(), "new");
    let error = Error::invalid("messages[2].tool_calls[0].function.arguments", "x");
    assert_eq!(asked.locate(error).param.as_deref(), Some("previous_response_id"));
}

#[test]
fn references_become_the_items_they_name() {
    let body = br#"{"model":"m","input":[{"type":"item_reference","id":"msg_1"},{"id":"msg_2"}]}"#;
    let mut asked = parse(body).unwrap();
    assert_eq!(asked.references().collect::<Vec<_>>(), ["msg_1", "msg_2"]);
    let item = |text: &str| json!({"type": "message", "role": "user", "content": text});
    let mut found = HashMap::from([("msg_1".to_owned(), item("a"))]);
    let error = asked.clone().converse(Vec::new(), &found).unwrap_err();
    assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::NotFound, Some("input[1].id")));
    assert_eq!(error.message, "Item with id 'msg_2' not found.");
    found.insert("msg_2".to_owned(), item("b"));
    asked.converse(Vec::new(), &found).unwrap();
    assert_eq!(messages(&asked), [Message::text(Role::User, "a"), Message::text(Role::User, "b")]);
}

#[test]
fn fields_become_their_canonical_ones() {
    let asked = parsed(json!({
        "max_output_tokens": 7, "temperature": 0.5, "top_p": 0.25, "top_logprobs": 3, "stream": true,
        "stream_options": {"include_obfuscation": false}, "store": false, "parallel_tool_calls": false,
        "include": ["message.output_text.logprobs", "file_search_call.results"],
        "reasoning": {"effort": "low", "summary": "auto"}, "prompt_cache_key": "k", "cache_salt": "s",
        "metadata": {"a": "b"}, "user": "u", "safety_identifier": "i", "service_tier": "auto",
        "truncation": "disabled", "background": false, "text": {"format": {"type": "json_object"}},
        "prompt_cache_retention": "24h",
    }))
    .unwrap();
    assert_eq!(
        asked.request,
        GenerateRequest {
            model: "m".to_owned(),
            input: Input::Chat(vec![Message::text(Role::User, "hi")]),
            max_tokens: Some(7),
            sampling: Sampling { temperature: Some(0.5), top_p: Some(0.25), ..Sampling::default() },
            logprobs: Some(3),
            choices: 1,
            parallel_tool_calls: Some(false),
            response_format: ResponseFormat::JsonObject,
            reasoning_effort: Some(ReasoningEffort::Low),
            user: Some("i".to_owned()),
            session: Some("k".to_owned()),
            cache_salt: Some("s".to_owned()),
            stream: true,
            ..GenerateRequest::default()
        }
    );
    assert_eq!((asked.store, asked.stream), (Some(false), true));
}

#[test]
fn what_cannot_be_had_is_refused_by_name() {
    for name in ["background", "conversation", "prompt", "context_management", "moderation"] {
        refused(
            json!({name: if name == "background" { json!(true) } else { json!({}) }}),
            name,
            "not supported",
        );
    }
    refused(json!({"truncation": "auto"}), "truncation", "can only be 'disabled'");
    refused(json!({"tools": [{"type": "web_search"}]}), "tools[0].type", "tools of type 'web_search'");
    refused(json!({"tools": [{"type": "custom", "name": "x"}]}), "tools[0].type", "not supported");
    refused(
        json!({"tools": [{"type": "function", "function": {"name": "x"}}]}),
        "tools[0].name",
        "beside its type",
    );
    refused(json!({"tool_choice": "required"}), "tool_choice", "only allowed when 'tools'");
    refused(json!({"tool_choice": {"type": "function", "name": "x"}}), "tool_choice", "not among 'tools'");
    refused(
        json!({"text": {"format": {"type": "json_schema", "name": "x"}}}),
        "text.format.schema",
        "Missing",
    );
    refused(json!({"text": {"verbosity": "low"}}), "text.verbosity", "not supported");
    refused(json!({"reasoning": {"effort": "huge"}}), "reasoning.effort", "supported are");
    refused(json!({"include": ["x"]}), "include[0]", "supported are");
    refused(json!({"max_tokens": 5}), "max_tokens", "Unrecognized");
    refused(json!({"input": []}), "input", "at least one item");
    refused(json!({"input": [{"type": "computer_call", "id": "x"}]}), "input[0].type", "'computer_call'");
    refused(json!({"input": [{"role": "tool", "content": "x"}]}), "input[0].role", "'tool'");
    refused(
        json!({"input": [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}]}),
        "input[0].content[0].type",
        "'input_file'",
    );
    refused(
        json!({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}),
        "input[0].call_id",
        "No tool call found for function call output with call_id c.",
    );
    refused(json!({"metadata": {"a": 1}}), "metadata.a", "expected a string");
    let error = parse(br#"{"model":"m"}"#).unwrap_err();
    assert_eq!(error.message, "Missing required parameter: 'input'");
}

#[test]
fn an_output_can_be_sent_back_as_it_is() {
    let asked = parsed(json!({"include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}}))
        .unwrap();
    let head = crate::openai::Head {
        id: "resp_0123456789abcdef0123456789abcdef".to_owned(),
        created: 1,
        model: "m".to_owned(),
    };
    let mut responding = crate::openai::responses::Responding::new(head, asked.form, 1, true);
    for delta in [
        crate::Delta::Reasoning { choice: 0, text: "hm".to_owned() },
        crate::Delta::Text { choice: 0, text: "I look.".to_owned(), logprobs: Vec::new() },
        crate::Delta::ToolCallStart { choice: 0, index: 0, id: "c".to_owned(), name: "f".to_owned() },
        crate::Delta::ToolCallArguments { choice: 0, index: 0, arguments: "{}".to_owned() },
        crate::Delta::Finish { choice: 0, reason: crate::FinishReason::ToolCalls, stop_text: None },
    ] {
        responding.delta(0, delta);
    }
    let mut items = responding.items();
    // What a client without state keeps of thoughts.
    items[0]["summary"] = json!([]);
    let expected = Message {
        reasoning: Some("hm".to_owned()),
        tool_calls: vec![ToolCall { id: "c".to_owned(), name: "f".to_owned(), arguments: "{}".to_owned() }],
        ..Message::text(Role::Assistant, "I look.")
    };
    assert_eq!(messages(&parsed(json!({"input": items})).unwrap()), [expected]);
}

/// The body that asks for this, in the fields that this dialect has.
fn body(request: &GenerateRequest) -> Value {
    let Input::Chat(messages) = &request.input else { panic!("no chat") };
    let mut items = Vec::new();
    for message in messages {
        if let Some(reasoning) = &message.reasoning {
            items.push(Item::Reasoning { text: reasoning.clone(), thoughts: message.thoughts.clone() });
        }
        match &message.tool_call_id {
            Some(id) => {
                items.push(Item::CallOutput { call_id: id.clone(), output: message.content.0.clone() });
            }
            None if message.content.0.is_empty() => {}
            None => items.push(Item::Message { role: message.role, content: message.content.0.clone() }),
        }
        for call in &message.tool_calls {
            items.push(Item::Call {
                call_id: call.id.clone(),
                name: call.name.clone(),
                arguments: call.arguments.clone(),
            });
        }
    }
    let tools: Vec<Value> = request
        .tools
        .iter()
        .map(|tool| {
            json!({"type": "function", "name": tool.name, "description": tool.description,
                   "parameters": tool.parameters, "strict": tool.strict})
        })
        .collect();
    let format = match &request.response_format {
        ResponseFormat::JsonSchema { name, schema, strict } => {
            json!({"type": "json_schema", "name": name, "schema": schema, "strict": strict})
        }
        ResponseFormat::JsonObject => json!({"type": "json_object"}),
        _ => json!({"type": "text"}),
    };
    json!({
        "model": request.model,
        "input": written_input("resp_0123456789abcdef0123456789abcdef", &items),
        "tools": tools,
        "tool_choice": match &request.tool_choice {
            ToolChoice::Named(name) => json!({"type": "function", "name": name}),
            ToolChoice::None => json!("none"),
            ToolChoice::Required => json!("required"),
            _ => json!("auto"),
        },
        "parallel_tool_calls": request.parallel_tool_calls,
        "text": {"format": format},
        "temperature": request.sampling.temperature,
        "max_output_tokens": request.max_tokens,
        "top_logprobs": request.logprobs,
        "include": request.logprobs.map(|_| ["message.output_text.logprobs"]),
        "reasoning": {"effort": request.reasoning_effort.map(|_| "high")},
        "prompt_cache_key": request.session,
        "cache_salt": request.cache_salt,
        "store": false,
    })
}

fn texts() -> impl Strategy<Value = Content> {
    prop::collection::vec("[ -~é\u{1f600}]{0,8}".prop_map(Part::Text), 1..3).prop_map(Content)
}

/// A turn: of the user, or of the model with answers to all its calls.
fn turn() -> impl Strategy<Value = Vec<Message>> {
    let said = prop_oneof![Just(Role::User), Just(Role::System), Just(Role::Developer)];
    let said =
        (said, texts()).prop_map(|(role, content)| vec![Message { content, ..Message::text(role, "") }]);
    let calls = prop::collection::vec(("[a-z]{1,4}", "[ -~]{0,8}", texts()), 0..3);
    // Thoughts, text of which there is some, calls and their answers; then the user, so that turns stay apart.
    let made = (prop::option::of("[a-z ]{0,6}"), "[a-z]{1,6}", calls).prop_map(|(reasoning, text, calls)| {
        let tool_calls = calls.iter().enumerate().map(|(number, (name, arguments, _))| ToolCall {
            id: format!("c{number}"),
            name: name.clone(),
            arguments: arguments.clone(),
        });
        let message =
            Message { reasoning, tool_calls: tool_calls.collect(), ..Message::text(Role::Assistant, text) };
        let outputs = calls.iter().enumerate().map(|(number, (.., content))| Message {
            content: content.clone(),
            tool_call_id: Some(format!("c{number}")),
            ..Message::text(Role::Tool, "")
        });
        std::iter::once(message).chain(outputs).chain([Message::text(Role::User, "next")]).collect()
    });
    prop_oneof![said, made]
}

fn tool() -> impl Strategy<Value = Tool> {
    ("[a-z]{1,6}", prop::option::of("[a-z ]{0,6}"), prop::option::of(any::<bool>()), any::<bool>()).prop_map(
        |(name, description, strict, schema)| Tool {
            name,
            description,
            parameters: schema.then(|| json!({"type": "object", "properties": {"a": {"type": "string"}}})),
            strict,
            cache: None,
        },
    )
}

proptest! {
    #[test]
    fn a_request_goes_out_and_comes_back_the_same(
        turns in prop::collection::vec(turn(), 1..4),
        tools in prop::collection::vec(tool(), 0..3),
        choice in 0usize..4,
        format in 0usize..3,
        parallel in prop::option::of(any::<bool>()),
        temperature in prop::option::of(0u8..=20),
        max_tokens in prop::option::of(1u32..1000),
        logprobs in prop::option::of(0u32..20),
        think in any::<bool>(),
        session in prop::option::of("[a-z]{1,5}"),
    ) {
        let tool_choice = match (choice, tools.first()) {
            (0, Some(tool)) => ToolChoice::Named(tool.name.clone()),
            (1, Some(_)) => ToolChoice::Required,
            (2, _) => ToolChoice::None,
            _ => ToolChoice::Auto,
        };
        let request = GenerateRequest {
            model: "m".to_owned(),
            input: Input::Chat(turns.into_iter().flatten().collect()),
            tools,
            tool_choice,
            parallel_tool_calls: parallel,
            response_format: match format {
                0 => ResponseFormat::Text,
                1 => ResponseFormat::JsonObject,
                _ => ResponseFormat::JsonSchema {
                    name: Some("n".to_owned()), schema: json!({"type": "array"}), strict: Some(true),
                },
            },
            sampling: Sampling { temperature: temperature.map(|t| f32::from(t) / 10.0), ..Sampling::default() },
            max_tokens,
            choices: 1,
            logprobs,
            reasoning_effort: think.then_some(ReasoningEffort::High),
            session: session.clone(),
            cache_salt: session,
            ..GenerateRequest::default()
        };
        let mut asked = parse(body(&request).to_string().as_bytes()).unwrap();
        asked.converse(Vec::new(), &HashMap::new()).unwrap();
        prop_assert_eq!(asked.request, request);
    }

    #[test]
    fn any_json_as_an_item_is_read_or_refused(item in "[ -~]{0,40}") {
        let body = format!(r#"{{"model":"m","input":[{item}]}}"#);
        if let Ok(mut asked) = parse(body.as_bytes()) {
            let _ = asked.converse(Vec::new(), &HashMap::new());
        }
    }
}

#[test]
fn an_item_is_referred_to_once() {
    let reference = json!({"type": "item_reference", "id": "msg_1"});
    let mut asked =
        parse(json!({"model": "m", "input": [reference, reference]}).to_string().as_bytes()).unwrap();
    let kept = HashMap::from([("msg_1".to_owned(), json!({"role": "user", "content": "hi"}))]);
    let error = asked.converse(Vec::new(), &kept).unwrap_err();
    assert_eq!(error, Error::invalid("input[1].id", "Duplicate item found with id 'msg_1'."));
}

#[test]
fn efforts_beyond_high_are_high() {
    for (word, effort) in [
        ("none", ReasoningEffort::None),
        ("minimal", ReasoningEffort::Minimal),
        ("high", ReasoningEffort::High),
        ("xhigh", ReasoningEffort::High),
        ("max", ReasoningEffort::High),
    ] {
        let asked = parsed(json!({"reasoning": {"effort": word}})).unwrap();
        assert_eq!(asked.request.reasoning_effort, Some(effort), "{word}");
    }
    refused(json!({"reasoning": {"effort": "huge"}}), "reasoning.effort", "'xhigh' and 'max'");
}

#[test]
fn a_turn_of_no_words_is_read_and_a_call_without_a_name_is_not() {
    for message in
        [json!({"role": "assistant", "content": null}), json!({"role": "assistant", "content": []})]
    {
        let asked = parsed(json!({"input": [{"role": "user", "content": "a"}, message]})).unwrap();
        assert_eq!(messages(&asked)[1].content, Content::default());
    }
    refused(json!({"input": [{"role": "user", "content": null}]}), "input[0].content", "Missing");
    let call = json!({"type": "function_call", "call_id": "c", "name": "", "arguments": "{}"});
    refused(json!({"input": [{"role": "user", "content": "a"}, call]}), "input[1].name", "empty");
}

#[test]
fn a_schema_may_be_true_or_false() {
    let format =
        |schema: Value| json!({"text": {"format": {"type": "json_schema", "name": "s", "schema": schema}}});
    for schema in [json!(true), json!(false)] {
        let asked = parsed(format(schema.clone())).unwrap();
        let ResponseFormat::JsonSchema { schema: read, .. } = asked.request.response_format else { panic!() };
        assert_eq!(read, schema);
    }
    refused(format(json!([1])), "text.format.schema", "expected an object");
}

#[test]
fn switches_and_settled_fields_of_other_servers_are_taken() {
    let asked =
        parsed(json!({"enable_thinking": false, "cache_prompt": true, "skip_special_tokens": true})).unwrap();
    assert_eq!(asked.request.template_variables["enable_thinking"], false);
}

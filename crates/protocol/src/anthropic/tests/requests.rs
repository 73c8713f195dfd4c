//! What bodies mean, and what is wrong with them.

use super::super::{MessagesRequest, error, parse, parse_count};
use crate::{Error, ErrorKind, Input, Message, Part, ResponseFormat, Role, ToolChoice};
use serde_json::{Value, json};

/// A body with these fields beside the needed ones.
fn body(more: Value) -> Value {
    let mut body = json!({"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]});
    let Value::Object(more) = more else { panic!("an object") };
    body.as_object_mut().unwrap().extend(more);
    body
}

#[track_caller]
fn read(more: Value) -> MessagesRequest {
    parse(body(more.clone()).to_string().as_bytes()).unwrap_or_else(|error| panic!("{error}: {more}"))
}

/// The text of the error of a body.
fn refused(more: Value) -> String {
    text(&parse(body(more).to_string().as_bytes()).unwrap_err())
}

fn text(refused: &Error) -> String {
    let body: Value = serde_json::from_str(&error::body(refused, None)).unwrap();
    body["error"]["message"].as_str().unwrap().to_owned()
}

fn messages(asked: &MessagesRequest) -> &[Message] {
    let Input::Chat(messages) = &asked.request.input else { panic!("a conversation") };
    messages
}

/// Who says what: role, text, thoughts, names of calls, the call that is answered.
fn told(asked: &MessagesRequest) -> Vec<String> {
    let line = |message: &Message| {
        let mut line = format!("{}: {}", message.role.as_str(), message.content.joined_text());
        if let Some(thought) = &message.reasoning {
            line += &format!(" ({thought})");
        }
        for call in &message.tool_calls {
            line += &format!(" [{} {} {}]", call.id, call.name, call.arguments);
        }
        if let Some(id) = &message.tool_call_id {
            line += &format!(" <{id}>");
        }
        line
    };
    messages(asked).iter().map(line).collect()
}

fn call(id: &str) -> Value {
    json!({"type": "tool_use", "id": id, "name": "f", "input": {"a": 1}})
}

fn result(id: &str, content: Value) -> Value {
    json!({"type": "tool_result", "tool_use_id": id, "content": content})
}

fn said(role: &str, content: Value) -> Value {
    json!({"role": role, "content": content})
}

#[test]
fn what_claude_code_sends_is_taken() {
    let asked = read(json!({
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cc_version=2; cch=1a2b;"},
            {"type": "text", "text": "You are an agent.", "cache_control": {"type": "ephemeral", "ttl": "1h"}},
            {"type": "text", "text": "\nBe brief.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            {"role": "user", "content": [
                {"type": "text", "text": "<system-reminder>x</system-reminder>\n"},
                {"type": "text", "text": "hi", "cache_control": {"type": "ephemeral"}},
            ]},
        ],
        "tools": [{"name": "Bash", "description": "Runs", "input_schema": {"type": "object", "$schema": "x"},
                   "eager_input_streaming": true, "cache_control": {"type": "ephemeral"}}],
        "metadata": {"user_id": "user_1_account__session_2"},
        "thinking": {"type": "enabled", "budget_tokens": 31999},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "xhigh"},
        "temperature": 1, "stream": true, "betas": ["x"],
    }));
    assert_eq!(
        told(&asked),
        ["system: You are an agent.\nBe brief.", "user: <system-reminder>x</system-reminder>\nhi"]
    );
    assert!(asked.stream && asked.thoughts);
    assert_eq!(asked.request.session.as_deref(), Some("user_1_account__session_2"));
    assert_eq!(asked.request.tools[0].parameters, Some(json!({"type": "object", "$schema": "x"})));
    assert_eq!(asked.request.template_variables["enable_thinking"], true);
    assert_eq!(asked.request.template_variables["reasoning_effort"], "high");
    assert_eq!((asked.request.max_tokens, asked.request.choices), (Some(9), 1));
}

#[test]
fn a_turn_of_tools_is_taken_apart_in_the_order_that_templates_have() {
    let asked = read(json!({"messages": [
        said("user", json!("go")),
        said("assistant", json!([
            {"type": "thinking", "thinking": "Two.", "signature": "any"},
            {"type": "redacted_thinking", "data": "x"},
            {"type": "text", "text": "Both:"},
            call("toolu_1"), call("mine"),
        ])),
        // Results may come in two messages, in any order, before or behind what else is said.
        said("user", json!([{"type": "text", "text": "Look."}, result("mine", json!("two"))])),
        said("user", json!([
            {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": true,
             "content": [{"type": "text", "text": "no "}, {"type": "text", "text": "file"}]},
            {"type": "text", "text": "Go on."},
        ])),
    ]}));
    assert_eq!(
        told(&asked),
        [
            "user: go",
            r#"assistant: Both: (Two.) [call_1 f {"a":1}] [mine f {"a":1}]"#,
            "tool: two <mine>",
            "tool: Error: no file <call_1>",
            "user: Look.\n\nGo on.",
        ]
    );
}

#[test]
fn neighbours_of_one_role_are_one_message_and_the_system_may_speak_anywhere() {
    let asked = read(json!({
        "system": "A.",
        "messages": [
            said("system", json!([{"type": "text", "text": "B."}])),
            said("user", json!("1")), said("user", json!("2")),
            said("assistant", json!("3")), said("assistant", json!([{"type": "text", "text": "4"}])),
            said("developer", json!("C.")),
            said("user", json!("5")),
        ],
    }));
    assert_eq!(
        told(&asked),
        ["system: A.\n\nB.", "user: 1\n\n2", "assistant: 3\n\n4", "developer: C.", "user: 5"]
    );
}

#[test]
fn images_keep_their_place() {
    let asked = read(json!({"messages": [said("user", json!([
        {"type": "text", "text": "What is it?"},
        {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
        {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}},
    ]))]}));
    let Part::Image { url, .. } = &messages(&asked)[0].content.0[1] else { panic!("an image") };
    assert_eq!(url, "data:image/png;base64,aGk=");
    let refused = Error::new(ErrorKind::Unsupported, "no images yet").at("messages[0].content[1].image_url");
    assert_eq!(text(&asked.layout.locate(refused)), "messages.0.content.1: no images yet");
    let path = "messages[0].content[1].image_url.url";
    let located = asked.layout.locate(Error::invalid(path, format!("'{path}' must be a data: URL")));
    let written = "messages.0.content.1.source.url";
    assert_eq!(text(&located), format!("{written}: '{written}' must be a data: URL"));
}

#[test]
fn faults_of_the_history_name_the_block() {
    let history = |messages: Value| refused(json!({ "messages": messages }));
    let unanswered = history(json!([
        said("user", json!("go")),
        said("assistant", json!([{"type": "text", "text": "x"}, call("toolu_1"), call("toolu_2")])),
        said("user", json!([result("toolu_1", json!("1"))])),
        said("assistant", json!("y")),
    ]));
    assert!(
        unanswered.starts_with(
            "messages.1.content.2: `tool_use` ids were found without `tool_result` blocks immediately after: toolu_2."
        ),
        "{unanswered}"
    );
    let last = history(json!([said("user", json!("go")), said("assistant", json!([call("toolu_1")]))]));
    assert!(last.starts_with("messages.1.content.0: `tool_use` ids were found without"), "{last}");
    let unknown = history(json!([
        said("user", json!("go")),
        said("assistant", json!([call("toolu_1")])),
        said("user", json!([result("toolu_1", json!("1")), result("toolu_9", json!("1"))])),
    ]));
    assert!(
        unknown.starts_with(
            "messages.2.content.1: unexpected `tool_use_id` found in `tool_result` blocks: toolu_9."
        ),
        "{unknown}"
    );
    let twice = history(json!([
        said("user", json!("go")),
        said("assistant", json!([call("a")])),
        said("user", json!([result("a", json!("1")), result("a", json!("1"))])),
    ]));
    assert!(twice.starts_with("messages.2.content.1: each `tool_use` must have a single result"), "{twice}");
    let same = history(json!([said("assistant", json!([call("a"), call("a")]))]));
    assert_eq!(same, "messages.0.content.1.id: `tool_use` ids must be unique");
    let late = history(json!([
        said("assistant", json!([call("a")])),
        said("user", json!([result("a", json!("1"))])),
        said("assistant", json!("x")),
        said("user", json!([result("a", json!("1"))])),
    ]));
    assert!(late.starts_with("messages.3.content.0: unexpected `tool_use_id`"), "{late}");
    let prefill = history(json!([said("user", json!("go")), said("assistant", json!("{"))]));
    assert!(
        prefill.starts_with("messages.1: This server does not continue a message of the assistant"),
        "{prefill}"
    );
}

#[test]
fn a_count_may_end_with_the_assistant_and_needs_no_limit() {
    let body = json!({"model": "m", "messages": [said("user", json!("go")), said("assistant", json!("x"))]});
    let asked = parse_count(body.to_string().as_bytes()).unwrap();
    assert_eq!(told(&asked), ["user: go", "assistant: x"]);
    assert_eq!(asked.request.max_tokens, None);
}

#[test]
fn faults_are_told_in_anthropics_words() {
    for (more, told) in [
        (json!({"max_tokens": null}), "max_tokens: Field required"),
        (json!({"max_tokens": "9"}), "max_tokens: expected an integer, but got a string"),
        (json!({"max_token": 9}), "max_token: Extra inputs are not permitted; did you mean 'max_tokens'?"),
        (json!({"messages": []}), "messages: at least one message is required"),
        (json!({"messages": null}), "messages: Field required"),
        (json!({"messages": [7]}), "messages.0: expected an object, but got an integer"),
        (json!({"messages": [{"role": "user"}]}), "messages.0.content: Field required"),
        (json!({"messages": [said("user", json!([]))]}), "messages.0.content: at least one block is needed"),
        (
            json!({"messages": [said("tool", json!("x"))]}),
            "messages.0.role: supported are 'user', 'assistant' and 'system'",
        ),
        (
            json!({"messages": [said("user", json!([{"type": "text", "text": "x", "index": 0}]))]}),
            "messages.0.content.0.index: Extra inputs are not permitted",
        ),
        (
            json!({"messages": [said("user", json!([{"type": "text"}]))]}),
            "messages.0.content.0.text: Field required",
        ),
        (
            json!({"messages": [said("user", json!([{"type": "document", "source": {}}]))]}),
            "messages.0.content.0.type: blocks of type 'document' are not supported here; user content has 'text', \
             'image' and 'tool_result'",
        ),
        (
            json!({"messages": [said("user", json!([call("a")]))]}),
            "messages.0.content.0.type: blocks of type 'tool_use' are not supported here; user content has 'text', \
             'image' and 'tool_result'",
        ),
        (
            json!({"messages": [said("assistant", json!([
                {"type": "tool_use", "id": "a", "name": "f", "input": "{}"}]))]}),
            "messages.0.content.0.input: expected an object, but got a string",
        ),
        (
            json!({"messages": [said("user", json!([
                {"type": "image", "source": {"type": "file", "file_id": "x"}}]))]}),
            "messages.0.content.0.source.type: sources of images are of type 'base64' or 'url' on this server",
        ),
        (
            json!({"tools": [{"name": "f", "input_schema": {}}, {"type": "web_search_20250305", "name": "web_search"}]}),
            "tools.1.type: tools of type 'web_search_20250305' are run or defined by Anthropic; this server takes \
             'custom' ones only",
        ),
        (json!({"tools": [{"name": "f"}]}), "tools.0.input_schema: Field required"),
        (
            json!({"tools": [{"name": "f", "input_schema": {}, "function": {}}]}),
            "tools.0.function: Extra inputs are not permitted",
        ),
        (
            json!({"tools": [{"name": "f", "input_schema": {}}, {"name": "f", "input_schema": {}}]}),
            "tools.1.name: Tool names must be unique",
        ),
        (
            json!({"tool_choice": {"type": "any"}}),
            "tool_choice: may only be specified while providing `tools`",
        ),
        (
            json!({"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "tool", "name": "g"}}),
            "tool_choice.name: Tool 'g' not found in provided tools",
        ),
        (json!({"temperature": 1.5}), "temperature: 1.5 is outside 0 to 1"),
        (json!({"stop_sequences": ["a", ""]}), "stop_sequences.1: a stop text must not be empty"),
        (json!({"thinking": {"type": "enabled"}}), "thinking.budget_tokens: Field required"),
        (
            json!({"context_management": {"edits": [{"type": "compact_20260112"}]}}),
            "context_management.edits.0.type: edits of type 'compact_20260112' are not supported by this server",
        ),
        (json!({"mcp_servers": [{}]}), "mcp_servers: 'mcp_servers' is not supported by this server"),
        (json!({"thread": {"type": "keep"}}), "thread.type: supported are 'create' and 'continue'"),
        (json!({"container": "x"}), "container: 'container' is not supported by this server"),
        (
            json!({"output_config": {"format": {"type": "json"}}}),
            "output_config.format.type: supported is 'json_schema'",
        ),
    ] {
        assert_eq!(refused(more), told);
    }
    let broken = parse(br#"{"messages":[{"role":nope}]}"#).unwrap_err();
    assert!(text(&broken).starts_with("messages.0.role: The body is not valid JSON"), "{broken}");
}

#[test]
fn what_a_backend_names_is_told_where_the_caller_wrote_it() {
    let asked = read(json!({
        "system": [{"type": "text", "text": "x-anthropic-billing-header: a"}, {"type": "text", "text": "S"}],
        "messages": [
            said("user", json!("go")),
            said("assistant", json!([{"type": "text", "text": "t"}, call("a"), call("b")])),
            said("user", json!([result("b", json!("2")), result("a", json!([{"type": "text", "text": "1"}]))])),
        ],
        "output_config": {"format": {"type": "json_schema", "schema": {"type": "object"}}},
    }));
    for (canonical, written) in [
        ("messages", "messages"),
        ("messages[0]", "system"),
        ("messages[0].content[0]", "system.1"),
        ("messages[1]", "messages.0"),
        ("messages[1].content[0].text", "messages.0.content"),
        ("messages[2].role", "messages.1.role"),
        ("messages[2].tool_calls", "messages.1.content.1"),
        ("messages[2].tool_calls[1]", "messages.1.content.2"),
        ("messages[2].tool_calls[1].function.name", "messages.1.content.2.name"),
        ("messages[2].tool_calls[0].function.arguments", "messages.1.content.1.input"),
        ("messages[3].content[0]", "messages.2.content.0.content"),
        ("messages[4].content[0]", "messages.2.content.1.content.0"),
        ("messages[4].tool_call_id", "messages.2.content.1.tool_use_id"),
        ("messages[9].content", "messages.9.content"),
        ("tools[3].function.parameters/properties/a", "tools.3.input_schema/properties/a"),
        ("tools[3].function.name", "tools.3.name"),
        ("tools", "tools"),
        ("tool_choice.function.name", "tool_choice.name"),
        ("response_format.json_schema.schema/anyOf/0", "output_config.format.schema/anyOf/0"),
        ("stop[1]", "stop_sequences.1"),
        ("chat_template_kwargs.enable_thinking", "thinking"),
        ("parallel_tool_calls", "tool_choice.disable_parallel_tool_use"),
    ] {
        let located = asked.layout.locate(Error::invalid(canonical, "wrong"));
        assert_eq!(text(&located), format!("{written}: wrong"), "{canonical}");
    }
    // In the text too, where a field is meant.
    let error = Error::invalid("response_format", "'response_format' is a response_format");
    assert_eq!(
        text(&asked.layout.locate(error)),
        "output_config.format: 'output_config.format' is a response_format"
    );
}

#[test]
fn choice_of_tools_and_formats_have_their_canonical_meaning() {
    let tools =
        json!([{"type": "custom", "name": "f", "description": "d", "input_schema": {}, "strict": true}]);
    for (choice, canonical, parallel) in [
        (json!({"type": "auto"}), ToolChoice::Auto, None),
        (json!({"type": "any", "disable_parallel_tool_use": true}), ToolChoice::Required, Some(false)),
        (json!({"type": "tool", "name": "f"}), ToolChoice::Named("f".into()), None),
        (json!({"type": "none"}), ToolChoice::None, None),
    ] {
        let asked = read(json!({"tools": tools, "tool_choice": choice}));
        assert_eq!((asked.request.tool_choice, asked.request.parallel_tool_calls), (canonical, parallel));
        assert_eq!(asked.request.tools[0].strict, Some(true));
    }
    for place in [
        json!({"output_config": {"format": {"type": "json_schema", "schema": {"a": 1}}}}),
        json!({"output_format": {"type": "json_schema", "schema": {"a": 1}}}),
    ] {
        let asked = read(place);
        let format = ResponseFormat::JsonSchema { name: None, schema: json!({"a": 1}), strict: Some(true) };
        assert_eq!(asked.request.response_format, format);
    }
}

#[test]
fn a_model_thinks_when_it_is_asked_to() {
    for (thinking, on, shown) in [
        (json!(null), false, true),
        (json!({"type": "disabled"}), false, true),
        (json!({"type": "adaptive"}), true, true),
        (json!({"type": "enabled", "budget_tokens": 1024, "display": "omitted"}), true, false),
    ] {
        let asked = read(json!({ "thinking": thinking }));
        assert_eq!(asked.request.template_variables["enable_thinking"], on, "{thinking}");
        assert_eq!(asked.request.template_variables["thinking"], on);
        assert_eq!(asked.thoughts, shown);
        // Never a wish that a model without thoughts would refuse.
        assert_eq!(asked.request.reasoning_effort, None);
    }
    let asked = read(json!({"chat_template_kwargs": {"enable_thinking": true}}));
    assert_eq!(asked.request.template_variables["enable_thinking"], true);
}

#[test]
fn a_failure_is_said_once() {
    let asked = |content: Value| {
        let result = json!({"type": "tool_result", "tool_use_id": "a", "is_error": true, "content": content});
        let asked =
            read(json!({"messages": [said("assistant", json!([call("a")])), said("user", json!([result]))]}));
        messages(&asked).iter().find(|message| message.role == Role::Tool).unwrap().content.joined_text()
    };
    assert_eq!(asked(json!("no file")), "Error: no file");
    assert_eq!(asked(json!("ERROR no file")), "ERROR no file");
    assert_eq!(asked(json!("<tool_use_error>no</tool_use_error>")), "<tool_use_error>no</tool_use_error>");
    assert_eq!(asked(Value::Null), "Error: ");
}

#[test]
fn a_thread_may_begin_and_is_gone_when_it_goes_on() {
    read(json!({"thread": {"type": "create"}}));
    let more = json!({
        "thread": {"type": "continue", "previous_message_id": "msg_1"},
        "messages": [said("user", json!([result("a", json!("x"))]))],
    });
    let refused = parse(body(more).to_string().as_bytes()).unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotFound);
    let told: Value = serde_json::from_str(&error::body(&refused, None)).unwrap();
    assert_eq!(told["error"]["details"], json!({"error_code": "thread_not_found"}));
}

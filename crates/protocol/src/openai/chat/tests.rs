//! Chat completions: what is read, what is refused and under which name, and that no cut of deltas shows.

use super::*;
use crate::{
    CacheFor, CacheMark, ErrorKind, Message, Part, ReasoningEffort, ResponseFormat, Role, Tool, ToolCall,
    ToolChoice,
};
use proptest::prelude::*;
use serde_json::json;

fn parsed(body: &Value) -> Result<ChatRequest, Error> {
    parse(body.to_string().as_bytes())
}

/// A plain body with more fields.
fn with(more: &Value) -> Value {
    let mut body = json!({"model": "m", "messages": [{"role": "user", "content": "hi"}]});
    for (name, value) in more.as_object().unwrap() {
        body[name] = value.clone();
    }
    body
}

#[track_caller]
fn refused(body: &Value, kind: ErrorKind, param: &str) {
    let error = parsed(body).expect_err(&format!("{body} was read"));
    assert_eq!((error.kind, error.param.as_deref()), (kind, Some(param)), "{error}: {body}");
}

#[test]
fn every_field_reaches_the_canonical_request() {
    let chat = parsed(&json!({
        "model": "m",
        "messages": [
            {"role": "system", "content": "be brief"},
            {"role": "developer", "content": [{"type": "text", "text": "and kind"}]},
            {"role": "user", "name": "Ada", "content": [
                {"type": "text", "text": "what is this?", "cache_control": {"type": "ephemeral"}},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA==", "detail": "low"}},
            ]},
            {"role": "assistant", "content": null, "reasoning_content": "hm", "refusal": null, "annotations": [],
             "tool_calls": [{"id": "c1", "type": "function", "index": 0,
                             "function": {"name": "look", "arguments": "{\"x\":1}"}}]},
            {"role": "tool", "tool_call_id": "c1", "content": "a cat"},
        ],
        "tools": [{"type": "function", "function": {
            "name": "look", "description": "looks", "parameters": {"type": "object"}, "strict": true}}],
        "tool_choice": {"type": "function", "function": {"name": "look"}},
        "parallel_tool_calls": false,
        "response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {"type": "object"}, "strict": true}},
        "temperature": 0.5, "top_p": 0.9, "top_k": 40, "min_p": 0.05, "repetition_penalty": 1.1,
        "frequency_penalty": -0.5, "presence_penalty": 2, "logit_bias": {"50256": -100, "7": 1.5}, "seed": -1,
        "max_completion_tokens": 99, "stop": ["a", "b"], "n": 3, "logprobs": true, "top_logprobs": 5,
        "prediction": {"type": "content", "content": "a cat"}, "prompt_logprobs": 1, "ignore_eos": true, "reasoning_effort": "high",
        "chat_template_kwargs": {"enable_thinking": false}, "prompt_cache_key": "session", "cache_salt": "salt",
        "user": "u", "metadata": {"a": "b"}, "store": true, "service_tier": "auto", "safety_identifier": "x",
        "modalities": ["text"], "verbosity": "medium", "options": {"rejectIfBusy": true}, "audio": null,
    }))
    .unwrap();
    let message =
        |role, content: Vec<Part>| Message { content: crate::Content(content), ..Message::text(role, "") };
    let text = |text: &str| Part::Text(text.to_owned());
    assert_eq!(
        chat.request.input,
        Input::Chat(vec![
            Message::text(Role::System, "be brief"),
            Message::text(Role::Developer, "and kind"),
            Message {
                name: Some("Ada".to_owned()),
                cache_marks: vec![CacheMark { part: Some(0), keep: CacheFor::Minutes }],
                ..message(
                    Role::User,
                    vec![
                        text("what is this?"),
                        Part::Image {
                            url: "data:image/png;base64,AA==".to_owned(),
                            detail: Some("low".to_owned())
                        }
                    ]
                )
            },
            Message {
                reasoning: Some("hm".to_owned()),
                tool_calls: vec![ToolCall {
                    id: "c1".to_owned(),
                    name: "look".to_owned(),
                    arguments: "{\"x\":1}".to_owned()
                }],
                ..message(Role::Assistant, Vec::new())
            },
            Message { tool_call_id: Some("c1".to_owned()), ..Message::text(Role::Tool, "a cat") },
        ])
    );
    let request = GenerateRequest { input: Input::default(), ..chat.request };
    assert_eq!(
        request,
        GenerateRequest {
            model: "m".to_owned(),
            input: Input::default(),
            tools: vec![Tool {
                name: "look".to_owned(),
                description: Some("looks".to_owned()),
                parameters: Some(json!({"type": "object"})),
                strict: Some(true),
                cache: None,
            }],
            tool_choice: ToolChoice::Named("look".to_owned()),
            parallel_tool_calls: Some(false),
            response_format: ResponseFormat::JsonSchema {
                name: Some("s".to_owned()),
                schema: json!({"type": "object"}),
                strict: Some(true),
            },
            sampling: crate::Sampling {
                temperature: Some(0.5),
                top_k: Some(40),
                top_p: Some(0.9),
                min_p: Some(0.05),
                repetition_penalty: Some(1.1),
                frequency_penalty: Some(-0.5),
                presence_penalty: Some(2.0),
                logit_bias: vec![(50256, -100.0), (7, 1.5)],
                seed: Some(u64::MAX),
            },
            max_tokens: Some(99),
            stop: vec!["a".to_owned(), "b".to_owned()],
            prediction: Some("a cat".to_owned()),
            choices: 3,
            logprobs: Some(5),
            prompt_logprobs: Some(1),
            ignore_eos: true,
            reasoning_effort: Some(ReasoningEffort::High),
            reasoning_budget: None,
            reasoning_unsaid: false,
            template_variables: [("enable_thinking".to_owned(), json!(false))].into_iter().collect(),
            session: Some("session".to_owned()),
            user: Some("x".to_owned()),
            cache_salt: Some("salt".to_owned()),
            stream: chat.stream,
        }
    );
}

#[test]
fn what_is_left_out_takes_its_default() {
    let chat = parsed(&with(&json!({}))).unwrap();
    assert_eq!(
        chat,
        ChatRequest {
            request: GenerateRequest {
                model: "m".to_owned(),
                input: Input::Chat(vec![Message::text(Role::User, "hi")]),
                choices: 1,
                ..GenerateRequest::default()
            },
            stream: false,
            include_usage: false,
            places: Places::default(),
        }
    );
}

#[test]
fn what_agents_send_is_read() {
    for more in [
        // opencode through the AI SDK's OpenAI-compatible provider.
        json!({"max_tokens": 32000, "stream": true, "stream_options": {"include_usage": true}, "tools": [], "tool_choice": "auto"}),
        // The AI SDK's OpenAI provider.
        json!({"store": false, "metadata": {}, "prompt_cache_key": "k", "prompt_cache_retention": "24h", "reasoning_effort": "low"}),
        json!({"stop": [], "logit_bias": {}, "stream": false, "stream_options": null, "n": null, "seed": null}),
        json!({"stream": true, "stream_options": {"include_usage": false, "include_obfuscation": false}}),
        json!({"max_tokens": 5, "max_completion_tokens": 5, "logprobs": false, "top_logprobs": 0, "response_format": {"type": "text"}}),
    ] {
        parsed(&with(&more)).unwrap_or_else(|error| panic!("{more}: {error}"));
    }
}

#[test]
fn what_other_local_servers_take_changes_nothing_or_means_what_is_had_here() {
    let plain = parsed(&with(&json!({}))).unwrap().request;
    for more in [
        json!({"cache_prompt": true, "id_slot": -1, "keep_alive": "5m", "priority": 0, "request_id": "r", "ttl": 60}),
        json!({"skip_special_tokens": true, "include_reasoning": true, "spaces_between_special_tokens": true}),
        json!({"include_stop_str_in_output": false, "use_beam_search": false, "add_generation_prompt": true}),
        json!({"reasoning": {}, "max_tokens": -1, "stop": ""}),
        json!({"max_completion_tokens": -1.0}),
    ] {
        let read = parsed(&with(&more)).unwrap_or_else(|error| panic!("{more}: {error}"));
        assert_eq!(read.request, plain, "{more}");
    }
    let read = |more: Value| parsed(&with(&more)).unwrap_or_else(|error| panic!("{more}: {error}"));
    assert_eq!(read(json!({"repeat_penalty": 1.5})).request.sampling.repetition_penalty, Some(1.5));
    let effort = read(json!({"reasoning": {"effort": "low"}})).request.reasoning_effort;
    assert_eq!(effort, Some(ReasoningEffort::Low));
    for (more, thinks, place) in [
        (json!({"enable_thinking": false}), false, "enable_thinking"),
        (json!({"thinking": {"type": "disabled"}}), false, "thinking"),
        (json!({"thinking": {"type": "enabled", "budget_tokens": 1024}}), true, "thinking"),
        (json!({"thinking": true}), true, "thinking"),
    ] {
        let chat = read(more.clone());
        let variables = &chat.request.template_variables;
        assert_eq!((&variables["enable_thinking"], &variables["thinking"]), (&json!(thinks), &json!(thinks)));
        assert_eq!(chat.places.written("chat_template_kwargs"), place, "{more}");
    }
    // What the template is given by name goes before.
    let both = read(json!({"enable_thinking": true, "chat_template_kwargs": {"enable_thinking": false}}));
    assert_eq!(both.request.template_variables["enable_thinking"], false);
}

#[test]
fn wrong_values_are_named_as_the_caller_wrote_them() {
    for (more, param) in [
        (json!({"model": null}), "model"),
        (json!({"model": 3}), "model"),
        (json!({"model": ""}), "model"),
        (json!({"messages": null}), "messages"),
        (json!({"messages": {}}), "messages"),
        (json!({"messages": []}), "messages"),
        (json!({"messages": ["hi"]}), "messages[0]"),
        (json!({"messages": [{"content": "hi"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "wizard", "content": "hi"}]}), "messages[0].role"),
        (json!({"messages": [{"role": "user"}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": null}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": []}]}), "messages[0].content"),
        (json!({"messages": [{"role": "user", "content": 3}]}), "messages[0].content"),
        (json!({"messages": [{"role": "tool", "content": "x"}]}), "messages[0].tool_call_id"),
        (json!({"messages": [{"role": "user", "content": "hi", "colour": 1}]}), "messages[0].colour"),
        (
            json!({"messages": [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": 3}]}]}),
            "messages[1].content[0].text",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "poem", "text": "x"}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "text", "text": "x", "size": 1}]}]}),
            "messages[0].content[0].size",
        ),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "ftp://x"}}]}]}),
            "messages[0].content[0].image_url.url",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": 3}}]}]}),
            "messages[0].tool_calls[0].function.name",
        ),
        (
            json!({"messages": [{"role": "user", "content": "a", "tool_calls": [{"id": "a"}]}]}),
            "messages[0].tool_calls",
        ),
        (json!({"temperature": 2.1}), "temperature"),
        (json!({"temperature": -0.1}), "temperature"),
        (json!({"temperature": "hot"}), "temperature"),
        (json!({"top_p": 0}), "top_p"),
        (json!({"top_p": 1.1}), "top_p"),
        (json!({"top_k": -2}), "top_k"),
        (json!({"min_p": 2}), "min_p"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"frequency_penalty": 2.5}), "frequency_penalty"),
        (json!({"presence_penalty": -2.5}), "presence_penalty"),
        (json!({"n": 0}), "n"),
        (json!({"n": 129}), "n"),
        (json!({"n": 1.5}), "n"),
        (json!({"max_tokens": 0}), "max_tokens"),
        (json!({"max_tokens": 1e18}), "max_tokens"),
        (json!({"max_tokens": 5, "max_completion_tokens": 6}), "max_tokens"),
        (json!({"max_completion_tokens": -2}), "max_completion_tokens"),
        (json!({"max_tokens": 5, "max_completion_tokens": -1}), "max_tokens"),
        (json!({"seed": 1.5}), "seed"),
        (json!({"stop": [""]}), "stop[0]"),
        (json!({"repeat_penalty": 0}), "repeat_penalty"),
        (json!({"repeat_penalty": 1.1, "repetition_penalty": 1.2}), "repeat_penalty"),
        (json!({"enable_thinking": "no"}), "enable_thinking"),
        (json!({"thinking": {"type": "maybe"}}), "thinking.type"),
        (json!({"thinking": {}}), "thinking.type"),
        (json!({"thinking": {"type": "enabled", "depth": 1}}), "thinking.depth"),
        (json!({"reasoning": {"effort": "huge"}}), "reasoning.effort"),
        (json!({"reasoning": {"exclude": true}}), "reasoning.exclude"),
        (json!({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}), "reasoning.effort"),
        (json!({"skip_special_tokens": 1}), "skip_special_tokens"),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": ""}}]}]}),
            "messages[0].tool_calls[0].function.name",
        ),
        (json!({"stop": ["a", ""]}), "stop[1]"),
        (json!({"stop": ["a", 3]}), "stop[1]"),
        (json!({"stop": vec!["a"; 17]}), "stop"),
        (json!({"stop": ["a", "b".repeat(5000)]}), "stop[1]"),
        (json!({"model": "m".repeat(5000)}), "model"),
        (
            json!({"logit_bias": (0..20_000).map(|id| (id.to_string(), 1)).collect::<IndexMap<_, _>>()}),
            "logit_bias",
        ),
        (json!({"logit_bias": [1]}), "logit_bias"),
        (json!({"logit_bias": {"x": 1}}), "logit_bias"),
        (json!({"logit_bias": {"7": 101}}), "logit_bias.7"),
        (json!({"logprobs": 3}), "logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"stream": "yes"}), "stream"),
        (json!({"stream_options": {"usage": true}}), "stream_options.usage"),
        (json!({"stream": true, "prompt_logprobs": 1}), "prompt_logprobs"),
        (json!({"reasoning_effort": "huge"}), "reasoning_effort"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"tools": [{"type": "function", "function": {"name": ""}}]}), "tools[0].function.name"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f", "parameters": 3}}]}),
            "tools[0].function.parameters",
        ),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tool_choice": "sometimes"}), "tool_choice"),
        (
            json!({"tools": [{"type": "function", "function": {"name": "f"}}],
                "tool_choice": {"type": "function", "function": {"name": "g"}}}),
            "tool_choice",
        ),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
        (
            json!({"response_format": {"type": "json_schema", "json_schema": {"name": "s"}}}),
            "response_format.json_schema.schema",
        ),
        (json!({"max_token": 5}), "max_token"),
        (json!({"options": {"queue": true}}), "options.queue"),
        (json!({"cache_salt": "x".repeat(2000)}), "cache_salt"),
        (json!({"prediction": "text"}), "prediction"),
        (json!({"prediction": {"content": "text"}}), "prediction.type"),
        (json!({"prediction": {"type": "tokens", "content": "text"}}), "prediction.type"),
        (json!({"prediction": {"type": "content"}}), "prediction.content"),
        (json!({"prediction": {"type": "content", "content": 5}}), "prediction.content"),
        (json!({"prediction": {"type": "content", "content": "text", "more": 1}}), "prediction.more"),
    ] {
        refused(&with(&more), ErrorKind::InvalidRequest, param);
    }
}

#[test]
fn a_prediction_is_one_text_however_it_is_written() {
    let parts = json!([{"type": "text", "text": "fn a() {}\n"}, {"type": "text", "text": "fn b() {}\n"}]);
    for content in [json!("fn a() {}\nfn b() {}\n"), parts] {
        let body = with(&json!({"prediction": {"type": "content", "content": content}}));
        assert_eq!(parsed(&body).unwrap().request.prediction.as_deref(), Some("fn a() {}\nfn b() {}\n"));
    }
    assert_eq!(parsed(&with(&json!({"prediction": null}))).unwrap().request.prediction, None);
}

#[test]
fn what_is_not_built_is_refused_by_name() {
    for (more, param) in [
        (json!({"audio": {"voice": "x"}}), "audio"),
        (json!({"modalities": ["text", "audio"]}), "modalities"),
        (json!({"web_search_options": {}}), "web_search_options"),
        (json!({"functions": []}), "functions"),
        (json!({"function_call": "auto"}), "function_call"),
        (json!({"verbosity": "low"}), "verbosity"),
        (json!({"skip_special_tokens": false}), "skip_special_tokens"),
        (json!({"include_reasoning": false}), "include_reasoning"),
        (json!({"continue_final_message": true}), "continue_final_message"),
        (json!({"tools": [{"type": "custom", "custom": {"name": "x"}}]}), "tools[0].type"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}),
            "messages[0].content[0].type",
        ),
        (
            json!({"messages": [{"role": "system", "content": [{"type": "image_url", "image_url": "data:x"}]}]}),
            "messages[0].content[0].type",
        ),
    ] {
        refused(&with(&more), ErrorKind::Unsupported, param);
    }
}

#[test]
fn what_an_answer_held_is_read_back_as_history() {
    let call = json!({"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}});
    for message in [
        json!({"role": "assistant", "content": "a", "tool_calls": []}),
        json!({"role": "assistant", "content": null}),
        json!({"role": "assistant", "content": null, "tool_calls": []}),
        json!({"role": "assistant", "content": null, "tool_calls": null}),
        json!({"role": "assistant", "tool_calls": []}),
        json!({"role": "assistant", "content": "a", "tool_calls": null, "refusal": null, "function_call": null}),
        json!({"role": "assistant", "content": "", "tool_calls": [call]}),
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "assistant", "tool_calls": [call]}),
        json!({"role": "assistant", "content": [{"type": "text", "text": "a"}], "tool_calls": [call]}),
        json!({"role": "assistant", "content": null, "refusal": "no"}),
        json!({"role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]}),
        json!({"role": "assistant", "content": null, "reasoning_content": "hm", "reasoning": "hm"}),
        json!({"role": "assistant", "content": "{", "malformed_tool_calls": ["no JSON"]}),
    ] {
        parsed(&with(&json!({"messages": [message]}))).unwrap_or_else(|error| panic!("{message}: {error}"));
    }
}

#[test]
fn allowed_tools_are_those_the_model_is_shown() {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name}});
    let choice = |mode: &str, names: &[&str]| {
        let tools: Value = names.iter().map(|name| tool(name)).collect();
        json!({"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}})
    };
    let tools = json!([tool("a"), tool("b"), tool("c")]);
    let body = |choice: &Value| with(&json!({"tools": tools, "tool_choice": choice}));
    let chat = parsed(&body(&choice("required", &["c", "b"]))).unwrap();
    let names: Vec<&str> = chat.request.tools.iter().map(|tool| tool.name.as_str()).collect();
    assert_eq!((names, &chat.request.tool_choice), (vec!["b", "c"], &ToolChoice::Required));
    assert_eq!(chat.places.written("tools[1].function.name"), "tools[2].function.name");
    for (wrong, param) in [
        (choice("any", &["a"]), "tool_choice.allowed_tools.mode"),
        (choice("auto", &[]), "tool_choice.allowed_tools.tools"),
        (choice("auto", &["a", "x"]), "tool_choice.allowed_tools.tools[1]"),
        (json!({"type": "allowed_tools"}), "tool_choice.allowed_tools"),
        (json!({"type": "auto"}), "tool_choice.type"),
        (json!({"type": "function", "name": "a"}), "tool_choice.function"),
    ] {
        refused(&body(&wrong), ErrorKind::InvalidRequest, param);
    }
    refused(&with(&json!({"tool_choice": choice("auto", &["a"])})), ErrorKind::InvalidRequest, "tool_choice");
    refused(
        &body(&json!({"type": "custom", "custom": {"name": "a"}})),
        ErrorKind::Unsupported,
        "tool_choice.type",
    );
}

#[test]
fn tool_calls_are_written_in_pieces_and_whole() {
    let deltas = [
        Delta::Started { prompt_tokens: 3, cached_tokens: 2 },
        Delta::Reasoning { choice: 0, text: "hm".to_owned() },
        Delta::ToolCallStart { choice: 0, index: 0, id: "c1".to_owned(), name: "look".to_owned() },
        Delta::ToolCallArguments { choice: 0, index: 0, arguments: "{\"x\":".to_owned() },
        Delta::ToolCallArguments { choice: 0, index: 0, arguments: "1}".to_owned() },
        Delta::Finish { choice: 0, reason: FinishReason::ToolCalls, stop_text: None },
    ];
    let head = Head { id: "chatcmpl-1".to_owned(), created: 1, model: "m".to_owned() };
    let asked = Asked { choices: 1, logprobs: false, include_usage: false };
    let mut answer = Answer::new(1);
    let mut writer = ChunkWriter::new(head.clone(), asked);
    let mut chunks = Vec::new();
    for delta in deltas {
        answer.push(delta.clone());
        chunks.extend(writer.delta(0, delta));
    }
    let written: Vec<Value> = chunks
        .iter()
        .map(|event| serde_json::from_str::<Value>(&event.data).unwrap()["choices"][0]["delta"].take())
        .collect();
    assert_eq!(
        written,
        [
            json!({"role": "assistant", "content": "", "refusal": null}),
            json!({"reasoning_content": "hm", "reasoning": "hm"}),
            json!({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "look", "arguments": ""}}]}),
            json!({"tool_calls": [{"index": 0, "function": {"arguments": "{\"x\":"}}]}),
            json!({"tool_calls": [{"index": 0, "function": {"arguments": "1}"}}]}),
            json!({}),
        ]
    );
    let whole: Value = serde_json::from_str(&completion(&head, &asked, &answer)).unwrap();
    assert_eq!(
        whole["choices"][0],
        json!({
            "index": 0,
            "message": {
                "role": "assistant", "content": null, "refusal": null,
                "reasoning_content": "hm", "reasoning": "hm",
                "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{\"x\":1}"}}],
            },
            "logprobs": null,
            "finish_reason": "tool_calls",
        })
    );
}

/// Any JSON, with the names this dialect knows more often than not.
fn any_json() -> impl Strategy<Value = Value> {
    let name = prop_oneof![
        prop::sample::select(vec![
            "model",
            "messages",
            "role",
            "content",
            "type",
            "text",
            "n",
            "stop",
            "stream",
            "stream_options",
            "tools",
            "function",
            "name",
            "tool_choice",
            "response_format",
            "json_schema",
            "schema",
            "logit_bias",
            "temperature",
            "image_url",
            "url",
            "tool_calls",
            "arguments",
            "prompt",
            "echo",
            "logprobs",
            "input",
            "raw",
            "options",
        ])
        .prop_map(str::to_owned),
        ".{0,5}",
    ];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        prop::sample::select(vec![
            "user",
            "tool",
            "text",
            "function",
            "json_schema",
            "image_url",
            "auto",
            "m"
        ])
        .prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 48, 6, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(Value::from),
            prop::collection::vec((name.clone(), inner), 0..8)
                .prop_map(|fields| fields.into_iter().collect()),
        ]
    })
}

proptest! {
    #[test]
    fn any_json_is_read_or_refused_by_name(body in any_json(), more in any_json()) {
        let bodies = match &more {
            Value::Object(_) => vec![body, with(&more), more],
            _ => vec![body, with(&json!({"messages": more}))],
        };
        for body in bodies {
            let text = body.to_string();
            let errors = [
                parse(text.as_bytes()).err(),
                super::super::completions::parse(text.as_bytes()).err(),
                super::super::embeddings::parse(text.as_bytes()).err(),
                crate::workers_ai::parse_run(text.as_bytes()).err(),
                crate::workers_ai::generation::parse("m", body.clone(), crate::workers_ai::InputAt::Root).err(),
                crate::workers_ai::embeddings::parse("m", body.clone(), crate::workers_ai::InputAt::Root).err(),
            ];
            for error in errors.into_iter().flatten() {
                prop_assert!(error.param.is_some() || !body.is_object(), "{} {}", error, text);
                prop_assert!(error.message.len() < 1000, "{}", error);
            }
        }
    }

    #[test]
    fn values_in_range_come_through_unchanged(
        temperature in 0f32..=2.0, top_p in 0.01f32..=1.0, penalty in -2f32..=2.0, n in 1u32..=128,
        max_tokens in 1u32..=i32::MAX as u32, seed in any::<i64>(), stop in prop::collection::vec(".{1,8}", 0..=16),
        content in ".*", bias in prop::collection::btree_map(any::<u32>(), -100f32..=100.0, 0..8),
    ) {
        let logit_bias: serde_json::Map<String, Value> =
            bias.iter().map(|(id, bias)| (id.to_string(), json!(bias))).collect();
        let chat = parsed(&json!({
            "model": "m", "messages": [{"role": "user", "content": content}], "temperature": temperature,
            "top_p": top_p, "frequency_penalty": penalty, "n": n, "max_tokens": max_tokens, "seed": seed,
            "stop": stop, "logit_bias": logit_bias,
        })).unwrap();
        prop_assert_eq!(chat.request, GenerateRequest {
            model: "m".to_owned(),
            input: Input::Chat(vec![Message::text(Role::User, content)]),
            sampling: crate::Sampling {
                temperature: Some(temperature), top_p: Some(top_p), frequency_penalty: Some(penalty),
                seed: Some(seed as u64), logit_bias: bias.into_iter().collect(), ..crate::Sampling::default()
            },
            max_tokens: Some(max_tokens), stop, choices: n, ..GenerateRequest::default()
        });
    }

    #[test]
    fn however_deltas_are_cut_the_text_is_the_same(text in ".{0,40}", cuts in prop::collection::vec(0usize..40, 0..6)) {
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|cut| text.is_char_boundary(*cut)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let head = Head { id: "x".to_owned(), created: 0, model: "m".to_owned() };
        let asked = Asked { choices: 1, logprobs: false, include_usage: true };
        let mut chunks = ChunkWriter::new(head.clone(), asked);
        let mut frames = crate::workers_ai::generated::FrameWriter::default();
        let (mut events, mut native) = (chunks.delta(0, Delta::Started { prompt_tokens: 3, cached_tokens: 2 }), Vec::new());
        let mut answer = Answer::new(1);
        for piece in cuts.windows(2) {
            let delta = Delta::Text { choice: 0, text: text[piece[0]..piece[1]].to_owned(), logprobs: Vec::new() };
            answer.push(delta.clone());
            native.extend(frames.delta(0, delta.clone()));
            events.extend(chunks.delta(0, delta));
        }
        let joined = |events: &[Event], path: &str| -> String {
            events
                .iter()
                .map(|event| serde_json::from_str::<Value>(&event.data).unwrap())
                .filter_map(|chunk| chunk.pointer(path).and_then(Value::as_str).map(str::to_owned))
                .collect()
        };
        prop_assert_eq!(&joined(&events, "/choices/0/delta/content"), &text);
        prop_assert_eq!(&joined(&native, "/response"), &text);
        let whole: Value = serde_json::from_str(&completion(&head, &asked, &answer)).unwrap();
        prop_assert_eq!(whole["choices"][0]["message"]["content"].as_str(), Some(text.as_str()));
        // No event spans lines: the data of each is one line.
        prop_assert!(events.iter().all(|event| !event.data.contains(['\n', '\r'])));
    }
}

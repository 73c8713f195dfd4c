//! Whatever a request holds, it is answered or refused by the name of a field: no panic, no internal error, nothing left
//! behind. Random conversations, tools, schemas and template variables over all templates of the fixtures.

#![allow(clippy::unwrap_used)]

mod common;

use common::World;
use common::replay::replay;
use futures::StreamExt;
use proptest::prelude::*;
use protocol::{
    Backend, Content, Delta, Error, ErrorKind, FinishReason, GenerateRequest, Input, Message, Part, Prompt,
    ReasoningEffort, ResponseFormat, Role, Tool, ToolCall, ToolChoice,
};
use serde_json::{Map, Value};
use std::sync::OnceLock;
use tokio::runtime::Runtime;

const TEMPLATES: [&str; 8] = [
    "chatml.jinja",
    "chatml_tools.jinja",
    "headers.jinja",
    "inst.jinja",
    "python.jinja",
    "thinking.jinja",
    "turns.jinja",
    "tools+thinking.jinja",
];

/// What the models say: text, a thought, a call, and the like cut short.
const SAID: &str =
    "<think>\nHm.\n</think>\n\n{\"a\": [1, \"é\"]} <tool_call>\n{\"name\": \"a\", \"arguments\": {}}\n";

struct Stage {
    runtime: Runtime,
    worlds: Vec<World>,
}

fn stage() -> &'static Stage {
    static STAGE: OnceLock<Stage> = OnceLock::new();
    STAGE.get_or_init(|| Stage {
        runtime: Runtime::new().unwrap(),
        worlds: TEMPLATES.iter().map(|name| replay(name, &[SAID])).collect(),
    })
}

fn text() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "\\PC{0,6}",
        prop::sample::select(vec![
            "<|im_end|>",
            "<|im_start|>",
            "<tool_call>",
            "</tool_call>",
            "<think>",
            "</think>",
            "{{ x }}",
            "{% if %}",
            "\u{0}",
            "\n\n",
            "```json\n",
            "\"",
            "\\",
            "{\"name\": \"a\", \"arguments\": {",
            "\u{fffd}",
            "👩‍👩‍👧‍👦",
            "a",
        ])
        .prop_map(str::to_owned),
    ];
    prop::collection::vec(piece, 0..4).prop_map(|pieces| pieces.concat())
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        text().prop_map(Value::from),
    ];
    leaf.prop_recursive(4, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::vec((text(), inner), 0..4)
                .prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
        ]
    })
}

/// Some schemas, some that look like one, some that are none.
fn schema() -> impl Strategy<Value = Value> {
    let word = prop::sample::select(vec![
        "type",
        "properties",
        "items",
        "required",
        "anyOf",
        "allOf",
        "oneOf",
        "not",
        "$ref",
        "enum",
        "const",
        "pattern",
        "minLength",
        "maxItems",
        "minimum",
        "multipleOf",
        "additionalProperties",
        "format",
        "$defs",
        "if",
    ]);
    let value = prop_oneof![
        2 => json(),
        2 => prop::sample::select(vec!["string", "object", "array", "integer", "#", "#/$defs/a", "(a", "[a-z]+", "date"])
            .prop_map(Value::from),
        1 => (0u64..9).prop_map(Value::from),
    ];
    value.prop_recursive(3, 16, 3, move |inner| {
        let pairs = prop::collection::vec((word.clone().prop_map(str::to_owned), inner.clone()), 0..4);
        prop_oneof![
            3 => pairs.prop_map(|pairs| Value::Object(pairs.into_iter().collect())),
            1 => prop::collection::vec(inner, 0..3).prop_map(Value::from),
        ]
    })
}

fn calls() -> impl Strategy<Value = Vec<ToolCall>> {
    let arguments = prop_oneof![
        4 => prop::collection::vec((text(), json()), 0..3)
            .prop_map(|pairs| Value::Object(pairs.into_iter().collect::<Map<_, _>>()).to_string()),
        1 => json().prop_map(|json| json.to_string()),
        1 => text(),
    ];
    let name = prop_oneof![Just("a".to_owned()), text()];
    let call = (0u8..4, name, arguments).prop_map(|(id, name, arguments)| ToolCall {
        id: id.to_string(),
        name,
        arguments,
    });
    prop_oneof![3 => Just(Vec::new()), 1 => prop::collection::vec(call, 1..3)]
}

fn message() -> impl Strategy<Value = Message> {
    let role = prop::sample::select(vec![
        Role::System,
        Role::Developer,
        Role::User,
        Role::Assistant,
        Role::Tool,
        Role::User,
    ]);
    let parts = prop::collection::vec(text().prop_map(Part::Text), 0..3);
    (role, parts, prop::option::of(text()), prop::option::of(text()), prop::option::of(0u8..4), calls())
        .prop_map(|(role, parts, reasoning, name, id, calls)| Message {
            content: Content(parts),
            reasoning: reasoning.filter(|_| role == Role::Assistant),
            name,
            tool_call_id: id.filter(|_| role == Role::Tool).map(|id| id.to_string()),
            tool_calls: if role == Role::Assistant { calls } else { Vec::new() },
            ..Message::text(role, "")
        })
}

/// A conversation that holds together: each call has its result.
fn whole(messages: Vec<Message>) -> Vec<Message> {
    let mut out = Vec::new();
    for message in messages.into_iter().filter(|message| message.role != Role::Tool) {
        let results: Vec<Message> = message
            .tool_calls
            .iter()
            .map(|call| Message {
                tool_call_id: Some(call.id.clone()),
                ..Message::text(Role::Tool, call.arguments.clone())
            })
            .collect();
        out.push(message);
        out.extend(results);
    }
    out
}

fn requests() -> impl Strategy<Value = GenerateRequest> {
    let messages = prop::collection::vec(message(), 0..6);
    let messages = (messages, prop::bool::weighted(0.7))
        .prop_map(|(messages, mend)| if mend { whole(messages) } else { messages });
    let name = prop_oneof![Just("a".to_owned()), Just("é \"b\"\n".to_owned()), text()];
    let tool = (
        name,
        prop::option::of(text()),
        prop::option::of(prop_oneof![schema(), json()]),
        any::<Option<bool>>(),
    );
    let tool = tool.prop_map(|(name, description, parameters, strict)| Tool {
        name,
        description,
        parameters,
        strict,
        cache: None,
    });
    let tools = prop_oneof![1 => Just(Vec::new()), 2 => prop::collection::vec(tool, 1..4)];
    let choice = prop_oneof![
        4 => Just(ToolChoice::Auto),
        1 => Just(ToolChoice::None),
        2 => Just(ToolChoice::Required),
        1 => Just(ToolChoice::Named("a".into())),
    ];
    let format = prop_oneof![
        6 => Just(ResponseFormat::Text),
        1 => Just(ResponseFormat::JsonObject),
        2 => schema().prop_map(|schema| ResponseFormat::JsonSchema { name: None, schema, strict: None }),
        1 => text().prop_map(ResponseFormat::Regex),
        1 => text().prop_map(ResponseFormat::Lark),
    ];
    let variable = prop::sample::select(vec![
        "tools",
        "messages",
        "add_generation_prompt",
        "enable_thinking",
        "thinking",
        "bos_token",
        "documents",
        "x",
    ]);
    let variables = prop::collection::vec((variable.prop_map(str::to_owned), json()), 0..2);
    let effort = prop_oneof![4 => Just(None), 1 => Just(Some(ReasoningEffort::None)), 1 => Just(Some(ReasoningEffort::High))];
    let input = prop_oneof![8 => messages.prop_map(Input::Chat), 1 => text().prop_map(|t| Input::Prompt(Prompt::Text(t)))];
    let limits = (0u32..6, 1u32..3, prop::collection::vec(text(), 0..3), any::<Option<bool>>());
    (input, tools, choice, format, variables, effort, limits).prop_map(
        |(
            input,
            tools,
            tool_choice,
            response_format,
            variables,
            reasoning_effort,
            (most, choices, stop, parallel),
        )| {
            GenerateRequest {
                model: "m".into(),
                input,
                tools,
                tool_choice,
                response_format,
                template_variables: variables.into_iter().collect(),
                reasoning_effort,
                max_tokens: Some(most),
                choices,
                stop,
                parallel_tool_calls: parallel,
                ..GenerateRequest::default()
            }
        },
    )
}

fn refusal(error: &Error) {
    let callers =
        matches!(error.kind, ErrorKind::InvalidRequest | ErrorKind::Unsupported | ErrorKind::ContextLength);
    assert!(callers && error.kind.status() == 400, "{error:?}");
    assert!(error.param.is_some(), "a field is named: {error:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_a_request_holds_it_is_answered_or_refused_by_a_fields_name(
        request in requests(), which in 0..TEMPLATES.len(),
    ) {
        let Stage { runtime, worlds } = stage();
        let local = &worlds[which].local;
        runtime.block_on(async {
            if let Err(error) = local.prompt(request.clone()).await {
                refusal(&error);
            }
            let choices = request.choices as usize;
            match local.generate(request).await {
                Err(error) => refusal(&error),
                Ok(mut deltas) => {
                    let mut ends = vec![0; choices];
                    let mut counted = false;
                    while let Some(delta) = deltas.next().await {
                        match delta {
                            Err(error) => {
                                // A grammar may turn out to be too complex on the way.
                                assert_eq!(error.kind, ErrorKind::InvalidRequest, "{error:?}");
                                return;
                            }
                            Ok(Delta::Finish { choice, reason, .. }) => {
                                ends[choice as usize] += 1;
                                assert_ne!(reason, FinishReason::ContentFilter);
                            }
                            Ok(Delta::Usage(_)) => counted = true,
                            Ok(_) => {}
                        }
                    }
                    assert!(counted && ends.iter().all(|ends| *ends == 1), "{ends:?}");
                }
            }
        });
    }
}

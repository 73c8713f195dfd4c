//! Native text generation: `prompt` or `messages` in. What goes out is written in `generated.rs`.
//!
//! Two shapes of answer are in use. The older models give `{"response", "tool_calls", "usage"}`; the newer large ones
//! give OpenAI's chat completion. The request decides which ([`Shape`]), never the answer, so that a client knows what
//! it will read.

use super::{InputAt, input_object};
use crate::fields::{Object, missing, unsupported};
use crate::openai::messages::{Rules, messages};
use crate::openai::parameters as shared;
use crate::openai::{chat, format, local, tools};
use crate::{Error, GenerateRequest, Input, Message, Places, Prompt, Role};
use serde_json::Value;

/// Tokens of an answer in the native shape where the caller sets no limit, as documented by Cloudflare.
const DEFAULT_MAX_TOKENS: u32 = 256;

/// How the ids of models begin whose answers have OpenAI's shape on Cloudflare's side too.
const OPENAI_SHAPED: &[&str] = &["@cf/moonshotai/", "@cf/zai-org/", "@cf/qwen/qwen3-"];

/// Fields that only inputs of those models have.
const OPENAI_FIELDS: &[&str] = &[
    "chat_template_kwargs",
    "logprobs",
    "max_completion_tokens",
    "n",
    "reasoning_effort",
    "stream_options",
    "top_logprobs",
];

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// `{"response": ...}`.
    Native,
    /// A chat completion.
    OpenAi,
}

/// Native text generation as asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct TextRequest {
    /// What to generate.
    pub request: GenerateRequest,
    /// Whether the answer is wanted as it is made.
    pub stream: bool,
    /// Whether a last chunk of OpenAI's shape tells the usage.
    pub include_usage: bool,
    /// How the answer is written.
    pub shape: Shape,
    /// Where what the backend names was written.
    pub places: Places,
}

/// Reads an input for a model.
pub fn parse(model: &str, input: Value, at: InputAt) -> Result<TextRequest, Error> {
    // `null` asks for no thinking here, and is not the same as saying nothing.
    let unthinking = input.get("reasoning_effort").is_some_and(Value::is_null);
    let mut fields = input_object(input, at)?;
    let mut places = at.places();
    let openai = OPENAI_SHAPED.iter().any(|prefix| model.starts_with(prefix))
        || OPENAI_FIELDS.iter().any(|name| fields.has(name));
    let shape = if openai { Shape::OpenAi } else { Shape::Native };
    let input = prompt_or_messages(&mut fields, &mut places)?;
    let tooling = tools::tooling(&mut fields, &mut places)?;
    let stream = shared::stream(&mut fields)?;
    let max_tokens = shared::max_tokens(&mut fields, 1)?;
    let mut template_variables = local::template_variables(&mut fields, &mut places)?;
    if unthinking && matches!(input, Input::Chat(_)) {
        local::think(&mut template_variables, false);
    }
    let request = GenerateRequest {
        model: model.to_owned(),
        input,
        tools: tooling.tools,
        tool_choice: tooling.choice,
        parallel_tool_calls: fields.boolean("parallel_tool_calls")?,
        response_format: format::response_format(&mut fields, &mut places)?,
        sampling: shared::sampling(&mut fields, 5.0)?,
        max_tokens: match shape {
            Shape::Native => max_tokens.or(Some(DEFAULT_MAX_TOKENS)),
            Shape::OpenAi => max_tokens.or(None),
        },
        stop: shared::stop(&mut fields)?,
        prediction: None,
        choices: shared::choices(&mut fields)?,
        logprobs: chat::logprobs_wanted(&mut fields)?,
        prompt_logprobs: None,
        ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
        reasoning_effort: local::reasoning_effort(&mut fields)?,
        reasoning_budget: None,
        reasoning_unsaid: false,
        template_variables,
        session: shared::label(&mut fields, "prompt_cache_key")?,
        user: local::user(&mut fields),
        cache_salt: shared::label(&mut fields, "cache_salt")?,
        stream: stream.on,
    };
    fields.refuse(&["audio", "functions", "image", "lora", "modalities", "prediction", "requests"])?;
    chat::options(&mut fields)?;
    local::pass_over(&mut fields)?;
    fields.finish()?;
    Ok(TextRequest { request, stream: stream.on, include_usage: stream.include_usage, shape, places })
}

/// A `prompt` goes through the model's chat template unless `raw` is set.
fn prompt_or_messages(fields: &mut Object, places: &mut Places) -> Result<Input, Error> {
    let raw = fields.boolean("raw")?.unwrap_or(false);
    let prompt = fields.string("prompt")?;
    let messages = messages(fields, Rules::WorkersAi, places)?;
    match (prompt, messages) {
        (Some(_), Some(_)) => {
            let path = fields.path("prompt");
            Err(Error::invalid(path, "Give either 'prompt' or 'messages', not both"))
        }
        (Some(prompt), None) if prompt.is_empty() => {
            let path = fields.path("prompt");
            Err(Error::invalid(&path, format!("Invalid value for '{path}': the prompt is empty")))
        }
        (Some(prompt), None) if raw => Ok(Input::Prompt(Prompt::Text(prompt))),
        (Some(prompt), None) => {
            for path in ["messages", "messages[0]", "messages[0].content"] {
                places.moved(path, "prompt");
            }
            Ok(Input::Chat(vec![Message::text(Role::User, prompt)]))
        }
        (None, Some(_)) if raw => {
            let path = fields.path("raw");
            Err(Error::invalid(&path, format!("'{path}' needs 'prompt', not 'messages'")))
        }
        (None, Some(messages)) => Ok(Input::Chat(messages)),
        // A batch of requests has neither.
        (None, None) if fields.has("requests") => Err(unsupported(&fields.path("requests"))),
        (None, None) => {
            let error = missing(&fields.path("messages"));
            Err(Error { message: "One of 'prompt' and 'messages' is needed".to_owned(), ..error })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ErrorKind, ResponseFormat, ToolChoice};
    use serde_json::json;

    fn parsed(input: Value) -> Result<TextRequest, Error> {
        parse("m", input, InputAt::Root)
    }

    #[test]
    fn a_prompt_is_a_user_message_unless_raw() {
        let text = parsed(json!({"prompt": "hi"})).unwrap();
        assert_eq!(text.request.input, Input::Chat(vec![Message::text(Role::User, "hi")]));
        assert_eq!(text.request.max_tokens, Some(256));
        assert!(!text.stream);
        let raw = parsed(json!({"prompt": "hi", "raw": true, "max_tokens": 9})).unwrap();
        assert_eq!(raw.request.input, Input::Prompt(Prompt::Text("hi".to_owned())));
        assert_eq!(raw.request.max_tokens, Some(9));
        assert_eq!(parsed(json!({"prompt": "hi", "max_tokens": -1})).unwrap().request.max_tokens, None);
    }

    #[test]
    fn native_tool_forms_are_read_and_calls_without_ids_linked_to_their_answers() {
        let text = parsed(json!({
            "messages": [
                {"role": "user", "content": "2+2 and 3*3?"},
                {"role": "assistant", "content": "", "tool_calls": [
                    {"name": "add", "arguments": {"a": 2}}, {"name": "mul", "arguments": "{\"a\":3}"},
                    {"id": "own", "type": "function", "function": {"name": "add", "arguments": "{}"}},
                ]},
                {"role": "tool", "name": "mul", "content": "9"},
                {"role": "tool", "content": "4"},
                {"role": "tool", "tool_call_id": "own", "name": "add", "content": "0"},
                {"role": "tool", "content": "nobody asked"},
            ],
            "tools": [{"name": "add", "description": "adds", "parameters": {"type": "object"}}],
            "tool_choice": "any",
            "response_format": {"type": "json_schema", "json_schema": {"type": "object", "title": "T"}},
        }))
        .unwrap();
        assert_eq!(text.request.tools[0].name, "add");
        assert_eq!(text.request.tool_choice, ToolChoice::Required);
        let Input::Chat(messages) = &text.request.input else { panic!("a conversation") };
        assert_eq!(messages[1].tool_calls[0].arguments, r#"{"a":2}"#);
        let ids: Vec<&str> = messages[1].tool_calls.iter().map(|call| call.id.as_str()).collect();
        assert_eq!(ids, ["call_1_0", "call_1_1", "own"]);
        let answered: Vec<Option<&str>> =
            messages[2..].iter().map(|message| message.tool_call_id.as_deref()).collect();
        assert_eq!(answered, [Some("call_1_1"), Some("call_1_0"), Some("own"), None]);
        assert_eq!(
            text.request.response_format,
            ResponseFormat::JsonSchema {
                name: None,
                schema: json!({"type": "object", "title": "T"}),
                strict: None
            }
        );
    }

    #[test]
    fn the_request_decides_the_shape_of_the_answer() {
        let shape = |model: &str, more: Value| {
            let mut input = json!({"prompt": "hi"});
            for (name, value) in more.as_object().unwrap() {
                input[name] = value.clone();
            }
            let text = parse(model, input, InputAt::Root).unwrap();
            (text.shape, text.request.max_tokens)
        };
        let native = (Shape::Native, Some(256));
        assert_eq!(shape("@cf/meta/llama-3.1-8b-instruct", json!({})), native);
        assert_eq!(shape("m", json!({"tools": [{"name": "f"}], "tool_choice": "auto", "n": null})), native);
        assert_eq!(shape("m", json!({"reasoning_effort": null})), native);
        let openai = (Shape::OpenAi, None);
        assert_eq!(shape("@cf/moonshotai/kimi-k2.5", json!({})), openai);
        for more in [
            json!({"n": 2}),
            json!({"logprobs": true}),
            json!({"stream_options": {}}),
            json!({"reasoning_effort": "low"}),
            json!({"chat_template_kwargs": {}}),
        ] {
            assert_eq!(shape("m", more), openai);
        }
    }

    #[test]
    fn no_effort_turns_thinking_off_where_there_is_a_switch() {
        let variables = |input: Value| parsed(input).unwrap().request.template_variables;
        let off = variables(json!({"prompt": "hi", "reasoning_effort": null}));
        assert_eq!((&off["enable_thinking"], &off["thinking"]), (&json!(false), &json!(false)));
        let own =
            json!({"prompt": "hi", "reasoning_effort": null, "chat_template_kwargs": {"thinking": true}});
        assert_eq!(variables(own)["thinking"], true);
        assert!(variables(json!({"prompt": "hi"})).is_empty());
        assert!(variables(json!({"prompt": "hi", "raw": true, "reasoning_effort": null})).is_empty());
    }

    #[test]
    fn wrong_inputs_are_named() {
        for (input, param) in [
            (json!({}), "messages"),
            (json!({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}), "prompt"),
            (json!({"prompt": ""}), "prompt"),
            (json!({"messages": [{"role": "user", "content": "a"}], "raw": true}), "raw"),
            (json!({"prompt": "a", "n": 0}), "n"),
            (json!({"prompt": "a", "lora": "x"}), "lora"),
            (json!({"prompt": "a", "max_token": 3}), "max_token"),
            (json!({"prompt": "a", "temperature": 6}), "temperature"),
            (json!({"prompt": "a", "tools": [{"name": ""}]}), "tools[0].name"),
            (json!({"requests": []}), "requests"),
        ] {
            assert_eq!(parsed(input.clone()).unwrap_err().param.as_deref(), Some(param), "{input}");
        }
        let error = parse("m", json!({"prompt": 3}), InputAt::Field).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("input.prompt"));
    }

    #[test]
    fn what_the_backend_names_is_told_as_written() {
        let prompt = json!({"prompt": "a"});
        let flat = json!({
            "messages": [{"role": "user", "content": "a"}], "tools": [{"name": "f", "parameters": {}}],
            "response_format": {"type": "json_schema", "json_schema": {"type": "object"}},
        });
        let call = json!({"name": "f", "arguments": "{"});
        let calls = json!([call, {"id": "c", "type": "function", "function": call}]);
        let calls = json!({"messages": [{"role": "assistant", "content": "", "tool_calls": calls}]});
        let arguments = |call: usize| format!("messages[0].tool_calls[{call}].function.arguments");
        for (input, canonical, written) in [
            (&calls, arguments(0).as_str(), "messages[0].tool_calls[0].arguments"),
            (&calls, &arguments(1), &arguments(1)),
            (&prompt, "messages", "prompt"),
            (&prompt, "messages[0].content", "prompt"),
            (&prompt, "prompt", "prompt"),
            (&prompt, "temperature", "temperature"),
            (&flat, "messages[0].tool_calls", "messages[0].tool_calls"),
            (&flat, "tools[0].function.parameters/properties/x", "tools[0].parameters/properties/x"),
            (&flat, "response_format.json_schema.schema/anyOf/1", "response_format.json_schema/anyOf/1"),
        ] {
            let told = |at| {
                let places = parse("m", input.clone(), at).unwrap().places;
                places.locate(Error::new(ErrorKind::Unsupported, "no").at(canonical)).param.unwrap()
            };
            assert_eq!(told(InputAt::Root), written);
            assert_eq!(told(InputAt::Field), format!("input.{written}"));
        }
    }
}

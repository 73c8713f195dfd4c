//! Native text generation: `prompt` or `messages` in, `{"response": ...}` out.

use super::{InputAt, envelope, input_object};
use crate::fields::{Object, missing, unsupported};
use crate::openai::messages::{Rules, messages};
use crate::openai::parameters as shared;
use crate::openai::{HARMLESS, WireUsage, chat, to_json, tools};
use crate::{
    Answer, Delta, Error, Event, GenerateRequest, Input, Message, Prompt, ResponseFormat, Role, StreamWriter,
    ToolCall, Usage,
};
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// Tokens of an answer where the caller sets no limit, as documented by Cloudflare.
const DEFAULT_MAX_TOKENS: u32 = 256;

/// Native text generation as asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct TextRequest {
    /// What to generate.
    pub request: GenerateRequest,
    /// Whether the answer is wanted as it is made.
    pub stream: bool,
}

/// Reads an input for a model.
pub fn parse(model: &str, input: Value, at: InputAt) -> Result<TextRequest, Error> {
    let mut fields = input_object(input, at)?;
    let input = prompt_or_messages(&mut fields)?;
    let tool_list = tools::tools(&mut fields)?;
    let tool_choice = tools::tool_choice(&mut fields, &tool_list)?;
    let stream = shared::stream(&mut fields)?;
    if shared::choices(&mut fields)? != 1 {
        // The native answer has room for one.
        return Err(unsupported(&fields.path("n")));
    }
    if chat::logprobs_wanted(&mut fields)?.is_some() {
        return Err(unsupported(&fields.path("logprobs")));
    }
    let request = GenerateRequest {
        model: model.to_owned(),
        input,
        tools: tool_list,
        tool_choice,
        parallel_tool_calls: fields.boolean("parallel_tool_calls")?,
        response_format: tools::response_format(&mut fields)?,
        sampling: shared::sampling(&mut fields, 5.0)?,
        max_tokens: Some(shared::max_tokens(&mut fields, 1)?.unwrap_or(DEFAULT_MAX_TOKENS)),
        stop: shared::stop(&mut fields)?,
        choices: 1,
        logprobs: None,
        prompt_logprobs: None,
        ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
        reasoning_effort: shared::reasoning_effort(&mut fields)?,
        template_variables: chat::template_variables(&mut fields)?,
        session: shared::label(&mut fields, "prompt_cache_key")?,
        cache_salt: shared::label(&mut fields, "cache_salt")?,
    };
    fields.refuse(&["audio", "functions", "image", "lora", "modalities", "prediction", "requests"])?;
    chat::options(&mut fields)?;
    fields.harmless(HARMLESS);
    fields.finish()?;
    Ok(TextRequest { request, stream: stream.on })
}

/// A `prompt` goes through the model's chat template unless `raw` is set.
fn prompt_or_messages(fields: &mut Object) -> Result<Input, Error> {
    let raw = fields.boolean("raw")?.unwrap_or(false);
    let prompt = fields.string("prompt")?;
    let messages = messages(fields, Rules::WorkersAi)?;
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
        (Some(prompt), None) => Ok(Input::Chat(vec![Message::text(Role::User, prompt)])),
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

#[derive(Serialize)]
struct Generated<'a> {
    response: Value,
    tool_calls: Vec<WireCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    usage: WireUsage,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct WireCall<'a> {
    name: &'a str,
    arguments: Value,
}

impl<'a> From<&'a ToolCall> for WireCall<'a> {
    /// Arguments are an object here; text that is no JSON stays text.
    fn from(call: &'a ToolCall) -> Self {
        let arguments =
            serde_json::from_str(&call.arguments).unwrap_or_else(|_| Value::String(call.arguments.clone()));
        Self { name: &call.name, arguments }
    }
}

/// The whole answer in its envelope. With a JSON format the response is the parsed value, as documented.
#[must_use]
pub fn result(format: &ResponseFormat, answer: &Answer) -> String {
    let Some(choice) = answer.choices.first() else { unreachable!("a request has at least one choice") };
    let text = || Value::String(choice.text.clone());
    let response = match format {
        ResponseFormat::Text | ResponseFormat::Regex(_) | ResponseFormat::Lark(_) => text(),
        // Cut by max_tokens it may not parse; then the caller gets what there is.
        ResponseFormat::JsonObject | ResponseFormat::JsonSchema { .. } => {
            serde_json::from_str(&choice.text).unwrap_or_else(|_| text())
        }
    };
    let generated = Generated {
        response,
        tool_calls: choice.tool_calls.iter().map(Into::into).collect(),
        reasoning_content: Some(choice.reasoning.as_str()).filter(|text| !text.is_empty()),
        usage: answer.usage.unwrap_or_default().into(),
        finish_reason: choice.finish.map_or("stop", crate::FinishReason::as_str),
    };
    envelope(to_json(&generated), None)
}

/// One event of a stream.
#[derive(Default, Serialize)]
struct Frame<'a> {
    response: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<WireUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_reason: Option<&'static str>,
}

/// Writes an answer as native events: text as it comes, each tool call once it is whole, then the usage.
#[derive(Default)]
pub struct FrameWriter {
    calls: BTreeMap<u32, ToolCall>,
    finish_reason: Option<&'static str>,
    usage: Usage,
}

impl StreamWriter for FrameWriter {
    fn delta(&mut self, _source: usize, delta: Delta) -> Vec<Event> {
        let frame = match &delta {
            Delta::Started { .. } | Delta::PromptLogprobs(_) | Delta::MalformedCall { .. } => return Vec::new(),
            Delta::Text { text, .. } if text.is_empty() => return Vec::new(),
            Delta::Text { text, .. } => to_json(&Frame { response: text, ..Frame::default() }),
            Delta::Reasoning { text, .. } => {
                to_json(&Frame { reasoning_content: Some(text), ..Frame::default() })
            }
            Delta::ToolCallStart { index, id, name, .. } => {
                let call = ToolCall { id: id.clone(), name: name.clone(), arguments: String::new() };
                self.calls.insert(*index, call);
                return Vec::new();
            }
            Delta::ToolCallArguments { index, arguments, .. } => {
                if let Some(call) = self.calls.get_mut(index) {
                    call.arguments.push_str(arguments);
                }
                return Vec::new();
            }
            Delta::Finish { reason, .. } => {
                self.finish_reason = Some(reason.as_str());
                if self.calls.is_empty() {
                    return Vec::new();
                }
                let tool_calls = self.calls.values().map(Into::into).collect();
                to_json(&Frame { tool_calls, ..Frame::default() })
            }
            Delta::Usage(usage) => {
                self.usage = *usage;
                return Vec::new();
            }
        };
        vec![Event::data(frame)]
    }

    fn finish(&mut self) -> Vec<Event> {
        let last =
            Frame { usage: Some(self.usage.into()), finish_reason: self.finish_reason, ..Frame::default() };
        vec![Event::data(to_json(&last)), Event::data("[DONE]")]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::FinishReason;
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
    }

    #[test]
    fn native_tool_forms_are_read() {
        let text = parsed(json!({
            "messages": [
                {"role": "user", "content": "2+2?"},
                {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": {"a": 2}}]},
                {"role": "tool", "name": "add", "content": "4"},
            ],
            "tools": [{"name": "add", "description": "adds", "parameters": {"type": "object"}}],
            "response_format": {"type": "json_schema", "json_schema": {"type": "object", "title": "T"}},
        }))
        .unwrap();
        assert_eq!(text.request.tools[0].name, "add");
        let Input::Chat(messages) = &text.request.input else { panic!("a conversation") };
        assert_eq!(messages[1].tool_calls[0].arguments, r#"{"a":2}"#);
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
    fn wrong_inputs_are_named() {
        for (input, param) in [
            (json!({}), "messages"),
            (json!({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}), "prompt"),
            (json!({"prompt": ""}), "prompt"),
            (json!({"messages": [{"role": "user", "content": "a"}], "raw": true}), "raw"),
            (json!({"prompt": "a", "n": 2}), "n"),
            (json!({"prompt": "a", "lora": "x"}), "lora"),
            (json!({"prompt": "a", "max_token": 3}), "max_token"),
            (json!({"prompt": "a", "temperature": 6}), "temperature"),
            (json!({"requests": []}), "requests"),
        ] {
            assert_eq!(parsed(input.clone()).unwrap_err().param.as_deref(), Some(param), "{input}");
        }
        let error = parse("m", json!({"prompt": 3}), InputAt::Field).unwrap_err();
        assert_eq!(error.param.as_deref(), Some("input.prompt"));
    }

    #[test]
    fn a_stream_ends_with_usage_and_done() {
        let mut writer = FrameWriter::default();
        let mut events = Vec::new();
        for delta in [
            Delta::Started { prompt_tokens: 3, cached_tokens: 2 },
            Delta::Text { choice: 0, text: "hé".to_owned(), logprobs: Vec::new() },
            Delta::ToolCallStart { choice: 0, index: 0, id: "c".to_owned(), name: "add".to_owned() },
            Delta::ToolCallArguments { choice: 0, index: 0, arguments: "{\"a\":".to_owned() },
            Delta::ToolCallArguments { choice: 0, index: 0, arguments: "2}".to_owned() },
            Delta::Finish { choice: 0, reason: FinishReason::ToolCalls, stop_text: None },
            Delta::Usage(Usage {
                prompt_tokens: 3,
                cached_tokens: 1,
                completion_tokens: 2,
                reasoning_tokens: 0,
            }),
        ] {
            events.extend(writer.delta(0, delta));
        }
        events.extend(writer.finish());
        let data: Vec<&str> = events.iter().map(|event| event.data.as_str()).collect();
        assert_eq!(data[0], r#"{"response":"hé"}"#);
        assert_eq!(data[1], r#"{"response":"","tool_calls":[{"name":"add","arguments":{"a":2}}]}"#);
        assert!(data[2].starts_with(
            r#"{"response":"","usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5,"#
        ));
        assert_eq!(data[3], "[DONE]");
    }

    #[test]
    fn json_formats_give_a_value_and_text_gives_text() {
        let mut answer = Answer::new(1);
        answer.push(Delta::Text { choice: 0, text: "{\"a\":1}".to_owned(), logprobs: Vec::new() });
        assert!(result(&ResponseFormat::Text, &answer).starts_with(r#"{"result":{"response":"{\"a\":1}","#));
        assert!(
            result(&ResponseFormat::JsonObject, &answer).starts_with(r#"{"result":{"response":{"a":1},"#)
        );
    }
}

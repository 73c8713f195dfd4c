//! Chat completions: body to canonical request, answer to one object or to chunks.

use super::logprobs::{self, ChatLogprobs};
use super::messages::{Rules, messages, plain_text};
use super::parameters as shared;
use super::{Head, SYSTEM_FINGERPRINT, WireUsage, format, local, thoughts, to_json, tools};
use crate::fields::{Object, missing, wrong_type};
use crate::{
    Answer, Choice, Delta, Error, Event, FinishReason, GenerateRequest, Input, Logprobs, Places,
    StreamWriter, Usage, json,
};
use indexmap::IndexMap;
use serde::Serialize;
use serde_json::Value;

/// A chat completion as asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct ChatRequest {
    /// What to generate.
    pub request: GenerateRequest,
    /// Whether the answer is wanted as it is made.
    pub stream: bool,
    /// Whether a last chunk tells the usage.
    pub include_usage: bool,
    /// Where what the backend names was written.
    pub places: Places,
}

/// Reads a body.
pub fn parse(body: &[u8]) -> Result<ChatRequest, Error> {
    let mut fields = Object::root(json::parse(body)?)?;
    let mut places = Places::default();
    let model = shared::model(&mut fields)?;
    let messages = messages(&mut fields, Rules::OpenAi, &mut places)?.ok_or_else(|| missing("messages"))?;
    let tooling = tools::tooling(&mut fields, &mut places)?;
    let stream = shared::stream(&mut fields)?;
    let prompt_logprobs = fields.integer("prompt_logprobs", 0..=20)?.map(|count| count as u32);
    if prompt_logprobs.is_some() && stream.on {
        return Err(Error::invalid("prompt_logprobs", "'prompt_logprobs' is not available when streaming"));
    }
    let request = GenerateRequest {
        model,
        input: Input::Chat(messages),
        tools: tooling.tools,
        tool_choice: tooling.choice,
        parallel_tool_calls: fields.boolean("parallel_tool_calls")?,
        response_format: format::response_format(&mut fields, &mut places)?,
        sampling: shared::sampling(&mut fields, 2.0)?,
        max_tokens: shared::max_tokens(&mut fields, 1)?.or(None),
        stop: shared::stop(&mut fields)?,
        prediction: prediction(&mut fields)?,
        choices: shared::choices(&mut fields)?,
        logprobs: logprobs_wanted(&mut fields)?,
        prompt_logprobs,
        ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
        reasoning_effort: local::reasoning_effort(&mut fields)?,
        reasoning_budget: None,
        reasoning_unsaid: false,
        template_variables: local::template_variables(&mut fields, &mut places)?,
        session: shared::label(&mut fields, "prompt_cache_key")?,
        user: local::user(&mut fields),
        cache_salt: shared::label(&mut fields, "cache_salt")?,
        stream: stream.on,
    };
    only_text(&mut fields)?;
    fields.refuse(&["audio", "function_call", "functions", "web_search_options"])?;
    options(&mut fields)?;
    local::pass_over(&mut fields)?;
    fields.finish()?;
    Ok(ChatRequest { request, stream: stream.on, include_usage: stream.include_usage, places })
}

/// `logprobs` and `top_logprobs`.
pub(crate) fn logprobs_wanted(fields: &mut Object) -> Result<Option<u32>, Error> {
    let on = fields.boolean("logprobs")?.unwrap_or(false);
    let top = fields.integer("top_logprobs", 0..=20)?.map(|count| count as u32);
    match (on, top) {
        (true, top) => Ok(Some(top.unwrap_or(0))),
        (false, None | Some(0)) => Ok(None),
        (false, Some(_)) => Err(Error::invalid("top_logprobs", "'top_logprobs' needs 'logprobs' to be true")),
    }
}

/// `prediction`: the text that the answer is expected to be like, as one string or in parts.
fn prediction(fields: &mut Object) -> Result<Option<String>, Error> {
    let Some(mut fields) = fields.object("prediction")? else { return Ok(None) };
    let kind = fields.required_string("type")?;
    if kind != "content" {
        let shown: String = kind.chars().take(64).collect();
        let path = fields.path("type");
        let message = format!("Invalid value for '{path}': '{shown}'; supported is 'content'");
        return Err(Error::invalid(path, message));
    }
    let path = fields.path("content");
    let value = fields.take("content").ok_or_else(|| missing(&path))?;
    fields.finish()?;
    Ok(Some(plain_text(&path, value)?))
}

/// `chat_template_kwargs`.
pub(crate) fn template_variables(fields: &mut Object) -> Result<IndexMap<String, Value>, Error> {
    let variables = fields.object("chat_template_kwargs")?;
    Ok(variables.map(|variables| variables.into_rest().into_iter().collect()).unwrap_or_default())
}

/// `modalities` and `verbosity`: only their plain values can be had.
fn only_text(fields: &mut Object) -> Result<(), Error> {
    match fields.take("modalities") {
        None => {}
        Some(value) if value == serde_json::json!(["text"]) => {}
        Some(Value::Array(_)) => return Err(crate::fields::unsupported("modalities")),
        Some(other) => return Err(wrong_type("modalities", "an array of strings", &other)),
    }
    match fields.string("verbosity")?.as_deref() {
        None | Some("medium") => Ok(()),
        Some(_) => Err(crate::fields::unsupported("verbosity")),
    }
}

/// `options`, which Workers AI's clients send. A full queue is always an error here, so `rejectIfBusy` holds
/// either way.
pub(crate) fn options(fields: &mut Object) -> Result<(), Error> {
    if let Some(mut options) = fields.object("options")? {
        options.boolean("rejectIfBusy")?;
        options.finish()?;
    }
    Ok(())
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<WireChoice<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<WireUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Vec<Option<IndexMap<u32, logprobs::PromptEntry<'a>>>>>,
    system_fingerprint: &'static str,
    service_tier: &'static str,
}

#[derive(Serialize)]
struct WireChoice<'a> {
    index: usize,
    message: WireMessage<'a>,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: &'static str,
    // Which stop text ended the answer, as vLLM says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<&'a str>,
}

#[derive(Serialize)]
struct WireMessage<'a> {
    role: &'static str,
    content: Option<&'a str>,
    refusal: Option<()>,
    // Two names are in use for the same thing; clients read either.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    // Thoughts as their service wants them back, as OpenRouter has them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasoning_details: Vec<Value>,
    // An empty list would tell some clients that calls were made.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
    // Why each call that came back as text could not be read.
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    malformed_tool_calls: &'a [String],
}

#[derive(Serialize)]
struct WireCall<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    id: Option<&'a str>,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    kind: Option<&'static str>,
    function: WireFunction<'a>,
}

#[derive(Serialize)]
struct WireFunction<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<&'a str>,
    arguments: &'a str,
}

/// The whole answer as one object. `request` says what was asked of it.
#[must_use]
pub fn completion(head: &Head, request: &Asked, answer: &Answer) -> String {
    to_json(&Completion {
        id: &head.id,
        object: "chat.completion",
        created: head.created,
        model: &head.model,
        choices: answer
            .choices
            .iter()
            .enumerate()
            .map(|(index, choice)| wire_choice(index, choice, request))
            .collect(),
        usage: answer.usage.map(Into::into),
        prompt_logprobs: answer.prompt_logprobs.as_deref().map(logprobs::prompt),
        system_fingerprint: SYSTEM_FINGERPRINT,
        service_tier: "default",
    })
}

/// What an answer's form depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// Answers wanted.
    pub choices: u32,
    /// Whether log-probabilities are wanted.
    pub logprobs: bool,
    /// Whether a last chunk tells the usage.
    pub include_usage: bool,
}

impl From<&ChatRequest> for Asked {
    fn from(chat: &ChatRequest) -> Self {
        Self {
            choices: chat.request.choices,
            logprobs: chat.request.logprobs.is_some(),
            include_usage: chat.include_usage,
        }
    }
}

fn wire_choice<'a>(index: usize, choice: &'a Choice, asked: &Asked) -> WireChoice<'a> {
    let tool_calls: Vec<_> = choice
        .tool_calls
        .iter()
        .map(|call| WireCall {
            index: None,
            id: Some(&call.id),
            kind: Some("function"),
            function: WireFunction { name: Some(&call.name), arguments: &call.arguments },
        })
        .collect();
    let reasoning = Some(choice.reasoning.as_str()).filter(|text| !text.is_empty());
    WireChoice {
        index,
        message: WireMessage {
            role: "assistant",
            content: Some(choice.text.as_str()).filter(|text| !text.is_empty() || tool_calls.is_empty()),
            refusal: None,
            reasoning_content: reasoning,
            reasoning,
            reasoning_details: choice.thoughts.iter().map(thoughts::written).collect(),
            tool_calls,
            malformed_tool_calls: &choice.malformed_calls,
        },
        logprobs: asked.logprobs.then(|| ChatLogprobs::new(&choice.logprobs)),
        finish_reason: choice.finish.unwrap_or(FinishReason::Stop).as_str(),
        stop_reason: choice.stop_text.as_deref(),
    }
}

#[derive(Serialize)]
struct Chunk<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    system_fingerprint: &'static str,
    choices: Vec<ChunkChoice<'a>>,
    // Where usage was asked for, all other chunks say `null`.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<WireUsage>>,
}

#[derive(Serialize)]
struct ChunkChoice<'a> {
    index: u32,
    delta: WireDelta<'a>,
    logprobs: Option<ChatLogprobs<'a>>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stop_reason: Option<&'a str>,
}

#[derive(Default, Serialize)]
struct WireDelta<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    refusal: Option<Option<()>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    reasoning_details: Vec<Value>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    malformed_tool_calls: Vec<&'a str>,
}

/// Writes a chat completion as chunks.
pub struct ChunkWriter {
    head: Head,
    asked: Asked,
    started: bool,
    usage: Usage,
}

impl ChunkWriter {
    /// A writer for one answer.
    #[must_use]
    pub fn new(head: Head, asked: Asked) -> Self {
        Self { head, asked, started: false, usage: Usage::default() }
    }

    fn chunk(&self, choices: Vec<ChunkChoice<'_>>, usage: Option<WireUsage>) -> Event {
        Event::data(to_json(&Chunk {
            id: &self.head.id,
            object: "chat.completion.chunk",
            created: self.head.created,
            model: &self.head.model,
            system_fingerprint: SYSTEM_FINGERPRINT,
            choices,
            usage: self.asked.include_usage.then_some(usage),
        }))
    }

    fn one(&self, index: u32, delta: WireDelta<'_>, logprobs: &[Logprobs]) -> Event {
        let logprobs = (self.asked.logprobs && !logprobs.is_empty()).then(|| ChatLogprobs::new(logprobs));
        self.chunk(vec![ChunkChoice { index, delta, logprobs, finish_reason: None, stop_reason: None }], None)
    }

    fn end(&self, index: u32, reason: FinishReason, stop_reason: Option<&str>) -> Event {
        let finish_reason = Some(reason.as_str());
        let delta = WireDelta::default();
        self.chunk(vec![ChunkChoice { index, delta, logprobs: None, finish_reason, stop_reason }], None)
    }

    fn call(&self, choice: u32, call: WireCall<'_>) -> Event {
        self.one(choice, WireDelta { tool_calls: vec![call], ..WireDelta::default() }, &[])
    }

    /// The role of every choice, before anything else.
    fn start(&mut self) -> Vec<Event> {
        if std::mem::replace(&mut self.started, true) {
            return Vec::new();
        }
        (0..self.asked.choices)
            .map(|choice| {
                let delta = WireDelta {
                    role: Some("assistant"),
                    content: Some(""),
                    refusal: Some(None),
                    ..WireDelta::default()
                };
                self.one(choice, delta, &[])
            })
            .collect()
    }
}

impl StreamWriter for ChunkWriter {
    fn delta(&mut self, _source: usize, delta: Delta) -> Vec<Event> {
        let mut events = self.start();
        match &delta {
            Delta::Started { .. } | Delta::PromptLogprobs(_) => {}
            Delta::Usage(usage) => self.usage = *usage,
            Delta::Text { choice, text, logprobs } => {
                let delta = WireDelta { content: Some(text), ..WireDelta::default() };
                events.push(self.one(*choice, delta, logprobs));
            }
            Delta::Reasoning { choice, text } => {
                let (reasoning_content, reasoning) = (Some(text.as_str()), Some(text.as_str()));
                let delta = WireDelta { reasoning_content, reasoning, ..WireDelta::default() };
                events.push(self.one(*choice, delta, &[]));
            }
            Delta::Thought { choice, thought } => {
                let reasoning_details = vec![thoughts::written(thought)];
                events.push(self.one(*choice, WireDelta { reasoning_details, ..WireDelta::default() }, &[]));
            }
            Delta::ToolCallStart { choice, index, id, name } => {
                let function = WireFunction { name: Some(name), arguments: "" };
                let kind = Some("function");
                events
                    .push(self.call(*choice, WireCall { index: Some(*index), id: Some(id), kind, function }));
            }
            Delta::ToolCallArguments { choice, index, arguments } => {
                let function = WireFunction { name: None, arguments };
                let call = WireCall { index: Some(*index), id: None, kind: None, function };
                events.push(self.call(*choice, call));
            }
            Delta::MalformedCall { choice, why } => {
                let delta = WireDelta { malformed_tool_calls: vec![why], ..WireDelta::default() };
                events.push(self.one(*choice, delta, &[]));
            }
            Delta::Finish { choice, reason, stop_text } => {
                events.push(self.end(*choice, *reason, stop_text.as_deref()));
            }
        }
        events
    }

    fn finish(&mut self) -> Vec<Event> {
        let mut events = self.start();
        if self.asked.include_usage {
            events.push(self.chunk(Vec::new(), Some(self.usage.into())));
        }
        events.push(Event::data("[DONE]"));
        events
    }
}

#[cfg(test)]
mod round_trip;
#[cfg(test)]
mod tests;

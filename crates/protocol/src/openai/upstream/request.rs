//! Canonical request to the body of a chat completion.
//!
//! The order of members, messages and tools is always the same, so that a provider's cache finds what it has seen.

use super::Speaker;
use crate::openai::thoughts;
use crate::openai::to_json;
use crate::upstream::{effort, number, wordless};
use crate::{
    CacheFor, CacheMark, Error, GenerateRequest, Input, Message, Part, ResponseFormat, Role, Tool, ToolChoice,
};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

const DIALECT: &str = "chat completions";

/// The longest `user` and key of a cache that OpenAI takes.
const LABEL: usize = 64;

/// Switches of templates that speakers who are no engines have an effort for.
const SWITCHES: &[&str] = &["enable_thinking", "thinking", "reasoning_effort"];

/// The body that asks `model` for this; `usage`: whether a stream must be asked for its usage.
///
/// # Errors
/// When the request holds what the dialect, or this speaker of it, has no words for.
pub fn write(
    request: &GenerateRequest,
    model: &str,
    speaker: &Speaker,
    usage: bool,
) -> Result<String, Error> {
    let Input::Chat(messages) = &request.input else { return Err(wordless("raw", DIALECT)) };
    let mut body = Map::new();
    let mut put = |name: &str, value: Value| body.insert(name.to_owned(), value);
    put("model", model.into());
    put("messages", self::messages(messages, speaker)?.into());
    if !request.tools.is_empty() {
        put("tools", request.tools.iter().map(|tool| self::tool(tool, speaker)).collect());
        if let Some(choice) = tool_choice(&request.tool_choice) {
            put("tool_choice", choice);
        }
        if let Some(parallel) = request.parallel_tool_calls {
            put("parallel_tool_calls", parallel.into());
        }
    }
    if let Some(format) = format(&request.response_format)? {
        put("response_format", format);
    }
    if let Some(tokens) = request.max_tokens {
        put(if speaker.openai { "max_completion_tokens" } else { "max_tokens" }, tokens.into());
    }
    sampling(request, speaker, &mut put)?;
    if !request.stop.is_empty() {
        put("stop", request.stop.clone().into());
    }
    if request.choices > 1 {
        put("n", request.choices.into());
    }
    if let Some(top) = request.logprobs {
        put("logprobs", true.into());
        if top > 0 {
            put("top_logprobs", top.into());
        }
    }
    if request.prompt_logprobs.is_some() {
        return Err(wordless("prompt_logprobs", DIALECT));
    }
    thinking(request, speaker, &mut put)?;
    if let Some(user) = request.user.as_ref().filter(|_| speaker.user) {
        put("user", ending(user, LABEL).into());
    }
    if speaker.openai {
        if let Some(session) = &request.session {
            put("prompt_cache_key", ending(session, LABEL).into());
        }
        if let Some(prediction) = &request.prediction {
            put("prediction", json!({"type": "content", "content": prediction}));
        }
    }
    if request.stream {
        put("stream", true.into());
        if usage {
            put("stream_options", json!({"include_usage": true}));
        }
    }
    Ok(to_json(&body))
}

/// The last bytes of a text, or fewer where a character would be cut: what differs stands at the end.
fn ending(text: &str, most: usize) -> &str {
    let from = text.len().saturating_sub(most);
    let from = (from..=text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    &text[from..]
}

/// Who puts a member into a body.
trait Put: FnMut(&str, Value) -> Option<Value> {}
impl<F: FnMut(&str, Value) -> Option<Value>> Put for F {}

fn sampling(request: &GenerateRequest, speaker: &Speaker, put: &mut impl Put) -> Result<(), Error> {
    let sampling = &request.sampling;
    for (name, value) in [
        ("temperature", sampling.temperature),
        ("top_p", sampling.top_p),
        ("frequency_penalty", sampling.frequency_penalty),
        ("presence_penalty", sampling.presence_penalty),
    ] {
        if let Some(value) = value {
            put(name, number(value));
        }
    }
    if let Some(seed) = sampling.seed {
        put("seed", seed.cast_signed().into());
    }
    if !sampling.logit_bias.is_empty() {
        let biases = sampling.logit_bias.iter().map(|(id, bias)| (id.to_string(), number(*bias)));
        put("logit_bias", Value::Object(biases.collect()));
    }
    // Values that say what holds anyway go nowhere.
    for (name, value) in [
        ("top_k", sampling.top_k.filter(|k| *k > 0).map(Value::from)),
        ("min_p", sampling.min_p.filter(|p| *p > 0.0).map(number)),
        ("repetition_penalty", sampling.repetition_penalty.filter(|p| *p != 1.0).map(number)),
        ("ignore_eos", request.ignore_eos.then_some(true.into())),
    ] {
        let Some(value) = value else { continue };
        let takes = speaker.engine || (speaker.router && name != "ignore_eos");
        if !takes {
            return Err(wordless(name, DIALECT));
        }
        put(name, value);
    }
    Ok(())
}

fn thinking(request: &GenerateRequest, speaker: &Speaker, put: &mut impl Put) -> Result<(), Error> {
    if speaker.engine {
        if let Some(effort) = request.reasoning_effort {
            put("reasoning_effort", effort.as_str().into());
        }
        if !request.template_variables.is_empty() {
            let variables = request.template_variables.clone().into_iter().collect();
            put("chat_template_kwargs", Value::Object(variables));
        }
        return Ok(());
    }
    if let Some(name) = request.template_variables.keys().find(|name| !SWITCHES.contains(&name.as_str())) {
        return Err(wordless(&format!("chat_template_kwargs.{name}"), DIALECT));
    }
    if let Some(effort) = effort(request) {
        put("reasoning_effort", effort.as_str().into());
    }
    Ok(())
}

fn format(format: &ResponseFormat) -> Result<Option<Value>, Error> {
    Ok(Some(match format {
        ResponseFormat::Text => return Ok(None),
        ResponseFormat::JsonObject => json!({"type": "json_object"}),
        ResponseFormat::JsonSchema { name, schema, strict } => {
            let mut envelope = json!({"name": name.as_deref().unwrap_or("answer"), "schema": schema});
            if let Some(strict) = strict {
                envelope["strict"] = (*strict).into();
            }
            json!({"type": "json_schema", "json_schema": envelope})
        }
        ResponseFormat::Regex(_) => return Err(wordless("response_format.regex", DIALECT)),
        ResponseFormat::Lark(_) => return Err(wordless("response_format.grammar", DIALECT)),
    }))
}

fn tool_choice(choice: &ToolChoice) -> Option<Value> {
    match choice {
        ToolChoice::Auto => None,
        ToolChoice::None => Some("none".into()),
        ToolChoice::Required => Some("required".into()),
        ToolChoice::Named(name) => Some(json!({"type": "function", "function": {"name": name}})),
    }
}

fn tool(tool: &Tool, speaker: &Speaker) -> Value {
    let mut function = json!({"name": tool.name});
    if let Some(description) = &tool.description {
        function["description"] = description.as_str().into();
    }
    if let Some(parameters) = &tool.parameters {
        function["parameters"] = parameters.clone();
    }
    if let Some(strict) = tool.strict {
        function["strict"] = strict.into();
    }
    let mut written = json!({"type": "function", "function": function});
    if let Some(keep) = tool.cache.filter(|_| speaker.router) {
        written["cache_control"] = cache_control(keep);
    }
    written
}

pub(crate) fn cache_control(keep: CacheFor) -> Value {
    match keep {
        CacheFor::Minutes => json!({"type": "ephemeral"}),
        CacheFor::Hour => json!({"type": "ephemeral", "ttl": "1h"}),
    }
}

/// The messages. A tool's result is text here; images in it follow in a message of the user's, behind all results of
/// that turn.
fn messages(messages: &[Message], speaker: &Speaker) -> Result<Vec<Value>, Error> {
    let mut written = Vec::with_capacity(messages.len());
    let mut shown: Vec<Value> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        if message.role == Role::Tool {
            let images = message.content.0.iter().filter(|part| matches!(part, Part::Image { .. }));
            let images: Vec<Value> = images.map(|part| self::part(part, None)).collect();
            if !images.is_empty() {
                let id = call_id(message.tool_call_id.as_deref().unwrap_or_default(), speaker);
                shown.push(json!({"type": "text", "text": format!("Images in the result of {id}:")}));
                shown.extend(images);
            }
        } else if !shown.is_empty() {
            written.push(json!({"role": "user", "content": std::mem::take(&mut shown)}));
        }
        let silent = message.role == Role::Assistant
            && message.tool_calls.is_empty()
            && message.content.0.iter().all(|part| matches!(part, Part::Text(text) if text.is_empty()));
        // Thoughts alone, where they do not go back, are no turn.
        if silent && speaker.reasoning.is_none() && !message.thoughts.is_empty() {
            continue;
        }
        written.push(self::message(index, message, speaker)?);
    }
    if !shown.is_empty() {
        written.push(json!({"role": "user", "content": shown}));
    }
    Ok(written)
}

fn message(index: usize, message: &Message, speaker: &Speaker) -> Result<Value, Error> {
    let role = match message.role {
        Role::Developer if !speaker.openai => Role::System,
        role => role,
    };
    let images = message.content.0.iter().position(|part| matches!(part, Part::Image { .. }));
    if let Some(image) = images.filter(|_| !matches!(role, Role::User | Role::Tool)) {
        return Err(wordless(&format!("messages[{index}].content[{image}].image_url"), DIALECT));
    }
    let mut written = json!({"role": role.as_str(), "content": content(message, role, speaker)});
    if let Some(name) = &message.name {
        written["name"] = name.as_str().into();
    }
    if role == Role::Assistant {
        if let (Some(field), Some(reasoning)) = (speaker.reasoning, &message.reasoning) {
            written[field] = reasoning.as_str().into();
        }
        if speaker.router && !message.thoughts.is_empty() {
            written["reasoning_details"] = message.thoughts.iter().map(thoughts::written).collect();
        }
    }
    if !message.tool_calls.is_empty() {
        let call = |call: &crate::ToolCall| {
            json!({
                "id": call_id(&call.id, speaker), "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            })
        };
        written["tool_calls"] = message.tool_calls.iter().map(call).collect();
    }
    if let Some(id) = &message.tool_call_id {
        written["tool_call_id"] = (*call_id(id, speaker)).into();
    }
    Ok(written)
}

fn content(message: &Message, role: Role, speaker: &Speaker) -> Value {
    let marks = if speaker.router { message.cache_marks.as_slice() } else { &[] };
    let parts = &message.content.0;
    match parts.as_slice() {
        [] if !message.tool_calls.is_empty() => Value::Null,
        [] => "".into(),
        [Part::Text(text)] if marks.is_empty() => text.as_str().into(),
        // Results are texts; only OpenAI itself says that they may be several.
        parts
            if role == Role::Tool
                && speaker.openai
                && parts.iter().filter(|part| is_text(part)).count() > 1 =>
        {
            parts.iter().filter(|part| is_text(part)).map(|part| self::part(part, None)).collect()
        }
        _ if role == Role::Tool || !(speaker.parts || role == Role::User) => {
            message.content.joined_text().into()
        }
        parts => {
            let last = parts.len() - 1;
            let mark = |at: usize| marks.iter().rev().find(|mark| mark.part.unwrap_or(last) == at);
            parts.iter().enumerate().map(|(at, part)| self::part(part, mark(at))).collect()
        }
    }
}

const fn is_text(part: &Part) -> bool {
    matches!(part, Part::Text(_))
}

fn part(part: &Part, mark: Option<&CacheMark>) -> Value {
    let mut written = match part {
        Part::Text(text) => json!({"type": "text", "text": text}),
        Part::Image { url, detail: None } => json!({"type": "image_url", "image_url": {"url": url}}),
        Part::Image { url, detail: Some(detail) } => {
            json!({"type": "image_url", "image_url": {"url": url, "detail": detail}})
        }
    };
    if let Some(mark) = mark {
        written["cache_control"] = cache_control(mark.keep);
    }
    written
}

/// A call's id as the speaker takes it.
fn call_id<'a>(id: &'a str, speaker: &Speaker) -> Cow<'a, str> {
    const LETTERS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    let fits = id.len() == 9 && id.bytes().all(|byte| byte.is_ascii_alphanumeric());
    if !speaker.short_ids || fits {
        return Cow::Borrowed(id);
    }
    // FNV-1a.
    let mut hash = id
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3));
    let letters = (0..9).map(|_| {
        let letter = LETTERS[(hash % 62) as usize];
        hash /= 62;
        char::from(letter)
    });
    Cow::Owned(letters.collect())
}

//! Canonical request to the body of Converse.
//!
//! The order of members, blocks and tools is always the same, so that a provider's cache finds what it has seen.

use crate::anthropic::upstream::thought;
use crate::openai::to_json;
use crate::upstream::{budget, number, wordless};
use crate::{
    CacheFor, Error, GenerateRequest, Input, Message, Part, ResponseFormat, Role, Thought, Tool, ToolChoice,
};
use serde_json::{Map, Value, json};

const DIALECT: &str = "Bedrock's Converse";

/// Switches of templates that are a budget of thought here.
const SWITCHES: &[&str] = &["enable_thinking", "thinking", "reasoning_effort"];

/// The longest id of a call.
const ID_MAX: usize = 64;

/// The body that asks `model` for this.
///
/// # Errors
/// When the request holds what the dialect, or the model's maker, has no words for.
pub fn write(request: &GenerateRequest, model: &str) -> Result<String, Error> {
    let Input::Chat(messages) = &request.input else { return Err(wordless("prompt", DIALECT)) };
    let claude = model.contains("anthropic.");
    refuse(request, claude)?;
    let budget = thought(request, messages).filter(|_| claude);
    let (system, turns) = conversation(messages, budget.is_some())?;
    let mut body = Map::new();
    let mut put = |name: &str, value: Value| body.insert(name.to_owned(), value);
    put("messages", turns.into());
    if !system.is_empty() {
        put("system", system.into());
    }
    let config = config(request, budget);
    if !config.is_empty() {
        put("inferenceConfig", config.into());
    }
    if let Some(tools) = tools(request, messages)? {
        put("toolConfig", tools);
    }
    let mut more = Map::new();
    if let Some(budget) = budget {
        more.insert("thinking".to_owned(), json!({"type": "enabled", "budget_tokens": budget}));
    }
    if let Some(k) = request.sampling.top_k.filter(|k| *k > 0 && budget.is_none()) {
        more.insert("top_k".to_owned(), k.into());
    }
    if !more.is_empty() {
        put("additionalModelRequestFields", more.into());
    }
    Ok(to_json(&body))
}

/// What would change the answer and cannot be said. A seed changes nothing that anybody is promised.
fn refuse(request: &GenerateRequest, claude: bool) -> Result<(), Error> {
    let sampling = &request.sampling;
    let given = [
        ("n", request.choices > 1),
        ("logprobs", request.logprobs.is_some()),
        ("prompt_logprobs", request.prompt_logprobs.is_some()),
        ("logit_bias", !sampling.logit_bias.is_empty()),
        ("frequency_penalty", sampling.frequency_penalty.is_some_and(|penalty| penalty != 0.0)),
        ("presence_penalty", sampling.presence_penalty.is_some_and(|penalty| penalty != 0.0)),
        ("repetition_penalty", sampling.repetition_penalty.is_some_and(|penalty| penalty != 1.0)),
        ("min_p", sampling.min_p.is_some_and(|p| p > 0.0)),
        ("top_k", !claude && sampling.top_k.is_some_and(|k| k > 0)),
        ("reasoning_effort", !claude && budget(request).is_some_and(|budget| budget > 0)),
        ("ignore_eos", request.ignore_eos),
        ("parallel_tool_calls", request.parallel_tool_calls == Some(false) && !request.tools.is_empty()),
        ("response_format", request.response_format != ResponseFormat::Text),
    ];
    if let Some((name, _)) = given.iter().find(|(_, given)| *given) {
        return Err(wordless(name, DIALECT));
    }
    if let Some(name) = request.template_variables.keys().find(|name| !SWITCHES.contains(&name.as_str())) {
        return Err(wordless(&format!("chat_template_kwargs.{name}"), DIALECT));
    }
    Ok(())
}

fn config(request: &GenerateRequest, budget: Option<u32>) -> Map<String, Value> {
    let mut config = Map::new();
    // Without a limit the service sets one of its own, which must leave room behind the thoughts.
    let most = request
        .max_tokens
        .or_else(|| budget.map(|budget| budget.saturating_add(crate::anthropic::upstream::MAX_TOKENS)));
    if let Some(most) = most {
        config.insert("maxTokens".to_owned(), most.into());
    }
    // Who thinks is sampled in one way.
    let temperature = request.sampling.temperature.filter(|one| budget.is_none() || *one == 1.0);
    for (name, value) in [("temperature", temperature), ("topP", request.sampling.top_p)] {
        if let Some(value) = value {
            config.insert(name.to_owned(), number(value));
        }
    }
    if !request.stop.is_empty() {
        config.insert("stopSequences".to_owned(), request.stop.clone().into());
    }
    config
}

/// The tools; none where none may be called, which is how this API has it, unless the history has calls, which want them.
fn tools(request: &GenerateRequest, messages: &[Message]) -> Result<Option<Value>, Error> {
    if request.tools.is_empty() {
        return Ok(None);
    }
    let choice = match &request.tool_choice {
        ToolChoice::Auto => None,
        ToolChoice::None if messages.iter().any(|message| !message.tool_calls.is_empty()) => {
            return Err(wordless("tool_choice", DIALECT));
        }
        ToolChoice::None => return Ok(None),
        ToolChoice::Required => Some(json!({"any": {}})),
        ToolChoice::Named(name) => Some(json!({"tool": {"name": name}})),
    };
    let mut written = Vec::with_capacity(request.tools.len());
    for tool in &request.tools {
        written.push(self::tool(tool));
        if let Some(keep) = tool.cache {
            written.push(cache_point(keep));
        }
    }
    let mut config = json!({"tools": written});
    if let Some(choice) = choice {
        config["toolChoice"] = choice;
    }
    Ok(Some(config))
}

fn tool(tool: &Tool) -> Value {
    let nothing = || json!({"type": "object", "properties": {}});
    let schema = tool.parameters.clone().unwrap_or_else(nothing);
    let mut written = json!({"name": tool.name});
    if let Some(description) = tool.description.as_ref().filter(|description| !description.is_empty()) {
        written["description"] = description.as_str().into();
    }
    written["inputSchema"] = json!({"json": schema});
    json!({"toolSpec": written})
}

fn cache_point(keep: CacheFor) -> Value {
    match keep {
        CacheFor::Minutes => json!({"cachePoint": {"type": "default"}}),
        CacheFor::Hour => json!({"cachePoint": {"type": "default", "ttl": "1h"}}),
    }
}

/// The system's blocks and the turns. Results of tools and what the user says next are one turn of the user's.
fn conversation(messages: &[Message], thinks: bool) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let mut system = Vec::new();
    let mut turns: Vec<(&str, Vec<Value>)> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let (role, said) = match message.role {
            Role::System | Role::Developer => {
                if let Some(image) =
                    message.content.0.iter().position(|part| matches!(part, Part::Image { .. }))
                {
                    return Err(wordless(&format!("messages[{index}].content[{image}].image_url"), DIALECT));
                }
                system.extend(blocks(index, message)?);
                continue;
            }
            Role::User => ("user", blocks(index, message)?),
            Role::Tool => ("user", result(index, message)?),
            Role::Assistant => ("assistant", assistant(index, message, thinks)?),
        };
        match turns.last_mut() {
            _ if said.is_empty() => {}
            Some((last, before)) if *last == role => before.extend(said),
            _ => turns.push((role, said)),
        }
    }
    let turns = turns.into_iter().map(|(role, content)| json!({"role": role, "content": content}));
    Ok((system, turns.collect()))
}

fn assistant(index: usize, message: &Message, thinks: bool) -> Result<Vec<Value>, Error> {
    let mut written = Vec::new();
    for thought in message.thoughts.iter().filter(|_| thinks) {
        written.push(match thought {
            Thought::Signed { text, signature } => {
                json!({"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}})
            }
            Thought::Redacted(data) => json!({"reasoningContent": {"redactedContent": data}}),
        });
    }
    let marked = message.cache_marks.iter().rev().find(|mark| mark.part.is_none());
    let own = Message {
        cache_marks: message.cache_marks.iter().filter(|mark| mark.part.is_some()).copied().collect(),
        ..message.clone()
    };
    written.extend(blocks(index, &own)?);
    for (number, call) in message.tool_calls.iter().enumerate() {
        let arguments = Some(call.arguments.trim()).filter(|arguments| !arguments.is_empty());
        let input = serde_json::from_str::<Map<String, Value>>(arguments.unwrap_or("{}")).map_err(|_| {
            let path = format!("messages[{index}].tool_calls[{number}].function.arguments");
            Error::invalid(&path, format!("'{path}' must be a JSON object, as {DIALECT} has it"))
        })?;
        written.push(json!({"toolUse": {"toolUseId": id(&call.id), "name": call.name, "input": input}}));
    }
    if let (Some(mark), false) = (marked, written.is_empty()) {
        written.push(cache_point(mark.keep));
    }
    Ok(written)
}

fn result(index: usize, message: &Message) -> Result<Vec<Value>, Error> {
    let inner = blocks(index, &Message { cache_marks: Vec::new(), ..message.clone() })?;
    // A result must hold something.
    let inner = if inner.is_empty() { vec![json!({"text": " "})] } else { inner };
    let id = id(message.tool_call_id.as_deref().unwrap_or_default());
    let mut written = vec![json!({"toolResult": {"toolUseId": id, "content": inner}})];
    if let Some(mark) = message.cache_marks.last() {
        written.push(cache_point(mark.keep));
    }
    Ok(written)
}

/// Text and images, with the marks for caches behind them. Empty texts are not taken.
fn blocks(index: usize, message: &Message) -> Result<Vec<Value>, Error> {
    let mut written = Vec::with_capacity(message.content.0.len());
    let last = message.content.0.len().saturating_sub(1);
    for (at, part) in message.content.0.iter().enumerate() {
        match part {
            Part::Text(text) if text.is_empty() => {}
            Part::Text(text) => written.push(json!({"text": text})),
            Part::Image { url, .. } => {
                let path = || format!("messages[{index}].content[{at}].image_url.url");
                let other = || {
                    let why = "must be a data: URL of a PNG, JPEG, GIF or WebP";
                    Error::invalid(path(), format!("'{}' {why} in {DIALECT}", path()))
                };
                written.push(image(url).ok_or_else(other)?);
            }
        }
        let mark = message.cache_marks.iter().rev().find(|mark| mark.part.unwrap_or(last) == at);
        if let (Some(mark), false) = (mark, written.is_empty()) {
            written.push(cache_point(mark.keep));
        }
    }
    Ok(written)
}

fn image(url: &str) -> Option<Value> {
    let (media, data) = url.strip_prefix("data:image/")?.split_once(";base64,")?;
    let format = match media.split(';').next().unwrap_or_default() {
        "jpg" => "jpeg",
        format @ ("png" | "jpeg" | "gif" | "webp") => format,
        _ => return None,
    };
    Some(json!({"image": {"format": format, "source": {"bytes": data}}}))
}

/// A call's id in the letters and the length that this API takes.
fn id(id: &str) -> String {
    let taken = |c: char| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '_' };
    let whole: Vec<char> = id.chars().map(taken).collect();
    // What differs stands at the end.
    whole[whole.len().saturating_sub(ID_MAX)..].iter().collect()
}

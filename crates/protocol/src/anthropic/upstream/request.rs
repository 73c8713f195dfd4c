//! Canonical request to the body of a message.
//!
//! The order of members, blocks and tools is always the same, so that a provider's cache finds what it has seen.

use crate::anthropic::written_id;
use crate::openai::to_json;
use crate::upstream::{
    arguments, budget, id_of, is_blank, number, object_schema, turns, with_room, wordless,
};
use crate::{
    CacheFor, CacheMark, Error, GenerateRequest, Input, Maker, Message, Part, ResponseFormat, Role, Thought,
    Tool, ToolChoice,
};
use serde_json::{Map, Value, json};

const DIALECT: &str = "Anthropic's Messages";

/// `max_tokens`, which must be there, where the caller sets no limit: what every model that is not retired can do.
pub const MAX_TOKENS: u32 = 8192;

/// The smallest budget of thought.
const BUDGET_MIN: u32 = 1024;

/// The body that asks `model` for this.
///
/// # Errors
/// When the request holds what the dialect has no words for.
pub fn write(request: &GenerateRequest, model: &str) -> Result<String, Error> {
    let Input::Chat(messages) = &request.input else { return Err(wordless("raw", DIALECT)) };
    refuse(request)?;
    let budget = thought(request, messages);
    let mut body = Map::new();
    let mut put = |name: &str, value: Value| body.insert(name.to_owned(), value);
    put("model", model.into());
    let most = request.max_tokens.unwrap_or_else(|| MAX_TOKENS.saturating_add(budget.unwrap_or(0)));
    put("max_tokens", most.into());
    let (system, turns) = conversation(messages, budget.is_some())?;
    if !system.is_empty() {
        put("system", system.into());
    }
    put("messages", turns.into());
    if !request.tools.is_empty() {
        put("tools", request.tools.iter().map(tool).collect());
        if let Some(choice) = tool_choice(request) {
            put("tool_choice", choice);
        }
    } else if let Some(tools) = called(messages) {
        put("tools", tools);
        put("tool_choice", json!({"type": "none"}));
    }
    if let Some(user) = &request.user {
        put("metadata", json!({"user_id": user}));
    }
    if let Some(budget) = budget {
        put("thinking", json!({"type": "enabled", "budget_tokens": budget}));
    }
    if let ResponseFormat::JsonSchema { schema, .. } = &request.response_format {
        put("output_config", json!({"format": {"type": "json_schema", "schema": schema}}));
    }
    if !request.stop.is_empty() {
        put("stop_sequences", request.stop.clone().into());
    }
    let thinks = budget.is_some();
    let (temperature, top_p) = sampled(request, thinks);
    for (name, value) in [("temperature", temperature), ("top_p", top_p)] {
        if let Some(value) = value {
            put(name, number(value));
        }
    }
    if let Some(k) = request.sampling.top_k.filter(|k| *k > 0 && !thinks) {
        put("top_k", k.into());
    }
    if request.stream {
        put("stream", true.into());
    }
    Ok(to_json(&body))
}

/// What would change the answer and cannot be said. A seed and a prediction change nothing that anybody is promised.
fn refuse(request: &GenerateRequest) -> Result<(), Error> {
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
        ("ignore_eos", request.ignore_eos),
    ];
    if let Some((name, _)) = given.iter().find(|(_, given)| *given) {
        return Err(wordless(name, DIALECT));
    }
    if sampling.temperature.is_some_and(|temperature| temperature > 1.0) {
        let message = format!("'temperature' goes up to 1 in {DIALECT}, which this model's provider speaks");
        return Err(Error { message, ..wordless("temperature", DIALECT) });
    }
    let switches = ["enable_thinking", "thinking", "reasoning_effort"];
    if let Some(name) = request.template_variables.keys().find(|name| !switches.contains(&name.as_str())) {
        return Err(wordless(&format!("chat_template_kwargs.{name}"), DIALECT));
    }
    match &request.response_format {
        ResponseFormat::Text | ResponseFormat::JsonSchema { .. } => Ok(()),
        ResponseFormat::JsonObject => {
            let message = format!(
                "'response_format' of type 'json_object' has no counterpart in {DIALECT}, which this model's provider \
                 speaks; give a JSON schema"
            );
            Err(Error { message, ..wordless("response_format", DIALECT) })
        }
        ResponseFormat::Regex(_) => Err(wordless("response_format.regex", DIALECT)),
        ResponseFormat::Lark(_) => Err(wordless("response_format.grammar", DIALECT)),
    }
}

/// The budget of thought; none where there is none, or where this API lets no model think: with a call that is forced,
/// with an answer too short for it, and in the middle of a turn whose thoughts are not there to go on from.
pub(crate) fn thought(request: &GenerateRequest, messages: &[Message]) -> Option<u32> {
    // An effort alone is none to think by here.
    let budget = budget(request).filter(|budget| *budget > 0 && request.thinks() == Some(true))?;
    if matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_)) {
        return None;
    }
    let last = messages.iter().rev().find(|message| message.role == Role::Assistant);
    if last.is_some_and(|message| {
        !message.tool_calls.is_empty() && message.thoughts.iter().all(|thought| !is_of_claude(thought))
    }) {
        return None;
    }
    with_room(request, budget, BUDGET_MIN)
}

/// `temperature` and `top_p` as Claude's models take them. Who thinks is sampled in one way ("`top_p` must be greater than
/// or equal to 0.95 or unset when thinking is enabled"), and from Claude 4.5 on only one of both may be there
/// ("`temperature` and `top_p` cannot both be specified for this model"): the temperature, unless it is the usual one.
pub(crate) fn sampled(request: &GenerateRequest, thinks: bool) -> (Option<f32>, Option<f32>) {
    let temperature = request.sampling.temperature.filter(|temperature| !thinks || *temperature == 1.0);
    let top_p = request.sampling.top_p.filter(|p| !thinks || *p >= 0.95);
    match (temperature, top_p) {
        (Some(1.0), Some(_)) => (None, top_p),
        (Some(_), Some(_)) => (temperature, None),
        one => one,
    }
}

/// Tools of the names that were called before, where the request has none: calls without tools are refused ("Requests which
/// include `tool_use` or `tool_result` blocks must define tools").
fn called(messages: &[Message]) -> Option<Value> {
    let mut names: Vec<&str> = Vec::new();
    for call in messages.iter().flat_map(|message| &message.tool_calls) {
        if !names.contains(&call.name.as_str()) {
            names.push(&call.name);
        }
    }
    let tool = |name: &&str| json!({"name": name, "input_schema": object_schema(None)});
    (!names.is_empty()).then(|| names.iter().map(tool).collect())
}

/// Whether this API takes a thought's proof.
pub(crate) fn is_of_claude(thought: &Thought) -> bool {
    *thought.maker() == Maker::Anthropic
}

fn tool_choice(request: &GenerateRequest) -> Option<Value> {
    let mut choice = match &request.tool_choice {
        ToolChoice::Auto => json!({"type": "auto"}),
        ToolChoice::None => return Some(json!({"type": "none"})),
        ToolChoice::Required => json!({"type": "any"}),
        ToolChoice::Named(name) => json!({"type": "tool", "name": name}),
    };
    match request.parallel_tool_calls {
        Some(parallel) => choice["disable_parallel_tool_use"] = (!parallel).into(),
        None if request.tool_choice == ToolChoice::Auto => return None,
        None => {}
    }
    Some(choice)
}

fn tool(tool: &Tool) -> Value {
    let mut written = json!({"name": tool.name});
    if let Some(description) = &tool.description {
        written["description"] = description.as_str().into();
    }
    written["input_schema"] = object_schema(tool.parameters.as_ref());
    if tool.strict == Some(true) {
        written["strict"] = true.into();
    }
    if let Some(keep) = tool.cache {
        written["cache_control"] = cache_control(keep);
    }
    written
}

fn cache_control(keep: CacheFor) -> Value {
    match keep {
        CacheFor::Minutes => json!({"type": "ephemeral"}),
        CacheFor::Hour => json!({"type": "ephemeral", "ttl": "1h"}),
    }
}

/// The system's blocks and the turns. Results of tools and what the user says next are one turn of the user's.
fn conversation(messages: &[Message], thinks: bool) -> Result<(Vec<Value>, Vec<Value>), Error> {
    let (system, turns) = turns(messages, DIALECT, |index, message| {
        Ok(match message.role {
            Role::Tool => ("user", vec![result(message)]),
            Role::Assistant => ("assistant", assistant(index, message, thinks)?),
            Role::System | Role::Developer | Role::User => ("user", blocks(message)),
        })
    })?;
    let turns = turns.into_iter().map(|(role, content)| json!({"role": role, "content": content}));
    Ok((system, turns.collect()))
}

fn assistant(index: usize, message: &Message, thinks: bool) -> Result<Vec<Value>, Error> {
    let mut written = Vec::new();
    // Thoughts without proof are not taken, nor are those of other makers, and none are where the model shall not think.
    for thought in message.thoughts.iter().filter(|thought| thinks && is_of_claude(thought)) {
        written.push(match thought {
            Thought::Signed { text, signature, .. } => {
                json!({"type": "thinking", "thinking": text, "signature": signature})
            }
            Thought::Redacted { data, .. } => json!({"type": "redacted_thinking", "data": data}),
        });
    }
    let whole = message.cache_marks.iter().rev().find(|mark| mark.part.is_none());
    let own = Message {
        cache_marks: message.cache_marks.iter().filter(|mark| mark.part.is_some()).copied().collect(),
        ..message.clone()
    };
    let thoughts = written.len();
    written.extend(blocks(&own));
    for (number, call) in message.tool_calls.iter().enumerate() {
        let input = arguments(call, index, number, DIALECT)?;
        written.push(json!({"type": "tool_use", "id": id(&call.id), "name": call.name, "input": input}));
    }
    if written.len() == thoughts {
        // Thoughts alone are no turn.
        return Ok(Vec::new());
    }
    if let (Some(mark), Some(last)) = (whole, written.last_mut()) {
        last["cache_control"] = cache_control(mark.keep);
    }
    Ok(written)
}

fn result(message: &Message) -> Value {
    let inner = blocks(&Message { cache_marks: Vec::new(), ..message.clone() });
    let id = id(message.tool_call_id.as_deref().unwrap_or_default());
    let mut written = json!({"type": "tool_result", "tool_use_id": id});
    if !inner.is_empty() {
        written["content"] = inner.into();
    }
    if let Some(mark) = message.cache_marks.last() {
        written["cache_control"] = cache_control(mark.keep);
    }
    written
}

/// Text and images. Texts of nothing but space are not taken; a mark behind one stands behind what comes before it.
fn blocks(message: &Message) -> Vec<Value> {
    let mut written: Vec<Value> = Vec::with_capacity(message.content.0.len());
    let last = message.content.0.len().saturating_sub(1);
    for (at, part) in message.content.0.iter().enumerate() {
        match part {
            Part::Text(text) if is_blank(text) => {}
            Part::Text(text) => written.push(json!({"type": "text", "text": text})),
            Part::Image { url, .. } => written.push(json!({"type": "image", "source": source(url)})),
        }
        let stands = |mark: &&CacheMark| mark.part.unwrap_or(last) == at;
        if let (Some(mark), Some(block)) = (message.cache_marks.iter().rev().find(stands), written.last_mut())
        {
            block["cache_control"] = cache_control(mark.keep);
        }
    }
    written
}

fn source(url: &str) -> Value {
    let data = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    match data {
        Some((media, data)) => {
            let media = match media.split(';').next().unwrap_or_default() {
                "image/jpg" => "image/jpeg",
                media => media,
            };
            json!({"type": "base64", "media_type": media, "data": data})
        }
        None => json!({"type": "url", "url": url}),
    }
}

/// A call's id in the letters that this API takes.
fn id(id: &str) -> String {
    id_of(&written_id(id), "_-")
}

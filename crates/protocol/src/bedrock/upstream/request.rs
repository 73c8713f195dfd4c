//! Canonical request to the body of Converse.
//!
//! What fields may hold is what the service model of `bedrock-runtime` says (botocore 1.44.8); what it does not say and the
//! service refuses all the same stands beside each rule. The order of members, blocks and tools is always the same, so that a provider's cache finds what it has seen.

use crate::anthropic::upstream::{is_of_claude, sampled, thought};
use crate::openai::to_json;
use crate::upstream::{
    arguments, budget, effort, effort_field, id_of, is_blank, named_effort, number, object_schema, turns,
    wordless,
};
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
    let Input::Chat(messages) = &request.input else { return Err(wordless("raw", DIALECT)) };
    let maker = Maker::of(model);
    refuse(request, maker)?;
    let budget = thought(request, messages).filter(|_| maker == Maker::Anthropic);
    let tools = tools(request, maker);
    let writer = Writer { thinks: budget.is_some(), calls: tools.is_some(), maker };
    let (system, turns) = writer.conversation(messages)?;
    let mut body = Map::new();
    let mut put = |name: &str, value: Value| body.insert(name.to_owned(), value);
    put("messages", turns.into());
    if !system.is_empty() {
        put("system", system.into());
    }
    let config = config(request, maker, budget);
    if !config.is_empty() {
        put("inferenceConfig", config.into());
    }
    let more = of_the_maker(request, maker, budget, tools.is_some());
    if let Some(tools) = tools {
        put("toolConfig", tools);
    }
    if !more.is_empty() {
        put("additionalModelRequestFields", more.into());
    }
    let output = output(request, maker);
    if !output.is_empty() {
        put("outputConfig", output.into());
    }
    Ok(to_json(&body))
}

/// What the answer shall be like, and with how much effort it shall be made: the latter where the caller names it in the
/// words of Claude's own API, since not all of its models take it.
fn output(request: &GenerateRequest, maker: Maker) -> Map<String, Value> {
    let mut output = Map::new();
    if let ResponseFormat::JsonSchema { name, schema, .. } = &request.response_format {
        // The schema is a text there.
        let mut held = json!({"schema": to_json(schema)});
        if let Some(name) = name {
            held["name"] = name.as_str().into();
        }
        let structure = json!({"jsonSchema": held});
        output.insert("textFormat".to_owned(), json!({"type": "json_schema", "structure": structure}));
    }
    let named = named_effort(request).filter(|_| maker == Maker::Anthropic && effort(request).is_some());
    if let Some(effort) = named {
        output.insert("effort".to_owned(), effort.as_str().into());
    }
    output
}

/// Who made a model, as far as its requests are otherwise.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Maker {
    Anthropic,
    /// Amazon's own, which they call Nova.
    Amazon,
    Other,
}

impl Maker {
    fn of(model: &str) -> Self {
        if model.contains("anthropic.") {
            Self::Anthropic
        } else if model.contains("amazon.nova") {
            Self::Amazon
        } else {
            Self::Other
        }
    }
}

/// What only a maker's models take, in the words of that maker.
fn of_the_maker(
    request: &GenerateRequest,
    maker: Maker,
    budget: Option<u32>,
    tools: bool,
) -> Map<String, Value> {
    let mut more = Map::new();
    if let Some(budget) = budget {
        more.insert("thinking".to_owned(), json!({"type": "enabled", "budget_tokens": budget}));
    }
    if let Some(k) = request.sampling.top_k.filter(|k| *k > 0 && budget.is_none()) {
        match maker {
            // "Complete request schema" in Nova's user guide.
            Maker::Amazon => more.insert("inferenceConfig".to_owned(), json!({"topK": k})),
            Maker::Anthropic | Maker::Other => more.insert("top_k".to_owned(), k.into()),
        };
    }
    if let Some(parallel) = request.parallel_tool_calls.filter(|_| tools && maker == Maker::Anthropic) {
        let mut choice = json!({"disable_parallel_tool_use": !parallel});
        // Where the choice stands in toolConfig it may not stand here too.
        if request.tool_choice == ToolChoice::Auto {
            choice["type"] = "auto".into();
        }
        more.insert("tool_choice".to_owned(), choice);
    }
    more
}

/// What would change the answer and cannot be said. A seed changes nothing that anybody is promised.
fn refuse(request: &GenerateRequest, maker: Maker) -> Result<(), Error> {
    let (sampling, claude) = (&request.sampling, maker == Maker::Anthropic);
    let format = match request.response_format {
        ResponseFormat::Text => false,
        ResponseFormat::JsonSchema { .. } => !claude,
        ResponseFormat::JsonObject | ResponseFormat::Regex(_) | ResponseFormat::Lark(_) => true,
    };
    let given = [
        ("n", request.choices > 1),
        ("logprobs", request.logprobs.is_some()),
        ("prompt_logprobs", request.prompt_logprobs.is_some()),
        ("logit_bias", !sampling.logit_bias.is_empty()),
        ("frequency_penalty", sampling.frequency_penalty.is_some_and(|penalty| penalty != 0.0)),
        ("presence_penalty", sampling.presence_penalty.is_some_and(|penalty| penalty != 0.0)),
        ("repetition_penalty", sampling.repetition_penalty.is_some_and(|penalty| penalty != 1.0)),
        ("min_p", sampling.min_p.is_some_and(|p| p > 0.0)),
        ("top_k", maker == Maker::Other && sampling.top_k.is_some_and(|k| k > 0)),
        (effort_field(request), !claude && budget(request).is_some_and(|budget| budget > 0)),
        ("ignore_eos", request.ignore_eos),
        ("response_format", format),
    ];
    if let Some((name, _)) = given.iter().find(|(_, given)| *given) {
        return Err(wordless(name, DIALECT));
    }
    if let Some(name) = request.template_variables.keys().find(|name| !SWITCHES.contains(&name.as_str())) {
        return Err(wordless(&format!("chat_template_kwargs.{name}"), DIALECT));
    }
    Ok(())
}

fn config(request: &GenerateRequest, maker: Maker, budget: Option<u32>) -> Map<String, Value> {
    let mut config = Map::new();
    // Without a limit the service sets one of its own, which must leave room behind the thoughts.
    let most = request
        .max_tokens
        .or_else(|| budget.map(|budget| budget.saturating_add(crate::anthropic::upstream::MAX_TOKENS)));
    if let Some(most) = most {
        config.insert("maxTokens".to_owned(), most.into());
    }
    let (temperature, top_p) = match maker {
        Maker::Anthropic => sampled(request, budget.is_some()),
        Maker::Amazon | Maker::Other => (request.sampling.temperature, request.sampling.top_p),
    };
    for (name, value) in [("temperature", temperature), ("topP", top_p)] {
        if let Some(value) = value {
            config.insert(name.to_owned(), number(value));
        }
    }
    if !request.stop.is_empty() {
        config.insert("stopSequences".to_owned(), request.stop.clone().into());
    }
    config
}

/// The tools; none where none may be called, which is how this API has it.
fn tools(request: &GenerateRequest, maker: Maker) -> Option<Value> {
    let choice = match &request.tool_choice {
        _ if request.tools.is_empty() => return None,
        ToolChoice::None => return None,
        ToolChoice::Auto => None,
        ToolChoice::Required => Some(json!({"any": {}})),
        ToolChoice::Named(name) => Some(json!({"tool": {"name": name}})),
    };
    let mut written = Vec::with_capacity(request.tools.len());
    for tool in &request.tools {
        written.push(self::tool(tool, maker));
        // Nova's tools are kept with what stands behind them, and take no mark of their own.
        if let Some(keep) = tool.cache.filter(|_| maker != Maker::Amazon) {
            written.push(cache_point(keep, maker));
        }
    }
    let mut config = json!({"tools": written});
    if let Some(choice) = choice {
        config["toolChoice"] = choice;
    }
    Some(config)
}

fn tool(tool: &Tool, maker: Maker) -> Value {
    let mut schema = object_schema(tool.parameters.as_ref());
    if let (Maker::Amazon, Some(members)) = (maker, schema.as_object_mut()) {
        // "Defining a tool" in Nova's user guide: no others are taken at the top.
        members.retain(|name, _| ["type", "properties", "required", "$defs"].contains(&name.as_str()));
    }
    let mut written = json!({"name": tool.name});
    if let Some(description) = tool.description.as_ref().filter(|description| !description.is_empty()) {
        written["description"] = description.as_str().into();
    }
    written["inputSchema"] = json!({"json": schema});
    if tool.strict == Some(true) && maker == Maker::Anthropic {
        written["strict"] = true.into();
    }
    json!({"toolSpec": written})
}

fn cache_point(keep: CacheFor, maker: Maker) -> Value {
    match keep {
        // "Prompt caching" in Bedrock's user guide: Nova keeps five minutes only.
        CacheFor::Hour if maker != Maker::Amazon => json!({"cachePoint": {"type": "default", "ttl": "1h"}}),
        CacheFor::Minutes | CacheFor::Hour => json!({"cachePoint": {"type": "default"}}),
    }
}

/// Writes messages.
struct Writer {
    /// Whether the model shall think.
    thinks: bool,
    /// Whether there are tools. Without them calls and results are told in words, since the service wants tools with them
    /// ("The toolConfig field must be defined when using toolUse and toolResult content blocks").
    calls: bool,
    maker: Maker,
}

impl Writer {
    /// The system's blocks and the turns. Results of tools and what the user says next are one turn of the user's.
    fn conversation(&self, messages: &[Message]) -> Result<(Vec<Value>, Vec<Value>), Error> {
        let (system, turns) = turns(messages, DIALECT, |index, message| {
            Ok(match message.role {
                Role::System | Role::Developer | Role::User => ("user", self.blocks(index, message)?),
                Role::Tool => ("user", self.result(index, message)?),
                Role::Assistant => ("assistant", self.assistant(index, message)?),
            })
        })?;
        let turns = turns.into_iter().map(|(role, content)| json!({"role": role, "content": content}));
        Ok((system, turns.collect()))
    }

    fn assistant(&self, index: usize, message: &Message) -> Result<Vec<Value>, Error> {
        let mut written = Vec::new();
        for thought in message.thoughts.iter().filter(|thought| self.thinks && is_of_claude(thought)) {
            written.push(match thought {
                Thought::Signed { text, signature, .. } => {
                    json!({"reasoningContent": {"reasoningText": {"text": text, "signature": signature}}})
                }
                Thought::Redacted { data, .. } => json!({"reasoningContent": {"redactedContent": data}}),
            });
        }
        let marked = message.cache_marks.iter().rev().find(|mark| mark.part.is_none());
        let own = Message {
            cache_marks: message.cache_marks.iter().filter(|mark| mark.part.is_some()).copied().collect(),
            ..message.clone()
        };
        let thoughts = written.len();
        written.extend(self.blocks(index, &own)?);
        for (number, call) in message.tool_calls.iter().enumerate() {
            let input = arguments(call, index, number, DIALECT)?;
            written.push(if self.calls {
                json!({"toolUse": {"toolUseId": id(&call.id), "name": call.name, "input": input}})
            } else {
                json!({"text": format!("[Called {} with {}]", call.name, to_json(&input))})
            });
        }
        if written.len() == thoughts {
            // Thoughts alone are no turn.
            return Ok(Vec::new());
        }
        if let Some(mark) = marked {
            written.push(cache_point(mark.keep, self.maker));
        }
        Ok(written)
    }

    fn result(&self, index: usize, message: &Message) -> Result<Vec<Value>, Error> {
        let mut inner = self.blocks(index, &Message { cache_marks: Vec::new(), ..message.clone() })?;
        if inner.is_empty() {
            // A result must hold something, and blank texts are refused there too.
            inner.push(json!({"text": "(nothing)"}));
        }
        let mut written = if self.calls {
            let id = id(message.tool_call_id.as_deref().unwrap_or_default());
            vec![json!({"toolResult": {"toolUseId": id, "content": inner}})]
        } else {
            std::iter::once(json!({"text": "[It gave:]"})).chain(inner).collect()
        };
        if let Some(mark) = message.cache_marks.last() {
            written.push(cache_point(mark.keep, self.maker));
        }
        Ok(written)
    }

    /// Text and images, with the marks for caches behind them. Blank texts are refused ("The text field in the ContentBlock
    /// object is blank").
    fn blocks(&self, index: usize, message: &Message) -> Result<Vec<Value>, Error> {
        let mut written = Vec::with_capacity(message.content.0.len());
        let last = message.content.0.len().saturating_sub(1);
        for (at, part) in message.content.0.iter().enumerate() {
            match part {
                Part::Text(text) if is_blank(text) => {}
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
                written.push(cache_point(mark.keep, self.maker));
            }
        }
        Ok(written)
    }
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
    let whole: Vec<char> = id_of(id, "_.:-").chars().collect();
    // What differs stands at the end.
    whole[whole.len().saturating_sub(ID_MAX)..].iter().collect()
}

//! Canonical request to the body of `generateContent`.
//!
//! The order of members, parts and tools is always the same, so that a provider's cache finds what it has seen. Results of
//! tools are matched to calls by their order and the tool's name; ids stay here, since Vertex AI knows none.

use super::schema::subset;
use crate::openai::to_json;
use crate::upstream::{arguments, budget, effort, number, object_schema, turns, with_room, wordless};
use crate::{
    Error, GenerateRequest, Input, Maker, Message, Part, ReasoningEffort, ResponseFormat, Role, Thought,
    Tool, ToolChoice,
};
use serde_json::{Map, Value, json};

const DIALECT: &str = "Gemini's generateContent";

/// What stands for a proof that the caller did not keep: models from Gemini 3 on refuse a call without any ("Thought
/// signatures" in the Gemini API's documentation).
const NO_PROOF: &str = "skip_thought_signature_validator";

/// The smallest budgets of thought, of Flash-Lite and of the others; Pro cannot do without ("Thinking" in the Gemini API's
/// documentation).
const LITE_MIN: u32 = 512;
const BUDGET_MIN: u32 = 128;

/// Switches of templates that are a budget or level of thought here.
const SWITCHES: &[&str] = &["enable_thinking", "thinking", "reasoning_effort"];

/// The body that asks `model` for this.
///
/// # Errors
/// When the request holds what the dialect has no words for.
pub fn write(request: &GenerateRequest, model: &str) -> Result<String, Error> {
    let Input::Chat(messages) = &request.input else { return Err(wordless("raw", DIALECT)) };
    refuse(request)?;
    let (system, contents) = conversation(messages, is_new(model))?;
    let mut body = Map::new();
    let mut put = |name: &str, value: Value| body.insert(name.to_owned(), value);
    put("contents", contents.into());
    if !system.is_empty() {
        put("systemInstruction", json!({"parts": system}));
    }
    if !request.tools.is_empty() {
        let tools: Vec<Value> = request.tools.iter().map(tool).collect();
        put("tools", json!([{"functionDeclarations": tools}]));
        if let Some(calling) = calling(&request.tool_choice) {
            put("toolConfig", json!({"functionCallingConfig": calling}));
        }
    }
    let config = config(request, model);
    if !config.is_empty() {
        put("generationConfig", config.into());
    }
    Ok(to_json(&body))
}

/// Whether a model is of the third generation or a later one, which thinks by level and proves its thoughts.
fn is_new(model: &str) -> bool {
    let version = model.rsplit('/').next().and_then(|name| name.strip_prefix("gemini-"));
    let digits: Option<u32> = version.and_then(|rest| {
        rest.split(|c: char| !c.is_ascii_digit()).next().filter(|digits| !digits.is_empty())?.parse().ok()
    });
    digits.is_some_and(|generation| generation >= 3)
}

/// What would change the answer and cannot be said.
fn refuse(request: &GenerateRequest) -> Result<(), Error> {
    let sampling = &request.sampling;
    let given = [
        ("logprobs", request.logprobs.is_some()),
        ("prompt_logprobs", request.prompt_logprobs.is_some()),
        ("logit_bias", !sampling.logit_bias.is_empty()),
        ("repetition_penalty", sampling.repetition_penalty.is_some_and(|penalty| penalty != 1.0)),
        ("min_p", sampling.min_p.is_some_and(|p| p > 0.0)),
        ("ignore_eos", request.ignore_eos),
    ];
    if let Some((name, _)) = given.iter().find(|(_, given)| *given) {
        return Err(wordless(name, DIALECT));
    }
    if let Some(name) = request.template_variables.keys().find(|name| !SWITCHES.contains(&name.as_str())) {
        return Err(wordless(&format!("chat_template_kwargs.{name}"), DIALECT));
    }
    match request.response_format {
        ResponseFormat::Text | ResponseFormat::JsonObject | ResponseFormat::JsonSchema { .. } => Ok(()),
        ResponseFormat::Regex(_) => Err(wordless("response_format.regex", DIALECT)),
        ResponseFormat::Lark(_) => Err(wordless("response_format.grammar", DIALECT)),
    }
}

fn config(request: &GenerateRequest, model: &str) -> Map<String, Value> {
    let sampling = &request.sampling;
    let mut config = Map::new();
    let mut put = |name: &str, value: Option<Value>| {
        if let Some(value) = value {
            config.insert(name.to_owned(), value);
        }
    };
    put("temperature", sampling.temperature.map(number));
    put("topP", sampling.top_p.map(number));
    put("topK", sampling.top_k.filter(|k| *k > 0).map(Value::from));
    put("presencePenalty", sampling.presence_penalty.map(number));
    put("frequencyPenalty", sampling.frequency_penalty.map(number));
    // A number of 32 bits with a sign.
    put("seed", sampling.seed.map(|seed| (seed & 0x7fff_ffff).into()));
    put("maxOutputTokens", request.max_tokens.map(Value::from));
    put("stopSequences", Some(&request.stop).filter(|stop| !stop.is_empty()).map(|stop| stop.clone().into()));
    put("candidateCount", Some(request.choices).filter(|choices| *choices > 1).map(Value::from));
    match &request.response_format {
        ResponseFormat::JsonObject => put("responseMimeType", Some("application/json".into())),
        ResponseFormat::JsonSchema { schema, .. } => {
            put("responseMimeType", Some("application/json".into()));
            put("responseSchema", Some(subset(schema)));
        }
        ResponseFormat::Text | ResponseFormat::Regex(_) | ResponseFormat::Lark(_) => {}
    }
    put("thinkingConfig", thinking(request, model));
    config
}

/// How long the model should think, where the caller says so; its thoughts are then told.
fn thinking(request: &GenerateRequest, model: &str) -> Option<Value> {
    let told = request.thinks() != Some(false);
    if is_new(model) {
        // None of them can be kept from thinking, and Pro models think more at the least.
        let least = if model.contains("-pro") { "LOW" } else { "MINIMAL" };
        let level = match effort(request) {
            None if request.thinks() == Some(false) => least,
            None => return None,
            Some(ReasoningEffort::None | ReasoningEffort::Minimal) => least,
            Some(ReasoningEffort::Low) => "LOW",
            Some(ReasoningEffort::Medium) => "MEDIUM",
            Some(ReasoningEffort::High) => "HIGH",
        };
        return Some(json!({"thinkingLevel": level, "includeThoughts": told}));
    }
    // Models before 2.5 do not think, and refuse to be told so.
    let off = (request.thinks() == Some(false) && model.contains("2.5")).then_some(0);
    let budget = budget(request).filter(|budget| *budget > 0 || off.is_some()).or(off)?;
    let least = if model.contains("-lite") { LITE_MIN } else { BUDGET_MIN };
    let with_room = (budget > 0).then(|| with_room(request, budget, least)).flatten();
    let budget = with_room.unwrap_or(if model.contains("-pro") { BUDGET_MIN } else { 0 });
    Some(json!({"thinkingBudget": budget, "includeThoughts": told && budget > 0}))
}

fn calling(choice: &ToolChoice) -> Option<Value> {
    match choice {
        ToolChoice::Auto => None,
        ToolChoice::None => Some(json!({"mode": "NONE"})),
        ToolChoice::Required => Some(json!({"mode": "ANY"})),
        ToolChoice::Named(name) => Some(json!({"mode": "ANY", "allowedFunctionNames": [name]})),
    }
}

fn tool(tool: &Tool) -> Value {
    let mut written = json!({"name": tool.name});
    if let Some(description) = &tool.description {
        written["description"] = description.as_str().into();
    }
    // An object without members is not taken; no parameters mean the same.
    if let Some(parameters) = tool.parameters.as_ref().map(|schema| subset(&object_schema(Some(schema))))
        && parameters.get("properties").is_some()
    {
        written["parameters"] = parameters;
    }
    written
}

/// Who says what stands in one content. What tools gave is the user's, and stands apart from the user's words, as Google's
/// own clients have it.
#[derive(Clone, Copy, PartialEq)]
enum Speaker {
    Model,
    User,
    Tools,
}

/// The system's parts and the contents.
fn conversation(messages: &[Message], is_new: bool) -> Result<(Vec<Value>, Vec<Value>), Error> {
    // Names of calls by their ids: results tell the name.
    let mut names: Vec<(String, String)> = Vec::new();
    let (system, contents) = turns(messages, DIALECT, |index, message| {
        Ok(match message.role {
            Role::System | Role::Developer | Role::User => (Speaker::User, parts(index, message)?),
            Role::Assistant => {
                let calls = message.tool_calls.iter();
                names.extend(calls.map(|call| (call.id.clone(), call.name.clone())));
                (Speaker::Model, assistant(index, message, is_new)?)
            }
            Role::Tool => {
                let id = message.tool_call_id.as_deref().unwrap_or_default();
                let name = names.iter().rev().find(|(known, _)| known == id).map(|(_, name)| name.as_str());
                (Speaker::Tools, result(index, message, name.or(message.name.as_deref()), is_new)?)
            }
        })
    })?;
    let contents = contents.into_iter().map(|(speaker, parts)| {
        let role = if speaker == Speaker::Model { "model" } else { "user" };
        json!({"role": role, "parts": parts})
    });
    Ok((system, contents.collect()))
}

/// Text and calls, each with the proof of what was thought before it: of calls made at once the first has it.
fn assistant(index: usize, message: &Message, proves: bool) -> Result<Vec<Value>, Error> {
    let mut written = parts(index, message)?;
    let own = message.thoughts.iter().filter(|thought| *thought.maker() == Maker::Google);
    let mut proofs = own.map(|thought| match thought {
        Thought::Signed { signature, .. } => signature.as_str(),
        // As OpenRouter tells it.
        Thought::Redacted { data, .. } => data.as_str(),
    });
    if message.tool_calls.is_empty() {
        if let (Some(proof), Some(last)) = (proofs.next_back(), written.last_mut()) {
            last["thoughtSignature"] = proof.into();
        }
        return Ok(written);
    }
    for (number, call) in message.tool_calls.iter().enumerate() {
        let args = arguments(call, index, number, DIALECT)?;
        let mut part = json!({"functionCall": {"name": call.name, "args": args}});
        match proofs.next() {
            Some(proof) => part["thoughtSignature"] = proof.into(),
            None if proves && number == 0 => part["thoughtSignature"] = NO_PROOF.into(),
            None => {}
        }
        written.push(part);
    }
    Ok(written)
}

/// What a tool gave: an object as it is, anything else as its `result`. Pictures stand behind it, or within where the
/// model takes them there ("Multimodal function responses" in the Gemini API's documentation).
fn result(index: usize, message: &Message, name: Option<&str>, is_new: bool) -> Result<Vec<Value>, Error> {
    let path = format!("messages[{index}].tool_call_id");
    let name = name.ok_or_else(|| Error::invalid(&path, format!("'{path}' names no call before it")))?;
    let text = message.content.joined_text();
    let response = serde_json::from_str::<Map<String, Value>>(&text)
        .map_or_else(|_| json!({"result": text}), Value::Object);
    let mut given = json!({"name": name, "response": response});
    let mut pictures = parts(index, message)?;
    pictures.retain(|part| part.get("text").is_none());
    if is_new && !pictures.is_empty() {
        given["parts"] = std::mem::take(&mut pictures).into();
    }
    Ok(std::iter::once(json!({"functionResponse": given})).chain(pictures).collect())
}

/// Text and images. Empty texts are not taken.
fn parts(index: usize, message: &Message) -> Result<Vec<Value>, Error> {
    let mut written = Vec::with_capacity(message.content.0.len());
    for (at, part) in message.content.0.iter().enumerate() {
        match part {
            Part::Text(text) if text.is_empty() => {}
            Part::Text(text) => written.push(json!({"text": text})),
            Part::Image { url, .. } => {
                let path = || format!("messages[{index}].content[{at}].image_url.url");
                let unknown = || {
                    let why =
                        "must be a data: URL, or end with a picture's extension, since the kind must be told";
                    Error::invalid(path(), format!("'{}' {why} in {DIALECT}", path()))
                };
                written.push(image(url).ok_or_else(unknown)?);
            }
        }
    }
    Ok(written)
}

fn image(url: &str) -> Option<Value> {
    if let Some((media, data)) = url.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,")) {
        let media = media.split(';').next().unwrap_or_default();
        return Some(json!({"inlineData": {"mimeType": media, "data": data}}));
    }
    let path = url.split(['?', '#']).next().unwrap_or_default();
    let media = match path.rsplit('.').next()?.to_ascii_lowercase().as_str() {
        "jpg" | "jpeg" => "image/jpeg",
        "png" => "image/png",
        "webp" => "image/webp",
        "heic" => "image/heic",
        "heif" => "image/heif",
        _ => return None,
    };
    Some(json!({"fileData": {"mimeType": media, "fileUri": url}}))
}

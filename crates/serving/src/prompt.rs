//! From a canonical request to what an engine takes: refusals by field name, the conversation for the template,
//! token ids, sampling with the model's own defaults.
//!
//! What would change the answer and is not built yet is refused here and never ignored. Does not talk to the
//! engine.

use crate::memory::TurnMemory;
use crate::template::{ChatTemplate, Conversation, TemplateError};
use base::{Namespace, Tokens};
use models::checkpoint::GenerationDefaults;
use protocol::{
    Error, ErrorKind, GenerateRequest, Input, Message, Part, Prompt, ReasoningEffort, ResponseFormat, Role,
    ToolCall, ToolChoice,
};
use serde_json::{Map, Value as Json};
use tokenizer::{Piece, Tokenizer, TooLong};

/// Prompts up to this many bytes are tokenised to their end, to tell how long they are.
const COUNTED: usize = 1 << 20;

/// What of a model a prompt is made with.
pub(crate) struct Model<'a> {
    pub tokenizer: &'a Tokenizer,
    /// `Err` says why there is none that works.
    pub template: Result<&'a ChatTemplate, &'a str>,
    pub memory: &'a TurnMemory,
    pub vocab: u32,
    /// Most tokens of a sequence; a prompt is shorter.
    pub context: Tokens,
}

/// Refuses what local models do not do.
pub(crate) fn check(request: &GenerateRequest) -> Result<(), Error> {
    let unsupported = |param: String, what: &str| Err(Error::new(ErrorKind::Unsupported, what).at(param));
    if !request.tools.is_empty() {
        return unsupported("tools".into(), "tool calling is not supported yet");
    }
    if matches!(request.tool_choice, ToolChoice::Required | ToolChoice::Named(_)) {
        return unsupported("tool_choice".into(), "tool calling is not supported yet");
    }
    if request.response_format != ResponseFormat::Text {
        return unsupported(
            "response_format".into(),
            "response formats other than text are not supported yet",
        );
    }
    if request.choices == 0 {
        return Err(Error::invalid("n", "n must be at least 1"));
    }
    let Input::Chat(messages) = &request.input else {
        // Both go through the chat template, which a raw prompt does not see.
        if request.reasoning_effort.is_some() {
            return unsupported("reasoning_effort".into(), "reasoning_effort does nothing for a raw prompt");
        }
        if !request.template_variables.is_empty() {
            let what = "chat_template_kwargs do nothing for a raw prompt";
            return unsupported("chat_template_kwargs".into(), what);
        }
        return Ok(());
    };
    if messages.is_empty() {
        return Err(Error::invalid("messages", "messages must hold at least one message"));
    }
    for (i, message) in messages.iter().enumerate() {
        if let Some(j) = message.content.0.iter().position(|part| matches!(part, Part::Image { .. })) {
            return unsupported(
                format!("messages[{i}].content[{j}].image_url"),
                "images are not supported yet",
            );
        }
    }
    Ok(())
}

/// The prompt's token ids.
pub(crate) fn tokens(
    request: &GenerateRequest,
    model: &Model<'_>,
    namespace: Namespace,
    now: u64,
) -> Result<Vec<u32>, Error> {
    match &request.input {
        Input::Chat(messages) => chat(request, messages, model, namespace, now),
        Input::Prompt(Prompt::Text(text)) => {
            let ids = model.tokenizer.encode(&[Piece::Trusted(text)], bound(text.len(), model.context));
            let ids = ids.map_err(|long| too_long("at least ", long.at_least, model.context, "prompt"))?;
            // A caller who writes the whole prompt may have written its first token too.
            let begun = model.tokenizer.bos().is_some_and(|bos| ids.first() == Some(&bos));
            within(if begun { ids } else { model.tokenizer.add_special(ids) }, model, "prompt")
        }
        Input::Prompt(Prompt::Tokens(ids)) => within(ids.clone(), model, "prompt"),
    }
}

fn chat(
    request: &GenerateRequest,
    messages: &[Message],
    model: &Model<'_>,
    namespace: Namespace,
    now: u64,
) -> Result<Vec<u32>, Error> {
    let template = model.template.map_err(|why| Error::invalid("messages", why))?;
    let conversation = conversation(request, messages, template, now)?;
    let rendering = template.render(&conversation).map_err(|error| match error {
        TemplateError::Syntax(_) => Error::new(ErrorKind::Internal, error.to_string()),
        TemplateError::Raised(_) | TemplateError::Failed(_) | TemplateError::TooLarge => {
            Error::invalid("messages", error.to_string())
        }
    })?;
    let bytes = rendering.spans.iter().map(|span| span.text.len()).sum();
    let ids = model.memory.encode(model.tokenizer, namespace, &rendering.spans, bound(bytes, model.context));
    let ids =
        ids.map_err(|TooLong { at_least }| too_long("at least ", at_least, model.context, "messages"))?;
    within(ids, model, "messages")
}

/// The conversation as templates know it.
fn conversation(
    request: &GenerateRequest,
    messages: &[Message],
    template: &ChatTemplate,
    now: u64,
) -> Result<Conversation, Error> {
    let mut variables: Map<String, Json> =
        request.template_variables.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    if let Some(effort) = request.reasoning_effort {
        let name = match effort {
            ReasoningEffort::None => "none",
            ReasoningEffort::Minimal => "minimal",
            ReasoningEffort::Low => "low",
            ReasoningEffort::Medium => "medium",
            ReasoningEffort::High => "high",
        };
        let mut known = false;
        for (variable, value) in [
            ("reasoning_effort", Json::from(name)),
            ("enable_thinking", Json::from(effort != ReasoningEffort::None)),
        ] {
            if template.mentions(variable) {
                variables.entry(variable).or_insert(value);
                known = true;
            }
        }
        // A template without a word of thinking belongs to a model that does none, which is what `none` asks for.
        let idle = effort == ReasoningEffort::None && !template.mentions("think");
        if !known && !idle {
            let what = "this model's chat template knows no reasoning effort";
            return Err(Error::new(ErrorKind::Unsupported, what).at("reasoning_effort"));
        }
    }
    let messages =
        messages.iter().enumerate().map(|(i, m)| message(i, m, template)).collect::<Result<_, _>>()?;
    // Another name for what is asked of the prompt's end, as in vLLM.
    let add_generation_prompt = variables.shift_remove("add_generation_prompt") != Some(Json::Bool(false));
    Ok(Conversation { messages, tools: None, variables, add_generation_prompt, now })
}

fn message(i: usize, message: &Message, template: &ChatTemplate) -> Result<Map<String, Json>, Error> {
    let mut out = Map::new();
    let role = match message.role {
        // Only some families tell the two apart.
        Role::Developer if !template.mentions("developer") => Role::System,
        role => role,
    };
    out.insert("role".into(), role.as_str().into());
    let mut content = message.content.joined_text();
    let mut reasoning = message.reasoning.clone();
    if role == Role::Assistant
        && reasoning.is_none()
        && template.mentions("reasoning_content")
        && let Some((thought, answer)) = content.split_once("</think>")
        && !answer.contains("</think>")
    {
        // As these templates themselves take it out of the content, which would hide whose text is whose.
        let thought = thought.trim_end_matches('\n').rsplit("<think>").next().unwrap_or_default();
        reasoning = Some(thought.trim_start_matches('\n').to_owned());
        content = answer.trim_start_matches('\n').to_owned();
    }
    let silent = message.content.0.is_empty() && !message.tool_calls.is_empty();
    out.insert("content".into(), if silent { Json::Null } else { content.into() });
    if let Some(reasoning) = reasoning {
        out.insert("reasoning_content".into(), reasoning.into());
    }
    if let Some(name) = &message.name {
        out.insert("name".into(), name.as_str().into());
    }
    if let Some(id) = &message.tool_call_id {
        out.insert("tool_call_id".into(), id.as_str().into());
    }
    if !message.tool_calls.is_empty() {
        if !template.mentions("tool_calls") {
            let what = "this model's chat template does not know tool calls";
            return Err(Error::new(ErrorKind::Unsupported, what).at(format!("messages[{i}].tool_calls")));
        }
        out.insert("tool_calls".into(), message.tool_calls.iter().map(tool_call).collect());
    }
    Ok(out)
}

/// Templates want arguments as an object; text that is none stays text.
fn tool_call(call: &ToolCall) -> Json {
    let arguments = serde_json::from_str::<Map<String, Json>>(&call.arguments);
    let arguments = arguments.map_or_else(|_| Json::from(call.arguments.as_str()), Json::Object);
    serde_json::json!({
        "id": call.id, "type": "function", "function": {"name": call.name, "arguments": arguments},
    })
}

/// How many tokens a text of so many bytes is tokenised to at most.
fn bound(bytes: usize, context: Tokens) -> Option<usize> {
    (bytes > COUNTED).then_some(context.get())
}

fn within(ids: Vec<u32>, model: &Model<'_>, param: &str) -> Result<Vec<u32>, Error> {
    if ids.is_empty() {
        return Err(Error::invalid(param, "the prompt has no tokens"));
    }
    // Some tokenizers know tokens, of images for example, that the model has no row for.
    if let Some(i) = ids.iter().position(|id| *id >= model.vocab) {
        let (id, vocab) = (ids[i], model.vocab);
        let message = format!("token {id} at {i} is not in this model's vocabulary of {vocab} tokens");
        return Err(Error::invalid(param, message));
    }
    // One place is kept for the first token of the answer.
    if ids.len() >= model.context.get() {
        Err(too_long("", ids.len(), model.context, param))
    } else {
        Ok(ids)
    }
}

fn too_long(at_least: &str, tokens: usize, context: Tokens, param: &str) -> Error {
    let message = format!(
        "This model's maximum context length is {} tokens. However, your prompt has {at_least}{tokens} tokens. \
         Please shorten it.",
        context.get()
    );
    Error::new(ErrorKind::ContextLength, message).at(param)
}

/// How tokens are chosen: what the request says, else what the model's makers say, else plain sampling.
pub(crate) fn sampling(
    request: &GenerateRequest,
    defaults: &GenerationDefaults,
    vocab: u32,
    seed: u64,
) -> Result<engine::Sampling, Error> {
    let asked = &request.sampling;
    if let Some((id, _)) = asked.logit_bias.iter().find(|(id, _)| *id >= vocab) {
        let message = format!("token {id} is not in this model's vocabulary of {vocab} tokens");
        return Err(Error::invalid("logit_bias", message));
    }
    let greedy = (defaults.sample == Some(false)).then_some(0.0);
    Ok(engine::Sampling {
        temperature: asked.temperature.or(greedy).or(defaults.temperature).unwrap_or(1.0),
        top_k: asked.top_k.or(defaults.top_k).filter(|k| *k > 0),
        top_p: asked.top_p.or(defaults.top_p).unwrap_or(1.0),
        min_p: asked.min_p.or(defaults.min_p).unwrap_or(0.0),
        repetition_penalty: asked.repetition_penalty.or(defaults.repetition_penalty).unwrap_or(1.0),
        frequency_penalty: asked.frequency_penalty.unwrap_or(0.0),
        presence_penalty: asked.presence_penalty.unwrap_or(0.0),
        logit_bias: asked.logit_bias.clone(),
        seed: asked.seed.unwrap_or(seed),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::template::ControlTexts;
    use protocol::{Content, Sampling};
    use std::sync::Arc;

    fn template(source: &str) -> ChatTemplate {
        ChatTemplate::new(source, None, None, Arc::new(ControlTexts::default())).unwrap()
    }

    fn one(message: Message, source: &str) -> Json {
        Json::Object(super::message(0, &message, &template(source)).unwrap())
    }

    #[test]
    fn developers_speak_as_the_system_where_the_template_knows_no_other() {
        let said = || Message::text(Role::Developer, "x");
        assert_eq!(one(said(), "{{ messages }}")["role"], "system");
        assert_eq!(one(said(), "{% if role == 'developer' %}{% endif %}")["role"], "developer");
    }

    #[test]
    fn thoughts_in_content_are_taken_apart_where_the_template_would_do_so() {
        let said = || Message::text(Role::Assistant, "<think>\nEasy.\n</think>\n\nFour.");
        let taken = one(said(), "{{ message.reasoning_content }}");
        assert_eq!((&taken["reasoning_content"], &taken["content"]), (&"Easy.".into(), &"Four.".into()));
        let left = one(said(), "{{ message.content }}");
        assert_eq!(left["content"], "<think>\nEasy.\n</think>\n\nFour.");
    }

    #[test]
    fn arguments_become_an_object_and_silence_none() {
        let call =
            |arguments: &str| ToolCall { id: "i".into(), name: "f".into(), arguments: arguments.into() };
        let said = Message {
            content: Content::default(),
            tool_calls: vec![call("{\"b\": 1, \"a\": [2]}"), call("not json")],
            ..Message::text(Role::Assistant, "")
        };
        let made = one(said, "{{ tool_calls }}");
        assert_eq!(made["content"], Json::Null);
        assert_eq!(made["tool_calls"][0]["function"]["arguments"].to_string(), "{\"b\":1,\"a\":[2]}");
        assert_eq!(made["tool_calls"][1]["function"]["arguments"], "not json");
    }

    #[test]
    fn effort_reaches_the_variable_that_the_template_has() {
        let asked = |effort: ReasoningEffort, source: &str| {
            let request = GenerateRequest { reasoning_effort: Some(effort), ..GenerateRequest::default() };
            conversation(&request, &[], &template(source), 0).map(|conversation| conversation.variables)
        };
        let none = |source: &str| asked(ReasoningEffort::None, source);
        assert_eq!(none("{{ enable_thinking }}").unwrap()["enable_thinking"], false);
        assert_eq!(none("{{ reasoning_effort }}").unwrap()["reasoning_effort"], "none");
        assert!(none("{{ messages }}").unwrap().is_empty(), "nothing to cut");
        // Where it would do nothing, it is refused.
        for refused in [none("{{ messages }}<think>"), asked(ReasoningEffort::High, "{{ messages }}")] {
            let error = refused.map(|_| ()).unwrap_err();
            assert_eq!(
                (error.kind, error.param.as_deref()),
                (ErrorKind::Unsupported, Some("reasoning_effort"))
            );
        }
    }

    #[test]
    fn the_request_goes_before_the_makers_and_they_before_plain_sampling() {
        let defaults = GenerationDefaults {
            temperature: Some(0.7),
            top_k: Some(20),
            top_p: Some(0.8),
            ..GenerationDefaults::default()
        };
        let asked = Sampling { temperature: Some(0.0), top_k: Some(0), ..Sampling::default() };
        let request = GenerateRequest { sampling: asked, ..GenerateRequest::default() };
        let made = sampling(&request, &defaults, 10, 5).unwrap();
        assert_eq!((made.temperature, made.top_k, made.top_p, made.seed), (0.0, None, 0.8, 5));
        let plain = sampling(&GenerateRequest::default(), &GenerationDefaults::default(), 10, 5).unwrap();
        assert_eq!((plain.temperature, plain.top_k, plain.top_p), (1.0, None, 1.0));
        let greedy = GenerationDefaults { sample: Some(false), ..defaults };
        assert_eq!(sampling(&GenerateRequest::default(), &greedy, 10, 5).unwrap().temperature, 0.0);
    }
}

//! From a canonical request to what an engine takes: refusals by field name, the rendered conversation as token ids,
//! sampling with the model's own defaults.
//!
//! What would change the answer and is not built yet is refused here and never ignored. Does not talk to the
//! engine.

mod calls;
mod conversation;
mod history;

use crate::memory::{RenderedPrompt, TurnMemory};
use crate::template::{ChatTemplate, Origin, Rendering, TemplateError};
use crate::tools::{Family, Thinking};
use base::{Namespace, Tokens};
use models::checkpoint::GenerationDefaults;
use protocol::{Error, ErrorKind, GenerateRequest, Input, Message, Part, Prompt, Role, Tool, ToolChoice};
use tokenizer::{Piece, Tokenizer, TooLong};

/// Prompts up to this many bytes are tokenised to their end, to tell how long they are.
const COUNTED: usize = 1 << 20;

/// What of a model a prompt is made with.
pub(crate) struct Model<'a> {
    pub tokenizer: &'a Tokenizer,
    /// `Err` says why there is none that works.
    pub template: Result<&'a ChatTemplate, &'a str>,
    pub family: &'a Family,
    pub memory: &'a TurnMemory,
    pub vocab: u32,
    /// Most tokens of a sequence; a prompt is shorter.
    pub context: Tokens,
}

/// A prompt, ready for the engine.
pub(crate) struct Made {
    pub ids: Vec<u32>,
    /// What a whole answer to it is remembered by; raw prompts have no next turn.
    pub rendered: Option<RenderedPrompt>,
    /// Whether the answer begins with a think block.
    pub thinking: Thinking,
}

/// Refuses what local models do not do.
pub(crate) fn check(request: &GenerateRequest) -> Result<(), Error> {
    let unsupported = |param: String, what: &str| Err(Error::new(ErrorKind::Unsupported, what).at(param));
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
        if !request.tools.is_empty() {
            return unsupported("tools".into(), "tools do nothing for a raw prompt");
        }
        return Ok(());
    };
    let missing = match &request.tool_choice {
        ToolChoice::Auto | ToolChoice::None => false,
        ToolChoice::Required => request.tools.is_empty(),
        ToolChoice::Named(name) => !request.tools.iter().any(|tool| tool.name == *name),
    };
    if missing {
        return Err(Error::invalid("tool_choice", "tool_choice asks for a tool that is not among 'tools'"));
    }
    for (i, tool) in request.tools.iter().enumerate() {
        if request.tools[..i].iter().any(|other| other.name == tool.name) {
            let what = format!("there are two tools with the name {:?}", tool.name);
            return Err(Error::invalid(format!("tools[{i}].function.name"), what));
        }
    }
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
    history::check(messages)
}

/// The prompt that a request makes.
pub(crate) fn make(
    request: &GenerateRequest,
    model: &Model<'_>,
    namespace: Namespace,
    now: u64,
) -> Result<Made, Error> {
    let raw = |ids| Made { ids, rendered: None, thinking: Thinking::No };
    match &request.input {
        Input::Chat(messages) => chat(request, messages, model, namespace, now),
        Input::Prompt(Prompt::Text(text)) => {
            let ids = model.tokenizer.encode(&[Piece::Trusted(text)], bound(text.len(), model.context));
            let ids = ids.map_err(|long| too_long("at least ", long.at_least, model.context, "prompt"))?;
            // A caller who writes the whole prompt may have written its first token too.
            let begun = model.tokenizer.bos().is_some_and(|bos| ids.first() == Some(&bos));
            within(if begun { ids } else { model.tokenizer.add_special(ids) }, model, "prompt").map(raw)
        }
        Input::Prompt(Prompt::Tokens(ids)) => within(ids.clone(), model, "prompt").map(raw),
    }
}

fn chat(
    request: &GenerateRequest,
    messages: &[Message],
    model: &Model<'_>,
    namespace: Namespace,
    now: u64,
) -> Result<Made, Error> {
    let template = model.template.map_err(|why| Error::invalid("messages", why))?;
    if let Some(i) = request.tools.iter().position(|tool| !model.family.can_call(&tool.name)) {
        let name = &request.tools[i].name;
        let what =
            format!("this model's calls cannot say the name {name:?}; use letters, digits, '_' and '-'");
        return Err(Error::invalid(format!("tools[{i}].function.name"), what));
    }
    let cannot = |tool: &Tool| {
        tool.parameters.as_ref().is_some_and(|p| !p.is_null() && !crate::grammar::may_be_object(p))
    };
    if let Some(i) = request.tools.iter().position(cannot) {
        let what = "a tool's arguments must be an object, and this schema allows none";
        return Err(Error::invalid(format!("tools[{i}].function.parameters"), what));
    }
    let promised = |tool: &Tool| tool.strict != Some(true) || model.family.enforces(tool);
    if let Some(i) = request.tools.iter().position(|tool| !promised(tool)) {
        let what = "this model writes arguments as plain text, which cannot be held to all of this schema; leave \
                    out 'strict', or the bounds on texts and what is more than a list of properties";
        return Err(Error::new(ErrorKind::Unsupported, what).at(format!("tools[{i}].function.strict")));
    }
    let mut conversation = conversation::conversation(request, messages, template, model.family, now);
    let mut rendered = template.render(&conversation);
    if matches!(rendered, Err(TemplateError::Raised(_) | TemplateError::Failed(_)))
        && let Some(other) = calls::with_texts(&conversation)
    {
        conversation = other;
        rendered = template.render(&conversation);
    }
    // The system message that tells the tools may be one that the template takes no other of.
    let ours = matches!(rendered, Err(TemplateError::Raised(_)))
        && messages.first().is_some_and(|first| !matches!(first.role, Role::System | Role::Developer));
    if ours && let Some(other) = conversation::without_system(&conversation) {
        rendered = template.render(&other);
    }
    let rendering = rendered.map_err(|error| match error {
        TemplateError::Syntax(_) => Error::new(ErrorKind::Internal, error.to_string()),
        TemplateError::Raised(_) | TemplateError::Failed(_) | TemplateError::TooLarge => {
            Error::invalid("messages", error.to_string())
        }
    })?;
    let bytes = rendering.spans.iter().map(|span| span.text.len()).sum();
    let ids = model.memory.encode(model.tokenizer, namespace, &rendering.spans, bound(bytes, model.context));
    let ids =
        ids.map_err(|TooLong { at_least }| too_long("at least ", at_least, model.context, "messages"))?;
    Ok(Made {
        ids: within(ids, model, "messages")?,
        rendered: Some(model.memory.prompt(&rendering.spans)),
        thinking: model.family.thinking(tail(&rendering)),
    })
}

/// What the template itself wrote at the end: no caller can say that an answer begins inside a thought.
fn tail(rendering: &Rendering) -> &str {
    let last = rendering.spans.last().filter(|span| span.origin == Origin::Template);
    last.map_or("", |span| &span.text)
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

/// A fault found in a schema or grammar, with the words for whose it is: many clients show the message alone, in which the
/// pointers of all tools look alike.
pub(crate) fn whose(mut error: Error, request: &GenerateRequest) -> Error {
    let param = error.param.as_deref().unwrap_or_default();
    let number = param.strip_prefix("tools[").and_then(|rest| rest.split_once(']'));
    let tool = number.and_then(|(i, _)| request.tools.get(i.parse::<usize>().ok()?));
    let of = match tool {
        Some(tool) => {
            let name: String = tool.name.chars().take(64).collect();
            format!("the parameters of the tool {name:?}")
        }
        None if param.starts_with("response_format") => "the format of the answer".to_owned(),
        None => return error,
    };
    error.message = format!("{of}: {}", error.message);
    error
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
    use protocol::Sampling;

    #[test]
    fn faults_of_schemas_say_whose_they_are() {
        let tool = |name: &str| Tool {
            name: name.into(),
            description: None,
            parameters: None,
            strict: None,
            cache: None,
        };
        let request =
            GenerateRequest { tools: vec![tool("now"), tool("get_weather")], ..GenerateRequest::default() };
        let said = |param: &str| {
            let told = whose(Error::invalid(param, "/properties/x: no"), &request);
            assert_eq!(told.param.as_deref(), Some(param));
            told.message
        };
        let second = said("tools[1].function.parameters/properties/x");
        assert_eq!(second, "the parameters of the tool \"get_weather\": /properties/x: no");
        let format = said("response_format.json_schema.schema/properties/x");
        assert_eq!(format, "the format of the answer: /properties/x: no");
        for other in ["messages[1]", "tools[2].function.parameters", "tools[x]", "tools"] {
            assert_eq!(said(other), "/properties/x: no");
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

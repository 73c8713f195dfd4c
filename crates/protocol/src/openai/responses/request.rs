//! Request body to canonical request. What was kept (an earlier response, items by reference) is no business of this
//! module: it says what it needs, and is given it.

use super::conversation::{self, INSTRUCTIONS, KEPT, Placed};
use super::item::Item;
use super::tools;
use crate::fields::{self, Object, element, missing, unsupported, wrong_type};
use crate::openai::local;
use crate::openai::parameters as shared;
use crate::{Error, ErrorKind, GenerateRequest, Input, Part, Places, ReasoningEffort, Role, json};
use serde_json::{Map, Value, json};
use std::collections::{HashMap, HashSet};

/// Items of one request.
const MAX_ITEMS: usize = 65_536;

/// Asked for in `include`, these concern tools that this server does not have, so they leave nothing out.
const OF_OTHER_TOOLS: &[&str] = &[
    "web_search_call.action.sources",
    "web_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
];

/// A response as asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// What to generate; its input is empty until [`Asked::converse`].
    pub request: GenerateRequest,
    /// Whether the answer is wanted as it is made.
    pub stream: bool,
    /// Whether it must be kept; `None` where the caller does not say.
    pub store: Option<bool>,
    /// The earlier response that this one goes on from.
    pub previous: Option<String>,
    /// What the caller sends besides.
    pub input: Vec<Item>,
    /// What a response repeats of its request.
    pub form: Form,
    /// Whether the input is one plain text.
    plain: bool,
    places: Places,
}

/// What a response repeats of its request, and what its form depends on.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Form {
    /// Fields of the response object, in their order there.
    pub(super) echo: Map<String, Value>,
    /// Whether thoughts go out as a summary.
    pub(super) summary: bool,
    /// Whether thoughts are wanted in `encrypted_content` too.
    pub(super) carried: bool,
    /// Whether log-probabilities are wanted.
    pub(super) logprobs: bool,
}

/// Reads a body.
pub fn parse(body: &[u8]) -> Result<Asked, Error> {
    let body = json::parse(body)?;
    let numbers: Vec<Value> =
        ["temperature", "top_p"].iter().map(|name| body.get(name).cloned().unwrap_or(Value::Null)).collect();
    let chosen = body.get("tool_choice").cloned().filter(|choice| !choice.is_null());
    let mut fields = Object::root(body)?;
    let mut places = Places::default();
    let model = shared::model(&mut fields)?;
    let previous = fields.string(KEPT)?;
    let (input, plain) = input(&mut fields, previous.is_some())?;
    let instructions = fields.string(INSTRUCTIONS)?;
    let mut tool_list = tools::tools(&mut fields)?;
    let shown_tools: Vec<Value> = tool_list.iter().map(tools::written).collect();
    let tool_choice = tools::tool_choice(&mut fields, &mut tool_list, &mut places)?;
    let format = tools::text_format(&mut fields, &mut places)?;
    let reasoning = reasoning(&mut fields)?;
    let included = include(&mut fields)?;
    let top_logprobs = fields.integer("top_logprobs", 0..=20)?.map(|count| count as u32);
    let stream = shared::stream(&mut fields)?;
    let store = fields.boolean("store")?;
    let parallel = fields.boolean("parallel_tool_calls")?;
    let max_tokens =
        fields.integer("max_output_tokens", 1..=i64::from(i32::MAX))?.map(|tokens| tokens as u32);
    let metadata = metadata(&mut fields)?;
    let session = shared::label(&mut fields, "prompt_cache_key")?;
    let max_calls = fields.integer("max_tool_calls", 0..=i64::from(u32::MAX))?;
    let user = fields.string("user")?;
    let safety = fields.string("safety_identifier")?;
    let logprobs =
        (included.logprobs || top_logprobs.is_some_and(|top| top > 0)).then(|| top_logprobs.unwrap_or(0));
    not_built(&mut fields)?;
    places.moved("reasoning_effort", "reasoning.effort");
    places.moved("max_tokens", "max_output_tokens");
    places.moved("logprobs", if top_logprobs.is_some() { "top_logprobs" } else { "include" });
    let request = GenerateRequest {
        model,
        input: Input::default(),
        tools: tool_list,
        tool_choice,
        parallel_tool_calls: parallel,
        response_format: format,
        sampling: shared::sampling(&mut fields, 2.0)?,
        max_tokens,
        stop: shared::stop(&mut fields)?,
        choices: 1,
        logprobs,
        reasoning_effort: reasoning.effort,
        template_variables: local::template_variables(&mut fields, &mut places)?,
        session: session.clone(),
        user: safety.clone().or_else(|| user.clone()).filter(|user| !user.is_empty()),
        cache_salt: shared::label(&mut fields, "cache_salt")?,
        stream: stream.on,
        ..GenerateRequest::default()
    };
    fields.finish()?;
    let [temperature, top_p] = <[Value; 2]>::try_from(numbers).unwrap_or_default();
    let echo = json!({
        "instructions": instructions,
        "max_output_tokens": max_tokens,
        "max_tool_calls": max_calls,
        "metadata": metadata,
        "parallel_tool_calls": parallel.unwrap_or(true),
        "previous_response_id": previous,
        "prompt_cache_key": session,
        "reasoning": reasoning.echo,
        "safety_identifier": safety,
        "service_tier": "default",
        "temperature": temperature,
        "text": {"format": tools::written_format(&request.response_format), "verbosity": "medium"},
        "tool_choice": chosen.unwrap_or_else(|| json!("auto")),
        "tools": shown_tools,
        "top_logprobs": top_logprobs.unwrap_or(0),
        "top_p": top_p,
        "truncation": "disabled",
        "user": user,
    });
    let Value::Object(echo) = echo else { unreachable!("written as an object") };
    let form =
        Form { echo, summary: reasoning.summary, carried: included.carried, logprobs: logprobs.is_some() };
    Ok(Asked { request, stream: stream.on, store, previous, input, form, plain, places })
}

impl Asked {
    /// Ids of the kept items that the input names.
    pub fn references(&self) -> impl Iterator<Item = &str> {
        self.input.iter().filter_map(|item| match item {
            Item::Reference { id } => Some(id.as_str()),
            _ => None,
        })
    }

    /// Puts the conversation together: what was kept of it, then what the caller sends. References in the input
    /// become the items they name.
    ///
    /// # Errors
    /// When an item is not there, or the whole is no conversation.
    pub fn converse(&mut self, kept: Vec<Value>, referenced: &HashMap<String, Value>) -> Result<(), Error> {
        let path = |index| if self.plain { "input".to_owned() } else { element("input", index) };
        let mut named = HashSet::new();
        for (index, item) in self.input.iter_mut().enumerate() {
            if let Item::Reference { id } = item {
                // Each is copied, so a short body of many would need much memory.
                if !named.insert(id.clone()) {
                    let path = format!("{}.id", path(index));
                    let shown: String = id.chars().take(128).collect();
                    return Err(Error::invalid(path, format!("Duplicate item found with id '{shown}'.")));
                }
                let Some(found) = referenced.get(id.as_str()) else {
                    return Err(conversation::no_such_item(id, &path(index)));
                };
                *item = Item::read(path(index), found.clone())?;
            }
        }
        let kept = kept
            .into_iter()
            .map(|item| Ok(Placed { item: Item::read(KEPT.to_owned(), item)?, at: KEPT.to_owned() }));
        let own = self.input.iter().enumerate();
        let own = own.map(|(index, item)| Ok(Placed { item: item.clone(), at: path(index) }));
        let items = kept.chain(own).collect::<Result<Vec<_>, Error>>()?;
        let instructions = self.form.echo.get(INSTRUCTIONS).and_then(Value::as_str);
        let messages = conversation::messages(instructions, items, &mut self.places)?;
        if messages.is_empty() {
            return Err(Error::invalid("input", "Invalid value for 'input': at least one item is needed"));
        }
        self.request.input = Input::Chat(messages);
        Ok(())
    }

    /// An error of a backend, with the field at fault named as the caller wrote it.
    #[must_use]
    pub fn locate(&self, error: Error) -> Error {
        match (&error.param, error.kind) {
            (None, ErrorKind::ContextLength) => error.at("input"),
            (None, ErrorKind::ModelNotFound) => error.at("model"),
            _ => conversation::locate(&self.places, error),
        }
    }
}

/// `input`: a text or items; and whether it is a text.
fn input(fields: &mut Object, goes_on: bool) -> Result<(Vec<Item>, bool), Error> {
    let path = fields.path("input");
    let items = match fields.take("input") {
        None if goes_on => return Ok((Vec::new(), false)),
        None => return Err(missing(&path)),
        Some(Value::String(text)) => {
            let content = vec![Part::Text(text)];
            return Ok((vec![Item::Message { role: Role::User, content }], true));
        }
        Some(Value::Array(items)) => items,
        Some(other) => return Err(wrong_type(&path, "a string or an array of items", &other)),
    };
    if items.len() > MAX_ITEMS {
        let message = format!("Too many items in '{path}': {}, at most {MAX_ITEMS} are allowed", items.len());
        return Err(Error::invalid(path, message));
    }
    let items = items.into_iter().enumerate();
    let items = items.map(|(index, item)| Item::read(element(&path, index), item));
    Ok((items.collect::<Result<_, _>>()?, false))
}

struct Reasoning {
    effort: Option<ReasoningEffort>,
    summary: bool,
    echo: Value,
}

/// `reasoning`. A summary that is asked for is the thoughts themselves: nobody sums them up here.
fn reasoning(fields: &mut Object) -> Result<Reasoning, Error> {
    let Some(mut reasoning) = fields.object("reasoning")? else {
        return Ok(Reasoning {
            effort: None,
            summary: false,
            echo: json!({"effort": null, "summary": null}),
        });
    };
    let path = reasoning.path("effort");
    let wanted = reasoning.string("effort")?;
    let effort = wanted.as_deref().map(|word| shared::effort(&path, word)).transpose()?;
    let path = reasoning.path("summary");
    let old = reasoning.string("generate_summary")?;
    let summary = reasoning.string("summary")?.or(old);
    if let Some(summary) = &summary
        && !["auto", "concise", "detailed"].contains(&summary.as_str())
    {
        let message = format!("Invalid value for '{path}': supported are 'auto', 'concise' and 'detailed'");
        return Err(Error::invalid(path, message));
    }
    // Which earlier thoughts a model sees is its template's business.
    for (name, only) in [("context", "auto"), ("mode", "standard")] {
        if reasoning.string(name)?.is_some_and(|value| value != only) {
            return Err(unsupported(&reasoning.path(name)));
        }
    }
    reasoning.finish()?;
    Ok(Reasoning { effort, summary: summary.is_some(), echo: json!({"effort": wanted, "summary": summary}) })
}

struct Included {
    logprobs: bool,
    carried: bool,
}

/// `include`.
fn include(fields: &mut Object) -> Result<Included, Error> {
    let path = fields.path("include");
    let mut included = Included { logprobs: false, carried: false };
    for (index, name) in fields.array("include")?.unwrap_or_default().into_iter().enumerate() {
        let path = element(&path, index);
        match fields::string(&path, name)?.as_str() {
            "message.output_text.logprobs" => included.logprobs = true,
            "reasoning.encrypted_content" => included.carried = true,
            name if OF_OTHER_TOOLS.contains(&name) => {}
            name => {
                let shown: String = name.chars().take(64).collect();
                let message = format!(
                    "Invalid value for '{path}': '{shown}'; supported are 'message.output_text.logprobs' and \
                     'reasoning.encrypted_content'"
                );
                return Err(Error::invalid(path, message));
            }
        }
    }
    Ok(included)
}

/// `metadata`: up to 16 short texts by name.
fn metadata(fields: &mut Object) -> Result<Value, Error> {
    let path = fields.path("metadata");
    let Some(metadata) = fields.object("metadata")? else { return Ok(json!({})) };
    let metadata = metadata.into_rest();
    if metadata.len() > 16 {
        return Err(Error::invalid(
            &path,
            format!("Invalid value for '{path}': at most 16 pairs are allowed"),
        ));
    }
    for (key, value) in &metadata {
        let shown: String = key.chars().take(64).collect();
        if key.chars().count() > 64 {
            let message = format!("Invalid key in '{path}': '{shown}' and more, at most 64 characters");
            return Err(Error::invalid(path, message));
        }
        let path = format!("{path}.{shown}");
        let Value::String(text) = value else { return Err(wrong_type(&path, "a string", value)) };
        if text.chars().count() > 512 {
            let message = format!("Invalid value for '{path}': longer than 512 characters");
            return Err(Error::invalid(path, message));
        }
    }
    Ok(Value::Object(metadata))
}

/// Fields that would change the answer and cannot be had, and some that do not change it.
fn not_built(fields: &mut Object) -> Result<(), Error> {
    if fields.boolean("background")? == Some(true) {
        return Err(unsupported("background"));
    }
    match fields.string("truncation")?.as_deref() {
        None | Some("disabled") => {}
        Some("auto") => {
            let message = "'truncation' can only be 'disabled' on this server: a conversation that does not fit is an error, not cut";
            return Err(Error::new(ErrorKind::Unsupported, message).at("truncation"));
        }
        Some(_) => {
            let message = "Invalid value for 'truncation': supported is 'disabled'";
            return Err(Error::invalid("truncation", message));
        }
    }
    fields.refuse(&[
        "background_options",
        "context_management",
        "conversation",
        "moderation",
        "prompt",
        "access_programs",
        "image",
    ])?;
    fields.harmless(&["prompt_cache_options"]);
    local::pass_over(fields)
}

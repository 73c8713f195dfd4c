//! What other servers of open models take beside OpenAI's fields, and their clients therefore send: llama.cpp, vLLM,
//! SGLang, Ollama, LM Studio, and the routers before them.
//!
//! Three kinds: fields that change nothing here ([`HARMLESS`]), those that change nothing with the one value that
//! holds here anyway ([`SETTLED`]), and those that mean something that this server has under another name. All
//! else stays unknown and is refused by name.

use super::chat;
use super::parameters as shared;
use crate::fields::{self, Object, unsupported, wrong_type};
use crate::{Error, Places, ReasoningEffort};
use indexmap::IndexMap;
use serde_json::Value;

/// Fields that do not change an answer here, whatever they hold: labels, billing, storage; hints about caches, slots
/// and scheduling.
const HARMLESS: &[&str] = &[
    "user",
    "metadata",
    "store",
    "service_tier",
    "safety_identifier",
    "prompt_cache_retention",
    "cache_prompt",
    "id_slot",
    "keep_alive",
    "priority",
    "request_id",
    "ttl",
];

/// Fields that ask for what holds anyway with this value, and for what cannot be had with the other.
const SETTLED: &[(&str, bool)] = &[
    ("add_generation_prompt", true),
    ("continue_final_message", false),
    ("include_reasoning", true),
    ("include_stop_str_in_output", false),
    ("return_token_ids", false),
    ("separate_reasoning", true),
    ("skip_special_tokens", true),
    ("spaces_between_special_tokens", true),
    ("use_beam_search", false),
];

/// Takes the fields that change nothing.
pub(crate) fn pass_over(fields: &mut Object) -> Result<(), Error> {
    fields.harmless(HARMLESS);
    for (name, value) in SETTLED {
        if fields.boolean(name)?.is_some_and(|wanted| wanted != *value) {
            let path = fields.path(name);
            let message = format!("'{path}' can only be {value} on this server");
            return Err(Error { message, ..unsupported(&path) });
        }
    }
    Ok(())
}

/// Who of the caller's users asks: `safety_identifier`, or the older `user`. What is no text says nothing.
pub(crate) fn user(fields: &mut Object) -> Option<String> {
    let mut said = ["safety_identifier", "user"].into_iter().filter_map(|name| fields.take(name));
    said.find_map(|value| value.as_str().filter(|user| !user.is_empty()).map(str::to_owned))
}

/// The template's variables: `chat_template_kwargs`, and the switches for thinking that stand beside it elsewhere,
/// `enable_thinking` and `thinking`. What `chat_template_kwargs` says goes before.
pub(crate) fn template_variables(
    fields: &mut Object,
    places: &mut Places,
) -> Result<IndexMap<String, Value>, Error> {
    let mut variables = chat::template_variables(fields)?;
    let switches = [("enable_thinking", fields.boolean("enable_thinking")?), ("thinking", thinking(fields)?)];
    for (name, thinks) in switches {
        let Some(thinks) = thinks else { continue };
        if variables.is_empty() {
            places.moved("chat_template_kwargs", name);
        }
        think(&mut variables, thinks);
    }
    Ok(variables)
}

/// The switches that chat templates have for thinking; a template that has none passes over them.
pub(crate) fn think(variables: &mut IndexMap<String, Value>, thinks: bool) {
    for name in ["enable_thinking", "thinking"] {
        variables.entry(name.to_owned()).or_insert(Value::Bool(thinks));
    }
}

/// `thinking`, as GLM's, DeepSeek's and Anthropic's clients write it. A budget is not kept, as in Anthropic's dialect.
fn thinking(fields: &mut Object) -> Result<Option<bool>, Error> {
    let path = fields.path("thinking");
    let mut thinking = match fields.take("thinking") {
        None => return Ok(None),
        Some(Value::Bool(on)) => return Ok(Some(on)),
        Some(object @ Value::Object(_)) => Object::at(path, object)?,
        Some(other) => return Err(wrong_type(&path, "an object", &other)),
    };
    let on = match thinking.required_string("type")?.as_str() {
        "enabled" | "adaptive" => true,
        "disabled" => false,
        _ => {
            let path = thinking.path("type");
            let message = format!("Invalid value for '{path}': supported are 'enabled' and 'disabled'");
            return Err(Error::invalid(path, message));
        }
    };
    thinking.integer("budget_tokens", 0..=i64::MAX)?;
    thinking.finish()?;
    Ok(Some(on))
}

/// `reasoning_effort`, or `reasoning.effort` as routers and OpenAI's other API have it.
pub(crate) fn reasoning_effort(fields: &mut Object) -> Result<Option<ReasoningEffort>, Error> {
    let effort = shared::reasoning_effort(fields)?;
    let Some(mut reasoning) = fields.object("reasoning")? else { return Ok(effort) };
    let path = reasoning.path("effort");
    let nested = reasoning.string("effort")?.map(|word| shared::effort(&path, &word)).transpose()?;
    reasoning.finish()?;
    match (effort, nested) {
        (Some(effort), Some(nested)) if effort != nested => {
            let message = format!("'{path}' and 'reasoning_effort' mean the same and must not differ");
            Err(Error::invalid(path, message))
        }
        (effort, nested) => Ok(effort.or(nested)),
    }
}

/// `repetition_penalty`, or llama.cpp's `repeat_penalty`.
pub(crate) fn repetition_penalty(fields: &mut Object) -> Result<Option<f64>, Error> {
    let mut found: Option<f64> = None;
    for name in ["repetition_penalty", "repeat_penalty"] {
        let Some(penalty) = fields.number(name, 0.0..=10.0)? else { continue };
        let path = fields.path(name);
        if penalty == 0.0 {
            return Err(Error::invalid(&path, format!("Invalid value for '{path}': must be above 0")));
        }
        if found.is_some_and(|found| found != penalty) {
            let message = format!("'{path}' and 'repetition_penalty' mean the same and must not differ");
            return Err(Error::invalid(path, message));
        }
        found = Some(penalty);
    }
    Ok(found)
}

/// How long an answer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit {
    /// Nothing was said: what the dialect does then.
    Unsaid,
    /// -1: as long as fits.
    WhatFits,
    /// So many tokens.
    Tokens(u32),
}

impl Limit {
    /// The limit, with a dialect's default.
    pub(crate) const fn or(self, default: Option<u32>) -> Option<u32> {
        match self {
            Self::Unsaid => default,
            Self::WhatFits => None,
            Self::Tokens(tokens) => Some(tokens),
        }
    }
}

/// A limit in tokens; -1 is llama.cpp's word for none.
pub(crate) fn limit(fields: &mut Object, name: &'static str, least: i64) -> Result<Limit, Error> {
    let path = fields.path(name);
    match fields.take(name) {
        None => Ok(Limit::Unsaid),
        Some(value) if value.as_f64() == Some(-1.0) => Ok(Limit::WhatFits),
        Some(value) => {
            let tokens = fields::integer(&path, &value, &(least..=i64::from(i32::MAX)))?;
            Ok(Limit::Tokens(tokens as u32))
        }
    }
}

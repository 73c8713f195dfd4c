//! Parameters that chat completions, completions and the Workers AI forms share.

use super::local::{self, Limit};
use crate::fields::{self, Object, element, missing};
use crate::{Error, ReasoningEffort, Sampling};
use serde_json::Value;

/// Most stop texts of a request. OpenAI allows 4; agents' frameworks send more.
const MAX_STOPS: usize = 16;

/// Bytes of one stop text. Matching costs up to the square of it a token, and a request of many prompts copies it.
const MAX_STOP_BYTES: usize = 4096;

/// Token ids that `logit_bias` may name: each is looked at for every token, and copied for every prompt.
const MAX_BIASES: usize = 16_384;

/// Bytes of a model's name.
const MAX_MODEL_BYTES: usize = 1024;

/// Answers a request may ask for.
const MAX_CHOICES: i64 = 128;

/// `model`, which a request must name.
pub(crate) fn model(fields: &mut Object) -> Result<String, Error> {
    let model = fields.string("model")?.ok_or_else(|| missing("model"))?;
    if model.is_empty() {
        return Err(Error::invalid("model", "Invalid value for 'model': the name is empty"));
    }
    if model.len() > MAX_MODEL_BYTES {
        let message = format!("Invalid value for 'model': longer than {MAX_MODEL_BYTES} bytes");
        return Err(Error::invalid("model", message));
    }
    Ok(model)
}

/// How tokens are chosen. `hottest` is the highest temperature of the dialect.
pub(crate) fn sampling(fields: &mut Object, hottest: f64) -> Result<Sampling, Error> {
    let top_p = fields.number("top_p", 0.0..=1.0)?;
    if top_p == Some(0.0) {
        return Err(Error::invalid(
            "top_p",
            "Invalid value for 'top_p': 0 leaves no token; use temperature 0 for the most likely one",
        ));
    }
    let repetition_penalty = local::repetition_penalty(fields)?;
    Ok(Sampling {
        temperature: fields.number("temperature", 0.0..=hottest)?.map(|value| value as f32),
        // -1 is another way of writing "all tokens".
        top_k: fields.integer("top_k", -1..=i64::from(u32::MAX))?.map(|k| k.max(0) as u32),
        // A tiny top_p must not round to 0.
        top_p: top_p.map(|value| (value as f32).max(f32::MIN_POSITIVE)),
        min_p: fields.number("min_p", 0.0..=1.0)?.map(|value| value as f32),
        repetition_penalty: repetition_penalty.map(|value| (value as f32).max(f32::MIN_POSITIVE)),
        frequency_penalty: fields.number("frequency_penalty", -2.0..=2.0)?.map(|value| value as f32),
        presence_penalty: fields.number("presence_penalty", -2.0..=2.0)?.map(|value| value as f32),
        logit_bias: logit_bias(fields)?,
        seed: fields.integer("seed", i64::MIN..=i64::MAX)?.map(|seed| seed as u64),
    })
}

fn logit_bias(fields: &mut Object) -> Result<Vec<(u32, f32)>, Error> {
    let Some(biases) = fields.object("logit_bias")? else { return Ok(Vec::new()) };
    let path = biases.path("");
    let path = path.trim_end_matches('.');
    let biases = biases.into_rest();
    if biases.len() > MAX_BIASES {
        let count = biases.len();
        let message = format!("Too many token ids in '{path}': {count}, at most {MAX_BIASES} are allowed");
        return Err(Error::invalid(path, message));
    }
    biases
        .into_iter()
        .map(|(key, bias)| {
            let id = key.parse().map_err(|_| {
                let key: String = key.chars().take(64).collect();
                Error::invalid(path, format!("Invalid key in '{path}': '{key}' is not a token id"))
            })?;
            let bias = fields::number(&format!("{path}.{key}"), &bias, &(-100.0..=100.0))?;
            Ok((id, bias as f32))
        })
        .collect()
}

/// `max_completion_tokens`, or the older `max_tokens`.
pub(crate) fn max_tokens(fields: &mut Object, least: i64) -> Result<Limit, Error> {
    let old = local::limit(fields, "max_tokens", least)?;
    let new = local::limit(fields, "max_completion_tokens", least)?;
    match (old, new) {
        (limit, Limit::Unsaid) | (Limit::Unsaid, limit) => Ok(limit),
        (old, new) if old == new => Ok(new),
        _ => Err(Error::invalid(
            "max_tokens",
            "'max_tokens' and 'max_completion_tokens' mean the same and must not differ",
        )),
    }
}

/// `n`: answers wanted.
pub(crate) fn choices(fields: &mut Object) -> Result<u32, Error> {
    Ok(fields.integer("n", 1..=MAX_CHOICES)?.map_or(1, |n| n as u32))
}

/// `stop`: one text or several.
pub(crate) fn stop(fields: &mut Object) -> Result<Vec<String>, Error> {
    stops(fields, "stop")
}

/// The same in a dialect that calls it `name`.
pub(crate) fn stops(fields: &mut Object, name: &'static str) -> Result<Vec<String>, Error> {
    let path = fields.path(name);
    let stops = match fields.take(name) {
        None => return Ok(Vec::new()),
        // Forms send an empty field for none.
        Some(Value::String(stop)) if stop.is_empty() => return Ok(Vec::new()),
        Some(Value::String(stop)) => return one_stop(&path, stop).map(|stop| vec![stop]),
        Some(Value::Array(stops)) => stops,
        Some(other) => return Err(fields::wrong_type(&path, "a string or an array of strings", &other)),
    };
    if stops.len() > MAX_STOPS {
        let count = stops.len();
        return Err(Error::invalid(
            path,
            format!("Too many stop texts: {count}, at most {MAX_STOPS} are allowed"),
        ));
    }
    stops
        .into_iter()
        .enumerate()
        .map(|(index, stop)| {
            let path = element(&path, index);
            one_stop(&path, fields::string(&path, stop)?)
        })
        .collect()
}

fn one_stop(path: &str, stop: String) -> Result<String, Error> {
    if stop.is_empty() {
        return Err(Error::invalid(
            path,
            format!("Invalid value for '{path}': a stop text must not be empty"),
        ));
    }
    if stop.len() > MAX_STOP_BYTES {
        return Err(Error::invalid(
            path,
            format!("Invalid value for '{path}': longer than {MAX_STOP_BYTES} bytes"),
        ));
    }
    Ok(stop)
}

/// `stream` and `stream_options`.
pub(crate) struct Stream {
    /// Whether the answer is wanted as it is made.
    pub(crate) on: bool,
    /// Whether a last chunk tells the usage.
    pub(crate) include_usage: bool,
}

pub(crate) fn stream(fields: &mut Object) -> Result<Stream, Error> {
    let on = fields.boolean("stream")?.unwrap_or(false);
    let mut include_usage = false;
    if let Some(mut options) = fields.object("stream_options")? {
        include_usage = options.boolean("include_usage")?.unwrap_or(false);
        // Padding against traffic analysis; harmless to leave out.
        options.boolean("include_obfuscation")?;
        options.finish()?;
    }
    Ok(Stream { on, include_usage })
}

/// `reasoning_effort`.
pub(crate) fn reasoning_effort(fields: &mut Object) -> Result<Option<ReasoningEffort>, Error> {
    let path = fields.path("reasoning_effort");
    fields.string("reasoning_effort")?.map(|word| effort(&path, &word)).transpose()
}

/// An effort by its word.
pub(crate) fn effort(path: &str, word: &str) -> Result<ReasoningEffort, Error> {
    Ok(match word {
        "none" => ReasoningEffort::None,
        "minimal" => ReasoningEffort::Minimal,
        "low" => ReasoningEffort::Low,
        "medium" => ReasoningEffort::Medium,
        // Open models know no more.
        "high" | "xhigh" | "max" => ReasoningEffort::High,
        _ => {
            let message = format!(
                "Invalid value for '{path}': supported are 'none', 'minimal', 'low', 'medium', 'high', 'xhigh' and \
                 'max'"
            );
            return Err(Error::invalid(path, message));
        }
    })
}

/// A short text that names a session or salt.
pub(crate) fn label(fields: &mut Object, name: &'static str) -> Result<Option<String>, Error> {
    let label = fields.string(name)?;
    if label.as_ref().is_some_and(|label| label.len() > 1024) {
        let path = fields.path(name);
        return Err(Error::invalid(&path, format!("Invalid value for '{path}': longer than 1024 bytes")));
    }
    Ok(label.filter(|label| !label.is_empty()))
}

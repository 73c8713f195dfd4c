//! The sampling settings that a model's makers recommend. Values are checked for range here, so that
//! they can be used as they are; what a request sets goes before them.

use serde_json::Value;

use super::{CheckpointError, Gguf, HuggingFace};

pub(super) const HF_FILE: &str = "generation_config.json";

/// Sampling settings from a checkpoint; `None` where it does not say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerationDefaults {
    /// `false` where the checkpoint says to always take the likeliest token.
    pub sample: Option<bool>,
    /// At least 0; 0 means the likeliest token.
    pub temperature: Option<f32>,
    /// In (0, 1].
    pub top_p: Option<f32>,
    /// At least 1; a checkpoint's 0 or -1 (no limit) is `None`.
    pub top_k: Option<u32>,
    /// In [0, 1].
    pub min_p: Option<f32>,
    /// Above 0; 1 changes nothing.
    pub repetition_penalty: Option<f32>,
    /// Tokens that end an answer, in the checkpoint's order, each once.
    pub end_tokens: Vec<u32>,
}

impl GenerationDefaults {
    /// These settings, and those of `base` where these do not say. A temperature of these goes before a `base` that
    /// always takes the likeliest token.
    #[must_use]
    pub fn over(self, base: Self) -> Self {
        Self {
            sample: self.sample.or(if self.temperature.is_some() { None } else { base.sample }),
            temperature: self.temperature.or(base.temperature),
            top_p: self.top_p.or(base.top_p),
            top_k: self.top_k.or(base.top_k),
            min_p: self.min_p.or(base.min_p),
            repetition_penalty: self.repetition_penalty.or(base.repetition_penalty),
            end_tokens: if self.end_tokens.is_empty() { base.end_tokens } else { self.end_tokens },
        }
    }

    /// Checks the ranges that the fields state.
    ///
    /// # Errors
    /// Names the first field that is outside.
    pub fn check(&self) -> Result<(), String> {
        for (name, value, setting) in [
            ("temperature", self.temperature, TEMPERATURE),
            ("top-p", self.top_p, TOP_P),
            ("min-p", self.min_p, MIN_P),
            ("repetition-penalty", self.repetition_penalty, PENALTY),
        ] {
            if let Some(value) = value {
                setting.check(value).map_err(|reason| format!("{name} {reason}"))?;
            }
        }
        if self.top_k == Some(0) { Err("top-k is 0, not at least 1".into()) } else { Ok(()) }
    }
}

/// A named setting with its allowed range.
struct Setting {
    least: f32,
    most: f32,
    /// Whether `least` itself is allowed.
    closed: bool,
    range: &'static str,
}

const TEMPERATURE: Setting = Setting { least: 0.0, most: f32::MAX, closed: true, range: "at least 0" };
const TOP_P: Setting = Setting { least: 0.0, most: 1.0, closed: false, range: "above 0 and at most 1" };
const MIN_P: Setting = Setting { least: 0.0, most: 1.0, closed: true, range: "from 0 to 1" };
const PENALTY: Setting = Setting { least: 0.0, most: f32::MAX, closed: false, range: "above 0" };

impl Setting {
    /// `Err` holds what is wrong.
    fn check(&self, value: f32) -> Result<f32, String> {
        let above = if self.closed { value >= self.least } else { value > self.least };
        if above && value <= self.most { Ok(value) } else { Err(format!("is {value}, not {}", self.range)) }
    }
}

pub(super) fn from_gguf(gguf: &Gguf) -> Result<GenerationDefaults, CheckpointError> {
    let float = |name: &str, setting: &Setting| {
        let key = format!("general.sampling.{name}");
        let found = gguf.find_f32(&key)?;
        found.map(|value| setting.check(value).map_err(|reason| gguf.bad_key(&key, reason))).transpose()
    };
    let top_k = match gguf.get("general.sampling.top_k") {
        // No limit is written as 0 or below.
        Some(super::gguf::Value::Signed(..=0)) => None,
        _ => gguf.find_u32("general.sampling.top_k")?.filter(|k| *k > 0),
    };
    let mut end_tokens = Vec::new();
    for name in ["eos", "eot", "eom"] {
        let id = gguf.find_u32(&format!("tokenizer.ggml.{name}_token_id"))?;
        end_tokens.extend(id.filter(|id| *id != u32::MAX));
    }
    Ok(GenerationDefaults {
        sample: None,
        temperature: float("temp", &TEMPERATURE)?,
        top_p: float("top_p", &TOP_P)?,
        top_k,
        min_p: float("min_p", &MIN_P)?,
        repetition_penalty: float("penalty_repeat", &PENALTY)?,
        end_tokens: without_repeats(end_tokens),
    })
}

pub(super) fn from_hugging_face(folder: &HuggingFace) -> Result<GenerationDefaults, CheckpointError> {
    let Some(config) = folder.generation_config()? else {
        // Older checkpoints state the end token with the architecture.
        let end_tokens = end_tokens(folder, "config.json", folder.config())?;
        return Ok(GenerationDefaults { end_tokens, ..GenerationDefaults::default() });
    };
    let bad = |key: &str, reason: String| folder.bad_key(HF_FILE, key, reason);
    let float = |key: &str, setting: &Setting| match config.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Number(n)) => {
            let value = n.as_f64().unwrap_or(f64::NAN) as f32;
            setting.check(value).map(Some).map_err(|reason| bad(key, reason))
        }
        Some(other) => Err(bad(key, format!("expected a number, found {}", kind(other)))),
    };
    let top_k = match config.get("top_k") {
        None | Some(Value::Null) => None,
        Some(Value::Number(n)) if n.as_i64().is_some_and(|n| n <= 0) => None,
        Some(value) => match value.as_u64().and_then(|n| u32::try_from(n).ok()) {
            Some(k) => Some(k),
            None => return Err(bad("top_k", "is not a 32-bit integer".to_owned())),
        },
    };
    let sample = match config.get("do_sample") {
        None | Some(Value::Null) => None,
        Some(Value::Bool(sample)) => Some(*sample),
        Some(_) => return Err(bad("do_sample", "is not true or false".to_owned())),
    };
    Ok(GenerationDefaults {
        sample,
        temperature: float("temperature", &TEMPERATURE)?,
        top_p: float("top_p", &TOP_P)?,
        top_k,
        min_p: float("min_p", &MIN_P)?,
        repetition_penalty: float("repetition_penalty", &PENALTY)?,
        end_tokens: end_tokens(folder, HF_FILE, &config)?,
    })
}

/// `eos_token_id`: one id, or a list of them.
fn end_tokens(folder: &HuggingFace, file: &str, config: &Value) -> Result<Vec<u32>, CheckpointError> {
    const KEY: &str = "eos_token_id";
    let id = |value: &Value| {
        value
            .as_u64()
            .and_then(|id| u32::try_from(id).ok())
            .ok_or_else(|| folder.bad_key(file, KEY, "is not a token id or a list of them"))
    };
    let ids = match config.get(KEY) {
        None | Some(Value::Null) => Vec::new(),
        Some(Value::Array(list)) => list.iter().map(id).collect::<Result<_, _>>()?,
        Some(one) => vec![id(one)?],
    };
    Ok(without_repeats(ids))
}

fn without_repeats(ids: Vec<u32>) -> Vec<u32> {
    ids.into_iter().collect::<indexmap::IndexSet<u32>>().into_iter().collect()
}

const fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "a bool",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_laid_over_others_win_field_by_field() {
        let base = GenerationDefaults {
            sample: Some(false),
            top_p: Some(0.5),
            end_tokens: vec![2],
            ..GenerationDefaults::default()
        };
        assert_eq!(GenerationDefaults::default().over(base.clone()), base);
        let warm = GenerationDefaults { temperature: Some(0.2), ..GenerationDefaults::default() }.over(base);
        assert_eq!((warm.sample, warm.temperature, warm.top_p), (None, Some(0.2), Some(0.5)));
        assert_eq!(warm.end_tokens, [2]);
    }
}

//! What providers tell of tokens: the one table of their usage objects, by which readers of answers and the ledger of the
//! gateway count alike.
//!
//! Nothing is estimated: what was not told is `None`, which is not the same as zero. A provider that counts cached tokens
//! beside the prompt (Anthropic, Bedrock) has them added here, one that counts them inside (OpenAI, Gemini) has not. Not
//! here: where a stream tells its usage in parts, and which of several reports counts.

use crate::Usage;
use base::NanoUsd;
use serde_json::{Map, Value};

/// A usage object.
pub type Told = Map<String, Value>;

/// Where a count stands, in one of several ways; the first that is there counts.
type Places = &'static [&'static [&'static str]];

/// The most dollars that an answer may say it costs; a larger sum is a mistake.
const COST_MAX: f64 = 10_000.0;

/// Tokens of one answer, as they were told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// All tokens of the prompt, those read from a cache and those written to one included.
    pub prompt: Option<u64>,
    /// Of these, read from a cache.
    pub cached: Option<u64>,
    /// Of these, written to a cache at a price of their own.
    pub written: Option<u64>,
    /// Of those written, kept for an hour.
    pub written_1h: Option<u64>,
    /// All tokens of the answers, thoughts included.
    pub answer: Option<u64>,
    /// Of these, spent on thinking.
    pub thoughts: Option<u64>,
    /// Of these, drafted from the request's prediction.
    pub accepted: Option<u64>,
    /// Drafted from the prediction and not the answer's.
    pub rejected: Option<u64>,
    /// Whether something was used that has a price of its own: tokens of images or sound, searches.
    pub other: bool,
    /// What all of it costs, where the provider says that.
    pub cost: Option<NanoUsd>,
}

impl From<Counts> for Usage {
    fn from(counts: Counts) -> Self {
        let count = |told: Option<u64>| u32::try_from(told.unwrap_or(0)).unwrap_or(u32::MAX);
        Self {
            prompt_tokens: count(counts.prompt),
            cached_tokens: count(counts.cached),
            cache_write_tokens: count(counts.written),
            cache_write_1h_tokens: count(counts.written_1h),
            completion_tokens: count(counts.answer),
            reasoning_tokens: count(counts.thoughts),
            accepted_prediction_tokens: count(counts.accepted),
            rejected_prediction_tokens: count(counts.rejected),
        }
    }
}

/// OpenAI's and its speakers': chat completions and completions say `prompt_tokens`, responses `input_tokens`. Cached
/// tokens are where OpenAI tells them, `prompt_cache_hit_tokens` (DeepSeek), or `cached_tokens` of the usage itself
/// (Moonshot). xAI counts thoughts beside the answer, which its sum shows. Perplexity tells what searches it made, and
/// what all costs; xAI how many sources it read.
mod openai {
    use super::Places;

    pub(super) const PROMPT: Places = &[&["prompt_tokens"], &["input_tokens"]];
    pub(super) const CACHED: Places = &[
        &["prompt_tokens_details", "cached_tokens"],
        &["input_tokens_details", "cached_tokens"],
        &["prompt_cache_hit_tokens"],
        &["cached_tokens"],
    ];
    pub(super) const WRITTEN: Places =
        &[&["prompt_tokens_details", "cache_write_tokens"], &["input_tokens_details", "cache_write_tokens"]];
    pub(super) const ANSWER: Places = &[&["completion_tokens"], &["output_tokens"]];
    pub(super) const THOUGHTS: Places = &[
        &["completion_tokens_details", "reasoning_tokens"],
        &["output_tokens_details", "reasoning_tokens"],
        &["reasoning_tokens"],
    ];
    pub(super) const ACCEPTED: Places = &[&["completion_tokens_details", "accepted_prediction_tokens"]];
    pub(super) const REJECTED: Places = &[&["completion_tokens_details", "rejected_prediction_tokens"]];
    pub(super) const OTHER: Places = &[
        &["prompt_tokens_details", "audio_tokens"],
        &["prompt_tokens_details", "image_tokens"],
        &["input_tokens_details", "audio_tokens"],
        &["input_tokens_details", "image_tokens"],
        &["completion_tokens_details", "audio_tokens"],
        &["completion_tokens_details", "image_tokens"],
        &["output_tokens_details", "audio_tokens"],
        &["output_tokens_details", "image_tokens"],
        &["citation_tokens"],
        &["num_search_queries"],
        &["num_sources_used"],
    ];
}

/// Reads a usage object of OpenAI's dialect.
#[must_use]
pub fn openai(told: &Told) -> Counts {
    let prompt = first(told, openai::PROMPT);
    let thoughts = first(told, openai::THOUGHTS);
    let total = count(told, &["total_tokens"]);
    let beside = |answer: u64| {
        let sum = prompt.unwrap_or(0) + answer + thoughts.unwrap_or(0);
        if total == Some(sum) { thoughts.unwrap_or(0) } else { 0 }
    };
    let answer = first(told, openai::ANSWER).map(|answer| answer + beside(answer));
    let cost = told.get("cost").and_then(|cost| cost.get("total_cost")).and_then(Value::as_f64);
    Counts {
        prompt,
        cached: first(told, openai::CACHED),
        written: first(told, openai::WRITTEN),
        written_1h: None,
        // Embeddings have a prompt only, and say so by its being all.
        answer: answer.or_else(|| (prompt.is_some() && total == prompt).then_some(0)),
        thoughts,
        accepted: first(told, openai::ACCEPTED),
        rejected: first(told, openai::REJECTED),
        // Perplexity charges for each request by the size of what it searched.
        other: any(told, openai::OTHER) || told.get("search_context_size").is_some_and(Value::is_string),
        cost: cost.filter(|dollars| (0.0..=COST_MAX).contains(dollars)).and_then(NanoUsd::from_dollars),
    }
}

/// The usage object of a completion or a chunk of one: its own, Groq's in `x_groq`, or Moonshot's in a choice.
#[must_use]
pub fn of_completion(answer: &Value) -> Option<&Told> {
    let in_choices =
        || answer["choices"].as_array()?.iter().rev().find_map(|choice| choice["usage"].as_object());
    answer["usage"].as_object().or_else(|| answer["x_groq"]["usage"].as_object()).or_else(in_choices)
}

/// Reads a usage object of Anthropic's: `input_tokens` counts what no cache had.
#[must_use]
pub fn anthropic(told: &Told) -> Counts {
    let cached = count(told, &["cache_read_input_tokens"]);
    let written = count(told, &["cache_creation_input_tokens"]);
    Counts {
        prompt: beside(count(told, &["input_tokens"]), cached, written),
        cached,
        written,
        written_1h: count(told, &["cache_creation", "ephemeral_1h_input_tokens"]),
        answer: count(told, &["output_tokens"]),
        thoughts: count(told, &["output_tokens_details", "thinking_tokens"]),
        other: any(told, &[&["server_tool_use", "web_search_requests"]]),
        ..Counts::default()
    }
}

/// Reads Gemini's `usageMetadata`: `promptTokenCount` holds the cached tokens, what tools put into the prompt stands beside
/// it, and candidates and thoughts stand beside each other unless the sum says otherwise. Zeros are left out, as always in
/// JSON that is made from protocol buffers.
#[must_use]
pub fn gemini(told: &Told) -> Counts {
    let part = |name| count(told, &[name]);
    let (total, prompt) = (part("totalTokenCount"), part("promptTokenCount"));
    // An object without either is none that was told.
    if prompt.or(total).is_none() {
        return Counts::default();
    }
    let prompt = prompt.unwrap_or(0) + part("toolUsePromptTokenCount").unwrap_or(0);
    let candidates = part("candidatesTokenCount").unwrap_or(0);
    let thoughts = part("thoughtsTokenCount");
    let within = total == Some(prompt + candidates);
    // In prompts sound alone has a price of its own, in answers all that is no text.
    let has = |list: &str, other: fn(&str) -> bool| {
        let details = told.get(list).and_then(Value::as_array);
        details.is_some_and(|details| {
            details.iter().any(|detail| {
                detail["modality"].as_str().is_some_and(other) && detail["tokenCount"].as_u64() > Some(0)
            })
        })
    };
    Counts {
        prompt: Some(prompt),
        cached: part("cachedContentTokenCount"),
        answer: Some(candidates + thoughts.filter(|_| !within).unwrap_or(0)),
        thoughts,
        other: has("promptTokensDetails", |kind| kind == "AUDIO")
            || has("candidatesTokensDetails", |kind| kind != "TEXT"),
        ..Counts::default()
    }
}

/// Reads a usage object of Bedrock's Converse.
#[must_use]
pub fn converse(told: &Told) -> Counts {
    let part = |name| count(told, &[name]);
    let (cached, written) = (part("cacheReadInputTokens"), part("cacheWriteInputTokens"));
    let long = told.get("cacheDetails").and_then(Value::as_array).map(|details| {
        let long = details.iter().filter(|detail| detail["ttl"] == "1h");
        long.filter_map(|detail| detail["inputTokens"].as_u64()).fold(0, u64::saturating_add)
    });
    Counts {
        prompt: beside(part("inputTokens"), cached, written),
        cached,
        written,
        written_1h: long,
        answer: Some(part("outputTokens").unwrap_or(0)),
        ..Counts::default()
    }
}

/// Reads a usage object of Cohere's own: what is billed counts, and where that is not told what the model read and wrote.
#[must_use]
pub fn cohere(told: &Told) -> Counts {
    let part = |name| count(told, &["billed_units", name]).or_else(|| count(told, &["tokens", name]));
    Counts {
        prompt: part("input_tokens"),
        cached: count(told, &["cached_tokens"]),
        answer: part("output_tokens"),
        ..Counts::default()
    }
}

/// A prompt whose cached and written tokens are counted beside it.
fn beside(fresh: Option<u64>, cached: Option<u64>, written: Option<u64>) -> Option<u64> {
    Some(fresh? + cached.unwrap_or(0) + written.unwrap_or(0))
}

fn first(told: &Told, places: Places) -> Option<u64> {
    places.iter().find_map(|place| count(told, place))
}

fn any(told: &Told, places: Places) -> bool {
    places.iter().any(|place| count(told, place).is_some_and(|count| count > 0))
}

/// A count of a usage object; nothing where it is absent, `null` or no count.
fn count(told: &Told, place: &[&str]) -> Option<u64> {
    let (first, rest) = place.split_first()?;
    let value = rest.iter().try_fold(told.get(*first)?, |value, name| value.get(name))?;
    // Billions are no count of tokens, and sums of them must not overflow.
    value.as_u64().filter(|count| *count <= u32::MAX.into())
}

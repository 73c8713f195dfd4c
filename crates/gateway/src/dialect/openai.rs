//! OpenAI's dialect, and what its many speakers do differently.
//!
//! Usage: chat completions and completions say `prompt_tokens`, responses say `input_tokens`; cached tokens stand inside
//! them, and the tier beside the usage. DeepSeek tells cache hits as `prompt_cache_hit_tokens`, Moonshot as `cached_tokens` of the usage itself. In a
//! stream it may come in any chunk, alone (`choices` is `[]`), with an empty choice, or with the finish reason; where
//! several tell it the last one counts.

use super::count;
use crate::scan::{Field, Scan};
use crate::usage::{Tier, Usage};
use memchr::memmem;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

/// Reads a usage object.
pub(super) fn usage(raw: &Map<String, Value>) -> Option<Usage> {
    let first = |paths: &[&[&str]]| paths.iter().find_map(|path| count(raw, path));
    let input = first(&[&["prompt_tokens"], &["input_tokens"]])?;
    let output = first(&[&["completion_tokens"], &["output_tokens"]]);
    let reasoning = first(&[
        &["completion_tokens_details", "reasoning_tokens"],
        &["output_tokens_details", "reasoning_tokens"],
    ]);
    // xAI counts thoughts beside the answer, which its sum shows.
    let beside = |output: u64| {
        reasoning.filter(|thoughts| count(raw, &["total_tokens"]) == Some(input + output + thoughts))
    };
    let output = output.map(|output| output + beside(output).unwrap_or(0));
    Some(Usage {
        input,
        cached_input: first(&[
            &["prompt_tokens_details", "cached_tokens"],
            &["input_tokens_details", "cached_tokens"],
            &["prompt_cache_hit_tokens"],
            &["cached_tokens"],
        ]),
        cache_write: first(&[
            &["prompt_tokens_details", "cache_write_tokens"],
            &["input_tokens_details", "cache_write_tokens"],
        ]),
        cache_write_1h: None,
        // Embeddings have a prompt only, and say so by its being all.
        output: output.or_else(|| (count(raw, &["total_tokens"]) == Some(input)).then_some(0))?,
        reasoning,
        // Stands beside the usage.
        tier: Tier::Standard,
        media: MEDIA.iter().any(|path| count(raw, path).is_some_and(|count| count > 0)),
    })
}

/// Tokens that are neither text nor thoughts, of the prompt and of the answer.
const MEDIA: [&[&str]; 8] = [
    &["prompt_tokens_details", "audio_tokens"],
    &["prompt_tokens_details", "image_tokens"],
    &["input_tokens_details", "audio_tokens"],
    &["input_tokens_details", "image_tokens"],
    &["completion_tokens_details", "audio_tokens"],
    &["completion_tokens_details", "image_tokens"],
    &["output_tokens_details", "audio_tokens"],
    &["output_tokens_details", "image_tokens"],
];

/// The tier that an answer, a chunk, or the response that an event holds was made in.
pub(super) fn tier(members: &Scan, data: &[u8]) -> Option<Tier> {
    #[derive(Deserialize)]
    struct Event {
        response: Option<Holder>,
    }
    #[derive(Deserialize)]
    struct Holder {
        service_tier: Option<String>,
    }
    if members.span(Field::ServiceTier).is_some() {
        // `null` says nothing.
        return members.string(data, Field::ServiceTier).ok()?.map(|word| Tier::parse(&word));
    }
    members.span(Field::Type)?;
    let event = serde_json::from_slice::<Event>(data).ok()?;
    event.response?.service_tier.map(|word| Tier::parse(&word))
}

/// The usage object of an event: a chunk's own, or that of the response it holds.
pub(super) fn usage_of_event(members: &Scan, data: &[u8]) -> Option<Map<String, Value>> {
    #[derive(Deserialize)]
    struct Event {
        response: Option<Holder>,
    }
    #[derive(Deserialize)]
    struct Holder {
        usage: Option<Map<String, Value>>,
    }
    match members.raw(data, Field::Usage) {
        Some(raw) => serde_json::from_slice(raw).ok(),
        // Events of a response have a type, chunks of a completion have none.
        None if members.span(Field::Type).is_some() => {
            serde_json::from_slice::<Event>(data).ok()?.response?.usage
        }
        None => None,
    }
}

/// Whether a chunk that tells usage tells nothing else: its choices are none, or say nothing (LiteLLM's have an empty
/// delta there).
pub(super) fn is_usage_only(data: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Chunk {
        choices: Vec<Map<String, Value>>,
    }
    let says = |(name, value): (&String, &Value)| {
        name != "index" && !value.is_null() && !value.as_object().is_some_and(Map::is_empty)
    };
    let chunk = serde_json::from_slice::<Chunk>(data);
    chunk.is_ok_and(|chunk| !chunk.choices.iter().any(|choice| choice.iter().any(says)))
}

/// How many prompts a request of completions has: one is a text or a list of numbers.
pub(super) fn prompts(found: &Scan, body: &[u8]) -> u64 {
    let Some(list) = found.raw(body, Field::Prompt).and_then(|raw| raw.strip_prefix(b"[")) else { return 1 };
    if !matches!(list.trim_ascii_start().first(), Some(b'"' | b'[')) {
        return 1;
    }
    let raw = found.raw(body, Field::Prompt).unwrap_or_default();
    serde_json::from_slice::<Vec<IgnoredAny>>(raw).map_or(1, |prompts| prompts.len() as u64)
}

/// The event that breaks a response off.
pub(super) const ERROR: &[u8] = b"error";

/// The event with which a response ends that failed.
pub(super) const FAILED: &[u8] = b"response.failed";

/// The error that such an event holds.
pub(super) fn fault_of_failed(data: &[u8]) -> super::Fault {
    #[derive(Deserialize)]
    struct Event<'a> {
        #[serde(borrow)]
        response: Holder<'a>,
    }
    #[derive(Deserialize)]
    struct Holder<'a> {
        #[serde(borrow)]
        error: &'a RawValue,
    }
    let event = serde_json::from_slice::<Event<'_>>(data);
    super::fault(event.map_or("null", |event| event.response.error.get()).as_bytes())
}

/// Whether a frame is the last: `[DONE]`, or the event that ends a response.
pub(super) fn is_last(frame: &[u8]) -> bool {
    const ENDS: [&[u8]; 4] = [b"response.completed", b"response.incomplete", FAILED, ERROR];
    match crate::sse::name(frame) {
        Some(name) => ENDS.contains(&name),
        None => {
            frame.len() < 32
                && memmem::find(frame, b"[DONE]").is_some()
                && crate::sse::data(frame).is_some_and(|data| data.trim_ascii() == b"[DONE]")
        }
    }
}

//! OpenAI's dialect, and what its many speakers do differently.
//!
//! In a stream usage may come in any chunk, alone (`choices` is `[]`), with an empty choice, or with the finish reason, and
//! in `x_groq` or a choice instead of the chunk itself; where several tell it the last one counts. The tier stands beside
//! it.

use crate::scan::{Field, Scan};
use crate::usage::Tier;
use memchr::memmem;
use protocol::counts;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};

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

/// The usage object of an answer or an event: its own, that of the response it holds, or one elsewhere in a chunk.
pub(super) fn usage_of(members: &Scan, data: &[u8]) -> Option<Map<String, Value>> {
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
        // The word stands there once in each chunk whose own is `null`.
        None => {
            let own = usize::from(members.span(Field::Usage).is_some());
            memmem::find_iter(data, b"\"usage\"").nth(own)?;
            counts::of_completion(&serde_json::from_slice(data).ok()?).cloned()
        }
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
    match crate::sse::name(frame) {
        Some(name) => super::form::ENDS_OF_A_RESPONSE.contains(&name),
        None => {
            frame.len() < 32
                && memmem::find(frame, b"[DONE]").is_some()
                && crate::sse::data(frame).is_some_and(|data| data.trim_ascii() == b"[DONE]")
        }
    }
}

//! Anthropic's Messages.
//!
//! Usage: `input_tokens` counts what no cache had; tokens read from a cache and written to one stand beside it and are
//! added here. A stream tells it in `message_start` and again, as running totals, in `message_delta`, which may hold the
//! output only or all of it.

use super::count;
use crate::scan::{Field, Scan};
use crate::usage::{Tier, Usage};
use serde::Deserialize;
use serde_json::{Map, Value};

/// Reads a usage object.
pub(super) fn usage(raw: &Map<String, Value>) -> Option<Usage> {
    let uncached = count(raw, &["input_tokens"])?;
    let cached_input = count(raw, &["cache_read_input_tokens"]);
    let cache_write = count(raw, &["cache_creation_input_tokens"]);
    Some(Usage {
        input: uncached + cached_input.unwrap_or(0) + cache_write.unwrap_or(0),
        cached_input,
        cache_write,
        cache_write_1h: count(raw, &["cache_creation", "ephemeral_1h_input_tokens"]),
        output: count(raw, &["output_tokens"])?,
        reasoning: None,
        tier: raw.get("service_tier").and_then(Value::as_str).map_or(Tier::Standard, Tier::parse),
        media: false,
    })
}

/// The usage object of an event: a delta's own, or that of the message it begins.
pub(super) fn usage_of_event(members: &Scan, data: &[u8]) -> Option<Map<String, Value>> {
    #[derive(Deserialize)]
    struct Event {
        message: Option<Holder>,
    }
    #[derive(Deserialize)]
    struct Holder {
        usage: Option<Map<String, Value>>,
    }
    match members.raw(data, Field::Usage) {
        Some(raw) => serde_json::from_slice(raw).ok(),
        None => serde_json::from_slice::<Event>(data).ok()?.message?.usage,
    }
}

/// Lays a later report over the earlier ones.
pub(super) fn merge(raw: &mut Map<String, Value>, later: Map<String, Value>) {
    raw.extend(later.into_iter().filter(|(_, value)| !value.is_null()));
}

/// Whether a frame is the last.
pub(super) fn is_last(frame: &[u8]) -> bool {
    crate::sse::name(frame) == Some(b"message_stop")
}

/// Whether a frame holds a piece of the answer.
pub(super) fn is_piece(frame: &[u8]) -> bool {
    crate::sse::name(frame) == Some(b"content_block_delta")
}

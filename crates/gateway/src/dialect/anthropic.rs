//! Anthropic's Messages.
//!
//! A stream tells usage in `message_start` and again, as running totals, in `message_delta`, which may hold the output
//! only or all of it.

use crate::scan::{Field, Scan};
use crate::usage::Tier;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The tier that a usage object tells.
pub(super) fn tier(raw: &Map<String, Value>) -> Tier {
    raw.get("service_tier").and_then(Value::as_str).map_or(Tier::Standard, Tier::parse)
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

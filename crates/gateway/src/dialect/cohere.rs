//! Cohere's own chat (`v2/chat`), embeddings and rerank.
//!
//! Usage: `usage.tokens` counts what the model read and wrote, the service's own additions to the prompt included, and
//! `usage.billed_units` what is charged for, which is what counts here; `cached_tokens` stand among the input. Embeddings and
//! rerank tell `meta.billed_units`, which no price here is in. A stream tells usage in its last event, `message-end`. Source:
//! `UsageTokens` and `UsageBilledUnits` in Cohere's API Reference, version 2.

use serde::Deserialize;
use serde_json::{Map, Value};

/// The usage object of an event.
pub(super) fn usage_of_event(data: &[u8]) -> Option<Map<String, Value>> {
    #[derive(Deserialize)]
    struct Event {
        delta: Delta,
    }
    #[derive(Deserialize)]
    struct Delta {
        usage: Map<String, Value>,
    }
    Some(serde_json::from_slice::<Event>(data).ok()?.delta.usage)
}

/// Whether a frame is the last.
pub(super) fn is_last(frame: &[u8]) -> bool {
    crate::sse::name(frame) == Some(b"message-end")
}

#[cfg(test)]
mod tests {
    use super::super::{Dialect, Watcher};
    use crate::usage::Usage;

    #[test]
    fn what_is_billed_counts_and_is_the_same_streamed() {
        let told = r#"{"billed_units":{"input_tokens":7,"output_tokens":3},"tokens":{"input_tokens":70,"output_tokens":5},"cached_tokens":4}"#;
        let expected = Usage { input: 7, cached_input: Some(4), output: 3, ..Usage::default() };
        let body = format!(r#"{{"id":"x","finish_reason":"COMPLETE","message":{{}},"usage":{told}}}"#);
        let found = Dialect::Cohere.usage_of_body(body.as_bytes());
        assert_eq!(found.map(|reported| reported.usage), Some(expected));
        let mut watcher = Watcher::new(Dialect::Cohere);
        let event =
            format!(r#"{{"type":"message-end","delta":{{"finish_reason":"COMPLETE","usage":{told}}}}}"#);
        assert!(watcher.frame(format!("event: message-end\ndata: {event}\n\n").as_bytes()).last);
        assert_eq!(watcher.reported().map(|reported| reported.usage), Some(expected));
        let plain =
            Dialect::Cohere.usage_of_body(br#"{"usage":{"tokens":{"input_tokens":70,"output_tokens":5}}}"#);
        assert_eq!(plain.map(|reported| reported.usage.input), Some(70));
    }

    #[test]
    fn of_other_dialects_nothing_is_read() {
        let body = br#"{"error":"out of memory","usage":{"prompt_tokens":1,"completion_tokens":1}}"#;
        assert_eq!(Dialect::Other.usage_of_body(body), None);
        assert_eq!(Dialect::Other.answer_of_body(None, body), Ok(None));
    }
}

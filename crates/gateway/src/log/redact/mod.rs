//! Takes secrets and common personal data out of what is kept of requests and answers. What goes to a provider or a
//! client is never touched.
//!
//! Found: bearer tokens, API keys of known forms, private keys, passwords in addresses, e-mail addresses, phone numbers
//! with a country code or in the American form, numbers of cards (with a right check digit), IBANs (the same), and IP
//! addresses. Each is replaced by a word in brackets that says what it was.
//!
//! Invariant: JSON stays JSON. Only what is inside a string changes, and whole numbers that are those of cards, which
//! become strings. What is only found, for data loss prevention (`policy::dlp`), is found by the same rules. In a stream of events, texts that come in pieces are looked at together. Not found: what has no form of
//! its own (names, addresses of houses), and what a client encodes.

use serde_json::Value;
use std::collections::BTreeSet;

mod checks;
mod json;
mod stream;
pub(crate) mod text;

/// A payload without secrets and personal data; `content_type` is the one it came with.
#[must_use]
pub fn redacted(payload: &str, content_type: Option<&str>) -> String {
    let kind = content_type.unwrap_or_default().to_ascii_lowercase();
    if kind.starts_with("text/event-stream") {
        return stream::redacted(payload);
    }
    if kind.contains("json") || payload.trim_start().starts_with(['{', '[']) {
        return json::redacted(payload);
    }
    text::redacted(payload).into_owned()
}

/// Takes out of entries of metadata what would be taken out of JSON with members of these names.
pub(super) fn redact_metadata(entries: &mut [(String, Value)]) {
    for (name, value) in entries {
        let entry = json::redacted(&serde_json::json!({ &*name: &*value }).to_string());
        // The name may be changed as well, and stays what it was.
        let entry = serde_json::from_str::<serde_json::Map<String, Value>>(&entry);
        if let Some((_, redacted)) = entry.ok().and_then(|entry| entry.into_iter().next()) {
            *value = redacted;
        }
    }
}

/// The words that would stand in a payload for what is found in it. Looked at is what is said: not what is encoded (data
/// URLs, long texts of base64's letters alone), in which anything may be found, nor members that are secrets by their name.
#[must_use]
pub(crate) fn found(payload: &str, content_type: Option<&str>) -> BTreeSet<&'static str> {
    let kind = content_type.unwrap_or_default().to_ascii_lowercase();
    let mut words = BTreeSet::new();
    if kind.starts_with("text/event-stream") {
        stream::found(payload, &mut words);
    } else if kind.contains("json") || payload.trim_start().starts_with(['{', '[']) {
        json::found(payload, &mut words);
    } else {
        text::found(payload, &mut words);
    }
    words
}

#[cfg(test)]
mod tests;

//! Goes through JSON, or what is left of it, and changes the contents of its strings only.
//!
//! The text is not parsed to a tree: what nothing was found in comes back byte for byte, a payload that was cut is gone
//! through as far as it goes, and lines that are none of JSON between (those of a stream) are passed over.

use super::text;
use serde_json::Value;
use std::collections::BTreeSet;

/// Members whose value is a secret whatever its form.
const SECRETS: &[&str] = &[
    "access_token",
    "api-key",
    "api_key",
    "apikey",
    "auth_token",
    "authorization",
    "client_secret",
    "passwd",
    "password",
    "private_key",
    "refresh_token",
    "secret",
    "secret_key",
    "x-api-key",
];

/// The same JSON without secrets and personal data.
pub(super) fn redacted(json: &str) -> String {
    let bytes = json.as_bytes();
    let mut out = String::with_capacity(json.len());
    // What was copied so far, and whether the string before is a key whose value is a secret.
    let (mut from, mut at) = (0, 0);
    let (mut last, mut secret) = (None, false);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                let end = string_end(bytes, at + 1);
                let closed = end <= bytes.len() && end > at + 1 && bytes[end - 1] == b'"';
                let inner = &json[at + 1..if closed { end - 1 } else { end }];
                if let Some(changed) = string(inner, secret) {
                    out.push_str(&json[from..=at]);
                    out.push_str(&changed);
                    from = if closed { end - 1 } else { end };
                }
                last = Some(inner);
                secret = false;
                at = end;
            }
            b':' => {
                secret = last.is_some_and(|key| SECRETS.contains(&key.to_ascii_lowercase().as_str()));
                last = None;
                at += 1;
            }
            b'0'..=b'9' => {
                let length = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                if is_whole(bytes, at, length) && text::is_card(&json[at..at + length]) {
                    out.push_str(&json[from..at]);
                    out.push_str(&Value::from(text::CARD).to_string());
                    from = at + length;
                }
                at += length;
                (last, secret) = (None, false);
            }
            byte if byte.is_ascii_whitespace() => at += 1,
            _ => {
                (last, secret) = (None, false);
                at += 1;
            }
        }
    }
    out.push_str(&json[from..]);
    out
}

/// Adds the words for what is found in JSON's strings and whole numbers.
pub(super) fn found(json: &str, words: &mut BTreeSet<&'static str>) {
    let bytes = json.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                let end = string_end(bytes, at + 1);
                let closed = end > at + 1 && bytes[end - 1] == b'"';
                let inner = &json[at + 1..if closed { end - 1 } else { end }];
                match inner.contains('\\').then(|| serde_json::from_str::<String>(&json[at..end])) {
                    Some(Ok(text)) => text::found(&text, words),
                    _ => text::found(inner, words),
                }
                at = end;
            }
            byte if byte.is_ascii_digit() => {
                let length = bytes[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                if is_whole(bytes, at, length) && text::is_card(&json[at..at + length]) {
                    words.insert(text::CARD);
                }
                at += length;
            }
            _ => at += 1,
        }
    }
}

/// Whether digits are a number of their own, and no part of one with a point or an exponent.
fn is_whole(bytes: &[u8], at: usize, length: usize) -> bool {
    let alone =
        |byte: Option<&u8>| !byte.is_some_and(|byte| matches!(byte, b'.' | b'e' | b'E' | b'-' | b'+'));
    alone(at.checked_sub(1).and_then(|before| bytes.get(before))) && alone(bytes.get(at + length))
}

/// Where a string ends, behind its quotation mark, or where the text does.
fn string_end(bytes: &[u8], mut at: usize) -> usize {
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes[at] == b'"' {
            return at + 1;
        }
        at = (at + 2).min(bytes.len());
    }
    bytes.len()
}

/// A string's contents, escaped, where something was taken out.
fn string(inner: &str, secret: bool) -> Option<String> {
    if secret && !inner.is_empty() {
        return Some(text::SECRET.to_owned());
    }
    // What has no escapes is its own text.
    let plain;
    let text = if inner.contains('\\') {
        match serde_json::from_str::<String>(&format!("\"{inner}\"")) {
            Ok(text) => {
                plain = text;
                &plain
            }
            // Half an escape at the cut, or half a pair of surrogates: looked at as it stands.
            Err(_) => inner,
        }
    } else {
        inner
    };
    let finds = text::redacted(text);
    match finds {
        std::borrow::Cow::Borrowed(_) => None,
        std::borrow::Cow::Owned(changed) if std::ptr::eq(text, inner) && inner.contains('\\') => {
            // It is still escaped. A find that begins or ends within an escape would break it.
            let whole = serde_json::from_str::<Value>(&format!("\"{changed}\"")).is_ok();
            Some(if whole { changed } else { text::SECRET.to_owned() })
        }
        std::borrow::Cow::Owned(changed) => {
            let quoted = Value::from(changed).to_string();
            Some(quoted[1..quoted.len() - 1].to_owned())
        }
    }
}

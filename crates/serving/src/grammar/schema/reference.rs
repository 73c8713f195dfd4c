//! What a `$ref` refers to: always a place in the same schema.

use super::escaped;
use serde_json::Value;
use std::collections::HashMap;

/// The identifiers of a schema, and the pointers to where they stand.
pub(super) struct References {
    named: HashMap<String, String>,
}

impl References {
    pub fn new(root: &Value) -> Self {
        let mut named = HashMap::new();
        let base = root.get("$id").and_then(Value::as_str).unwrap_or_default();
        gather(root, String::new(), base.trim_end_matches('#'), 0, &mut named);
        Self { named }
    }

    /// Whether a reference means another document.
    pub fn is_elsewhere(&self, reference: &str) -> bool {
        let base = reference.split('#').next().unwrap_or_default();
        !base.is_empty() && !self.named.contains_key(reference) && !self.named.contains_key(base)
    }

    /// The pointer that a reference means.
    ///
    /// # Errors
    /// It means nothing in this schema; the text says why.
    pub fn resolve(&self, root: &Value, reference: &str) -> Result<String, String> {
        if let Some(pointer) = self.named.get(reference) {
            return Ok(pointer.clone());
        }
        let (base, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let start = if base.is_empty() {
            ""
        } else {
            self.named.get(base).ok_or_else(|| {
                format!("`{reference}` is not in this schema, and nothing is fetched from elsewhere")
            })?
        };
        let pointer = format!("{start}{}", decoded(fragment).unwrap_or_default());
        // `#/` is written for the root, though it names the member with the empty name.
        let pointer = if pointer == "/" && root.get("").is_none() { String::new() } else { pointer };
        let found = pointer.is_empty() || pointer.starts_with('/');
        match root.pointer(&pointer).filter(|_| found) {
            Some(_) => Ok(pointer),
            None => Err(format!("`{reference}` refers to nothing in this schema")),
        }
    }
}

/// Notes the identifiers and anchors below a value.
fn gather(value: &Value, at: String, base: &str, depth: usize, named: &mut HashMap<String, String>) {
    // Deeper than schemas may nest, with the objects between them.
    if depth > 256 {
        return;
    }
    match value {
        Value::Object(members) => {
            for key in ["$id", "id"] {
                if let Some(id) = members.get(key).and_then(Value::as_str) {
                    named.entry(id.trim_end_matches('#').to_owned()).or_insert_with(|| at.clone());
                }
            }
            for key in ["$anchor", "$dynamicAnchor"] {
                if let Some(anchor) = members.get(key).and_then(Value::as_str) {
                    named.entry(format!("#{anchor}")).or_insert_with(|| at.clone());
                    named.entry(format!("{base}#{anchor}")).or_insert_with(|| at.clone());
                }
            }
            for (key, member) in members.iter().filter(|(key, _)| *key != "enum" && *key != "const") {
                gather(member, format!("{at}/{}", escaped(key)), base, depth + 1, named);
            }
        }
        Value::Array(items) => {
            for (i, item) in items.iter().enumerate() {
                gather(item, format!("{at}/{i}"), base, depth + 1, named);
            }
        }
        _ => {}
    }
}

/// Undoes percent-encoding.
fn decoded(fragment: &str) -> Option<String> {
    if !fragment.contains('%') {
        return Some(fragment.to_owned());
    }
    let mut bytes = Vec::with_capacity(fragment.len());
    let mut rest = fragment.as_bytes();
    while let Some((first, tail)) = rest.split_first() {
        rest = tail;
        if *first == b'%' {
            let digits = std::str::from_utf8(tail.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &tail[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).ok()
}

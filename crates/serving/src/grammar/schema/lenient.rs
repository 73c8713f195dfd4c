//! What is left out of a schema that need not be enforced whole: exactly the keywords that no grammar here
//! can hold an answer to, so that the rest is enforced. Whether several options of a `oneOf` fit is not looked at.
//!
//! This is for tools that are not `strict`. A schema without such a keyword describes more documents than its
//! author's, never fewer; what is broken, endless or too large is left in, and refused where it stands.

use super::keyword::{self, Kind};
use super::reference::References;
use super::{Fields, Limits};
use serde_json::{Value, json};

/// The schema without them; `None` where there are none.
pub(super) fn without(fields: &Fields, references: &References, limits: &Limits) -> Option<Fields> {
    let idle: Vec<&String> = fields
        .iter()
        .filter(|(key, value)| cannot_hold(key, value, fields, references, limits))
        .map(|(key, _)| key)
        .collect();
    if idle.is_empty() {
        return None;
    }
    let mut out = fields.clone();
    out.retain(|key, _| !idle.contains(&key));
    Some(out)
}

/// Whether a keyword is well formed and still more than a grammar can enforce.
fn cannot_hold(key: &str, value: &Value, fields: &Fields, references: &References, limits: &Limits) -> bool {
    let is_schema = value.is_object() || value.is_boolean();
    match key {
        _ if keyword::kind(key) == Kind::Unsupported => true,
        "not" => is_schema && *value != Value::Bool(true) && *value != json!({}),
        "uniqueItems" => *value == Value::Bool(true),
        "unevaluatedProperties" | "unevaluatedItems" => {
            let twin = if key == "unevaluatedItems" { "items" } else { "additionalProperties" };
            let applied = fields.keys().any(|key| keyword::kind(key) == Kind::Applicator);
            is_schema && (applied || fields.contains_key(twin))
        }
        "propertyNames" => is_schema && !names_can_be_held(value, fields),
        // A long text is not cut for the sake of counting it.
        "minLength" | "maxLength" => value.as_f64().is_some_and(|length| length > limits.length as f64),
        "minItems" | "minProperties" => value.as_f64().is_some_and(|count| count > limits.count as f64),
        "minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum" => {
            value.as_f64().is_some_and(|bound| keyword::is_out_of_reach(key, bound))
        }
        "multipleOf" => value.as_f64().is_some_and(|step| step > 0.0 && !keyword::is_handy_step(step)),
        "pattern" => value.as_str().is_some_and(looks_around),
        "$ref" => value.as_str().is_some_and(|reference| references.is_elsewhere(reference)),
        _ => false,
    }
}

/// Whether `propertyNames` can be said by other keywords.
fn names_can_be_held(names: &Value, fields: &Fields) -> bool {
    let Value::Object(inner) = names else { return *names == Value::Bool(true) };
    let plain = !fields.contains_key("properties") && !fields.contains_key("patternProperties");
    let said: Vec<(&String, &Value)> =
        inner.iter().filter(|(key, _)| keyword::kind(key) != Kind::Annotation && *key != "type").collect();
    match said.as_slice() {
        [] => true,
        [(key, _)] if *key == "enum" => plain,
        [(key, pattern)] if *key == "pattern" => plain && !pattern.as_str().is_some_and(looks_around),
        _ => false,
    }
}

/// Whether a regular expression asks for what no automaton does: to look around, or back at what was matched.
pub(super) fn looks_around(pattern: &str) -> bool {
    let mut rest = pattern;
    let mut in_class = false;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        match c {
            '\\' => {
                let escaped = after.chars().next().unwrap_or(' ');
                if !in_class && matches!(escaped, '1'..='9' | 'k' | 'b' | 'B') {
                    return true;
                }
                rest = after.get(escaped.len_utf8()..).unwrap_or_default();
                continue;
            }
            '[' => in_class = true,
            ']' => in_class = false,
            '(' if !in_class && ["?=", "?!", "?<=", "?<!"].iter().any(|mark| after.starts_with(mark)) => {
                return true;
            }
            _ => {}
        }
        rest = after;
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_that_look_around_or_back_are_told_from_those_that_only_seem_to() {
        for pattern in ["^(?!x)a$", "a(?=b)", "(?<=a)b", "(?<!a)b", "(a)\\1", "(?<n>a)\\k<n>", "\\bword\\b"] {
            assert!(looks_around(pattern), "{pattern}");
        }
        for pattern in ["^a$", "(?:a|b)", "\\(?=a", "[(?=]", "(?<name>a)", "[\\b]", "\\\\1", "a\\", ""] {
            assert!(!looks_around(pattern), "{pattern}");
        }
    }
}

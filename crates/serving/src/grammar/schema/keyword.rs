//! The keywords of JSON Schema: which are enforced, which are annotations, which are refused.

use super::{Fault, Fields, escaped};
use serde_json::Value;

/// The types a schema may name.
pub(super) const TYPES: [&str; 7] = ["null", "boolean", "integer", "number", "string", "array", "object"];

/// What a keyword does.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Kind {
    /// Restricts the value, and is enforced.
    Assertion,
    /// Applies other schemas to the same value.
    Applicator,
    /// Restricts nothing.
    Annotation,
    /// Restricts the value in a way that no grammar here enforces.
    Unsupported,
}

/// Words that no draft knows are annotations, as the standard has it.
pub(super) fn kind(keyword: &str) -> Kind {
    match keyword {
        "type"
        | "enum"
        | "const"
        | "properties"
        | "patternProperties"
        | "additionalProperties"
        | "propertyNames"
        | "required"
        | "minProperties"
        | "maxProperties"
        | "items"
        | "prefixItems"
        | "additionalItems"
        | "minItems"
        | "maxItems"
        | "uniqueItems"
        | "minLength"
        | "maxLength"
        | "pattern"
        | "format"
        | "minimum"
        | "maximum"
        | "exclusiveMinimum"
        | "exclusiveMaximum"
        | "multipleOf"
        | "not"
        | "unevaluatedProperties"
        | "unevaluatedItems" => Kind::Assertion,
        "$ref" | "anyOf" | "allOf" | "oneOf" => Kind::Applicator,
        "if" | "dependentRequired" | "dependentSchemas" | "dependencies" | "contains" | "$dynamicRef"
        | "$recursiveRef" => Kind::Unsupported,
        _ => Kind::Annotation,
    }
}

/// Refuses what is not enforced.
pub(super) fn check(fields: &Fields, at: &str) -> Result<(), Fault> {
    for (key, value) in fields {
        let here = || format!("{at}/{}", escaped(key));
        match kind(key) {
            Kind::Unsupported if !says_nothing(value) => {
                return Err(Fault::new(here(), format!("`{key}` is not supported")));
            }
            Kind::Assertion if key.starts_with("unevaluated") => {
                let applied = fields.keys().any(|key| kind(key) == Kind::Applicator);
                let twin = if key == "unevaluatedItems" { "items" } else { "additionalProperties" };
                if applied || fields.contains_key(twin) {
                    let message =
                        format!("`{key}` is supported without `{twin}`, `$ref` and combinations only");
                    return Err(Fault::new(here(), message));
                }
            }
            _ => {}
        }
    }
    Ok(())
}

/// `dependencies` and the like without entries.
fn says_nothing(value: &Value) -> bool {
    value.as_object().is_some_and(serde_json::Map::is_empty)
}

/// The types of which a schema speaks that names none.
pub(super) fn implied_types(fields: &Fields) -> Vec<&'static str> {
    if fields.contains_key("enum") || fields.contains_key("const") {
        return Vec::new();
    }
    let speaks = |keys: &[&str]| keys.iter().any(|key| fields.contains_key(*key));
    let mut types = Vec::new();
    let of_objects = ["properties", "patternProperties", "additionalProperties", "required", "minProperties"];
    if speaks(&of_objects) || speaks(&["maxProperties", "propertyNames"]) {
        types.push("object");
    }
    if speaks(&["items", "prefixItems", "minItems", "maxItems"]) {
        types.push("array");
    }
    if speaks(&["pattern", "minLength", "maxLength"]) {
        types.push("string");
    }
    if speaks(&["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]) {
        types.push("number");
    }
    types
}

/// Whether a value has the type, or one of the types, that a schema asks for.
pub(super) fn fits_type(value: &Value, types: Option<&Value>) -> bool {
    let fits = |name: &str| match (name, value) {
        ("integer", Value::Number(number)) => number.as_f64().is_some_and(|number| number.fract() == 0.0),
        (name, value) => name == type_of(value),
    };
    match types {
        None => true,
        Some(Value::String(name)) => fits(name),
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).any(fits),
        Some(_) => false,
    }
}

/// The type of a value; `number` also for whole numbers.
pub(super) fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Whether answers cannot say a constant: control characters without a short escape are not written, and large
/// numbers not exactly.
pub(super) fn unwritable(value: &Value) -> bool {
    let odd = |text: &str| {
        text.chars()
            .any(|c| (c < ' ' && !matches!(c, '\n' | '\r' | '\t' | '\u{8}' | '\u{c}')) || c == '\u{7f}')
    };
    match value {
        Value::String(text) => odd(text),
        Value::Number(number) => number.as_f64().is_none_or(|number| number.abs() > 1e15),
        Value::Array(items) => items.iter().any(unwritable),
        Value::Object(members) => members.iter().any(|(name, value)| odd(name) || unwritable(value)),
        Value::Null | Value::Bool(_) => false,
    }
}

/// Whether only numbers beyond what is exact in a double keep this bound.
pub(super) fn is_out_of_reach(key: &str, bound: f64) -> bool {
    let largest = super::LARGEST as f64;
    match key {
        "minimum" => bound > largest,
        "exclusiveMinimum" => bound >= largest,
        "maximum" => bound < -largest,
        _ => bound <= -largest,
    }
}

/// Whether `multipleOf` can have this value: above 0, with at most nine digits in all.
pub(super) fn is_handy_step(step: f64) -> bool {
    (1e-6..=1e9).contains(&step) && {
        let scaled = step * 1e6;
        (scaled - scaled.round()).abs() <= scaled * 1e-12
    }
}

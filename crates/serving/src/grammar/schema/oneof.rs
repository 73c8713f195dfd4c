//! Whether the options of a `oneOf` exclude each other.
//!
//! A document must fit exactly one option, and a grammar cannot count. So each option, as it was lowered
//! (which may describe fewer documents than the caller wrote), must be seen to exclude each other option as the
//! caller wrote it. What cannot be seen is refused.

use super::reference::References;
use super::{Alternatives, Fault, Fields, keyword};
use serde_json::Value;

/// References and combinations are followed so deep.
const DEPTH: usize = 24;

/// # Errors
/// Two options may both fit a document.
pub(super) fn check(
    alternatives: &Alternatives,
    root: &Value,
    references: &References,
    definitions: &Fields,
) -> Result<(), Fault> {
    let judge = Judge { root, references, definitions };
    let count = alternatives.lowered.len();
    // More pairs than a person writes.
    if count > 200 {
        return Err(Fault::new(&alternatives.pointer, "`oneOf` has at most 200 options"));
    }
    for (i, lowered) in alternatives.lowered.iter().enumerate() {
        for (j, original) in alternatives.originals.iter().enumerate().filter(|(j, _)| *j != i) {
            let original = root.pointer(original).unwrap_or(&Value::Null);
            if !judge.excludes(lowered, original, DEPTH) {
                let message = format!(
                    "a document may fit the options {} and {} at once; `oneOf` is supported where \
                     no document can: give them different types, or a property with different constants; or use \
                     `anyOf`",
                    i.min(j),
                    i.max(j)
                );
                return Err(Fault::new(&alternatives.pointer, message));
            }
        }
    }
    Ok(())
}

struct Judge<'a> {
    root: &'a Value,
    references: &'a References,
    definitions: &'a Fields,
}

impl Judge<'_> {
    /// Whether certainly no document of `lowered` fits `original`.
    fn excludes(&self, lowered: &Value, original: &Value, depth: usize) -> bool {
        let Some(depth) = depth.checked_sub(1) else { return false };
        let (low, orig) = match (lowered, original) {
            (Value::Bool(false), _) | (_, Value::Bool(false)) => return true,
            (Value::Object(low), Value::Object(orig)) => (low, orig),
            _ => return false,
        };
        if let Some(name) = low.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix("#/$defs/")) {
            let definition = self.definitions.get(name);
            if definition.is_some_and(|definition| self.excludes(definition, original, depth)) {
                return true;
            }
        }
        if let Some(reference) = orig.get("$ref").and_then(Value::as_str)
            && let Ok(pointer) = self.references.resolve(self.root, reference)
            && let Some(target) = self.root.pointer(&pointer)
            && self.excludes(lowered, target, depth)
        {
            return true;
        }
        let options = |fields: &Fields, key: &str| fields.get(key).and_then(Value::as_array).cloned();
        if options(low, "anyOf").is_some_and(|all| all.iter().all(|one| self.excludes(one, original, depth)))
            || options(low, "allOf")
                .is_some_and(|all| all.iter().any(|one| self.excludes(one, original, depth)))
            || options(orig, "allOf")
                .is_some_and(|all| all.iter().any(|one| self.excludes(lowered, one, depth)))
            || ["anyOf", "oneOf"].iter().any(|key| {
                options(orig, key).is_some_and(|all| all.iter().all(|one| self.excludes(lowered, one, depth)))
            })
        {
            return true;
        }
        types_differ(low, orig) || self.objects_differ(low, orig, depth) || ranges_differ(low, orig)
    }

    fn objects_differ(&self, low: &Fields, orig: &Fields, depth: usize) -> bool {
        if low.get("type").and_then(Value::as_str) != Some("object") {
            return false;
        }
        let names = |fields: &Fields| -> Vec<String> {
            let all = fields.get("required").and_then(Value::as_array).cloned().unwrap_or_default();
            all.iter().filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let member =
            |fields: &Fields, name: &str| fields.get("properties").and_then(|p| p.get(name)).cloned();
        let is_closed = |fields: &Fields| {
            fields.get("additionalProperties") == Some(&Value::Bool(false))
                && !fields.contains_key("patternProperties")
        };
        names(low).iter().any(|name| match (member(low, name), member(orig, name)) {
            (Some(low), Some(orig)) => self.excludes(&low, &orig, depth),
            (_, None) => is_closed(orig),
            (None, Some(_)) => false,
        }) || names(orig).iter().any(|name| is_closed(low) && member(low, name).is_none())
    }
}

/// The constants that a schema lists.
fn constants(fields: &Fields) -> Option<Vec<&Value>> {
    match (fields.get("const"), fields.get("enum").and_then(Value::as_array)) {
        (Some(one), _) => Some(vec![one]),
        (None, Some(all)) => Some(all.iter().collect()),
        (None, None) => None,
    }
}

fn same(a: &Value, b: &Value) -> bool {
    match (a.as_f64(), b.as_f64()) {
        (Some(a), Some(b)) => a == b,
        _ => a == b,
    }
}

/// Whether types or constants keep the two apart.
fn types_differ(low: &Fields, orig: &Fields) -> bool {
    if let Some(low) = constants(low) {
        return match constants(orig) {
            Some(orig) => !low.iter().any(|low| orig.iter().any(|orig| same(low, orig))),
            None => !low.iter().any(|value| keyword::fits_type(value, orig.get("type"))),
        };
    }
    let listed = |types: &Value| -> Vec<String> {
        let all = match types {
            Value::Array(all) => all.clone(),
            one => vec![one.clone()],
        };
        let all = all.iter().filter_map(Value::as_str);
        all.map(|name| if name == "integer" { "number" } else { name }.to_owned()).collect()
    };
    let Some(low) = low.get("type").map(listed) else { return false };
    let orig = match (constants(orig), orig.get("type")) {
        (Some(values), _) => values.into_iter().map(|value| keyword::type_of(value).to_owned()).collect(),
        (None, Some(types)) => listed(types),
        (None, None) => return false,
    };
    !low.iter().any(|name| orig.contains(name))
}

/// Whether two ranges of numbers do not meet.
fn ranges_differ(low: &Fields, orig: &Fields) -> bool {
    let is_number =
        |fields: &Fields| matches!(fields.get("type").and_then(Value::as_str), Some("number" | "integer"));
    if !is_number(low) {
        return false;
    }
    let bound = |fields: &Fields, key: &str| fields.get(key).and_then(Value::as_f64);
    let apart = |below: &Fields, above: &Fields| {
        [
            ("maximum", "minimum", false),
            ("exclusiveMaximum", "minimum", true),
            ("maximum", "exclusiveMinimum", true),
        ]
        .into_iter()
        .any(|(most, least, touching)| match (bound(below, most), bound(above, least)) {
            (Some(most), Some(least)) => most < least || (touching && most <= least),
            _ => false,
        })
    };
    apart(low, orig) || apart(orig, low)
}

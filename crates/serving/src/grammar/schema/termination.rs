//! Whether a document of a schema can come to an end.
//!
//! A schema that asks for itself inside itself, with no way out, describes no document. Where such a schema
//! is one way among others it is taken out (as `false`), so that an answer cannot walk into it; where the
//! whole schema is such, it is refused.

use super::{Fault, Fields};
use serde_json::{Map, Value};
use std::collections::{HashMap, HashSet};

/// Takes references without end out of the schema and its definitions.
///
/// # Errors
/// The schema itself has no end. `origins` tells where definitions were first referred to.
pub(super) fn check(
    schema: &mut Value,
    definitions: &mut Fields,
    origins: &HashMap<String, String>,
) -> Result<(), Fault> {
    let mut ends: HashSet<String> = HashSet::new();
    loop {
        let found: Vec<String> = definitions
            .iter()
            .filter(|(name, definition)| !ends.contains(*name) && can_end(definition, &ends))
            .map(|(name, _)| name.clone())
            .collect();
        if found.is_empty() {
            break;
        }
        ends.extend(found);
    }
    if !can_end(schema, &ends) && !is_false(schema) {
        let endless = origins.iter().filter(|(name, _)| !ends.contains(*name)).map(|(_, at)| at);
        // The innermost reference is the one that closes the circle.
        if let Some(at) = endless.max_by(|a, b| (a.len(), *a).cmp(&(b.len(), *b))) {
            let message = "this refers to a schema that contains itself without end: no document can fit it";
            return Err(Fault::new(at, message));
        }
    }
    let endless: HashSet<String> = definitions.keys().filter(|name| !ends.contains(*name)).cloned().collect();
    if !endless.is_empty() {
        take_out(schema, &endless);
        definitions.retain(|name, _| !endless.contains(name));
        definitions.iter_mut().for_each(|(_, definition)| take_out(definition, &endless));
    }
    Ok(())
}

/// Whether a definition contains itself.
pub(super) fn recursive(definitions: &Fields) -> bool {
    // Takes away what refers to nothing that is left, until nothing more goes.
    let mut left: HashMap<&str, HashSet<&str>> = HashMap::new();
    for (name, definition) in definitions {
        let mut targets = HashSet::new();
        gather(definition, &mut targets);
        targets.retain(|target| definitions.contains_key(*target));
        left.insert(name, targets);
    }
    loop {
        let done: Vec<&str> =
            left.iter().filter(|(_, targets)| targets.is_empty()).map(|(name, _)| *name).collect();
        if done.is_empty() {
            return !left.is_empty();
        }
        for name in done {
            left.remove(name);
            left.values_mut().for_each(|targets| {
                targets.remove(name);
            });
        }
    }
}

/// The definitions to which a schema refers.
fn gather<'a>(value: &'a Value, targets: &mut HashSet<&'a str>) {
    match value {
        Value::Object(fields) => {
            targets.extend(fields.get("$ref").and_then(target));
            fields.iter().filter(|(key, _)| *key != "enum").for_each(|(_, field)| gather(field, targets));
        }
        Value::Array(items) => items.iter().for_each(|item| gather(item, targets)),
        _ => {}
    }
}

fn is_false(schema: &Value) -> bool {
    *schema == Value::Bool(false)
}

fn target(reference: &Value) -> Option<&str> {
    reference.as_str().and_then(|reference| reference.strip_prefix("#/$defs/"))
}

/// Whether a finite document can fit, as far as nesting goes, if these definitions have one.
fn can_end(schema: &Value, ends: &HashSet<String>) -> bool {
    let Value::Object(fields) = schema else { return !is_false(schema) };
    let all = |key: &str| fields.get(key).and_then(Value::as_array);
    if let Some(name) = fields.get("$ref").and_then(target)
        && !name.starts_with("free")
        && name != super::MERGED
        && !ends.contains(name)
    {
        return false;
    }
    if all("anyOf").is_some_and(|options| !options.iter().any(|option| can_end(option, ends)))
        || all("allOf").is_some_and(|parts| !parts.iter().all(|part| can_end(part, ends)))
    {
        return false;
    }
    let has = |name: &str| match fields.get("type") {
        Some(Value::String(one)) => one == name,
        Some(Value::Array(many)) => many.iter().any(|one| one == name),
        _ => true,
    };
    let plain = fields.contains_key("enum")
        || ["null", "boolean", "integer", "number", "string"].iter().any(|t| has(t));
    plain || (has("object") && object_can_end(fields, ends)) || (has("array") && array_can_end(fields, ends))
}

fn object_can_end(fields: &Fields, ends: &HashSet<String>) -> bool {
    let empty = Map::new();
    let properties = fields.get("properties").and_then(Value::as_object).unwrap_or(&empty);
    let required =
        fields.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str);
    let mut required =
        required.map(|name| properties.get(name).or_else(|| fields.get("additionalProperties")));
    required.all(|schema| schema.is_none_or(|schema| is_false(schema) || can_end(schema, ends)))
}

fn array_can_end(fields: &Fields, ends: &HashSet<String>) -> bool {
    let least = fields.get("minItems").and_then(Value::as_u64).unwrap_or(0) as usize;
    let prefix = fields.get("prefixItems").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let needed = prefix.iter().take(least);
    let further = if least > prefix.len() { fields.get("items") } else { None };
    needed.chain(further).all(|schema| can_end(schema, ends))
}

/// Makes references to these definitions `false`.
fn take_out(value: &mut Value, endless: &HashSet<String>) {
    let refers = value.get("$ref").and_then(target).is_some_and(|name| endless.contains(name));
    if refers {
        *value = Value::Bool(false);
        return;
    }
    match value {
        Value::Object(fields) => {
            fields
                .iter_mut()
                .filter(|(key, _)| *key != "enum")
                .for_each(|(_, field)| take_out(field, endless));
        }
        Value::Array(items) => items.iter_mut().for_each(|item| take_out(item, endless)),
        _ => {}
    }
}

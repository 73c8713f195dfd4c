//! JSON Schema in the subset that Gemini takes, which is OpenAPI's of 3.0.
//!
//! References are put in where they stand, `allOf` is merged, `oneOf` is `anyOf`, `const` is an `enum` of one, and a type
//! of its list is the type with `nullable`. Keywords that the subset lacks are left out: they hold back the model less,
//! and the caller checks what comes. The order of members is kept.

use serde_json::{Map, Value, json};

/// Keywords that are taken as they are.
const TAKEN: &[&str] = &[
    "title",
    "description",
    "nullable",
    "minItems",
    "maxItems",
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "minProperties",
    "maxProperties",
    "pattern",
    "required",
    "default",
    "example",
    "propertyOrdering",
];

/// Formats that are taken; others are refused by the API.
const FORMATS: &[&str] = &["enum", "date-time", "float", "double", "int32", "int64"];

/// References may stand inside each other this deep; what is deeper, as in a schema that holds itself, may be anything.
const DEPTH_MAX: usize = 8;

/// The schema in the subset.
pub(super) fn subset(schema: &Value) -> Value {
    Subset { root: schema }.of(schema, 0)
}

struct Subset<'a> {
    root: &'a Value,
}

impl Subset<'_> {
    fn of(&self, schema: &Value, depth: usize) -> Value {
        let Some(members) = schema.as_object() else {
            // `true` allows anything.
            return json!({});
        };
        if let Some(target) = members.get("$ref").and_then(Value::as_str) {
            let found = target.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
            return match found.filter(|_| depth < DEPTH_MAX) {
                Some(found) => {
                    let mut all = self.of(found, depth + 1);
                    // What stands beside a reference says more of this place.
                    if let (Some(all), Some(text)) = (all.as_object_mut(), members.get("description")) {
                        all.insert("description".to_owned(), text.clone());
                    }
                    all
                }
                None => json!({"type": "object"}),
            };
        }
        let mut taken = Map::new();
        for (name, value) in members {
            match name.as_str() {
                name if TAKEN.contains(&name) => drop(taken.insert(name.to_owned(), value.clone())),
                "type" => self.kind(value, &mut taken),
                "format" if value.as_str().is_some_and(|format| FORMATS.contains(&format)) => {
                    taken.insert("format".to_owned(), value.clone());
                }
                "enum" => values(value.as_array().map_or(&[], Vec::as_slice), &mut taken),
                "const" => values(std::slice::from_ref(value), &mut taken),
                "items" => drop(taken.insert("items".to_owned(), self.of(value, depth))),
                "properties" => {
                    let each = value.as_object().into_iter().flatten();
                    let each: Map<String, Value> =
                        each.map(|(name, value)| (name.clone(), self.of(value, depth))).collect();
                    if !each.is_empty() {
                        taken.insert("properties".to_owned(), each.into());
                    }
                }
                "anyOf" | "oneOf" => self.any(value, depth, &mut taken),
                "allOf" => {
                    for part in value.as_array().into_iter().flatten() {
                        if let Value::Object(part) = self.of(part, depth) {
                            merge(&mut taken, part);
                        }
                    }
                }
                _ => {}
            }
        }
        // A required member that is nowhere described is refused.
        if let Some(Value::Array(required)) = taken.get("required") {
            let properties = taken.get("properties").and_then(Value::as_object);
            let known = |name: &&Value| {
                name.as_str().is_some_and(|name| properties.is_some_and(|known| known.contains_key(name)))
            };
            let required: Vec<Value> = required.iter().filter(known).cloned().collect();
            if required.is_empty() {
                taken.remove("required");
            } else {
                taken.insert("required".to_owned(), required.into());
            }
        }
        if taken.get("type").is_some_and(|kind| kind == "array") && !taken.contains_key("items") {
            taken.insert("items".to_owned(), json!({}));
        }
        Value::Object(taken)
    }

    fn kind(&self, kind: &Value, taken: &mut Map<String, Value>) {
        let Value::Array(kinds) = kind else {
            taken.insert("type".to_owned(), kind.clone());
            return;
        };
        let others: Vec<&Value> = kinds.iter().filter(|kind| *kind != "null").collect();
        if others.len() < kinds.len() {
            taken.insert("nullable".to_owned(), true.into());
        }
        match others.as_slice() {
            [] => {}
            [one] => drop(taken.insert("type".to_owned(), (*one).clone())),
            several => {
                let each = several.iter().map(|kind| json!({"type": kind}));
                taken.insert("anyOf".to_owned(), each.collect());
            }
        }
    }

    fn any(&self, choices: &Value, depth: usize, taken: &mut Map<String, Value>) {
        let choices = choices.as_array().map_or(&[][..], Vec::as_slice);
        let others: Vec<&Value> = choices.iter().filter(|choice| choice["type"] != "null").collect();
        if others.len() < choices.len() {
            taken.insert("nullable".to_owned(), true.into());
        }
        match others.as_slice() {
            [] => {}
            [one] => {
                if let Value::Object(one) = self.of(one, depth) {
                    merge(taken, one);
                }
            }
            several => {
                let each = several.iter().map(|choice| self.of(choice, depth));
                taken.insert("anyOf".to_owned(), each.collect());
            }
        }
    }
}

/// Only texts may be listed.
fn values(values: &[Value], taken: &mut Map<String, Value>) {
    let texts: Vec<Value> = values.iter().filter(|value| value.is_string()).cloned().collect();
    if !texts.is_empty() && texts.len() == values.iter().filter(|value| !value.is_null()).count() {
        taken.insert("enum".to_owned(), texts.into());
        taken.entry("type").or_insert_with(|| "string".into());
    }
}

/// Lays a part over what is there; members and their names add up.
fn merge(taken: &mut Map<String, Value>, part: Map<String, Value>) {
    for (name, value) in part {
        match (taken.get_mut(&name), value) {
            (Some(Value::Object(there)), Value::Object(more)) if name == "properties" => there.extend(more),
            (Some(Value::Array(there)), Value::Array(more)) if name == "required" => there.extend(more),
            (Some(there), value) if name != "description" && name != "title" => *there = value,
            (Some(_), _) => {}
            (None, value) => drop(taken.insert(name, value)),
        }
    }
}

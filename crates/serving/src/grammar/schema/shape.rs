//! Whether a schema lets a value be an object: what a tool's parameters must do.
//!
//! Looks at types, constants, combinations and references inside the schema. What it cannot see lets objects in.

use serde_json::Value;

/// References and combinations are followed so deep.
const DEPTH: usize = 16;

/// Whether some object may fit, as far as types tell.
pub(crate) fn may_be_object(schema: &Value) -> bool {
    may_be(schema, schema, DEPTH)
}

fn may_be(schema: &Value, root: &Value, depth: usize) -> bool {
    let Some(depth) = depth.checked_sub(1) else { return true };
    let fields = match schema {
        Value::Object(fields) => fields,
        Value::Bool(_) => return true,
        _ => return false,
    };
    let list = |key: &str| fields.get(key).and_then(Value::as_array).filter(|all| !all.is_empty());
    let typed = match fields.get("type") {
        Some(Value::String(one)) => one == "object",
        Some(Value::Array(many)) => many.is_empty() || many.iter().any(|one| one == "object"),
        _ => true,
    };
    let target = fields.get("$ref").and_then(Value::as_str).and_then(|name| name.strip_prefix('#'));
    typed
        && fields.get("const").is_none_or(Value::is_object)
        && list("enum").is_none_or(|all| all.iter().any(Value::is_object))
        && list("allOf").is_none_or(|all| all.iter().all(|part| may_be(part, root, depth)))
        && ["anyOf", "oneOf"]
            .into_iter()
            .filter_map(list)
            .all(|all| all.iter().any(|o| may_be(o, root, depth)))
        && target.and_then(|target| root.pointer(target)).is_none_or(|target| may_be(target, root, depth))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn schemas_without_objects_are_told_from_those_with_some() {
        for schema in [
            json!({"type": "string"}),
            json!({"type": ["array", "null"]}),
            json!({"const": 3}),
            json!({"enum": ["a", "b"]}),
            json!({"anyOf": [{"type": "string"}, {"type": "null"}]}),
            json!({"allOf": [{"type": "object"}, {"type": "array"}]}),
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"type": "integer"}}}),
            json!([]),
            json!("object"),
        ] {
            assert!(!may_be_object(&schema), "{schema}");
        }
        for schema in [
            json!({}),
            json!(true),
            json!({"type": "object"}),
            json!({"type": ["object", "null"]}),
            json!({"properties": {}}),
            json!({"anyOf": [{"type": "string"}, {"properties": {}}]}),
            json!({"$ref": "#"}),
            json!({"$ref": "#/$defs/none"}),
            json!({"enum": ["a", {}]}),
        ] {
            assert!(may_be_object(&schema), "{schema}");
        }
    }
}

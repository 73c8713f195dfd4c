//! Holds the arguments of strict tools to their schemas where no grammar did: calls without their marker, fenced
//! ones, and all where the grammar is off.
//!
//! A schema is compiled when the first such call of a request needs it, once for all of its answers. What cannot be
//! told is no: a schema that cannot be compiled lets no arguments pass. Other documents are never fetched.

use jsonschema::{Draft, PatternOptions, ValidationError, Validator};
use protocol::Tool;
use serde_json::Value;
use std::sync::OnceLock;

/// So much of what is wrong is told.
const SHOWN: usize = 160;

/// A strict tool's schema.
#[derive(Debug)]
pub(super) struct Strict {
    schema: Value,
    compiled: OnceLock<Option<Validator>>,
}

impl Strict {
    /// That of a tool, if it is strict and has one.
    pub fn of(tool: &Tool) -> Option<Self> {
        let schema = tool.parameters.clone().filter(|_| tool.strict == Some(true))?;
        Some(Self { schema, compiled: OnceLock::new() })
    }

    /// Whether arguments obey it; else what is wrong.
    pub fn check(&self, arguments: &str) -> Result<(), String> {
        let validator = self.compiled.get_or_init(|| compile(&self.schema).ok());
        let Some(validator) = validator else {
            return Err("the arguments cannot be held to the tool's schema".into());
        };
        let value: Value =
            serde_json::from_str(arguments).map_err(|error| format!("the arguments are no JSON: {error}"))?;
        validator.validate(&value).map_err(|error| {
            let why: String = error.masked().to_string().chars().take(SHOWN).collect();
            let at: String = error.instance_path().to_string().chars().take(SHOWN / 2).collect();
            let at = if at.is_empty() { String::new() } else { format!(" at {at}") };
            format!("the arguments break the tool's schema{at}: {why}")
        })
    }
}

fn compile(schema: &Value) -> Result<Validator, ValidationError<'static>> {
    let options = || {
        jsonschema::options()
            .should_validate_formats(true)
            // Their time is linear in the text, whatever the pattern.
            .with_pattern_options(PatternOptions::regex())
            .offline()
    };
    // Schemas that do not say their draft may be of one in which lists of `items` still counted.
    options().build(schema).or_else(|_| options().with_draft(Draft::Draft7).build(schema))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn strict(schema: Value) -> Strict {
        let tool = Tool {
            name: "f".into(),
            description: None,
            parameters: Some(schema),
            strict: Some(true),
            cache: None,
        };
        Strict::of(&tool).unwrap()
    }

    #[test]
    fn arguments_are_held_to_all_of_a_schema() {
        let schema = strict(json!({
            "type": "object", "additionalProperties": false, "required": ["a"],
            "properties": {"a": {"type": "string", "pattern": "^x+$"}, "d": {"type": "string", "format": "date"},
                           "t": {"items": [{"type": "integer"}]}},
        }));
        for good in ["{\"a\": \"xx\"}", "{\"a\": \"x\", \"d\": \"2024-02-29\", \"t\": [1, \"b\"]}"] {
            assert_eq!(schema.check(good), Ok(()), "{good}");
        }
        let long = format!("{{\"{}\": 1}}", "é".repeat(1000));
        for bad in [
            "{}",
            "{\"a\": 1}",
            "{\"a\": \"y\"}",
            "{\"a\": \"x\", \"d\": \"2023-02-29\"}",
            "{\"a\": \"x\", \"t\": [\"b\"]}",
            "{\"a\": \"x\", \"b\": 1}",
            &long,
        ] {
            let why = schema.check(bad).unwrap_err();
            assert!(why.contains("schema") && why.chars().count() < 300, "{bad}: {why}");
        }
    }

    #[test]
    fn what_cannot_be_told_is_no() {
        for schema in [json!({"$ref": "https://example.invalid/a.json"}), json!({"type": "nothing"})] {
            assert!(strict(schema).check("{}").is_err());
        }
        assert!(
            Strict::of(&Tool {
                name: "f".into(),
                description: None,
                parameters: None,
                strict: Some(true),
                cache: None
            })
            .is_none()
        );
    }
}

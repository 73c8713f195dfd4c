//! The fallback prompt, for chat templates that render no tools: plain text in the messages that every template
//! renders.
//!
//! Who renders a conversation puts [`Family::instructions`] at the end of the system message (or makes one),
//! [`Family::calls_text`] at the end of an assistant's content, and [`Family::result_text`] in place of a tool's
//! message, as a user's. Short, since small models read it. Pure functions: the same input gives the same text,
//! so that cached prefixes stay.

use super::form::{Form, string};
use super::registry::Family;
use protocol::{Tool, ToolCall};
use serde_json::{Map, Value};

impl Family {
    /// What tells the model its tools and how it calls them. Empty where there are no tools.
    pub fn instructions(&self, tools: &[Tool]) -> String {
        if tools.is_empty() {
            return String::new();
        }
        let mut out = "You can call these functions, one JSON object a line:\n".to_owned();
        for tool in tools {
            out.push_str(&line(tool));
            out.push('\n');
        }
        out.push_str("\nTo call a function, answer with this and nothing else:\n");
        out.push_str(match self.form {
            Form::Bare { .. } => "{\"name\": FUNCTION_NAME, \"parameters\": {ARGUMENT_NAME: VALUE}}\n",
            _ => "<tool_call>\n{\"name\": FUNCTION_NAME, \"arguments\": {ARGUMENT_NAME: VALUE}}\n</tool_call>\n",
        });
        out.push_str("For several calls, write several. If no function is needed, answer in plain text.");
        out
    }

    /// Calls that were made, as content of the assistant's; goes after what else it said, on a line of its own.
    pub fn calls_text(&self, calls: &[ToolCall]) -> String {
        let calls: Vec<_> = calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
        if calls.is_empty() { String::new() } else { self.form.write(&calls) }
    }

    /// A tool's result, as content of a user's. `name` is the tool's, where it is known.
    pub fn result_text(&self, name: Option<&str>, content: &str) -> String {
        let of = name.map(|name| format!(" of {}", string(name))).unwrap_or_default();
        format!("<tool_response>\nResult{of}:\n{content}\n</tool_response>")
    }
}

/// A tool as an object on one line, spaced as chat templates space JSON.
fn line(tool: &Tool) -> String {
    let mut fields = Map::new();
    fields.insert("name".into(), tool.name.as_str().into());
    if let Some(description) = &tool.description {
        fields.insert("description".into(), description.as_str().into());
    }
    if let Some(parameters) = &tool.parameters {
        fields.insert("parameters".into(), parameters.clone());
    }
    let mut out = String::new();
    spaced(&Value::Object(fields), &mut out);
    out
}

fn spaced(value: &Value, out: &mut String) {
    match value {
        Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                spaced(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            for (i, (key, field)) in fields.iter().enumerate() {
                out.push_str(if i > 0 { ", " } else { "" });
                out.push_str(&string(key));
                out.push_str(": ");
                spaced(field, out);
            }
            out.push('}');
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {
            out.push_str(&value.to_string())
        }
    }
}

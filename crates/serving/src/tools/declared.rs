//! The tools that an answer may call, as a reader needs them: names, the properties of their arguments, and the
//! schemas that arguments must obey though no grammar held them.

use super::schema::Strict;
use protocol::Tool;
use serde_json::Value;
use std::collections::HashMap;

/// Tools by name.
#[derive(Debug, Default)]
pub(super) struct Declared {
    tools: Vec<(String, Vec<Property>)>,
    by_name: HashMap<String, usize>,
    longest: usize,
    strict: HashMap<String, Strict>,
}

#[derive(Clone, Debug)]
struct Property {
    name: String,
    /// Whether only text can stand there.
    text: bool,
}

impl Declared {
    /// Of the request's tools.
    pub fn new(tools: &[Tool]) -> Self {
        let held = tools.iter().filter_map(|tool| Some((tool.name.clone(), Strict::of(tool)?)));
        let strict = held.collect();
        let tools: Vec<_> = tools.iter().map(|tool| (tool.name.clone(), properties(tool))).collect();
        let by_name = tools.iter().enumerate().map(|(i, (name, _))| (name.clone(), i)).collect();
        let longest = tools.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        Self { tools, by_name, longest, strict }
    }

    pub fn has(&self, name: &str) -> bool {
        self.by_name.contains_key(name)
    }

    /// Whether a strict tool's arguments, JSON text, obey its schema; those of other tools always pass.
    pub fn obeyed(&self, name: &str, arguments: &str) -> Result<(), String> {
        self.strict.get(name).map_or(Ok(()), |strict| strict.check(arguments))
    }

    /// Bytes within which the head of a call shows its name, escaped as JSON can.
    pub fn head(&self) -> usize {
        256 + 6 * self.longest
    }

    /// The tool whose name and `(` a text begins with.
    pub fn called(&self, text: &str) -> Option<&str> {
        let names = self.tools.iter().map(|(name, _)| name.as_str());
        names
            .filter(|name| text.strip_prefix(name).is_some_and(|rest| rest.starts_with('(')))
            .max_by_key(|n| n.len())
    }

    /// Whether a text, as far as it goes, may be a tool's name and `(`.
    pub fn may_be_called(&self, text: &str) -> bool {
        self.tools.iter().any(|(name, _)| text.len() <= name.len() && name.starts_with(text))
    }

    /// The name of a tool's argument by place.
    pub fn property(&self, tool: &str, place: usize) -> Option<&str> {
        Some(self.tools[*self.by_name.get(tool)?].1.get(place)?.name.as_str())
    }

    /// Whether only text can stand in a tool's argument.
    pub fn is_text(&self, tool: &str, property: &str) -> bool {
        let Some(at) = self.by_name.get(tool) else { return false };
        self.tools[*at].1.iter().any(|known| known.name == property && known.text)
    }
}

fn properties(tool: &Tool) -> Vec<Property> {
    let fields = tool.parameters.as_ref().and_then(|p| p.get("properties")).and_then(Value::as_object);
    let property = |(name, schema): (&String, &Value)| Property { name: name.clone(), text: is_text(schema) };
    fields.into_iter().flatten().map(property).collect()
}

/// Whether a schema lets only text stand.
pub(super) fn is_text(schema: &Value) -> bool {
    let kind = schema.get("type");
    let all =
        |key: &str| schema.get(key).and_then(Value::as_array).is_some_and(|v| v.iter().all(Value::is_string));
    match kind {
        Some(Value::String(kind)) => kind == "string",
        Some(_) => false,
        None => all("enum") || schema.get("const").is_some_and(Value::is_string),
    }
}

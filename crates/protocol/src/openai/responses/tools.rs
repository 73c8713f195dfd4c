//! Tools, tool choice and text format, which this dialect writes flat.

use crate::fields::{self, Object, element, missing, unsupported, wrong_type};
use crate::openai::format::is_schema;
use crate::openai::tools::{MAX_TOOLS, described};
use crate::{Error, ErrorKind, Places, ResponseFormat, Tool, ToolChoice};
use serde_json::{Value, json};

/// `tools`: functions only.
pub(super) fn tools(fields: &mut Object) -> Result<Vec<Tool>, Error> {
    let path = fields.path("tools");
    let Some(tools) = fields.array("tools")? else { return Ok(Vec::new()) };
    if tools.len() > MAX_TOOLS {
        let message = format!("Too many tools: {}, at most {MAX_TOOLS} are allowed", tools.len());
        return Err(Error::invalid(path, message));
    }
    tools
        .into_iter()
        .enumerate()
        .map(|(index, tool)| function(Object::at(element(&path, index), tool)?))
        .collect()
}

fn function(mut tool: Object) -> Result<Tool, Error> {
    let kind = tool.required_string("type")?;
    if kind != "function" {
        let path = tool.path("type");
        let shown: String = kind.chars().take(64).collect();
        let message = format!(
            "'{path}': tools of type '{shown}' are not supported by this server; supported is 'function'"
        );
        return Err(Error::new(ErrorKind::Unsupported, message).at(path));
    }
    // Chat's nested form is a common slip.
    if tool.has("function") && !tool.has("name") {
        let path = tool.path("name");
        let message = format!(
            "Missing required parameter: '{path}' (in this API a tool's name stands beside its type)"
        );
        return Err(Error::invalid(path, message));
    }
    let described = described(&mut tool)?;
    for name in ["defer_loading", "async"] {
        if tool.boolean(name)? == Some(true) {
            return Err(unsupported(&tool.path(name)));
        }
    }
    tool.refuse(&["allowed_callers", "output_schema"])?;
    tool.finish()?;
    Ok(described)
}

/// A tool as responses show it.
pub(super) fn written(tool: &Tool) -> Value {
    json!({
        "type": "function", "name": tool.name, "description": tool.description,
        "parameters": tool.parameters, "strict": tool.strict,
    })
}

/// `tool_choice`. Naming a tool, or demanding one, needs tools. A choice of several leaves only those among `tools`.
pub(super) fn tool_choice(
    fields: &mut Object,
    tools: &mut Vec<Tool>,
    places: &mut Places,
) -> Result<ToolChoice, Error> {
    let path = fields.path("tool_choice");
    let written: Vec<usize> = (0..tools.len()).collect();
    let (choice, left) = match fields.take("tool_choice") {
        None => (ToolChoice::Auto, written),
        Some(Value::String(choice)) => (mode(&path, &choice, &["none", "auto", "required"])?, written),
        Some(value @ Value::Object(_)) => {
            let mut choice = Object::at(path.clone(), value)?;
            match choice.required_string("type")?.as_str() {
                "function" => {
                    let name = choice.required_string("name")?;
                    choice.finish()?;
                    if !tools.iter().any(|tool| tool.name == name) {
                        return Err(not_among(&path));
                    }
                    (ToolChoice::Named(name), written)
                }
                "allowed_tools" => allowed(choice, tools)?,
                _ => return Err(unsupported(&choice.path("type"))),
            }
        }
        Some(other) => return Err(wrong_type(&path, "a string or an object", &other)),
    };
    if tools.is_empty() && choice == ToolChoice::Required {
        return Err(Error::invalid(&path, format!("'{path}' is only allowed when 'tools' are given")));
    }
    for (canonical, index) in left.iter().enumerate() {
        places.moved(format!("tools[{canonical}].function"), format!("tools[{index}]"));
        places.moved(format!("tools[{canonical}]"), format!("tools[{index}]"));
    }
    if left.len() < tools.len() {
        *tools = left.into_iter().map(|index| tools[index].clone()).collect();
    }
    Ok(choice)
}

fn mode(path: &str, mode: &str, supported: &[&str]) -> Result<ToolChoice, Error> {
    match mode {
        _ if !supported.contains(&mode) => {
            let supported = supported.join("', '");
            let message = format!("Invalid value for '{path}': supported are '{supported}' or an object");
            Err(Error::invalid(path, message))
        }
        "none" => Ok(ToolChoice::None),
        "required" => Ok(ToolChoice::Required),
        _ => Ok(ToolChoice::Auto),
    }
}

fn not_among(path: &str) -> Error {
    Error::invalid(path, format!("'{path}' names a function that is not among 'tools'"))
}

/// `{"type":"allowed_tools","mode","tools":[{"type":"function","name"}]}`: the mode, and which tools are left.
fn allowed(mut choice: Object, tools: &[Tool]) -> Result<(ToolChoice, Vec<usize>), Error> {
    let path = choice.path("mode");
    let mode = mode(&path, &choice.required_string("mode")?, &["auto", "required"])?;
    let path = choice.path("tools");
    let named = choice.array("tools")?.ok_or_else(|| missing(&path))?;
    if named.is_empty() || named.len() > MAX_TOOLS {
        let message = format!("Invalid value for '{path}': expected 1 to {MAX_TOOLS} tools");
        return Err(Error::invalid(path, message));
    }
    let mut left = Vec::new();
    for (index, tool) in named.into_iter().enumerate() {
        let mut tool = Object::at(element(&path, index), tool)?;
        if tool.required_string("type")? != "function" {
            return Err(unsupported(&tool.path("type")));
        }
        let name = tool.required_string("name")?;
        let found = tools.iter().position(|tool| tool.name == name);
        left.push(found.ok_or_else(|| not_among(&tool.path("name")))?);
        tool.finish()?;
    }
    choice.finish()?;
    left.sort_unstable();
    left.dedup();
    Ok((mode, left))
}

/// `text`: format and verbosity.
pub(super) fn text_format(fields: &mut Object, places: &mut Places) -> Result<ResponseFormat, Error> {
    let Some(mut text) = fields.object("text")? else { return Ok(ResponseFormat::Text) };
    match text.string("verbosity")?.as_deref() {
        None | Some("medium") => {}
        Some(_) => return Err(unsupported(&text.path("verbosity"))),
    }
    let format = match text.object("format")? {
        None => ResponseFormat::Text,
        Some(mut format) => {
            let read = format_of(&mut format)?;
            format.finish()?;
            read
        }
    };
    text.finish()?;
    places.moved("response_format.json_schema", "text.format");
    places.moved("response_format", "text.format");
    Ok(format)
}

fn format_of(format: &mut Object) -> Result<ResponseFormat, Error> {
    let path = format.path("type");
    Ok(match format.required_string("type")?.as_str() {
        "text" => ResponseFormat::Text,
        "json_object" => ResponseFormat::JsonObject,
        "json_schema" => {
            let path = format.path("schema");
            let schema = format.take("schema").ok_or_else(|| fields::missing(&path))?;
            if !is_schema(&schema) {
                return Err(wrong_type(&path, "an object", &schema));
            }
            format.string("description")?;
            let name = Some(format.required_string("name")?);
            ResponseFormat::JsonSchema { name, schema, strict: format.boolean("strict")? }
        }
        _ => {
            let message =
                format!("Invalid value for '{path}': supported are 'text', 'json_object' and 'json_schema'");
            return Err(Error::invalid(path, message));
        }
    })
}

/// A text format as responses show it.
pub(super) fn written_format(format: &ResponseFormat) -> Value {
    match format {
        ResponseFormat::JsonObject => json!({"type": "json_object"}),
        ResponseFormat::JsonSchema { name, schema, strict } => json!({
            "type": "json_schema", "name": name, "description": null, "schema": schema,
            "strict": strict.unwrap_or(false),
        }),
        ResponseFormat::Text | ResponseFormat::Regex(_) | ResponseFormat::Lark(_) => json!({"type": "text"}),
    }
}

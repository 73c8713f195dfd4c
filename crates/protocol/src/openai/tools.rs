//! Tools, tool choice and response format, in OpenAI's form and in the flat one of Workers AI.

use crate::fields::{Object, element, unsupported, wrong_type};
use crate::{Error, ErrorKind, ResponseFormat, Tool, ToolChoice};
use serde_json::Value;

/// Most tools of a request, as OpenAI limits them.
const MAX_TOOLS: usize = 128;

/// `tools`: `{type:"function",function:{...}}`, or flat `{name,description,parameters}`.
pub(crate) fn tools(fields: &mut Object) -> Result<Vec<Tool>, Error> {
    let path = fields.path("tools");
    let Some(tools) = fields.array("tools")? else { return Ok(Vec::new()) };
    if tools.len() > MAX_TOOLS {
        let count = tools.len();
        return Err(Error::invalid(
            path,
            format!("Too many tools: {count}, at most {MAX_TOOLS} are allowed"),
        ));
    }
    tools
        .into_iter()
        .enumerate()
        .map(|(index, tool)| {
            let mut tool = Object::at(element(&path, index), tool)?;
            let kind = tool.string("type")?;
            if kind.as_deref().is_some_and(|kind| kind != "function") {
                let path = tool.path("type");
                let message =
                    format!("'{path}' must be 'function'; other tools are not supported by this server");
                return Err(Error::new(ErrorKind::Unsupported, message).at(path));
            }
            tool.harmless(&["cache_control"]);
            match tool.object("function")? {
                Some(body) => {
                    tool.finish()?;
                    function(body)
                }
                None if kind.is_none() && tool.has("name") => function(tool),
                None => Err(crate::fields::missing(&tool.path("function"))),
            }
        })
        .collect()
}

fn function(mut body: Object) -> Result<Tool, Error> {
    let name = body.required_string("name")?;
    let path = body.path("name");
    if name.is_empty() || name.len() > 256 {
        return Err(Error::invalid(&path, format!("Invalid value for '{path}': a name has 1 to 256 bytes")));
    }
    let parameters = body.take("parameters");
    if let Some(parameters) = &parameters
        && !parameters.is_object()
    {
        return Err(wrong_type(&body.path("parameters"), "an object", parameters));
    }
    let tool =
        Tool { name, description: body.string("description")?, parameters, strict: body.boolean("strict")? };
    body.finish()?;
    Ok(tool)
}

/// `tool_choice`. Naming a tool, or demanding one, needs tools.
pub(crate) fn tool_choice(fields: &mut Object, tools: &[Tool]) -> Result<ToolChoice, Error> {
    let path = fields.path("tool_choice");
    let choice = match fields.take("tool_choice") {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => return Ok(ToolChoice::Auto),
            "none" => return Ok(ToolChoice::None),
            // The Workers AI schema says "any".
            "required" | "any" => ToolChoice::Required,
            _ => {
                return Err(Error::invalid(
                    &path,
                    format!(
                        "Invalid value for '{path}': supported are 'none', 'auto', 'required' or a named function"
                    ),
                ));
            }
        },
        Some(value @ Value::Object(_)) => {
            let mut choice = Object::at(path.clone(), value)?;
            if choice.required_string("type")? != "function" {
                return Err(unsupported(&choice.path("type")));
            }
            let mut function =
                choice.object("function")?.ok_or_else(|| crate::fields::missing(&choice.path("function")))?;
            let name = function.required_string("name")?;
            function.finish()?;
            choice.finish()?;
            ToolChoice::Named(name)
        }
        Some(other) => return Err(wrong_type(&path, "a string or an object", &other)),
    };
    if tools.is_empty() {
        return Err(Error::invalid(&path, format!("'{path}' is only allowed when 'tools' are given")));
    }
    if let ToolChoice::Named(name) = &choice
        && !tools.iter().any(|tool| tool.name == *name)
    {
        return Err(Error::invalid(&path, format!("'{path}' names a function that is not among 'tools'")));
    }
    Ok(choice)
}

/// `response_format`. A schema comes in OpenAI's envelope `{name,schema,strict}` or bare, as the native
/// Workers AI routes take it.
pub(crate) fn response_format(fields: &mut Object) -> Result<ResponseFormat, Error> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(ResponseFormat::Text) };
    let kind = format.required_string("type")?;
    let result = match kind.as_str() {
        "text" => ResponseFormat::Text,
        "json_object" => ResponseFormat::JsonObject,
        "json_schema" => {
            let path = format.path("json_schema");
            let schema = format.take("json_schema").ok_or_else(|| crate::fields::missing(&path))?;
            json_schema(path, schema)?
        }
        _ => {
            let path = format.path("type");
            return Err(Error::invalid(
                &path,
                format!("Invalid value for '{path}': supported are 'text', 'json_object' and 'json_schema'"),
            ));
        }
    };
    format.finish()?;
    Ok(result)
}

fn json_schema(path: String, value: Value) -> Result<ResponseFormat, Error> {
    // A bare schema describes a value ("type", "properties", ...), the envelope holds it under "schema".
    let enveloped = value.get("schema").is_some_and(Value::is_object);
    if !enveloped {
        if !value.is_object() {
            return Err(wrong_type(&path, "an object", &value));
        }
        let named = value.get("name").is_some_and(Value::is_string) && value.get("type").is_none();
        if named {
            return Err(crate::fields::missing(&format!("{path}.schema")));
        }
        return Ok(ResponseFormat::JsonSchema { name: None, schema: value, strict: None });
    }
    let mut envelope = Object::at(path, value)?;
    let schema = envelope.take("schema").expect("checked above");
    let name = envelope.string("name")?;
    let strict = envelope.boolean("strict")?;
    envelope.string("description")?;
    envelope.finish()?;
    Ok(ResponseFormat::JsonSchema { name, schema, strict })
}

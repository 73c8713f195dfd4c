//! `tools` and `tool_choice`.

use crate::fields::{Object, missing, wrong_type};
use crate::{Error, ErrorKind, Tool, ToolChoice};
use std::collections::HashSet;

/// Most tools of a request. Agents with many servers of tools go beyond OpenAI's 128.
const MAX_TOOLS: usize = 1024;

/// Bytes of a tool's name.
const MAX_NAME: usize = 256;

/// `tools`: those that the caller runs.
pub(super) fn tools(fields: &mut Object) -> Result<Vec<Tool>, Error> {
    let Some(tools) = fields.array("tools")? else { return Ok(Vec::new()) };
    if tools.len() > MAX_TOOLS {
        let count = tools.len();
        return Err(Error::invalid("tools", format!("{count} tools, at most {MAX_TOOLS} are allowed")));
    }
    let mut names = HashSet::new();
    let mut read = Vec::with_capacity(tools.len());
    for (index, value) in tools.into_iter().enumerate() {
        let tool = tool(Object::at(format!("tools.{index}"), value)?)?;
        if !names.insert(tool.name.clone()) {
            return Err(Error::invalid(format!("tools.{index}.name"), "Tool names must be unique"));
        }
        read.push(tool);
    }
    Ok(read)
}

fn tool(mut fields: Object) -> Result<Tool, Error> {
    if let Some(kind) = fields.string("type")?
        && kind != "custom"
    {
        let shown: String = kind.chars().take(64).collect();
        let message = format!(
            "tools of type '{shown}' are run or defined by Anthropic; this server takes 'custom' ones only"
        );
        return Err(Error::new(ErrorKind::Unsupported, message).at(fields.path("type")));
    }
    let name = fields.required_string("name")?;
    if name.is_empty() || name.len() > MAX_NAME {
        return Err(Error::invalid(fields.path("name"), format!("a name has 1 to {MAX_NAME} bytes")));
    }
    let path = fields.path("input_schema");
    let schema = fields.take("input_schema").ok_or_else(|| missing(&path))?;
    if !schema.is_object() {
        return Err(wrong_type(&path, "an object", &schema));
    }
    let callers = fields.path("allowed_callers");
    if let Some(allowed) = fields.array("allowed_callers")?
        && !allowed.iter().any(|caller| caller == "direct")
    {
        let message = "only 'direct' calls are supported by this server, and this tool does not allow them";
        return Err(Error::new(ErrorKind::Unsupported, message).at(callers));
    }
    let tool = Tool {
        name,
        description: fields.string("description")?,
        parameters: Some(schema),
        strict: fields.boolean("strict")?,
        cache: fields.cache_control(),
    };
    // Hints: how calls are sent, when a tool is shown, what a call looks like.
    fields.harmless(&["eager_input_streaming", "defer_loading", "input_examples"]);
    fields.finish()?;
    Ok(tool)
}

/// `tool_choice`, and whether an answer may hold several calls.
pub(super) fn tool_choice(fields: &mut Object, tools: &[Tool]) -> Result<(ToolChoice, Option<bool>), Error> {
    let Some(mut choice) = fields.object("tool_choice")? else { return Ok((ToolChoice::Auto, None)) };
    let kind = choice.required_string("type")?;
    let parallel = choice.boolean("disable_parallel_tool_use")?.map(|disabled| !disabled);
    let read = match kind.as_str() {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" => ToolChoice::Required,
        "tool" => ToolChoice::Named(choice.required_string("name")?),
        _ => {
            let message = "supported are 'auto', 'any', 'tool' and 'none'";
            return Err(Error::invalid(choice.path("type"), message));
        }
    };
    choice.finish()?;
    match &read {
        ToolChoice::Required | ToolChoice::Named(_) if tools.is_empty() => {
            Err(Error::invalid("tool_choice", "may only be specified while providing `tools`"))
        }
        ToolChoice::Named(name) if !tools.iter().any(|tool| tool.name == *name) => {
            let shown: String = name.chars().take(64).collect();
            Err(Error::invalid("tool_choice.name", format!("Tool '{shown}' not found in provided tools")))
        }
        _ => Ok((read, parallel)),
    }
}

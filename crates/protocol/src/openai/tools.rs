//! Tools and tool choice, in OpenAI's form and in the flat one of Workers AI.

use crate::fields::{Object, element, missing, unsupported, wrong_type};
use crate::{Error, ErrorKind, Places, Tool, ToolChoice};
use serde_json::Value;

/// Most tools of a request, as OpenAI limits them.
pub(super) const MAX_TOOLS: usize = 128;

/// Bytes of a tool's name.
const MAX_NAME_BYTES: usize = 256;

/// What a request says about tools.
#[derive(Debug)]
pub(crate) struct Tooling {
    pub(crate) tools: Vec<Tool>,
    pub(crate) choice: ToolChoice,
}

/// `tools` and `tool_choice`.
pub(crate) fn tooling(fields: &mut Object, places: &mut Places) -> Result<Tooling, Error> {
    let listed = tools(fields)?;
    let path = fields.path("tool_choice");
    let (choice, allowed) = tool_choice(fields)?;
    let names = |name: &str| listed.iter().any(|listed| listed.tool.name == name);
    if listed.is_empty()
        && (allowed.is_some() || matches!(choice, ToolChoice::Required | ToolChoice::Named(_)))
    {
        return Err(Error::invalid(&path, format!("'{path}' is only allowed when 'tools' are given")));
    }
    if let ToolChoice::Named(name) = &choice
        && !names(name)
    {
        return Err(Error::invalid(&path, format!("'{path}' names a function that is not among 'tools'")));
    }
    if let Some(allowed) = &allowed
        && let Some(index) = allowed.iter().position(|name| !names(name))
    {
        let path = element(&format!("{path}.allowed_tools.tools"), index);
        return Err(Error::invalid(&path, format!("'{path}' names a function that is not among 'tools'")));
    }
    // A model that may not call a tool is not shown it either.
    let shown = |listed: &Listed| allowed.as_ref().is_none_or(|names| names.contains(&listed.tool.name));
    let mut tools = Vec::new();
    for (index, listed) in listed.into_iter().enumerate().filter(|(_, listed)| shown(listed)) {
        let (here, there) = (element("tools", tools.len()), element("tools", index));
        if listed.flat {
            places.moved(format!("{here}.function"), &there);
        }
        if here != there {
            if !listed.flat {
                places.moved(format!("{here}.function"), format!("{there}.function"));
            }
            places.moved(here, there);
        }
        tools.push(listed.tool);
    }
    Ok(Tooling { tools, choice })
}

/// A tool and how it was written.
struct Listed {
    tool: Tool,
    /// `{name,description,parameters}` without the object `function` around it.
    flat: bool,
}

/// `tools`: `{type:"function",function:{...}}`, or flat `{name,description,parameters}`.
fn tools(fields: &mut Object) -> Result<Vec<Listed>, Error> {
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
            let cache = tool.cache_control();
            match tool.object("function")? {
                Some(body) => {
                    tool.finish()?;
                    Ok(Listed { tool: Tool { cache, ..function(body)? }, flat: false })
                }
                None if tool.has("name") => {
                    Ok(Listed { tool: Tool { cache, ..function(tool)? }, flat: true })
                }
                None => Err(missing(&tool.path("function"))),
            }
        })
        .collect()
}

fn function(mut body: Object) -> Result<Tool, Error> {
    let tool = described(&mut body)?;
    body.finish()?;
    Ok(tool)
}

/// The fields that say what a function is, wherever they stand.
pub(super) fn described(body: &mut Object) -> Result<Tool, Error> {
    let name = body.required_string("name")?;
    let path = body.path("name");
    if name.is_empty() || name.len() > MAX_NAME_BYTES {
        return Err(Error::invalid(
            &path,
            format!("Invalid value for '{path}': a name has 1 to {MAX_NAME_BYTES} bytes"),
        ));
    }
    let parameters = body.take("parameters");
    if let Some(parameters) = &parameters
        && !parameters.is_object()
    {
        return Err(wrong_type(&body.path("parameters"), "an object", parameters));
    }
    let (description, strict) = (body.string("description")?, body.boolean("strict")?);
    Ok(Tool { name, description, parameters, strict, cache: None })
}

/// `tool_choice`, and the names of the tools it allows where it does not allow all.
fn tool_choice(fields: &mut Object) -> Result<(ToolChoice, Option<Vec<String>>), Error> {
    let path = fields.path("tool_choice");
    let mut choice = match fields.take("tool_choice") {
        None => return Ok((ToolChoice::Auto, None)),
        Some(Value::String(choice)) => {
            return match mode(&choice) {
                Some(choice) => Ok((choice, None)),
                None => Err(Error::invalid(
                    &path,
                    format!(
                        "Invalid value for '{path}': supported are 'none', 'auto', 'required' or a named function"
                    ),
                )),
            };
        }
        Some(value @ Value::Object(_)) => Object::at(path, value)?,
        Some(other) => return Err(wrong_type(&path, "a string or an object", &other)),
    };
    match choice.required_string("type")?.as_str() {
        "function" => {
            let name = function_name(&mut choice)?;
            choice.finish()?;
            Ok((ToolChoice::Named(name), None))
        }
        "allowed_tools" => {
            let path = choice.path("allowed_tools");
            let mut allowed = choice.object("allowed_tools")?.ok_or_else(|| missing(&path))?;
            choice.finish()?;
            allowed_tools(&mut allowed)
        }
        kind => Err(match mode(kind) {
            // As Anthropic's clients write it.
            Some(_) => {
                let path = choice.path("type");
                Error::invalid(&path, format!("Invalid value for '{path}': write '{kind}' without an object"))
            }
            None => unsupported(&choice.path("type")),
        }),
    }
}

fn mode(name: &str) -> Option<ToolChoice> {
    Some(match name {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        // The Workers AI schema says "any".
        "required" | "any" => ToolChoice::Required,
        _ => return None,
    })
}

fn function_name(fields: &mut Object) -> Result<String, Error> {
    let path = fields.path("function");
    let mut function = fields.object("function")?.ok_or_else(|| missing(&path))?;
    let name = function.required_string("name")?;
    function.finish()?;
    Ok(name)
}

/// `{"mode","tools":[{"type":"function","function":{"name"}}]}`.
fn allowed_tools(allowed: &mut Object) -> Result<(ToolChoice, Option<Vec<String>>), Error> {
    let path = allowed.path("mode");
    let choice = match allowed.required_string("mode")?.as_str() {
        "auto" => ToolChoice::Auto,
        "required" => ToolChoice::Required,
        _ => {
            return Err(Error::invalid(
                &path,
                format!("Invalid value for '{path}': supported are 'auto' and 'required'"),
            ));
        }
    };
    let path = allowed.path("tools");
    let tools = allowed.array("tools")?.ok_or_else(|| missing(&path))?;
    if tools.is_empty() || tools.len() > MAX_TOOLS {
        let count = tools.len();
        return Err(Error::invalid(
            &path,
            format!("Invalid value for '{path}': {count} tools, 1 to {MAX_TOOLS} are allowed"),
        ));
    }
    let names = tools.into_iter().enumerate().map(|(index, tool)| {
        let mut tool = Object::at(element(&path, index), tool)?;
        if tool.required_string("type")? != "function" {
            return Err(unsupported(&tool.path("type")));
        }
        let name = function_name(&mut tool)?;
        tool.finish()?;
        Ok(name)
    });
    Ok((choice, Some(names.collect::<Result<_, _>>()?)))
}

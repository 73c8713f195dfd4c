//! `messages`: conversations as OpenAI and Workers AI write them.
//!
//! Workers AI is the laxer of the two: a tool's answer need not name its call, and calls come flat with
//! arguments as objects. Whether a model's template can render a conversation is the backend's business.

use crate::fields::{self, Object, element, missing, unsupported, wrong_type};
use crate::{Content, Error, Message, Part, Role, ToolCall};
use serde_json::Value;

/// Whose rules hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rules {
    OpenAi,
    WorkersAi,
}

/// Fields of a message that do not change how it reads: what clients echo from an earlier answer, and hints.
const HARMLESS: &[&str] = &["annotations", "cache_control", "parsed", "reasoning_details", "id"];

/// `messages`; `None` where the field is absent.
pub(crate) fn messages(fields: &mut Object, rules: Rules) -> Result<Option<Vec<Message>>, Error> {
    let path = fields.path("messages");
    let Some(messages) = fields.array("messages")? else { return Ok(None) };
    if messages.is_empty() {
        return Err(Error::invalid(
            &path,
            format!("Invalid value for '{path}': at least one message is needed"),
        ));
    }
    messages
        .into_iter()
        .enumerate()
        .map(|(index, value)| message(Object::at(element(&path, index), value)?, rules))
        .collect::<Result<_, _>>()
        .map(Some)
}

fn message(mut fields: Object, rules: Rules) -> Result<Message, Error> {
    let role = role(&mut fields)?;
    let path = fields.path("content");
    let mut content = match fields.take("content") {
        None => None,
        Some(value) => Some(content(&path, value, role)?),
    };
    let tool_calls = tool_calls(&mut fields, role, rules)?;
    if let Some(refusal) = fields.string("refusal")? {
        // An earlier refusal was said as text.
        content.get_or_insert_default().0.push(Part::Text(refusal));
    }
    let reasoning_content = fields.string("reasoning_content")?;
    let reasoning = fields.string("reasoning")?;
    let reasoning = reasoning_content.or(reasoning).filter(|_| role == Role::Assistant);
    let tool_call_id = fields.string("tool_call_id")?;
    if role == Role::Tool && tool_call_id.is_none() && rules == Rules::OpenAi {
        return Err(missing(&fields.path("tool_call_id")));
    }
    let name = fields.string("name")?;
    fields.refuse(&["function_call", "audio"])?;
    fields.harmless(HARMLESS);
    fields.finish()?;
    let content = match content {
        Some(content) => content,
        None if role == Role::Assistant && (!tool_calls.is_empty() || reasoning.is_some()) => {
            Content::default()
        }
        None => return Err(missing(&path)),
    };
    Ok(Message { role, content, name, reasoning, tool_calls, tool_call_id })
}

fn role(fields: &mut Object) -> Result<Role, Error> {
    let role = fields.required_string("role")?;
    Ok(match role.as_str() {
        "system" => Role::System,
        "developer" => Role::Developer,
        "user" => Role::User,
        "assistant" => Role::Assistant,
        "tool" => Role::Tool,
        _ => {
            let path = fields.path("role");
            let shown: String = role.chars().take(64).collect();
            return Err(Error::invalid(
                &path,
                format!(
                    "Invalid value for '{path}': '{shown}'; supported are 'system', 'developer', 'user', \
                     'assistant' and 'tool'"
                ),
            ));
        }
    })
}

fn content(path: &str, value: Value, role: Role) -> Result<Content, Error> {
    let parts = match value {
        Value::String(text) => return Ok(Content(vec![Part::Text(text)])),
        Value::Array(parts) => parts,
        other => return Err(wrong_type(path, "a string or an array of parts", &other)),
    };
    if parts.is_empty() && role != Role::Assistant {
        return Err(Error::invalid(path, format!("Invalid value for '{path}': at least one part is needed")));
    }
    parts
        .into_iter()
        .enumerate()
        .map(|(index, value)| part(Object::at(element(path, index), value)?, role))
        .collect::<Result<_, _>>()
        .map(Content)
}

fn part(mut fields: Object, role: Role) -> Result<Part, Error> {
    let kind = fields.required_string("type")?;
    fields.harmless(&["cache_control"]);
    let part = match kind.as_str() {
        "text" => Part::Text(fields.required_string("text")?),
        "refusal" if role == Role::Assistant => Part::Text(fields.required_string("refusal")?),
        "image_url" if role != Role::System && role != Role::Developer => image(&mut fields)?,
        "image_url" | "input_audio" | "file" | "video_url" | "audio_url" => {
            let path = fields.path("type");
            let named = unsupported(&path);
            let message = format!("'{path}': parts of type '{kind}' are not supported here");
            return Err(Error { message, ..named });
        }
        _ => {
            let path = fields.path("type");
            let shown: String = kind.chars().take(64).collect();
            return Err(Error::invalid(
                &path,
                format!("Invalid value for '{path}': '{shown}'; supported are 'text' and 'image_url'"),
            ));
        }
    };
    fields.finish()?;
    Ok(part)
}

fn image(fields: &mut Object) -> Result<Part, Error> {
    let path = fields.path("image_url");
    let (url, detail, path) = match fields.take("image_url") {
        None => return Err(missing(&path)),
        Some(Value::String(url)) => (url, None, path),
        Some(value) => {
            let mut image = Object::at(path, value)?;
            let found = (image.required_string("url")?, image.string("detail")?, image.path("url"));
            image.finish()?;
            found
        }
    };
    if !["data:", "https:", "http:"].iter().any(|scheme| url.starts_with(scheme)) {
        return Err(Error::invalid(
            &path,
            format!("Invalid value for '{path}': expected a data: or https: URL"),
        ));
    }
    Ok(Part::Image { url, detail })
}

fn tool_calls(fields: &mut Object, role: Role, rules: Rules) -> Result<Vec<ToolCall>, Error> {
    let path = fields.path("tool_calls");
    let Some(calls) = fields.array("tool_calls")? else { return Ok(Vec::new()) };
    if role != Role::Assistant && !calls.is_empty() {
        return Err(Error::invalid(&path, format!("'{path}' is only allowed in assistant messages")));
    }
    calls
        .into_iter()
        .enumerate()
        .map(|(index, value)| {
            let mut call = Object::at(element(&path, index), value)?;
            // Clients that gather a stream keep the index of each call.
            call.harmless(&["index"]);
            if call.string("type")?.is_some_and(|kind| kind != "function") {
                return Err(unsupported(&call.path("type")));
            }
            let id = match call.string("id")? {
                Some(id) => id,
                None if rules == Rules::WorkersAi => format!("call_{index}"),
                None => return Err(missing(&call.path("id"))),
            };
            let (name, arguments) = match call.object("function")? {
                Some(mut function) => {
                    let named = called(&mut function)?;
                    function.finish()?;
                    named
                }
                None if rules == Rules::WorkersAi => called(&mut call)?,
                None => return Err(missing(&call.path("function"))),
            };
            call.finish()?;
            Ok(ToolCall { id, name, arguments })
        })
        .collect()
}

fn called(fields: &mut Object) -> Result<(String, String), Error> {
    let name = fields.required_string("name")?;
    let path = fields.path("arguments");
    let arguments = match fields.take("arguments") {
        None => "{}".to_owned(),
        Some(Value::String(text)) => text,
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(other) => return Err(fields::wrong_type(&path, "a string of JSON", &other)),
    };
    Ok((name, arguments))
}

//! `messages`: conversations as OpenAI and Workers AI write them.
//!
//! Workers AI is the laxer of the two: calls and their answers need no ids, and calls come flat with arguments as
//! objects. Calls without an id get one by their place, and answers that of the call they answer, so that a
//! conversation is the same canonical one however it was written. Whether a model's template can render a conversation is the backend's business.

use super::thoughts;
use crate::fields::{self, Object, element, missing, unsupported, wrong_type};
use crate::{CacheMark, Content, Error, Message, Part, Places, Role, ToolCall};
use serde_json::Value;

/// Whose rules hold.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rules {
    OpenAi,
    WorkersAi,
}

/// Fields of a message that do not change how it reads: what clients echo from an earlier answer, and hints.
const HARMLESS: &[&str] = &["annotations", "id", "malformed_tool_calls", "parsed"];

/// `messages`; `None` where the field is absent. `places` gets where calls are written flat.
pub(crate) fn messages(
    fields: &mut Object,
    rules: Rules,
    places: &mut Places,
) -> Result<Option<Vec<Message>>, Error> {
    let path = fields.path("messages");
    let Some(messages) = fields.array("messages")? else { return Ok(None) };
    if messages.is_empty() {
        return Err(Error::invalid(
            &path,
            format!("Invalid value for '{path}': at least one message is needed"),
        ));
    }
    let mut messages: Vec<Message> = messages
        .into_iter()
        .enumerate()
        .map(|(index, value)| {
            let fields = Object::at(element(&path, index), value)?;
            message(fields, rules, |call| {
                let call = format!("messages[{index}].tool_calls[{call}]");
                places.moved(format!("{call}.function"), call);
            })
        })
        .collect::<Result<_, _>>()?;
    if rules == Rules::WorkersAi {
        give_ids(&mut messages);
    }
    Ok(Some(messages))
}

/// Names calls that came without an id by their place, and gives each answer without one the id of the call it
/// answers: the first that is still open of the tool it names, or the first at all.
fn give_ids(messages: &mut [Message]) {
    // Calls of the last turn that have no answer yet: id and name.
    let mut open: Vec<(String, String)> = Vec::new();
    for (index, message) in messages.iter_mut().enumerate() {
        if !message.tool_calls.is_empty() {
            open.clear();
        }
        for (number, call) in message.tool_calls.iter_mut().enumerate() {
            if call.id.is_empty() {
                call.id = format!("call_{index}_{number}");
            }
            open.push((call.id.clone(), call.name.clone()));
        }
        if message.role != Role::Tool {
            continue;
        }
        let answered = match (&message.tool_call_id, &message.name) {
            (Some(id), _) => open.iter().position(|(open, _)| open == id),
            (None, Some(name)) => open.iter().position(|(_, open)| open == name),
            (None, None) => (!open.is_empty()).then_some(0),
        };
        if let Some(answered) = answered {
            message.tool_call_id = Some(open.remove(answered).0);
        }
    }
}

/// One message; `flat` is told the numbers of its calls that are written flat.
fn message(mut fields: Object, rules: Rules, flat: impl FnMut(usize)) -> Result<Message, Error> {
    let role = role(&mut fields)?;
    let path = fields.path("content");
    let mut cache_marks = Vec::new();
    let mut content = match fields.take("content") {
        None => None,
        Some(value) => Some(content(&path, value, role, &mut cache_marks)?),
    };
    if let Some(keep) = fields.cache_control() {
        cache_marks.push(CacheMark { part: None, keep });
    }
    let tool_calls = tool_calls(&mut fields, role, rules, flat)?;
    if let Some(refusal) = fields.string("refusal")? {
        // An earlier refusal was said as text.
        content.get_or_insert_default().0.push(Part::Text(refusal));
    }
    let reasoning_content = fields.string("reasoning_content")?;
    let reasoning = fields.string("reasoning")?;
    let reasoning = reasoning_content.or(reasoning).filter(|_| role == Role::Assistant);
    let thoughts = thoughts::read(&mut fields).filter(|_| role == Role::Assistant).unwrap_or_default();
    let lax = rules == Rules::WorkersAi;
    let tool_call_id = fields.string("tool_call_id")?.filter(|id| !(lax && id.is_empty()));
    if role == Role::Tool && tool_call_id.is_none() && rules == Rules::OpenAi {
        return Err(missing(&fields.path("tool_call_id")));
    }
    let name = fields.string("name")?;
    fields.refuse(&["function_call", "audio"])?;
    fields.harmless(HARMLESS);
    fields.finish()?;
    let content = match content {
        Some(content) => content,
        // A turn of no words: calls or thoughts alone, or nothing at all.
        None if role == Role::Assistant => Content::default(),
        None => return Err(missing(&path)),
    };
    Ok(Message { role, content, name, reasoning, thoughts, tool_calls, tool_call_id, cache_marks })
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

/// Text as one string or in parts of text.
pub(crate) fn plain_text(path: &str, value: Value) -> Result<String, Error> {
    // Whoever writes a system message has no images to show.
    Ok(content(path, value, Role::System, &mut Vec::new())?.joined_text())
}

fn content(path: &str, value: Value, role: Role, cache_marks: &mut Vec<CacheMark>) -> Result<Content, Error> {
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
        .map(|(index, value)| {
            let mut fields = Object::at(element(path, index), value)?;
            if let Some(keep) = fields.cache_control() {
                cache_marks.push(CacheMark { part: Some(index), keep });
            }
            part(fields, role)
        })
        .collect::<Result<_, _>>()
        .map(Content)
}

fn part(mut fields: Object, role: Role) -> Result<Part, Error> {
    let kind = fields.required_string("type")?;
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

fn tool_calls(
    fields: &mut Object,
    role: Role,
    rules: Rules,
    mut flat: impl FnMut(usize),
) -> Result<Vec<ToolCall>, Error> {
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
                // See `give_ids`.
                None if rules == Rules::WorkersAi => String::new(),
                None => return Err(missing(&call.path("id"))),
            };
            let (name, arguments) = match call.object("function")? {
                Some(mut function) => {
                    let named = called(&mut function)?;
                    function.finish()?;
                    named
                }
                None if rules == Rules::WorkersAi => {
                    flat(index);
                    called(&mut call)?
                }
                None => return Err(missing(&call.path("function"))),
            };
            call.finish()?;
            Ok(ToolCall { id, name, arguments })
        })
        .collect()
}

fn called(fields: &mut Object) -> Result<(String, String), Error> {
    let name = fields.required_name("name")?;
    let path = fields.path("arguments");
    let arguments = match fields.take("arguments") {
        None => "{}".to_owned(),
        Some(Value::String(text)) => text,
        Some(object @ Value::Object(_)) => object.to_string(),
        Some(other) => return Err(fields::wrong_type(&path, "a string of JSON", &other)),
    };
    Ok((name, arguments))
}

//! Items to messages: what the model said in one turn (thoughts, text, calls) stands here as several items, and in
//! the canonical form as one message.

use super::item::Item;
use crate::{Content, Error, ErrorKind, Message, Part, Places, Role, ToolCall};
use std::collections::HashSet;

/// Where kept items stand in a request: behind this field.
pub(super) const KEPT: &str = "previous_response_id";

/// The field of the system prompt.
pub(super) const INSTRUCTIONS: &str = "instructions";

/// An item and its path in the body.
pub(super) struct Placed {
    pub(super) item: Item,
    pub(super) at: String,
}

/// The messages that these items are, with the places of their fields.
///
/// Items of the model that follow each other are one message, save for text that follows text directly: that is two.
pub(super) fn messages(
    instructions: Option<&str>,
    items: Vec<Placed>,
    places: &mut Places,
) -> Result<Vec<Message>, Error> {
    let mut messages = Vec::new();
    if let Some(instructions) = instructions {
        places.moved("messages[0]", INSTRUCTIONS);
        messages.push(Message::text(Role::System, instructions));
    }
    let mut calls = HashSet::new();
    // Whether the last item was text of the model.
    let mut spoke = false;
    for Placed { item, at } in items {
        let was_text = std::mem::take(&mut spoke);
        let number = messages.len();
        match item {
            Item::Message { role: Role::Assistant, content } => {
                let (number, message) = assistant(&mut messages, was_text, &at, places);
                // A second text of a message, behind a call, has no path of its own.
                if message.content.0.is_empty() {
                    places.moved(format!("messages[{number}].content"), format!("{at}.content"));
                }
                message.content.0.extend(content);
                spoke = true;
            }
            Item::Message { role, content } => {
                places.moved(format!("messages[{number}]"), at);
                messages.push(Message { content: Content(content), ..Message::text(role, "") });
            }
            Item::Reasoning { text, thoughts } => {
                let (number, message) = assistant(&mut messages, false, &at, places);
                places.moved(format!("messages[{number}].reasoning"), format!("{at}.content"));
                if !text.is_empty() || thoughts.is_empty() {
                    message.reasoning.get_or_insert_default().push_str(&text);
                }
                message.thoughts.extend(thoughts);
            }
            Item::Call { call_id, name, arguments } => {
                let (number, message) = assistant(&mut messages, false, &at, places);
                let call = format!("messages[{number}].tool_calls[{}]", message.tool_calls.len());
                places.moved(format!("{call}.function"), at.clone());
                places.moved(format!("{call}.id"), format!("{at}.call_id"));
                places.moved(call, at);
                calls.insert(call_id.clone());
                message.tool_calls.push(ToolCall { id: call_id, name, arguments });
            }
            Item::CallOutput { call_id, output } => {
                if !calls.contains(&call_id) {
                    let shown: String = call_id.chars().take(64).collect();
                    let message =
                        format!("No tool call found for function call output with call_id {shown}.");
                    return Err(Error::invalid(format!("{at}.call_id"), message));
                }
                places.moved(format!("messages[{number}].content"), format!("{at}.output"));
                places.moved(format!("messages[{number}].tool_call_id"), format!("{at}.call_id"));
                places.moved(format!("messages[{number}]"), at);
                let tool_call_id = Some(call_id);
                messages.push(Message {
                    content: Content(output),
                    tool_call_id,
                    ..Message::text(Role::Tool, "")
                });
            }
            Item::Reference { id } => return Err(no_such_item(&id, &at)),
        }
    }
    for message in &mut messages {
        // An answer of no words is kept as one empty text; where calls were made there is no text at all.
        let silent = message.content.0.iter().all(|part| matches!(part, Part::Text(text) if text.is_empty()));
        if message.role == Role::Assistant && !message.tool_calls.is_empty() && silent {
            message.content.0.clear();
        }
    }
    Ok(messages)
}

/// The message that the model's next item belongs to, and its number.
fn assistant<'a>(
    messages: &'a mut Vec<Message>,
    another: bool,
    at: &str,
    places: &mut Places,
) -> (usize, &'a mut Message) {
    if another || messages.last().is_none_or(|last| last.role != Role::Assistant) {
        places.moved(format!("messages[{}]", messages.len()), at);
        messages.push(Message { content: Content::default(), ..Message::text(Role::Assistant, "") });
    }
    let number = messages.len() - 1;
    (number, &mut messages[number])
}

/// A reference to an item that is not kept.
pub(super) fn no_such_item(id: &str, at: &str) -> Error {
    let shown: String = id.chars().take(128).collect();
    Error::new(ErrorKind::NotFound, format!("Item with id '{shown}' not found.")).at(format!("{at}.id"))
}

/// An error of a backend, with the field at fault named as the caller wrote it. Inside what is kept and inside a plain
/// text there are no fields that a caller could know.
pub(super) fn locate(places: &Places, error: Error) -> Error {
    let mut error = places.locate(error);
    if let Some(param) = &mut error.param {
        for whole in [KEPT, INSTRUCTIONS, "input"] {
            // Elements of `input` have a path, the text itself has none.
            let inside = param.strip_prefix(whole).is_some_and(|rest| rest.starts_with('.'));
            if inside
                || (whole != "input" && param.strip_prefix(whole).is_some_and(|rest| rest.starts_with('[')))
            {
                param.truncate(whole.len());
            }
        }
    }
    error
}

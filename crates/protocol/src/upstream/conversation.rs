//! What the writers of dialects with turns have in common: Anthropic's, Gemini's, Converse. The system stands apart there,
//! and neighbours of one speaker are one turn. The blocks themselves are each dialect's own.

use super::wordless;
use crate::{Error, Message, Part, Role, ToolCall};
use serde_json::{Map, Value, json};

/// A turn: who speaks, and the blocks of it.
type Turn<K> = (K, Vec<Value>);

/// The system's blocks and the turns, of messages that `write` makes blocks of. Messages of one kind that stand side by
/// side are one turn; those without blocks are none. All of the system stands in front, wherever it was.
///
/// # Errors
/// Those of `write`, and a picture in the system's words, which no dialect of these takes.
pub(crate) fn turns<K: PartialEq>(
    messages: &[Message],
    dialect: &str,
    mut write: impl FnMut(usize, &Message) -> Result<Turn<K>, Error>,
) -> Result<(Vec<Value>, Vec<Turn<K>>), Error> {
    let mut system = Vec::new();
    let mut turns: Vec<Turn<K>> = Vec::new();
    for (index, message) in messages.iter().enumerate() {
        let of_system = matches!(message.role, Role::System | Role::Developer);
        let picture = message.content.0.iter().position(|part| matches!(part, Part::Image { .. }));
        if let Some(at) = picture.filter(|_| of_system) {
            return Err(wordless(&format!("messages[{index}].content[{at}].image_url"), dialect));
        }
        let (kind, blocks) = write(index, message)?;
        match turns.last_mut() {
            _ if of_system => system.extend(blocks),
            _ if blocks.is_empty() => {}
            Some((last, before)) if *last == kind => before.extend(blocks),
            _ => turns.push((kind, blocks)),
        }
    }
    Ok((system, turns))
}

/// The arguments of a call of a message, which are an object there; none are an empty one.
///
/// # Errors
/// When they are something else.
pub(crate) fn arguments(
    call: &ToolCall,
    message: usize,
    number: usize,
    dialect: &str,
) -> Result<Map<String, Value>, Error> {
    let text = Some(call.arguments.trim()).filter(|text| !text.is_empty()).unwrap_or("{}");
    serde_json::from_str(text).map_err(|_| {
        let path = format!("messages[{message}].tool_calls[{number}].function.arguments");
        Error::invalid(&path, format!("'{path}' must be a JSON object, as {dialect} has it"))
    })
}

/// Whether a text says nothing. Such blocks are refused by these services.
pub(crate) fn is_blank(text: &str) -> bool {
    text.trim().is_empty()
}

/// An id in the letters that are taken; others become `_`.
pub(crate) fn id_of(id: &str, marks: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() || marks.contains(c) { c } else { '_' }).collect()
}

/// The schema of a tool's arguments, which must say that they are an object.
pub(crate) fn object_schema(schema: Option<&Value>) -> Value {
    let Some(schema) = schema.filter(|schema| schema.as_object().is_none_or(|members| !members.is_empty()))
    else {
        return json!({"type": "object", "properties": {}});
    };
    let mut schema = schema.clone();
    if let Some(members) = schema.as_object_mut() {
        members.entry("type").or_insert_with(|| "object".into());
    }
    schema
}

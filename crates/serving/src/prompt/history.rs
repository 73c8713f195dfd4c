//! Whether a conversation's tool calls hold together, before a template sees them.
//!
//! The rules are OpenAI's, and where OpenAI says less, what templates need:
//! - The arguments of a call are a JSON object; empty text is the empty object.
//! - A tool message that names a call names one that an earlier assistant message made.
//! - Every call of an assistant message is answered by a tool message before the user or the assistant speaks again
//!   and before the conversation ends: a model that reads a call without its result goes on with a result of
//!   its own making.
//!
//! Callers whose dialect has no ids leave them out: such a tool message answers the first call that is still open, the
//! one of its name if it bears a name, and where no call is open it is let pass (these callers often write
//! their calls as text). Faults are named by OpenAI's paths. Knows no template.

use protocol::{Error, Message, Role, ToolCall};
use serde_json::{Map, Value as Json};
use std::collections::HashSet;

/// Checks the calls and results of a conversation.
pub(super) fn check(messages: &[Message]) -> Result<(), Error> {
    let mut known: HashSet<&str> = HashSet::new();
    // Calls without a result yet, with the places of message and call.
    let mut open: Vec<(usize, usize, &ToolCall)> = Vec::new();
    for (i, message) in messages.iter().enumerate() {
        match message.role {
            Role::User | Role::Assistant => {
                answered(&open)?;
                open.clear();
                for (j, call) in message.tool_calls.iter().enumerate() {
                    arguments(call).map_err(|why| {
                        let at = format!("messages[{i}].tool_calls[{j}].function.arguments");
                        let message = format!("the arguments of this call are not a JSON object: {why}");
                        Error::invalid(at, message)
                    })?;
                    known.insert(&call.id);
                    open.push((i, j, call));
                }
            }
            Role::Tool => {
                let place = match &message.tool_call_id {
                    Some(id) => {
                        if !known.contains(id.as_str()) {
                            let why =
                                format!("no earlier assistant message has a tool call with the id {id:?}");
                            return Err(Error::invalid(format!("messages[{i}].tool_call_id"), why));
                        }
                        open.iter().position(|(_, _, call)| call.id == *id)
                    }
                    None => {
                        let named = |(_, _, call): &(usize, usize, &ToolCall)| {
                            message.name.as_ref().is_none_or(|name| call.name == *name)
                        };
                        open.iter().position(named).or((!open.is_empty()).then_some(0))
                    }
                };
                if let Some(place) = place {
                    open.remove(place);
                }
            }
            Role::System | Role::Developer => {}
        }
    }
    answered(&open)
}

fn answered(open: &[(usize, usize, &ToolCall)]) -> Result<(), Error> {
    let Some((i, j, call)) = open.first() else { return Ok(()) };
    let why = format!(
        "the tool call {:?} ({}) has no answer: a message of role 'tool' with its id must follow before the \
         conversation goes on",
        call.id, call.name
    );
    Err(Error::invalid(format!("messages[{i}].tool_calls[{j}].id"), why))
}

/// A call's arguments as an object.
pub(super) fn arguments(call: &ToolCall) -> Result<Map<String, Json>, String> {
    if call.arguments.trim().is_empty() {
        return Ok(Map::new());
    }
    serde_json::from_str(&call.arguments).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(id: &str, arguments: &str) -> ToolCall {
        ToolCall { id: id.into(), name: "f".into(), arguments: arguments.into() }
    }

    fn calls(calls: Vec<ToolCall>) -> Message {
        Message { tool_calls: calls, ..Message::text(Role::Assistant, "") }
    }

    fn result(id: Option<&str>) -> Message {
        Message { tool_call_id: id.map(str::to_owned), ..Message::text(Role::Tool, "4") }
    }

    fn fault(messages: &[Message]) -> Option<String> {
        check(messages).err().map(|error| error.param.expect("a field is named"))
    }

    #[test]
    fn whole_loops_pass_with_and_without_ids() {
        let user = || Message::text(Role::User, "x");
        let both = || calls(vec![call("a", "{\"x\": 1}"), call("b", "")]);
        let reminder = Message::text(Role::System, "be brief");
        let done =
            [user(), both(), result(Some("b")), reminder, result(Some("a")), calls(vec![call("a", "{}")])];
        let again = [&done[..], &[result(Some("a")), user()]].concat();
        assert_eq!(fault(&again), None);
        assert_eq!(fault(&[user(), both(), result(None), result(None), user()]), None);
        assert_eq!(fault(&[user(), Message::text(Role::Assistant, "f()"), result(None)]), None);
        assert_eq!(fault(&again[..6]).as_deref(), Some("messages[5].tool_calls[0].id"));
    }

    #[test]
    fn faults_name_message_and_field() {
        let user = || Message::text(Role::User, "x");
        for bad in ["{\"x\": ", "[1]", "3", "null", "\"{}\"", "{} x"] {
            let messages = [user(), calls(vec![call("a", "{}"), call("b", bad)])];
            assert_eq!(
                fault(&messages).as_deref(),
                Some("messages[1].tool_calls[1].function.arguments"),
                "{bad}"
            );
        }
        let wrong = [user(), calls(vec![call("a", "{}")]), result(Some("z"))];
        assert_eq!(fault(&wrong).as_deref(), Some("messages[2].tool_call_id"));
        let orphan = [user(), result(Some("a"))];
        assert_eq!(fault(&orphan).as_deref(), Some("messages[1].tool_call_id"));
        let both = calls(vec![call("a", "{}"), call("b", "{}")]);
        for next in [Some(user()), Some(Message::text(Role::Assistant, "so")), None] {
            let mut messages = vec![user(), both.clone(), result(Some("a"))];
            messages.extend(next);
            assert_eq!(fault(&messages).as_deref(), Some("messages[1].tool_calls[1].id"));
        }
    }
}

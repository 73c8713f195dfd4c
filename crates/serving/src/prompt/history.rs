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
use std::collections::{HashMap, HashSet, VecDeque};

/// Checks the calls and results of a conversation.
pub(super) fn check(messages: &[Message]) -> Result<(), Error> {
    let mut known: HashSet<&str> = HashSet::new();
    let mut open = Open::default();
    for (i, message) in messages.iter().enumerate() {
        match message.role {
            Role::User | Role::Assistant => {
                open.answered()?;
                open = Open::default();
                for (j, call) in message.tool_calls.iter().enumerate() {
                    arguments(call).map_err(|why| {
                        let at = format!("messages[{i}].tool_calls[{j}].function.arguments");
                        let message = format!("the arguments of this call are not a JSON object: {why}");
                        Error::invalid(at, message)
                    })?;
                    known.insert(&call.id);
                    open.add((i, j), call);
                }
            }
            Role::Tool => match &message.tool_call_id {
                Some(id) if !known.contains(id.as_str()) => {
                    let why = format!("no earlier assistant message has a tool call with the id {id:?}");
                    return Err(Error::invalid(format!("messages[{i}].tool_call_id"), why));
                }
                Some(id) => open.answer_id(id),
                None => open.answer_name(message.name.as_deref()),
            },
            Role::System | Role::Developer => {}
        }
    }
    open.answered()
}

/// The calls of one message, and which of them have a result. Each look-up is one step, however many calls there are:
/// a request may hold a hundred thousand.
#[derive(Default)]
struct Open<'a> {
    /// With the places of message and call, in order.
    calls: Vec<((usize, usize), &'a ToolCall)>,
    done: Vec<bool>,
    /// Calls before this one are done.
    first: usize,
    /// Calls of an id, and of a name, in order; those that are done may still be among them.
    by_id: HashMap<&'a str, VecDeque<usize>>,
    by_name: HashMap<&'a str, VecDeque<usize>>,
}

impl<'a> Open<'a> {
    fn add(&mut self, place: (usize, usize), call: &'a ToolCall) {
        let at = self.calls.len();
        self.by_id.entry(&call.id).or_default().push_back(at);
        self.by_name.entry(&call.name).or_default().push_back(at);
        self.calls.push((place, call));
        self.done.push(false);
    }

    /// The first open call with this id has its result, if there is one.
    fn answer_id(&mut self, id: &str) {
        self.done_first(|open| open.by_id.get_mut(id)?.pop_front());
    }

    /// The first open call of this name has its result; where there is none, the first open call.
    fn answer_name(&mut self, name: Option<&str>) {
        if name.is_none_or(|name| !self.done_first(|open| open.by_name.get_mut(name)?.pop_front()))
            && let Some(first) = self.skip_done()
        {
            self.done[first] = true;
        }
    }

    /// Marks the first open call that `next` gives. Gives whether there was one.
    fn done_first(&mut self, mut next: impl FnMut(&mut Self) -> Option<usize>) -> bool {
        while let Some(at) = next(self) {
            if !std::mem::replace(&mut self.done[at], true) {
                return true;
            }
        }
        false
    }

    /// The first call without a result.
    fn skip_done(&mut self) -> Option<usize> {
        while self.done.get(self.first).is_some_and(|done| *done) {
            self.first += 1;
        }
        (self.first < self.calls.len()).then_some(self.first)
    }

    /// Refuses calls without a result.
    fn answered(&mut self) -> Result<(), Error> {
        let Some(first) = self.skip_done() else { return Ok(()) };
        let ((i, j), call) = self.calls[first];
        let why = format!(
            "the tool call {:?} ({}) has no answer: a message of role 'tool' with its id must follow before the \
             conversation goes on",
            call.id, call.name
        );
        Err(Error::invalid(format!("messages[{i}].tool_calls[{j}].id"), why))
    }
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

    /// As it was first written: one look at all open calls for each result.
    fn naive(messages: &[Message]) -> Option<(usize, usize)> {
        let mut open: Vec<(usize, usize, &ToolCall)> = Vec::new();
        for (i, message) in messages.iter().enumerate() {
            if message.role == Role::Tool {
                let place = match (&message.tool_call_id, &message.name) {
                    (Some(id), _) => open.iter().position(|(_, _, call)| call.id == *id),
                    (None, name) => open
                        .iter()
                        .position(|(_, _, call)| name.as_ref().is_none_or(|name| call.name == *name))
                        .or((!open.is_empty()).then_some(0)),
                };
                place.map(|place| open.remove(place));
                continue;
            }
            if let Some((i, j, _)) = open.first() {
                return Some((*i, *j));
            }
            open = message.tool_calls.iter().enumerate().map(|(j, call)| (i, j, call)).collect();
        }
        open.first().map(|(i, j, _)| (*i, *j))
    }

    proptest::proptest! {
        #[test]
        fn results_find_the_calls_that_a_naive_search_finds(
            turns in proptest::collection::vec((proptest::collection::vec((0u8..3, 0u8..3), 0..5),
                proptest::collection::vec((0u8..2, 0u8..3), 0..6)), 1..4),
        ) {
            let mut messages = Vec::new();
            let mut known: HashSet<u8> = HashSet::new();
            for (made, results) in turns {
                known.extend(made.iter().map(|(id, _)| *id));
                let call = |(id, name): &(u8, u8)| ToolCall { name: name.to_string(), ..call(&id.to_string(), "{}") };
                messages.push(calls(made.iter().map(call).collect()));
                for (how, which) in results {
                    let named = Message { name: (which > 0).then(|| which.to_string()), ..result(None) };
                    let by_id = how == 0 && known.contains(&which);
                    messages.push(if by_id { result(Some(&which.to_string())) } else { named });
                }
            }
            let expected = naive(&messages).map(|(i, j)| format!("messages[{i}].tool_calls[{j}].id"));
            proptest::prop_assert_eq!(fault(&messages), expected);
        }
    }

    /// A quadratic look at these would take minutes.
    #[test]
    fn very_many_calls_answered_backwards_pass() {
        let many = 200_000;
        let made = (0..many).map(|i| call(&format!("call_{i:030}"), "{}")).collect();
        let mut messages = vec![Message::text(Role::User, "x"), calls(made)];
        messages.extend((0..many).rev().map(|i| result(Some(&format!("call_{i:030}")))));
        assert_eq!(fault(&messages), None);
    }
}

//! Calls of a conversation as templates of some families insist on them: one a message, with short ids or with ids
//! that say the name, and with a text beside them.
//!
//! Clients do not know of these rules, and their histories may have been made with another model. Everything here
//! is a pure function of the messages, so that the same history is the same prompt.

use crate::template::{ChatTemplate, Conversation};
use crate::tools::Family;
use protocol::{Content, Message, Role};
use serde_json::Value as Json;
use std::borrow::Cow;
use std::collections::{HashMap, VecDeque};

/// Letters and digits of an id where a template counts them, as Mistral's do.
const SHORT: usize = 9;

/// The messages, with their calls as the template takes them.
pub(super) fn suited<'a>(
    messages: &'a [Message],
    template: &ChatTemplate,
    family: &Family,
) -> Cow<'a, [Message]> {
    let mut messages = Cow::Borrowed(messages);
    if family.calls_one_by_one() && messages.iter().any(|message| message.tool_calls.len() > 1) {
        messages = Cow::Owned(one_by_one(&messages));
    }
    if template.mentions("length != 9") {
        let all = messages.to_mut();
        for message in all {
            message.tool_calls.iter_mut().for_each(|call| call.id = short(&call.id));
            message.tool_call_id = message.tool_call_id.as_deref().map(short);
        }
    }
    let calls = || messages.iter().flat_map(|message| &message.tool_calls);
    if calls().any(|call| family.call_id(&call.name, &call.id, 0).is_some_and(|id| id != call.id)) {
        messages = Cow::Owned(numbered(&messages, family));
    }
    messages
}

/// With the ids that say names and numbers. Calls are numbered through the conversation, as Kimi's makers want it.
fn numbered(messages: &[Message], family: &Family) -> Vec<Message> {
    let mut number = 0;
    // New ids of the calls of the last message that had this id; results come in the calls' order.
    let mut ids: HashMap<&str, (usize, VecDeque<String>)> = HashMap::new();
    let mut out = messages.to_vec();
    for (i, (message, told)) in messages.iter().zip(&mut out).enumerate() {
        for (call, told) in message.tool_calls.iter().zip(&mut told.tool_calls) {
            if let Some(id) = family.call_id(&call.name, &call.id, number) {
                told.id = id;
            }
            number += 1;
            let (of, made) = ids.entry(&call.id).or_default();
            if std::mem::replace(of, i) != i {
                made.clear();
            }
            made.push_back(told.id.clone());
        }
        if let Some((_, made)) = message.tool_call_id.as_deref().and_then(|id| ids.get_mut(id)) {
            let next = if made.len() > 1 { made.pop_front() } else { made.front().cloned() };
            told.tool_call_id = next.or_else(|| told.tool_call_id.take());
        }
    }
    out
}

/// Each call in a message of its own, with its result behind it.
fn one_by_one(messages: &[Message]) -> Vec<Message> {
    let mut out = Vec::with_capacity(messages.len());
    let mut rest = messages;
    while let Some((message, after)) = rest.split_first() {
        rest = after;
        if message.tool_calls.len() < 2 {
            out.push(message.clone());
            continue;
        }
        let results = after.iter().take_while(|message| message.role == Role::Tool).count();
        let (results, after) = after.split_at(results);
        rest = after;
        let mut taken = vec![false; results.len()];
        for (i, call) in message.tool_calls.iter().enumerate() {
            let mut alone = Message { tool_calls: vec![call.clone()], ..message.clone() };
            if i > 0 {
                alone.content = Content::default();
                alone.reasoning = None;
            }
            out.push(alone);
            let found = results
                .iter()
                .enumerate()
                .position(|(j, result)| !taken[j] && result.tool_call_id.as_ref() == Some(&call.id));
            if let Some(j) = found {
                taken[j] = true;
                out.push(results[j].clone());
            }
        }
        out.extend(results.iter().zip(taken).filter(|(_, taken)| !taken).map(|(result, _)| result.clone()));
    }
    out
}

/// An id of nine letters and digits, the same for the same id.
fn short(id: &str) -> String {
    if id.len() == SHORT && id.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return id.to_owned();
    }
    // FNV-1a: what matters is that ids of one conversation stay apart.
    let mut hash = id.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let digits = b"0123456789abcdefghijklmnopqrstuvwxyz";
    (0..SHORT)
        .map(|_| {
            let digit = digits[(hash % 36) as usize];
            hash /= 36;
            char::from(digit)
        })
        .collect()
}

/// The same with empty texts where messages say nothing beside their calls. Some templates tell calls from answers
/// by `content` being none, others look into it; `None` where there is no such message.
pub(super) fn with_texts(conversation: &Conversation) -> Option<Conversation> {
    let silent = |content: Option<&Json>| content == Some(&Json::Null);
    if !conversation.messages.iter().any(|message| silent(message.get("content"))) {
        return None;
    }
    let mut conversation = conversation.clone();
    for message in conversation.messages.iter_mut().filter(|message| silent(message.get("content"))) {
        message.insert("content".into(), "".into());
    }
    Some(conversation)
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::ToolCall;

    fn calls(ids: &[&str]) -> Message {
        let call = |id: &&str| ToolCall { id: (*id).into(), name: "f".into(), arguments: "{}".into() };
        Message { tool_calls: ids.iter().map(call).collect(), ..Message::text(Role::Assistant, "Wait.") }
    }

    fn result(id: &str) -> Message {
        Message { tool_call_id: Some(id.into()), ..Message::text(Role::Tool, "4") }
    }

    #[test]
    fn calls_of_one_message_stand_alone_each_before_its_result() {
        let user = || Message::text(Role::User, "x");
        let told = one_by_one(&[user(), calls(&["a", "b", "c"]), result("b"), result("a"), user()]);
        let shown: Vec<String> = told
            .iter()
            .map(|message| match (&message.role, message.tool_calls.first(), &message.tool_call_id) {
                (_, Some(call), _) => format!("{}:{}", call.id, message.content.joined_text()),
                (_, _, Some(id)) => format!("={id}"),
                (role, ..) => role.as_str().to_owned(),
            })
            .collect();
        assert_eq!(shown, ["user", "a:Wait.", "=a", "b:", "=b", "c:", "user"]);
        let one = [calls(&["a"]), result("a")];
        assert_eq!(one_by_one(&one), one);
    }

    #[test]
    fn ids_become_nine_letters_and_digits_and_stay_apart() {
        let made: Vec<String> = ["call_1", "call_2", "", "toolu_01é", "abcdefgh-"].map(short).to_vec();
        for id in &made {
            assert!(id.len() == 9 && id.bytes().all(|b| b.is_ascii_alphanumeric()), "{id}");
            assert_eq!(made.iter().filter(|other| *other == id).count(), 1);
            assert_eq!(short(id), *id, "a short one stays");
        }
    }

    #[test]
    fn silence_becomes_an_empty_text_for_templates_that_look_into_it() {
        let source =
            "{% for m in messages %}{{ m.role }}{% if '</think>' in m.content %}!{% endif %}{% endfor %}";
        let template = ChatTemplate::new(source, None, None, std::sync::Arc::default()).unwrap();
        let message = serde_json::json!({"role": "assistant", "content": null});
        let message = message.as_object().unwrap().clone();
        let silent = Conversation { messages: vec![message], ..Conversation::default() };
        assert!(template.render(&silent).is_err());
        let told = with_texts(&silent).unwrap();
        assert_eq!(template.render(&told).unwrap().text(), "assistant");
        assert_eq!(with_texts(&told).map(|_| ()), None);
    }
}

//! Thoughts of models here in a conversation of Anthropic's dialect that goes on at a provider.
//!
//! Where a thought was made here, a text stands in for the proof that Anthropic's API has there, and where another service
//! made it that one's proof stands there wrapped; that API refuses both. So the block is taken out; every byte beside it
//! stays. So it is with what Responses carry from turn to turn (`encrypted_content`), which OpenAI's API refuses where it
//! did not write it. Not here: requests that are written anew, which leave such
//! thoughts out by themselves (`protocol::anthropic`).

use bytes::Bytes;
use memchr::memmem;
use serde::Deserialize;
use serde_json::value::RawValue;
use std::borrow::Cow;

/// What a proof begins with that stands in for one, or wraps another service's: `msg_`, in Base64
/// (`protocol::anthropic`).
const STAND_IN: &str = "bXNnX";

/// What the API is told where it would want thoughts that are not there.
const DISABLED: &str = r#"{"type":"disabled"}"#;

#[derive(Deserialize)]
struct Asked<'a> {
    #[serde(borrow)]
    messages: &'a RawValue,
    #[serde(borrow)]
    thinking: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Message<'a> {
    #[serde(borrow)]
    role: Cow<'a, str>,
    #[serde(borrow)]
    content: &'a RawValue,
}

#[derive(Deserialize)]
struct Block<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    signature: Option<Cow<'a, str>>,
    #[serde(borrow)]
    data: Option<Cow<'a, str>>,
}

impl Block<'_> {
    fn is_ours(&self) -> bool {
        let proof = match &*self.kind {
            "thinking" => &self.signature,
            "redacted_thinking" => &self.data,
            _ => return false,
        };
        proof.as_ref().is_some_and(|proof| proof.starts_with(STAND_IN))
    }
}

/// The body without thoughts whose proof is none; nothing where there are no such. A message of them alone goes too, and
/// where the model would go on behind a call whose thoughts went, it does not think: the API would want them.
#[must_use]
pub fn without_stand_ins(body: &[u8]) -> Option<Bytes> {
    memmem::find(body, STAND_IN.as_bytes())?;
    // What cannot be read is the provider's to judge.
    let text = std::str::from_utf8(body).ok()?;
    let asked: Asked<'_> = serde_json::from_str(text).ok()?;
    let messages: Vec<&RawValue> = serde_json::from_str(asked.messages.get()).ok()?;
    let (mut changed, mut unproven) = (false, false);
    let mut kept = Vec::with_capacity(messages.len());
    for raw in messages {
        let message: Message<'_> = serde_json::from_str(raw.get()).ok()?;
        let from_model = message.role == "assistant";
        match from_model.then(|| rest(message.content)).flatten() {
            Some(rest) => {
                changed = true;
                unproven = rest.calls && !rest.thinks;
                if !rest.blocks.is_empty() {
                    let content = format!("[{}]", rest.blocks.join(","));
                    kept.push(Cow::Owned(replaced(raw.get(), message.content, &content)));
                }
            }
            None => {
                unproven &= !from_model;
                kept.push(Cow::Borrowed(raw.get()));
            }
        }
    }
    if !changed {
        return None;
    }
    let messages = format!("[{}]", kept.join(","));
    let is_off = |thinking: &&RawValue| thinking.get().contains("\"disabled\"");
    let thinking = asked.thinking.filter(|_| unproven).filter(|thinking| !is_off(thinking));
    let mut edits = vec![(asked.messages, messages.as_str())];
    edits.extend(thinking.map(|thinking| (thinking, DISABLED)));
    // The last first, so that the places of the others hold.
    edits.sort_by_key(|(raw, _)| std::cmp::Reverse(place(text, raw)));
    let edited = edits.iter().fold(text.to_owned(), |mut edited, (raw, new)| {
        let start = place(text, raw);
        edited.replace_range(start..start + raw.get().len(), new);
        edited
    });
    Some(edited.into())
}

/// What `encrypted_content` begins with that was written here: `hearth-`, in Base64 (`protocol::openai::responses`).
const CARRIED: &str = "aGVhcnRoL";

#[derive(Deserialize)]
struct Continued<'a> {
    #[serde(borrow)]
    input: &'a RawValue,
}

#[derive(Deserialize)]
struct Item<'a> {
    #[serde(borrow)]
    encrypted_content: Option<Cow<'a, str>>,
}

/// The body of a request for a response without the thoughts that were carried here; nothing where there are no such.
#[must_use]
pub fn without_carried(body: &[u8]) -> Option<Bytes> {
    memmem::find(body, CARRIED.as_bytes())?;
    // What cannot be read is the provider's to judge.
    let text = std::str::from_utf8(body).ok()?;
    let asked: Continued<'_> = serde_json::from_str(text).ok()?;
    let items: Vec<&RawValue> = serde_json::from_str(asked.input.get()).ok()?;
    let goes = |raw: &RawValue| {
        let item: Option<Item<'_>> = serde_json::from_str(raw.get()).ok();
        let carried = item.and_then(|item| item.encrypted_content);
        carried.is_some_and(|carried| carried.starts_with(CARRIED))
    };
    let kept: Vec<&str> = items.iter().filter(|raw| !goes(raw)).map(|raw| raw.get()).collect();
    let input = format!("[{}]", kept.join(","));
    (kept.len() < items.len()).then(|| replaced(text, asked.input, &input).into())
}

/// What is left of a message's blocks.
struct Rest<'a> {
    blocks: Vec<&'a str>,
    /// Whether there are calls among them.
    calls: bool,
    /// Whether it begins with a thought that has its proof.
    thinks: bool,
}

/// The blocks without those that go; nothing where none goes.
fn rest(content: &RawValue) -> Option<Rest<'_>> {
    let blocks: Vec<&RawValue> = serde_json::from_str(content.get()).ok()?;
    let all = blocks.len();
    let mut rest = Rest { blocks: Vec::with_capacity(all), calls: false, thinks: false };
    for raw in blocks {
        let block: Block<'_> = serde_json::from_str(raw.get()).ok()?;
        if block.is_ours() {
            continue;
        }
        rest.thinks |= rest.blocks.is_empty() && matches!(&*block.kind, "thinking" | "redacted_thinking");
        rest.calls |= block.kind == "tool_use";
        rest.blocks.push(raw.get());
    }
    (rest.blocks.len() < all).then_some(rest)
}

/// Where a value stands in the text that it was read from.
fn place(text: &str, raw: &RawValue) -> usize {
    raw.get().as_ptr().addr() - text.as_ptr().addr()
}

/// The text with another value in the place of one that was read from it.
fn replaced(text: &str, raw: &RawValue, new: &str) -> String {
    let start = place(text, raw);
    [&text[..start], new, &text[start + raw.get().len()..]].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(body: &str, expected: Option<&str>) {
        let found = without_stand_ins(body.as_bytes());
        assert_eq!(found.as_deref().map(|body| std::str::from_utf8(body).unwrap()), expected, "{body}");
    }

    const OURS: &str = r#"{"type":"thinking", "thinking":"语", "signature":"bXNnXzE6MA=="}"#;
    const THEIRS: &str = r#"{"type":"thinking","thinking":"x","signature":"EqQB"}"#;
    const CALL: &str = r#"{"type":"tool_use","id":"t","name":"f","input":{"a":1.50}}"#;
    const ANSWER: &str =
        r#"{"role":"user","content":[{"type":"tool_result","tool_use_id":"t","content":"bXNnX"}]}"#;

    #[test]
    fn thoughts_without_a_proof_go_and_every_other_byte_stays() {
        let text = r#"{"type" : "text", "text":"\u00e9 bXNnX", "new":1e0}"#;
        let body = |blocks: &str| {
            format!(
                r#"{{ "new" : [1.0], "messages":[{{"role":"user","content":"q"}},{{"content":{blocks},"role":"assistant", "x" : 0}},{ANSWER}],"max_tokens":9 }}"#
            )
        };
        check(&body(&format!("[{OURS}, {THEIRS} ,{text}]")), Some(&body(&format!("[{THEIRS},{text}]"))));
        check(&body(&format!("[{THEIRS}, {text}]")), None);
        check(&body("\"bXNnX\""), None);
    }

    #[test]
    fn what_another_service_sealed_goes_and_what_anthropic_sealed_stays() {
        let body = |blocks: &str| format!(r#"{{"messages":[{{"role":"assistant","content":[{blocks}]}}]}}"#);
        let text = r#"{"type":"text","text":"a"}"#;
        let theirs = r#"{"type":"redacted_thinking","data":"EmwK"}"#;
        let anothers = r#"{"type":"redacted_thinking","data":"bXNnXy9nb29nbGU="}"#;
        check(&body(&[theirs, anothers, text].join(",")), Some(&body(&[theirs, text].join(","))));
    }

    #[test]
    fn a_message_of_nothing_else_goes_too() {
        check(
            &format!(
                r#"{{"messages":[{{"role":"user","content":"q"}},{{"role":"assistant","content":[{OURS}]}},{{"role":"user","content":"r"}}]}}"#
            ),
            Some(r#"{"messages":[{"role":"user","content":"q"},{"role":"user","content":"r"}]}"#),
        );
    }

    #[test]
    fn a_model_does_not_think_on_behind_a_call_whose_thoughts_went() {
        let body = |thinking: &str, messages: &[&str]| {
            format!(r#"{{"thinking":{thinking},"messages":[{}]}}"#, messages.join(","))
        };
        let said = |blocks: &str| format!(r#"{{"role":"assistant","content":[{blocks}]}}"#);
        let on = r#"{"type":"enabled","budget_tokens":2000}"#;
        let (before, after) = (said(&format!("{OURS},{CALL}")), said(CALL));
        check(&body(on, &[&before, ANSWER]), Some(&body(DISABLED, &[&after, ANSWER])));
        // A later turn has its own proof, or none to miss.
        let proven = said(&format!("{THEIRS},{CALL}"));
        check(
            &body(on, &[&before, ANSWER, &proven, ANSWER]),
            Some(&body(on, &[&after, ANSWER, &proven, ANSWER])),
        );
        let spoken = said(r#"{"type":"text","text":"t"}"#);
        let with_thought = said(&format!(r#"{OURS},{{"type":"text","text":"t"}}"#));
        check(&body(on, &[&with_thought]), Some(&body(on, &[&spoken])));
    }

    #[test]
    fn thoughts_that_were_carried_here_go_from_what_goes_to_openai_and_every_other_byte_stays() {
        let body = |items: &str| format!(r#"{{ "input":{items}, "x" : 1.0 }}"#);
        let ours = r#"{"type":"reasoning","summary":[],"encrypted_content":"aGVhcnRoLTI6e30"}"#;
        let theirs = r#"{"type":"reasoning", "summary":[],"encrypted_content":"gAAAAAB"}"#;
        let said = r#"{"role" : "user", "content":"aGVhcnRoL"}"#;
        let found = without_carried(body(&format!("[{said}, {ours},{theirs}]")).as_bytes()).unwrap();
        assert_eq!(std::str::from_utf8(&found).unwrap(), body(&format!("[{said},{theirs}]")));
        for body in [body(&format!("[{theirs},{said}]")), body("\"aGVhcnRoL\""), "[\"aGVhcnRoL\"".into()] {
            assert_eq!(without_carried(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_left_as_it_is() {
        for body in [
            r#"{"messages":"bXNnX"}"#,
            r#"{"messages":[{"role":"assistant","content":[{"type":"thinking","signature":"bXNnX"}"#,
            r#"{"messages":[1,"bXNnX"]}"#,
            r#"["bXNnX"]"#,
        ] {
            check(body, None);
        }
    }
}

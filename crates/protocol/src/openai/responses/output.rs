//! The output of a response: items, gathered from deltas.
//!
//! Invariant: items stand in the order in which they began, and of them only the last one can be open. However the
//! deltas are cut, the items are the same.

use super::item::carried;
use super::{Form, item_id};
use crate::openai::logprobs::chat_tokens;
use crate::{Delta, FinishReason, Logprobs, Thought};
use serde_json::{Value, json};

/// How far an item, or the whole response, has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    /// Cut by the token limit or a policy.
    Incomplete,
}

impl Status {
    pub(super) const fn as_str(self) -> &'static str {
        match self {
            Self::InProgress => "in_progress",
            Self::Completed => "completed",
            Self::Incomplete => "incomplete",
        }
    }
}

/// One item.
#[derive(Debug)]
pub(super) struct Made {
    pub(super) id: String,
    pub(super) what: What,
    pub(super) status: Status,
}

#[derive(Debug)]
pub(super) enum What {
    Message { text: String, logprobs: Vec<Logprobs>, malformed: Vec<String> },
    Reasoning { text: String, thoughts: Vec<Thought> },
    Call { call_id: String, name: String, arguments: String, index: u32 },
}

/// What a delta did; the number is that of the item.
pub(super) enum Change {
    Opened(usize),
    /// The item's one part begins; that of thoughts that may not be read never does.
    Begun(usize),
    Text {
        item: usize,
        text: String,
        logprobs: Vec<Logprobs>,
    },
    Thought {
        item: usize,
        text: String,
    },
    Arguments {
        item: usize,
        text: String,
    },
    Closed(usize),
}

/// The items of one response.
pub(super) struct Output {
    /// What ids of items hold of the response's own.
    turn: String,
    /// Number of the first item in its turn: the input goes before.
    first: usize,
    pub(super) items: Vec<Made>,
    pub(super) finish: Option<FinishReason>,
}

impl Output {
    pub(super) const fn new(turn: String, first: usize) -> Self {
        Self { turn, first, items: Vec::new(), finish: None }
    }

    /// Takes in a delta. There is one answer; what names another is dropped.
    pub(super) fn push(&mut self, delta: Delta) -> Vec<Change> {
        let mut changes = Vec::new();
        match delta {
            Delta::Text { choice: 0, text, logprobs } if !text.is_empty() || !logprobs.is_empty() => {
                let item = self.message(&mut changes);
                if let What::Message { text: all, logprobs: entries, .. } = &mut self.items[item].what {
                    all.push_str(&text);
                    entries.extend(logprobs.iter().cloned());
                }
                changes.push(Change::Text { item, text, logprobs });
            }
            Delta::Reasoning { choice: 0, text } if !text.is_empty() => {
                let item = self.reasoning(&mut changes);
                if let What::Reasoning { text: all, .. } = &mut self.items[item].what {
                    if all.is_empty() {
                        changes.push(Change::Begun(item));
                    }
                    all.push_str(&text);
                }
                changes.push(Change::Thought { item, text });
            }
            Delta::Thought { choice: 0, thought } => {
                let item = self.reasoning(&mut changes);
                if let What::Reasoning { thoughts, .. } = &mut self.items[item].what {
                    thoughts.push(thought);
                }
            }
            Delta::ToolCallStart { choice: 0, index, id, name } => {
                let what = What::Call { call_id: id, name, arguments: String::new(), index };
                self.open(what, &mut changes);
            }
            Delta::ToolCallArguments { choice: 0, index, arguments } if !arguments.is_empty() => {
                let last = self.items.len().saturating_sub(1);
                if let Some(Made { what: What::Call { arguments: all, index: of, .. }, .. }) =
                    self.items.last_mut()
                    && *of == index
                {
                    all.push_str(&arguments);
                    changes.push(Change::Arguments { item: last, text: arguments });
                }
            }
            Delta::MalformedCall { choice: 0, why } => {
                let item = self.message(&mut changes);
                if let What::Message { malformed, .. } = &mut self.items[item].what {
                    malformed.push(why);
                }
            }
            Delta::Finish { choice: 0, reason, .. } => {
                let whole = matches!(reason, FinishReason::Stop | FinishReason::ToolCalls);
                // An answer of no words is a message of no words; a cut one may be thoughts alone.
                if whole && self.items.iter().all(|item| matches!(item.what, What::Reasoning { .. })) {
                    self.message(&mut changes);
                }
                self.close(if whole { Status::Completed } else { Status::Incomplete }, &mut changes);
                self.finish = Some(reason);
            }
            _ => {}
        }
        changes
    }

    fn message(&mut self, changes: &mut Vec<Change>) -> usize {
        match self.items.last() {
            Some(Made { what: What::Message { .. }, .. }) => self.items.len() - 1,
            _ => {
                let what = What::Message { text: String::new(), logprobs: Vec::new(), malformed: Vec::new() };
                self.open(what, changes)
            }
        }
    }

    fn reasoning(&mut self, changes: &mut Vec<Change>) -> usize {
        match self.items.last() {
            Some(Made { what: What::Reasoning { .. }, .. }) => self.items.len() - 1,
            _ => self.open(What::Reasoning { text: String::new(), thoughts: Vec::new() }, changes),
        }
    }

    fn open(&mut self, what: What, changes: &mut Vec<Change>) -> usize {
        self.close(Status::Completed, changes);
        let is_message = matches!(what, What::Message { .. });
        let prefix = match what {
            What::Message { .. } => "msg",
            What::Reasoning { .. } => "rs",
            What::Call { .. } => "fc",
        };
        let number = self.items.len();
        let id = item_id(prefix, &self.turn, self.first + number);
        self.items.push(Made { id, what, status: Status::InProgress });
        changes.push(Change::Opened(number));
        if is_message {
            changes.push(Change::Begun(number));
        }
        number
    }

    fn close(&mut self, status: Status, changes: &mut Vec<Change>) {
        let number = self.items.len().saturating_sub(1);
        if let Some(last) = self.items.last_mut().filter(|last| last.status == Status::InProgress) {
            last.status = status;
            changes.push(Change::Closed(number));
        }
    }

    /// How far the whole has come.
    pub(super) const fn status(&self) -> Status {
        match self.finish {
            None => Status::InProgress,
            Some(FinishReason::Stop | FinishReason::ToolCalls) => Status::Completed,
            Some(FinishReason::Length | FinishReason::ContentFilter) => Status::Incomplete,
        }
    }
}

impl Made {
    /// The item on the wire.
    pub(super) fn write(&self, form: &Form) -> Value {
        let (id, status) = (&self.id, self.status.as_str());
        match &self.what {
            What::Message { malformed, .. } => {
                let mut item = json!({
                    "id": id, "type": "message", "status": status, "role": "assistant",
                    "content": [self.part(form)],
                });
                if !malformed.is_empty() {
                    item["malformed_calls"] = json!(malformed);
                }
                item
            }
            What::Reasoning { text, thoughts } => {
                let mut item = json!({"id": id, "type": "reasoning", "status": status, "summary": []});
                let parts = if text.is_empty() { Vec::new() } else { vec![self.part(form)] };
                item[if form.summary { "summary" } else { "content" }] = parts.into();
                if form.carried {
                    item["encrypted_content"] = json!(carried(text, thoughts));
                }
                item
            }
            What::Call { call_id, name, arguments, .. } => json!({
                "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
                "arguments": arguments,
            }),
        }
    }

    /// The item for keeping: with the proofs of its thoughts, whether or not the caller wants them.
    pub(super) fn kept(&self, form: &Form) -> Value {
        let mut item = self.write(form);
        if let What::Reasoning { text, thoughts } = &self.what
            && !thoughts.is_empty()
        {
            item["encrypted_content"] = carried(text, thoughts).into();
        }
        item
    }

    /// The item as it began: nothing is in it yet.
    pub(super) fn write_empty(&self, form: &Form) -> Value {
        let (id, status) = (&self.id, Status::InProgress.as_str());
        match &self.what {
            What::Message { .. } => {
                json!({"id": id, "type": "message", "status": status, "role": "assistant", "content": []})
            }
            What::Reasoning { .. } if form.summary => {
                json!({"id": id, "type": "reasoning", "status": status, "summary": []})
            }
            What::Reasoning { .. } => {
                json!({"id": id, "type": "reasoning", "status": status, "summary": [], "content": []})
            }
            What::Call { call_id, name, .. } => json!({
                "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name,
                "arguments": "",
            }),
        }
    }

    /// The one part of a message or of thoughts.
    pub(super) fn part(&self, form: &Form) -> Value {
        match &self.what {
            What::Message { text, logprobs, .. } => text_part(text, logprobs),
            What::Reasoning { text, .. } => thought_part(form, text),
            What::Call { .. } => Value::Null,
        }
    }
}

pub(super) fn text_part(text: &str, logprobs: &[Logprobs]) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": chat_tokens(logprobs)})
}

pub(super) fn thought_part(form: &Form, text: &str) -> Value {
    json!({"type": if form.summary { "summary_text" } else { "reasoning_text" }, "text": text})
}

//! From deltas to steps that make blocks. Whole answers and streams are made of the same steps.
//!
//! Invariant: at most one block is open; a step that adds or closes belongs to it. No block is opened before there
//! is something to put into it, except a call, which may have no arguments.

use super::proof;
use crate::{Delta, FinishReason, Thought};

/// What a block holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Thinking,
    /// Thoughts that may not be read.
    Redacted(String),
    Text,
    Call {
        id: String,
        name: String,
    },
}

/// A step in the making of an answer's blocks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The next block begins.
    Open(Kind),
    /// More of the open block: text, or arguments.
    Add(String),
    /// The proof of the open block of thoughts.
    Sign(String),
    /// The open block ends.
    Close,
}

/// What is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opened {
    Thinking,
    Text,
    /// The call of this index.
    Call(u32),
}

/// Makes steps of deltas. An answer has one choice; deltas of others are dropped.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    open: Option<Opened>,
    /// Why it ended, and the stop text where one did it.
    pub(super) end: Option<(FinishReason, Option<String>)>,
    /// What is wrong with each call that came back as text.
    pub(super) malformed: Vec<String>,
}

impl Blocks {
    pub(super) fn steps(&mut self, delta: Delta) -> Vec<Step> {
        let mut steps = Vec::new();
        match delta {
            Delta::Text { choice: 0, text, .. } => self.add(Opened::Text, text, &mut steps),
            Delta::Reasoning { choice: 0, text } => self.add(Opened::Thinking, text, &mut steps),
            Delta::Thought { choice: 0, thought: Thought::Signed { signature, maker, .. } } => {
                if self.open != Some(Opened::Thinking) {
                    self.close(&mut steps);
                    steps.push(Step::Open(Kind::Thinking));
                    self.open = Some(Opened::Thinking);
                }
                // What is thought after its proof is another thought.
                steps.push(Step::Sign(proof::written(signature, &maker)));
                self.close(&mut steps);
            }
            Delta::Thought { choice: 0, thought: Thought::Redacted { data, maker } } => {
                self.close(&mut steps);
                let data = proof::written(data, &maker);
                steps.extend([Step::Open(Kind::Redacted(data)), Step::Close]);
            }
            Delta::ToolCallStart { choice: 0, index, id, name } => {
                self.close(&mut steps);
                self.open = Some(Opened::Call(index));
                steps.push(Step::Open(Kind::Call { id: super::written_id(&id), name }));
            }
            // Arguments of a call that is over have no block to go to; the canonical form has none.
            Delta::ToolCallArguments { choice: 0, index, arguments } => {
                if self.open == Some(Opened::Call(index)) && !arguments.is_empty() {
                    steps.push(Step::Add(arguments));
                }
            }
            Delta::MalformedCall { choice: 0, why } => self.malformed.push(why),
            Delta::Finish { choice: 0, reason, stop_text } => {
                self.close(&mut steps);
                self.end = Some((reason, stop_text));
            }
            Delta::Started { .. }
            | Delta::PromptLogprobs(_)
            | Delta::Usage(_)
            | Delta::Text { .. }
            | Delta::Reasoning { .. }
            | Delta::Thought { .. }
            | Delta::ToolCallStart { .. }
            | Delta::ToolCallArguments { .. }
            | Delta::MalformedCall { .. }
            | Delta::Finish { .. } => {}
        }
        steps
    }

    fn add(&mut self, what: Opened, text: String, steps: &mut Vec<Step>) {
        if text.is_empty() {
            return;
        }
        if self.open != Some(what) {
            self.close(steps);
            self.open = Some(what);
            steps.push(Step::Open(if what == Opened::Text { Kind::Text } else { Kind::Thinking }));
        }
        steps.push(Step::Add(text));
    }

    fn close(&mut self, steps: &mut Vec<Step>) {
        if self.open.take().is_some() {
            steps.push(Step::Close);
        }
    }
}

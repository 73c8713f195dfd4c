//! A whole answer, gathered from its deltas. However the text was cut into deltas, the answer is the same.

use crate::{Delta, Error, ErrorKind, FinishReason, Logprobs, Thought, ToolCall, Usage};

/// A whole answer to one canonical request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    /// One per choice asked for.
    pub choices: Vec<Choice>,
    /// Log-probabilities of the prompt's tokens, where asked for.
    pub prompt_logprobs: Option<Vec<Logprobs>>,
    /// What it used; `None` until the answer is complete.
    pub usage: Option<Usage>,
}

/// One of the answers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// Its text.
    pub text: String,
    /// What the model thought before.
    pub reasoning: String,
    /// The same as the service wrote it down that thought it, where it did.
    pub thoughts: Vec<Thought>,
    /// Calls it made.
    pub tool_calls: Vec<ToolCall>,
    /// What is wrong with each call that came back as text.
    pub malformed_calls: Vec<String>,
    /// One entry per token, where asked for.
    pub logprobs: Vec<Logprobs>,
    /// Why it ended.
    pub finish: Option<FinishReason>,
    /// The stop text that ended it, where one did.
    pub stop_text: Option<String>,
}

impl Answer {
    /// An empty answer of so many choices.
    #[must_use]
    pub fn new(choices: u32) -> Self {
        Self { choices: vec![Choice::default(); choices as usize], prompt_logprobs: None, usage: None }
    }

    /// Takes in a delta. One that names a choice or call outside the answer is dropped.
    pub fn push(&mut self, delta: Delta) {
        match delta {
            Delta::Started { .. } => {}
            Delta::PromptLogprobs(logprobs) => {
                self.prompt_logprobs.get_or_insert_default().extend(logprobs);
            }
            Delta::Text { choice, text, logprobs } => {
                if let Some(choice) = self.choices.get_mut(choice as usize) {
                    choice.text.push_str(&text);
                    choice.logprobs.extend(logprobs);
                }
            }
            Delta::Reasoning { choice, text } => {
                if let Some(choice) = self.choices.get_mut(choice as usize) {
                    choice.reasoning.push_str(&text);
                }
            }
            Delta::Thought { choice, thought } => {
                if let Some(choice) = self.choices.get_mut(choice as usize) {
                    choice.thoughts.push(thought);
                }
            }
            Delta::ToolCallStart { choice, index: _, id, name } => {
                if let Some(choice) = self.choices.get_mut(choice as usize) {
                    choice.tool_calls.push(ToolCall { id, name, arguments: String::new() });
                }
            }
            Delta::ToolCallArguments { choice, index, arguments } => {
                let choice = self.choices.get_mut(choice as usize);
                if let Some(call) = choice.and_then(|choice| choice.tool_calls.get_mut(index as usize)) {
                    call.arguments.push_str(&arguments);
                }
            }
            Delta::MalformedCall { choice, why } => {
                if let Some(choice) = self.choices.get_mut(choice as usize) {
                    choice.malformed_calls.push(why);
                }
            }
            Delta::Finish { choice, reason, stop_text } => {
                if let Some(choice) = self.choices.get_mut(choice as usize) {
                    choice.finish = Some(reason);
                    choice.stop_text = stop_text;
                }
            }
            Delta::Usage(usage) => self.usage = Some(usage),
        }
    }

    /// Whether the last delta has come.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.usage.is_some()
    }
}

/// The error of a stream that ended without its usage.
#[must_use]
pub fn cut_short() -> Error {
    Error::new(ErrorKind::Unavailable, "The answer was cut short; the same request may be tried again")
}

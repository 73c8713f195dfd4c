//! The families and how each is recognised.

use super::{AnswerParser, Ask, Thinking};
use crate::grammar::Rule;
use protocol::{Tool, ToolCall};
use tokenizer::Tokenizer;

/// How a family of models writes calls and thoughts.
#[derive(Debug)]
pub(crate) struct Family {
    /// Its name.
    pub name: &'static str,
}

static FALLBACK: Family = Family { name: "plain" };

/// The family of a model, told from its chat template and its vocabulary.
pub(crate) fn family(_template: Option<&str>, _tokenizer: &Tokenizer) -> &'static Family {
    &FALLBACK
}

impl Family {
    /// Texts that must be shown to the parser although they are control tokens.
    pub fn markers(&self) -> Vec<&'static str> {
        Vec::new()
    }

    /// Whether the template itself renders tools; otherwise the three texts below go into the prompt.
    pub fn knows_tools(&self) -> bool {
        false
    }

    /// Whether an answer to this prompt begins with a think block. `tail` is the end of the rendered prompt.
    pub fn thinking(&self, _tail: &str) -> Thinking {
        Thinking::No
    }

    /// What an answer may be; `None` where anything goes.
    pub fn rule(&self, _ask: &Ask<'_>) -> Option<Rule> {
        None
    }

    /// A parser for one answer.
    pub fn parser(&self, _ask: &Ask<'_>) -> AnswerParser {
        AnswerParser::default()
    }

    /// Fallback prompt: what is added to the system message (or is one) so that the model knows its tools.
    pub fn instructions(&self, _tools: &[Tool]) -> String {
        String::new()
    }

    /// Fallback prompt: calls as the assistant's content; goes after what else it said and a line break.
    pub fn calls_text(&self, _calls: &[ToolCall]) -> String {
        String::new()
    }

    /// Fallback prompt: a tool's result as a user's content.
    pub fn result_text(&self, _name: Option<&str>, _content: &str) -> String {
        String::new()
    }
}

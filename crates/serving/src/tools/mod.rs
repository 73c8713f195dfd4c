//! Tool calls and reasoning as model families write them: what marks them, how they are read, which grammar
//! makes them, and the prompt for templates that know no tools.
//!
//! ```text
//! template + vocabulary -> family() -> Family -> rule()   what the answer may be (grammar::Rule)
//!                                             -> parser() AnswerParser: text -> Text | Reasoning | calls
//!                                             -> instructions(), calls_text(), result_text()   the fallback prompt
//! ```
//!
//! A family is data: one entry of [`registry::FAMILIES`], made of the call forms in [`form`]. Invariant: what a
//! parser gives depends on the whole text of an answer alone and not on how it was cut, and every character of
//! it comes out as text, as reasoning or as a call, or is markup.
//!
//! Knows no engine, no HTTP, and of tokens only whether the vocabulary has a mark.

mod block;
mod candidate;
mod declared;
mod form;
mod json;
mod parameters;
mod parser;
mod prompt;
mod pythonic;
mod registry;
mod rule;
mod schema;
#[cfg(test)]
mod tests;

pub(crate) use parser::AnswerParser;
pub(crate) use registry::{Family, family};

use protocol::{ResponseFormat, Tool, ToolChoice};

/// What is asked of one answer.
pub(crate) struct Ask<'a> {
    /// Tools the model may call.
    pub tools: &'a [Tool],
    /// Which of them it must call.
    pub choice: &'a ToolChoice,
    /// Whether one answer may hold several calls; `None` leaves it to the model.
    pub parallel: Option<bool>,
    /// What the answer's text must look like.
    pub format: &'a ResponseFormat,
    /// Whether the answer begins with a think block.
    pub thinking: Thinking,
    /// Whether the answer is made under [`Family::rule`], so that what is begun can be trusted to go on well.
    pub constrained: bool,
}

impl Ask<'_> {
    /// Whether the answer may hold one call at most, so that it ends with its first. A small model that must call, and
    /// may call again, repeats the same call; so only those who ask for several forced calls get them.
    pub fn is_single(&self) -> bool {
        let several = match self.choice {
            ToolChoice::None => return false,
            ToolChoice::Auto => self.parallel != Some(false),
            ToolChoice::Required => self.parallel == Some(true),
            ToolChoice::Named(_) => false,
        };
        !several && !self.tools.is_empty()
    }
}

/// Whether an answer begins with a think block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Thinking {
    /// It has none.
    No,
    /// The prompt ended inside one.
    Open,
    /// The model may open one.
    May,
}

/// A piece of an answer. `source_end` is how many bytes of the pushed text, in all, are settled with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Piece {
    /// Text of the answer.
    Text {
        /// Whole characters, never empty.
        text: String,
        /// Bytes settled.
        source_end: usize,
    },
    /// Text of a think block.
    Reasoning {
        /// Whole characters, never empty.
        text: String,
        /// Bytes settled.
        source_end: usize,
    },
    /// A call begins.
    CallStart {
        /// 0 for the answer's first call, and so on.
        index: u32,
        /// The tool's name.
        name: String,
    },
    /// More of the arguments of the call that began last.
    Arguments {
        /// The call's index.
        index: u32,
        /// JSON text.
        text: String,
    },
    /// What was meant as a call and cannot be read as one: the next `Text` begins with it.
    Malformed {
        /// What is wrong with it.
        why: String,
    },
}

/// How an answer ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Whole calls in it.
    pub calls: u32,
    /// Whether it was cut inside a call.
    pub open: bool,
}

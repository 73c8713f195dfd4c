//! Where the parts of a canonical request stood in the caller's body.
//!
//! Kept small while all goes well: paths are made only when something is told to be wrong.

use crate::{Error, Places};
use std::fmt;

/// A place in a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Spot {
    /// `system`, or one of its blocks.
    System(Option<usize>),
    /// A message.
    Message(usize),
    /// The content of a message, where it is one text.
    Content(usize),
    /// A block of a message.
    Block(usize, usize),
    /// The content of a tool's result, where it is one text.
    Result(usize, usize),
    /// A block inside a tool's result.
    Inner(usize, usize, usize),
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::System(None) => f.write_str("system"),
            Self::System(Some(block)) => write!(f, "system.{block}"),
            Self::Message(message) => write!(f, "messages.{message}"),
            Self::Content(message) => write!(f, "messages.{message}.content"),
            Self::Block(message, block) => write!(f, "messages.{message}.content.{block}"),
            Self::Result(message, block) => write!(f, "messages.{message}.content.{block}.content"),
            Self::Inner(message, block, inner) => {
                write!(f, "messages.{message}.content.{block}.content.{inner}")
            }
        }
    }
}

/// Where one canonical message came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Written {
    /// The message, or the block that became one.
    pub(super) whole: Spot,
    /// One for each part of its content.
    pub(super) parts: Vec<Spot>,
    /// One for each of its calls.
    pub(super) calls: Vec<Spot>,
}

impl Written {
    pub(super) const fn at(whole: Spot) -> Self {
        Self { whole, parts: Vec::new(), calls: Vec::new() }
    }
}

/// Where the fields of a canonical request stood in the body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layout {
    /// One for each canonical message.
    pub(super) messages: Vec<Written>,
    /// The field that holds the format of the answer.
    pub(super) format: &'static str,
    /// Whether the caller wrote variables for the template, and not only `thinking`.
    pub(super) variables: bool,
}

impl Layout {
    /// An error of a backend, which names fields as the canonical form has them, with the caller's path.
    #[must_use]
    pub fn locate(&self, error: Error) -> Error {
        let Some(param) = &error.param else { return error };
        let mut places = Places::default();
        places.moved("stop", "stop_sequences");
        places.moved("response_format", self.format);
        places.moved("response_format.json_schema.schema", format!("{}.schema", self.format));
        places.moved("parallel_tool_calls", "tool_choice.disable_parallel_tool_use");
        places.moved("tool_choice.function", "tool_choice");
        places.moved("reasoning_effort", "output_config.effort");
        if !self.variables {
            for name in ["chat_template_kwargs.enable_thinking", "chat_template_kwargs.thinking"] {
                places.moved(name, "thinking");
            }
            places.moved("chat_template_kwargs", "thinking");
        }
        if let Some(tool) = index(param, "tools[") {
            let canonical = format!("tools[{tool}]");
            places.moved(format!("{canonical}.function.parameters"), format!("tools.{tool}.input_schema"));
            places.moved(format!("{canonical}.function"), format!("tools.{tool}"));
        }
        if let Some(i) = index(param, "messages[") {
            self.message(i, &mut places);
        }
        places.locate(error)
    }

    fn message(&self, i: usize, places: &mut Places) {
        let Some(written) = self.messages.get(i) else { return };
        let canonical = format!("messages[{i}]");
        let whole = written.whole;
        places.moved(canonical.as_str(), whole.to_string());
        places.moved(format!("{canonical}.tool_call_id"), format!("{whole}.tool_use_id"));
        for (j, part) in written.parts.iter().enumerate() {
            for below in ["", ".text", ".image_url"] {
                places.moved(format!("{canonical}.content[{j}]{below}"), part.to_string());
            }
            places.moved(format!("{canonical}.content[{j}].image_url.url"), format!("{part}.source.url"));
        }
        if let Some(first) = written.calls.first() {
            places.moved(format!("{canonical}.tool_calls"), first.to_string());
        }
        for (k, call) in written.calls.iter().enumerate() {
            let canonical = format!("{canonical}.tool_calls[{k}]");
            places.moved(canonical.as_str(), call.to_string());
            places.moved(format!("{canonical}.function"), call.to_string());
            places.moved(format!("{canonical}.function.arguments"), format!("{call}.input"));
        }
    }
}

/// The index behind `before` at the start of a path.
fn index(path: &str, before: &str) -> Option<usize> {
    path.strip_prefix(before)?.split_once(']')?.0.parse().ok()
}

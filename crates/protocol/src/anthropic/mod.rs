//! Anthropic's dialect: Messages, its count of tokens, models and errors.
//!
//! Unlike OpenAI's, its content is a list of blocks: a tool's result stands in a user's message, the system prompt
//! beside the messages. Reading takes the blocks apart into canonical messages and keeps in [`Layout`] where each
//! stood, so that what a backend finds wrong is told at the caller's own path (`messages.3.content.1`). Writing puts
//! an answer's deltas back into blocks, one after the other; a whole answer and a stream come from the same steps.
//! Not here: tools that Anthropic's servers run, documents, batches, files.

mod answer;
mod blocks;
pub mod error;
mod history;
mod layout;
pub mod models;
mod partial;
mod proof;
mod request;
mod tools;
pub mod upstream;

pub use answer::{EventWriter, Head, MessageWriter, count};
pub use layout::Layout;
pub use request::{MessagesRequest, parse, parse_count};

#[cfg(test)]
mod tests;

/// What ids of calls begin with, in the canonical form and here. A call keeps the rest of its id on both ways.
const CALL_IDS: (&str, &str) = ("call_", "toolu_");

/// A call's id as callers see it.
fn written_id(id: &str) -> String {
    id.strip_prefix(CALL_IDS.0).map_or_else(|| id.to_owned(), |rest| format!("{}{rest}", CALL_IDS.1))
}

/// The canonical id of a call that a caller names.
fn canonical_id(id: &str) -> String {
    id.strip_prefix(CALL_IDS.1).map_or_else(|| id.to_owned(), |rest| format!("{}{rest}", CALL_IDS.0))
}

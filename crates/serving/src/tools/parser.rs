//! Reads an answer as it is made.

use super::{Ended, Piece};

/// Tells text, reasoning and calls of one answer apart.
#[derive(Debug, Default)]
pub(crate) struct AnswerParser {
    seen: usize,
}

impl AnswerParser {
    /// Takes more of the answer.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        self.seen += text.len();
        if !text.is_empty() {
            out.push(Piece::Text { text: text.to_owned(), source_end: self.seen });
        }
    }

    /// The answer has ended.
    pub fn finish(&mut self, _out: &mut Vec<Piece>) -> Ended {
        Ended::default()
    }
}

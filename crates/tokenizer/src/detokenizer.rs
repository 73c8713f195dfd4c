//! The incremental detokeniser: tokens in, whole characters out.
//!
//! Invariant: what it has given, then [`Detokenizer::finish`], is what decoding all ids at once gives; it
//! holds back at most the three bytes of an unfinished character. Bytes that can no longer become a
//! character are U+FFFD, one for each run that `String::from_utf8_lossy` replaces.

use std::sync::Arc;

use crate::decoder::Progress;
use crate::tokenizer::Inner;

/// Turns a row of tokens into text piece by piece. Control tokens add nothing, unless they were named as ones to
/// show.
#[derive(Clone)]
pub struct Detokenizer {
    tokenizer: Arc<Inner>,
    /// Control tokens whose text is shown; few.
    shown: Arc<[u32]>,
    progress: Progress,
    /// Bytes of an unfinished character.
    held: Vec<u8>,
    text: String,
}

impl Detokenizer {
    pub(crate) fn new(tokenizer: Arc<Inner>, shown: Arc<[u32]>) -> Self {
        Self { tokenizer, shown, progress: Progress::default(), held: Vec::new(), text: String::new() }
    }

    /// Takes one token and returns the text that is complete now, never part of a character. An id beyond
    /// the vocabulary adds nothing.
    pub fn push(&mut self, id: u32) -> &str {
        self.text.clear();
        if !self.tokenizer.is_hidden(id) || self.shown.contains(&id) {
            self.tokenizer.parts.decoder.write(id, &mut self.progress, &mut self.held);
            release(&mut self.held, &mut self.text);
        }
        &self.text
    }

    /// Ends the text and returns what was held back: nothing, or U+FFFD for an unfinished character. A token
    /// pushed later begins a new text.
    pub fn finish(&mut self) -> &str {
        self.text.clear();
        if !self.held.is_empty() {
            self.text.push_str(&String::from_utf8_lossy(&self.held));
            self.held.clear();
        }
        self.progress = Progress::default();
        &self.text
    }
}

/// Moves what is settled from `held` to `text`.
fn release(held: &mut Vec<u8>, text: &mut String) {
    let mut done = 0;
    while done < held.len() {
        match std::str::from_utf8(&held[done..]) {
            Ok(rest) => {
                text.push_str(rest);
                done = held.len();
            }
            Err(error) => {
                let valid = done + error.valid_up_to();
                // The part before the error is valid, so nothing is replaced here.
                text.push_str(&String::from_utf8_lossy(&held[done..valid]));
                done = valid;
                let Some(bad) = error.error_len() else { break };
                text.push(char::REPLACEMENT_CHARACTER);
                done += bad;
            }
        }
    }
    held.drain(..done);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn bytes_released_in_any_portions_equal_the_lossy_whole(
            portions in prop::collection::vec(prop::collection::vec(
                prop_oneof![any::<u8>(), prop::sample::select("aé中👩\u{10ffff}".as_bytes().to_vec())], 0..5), 0..12)
        ) {
            let (mut held, mut text) = (Vec::new(), String::new());
            for portion in &portions {
                held.extend_from_slice(portion);
                release(&mut held, &mut text);
                prop_assert!(held.len() < 4);
            }
            text.push_str(&String::from_utf8_lossy(&held));
            let whole = portions.concat();
            prop_assert_eq!(text, String::from_utf8_lossy(&whole));
        }
    }
}

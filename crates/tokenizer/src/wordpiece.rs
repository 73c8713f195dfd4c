//! WordPiece (BERT): the longest token from the left, again and again; a word that does not work out is
//! one unknown token.

use crate::vocab::Vocab;

/// The model.
pub(crate) struct WordPiece {
    /// In front of a token that continues a word, as `##`.
    pub(crate) continuing: String,
    /// In front of a token that begins a word; empty but in GGUF, which writes `▁`.
    pub(crate) beginning: String,
    pub(crate) unknown: u32,
    /// A word of more characters is unknown without a look.
    pub(crate) chars_max: usize,
}

impl WordPiece {
    /// Appends the tokens of one word. `key` is a buffer.
    pub(crate) fn encode(&self, vocab: &Vocab, word: &str, key: &mut Vec<u8>, out: &mut Vec<u32>) {
        // Counting stops early: words may be megabytes.
        if word.chars().nth(self.chars_max).is_some() {
            out.push(self.unknown);
            return;
        }
        let (before, mut start) = (out.len(), 0);
        while start < word.len() {
            let prefix = if start == 0 { &self.beginning } else { &self.continuing };
            key.clear();
            key.extend_from_slice(prefix.as_bytes());
            key.extend_from_slice(&word.as_bytes()[start..]);
            let found = word[start..].char_indices().rev().find_map(|(at, c)| {
                let end = at + c.len_utf8();
                Some((vocab.get(&key[..prefix.len() + end])?, end))
            });
            let Some((id, len)) = found else {
                out.truncate(before);
                out.push(self.unknown);
                return;
            };
            out.push(id);
            start += len;
        }
    }
}

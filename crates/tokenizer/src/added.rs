//! Added tokens: texts that are one token wherever they stand, found before all else.
//!
//! Invariant: a control token is found only where its whole text lies in one trusted range. Matching is
//! leftmost, then longest.

use std::ops::Range;

use crate::class::{Classes, WORD};
use crate::trie::Trie;

/// Longest text of an added token; bounds the work at each place of a text.
pub(crate) const TEXT_MAX: usize = 1024;

/// An added token.
#[derive(Clone, Debug)]
pub(crate) struct Added {
    pub(crate) id: u32,
    pub(crate) text: String,
    /// Found in trusted text only.
    pub(crate) control: bool,
    /// Takes the white space before it with it.
    pub(crate) lstrip: bool,
    /// Takes the white space after it with it.
    pub(crate) rstrip: bool,
    /// Not inside a word.
    pub(crate) single_word: bool,
}

/// Finds added tokens in a text.
#[derive(Default)]
pub(crate) struct Matcher {
    entries: Vec<Added>,
    trie: Trie,
}

/// A place where an added token was found: what it covers, with the white space it takes.
pub(crate) struct Found {
    pub(crate) range: Range<usize>,
    pub(crate) id: u32,
}

impl Matcher {
    pub(crate) fn new(entries: Vec<Added>) -> Self {
        let mut trie = Trie::default();
        for (at, entry) in (0u32..).zip(&entries) {
            trie.insert(entry.text.as_bytes(), at);
        }
        Self { entries, trie }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn entries(&self) -> &[Added] {
        &self.entries
    }

    /// The first added token at or after `from`. `trusted` are disjoint ascending ranges of `text`.
    pub(crate) fn find(&self, text: &str, from: usize, trusted: &[Range<usize>]) -> Option<Found> {
        let bytes = text.as_bytes();
        let mut range = trusted.partition_point(|range| range.end <= from);
        for at in from..bytes.len() {
            if !self.trie.begins_with(bytes[at]) {
                continue;
            }
            while trusted.get(range).is_some_and(|range| range.end <= at) {
                range += 1;
            }
            let control_end =
                trusted.get(range).filter(|range| range.start <= at).map_or(0, |range| range.end);
            let mut best = None;
            self.trie.walk(&bytes[at..], |len, index| {
                let entry = &self.entries[index as usize];
                let allowed = !entry.control || at + len <= control_end;
                if allowed && (!entry.single_word || stands_alone(text, at, at + len)) {
                    best = Some((entry, at + len));
                }
            });
            if let Some((entry, end)) = best {
                return Some(entry.found(text, from, at, end));
            }
        }
        None
    }
}

impl Added {
    fn found(&self, text: &str, from: usize, start: usize, end: usize) -> Found {
        let start = if self.lstrip { from + text[from..start].trim_end().len() } else { start };
        let end = if self.rstrip { text.len() - text[end..].trim_start().len() } else { end };
        Found { range: start..end, id: self.id }
    }
}

fn stands_alone(text: &str, start: usize, end: usize) -> bool {
    let classes = Classes::get();
    let word = |c: Option<char>| c.is_some_and(|c| classes.of(c) & WORD != 0);
    !word(text[..start].chars().next_back()) && !word(text[end..].chars().next())
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "one trusted range is a list of one")]
mod tests {
    use super::*;

    fn added(id: u32, text: &str, control: bool) -> Added {
        Added { id, text: text.into(), control, lstrip: false, rstrip: false, single_word: false }
    }

    #[track_caller]
    fn check(entries: Vec<Added>, text: &str, trusted: &[Range<usize>], expected: &[(u32, Range<usize>)]) {
        let matcher = Matcher::new(entries);
        let (mut at, mut found) = (0, Vec::new());
        while let Some(Found { range, id }) = matcher.find(text, at, trusted) {
            at = range.end;
            found.push((id, range));
        }
        assert_eq!(found, expected);
    }

    #[test]
    fn the_longest_at_the_leftmost_place_wins() {
        let entries = vec![added(0, "ab", false), added(1, "abc", false), added(2, "bcd", false)];
        check(entries, "xabcd ab", &[], &[(1, 1..4), (0, 6..8)]);
    }

    #[test]
    fn control_texts_count_only_inside_one_trusted_range() {
        let entries = || vec![added(0, "<s>", true), added(1, "<", false)];
        check(entries(), "<s><s>", &[0..3], &[(0, 0..3), (1, 3..4)]);
        check(entries(), "<s>", &[0..2], &[(1, 0..1)]);
        check(entries(), "<s>", &[1..3], &[(1, 0..1)]);
    }

    #[test]
    fn white_space_goes_with_tokens_that_strip_it() {
        let mut entry = added(0, "<m>", false);
        (entry.lstrip, entry.rstrip) = (true, true);
        check(vec![entry], "a  <m> \n b <m>", &[], &[(0, 1..9), (0, 10..14)]);
    }

    #[test]
    fn single_words_are_not_found_inside_words() {
        let mut entry = added(0, "ab", false);
        entry.single_word = true;
        check(vec![entry], "ab abc xab éab ab.", &[], &[(0, 0..2), (0, 16..18)]);
    }
}

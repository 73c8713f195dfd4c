//! Added tokens: texts that are one token wherever they stand, found before all else.
//!
//! Invariant: a control token is found only where its whole text lies in one trusted range. Matching is
//! leftmost, then longest. Also here: the trie that this and `unigram` search.

use std::ops::Range;

use crate::class::{Classes, WORD};

/// Longest text of an added token; bounds the work at each place of a text.
pub(crate) const TEXT_MAX: usize = 1024;

const NO_NODE: u32 = 0;

#[derive(Clone, Copy)]
struct Node {
    byte: u8,
    value: u32,
    child: u32,
    sibling: u32,
}

/// A byte trie from text to a number below `u32::MAX`. Children are linked lists: compact, and quick to
/// build; the root has a table.
pub(crate) struct Trie {
    roots: Box<[u32; 256]>,
    /// Node 0 is never used, so 0 means none.
    nodes: Vec<Node>,
}

const NO_VALUE: u32 = u32::MAX;

impl Default for Trie {
    fn default() -> Self {
        let unused = Node { byte: 0, value: NO_VALUE, child: NO_NODE, sibling: NO_NODE };
        Self { roots: Box::new([NO_NODE; 256]), nodes: vec![unused] }
    }
}

impl Trie {
    /// Enters a text; a later value replaces an earlier one. The empty text is not entered.
    pub(crate) fn insert(&mut self, text: &[u8], value: u32) {
        let mut parent = NO_NODE;
        for byte in text {
            let first = if parent == NO_NODE {
                self.roots[usize::from(*byte)]
            } else {
                self.nodes[parent as usize].child
            };
            let mut node = first;
            while node != NO_NODE && self.nodes[node as usize].byte != *byte {
                node = self.nodes[node as usize].sibling;
            }
            if node == NO_NODE {
                node = u32::try_from(self.nodes.len()).expect("fewer than 4 G nodes");
                self.nodes.push(Node { byte: *byte, value: NO_VALUE, child: NO_NODE, sibling: first });
                if parent == NO_NODE {
                    self.roots[usize::from(*byte)] = node;
                } else {
                    self.nodes[parent as usize].child = node;
                }
            }
            parent = node;
        }
        if parent != NO_NODE {
            self.nodes[parent as usize].value = value;
        }
    }

    /// Calls `found(length, value)` for each entered text that `text` begins with, short ones first.
    #[inline]
    pub(crate) fn walk(&self, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let Some((first, rest)) = text.split_first() else { return };
        let mut node = self.roots[usize::from(*first)];
        let mut len = 1;
        let mut rest = rest.iter();
        while node != NO_NODE {
            let Node { value, mut child, .. } = self.nodes[node as usize];
            if value != NO_VALUE {
                found(len, value);
            }
            let Some(byte) = rest.next() else { return };
            while child != NO_NODE && self.nodes[child as usize].byte != *byte {
                child = self.nodes[child as usize].sibling;
            }
            node = child;
            len += 1;
        }
    }
}

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
            if self.trie.roots[usize::from(bytes[at])] == NO_NODE {
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

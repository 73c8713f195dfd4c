//! Unicode classes of a character in one table look-up.
//!
//! The table is made once from the class data of `regex-syntax`, so that the hand-made splitters and
//! the regular expressions agree on every character.

use std::sync::LazyLock;

use regex_syntax::hir::{Class as HirClass, HirKind};

/// A set of classes as bits.
pub(crate) type Class = u16;

/// Upper and title case letters (Lu, Lt).
pub(crate) const UPPER: Class = 1 << 0;
/// Lower case letters (Ll).
pub(crate) const LOWER: Class = 1 << 1;
/// Letters without case (Lm, Lo).
pub(crate) const CASELESS: Class = 1 << 2;
/// All letters (L).
pub(crate) const LETTER: Class = UPPER | LOWER | CASELESS;
/// Numbers (N).
pub(crate) const NUMBER: Class = 1 << 3;
/// White space (`\s`).
pub(crate) const SPACE: Class = 1 << 4;
/// Marks (M).
pub(crate) const MARK: Class = 1 << 5;
/// Marks that take no room (Mn).
pub(crate) const NONSPACING: Class = 1 << 6;
/// Punctuation (P), without the ASCII symbols.
pub(crate) const PUNCTUATION: Class = 1 << 7;
/// Control, format and private use (Cc, Cf, Co).
pub(crate) const OTHER: Class = 1 << 8;
/// Carriage return and line feed.
pub(crate) const NEWLINE: Class = 1 << 9;
/// Word characters (`\w`).
pub(crate) const WORD: Class = 1 << 10;

const BLOCK: usize = 256;

struct Table {
    /// Which block holds the classes of the characters `256 * i ..`.
    index: Vec<u16>,
    blocks: Vec<[Class; BLOCK]>,
}

static TABLE: LazyLock<Table> = LazyLock::new(Table::build);

impl Table {
    fn build() -> Self {
        let mut flat = vec![0 as Class; char::MAX as usize + 1];
        for (pattern, flag) in [
            (r"[\p{Lu}\p{Lt}]", UPPER),
            (r"\p{Ll}", LOWER),
            (r"[\p{Lm}\p{Lo}]", CASELESS),
            (r"\p{N}", NUMBER),
            (r"\s", SPACE),
            (r"\p{M}", MARK),
            (r"\p{Mn}", NONSPACING),
            (r"\p{P}", PUNCTUATION),
            (r"[\p{Cc}\p{Cf}\p{Co}]", OTHER),
            (r"[\r\n]", NEWLINE),
            (r"\w", WORD),
        ] {
            mark(&mut flat, pattern, flag);
        }
        let mut blocks: Vec<[Class; BLOCK]> = Vec::new();
        let mut index = Vec::with_capacity(flat.len() / BLOCK);
        for block in flat.as_chunks::<BLOCK>().0 {
            // Nearly all repeats are of the block just before (CJK, private use, unassigned).
            let at = blocks.iter().rposition(|known| known == block).unwrap_or_else(|| {
                blocks.push(*block);
                blocks.len() - 1
            });
            index.push(u16::try_from(at).expect("4,352 blocks at most"));
        }
        Self { index, blocks }
    }
}

fn mark(flat: &mut [Class], pattern: &str, flag: Class) {
    let hir = regex_syntax::parse(pattern).expect("the class patterns are constant and valid");
    match hir.kind() {
        HirKind::Class(HirClass::Unicode(class)) => {
            for range in class.ranges() {
                for slot in &mut flat[range.start() as usize..=range.end() as usize] {
                    *slot |= flag;
                }
            }
        }
        HirKind::Class(HirClass::Bytes(class)) => {
            for range in class.ranges() {
                for slot in &mut flat[range.start() as usize..=range.end() as usize] {
                    *slot |= flag;
                }
            }
        }
        _ => unreachable!("a class pattern parses to a class"),
    }
}

/// A handle on the table, so that a loop pays for the lazy initialisation once.
#[derive(Clone, Copy)]
pub(crate) struct Classes(&'static Table);

impl Classes {
    pub(crate) fn get() -> Self {
        Self(&TABLE)
    }

    /// The classes of a character.
    #[inline]
    pub(crate) fn of(self, c: char) -> Class {
        let code = c as usize;
        self.0.blocks[usize::from(self.0.index[code / BLOCK])][code % BLOCK]
    }

    /// The classes and the length in bytes of the character at `at`, which is a character border.
    #[inline]
    pub(crate) fn at(self, text: &str, at: usize) -> Option<(Class, usize)> {
        let byte = *text.as_bytes().get(at)?;
        if byte < 0x80 {
            return Some((self.0.blocks[usize::from(self.0.index[0])][usize::from(byte)], 1));
        }
        let c = text[at..].chars().next()?;
        Some((self.of(c), c.len_utf8()))
    }

    /// Where the run of characters that have one of `classes` ends.
    #[inline]
    pub(crate) fn run(self, text: &str, mut at: usize, classes: Class) -> usize {
        while let Some((class, len)) = self.at(text, at) {
            if class & classes == 0 {
                break;
            }
            at += len;
        }
        at
    }

    /// Where the run of characters that have none of `classes` ends.
    #[inline]
    pub(crate) fn run_without(self, text: &str, mut at: usize, classes: Class) -> usize {
        while let Some((class, len)) = self.at(text, at) {
            if class & classes != 0 {
                break;
            }
            at += len;
        }
        at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_agree_with_the_standard_library_where_it_has_them() {
        let classes = Classes::get();
        for c in '\0'..=char::MAX {
            assert_eq!(classes.of(c) & SPACE != 0, c.is_whitespace(), "{c:?} space");
            assert_eq!(classes.of(c) & NUMBER != 0 && c.is_ascii(), c.is_ascii_digit(), "{c:?} digit");
        }
    }

    #[test]
    fn combining_accents_are_marks_and_not_letters() {
        let classes = Classes::get();
        assert_eq!(classes.of('\u{301}') & (MARK | NONSPACING | LETTER), MARK | NONSPACING);
        assert_eq!(classes.of('中') & LETTER, CASELESS);
        assert_eq!(classes.of('ǅ') & LETTER, UPPER);
    }
}

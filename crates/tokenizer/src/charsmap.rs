//! SentencePiece's compiled normalisation rules, as a `Precompiled` normalizer carries them.
//!
//! The map is a little-endian length, a trie of that many bytes in the form of a double array (32-bit units),
//! and the replacements, each ended by a zero byte; the trie leads from a source text to where its replacement
//! begins. Rules are applied as Hugging Face applies them, not as SentencePiece does: cluster by cluster, and
//! where several rules fit the beginning of a cluster the shortest one replaces all of it. Checkpoints with a
//! `tokenizer.json` are used with that reading.
//!
//! The map is checked when it is made, so that no text can lead outside of it.

use std::borrow::Cow;

use unicode_segmentation::UnicodeSegmentation;

/// Clusters of this many bytes and more are rewritten character by character alone.
const CLUSTER_END: usize = 6;

/// In a unit: it is a value, not a place of the trie.
const VALUE: u32 = 1 << 31;

/// The rules of one normalizer.
pub(crate) struct Charsmap {
    units: Box<[u32]>,
    replacements: Box<str>,
}

impl Charsmap {
    /// Reads the map of a file; `Err` says what is wrong with it.
    pub(crate) fn new(map: &[u8]) -> Result<Self, &'static str> {
        let (size, rest) = map.split_first_chunk().ok_or("shorter than its head")?;
        let size = u32::from_le_bytes(*size) as usize;
        if size == 0 || !size.is_multiple_of(4) || size > rest.len() {
            return Err("whose trie has an impossible length");
        }
        let (units, replacements) = rest.split_at(size);
        let units: Box<[u32]> = units.as_chunks().0.iter().map(|unit| u32::from_le_bytes(*unit)).collect();
        let replacements =
            std::str::from_utf8(replacements).map_err(|_| "whose replacements are not UTF-8")?;
        let outside =
            |unit: &u32| unit & VALUE != 0 && !replacements.is_char_boundary((unit & !VALUE) as usize);
        if units.iter().any(outside) {
            return Err("whose trie leads outside of the replacements");
        }
        Ok(Self { units, replacements: replacements.into() })
    }

    /// The text with all rules applied.
    pub(crate) fn apply<'t>(&self, text: &'t str) -> Cow<'t, str> {
        // Nothing is copied before the first rule that fits.
        let (mut out, mut done) = (String::new(), 0);
        let mut replace = |at: usize, part: &str, by: &str| {
            out.push_str(&text[done..at]);
            out.push_str(by);
            done = at + part.len();
        };
        for (at, cluster) in text.grapheme_indices(true) {
            if let Some(by) = self.find(cluster).filter(|_| cluster.len() < CLUSTER_END) {
                replace(at, cluster, by);
                continue;
            }
            for (inner, c) in cluster.char_indices() {
                let part = &cluster[inner..inner + c.len_utf8()];
                if let Some(by) = self.find(part) {
                    replace(at + inner, part, by);
                }
            }
        }
        if done == 0 {
            return text.into();
        }
        out.push_str(&text[done..]);
        out.into()
    }

    /// The replacement of the shortest source that `text` begins with.
    fn find(&self, text: &str) -> Option<&str> {
        let mut at = offset(*self.units.first()?);
        for byte in text.bytes() {
            if byte == 0 {
                return None;
            }
            at ^= usize::from(byte);
            let unit = *self.units.get(at)?;
            if unit & (VALUE | 0xff) != u32::from(byte) {
                return None;
            }
            at ^= offset(unit);
            if unit & (1 << 8) != 0 {
                let begin = (*self.units.get(at)? & !VALUE) as usize;
                return self.replacements.get(begin..)?.split('\0').next();
            }
        }
        None
    }
}

/// How far (by exclusive or) the children of a unit are.
fn offset(unit: u32) -> usize {
    let far = unit & (1 << 9) != 0;
    ((unit >> 10) as usize) << if far { 8 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A map of rules with one-byte sources.
    fn map(rules: &[(u8, &str)]) -> Vec<u8> {
        let mut units = vec![0u32; 512];
        // The root's children begin at 256, and the value of each stands in front of them.
        units[0] = 256 << 10;
        let mut replacements = String::new();
        for (at, (byte, by)) in (1u32..).zip(rules) {
            let place = 256 ^ u32::from(*byte);
            units[place as usize] = (place ^ at) << 10 | 1 << 8 | u32::from(*byte);
            units[at as usize] = VALUE | replacements.len() as u32;
            replacements.push_str(by);
            replacements.push('\0');
        }
        let mut map = (units.len() as u32 * 4).to_le_bytes().to_vec();
        map.extend(units.iter().flat_map(|unit| unit.to_le_bytes()));
        map.extend(replacements.bytes());
        map
    }

    #[test]
    fn rules_replace_shorten_lengthen_and_remove() {
        let rules = Charsmap::new(&map(&[(b'a', "xyz"), (b'\t', " "), (0x7f, ""), (b'\r', " ")])).unwrap();
        assert_eq!(rules.apply("bab\tc\u{7f}"), "bxyzb c");
        assert_eq!(rules.apply("a"), "xyz");
        assert_eq!(rules.apply("\u{7f}"), "");
        // A cluster is replaced whole; this one is too long for that.
        assert_eq!(rules.apply("1\r\n2 a\u{301}"), "1 2 xyz");
        assert_eq!(rules.apply("a\u{301}\u{302}\u{303}"), "xyz\u{301}\u{302}\u{303}");
        assert!(matches!(rules.apply("é\0 東 none"), Cow::Borrowed(_)));
    }

    #[test]
    fn a_faulty_map_is_refused_with_its_fault() {
        let good = map(&[(b'a', "é")]);
        let refused = |map: &[u8]| Charsmap::new(map).err().unwrap_or("accepted");
        assert!(refused(&[1, 2, 3]).contains("head"));
        for size in [0u32, 3, u32::MAX, good.len() as u32] {
            let map = [&size.to_le_bytes(), &good[4..]].concat();
            assert!(refused(&map).contains("length"), "{size}");
        }
        assert!(refused(&[good.as_slice(), &[0xff]].concat()).contains("UTF-8"));
        for value in [1u32, 99, !VALUE] {
            let mut map = good.clone();
            map[8..12].copy_from_slice(&(VALUE | value).to_le_bytes());
            assert!(refused(&map).contains("outside"), "{value}");
        }
    }

    proptest! {
        #[test]
        fn no_map_and_no_text_make_it_panic(
            units in proptest::collection::vec(any::<u32>(), 1..300), texts: String, replacements: String,
        ) {
            let mut map = (units.len() as u32 * 4).to_le_bytes().to_vec();
            // Half of the units lead somewhere.
            let near = units.iter().map(|unit| if unit & 1 == 0 { unit & 0x3_ffff } else { *unit });
            map.extend(near.flat_map(u32::to_le_bytes));
            map.extend(replacements.bytes());
            if let Ok(rules) = Charsmap::new(&map) {
                rules.apply(&texts);
            }
        }
    }
}

//! Finds where the end of a context stood before: hash chains over pairs of tokens, as in LZ77.
//!
//! An *end* is a number of tokens of the text; it is indexed by the hash of the pair before it. Each bucket is a
//! chain from its latest end to earlier ones. Adding a token costs one write to each of two arrays; a search
//! walks at most [`WALK`] ends. Eight to sixteen bytes a token.

/// A match has at least so many tokens.
pub(super) const LEAST: usize = 2;
/// Longer matches are not told apart.
pub(super) const LONGEST: usize = 32;
/// Ends of one bucket that a search looks at, latest first.
pub(super) const WALK: usize = 64;
/// Buckets of a new index.
const BUCKETS: usize = 1 << 10;
/// No end: a pair ends at 2 or later.
const NONE: u32 = 0;

/// What stood before like the end of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Match {
    /// It ends before this token of the text.
    pub end: usize,
    /// Tokens in common.
    pub len: usize,
}

/// The ends of one text that only grows.
#[derive(Debug, Default)]
pub(super) struct Index {
    /// By bucket: the latest end. A power of two, at least as many as ends.
    latest: Vec<u32>,
    /// By end: the one before it in the same bucket.
    earlier: Vec<u32>,
}

impl Index {
    /// Indexes the ends of `text` up to `end`, as far as they are not yet.
    pub fn cover(&mut self, text: &[u32], end: usize) {
        let first = self.earlier.len().max(LEAST);
        if first > end {
            return;
        }
        if self.latest.len() < end {
            let buckets = end.next_power_of_two().max(BUCKETS);
            self.latest.clear();
            self.latest.resize(buckets, NONE);
            self.earlier.clear();
            self.earlier.resize(LEAST, NONE);
            // Room for as many ends as there are buckets, so that both grow at once.
            self.earlier.reserve(buckets + 1 - LEAST);
        }
        for end in self.earlier.len()..=end {
            let bucket = self.bucket(text, end);
            self.earlier.push(std::mem::replace(&mut self.latest[bucket], end as u32));
        }
    }

    /// The longest match of the end of `context` in `text`, the latest one of equals.
    pub fn find(&self, text: &[u32], context: &[u32]) -> Option<Match> {
        if context.len() < LEAST || self.latest.is_empty() {
            return None;
        }
        let mut best: Option<Match> = None;
        let mut end = self.latest[self.bucket(context, context.len())];
        for _ in 0..WALK {
            if end == NONE {
                break;
            }
            let len = common_end(&text[..end as usize], context);
            if len >= LEAST && best.is_none_or(|best| len > best.len) {
                best = Some(Match { end: end as usize, len });
                if len == LONGEST {
                    break;
                }
            }
            end = self.earlier[end as usize];
        }
        best
    }

    /// Forgets the text.
    pub fn clear(&mut self) {
        self.latest.clear();
        self.earlier.clear();
    }

    /// The bucket of the pair that ends at `end`.
    pub(super) fn bucket(&self, text: &[u32], end: usize) -> usize {
        let pair = u64::from(text[end - 2]) << 32 | u64::from(text[end - 1]);
        // Fibonacci hashing: the high bits are mixed best.
        let mixed =
            pair.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(29).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        (mixed >> 32) as usize & (self.latest.len() - 1)
    }
}

/// Tokens that two runs have in common at their ends, at most [`LONGEST`].
fn common_end(a: &[u32], b: &[u32]) -> usize {
    let pairs = a.iter().rev().zip(b.iter().rev()).take(LONGEST);
    pairs.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Compares with every earlier end, and counts only those that a search may look at.
    fn brute_force(
        index: &Index,
        text: &[u32],
        context: &[u32],
        ends: std::ops::RangeInclusive<usize>,
    ) -> Option<Match> {
        if context.len() < LEAST {
            return None;
        }
        let bucket = index.bucket(context, context.len());
        let looked_at = ends.rev().filter(|end| index.bucket(text, *end) == bucket).take(WALK);
        let matches = looked_at.map(|end| {
            let len = (0..=LONGEST.min(end).min(context.len()))
                .rev()
                .find(|len| text[end - len..end] == context[context.len() - len..]);
            Match { end, len: len.expect("nothing is common to all") }
        });
        matches.filter(|found| found.len >= LEAST).max_by_key(|found| (found.len, found.end))
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn the_longest_match_is_that_of_a_naive_twin(
            parts in prop::collection::vec((0usize..60, 1usize..50, 0u32..6), 1..60),
        ) {
            // Text that repeats itself: parts of what was, between fresh tokens.
            let (mut text, mut index): (Vec<u32>, Index) = (Vec::new(), Index::default());
            for (back, len, fresh) in parts {
                let from = text.len().saturating_sub(back);
                for i in from..from + len {
                    text.push(text.get(i).copied().unwrap_or(fresh));
                    index.cover(&text, text.len() - 1);
                    if text.len() > LEAST {
                        let twin = brute_force(&index, &text, &text, LEAST..=text.len() - 1);
                        prop_assert_eq!(index.find(&text, &text), twin);
                    }
                }
                text.push(fresh);
            }
            // Another context, against the whole text.
            index.cover(&text, text.len());
            for len in 0..text.len().min(80) {
                let mut context = text[text.len() - len..].to_vec();
                context.rotate_left(len / 3);
                let twin = (text.len() >= LEAST).then(|| brute_force(&index, &text, &context, LEAST..=text.len()));
                prop_assert_eq!(index.find(&text, &context), twin.flatten());
            }
        }
    }

    #[test]
    fn a_text_is_found_however_late_it_is_indexed() {
        let text: Vec<u32> = (0..5000).chain(100..140).collect();
        let mut index = Index::default();
        index.cover(&text, text.len() - 1);
        assert_eq!(index.find(&text, &text), Some(Match { end: 140, len: LONGEST }));
        index.clear();
        assert_eq!(index.find(&text, &text), None);
    }
}

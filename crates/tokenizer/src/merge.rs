//! The merge loop of BPE: joins the best adjacent pair until none is left.
//!
//! "Best" is the lowest rank, then the leftmost. Short words use a plain scan, long ones a heap over a
//! linked list, so that a run of a million equal letters costs O(n log n). Both give the same result.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No token, or no rule.
pub(crate) const NONE: u32 = u32::MAX;
/// Up to this many symbols the scan is faster than the heap.
const SCAN_MAX: usize = 40;

/// A part of a word: a token (or [`NONE`]) and the bytes `[start, end)` of the word it covers.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Symbol {
    pub(crate) id: u32,
    pub(crate) start: u32,
    pub(crate) end: u32,
}

/// A rule for a pair: its rank (lower is joined first) and the token it makes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rule {
    pub(crate) rank: u32,
    pub(crate) id: u32,
}

const NO_RULE: Rule = Rule { rank: NONE, id: NONE };

/// Which pairs may be joined.
pub(crate) trait Pairs {
    /// The rule for two adjacent symbols.
    fn rule(&self, left: Symbol, right: Symbol) -> Option<Rule>;
}

/// The buffers of the loop; kept between words.
#[derive(Default)]
pub(crate) struct Merger {
    /// In: the word as symbols. Out: the symbols that are left.
    pub(crate) symbols: Vec<Symbol>,
    rules: Vec<Rule>,
    next: Vec<u32>,
    previous: Vec<u32>,
    heap: BinaryHeap<Reverse<u64>>,
}

impl Merger {
    /// Joins pairs in `symbols` until no rule applies.
    pub(crate) fn run(&mut self, pairs: &impl Pairs) {
        let symbols = &self.symbols;
        if symbols.len() < 2 {
            return;
        }
        self.rules.clear();
        self.rules.extend(symbols.windows(2).map(|pair| pairs.rule(pair[0], pair[1]).unwrap_or(NO_RULE)));
        self.rules.push(NO_RULE);
        if symbols.len() <= SCAN_MAX {
            self.scan(pairs);
        } else {
            self.heap(pairs);
        }
    }

    fn scan(&mut self, pairs: &impl Pairs) {
        let Self { symbols, rules, .. } = self;
        loop {
            let mut best = 0;
            for (at, rule) in rules.iter().enumerate() {
                if rule.rank < rules[best].rank {
                    best = at;
                }
            }
            if rules[best].rank == NONE {
                return;
            }
            symbols[best].id = rules[best].id;
            symbols[best].end = symbols[best + 1].end;
            symbols.remove(best + 1);
            rules.remove(best + 1);
            let rule = |at: usize| match symbols.get(at + 1) {
                Some(right) => pairs.rule(symbols[at], *right).unwrap_or(NO_RULE),
                None => NO_RULE,
            };
            rules[best] = rule(best);
            if best > 0 {
                rules[best - 1] = rule(best - 1);
            }
        }
    }

    fn heap(&mut self, pairs: &impl Pairs) {
        let count = u32::try_from(self.symbols.len()).expect("a text is shorter than 4 GiB");
        let Self { symbols, rules, next, previous, heap } = self;
        next.clear();
        next.extend(1..=count);
        previous.clear();
        previous.extend((0..count).map(|at| at.wrapping_sub(1)));
        let entry = |rank: u32, at: u32| Reverse(u64::from(rank) << 32 | u64::from(at));
        let mut entries = std::mem::take(heap).into_vec();
        entries.clear();
        entries
            .extend((0..count).zip(&*rules).filter(|(_, r)| r.rank != NONE).map(|(at, r)| entry(r.rank, at)));
        *heap = BinaryHeap::from(entries);
        while let Some(Reverse(best)) = heap.pop() {
            let (rank, at) = ((best >> 32) as u32, best as u32);
            let left = at as usize;
            // An entry is stale when the pair at its place has changed or is gone.
            if rules[left].rank != rank {
                continue;
            }
            let right = next[left] as usize;
            symbols[left].id = rules[left].id;
            symbols[left].end = symbols[right].end;
            rules[right] = NO_RULE;
            next[left] = next[right];
            let after = next[left];
            rules[left] = NO_RULE;
            if after < count {
                previous[after as usize] = at;
                if let Some(rule) = pairs.rule(symbols[left], symbols[after as usize]) {
                    rules[left] = rule;
                    heap.push(entry(rule.rank, at));
                }
            }
            let before = previous[left];
            if before != NONE {
                let place = &mut rules[before as usize];
                *place = pairs.rule(symbols[before as usize], symbols[left]).unwrap_or(NO_RULE);
                if place.rank != NONE {
                    heap.push(entry(place.rank, before));
                }
            }
        }
        let (mut read, mut write) = (0, 0);
        while read < count {
            symbols[write] = symbols[read as usize];
            write += 1;
            read = next[read as usize];
        }
        symbols.truncate(write);
        // One absurd prompt must not keep its buffers for the life of the scratch.
        if count > 1 << 16 {
            *next = Vec::new();
            *previous = Vec::new();
            *heap = BinaryHeap::new();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Rules over ids: two equal or neighbouring ids below a bound join to a new one.
    struct Toy(u32);

    impl Pairs for Toy {
        fn rule(&self, left: Symbol, right: Symbol) -> Option<Rule> {
            let (a, b) = (left.id, right.id);
            (a + b < self.0 && !(a + 2 * b).is_multiple_of(3))
                .then(|| Rule { rank: (a * 7 + b * 13) % 11, id: a + b + 1 })
        }
    }

    fn symbols(ids: &[u32]) -> Vec<Symbol> {
        (0u32..).zip(ids).map(|(at, id)| Symbol { id: *id, start: at, end: at + 1 }).collect()
    }

    proptest! {
        #[test]
        fn the_heap_and_the_scan_agree(ids in prop::collection::vec(0u32..6, 2..120), bound in 1u32..40) {
            let pairs = Toy(bound);
            let run = |heap: bool| {
                let mut merger = Merger { symbols: symbols(&ids), ..Merger::default() };
                merger.rules = merger
                    .symbols
                    .windows(2)
                    .map(|p| pairs.rule(p[0], p[1]).unwrap_or(NO_RULE))
                    .chain([NO_RULE])
                    .collect();
                if heap { merger.heap(&pairs) } else { merger.scan(&pairs) }
                merger.symbols.iter().map(|s| (s.id, s.start, s.end)).collect::<Vec<_>>()
            };
            prop_assert_eq!(run(true), run(false));
        }
    }
}

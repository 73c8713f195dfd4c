//! Byte-pair encoding by ranked merges: byte-level (GPT-2 family) and by character with byte fallback.
//!
//! Invariant: every rule's result is an ordinary token whose text is the two parts joined, so rules cannot
//! go in circles and cannot make a control token.

use rustc_hash::FxHashSet;

use crate::Error;
use crate::merge::{Merger, NONE, Pairs, Rule, Symbol};
use crate::vocab::Vocab;

/// Most merge rules; the largest real tokenizers have about 500,000.
const MERGES_MAX: usize = 1 << 23;
/// See `vocab`: a longer run of probes means keys chosen to collide.
const PROBES_MAX: usize = 512;

/// Which of two equal rules counts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeats {
    FirstWins,
    LastWins,
}

/// Open-addressing table from a pair of ids to its rule.
struct Rules {
    slots: Vec<(u64, Rule)>,
    shift: u32,
}

const FREE: u64 = u64::MAX;

impl Rules {
    fn with_capacity(count: usize) -> Self {
        let size = (count * 2).next_power_of_two().max(16);
        Self { slots: vec![(FREE, Rule { rank: NONE, id: NONE }); size], shift: 64 - size.trailing_zeros() }
    }

    #[inline]
    fn place(&self, key: u64) -> usize {
        // Fibonacci hashing: the high bits of the product are the well mixed ones.
        ((key ^ (key >> 29)).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> self.shift) as usize
    }

    /// Whether the rule could be entered.
    fn insert(&mut self, left: u32, right: u32, rule: Rule, repeats: Repeats) -> bool {
        let key = u64::from(left) << 32 | u64::from(right);
        let (start, mask) = (self.place(key), self.slots.len() - 1);
        for probe in 0..PROBES_MAX.min(self.slots.len()) {
            let slot = &mut self.slots[(start + probe) & mask];
            if slot.0 == FREE || (slot.0 == key && repeats == Repeats::LastWins) {
                *slot = (key, rule);
                return true;
            }
            if slot.0 == key {
                return true;
            }
        }
        false
    }

    #[inline]
    fn get(&self, left: u32, right: u32) -> Option<Rule> {
        let key = u64::from(left) << 32 | u64::from(right);
        let (mut at, mask) = (self.place(key), self.slots.len() - 1);
        loop {
            let (found, rule) = self.slots[at];
            if found == key {
                return Some(rule);
            }
            if found == FREE {
                return None;
            }
            at = (at + 1) & mask;
        }
    }
}

/// What a word is before the first merge.
pub(crate) enum Alphabet {
    /// One symbol a byte; [`NONE`] where the vocabulary lacks the byte.
    Bytes(Box<[u32; 256]>),
    /// One symbol a character; what has no token becomes its bytes, or the unknown token, or nothing.
    Chars { bytes: Option<Box<[u32; 256]>>, unknown: Option<u32>, fuse: bool },
}

/// The model.
pub(crate) struct Bpe {
    rules: Rules,
    alphabet: Alphabet,
    /// A word that is a token is that token, whatever the merges say.
    pub(crate) ignore_merges: bool,
}

/// The merge rules of a file, in the order of their rank.
pub(crate) struct Merges<'a> {
    pub(crate) count: usize,
    /// Appends both parts of a rule, as the model sees them, to the buffer it is lent, and says where the
    /// first ends; `None` where the rule has not two parts.
    pub(crate) parts: &'a dyn Fn(usize, &mut Vec<u8>) -> Option<usize>,
    /// A rule as the file writes it.
    pub(crate) source: &'a dyn Fn(usize) -> String,
    pub(crate) repeats: Repeats,
}

impl Bpe {
    pub(crate) fn new(
        vocab: &Vocab,
        merges: &Merges<'_>,
        alphabet: Alphabet,
        ignore_merges: bool,
    ) -> Result<Self, Error> {
        let Merges { count, parts, source, repeats } = *merges;
        if count > MERGES_MAX {
            return Err(Error::TooLarge {
                what: "the list of merges".into(),
                found: count,
                limit: MERGES_MAX,
            });
        }
        let mut rules = Rules::with_capacity(count);
        let mut joined = Vec::new();
        let mut others: Option<FxHashSet<&[u8]>> = None;
        for index in 0..count {
            let fault = |problem| Error::Merge { index, merge: source(index), problem };
            joined.clear();
            let cut = parts(index, &mut joined).ok_or_else(|| fault("has not two parts"))?;
            let (left, right) = joined.split_at(cut);
            let (Some(left_id), Some(right_id), Some(id)) =
                (vocab.get(left), vocab.get(right), vocab.get(&joined))
            else {
                // A rule that builds or uses a control token can never apply: no text holds one.
                let others = others.get_or_insert_with(|| vocab.others().collect());
                if [left, right, &joined].into_iter().any(|text| others.contains(text)) {
                    continue;
                }
                return Err(fault("names a token that is not in the vocabulary"));
            };
            let rank = u32::try_from(index).expect("the count is bounded");
            if !rules.insert(left_id, right_id, Rule { rank, id }, repeats) {
                return Err(fault("collides with hundreds of others"));
            }
        }
        Ok(Self { rules, alphabet, ignore_merges })
    }

    /// Whether a word may be cut in front of a visible space where no token spans the cut: true where a
    /// word is a whole text.
    pub(crate) fn by_characters(&self) -> bool {
        matches!(self.alphabet, Alphabet::Chars { .. })
    }

    /// Whether every text gets at least one token for each `longest` bytes.
    pub(crate) fn covers_all(&self) -> bool {
        match &self.alphabet {
            Alphabet::Bytes(ids) => ids.iter().all(|id| *id != NONE),
            Alphabet::Chars { bytes, .. } => bytes.is_some(),
        }
    }

    /// Appends the tokens of one word.
    pub(crate) fn encode(&self, vocab: &Vocab, word: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        let symbols = &mut merger.symbols;
        symbols.clear();
        match &self.alphabet {
            Alphabet::Bytes(ids) => symbols.extend(
                (0u32..)
                    .zip(word.as_bytes())
                    .map(|(at, byte)| Symbol { id: ids[usize::from(*byte)], start: at, end: at + 1 })
                    .filter(|symbol| symbol.id != NONE),
            ),
            Alphabet::Chars { bytes, unknown, fuse } => {
                characters(vocab, word, bytes.as_deref(), *unknown, *fuse, symbols);
            }
        }
        merger.run(self);
        out.extend(merger.symbols.iter().map(|symbol| symbol.id));
    }
}

impl Pairs for Bpe {
    #[inline]
    fn rule(&self, left: Symbol, right: Symbol) -> Option<Rule> {
        self.rules.get(left.id, right.id)
    }
}

fn characters(
    vocab: &Vocab,
    word: &str,
    bytes: Option<&[u32; 256]>,
    unknown: Option<u32>,
    fuse: bool,
    symbols: &mut Vec<Symbol>,
) {
    let mut after_unknown = false;
    for (at, c) in word.char_indices() {
        let text = &word.as_bytes()[at..at + c.len_utf8()];
        let (start, end) = (at as u32, (at + text.len()) as u32);
        if let Some(id) = vocab.get(text) {
            symbols.push(Symbol { id, start, end });
            after_unknown = false;
        } else if let Some(ids) = bytes {
            symbols.extend(text.iter().map(|byte| Symbol { id: ids[usize::from(*byte)], start, end }));
            after_unknown = false;
        } else if let Some(id) = unknown {
            if !(fuse && after_unknown) {
                symbols.push(Symbol { id, start, end });
            }
            after_unknown = true;
        }
    }
}

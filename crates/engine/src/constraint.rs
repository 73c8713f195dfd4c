//! The hook by which a grammar (or anything else) limits the next token.

/// A set of token ids, one bit each.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TokenMask {
    words: Vec<u64>,
}

impl TokenMask {
    /// An empty set over a vocabulary of this size.
    #[must_use]
    pub fn none(vocab: u32) -> Self {
        Self { words: vec![0; (vocab as usize).div_ceil(64)] }
    }

    /// Allows a token.
    pub fn allow(&mut self, id: u32) {
        self.words[id as usize / 64] |= 1 << (id % 64);
    }

    /// Whether a token is allowed.
    #[must_use]
    pub fn allows(&self, id: u32) -> bool {
        self.words.get(id as usize / 64).is_some_and(|word| word >> (id % 64) & 1 == 1)
    }

    /// Empties the set.
    pub fn clear(&mut self) {
        self.words.fill(0);
    }

    /// The bits, 64 ids a word, lowest id in the lowest bit.
    pub fn words_mut(&mut self) -> &mut [u64] {
        &mut self.words
    }
}

/// How a constraint stands after the tokens it has accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Tokens may follow; a stop token may be among them.
    Open,
    /// The answer is whole and nothing can follow but its end.
    Ended,
    /// The constraint cannot say what may follow. The answer ends as failed; it never goes on unconstrained.
    Failed,
}

/// Limits what a sequence may say next. The engine calls `accept` for each token of the answer but a stop
/// token that ends it, asks `standing` and `forced` after it, and `mask` before a token is sampled. A draft
/// is never told: of its tokens those are accepted that were chosen, one by one.
///
/// All stop tokens of the request should be allowed exactly where the answer may end.
pub trait Constraint: Send {
    /// Adds the allowed next tokens to `allowed`, which comes empty. Unless the answer is `Open`, what was
    /// added means nothing.
    fn mask(&mut self, allowed: &mut TokenMask) -> Standing;
    /// Tells that this token was appended.
    fn accept(&mut self, token: u32);
    /// Tokens that must come next whatever the model says; appended to `out`.
    fn forced(&mut self, out: &mut Vec<u32>);
    /// How it stands. An answer that has ended then ends without a stop token, which saves a step.
    fn standing(&mut self) -> Standing {
        Standing::Open
    }
}

//! A word to tokens, whichever the model, with what makes it fast: words that are one token, a cache of
//! words seen in this text, and safe cuts in texts that come as one word.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU8, Ordering};

use rustc_hash::FxHashSet;

use crate::bpe::Bpe;
use crate::merge::Merger;
use crate::pretokenizer::VISIBLE_SPACE;
use crate::sentencepiece::SentencePiece;
use crate::unigram::{Lattice, Unigram};
use crate::vocab::{Vocab, hash};
use crate::wordpiece::WordPiece;

/// Longest word, and most tokens of a word, that the cache keeps.
const CACHED_BYTES: usize = 32;
const CACHED_TOKENS: usize = 8;
/// Most words of the cache.
const CACHE_MAX: usize = 1 << 13;

/// What is known of a token as a word.
const UNTRIED: u8 = 0;
const WHOLE: u8 = 1;
const BROKEN: u8 = 2;

pub(crate) enum Model {
    Bpe(Merging<Bpe>),
    SentencePiece(Merging<SentencePiece>),
    Unigram(Unigram),
    WordPiece(WordPiece),
}

/// A model that joins pairs.
pub(crate) struct Merging<M> {
    pub(crate) model: M,
    /// By token: whether its text as a word becomes the token. Found out at first use; a race finds out the
    /// same twice.
    whole: Vec<AtomicU8>,
    /// Characters that some token has in front of a visible space. Empty set: each space begins a new word.
    /// `None`: words are not cut.
    spans: Option<FxHashSet<char>>,
}

/// Buffers of one call of `encode`.
pub(crate) struct Scratch {
    merger: Merger,
    lattice: Lattice,
    key: Vec<u8>,
    cache: Vec<Cached>,
}

/// A word and its tokens. Direct mapped, so no text can make a look-up slow.
#[derive(Clone, Copy)]
struct Cached {
    len: u8,
    count: u8,
    word: [u8; CACHED_BYTES],
    ids: [u32; CACHED_TOKENS],
}

impl Scratch {
    /// Buffers for a text of about `bytes` bytes.
    pub(crate) fn for_text(bytes: usize) -> Self {
        let size = (bytes / 8).next_power_of_two().clamp(16, CACHE_MAX);
        let empty = Cached { len: 0, count: 0, word: [0; CACHED_BYTES], ids: [0; CACHED_TOKENS] };
        Self {
            merger: Merger::default(),
            lattice: Lattice::default(),
            key: Vec::new(),
            cache: vec![empty; size],
        }
    }
}

impl<M> Merging<M> {
    /// `cuts`: whether the model sees whole texts in which a visible space begins a word.
    pub(crate) fn new(model: M, vocab: &Vocab, cuts: bool) -> Self {
        let whole = (0..vocab.len()).map(|_| AtomicU8::new(UNTRIED)).collect();
        // Without a token for the space itself, unknown characters could fuse across a cut.
        let cuts = cuts && vocab.get(VISIBLE_SPACE.to_string().as_bytes()).is_some();
        Self { model, whole, spans: cuts.then(|| before_spaces(vocab)) }
    }

    fn word(
        &self,
        vocab: &Vocab,
        word: &str,
        ignore_merges: bool,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
        encode: impl Fn(&M, &mut Merger, &mut Vec<u32>),
    ) {
        let before = out.len();
        let whole = vocab.get(word.as_bytes());
        if let Some(id) = whole {
            let known = self.whole[id as usize].load(Ordering::Relaxed);
            if ignore_merges || known == WHOLE {
                out.push(id);
                return;
            }
            if known == UNTRIED {
                encode(&self.model, &mut scratch.merger, out);
                let state = if out[before..] == [id] { WHOLE } else { BROKEN };
                self.whole[id as usize].store(state, Ordering::Relaxed);
                return;
            }
        }
        let bytes = word.as_bytes();
        if bytes.len() > CACHED_BYTES {
            return encode(&self.model, &mut scratch.merger, out);
        }
        let place = (hash(bytes) >> 20) as usize & (scratch.cache.len() - 1);
        let cached = &mut scratch.cache[place];
        if cached.word[..usize::from(cached.len)] == *bytes {
            out.extend_from_slice(&cached.ids[..usize::from(cached.count)]);
            return;
        }
        encode(&self.model, &mut scratch.merger, out);
        let ids = &out[before..];
        if ids.len() <= CACHED_TOKENS {
            cached.len = bytes.len() as u8;
            cached.count = ids.len() as u8;
            cached.word[..bytes.len()].copy_from_slice(bytes);
            cached.ids[..ids.len()].copy_from_slice(ids);
        }
    }

    /// Cuts a text in front of those visible spaces that no token spans; joins cannot cross such a cut.
    fn cut(&self, text: &str, mut each: impl FnMut(&str) -> ControlFlow<()>) -> ControlFlow<()> {
        let Some(spans) = &self.spans else { return each(text) };
        let mut start = 0;
        for (at, _) in text.match_indices(VISIBLE_SPACE) {
            let before = text[start..at].chars().next_back();
            if before.is_some_and(|before| !spans.contains(&before)) {
                each(&text[start..at])?;
                start = at;
            }
        }
        each(&text[start..])
    }
}

/// The characters that stand in front of a visible space inside some token.
fn before_spaces(vocab: &Vocab) -> FxHashSet<char> {
    let mut found = FxHashSet::default();
    for (id, kind) in (0u32..).zip(vocab.kinds()) {
        if !kind.is_ordinary() {
            continue;
        }
        let Ok(text) = std::str::from_utf8(vocab.text(id)) else { continue };
        found.extend(text.match_indices(VISIBLE_SPACE).filter_map(|(at, _)| text[..at].chars().next_back()));
    }
    found
}

impl Model {
    /// Appends the tokens of one word; stops once `out` is longer than `limit`.
    pub(crate) fn encode(
        &self,
        vocab: &Vocab,
        word: &str,
        limit: usize,
        scratch: &mut Scratch,
        out: &mut Vec<u32>,
    ) -> ControlFlow<()> {
        let full = |out: &Vec<u32>| match out.len() > limit {
            true => ControlFlow::Break(()),
            false => ControlFlow::Continue(()),
        };
        match self {
            Self::Bpe(bpe) => bpe.cut(word, |word| {
                bpe.word(vocab, word, bpe.model.ignore_merges, scratch, out, |model, merger, out| {
                    model.encode(vocab, word, merger, out);
                });
                full(out)
            }),
            Self::SentencePiece(spm) => spm.cut(word, |word| {
                spm.word(vocab, word, false, scratch, out, |model, merger, out| {
                    model.encode(vocab, word, merger, out);
                });
                full(out)
            }),
            Self::Unigram(unigram) => {
                unigram.encode(vocab, word, &mut scratch.lattice, out);
                full(out)
            }
            Self::WordPiece(wordpiece) => {
                wordpiece.encode(vocab, word, &mut scratch.key, out);
                full(out)
            }
        }
    }

    /// Whether `n` bytes of normalised text are never fewer than `n / longest` tokens.
    pub(crate) fn covers_all(&self) -> bool {
        match self {
            Self::Bpe(bpe) => bpe.model.covers_all(),
            Self::SentencePiece(spm) => spm.model.covers_all(),
            Self::Unigram(_) | Self::WordPiece(_) => false,
        }
    }
}

//! SentencePiece BPE (`llama` in GGUF): joins the adjacent pair whose text is the token with the best score.
//!
//! There are no merge rules in such files; the vocabulary with its scores is all. Equal scores go left to
//! right. What no token expresses becomes byte tokens, or the unknown token where the file has none.

use crate::merge::{Merger, NONE, Pairs, Rule, Symbol};
use crate::vocab::Vocab;

/// The model.
pub(crate) struct SentencePiece {
    /// By token: 0 for the best score; equal scores share a rank.
    ranks: Vec<u32>,
    bytes: Option<Box<[u32; 256]>>,
    unknown: Option<u32>,
}

impl SentencePiece {
    /// `scores` has one entry a token.
    pub(crate) fn new(vocab: &Vocab, scores: &[f32], unknown: Option<u32>) -> Self {
        assert_eq!(vocab.len(), scores.len(), "one score per token");
        let mut order: Vec<u32> = (0..vocab.len() as u32).collect();
        // `total_cmp` gives NaN a place too; a NaN score is nonsense, but must not break the order.
        order.sort_unstable_by(|a, b| scores[*b as usize].total_cmp(&scores[*a as usize]));
        let mut ranks = vec![0; scores.len()];
        let mut rank = 0;
        for (at, id) in order.iter().enumerate() {
            if at > 0 && scores[order[at - 1] as usize] != scores[*id as usize] {
                rank = at as u32;
            }
            ranks[*id as usize] = rank;
        }
        Self { ranks, bytes: vocab.byte_tokens(), unknown }
    }

    /// Whether every text gets at least one token for each `longest` bytes.
    pub(crate) fn covers_all(&self) -> bool {
        self.bytes.is_some()
    }

    /// Appends the tokens of one word.
    pub(crate) fn encode(&self, vocab: &Vocab, word: &str, merger: &mut Merger, out: &mut Vec<u32>) {
        merger.symbols.clear();
        merger.symbols.extend(word.char_indices().map(|(at, c)| {
            let end = at + c.len_utf8();
            let id = vocab.get(&word.as_bytes()[at..end]).unwrap_or(NONE);
            Symbol { id, start: at as u32, end: end as u32 }
        }));
        merger.run(&Spans { model: self, vocab, word: word.as_bytes() });
        let mut after_unknown = false;
        for symbol in &merger.symbols {
            if symbol.id != NONE {
                out.push(symbol.id);
                after_unknown = false;
            } else if let Some(ids) = &self.bytes {
                let bytes = &word.as_bytes()[symbol.start as usize..symbol.end as usize];
                out.extend(bytes.iter().map(|byte| ids[usize::from(*byte)]));
            } else if let Some(id) = self.unknown {
                // A run of unknown characters is one unknown token.
                if !after_unknown {
                    out.push(id);
                }
                after_unknown = true;
            }
        }
    }
}

struct Spans<'a> {
    model: &'a SentencePiece,
    vocab: &'a Vocab,
    word: &'a [u8],
}

impl Pairs for Spans<'_> {
    fn rule(&self, left: Symbol, right: Symbol) -> Option<Rule> {
        let id = self.vocab.get(&self.word[left.start as usize..right.end as usize])?;
        Some(Rule { rank: self.model.ranks[id as usize], id })
    }
}

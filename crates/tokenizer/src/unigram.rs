//! Unigram (SentencePiece's other model): the row of pieces with the best sum of scores (Viterbi).
//!
//! Time is the length of the text times the longest piece that matches at each place. Ties go to the row
//! found first, as in the reference. Pieces are found through a trie that holds ordinary tokens only.

use crate::trie::Trie;
use crate::vocab::Vocab;

/// How much worse than the worst piece an unknown character is.
const UNKNOWN_PENALTY: f64 = 10.0;

/// The model.
pub(crate) struct Unigram {
    trie: Trie,
    scores: Vec<f64>,
    unknown: Option<u32>,
    unknown_score: f64,
    bytes: Option<Box<[u32; 256]>>,
}

/// The best way to reach a place in the text.
#[derive(Clone, Copy)]
struct Best {
    score: f64,
    /// Where its last piece begins; `u32::MAX` while no way is known.
    from: u32,
    /// That piece; `u32::MAX` for an unknown character.
    id: u32,
}

const NOWHERE: u32 = u32::MAX;

/// Reused between words.
#[derive(Default)]
pub(crate) struct Lattice {
    best: Vec<Best>,
    path: Vec<(u32, u32, u32)>,
}

impl Unigram {
    /// `scores` has one entry a token.
    pub(crate) fn new(vocab: &Vocab, scores: Vec<f64>, unknown: Option<u32>, byte_fallback: bool) -> Self {
        assert_eq!(vocab.len(), scores.len(), "one score per token");
        let mut trie = Trie::default();
        let mut worst = f64::INFINITY;
        for (id, kind) in (0u32..).zip(vocab.kinds()) {
            worst = worst.min(scores[id as usize]);
            if kind.is_ordinary() {
                trie.insert(vocab.text(id), id);
            }
        }
        let bytes = if byte_fallback { vocab.byte_tokens() } else { None };
        Self { trie, scores, unknown, unknown_score: worst - UNKNOWN_PENALTY, bytes }
    }

    /// Appends the tokens of one word.
    pub(crate) fn encode(&self, vocab: &Vocab, word: &str, lattice: &mut Lattice, out: &mut Vec<u32>) {
        let Lattice { best, path } = lattice;
        best.clear();
        best.resize(word.len() + 1, Best { score: 0.0, from: NOWHERE, id: NOWHERE });
        let mut at = 0;
        while let Some(c) = word[at..].chars().next() {
            let here = best[at].score;
            let mut offer = |end: usize, id: u32, score: f64| {
                let place = &mut best[end];
                if place.from == NOWHERE || score > place.score {
                    *place = Best { score, from: at as u32, id };
                }
            };
            let mut single = false;
            self.trie.walk(&word.as_bytes()[at..], |len, id| {
                offer(at + len, id, here + self.scores[id as usize]);
                single |= len == c.len_utf8();
            });
            if !single {
                offer(at + c.len_utf8(), NOWHERE, here + self.unknown_score);
            }
            at += c.len_utf8();
        }
        path.clear();
        let mut end = word.len() as u32;
        while end > 0 {
            let Best { from, id, .. } = best[end as usize];
            path.push((from, end, id));
            end = from;
        }
        path.reverse();
        let mut rest = path.as_slice();
        while let Some((&(from, mut end, id), tail)) = rest.split_first() {
            rest = tail;
            if id != NOWHERE {
                out.push(id);
                continue;
            }
            // A run of unknown characters is one piece.
            while let Some((&(_, next, NOWHERE), tail)) = rest.split_first() {
                (end, rest) = (next, tail);
            }
            self.unknown(vocab, &word.as_bytes()[from as usize..end as usize], out);
        }
    }

    fn unknown(&self, vocab: &Vocab, text: &[u8], out: &mut Vec<u32>) {
        if let Some(id) = vocab.get(text) {
            out.push(id);
        } else if let Some(ids) = &self.bytes {
            out.extend(text.iter().map(|byte| ids[usize::from(*byte)]));
        } else {
            out.extend(self.unknown);
        }
    }
}

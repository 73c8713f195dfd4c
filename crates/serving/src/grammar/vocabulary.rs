//! A tokenizer as the grammar library sees it: a trie of the tokens' bytes, and the canonical tokens of a text.
//!
//! Control tokens stand in the trie behind a byte that no text has, so no text rule can let them in. Ids that
//! stand for nothing (holes, padding of the model's vocabulary) are never allowed.

use llguidance::toktrie::{INVALID_TOKEN, TokRxInfo, TokTrie, TokenId, TokenizerEnv};
use tokenizer::{Piece, Tokenizer};

/// Longer tokens are never allowed; the trie has no room for them.
const LONGEST_TOKEN: usize = 1000;

/// See the module.
pub(super) struct Vocabulary {
    trie: TokTrie,
    tokenizer: Tokenizer,
    /// Tokens that are a start of each text that is encoded, and what they stand for.
    lead: Option<u32>,
}

impl Vocabulary {
    /// `vocab` is the size of the model's rows of logits; `stop_tokens` end an answer.
    pub fn new(tokenizer: Tokenizer, vocab: u32, stop_tokens: &[u32]) -> Self {
        let words: Vec<Vec<u8>> = (0..vocab).map(|id| word(&tokenizer, id)).collect();
        let stops: Vec<u32> = stop_tokens.iter().copied().filter(|id| *id < vocab).collect();
        let first = stops.first().copied().unwrap_or(INVALID_TOKEN);
        let mut trie = TokTrie::from(&TokRxInfo::new(vocab, first), &words);
        if !stops.is_empty() {
            trie = trie.with_eos_tokens(&stops);
        }
        // Some tokenizers put a space before a text; behind this token they do not.
        let lead = (0..tokenizer.vocab_size().min(vocab)).find(|id| tokenizer.is_control(*id));
        Self { trie, tokenizer, lead }
    }

    /// The canonical tokens of a text, if they stand for exactly this text.
    fn canonical(&self, text: &str) -> Option<Vec<u32>> {
        let fits = |ids: &[u32]| {
            let mut left = text.as_bytes();
            ids.iter().all(|id| {
                let rest = (*id < self.trie.vocab_size() as u32)
                    .then(|| left.strip_prefix(self.trie.token(*id)))
                    .flatten();
                left = rest.unwrap_or_default();
                rest.is_some()
            }) && left.is_empty()
        };
        let plain = self.tokenizer.encode_ordinary(text);
        if fits(&plain) {
            return Some(plain);
        }
        let lead = [self.lead?];
        let mut ids =
            self.tokenizer.encode(&[Piece::Tokens(&lead), Piece::Untrusted(text)], None).unwrap_or_default();
        if ids.first() != Some(&lead[0]) {
            return None;
        }
        ids.remove(0);
        fits(&ids).then_some(ids)
    }
}

/// What stands in the trie for a token.
fn word(tokenizer: &Tokenizer, id: u32) -> Vec<u8> {
    let bytes = tokenizer.token_bytes(id);
    if bytes.len() > LONGEST_TOKEN {
        return Vec::new();
    }
    if tokenizer.is_control(id) && !bytes.is_empty() {
        return [&[TokTrie::SPECIAL_TOKEN_MARKER], bytes].concat();
    }
    bytes.to_vec()
}

impl TokenizerEnv for Vocabulary {
    fn tok_trie(&self) -> &TokTrie {
        &self.trie
    }

    fn tokenize_bytes(&self, bytes: &[u8]) -> Vec<TokenId> {
        // Forced bytes may end inside a character.
        let text = match std::str::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
        };
        let canonical = if text.is_empty() { None } else { self.canonical(text) };
        match canonical {
            Some(mut ids) => {
                ids.extend(self.trie.greedy_tokenize(&bytes[text.len()..]));
                ids
            }
            None => self.trie.greedy_tokenize(bytes),
        }
    }
}

//! Text to tokens and back: byte-level BPE, SentencePiece BPE, Unigram and WordPiece, read from GGUF
//! metadata or from a `tokenizer.json`, and an incremental detokeniser.
//!
//! Invariants:
//! - Untrusted text never yields a control token. Control texts are looked for inside [`Piece::Trusted`]
//!   only, and a model's own vocabulary (merges, pieces, words) holds no control token.
//! - Ordinary text that adjoins across pieces is tokenised as one text, as the reference does.
//! - The concatenation of what a [`Detokenizer`] gives equals [`Tokenizer::decode`] of all ids at once.
//! - Time is O(n log n) in the text whatever the text, and loading is linear in the file whatever the file.
//!
//! What it does not do: read files, apply chat templates, train, truncate or pad. A component of a
//! `tokenizer.json` that is not built is an error that names it, never a silent difference.

mod added;
mod bpe;
mod bytelevel;
mod charsmap;
mod class;
mod decoder;
mod detokenizer;
mod error;
mod gguf;
mod json;
mod merge;
mod model;
mod normalizer;
mod pair;
mod pattern;
mod pretokenizer;
mod sentencepiece;
mod tokenizer;
mod trie;
mod unigram;
mod vocab;
mod wordpiece;

pub use detokenizer::Detokenizer;
pub use error::Error;
pub use gguf::GgufVocab;
pub use pair::TypedIds;
pub use tokenizer::{Piece, Specials, Tokenizer, TooLong};

//! What a GGUF file says of its tokenizer, borrowed from the file. Makes no tokenizer.

use super::Gguf;
use crate::checkpoint::CheckpointError;

/// The tokenizer's data in a GGUF file, as it stands there.
#[derive(Clone, Debug, PartialEq)]
pub struct GgufVocabulary<'a> {
    /// `tokenizer.ggml.model`: `gpt2`, `llama`, `bert`, ...
    pub model: &'a str,
    /// `tokenizer.ggml.pre`: which pre-tokenizer.
    pub pre: Option<&'a str>,
    /// The text of each token; byte strings, because not every writer keeps to UTF-8.
    pub tokens: Vec<&'a [u8]>,
    /// The score of each token; empty where the file has none.
    pub scores: Vec<f32>,
    /// The type of each token (1 normal, 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte);
    /// empty where the file has none.
    pub types: Vec<i32>,
    /// The merges of a byte-pair encoding, best first: two tokens with a space between.
    pub merges: Vec<&'a str>,
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn.
    pub eot: Option<u32>,
    /// Ends a message inside a turn.
    pub eom: Option<u32>,
    /// Stands for what the vocabulary cannot express.
    pub unk: Option<u32>,
    /// Separates two texts.
    pub sep: Option<u32>,
    /// Begins a text of a classifier.
    pub cls: Option<u32>,
    /// Fills up.
    pub pad: Option<u32>,
    /// Stands for a hidden token.
    pub mask: Option<u32>,
    /// Whether prompts begin with `bos`.
    pub add_bos: Option<bool>,
    /// Whether prompts end with `eos`.
    pub add_eos: Option<bool>,
    /// Whether a space is put before a text.
    pub add_space_prefix: Option<bool>,
    /// Whether runs of spaces are cut to one.
    pub remove_extra_whitespaces: Option<bool>,
}

pub(super) fn read(gguf: &Gguf) -> Result<GgufVocabulary<'_>, CheckpointError> {
    const TOKENS: &str = "tokenizer.ggml.tokens";
    let tokens = gguf.locate(gguf.array(TOKENS)?.strings())?;
    let count = u32::try_from(tokens.len())
        .map_err(|_| gguf.bad_key(TOKENS, format!("has {} tokens, too many for 32-bit ids", tokens.len())))?;
    if count == 0 {
        return Err(gguf.bad_key(TOKENS, "has no tokens"));
    }
    let per_token = |key: &str, len: usize| {
        if len != 0 && len != tokens.len() {
            return Err(gguf.bad_key(key, format!("has {len} elements for {count} tokens")));
        }
        Ok(())
    };
    let scores = match gguf.find_array("tokenizer.ggml.scores")? {
        Some(array) => gguf.locate(array.floats())?,
        None => Vec::new(),
    };
    per_token("tokenizer.ggml.scores", scores.len())?;
    let types: Vec<i32> = match gguf.find_array("tokenizer.ggml.token_type")? {
        Some(array) => gguf.locate(array.integers())?,
        None => Vec::new(),
    };
    per_token("tokenizer.ggml.token_type", types.len())?;
    let merges = match gguf.find_array("tokenizer.ggml.merges")? {
        Some(array) => gguf.locate(array.texts())?,
        None => Vec::new(),
    };
    let id = |name: &str| {
        let key = format!("tokenizer.ggml.{name}_token_id");
        match gguf.find_u32(&key)? {
            // -1 in 32 bits: none.
            Some(u32::MAX) => Ok(None),
            Some(id) if id >= count => {
                Err(gguf.bad_key(&key, format!("is {id}, but there are {count} tokens")))
            }
            found => Ok(found),
        }
    };
    Ok(GgufVocabulary {
        model: gguf.str("tokenizer.ggml.model")?,
        pre: gguf.find_str("tokenizer.ggml.pre")?,
        bos: id("bos")?,
        eos: id("eos")?,
        eot: id("eot")?,
        eom: id("eom")?,
        unk: id("unknown")?,
        // The misspelt key is the one that converters write.
        sep: id("seperator")?.or(id("separator")?),
        cls: id("cls")?,
        pad: id("padding")?,
        mask: id("mask")?,
        add_bos: gguf.find_bool("tokenizer.ggml.add_bos_token")?,
        add_eos: gguf.find_bool("tokenizer.ggml.add_eos_token")?,
        add_space_prefix: gguf.find_bool("tokenizer.ggml.add_space_prefix")?,
        remove_extra_whitespaces: gguf.find_bool("tokenizer.ggml.remove_extra_whitespaces")?,
        tokens,
        scores,
        types,
        merges,
    })
}

//! What serving takes from a checkpoint beside its weights: tokenizer, chat template, sampling defaults.

use crate::LoadError;
use models::Checkpoint;
use models::checkpoint::Gguf;
use std::path::Path;
use tokenizer::{GgufVocab, Tokenizer};

/// Opens the tokenizer of a model file or folder.
pub fn open_tokenizer(path: &Path) -> Result<Tokenizer, LoadError> {
    tokenizer_of(&Checkpoint::open(path)?)
}

/// The tokenizer inside a checkpoint.
pub(crate) fn tokenizer_of(checkpoint: &Checkpoint) -> Result<Tokenizer, LoadError> {
    match checkpoint {
        Checkpoint::Gguf(gguf) => from_gguf(gguf),
        Checkpoint::HuggingFace(folder) => {
            let json = folder.file("tokenizer.json").ok_or(LoadError::NoTokenizer)?;
            let config = folder.file("tokenizer_config.json");
            Ok(Tokenizer::from_json(&json, config.as_deref())?)
        }
    }
}

fn from_gguf(gguf: &Gguf) -> Result<Tokenizer, LoadError> {
    const PREFIX: &str = "tokenizer.ggml";
    let key = |name: &str| format!("{PREFIX}.{name}");
    if gguf.get(&key("tokens")).is_none() {
        return Err(LoadError::NoTokenizer);
    }
    let has = |name: &str| gguf.get(&key(name)).is_some();
    let id = |name: &str| gguf.find_u32(&key(name)).map(|id| id.filter(|id| *id != u32::MAX));
    let flag = |name: &str| gguf.find_bool(&key(name));
    let tokens = key("tokens");
    let merges = key("merges");
    let types = if has("token_type") { gguf.u32s(&key("token_type"))? } else { Vec::new() };
    Ok(Tokenizer::from_gguf(GgufVocab {
        model: gguf.str(&key("model"))?,
        pre: gguf.find_str(&key("pre"))?,
        tokens: gguf.strs(&tokens)?.into_iter().map(str::as_bytes).collect(),
        scores: if has("scores") { gguf.f32s(&key("scores"))? } else { Vec::new() },
        types: types.into_iter().map(|kind| i32::try_from(kind).unwrap_or(i32::MAX)).collect(),
        merges: if has("merges") { gguf.strs(&merges)? } else { Vec::new() },
        bos: id("bos_token_id")?,
        eos: id("eos_token_id")?,
        eot: id("eot_token_id")?,
        unk: id("unknown_token_id")?,
        sep: id("seperator_token_id")?,
        cls: id("cls_token_id")?,
        pad: id("padding_token_id")?,
        add_bos: flag("add_bos_token")?,
        add_eos: flag("add_eos_token")?,
        add_space_prefix: flag("add_space_prefix")?,
    })?)
}

//! Tokenizers from Hugging Face's `tokenizer.json`, with the special tokens of `tokenizer_config.json`.
//!
//! `truncation` and `padding` are ignored: they are no part of what a text means. A component that is not
//! built is an error that names it.

mod component;
mod decode;
mod file;
mod model;
mod post;

use serde::Deserialize;

use crate::added::{Added, Matcher, TEXT_MAX};
use crate::pretokenizer::Place;
use crate::tokenizer::{AddedStyle, Parts};
use crate::vocab::{Kind, Strings, TOKENS_MAX, byte_of, looks_like_control};
use crate::{Error, normalizer};

use file::{Config, File, ModelFile, VocabFile};

pub(crate) use component::compile;

/// Texts and kinds of all tokens, from the model's vocabulary and the added tokens.
struct Tokens {
    /// As the file writes them; holes are empty.
    texts: Strings,
    kinds: Vec<Kind>,
    /// What the model may make of text that it cannot express.
    unknown: Option<u32>,
}

pub(crate) fn read(json: &[u8], config: Option<&[u8]>) -> Result<Parts, Error> {
    let file: File<'_> = parse("tokenizer.json", json)?;
    let config: Config = match config {
        Some(config) => parse("tokenizer_config.json", config)?,
        None => Config::default(),
    };
    let normalizers = component::normalizers(file.normalizer.as_ref())?;
    let pre = component::pretokenizers(file.pre_tokenizer.as_ref())?;
    let tokens = tokens(&file, &config)?;
    let decoder = decode::read(file.decoder.as_ref(), &tokens)?;
    let (raw, normalized) = added(&file, &tokens, &normalizers);
    let post::Around { mut before, after, pair, .. } = post::read(file.post_processor.as_ref(), &tokens)?;
    let id_of = |text: &str| {
        let added = file.added_tokens.iter().find(|token| token.content == text).map(|token| token.id);
        added.or_else(|| (0..tokens.texts.len() as u32).find(|id| tokens.texts.text(*id) == text))
    };
    let bos = config.bos_token.as_ref().map(|token| token.text()).and_then(id_of);
    let bos = bos.or_else(|| before.first().copied());
    let eos = config.eos_token.as_ref().map(|token| token.text()).and_then(id_of);
    if let (Some(adds), Some(bos)) = (config.add_bos_token, bos) {
        before.retain(|id| *id != bos);
        if adds {
            before.insert(0, bos);
        }
    }
    let (vocab, model) = model::read(&file.model, tokens, pre.byte_level)?;
    Ok(Parts {
        vocab,
        model,
        added: raw,
        added_normalized: normalized,
        normalizers,
        pretokenizers: pre.steps,
        decoder,
        added_style: AddedStyle::Border,
        before,
        after,
        pair,
        bos,
        eos,
        ends: Vec::new(),
    })
}

fn parse<'a, T: Deserialize<'a>>(file: &'static str, json: &'a [u8]) -> Result<T, Error> {
    serde_json::from_slice(json).map_err(|source| Error::Json { file, source })
}

fn unsupported(part: &'static str, name: impl Into<String>) -> Error {
    Error::Unsupported { part, name: name.into() }
}

fn tokens(file: &File<'_>, config: &Config) -> Result<Tokens, Error> {
    let count = match &file.model.vocab {
        VocabFile::Map { ids, .. } => ids.iter().max().map_or(0, |id| *id as usize + 1),
        VocabFile::Pieces { scores, .. } => scores.len(),
    };
    let count = file.added_tokens.iter().map(|token| token.id as usize + 1).fold(count, usize::max);
    if count > TOKENS_MAX {
        return Err(Error::TooLarge {
            what: "the largest token id".into(),
            found: count - 1,
            limit: TOKENS_MAX,
        });
    }
    // Where the entry of each id is: in the vocabulary, or (beyond it) among the added tokens.
    const HOLE: usize = usize::MAX;
    let mut source = vec![HOLE; count];
    let texts = match &file.model.vocab {
        VocabFile::Map { texts, ids } => {
            for (at, id) in ids.iter().enumerate() {
                if std::mem::replace(&mut source[*id as usize], at) != HOLE {
                    return Err(Error::Contradiction {
                        what: format!("token id {id}, given to two tokens,"),
                    });
                }
            }
            texts
        }
        VocabFile::Pieces { texts, .. } => {
            (0..texts.len()).for_each(|at| source[at] = at);
            texts
        }
    };
    let mut kinds = vec![Kind::Normal; count];
    let byte_fallback = file.model.byte_fallback.unwrap_or(false);
    for (kind, at) in kinds.iter_mut().zip(&source) {
        if *at == HOLE {
            *kind = Kind::Unused;
        } else if byte_fallback && byte_of(texts.get(*at as u32)).is_some() {
            *kind = Kind::Byte;
        }
    }
    for (at, token) in file.added_tokens.iter().enumerate() {
        if token.content.len() > TEXT_MAX {
            let what = format!("the text of added token {} in bytes", token.id);
            return Err(Error::TooLarge { what, found: token.content.len(), limit: TEXT_MAX });
        }
        let source = &mut source[token.id as usize];
        let known = *source < texts.len() && texts.get(*source as u32) == token.content.as_bytes();
        *source = texts.len() + at;
        // What looks like a control token is one, whatever the file says.
        kinds[token.id as usize] = if token.special || looks_like_control(token.content.as_bytes()) {
            Kind::Control
        } else if known {
            Kind::UserDefined
        } else {
            Kind::Added
        };
    }
    let mut all = Strings::with_capacity(count, count * 8);
    for at in source {
        match at {
            HOLE => all.push(&[]),
            at if at >= texts.len() => all.push(file.added_tokens[at - texts.len()].content.as_bytes()),
            at => all.push(texts.get(at as u32)),
        }
    }
    // Some files name the end of text as unknown token; no text may say that.
    let says_more = |id: u32| {
        let named = [&config.bos_token, &config.eos_token].into_iter().flatten();
        looks_like_control(all.get(id)) || named.into_iter().any(|token| token.text() == all.text(id))
    };
    let unknown = unknown(&file.model, &all)?.filter(|id| !says_more(*id));
    if let Some(id) = unknown {
        kinds[id as usize] = Kind::Unknown;
    }
    Ok(Tokens { texts: all, kinds, unknown })
}

/// The id of the unknown token, which the model names by text or by id.
fn unknown(model: &ModelFile<'_>, texts: &Strings) -> Result<Option<u32>, Error> {
    if let Some(id) = model.unk_id {
        if id as usize >= texts.len() {
            return Err(Error::IdOutOfRange { what: "the unknown token".into(), id, size: texts.len() });
        }
        return Ok(Some(id));
    }
    let Some(text) = model.unk_token.as_deref() else { return Ok(None) };
    // Some byte-level files name an unknown token that does not exist; they never need it.
    Ok((0..texts.len() as u32).find(|id| texts.get(*id) == text.as_bytes()))
}

/// The added tokens to find in the raw and in the normalised text.
fn added(file: &File<'_>, tokens: &Tokens, normalizers: &[normalizer::Step]) -> (Matcher, Matcher) {
    let (mut raw, mut normalized) = (Vec::new(), Vec::new());
    for token in &file.added_tokens {
        let control = match tokens.kinds[token.id as usize] {
            // Text that spells the unknown token is not unknown: only the template may say it.
            Kind::Control | Kind::Unknown => true,
            _ => false,
        };
        let mut entry = Added {
            id: token.id,
            text: token.content.clone(),
            control,
            lstrip: token.lstrip,
            rstrip: token.rstrip,
            single_word: token.single_word,
        };
        // Control tokens are found where their trust is known: in the raw text.
        if !control && token.normalized && !normalizers.is_empty() {
            let place = Place { first: true, fresh: true };
            entry.text = normalizer::run(normalizers, &token.content, place).into_owned();
            normalized.push(entry);
        } else {
            raw.push(entry);
        }
    }
    for entries in [&mut raw, &mut normalized] {
        entries.retain(|entry| !entry.text.is_empty());
    }
    (Matcher::new(raw), Matcher::new(normalized))
}

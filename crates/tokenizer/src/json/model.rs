//! Models of `tokenizer.json`: BPE, Unigram, WordPiece.

use super::file::{ModelFile, VocabFile};
use super::{Tokens, unsupported};
use crate::bpe::{Alphabet, Bpe, Merges, Repeats};
use crate::merge::NONE;
use crate::model::{Merging, Model};
use crate::unigram::Unigram;
use crate::vocab::{Kind, Strings, Vocab};
use crate::wordpiece::WordPiece;
use crate::{Error, bytelevel};

const PART: &str = "model";

pub(super) fn read(file: &ModelFile<'_>, tokens: Tokens, byte_level: bool) -> Result<(Vocab, Model), Error> {
    // Old files leave the type out; the shape tells.
    let kind = match file.kind.as_deref() {
        Some(kind) => kind,
        None if matches!(file.vocab, VocabFile::Pieces { .. }) => "Unigram",
        None if !file.merges.cuts.is_empty() => "BPE",
        None => "WordPiece",
    };
    if byte_level && kind != "BPE" {
        return Err(unsupported(PART, format!("{kind} behind a ByteLevel pre_tokenizer")));
    }
    match kind {
        "BPE" => bpe(file, tokens, byte_level),
        "Unigram" => unigram(file, tokens),
        "WordPiece" => wordpiece(file, tokens),
        other => Err(unsupported(PART, other)),
    }
}

fn bpe(file: &ModelFile<'_>, tokens: Tokens, byte_level: bool) -> Result<(Vocab, Model), Error> {
    let is_set = |text: &Option<String>| text.as_deref().is_some_and(|text| !text.is_empty());
    if is_set(&file.continuing_subword_prefix) {
        return Err(unsupported(PART, "BPE with continuing_subword_prefix"));
    }
    if is_set(&file.end_of_word_suffix) {
        return Err(unsupported(PART, "BPE with end_of_word_suffix"));
    }
    if file.dropout.is_some_and(|dropout| dropout != 0.0) {
        return Err(unsupported(PART, "BPE with dropout"));
    }
    let Tokens { texts, kinds, unknown } = tokens;
    let texts = if byte_level { plain_bytes(&texts, &kinds) } else { texts };
    let vocab = Vocab::new(texts, kinds)?;
    let alphabet = if byte_level {
        let mut bytes = Box::new([NONE; 256]);
        for byte in 0..=255u8 {
            bytes[usize::from(byte)] = vocab.get(&[byte]).or(unknown).unwrap_or(NONE);
        }
        Alphabet::Bytes(bytes)
    } else {
        let bytes = if file.byte_fallback.unwrap_or(false) { vocab.byte_tokens() } else { None };
        Alphabet::Chars { bytes, unknown, fuse: file.fuse_unk.unwrap_or(false) }
    };
    let merges = &file.merges;
    let bpe = Bpe::new(
        &vocab,
        &Merges {
            count: merges.cuts.len(),
            parts: &|rank, out| {
                let cut = merges.cuts[rank]? as usize;
                let (left, right) = merges.joined.get(rank as u32).split_at_checked(cut)?;
                if !byte_level {
                    out.extend_from_slice(left);
                    out.extend_from_slice(right);
                    return Some(left.len());
                }
                bytelevel::decode(left, out);
                let cut = out.len();
                bytelevel::decode(right, out);
                Some(cut)
            },
            source: &|rank| merges.joined.text(rank as u32).into(),
            repeats: Repeats::LastWins,
        },
        alphabet,
        file.ignore_merges.unwrap_or(false),
    )?;
    let cuts = bpe.by_characters();
    let model = Model::Bpe(Merging::new(bpe, &vocab, cuts));
    Ok((vocab, model))
}

/// The texts of ordinary tokens as the bytes they stand for.
fn plain_bytes(texts: &Strings, kinds: &[Kind]) -> Strings {
    let mut bytes = Strings::with_capacity(texts.len(), texts.len() * 8);
    for (id, kind) in (0u32..).zip(kinds) {
        bytes.push_with(|out| match kind {
            Kind::Normal | Kind::Byte => {
                bytelevel::decode(texts.get(id), out);
            }
            _ => out.extend_from_slice(texts.get(id)),
        });
    }
    bytes
}

fn unigram(file: &ModelFile<'_>, tokens: Tokens) -> Result<(Vocab, Model), Error> {
    let VocabFile::Pieces { scores, .. } = &file.vocab else {
        return Err(unsupported(PART, "Unigram without scores"));
    };
    let unknown = tokens.unknown;
    let mut scores = scores.clone();
    // Added tokens beyond the pieces have no score; they are found before the model is asked.
    let worst = scores.iter().copied().fold(0.0, f64::min);
    scores.resize(tokens.texts.len(), worst);
    let byte_fallback = file.byte_fallback.unwrap_or(false);
    let vocab = Vocab::new(tokens.texts, tokens.kinds)?;
    let unigram = Unigram::new(&vocab, scores, unknown, byte_fallback);
    Ok((vocab, Model::Unigram(unigram)))
}

fn wordpiece(file: &ModelFile<'_>, tokens: Tokens) -> Result<(Vocab, Model), Error> {
    let unknown = tokens
        .unknown
        .ok_or_else(|| Error::Missing { what: "unknown token, which WordPiece needs".into() })?;
    let model = WordPiece {
        continuing: file.continuing_subword_prefix.clone().unwrap_or_else(|| "##".into()),
        beginning: String::new(),
        unknown,
        chars_max: file.max_input_chars_per_word.unwrap_or(100).min(10_000),
    };
    Ok((Vocab::new(tokens.texts, tokens.kinds)?, Model::WordPiece(model)))
}

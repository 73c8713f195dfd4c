//! Tokenizers from GGUF metadata: `gpt2` (byte-level BPE), `llama` (SentencePiece BPE), `bert` (WordPiece).
//!
//! The texts are taken as they are: no Unicode normalisation (but for BERT), so that byte-level and
//! byte-fallback families decode to exactly what was encoded. What it does not do: read the file.

use crate::added::{Added, Matcher, TEXT_MAX};
use crate::bpe::{Alphabet, Bpe, Merges, Repeats};
use crate::decoder::{self, Decoder, Start};
use crate::merge::NONE;
use crate::model::{Merging, Model};
use crate::pattern::{GPT2, LLAMA3, O200K, Pattern, QWEN2, TEKKEN};
use crate::pretokenizer::{Behavior, Prefix, Step, VISIBLE_SPACE};
use crate::sentencepiece::SentencePiece;
use crate::tokenizer::{AddedStyle, Parts};
use crate::vocab::{Kind, Strings, Vocab, check_size, looks_like_control};
use crate::wordpiece::WordPiece;
use crate::{Error, bytelevel, normalizer};

/// The vocabulary of a GGUF file; each field is the key `tokenizer.ggml.*` of the same or the given name.
#[derive(Clone, Debug, Default)]
pub struct GgufVocab<'a> {
    /// `model`: `gpt2`, `llama` or `bert`.
    pub model: &'a str,
    /// `pre`: the pre-tokenizer of a `gpt2` model.
    pub pre: Option<&'a str>,
    /// `tokens`: the texts by id.
    pub tokens: Vec<&'a [u8]>,
    /// `scores`, by id; only `llama` needs them.
    pub scores: Vec<f32>,
    /// `token_type`, by id; empty: all are ordinary.
    pub types: Vec<i32>,
    /// `merges`, by rank; only `gpt2` needs them.
    pub merges: Vec<&'a str>,
    /// `bos_token_id`.
    pub bos: Option<u32>,
    /// `eos_token_id`.
    pub eos: Option<u32>,
    /// `eot_token_id`: ends a turn.
    pub eot: Option<u32>,
    /// `unknown_token_id`.
    pub unk: Option<u32>,
    /// `seperator_token_id` (so spelt).
    pub sep: Option<u32>,
    /// `cls_token_id`.
    pub cls: Option<u32>,
    /// `padding_token_id`.
    pub pad: Option<u32>,
    /// `add_bos_token`.
    pub add_bos: Option<bool>,
    /// `add_eos_token`.
    pub add_eos: Option<bool>,
    /// `add_space_prefix`.
    pub add_space_prefix: Option<bool>,
}

/// What a pre-tokenizer's name stands for.
struct Pre {
    names: &'static [&'static str],
    /// Expressions, each applied to the pieces of the one before; all matches stand alone.
    patterns: &'static [&'static str],
    ignore_merges: bool,
    /// Where the file does not say.
    add_bos: bool,
}

const fn pre(names: &'static [&'static str], patterns: &'static [&'static str]) -> Pre {
    Pre { names, patterns, ignore_merges: false, add_bos: false }
}

const DIGIT: &str = r"\p{N}";

/// The pre-tokenizers we know. A new one is one line.
const PRES: &[Pre] = &[
    pre(&["gpt-2", "gpt2", "phi-2", "mpt", "olmo", "jais"], &[GPT2]),
    pre(&["smollm", "starcoder", "refact", "command-r", "codeshell"], &[DIGIT, GPT2]),
    pre(&["qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"], &[QWEN2]),
    Pre {
        names: &["llama-bpe", "llama3", "llama-v3", "falcon3"],
        patterns: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    pre(&["dbrx", "smaug-bpe"], &[LLAMA3]),
    Pre { names: &["tekken"], patterns: &[TEKKEN], ignore_merges: true, add_bos: true },
    pre(&["gpt-4o", "llama4"], &[O200K]),
    pre(
        &["deepseek-v3"],
        &[
            r"\p{N}{1,3}",
            "[一-龥\u{3040}-ゟ゠-ヿ]+",
            r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##,
        ],
    ),
    pre(&["deepseek-coder"], &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\u{d7ff}]+", DIGIT]),
    pre(&["default"], &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
];

pub(crate) fn read(file: GgufVocab<'_>) -> Result<Parts, Error> {
    check_size(file.tokens.len())?;
    let tokens = file.tokens.len();
    if !file.types.is_empty() && file.types.len() != tokens {
        return Err(Error::Mismatch { what: "types", tokens, found: file.types.len() });
    }
    for (what, id) in [
        ("bos_token_id", file.bos),
        ("eos_token_id", file.eos),
        ("eot_token_id", file.eot),
        ("unknown_token_id", file.unk),
        ("seperator_token_id", file.sep),
        ("cls_token_id", file.cls),
        ("padding_token_id", file.pad),
    ] {
        if let Some(id) = id.filter(|id| *id as usize >= tokens) {
            return Err(Error::IdOutOfRange { what: what.into(), id, size: tokens });
        }
    }
    match file.model {
        "gpt2" => byte_level(&file),
        "llama" => sentencepiece(&file),
        "bert" => bert(&file),
        model => Err(Error::UnknownModel { model: model.into() }),
    }
}

/// The kind of each token: the file's word, made stricter where the id or the text says control.
fn kinds(file: &GgufVocab<'_>) -> Vec<Kind> {
    let mut kinds: Vec<Kind> = (0..file.tokens.len())
        .map(|id| match file.types.get(id) {
            None | Some(1) => Kind::Normal,
            Some(2) => Kind::Unknown,
            Some(3) => Kind::Control,
            Some(4) => Kind::UserDefined,
            Some(6) => Kind::Byte,
            // 5 is unused; other numbers mean nothing to us, so the token is never made from text.
            Some(_) => Kind::Unused,
        })
        .collect();
    for (kind, text) in kinds.iter_mut().zip(&file.tokens) {
        if matches!(kind, Kind::Normal | Kind::UserDefined) && looks_like_control(text) {
            *kind = Kind::Control;
        }
    }
    // Not the padding token: careless files name an ordinary one, and nothing reads it.
    for id in [file.bos, file.eos, file.eot, file.sep, file.cls].into_iter().flatten() {
        let kind = &mut kinds[id as usize];
        if *kind != Kind::Unknown {
            *kind = Kind::Control;
        }
    }
    if let Some(id) = file.unk
        && kinds[id as usize] == Kind::Normal
    {
        kinds[id as usize] = Kind::Unknown;
    }
    kinds
}

/// Control and user-defined tokens, to be found in the text.
fn added(file: &GgufVocab<'_>, kinds: &[Kind]) -> Result<Matcher, Error> {
    let mut entries = Vec::new();
    for (id, kind) in (0u32..).zip(kinds) {
        if !matches!(kind, Kind::Control | Kind::UserDefined) {
            continue;
        }
        let text = file.tokens[id as usize];
        if text.len() > TEXT_MAX {
            let what = format!("the text of special token {id} in bytes");
            return Err(Error::TooLarge { what, found: text.len(), limit: TEXT_MAX });
        }
        // A special token that is no text can only be spliced in by id.
        let Ok(text) = std::str::from_utf8(text) else { continue };
        if text.is_empty() {
            continue;
        }
        entries.push(Added {
            id,
            text: text.into(),
            control: *kind == Kind::Control,
            lstrip: false,
            rstrip: false,
            single_word: false,
        });
    }
    Ok(Matcher::new(entries))
}

fn raw(file: &GgufVocab<'_>) -> Strings {
    let mut strings = Strings::with_capacity(file.tokens.len(), file.tokens.iter().map(|t| t.len()).sum());
    file.tokens.iter().for_each(|text| strings.push(text));
    strings
}

/// The parts around a model that all three kinds share.
fn around(file: &GgufVocab<'_>, vocab: Vocab, model: Model, decoder: Decoder) -> Result<Parts, Error> {
    let added = added(file, vocab.kinds())?;
    Ok(Parts {
        vocab,
        model,
        added,
        added_normalized: Matcher::default(),
        normalizers: Vec::new(),
        pretokenizers: Vec::new(),
        decoder,
        added_style: AddedStyle::Border,
        before: Vec::new(),
        after: Vec::new(),
        pair: None,
        bos: file.bos,
        eos: file.eos,
        ends: file.eot.into_iter().collect(),
    })
}

fn put_around(file: &GgufVocab<'_>, parts: &mut Parts, add_bos: bool) {
    if file.add_bos.unwrap_or(add_bos) {
        parts.before.extend(file.bos);
    }
    if file.add_eos.unwrap_or(false) {
        parts.after.extend(file.eos);
    }
}

fn byte_level(file: &GgufVocab<'_>) -> Result<Parts, Error> {
    let name = file.pre.unwrap_or("(none)");
    let pre = PRES.iter().find(|pre| pre.names.contains(&name)).ok_or_else(|| Error::UnknownPre {
        pre: name.into(),
        supported: PRES.iter().flat_map(|pre| pre.names).copied().collect::<Vec<_>>().join(", "),
    })?;
    let kinds = kinds(file);
    let mut strings = Strings::with_capacity(file.tokens.len(), file.tokens.len() * 8);
    let mut decoded = Strings::with_capacity(file.tokens.len(), file.tokens.len() * 8);
    for (text, kind) in file.tokens.iter().zip(&kinds) {
        if *kind == Kind::Normal || *kind == Kind::Byte {
            strings.push_with(|out| {
                bytelevel::decode(text, out);
            });
        } else {
            strings.push(text);
        }
    }
    for id in 0..strings.len() as u32 {
        decoded.push(strings.get(id));
    }
    let vocab = Vocab::new(strings, kinds)?;
    let mut bytes = Box::new([NONE; 256]);
    for byte in 0..=255u8 {
        bytes[usize::from(byte)] = vocab.get(&[byte]).unwrap_or(NONE);
    }
    let bpe = Bpe::new(
        &vocab,
        &Merges {
            count: file.merges.len(),
            parts: &|rank, out| {
                // The alphabet has no space, but a literal part may begin with one.
                let merge = file.merges[rank].as_bytes();
                let cut = 1 + merge.get(1..)?.iter().position(|byte| *byte == b' ')?;
                bytelevel::decode(&merge[..cut], out);
                let left = out.len();
                bytelevel::decode(&merge[cut + 1..], out);
                Some(left)
            },
            source: &|rank| file.merges[rank].into(),
            repeats: Repeats::FirstWins,
        },
        Alphabet::Bytes(bytes),
        pre.ignore_merges,
    )?;
    let model = Model::Bpe(Merging::new(bpe, &vocab, false));
    let decoder = Decoder { bytes: decoded, start: Start::Keep, bare: None };
    let mut parts = around(file, vocab, model, decoder)?;
    parts.pretokenizers = pre.patterns.iter().map(|pattern| isolate(pattern)).collect::<Result<_, _>>()?;
    put_around(file, &mut parts, pre.add_bos);
    Ok(parts)
}

/// A step that makes each match a word.
pub(crate) fn isolate(pattern: &str) -> Result<Step, Error> {
    if let Some(pattern) = Pattern::of(pattern) {
        return Ok(Step::Pattern(pattern));
    }
    if pattern == DIGIT {
        return Ok(Step::Digits { behavior: Behavior::Isolated });
    }
    let regex = crate::json::compile(pattern)?;
    Ok(Step::Regex { regex, behavior: Behavior::Isolated, invert: false })
}

fn sentencepiece(file: &GgufVocab<'_>) -> Result<Parts, Error> {
    if file.scores.len() != file.tokens.len() {
        return Err(Error::Mismatch { what: "scores", tokens: file.tokens.len(), found: file.scores.len() });
    }
    let mut kinds = kinds(file);
    let strings = raw(file);
    let bytes = decoder::sentencepiece(&strings, &kinds);
    let unknown = file.unk.or_else(|| {
        kinds.iter().position(|kind| *kind == Kind::Unknown).and_then(|id| u32::try_from(id).ok())
    });
    if let Some(id) = unknown
        && kinds.iter().filter(|kind| **kind == Kind::Byte).count() < 256
        && file.eos != unknown
        && file.bos != unknown
    {
        // Text may become this token, so it must not count as control.
        kinds[id as usize] = Kind::Unknown;
    }
    let unknown = unknown.filter(|id| kinds[*id as usize] == Kind::Unknown);
    let vocab = Vocab::new(strings, kinds)?;
    let spm = SentencePiece::new(&vocab, &file.scores, unknown);
    let model = Model::SentencePiece(Merging::new(spm, &vocab, true));
    let prefix = file.add_space_prefix.unwrap_or(true);
    let start = if prefix { Start::Strip { content: ' ', count: 1 } } else { Start::Keep };
    let mut parts = around(file, vocab, model, Decoder { bytes, start, bare: None })?;
    parts.added_style = AddedStyle::Inside { space_in_front: prefix };
    if prefix {
        parts
            .normalizers
            .push(normalizer::Step::Prepend { text: VISIBLE_SPACE.into(), prefix: Prefix::Always });
    }
    parts.normalizers.push(normalizer::Step::ReplaceText { from: " ".into(), to: VISIBLE_SPACE.into() });
    put_around(file, &mut parts, true);
    Ok(parts)
}

fn bert(file: &GgufVocab<'_>) -> Result<Parts, Error> {
    let mut kinds = kinds(file);
    let by_text = |text: &str| {
        let id = file.tokens.iter().position(|token| *token == text.as_bytes())?;
        u32::try_from(id).ok()
    };
    let unknown = file
        .unk
        .or_else(|| by_text("[UNK]"))
        .ok_or_else(|| Error::Missing { what: "unknown token".into() })?;
    kinds[unknown as usize] = Kind::Unknown;
    let cls = file.cls.or(file.bos).or_else(|| by_text("[CLS]"));
    let sep = file.sep.or(file.eos).or_else(|| by_text("[SEP]"));
    for id in [cls, sep].into_iter().flatten() {
        kinds[id as usize] = Kind::Control;
    }
    let strings = raw(file);
    let mut bytes = Strings::with_capacity(strings.len(), 0);
    // The file does not say whether case matters; a vocabulary without capitals cannot mean it to.
    let mut lowercase = true;
    for (id, kind) in (0u32..).zip(&kinds) {
        let text = strings.text(id);
        if *kind == Kind::Normal {
            lowercase &= !text.bytes().any(|byte| byte.is_ascii_uppercase());
            bytes.push(decoder::cleanup(&text.replace(VISIBLE_SPACE, " ")).as_bytes());
        } else {
            bytes.push(format!(" {text}").as_bytes());
        }
    }
    let vocab = Vocab::new(strings, kinds)?;
    let model = Model::WordPiece(WordPiece {
        continuing: String::new(),
        beginning: VISIBLE_SPACE.into(),
        unknown,
        chars_max: 100,
    });
    let decoder = Decoder { bytes, start: Start::Strip { content: ' ', count: 1 }, bare: None };
    let mut parts = around(file, vocab, model, decoder)?;
    parts.normalizers =
        vec![normalizer::Step::Bert { clean: true, chinese: true, accents: lowercase, lowercase }];
    parts.pretokenizers = vec![Step::Bert];
    parts.bos = cls;
    parts.eos = sep;
    parts.before.extend(cls);
    parts.after.extend(sep);
    Ok(parts)
}

//! The shape of `tokenizer.json` and `tokenizer_config.json`, as far as we read it.
//!
//! The vocabulary and the merges, megabytes of small strings, go straight into arenas.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Error as _, MapAccess, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use crate::vocab::Strings;

#[derive(Deserialize)]
pub(super) struct File<'a> {
    #[serde(default)]
    pub(super) added_tokens: Vec<AddedToken>,
    pub(super) normalizer: Option<Value>,
    pub(super) pre_tokenizer: Option<Value>,
    pub(super) post_processor: Option<Value>,
    pub(super) decoder: Option<Value>,
    #[serde(borrow)]
    pub(super) model: ModelFile<'a>,
}

#[derive(Deserialize)]
pub(super) struct AddedToken {
    pub(super) id: u32,
    pub(super) content: String,
    #[serde(default)]
    pub(super) single_word: bool,
    #[serde(default)]
    pub(super) lstrip: bool,
    #[serde(default)]
    pub(super) rstrip: bool,
    #[serde(default)]
    pub(super) normalized: bool,
    #[serde(default)]
    pub(super) special: bool,
}

#[derive(Deserialize)]
pub(super) struct ModelFile<'a> {
    #[serde(rename = "type")]
    pub(super) kind: Option<String>,
    pub(super) vocab: VocabFile,
    #[serde(default)]
    pub(super) merges: Merges,
    #[serde(borrow)]
    pub(super) unk_token: Option<Cow<'a, str>>,
    pub(super) unk_id: Option<u32>,
    pub(super) byte_fallback: Option<bool>,
    pub(super) fuse_unk: Option<bool>,
    pub(super) ignore_merges: Option<bool>,
    pub(super) dropout: Option<f64>,
    pub(super) continuing_subword_prefix: Option<String>,
    pub(super) end_of_word_suffix: Option<String>,
    pub(super) max_input_chars_per_word: Option<usize>,
}

/// `{"text": id}` of BPE and WordPiece, or `[["text", score]]` of Unigram.
pub(super) enum VocabFile {
    Map { texts: Strings, ids: Vec<u32> },
    Pieces { texts: Strings, scores: Vec<f64> },
}

/// Merge rules: both parts one after the other, and where the first ends.
#[derive(Default)]
pub(super) struct Merges {
    pub(super) joined: Strings,
    pub(super) cuts: Vec<Cut>,
}

/// Where the left part of a merge ends; `None` for a rule that has not two parts.
type Cut = Option<u32>;

/// A string that is borrowed where the file allows.
struct Text<'a>(Cow<'a, str>);

impl<'de> Deserialize<'de> for Text<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct TextVisitor;
        impl<'de> Visitor<'de> for TextVisitor {
            type Value = Text<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Text(text.into()))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Text(text.to_owned().into()))
            }
        }
        from.deserialize_str(TextVisitor)
    }
}

impl<'de> Deserialize<'de> for VocabFile {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct VocabVisitor;
        impl<'de> Visitor<'de> for VocabVisitor {
            type Value = VocabFile;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object from token to id, or an array of tokens with scores")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<VocabFile, A::Error> {
                let (mut texts, mut ids) = (Strings::default(), Vec::new());
                while let Some((Text(text), id)) = map.next_entry::<Text<'de>, u32>()? {
                    texts.push(text.as_bytes());
                    ids.push(id);
                }
                Ok(VocabFile::Map { texts, ids })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<VocabFile, A::Error> {
                let (mut texts, mut scores) = (Strings::default(), Vec::new());
                while let Some((Text(text), score)) = seq.next_element::<(Text<'de>, f64)>()? {
                    texts.push(text.as_bytes());
                    scores.push(score);
                }
                Ok(VocabFile::Pieces { texts, scores })
            }
        }
        from.deserialize_any(VocabVisitor)
    }
}

/// One merge rule, `"a b"` or `["a", "b"]`.
struct Merge<'a>(Cow<'a, str>, Option<Cow<'a, str>>);

impl<'de> Deserialize<'de> for Merge<'de> {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct MergeVisitor;
        impl<'de> Visitor<'de> for MergeVisitor {
            type Value = Merge<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a merge rule: two texts, or one with a space between them")
            }

            fn visit_borrowed_str<E>(self, text: &'de str) -> Result<Self::Value, E> {
                Ok(Merge(text.into(), None))
            }

            fn visit_str<E>(self, text: &str) -> Result<Self::Value, E> {
                Ok(Merge(text.to_owned().into(), None))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let missing = || A::Error::invalid_length(0, &self);
                let Text(left) = seq.next_element()?.ok_or_else(missing)?;
                let Text(right) = seq.next_element()?.ok_or_else(missing)?;
                Ok(Merge(left, Some(right)))
            }
        }
        from.deserialize_any(MergeVisitor)
    }
}

impl<'de> Deserialize<'de> for Merges {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct MergesVisitor;
        impl<'de> Visitor<'de> for MergesVisitor {
            type Value = Merges;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array of merge rules")
            }

            fn visit_unit<E>(self) -> Result<Merges, E> {
                Ok(Merges::default())
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Merges, A::Error> {
                let mut merges = Merges::default();
                while let Some(Merge(left, right)) = seq.next_element::<Merge<'de>>()? {
                    merges.push(&left, right.as_deref());
                }
                Ok(merges)
            }
        }
        from.deserialize_any(MergesVisitor)
    }
}

impl Merges {
    fn push(&mut self, left: &str, right: Option<&str>) {
        let parts = match right {
            Some(right) => Some((left, right)),
            None => left.split_once(' ').filter(|(_, right)| !right.contains(' ')),
        };
        match parts {
            Some((left, right)) => {
                self.joined.push_with(|out| {
                    out.extend_from_slice(left.as_bytes());
                    out.extend_from_slice(right.as_bytes());
                });
                self.cuts.push(u32::try_from(left.len()).ok());
            }
            None => {
                self.joined.push(left.as_bytes());
                self.cuts.push(None);
            }
        }
    }
}

/// What we read of `tokenizer_config.json`.
#[derive(Default, Deserialize)]
pub(super) struct Config {
    pub(super) bos_token: Option<ConfigToken>,
    pub(super) eos_token: Option<ConfigToken>,
    pub(super) add_bos_token: Option<bool>,
}

/// A token, given plainly or with its flags.
#[derive(Deserialize)]
#[serde(untagged)]
pub(super) enum ConfigToken {
    Text(String),
    Flags { content: String },
}

impl ConfigToken {
    pub(super) fn text(&self) -> &str {
        match self {
            Self::Text(text) | Self::Flags { content: text } => text,
        }
    }
}

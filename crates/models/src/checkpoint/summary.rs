//! What a checkpoint is, at a glance, from its headers alone.

use base::{Bytes, Tokens};
use indexmap::IndexMap;
use serde_json::Value;

use super::{Checkpoint, CheckpointError, Gguf, HuggingFace};

/// A checkpoint at a glance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summary {
    /// `gguf` or `safetensors`.
    pub container: &'static str,
    /// The architecture in the checkpoint's own words: GGUF's `general.architecture`, or the model type
    /// of a configuration.
    pub architecture: String,
    /// Elements of all tensors.
    pub parameters: u64,
    /// Bytes of all tensors.
    pub size: Bytes,
    /// Elements by storage format, most first.
    pub formats: Vec<FormatShare>,
    /// Longest sequence that the checkpoint says the model was made for.
    pub context: Option<Tokens>,
    /// Licence as the checkpoint states it.
    pub licence: Option<String>,
    /// Whether there is a chat template.
    pub has_chat_template: bool,
}

/// How much of a checkpoint is stored in one format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FormatShare {
    /// The format's usual name.
    pub format: String,
    /// Number of tensors.
    pub tensors: usize,
    /// Elements in them.
    pub parameters: u64,
}

pub(super) fn of(checkpoint: &Checkpoint) -> Result<Summary, CheckpointError> {
    match checkpoint {
        Checkpoint::Gguf(gguf) => of_gguf(gguf),
        Checkpoint::HuggingFace(folder) => of_hugging_face(folder),
    }
}

fn of_gguf(gguf: &Gguf) -> Result<Summary, CheckpointError> {
    let architecture = gguf.architecture()?.to_owned();
    let mut formats = Formats::default();
    let mut size = 0;
    for name in gguf.tensor_names() {
        let tensor = gguf.tensor(name)?;
        formats.add(tensor.dtype.name(), tensor.elements());
        size += tensor.bytes.len() as u64;
    }
    Ok(Summary {
        container: "gguf",
        context: gguf.find_u32(&format!("{architecture}.context_length"))?.map(Tokens),
        architecture,
        parameters: formats.total(),
        size: Bytes(size),
        formats: formats.shares(),
        licence: gguf.find_str("general.license")?.map(str::to_owned),
        has_chat_template: gguf.chat_template().is_some(),
    })
}

fn of_hugging_face(folder: &HuggingFace) -> Result<Summary, CheckpointError> {
    let config = folder.config();
    let mut formats = Formats::default();
    let mut size = 0;
    for measure in folder.measures() {
        formats.add(measure.dtype, measure.elements);
        size += measure.bytes;
    }
    // A model of several parts states its text part's numbers apart.
    let context =
        [config.get("max_position_embeddings"), config.pointer("/text_config/max_position_embeddings")]
            .into_iter()
            .flatten()
            .find_map(Value::as_u64)
            .and_then(|n| u32::try_from(n).ok());
    let architecture = config
        .get("model_type")
        .and_then(Value::as_str)
        .or_else(|| config.pointer("/architectures/0").and_then(Value::as_str))
        .ok_or_else(|| folder.bad_key("config.json", "model_type", "is missing or not a string"))?;
    Ok(Summary {
        container: "safetensors",
        architecture: architecture.to_owned(),
        parameters: formats.total(),
        size: Bytes(size),
        formats: formats.shares(),
        context: context.map(Tokens),
        licence: folder.file("README.md").and_then(|readme| licence_of_card(&readme)),
        has_chat_template: folder.chat_template().is_some(),
    })
}

/// Elements by format, in order of appearance.
#[derive(Default)]
struct Formats<'a>(IndexMap<&'a str, (usize, u64)>);

impl<'a> Formats<'a> {
    fn add(&mut self, format: &'a str, elements: u64) {
        let (tensors, parameters) = self.0.entry(format).or_default();
        *tensors += 1;
        *parameters = parameters.saturating_add(elements);
    }

    fn total(&self) -> u64 {
        self.0.values().fold(0, |sum, (_, elements)| sum.saturating_add(*elements))
    }

    fn shares(self) -> Vec<FormatShare> {
        let mut shares: Vec<_> = self
            .0
            .into_iter()
            .map(|(format, (tensors, parameters))| FormatShare {
                format: format.to_owned(),
                tensors,
                parameters,
            })
            .collect();
        shares.sort_by_key(|share| std::cmp::Reverse(share.parameters));
        shares
    }
}

/// The `license` line between the first two `---` lines of a model card.
fn licence_of_card(card: &[u8]) -> Option<String> {
    let text = String::from_utf8_lossy(card);
    let mut lines = text.lines();
    if lines.next()?.trim_end() != "---" {
        return None;
    }
    lines
        .take_while(|line| line.trim_end() != "---")
        .find_map(|line| line.strip_prefix("license:"))
        .map(|licence| licence.trim().trim_matches(['"', '\'']).to_owned())
        .filter(|licence| !licence.is_empty())
}

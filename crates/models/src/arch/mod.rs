//! The registry: every architecture that this crate runs, one file and one line each.
//!
//! Lists, documentation and the fixture test walk [`architectures`], so an entry that is here needs a
//! golden fixture and nothing else.

mod bert;
mod gemma3;
mod llama;
mod qwen2;
mod qwen3;
mod roberta;

use crate::checkpoint::{Checkpoint, HuggingFace};
use crate::config::{GgufConfig, HfConfig};
use crate::cross_encoder::CrossEncoderSpec;
use crate::encoder::EncoderSpec;
use crate::load::LoadError;
use crate::spec::DecoderSpec;

/// In display order.
const REGISTRY: &[Architecture] = &[
    llama::LLAMA,
    qwen2::QWEN2,
    qwen3::QWEN3,
    gemma3::GEMMA3,
    bert::BERT,
    bert::RERANKER,
    roberta::RERANKER,
];

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Continues text.
    Generation,
    /// Turns a text into one vector.
    Embedding,
    /// Says how well a text answers a query.
    Rerank,
}

/// What ends the name of a class whose models have a classifier for a head: they are other models than their
/// `model_type` alone says.
const CLASSIFIER: &str = "ForSequenceClassification";

/// An entry of the registry.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    /// The name that people read.
    pub name: &'static str,
    /// Values of GGUF's `general.architecture` that it answers to; none where it reads no GGUF.
    pub gguf: &'static [&'static str],
    /// What it answers to in a Hugging Face `config.json`: values of `model_type`, or for classifiers the class
    /// in `architectures`.
    pub hugging_face: &'static [&'static str],
    build: Build,
}

impl Architecture {
    /// What its models are for.
    #[must_use]
    pub const fn task(&self) -> Task {
        match self.build {
            Build::Decoder { .. } => Task::Generation,
            Build::Encoder { .. } => Task::Embedding,
            Build::CrossEncoder { .. } => Task::Rerank,
        }
    }
}

/// How a checkpoint's description becomes the data that a forward pass runs on.
#[derive(Clone, Copy, Debug)]
enum Build {
    Decoder {
        gguf: fn(&GgufConfig<'_>) -> Result<DecoderSpec, LoadError>,
        hugging_face: fn(&HfConfig<'_>) -> Result<DecoderSpec, LoadError>,
    },
    Encoder {
        gguf: fn(&GgufConfig<'_>) -> Result<EncoderSpec, LoadError>,
        hugging_face: fn(&HuggingFace) -> Result<EncoderSpec, LoadError>,
    },
    /// From safetensors only: GGUF files of rerankers name their heads in several ways.
    CrossEncoder { hugging_face: fn(&HfConfig<'_>) -> Result<CrossEncoderSpec, LoadError> },
}

/// A checkpoint's model as data.
pub(crate) enum Described {
    Decoder(DecoderSpec),
    Encoder(EncoderSpec),
    CrossEncoder(CrossEncoderSpec),
}

/// Every architecture that can be loaded, in display order.
#[must_use]
pub const fn architectures() -> &'static [Architecture] {
    REGISTRY
}

/// Finds the checkpoint's architecture and reads its description.
pub(crate) fn describe(checkpoint: &Checkpoint) -> Result<(&'static Architecture, Described), LoadError> {
    match checkpoint {
        Checkpoint::Gguf(file) => {
            let name = file.architecture()?;
            let entry = find(name, |entry| entry.gguf)?;
            let config = GgufConfig { file, architecture: name };
            let described = match entry.build {
                Build::Decoder { gguf, .. } => Described::Decoder(gguf(&config)?),
                Build::Encoder { gguf, .. } => Described::Encoder(gguf(&config)?),
                Build::CrossEncoder { .. } => unreachable!("no GGUF architecture leads to a cross-encoder"),
            };
            Ok((entry, described))
        }
        Checkpoint::HuggingFace(folder) => {
            let config = HfConfig(folder.config());
            let name = name(&config)?;
            let entry = find(name, |entry| entry.hugging_face)?;
            config.refuse_unless(&["quantization_config"], |_| false)?;
            let described = match entry.build {
                Build::Decoder { hugging_face, .. } => Described::Decoder(hugging_face(&config)?),
                Build::Encoder { hugging_face, .. } => Described::Encoder(hugging_face(folder)?),
                Build::CrossEncoder { hugging_face } => Described::CrossEncoder(hugging_face(&config)?),
            };
            Ok((entry, described))
        }
    }
}

/// What a Hugging Face description calls its architecture.
fn name<'a>(config: &HfConfig<'a>) -> Result<&'a str, LoadError> {
    let classes = config.strings("architectures")?.unwrap_or_default();
    if let Some(class) = classes.into_iter().find(|class| class.ends_with(CLASSIFIER)) {
        return Ok(class);
    }
    config.str("model_type")?.ok_or_else(|| LoadError::missing("model_type"))
}

fn find(
    name: &str,
    names: impl Fn(&Architecture) -> &'static [&'static str],
) -> Result<&'static Architecture, LoadError> {
    REGISTRY.iter().find(|entry| names(entry).contains(&name)).ok_or_else(|| {
        let known = REGISTRY.iter().flat_map(names).copied().collect::<Vec<_>>().join(", ");
        LoadError::UnknownArchitecture { name: name.to_owned(), known }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn no_two_architectures_answer_to_one_name() {
        for names in [|entry: &Architecture| entry.gguf, |entry: &Architecture| entry.hugging_face] {
            let all: Vec<&str> = REGISTRY.iter().flat_map(names).copied().collect();
            assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len(), "{all:?}");
        }
    }

    #[test]
    fn an_unknown_architecture_is_refused_with_those_that_are_known() {
        let error = find("mamba", |entry| entry.gguf).unwrap_err().to_string();
        assert!(error.contains("mamba") && error.contains("qwen3"), "{error}");
    }
}

//! From an open checkpoint to a model that runs, or a clear reason why not.

use crate::arch::{self, Described};
use crate::checkpoint::{Checkpoint, CheckpointError};
use crate::cross_encoder::{CrossEncoder, RerankModel};
use crate::decoder::Model;
use crate::encoder::{EmbeddingModel, Encoder};
use crate::forward::LanguageModel;
use crate::packed::{PackedFolder, PackedWrite};
use crate::weights::WeightSource;
use device::{Device, DeviceError, KvFormat, LoadFormat};

/// Why a checkpoint could not become a model.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The files could not be read, or lack a tensor.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The device could not hold a tensor.
    #[error(transparent)]
    Device(#[from] DeviceError),
    /// Nothing here runs this kind of model.
    #[error("architecture {name:?} is not supported; these are: {known}")]
    UnknownArchitecture {
        /// What the checkpoint says it is.
        name: String,
        /// The names that are known for this kind of checkpoint.
        known: String,
    },
    /// A value of the checkpoint's description is missing or makes no sense.
    #[error("the checkpoint's description: {key} {reason}")]
    Config {
        /// Where.
        key: String,
        /// What is wrong.
        reason: String,
    },
    /// The description asks for arithmetic that is not built; running without it would be wrong.
    #[error("the checkpoint asks for something that is not supported: {key}, {reason}")]
    Unsupported {
        /// Where.
        key: String,
        /// What it asks for.
        reason: String,
    },
    /// A tensor is not what the description says.
    #[error("tensor {tensor}: expected {expected}, found {found}")]
    Shape {
        /// Its name.
        tensor: String,
        /// What the description leads to.
        expected: String,
        /// What the file has.
        found: String,
    },
    /// The checkpoint has tensors that this architecture does not know; they would be left out of the
    /// arithmetic.
    #[error("the checkpoint has {count} tensor(s) that its architecture does not use: {names}")]
    UnusedTensors {
        /// How many.
        count: usize,
        /// The first of them.
        names: String,
    },
}

impl LoadError {
    pub(crate) fn missing(key: &str) -> Self {
        Self::config(key, "is missing".to_owned())
    }

    pub(crate) fn config(key: &str, reason: String) -> Self {
        Self::Config { key: key.to_owned(), reason }
    }

    pub(crate) fn unsupported(key: &str, reason: String) -> Self {
        Self::Unsupported { key: key.to_owned(), reason }
    }
}

/// In which formats a model is held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LoadOptions {
    /// Whether float matrices are quantised.
    pub weights: LoadFormat,
    /// How keys and values are kept; of no meaning to models that keep none.
    pub kv: KvFormat,
}

impl From<LoadFormat> for LoadOptions {
    fn from(weights: LoadFormat) -> Self {
        Self { weights, ..Self::default() }
    }
}

/// A model of any task.
pub enum Loaded {
    /// Continues text.
    Language(Box<dyn LanguageModel>),
    /// Turns texts into vectors.
    Embedding(Box<dyn EmbeddingModel>),
    /// Says how well texts answer a query.
    Rerank(Box<dyn RerankModel>),
}

/// Loads a checkpoint onto a device, one tensor after the other, in the formats of `options`; `progress` is told the bytes done and their total.
///
/// # Errors
/// See [`LoadError`]: nothing that the checkpoint asks for is silently left out.
pub fn load<D: Device>(
    checkpoint: &Checkpoint,
    device: D,
    options: impl Into<LoadOptions>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Loaded, LoadError> {
    let LoadOptions { weights: format, kv } = options.into();
    from(WeightSource { checkpoint, format, folder: None, write: &mut None, progress }, kv, device)
}

/// As [`load`], with the weights that `folder` holds packed. Where it holds none that are right, the second
/// thing that comes back writes them.
///
/// # Errors
/// As for [`load`]; nothing about the folder is one.
pub fn load_kept<D: Device>(
    checkpoint: &Checkpoint,
    device: D,
    options: impl Into<LoadOptions>,
    folder: &PackedFolder,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Loaded, Option<PackedWrite>), LoadError> {
    let LoadOptions { weights: format, kv } = options.into();
    let mut write = None;
    let source = WeightSource { checkpoint, format, folder: Some(folder), write: &mut write, progress };
    let loaded = from(source, kv, device)?;
    Ok((loaded, write))
}

fn from<D: Device>(source: WeightSource<'_>, kv: KvFormat, device: D) -> Result<Loaded, LoadError> {
    let (architecture, described) = arch::describe(source.checkpoint)?;
    let name = architecture.name;
    Ok(match described {
        Described::Decoder(spec) => Loaded::Language(Box::new(Model::load(name, spec, source, kv, device)?)),
        Described::Encoder(spec) => Loaded::Embedding(Box::new(Encoder::load(name, &spec, source, device)?)),
        Described::CrossEncoder(spec) => {
            Loaded::Rerank(Box::new(CrossEncoder::load(name, &spec, source, device)?))
        }
    })
}

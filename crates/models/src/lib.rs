//! Reads checkpoints (GGUF, safetensors) and holds layers and one file per architecture; turns a batch
//! into logits on any device. Does not know requests, sampling or text.

pub mod checkpoint;
mod forward;
mod mapped;

pub use checkpoint::{Checkpoint, CheckpointError, Tensor};
pub use forward::{LanguageModel, ModelSpec};

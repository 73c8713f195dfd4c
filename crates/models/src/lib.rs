//! Reads checkpoints (GGUF, safetensors) and holds layers and one file per architecture; turns a batch
//! into logits on any device. Does not know requests, sampling or text.

mod arch;
pub mod checkpoint;
mod config;
mod cross_encoder;
mod decoder;
mod encoder;
mod forward;
mod load;
mod mapped;
mod names;
mod packed;
mod rope;
mod sentence;
mod spec;
mod weights;

pub use arch::{Architecture, Task, architectures};
pub use checkpoint::{Checkpoint, CheckpointError, Tensor};
pub use cross_encoder::{PairIds, RerankModel, RerankSpec};
pub use device::{KvFormat, LoadFormat};
pub use encoder::{EmbeddingModel, EmbeddingSpec};
pub use forward::{LanguageModel, ModelSpec, TokenCost};
pub use load::{LoadError, LoadOptions, Loaded, load, load_kept};
pub use packed::{KeptFile, KeptState, PackedFolder, PackedWrite};

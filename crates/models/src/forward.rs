//! What an engine may ask of a loaded language model.

use base::{Bytes, Tokens};
use device::{Batch, DeviceError, KvSpec, PageId};

/// The facts of a language model that an engine needs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelSpec {
    /// Name in the architecture registry, for example `qwen2`.
    pub architecture: String,
    /// Entries of the vocabulary; ids are below this.
    pub vocab: u32,
    /// Longest sequence that the model was made for.
    pub context: Tokens,
    /// Layout of the KV cache.
    pub kv: KvSpec,
}

/// What the weights cost one token. Attention and what lies between products is not counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenCost {
    /// Packed weights that a step reads whatever its rows: all layers and the output, not the embeddings.
    pub weights: Bytes,
    /// Products with their sums that a row needs in the layers.
    pub layers: u64,
    /// The same in the output, which only rows whose logits are wanted need.
    pub output: u64,
}

/// A language model with its device and KV pages.
///
/// The logits of a row depend only on that row's sequence up to its position: see the promise of
/// [`device::Device`].
pub trait LanguageModel: Send {
    /// What the model is.
    fn spec(&self) -> &ModelSpec;
    /// What a token costs; `None` for models without weights.
    fn token_cost(&self) -> Option<TokenCost> {
        None
    }
    /// Makes sure that a page has memory.
    fn ensure_page(&mut self, page: PageId) -> Result<(), DeviceError>;
    /// Gives a page's memory back to the system.
    fn drop_page(&mut self, page: PageId);
    /// Runs one step: makes the batch's page copies, writes the rows' KV into their pages and gives the
    /// logits of `batch.logit_rows`, `[logit_rows, vocab]` row after row.
    fn forward(&mut self, batch: &Batch) -> &[f32];
}

//! What a forward pass may ask of hardware: operations, buffers, and the plain-data batch. No
//! arithmetic lives here, and no model names a device.
//!
//! A device owns three kinds of thing: packed weights ([`Device::Matrix`], [`Device::Vector`]),
//! activations ([`Device::Tensor`], rows of `f32`), and KV pages ([`Device::Kv`]). Every operation works
//! on the rows of a ragged [`Batch`]; a row is one position of one sequence.
//!
//! Promise asked of every device for one build, instruction set and formats: what is computed for a row
//! depends on that row's own inputs and KV alone, never on the other rows of the batch, the number of
//! threads or how a prompt was cut into chunks. The CPU device keeps it bit for bit.

mod batch;
mod dtype;
mod kv;
mod shared;

pub use batch::{Batch, BatchSequence, PageCopy, PageId};
pub use dtype::{DType, LoadFormat, MatrixSource};
pub use kv::{KvFormat, KvGroup, KvReach, KvSpec, PAGE_TOKENS};
pub use shared::SharedBytes;

use std::borrow::Cow;

/// Why a device could not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DeviceError {
    /// Memory could not be had.
    #[error("out of memory: {0} more could not be had")]
    OutOfMemory(base::Bytes),
    /// The weight format is not supported by this device.
    #[error("tensor {name}: {reason}")]
    Unsupported {
        /// The tensor's name in the checkpoint.
        name: String,
        /// What about it is not supported.
        reason: String,
    },
}

/// An element-wise gate or activation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// GELU by its tanh approximation, as Gemma uses it.
    GeluTanh,
    /// GELU by the error function, as BERT uses it.
    GeluErf,
}

/// Which elements of a head turn together in rotary position embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RopeStyle {
    /// Element `i` with element `i + d/2` (GPT-NeoX, Hugging Face checkpoints, Qwen, Gemma).
    Halves,
    /// Element `2i` with element `2i + 1` (Llama checkpoints in GGUF).
    Pairs,
}

/// Most query heads that may share one key and value head; a device can count on it.
pub const QUERY_GROUP_MAX: usize = 32;

/// Shape of one attention operation.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AttentionSpec {
    /// Query heads; a multiple of `kv_heads`, at most [`QUERY_GROUP_MAX`] times as many.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Elements per head.
    pub head_dim: usize,
    /// Factor on the scores before softmax.
    pub scale: f32,
    /// A row at position `p` sees positions `p - window + 1 ..= p`; `None` sees all up to `p`.
    pub window: Option<u32>,
}

/// One product of [`Device::matmul`]: `out = x * weight^T + bias`, or added to what `out` holds.
pub struct Product<'a, D: Device + ?Sized> {
    /// `[out_width, in_width]`.
    pub weight: &'a D::Matrix,
    /// `[out_width]`.
    pub bias: Option<&'a D::Vector>,
    /// Set to `[rows of x, out_width]`, or added to when `accumulate`.
    pub out: &'a mut D::Tensor,
    /// Add to `out` (a residual stream) in place of overwriting it.
    pub accumulate: bool,
}

/// The operations of a forward pass. Shapes are checked by the device and a mismatch panics: it is a
/// bug of the model code, never the caller's input.
pub trait Device: Send + 'static {
    /// Activations: `[rows, width]` of `f32`; the width is fixed, the rows follow the last operation.
    type Tensor: Send;
    /// A packed weight matrix, opaque to models. Cheap to clone (shared).
    type Matrix: Clone + Send + Sync;
    /// A small vector of `f32` (norm weights, biases, rotary frequencies).
    type Vector: Clone + Send + Sync;
    /// The KV pages of one model.
    type Kv: Send;

    /// What a person should read about the device: kind, instruction set, threads.
    fn describe(&self) -> String;

    /// Packs a weight matrix for this device. `format` may ask for quantisation at load.
    fn matrix(&self, source: &MatrixSource<'_>, format: LoadFormat) -> Result<Self::Matrix, DeviceError>;
    /// Names the packed form of this device's matrices: [`Device::packed`]'s bytes are of use to a device that
    /// says the same name, also in another process or after an update. `None`: they cannot be kept.
    fn packing() -> Option<&'static str> {
        None
    }
    /// A matrix as [`Device::unpack`] takes it; asked for only where [`Device::packing`] has a name.
    fn packed(_matrix: &Self::Matrix) -> Cow<'_, [u8]> {
        Cow::Borrowed(&[])
    }
    /// The matrix that [`Device::matrix`] would make of the same source and format, from the bytes of
    /// [`Device::packed`] and without reading the source's. Bytes of a wrong length are refused; wrong values are
    /// not noticed.
    fn unpack(
        &self,
        source: &MatrixSource<'_>,
        format: LoadFormat,
        _packed: SharedBytes,
    ) -> Result<Self::Matrix, DeviceError> {
        self.matrix(source, format)
    }
    /// Bytes a packed matrix holds.
    fn matrix_bytes(&self, matrix: &Self::Matrix) -> base::Bytes;
    /// Uploads a vector.
    fn vector(&self, data: &[f32]) -> Self::Vector;
    /// An empty tensor of this width.
    fn tensor(&self, width: usize) -> Self::Tensor;
    /// An empty page store for this layout.
    fn kv(&self, spec: &KvSpec) -> Self::Kv;

    /// Makes sure that a page has memory; its content is undefined.
    fn ensure_page(&mut self, kv: &mut Self::Kv, page: PageId) -> Result<(), DeviceError>;
    /// Gives a page's memory back to the system. A page that has none is left as it is.
    fn drop_page(&mut self, kv: &mut Self::Kv, page: PageId);
    /// Copies the whole page `copy.from` over `copy.to`; both have memory.
    fn copy_page(&mut self, kv: &mut Self::Kv, copy: PageCopy);
    /// A page's content as opaque bytes, for tiers and hand-over; appended to `out`.
    fn export_page(&self, kv: &Self::Kv, page: PageId, out: &mut Vec<u8>);
    /// Fills a page that has memory from [`Device::export_page`]'s bytes.
    fn import_page(&mut self, kv: &mut Self::Kv, page: PageId, bytes: &[u8]);

    /// `out[r] = table[ids[r]] * scale`. Ids are below the table's rows.
    fn embed(&mut self, table: &Self::Matrix, ids: &[u32], scale: f32, out: &mut Self::Tensor);
    /// `x[r] += table[ids[r]]` (position and token-type tables).
    fn embed_add(&mut self, table: &Self::Matrix, ids: &[u32], x: &mut Self::Tensor);
    /// Root-mean-square norm of each row, times `weight`.
    fn rms_norm(&mut self, x: &Self::Tensor, weight: &Self::Vector, eps: f32, out: &mut Self::Tensor);
    /// Root-mean-square norm of each head of each row in place, times `weight` (`[head_dim]`).
    fn head_norm(&mut self, x: &mut Self::Tensor, weight: &Self::Vector, eps: f32);
    /// Layer norm of each row in place.
    fn layer_norm(&mut self, x: &mut Self::Tensor, weight: &Self::Vector, bias: &Self::Vector, eps: f32);
    /// Several products of the same `x`, which is quantised once where a weight wants that.
    fn matmul(&mut self, x: &Self::Tensor, products: &mut [Product<'_, Self>]);
    /// Turns each head of each row by its position. `frequencies` holds `rotary_dim / 2` angles per
    /// position step; elements of a head past `rotary_dim` stay as they are.
    fn rope(
        &mut self,
        x: &mut Self::Tensor,
        head_dim: usize,
        frequencies: &Self::Vector,
        style: RopeStyle,
        positions: &[u32],
    );
    /// Writes the rows' keys and values of one layer into the batch's pages.
    fn store_kv(
        &mut self,
        kv: &mut Self::Kv,
        layer: usize,
        keys: &Self::Tensor,
        values: &Self::Tensor,
        batch: &Batch,
    );
    /// Causal attention of the rows over the pages of their own sequences, for one layer of the model.
    fn attention(
        &mut self,
        kv: &Self::Kv,
        layer: usize,
        queries: &Self::Tensor,
        batch: &Batch,
        spec: &AttentionSpec,
        out: &mut Self::Tensor,
    );
    /// Attention of the rows of each segment over that whole segment, without cache or mask.
    /// `segments` are the segments' lengths in rows, in order, and sum to the rows of `queries`.
    fn attention_full(
        &mut self,
        queries: &Self::Tensor,
        keys: &Self::Tensor,
        values: &Self::Tensor,
        segments: &[u32],
        spec: &AttentionSpec,
        out: &mut Self::Tensor,
    );
    /// `gate = activation(gate) * up`.
    fn gate(&mut self, gate: &mut Self::Tensor, up: &Self::Tensor, activation: Activation);
    /// `x = activation(x)`.
    fn activate(&mut self, x: &mut Self::Tensor, activation: Activation);
    /// `x += y`.
    fn add(&mut self, x: &mut Self::Tensor, y: &Self::Tensor);
    /// `out` = the named rows of `x`, in that order.
    fn select_rows(&mut self, x: &Self::Tensor, rows: &[u32], out: &mut Self::Tensor);
    /// Whether this is the first rank of its tensor-parallel group: the one whose part of a sum carries
    /// the residual stream.
    fn leads(&self) -> bool {
        true
    }
    /// Sums `x` over all ranks of a tensor-parallel group; nothing to do on one device.
    fn all_reduce(&mut self, _x: &mut Self::Tensor) {}
    /// The tensor's rows on the host, row after row.
    fn host<'a>(&'a mut self, x: &'a Self::Tensor) -> &'a [f32];
}

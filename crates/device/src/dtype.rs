//! Weight formats as they stand in checkpoints.
//!
//! Block shapes are those of the GGUF specification (ggml-org/ggml, `docs/gguf.md` and
//! `ggml-common.h`); only their sizes are stated here, their meaning lives with the device.

/// The element format of a tensor in a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum DType {
    F32,
    F16,
    Bf16,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    Q2K,
    Q3K,
    Q4K,
    Q5K,
    Q6K,
    Iq4Nl,
}

impl DType {
    /// All formats, in display order.
    pub const ALL: [Self; 14] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
    ];

    /// The format's usual name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F32 => "F32",
            Self::F16 => "F16",
            Self::Bf16 => "BF16",
            Self::Q4_0 => "Q4_0",
            Self::Q4_1 => "Q4_1",
            Self::Q5_0 => "Q5_0",
            Self::Q5_1 => "Q5_1",
            Self::Q8_0 => "Q8_0",
            Self::Q2K => "Q2_K",
            Self::Q3K => "Q3_K",
            Self::Q4K => "Q4_K",
            Self::Q5K => "Q5_K",
            Self::Q6K => "Q6_K",
            Self::Iq4Nl => "IQ4_NL",
        }
    }

    /// Elements in a block; 1 for formats without blocks.
    #[must_use]
    pub const fn block_len(self) -> usize {
        match self {
            Self::F32 | Self::F16 | Self::Bf16 => 1,
            Self::Q4_0 | Self::Q4_1 | Self::Q5_0 | Self::Q5_1 | Self::Q8_0 | Self::Iq4Nl => 32,
            Self::Q2K | Self::Q3K | Self::Q4K | Self::Q5K | Self::Q6K => 256,
        }
    }

    /// Bytes of a block.
    #[must_use]
    pub const fn block_bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
            Self::Q4_0 | Self::Iq4Nl => 2 + 16,
            Self::Q4_1 => 4 + 16,
            Self::Q5_0 => 2 + 4 + 16,
            Self::Q5_1 => 4 + 4 + 16,
            Self::Q8_0 => 2 + 32,
            Self::Q2K => 16 + 64 + 4,
            Self::Q3K => 32 + 64 + 12 + 2,
            Self::Q4K => 4 + 12 + 128,
            Self::Q5K => 4 + 12 + 32 + 128,
            Self::Q6K => 128 + 64 + 16 + 2,
        }
    }

    /// Bytes of a row of `len` elements; `None` when the row is not whole blocks or too long.
    #[must_use]
    pub const fn row_bytes(self, len: usize) -> Option<usize> {
        if !len.is_multiple_of(self.block_len()) {
            return None;
        }
        (len / self.block_len()).checked_mul(self.block_bytes())
    }
}

/// Whether a matrix is quantised while it is loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LoadFormat {
    /// Keep the checkpoint's own format.
    #[default]
    AsStored,
    /// Float formats become 8-bit blocks of 32.
    Int8,
    /// Float formats become 4-bit blocks of 32.
    Int4,
}

/// A weight matrix as it stands in a checkpoint: `[rows, cols]`, row after row.
#[derive(Clone, Copy, Debug)]
pub struct MatrixSource<'a> {
    /// The tensor's name, for error texts.
    pub name: &'a str,
    /// Output width.
    pub rows: usize,
    /// Input width.
    pub cols: usize,
    /// Element format.
    pub dtype: DType,
    /// `rows * dtype.row_bytes(cols)` bytes.
    pub bytes: &'a [u8],
}

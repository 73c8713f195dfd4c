//! The layout of a model's KV cache, as the model declares it.

use base::Bytes;

/// Tokens a page holds.
pub const PAGE_TOKENS: usize = 16;

/// How keys and values are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvFormat {
    /// IEEE half precision.
    #[default]
    F16,
    /// bfloat16: the range of `f32`, three bits less than half precision.
    Bf16,
    /// Eight-bit integers; each token has one `f32` scale per head for its keys and one for its values.
    Int8,
}

impl KvFormat {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::F16, Self::Bf16, Self::Int8];

    /// Bytes of one element.
    #[must_use]
    pub const fn element(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 2,
            Self::Int8 => 1,
        }
    }

    /// Bytes of the scale that a head's keys, or its values, have beside each token's elements.
    #[must_use]
    pub const fn scale(self) -> usize {
        match self {
            Self::F16 | Self::Bf16 => 0,
            Self::Int8 => size_of::<f32>(),
        }
    }

    /// Its name in settings.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

/// How far back the layers of a group look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvReach {
    /// Every earlier position.
    Full,
    /// The last `n` positions, the row's own included.
    Window(u32),
}

/// Layers that store keys and values of one shape and reach.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KvGroup {
    /// How far back these layers look.
    pub reach: KvReach,
    /// The model's layers in this group.
    pub layers: Vec<usize>,
    /// Key and value heads of a layer.
    pub kv_heads: usize,
    /// Elements of a head.
    pub head_dim: usize,
}

/// A model's KV layout. A page holds [`PAGE_TOKENS`] tokens of every group.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KvSpec {
    /// Every layer of the model is in exactly one group.
    pub groups: Vec<KvGroup>,
    /// How their keys and values are kept.
    pub format: KvFormat,
}

impl KvSpec {
    /// Layers over all groups.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.groups.iter().map(|g| g.layers.len()).sum()
    }

    /// Bytes of KV cache that one token needs, scales included.
    #[must_use]
    pub fn token_bytes(&self) -> Bytes {
        let head = |dim: usize| 2 * (dim * self.format.element() + self.format.scale());
        let bytes: usize = self.groups.iter().map(|g| g.layers.len() * g.kv_heads * head(g.head_dim)).sum();
        Bytes(bytes as u64)
    }

    /// Bytes of one page. A device may pad heads of a width that is no multiple of 16; no known model has such.
    #[must_use]
    pub fn page_bytes(&self) -> Bytes {
        Bytes(self.token_bytes().0 * PAGE_TOKENS as u64)
    }
}

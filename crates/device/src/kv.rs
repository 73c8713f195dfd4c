//! The layout of a model's KV cache, as the model declares it.

use base::Bytes;

/// Tokens a page holds.
pub const PAGE_TOKENS: usize = 16;

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
}

impl KvSpec {
    /// Bytes of one element; keys and values are kept in IEEE half precision.
    pub const ELEMENT: Bytes = Bytes(2);

    /// Layers over all groups.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.groups.iter().map(|g| g.layers.len()).sum()
    }

    /// Bytes of KV cache that one token needs.
    #[must_use]
    pub fn token_bytes(&self) -> Bytes {
        let elements: usize = self.groups.iter().map(|g| g.layers.len() * 2 * g.kv_heads * g.head_dim).sum();
        Bytes(elements as u64 * Self::ELEMENT.0)
    }

    /// Bytes of one page.
    #[must_use]
    pub fn page_bytes(&self) -> Bytes {
        Bytes(self.token_bytes().0 * PAGE_TOKENS as u64)
    }
}

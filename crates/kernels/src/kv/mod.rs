//! KV pages: all layers in a page, elements in the format of the model's [`KvSpec`].
//!
//! ```text
//! page   = for each layer, for each of its KV heads: keys [head_dim][16], scales, values [16][stride], scales
//! stride = head_dim rounded up to 16
//! scales = for int8: f32 [16], one for each position's elements before them; else nothing
//! ```
//! Keys are transposed so that the scores of a page's sixteen positions are one vector. This is how a page is
//! exported; where its parts lie in memory is a matter of `pages`, how they are written one of `store`.
//!
//! Invariant: every element of a page is finite (fresh memory is zero, values are clamped to the range of
//! the format, scales are finite), so a masked position times weight zero is zero.

mod pages;
mod store;

use crate::pool::Pool;
use crate::simd::{LANES, Level};
use device::{Batch, DeviceError, KvFormat, KvSpec, PAGE_TOKENS, PageId};
use pages::Pages;
use std::ops::Range;
pub(crate) use store::{I8, Stored};

const _: () = assert!(PAGE_TOKENS == LANES, "a page's positions are the lanes of a vector");

/// Where a layer's keys and values lie in a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer {
    /// In bytes.
    offset: usize,
    format: KvFormat,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl Layer {
    /// Elements between the values of two positions.
    #[inline]
    pub(crate) fn stride(self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Bytes of a head's keys, or values, of so many elements a position, and of their scales.
    fn side_bytes(self, width: usize) -> usize {
        PAGE_TOKENS * (width * self.format.element() + self.format.scale())
    }

    fn head_bytes(self) -> usize {
        self.side_bytes(self.head_dim) + self.side_bytes(self.stride())
    }

    /// A head's bytes in a page: first the keys, then the values.
    fn head(self, head: usize) -> Range<usize> {
        let start = self.offset + head * self.head_bytes();
        start..start + self.head_bytes()
    }
}

/// The KV pages of one model.
pub struct Kv {
    layers: Vec<Layer>,
    format: KvFormat,
    pages: Pages,
}

impl Kv {
    pub(crate) fn new(spec: &KvSpec) -> Self {
        let mut layers = vec![None; spec.layers()];
        for group in &spec.groups {
            for layer in &group.layers {
                let slot = layers.get_mut(*layer).expect("layers are numbered without gaps");
                let (kv_heads, head_dim) = (group.kv_heads, group.head_dim);
                *slot = Some(Layer { offset: 0, format: spec.format, kv_heads, head_dim });
            }
        }
        let mut bytes = 0;
        let place = |layer: Option<Layer>| {
            let mut layer = layer.expect("every layer is in exactly one group");
            layer.offset = bytes;
            bytes += layer.kv_heads * layer.head_bytes();
            layer
        };
        let layers: Vec<Layer> = layers.into_iter().map(place).collect();
        let runs = layers.iter().flat_map(|layer| (0..layer.kv_heads).map(|head| layer.head(head)));
        let pages = Pages::new(runs.collect());
        Self { layers, format: spec.format, pages }
    }

    pub(crate) fn format(&self) -> KvFormat {
        self.format
    }

    pub(crate) fn layer(&self, layer: usize) -> Layer {
        self.layers[layer]
    }

    pub(crate) fn ensure(&mut self, page: PageId) -> Result<(), DeviceError> {
        self.pages.ensure(page)
    }

    pub(crate) fn discard(&mut self, page: PageId) {
        self.pages.discard(page);
    }

    /// Whether a page has memory.
    #[inline(always)]
    pub(crate) fn has(&self, page: PageId) -> bool {
        self.pages.has(page)
    }

    /// The keys `[head_dim][16]` and values `[16][stride]` of a head in a page, as bytes, each with its scales.
    #[inline(always)]
    pub(crate) fn head(&self, page: PageId, layer: Layer, head: usize) -> (&[u8], &[u8]) {
        self.pages.run(page, &layer.head(head)).split_at(layer.side_bytes(layer.head_dim))
    }

    pub(crate) fn copy(&mut self, from: PageId, to: PageId) {
        assert_ne!(from, to, "a page is copied to another");
        self.pages.copy(from, to);
    }

    pub(crate) fn export(&self, page: PageId, out: &mut Vec<u8>) {
        self.pages.export(page, out);
    }

    pub(crate) fn import(&mut self, page: PageId, bytes: &[u8]) {
        self.pages.import(page, bytes);
    }

    /// Writes the keys and values of a batch's rows.
    pub(crate) fn store(
        &mut self,
        layer: usize,
        keys: &[f32],
        values: &[f32],
        batch: &Batch,
        level: Level,
        pool: &Pool,
    ) {
        let layer = self.layers[layer];
        let rows = store::Rows { layer, keys, values, batch };
        match self.format {
            KvFormat::F16 => rows.store::<crate::matmul::F16>(&mut self.pages, level, pool),
            KvFormat::Bf16 => rows.store::<crate::matmul::Bf16>(&mut self.pages, level, pool),
            KvFormat::Int8 => rows.store::<I8>(&mut self.pages, level, pool),
        }
    }
}

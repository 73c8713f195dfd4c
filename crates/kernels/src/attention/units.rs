//! Where keys and values lie: in pages of half precision, or in whole segments of `f32` for encoders.

use crate::kv::{Kv, Layer};
use crate::matmul::{Element, F16, F32};
use device::PageId;

/// Gives the keys `[head_dim][16]` and the values `[16][stride]` of a unit, as bytes.
pub(super) trait Units {
    type Element: Element;
    fn unit(&self, index: usize) -> (&[u8], &[u8]);
}

pub(super) struct Paged<'a> {
    pub(super) kv: &'a Kv,
    pub(super) layer: Layer,
    pub(super) head: usize,
    pub(super) pages: &'a [PageId],
}

impl Units for Paged<'_> {
    type Element = F16;
    #[inline(always)]
    fn unit(&self, index: usize) -> (&[u8], &[u8]) {
        self.kv.head(self.pages[index], self.layer, self.head)
    }
}

pub(super) struct Segment<'a> {
    pub(super) units: &'a [f32],
    /// Floats of a unit, and of the keys in it.
    pub(super) unit: usize,
    pub(super) keys: usize,
}

impl Units for Segment<'_> {
    type Element = F32;
    #[inline(always)]
    fn unit(&self, index: usize) -> (&[u8], &[u8]) {
        let bytes = crate::buffer::as_bytes(&self.units[index * self.unit..][..self.unit]);
        bytes.split_at(self.keys * 4)
    }
}

//! Where keys and values lie: in pages of one of their formats, or in whole segments of `f32` for encoders.

use crate::kv::{Kv, Layer, Stored};
use crate::matmul::{Element, F32};
use device::PageId;
use std::marker::PhantomData;

/// Gives the keys `[head_dim][16]` and the values `[16][stride]` of a unit, as bytes; behind each the `f32` scales of
/// its sixteen positions, if it has any.
pub(super) trait Units {
    type Element: Element;
    /// Whether there are scales.
    const SCALED: bool;
    fn unit(&self, index: usize) -> (&[u8], &[u8]);
    /// The unit, if it is in memory: to be fetched ahead of its use.
    fn ahead(&self, index: usize) -> Option<(&[u8], &[u8])>;
}

pub(super) struct Paged<'a, E> {
    pub(super) kv: &'a Kv,
    pub(super) layer: Layer,
    pub(super) head: usize,
    pub(super) pages: &'a [PageId],
    pub(super) element: PhantomData<E>,
}

impl<E: Stored> Units for Paged<'_, E> {
    type Element = E;
    const SCALED: bool = E::SCALED;
    #[inline(always)]
    fn unit(&self, index: usize) -> (&[u8], &[u8]) {
        self.kv.head(self.pages[index], self.layer, self.head)
    }
    #[inline(always)]
    fn ahead(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let page = self.pages.get(index).filter(|page| self.kv.has(**page))?;
        Some(self.kv.head(*page, self.layer, self.head))
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
    const SCALED: bool = false;
    #[inline(always)]
    fn unit(&self, index: usize) -> (&[u8], &[u8]) {
        let bytes = crate::buffer::as_bytes(&self.units[index * self.unit..][..self.unit]);
        bytes.split_at(self.keys * 4)
    }
    #[inline(always)]
    fn ahead(&self, _: usize) -> Option<(&[u8], &[u8])> {
        // It was just written.
        None
    }
}

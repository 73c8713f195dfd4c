//! KV pages: one piece of memory a page, all layers in it, elements in IEEE half precision.
//!
//! ```text
//! page  = for each layer, for each of its KV heads: keys [head_dim][16], then values [16][stride]
//! stride = head_dim rounded up to 16
//! ```
//! Keys are transposed so that the scores of a page's sixteen positions are one vector.
//!
//! Invariants: every element of a page is finite (fresh memory is zero, values are clamped to the range of
//! the format), so a masked position times weight zero is zero. A page's memory is given back to the
//! system when it is dropped.

use crate::buffer::{Buffer, Shared, as_bytes, as_bytes_mut};
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Level, Simd};
use device::{Batch, DeviceError, KvSpec, PAGE_TOKENS, PageId};

const _: () = assert!(PAGE_TOKENS == LANES, "a page's positions are the lanes of a vector");

/// Where a layer's keys and values lie in a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layer {
    offset: usize,
    pub(crate) kv_heads: usize,
    pub(crate) head_dim: usize,
}

impl Layer {
    /// Elements between the values of two positions.
    #[inline]
    pub(crate) fn stride(self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    fn head_elements(self) -> usize {
        PAGE_TOKENS * (self.head_dim + self.stride())
    }

    /// Where the keys of a head start; its values follow.
    fn head(self, head: usize) -> usize {
        self.offset + head * self.head_elements()
    }
}

/// The KV pages of one model.
pub struct Kv {
    layers: Vec<Layer>,
    elements: usize,
    pages: Vec<Option<Buffer<u16>>>,
}

impl Kv {
    pub(crate) fn new(spec: &KvSpec) -> Self {
        let mut layers = vec![None; spec.layers()];
        for group in &spec.groups {
            for layer in &group.layers {
                let slot = layers.get_mut(*layer).expect("layers are numbered without gaps");
                *slot = Some(Layer { offset: 0, kv_heads: group.kv_heads, head_dim: group.head_dim });
            }
        }
        let mut elements = 0;
        let place = |layer: Option<Layer>| {
            let mut layer = layer.expect("every layer is in exactly one group");
            layer.offset = elements;
            elements += layer.kv_heads * layer.head_elements();
            layer
        };
        let layers = layers.into_iter().map(place).collect();
        Self { layers, elements, pages: Vec::new() }
    }

    pub(crate) fn layer(&self, layer: usize) -> Layer {
        self.layers[layer]
    }

    pub(crate) fn ensure(&mut self, page: PageId) -> Result<(), DeviceError> {
        let index = page.0 as usize;
        if index >= self.pages.len() {
            self.pages.resize_with(index + 1, || None);
        }
        if self.pages[index].is_none() {
            self.pages[index] = Some(Buffer::zeroed(self.elements)?);
        }
        Ok(())
    }

    pub(crate) fn discard(&mut self, page: PageId) {
        if let Some(slot) = self.pages.get_mut(page.0 as usize) {
            *slot = None;
        }
    }

    #[inline]
    pub(crate) fn page(&self, page: PageId) -> &[u16] {
        self.pages.get(page.0 as usize).and_then(Option::as_ref).expect("the page has memory")
    }

    fn page_mut(&mut self, page: PageId) -> &mut [u16] {
        self.pages.get_mut(page.0 as usize).and_then(Option::as_mut).expect("the page has memory")
    }

    /// The keys `[head_dim][16]` and values `[16][stride]` of a head in a page, as bytes.
    #[inline]
    pub(crate) fn head(&self, page: PageId, layer: Layer, head: usize) -> (&[u8], &[u8]) {
        let all = &self.page(page)[layer.head(head)..][..layer.head_elements()];
        as_bytes(all).split_at(2 * PAGE_TOKENS * layer.head_dim)
    }

    pub(crate) fn copy(&mut self, from: PageId, to: PageId) {
        assert_ne!(from, to, "a page is copied to another");
        let mut target = self.pages[to.0 as usize].take().expect("the page has memory");
        target.copy_from_slice(self.page(from));
        self.pages[to.0 as usize] = Some(target);
    }

    pub(crate) fn export(&self, page: PageId, out: &mut Vec<u8>) {
        out.extend_from_slice(as_bytes(self.page(page)));
    }

    pub(crate) fn import(&mut self, page: PageId, bytes: &[u8]) {
        let target = as_bytes_mut(self.page_mut(page));
        assert_eq!(target.len(), bytes.len(), "an exported page has this layout's size");
        target.copy_from_slice(bytes);
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
        let width = layer.kv_heads * layer.head_dim;
        let targets = Shared::new(&mut self.pages);
        let row = |r: usize| {
            let of = |x: &[f32]| r * width..(r * width + width).min(x.len());
            (&keys[of(keys)], &values[of(values)])
        };
        for sequence in &batch.sequences {
            let pages = batch.pages(sequence);
            let first_page = sequence.start as usize / PAGE_TOKENS;
            let last_page = (sequence.end() as usize - 1) / PAGE_TOKENS;
            let work = |i: usize| {
                let index = first_page + i;
                // SAFETY: rows of one page are neighbours, because positions count up, so this item alone
                // touches this page during this region; the sequences' regions follow one another.
                let slot = unsafe { targets.part(pages[index].0 as usize, 1) };
                let page = slot[0].as_mut().expect("the page has memory");
                let start = (index * PAGE_TOKENS).max(sequence.start as usize);
                let end = ((index + 1) * PAGE_TOKENS).min(sequence.end() as usize);
                for position in start..end {
                    let (keys, values) = row(sequence.rows.start + position - sequence.start as usize);
                    level.run(Store { page, layer, slot: position % PAGE_TOKENS, keys, values });
                }
            };
            let count = last_page - first_page + 1;
            if count * PAGE_TOKENS * width < 1 << 14 {
                (0..count).for_each(work);
            } else {
                pool.run(count, &work);
            }
        }
    }
}

struct Store<'a> {
    page: &'a mut [u16],
    layer: Layer,
    slot: usize,
    keys: &'a [f32],
    values: &'a [f32],
}

impl Kernel for Store<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (dim, stride) = (self.layer.head_dim, self.layer.stride());
        for head in 0..self.layer.kv_heads {
            let (keys, values) =
                self.page[self.layer.head(head)..][..self.layer.head_elements()].split_at_mut(dim * LANES);
            for (i, x) in self.keys[head * dim..][..dim].chunks(LANES).enumerate() {
                let half = clamped(s, x);
                for (d, bits) in half[..x.len()].iter().enumerate() {
                    keys[(i * LANES + d) * LANES + self.slot] = *bits;
                }
            }
            let values = &mut values[self.slot * stride..][..stride];
            for (to, x) in values.chunks_exact_mut(LANES).zip(self.values[head * dim..][..dim].chunks(LANES))
            {
                to.copy_from_slice(&clamped(s, x));
            }
        }
    }
}

/// Up to sixteen elements in half precision, clamped to its finite range.
#[inline(always)]
fn clamped<S: Simd>(s: S, x: &[f32]) -> [u16; 16] {
    s.to_f16(s.min(s.max(s.load_part(x), s.splat(-65504.0)), s.splat(65504.0)))
}

//! KV pages: one piece of memory a page, all layers in it, elements in the format of the model's [`KvSpec`].
//!
//! ```text
//! page   = for each layer, for each of its KV heads: keys [head_dim][16], scales, values [16][stride], scales
//! stride = head_dim rounded up to 16
//! scales = for int8: f32 [16], one for each position's elements before them; else nothing
//! ```
//! Keys are transposed so that the scores of a page's sixteen positions are one vector.
//!
//! Invariants: every element of a page is finite (fresh memory is zero, values are clamped to the range of
//! the format, scales are finite), so a masked position times weight zero is zero. A page's memory is given back to the
//! system when it is dropped.

use crate::buffer::{Buffer, Plain, Shared, as_bytes};
use crate::matmul::{Bf16, Element, F16};
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Level, Simd};
use device::{Batch, DeviceError, KvFormat, KvSpec, PAGE_TOKENS, PageId};
use std::marker::PhantomData;
use std::ops::Range;

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

    /// The keys and the values of a head in a page, each with its scales.
    #[inline]
    fn split(self, page: &[u8], head: usize) -> (&[u8], &[u8]) {
        page[self.head(head)].split_at(self.side_bytes(self.head_dim))
    }

    /// As [`Layer::split`], to be written.
    #[inline]
    fn split_mut(self, page: &mut [u8], head: usize) -> (&mut [u8], &mut [u8]) {
        page[self.head(head)].split_at_mut(self.side_bytes(self.head_dim))
    }
}

/// The KV pages of one model.
pub struct Kv {
    layers: Vec<Layer>,
    format: KvFormat,
    /// Bytes of a page.
    bytes: usize,
    pages: Vec<Option<Buffer<u8>>>,
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
        let layers = layers.into_iter().map(place).collect();
        Self { layers, format: spec.format, bytes, pages: Vec::new() }
    }

    pub(crate) fn format(&self) -> KvFormat {
        self.format
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
            self.pages[index] = Some(Buffer::zeroed(self.bytes)?);
        }
        Ok(())
    }

    pub(crate) fn discard(&mut self, page: PageId) {
        if let Some(slot) = self.pages.get_mut(page.0 as usize) {
            *slot = None;
        }
    }

    #[inline]
    pub(crate) fn page(&self, page: PageId) -> &[u8] {
        self.pages.get(page.0 as usize).and_then(Option::as_ref).expect("the page has memory")
    }

    fn page_mut(&mut self, page: PageId) -> &mut [u8] {
        self.pages.get_mut(page.0 as usize).and_then(Option::as_mut).expect("the page has memory")
    }

    /// The keys `[head_dim][16]` and values `[16][stride]` of a head in a page, as bytes, each with its scales.
    #[inline]
    pub(crate) fn head(&self, page: PageId, layer: Layer, head: usize) -> (&[u8], &[u8]) {
        layer.split(self.page(page), head)
    }

    pub(crate) fn copy(&mut self, from: PageId, to: PageId) {
        assert_ne!(from, to, "a page is copied to another");
        let mut target = self.pages[to.0 as usize].take().expect("the page has memory");
        target.copy_from_slice(self.page(from));
        self.pages[to.0 as usize] = Some(target);
    }

    pub(crate) fn export(&self, page: PageId, out: &mut Vec<u8>) {
        out.extend_from_slice(self.page(page));
    }

    pub(crate) fn import(&mut self, page: PageId, bytes: &[u8]) {
        let target = self.page_mut(page);
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
        match self.format {
            KvFormat::F16 => self.store_as::<F16>(layer, keys, values, batch, level, pool),
            KvFormat::Bf16 => self.store_as::<Bf16>(layer, keys, values, batch, level, pool),
            KvFormat::Int8 => self.store_as::<I8>(layer, keys, values, batch, level, pool),
        }
    }

    fn store_as<E: Stored>(
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
                    let (slot, element) = (position % PAGE_TOKENS, PhantomData::<E>);
                    level.run(Store { page, layer, slot, keys, values, element });
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

/// How an element stands in a page.
pub(crate) trait Stored: Element {
    type Code: Plain;
    /// The greatest magnitude that is kept.
    const LIMIT: f32;
    /// Whether codes are multiples of a scale; then they are in `[-127, 127]`.
    const SCALED: bool;
    /// The codes of sixteen elements within the limit, rounded to nearest even.
    fn encode<S: Simd>(s: S, x: S::F) -> [Self::Code; LANES];
}

impl Stored for F16 {
    type Code = u16;
    const LIMIT: f32 = 65504.0;
    const SCALED: bool = false;
    #[inline(always)]
    fn encode<S: Simd>(s: S, x: S::F) -> [u16; LANES] {
        s.to_f16(x)
    }
}

/// The greatest finite value of bfloat16.
const BF16_MAX: f32 = f32::from_bits(0x7f7f_0000);

impl Stored for Bf16 {
    type Code = u16;
    const LIMIT: f32 = BF16_MAX;
    const SCALED: bool = false;
    #[inline(always)]
    fn encode<S: Simd>(s: S, x: S::F) -> [u16; LANES] {
        let mut codes = [0; LANES];
        for (code, x) in codes.iter_mut().zip(s.array(x)) {
            let bits = x.to_bits();
            *code = ((bits + 0x7fff + (bits >> 16 & 1)) >> 16) as u16;
        }
        codes
    }
}

/// Eight-bit integers, before their scale.
pub(crate) struct I8;
impl Element for I8 {
    const BYTES: usize = 1;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[u8]) -> S::F {
        s.to_f(s.widen_i8(x.first_chunk().expect("sixteen elements")))
    }
}

impl Stored for I8 {
    type Code = i8;
    const LIMIT: f32 = BF16_MAX;
    const SCALED: bool = true;
    #[inline(always)]
    fn encode<S: Simd>(s: S, x: S::F) -> [i8; LANES] {
        s.to_i8(x)
    }
}

/// Writes one position.
struct Store<'a, E> {
    page: &'a mut [u8],
    layer: Layer,
    slot: usize,
    keys: &'a [f32],
    values: &'a [f32],
    element: PhantomData<E>,
}

impl<E: Stored> Kernel for Store<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let (layer, slot) = (self.layer, self.slot);
        let (dim, row) = (layer.head_dim, layer.stride() * E::BYTES);
        for head in 0..layer.kv_heads {
            let (keys, values) = layer.split_mut(self.page, head);
            let x = &self.keys[head * dim..][..dim];
            let (scale, inverse) = scaling::<S, E>(s, x);
            let (codes, scales) = keys.split_at_mut(dim * LANES * E::BYTES);
            put_scale::<E>(scales, slot, scale);
            for (i, x) in x.chunks(LANES).enumerate() {
                let encoded = E::encode(s, s.mul(clamped::<S, E>(s, x), s.splat(inverse)));
                for (d, code) in as_bytes(&encoded).chunks_exact(E::BYTES).take(x.len()).enumerate() {
                    codes[((i * LANES + d) * LANES + slot) * E::BYTES..][..E::BYTES].copy_from_slice(code);
                }
            }
            let x = &self.values[head * dim..][..dim];
            let (scale, inverse) = scaling::<S, E>(s, x);
            let (codes, scales) = values.split_at_mut(LANES * row);
            put_scale::<E>(scales, slot, scale);
            let codes = &mut codes[slot * row..][..row];
            for (to, x) in codes.chunks_exact_mut(LANES * E::BYTES).zip(x.chunks(LANES)) {
                let encoded = E::encode(s, s.mul(clamped::<S, E>(s, x), s.splat(inverse)));
                to.copy_from_slice(as_bytes(&encoded));
            }
        }
    }
}

/// Up to sixteen elements, clamped to the finite range of their format.
#[inline(always)]
fn clamped<S: Simd, E: Stored>(s: S, x: &[f32]) -> S::F {
    s.min(s.max(s.load_part(x), s.splat(-E::LIMIT)), s.splat(E::LIMIT))
}

/// The scale of a head's elements, and its inverse; both one where there are none.
#[inline(always)]
fn scaling<S: Simd, E: Stored>(s: S, x: &[f32]) -> (f32, f32) {
    if !E::SCALED {
        return (1.0, 1.0);
    }
    let mut peaks = s.splat(0.0);
    for x in x.chunks(LANES) {
        let x = clamped::<S, E>(s, x);
        peaks = s.max(peaks, s.max(x, s.sub(s.splat(0.0), x)));
    }
    let peak = s.max_lane(peaks);
    // A peak so small that its inverse overflows is no signal; all zeros then.
    if peak < 1e-30 { (0.0, 0.0) } else { (peak / 127.0, 127.0 / peak) }
}

#[inline(always)]
fn put_scale<E: Stored>(scales: &mut [u8], slot: usize, scale: f32) {
    if E::SCALED {
        scales[slot * size_of::<f32>()..][..size_of::<f32>()].copy_from_slice(&scale.to_le_bytes());
    }
}

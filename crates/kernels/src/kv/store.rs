//! How keys and values are written into pages: formats of elements, scales, the transposing of keys.

use super::pages::{Pages, Writer};
use super::{LANES, Layer};
use crate::buffer::{Plain, as_bytes};
use crate::matmul::{Bf16, Element, F16};
use crate::pool::Pool;
use crate::simd::{Kernel, Level, Simd};
use device::{Batch, PAGE_TOKENS, PageId};
use std::marker::PhantomData;

/// The keys and values of a batch's rows in one layer, `[rows, kv_heads * head_dim]`.
pub(super) struct Rows<'a> {
    pub(super) layer: Layer,
    pub(super) keys: &'a [f32],
    pub(super) values: &'a [f32],
    pub(super) batch: &'a Batch,
}

impl Rows<'_> {
    /// Writes them to their pages.
    pub(super) fn store<E: Stored>(&self, pages: &mut Pages, level: Level, pool: &Pool) {
        let layer = self.layer;
        let width = layer.kv_heads * layer.head_dim;
        let writer = pages.writer();
        for sequence in &self.batch.sequences {
            let table = self.batch.pages(sequence);
            let first_page = sequence.start as usize / PAGE_TOKENS;
            let last_page = (sequence.end() as usize - 1) / PAGE_TOKENS;
            let work = |i: usize| {
                let index = first_page + i;
                let start = (index * PAGE_TOKENS).max(sequence.start as usize);
                let end = ((index + 1) * PAGE_TOKENS).min(sequence.end() as usize);
                let row = sequence.rows.start + start - sequence.start as usize;
                let rows = row * width..(row + end - start) * width;
                level.run(Store {
                    writer: &writer,
                    page: table[index],
                    layer,
                    first: start % PAGE_TOKENS,
                    keys: &self.keys[rows.clone()],
                    values: &self.values[rows],
                    element: PhantomData::<E>,
                });
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

/// Writes positions of one page, from `first` on. Nobody else writes this page meanwhile: rows of one page are
/// neighbours, because positions count up, so they are one item of a region; the sequences' regions follow one another.
struct Store<'a, E> {
    writer: &'a Writer<'a>,
    page: PageId,
    layer: Layer,
    first: usize,
    /// `[positions, kv_heads * head_dim]`.
    keys: &'a [f32],
    values: &'a [f32],
    element: PhantomData<E>,
}

impl<E: Stored> Kernel for Store<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let layer = self.layer;
        let (dim, row) = (layer.head_dim, layer.stride() * E::BYTES);
        for head in 0..layer.kv_heads {
            // SAFETY: this item alone touches this page during this region.
            let unit = unsafe { self.writer.run(self.page, &layer.head(head)) };
            let (keys, values) = unit.split_at_mut(layer.side_bytes(dim));
            let at = |i: usize| (i * layer.kv_heads + head) * dim;
            for i in 0..self.keys.len() / (layer.kv_heads * dim) {
                let slot = self.first + i;
                let x = &self.keys[at(i)..][..dim];
                let (scale, inverse) = scaling::<S, E>(s, x);
                let (codes, scales) = keys.split_at_mut(dim * LANES * E::BYTES);
                put_scale::<E>(scales, slot, scale);
                for (i, x) in x.chunks(LANES).enumerate() {
                    let encoded = E::encode(s, s.mul(clamped::<S, E>(s, x), s.splat(inverse)));
                    for (d, code) in as_bytes(&encoded).chunks_exact(E::BYTES).take(x.len()).enumerate() {
                        let at = ((i * LANES + d) * LANES + slot) * E::BYTES;
                        codes[at..][..E::BYTES].copy_from_slice(code);
                    }
                }
                let x = &self.values[at(i)..][..dim];
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

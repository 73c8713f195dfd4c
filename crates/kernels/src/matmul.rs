//! `out = x * weight^T` for any number of rows, from packed panels.
//!
//! Invariants: what a row gets depends on that row and the weight alone. Inside a block the dot product
//! is an exact integer; blocks are added in ascending order with one fused multiply-add for each scale;
//! the input width is never split. So tiles, chunks and threads only choose who computes what, and every
//! instruction set gives the same bits.
//!
//! Work is cut by panels and by chunks of rows small enough that their activations stay in the
//! second-level cache while panels stream past.

use crate::blocks::{IQ4_NL, Scaling as Scheme};
use crate::buffer::Shared;
use crate::matrix::{Layout, Panels};
use crate::pool::Pool;
use crate::quantise::{Meta, Quantised, TILE};
use crate::simd::{Kernel, LANES, Level, Simd, TileKernel};
use device::DType;
use std::marker::PhantomData;
use std::ops::Range;

/// Bytes of activations that a chunk of rows may take.
const CHUNK_BYTES: usize = 512 << 10;

/// Repeats a body for `r` in `0..R`, `R <= 16`, without a loop: the compiler leaves large bodies rolled, and the
/// sums would then live in memory.
macro_rules! unrolled {
    ($r:ident < $count:ident, $body:block) => {
        unrolled!(@ $r $count $body 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    (@ $r:ident $count:ident $body:block $($i:literal)*) => {
        $(if $i < $count {
            let $r = $i;
            $body
        })*
    };
}

/// One product: what is multiplied and where it goes.
pub(crate) struct Task<'a> {
    pub(crate) weight: &'a Panels,
    pub(crate) bias: Option<&'a [f32]>,
    /// `[rows, weight.rows]`.
    pub(crate) out: Shared<'a, f32>,
    pub(crate) accumulate: bool,
}

/// The left side: rows of `width` floats, and the same in eight bits if a weight wants that.
pub(crate) struct Input<'a> {
    pub(crate) x: &'a [f32],
    pub(crate) width: usize,
    pub(crate) quantised: &'a Quantised,
}

/// Runs all products of one input in one parallel region.
pub(crate) fn run(level: Level, pool: &Pool, input: &Input<'_>, tasks: &[Task<'_>]) {
    let rows = input.x.len() / input.width;
    let chunk = (CHUNK_BYTES / (input.width * 2)).clamp(TILE, 512) / TILE * TILE;
    let chunks = rows.div_ceil(chunk);
    let panels: usize = tasks.iter().map(|t| t.weight.panels()).sum();
    let cuts = cuts(panels, pool.threads());
    let items = cuts.len() - 1;
    // Chunk by chunk: the threads share a chunk's activations and split its panels.
    pool.run(items * chunks, &|item| {
        let (chunk_index, item) = (item / items, item % items);
        let rows = chunk_index * chunk..((chunk_index + 1) * chunk).min(rows);
        let mut before = 0;
        for task in tasks {
            let all = before..before + task.weight.panels();
            let (start, end) = (cuts[item].max(all.start), cuts[item + 1].min(all.end));
            if start < end {
                compute(level, input, task, start - before..end - before, rows.clone());
            }
            before = all.end;
        }
    });
}

/// Where `panels` are cut into items, from 0 to the last's end: large ones first, since memory gives most to who reads
/// straight on, and ever smaller ones, so that the threads end together.
fn cuts(panels: usize, threads: usize) -> Vec<usize> {
    let mut cuts = Vec::with_capacity(32);
    let mut at = 0;
    cuts.push(at);
    while at < panels {
        at += ((panels - at) / (threads * 2)).max(1);
        cuts.push(at);
    }
    cuts
}

fn compute(level: Level, input: &Input<'_>, task: &Task<'_>, panels: Range<usize>, rows: Range<usize>) {
    let part = Part { input, task, panels, rows };
    match task.weight.dtype {
        DType::F32 => level.run(Float::<F32>(part, PhantomData)),
        DType::F16 => level.run(Float::<F16>(part, PhantomData)),
        DType::Bf16 => level.run(Float::<Bf16>(part, PhantomData)),
        DType::Q4_0 => level.run(Int::<Four, Plain<0>>(part, PhantomData)),
        DType::Iq4Nl => level.run(Int::<Iq4, Plain<4>>(part, PhantomData)),
        DType::Q5_0 => level.run(Int::<Five, Plain<1>>(part, PhantomData)),
        DType::Q8_0 => level.run(Int::<Eight, Plain<4>>(part, PhantomData)),
        DType::Q4_1 => level.run(Int::<Four, Min>(part, PhantomData)),
        DType::Q5_1 => level.run(Int::<Five, Min>(part, PhantomData)),
        DType::Q4K => level.run(Int::<Four, Super>(part, PhantomData)),
        DType::Q5K => level.run(Int::<Five, Super>(part, PhantomData)),
        DType::Q6K => level.run(Int::<Six, Halves<2>>(part, PhantomData)),
        DType::Q3K => level.run(Int::<Four, Halves<0>>(part, PhantomData)),
        DType::Q2K => level.run(Int::<Four, HalvesMin>(part, PhantomData)),
    }
}

/// Some panels of a product, for some rows.
struct Part<'a> {
    input: &'a Input<'a>,
    task: &'a Task<'a>,
    panels: Range<usize>,
    rows: Range<usize>,
}

/// Writes a panel's sums of one row.
#[inline(always)]
fn store<S: Simd>(s: S, task: &Task<'_>, row: usize, panel: usize, mut sum: S::F) {
    let at = panel * LANES;
    let width = LANES.min(task.weight.rows - at);
    if let Some(bias) = task.bias {
        sum = s.add(sum, s.load_part(&bias[at..at + width]));
    }
    // SAFETY: these rows of this panel's columns belong to the one item that computes them.
    let out = unsafe { task.out.part(row * task.weight.rows + at, width) };
    if task.accumulate {
        sum = s.add(s.load_part(out), sum);
    }
    s.store_part(sum, out);
}

/// How codes are unpacked; the layouts are those of `matrix`.
trait Codes: 'static {
    const BITS: u32;
    const BYTES: usize;
    fn unpack<S: Simd>(s: S, x: &[u8]) -> [S::B; 8];
}

#[inline(always)]
fn vector(x: &[u8], i: usize) -> &[u8; 64] {
    x[i * 64..].first_chunk().expect("a block's codes are whole vectors")
}

struct Four;
impl Codes for Four {
    const BITS: u32 = 4;
    const BYTES: usize = 256;
    #[inline(always)]
    fn unpack<S: Simd>(s: S, x: &[u8]) -> [S::B; 8] {
        // Written out: the compiler does not always inline `from_fn`, and vectors then go through memory.
        let v =
            [s.load_b(vector(x, 0)), s.load_b(vector(x, 1)), s.load_b(vector(x, 2)), s.load_b(vector(x, 3))];
        [
            s.low4(v[0]),
            s.low4(v[1]),
            s.low4(v[2]),
            s.low4(v[3]),
            s.high4(v[0]),
            s.high4(v[1]),
            s.high4(v[2]),
            s.high4(v[3]),
        ]
    }
}

struct Iq4;
impl Codes for Iq4 {
    const BITS: u32 = 8;
    const BYTES: usize = 256;
    #[inline(always)]
    fn unpack<S: Simd>(s: S, x: &[u8]) -> [S::B; 8] {
        const TABLE: [u8; 16] = {
            let mut table = [0; 16];
            let mut i = 0;
            while i < 16 {
                table[i] = (IQ4_NL[i] as u8) ^ 0x80;
                i += 1;
            }
            table
        };
        let mut v = Four::unpack(s, x);
        for v in &mut v {
            *v = s.lookup(&TABLE, *v);
        }
        v
    }
}

struct Five;
impl Codes for Five {
    const BITS: u32 = 5;
    const BYTES: usize = 320;
    #[inline(always)]
    fn unpack<S: Simd>(s: S, x: &[u8]) -> [S::B; 8] {
        let v = Four::unpack(s, x);
        let h = s.load_b(vector(x, 4));
        [
            s.or_bits::<4, 0, 16>(v[0], h),
            s.or_bits::<3, 0, 16>(v[1], h),
            s.or_bits::<2, 0, 16>(v[2], h),
            s.or_bits::<1, 0, 16>(v[3], h),
            s.or_bits::<0, 0, 16>(v[4], h),
            s.or_bits::<0, 1, 16>(v[5], h),
            s.or_bits::<0, 2, 16>(v[6], h),
            s.or_bits::<0, 3, 16>(v[7], h),
        ]
    }
}

struct Six;
impl Codes for Six {
    const BITS: u32 = 6;
    const BYTES: usize = 384;
    #[inline(always)]
    fn unpack<S: Simd>(s: S, x: &[u8]) -> [S::B; 8] {
        let v = Four::unpack(s, x);
        let (h0, h1) = (s.load_b(vector(x, 4)), s.load_b(vector(x, 5)));
        [
            s.or_bits::<4, 0, 48>(v[0], h0),
            s.or_bits::<2, 0, 48>(v[1], h0),
            s.or_bits::<0, 0, 48>(v[2], h0),
            s.or_bits::<0, 2, 48>(v[3], h0),
            s.or_bits::<4, 0, 48>(v[4], h1),
            s.or_bits::<2, 0, 48>(v[5], h1),
            s.or_bits::<0, 0, 48>(v[6], h1),
            s.or_bits::<0, 2, 48>(v[7], h1),
        ]
    }
}

struct Eight;
impl Codes for Eight {
    const BITS: u32 = 8;
    const BYTES: usize = 512;
    #[inline(always)]
    fn unpack<S: Simd>(s: S, x: &[u8]) -> [S::B; 8] {
        [
            s.load_b(vector(x, 0)),
            s.load_b(vector(x, 1)),
            s.load_b(vector(x, 2)),
            s.load_b(vector(x, 3)),
            s.load_b(vector(x, 4)),
            s.load_b(vector(x, 5)),
            s.load_b(vector(x, 6)),
            s.load_b(vector(x, 7)),
        ]
    }
}

/// A block's scales of the sixteen output rows; what a scaling does not have is zero.
struct Scales<S: Simd> {
    d: S::F,
    m: S::F,
    s: [S::I; 2],
    t: [S::I; 2],
}

/// How a block's codes become part of a sum.
trait Scaling: 'static {
    const SCHEME: Scheme;
    /// The scales of block `b` of a span, of which `scales` is the start.
    fn load<S: Simd>(s: S, layout: Layout, scales: &[u8], b: usize) -> Scales<S>;
    fn add<S: Simd, C: Codes>(
        s: S,
        scales: &Scales<S>,
        w: &[S::B; 8],
        a: &[i8; 32],
        meta: &Meta,
        sum: S::F,
    ) -> S::F;
}

#[inline(always)]
fn half_vector<S: Simd>(s: S, layout: Layout, scales: &[u8], b: usize, i: usize) -> S::F {
    s.load_f16(scales[layout.floats_at(b) + i * 32..].first_chunk().expect("a vector of scales"))
}

#[inline(always)]
fn small(layout: Layout, scales: &[u8], b: usize, i: usize) -> &[u8; 16] {
    scales[layout.integers_at(b) + i * 16..].first_chunk().expect("a vector of small scales")
}

/// `d * (c - (8 << SHIFT))`.
struct Plain<const SHIFT: u32>;
impl<const SHIFT: u32> Scaling for Plain<SHIFT> {
    const SCHEME: Scheme = Scheme::Plain;
    #[inline(always)]
    fn load<S: Simd>(s: S, layout: Layout, scales: &[u8], b: usize) -> Scales<S> {
        let (f, i) = (s.splat(0.0), s.splat_i(0));
        Scales { d: half_vector(s, layout, scales, b, 0), m: f, s: [i; 2], t: [i; 2] }
    }
    #[inline(always)]
    fn add<S: Simd, C: Codes>(
        s: S,
        scales: &Scales<S>,
        w: &[S::B; 8],
        a: &[i8; 32],
        meta: &Meta,
        sum: S::F,
    ) -> S::F {
        let dot = s.dot::<8>(C::BITS, w, a, s.shl_i::<SHIFT>(s.splat_i(meta.neg8)));
        s.fma(s.mul(s.to_f(dot), s.splat(meta.scale)), scales.d, sum)
    }
}

/// `d * c + m`.
struct Min;
impl Scaling for Min {
    const SCHEME: Scheme = Scheme::Min;
    #[inline(always)]
    fn load<S: Simd>(s: S, layout: Layout, scales: &[u8], b: usize) -> Scales<S> {
        let i = s.splat_i(0);
        Scales {
            d: half_vector(s, layout, scales, b, 0),
            m: half_vector(s, layout, scales, b, 1),
            s: [i; 2],
            t: [i; 2],
        }
    }
    #[inline(always)]
    fn add<S: Simd, C: Codes>(
        s: S,
        scales: &Scales<S>,
        w: &[S::B; 8],
        a: &[i8; 32],
        meta: &Meta,
        sum: S::F,
    ) -> S::F {
        let dot = s.dot::<8>(C::BITS, w, a, s.splat_i(0));
        let sum = s.fma(s.splat(meta.sum), scales.m, sum);
        s.fma(s.mul(s.to_f(dot), s.splat(meta.scale)), scales.d, sum)
    }
}

/// `d * s * c - m * t`, integers per 32.
struct Super;
impl Scaling for Super {
    const SCHEME: Scheme = Scheme::Super;
    #[inline(always)]
    fn load<S: Simd>(s: S, layout: Layout, scales: &[u8], b: usize) -> Scales<S> {
        let i = s.splat_i(0);
        let scale = s.to_f(s.widen_u8(small(layout, scales, b, 0)));
        let min = s.to_f(s.widen_u8(small(layout, scales, b, 1)));
        let d = s.mul(half_vector(s, layout, scales, b, 0), scale);
        let m = s.sub(s.splat(0.0), s.mul(half_vector(s, layout, scales, b, 1), min));
        Scales { d, m, s: [i; 2], t: [i; 2] }
    }
    #[inline(always)]
    fn add<S: Simd, C: Codes>(
        s: S,
        scales: &Scales<S>,
        w: &[S::B; 8],
        a: &[i8; 32],
        meta: &Meta,
        sum: S::F,
    ) -> S::F {
        Min::add::<S, C>(s, scales, w, a, meta, sum)
    }
}

/// The exact sum of `s * (dot - offset)` over a block's halves.
#[inline(always)]
fn halves<S: Simd, C: Codes>(
    s: S,
    scales: &[S::I; 2],
    w: &[S::B; 8],
    a: &[i8; 32],
    offsets: [S::I; 2],
) -> S::I {
    let low = s.dot::<4>(C::BITS, &[w[0], w[1], w[2], w[3]], &a[..16], offsets[0]);
    let high = s.dot::<4>(C::BITS, &[w[4], w[5], w[6], w[7]], &a[16..], offsets[1]);
    s.add_i(s.mul_i(low, scales[0]), s.mul_i(high, scales[1]))
}

/// `d * s * (c - (8 << SHIFT))`, signed integers per 16.
struct Halves<const SHIFT: u32>;
impl<const SHIFT: u32> Scaling for Halves<SHIFT> {
    const SCHEME: Scheme = Scheme::Halves;
    #[inline(always)]
    fn load<S: Simd>(s: S, layout: Layout, scales: &[u8], b: usize) -> Scales<S> {
        let (f, i) = (s.splat(0.0), s.splat_i(0));
        let integers = [s.widen_i8(small(layout, scales, b, 0)), s.widen_i8(small(layout, scales, b, 1))];
        Scales { d: half_vector(s, layout, scales, b, 0), m: f, s: integers, t: [i; 2] }
    }
    #[inline(always)]
    fn add<S: Simd, C: Codes>(
        s: S,
        scales: &Scales<S>,
        w: &[S::B; 8],
        a: &[i8; 32],
        meta: &Meta,
        sum: S::F,
    ) -> S::F {
        // Written out, as in `Four`.
        let [low, high] = meta.neg8_halves;
        let offset = [s.shl_i::<SHIFT>(s.splat_i(low)), s.shl_i::<SHIFT>(s.splat_i(high))];
        let dot = halves::<S, C>(s, &scales.s, w, a, offset);
        s.fma(s.mul(s.to_f(dot), s.splat(meta.scale)), scales.d, sum)
    }
}

/// `d * s * c - m * t`, integers per 16.
struct HalvesMin;
impl Scaling for HalvesMin {
    const SCHEME: Scheme = Scheme::HalvesMin;
    #[inline(always)]
    fn load<S: Simd>(s: S, layout: Layout, scales: &[u8], b: usize) -> Scales<S> {
        // The sums come as -8 times themselves.
        let m = s.mul(half_vector(s, layout, scales, b, 1), s.splat(0.125));
        let integers = [s.widen_u8(small(layout, scales, b, 0)), s.widen_u8(small(layout, scales, b, 1))];
        let mins = [s.widen_u8(small(layout, scales, b, 2)), s.widen_u8(small(layout, scales, b, 3))];
        Scales { d: half_vector(s, layout, scales, b, 0), m, s: integers, t: mins }
    }
    #[inline(always)]
    fn add<S: Simd, C: Codes>(
        s: S,
        scales: &Scales<S>,
        w: &[S::B; 8],
        a: &[i8; 32],
        meta: &Meta,
        sum: S::F,
    ) -> S::F {
        let dot = halves::<S, C>(s, &scales.s, w, a, [s.splat_i(0); 2]);
        let low = s.mul_i(s.splat_i(meta.neg8_halves[0]), scales.t[0]);
        let mins = s.add_i(low, s.mul_i(s.splat_i(meta.neg8_halves[1]), scales.t[1]));
        let sum = s.fma(s.mul(s.to_f(mins), s.splat(meta.scale)), scales.m, sum);
        s.fma(s.mul(s.to_f(dot), s.splat(meta.scale)), scales.d, sum)
    }
}

/// The layout of codes and scales that are known when this is compiled.
struct Form<C, Q>(PhantomData<(C, Q)>);

impl<C: Codes, Q: Scaling> Form<C, Q> {
    // The code of zero is in the arithmetic.
    const LAYOUT: Layout = Layout { bits: (C::BYTES / 64) as u32, scaling: Q::SCHEME, offset: 0 };
    const SPAN: usize = Self::LAYOUT.span();
    const SCALE_BYTES: usize = Self::LAYOUT.scale_bytes();
    const SPAN_BYTES: usize = Self::LAYOUT.span_bytes();
}

/// A part of a product with a quantised weight.
struct Int<'a, C, Q>(Part<'a>, PhantomData<(C, Q)>);

impl<C: Codes, Q: Scaling> Kernel for Int<'_, C, Q> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Part { input, task, panels, rows } = self.0;
        let x = input.quantised;
        for panel in panels {
            for tile in rows.start / TILE..rows.end.div_ceil(TILE) {
                let from = tile * TILE * x.blocks;
                let kernel = IntTile::<C, Q> {
                    task,
                    panel,
                    a: &x.codes[from..],
                    meta: &x.meta[from..],
                    height: TILE.min(x.rows - tile * TILE),
                    row: tile * TILE,
                    kind: PhantomData,
                };
                s.tiles(&kernel, kernel.height);
            }
        }
    }
}

struct IntTile<'a, C, Q> {
    task: &'a Task<'a>,
    panel: usize,
    a: &'a [[i8; 32]],
    meta: &'a [Meta],
    height: usize,
    row: usize,
    kind: PhantomData<(C, Q)>,
}

impl<C: Codes, Q: Scaling> TileKernel for IntTile<'_, C, Q> {
    #[inline(always)]
    fn tile<S: Simd, const R: usize>(&self, s: S, first: usize, rows: usize) {
        let mut sums = [s.splat(0.0); R];
        let panel = self.task.weight.panel(self.panel);
        for (span, bytes) in panel.chunks(Form::<C, Q>::SPAN_BYTES).enumerate() {
            let (scales, codes) = bytes.split_at(Form::<C, Q>::SCALE_BYTES);
            for (i, codes) in codes.chunks_exact(C::BYTES).enumerate() {
                let w = C::unpack(s, codes);
                let scales = Q::load(s, Form::<C, Q>::LAYOUT, scales, i);
                let at = (span * Form::<C, Q>::SPAN + i) * self.height + first;
                let a: &[[i8; 32]; R] = self.a[at..].first_chunk().expect("blocks of all rows, or slack");
                let meta: &[Meta; R] = self.meta[at..].first_chunk().expect("blocks of all rows, or slack");
                unrolled!(r < R, {
                    sums[r] = Q::add::<S, C>(s, &scales, &w, &a[r], &meta[r], sums[r]);
                });
            }
        }
        for r in 0..rows {
            store(s, self.task, self.row + first + r, self.panel, sums[r]);
        }
    }
}

/// Loads sixteen elements of a format that needs no more than its codes.
pub(crate) trait Element: 'static {
    const BYTES: usize;
    fn load<S: Simd>(s: S, x: &[u8]) -> S::F;
}

pub(crate) struct F32;
impl Element for F32 {
    const BYTES: usize = 4;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[u8]) -> S::F {
        s.load_f32_bytes(x.first_chunk().expect("sixteen elements"))
    }
}

pub(crate) struct F16;
impl Element for F16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[u8]) -> S::F {
        s.load_f16(x.first_chunk().expect("sixteen elements"))
    }
}

pub(crate) struct Bf16;
impl Element for Bf16 {
    const BYTES: usize = 2;
    #[inline(always)]
    fn load<S: Simd>(s: S, x: &[u8]) -> S::F {
        s.load_bf16(x.first_chunk().expect("sixteen elements"))
    }
}

/// A part of a product with a float weight: the activations stay as they are.
struct Float<'a, E>(Part<'a>, PhantomData<E>);

impl<E: Element> Kernel for Float<'_, E> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Part { input, task, panels, rows } = self.0;
        let mut panel = panels.start;
        while panel < panels.end {
            let left = panels.end - panel;
            let mut row = rows.start;
            while row < rows.end {
                row += match (rows.end - row, left) {
                    (1..=3, 4..) if S::WIDE => float_tile::<S, E, 1, 4>(s, input, task, row, panel),
                    (1..=3, _) => float_tile::<S, E, 1, 1>(s, input, task, row, panel),
                    (_, 4..) if S::WIDE => float_tile::<S, E, 4, 4>(s, input, task, row, panel),
                    (_, _) => float_tile::<S, E, 4, 1>(s, input, task, row, panel),
                };
            }
            panel += if S::WIDE && left >= 4 { 4 } else { 1 };
        }
    }
}

/// `R` rows times `P` panels; returns `R`. Each sum runs over the input elements in ascending order.
#[inline(always)]
fn float_tile<S: Simd, E: Element, const R: usize, const P: usize>(
    s: S,
    input: &Input<'_>,
    task: &Task<'_>,
    row: usize,
    panel: usize,
) -> usize {
    let width = input.width;
    let x: [&[f32]; R] = std::array::from_fn(|r| &input.x[(row + r) * width..][..width]);
    let size = E::BYTES * LANES;
    let w: [&[u8]; P] = std::array::from_fn(|p| &task.weight.panel(panel + p)[..width * size]);
    let mut sums = [[s.splat(0.0); P]; R];
    for k in 0..width {
        let mut weights = [s.splat(0.0); P];
        for p in 0..P {
            weights[p] = E::load(s, &w[p][k * size..][..size]);
        }
        for r in 0..R {
            let x = s.splat(x[r][k]);
            for p in 0..P {
                sums[r][p] = s.fma(x, weights[p], sums[r][p]);
            }
        }
    }
    for r in 0..R {
        for p in 0..P {
            store(s, task, row + r, panel + p, sums[r][p]);
        }
    }
    R
}

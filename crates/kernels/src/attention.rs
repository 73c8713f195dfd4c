//! Softmax attention over keys and values in units of sixteen positions, with online softmax.
//!
//! Invariants:
//! - positions are taken in blocks of [`BLOCK`], aligned to absolute position 0, in ascending order; a query
//!   (a row and a head) passes through the blocks that hold what it may see, with the same operations
//!   whatever other queries share its tile. A unit that a query sees nothing of adds exact zeros, so leaving
//!   it out changes nothing;
//! - the length is never split between threads; an item is some rows of one sequence and one KV head, with
//!   all query heads of that KV head.
//!
//! The keys' and values' elements are half precision (paged) or `f32` (whole segments, for encoders).

use crate::buffer::Shared;
use crate::kv::Kv;
use crate::math;
use crate::matmul::{Element, F16, F32};
use crate::pool::Pool;
use crate::simd::{Kernel, LANES, Level, Simd};
use device::{AttentionSpec, Batch};
use std::cell::RefCell;

/// Units of sixteen positions in a block.
const UNITS: usize = 4;
/// Positions of a block.
const BLOCK: usize = UNITS * LANES;
/// Queries that are computed side by side.
const SIDE: usize = 4;
/// Queries of an item, about.
const QUERIES: usize = 32;

thread_local! {
    /// Working memory of an item; kept, so that steps do not allocate.
    static SUMS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// Keys and values of a segment, as units.
    static SEGMENT: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Gives the keys `[head_dim][16]` and the values `[16][stride]` of a unit, as bytes.
trait Units {
    type Element: Element;
    fn unit(&self, index: usize) -> (&[u8], &[u8]);
}

struct Paged<'a> {
    kv: &'a Kv,
    layer: crate::kv::Layer,
    head: usize,
    pages: &'a [device::PageId],
}
impl Units for Paged<'_> {
    type Element = F16;
    #[inline(always)]
    fn unit(&self, index: usize) -> (&[u8], &[u8]) {
        self.kv.head(self.pages[index], self.layer, self.head)
    }
}

struct Segment<'a> {
    units: &'a [f32],
    unit: usize,
    keys: usize,
}
impl Units for Segment<'_> {
    type Element = F32;
    #[inline(always)]
    fn unit(&self, index: usize) -> (&[u8], &[u8]) {
        let bytes = crate::buffer::as_bytes(&self.units[index * self.unit..][..self.unit]);
        bytes.split_at(self.keys * 4)
    }
}

/// What an item computes: the queries of some rows with the heads of one KV head.
struct Item<'a, U> {
    units: U,
    /// `[rows, heads * head_dim]`, all rows of the batch.
    queries: &'a [f32],
    out: &'a Shared<'a, f32>,
    spec: &'a AttentionSpec,
    kv_head: usize,
    /// The first row, in the batch.
    row: usize,
    rows: usize,
    /// Position of the first row; `None`: each row sees all of `len`.
    start: Option<usize>,
    /// Positions that exist.
    len: usize,
    /// Room for the queries' weighted sums, `[rows * heads per KV head, stride]`, all zero.
    sums: &'a mut [f32],
}

/// Runs `body` with this many zeros. Outside of the kernels: a closure in them would be compiled without
/// their instruction set.
fn with_sums(spec: &AttentionSpec, rows: usize, body: impl FnOnce(&mut [f32])) {
    let queries = rows * (spec.heads / spec.kv_heads);
    debug_assert!(queries <= QUERIES);
    SUMS.with_borrow_mut(|sums| {
        sums.clear();
        sums.resize(queries * spec.head_dim.next_multiple_of(LANES), 0.0);
        body(sums);
    });
}

/// Online softmax of one query.
#[derive(Clone, Copy)]
struct State<S: Simd> {
    max: f32,
    /// Sums of the weights, lane by lane.
    total: S::F,
}

impl<U: Units> Item<'_, U> {
    /// The positions `[from, to)` that a row of the item sees.
    #[inline(always)]
    fn sees(&self, row: usize) -> (usize, usize) {
        match self.start {
            None => (0, self.len),
            Some(start) => {
                let to = start + row + 1;
                (self.spec.window.map_or(0, |w| to.saturating_sub(w as usize)), to)
            }
        }
    }
}

impl<U: Units> Kernel for Item<'_, U> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let sums = std::mem::take(&mut self.sums);
        let dim = self.spec.head_dim;
        let stride = dim.next_multiple_of(LANES);
        let group = self.spec.heads / self.spec.kv_heads;
        let queries = self.rows * group;
        let fresh = State { max: f32::NEG_INFINITY, total: s.splat(0.0) };
        let mut states = [fresh; QUERIES];
        let first = self.sees(0).0 / BLOCK;
        let last = (self.sees(self.rows - 1).1 - 1) / BLOCK;
        for block in first..=last {
            let mut q = 0;
            while q < queries {
                let states = &mut states[q..queries];
                let sums = &mut sums[q * stride..];
                q += match queries - q {
                    1 => self.block::<S, 1>(s, block, q, states, sums),
                    2 => self.block::<S, 2>(s, block, q, states, sums),
                    3 => self.block::<S, 3>(s, block, q, states, sums),
                    _ => self.block::<S, SIDE>(s, block, q, states, sums),
                };
            }
        }
        for q in 0..queries {
            let row = self.row + q / group;
            let at = row * self.spec.heads * dim + (self.kv_head * group + q % group) * dim;
            // SAFETY: this row's part for these heads belongs to this item alone.
            let out = unsafe { self.out.part(at, dim) };
            let inverse = s.splat(1.0 / s.sum(states[q].total));
            for (to, x) in out.chunks_mut(LANES).zip(sums[q * stride..].chunks_exact(LANES)) {
                s.store_part(s.mul(s.load_part(x), inverse), to);
            }
        }
    }
}

impl<U: Units> Item<'_, U> {
    /// Takes `Q` queries from `first` on through one block; returns `Q`.
    #[inline(always)]
    fn block<S: Simd, const Q: usize>(
        &self,
        s: S,
        block: usize,
        first: usize,
        states: &mut [State<S>],
        sums: &mut [f32],
    ) -> usize {
        let group = self.spec.heads / self.spec.kv_heads;
        let start = block * BLOCK;
        // The units of the block that some of these queries see.
        let low = self.sees(first / group).0.max(start);
        let high = self.sees((first + Q - 1) / group).1.min(start + BLOCK);
        if low >= high {
            return Q;
        }
        let units = (low - start) / LANES..(high - start).div_ceil(LANES);
        let base = block * UNITS + units.start;
        let mut weights = [[0.0f32; BLOCK]; Q];
        match units.len() {
            1 => self.scores::<S, Q, 1>(s, base, first, &mut weights),
            2 => self.scores::<S, Q, 2>(s, base, first, &mut weights),
            3 => self.scores::<S, Q, 3>(s, base, first, &mut weights),
            _ => self.scores::<S, Q, 4>(s, base, first, &mut weights),
        }
        let mut factors = [1.0f32; Q];
        for q in 0..Q {
            let (from, to) = self.sees((first + q) / group);
            let weights = &mut weights[q][..units.len() * LANES];
            factors[q] = soften(s, weights, base * LANES, from, to, self.spec.scale, &mut states[q]);
        }
        let stride = self.spec.head_dim.next_multiple_of(LANES);
        let mut at = 0;
        while at < stride {
            at += if stride - at >= 4 * LANES {
                self.values::<S, Q, 4>(s, base, units.len(), at, &weights, &factors, sums)
            } else {
                self.values::<S, Q, 1>(s, base, units.len(), at, &weights, &factors, sums)
            };
        }
        Q
    }

    /// The raw scores of `Q` queries with `P` units, in order of positions.
    #[inline(always)]
    fn scores<S: Simd, const Q: usize, const P: usize>(
        &self,
        s: S,
        base: usize,
        first: usize,
        weights: &mut [[f32; BLOCK]; Q],
    ) {
        let dim = self.spec.head_dim;
        let group = self.spec.heads / self.spec.kv_heads;
        let size = U::Element::BYTES * LANES;
        let mut keys: [&[u8]; P] = [&[]; P];
        for p in 0..P {
            keys[p] = &self.units.unit(base + p).0[..dim * size];
        }
        let mut queries: [&[f32]; Q] = [&[]; Q];
        for q in 0..Q {
            let index = first + q;
            let at = (self.row + index / group) * self.spec.heads + self.kv_head * group + index % group;
            queries[q] = &self.queries[at * dim..][..dim];
        }
        let mut sums = [[s.splat(0.0); P]; Q];
        for d in 0..dim {
            let mut k = [s.splat(0.0); P];
            for p in 0..P {
                k[p] = U::Element::load(s, &keys[p][d * size..][..size]);
            }
            for q in 0..Q {
                let x = s.splat(queries[q][d]);
                for p in 0..P {
                    sums[q][p] = s.fma(x, k[p], sums[q][p]);
                }
            }
        }
        for q in 0..Q {
            let (vectors, _) = weights[q].as_chunks_mut::<16>();
            for p in 0..P {
                s.store(sums[q][p], &mut vectors[p]);
            }
        }
    }

    /// Adds the weighted values to elements `[at, at + 16 W)` of the queries' sums; returns `16 W`.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn values<S: Simd, const Q: usize, const W: usize>(
        &self,
        s: S,
        base: usize,
        units: usize,
        at: usize,
        weights: &[[f32; BLOCK]; Q],
        factors: &[f32; Q],
        sums: &mut [f32],
    ) -> usize {
        let stride = self.spec.head_dim.next_multiple_of(LANES);
        let mut acc = [[s.splat(0.0); W]; Q];
        for q in 0..Q {
            let (vectors, _) = sums[q * stride + at..].as_chunks::<16>();
            for w in 0..W {
                acc[q][w] = s.mul(s.load(&vectors[w]), s.splat(factors[q]));
            }
        }
        let size = U::Element::BYTES * LANES;
        let width = U::Element::BYTES * stride;
        for unit in 0..units {
            let values = &self.units.unit(base + unit).1[..LANES * width];
            for (t, row) in values.chunks_exact(width).enumerate() {
                let row = &row[at * U::Element::BYTES..][..W * size];
                let mut v = [s.splat(0.0); W];
                for w in 0..W {
                    v[w] = U::Element::load(s, &row[w * size..][..size]);
                }
                for q in 0..Q {
                    let weight = s.splat(weights[q][unit * LANES + t]);
                    for w in 0..W {
                        acc[q][w] = s.fma(weight, v[w], acc[q][w]);
                    }
                }
            }
        }
        for q in 0..Q {
            let (vectors, _) = sums[q * stride + at..].as_chunks_mut::<16>();
            for w in 0..W {
                s.store(acc[q][w], &mut vectors[w]);
            }
        }
        W * LANES
    }
}

/// Turns raw scores of positions from `base` on into weights relative to the running maximum, and returns
/// the factor by which what was summed before must shrink. Positions outside `[from, to)` get zero.
#[inline(always)]
fn soften<S: Simd>(
    s: S,
    scores: &mut [f32],
    base: usize,
    from: usize,
    to: usize,
    scale: f32,
    state: &mut State<S>,
) -> f32 {
    const INDEX: [f32; 16] =
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];
    let (vectors, _) = scores.as_chunks_mut::<16>();
    let hidden = s.splat(f32::NEG_INFINITY);
    let index = s.load(&INDEX);
    let scale = s.splat(scale);
    let mut peak = hidden;
    for (i, v) in vectors.iter_mut().enumerate() {
        let start = base + i * LANES;
        // Lanes `[first, end)` of this unit are seen.
        let first = from.saturating_sub(start).min(LANES) as f32;
        let end = to.saturating_sub(start).min(LANES) as f32;
        let score = s.mul(s.load(v), scale);
        let score = s.select_lt(index, s.splat(end), score, hidden);
        let score = s.select_lt(index, s.splat(first), hidden, score);
        s.store(score, v);
        peak = s.max(score, peak);
    }
    let peak = s.max_lane(peak);
    let max = if peak > state.max { peak } else { state.max };
    if max == f32::NEG_INFINITY {
        // Nothing of this block is seen, nor of any before it.
        vectors.iter_mut().for_each(|v| *v = [0.0; 16]);
        return 1.0;
    }
    let shift = s.splat(max);
    let factor = s.array(math::exp(s, s.sub(s.splat(state.max), shift)))[0];
    state.total = s.mul(state.total, s.splat(factor));
    state.max = max;
    for v in vectors {
        let weight = math::exp(s, s.sub(s.load(v), shift));
        state.total = s.add(state.total, weight);
        s.store(weight, v);
    }
    factor
}

/// Rows of an item, so that its queries fit.
fn tile_rows(spec: &AttentionSpec) -> usize {
    let group = spec.heads / spec.kv_heads;
    assert!(group * spec.kv_heads == spec.heads, "query heads are a multiple of KV heads");
    assert!(group <= QUERIES, "at most {QUERIES} query heads share a KV head");
    QUERIES / group
}

/// Causal attention over pages.
#[allow(clippy::too_many_arguments)]
pub(crate) fn paged(
    level: Level,
    pool: &Pool,
    kv: &Kv,
    layer: usize,
    queries: &[f32],
    batch: &Batch,
    spec: &AttentionSpec,
    out: &mut [f32],
) {
    let layer = kv.layer(layer);
    assert_eq!((layer.kv_heads, layer.head_dim), (spec.kv_heads, spec.head_dim), "the layer's shape");
    let most = tile_rows(spec);
    let tiles: usize = batch.sequences.iter().map(|q| q.rows.len().div_ceil(most)).sum();
    let out = Shared::new(out);
    // Later tiles see more, so they come first: the last items of a region are then short ones.
    pool.run(tiles * spec.kv_heads, &|item| {
        let mut tile = tiles - 1 - item / spec.kv_heads;
        for sequence in &batch.sequences {
            let count = sequence.rows.len().div_ceil(most);
            if tile >= count {
                tile -= count;
                continue;
            }
            let skip = tile * most;
            let kv_head = item % spec.kv_heads;
            let rows = most.min(sequence.rows.len() - skip);
            with_sums(spec, rows, |sums| {
                level.run(Item {
                    units: Paged { kv, layer, head: kv_head, pages: batch.pages(sequence) },
                    queries,
                    out: &out,
                    spec,
                    kv_head,
                    row: sequence.rows.start + skip,
                    rows,
                    start: Some(sequence.start as usize + skip),
                    len: sequence.end() as usize,
                    sums,
                });
            });
            return;
        }
    });
}

/// Attention of each segment's rows over that segment.
#[allow(clippy::too_many_arguments)]
pub(crate) fn full(
    level: Level,
    pool: &Pool,
    queries: &[f32],
    keys: &[f32],
    values: &[f32],
    segments: &[u32],
    spec: &AttentionSpec,
    out: &mut [f32],
) {
    let most = tile_rows(spec);
    let mut starts = Vec::with_capacity(segments.len());
    let mut next = 0;
    for len in segments {
        starts.push(next);
        next += *len as usize;
    }
    let dim = spec.head_dim;
    let stride = dim.next_multiple_of(LANES);
    let unit = LANES * (dim + stride);
    let out = Shared::new(out);
    pool.run(segments.len() * spec.kv_heads, &|item| {
        let (segment, kv_head) = (item / spec.kv_heads, item % spec.kv_heads);
        let (first, len) = (starts[segment], segments[segment] as usize);
        SEGMENT.with_borrow_mut(|units| {
            units.clear();
            units.resize(len.div_ceil(LANES) * unit, 0.0);
            for position in 0..len {
                let at = ((first + position) * spec.kv_heads + kv_head) * dim;
                let (k, v) = units[position / LANES * unit..][..unit].split_at_mut(LANES * dim);
                for d in 0..dim {
                    k[d * LANES + position % LANES] = keys[at + d];
                }
                v[position % LANES * stride..][..dim].copy_from_slice(&values[at..at + dim]);
            }
            for skip in (0..len).step_by(most) {
                let rows = most.min(len - skip);
                with_sums(spec, rows, |sums| {
                    level.run(Item {
                        units: Segment { units, unit, keys: LANES * dim },
                        queries,
                        out: &out,
                        spec,
                        kv_head,
                        row: first + skip,
                        rows,
                        start: None,
                        len,
                        sums,
                    });
                });
            }
        });
    });
}

//! The arithmetic of attention: some queries over some blocks of positions, for one KV head.
//!
//! Invariants: a block is [`BLOCK`] positions, aligned to absolute position 0. A query's part of a block
//! (greatest score, sums of weights, weighted values, all relative to that block) depends on the query, the
//! block and what the query sees of it, and on nothing else; parts are merged in order of blocks by the
//! operations of [`Merge`], at once or later. A position that a query does not see weighs exactly zero. Where
//! positions have scales, a score is multiplied by its key's once, and a weight by its value's once.

use super::parts::{Call, HEAD, Merge, put_head};
use super::plan::{Piece, Row};
use super::units::Units;
use crate::math;
use crate::matmul::Element;
use crate::simd::{Kernel, LANES, Simd, prefetch};
use std::ops::Range;

/// Units of sixteen positions in a block.
const UNITS: usize = 8;
/// Positions of a block.
pub(crate) const BLOCK: usize = UNITS * LANES;
/// Units whose scores are computed side by side.
const WIDTH: usize = 4;
/// Queries that are computed side by side.
const SIDE: usize = 4;
/// Queries of an item at most.
pub(crate) const QUERIES: usize = 64;
/// The queries of some rows with the heads of one KV head, over some blocks.
pub(crate) struct Item<'a, U> {
    pub(crate) call: Call<'a>,
    pub(crate) units: U,
    pub(crate) kv_head: usize,
    pub(crate) rows: &'a [Row],
    pub(crate) blocks: Range<usize>,
    /// Nothing that is seen lies before the blocks.
    pub(crate) leads: bool,
    /// Room for the queries' weighted sums, `[queries, stride]`, all zero.
    pub(crate) sums: &'a mut [f32],
}

impl<'a, U> Item<'a, U> {
    /// The item of a plan's piece.
    pub(crate) fn of(
        call: Call<'a>,
        piece: &Piece,
        rows: &'a [Row],
        units: U,
        kv_head: usize,
        sums: &'a mut [f32],
    ) -> Self {
        let rows = &rows[piece.rows.clone()];
        Self { call, units, kv_head, rows, blocks: piece.blocks.clone(), leads: piece.leads, sums }
    }
}

/// What a tile of queries knows of one block.
struct Block<S: Simd, const Q: usize> {
    /// Its first unit that is seen, and how many.
    base: usize,
    units: usize,
    weights: [[f32; BLOCK]; Q],
    peaks: [f32; Q],
    totals: [S::F; Q],
}

impl<U: Units> Kernel for Item<'_, U> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(mut self, s: S) {
        let sums = std::mem::take(&mut self.sums);
        let stride = self.call.stride();
        let queries = self.rows.len() * self.call.group();
        let mut states = [Merge::<S>::fresh(s); QUERIES];
        for block in self.blocks.clone() {
            let mut q = 0;
            while q < queries {
                let states = &mut states[q..queries];
                let sums = &mut sums[q * stride..];
                q += match queries - q {
                    1 => self.tile::<S, 1>(s, block, q, states, sums),
                    2 => self.tile::<S, 2>(s, block, q, states, sums),
                    3 => self.tile::<S, 3>(s, block, q, states, sums),
                    // A whole group of Qwen's: its keys and values are widened once.
                    6 if S::WIDE => self.tile::<S, 6>(s, block, q, states, sums),
                    _ => self.tile::<S, SIDE>(s, block, q, states, sums),
                };
            }
        }
        if !self.leads {
            return;
        }
        for q in 0..queries {
            let (row, head) = self.query(q);
            let sums = &sums[q * stride..][..stride];
            if row.parts.is_none() {
                self.call.finish(s, row, head, states[q].total, sums);
            }
            // SAFETY: this item alone has these blocks of these queries.
            else if let Some(part) = unsafe { self.call.part(row, self.blocks.end - 1, head) } {
                part[HEAD..].copy_from_slice(sums);
                put_head(s, part, states[q].peak, states[q].total);
            }
        }
    }
}

impl<U: Units> Item<'_, U> {
    /// The row and head of a query.
    #[inline(always)]
    fn query(&self, q: usize) -> (&Row, usize) {
        let group = self.call.group();
        (&self.rows[q / group], self.kv_head * group + q % group)
    }

    /// Takes `Q` queries from `first` on through one block; returns `Q`.
    #[inline(always)]
    fn tile<S: Simd, const Q: usize>(
        &self,
        s: S,
        block: usize,
        first: usize,
        states: &mut [Merge<S>],
        sums: &mut [f32],
    ) -> usize {
        let start = block * BLOCK;
        // The units of the block that some of these queries see.
        let (mut low, mut high) = (start + BLOCK, start);
        for q in 0..Q {
            let row = self.query(first + q).0;
            low = low.min(row.from.max(start));
            high = high.max(row.to.min(start + BLOCK));
        }
        if low < high {
            let units = (low - start) / LANES..(high - start).div_ceil(LANES);
            self.seen::<S, Q>(s, block, units, first, states, sums);
        } else if !self.leads {
            for q in 0..Q {
                self.store_part(s, block, first + q, f32::NEG_INFINITY, s.splat(0.0));
            }
        }
        Q
    }

    #[inline(always)]
    fn seen<S: Simd, const Q: usize>(
        &self,
        s: S,
        block: usize,
        units: Range<usize>,
        first: usize,
        states: &mut [Merge<S>],
        sums: &mut [f32],
    ) {
        let mut now = Block::<S, Q> {
            base: block * UNITS + units.start,
            units: units.len(),
            weights: [[0.0; BLOCK]; Q],
            peaks: [0.0; Q],
            totals: [s.splat(0.0); Q],
        };
        // The tile that comes first to a block fetches what comes next.
        let ahead = first == 0;
        let mut at = 0;
        while at < now.units {
            at += match now.units - at {
                WIDTH.. if S::WIDE => self.scores::<S, Q, WIDTH>(s, at, first, ahead, &mut now),
                2.. if S::WIDE => self.scores::<S, Q, 2>(s, at, first, ahead, &mut now),
                _ => self.scores::<S, Q, 1>(s, at, first, ahead, &mut now),
            };
        }
        for q in 0..Q {
            let row = self.query(first + q).0;
            let weights = &mut now.weights[q][..now.units * LANES];
            let scale = self.call.spec.scale;
            (now.peaks[q], now.totals[q]) = soften(s, weights, now.base * LANES, row.from, row.to, scale);
            if U::SCALED {
                self.scale_weights(s, now.base, weights);
            }
        }
        let mut factors = [[0.0; 2]; Q];
        if self.leads {
            for q in 0..Q {
                factors[q] = states[q].add(s, now.peaks[q], now.totals[q]);
            }
        } else {
            for q in 0..Q {
                self.store_part(s, block, first + q, now.peaks[q], now.totals[q]);
            }
        }
        // The next block's keys are fetched with these values, as far as the last of these rows sees them.
        let next = now.base - now.base % UNITS + UNITS;
        let last = self.query(first + Q - 1).0.to.min(self.blocks.end * BLOCK).div_ceil(LANES);
        let next = if ahead { next..last.min(next + UNITS).max(next) } else { 0..0 };
        let stride = self.call.stride();
        let mut at = 0;
        while at < stride {
            at += if S::WIDE && stride - at >= WIDTH * LANES {
                self.values::<S, Q, WIDTH>(s, at, first, block, &next, &now, &factors, sums)
            } else {
                self.values::<S, Q, 1>(s, at, first, block, &next, &now, &factors, sums)
            };
        }
    }

    /// Multiplies the weights of the units from `base` on by the scales of their values.
    #[inline(always)]
    fn scale_weights<S: Simd>(&self, s: S, base: usize, weights: &mut [f32]) {
        let codes = U::Element::BYTES * LANES * self.call.stride();
        let (vectors, _) = weights.as_chunks_mut::<16>();
        for (i, v) in vectors.iter_mut().enumerate() {
            let scales = self.units.unit(base + i).1[codes..].first_chunk().expect("sixteen scales");
            s.store(s.mul(s.load(v), s.load_f32_bytes(scales)), v);
        }
    }

    /// Stores the head of a query's part of a block, if it has one.
    #[inline(always)]
    fn store_part<S: Simd>(&self, s: S, block: usize, q: usize, peak: f32, total: S::F) {
        let (row, head) = self.query(q);
        // SAFETY: this item alone has this block of this query.
        if let Some(part) = unsafe { self.call.part(row, block, head) } {
            put_head(s, part, peak, total);
        }
    }

    /// The raw scores of `Q` queries with `P` units from `at` on, in order of positions; returns `P`.
    #[inline(always)]
    fn scores<S: Simd, const Q: usize, const P: usize>(
        &self,
        s: S,
        at: usize,
        first: usize,
        ahead: bool,
        now: &mut Block<S, Q>,
    ) -> usize {
        let dim = self.call.spec.head_dim;
        let size = U::Element::BYTES * LANES;
        let mut keys: [&[u8]; P] = [&[]; P];
        let mut values: [&[u8]; P] = [&[]; P];
        let mut scales = [s.splat(1.0); P];
        for p in 0..P {
            let (k, v) = self.units.unit(now.base + at + p);
            (keys[p], values[p]) = (&k[..dim * size], &v[..dim * size]);
            if U::SCALED {
                scales[p] = s.load_f32_bytes(k[dim * size..].first_chunk().expect("sixteen scales"));
            }
        }
        let mut queries: [&[f32]; Q] = [&[]; Q];
        for q in 0..Q {
            let (row, head) = self.query(first + q);
            queries[q] = &self.call.queries[(row.row * self.call.spec.heads + head) * dim..][..dim];
        }
        let mut sums = [[s.splat(0.0); P]; Q];
        for d in 0..dim {
            let mut k = [s.splat(0.0); P];
            for p in 0..P {
                k[p] = U::Element::load(s, &keys[p][d * size..][..size]);
                if ahead {
                    prefetch(&values[p][d * size..][..size]);
                }
            }
            for q in 0..Q {
                let x = s.splat(queries[q][d]);
                for p in 0..P {
                    sums[q][p] = s.fma(x, k[p], sums[q][p]);
                }
            }
        }
        for q in 0..Q {
            let (vectors, _) = now.weights[q].as_chunks_mut::<16>();
            for p in 0..P {
                let sum = if U::SCALED { s.mul(sums[q][p], scales[p]) } else { sums[q][p] };
                s.store(sum, &mut vectors[at + p]);
            }
        }
        P
    }

    /// Elements `[at, at + 16 W)` of the queries' weighted values, to their sums or parts; returns `16 W`.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn values<S: Simd, const Q: usize, const W: usize>(
        &self,
        s: S,
        at: usize,
        first: usize,
        block: usize,
        next: &Range<usize>,
        now: &Block<S, Q>,
        factors: &[[f32; 2]; Q],
        sums: &mut [f32],
    ) -> usize {
        let (dim, stride) = (self.call.spec.head_dim, self.call.stride());
        let mut acc = [[s.splat(0.0); W]; Q];
        let size = U::Element::BYTES * LANES;
        let width = U::Element::BYTES * stride;
        for unit in 0..now.units {
            let values = &self.units.unit(now.base + unit).1[..LANES * width];
            let ahead = next.start + unit;
            let ahead: &[u8] = if ahead < next.end { self.units.unit(ahead).0 } else { &[] };
            for (t, row) in values.chunks_exact(width).enumerate() {
                let row = &row[at * U::Element::BYTES..][..W * size];
                let mut v = [s.splat(0.0); W];
                for w in 0..W {
                    v[w] = U::Element::load(s, &row[w * size..][..size]);
                }
                // The keys `[dim][16]` of the next block: each of these steps has its `16 W / 16` lines of them.
                for w in 0..W {
                    if let Some(line) = ahead.get((at + t * W + w) * size..)
                        && at + t * W + w < dim
                    {
                        prefetch(line);
                    }
                }
                for q in 0..Q {
                    let weight = s.splat(now.weights[q][unit * LANES + t]);
                    for w in 0..W {
                        acc[q][w] = s.fma(weight, v[w], acc[q][w]);
                    }
                }
            }
        }
        for q in 0..Q {
            if self.leads {
                let (vectors, _) = sums[q * stride + at..].as_chunks_mut::<16>();
                for w in 0..W {
                    let sum = Merge::sums(s, factors[q], s.load(&vectors[w]), acc[q][w]);
                    s.store(sum, &mut vectors[w]);
                }
                continue;
            }
            let (row, head) = self.query(first + q);
            // SAFETY: this item alone has this block of this query.
            if let Some(part) = unsafe { self.call.part(row, block, head) } {
                let (vectors, _) = part[HEAD + at..].as_chunks_mut::<16>();
                for w in 0..W {
                    s.store(acc[q][w], &mut vectors[w]);
                }
            }
        }
        W * LANES
    }
}

/// Turns raw scores of positions from `base` on into weights relative to their greatest, which is returned
/// with the sums of the weights, lane by lane. Positions outside `[from, to)` weigh zero; if that is all of
/// them, the greatest is minus infinity.
#[inline(always)]
fn soften<S: Simd>(s: S, scores: &mut [f32], base: usize, from: usize, to: usize, scale: f32) -> (f32, S::F) {
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
    let mut total = s.splat(0.0);
    if peak == f32::NEG_INFINITY {
        vectors.iter_mut().for_each(|v| *v = [0.0; 16]);
        return (peak, total);
    }
    let shift = s.splat(peak);
    for v in vectors {
        let weight = math::exp(s, s.sub(s.load(v), shift));
        total = s.add(total, weight);
        s.store(weight, v);
    }
    (peak, total)
}

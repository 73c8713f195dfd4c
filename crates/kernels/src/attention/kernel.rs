//! The arithmetic of attention: some queries over some blocks of positions, for one KV head.
//!
//! Invariants: a block is [`BLOCK`] positions, aligned to absolute position 0. A query's part of a block
//! (greatest score, sums of weights, weighted values, all relative to that block) depends on the query, the
//! block and what the query sees of it, and on nothing else; parts are merged in order of blocks by the
//! operations of [`Merge`], at once or later. A position that a query does not see weighs exactly zero. Where
//! positions have scales, a score is multiplied by its key's once, and a weight by its value's once.

use super::parts::{Call, HEAD, Merge, put_head};
use super::plan::{Piece, Row};
use super::soften::soften;
use super::units::Units;
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
/// Bytes that memory moves at a time.
const LINE: usize = 64;
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

/// Where keys and values of a block lie, for its units that are seen, and of the block that is fetched meanwhile.
struct Sides<'a> {
    keys: [&'a [u8]; UNITS],
    values: [&'a [u8]; UNITS],
    next_keys: [&'a [u8]; UNITS],
    next_values: [&'a [u8]; UNITS],
}

/// What a tile of queries knows of one block.
struct Block<'a, S: Simd, const Q: usize> {
    /// Its first unit that is seen, and how many.
    base: usize,
    units: usize,
    sides: Sides<'a>,
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
        self.fetch_first();
        for block in self.blocks.clone() {
            let mut q = 0;
            while q < queries {
                let states = &mut states[q..queries];
                let sums = &mut sums[q * stride..];
                q += match queries - q {
                    1 => self.tile::<S, 1>(s, block, q, states, sums),
                    2 => self.tile::<S, 2>(s, block, q, states, sums),
                    3 => self.tile::<S, 3>(s, block, q, states, sums),
                    6.. if S::WIDE => self.tile::<S, 6>(s, block, q, states, sums),
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

    /// Asks for what these rows see of the first block; what comes after is asked for a block ahead.
    #[inline(always)]
    fn fetch_first(&self) {
        let start = self.blocks.start * BLOCK;
        let from = self.rows.iter().map(|row| row.from).min().unwrap_or(start).max(start);
        let to = self.rows.iter().map(|row| row.to).max().unwrap_or(start).min(start + BLOCK);
        for unit in from / LANES..to.div_ceil(LANES) {
            if let Some((keys, values)) = self.units.ahead(unit) {
                for side in [keys, values] {
                    (0..side.len()).step_by(LINE).for_each(|at| prefetch(side, at));
                }
            }
        }
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
        // The tile that comes first to a block fetches the next, as far as the last of these rows sees it.
        let last = self.query(first + Q - 1).0.to.min(self.blocks.end * BLOCK).div_ceil(LANES);
        let base = block * UNITS + units.start;
        let mut now = Block::<S, Q> {
            base,
            units: units.len(),
            sides: self.sides(base, units.len(), if first == 0 { last } else { 0 }),
            weights: [[0.0; BLOCK]; Q],
            peaks: [0.0; Q],
            totals: [s.splat(0.0); Q],
        };
        let mut at = 0;
        while at < now.units {
            at += match now.units - at {
                WIDTH.. if S::WIDE => self.scores::<S, Q, WIDTH>(s, at, first, &mut now),
                2.. if S::WIDE => self.scores::<S, Q, 2>(s, at, first, &mut now),
                _ => self.scores::<S, Q, 1>(s, at, first, &mut now),
            };
        }
        for q in 0..Q {
            let row = self.query(first + q).0;
            let weights = &mut now.weights[q][..now.units * LANES];
            let scale = self.call.spec.scale;
            (now.peaks[q], now.totals[q]) = soften(s, weights, now.base * LANES, row.from, row.to, scale);
            if U::SCALED {
                self.scale_weights(s, &now.sides.values, weights);
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
        let stride = self.call.stride();
        let mut at = 0;
        while at < stride {
            at += if S::WIDE && stride - at >= WIDTH * LANES {
                self.values::<S, Q, WIDTH>(s, at, first, block, &now, &factors, sums)
            } else {
                self.values::<S, Q, 1>(s, at, first, block, &now, &factors, sums)
            };
        }
    }

    /// Multiplies weights by the scales of their units' values.
    #[inline(always)]
    fn scale_weights<S: Simd>(&self, s: S, values: &[&[u8]; UNITS], weights: &mut [f32]) {
        let codes = U::Element::BYTES * LANES * self.call.stride();
        let (vectors, _) = weights.as_chunks_mut::<16>();
        for (v, values) in vectors.iter_mut().zip(values) {
            let scales = values[codes..].first_chunk().expect("sixteen scales");
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

    /// Where `units` units from `base` on lie, and those of the next block that come before `last`. Where there is nothing
    /// to fetch, they stand for themselves: a hint for what is there costs less than a question in a loop.
    #[inline(always)]
    fn sides(&self, base: usize, units: usize, last: usize) -> Sides<'_> {
        let none: [&[u8]; UNITS] = [&[]; UNITS];
        let mut sides = Sides { keys: none, values: none, next_keys: none, next_values: none };
        for i in 0..units {
            let unit = self.units.unit(base + i);
            (sides.keys[i], sides.values[i]) = unit;
            let next = base + i + UNITS;
            let next = if next < last { self.units.ahead(next) } else { None };
            (sides.next_keys[i], sides.next_values[i]) = next.unwrap_or(unit);
        }
        sides
    }

    /// The raw scores of `Q` queries with `P` units from `at` on, in order of positions; returns `P`. Fetches the
    /// next block's keys.
    #[inline(always)]
    fn scores<S: Simd, const Q: usize, const P: usize>(
        &self,
        s: S,
        at: usize,
        first: usize,
        now: &mut Block<'_, S, Q>,
    ) -> usize {
        let dim = self.call.spec.head_dim;
        let size = U::Element::BYTES * LANES;
        let mut keys: [&[u8]; P] = [&[]; P];
        let mut next: [&[u8]; P] = [&[]; P];
        let mut scales = [s.splat(1.0); P];
        for p in 0..P {
            let k = now.sides.keys[at + p];
            (keys[p], next[p]) = (&k[..dim * size], now.sides.next_keys[at + p]);
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
                // SAFETY: `keys` hold `dim` vectors, and `d` is below.
                k[p] = unsafe { vector::<S, U::Element>(s, keys[p], d * size) };
                prefetch(next[p], d * size);
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

    /// Elements `[at, at + 16 W)` of the queries' weighted values, to their sums or parts; returns `16 W`. Fetches
    /// the same of the next block.
    #[inline(always)]
    #[allow(clippy::too_many_arguments)]
    fn values<S: Simd, const Q: usize, const W: usize>(
        &self,
        s: S,
        at: usize,
        first: usize,
        block: usize,
        now: &Block<'_, S, Q>,
        factors: &[[f32; 2]; Q],
        sums: &mut [f32],
    ) -> usize {
        let stride = self.call.stride();
        assert!(at + W * LANES <= stride, "the elements are those of a position");
        let mut acc = [[s.splat(0.0); W]; Q];
        let size = U::Element::BYTES * LANES;
        let width = U::Element::BYTES * stride;
        let at_bytes = at * U::Element::BYTES;
        let sides = now.sides.values.iter().zip(&now.sides.next_values).take(now.units);
        for (unit, (values, next)) in sides.enumerate() {
            assert!(values.len() >= LANES * width, "a unit has sixteen values");
            let mut weights = [&[0.0; LANES]; Q];
            for q in 0..Q {
                weights[q] = &now.weights[q].as_chunks::<LANES>().0[unit];
            }
            for t in 0..LANES {
                let row = t * width + at_bytes;
                let mut v = [s.splat(0.0); W];
                for w in 0..W {
                    // SAFETY: `values` hold 16 rows of `width` bytes, and the vectors up to `at + 16 W` of each.
                    v[w] = unsafe { vector::<S, U::Element>(s, values, row + w * size) };
                    if (w * size).is_multiple_of(LINE) {
                        prefetch(next, row + w * size);
                    }
                }
                for q in 0..Q {
                    let weight = s.splat(weights[q][t]);
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

/// The sixteen elements that begin `at` bytes after the start of `x`.
///
/// # Safety
/// They lie in `x`.
#[inline(always)]
unsafe fn vector<S: Simd, E: Element>(s: S, x: &[u8], at: usize) -> S::F {
    // SAFETY: the caller's promise.
    E::load(s, unsafe { x.get_unchecked(at..at + E::BYTES * LANES) })
}

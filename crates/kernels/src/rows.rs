//! Operations on rows: norms, rotary embedding, gates, sums, table look-up.
//!
//! Invariant: a row's result depends on that row alone; the order of additions inside a row is fixed and
//! the same on every instruction set.

use crate::buffer::Shared;
use crate::math;
use crate::matrix::Panels;
use crate::pool::Pool;
use crate::simd::{Kernel, Simd};
use device::{Activation, RopeStyle};

/// Elements below which an operation is not worth a parallel region.
const SERIAL: usize = 1 << 14;

/// Runs `body(first row, rows)` over pieces of a tensor's rows, in parallel when that pays.
pub(crate) fn for_rows(pool: &Pool, x: &mut [f32], width: usize, body: &(dyn Fn(usize, &mut [f32]) + Sync)) {
    if x.is_empty() {
        return;
    }
    if x.len() < SERIAL {
        return body(0, x);
    }
    let rows = x.len() / width;
    let out = Shared::new(x);
    pool.ranges(rows, rows.div_ceil(pool.threads() * 4), &|range| {
        // SAFETY: the ranges of rows do not overlap.
        body(range.start, unsafe { out.part(range.start * width, range.len() * width) });
    });
}

/// The sum of `f(x)` over a row: lanes first (four vectors side by side), then across lanes.
#[inline(always)]
fn row_sum<S: Simd>(s: S, x: &[f32], f: impl Fn(S::F, S::F) -> S::F) -> f32 {
    let zero = s.splat(0.0);
    let mut sums = [zero; 4];
    let (whole, rest) = x.as_chunks::<64>();
    for chunk in whole {
        let (vectors, _) = chunk.as_chunks::<16>();
        for (sum, v) in sums.iter_mut().zip(vectors) {
            *sum = f(s.load(v), *sum);
        }
    }
    for (sum, v) in sums.iter_mut().zip(rest.chunks(16)) {
        let kept = s.load_part(v);
        let next = f(kept, *sum);
        // Lanes past the row's end must not take part: `f` of a zero need not be zero.
        *sum = if v.len() == 16 { next } else { keep_lanes(s, next, *sum, v.len()) };
    }
    s.sum(s.add(s.add(sums[0], sums[2]), s.add(sums[1], sums[3])))
}

/// The first `len` lanes of `a`, the others of `b`.
#[inline(always)]
fn keep_lanes<S: Simd>(s: S, a: S::F, b: S::F, len: usize) -> S::F {
    const INDEX: [f32; 16] =
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];
    s.select_lt(s.load(&INDEX), s.splat(len as f32), a, b)
}

/// `x[i] = f(x[i], i-th vector's start)` over a slice, sixteen elements at a time.
#[inline(always)]
fn map<S: Simd>(s: S, x: &mut [f32], f: impl Fn(S::F, usize) -> S::F) {
    let len = x.len();
    let (whole, rest) = x.as_chunks_mut::<16>();
    for (i, v) in whole.iter_mut().enumerate() {
        s.store(f(s.load(v), i * 16), v);
    }
    if !rest.is_empty() {
        s.store_part(f(s.load_part(rest), len - rest.len()), rest);
    }
}

/// The sixteen elements of `x` from `at` on, or as many as there are.
#[inline(always)]
fn at<S: Simd>(s: S, x: &[f32], at: usize) -> S::F {
    let rest = &x[at..];
    match rest.first_chunk::<16>() {
        Some(v) => s.load(v),
        None => s.load_part(rest),
    }
}

/// Root-mean-square norm of each row of `width`, in place.
pub(crate) struct RmsNorm<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) eps: f32,
}
impl Kernel for RmsNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in self.x.chunks_exact_mut(self.weight.len()) {
            let squares = row_sum(
                s,
                row,
                #[inline(always)]
                |x, sum| s.fma(x, x, sum),
            );
            let scale = s.splat(1.0 / (squares / row.len() as f32 + self.eps).sqrt());
            map(
                s,
                row,
                #[inline(always)]
                |x, i| s.mul(s.mul(x, scale), at(s, self.weight, i)),
            );
        }
    }
}

/// Layer norm of each row, in place.
pub(crate) struct LayerNorm<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) weight: &'a [f32],
    pub(crate) bias: &'a [f32],
    pub(crate) eps: f32,
}
impl Kernel for LayerNorm<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for row in self.x.chunks_exact_mut(self.weight.len()) {
            let len = row.len() as f32;
            let mean = s.splat(
                row_sum(
                    s,
                    row,
                    #[inline(always)]
                    |x, sum| s.add(x, sum),
                ) / len,
            );
            let squares = row_sum(
                s,
                row,
                #[inline(always)]
                |x, sum| {
                    let d = s.sub(x, mean);
                    s.fma(d, d, sum)
                },
            );
            let scale = s.splat(1.0 / (squares / len + self.eps).sqrt());
            map(
                s,
                row,
                #[inline(always)]
                |x, i| {
                    let normal = s.mul(s.sub(x, mean), scale);
                    s.fma(normal, at(s, self.weight, i), at(s, self.bias, i))
                },
            );
        }
    }
}

/// `x = activation(x)`, times `up` if there is one.
pub(crate) struct Gate<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) up: Option<&'a [f32]>,
    pub(crate) activation: Activation,
}
impl Kernel for Gate<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        match self.up {
            Some(up) => map(
                s,
                self.x,
                #[inline(always)]
                |x, i| s.mul(math::activation(s, x, self.activation), at(s, up, i)),
            ),
            None => map(
                s,
                self.x,
                #[inline(always)]
                |x, _| math::activation(s, x, self.activation),
            ),
        }
    }
}

/// `x += y`.
pub(crate) struct Add<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) y: &'a [f32],
}
impl Kernel for Add<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        map(
            s,
            self.x,
            #[inline(always)]
            |x, i| s.add(x, at(s, self.y, i)),
        );
    }
}

/// Cosines and sines of the batch's positions, kept from call to call: all layers of a step turn by the
/// same angles.
#[derive(Default)]
pub(crate) struct Angles {
    /// Shared with the vector it was made from, so that the address names it as long as it is kept.
    frequencies: Option<crate::Vector>,
    style: Option<RopeStyle>,
    positions: Vec<u32>,
    /// Per position `2 * stride`: cosines, then sines.
    table: Vec<f32>,
}

impl Angles {
    /// Whether this is the table for these arguments.
    pub(crate) fn fits(&self, frequencies: &crate::Vector, style: RopeStyle, positions: &[u32]) -> bool {
        self.frequencies.as_ref().is_some_and(|f| f.same(frequencies))
            && self.style == Some(style)
            && self.positions == positions
    }

    /// Makes the table. An angle is a product in double precision, so far positions lose nothing.
    pub(crate) fn set(
        &mut self,
        frequencies: &crate::Vector,
        style: RopeStyle,
        positions: &[u32],
        pool: &Pool,
    ) {
        self.frequencies = Some(frequencies.clone());
        self.style = Some(style);
        self.positions.clear();
        self.positions.extend_from_slice(positions);
        let half = frequencies.len();
        let stride = stride(style, half);
        self.table.resize(positions.len() * 2 * stride, 0.0);
        for_rows(pool, &mut self.table, 2 * stride, &|first, rows| {
            for (row, position) in rows.chunks_exact_mut(2 * stride).zip(&positions[first..]) {
                let (cos, sin) = row.split_at_mut(stride);
                for (i, f) in frequencies.iter().enumerate() {
                    let (s, c) = (f64::from(*position) * f64::from(*f)).sin_cos();
                    match style {
                        RopeStyle::Halves => (cos[i], sin[i]) = (c as f32, s as f32),
                        RopeStyle::Pairs => {
                            cos[2 * i..2 * i + 2].fill(c as f32);
                            (sin[2 * i], sin[2 * i + 1]) = (-s as f32, s as f32);
                        }
                    }
                }
            }
        });
    }

    fn row(&self, row: usize) -> (&[f32], &[f32]) {
        let stride = self.table.len() / self.positions.len() / 2;
        self.table[row * 2 * stride..][..2 * stride].split_at(stride)
    }
}

fn stride(style: RopeStyle, half: usize) -> usize {
    match style {
        RopeStyle::Halves => half,
        RopeStyle::Pairs => 2 * half,
    }
}

/// Turns the heads of some rows in place.
pub(crate) struct Rope<'a> {
    pub(crate) x: &'a mut [f32],
    pub(crate) width: usize,
    pub(crate) head_dim: usize,
    pub(crate) rotary: usize,
    pub(crate) style: RopeStyle,
    pub(crate) angles: &'a Angles,
    /// The batch row that `x` starts with.
    pub(crate) first: usize,
}
impl Kernel for Rope<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (r, row) in self.x.chunks_exact_mut(self.width).enumerate() {
            let (cos, sin) = self.angles.row(self.first + r);
            for head in row.chunks_exact_mut(self.head_dim) {
                let head = &mut head[..self.rotary];
                match self.style {
                    RopeStyle::Pairs => map(
                        s,
                        head,
                        #[inline(always)]
                        |x, i| s.fma(s.swap_pairs(x), at(s, sin, i), s.mul(x, at(s, cos, i))),
                    ),
                    RopeStyle::Halves => {
                        let (low, high) = head.split_at_mut(self.rotary / 2);
                        for (i, (a, b)) in low.chunks_mut(16).zip(high.chunks_mut(16)).enumerate() {
                            let (x, y) = (s.load_part(a), s.load_part(b));
                            let (c, d) = (at(s, cos, i * 16), at(s, sin, i * 16));
                            s.store_part(s.sub(s.mul(x, c), s.mul(y, d)), a);
                            s.store_part(s.fma(x, d, s.mul(y, c)), b);
                        }
                    }
                }
            }
        }
    }
}

/// `out[r] = table[ids[r]] * scale`, or added to `out` when `accumulate`.
pub(crate) fn embed(pool: &Pool, table: &Panels, ids: &[u32], scale: f32, accumulate: bool, out: &mut [f32]) {
    for_rows(pool, out, table.cols, &|first, rows| {
        for (row, id) in rows.chunks_exact_mut(table.cols).zip(&ids[first..]) {
            table.row(*id as usize, |k, value| {
                row[k] = if accumulate { row[k] + value } else { value * scale };
            });
        }
    });
}

//! Parts of a query's result, one for each block, and how they merge.
//!
//! Invariant: merging a part does the same operations whether the part was just computed or lay in memory.

use super::plan::Row;
use crate::buffer::Shared;
use crate::math;
use crate::simd::{Kernel, LANES, Simd};
use device::{AttentionSpec, QUERY_GROUP_MAX};

/// Floats of a part before its weighted values: the greatest score in the first, and sixteen sums of weights.
pub(super) const HEAD: usize = 2 * LANES;

/// Floats of a query's part.
pub(crate) fn part_len(spec: &AttentionSpec) -> usize {
    HEAD + spec.head_dim.next_multiple_of(LANES)
}

/// Queries, and where what comes out goes.
#[derive(Clone, Copy)]
pub(crate) struct Call<'a> {
    /// `[rows, heads * head_dim]`, all rows of the batch.
    pub(crate) queries: &'a [f32],
    /// As the queries.
    pub(crate) out: &'a Shared<'a, f32>,
    /// `[parts, heads, part_len]`.
    pub(crate) parts: &'a Shared<'a, f32>,
    pub(crate) spec: &'a AttentionSpec,
}

impl Call<'_> {
    pub(super) fn group(&self) -> usize {
        self.spec.heads / self.spec.kv_heads
    }

    pub(super) fn stride(&self) -> usize {
        self.spec.head_dim.next_multiple_of(LANES)
    }

    /// A part of the queries of a row for a KV head; `block` is one that the row has a part for.
    ///
    /// # Safety
    /// No other part that overlaps is alive.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn part(&self, row: &Row, block: usize, head: usize) -> Option<&mut [f32]> {
        let place = row.parts?;
        let slot = block.checked_sub(place.block).filter(|slot| *slot < place.count)?;
        let len = part_len(self.spec);
        // SAFETY: the caller promises that the part is alone.
        Some(unsafe { self.parts.part(((place.first + slot) * self.spec.heads + head) * len, len) })
    }

    /// Writes a query's result.
    #[inline(always)]
    pub(super) fn finish<S: Simd>(&self, s: S, row: &Row, head: usize, total: S::F, sums: &[f32]) {
        let dim = self.spec.head_dim;
        // SAFETY: this row's part for this head belongs to the one item that finishes it.
        let out = unsafe { self.out.part((row.row * self.spec.heads + head) * dim, dim) };
        let inverse = s.splat(1.0 / s.sum(total));
        for (to, x) in out.chunks_mut(LANES).zip(sums.chunks_exact(LANES)) {
            // Adding zero makes a negative zero, which is a matter of what was left out, positive.
            s.store_part(s.fma(s.load_part(x), inverse, s.splat(0.0)), to);
        }
    }
}

#[inline(always)]
pub(super) fn put_head<S: Simd>(s: S, part: &mut [f32], peak: f32, total: S::F) {
    part[0] = peak;
    s.store(total, part[LANES..].first_chunk_mut().expect("the head of a part"));
}

/// What parts merge to: the greatest score so far, and sums of weights relative to it, lane by lane.
#[derive(Clone, Copy)]
pub(super) struct Merge<S: Simd> {
    pub(super) peak: f32,
    pub(super) total: S::F,
}

impl<S: Simd> Merge<S> {
    #[inline(always)]
    pub(super) fn fresh(s: S) -> Self {
        Self { peak: f32::NEG_INFINITY, total: s.splat(0.0) }
    }

    /// Adds a part; gives the factors of what was and of what comes, for [`Self::sums`].
    #[inline(always)]
    pub(super) fn add(&mut self, s: S, peak: f32, total: S::F) -> [f32; 2] {
        let max = if peak > self.peak { peak } else { self.peak };
        if max == f32::NEG_INFINITY {
            return [1.0, 0.0];
        }
        let mut shifts = [0.0; 16];
        shifts[..2].copy_from_slice(&[self.peak - max, peak - max]);
        let factors = s.array(math::exp(s, s.load(&shifts)));
        let factors = [factors[0], factors[1]];
        self.total = Self::sums(s, factors, self.total, total);
        self.peak = max;
        factors
    }

    /// Merges sums with those of the part that was just added.
    #[inline(always)]
    pub(super) fn sums(s: S, factors: [f32; 2], was: S::F, comes: S::F) -> S::F {
        s.fma(comes, s.splat(factors[1]), s.mul(was, s.splat(factors[0])))
    }
}

/// Merges the parts of a row's queries with a KV head, and writes the result.
pub(crate) struct Finish<'a> {
    pub(crate) call: Call<'a>,
    pub(crate) row: Row,
    pub(crate) kv_head: usize,
    /// `[group, stride]`, all zero.
    pub(crate) sums: &'a mut [f32],
}

impl Kernel for Finish<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        let Some(place) = self.row.parts else { return };
        let group = self.call.group();
        let heads = self.kv_head * group..(self.kv_head + 1) * group;
        let stride = self.call.stride();
        let mut states = [Merge::<S>::fresh(s); QUERY_GROUP_MAX];
        // Head by head within a slot: each head's merging waits for its last, so that of all overlaps.
        for slot in 0..place.count {
            for (i, head) in heads.clone().enumerate() {
                // SAFETY: all pieces of this row are done, and one item finishes it.
                let part = unsafe { self.call.part(&self.row, place.block + slot, head) };
                let part = part.expect("a slot of the row");
                let total = s.load(part[LANES..].first_chunk().expect("the head of a part"));
                let factors = states[i].add(s, part[0], total);
                let (sums, _) = self.sums[i * stride..][..stride].as_chunks_mut::<16>();
                for (sum, x) in sums.iter_mut().zip(part[HEAD..].as_chunks::<16>().0) {
                    s.store(Merge::sums(s, factors, s.load(sum), s.load(x)), sum);
                }
            }
        }
        for (i, head) in heads.enumerate() {
            self.call.finish(s, &self.row, head, states[i].total, &self.sums[i * stride..][..stride]);
        }
    }
}

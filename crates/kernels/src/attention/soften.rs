//! From the scores of a block's positions to their weights.
//!
//! Invariant: a weight depends on its score, the greatest score that is seen and nothing else; a position that is not
//! seen weighs exactly zero.

use crate::math;
use crate::simd::{LANES, Simd};

/// Turns raw scores of positions from `base` on into weights relative to their greatest, which is returned
/// with the sums of the weights, lane by lane. Positions outside `[from, to)` weigh zero; if that is all of
/// them, the greatest is minus infinity.
#[inline(always)]
pub(super) fn soften<S: Simd>(
    s: S,
    scores: &mut [f32],
    base: usize,
    from: usize,
    to: usize,
    scale: f32,
) -> (f32, S::F) {
    const INDEX: [f32; 16] =
        [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0];
    let (vectors, _) = scores.as_chunks_mut::<16>();
    let hidden = s.splat(f32::NEG_INFINITY);
    let index = s.load(&INDEX);
    let scale = s.splat(scale);
    let mut peak = hidden;
    for (i, v) in vectors.iter_mut().enumerate() {
        let start = base + i * LANES;
        let mut score = s.mul(s.load(v), scale);
        if start < from || to < start + LANES {
            // Lanes `[first, end)` of this unit are seen.
            let first = from.saturating_sub(start).min(LANES) as f32;
            let end = to.saturating_sub(start).min(LANES) as f32;
            score = s.select_lt(index, s.splat(end), score, hidden);
            score = s.select_lt(index, s.splat(first), hidden, score);
        }
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

//! Chooses the next token from a row of logits, and reports log-probabilities.
//!
//! Weights are `exp((logit - max) / temperature)` in fixed point with 40 fractional bits, so sums are exact
//! and depend on no order: the kept set and the draw are the same however they are computed. A token less
//! than 2^-40 times as likely as the best one has weight 0 and is never drawn.
//!
//! Cutting to `top_k` or `top_p` does not sort the vocabulary: a histogram over the float's exponent and
//! top mantissa bits finds the last bucket that can be kept, and only what lies above is sorted.
//!
//! A NaN counts as impossible. Nothing here panics on what a model or a caller gives.

use crate::{Constraint, Sampling, Standing, TokenChoice, TokenLogprobs, TokenMask};

/// The outcome for one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The next token.
    Token(u32),
    /// The constraint says that the answer ends here; or, without one, the bans leave nothing.
    Nothing,
    /// The constraint failed, or the bans leave nothing of what it allows.
    Stuck,
    /// The model's logits have no number in them.
    Invalid,
}

/// What the penalties look at.
#[derive(Clone, Copy)]
pub(crate) struct History<'a> {
    pub tokens: &'a [u32],
    /// The answer begins here.
    pub prompt: usize,
}

/// Bits after the point of a weight. With at most 2^20 tokens a sum stays below 2^61.
const FRACTION_BITS: i32 = 40;
/// A bias of this or less bans a token.
const BAN: f32 = -100.0;
/// Buckets of the histogram: the top 12 bits of a float in [0, 1], sign included.
const BUCKET_SHIFT: u32 = 20;
const BUCKETS: usize = (1.0f32.to_bits() >> BUCKET_SHIFT) as usize + 1;
/// Marks a token as seen, beside its count.
const SEEN: u32 = 1 << 31;

/// Buffers that are kept from row to row.
pub(crate) struct Sampler {
    work: Vec<f32>,
    /// By token; all zero between rows.
    counts: Vec<u32>,
    kept: Vec<(f32, u32)>,
    mask: TokenMask,
    buckets: Vec<(u32, u64)>,
}

impl Sampler {
    pub fn new(vocab: u32) -> Self {
        Self {
            work: Vec::with_capacity(vocab as usize),
            counts: vec![0; vocab as usize],
            kept: Vec::new(),
            mask: TokenMask::none(vocab),
            buckets: vec![(0, 0); BUCKETS],
        }
    }

    /// Entries of the vocabulary, so of a row.
    pub fn vocab(&self) -> usize {
        self.counts.len()
    }

    /// Chooses a token; `uniform` in `[0, 1)` decides where chance does.
    pub fn choose(
        &mut self,
        logits: &[f32],
        sampling: &Sampling,
        history: History<'_>,
        constraint: Option<&mut (dyn Constraint + 'static)>,
        uniform: f64,
    ) -> Choice {
        // A NaN is greedy as well.
        let greedy = sampling.temperature <= 0.0 || sampling.temperature.is_nan();
        if greedy && constraint.is_none() && is_plain(sampling) {
            return argmax(logits).map_or(Choice::Invalid, Choice::Token);
        }
        if !logits.iter().any(|logit| *logit > f32::NEG_INFINITY) {
            return Choice::Invalid;
        }
        let constrained = constraint.is_some();
        if let Some(constraint) = constraint {
            self.mask.clear();
            match constraint.mask(&mut self.mask) {
                Standing::Open => {}
                Standing::Ended => return Choice::Nothing,
                Standing::Failed => return Choice::Stuck,
            }
            // Nothing but the best of what is allowed is of interest.
            if greedy && is_plain(sampling) {
                let best = argmax_allowed(logits, self.mask.words_mut());
                return best.map_or(Choice::Stuck, Choice::Token);
            }
        }
        self.work.clear();
        self.work.extend(logits.iter().map(|l| if l.is_nan() { f32::NEG_INFINITY } else { *l }));
        self.penalise(sampling, history);
        for &(id, bias) in &sampling.logit_bias {
            if let Some(logit) = self.work.get_mut(id as usize) {
                *logit = if bias <= BAN { f32::NEG_INFINITY } else { *logit + bias };
            }
        }
        if constrained {
            forbid(&mut self.work, self.mask.words_mut());
        }
        let Some(best) = argmax(&self.work) else {
            return if constrained { Choice::Stuck } else { Choice::Nothing };
        };
        if greedy || sampling.top_k == Some(1) {
            return Choice::Token(best);
        }
        let max = self.work[best as usize].min(f32::MAX);
        for logit in &mut self.work {
            *logit = weigh((*logit - max) / sampling.temperature);
        }
        Choice::Token(self.draw(sampling, uniform).unwrap_or(best))
    }

    /// Applies the penalties to `work`.
    fn penalise(&mut self, sampling: &Sampling, history: History<'_>) {
        let answer = &history.tokens[history.prompt.min(history.tokens.len())..];
        let counted = sampling.frequency_penalty != 0.0 || sampling.presence_penalty != 0.0;
        let repeated = sampling.repetition_penalty != 1.0;
        let seen = if repeated {
            history.tokens
        } else if counted {
            answer
        } else {
            return;
        };
        for id in answer {
            self.counts[*id as usize] += 1;
        }
        for id in seen {
            let count = &mut self.counts[*id as usize];
            if *count & SEEN != 0 {
                continue;
            }
            let times = *count;
            *count |= SEEN;
            let logit = &mut self.work[*id as usize];
            if repeated {
                let by = sampling.repetition_penalty;
                *logit = if *logit > 0.0 { *logit / by } else { *logit * by };
            }
            if times > 0 {
                *logit -= sampling.frequency_penalty * times as f32 + sampling.presence_penalty;
            }
        }
        for id in seen {
            self.counts[*id as usize] = 0;
        }
    }

    /// Draws from the weights in `work` after the cuts; `None` if no weight is left.
    fn draw(&mut self, sampling: &Sampling, uniform: f64) -> Option<u32> {
        let vocab = self.work.len();
        let top_k = sampling.top_k.map(|k| k as usize).filter(|k| *k > 0 && *k < vocab);
        let top_p = (sampling.top_p < 1.0).then_some(f64::from(sampling.top_p));
        let min_p = (sampling.min_p > 0.0).then_some(sampling.min_p.min(1.0));
        if top_k.is_none() && top_p.is_none() && min_p.is_none() {
            let weights = self.work.iter().zip(0u32..).map(|(w, id)| (*w, id));
            return draw(weights, uniform);
        }
        let floor = match (top_k, top_p) {
            (None, None) => 0.0,
            _ => self.floor(top_k, top_p),
        };
        let floor = floor.max(if top_k.is_none() && top_p.is_none() { min_p.unwrap_or(0.0) } else { 0.0 });
        self.kept.clear();
        let candidates = self.work.iter().zip(0u32..).filter(|(w, _)| **w >= floor && fixed(**w) > 0);
        self.kept.extend(candidates.map(|(w, id)| (*w, id)));
        if top_k.is_some() || top_p.is_some() {
            self.kept.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
            self.kept.truncate(top_k.unwrap_or(usize::MAX));
            if let Some(top_p) = top_p {
                // Without top_k the mass is that of all tokens, not only of those gathered.
                let total: u64 = match top_k {
                    Some(_) => self.kept.iter().map(|(w, _)| fixed(*w)).sum(),
                    None => self.work.iter().map(|w| fixed(*w)).sum(),
                };
                let keep = nucleus(self.kept.iter().map(|(w, _)| fixed(*w)), top_p, total);
                self.kept.truncate(keep);
            }
            if let Some(min_p) = min_p {
                self.kept.retain(|(w, _)| *w >= min_p);
            }
            self.kept.sort_unstable_by_key(|(_, id)| *id);
        }
        draw(self.kept.iter().copied(), uniform)
    }

    /// A weight such that all tokens which `top_k` or, without it, `top_p` keeps have at least that.
    fn floor(&mut self, top_k: Option<usize>, top_p: Option<f64>) -> f32 {
        self.buckets.fill((0, 0));
        let mut total = 0;
        for weight in &self.work {
            let fixed = fixed(*weight);
            let bucket = &mut self.buckets[(weight.to_bits() >> BUCKET_SHIFT) as usize];
            bucket.0 += u32::from(fixed > 0);
            bucket.1 += fixed;
            total += fixed;
        }
        let (mut count, mut mass) = (0, 0);
        for (i, bucket) in self.buckets.iter().enumerate().rev() {
            count += bucket.0 as usize;
            mass += bucket.1;
            let enough = match top_k {
                Some(k) => count >= k,
                None => top_p.is_some_and(|p| reaches(mass, p, total)),
            };
            if enough {
                return f32::from_bits((i as u32) << BUCKET_SHIFT);
            }
        }
        0.0
    }
}

/// Whether nothing but temperature and cuts shapes the choice.
fn is_plain(sampling: &Sampling) -> bool {
    sampling.repetition_penalty == 1.0
        && sampling.frequency_penalty == 0.0
        && sampling.presence_penalty == 0.0
        && sampling.logit_bias.is_empty()
}

/// The lowest id of the largest logit; `None` if no logit is above minus infinity.
fn argmax(logits: &[f32]) -> Option<u32> {
    let max = most(logits);
    if max == f32::NEG_INFINITY {
        return None;
    }
    // A look at a whole chunk vectorises, a search that may end at each logit does not.
    let has = |chunk: &[f32]| chunk.iter().fold(false, |found, logit| found | (*logit == max));
    let (chunk, first) = logits.chunks(64).zip((0u32..).step_by(64)).find(|(chunk, _)| has(chunk))?;
    chunk.iter().zip(first..).find(|(logit, _)| **logit == max).map(|(_, id)| id)
}

/// The same among the tokens in the mask.
fn argmax_allowed(logits: &[f32], allowed: &[u64]) -> Option<u32> {
    let mut best = (f32::NEG_INFINITY, None);
    for ((chunk, word), first) in logits.chunks(64).zip(allowed).zip((0u32..).step_by(64)) {
        if *word == u64::MAX {
            if most(chunk) > best.0
                && let Some(at) = argmax(chunk)
            {
                best = (chunk[at as usize], Some(first + at));
            }
            continue;
        }
        let mut left = *word;
        while left != 0 {
            let at = left.trailing_zeros();
            left &= left - 1;
            if let Some(logit) = chunk.get(at as usize).filter(|logit| **logit > best.0) {
                best = (*logit, Some(first + at));
            }
        }
    }
    best.1
}

/// The largest logit; a NaN is none.
fn most(logits: &[f32]) -> f32 {
    const LANES: usize = 16;
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let chunks = logits.chunks_exact(LANES);
    let rest = chunks.remainder();
    for chunk in chunks {
        for (lane, logit) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, *logit);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |most, logit| larger(most, *logit))
}

/// Rules out all tokens that are not in the mask.
fn forbid(logits: &mut [f32], allowed: &[u64]) {
    for (chunk, word) in logits.chunks_mut(64).zip(allowed) {
        match *word {
            u64::MAX => {}
            0 => chunk.fill(f32::NEG_INFINITY),
            word => {
                for (bit, logit) in chunk.iter_mut().enumerate() {
                    if word >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
    }
}

/// `exp(x)` for a difference to the maximum, in `[0, 1]`; a NaN gives 0.
fn weigh(x: f32) -> f32 {
    if x > -60.0 { exp(x.min(0.0)) } else { 0.0 }
}

/// The natural exponential for `-87 <= x <= 0`, within 2e-7 of it relatively. Straight-line arithmetic
/// without a library call, so that it vectorises and gives the same bits on each machine.
fn exp(x: f32) -> f32 {
    // Adding 1.5 * 2^23 rounds to the nearest integer.
    const ROUND: f32 = 12_582_912.0;
    let n = (x * std::f32::consts::LOG2_E + ROUND) - ROUND;
    let r = (x - n * 0.693_359_4) - n * -2.121_944_4e-4;
    // Coefficients of the Cephes library's expf, for |r| <= ln(2) / 2.
    let p = ((((1.987_569_2e-4 * r + 1.398_2e-3) * r + 8.333_452e-3) * r + 4.166_579_6e-2) * r
        + 1.666_666_5e-1)
        * r
        + 0.5;
    let y = p * r * r + r + 1.0;
    (y * f32::from_bits(((n as i32 + 127) << 23) as u32)).min(1.0)
}

/// A weight in fixed point.
fn fixed(weight: f32) -> u64 {
    (weight * (1u64 << FRACTION_BITS) as f32) as u64
}

/// Whether `mass` is at least the share `p` of `total`.
fn reaches(mass: u64, p: f64, total: u64) -> bool {
    mass as f64 >= p * total as f64
}

/// How many of the weights, largest first, make up the share `p`; at least one.
fn nucleus(weights: impl Iterator<Item = u64>, p: f64, total: u64) -> usize {
    let mut mass = 0;
    let mut kept = 0;
    for weight in weights {
        mass += weight;
        kept += 1;
        if reaches(mass, p, total) {
            break;
        }
    }
    kept
}

/// The token at which the running sum of the weights passes the share `uniform` of all.
fn draw(weights: impl Iterator<Item = (f32, u32)> + Clone, uniform: f64) -> Option<u32> {
    let total: u64 = weights.clone().map(|(w, _)| fixed(w)).sum();
    let mut left = ((uniform * total as f64) as u64).min(total.checked_sub(1)?);
    for (weight, id) in weights {
        let weight = fixed(weight);
        if left < weight {
            return Some(id);
        }
        left -= weight;
    }
    None
}

/// Log-probabilities under the model's own distribution: of `chosen`, and of the `top` most likely.
/// A token whose logit is NaN has minus infinity.
pub(crate) fn logprobs(logits: &[f32], chosen: u32, top: u32) -> TokenLogprobs {
    let max = argmax(logits).map_or(f32::NEG_INFINITY, |id| logits[id as usize].min(f32::MAX));
    let sum: f64 = logits
        .iter()
        .map(|l| if *l - max > -87.0 { exp((*l - max).min(0.0)) } else { 0.0 })
        .map(f64::from)
        .sum();
    let log_sum = f64::from(max) + sum.ln();
    let of = |id: u32| {
        let logit = logits.get(id as usize).copied().unwrap_or(f32::NAN).min(f32::MAX);
        let logprob = (f64::from(logit) - log_sum) as f32;
        TokenChoice { id, logprob: if logprob.is_nan() { f32::NEG_INFINITY } else { logprob.min(0.0) } }
    };
    TokenLogprobs { chosen: of(chosen), top: largest(logits, top as usize).into_iter().map(of).collect() }
}

/// The ids of the `n` largest logits, largest first, ties by id; NaN never.
fn largest(logits: &[f32], n: usize) -> Vec<u32> {
    let mut best: Vec<u32> = Vec::with_capacity(n.min(logits.len()) + 1);
    if n == 0 {
        return best;
    }
    let mut floor = f32::NEG_INFINITY;
    for (logit, id) in logits.iter().zip(0u32..) {
        if logit.is_nan() || (best.len() == n && *logit <= floor) {
            continue;
        }
        let place = best.partition_point(|other| logits[*other as usize] >= *logit);
        best.insert(place, id);
        best.truncate(n);
        if best.len() == n {
            floor = logits[*best.last().expect("n is not 0") as usize];
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NO_HISTORY: History<'static> = History { tokens: &[], prompt: 0 };

    /// What the documentation of `Sampling` says, word by word, with sorts and without shortcuts.
    fn twin(
        logits: &[f32],
        sampling: &Sampling,
        history: History<'_>,
        allowed: Option<&[u32]>,
        u: f64,
    ) -> Choice {
        if logits.iter().all(|l| l.is_nan() || *l == f32::NEG_INFINITY) {
            return Choice::Invalid;
        }
        let mut l: Vec<f32> =
            logits.iter().map(|l| if l.is_nan() { f32::NEG_INFINITY } else { *l }).collect();
        for id in 0..l.len() as u32 {
            let times = history.tokens[history.prompt..].iter().filter(|t| **t == id).count();
            let logit = &mut l[id as usize];
            if sampling.repetition_penalty != 1.0 && history.tokens.contains(&id) {
                *logit = if *logit > 0.0 {
                    *logit / sampling.repetition_penalty
                } else {
                    *logit * sampling.repetition_penalty
                };
            }
            if times > 0 {
                *logit -= sampling.frequency_penalty * times as f32 + sampling.presence_penalty;
            }
            for (biased, bias) in &sampling.logit_bias {
                if *biased == id {
                    *logit = if *bias <= -100.0 { f32::NEG_INFINITY } else { *logit + bias };
                }
            }
            if allowed.is_some_and(|allowed| !allowed.contains(&id)) {
                *logit = f32::NEG_INFINITY;
            }
        }
        let mut order: Vec<u32> =
            (0..l.len() as u32).filter(|id| l[*id as usize] > f32::NEG_INFINITY).collect();
        order.sort_by(|a, b| l[*b as usize].partial_cmp(&l[*a as usize]).unwrap().then(a.cmp(b)));
        let Some(best) = order.first().copied() else {
            return if allowed.is_some() { Choice::Stuck } else { Choice::Nothing };
        };
        if sampling.temperature <= 0.0 || sampling.top_k == Some(1) {
            return Choice::Token(best);
        }
        let weight =
            |id: u32| weigh((l[id as usize] - l[best as usize].min(f32::MAX)) / sampling.temperature);
        order.sort_by(|a, b| weight(*b).total_cmp(&weight(*a)).then(a.cmp(b)));
        if let Some(k) = sampling.top_k.filter(|k| *k > 0) {
            order.truncate(k as usize);
        }
        if sampling.top_p < 1.0 {
            let total = order.iter().map(|id| fixed(weight(*id))).sum();
            let mut mass = 0;
            let cut = order.iter().position(|id| {
                mass += fixed(weight(*id));
                reaches(mass, f64::from(sampling.top_p), total)
            });
            order.truncate(cut.map_or(usize::MAX, |cut| cut + 1));
        }
        order.retain(|id| weight(*id) >= sampling.min_p);
        order.sort_unstable();
        let total: u64 = order.iter().map(|id| fixed(weight(*id))).sum();
        let mut left = ((u * total as f64) as u64).min(total - 1);
        for id in order {
            match left.checked_sub(fixed(weight(id))) {
                Some(rest) => left = rest,
                None => return Choice::Token(id),
            }
        }
        unreachable!("the draw is below the total")
    }

    struct Only(Vec<u32>);

    impl Constraint for Only {
        fn mask(&mut self, allowed: &mut TokenMask) -> Standing {
            self.0.iter().for_each(|id| allowed.allow(*id));
            Standing::Open
        }
        fn accept(&mut self, _: u32) {}
        fn forced(&mut self, _: &mut Vec<u32>) {}
    }

    fn logit() -> impl Strategy<Value = f32> {
        prop_oneof![
            12 => -8f32..8.0,
            4 => (-4i8..4).prop_map(f32::from),
            1 => prop::sample::select(vec![f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, -0.0]),
        ]
    }

    fn sampling() -> impl Strategy<Value = Sampling> {
        let cuts = (
            prop::sample::select(vec![0.0f32, 1e-6, 0.3, 1.0, 2.0, 50.0]),
            prop::option::of(0u32..150),
            prop::sample::select(vec![0.0f32, 0.1, 0.5, 0.9, 0.999, 1.0]),
            prop::sample::select(vec![0.0f32, 0.01, 0.3, 1.0]),
        );
        let penalties = (
            prop::sample::select(vec![1.0f32, 1.2, 0.8]),
            prop::sample::select(vec![0.0f32, 0.5, -1.0]),
            prop::sample::select(vec![0.0f32, 0.7]),
            prop::collection::vec((0u32..140, prop::sample::select(vec![-100.0f32, -1.0, 3.0, 100.0])), 0..3),
        );
        (cuts, penalties).prop_map(|((temperature, top_k, top_p, min_p), penalties)| {
            let (repetition_penalty, frequency_penalty, presence_penalty, mut logit_bias) = penalties;
            logit_bias.sort_by_key(|(id, _)| *id);
            logit_bias.dedup_by_key(|(id, _)| *id);
            Sampling {
                temperature,
                top_k,
                top_p,
                min_p,
                repetition_penalty,
                frequency_penalty,
                presence_penalty,
                logit_bias,
                seed: 0,
            }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn chooses_as_the_naive_twin(
            logits in prop::collection::vec(logit(), 130),
            sampling in sampling(),
            tokens in prop::collection::vec(0u32..130, 0..12),
            allowed in prop::option::weighted(0.3, prop::collection::vec(0u32..130, 0..40)),
            u in 0.0f64..1.0,
        ) {
            let history = History { tokens: &tokens, prompt: tokens.len() / 2 };
            let mut sampler = Sampler::new(130);
            let mut only = allowed.clone().map(Only);
            let constraint = only.as_mut().map(|only| only as &mut dyn Constraint);
            let expected = twin(&logits, &sampling, history, allowed.as_deref(), u);
            prop_assert_eq!(sampler.choose(&logits, &sampling, history, constraint, u), expected);
            prop_assert!(sampler.counts.iter().all(|count| *count == 0), "the buffers are clean again");
        }

        #[test]
        fn logprobs_are_the_log_of_a_softmax(
            logits in prop::collection::vec(-30f32..30.0, 1..200),
            chosen in any::<prop::sample::Index>(),
            top in 0u32..30,
        ) {
            let chosen = chosen.index(logits.len()) as u32;
            let reported = logprobs(&logits, chosen, top);
            let max = logits.iter().copied().fold(f32::MIN, f32::max);
            let sum: f64 = logits.iter().map(|l| f64::from(l - max).exp()).sum();
            let expected = |id: u32| f64::from(logits[id as usize]) - f64::from(max) - sum.ln();
            prop_assert!((f64::from(reported.chosen.logprob) - expected(chosen)).abs() < 1e-5);
            let mut order: Vec<u32> = (0..logits.len() as u32).collect();
            order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
            order.truncate(top as usize);
            prop_assert_eq!(reported.top.iter().map(|t| t.id).collect::<Vec<_>>(), order);
        }

        #[test]
        fn the_exponential_is_close(x in -80f32..0.0) {
            let exact = f64::from(x).exp();
            prop_assert!((f64::from(exp(x)) / exact - 1.0).abs() < 3e-7, "{} {}", exp(x), exact);
        }
    }

    #[test]
    fn draws_follow_the_distribution() {
        let logits = [1.0f32, 2.0, 0.0, -1.0, 2.5, f32::NEG_INFINITY];
        let sum: f64 = logits.iter().map(|l| f64::from(*l / 0.8).exp()).sum();
        let sampling = Sampling { temperature: 0.8, ..Sampling::default() };
        let mut sampler = Sampler::new(6);
        let n = 100_000;
        let mut counts = [0f64; 6];
        for position in 0..n {
            let u = base::rng::uniform(11, 0, position);
            match sampler.choose(&logits, &sampling, NO_HISTORY, None, u) {
                Choice::Token(id) => counts[id as usize] += 1.0,
                other => panic!("{other:?}"),
            }
        }
        // Chi squared with four degrees of freedom: 18.5 is passed once in a thousand.
        let chi: f64 = logits[..5]
            .iter()
            .zip(counts)
            .map(|(l, count)| {
                let expected = f64::from(*l / 0.8).exp() / sum * f64::from(n);
                (count - expected).powi(2) / expected
            })
            .sum();
        assert!(chi < 18.5, "{chi} {counts:?}");
        assert_eq!(counts[5], 0.0);
    }

    #[test]
    fn rows_without_numbers_are_invalid_and_full_bans_leave_nothing() {
        let mut sampler = Sampler::new(3);
        for temperature in [0.0, 1.0] {
            let sampling = Sampling { temperature, ..Sampling::default() };
            let choice = sampler.choose(&[f32::NAN; 3], &sampling, NO_HISTORY, None, 0.5);
            assert_eq!(choice, Choice::Invalid);
            let banned = Sampling { logit_bias: (0..3).map(|id| (id, -100.0)).collect(), ..sampling };
            assert_eq!(sampler.choose(&[1.0; 3], &banned, NO_HISTORY, None, 0.5), Choice::Nothing);
        }
    }

    #[test]
    fn a_constraint_may_end_or_fail_where_it_should_allow() {
        struct Always(Standing);
        impl Constraint for Always {
            fn mask(&mut self, allowed: &mut TokenMask) -> Standing {
                allowed.allow(1);
                self.0
            }
            fn accept(&mut self, _: u32) {}
            fn forced(&mut self, _: &mut Vec<u32>) {}
        }
        let mut sampler = Sampler::new(3);
        for temperature in [0.0, 1.0] {
            let sampling = Sampling { temperature, ..Sampling::default() };
            let banned = Sampling { logit_bias: vec![(1, -100.0)], ..sampling.clone() };
            for (standing, sampling, expected) in [
                (Standing::Open, &sampling, Choice::Token(1)),
                (Standing::Ended, &sampling, Choice::Nothing),
                (Standing::Failed, &sampling, Choice::Stuck),
                (Standing::Open, &banned, Choice::Stuck),
            ] {
                let choice =
                    sampler.choose(&[5.0, 1.0, 2.0], sampling, NO_HISTORY, Some(&mut Always(standing)), 0.5);
                assert_eq!(choice, expected, "{standing:?} {sampling:?}");
            }
        }
    }

    proptest! {
        #[test]
        fn the_best_is_the_first_of_the_largest_with_and_without_a_mask(
            logits in prop::collection::vec(logit(), 0..300),
            words in prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>(), Just(1 << 63)], 5),
        ) {
            let naive = |allowed: &dyn Fn(usize) -> bool| {
                let mut best: Option<usize> = None;
                for (i, logit) in logits.iter().enumerate().filter(|(i, _)| allowed(*i)) {
                    if *logit > best.map_or(f32::NEG_INFINITY, |best| logits[best]) {
                        best = Some(i);
                    }
                }
                best.map(|best| best as u32)
            };
            prop_assert_eq!(argmax(&logits), naive(&|_| true));
            prop_assert_eq!(argmax_allowed(&logits, &words), naive(&|i| words[i / 64] >> (i % 64) & 1 == 1));
        }
    }

    #[test]
    fn ties_go_to_the_lowest_id() {
        let mut sampler = Sampler::new(4);
        let sampling = Sampling { temperature: 0.0, ..Sampling::default() };
        let choice = sampler.choose(&[1.0, 3.0, 3.0, f32::NAN], &sampling, NO_HISTORY, None, 0.0);
        assert_eq!(choice, Choice::Token(1));
    }

    #[test]
    fn strange_parameters_still_choose_a_token() {
        let mut sampler = Sampler::new(4);
        let odd = [0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN_POSITIVE, 1e-45, f32::MAX];
        let tokens = [0, 1, 2, 3, 3];
        for (i, a) in odd.iter().enumerate() {
            for b in odd {
                let sampling = Sampling {
                    temperature: *a,
                    top_k: Some(i as u32),
                    top_p: b,
                    min_p: *a,
                    repetition_penalty: b,
                    frequency_penalty: *a,
                    presence_penalty: b,
                    logit_bias: vec![(1, *a), (99, b)],
                    seed: 0,
                };
                let history = History { tokens: &tokens, prompt: 2 };
                sampler.choose(&[1.0, -2.0, f32::INFINITY, 0.0], &sampling, history, None, 0.999_999);
            }
        }
    }
}

//! What is counted about a model's requests: plain atomics, written by the threads that see things happen and
//! read by whoever renders them. Knows no exposition format.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Upper bounds of the buckets of time to first token, in seconds.
pub const TTFT_BOUNDS: [f64; 14] =
    [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0];
/// Upper bounds of the buckets of the gap between tokens, in seconds.
pub const GAP_BOUNDS: [f64; 13] =
    [0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.25, 0.5, 1.0, 5.0];

/// Counts durations in fixed buckets.
#[derive(Debug)]
pub struct Histogram<const N: usize> {
    bounds: &'static [f64; N],
    buckets: [AtomicU64; N],
    over: AtomicU64,
    micros: AtomicU64,
}

/// A histogram at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct HistogramStats {
    /// Upper bound in seconds and how many were at most that long and longer than the bound before.
    pub buckets: Vec<(f64, u64)>,
    /// How many were longer than the last bound.
    pub over: u64,
    /// Sum of all, in seconds.
    pub sum: f64,
}

impl HistogramStats {
    /// How many there were.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, n)| n).sum::<u64>() + self.over
    }
}

impl<const N: usize> Histogram<N> {
    /// An empty histogram with these bounds, in seconds, ascending.
    #[must_use]
    pub fn new(bounds: &'static [f64; N]) -> Self {
        let buckets = std::array::from_fn(|_| AtomicU64::new(0));
        Self { bounds, buckets, over: AtomicU64::new(0), micros: AtomicU64::new(0) }
    }

    /// Counts one duration.
    pub fn observe(&self, duration: Duration) {
        let seconds = duration.as_secs_f64();
        let at = self.bounds.partition_point(|bound| *bound < seconds);
        self.buckets.get(at).unwrap_or(&self.over).fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(duration.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// The counts now.
    #[must_use]
    pub fn stats(&self) -> HistogramStats {
        let counts = self.buckets.iter().map(|bucket| bucket.load(Ordering::Relaxed));
        HistogramStats {
            buckets: self.bounds.iter().copied().zip(counts).collect(),
            over: self.over.load(Ordering::Relaxed),
            sum: self.micros.load(Ordering::Relaxed) as f64 / 1e6,
        }
    }
}

/// How a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Answered to its end.
    Finished,
    /// The caller went away.
    Cancelled,
    /// The engine failed under it.
    Failed,
    /// Refused: the caller's fault.
    Refused,
    /// Refused: the queue was full, or the engine was not there.
    Overloaded,
}

impl Outcome {
    /// All outcomes, in display order.
    pub const ALL: [Self; 5] =
        [Self::Finished, Self::Cancelled, Self::Failed, Self::Refused, Self::Overloaded];

    /// The outcome's name as a label.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Finished => "finished",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
            Self::Refused => "refused",
            Self::Overloaded => "overloaded",
        }
    }
}

/// The counters of one model.
#[derive(Debug)]
pub struct Metrics {
    ttft: Histogram<{ TTFT_BOUNDS.len() }>,
    gap: Histogram<{ GAP_BOUNDS.len() }>,
    outcomes: [AtomicU64; Outcome::ALL.len()],
    restarts: AtomicU64,
    input_tokens: AtomicU64,
}

impl Default for Metrics {
    fn default() -> Self {
        Self {
            ttft: Histogram::new(&TTFT_BOUNDS),
            gap: Histogram::new(&GAP_BOUNDS),
            outcomes: Default::default(),
            restarts: AtomicU64::new(0),
            input_tokens: AtomicU64::new(0),
        }
    }
}

/// The counters of one model at one moment.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestStats {
    /// From a request's arrival at the engine to its first token.
    pub ttft: HistogramStats,
    /// Between two tokens of one request.
    pub gap: HistogramStats,
    /// Requests by how they ended, in the order of [`Outcome::ALL`].
    pub outcomes: Vec<(Outcome, u64)>,
    /// How often the engine was started again after a failure.
    pub restarts: u64,
    /// Tokens of inputs of embedding models and rerankers.
    pub input_tokens: u64,
}

impl Metrics {
    /// A request gave its first token this long after it came.
    pub fn first_token(&self, after: Duration) {
        self.ttft.observe(after);
    }

    /// A request gave a further token this long after the one before.
    pub fn next_token(&self, after: Duration) {
        self.gap.observe(after);
    }

    /// A request ended.
    pub fn ended(&self, outcome: Outcome) {
        self.outcomes[outcome as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// The engine was started again.
    pub fn restarted(&self) {
        self.restarts.fetch_add(1, Ordering::Relaxed);
    }

    /// An embedding or rerank request had so many tokens.
    pub fn read_whole(&self, tokens: u64) {
        self.input_tokens.fetch_add(tokens, Ordering::Relaxed);
    }

    /// The counts now.
    #[must_use]
    pub fn stats(&self) -> RequestStats {
        let count = |outcome: Outcome| self.outcomes[outcome as usize].load(Ordering::Relaxed);
        RequestStats {
            ttft: self.ttft.stats(),
            gap: self.gap.stats(),
            outcomes: Outcome::ALL.into_iter().map(|outcome| (outcome, count(outcome))).collect(),
            restarts: self.restarts.load(Ordering::Relaxed),
            input_tokens: self.input_tokens.load(Ordering::Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_falls_into_the_first_bucket_that_holds_it() {
        let histogram = Histogram::new(&GAP_BOUNDS);
        for millis in [0, 1, 2, 10, 7000] {
            histogram.observe(Duration::from_millis(millis));
        }
        let stats = histogram.stats();
        assert_eq!(stats.buckets[..4], [(0.001, 2), (0.0025, 1), (0.005, 0), (0.01, 1)]);
        assert_eq!((stats.over, stats.count()), (1, 5));
        assert!((stats.sum - 7.013).abs() < 1e-9);
    }
}

//! What the machine does just now, beside each run: figures are given as shares of it, and two runs can be compared as
//! far as their probes agree.
//!
//! A run whose probe lies more than [`DRIFT_MAX`] from the median of the measurement is repeated by its caller.

use super::statistics::percentile;
use anyhow::Context;
use base::Bytes;
use kernels::probe::{MemoryProbe, last_level_cache, product_rate};
use serde::{Deserialize, Serialize};

/// Farthest that a probe may lie from another one of the same machine in the same state.
pub const DRIFT_MAX: f64 = 0.15;
/// Bytes that are read at least, and at most where caches are large.
const BLOCK: (u64, u64) = (256 << 20, 1 << 30);

/// Rates of the machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Threads that ran the loops.
    pub threads: usize,
    /// Memory read, in GB/s (10^9 bytes), of a block larger than the caches.
    pub read_gb_s: f64,
    /// The same of as many bytes as the model's weights have, which caches may hold a part of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_gb_s: Option<f64>,
    /// Products of bytes with their sums (two operations), in GOP/s.
    pub int8_gop_s: f64,
    /// The instructions that did them.
    pub instructions: String,
}

/// Told what the machine does just now.
pub type Prober<'a> = &'a mut dyn FnMut() -> Probe;

impl Probe {
    /// Each rate's own median, by nearest rank. `None` without probes.
    #[must_use]
    pub fn median(probes: &[Self]) -> Option<Self> {
        let first = probes.first()?;
        let median = |rate: fn(&Self) -> Option<f64>| {
            percentile(&probes.iter().filter_map(rate).collect::<Vec<_>>(), 0.5)
        };
        Some(Self {
            threads: first.threads,
            read_gb_s: median(|probe| Some(probe.read_gb_s))?,
            weights_gb_s: median(|probe| probe.weights_gb_s),
            int8_gop_s: median(|probe| Some(probe.int8_gop_s))?,
            instructions: first.instructions.clone(),
        })
    }

    /// Bytes a second at which the model's weights can be read.
    #[must_use]
    pub fn weights_rate(&self) -> f64 {
        self.weights_gb_s.unwrap_or(self.read_gb_s) * 1e9
    }

    /// The rates that lie more than [`DRIFT_MAX`] from the other's: name, unit, and both.
    #[must_use]
    pub fn apart(&self, other: &Self) -> Vec<(&'static str, &'static str, f64, f64)> {
        let rates = [
            ("memory read", "GB/s", self.read_gb_s, other.read_gb_s),
            ("int8", "GOP/s", self.int8_gop_s, other.int8_gop_s),
        ];
        rates.into_iter().filter(|(.., a, b)| (a / b - 1.0).abs() > DRIFT_MAX).collect()
    }
}

/// The runs one of whose probes lies too far from the median of all probes.
#[must_use]
pub fn drifted(runs: &[&[Probe]]) -> Vec<usize> {
    let Some(median) = Probe::median(&runs.concat()) else { return Vec::new() };
    let off = |run: &&[Probe]| run.iter().any(|probe| !probe.apart(&median).is_empty());
    runs.iter().enumerate().filter(|(_, run)| off(run)).map(|(index, _)| index).collect()
}

/// Probes this machine again and again.
pub struct Machine {
    memory: MemoryProbe,
    threads: usize,
}

impl Machine {
    /// Takes the memory that is read.
    ///
    /// # Errors
    /// When it cannot be had.
    pub fn new(threads: usize) -> anyhow::Result<Self> {
        let beyond_caches = last_level_cache().map_or(0, |cache| cache.0.saturating_mul(2));
        let memory = MemoryProbe::new(Bytes(beyond_caches.clamp(BLOCK.0, BLOCK.1)));
        Ok(Self {
            memory: memory.context("no memory for the probe of the machine")?,
            threads: threads.max(1),
        })
    }

    /// Measures the machine; `weights` are the bytes of the model that is measured.
    #[must_use]
    pub fn probe(&self, weights: Option<Bytes>) -> Probe {
        let size = self.memory.size();
        let read_gb_s = self.memory.rate(self.threads, size) / 1e9;
        let fitting = weights.filter(|weights| *weights < size);
        let products = product_rate(self.threads);
        Probe {
            threads: self.threads,
            read_gb_s,
            weights_gb_s: fitting.map(|weights| self.memory.rate(self.threads, weights) / 1e9),
            int8_gop_s: products.operations / 1e9,
            instructions: products.instructions.to_owned(),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn example(read_gb_s: f64, int8_gop_s: f64) -> Probe {
        Probe { threads: 2, read_gb_s, weights_gb_s: None, int8_gop_s, instructions: "AVX2".into() }
    }

    #[test]
    fn a_run_is_off_when_either_rate_lies_more_than_15_percent_from_the_median() {
        let steady = example(30.0, 900.0);
        let slow_memory = example(25.0, 900.0);
        let slow_clock = example(30.0, 700.0);
        let near = example(27.0, 1000.0);
        let all = [steady.clone(), slow_memory, near.clone(), slow_clock, steady.clone()];
        assert_eq!(drifted(&all.each_ref().map(std::slice::from_ref)), [1, 3]);
        assert_eq!(drifted(&[&[near.clone(), steady.clone()][..]]), Vec::<usize>::new(), "11 % apart");
        assert_eq!(drifted(&[&[example(20.0, 900.0), steady][..]]), [0], "before and after one run");
        assert_eq!(drifted(&[]), Vec::<usize>::new());
    }

    #[test]
    fn a_median_takes_each_rate_for_itself() {
        let probes = [example(10.0, 300.0), example(20.0, 100.0), example(30.0, 200.0)];
        assert_eq!(Probe::median(&probes), Some(example(20.0, 200.0)));
        assert_eq!(Probe::median(&[]), None);
    }
}

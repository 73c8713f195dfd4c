//! What the machine does just now, by plain loops that no work on the kernels changes: two runs can be compared as far
//! as their probes agree.
//!
//! The loops are compiled for the baseline of the target (SSE2 on x86-64), so the product rate is a measure of the
//! clock and of busy neighbours, not the machine's limit.

use serde::{Deserialize, Serialize};
use std::hint::black_box;
use std::time::Instant;

/// Bytes read per round over all threads: more than caches hold.
const READ_BYTES: usize = 256 << 20;
/// Rounds of the product loop per thread.
const PRODUCT_ROUNDS: usize = 1 << 19;
/// Numbers that are worked on side by side, to hide latencies.
const LANES: usize = 32;
/// Each figure is the best of so many.
const TRIES: usize = 5;

/// Rates of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Probe {
    /// Threads that ran the loops.
    pub threads: usize,
    /// Memory read, in GB/s (10^9 bytes).
    pub read_gb_s: f64,
    /// Products and sums of `f32`, in GFLOP/s.
    pub f32_gflop_s: f64,
}

/// Measures the machine with so many threads.
#[must_use]
pub fn take(threads: usize) -> Probe {
    measure(threads.max(1), READ_BYTES, PRODUCT_ROUNDS)
}

fn measure(threads: usize, bytes: usize, rounds: usize) -> Probe {
    let block = vec![1u64; (bytes / size_of::<u64>()).max(threads)];
    let share = block.len().div_ceil(threads);
    let read = best(|| {
        std::thread::scope(|scope| {
            for part in block.chunks(share) {
                scope.spawn(move || black_box(sum(part)));
            }
        });
    });
    let product = best(|| {
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(move || black_box(products(rounds)));
            }
        });
    });
    Probe {
        threads,
        read_gb_s: size_of_val(block.as_slice()) as f64 / read / 1e9,
        f32_gflop_s: (2 * threads * rounds * LANES) as f64 / product / 1e9,
    }
}

/// Seconds of the fastest of some tries.
fn best(mut body: impl FnMut()) -> f64 {
    let time = |_| {
        let start = Instant::now();
        body();
        start.elapsed().as_secs_f64()
    };
    (0..TRIES).map(time).fold(f64::INFINITY, f64::min).max(1e-9)
}

/// Several sums side by side, so that memory and not the adder is what is waited for.
fn sum(block: &[u64]) -> u64 {
    let mut sums = [0u64; 16];
    let parts = block.chunks_exact(sums.len());
    let rest: u64 = parts.remainder().iter().fold(0, |sum, x| sum.wrapping_add(*x));
    for part in parts {
        for (sum, x) in sums.iter_mut().zip(part) {
            *sum = sum.wrapping_add(*x);
        }
    }
    sums.iter().fold(rest, |sum, x| sum.wrapping_add(*x))
}

fn products(rounds: usize) -> f32 {
    let (factor, step) = (black_box(0.999f32), black_box(0.001f32));
    let mut x = black_box([1.0f32; LANES]);
    for _ in 0..rounds {
        for x in &mut x {
            *x = *x * factor + step;
        }
    }
    x.iter().sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_probe_gives_finite_rates_for_any_number_of_threads() {
        for threads in [1, 3] {
            let probe = measure(threads, 1 << 12, 16);
            assert_eq!(probe.threads, threads);
            assert!(probe.read_gb_s.is_finite() && probe.read_gb_s > 0.0);
            assert!(probe.f32_gflop_s.is_finite() && probe.f32_gflop_s > 0.0);
        }
    }

    #[test]
    fn all_numbers_are_read() {
        assert_eq!(sum(&(0..1003).collect::<Vec<u64>>()), 1002 * 1003 / 2);
    }
}

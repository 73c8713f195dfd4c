//! How long a step may take while answers are being written, so that a long prompt does not starve them.
//!
//! The engine bounds its steps by what their work costs; the prices are learned here from the steps
//! themselves, each time anew: how fast a machine is changes with its other tenants, and attention makes a row
//! dearer the further back it looks.
//!
//! The learner is a Kalman filter over the five prices: a step tells one sum of them, so each step moves the
//! prices along what it had much of, by as much as they are still unsure. Prices drift, so they never become
//! quite sure, and never less sure than at the start: a price that long runs of equal steps tell nothing about
//! stays what it was. No price is below zero; where the steps would have it so, it is zero and the others are
//! what they are given that.

use engine::{Prices, StepLimit, Work};
use std::time::Duration;

/// How long a step with rows of prompts may take while answers are being written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StepTime {
    /// The longer of 50 ms and twice what the answers alone would take.
    #[default]
    Auto,
    /// This long.
    AtMost(Duration),
}

/// Prices that are learned.
const N: usize = 5;
/// Positions that are counted as one, so that all amounts are of a size.
const POSITIONS: f64 = 1024.0;
/// Seconds that an amount is taken to cost before anything is known, and how far from that it may well be.
const FIRST: [(f64, f64); N] = [(2e-3, 2e-2), (1e-3, 5e-3), (2e-4, 5e-3), (1e-3, 5e-3), (2e-4, 5e-3)];
/// How far a price may drift in one step, as a share of how unsure it is at first.
const DRIFT: f64 = 0.01;
/// A variance below this share of its first is none.
const SURE: f64 = 1e-9;
/// How far a step's time may well be from what it costs: as a share of it, and at least in seconds.
const NOISE: (f64, f64) = (0.1, 2e-4);
/// A step further off than this many standard deviations was held up by something else and tells less.
const HELD_UP: f64 = 3.0;
/// Share of a time limit that is aimed at, since half of the steps take longer than foretold. Not of twice the
/// answers' own time: prompts have a right to half.
const AIM: f64 = 0.95;

/// Learns what work takes; see the module.
#[derive(Debug)]
pub(crate) struct Pace {
    time: StepTime,
    /// Seconds of each amount.
    prices: [f64; N],
    /// Their covariance.
    unsure: [[f64; N]; N],
}

fn amounts(work: &Work) -> [f64; N] {
    let Work { decode_rows, decode_reads, prompt_rows, prompt_reads } = *work;
    [
        1.0,
        decode_rows as f64,
        decode_reads as f64 / POSITIONS,
        prompt_rows as f64,
        prompt_reads as f64 / POSITIONS,
    ]
}

fn dot(a: &[f64; N], b: &[f64; N]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

impl Pace {
    pub fn new(time: StepTime) -> Self {
        let unsure = std::array::from_fn(|i| {
            std::array::from_fn(|j| if i == j { FIRST[i].1 * FIRST[i].1 } else { 0.0 })
        });
        Self { time, prices: FIRST.map(|(seconds, _)| seconds), unsure }
    }

    /// Takes in what a step did and how long that took. One that did nothing teaches nothing, nor does a clock that
    /// stands still.
    pub fn learn(&mut self, work: &Work, took: Duration) {
        if took.is_zero() || *work == Work::default() {
            return;
        }
        self.drift();
        let amounts = amounts(work);
        let seconds = took.as_secs_f64();
        let expected = dot(&self.prices, &amounts);
        let noise = NOISE.0 * expected.min(seconds) + NOISE.1;
        let along = std::array::from_fn(|i| dot(&self.unsure[i], &amounts));
        let off = seconds - expected;
        let variance = (dot(&along, &amounts).max(0.0) + noise * noise).max((off / HELD_UP).powi(2));
        self.condition(&along, variance, off);
        for _ in 0..N {
            let Some(i) = (0..N).find(|i| self.prices[*i] < 0.0) else { break };
            let along = self.unsure[i];
            // One that is sure has nothing to tell the others.
            if along[i] > SURE * FIRST[i].1 * FIRST[i].1 {
                self.condition(&along, along[i], -self.prices[i]);
            }
            self.prices[i] = 0.0;
        }
        // A price may be pushed below zero by another one's turn.
        self.prices = self.prices.map(|price| price.max(0.0));
    }

    /// Moves the prices by what a sum of them was `off`, of which `along` are the covariances with them.
    fn condition(&mut self, along: &[f64; N], variance: f64, off: f64) {
        for i in 0..N {
            self.prices[i] += along[i] * off / variance;
            for j in 0..N {
                self.unsure[i][j] -= along[i] * along[j] / variance;
            }
        }
    }

    /// Each price may be another by the next step, but is no less sure than at first.
    fn drift(&mut self) {
        for i in 0..N {
            let first = FIRST[i].1 * FIRST[i].1;
            self.unsure[i][i] += DRIFT * DRIFT * first;
            if self.unsure[i][i] > first {
                // Scaling a row and its column alike leaves a covariance one.
                let scale = (first / self.unsure[i][i]).sqrt();
                for j in 0..N {
                    self.unsure[i][j] *= scale;
                    self.unsure[j][i] *= scale;
                }
            }
        }
    }

    /// What the next step is bounded by.
    pub fn limit(&self) -> StepLimit {
        let (seconds, decodes) = match self.time {
            StepTime::Auto => (0.05, 2.0),
            StepTime::AtMost(time) => (time.as_secs_f64(), 0.0),
        };
        StepLimit { prices: self.prices(), seconds: seconds * AIM, decodes }
    }

    fn prices(&self) -> Prices {
        let [step, decode_row, decode_read, prompt_row, prompt_read] = self.prices;
        Prices {
            step,
            decode_row,
            decode_read: decode_read / POSITIONS,
            prompt_row,
            prompt_read: prompt_read / POSITIONS,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: Prices =
        Prices { step: 5e-3, decode_row: 2e-4, decode_read: 6e-7, prompt_row: 4e-4, prompt_read: 5e-7 };

    /// Steps of `decodes` answers at a depth, with rows of a prompt at another.
    fn work(decodes: u64, depth: u64, rows: u64, start: u64) -> Work {
        Work {
            decode_rows: decodes,
            decode_reads: decodes * depth,
            prompt_rows: rows,
            prompt_reads: rows * start + rows * (rows + 1) / 2,
        }
    }

    /// The machine is up to 5 % off, and each 20th step takes twice as long.
    fn took(machine: &Prices, work: &Work, step: u32) -> Duration {
        let noise = 0.95 + 0.1 * base::rng::uniform(7, 0, step);
        let held_up = if step % 20 == 7 { 2.0 } else { 1.0 };
        Duration::from_secs_f64(machine.of(work) * noise * held_up)
    }

    fn share(pace: &Pace, machine: &Prices, work: &Work) -> f64 {
        pace.limit().prices.of(work) / machine.of(work)
    }

    #[test]
    fn steps_are_foretold_within_a_tenth_after_the_first_few_and_through_changes() {
        let mut pace = Pace::new(StepTime::Auto);
        let mut step = 0;
        let mut learn = |pace: &mut Pace, machine: &Prices, work: Work, n: u32| {
            for _ in 0..n {
                pace.learn(&work, took(machine, &work, step));
                step += 1;
            }
        };
        // A cold prompt, then answers one by one beside further prompts.
        for start in [0, 512, 1024] {
            learn(&mut pace, &MACHINE, work(0, 0, 512, start), 1);
        }
        for decodes in 1..8 {
            learn(&mut pace, &MACHINE, work(decodes, 1600, 35, 1700), 3);
            let next = work(decodes + 1, 1600, 35, 1700);
            let share = share(&pace, &MACHINE, &next);
            assert!((0.9..1.1).contains(&share), "{decodes}: {share}");
        }
        // A long run of answers alone tells nothing of prompts, and unlearns nothing.
        learn(&mut pace, &MACHINE, work(8, 2000, 0, 0), 2000);
        for next in [work(8, 2000, 0, 0), work(8, 2000, 40, 1800), work(7, 2000, 60, 1800)] {
            let share = share(&pace, &MACHINE, &next);
            assert!((0.85..1.15).contains(&share), "{next:?}: {share}");
        }
        // Another tenant comes, and attention costs twice as much.
        let slow = Prices { decode_read: 12e-7, prompt_read: 10e-7, ..MACHINE };
        learn(&mut pace, &slow, work(8, 2000, 30, 2000), 40);
        let share = share(&pace, &slow, &work(8, 2000, 30, 2000));
        assert!((0.9..1.1).contains(&share), "{share}");
    }

    #[test]
    fn no_price_is_below_zero_and_no_run_of_steps_leads_it_astray() {
        for seed in 0..20 {
            let mut pace = Pace::new(StepTime::Auto);
            for step in 0..500 {
                let dice = |stream: u32, n: u64| base::rng::bits(seed, stream, step) % n;
                let rows = if dice(0, 3) == 0 { 0 } else { dice(1, 100) };
                let work = work(dice(2, 9), 1000 + u64::from(step), rows, 50 * dice(3, 50));
                if work == Work::default() {
                    continue;
                }
                if step > 100 {
                    let share = share(&pace, &MACHINE, &work);
                    assert!((0.5..2.0).contains(&share), "{seed} {step} {work:?}: {share} {pace:?}");
                }
                pace.learn(&work, took(&MACHINE, &work, step));
                assert!(pace.prices.iter().all(|price| *price >= 0.0 && price.is_finite()), "{pace:?}");
            }
        }
    }

    #[test]
    fn the_limit_is_what_was_asked_for() {
        let mut pace = Pace::new(StepTime::AtMost(Duration::from_millis(80)));
        let limit = pace.limit();
        assert_eq!((limit.seconds, limit.decodes), (0.08 * AIM, 0.0));
        let limit = Pace::new(StepTime::Auto).limit();
        assert_eq!((limit.seconds, limit.decodes), (0.05 * AIM, 2.0));
        let before = pace.limit();
        pace.learn(&work(3, 10, 20, 0), Duration::ZERO);
        pace.learn(&Work::default(), Duration::from_micros(3));
        assert_eq!(pace.limit(), before);
    }
}

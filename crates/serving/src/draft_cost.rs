//! What rows of drafts add to the time of a step on this machine with this model, learned from the steps themselves.
//!
//! Without drafts a step of `n` sequences takes `t(n)`; `r` rows of drafts add `first + (r - 1) * row`: the first often
//! more than the others, since one row alone has kernels of its own. Times are averages that forget, kept apart for
//! classes of `n`. What is learned of drafts fades while there are none, so that they are tried again.

use engine::DraftCost;
use std::time::Duration;

/// Classes of the number of sequences: 1, 2, 3-4, 5-8, …
const CLASSES: usize = 8;
/// Weight of the newest step without drafts.
const NEWEST: f64 = 0.2;
/// What a step with drafts leaves of what was known, and what one without leaves.
const KEPT: f64 = 0.95;
const KEPT_UNUSED: f64 = 0.995;
/// Steps with drafts that the first guess weighs as much as.
const GUESS: f64 = 0.5;
/// No row of a draft is believed to cost more than so many whole steps: then something else ran on the machine.
const MOST: f64 = 4.0;
/// A prompt's step tells what a row costs if it has so many rows.
const PROMPT_ROWS: u64 = 64;

/// One step, as its counters tell it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Step {
    /// All rows.
    pub rows: u64,
    /// Of these, rows of prompts.
    pub prompt: u64,
    /// Of these, rows of drafts.
    pub drafted: u64,
    pub took: Duration,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct DraftCosts {
    classes: [Class; CLASSES],
    /// Seconds per row of a prompt.
    prompt_row: Option<f64>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    /// Seconds of a step without drafts.
    plain: Option<f64>,
    /// Weighted sums over steps with drafts, of 1, x, x², y and xy, where `x` is the rows but the first and `y` what they
    /// added, in steps without drafts.
    sums: [f64; 5],
}

impl DraftCosts {
    /// Takes in a step. Gives what drafts are believed to cost in a step of as many sequences.
    pub fn learn(&mut self, step: Step) -> Option<DraftCost> {
        let seconds = step.took.as_secs_f64();
        if step.prompt > 0 {
            if step.prompt == step.rows && step.prompt >= PROMPT_ROWS {
                self.prompt_row = Some(seconds / step.prompt as f64);
            }
            return None;
        }
        let decodes = step.rows.checked_sub(step.drafted).filter(|decodes| *decodes > 0)?;
        let class = &mut self.classes[(decodes.next_power_of_two().ilog2() as usize).min(CLASSES - 1)];
        if step.drafted == 0 {
            class.plain = Some(class.plain.map_or(seconds, |plain| plain + NEWEST * (seconds - plain)));
        }
        let plain = class.plain.filter(|plain| *plain > 0.0)?;
        let guess = self.prompt_row.map_or(0.2, |row| (row / plain).min(1.0));
        class.sums.iter_mut().for_each(|sum| *sum *= if step.drafted > 0 { KEPT } else { KEPT_UNUSED });
        if step.drafted > 0 {
            let x = (step.drafted - 1) as f64;
            let y = (seconds / plain - 1.0).clamp(0.0, MOST);
            let new = [1.0, x, x * x, y, x * y];
            class.sums.iter_mut().zip(new).for_each(|(sum, new)| *sum += new);
        }
        Some(class.fit(guess))
    }
}

impl Class {
    /// The line through what was seen and, at both of its ends, the guess.
    fn fit(&self, row: f64) -> DraftCost {
        let first = row + 0.25;
        let ends = [0.0, 8.0].map(|x| (x, first + row * x));
        let [mut n, mut x, mut xx, mut y, mut xy] = self.sums;
        for (at, added) in ends {
            n += GUESS;
            x += GUESS * at;
            xx += GUESS * at * at;
            y += GUESS * added;
            xy += GUESS * at * added;
        }
        let row = ((n * xy - x * y) / (n * xx - x * x)).max(0.0);
        let first = ((y - row * x) / n).max(0.0);
        DraftCost { first: first as f32, row: row as f32 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which a decode takes 20 ms, the first row of a draft 12 and each other 3.
    fn step(drafted: u64) -> Step {
        let millis = 20 + if drafted > 0 { 9 + 3 * drafted } else { 0 };
        Step { rows: 1 + drafted, prompt: 0, drafted, took: Duration::from_millis(millis) }
    }

    fn assert_near(cost: DraftCost, first: f32, row: f32) {
        assert!((cost.first - first).abs() < 0.05 && (cost.row - row).abs() < 0.02, "{cost:?}");
    }

    #[test]
    fn the_cost_of_rows_is_found_from_steps_of_several_lengths() {
        let mut costs = DraftCosts::default();
        assert_eq!(costs.learn(step(4)), None, "nothing to compare with");
        let prompt = Step { rows: 128, prompt: 128, drafted: 0, took: Duration::from_millis(512) };
        assert_eq!(costs.learn(prompt), None);
        let guessed = costs.learn(step(0)).expect("a step without drafts");
        assert_near(guessed, 0.45, 0.2);
        let learned = (0..60).filter_map(|i| costs.learn(step([4, 12, 0, 7, 1][i % 5]))).last();
        assert_near(learned.expect("steps"), 0.6, 0.15);
    }

    #[test]
    fn one_slow_step_is_forgotten_and_drafts_are_tried_again() {
        let mut costs = DraftCosts::default();
        costs.learn(step(0));
        let stalled = Step { took: Duration::from_secs(9), ..step(8) };
        let dear = costs.learn(stalled).expect("a cost");
        assert!(dear.first + 7.0 * dear.row > 2.0, "{dear:?}");
        let later = (0..1500).filter_map(|_| costs.learn(step(0))).last().expect("a cost");
        assert!(later.first + 7.0 * later.row < 2.0, "{later:?}");
    }

    #[test]
    fn a_still_clock_says_nothing() {
        let mut costs = DraftCosts::default();
        for drafted in [0, 3, 0] {
            assert_eq!(costs.learn(Step { took: Duration::ZERO, ..step(drafted) }), None);
        }
    }
}

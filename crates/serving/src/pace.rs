//! How many rows a step may have while answers are being written, so that a long prompt does not starve them.
//!
//! A step's time is about `d + r * p`: what the running decodes alone take, and `p` for each of `r` rows of
//! prompts. Both are learned from the steps themselves. While tokens are coming, prompts get so many rows that
//! a step takes about `2 * d`: decodes keep half their speed, prompts get the other half of the time.

use base::Tokens;
use std::time::Duration;

/// Prompts get at least so many rows in a step, or they would never end.
const LEAST: u32 = 16;
/// Weight of the newest step.
const NEWEST: f64 = 0.25;

/// Learns from each step; see the module.
#[derive(Debug)]
pub(crate) struct Pace {
    full: Tokens,
    /// Seconds of a step of decodes alone.
    decodes: Option<f64>,
    /// Seconds that a row of a prompt adds.
    row: Option<f64>,
}

impl Pace {
    /// `full` is the most rows of a step when nobody waits for tokens.
    pub fn new(full: Tokens) -> Self {
        Self { full, decodes: None, row: None }
    }

    /// Takes in a step: its rows, how many tokens it gave, how long it took. Gives the rows of the next one.
    pub fn next(&mut self, rows: u64, tokens: u64, took: Duration) -> Tokens {
        let seconds = took.as_secs_f64();
        let prompt = rows.saturating_sub(tokens);
        if prompt == 0 && tokens > 0 {
            learn(&mut self.decodes, seconds);
        } else if prompt > 0 {
            let decodes = if tokens > 0 { self.decodes.unwrap_or(0.0) } else { 0.0 };
            learn(&mut self.row, (seconds - decodes).max(0.0) / prompt as f64);
        }
        match (self.decodes, self.row) {
            (Some(decodes), Some(row)) if tokens > 0 && decodes > 0.0 && row > 0.0 => {
                let room = (decodes / row).min(f64::from(self.full.0)) as u32;
                // The decodes' own rows come on top.
                Tokens(room.max(LEAST).saturating_add(u32::try_from(tokens).unwrap_or(u32::MAX)))
                    .min(self.full)
            }
            _ => self.full,
        }
    }
}

fn learn(mean: &mut Option<f64>, newest: f64) {
    *mean = Some(mean.map_or(newest, |mean| mean + NEWEST * (newest - mean)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A machine on which a step takes `d` for its decodes and `p` per row of a prompt.
    fn took(d: f64, p: f64, rows: u64, tokens: u64) -> Duration {
        Duration::from_secs_f64(if tokens > 0 { d } else { 0.0 } + p * (rows - tokens) as f64)
    }

    #[test]
    fn prompts_get_half_of_the_time_while_tokens_come() {
        let mut pace = Pace::new(Tokens(512));
        assert_eq!(pace.next(512, 0, took(0.02, 0.0005, 512, 0)), Tokens(512), "nobody waits");
        let mut next = Tokens(512);
        for _ in 0..10 {
            next = pace.next(4, 4, took(0.02, 0.0005, 4, 4));
        }
        for _ in 0..30 {
            let rows = u64::from(next.0);
            let step = took(0.02, 0.0005, rows, 4);
            assert!(step < Duration::from_millis(43), "{step:?} for {rows} rows");
            next = pace.next(rows, 4, step);
        }
        assert!((40..=46).contains(&next.0), "{next}");
        assert_eq!(pace.next(512, 0, took(0.02, 0.0005, 512, 0)), Tokens(512), "nobody waits again");
    }

    #[test]
    fn a_slow_machine_still_gets_on_with_prompts_and_a_still_clock_changes_nothing() {
        let mut pace = Pace::new(Tokens(512));
        pace.next(1, 1, took(0.01, 0.1, 1, 1));
        assert_eq!(pace.next(17, 1, took(0.01, 0.1, 17, 1)), Tokens(LEAST + 1));
        let mut still = Pace::new(Tokens(64));
        still.next(1, 1, Duration::ZERO);
        assert_eq!(still.next(9, 1, Duration::ZERO), Tokens(64));
    }
}

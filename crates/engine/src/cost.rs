//! What a step costs: how much it computes, and what that takes. The engine has no clock; who drives it
//! learns the prices, and the scheduler keeps a step within its limit by them.

/// What a step computes, in the amounts that its time depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Work {
    /// Rows of sequences that decode.
    pub decode_rows: u64,
    /// Positions that those rows attend to, summed over the rows.
    pub decode_reads: u64,
    /// Rows of prompts, and of answers that are computed again.
    pub prompt_rows: u64,
    /// Positions that those rows attend to, summed over the rows.
    pub prompt_reads: u64,
}

/// Positions that `rows` rows attend to which begin at position `start`.
fn reads(start: usize, rows: usize) -> u64 {
    (rows * start + rows * (rows + 1) / 2) as u64
}

impl Work {
    pub(crate) fn add_decode(&mut self, start: usize, rows: usize) {
        self.decode_rows += rows as u64;
        self.decode_reads += reads(start, rows);
    }

    pub(crate) fn add_prompt(&mut self, start: usize, rows: usize) {
        self.prompt_rows += rows as u64;
        self.prompt_reads += reads(start, rows);
    }
}

/// What each amount of a [`Work`] takes, in seconds; none is negative.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Prices {
    /// A step as such.
    pub step: f64,
    /// A row of a sequence that decodes.
    pub decode_row: f64,
    /// A position that such a row attends to.
    pub decode_read: f64,
    /// A row of a prompt.
    pub prompt_row: f64,
    /// A position that such a row attends to.
    pub prompt_read: f64,
}

impl Prices {
    /// Seconds that a step with this work takes.
    #[must_use]
    pub fn of(&self, work: &Work) -> f64 {
        self.step
            + self.decode_row * work.decode_rows as f64
            + self.decode_read * work.decode_reads as f64
            + self.prompt_row * work.prompt_rows as f64
            + self.prompt_read * work.prompt_reads as f64
    }

    /// Seconds that `rows` rows of a prompt add which begin at position `start`.
    pub(crate) fn of_prompt(&self, start: usize, rows: usize) -> f64 {
        self.prompt_row * rows as f64 + self.prompt_read * reads(start, rows) as f64
    }

    /// How many of at most `most` rows of a prompt, from position `start` on, take no more than `seconds`.
    pub(crate) fn rows_within(&self, seconds: f64, start: usize, most: usize) -> usize {
        let (mut low, mut high) = (0, most);
        while low < high {
            let middle = (low + high).div_ceil(2);
            if self.of_prompt(start, middle) <= seconds {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        low
    }
}

/// How long a step with prompt rows may take while answers are decoded: the longer of the two.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepLimit {
    /// What work takes.
    pub prices: Prices,
    /// Seconds.
    pub seconds: f64,
    /// Times what the decodes of the step take alone.
    pub decodes: f64,
}

impl StepLimit {
    /// Seconds that prompts may add to the decodes of `work`.
    pub(crate) fn left_for_prompts(&self, work: &Work) -> f64 {
        let alone = self.prices.of(work);
        self.seconds.max(self.decodes * alone) - alone
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn rows_within_is_the_most_that_fits(
            row in 0.0..1e-2, read in 0.0..1e-4, seconds in -0.1..1.0, start in 0usize..10_000, most in 0usize..600,
        ) {
            let prices = Prices { prompt_row: row, prompt_read: read, ..Prices::default() };
            let rows = prices.rows_within(seconds, start, most);
            prop_assert!(rows == 0 || prices.of_prompt(start, rows) <= seconds);
            prop_assert!(rows == most || prices.of_prompt(start, rows + 1) > seconds);
        }
    }

    #[test]
    fn reads_are_counted_by_row() {
        let mut work = Work::default();
        work.add_prompt(10, 3);
        work.add_decode(7, 1);
        assert_eq!(
            work,
            Work { decode_rows: 1, decode_reads: 8, prompt_rows: 3, prompt_reads: 11 + 12 + 13 }
        );
    }
}

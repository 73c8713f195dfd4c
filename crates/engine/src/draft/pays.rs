//! How many tokens of a draft pay in a step.

use super::trust::Trust;

/// What rows of drafts add to the time of a step. The unit is the same step without drafts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DraftCost {
    /// Added by the first row.
    pub first: f32,
    /// Added by each further row.
    pub row: f32,
}

impl Default for DraftCost {
    fn default() -> Self {
        Self { first: 0.5, row: 0.2 }
    }
}

/// Drafts of a sequence are to give so many times the tokens per time that the step gives without them: costs and
/// chances are estimates, and a step without a gain should stay as it is.
const GAIN: f32 = 1.1;
/// A step in which several sequences run is at most so many times longer with drafts.
const STRETCH: f32 = 2.0;

/// What a step is expected to give and to cost, while drafts are added to it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Yield {
    cost: DraftCost,
    /// Sequences that get a token each anyhow.
    decodes: usize,
    /// Expected tokens.
    tokens: f32,
    /// Rows of drafts.
    rows: usize,
}

impl Yield {
    /// A step in which `decodes` sequences get a token each.
    pub fn new(decodes: usize, cost: DraftCost) -> Self {
        Self { cost, decodes, tokens: decodes as f32, rows: 0 }
    }

    /// Time of the step with `rows` rows of drafts.
    fn time(&self, rows: usize) -> f32 {
        if rows == 0 { 1.0 } else { 1.0 + self.cost.first + self.cost.row * (rows - 1) as f32 }
    }

    /// How many tokens of a draft pay best, of at most `most`, where the match before it has `len` tokens. Counts them
    /// in. None where that gains too little.
    pub(super) fn add(&mut self, trust: &Trust, len: usize, most: usize) -> usize {
        let mut best = (GAIN * self.tokens / self.time(self.rows), 0, self.tokens);
        let (mut right, mut tokens) = (1.0, self.tokens);
        for added in 1..=most {
            right *= trust.of(len + added - 1);
            tokens += right;
            let time = self.time(self.rows + added);
            if self.decodes > 1 && time > STRETCH {
                break;
            }
            if tokens / time > best.0 {
                best = (tokens / time, added, tokens);
            }
        }
        self.tokens = best.2;
        self.rows += best.1;
        best.1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(decodes: usize, first: f32, row: f32) -> Yield {
        Yield::new(decodes, DraftCost { first, row })
    }

    #[test]
    fn drafts_are_longer_the_better_they_hold_and_stop_where_rows_cost_too_much() {
        let rows = |p, first, row| step(1, first, row).add(&Trust::same(p), 2, 16);
        assert!(rows(0.9, 0.1, 0.1) > rows(0.6, 0.1, 0.1) && rows(0.6, 0.1, 0.1) > 0);
        assert_eq!(rows(0.1, 0.1, 0.1), 0, "one token in ten does not pay a tenth of a step");
        assert_eq!(rows(1.0, 0.0, 0.0), 16, "rows that cost nothing");
        assert_eq!(rows(1.0, 5.0, 5.0), 0);
        assert_eq!(rows(0.6, 0.9, 0.2), 0, "a dear first row wants a long draft that holds");
        assert!(rows(0.97, 0.9, 0.2) > 8);
    }

    #[test]
    fn a_crowd_drafts_less_and_its_steps_stay_short() {
        let rows = |decodes| step(decodes, 0.1, 0.1).add(&Trust::same(0.9), 20, 16);
        assert!(rows(1) > rows(4) && rows(4) > rows(8));
        assert_eq!(rows(16), 0);
        let mut two = step(2, 0.1, 0.1);
        let first = two.add(&Trust::same(0.9), 30, 16);
        assert!(two.add(&Trust::same(0.9), 30, 16) < first, "what others draft counts");
        assert_eq!(step(2, 0.1, 0.3).add(&Trust::same(1.0), 30, 16), 4, "at most twice the time");
        assert_eq!(
            step(1, 0.1, 0.3).add(&Trust::same(1.0), 30, 16),
            16,
            "who is alone waits for nobody else"
        );
    }
}

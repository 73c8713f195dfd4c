//! Texts to draft from: what a namespace was answered lately, and what the caller of a request predicts.

use super::index::{Index, LONGEST, Match};

/// Tokens that are kept at least; at twice as many the older half goes.
const KEPT: usize = 8192;
/// Stands between answers; no token of any vocabulary.
const BETWEEN: u32 = u32::MAX;

/// Recent answers of one namespace, one after the other, or one prediction.
#[derive(Debug, Default)]
pub(super) struct History {
    text: Vec<u32>,
    index: Index,
    /// When an answer was last added, in answers.
    pub used: u64,
}

impl History {
    /// A prediction of what comes after `before`, so that the end of `before` is a match that it follows.
    pub fn predicted(before: &[u32], prediction: &[u32]) -> Self {
        let before = &before[before.len().saturating_sub(LONGEST)..];
        let text = [before, prediction].concat();
        let mut index = Index::default();
        // Nothing follows its last end.
        index.cover(&text, text.len().saturating_sub(1));
        Self { text, index, used: 0 }
    }

    /// Adds an answer; of a long one its end.
    pub fn add(&mut self, answer: &[u32]) {
        let answer = &answer[answer.len().saturating_sub(KEPT - 1)..];
        if self.text.len() + answer.len() + 1 > 2 * KEPT {
            self.text.drain(..self.text.len().saturating_sub(KEPT));
            self.index.clear();
        }
        self.text.extend_from_slice(answer);
        self.text.push(BETWEEN);
        self.index.cover(&self.text, self.text.len());
    }

    /// The longest match of the end of `context`.
    pub fn find(&self, context: &[u32]) -> Option<Match> {
        self.index.find(&self.text, context)
    }

    /// What followed a match, to the end of its answer.
    pub fn after(&self, found: Match) -> impl Iterator<Item = u32> + '_ {
        self.text[found.end..].iter().copied().take_while(|token| *token != BETWEEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_follows_what_stands_before_it_and_goes_on_from_where_an_answer_comes_back_to_it() {
        let history = History::predicted(&[7, 8, 9], &[1, 2, 3, 4, 5]);
        let after = |context: &[u32]| Some(history.after(history.find(context)?).collect::<Vec<_>>());
        assert_eq!(after(&[7, 8, 9]), Some(vec![1, 2, 3, 4, 5]), "at the answer's first token");
        assert_eq!(after(&[7, 8, 9, 1, 6]), None);
        assert_eq!(after(&[7, 8, 9, 1, 6, 2, 3]), Some(vec![4, 5]));
        assert_eq!(after(&[7, 8, 9, 4, 5]), None, "nothing follows its end");
    }

    #[test]
    fn what_followed_in_an_earlier_answer_is_found_until_newer_ones_take_its_room() {
        let mut history = History::default();
        history.add(&[1, 2, 3, 4, 5]);
        history.add(&[9, 2, 3, 6]);
        let found = history.find(&[7, 1, 2, 3]).expect("a match");
        assert_eq!(found.len, 3);
        assert_eq!(history.after(found).collect::<Vec<_>>(), [4, 5], "not on into the next answer");
        assert_eq!(history.find(&[5, 9]), None, "answers do not join");
        let other: Vec<u32> = (100..100 + 3 * KEPT as u32).collect();
        for part in other.chunks(1000) {
            history.add(part);
            assert!(history.text.len() <= 2 * KEPT);
        }
        assert_eq!(history.find(&[1, 2, 3]), None);
        assert!(history.find(&other[other.len() - 9..]).is_some());
        history.add(&other);
        assert!(history.text.len() <= 2 * KEPT, "one long answer too");
    }
}

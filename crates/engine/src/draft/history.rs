//! What a namespace was answered lately, as a text to draft from.

use super::index::{Index, Match};

/// Tokens that are kept at least; at twice as many the older half goes.
const KEPT: usize = 8192;
/// Stands between answers; no token of any vocabulary.
const BETWEEN: u32 = u32::MAX;

/// Recent answers of one namespace, one after the other.
#[derive(Debug, Default)]
pub(super) struct History {
    text: Vec<u32>,
    index: Index,
    /// When an answer was last added, in answers.
    pub used: u64,
}

impl History {
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

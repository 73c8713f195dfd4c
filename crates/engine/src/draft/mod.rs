//! Drafts: guesses at a sequence's next tokens, without a second model.
//!
//! What follows the longest earlier match of the sequence's end is proposed: from what its caller predicts, from its own
//! tokens (prompt and answer) or from what its namespace was answered lately, never from another namespace. The proposal runs as further rows
//! of the sequence in the step that decodes its next token; `publish` keeps those that equal the tokens chosen at
//! their positions. So a draft changes how soon tokens come and nothing else.
//!
//! How many tokens are drafted follows from how often guesses like this one held (`trust`) and from what rows cost
//! (`pays`).

mod history;
mod index;
mod pays;
mod trust;

pub use pays::DraftCost;
pub(crate) use pays::Yield;

use base::Namespace;
use history::History;
use index::{Index, Match};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use trust::Trust;

/// Most tokens of one draft.
pub(crate) const LONGEST_DRAFT: usize = 16;
/// Namespaces whose answers are kept; the one that was answered longest ago makes room.
const NAMESPACES: usize = 64;

/// What came of the draft of a step, in tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Settled {
    /// They ran as rows.
    pub ran: usize,
    /// Of these, the answer's.
    pub right: usize,
    /// Whether they are from the request's prediction.
    pub predicted: bool,
}

/// What is known of one sequence.
#[derive(Debug, Default)]
pub(crate) struct Drafting {
    /// What its caller expects; the same for all choices of a request.
    prediction: Option<Arc<History>>,
    index: Index,
    trust: Trust,
    /// Whether the guess is from the prediction.
    predicted: bool,
    /// The guess at what comes next.
    guess: Vec<u32>,
    /// Tokens of the match before the guess.
    matched: usize,
    /// Tokens of the guess that run as rows in the planned step.
    rows: usize,
}

impl Drafting {
    /// Of a sequence that is expected to go on from its prompt with `prediction`, unless that is empty.
    pub fn new(prompt: &[u32], prediction: &[u32]) -> Self {
        let prediction = (!prediction.is_empty()).then(|| Arc::new(History::predicted(prompt, prediction)));
        Self { prediction, ..Self::default() }
    }

    /// Of another choice of the same request.
    pub fn sibling(&self) -> Self {
        Self { prediction: self.prediction.clone(), ..Self::default() }
    }

    /// Guesses at most `most` tokens after `tokens`; returns how many pay as rows of the step.
    fn propose(&mut self, tokens: &[u32], history: Option<&History>, most: usize, step: &mut Yield) -> usize {
        self.guess.clear();
        if most == 0 || tokens.is_empty() {
            return 0;
        }
        self.index.cover(tokens, tokens.len() - 1);
        let own = self.index.find(tokens, tokens);
        let len = |found: Option<Match>| found.map_or(0, |found| found.len);
        let told = history.and_then(|history| Some((history, history.find(tokens)?)));
        let told = told.filter(|(_, found)| found.len > len(own));
        let longest = told.map_or(len(own), |(_, found)| found.len);
        let predicted = self.prediction.as_deref();
        let predicted = predicted.and_then(|history| Some((history, history.find(tokens)?)));
        let predicted = predicted.filter(|(_, found)| found.len >= longest);
        self.predicted = predicted.is_some();
        match predicted.or(told) {
            Some((history, found)) => {
                self.matched = found.len;
                self.guess.extend(history.after(found).take(most));
            }
            None => {
                let Some(found) = own else { return 0 };
                self.matched = found.len;
                self.guess.reserve(LONGEST_DRAFT);
                for i in found.end..found.end + most {
                    // What repeats itself goes on to.
                    let token = tokens.get(i).copied().unwrap_or_else(|| self.guess[i - tokens.len()]);
                    self.guess.push(token);
                }
            }
        }
        step.add(&self.trust, self.matched, self.guess.len())
    }

    /// Lets the first `rows` tokens of the guess run in the step.
    pub fn run(&mut self, rows: usize) {
        self.rows = rows;
    }

    /// The tokens that run as rows of the step after the sequence's own.
    pub fn rows(&self) -> &[u32] {
        &self.guess[..self.rows]
    }

    /// Compares the guess with what `came`.
    pub fn settle(&mut self, came: &[u32]) -> Settled {
        let ran = std::mem::take(&mut self.rows);
        let predicted = self.predicted;
        if self.guess.is_empty() || came.is_empty() {
            return Settled { ran, right: 0, predicted };
        }
        let right = crate::radix::common(&self.guess, came);
        for i in 0..right {
            self.trust.learn(self.matched + i, true);
        }
        // A guess is not wrong where nothing came.
        if right < came.len().min(self.guess.len()) {
            self.trust.learn(self.matched + right, false);
        }
        self.guess.clear();
        Settled { ran, right: right.min(ran), predicted }
    }
}

/// What all sequences of an engine share.
#[derive(Debug, Default)]
pub(crate) struct Drafter {
    histories: FxHashMap<Namespace, History>,
    answers: u64,
    pub cost: DraftCost,
}

impl Drafter {
    /// See [`Drafting::propose`].
    pub fn propose(
        &self,
        drafting: &mut Drafting,
        namespace: Namespace,
        tokens: &[u32],
        most: usize,
        step: &mut Yield,
    ) -> usize {
        drafting.propose(tokens, self.histories.get(&namespace), most, step)
    }

    /// Keeps an answer for its namespace's later ones.
    pub fn remember(&mut self, namespace: Namespace, answer: &[u32]) {
        if answer.len() < index::LEAST {
            return;
        }
        self.answers += 1;
        if self.histories.len() >= NAMESPACES && !self.histories.contains_key(&namespace) {
            let oldest = self.histories.iter().min_by_key(|(_, history)| history.used);
            if let Some(oldest) = oldest.map(|(namespace, _)| *namespace) {
                self.histories.remove(&oldest);
            }
        }
        let history = self.histories.entry(namespace).or_default();
        history.used = self.answers;
        history.add(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOTHING: [u32; 0] = [];

    fn free() -> Yield {
        Yield::new(1, DraftCost { first: 0.0, row: 0.0 })
    }

    fn guess(drafter: &Drafter, namespace: u64, tokens: &[u32]) -> Vec<u32> {
        let mut drafting = Drafting::default();
        let rows = drafter.propose(&mut drafting, Namespace(namespace), tokens, 4, &mut free());
        drafting.run(rows);
        drafting.rows().to_vec()
    }

    #[test]
    fn the_longest_match_is_drafted_from_own_tokens_or_the_namespaces_answers() {
        let mut drafter = Drafter::default();
        assert_eq!(guess(&drafter, 0, &[1, 2, 3, 8, 9, 1, 2]), [3, 8, 9, 1]);
        assert_eq!(guess(&drafter, 0, &[5, 1, 2, 1, 2]), [1, 2, 1, 2], "what repeats itself goes on to");
        assert_eq!(guess(&drafter, 0, &[1, 2, 3]), NOTHING);
        drafter.remember(Namespace(0), &[0, 1, 2, 4, 4]);
        assert_eq!(guess(&drafter, 0, &[1, 2, 3, 0, 1, 2]), [4, 4], "the longer match is another answer's");
        assert_eq!(guess(&drafter, 0, &[1, 2, 3, 1, 2]), [3, 1, 2, 3], "of equals the sequence's own");
        assert_eq!(guess(&drafter, 0, &[0, 1, 2]), [4, 4]);
        assert_eq!(guess(&drafter, 1, &[0, 1, 2]), NOTHING, "another account's answers are not read");
    }

    #[test]
    fn of_equal_matches_the_prediction_is_drafted_and_a_longer_one_goes_before_it() {
        let drafter = Drafter::default();
        let mut drafting = Drafting::new(&[5, 1, 2], &[8, 9, 1, 2, 7]);
        let mut guess = |tokens: &[u32]| {
            let rows = drafter.propose(&mut drafting, Namespace(0), tokens, 4, &mut free());
            drafting.run(rows);
            let guess = drafting.rows().to_vec();
            (guess, drafting.settle(&[]).predicted)
        };
        assert_eq!(guess(&[5, 1, 2]), (vec![8, 9, 1, 2], true), "at the first token");
        assert_eq!(guess(&[5, 1, 2, 8]), (vec![9, 1, 2, 7], true));
        assert_eq!(guess(&[5, 1, 2, 3, 4, 1, 2]), (vec![7], true), "the latest of its own equals");
        assert_eq!(guess(&[4, 1, 2, 3, 4, 1, 2]), (vec![3, 4, 1, 2], false), "the sequence's own is longer");
    }

    #[test]
    fn answers_of_many_namespaces_take_bounded_memory() {
        let mut drafter = Drafter::default();
        for namespace in 0..1000 {
            drafter.remember(Namespace(namespace), &[1, 2, 3]);
            drafter.remember(Namespace(0), &[4, 5, 6]);
        }
        assert_eq!(drafter.histories.len(), NAMESPACES);
        assert_eq!(guess(&drafter, 0, &[4, 5]), [6], "the one in use stays");
        assert_eq!(guess(&drafter, 999, &[1, 2]), [3]);
        assert_eq!(guess(&drafter, 500, &[1, 2]), NOTHING);
    }

    #[test]
    fn a_guess_is_right_as_far_as_it_came() {
        let mut drafting = Drafting::default();
        let tokens = [1, 2, 3, 4, 5, 6, 1, 2];
        let propose = |drafting: &mut Drafting| {
            let rows = drafting.propose(&tokens, None, 4, &mut free());
            drafting.run(rows);
            rows
        };
        assert_eq!(propose(&mut drafting), 4);
        let settled = |ran, right| Settled { ran, right, predicted: false };
        assert_eq!(drafting.settle(&[3, 4, 9]), settled(4, 2));
        assert_eq!(propose(&mut drafting), 4);
        assert_eq!(drafting.settle(&[]), settled(4, 0), "the answer ended");
        assert_eq!(drafting.rows(), NOTHING);
        let before = drafting.trust.of(2);
        assert!(before > Trust::default().of(2), "{before}");
        // Not run, and yet learned from.
        assert_eq!(
            drafting.propose(&tokens, None, 4, &mut Yield::new(1, DraftCost { first: 9.0, row: 9.0 })),
            0
        );
        assert_eq!(drafting.settle(&[8]), settled(0, 0));
        assert!(drafting.trust.of(2) < before);
    }
}

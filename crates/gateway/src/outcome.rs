//! What becomes of a request, told to those around its handler: the ledger writes it here as entries open and end, and
//! the steps before and after the handler read it when the answer's body has ended.
//!
//! One request may have several entries: providers that failed before another answered, prompts that came together,
//! the judge of a guardrail. Not here: anything durable.

use crate::Usage;
use base::NanoUsd;
use std::sync::{Arc, Mutex, PoisonError};

/// A place for what becomes of one request. Clones are the same place.
#[derive(Clone, Debug, Default)]
pub struct Outcome(Arc<Mutex<Seen>>);

/// What is known so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Entries that have not ended.
    pub open: u32,
    /// Entries whose answer is whole.
    pub settled: u32,
    /// Entries without one.
    pub failed: u32,
    /// Entries whose client left.
    pub interrupted: u32,
    /// What all ended entries cost; nothing where one of them is not known.
    pub cost: Option<NanoUsd>,
    /// What the settled ones used.
    pub usage: Option<Usage>,
    /// Whether the answer came from the cache.
    pub cached: bool,
    /// The last entry: its id, its provider and its model.
    pub last: Option<(String, String, String)>,
    unpriced: bool,
}

/// How an entry ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Settled,
    Failed,
    Interrupted,
}

impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Outcome {}

impl Outcome {
    /// What is known now.
    #[must_use]
    pub fn seen(&self) -> Seen {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Changes what is known.
    pub fn note(&self, change: impl FnOnce(&mut Seen)) {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(crate) fn opened(&self, request: &str, provider: &str, model: &str) {
        self.note(|seen| {
            seen.open += 1;
            seen.last = Some((request.to_owned(), provider.to_owned(), model.to_owned()));
        });
    }

    /// An entry is closed because another (its id, provider and model) answers, which is the last one then.
    pub(crate) fn withdrawn(&self, request: &str, other: (&str, &str, &str)) {
        self.note(|seen| {
            seen.open = seen.open.saturating_sub(1);
            if seen.last.as_ref().is_some_and(|(last, _, _)| last == request) {
                let (request, provider, model) = other;
                seen.last = Some((request.to_owned(), provider.to_owned(), model.to_owned()));
            }
        });
    }

    pub(crate) fn ended(&self, end: End, usage: Option<&Usage>, cost: Option<NanoUsd>) {
        self.note(|seen| {
            seen.open = seen.open.saturating_sub(1);
            *match end {
                End::Settled => &mut seen.settled,
                End::Failed => &mut seen.failed,
                End::Interrupted => &mut seen.interrupted,
            } += 1;
            seen.unpriced |= cost.is_none();
            let known = NanoUsd(seen.cost.unwrap_or_default().0.saturating_add(cost.unwrap_or_default().0));
            seen.cost = (!seen.unpriced).then_some(known);
            if let Some(usage) = usage.filter(|_| end != End::Failed) {
                seen.usage = Some(seen.usage.map_or(*usage, |sum| sum.and(usage)));
            }
        });
    }
}

impl Seen {
    /// Whether there is a whole answer and nothing else after `failed` entries had failed.
    #[must_use]
    pub const fn is_whole(&self, failed: u32) -> bool {
        self.settled > 0 && self.open == 0 && self.interrupted == 0 && self.failed == failed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_that_is_withdrawn_leaves_the_others_answer_whole_and_last() {
        let outcome = Outcome::default();
        outcome.opened("winner", "p", "m");
        outcome.opened("loser", "q", "n");
        outcome.withdrawn("loser", ("winner", "p", "m"));
        outcome.ended(End::Settled, None, Some(NanoUsd(3)));
        let seen = outcome.seen();
        assert!(seen.is_whole(0));
        assert_eq!(seen.cost, Some(NanoUsd(3)));
        assert_eq!(seen.last, Some(("winner".to_owned(), "p".to_owned(), "m".to_owned())));
    }

    #[test]
    fn one_cost_that_is_not_known_makes_the_sum_unknown() {
        let outcome = Outcome::default();
        for cost in [Some(NanoUsd(3)), Some(NanoUsd(4))] {
            outcome.opened("r", "p", "m");
            outcome.ended(End::Settled, None, cost);
        }
        assert_eq!(outcome.seen().cost, Some(NanoUsd(7)));
        outcome.opened("r", "p", "m");
        assert!(!outcome.seen().is_whole(0));
        outcome.ended(End::Settled, None, None);
        outcome.opened("r", "p", "m");
        outcome.ended(End::Settled, None, Some(NanoUsd(1)));
        assert_eq!(outcome.seen().cost, None);
        assert!(outcome.seen().is_whole(0));
    }
}

//! A rule that has been compiled: what each answer's parser is copied from.
//!
//! Each answer has caches of its own, so that one that meets a limit of the library's, or a fault in it, fails
//! alone. Where an answer's parser has not failed its caches become those that later answers start with, up to a bound on
//! their size: whoever comes next finds the lexer's states that most answers pass through.

use super::constraint::{Desk, Grammar};
use llguidance::TokenParser;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

/// States of the lexer that an answer starts with at most. Each takes one to two KiB, which each answer copies.
const MOST_STATES: usize = 256;

/// A rule, ready to constrain answers.
pub(crate) struct Compiled {
    start: Mutex<Start>,
    masks: Sender<Arc<Desk>>,
    /// An estimate of the memory it takes.
    pub(super) bytes: usize,
}

/// What answers start from; it never computes.
struct Start {
    parser: Box<TokenParser>,
    states: usize,
}

impl Compiled {
    pub(super) fn new(parser: Box<TokenParser>, bytes: usize, masks: Sender<Arc<Desk>>) -> Self {
        let states = parser.parser.lexer_stats().num_states;
        Self { start: Mutex::new(Start { parser, states }), masks, bytes }
    }

    /// A constraint for one answer from its first token on. Its first mask is on the way.
    pub fn constraint(self: &Arc<Self>) -> Box<dyn engine::Constraint> {
        let grammar = self.grammar();
        grammar.prepare();
        Box::new(grammar)
    }

    pub(super) fn grammar(self: &Arc<Self>) -> Grammar {
        let start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = Box::new(start.parser.deep_clone());
        drop(start);
        Grammar::new(fresh.clone(), fresh, self.masks.clone(), Arc::clone(self))
    }

    /// Takes over the caches of an answer that went well. `fresh` stands at the beginning and shares them.
    pub(super) fn learn(&self, fresh: Box<TokenParser>) {
        // The library panics where a parser that shares the caches has panicked.
        let Ok(stats) = catch_unwind(AssertUnwindSafe(|| fresh.parser.lexer_stats())) else { return };
        let mut start = self.start.lock().unwrap_or_else(PoisonError::into_inner);
        if !stats.error && stats.num_states <= MOST_STATES && stats.num_states > start.states {
            *start = Start { parser: fresh, states: stats.num_states };
        }
    }
}

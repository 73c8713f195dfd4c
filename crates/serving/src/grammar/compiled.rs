//! A rule that has been compiled: what each answer's parser is copied from.
//!
//! Parsers of one grammar share the lexer's states, so that an answer finds what others have met. The states are
//! dropped when they have grown past a bound, and when a parser failed, since its failure may have left them
//! half changed.

use super::constraint::{Desk, Grammar};
use llguidance::TokenParser;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};

/// States of the lexer that are kept for later answers; each takes one to two KiB.
const MOST_STATES: usize = 20_000;

/// A rule, ready to constrain answers.
pub(crate) struct Compiled {
    /// Never computes, so that its lexer stays small and sound.
    pristine: Mutex<Box<TokenParser>>,
    /// Shares its lexer with the answers.
    shared: Mutex<Box<TokenParser>>,
    distrusted: AtomicBool,
    masks: Sender<Arc<Desk>>,
    /// An estimate of the memory it takes.
    pub(super) bytes: usize,
}

impl Compiled {
    pub(super) fn new(parser: Box<TokenParser>, bytes: usize, masks: Sender<Arc<Desk>>) -> Self {
        Self {
            shared: Mutex::new(Box::new(parser.deep_clone())),
            pristine: Mutex::new(parser),
            distrusted: AtomicBool::new(false),
            masks,
            bytes,
        }
    }

    /// A constraint for one answer from its first token on. Its first mask is on the way.
    pub fn constraint(self: &Arc<Self>) -> Box<dyn engine::Constraint> {
        let grammar = self.grammar();
        grammar.prepare();
        Box::new(grammar)
    }

    pub(super) fn grammar(self: &Arc<Self>) -> Grammar {
        let mut shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        // The library panics where a parser that shares the lexer has panicked.
        let fit = |parser: &TokenParser| {
            let states = catch_unwind(AssertUnwindSafe(|| parser.parser.lexer_stats().num_states));
            states.is_ok_and(|states| states <= MOST_STATES)
        };
        if self.distrusted.swap(false, Ordering::AcqRel) || !fit(&shared) {
            let pristine = self.pristine.lock().unwrap_or_else(PoisonError::into_inner);
            **shared = pristine.deep_clone();
        }
        Grammar::new(shared.clone(), self.masks.clone(), Arc::clone(self))
    }

    /// A parser failed: later answers share nothing with it.
    pub(super) fn distrust(&self) {
        self.distrusted.store(true, Ordering::Release);
    }
}

//! A compiled grammar as the engine's constraint on one answer.
//!
//! `accept`, `forced` and `standing` work on the engine's thread: they take microseconds. The mask takes
//! longer, so it is computed by the model's mask thread from the moment that no token is forced, while the
//! engine runs the model; `mask` takes what is there, waits for what is being computed, and computes
//! itself what nobody has begun.
//!
//! Invariant: the parser is in exactly one place: at rest in its [`Desk`], or with whoever computes.
//! A failure of any kind, a panic too, leaves the desk failed for good: nothing goes on unconstrained.

use super::compiled::Compiled;
use engine::{Constraint, Standing, TokenMask};
use llguidance::TokenParser;
use llguidance::api::StopReason;
use llguidance::toktrie::SimpleVob;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Where the parser of an answer lies, and the mask that was made of it.
pub(super) struct Desk {
    state: Mutex<State>,
    settled: Condvar,
}

enum State {
    /// The parser, and its mask if it has been computed since the last token.
    AtRest(Box<TokenParser>, Option<SimpleVob>),
    /// The mask thread has been asked.
    Asked(Box<TokenParser>),
    /// Somebody computes.
    Taken,
    /// It cannot go on.
    Failed,
}

impl Desk {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the mask thread does: computes the mask, if it was asked for and still is wanted.
    pub fn serve(&self) {
        let parser = {
            let mut state = self.lock();
            match std::mem::replace(&mut *state, State::Taken) {
                State::Asked(parser) => parser,
                other => {
                    *state = other;
                    return;
                }
            }
        };
        let after = computed(parser);
        *self.lock() = after;
        self.settled.notify_all();
    }
}

/// The parser with its mask.
fn computed(mut parser: Box<TokenParser>) -> State {
    match catch_unwind(AssertUnwindSafe(|| parser.compute_mask())) {
        Ok(Ok(mask)) => State::AtRest(parser, Some(mask)),
        Ok(Err(error)) => failed(&parser, &error.to_string()),
        Err(_) => State::Failed,
    }
}

fn failed(parser: &TokenParser, why: &str) -> State {
    tracing::warn!(why, reason = %parser.stop_reason(), "a grammar could not be followed");
    State::Failed
}

/// See the module.
pub(super) struct Grammar {
    desk: Arc<Desk>,
    masks: Sender<Arc<Desk>>,
    /// Stands where the answer began and shares the parser's caches.
    fresh: Option<Box<TokenParser>>,
    /// Learns the caches when the answer ends well.
    compiled: Arc<Compiled>,
}

impl Grammar {
    /// A constraint that begins where `parser` stands. `fresh` stays there, and shares the parser's caches.
    pub fn new(
        parser: Box<TokenParser>,
        fresh: Box<TokenParser>,
        masks: Sender<Arc<Desk>>,
        compiled: Arc<Compiled>,
    ) -> Self {
        let state = Mutex::new(State::AtRest(parser, None));
        let desk = Arc::new(Desk { state, settled: Condvar::new() });
        Self { desk, masks, fresh: Some(fresh), compiled }
    }

    /// Has the first mask made, unless the answer begins with forced tokens.
    pub fn prepare(&self) {
        let forces = self.with(|parser| Ok(ended(parser) || !parser.compute_ff_tokens().is_empty()));
        if forces == Some(false) {
            self.ask();
        }
    }

    /// Asks the mask thread for the next mask.
    fn ask(&self) {
        let mut state = self.desk.lock();
        match std::mem::replace(&mut *state, State::Taken) {
            State::AtRest(parser, None) => *state = State::Asked(parser),
            other => {
                *state = other;
                return;
            }
        }
        drop(state);
        // A thread that is gone computes nothing; `mask` then does.
        let _ = self.masks.send(Arc::clone(&self.desk));
    }

    /// Does something with the parser, which drops the mask. Whatever goes wrong fails the constraint.
    fn with<T>(&self, work: impl FnOnce(&mut TokenParser) -> Result<T, String>) -> Option<T> {
        let mut parser = self.take()?;
        let done = catch_unwind(AssertUnwindSafe(|| work(&mut parser)));
        let (after, value) = match done {
            Ok(Ok(value)) => (State::AtRest(parser, None), Some(value)),
            Ok(Err(why)) => (failed(&parser, &why), None),
            Err(_) => (State::Failed, None),
        };
        *self.desk.lock() = after;
        value
    }

    /// Takes the parser; waits for the mask thread if it has it.
    fn take(&self) -> Option<Box<TokenParser>> {
        let state = self.desk.lock();
        let waited = self.desk.settled.wait_while(state, |state| matches!(state, State::Taken));
        let mut state = waited.unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Taken) {
            State::AtRest(parser, _) | State::Asked(parser) => Some(parser),
            State::Taken | State::Failed => {
                *state = State::Failed;
                None
            }
        }
    }
}

impl Drop for Grammar {
    fn drop(&mut self) {
        // Waits for nobody: what is being computed now is not learnt from.
        let last = std::mem::replace(&mut *self.desk.lock(), State::Failed);
        if let (State::AtRest(parser, _) | State::Asked(parser), Some(fresh)) = (last, self.fresh.take()) {
            drop(parser);
            self.compiled.learn(fresh);
        }
    }
}

/// Whether the parser stands in a state after which nothing can follow.
fn ended(parser: &TokenParser) -> bool {
    matches!(parser.stop_reason(), StopReason::NoExtension | StopReason::EndOfSentence)
}

/// Adds the library's set to the engine's.
fn add(mask: &SimpleVob, allowed: &mut TokenMask) {
    let halves = mask
        .as_slice()
        .chunks(2)
        .map(|pair| u64::from(pair[0]) | u64::from(pair.get(1).copied().unwrap_or(0)) << 32);
    for (word, both) in allowed.words_mut().iter_mut().zip(halves) {
        *word |= both;
    }
}

impl Constraint for Grammar {
    fn mask(&mut self, allowed: &mut TokenMask) -> Standing {
        loop {
            let state = self.desk.lock();
            let waited = self.desk.settled.wait_while(state, |state| matches!(state, State::Taken));
            let mut state = waited.unwrap_or_else(PoisonError::into_inner);
            match std::mem::replace(&mut *state, State::Taken) {
                State::AtRest(parser, _) | State::Asked(parser) if ended(&parser) => {
                    *state = State::AtRest(parser, None);
                    return Standing::Ended;
                }
                State::AtRest(parser, Some(mask)) => {
                    add(&mask, allowed);
                    *state = State::AtRest(parser, Some(mask));
                    return Standing::Open;
                }
                // Nobody has begun: computing here is no slower than waiting behind others' masks.
                State::AtRest(parser, None) | State::Asked(parser) => {
                    drop(state);
                    let after = computed(parser);
                    *self.desk.lock() = after;
                }
                State::Failed | State::Taken => {
                    *state = State::Failed;
                    return Standing::Failed;
                }
            }
        }
    }

    fn accept(&mut self, token: u32) {
        self.with(|parser| {
            // A stop token that a caller wants ignored comes here too, after the end.
            if ended(parser) {
                return Err("a token follows the end".to_owned());
            }
            match parser.consume_token(token) {
                Ok(0) => parser.check_stop().map(drop).map_err(|error| error.to_string()),
                Ok(_) => Err("the grammar asks to go back".to_owned()),
                Err(error) => Err(error.to_string()),
            }
        });
    }

    fn forced(&mut self, out: &mut Vec<u32>) {
        {
            let state = self.desk.lock();
            // What is asked or computed has been found to force nothing.
            let State::AtRest(parser, None) = &*state else { return };
            if ended(parser) {
                return;
            }
        }
        let forced = self.with(|parser| Ok(parser.compute_ff_tokens()));
        match forced {
            Some(forced) if !forced.is_empty() => out.extend(forced),
            Some(_) => self.ask(),
            None => {}
        }
    }

    fn standing(&mut self) -> Standing {
        match &*self.desk.lock() {
            State::AtRest(parser, _) if ended(parser) => Standing::Ended,
            State::Failed => Standing::Failed,
            State::AtRest(..) | State::Asked(_) | State::Taken => Standing::Open,
        }
    }
}

#[cfg(test)]
impl Grammar {
    /// As a panic inside the library leaves it, its caches locked for good.
    pub fn fail(&self) {
        self.with(|parser| parser.parser.test_trigger_lexer_error().map_err(|error| error.to_string()));
    }
}

//! Which line answers which prompt: written by serving for each request, read by the model at each row.
//!
//! Invariant: `order` holds each prompt of `lines` once; there are at most [`KEPT`]. Two requests with the same prompt
//! share an entry, and the later one's line stands; a template that shows all that turns are chosen by gives no such
//! pair.

use super::choice::{self, Choice};
use protocol::{Error, GenerateRequest};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Prompts that are remembered: far more than can wait for an engine.
const KEPT: usize = 1 << 16;

/// The hash of a row of tokens, made token by token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Prefix(u64);

impl Prefix {
    /// Of no tokens.
    pub const EMPTY: Self = Self(1);

    /// With one more token.
    pub fn then(self, token: u32) -> Self {
        Self(base::rng::mix(self.0 ^ base::rng::mix(u64::from(token) + 1)))
    }

    /// The hash itself, for chance that depends on the tokens alone.
    pub const fn bits(self) -> u64 {
        self.0
    }
}

/// The line that answers a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cue {
    line: u32,
    /// Whether grammars hold for the answer.
    pub constrained: bool,
}

/// See the module.
pub(crate) struct Cues {
    choices: Vec<Choice>,
    otherwise: Option<usize>,
    given: Mutex<Given>,
}

#[derive(Default)]
struct Given {
    lines: FxHashMap<Prefix, u32>,
    order: VecDeque<Prefix>,
}

impl Cues {
    pub(super) fn new(choices: Vec<Choice>, otherwise: Option<usize>) -> Self {
        Self { choices, otherwise, given: Mutex::default() }
    }

    /// The line that answers a request, or what the caller is told where there is none.
    pub fn choose(&self, request: &GenerateRequest) -> Result<Cue, Error> {
        let choice = &self.choices[choice::choose(&self.choices, self.otherwise, request)?];
        let line = if choice::is_plain(request) { choice.plain } else { choice.thinking };
        Ok(Cue { line, constrained: choice.constrained })
    }

    /// Tells the model; to be called before the engine has the prompt.
    pub fn give(&self, cue: Cue, prompt: &[u32]) {
        let prefix = prompt.iter().fold(Prefix::EMPTY, |prefix, token| prefix.then(*token));
        let mut given = self.lock();
        if given.lines.insert(prefix, cue.line).is_none() {
            given.order.push_back(prefix);
            if given.order.len() > KEPT
                && let Some(oldest) = given.order.pop_front()
            {
                given.lines.remove(&oldest);
            }
        }
    }

    /// The line that answers a prompt of these tokens.
    pub(super) fn line(&self, prompt: Prefix) -> Option<u32> {
        self.lock().lines.get(&prompt).copied()
    }

    fn lock(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

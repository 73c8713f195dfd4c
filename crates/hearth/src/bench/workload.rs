//! What a load run sends: sessions, when their requests are due, and what they say.

use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

/// A plan of sessions; sessions and turns count from 0. The same plan gives the same texts each time.
pub trait Workload: Send + Sync {
    /// Sessions; at least 1.
    fn sessions(&self) -> usize;
    /// Turns of a session; at least 1.
    fn turns(&self, session: usize) -> usize;
    /// When a session's first request is due, since the start of the run.
    fn start(&self, session: usize) -> Duration;
    /// How long after the answer before it a later turn is due.
    fn pause(&self, session: usize, turn: usize) -> Duration;
    /// The system message, the same for all sessions.
    fn system(&self) -> Option<String>;
    /// What a session says in a turn.
    fn user(&self, session: usize, turn: usize) -> String;
    /// Tokens of the answer.
    fn max_tokens(&self, session: usize, turn: usize) -> u32;
    /// Whether a turn comes with the turns before it.
    fn keeps_history(&self) -> bool;
    /// Whether requests start at times of their own, so that being late says something.
    fn is_timed(&self) -> bool;
    /// All that the figures depend on, by the names of the command line.
    fn settings(&self) -> BTreeMap<String, Value>;

    /// Turns over all sessions.
    fn planned(&self) -> usize {
        (0..self.sessions()).map(|session| self.turns(session)).sum()
    }

    /// Whether any session has more than one turn.
    fn has_later_turns(&self) -> bool {
        (0..self.sessions()).any(|session| self.turns(session) > 1)
    }
}

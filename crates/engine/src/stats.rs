//! What an engine can tell about itself: plain counts, taken between steps.

use base::{Bytes, Tokens};

/// Pages of KV cache by use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageStats {
    /// Could be used at once: unused ones, and what is left of the budget.
    pub free: usize,
    /// Hold cached prefixes that no running sequence uses.
    pub cached: usize,
    /// Used by running sequences.
    pub held: usize,
    /// Memory of one page.
    pub bytes: Bytes,
}

/// Totals since the engine was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Steps that ran.
    pub steps: u64,
    /// Rows of all steps: one row computes one token of one sequence.
    pub rows: u64,
    /// Of these, rows of prompts.
    pub prompt_tokens_computed: u64,
    /// Prompt tokens found in the prefix cache when their request was first admitted.
    pub cached_tokens: u64,
    /// Tokens of drafts that ran as rows.
    pub drafted_tokens: u64,
    /// Of these, tokens that were the answer's.
    pub accepted_tokens: u64,
    /// Tokens of answers, stop tokens included.
    pub completion_tokens: u64,
    /// Sequences that lost their pages to others and were computed again.
    pub preemptions: u64,
    /// Cached pages that were evicted.
    pub evicted_pages: u64,
    /// Requests that ended by themselves, failed ones included.
    pub finished: u64,
    /// Requests that were cancelled.
    pub cancelled: u64,
}

/// The state of an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Requests that have not been admitted yet.
    pub queued: usize,
    /// Sequences that wait: queued ones, siblings of a running first choice, and preempted ones.
    pub waiting: usize,
    /// Sequences that run.
    pub running: usize,
    /// Prompt tokens of queued requests.
    pub queued_tokens: Tokens,
    /// Pages by use.
    pub pages: PageStats,
    /// Totals.
    pub counters: Counters,
}

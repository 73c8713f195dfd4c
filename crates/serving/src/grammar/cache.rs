//! Compiled grammars by their rules, the least recently used dropped first.
//!
//! A slot is filled once; whoever asks meanwhile waits for it. Dropped entries live on with their answers.

use super::{Compiled, Rule};
use protocol::Error;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

const MOST_ENTRIES: usize = 256;
const MOST_BYTES: usize = 256 << 20;

/// What compiling a rule gave.
pub(super) type Slot = Arc<OnceLock<Result<Arc<Compiled>, Error>>>;

/// See the module.
#[derive(Default)]
pub(super) struct Cache {
    entries: HashMap<Rule, Entry>,
    clock: u64,
    bytes: usize,
}

struct Entry {
    slot: Slot,
    used: u64,
    /// Counted in the cache's sum.
    bytes: usize,
}

impl Cache {
    /// The place for a rule, filled or to be filled.
    pub fn slot(&mut self, rule: &Rule) -> Slot {
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(rule) {
            entry.used = self.clock;
            return Arc::clone(&entry.slot);
        }
        let slot = Slot::default();
        let entry = Entry { slot: Arc::clone(&slot), used: self.clock, bytes: 0 };
        self.entries.insert(rule.clone(), entry);
        self.shrink();
        slot
    }

    /// Notes how much memory a filled slot takes.
    pub fn weigh(&mut self, rule: &Rule, bytes: usize) {
        if let Some(entry) = self.entries.get_mut(rule) {
            self.bytes += bytes - std::mem::replace(&mut entry.bytes, bytes).min(bytes);
        }
        self.shrink();
    }

    /// Drops what a rule gave.
    pub fn forget(&mut self, rule: &Rule) {
        if let Some(entry) = self.entries.remove(rule) {
            self.bytes -= entry.bytes;
        }
    }

    fn shrink(&mut self) {
        while self.entries.len() > MOST_ENTRIES || (self.bytes > MOST_BYTES && self.entries.len() > 1) {
            let oldest =
                self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(rule, _)| rule.clone());
            let Some(entry) = oldest.and_then(|rule| self.entries.remove(&rule)) else { return };
            self.bytes -= entry.bytes;
        }
    }
}

//! Compiled grammars by their rules' hashes, the least recently used dropped first.
//!
//! Rules themselves are not kept: one that does not compile may be as large as a request. The hashes are of 128 bits
//! with keys of this process, so that no two rules that ever meet have the same, whoever made them.
//!
//! A slot is filled once; whoever asks meanwhile waits for it. Dropped entries live on with their answers.

use super::{Compiled, Rule};
use protocol::Error;
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, OnceLock};

const MOST_ENTRIES: usize = 256;
const MOST_BYTES: usize = 256 << 20;

/// What compiling a rule gave.
pub(super) type Slot = Arc<OnceLock<Result<Arc<Compiled>, Error>>>;

/// The hash of a rule.
pub(super) type Key = [u64; 2];

/// Makes keys.
#[derive(Default)]
pub(super) struct Keys([RandomState; 2]);

impl Keys {
    /// The key of a rule, the order of its schemas' properties included.
    pub fn of(&self, rule: &Rule) -> Key {
        self.0.each_ref().map(|state| state.hash_one(rule))
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Cache {
    entries: HashMap<Key, Entry>,
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
    pub fn slot(&mut self, key: Key) -> Slot {
        self.clock += 1;
        if let Some(entry) = self.entries.get_mut(&key) {
            entry.used = self.clock;
            return Arc::clone(&entry.slot);
        }
        let slot = Slot::default();
        let entry = Entry { slot: Arc::clone(&slot), used: self.clock, bytes: 0 };
        self.entries.insert(key, entry);
        self.shrink();
        slot
    }

    /// Notes how much memory a filled slot takes.
    pub fn weigh(&mut self, key: Key, bytes: usize) {
        if let Some(entry) = self.entries.get_mut(&key) {
            self.bytes += bytes - std::mem::replace(&mut entry.bytes, bytes).min(bytes);
        }
        self.shrink();
    }

    /// Drops what a rule gave.
    pub fn forget(&mut self, key: Key) {
        if let Some(entry) = self.entries.remove(&key) {
            self.bytes -= entry.bytes;
        }
    }

    fn shrink(&mut self) {
        while self.entries.len() > MOST_ENTRIES || (self.bytes > MOST_BYTES && self.entries.len() > 1) {
            let oldest = self.entries.iter().min_by_key(|(_, entry)| entry.used).map(|(key, _)| *key);
            let Some(entry) = oldest.and_then(|key| self.entries.remove(&key)) else { return };
            self.bytes -= entry.bytes;
        }
    }
}

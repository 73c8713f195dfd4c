//! Answers that are given again to the very same request.
//!
//! A request is the same when all that [`Id`] is made of is: every byte counts, the order of members too. Only whole answers
//! come here. Each is kept in this process, where the ones used last stay, and in the store, where all processes find it and
//! those that would end soonest make room; an answer that is no text is kept in the process alone. Looking
//! something up never waits for the store's writer, and neither does keeping it: where many wait to be written, an answer
//! is not.
//!
//! A change of a gateway's settings empties its cache by being part of the id, where the settings want that.

use crate::Gateway;
use crate::account::number;
use crate::settings::Named;
use base::NanoUsd;
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use store::{Value, Work};

/// Largest answer that is kept.
pub const ANSWER_MAX: usize = 8 << 20;

/// Room in the store where nobody says otherwise.
pub const SIZE: u64 = 256 << 20;

/// Most of that is also kept in memory.
const MEMORY: u64 = 64 << 20;

/// Answers that may wait to be written.
const WAITING: usize = 64;

/// What an answer takes besides its text, so that many small ones count too.
const ROW: u64 = 512;

/// Rows that are deleted in one go.
const BATCH: i64 = 64;

/// What makes requests the same.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Id(Arc<str>);

/// Puts an id together; parts cannot be mistaken for each other, since each stands behind its name and length.
pub struct IdOf(Sha256);

impl IdOf {
    /// Of requests through a gateway.
    #[must_use]
    pub fn new(named: &Named) -> Self {
        let mut id = Self(Sha256::new());
        id.part("account", named.account.as_bytes());
        id.part("gateway", named.id.as_bytes());
        id.part("created", &named.created.to_be_bytes());
        // What was never judged is not given where it would be now.
        let json = |settings: serde_json::Result<String>| settings.expect("settings have no failing fields");
        id.part("guard", json(serde_json::to_string(&named.settings.guard)).as_bytes());
        if named.settings.cache.cache_invalidate_on_update {
            id.part("modified", &named.modified.to_be_bytes());
            id.part("settings", json(serde_json::to_string(&named.settings)).as_bytes());
        }
        id
    }

    /// Adds a part.
    pub fn part(&mut self, name: &str, value: &[u8]) {
        for bytes in [name.as_bytes(), value] {
            self.0.update((bytes.len() as u64).to_be_bytes());
            self.0.update(bytes);
        }
    }

    /// The id.
    #[must_use]
    pub fn done(self) -> Id {
        let text: String = self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        Id(text.into())
    }
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// What is known of it.
    pub head: Head,
    /// Its bytes, as they went out.
    pub body: Bytes,
}

/// What is known of an answer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Head {
    /// Headers that go out with it.
    pub headers: Vec<(String, String)>,
    /// Who answered.
    pub provider: String,
    /// Which model.
    pub model: String,
    /// What it cost, in billionths of a dollar, where that is known.
    pub cost: Option<i64>,
}

impl Answer {
    /// What it cost, where that is known.
    #[must_use]
    pub fn cost(&self) -> Option<NanoUsd> {
        self.head.cost.map(NanoUsd)
    }
}

struct Held {
    answer: Arc<Answer>,
    expires: u64,
    bytes: u64,
    used: u64,
}

/// Answers in memory; invariant: `bytes` is their sum, and `by_use` has each of them once.
#[derive(Default)]
struct Memory {
    held: HashMap<Id, Held>,
    by_use: BTreeMap<u64, Id>,
    bytes: u64,
    clock: u64,
}

impl Memory {
    fn get(&mut self, id: &Id, now: u64) -> Option<Arc<Answer>> {
        if self.held.get(id)?.expires <= now {
            self.remove(id);
            return None;
        }
        self.clock += 1;
        let held = self.held.get_mut(id)?;
        self.by_use.remove(&held.used);
        held.used = self.clock;
        self.by_use.insert(held.used, id.clone());
        Some(Arc::clone(&held.answer))
    }

    fn remove(&mut self, id: &Id) {
        if let Some(held) = self.held.remove(id) {
            self.by_use.remove(&held.used);
            self.bytes -= held.bytes;
        }
    }

    fn put(&mut self, id: Id, answer: Arc<Answer>, expires: u64, room: u64) {
        self.remove(&id);
        let bytes = answer.body.len() as u64 + ROW;
        if bytes > room {
            return;
        }
        self.clock += 1;
        self.by_use.insert(self.clock, id.clone());
        self.held.insert(id, Held { answer, expires, bytes, used: self.clock });
        self.bytes += bytes;
        while self.bytes > room {
            let Some((_, oldest)) = self.by_use.first_key_value() else { return };
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
    }

    #[cfg(test)]
    fn check(&self, room: u64) {
        assert_eq!(self.bytes, self.held.values().map(|held| held.bytes).sum::<u64>());
        assert!(self.bytes <= room);
        assert_eq!(self.by_use.len(), self.held.len());
        assert!(self.by_use.iter().all(|(used, id)| self.held[id].used == *used));
    }
}

/// The cache of this process.
pub(crate) struct Answers {
    memory: Mutex<Memory>,
    room: AtomicU64,
    waiting: AtomicUsize,
}

impl Default for Answers {
    fn default() -> Self {
        Self { memory: Mutex::default(), room: AtomicU64::new(SIZE), waiting: AtomicUsize::new(0) }
    }
}

impl Answers {
    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn room(&self) -> u64 {
        self.room.load(Ordering::Relaxed)
    }
}

impl Gateway {
    /// Sets the room for kept answers in bytes; 0: none is kept.
    pub fn set_cache_size(&self, bytes: u64) {
        self.answers().room.store(bytes, Ordering::Relaxed);
    }

    /// Whether answers are kept at all.
    #[must_use]
    pub fn caches(&self) -> bool {
        self.answers().room() > 0
    }

    /// The answer to the same request, where there is one. A store that cannot be read has none.
    pub async fn answer(&self, id: &Id) -> Option<Arc<Answer>> {
        let now = self.now();
        if let Some(answer) = self.answers().memory().get(id, now) {
            return Some(answer);
        }
        let values = [(&*id.0).into(), number(now).into()];
        let read = self.store().read_if_there(move |work| {
            let sql = "SELECT expires, head, body FROM policy_answers WHERE id = ?1 AND expires > ?2";
            let rows = work.query(sql, &values)?;
            let answer = rows.first().map(|row| {
                let head = serde_json::from_str(row.text(1)?).map_err(|error| {
                    store::Error::Failed(format!("a kept answer cannot be read: {error}"))
                })?;
                let body = Bytes::from(row.text(2)?.to_owned());
                Ok((row.integer(0)?.unsigned_abs(), Answer { head, body }))
            });
            answer.transpose()
        });
        match read.await {
            Ok(found) => {
                let (expires, answer) = found?;
                let answer = Arc::new(answer);
                let room = self.answers().room().min(MEMORY);
                self.answers().memory().put(id.clone(), Arc::clone(&answer), expires, room);
                Some(answer)
            }
            Err(error) => {
                tracing::warn!(%error, "kept answers cannot be read");
                None
            }
        }
    }

    /// Keeps an answer for so many seconds: here at once, in the store soon after.
    pub fn keep_answer(&self, id: Id, answer: Answer, seconds: u32) {
        let (answers, room) = (self.answers(), self.answers().room());
        if answer.body.len() > ANSWER_MAX || answer.body.len() as u64 + ROW > room {
            return;
        }
        let now = self.now();
        let (answer, expires) = (Arc::new(answer), now + u64::from(seconds));
        answers.memory().put(id.clone(), Arc::clone(&answer), expires, room.min(MEMORY));
        // What cannot stand in the store as a text is kept here alone.
        if !std::str::from_utf8(&answer.body).is_ok_and(|text| !text.contains('\0')) {
            return;
        }
        if answers.waiting.fetch_add(1, Ordering::AcqRel) >= WAITING {
            answers.waiting.fetch_sub(1, Ordering::AcqRel);
            return;
        }
        let gateway = self.clone();
        tokio::spawn(async move {
            let written =
                gateway.store().write(move |work| write(work, &id, &answer, expires, now, room)).await;
            gateway.answers().waiting.fetch_sub(1, Ordering::AcqRel);
            if let Err(error) = written {
                tracing::warn!(%error, "an answer is not kept in the store");
            }
        });
    }

    /// Answers that are not in the store yet.
    #[must_use]
    pub fn answers_waiting(&self) -> usize {
        self.answers().waiting.load(Ordering::Acquire)
    }
}

fn write(
    work: &Work<'_>,
    id: &Id,
    answer: &Answer,
    expires: u64,
    now: u64,
    room: u64,
) -> Result<(), store::Error> {
    let freed = |rows: Vec<store::Row>| rows.iter().map(|row| row.integer(0)).sum::<Result<i64, _>>();
    let sql = "DELETE FROM policy_answers WHERE id IN
        (SELECT id FROM policy_answers WHERE expires <= ?1 ORDER BY expires LIMIT ?2) RETURNING bytes";
    let mut less = freed(work.query(sql, &[number(now).into(), BATCH.into()])?)?;
    less +=
        freed(work.query("DELETE FROM policy_answers WHERE id = ?1 RETURNING bytes", &[(&*id.0).into()])?)?;
    let text = std::str::from_utf8(&answer.body)
        .map_err(|error| store::Error::Failed(format!("an answer is no text: {error}")))?;
    let head = serde_json::to_string(&answer.head)
        .map_err(|error| store::Error::Failed(format!("an answer's head cannot be written: {error}")))?;
    let bytes = number(text.len() as u64 + head.len() as u64 + ROW);
    let values: [Value; 5] =
        [(&*id.0).into(), number(expires).into(), bytes.into(), head.into(), text.into()];
    let sql = "INSERT INTO policy_answers (id, expires, bytes, head, body) VALUES (?1, ?2, ?3, ?4, ?5)";
    work.execute(sql, &values)?;
    let sql = "UPDATE policy_room SET bytes = bytes + ?1 WHERE id = 1 RETURNING bytes";
    let mut all = freed(work.query(sql, &[(bytes - less).into()])?)?;
    let mut gone = 0;
    while all - gone > number(room) {
        let sql = "DELETE FROM policy_answers WHERE id IN
            (SELECT id FROM policy_answers WHERE id <> ?1 ORDER BY expires, id LIMIT 16) RETURNING bytes";
        let rows = work.query(sql, &[(&*id.0).into()])?;
        if rows.is_empty() {
            break;
        }
        gone += freed(rows)?;
    }
    if gone > 0 {
        all -= gone;
        work.execute("UPDATE policy_room SET bytes = ?1 WHERE id = 1", &[all.into()])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;

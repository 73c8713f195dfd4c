//! The ledger: one entry for each request that anything behind the gateway saw.
//!
//! ```text
//! open -> settled       the usage that was reported, durable before the last event reaches the client
//!      -> failed        nothing is owed
//!      -> interrupted   the client left, or the process died; what was seen until then
//! ```
//!
//! An entry is durable when [`Ledger::open`] gives it, before anybody is asked for an answer. It ends once; what ends
//! it is repeated until the store takes it, so a slow or full store holds up an answer for [`PATIENCE`] at the most and
//! loses nothing while the process lives, but for an end that the store refuses again and again as faulty. Should the process die first, the entry is still open in the store, and
//! whoever starts next says that it was interrupted.
//!
//! Several processes may share a store. One is known to be dead when its lock file is free (the system frees it however
//! a process ends), or, where there is no such file because it runs on another machine, when it has not been heard of
//! for [`SILENCE`].

mod entry;
mod report;

pub use entry::{Entry, Opening};
pub use report::{Filter, Group, Line, Question};

use crate::Gateway;
use crate::account::number;
use crate::metrics::Metrics;
use crate::policy::rate::{Rule, tokens_of};
use crate::policy::spend;
use base::{Clock, NanoUsd};
use protocol::{Error, ErrorKind};
use std::fs::{File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::{Store, Value, Work};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// How long an answer waits for the store to take its end.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// How often a process tells that it is there.
const HEARTBEAT: Duration = Duration::from_secs(20);

/// After how many seconds without that it counts as dead.
pub const SILENCE: u64 = 90;

/// Ends that may wait for the store; with more, no new entry is opened.
const BACKLOG: u64 = 10_000;

/// How long, in seconds, what was spent in a window is kept after that: servers' clocks differ, and so may their settings.
const KEPT: i64 = 86_400;

/// Such rows that are deleted at once, and how often in a row.
const SWEPT: (u32, u32) = (500, 20);

/// How often an end may be refused, not for now but for what it is, before it is given up.
const REFUSALS: u32 = 12;

/// Pauses between attempts to write an end: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(5));

/// The ledger of a store. Clones are the same one.
#[derive(Clone)]
pub struct Ledger(Arc<Inner>);

struct Inner {
    store: Store,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    running: OnceLock<Running>,
    /// Ends that the store has not taken yet.
    waiting: AtomicU64,
    drained: Notify,
}

/// What a process that opens entries has.
struct Running {
    process: String,
    runtime: Handle,
    folder: PathBuf,
    /// Held until the process ends.
    _lock: File,
}

impl Ledger {
    pub(crate) fn new(store: Store, clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> Self {
        Self(Arc::new(Inner {
            store,
            clock,
            metrics,
            running: OnceLock::new(),
            waiting: AtomicU64::new(0),
            drained: Notify::new(),
        }))
    }

    /// Makes this process one that opens entries, and ends those that dead processes left open. `folder` is where
    /// processes on this machine find each other; it is made where it is missing. Called once, in the runtime that
    /// answers run in.
    ///
    /// # Errors
    /// When the folder or the store cannot be used.
    pub async fn start(&self, folder: &Path) -> Result<(), store::Error> {
        let process = uuid::Uuid::now_v7().simple().to_string();
        let unusable =
            |error: io::Error| store::Error::Open { path: folder.to_owned(), why: error.to_string() };
        std::fs::create_dir_all(folder).map_err(unusable)?;
        let lock = File::create(folder.join(&process)).map_err(unusable)?;
        lock.lock().map_err(unusable)?;
        self.beat(process.clone()).await?;
        let running = Running { process, runtime: Handle::current(), folder: folder.to_owned(), _lock: lock };
        if self.0.running.set(running).is_err() {
            return Err(store::Error::Undone("the ledger was started before".to_owned()));
        }
        self.recover().await
    }

    /// Tells that this process is there, looks for dead ones, and deletes what was spent in windows that are long over,
    /// as long as it is polled.
    pub async fn watch(&self) {
        loop {
            tokio::time::sleep(HEARTBEAT).await;
            let beat = async {
                self.beat(self.running()?.process.clone()).await?;
                self.recover().await?;
                self.sweep().await
            };
            if let Err(error) = beat.await {
                tracing::warn!(%error, "the ledger cannot tell that this process is there");
            }
        }
    }

    /// Waits until the store has taken all ends, and says that this process is gone.
    pub async fn close(&self, limit: Duration) {
        let drained = async {
            loop {
                let drained = self.0.drained.notified();
                if self.waiting() == 0 {
                    return;
                }
                drained.await;
            }
        };
        if tokio::time::timeout(limit, drained).await.is_err() {
            tracing::warn!(
                count = self.waiting(),
                "entries of the ledger end as interrupted: the store does not take them"
            );
        }
        if let Ok(running) = self.running()
            && let Err(error) = self.bury(running.process.clone()).await
        {
            tracing::warn!(%error, "the ledger could not be closed; the next start does it");
        }
    }

    /// Ends that the store has not taken yet.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.0.waiting.load(Ordering::Acquire)
    }

    fn running(&self) -> Result<&Running, store::Error> {
        self.0.running.get().ok_or_else(|| store::Error::Undone("the ledger was not started".to_owned()))
    }

    fn now(&self) -> i64 {
        number(self.0.clock.unix_seconds())
    }

    async fn beat(&self, process: String) -> Result<(), store::Error> {
        let sql = "INSERT INTO gateway_processes (id, seen) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET seen = ?2";
        let values = [process.into(), self.now().into()];
        self.0.store.write(move |work| work.execute(sql, &values)).await.map(|_| ())
    }

    /// Ends the entries of processes that died.
    async fn recover(&self) -> Result<(), store::Error> {
        let running = self.running()?;
        let known = self.0.store.read(|work| {
            let rows = work.query("SELECT id, seen FROM gateway_processes", &[])?;
            rows.iter()
                .map(|row| Ok((row.text(0)?.to_owned(), row.integer(1)?)))
                .collect::<Result<Vec<_>, _>>()
        });
        for (process, seen) in known.await? {
            if process != running.process && self.is_dead(&running.folder, &process, seen) {
                let ended = self.bury(process).await?;
                if ended > 0 {
                    tracing::warn!(count = ended, "requests of a process that died were interrupted");
                }
            }
        }
        Ok(())
    }

    /// Deletes what was spent in windows that are over, in batches, so that other writes come between.
    async fn sweep(&self) -> Result<(), store::Error> {
        let (batch, times) = SWEPT;
        for _ in 0..times {
            let before = [self.now().saturating_sub(KEPT).into()];
            let deleted = self.0.store.write(move |work| {
                let sql = format!(
                    "DELETE FROM gateway_spend WHERE (key_id, start) IN
                     (SELECT key_id, start FROM gateway_spend WHERE ends < ?1 LIMIT {batch})"
                );
                work.execute(&sql, &before)
            });
            if deleted.await? < batch.into() {
                break;
            }
        }
        Ok(())
    }

    fn is_dead(&self, folder: &Path, process: &str, seen: i64) -> bool {
        match File::open(folder.join(process)).map(|file| file.try_lock()) {
            Ok(Ok(())) => true,
            Ok(Err(TryLockError::WouldBlock)) => false,
            Ok(Err(TryLockError::Error(_))) | Err(_) => seen.saturating_add(number(SILENCE)) < self.now(),
        }
    }

    /// Ends the open entries of a process; gives their number.
    async fn bury(&self, process: String) -> Result<u64, store::Error> {
        let lock = self.running()?.folder.join(&process);
        let values: [Value; 2] = [process.into(), self.now().into()];
        let ended = self.0.store.write(move |work: &Work<'_>| {
            let sql = "UPDATE gateway_ledger SET state = 'interrupted', ended = ?2 WHERE process = ?1 AND state = 'open'";
            let ended = work.execute(sql, &values)?;
            work.execute("DELETE FROM gateway_processes WHERE id = ?1", &values[..1])?;
            Ok(ended)
        });
        let ended = ended.await?;
        // It may never have been there.
        let _ = std::fs::remove_file(lock);
        Ok(ended)
    }
}

impl Gateway {
    /// Opens an entry for a request. It is durable when this resolves.
    ///
    /// A caller without a key, whom only an open server has, gets an answer even where the store does not take the
    /// entry: it is written together with its end then.
    ///
    /// # Errors
    /// When the store does not take it, the model's name is no text that it could, or a limit of money has no room for
    /// the worst case.
    pub async fn enter(&self, opening: Opening) -> Result<Entry, Error> {
        // No store keeps such a text, so no entry could be written.
        if opening.model.contains('\0') {
            return Err(Error::invalid("model", "Invalid value for 'model': it holds a NUL character"));
        }
        let directory = self.directory().await?;
        let holds = spend::holds(&directory, &opening, self.now());
        let key = opening.caller.key.as_ref().and_then(|key| directory.keys.get(key));
        let tokens = key.and_then(|key| Some((tokens_of(&key.id), key.limits.tokens_per_minute?)));
        let own = directory.customs.is_own(&opening.caller.account, &opening.provider);
        drop(directory);
        if self.0.ledger.waiting() >= BACKLOG {
            return Err(Error::new(ErrorKind::Overloaded, "The ledger waits for the store; try again later"));
        }
        let entry = self.0.ledger.open(opening, holds, own).await?;
        Ok(match tokens {
            Some((name, limit)) => entry.counting(self.clone(), name, Rule::minute(limit.into())),
            None => entry,
        })
    }
}

impl Gateway {
    /// Enters a request that the cache answered, which cost nothing; `saved` is what the answer had cost. It is written
    /// soon after; nobody waits for it.
    ///
    /// # Errors
    /// When too many entries wait for the store.
    pub fn enter_hit(&self, opening: Opening, saved: Option<NanoUsd>) -> Result<(), Error> {
        if self.0.ledger.waiting() >= BACKLOG {
            return Err(Error::new(ErrorKind::Overloaded, "The ledger waits for the store; try again later"));
        }
        self.0.ledger.hit(opening, saved)
    }
}

#[cfg(test)]
mod tests;

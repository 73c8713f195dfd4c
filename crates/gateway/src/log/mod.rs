//! Logs: a record of each answer that was asked for, with its payloads where the gateway stores them, and what people
//! ask of them afterwards.
//!
//! A [`Trace`] goes along with a request, as a part of its [`Caller`](crate::Caller): the ledger tells it which provider
//! was asked and how that ended, the HTTP server what went out. When both have ended it becomes one [`Record`] for each
//! provider that was asked (one in all where none was), and goes into a bounded queue that one task writes from, in
//! batches. Nobody waits for it: where the store is slow or full, payloads are let go first, then records, and both are
//! counted. The ledger does not depend on any of this.
//!
//! Not here: what is owed (`ledger`), and HTTP.

mod capture;
mod finding;
mod list;
mod otel;
mod protobuf;
mod prune;
mod record;
pub(crate) mod redact;
mod trace;
mod writer;

pub use finding::{Finder, Finding};
pub use list::{Direction, Query, Totals};
pub use otel::{Allowed, ContentType, Endpoint, Endpoints};
pub use record::{Head, Record};
pub use redact::redacted;
pub(crate) use trace::Outcome;
pub use trace::{Answered, Asked, Collect, Trace};

use crate::metrics::Metrics;
use base::{Bytes, Clock};
use capture::Room;
use record::Pending;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use store::{Part, Store};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

/// The tables.
pub const TABLES: Part = Part {
    name: "gateway_logs",
    steps: &[include_str!("tables_1.sql"), include_str!("tables_2.sql"), include_str!("tables_3.sql")],
};

/// Records that may wait for the store.
const QUEUE: usize = 8192;

/// With more than so many waiting, payloads are let go.
const QUEUE_WITH_PAYLOADS: usize = 1024;

/// Room for payloads of all answers that run and records that wait.
const ROOM: u64 = 128 << 20;

/// What is done when a gateway has as many logs as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Strategy {
    /// No more are kept.
    StopInserting,
    /// The oldest make room.
    DeleteOldest,
}

/// The most that can be set for logs, for a gateway or for all of a server.
#[derive(Clone, Copy, Debug)]
pub struct Most {
    /// Logs of a gateway.
    pub logs: u64,
    /// Bytes of a payload.
    pub payload: Bytes,
    /// Days of retention.
    pub days: u64,
}

/// See [`Most`].
pub const MOST: Most = Most { logs: 10_000_000, payload: Bytes(10 << 20), days: 36_500 };

/// What holds where a gateway sets nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Defaults {
    /// Whether payloads are stored.
    pub payloads: bool,
    /// Most bytes of a payload; what is beyond is cut.
    pub payload_limit: Bytes,
    /// Most logs of a gateway.
    pub most: u64,
    /// What is done then.
    pub strategy: Strategy,
    /// How long logs are kept; `None` is for ever.
    pub retention: Option<Duration>,
    /// Whether secrets and personal data are taken out of payloads.
    pub redaction: bool,
}

impl Default for Defaults {
    fn default() -> Self {
        Self {
            payloads: false,
            payload_limit: Bytes(10 << 20),
            most: 100_000,
            strategy: Strategy::DeleteOldest,
            retention: Some(Duration::from_secs(30 * 86_400)),
            redaction: true,
        }
    }
}

/// What was let go.
#[derive(Debug, Default)]
pub(crate) struct Dropped {
    pub(crate) payloads: AtomicU64,
    pub(crate) records: AtomicU64,
    /// Records beyond what the gateway may have.
    pub(crate) beyond: AtomicU64,
    /// Records that wait for the store now.
    pub(crate) waiting: AtomicU64,
    pub(crate) written: AtomicU64,
    /// Attempts at a batch that the store did not take.
    pub(crate) retries: AtomicU64,
}

/// The logs of a store. Clones are the same.
#[derive(Clone)]
pub struct Logs(Arc<Inner>);

struct Inner {
    store: Store,
    clock: Arc<dyn Clock>,
    metrics: Arc<Metrics>,
    dropped: Arc<Dropped>,
    room: Arc<Room>,
    defaults: RwLock<Defaults>,
    allowed: OnceLock<Allowed>,
    running: Mutex<Option<Running>>,
    exporter: otel::Exporter,
}

/// What writes. The task ends when the sender is gone and all is written.
struct Running {
    queue: mpsc::Sender<Pending>,
    task: JoinHandle<()>,
}

impl Logs {
    pub(crate) fn new(store: Store, clock: Arc<dyn Clock>, metrics: Arc<Metrics>) -> Self {
        Self(Arc::new(Inner {
            store,
            clock,
            metrics,
            dropped: Arc::default(),
            room: Room::new(ROOM),
            defaults: RwLock::default(),
            allowed: OnceLock::new(),
            running: Mutex::default(),
            exporter: otel::Exporter::default(),
        }))
    }

    /// Makes this process one that keeps logs; until then there are none. Called in the runtime that answers run in.
    pub fn start(&self, defaults: Defaults, allowed: Allowed) {
        let (sender, receiver) = mpsc::channel(QUEUE);
        let writer =
            writer::Writer::new(self.0.store.clone(), Arc::clone(&self.0.clock), Arc::clone(&self.0.dropped));
        let task = tokio::spawn(writer.run(receiver));
        self.set_defaults(defaults);
        *self.running() = Some(Running { queue: sender, task });
        // A second start changes nothing of where the first one's spans may go.
        let _ = self.0.allowed.set(allowed.clone());
        self.0.exporter.start(allowed);
    }

    /// Takes no more, and waits until all is written, but not for ever.
    pub async fn close(&self, limit: Duration) {
        let Some(Running { queue, mut task }) = self.running().take() else { return };
        drop(queue);
        if tokio::time::timeout(limit, &mut task).await.is_err() {
            task.abort();
            let count = self.0.dropped.waiting.load(Ordering::Relaxed);
            tracing::warn!(count, "logs were dropped: the store does not take them");
        }
        self.0.exporter.close(limit).await;
    }

    /// What holds where a gateway sets nothing.
    #[must_use]
    pub fn defaults(&self) -> Defaults {
        *self.0.defaults.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts other defaults in the place of those that are. Requests that run are logged by what they began with.
    pub fn set_defaults(&self, defaults: Defaults) {
        *self.0.defaults.write().unwrap_or_else(PoisonError::into_inner) = defaults;
    }

    /// Refuses settings that send spans where this server may not; where none are sent, nothing is refused.
    pub(crate) fn check(&self, otel: &Endpoints) -> Result<(), protocol::Error> {
        self.0.allowed.get().map_or(Ok(()), |allowed| allowed.check(otel))
    }

    fn running(&self) -> std::sync::MutexGuard<'_, Option<Running>> {
        self.0.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a record on its way; nobody waits.
    fn push(&self, mut pending: Pending) {
        let dropped = &self.0.dropped;
        let running = self.running();
        let Some(Running { queue, .. }) = &*running else { return };
        if QUEUE - queue.capacity() >= QUEUE_WITH_PAYLOADS {
            dropped.payloads.fetch_add(pending.strip(), Ordering::Relaxed);
        }
        dropped.waiting.fetch_add(1, Ordering::Relaxed);
        if queue.try_send(pending).is_err() {
            dropped.waiting.fetch_sub(1, Ordering::Relaxed);
            dropped.records.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Records that the store has not taken yet.
    #[must_use]
    pub fn waiting(&self) -> u64 {
        self.0.dropped.waiting.load(Ordering::Relaxed)
    }

    /// Payloads and records that were let go so far.
    #[must_use]
    pub fn dropped(&self) -> (u64, u64) {
        let dropped = &self.0.dropped;
        (dropped.payloads.load(Ordering::Relaxed), dropped.records.load(Ordering::Relaxed))
    }

    /// Attempts that the store did not take so far.
    #[must_use]
    pub fn retries(&self) -> u64 {
        self.0.dropped.retries.load(Ordering::Relaxed)
    }

    pub(crate) fn counts(&self) -> (&Dropped, u64) {
        (&self.0.dropped, self.0.room.held())
    }

    /// Spans that collectors took, and those that none took.
    #[must_use]
    pub fn spans(&self) -> (u64, u64) {
        let counts = self.0.exporter.counts();
        (counts.sent.load(Ordering::Relaxed), counts.dropped.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests;

//! The task that writes records: in batches, prepared away from everybody, again and again while the store does not take
//! them.
//!
//! Invariant: it has at most one write at the store at a time, none larger than [`WRITE`] but for a single payload, so
//! that the ledger's own writes are never far behind. What the store does not take at once loses its payloads; a record
//! that it refuses for another reason than being busy or full is let go after some attempts.

use super::capture::Payload;
use super::record::{COLUMNS, Head, Keep, Pending, clean};
use super::{Dropped, Strategy, redact};
use base::Clock;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::{Store, Value, Work};
use tokio::sync::mpsc;

/// Records of one batch.
const BATCH: usize = 64;

/// How long the writer lets records gather: a transaction for each would cost several times as much as the record.
const GATHER: Duration = Duration::from_millis(25);

/// Bytes of payloads that are prepared where they are; more would hold up answers meanwhile.
const INLINE: usize = 64 << 10;

/// Bytes of payloads in one transaction.
const WRITE: usize = 1 << 20;

/// Pauses between attempts: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// Attempts of a batch that the store refuses for other reasons than being busy or full.
const ATTEMPTS: u32 = 3;

/// How long the number of a gateway's logs is believed: other processes write too.
const COUNTED: Duration = Duration::from_secs(60);

/// An account and a gateway.
type Place = (String, String);

/// How many logs a gateway has.
#[derive(Clone, Copy)]
struct Count {
    logs: u64,
    counted: Duration,
}

pub(super) struct Writer {
    store: Store,
    clock: Arc<dyn Clock>,
    dropped: Arc<Dropped>,
    counts: HashMap<Place, Count>,
}

/// A batch, ready to be written: values of rows, one after the other.
struct Rows {
    records: Vec<Value>,
    metadata: Vec<Value>,
    payloads: Vec<[Value; 5]>,
}

static RECORDS: Insert = Insert::new("gateway_logs", &COLUMNS, "id");
static METADATA: Insert = Insert::new("gateway_log_metadata", &["log", "name", "value"], "log, name");
static PAYLOADS: Insert =
    Insert::new("gateway_log_payloads", &["log", "side", "form", "body", "cut"], "log, side");

impl Writer {
    pub(super) fn new(store: Store, clock: Arc<dyn Clock>, dropped: Arc<Dropped>) -> Self {
        Self { store, clock, dropped, counts: HashMap::new() }
    }

    /// Writes until there is nothing more to come.
    pub(super) async fn run(mut self, mut queue: mpsc::Receiver<Pending>) {
        while let Some(first) = queue.recv().await {
            let mut batch = vec![first];
            tokio::time::sleep(GATHER).await;
            loop {
                while batch.len() < BATCH
                    && let Ok(next) = queue.try_recv()
                {
                    batch.push(next);
                }
                if batch.is_empty() {
                    break;
                }
                let count = batch.len() as u64;
                self.write(std::mem::take(&mut batch)).await;
                self.dropped.waiting.fetch_sub(count, Ordering::Relaxed);
            }
        }
    }

    async fn write(&mut self, mut batch: Vec<Pending>) {
        let keeps = self.make_room(&mut batch).await;
        if batch.is_empty() {
            return;
        }
        let count = batch.len() as u64;
        let size = batch.iter().map(Pending::size).sum::<usize>();
        let rows = if size <= INLINE {
            Rows::of(batch)
        } else {
            let prepared = tokio::task::spawn_blocking(move || Rows::of(batch));
            let Ok(rows) = prepared.await else {
                self.dropped.records.fetch_add(count, Ordering::Relaxed);
                return;
            };
            rows
        };
        if !self.insert(rows, count).await {
            self.dropped.records.fetch_add(count, Ordering::Relaxed);
            // How much of it is there is not known.
            keeps.keys().for_each(|place| {
                self.counts.remove(place);
            });
            return;
        }
        self.dropped.written.fetch_add(count, Ordering::Relaxed);
        for (place, (keep, new)) in keeps {
            self.added(place, keep, new).await;
        }
    }

    /// Takes out what a gateway that is full and stops has no room for. Gives how many each gets.
    async fn make_room(&mut self, batch: &mut Vec<Pending>) -> BTreeMap<Place, (Keep, u64)> {
        let mut keeps: BTreeMap<Place, (Keep, u64)> = BTreeMap::new();
        let mut left = Vec::with_capacity(batch.len());
        for pending in batch.drain(..) {
            let place = (pending.record.account.clone(), pending.record.gateway.clone());
            let keep = pending.keep;
            let here = self.count(&place).await;
            let new = keeps.entry(place).or_insert((keep, 0));
            let full = here.is_some_and(|here| here + new.1 >= keep.most);
            if full && keep.strategy == Strategy::StopInserting {
                self.dropped.beyond.fetch_add(1, Ordering::Relaxed);
                continue;
            }
            *new = (keep, new.1 + 1);
            left.push(pending);
        }
        *batch = left;
        keeps
    }

    /// How many logs a gateway has; nothing while that cannot be read.
    async fn count(&mut self, place: &Place) -> Option<u64> {
        let now = self.clock.now();
        if let Some(count) = self.counts.get(place)
            && now.saturating_sub(count.counted) < COUNTED
        {
            return Some(count.logs);
        }
        let values: [Value; 2] = [place.0.as_str().into(), place.1.as_str().into()];
        let sql = "SELECT CAST(count(*) AS BIGINT) FROM gateway_logs WHERE account = ?1 AND gateway = ?2";
        let read = self.store.read(move |work| work.query(sql, &values)?[0].integer(0));
        let logs = read.await.ok()?.unsigned_abs();
        self.counts.insert(place.clone(), Count { logs, counted: now });
        Some(logs)
    }

    /// Counts new logs, and has the oldest make room for them.
    async fn added(&mut self, place: Place, keep: Keep, new: u64) {
        let Some(count) = self.counts.get_mut(&place) else { return };
        count.logs += new;
        let beyond = count.logs.saturating_sub(keep.most);
        if keep.strategy == Strategy::StopInserting || beyond == 0 {
            return;
        }
        match super::prune::oldest(&self.store, &place.0, &place.1, beyond).await {
            Ok(deleted) => count.logs = count.logs.saturating_sub(deleted),
            Err(error) => tracing::warn!(%error, "old logs could not be deleted"),
        }
    }

    /// Whether the records are in the store.
    async fn insert(&self, mut rows: Rows, count: u64) -> bool {
        let (mut pause, longest) = PAUSES;
        let mut refused = 0;
        let payloads = std::mem::take(&mut rows.payloads);
        let rows = Arc::new(rows);
        let mut first = true;
        loop {
            let again = Arc::clone(&rows);
            let error = match self.store.write(move |work| again.write(work)).await {
                Ok(()) => break,
                Err(error) => error,
            };
            self.dropped.retries.fetch_add(1, Ordering::Relaxed);
            refused += u32::from(matches!(error, store::Error::Failed(_) | store::Error::Undone(_)));
            if refused >= ATTEMPTS || matches!(error, store::Error::Closed) {
                tracing::warn!(%error, count, "logs were dropped");
                return false;
            }
            if first {
                tracing::warn!(%error, "logs wait for the store");
            }
            first = false;
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(longest);
        }
        // A store that was slow for the records gets no payloads.
        if first {
            self.insert_payloads(payloads).await;
        } else {
            self.dropped.payloads.fetch_add(payloads.len() as u64, Ordering::Relaxed);
        }
        true
    }

    async fn insert_payloads(&self, payloads: Vec<[Value; 5]>) {
        let size = |row: &[Value; 5]| if let Value::Text(body) = &row[3] { body.len() } else { 0 };
        let mut group = Vec::new();
        let mut payloads = payloads.into_iter().peekable();
        while let Some(row) = payloads.next() {
            group.push(row);
            let held: usize = group.iter().map(size).sum();
            if payloads.peek().is_some_and(|next| held + size(next) <= WRITE) {
                continue;
            }
            let (rows, count) = (std::mem::take(&mut group), held);
            let lost = rows.len() as u64;
            let rows = rows.concat();
            let written = self.store.write(move |work| PAYLOADS.rows(work, &rows));
            if let Err(error) = written.await {
                tracing::warn!(%error, bytes = count, "payloads of logs were dropped");
                self.dropped.payloads.fetch_add(lost, Ordering::Relaxed);
            }
        }
    }
}

impl Rows {
    /// Redacts and encodes; takes long for large payloads.
    fn of(batch: Vec<Pending>) -> Self {
        let mut rows = Self { records: Vec::new(), metadata: Vec::new(), payloads: Vec::new() };
        for pending in batch {
            let Pending { mut record, request, response, redact, .. } = pending;
            let log = clean(&record.id);
            let sides = [
                ("request", request, &mut record.request_head, &record.request_content_type),
                ("response", response, &mut record.response_head, &record.response_content_type),
            ];
            for (side, payload, head, kind) in sides {
                let Some(payload) = payload else { continue };
                let cut = payload.cut;
                let (form, body) = text(payload, redact, kind.as_deref());
                if form == "text" {
                    *head = Head::of(&body, cut);
                }
                rows.payloads.push([
                    log.as_str().into(),
                    side.into(),
                    form.into(),
                    body.into(),
                    i64::from(cut).into(),
                ]);
            }
            if redact {
                redact::redact_metadata(&mut record.metadata);
            }
            for (name, value) in &record.metadata {
                rows.metadata.extend([
                    log.as_str().into(),
                    clean(name).into(),
                    clean(&value.to_string()).into(),
                ]);
            }
            rows.records.extend(record.values());
        }
        rows
    }

    fn write(&self, work: &Work<'_>) -> Result<(), store::Error> {
        RECORDS.rows(work, &self.records)?;
        METADATA.rows(work, &self.metadata)
    }
}

/// Statements that insert rows, but for those that are there: one for each power of two, so that connections prepare
/// each only once.
struct Insert {
    table: &'static str,
    columns: &'static [&'static str],
    key: &'static str,
    statements: [OnceLock<String>; BATCH.ilog2() as usize + 1],
}

impl Insert {
    const fn new(table: &'static str, columns: &'static [&'static str], key: &'static str) -> Self {
        Self { table, columns, key, statements: [const { OnceLock::new() }; BATCH.ilog2() as usize + 1] }
    }

    /// Inserts rows, whose values stand one after the other.
    fn rows(&self, work: &Work<'_>, mut values: &[Value]) -> Result<(), store::Error> {
        while !values.is_empty() {
            let rows = (values.len() / self.columns.len()).min(BATCH);
            let power = rows.ilog2();
            let (now, later) = values.split_at((1 << power) * self.columns.len());
            work.execute(self.statements[power as usize].get_or_init(|| self.statement(1 << power)), now)?;
            values = later;
        }
        Ok(())
    }

    fn statement(&self, rows: usize) -> String {
        let Self { table, columns, key, .. } = self;
        let mut sql = format!("INSERT INTO {table} ({}) VALUES ", columns.join(", "));
        for row in 0..rows {
            sql += if row == 0 { "(" } else { ", (" };
            for column in 0..columns.len() {
                let place = row * columns.len() + column + 1;
                sql += &format!("{}?{place}", if column == 0 { "" } else { ", " });
            }
            sql += ")";
        }
        sql + &format!(" ON CONFLICT ({key}) DO NOTHING")
    }
}

/// A payload as it is stored, and in which form.
fn text(payload: Payload, redact: bool, content_type: Option<&str>) -> (&'static str, String) {
    let bytes = match (std::str::from_utf8(&payload.bytes), payload.cut) {
        (Ok(_), _) => payload.bytes,
        // The cut may have gone through a character.
        (Err(error), true) if error.error_len().is_none() => payload.bytes[..error.valid_up_to()].to_vec(),
        (Err(_), _) => return ("base64", BASE64.encode(&payload.bytes)),
    };
    let Ok(text) = String::from_utf8(bytes) else { return ("text", String::new()) };
    if text.contains('\0') {
        return ("base64", BASE64.encode(text));
    }
    ("text", if redact { redact::redacted(&text, content_type) } else { text })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_inserted_by_statements_of_powers_of_two() {
        let insert = Insert::new("birds", &["name", "size"], "name");
        assert_eq!(
            insert.statement(1),
            "INSERT INTO birds (name, size) VALUES (?1, ?2) ON CONFLICT (name) DO NOTHING"
        );
        assert_eq!(
            insert.statement(2),
            "INSERT INTO birds (name, size) VALUES (?1, ?2), (?3, ?4) ON CONFLICT (name) DO NOTHING"
        );
        let folder = tempfile::tempdir().unwrap();
        let tables = store::Part {
            name: "birds",
            steps: &["CREATE TABLE birds (name TEXT PRIMARY KEY, size INTEGER)"],
        };
        let store = Store::open(folder.path(), &[tables]).unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        for count in [0, 1, 3, 63, 64, 65, 200] {
            let values: Vec<Value> = (0..count)
                .flat_map(|number| [format!("bird {number}").into(), Value::from(number)])
                .collect();
            let found = runtime.block_on(async {
                store
                    .write(move |work| Insert::new("birds", &["name", "size"], "name").rows(work, &values))
                    .await
                    .unwrap();
                store.read(|work| work.query("SELECT count(*), sum(size) FROM birds", &[])).await.unwrap()
            });
            // Those that were there stay, once.
            assert_eq!(found[0].integer(0).unwrap(), count);
            assert_eq!(found[0].optional_integer(1).unwrap().unwrap_or(0), count * (count - 1) / 2);
        }
    }
}

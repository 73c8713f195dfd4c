//! Deletes logs: the oldest beyond what a gateway may have, those that were kept long enough, those of gateways that are
//! gone, and those that somebody names.
//!
//! Invariant: never more than [`BATCH`] rows are read or deleted at once, so memory stays flat and other writes come
//! between.

use super::Query;
use crate::Gateway;
use crate::account::number;
use protocol::Error;
use std::time::Duration;
use store::{Store, Value};

/// Logs that are deleted at once.
pub(super) const BATCH: u64 = 500;

/// How often retention is looked at.
const SWEEP: Duration = Duration::from_secs(60);

/// Every how many sweeps logs of gateways that are gone are looked for.
const ORPHANS: u32 = 10;

/// Deletes logs by their ids, with all that belongs to them; gives how many there were.
async fn delete(store: &Store, ids: Vec<String>) -> Result<u64, store::Error> {
    let places: Vec<String> = (1..=ids.len()).map(|place| format!("?{place}")).collect();
    let places = places.join(", ");
    let ids: Vec<Value> = ids.into_iter().map(Value::from).collect();
    store
        .write(move |work| {
            work.execute(&format!("DELETE FROM gateway_log_payloads WHERE log IN ({places})"), &ids)?;
            work.execute(&format!("DELETE FROM gateway_log_metadata WHERE log IN ({places})"), &ids)?;
            work.execute(&format!("DELETE FROM gateway_logs WHERE id IN ({places})"), &ids)
        })
        .await
}

/// Deletes what a query for ids gives, batch by batch, until it gives nothing or `most` are gone. `sql` ends where a
/// limit may follow.
async fn all(store: &Store, sql: &str, values: &[Value], most: u64) -> Result<u64, store::Error> {
    let mut deleted = 0;
    while deleted < most {
        let (sql, values) = (format!("{sql} LIMIT {}", BATCH.min(most - deleted)), values.to_vec());
        let ids = store.read(move |work| {
            let rows = work.query(&sql, &values)?;
            rows.iter().map(|row| row.text(0).map(str::to_owned)).collect::<Result<Vec<_>, _>>()
        });
        let ids = ids.await?;
        if ids.is_empty() {
            break;
        }
        // Another process may have deleted them first.
        deleted += delete(store, ids).await?.max(1);
    }
    Ok(deleted)
}

/// Deletes a gateway's oldest logs.
pub(super) async fn oldest(
    store: &Store,
    account: &str,
    gateway: &str,
    count: u64,
) -> Result<u64, store::Error> {
    let sql = "SELECT id FROM gateway_logs WHERE account = ?1 AND gateway = ?2 ORDER BY created, id";
    all(store, sql, &[account.into(), gateway.into()], count).await
}

/// Deletes a gateway's logs from before a moment, in milliseconds.
async fn before(store: &Store, account: &str, gateway: &str, moment: u64) -> Result<u64, store::Error> {
    let sql = "SELECT id FROM gateway_logs WHERE account = ?1 AND gateway = ?2 AND created < ?3";
    all(store, sql, &[account.into(), gateway.into(), number(moment).into()], u64::MAX).await
}

impl Gateway {
    /// Deletes the logs of an account's gateway that a query finds, in its order, up to `most`; gives how many.
    ///
    /// # Errors
    /// When the store fails; some may be gone then.
    pub async fn delete_logs(&self, query: &Query, most: Option<u64>) -> Result<u64, Error> {
        let (sql, values) = query.ids();
        let deleted = all(self.store(), &sql, &values, most.unwrap_or(u64::MAX)).await;
        deleted.map_err(|error| crate::unavailable("The logs could not be deleted", &error))
    }

    /// Deletes logs that were kept long enough, as long as it is polled.
    pub async fn watch_logs(&self) {
        for round in 0_u32.. {
            if let Err(error) = self.sweep_logs(round.is_multiple_of(ORPHANS)).await {
                tracing::warn!(%error, "old logs could not be deleted");
            }
            tokio::time::sleep(SWEEP).await;
        }
    }

    /// Deletes what was kept long enough, and with `orphans` the logs of gateways that are gone.
    pub(super) async fn sweep_logs(&self, orphans: bool) -> Result<u64, Error> {
        let directory = self.directory().await?;
        let unavailable = |error: store::Error| crate::unavailable("Old logs could not be deleted", &error);
        let now = self.now() * 1000;
        let mut deleted = 0;
        for named in directory.gateways.values() {
            let retention = named.settings.logs.retention(&self.logs().defaults());
            let Some(retention) = retention else { continue };
            let kept = u64::try_from(retention.as_millis()).unwrap_or(u64::MAX);
            let moment = now.saturating_sub(kept);
            deleted += before(self.store(), &named.account, &named.id, moment).await.map_err(unavailable)?;
        }
        if orphans {
            let places = self.store().read(|work| {
                let sql = "SELECT DISTINCT account, gateway FROM gateway_logs AS logs WHERE NOT EXISTS
                    (SELECT 1 FROM gateway_gateways AS named
                     WHERE named.account = logs.account AND named.id = logs.gateway)";
                let rows = work.query(sql, &[])?;
                rows.iter()
                    .map(|row| Ok((row.text(0)?.to_owned(), row.text(1)?.to_owned())))
                    .collect::<Result<Vec<_>, _>>()
            });
            for (account, gateway) in places.await.map_err(unavailable)? {
                deleted += oldest(self.store(), &account, &gateway, u64::MAX).await.map_err(unavailable)?;
            }
        }
        Ok(deleted)
    }
}

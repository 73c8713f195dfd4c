//! Accounts, keys, gateways and providers as this process knows them, never older than half a second when it counts.
//!
//! Every change counts one row up. Whoever asks after half a second looks at that row first, and reads everything anew
//! when it has moved; whoever asks meanwhile waits. So a revoked key ends within a second in every process on the
//! store, and an idle server asks nothing. A server that is asked all the time looks in time, beside the requests, so that
//! none waits for it. While the store cannot be read, what is known goes on.

use crate::account::Account;
use crate::byok::{self, Kept};
use crate::custom::{self, Customs};
use crate::key::{self, Key};
use crate::policy::credit::{self, Billing};
use crate::settings::{self, Named};
use crate::{Gateway, KeyId, unavailable};
use base::Clock;
use protocol::Error;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use store::{Store, Work};

/// How long nobody looks.
const FRESH: Duration = Duration::from_millis(500);

/// From when on one looks in time.
const DUE: Duration = Duration::from_millis(250);

/// All of it, as it was at one moment.
#[derive(Debug, Default)]
pub(crate) struct Directory {
    version: i64,
    pub(crate) accounts: HashMap<String, Account>,
    pub(crate) keys: HashMap<KeyId, Arc<Key>>,
    /// By the SHA-256 of the key; until when, where that is set.
    pub(crate) secrets: HashMap<String, (Arc<Key>, Option<u64>)>,
    /// By account and id.
    pub(crate) gateways: HashMap<(String, String), Arc<Named>>,
    /// Keys of providers.
    pub(crate) kept: Kept,
    /// Providers of accounts.
    pub(crate) customs: Customs,
    /// Of accounts that pay in advance or have a spending limit.
    pub(crate) billing: HashMap<String, Billing>,
    /// Gateways with spend limits.
    pub(crate) spending: usize,
}

impl Directory {
    /// Counted up by every change.
    pub(crate) const fn version(&self) -> i64 {
        self.version
    }
}

/// What is known, and when it was last looked at.
#[derive(Default)]
pub(crate) struct Known {
    known: RwLock<Option<(Arc<Directory>, Option<Duration>)>>,
    /// Held by the one who looks.
    looking: tokio::sync::Mutex<()>,
    /// Whether one looks in time.
    ahead: AtomicBool,
}

/// Says that something changed; part of the change's own transaction.
pub(crate) fn changed(work: &Work<'_>) -> Result<(), store::Error> {
    work.execute("UPDATE gateway_version SET version = version + 1 WHERE id = 1", &[]).map(|_| ())
}

impl Known {
    /// What is known and still counts, with its age.
    fn fresh(&self, clock: &dyn Clock) -> Option<(Arc<Directory>, Duration)> {
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let (directory, looked) = known.as_ref()?;
        let age = clock.now().saturating_sub((*looked)?);
        (age < FRESH).then(|| (Arc::clone(directory), age))
    }

    fn set(&self, directory: &Arc<Directory>, looked: Duration) {
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        *known = Some((Arc::clone(directory), Some(looked)));
    }

    /// What is there now.
    async fn get(&self, store: &Store, clock: &dyn Clock) -> Result<Arc<Directory>, Error> {
        let _looking = self.looking.lock().await;
        if let Some((directory, _)) = self.fresh(clock) {
            return Ok(directory);
        }
        self.look(store, clock).await
    }

    async fn look(&self, store: &Store, clock: &dyn Clock) -> Result<Arc<Directory>, Error> {
        let looked = clock.now();
        let old = self.known.read().unwrap_or_else(PoisonError::into_inner).clone().map(|(old, _)| old);
        let version = old.as_ref().map(|old| old.version);
        // Where something is known that goes on, a server that is away is not waited for.
        let outcome = match &old {
            Some(_) => store.read_if_there(move |work| read(work, version)).await,
            None => store.read(move |work| read(work, version)).await,
        };
        match outcome {
            Ok(Some(directory)) => {
                let directory = Arc::new(directory);
                self.set(&directory, looked);
                Ok(directory)
            }
            outcome => {
                let Some(old) = old else {
                    let error = outcome.err().unwrap_or(store::Error::Closed);
                    return Err(unavailable("Keys cannot be read", &error));
                };
                let looked = match outcome {
                    Ok(_) => looked,
                    Err(error) => {
                        tracing::warn!(%error, "changes of keys cannot be seen");
                        // That may have taken its time, and those who waited meanwhile go on with it too.
                        clock.now()
                    }
                };
                self.set(&old, looked);
                Ok(old)
            }
        }
    }

    /// Makes the next one who asks look.
    pub(crate) async fn forget(&self) {
        // Whoever looks now may have read before the change, and must not call that fresh afterwards.
        let _looking = self.looking.lock().await;
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, looked)) = known.as_mut() {
            *looked = None;
        }
    }
}

impl Gateway {
    /// What is there now.
    pub(crate) async fn directory(&self) -> Result<Arc<Directory>, Error> {
        let (known, clock) = (&self.0.known, &*self.0.clock);
        let Some((directory, age)) = known.fresh(clock) else { return known.get(&self.0.store, clock).await };
        if age > DUE && !known.ahead.swap(true, Ordering::AcqRel) {
            let gateway = self.clone();
            tokio::spawn(async move {
                let known = &gateway.0.known;
                if let Ok(_looking) = known.looking.try_lock() {
                    // It fails for whoever waits for it.
                    let _ = known.look(&gateway.0.store, &*gateway.0.clock).await;
                }
                known.ahead.store(false, Ordering::Release);
            });
        }
        Ok(directory)
    }
}

/// All of it, unless it is still this version.
fn read(work: &Work<'_>, known: Option<i64>) -> Result<Option<Directory>, store::Error> {
    let rows = work.query("SELECT version FROM gateway_version WHERE id = 1", &[])?;
    let version = rows.first().map_or(Ok(0), |row| row.integer(0))?;
    if known == Some(version) {
        return Ok(None);
    }
    let mut directory = Directory { version, ..Directory::default() };
    for row in work.query("SELECT id, name, created FROM gateway_accounts", &[])? {
        let account = Account {
            id: row.text(0)?.to_owned(),
            name: row.text(1)?.to_owned(),
            created: row.integer(2)?.unsigned_abs(),
        };
        directory.accounts.insert(account.id.clone(), account);
    }
    let mut tokens = HashMap::new();
    for row in work.query("SELECT key_id, tokens_per_minute, shadow FROM policy_keys", &[])? {
        let limit = row.optional_integer(1)?.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX));
        tokens.insert(row.text(0)?.to_owned(), (limit, row.integer(2)? != 0));
    }
    for row in work.query(&format!("SELECT {} FROM gateway_keys", key::COLUMNS), &[])? {
        let mut key = key::read(&row)?;
        if let Some((limit, shadow)) = tokens.get(&*key.id.0).copied() {
            key.limits.tokens_per_minute = limit;
            key.limits.shadow = shadow;
        }
        let key = Arc::new(key);
        directory.secrets.insert(row.text(11)?.to_owned(), (Arc::clone(&key), None));
        if let (Some(old), Some(until)) = (row.optional_text(12)?, row.optional_integer(13)?) {
            directory.secrets.insert(old.to_owned(), (Arc::clone(&key), Some(until.unsigned_abs())));
        }
        directory.keys.insert(key.id.clone(), key);
    }
    for row in work.query(&format!("SELECT {} FROM gateway_gateways", settings::COLUMNS), &[])? {
        let named = settings::read(&row)?;
        directory.spending += usize::from(named.settings.spend.spend_limits.is_some());
        directory.gateways.insert((named.account.clone(), named.id.clone()), Arc::new(named));
    }
    directory.kept = byok::read(work)?;
    directory.customs = custom::read(work)?;
    credit::read(work, &mut directory.billing)?;
    Ok(Some(directory))
}

impl Gateway {
    /// Whether there are keys, be they valid or not: from the first one on, one is needed.
    ///
    /// # Errors
    /// When they were never read and cannot be.
    pub async fn has_keys(&self) -> Result<bool, Error> {
        Ok(!self.directory().await?.keys.is_empty())
    }

    /// Whether a key that was shown earlier is still taken.
    ///
    /// # Errors
    /// When keys were never read and cannot be.
    pub async fn is_taken(&self, key: &KeyId) -> Result<bool, Error> {
        let directory = self.directory().await?;
        let now = self.now();
        let valid = |key: &Arc<Key>| key.revoked.is_none() && key.expires.is_none_or(|ends| now < ends);
        Ok(directory.keys.get(key).is_some_and(valid))
    }

    /// The key behind what was shown, when it is valid now.
    ///
    /// # Errors
    /// When keys were never read and cannot be.
    pub async fn authenticate(&self, shown: &[u8]) -> Result<Option<Arc<Key>>, Error> {
        let directory = self.directory().await?;
        let now = self.now();
        let found = directory.secrets.get(&key::hash(shown));
        Ok(found.and_then(|(key, until)| {
            let ends = key.expires.into_iter().chain(*until).min();
            (key.revoked.is_none() && ends.is_none_or(|ends| now < ends)).then(|| Arc::clone(key))
        }))
    }
}

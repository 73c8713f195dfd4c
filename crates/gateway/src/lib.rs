//! The life of a request through the gateway: authenticate, limit, look in the cache, route, retry, fail over,
//! account, log; and the providers it may go to.
//!
//! [`Gateway`] is the handle that everything else uses: accounts, keys and gateways, what things cost, and the ledger,
//! all over one store that several processes may share. Nothing here serves HTTP and nothing here runs a model:
//! `hearth` wires both to it.

mod account;
pub mod byok;
pub mod call;
mod caller;
pub mod credential;
pub mod custom;
pub mod dialect;
mod directory;
pub mod elsewhere;
pub mod eventstream;
pub mod flags;
mod key;
pub mod ledger;
pub mod log;
mod metrics;
mod outcome;
pub mod policy;
pub mod price;
pub mod provider;
pub mod route;
pub mod scan;
pub mod secret;
mod settings;
pub mod sse;
pub mod upstream;
mod usage;

pub use account::{Account, RESERVED};
pub use caller::{Caller, DEFAULT, KeyId, Metadata};
pub use key::{Budget, Key, Limits, NewKey, PREFIX as KEY_PREFIX, Scopes, Secret};
pub use outcome::{Outcome, Seen};
pub use settings::{
    Action, Backoff, Cache, Check, Dlp, Guardrails, Hazards, Logs, Match, Named, Retry, Settings, SpendRule,
};
pub use usage::{Tier, Usage};

use base::Clock;
use directory::Known;
use ledger::Ledger;
use price::{Book, Price};
use protocol::{Error, ErrorKind};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use store::{Part, Store};

/// Accounts, keys, gateways and the ledger.
const TABLES: Part = Part {
    name: "gateway",
    steps: &[include_str!("tables_1.sql"), include_str!("tables_2.sql"), include_str!("tables_3.sql")],
};

/// The tables.
pub const PARTS: [Part; 6] =
    [TABLES, byok::TABLES, custom::TABLES, log::TABLES, policy::TABLES, route::TABLES];

/// Everything the gateway knows and keeps. Clones are the same one.
#[derive(Clone)]
pub struct Gateway(Arc<Inner>);

struct Inner {
    store: Store,
    clock: Arc<dyn Clock>,
    known: Known,
    ledger: Ledger,
    logs: log::Logs,
    metrics: Arc<metrics::Metrics>,
    book: RwLock<Arc<Book>>,
    rates: policy::rate::Rates,
    answers: policy::cache::Answers,
    /// Where the keys lie with which providers' keys are sealed.
    secrets: OnceLock<byok::SecretPlace>,
    ready: route::Ready,
}

impl Gateway {
    /// Over a store that has [`PARTS`]. Makes the default account where it is missing.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn open(store: Store, clock: Arc<dyn Clock>, book: Book) -> Result<Self, store::Error> {
        let now = account::number(clock.unix_seconds());
        store.write(move |work| account::insert(work, DEFAULT, "Default", now)).await?;
        let metrics = Arc::new(metrics::Metrics::default());
        let ledger = Ledger::new(store.clone(), Arc::clone(&clock), Arc::clone(&metrics));
        let logs = log::Logs::new(store.clone(), Arc::clone(&clock), Arc::clone(&metrics));
        Ok(Self(Arc::new(Inner {
            store,
            clock,
            known: Known::default(),
            ledger,
            logs,
            metrics,
            book: RwLock::new(Arc::new(book)),
            rates: policy::rate::Rates::default(),
            answers: policy::cache::Answers::default(),
            secrets: OnceLock::new(),
            ready: route::Ready::default(),
        })))
    }

    /// The ledger.
    #[must_use]
    pub fn ledger(&self) -> &Ledger {
        &self.0.ledger
    }

    /// The logs.
    #[must_use]
    pub fn logs(&self) -> &log::Logs {
        &self.0.logs
    }

    /// The price of a provider's model, where the price book has one.
    #[must_use]
    pub fn price(&self, provider: &str, model: &str) -> Option<Price> {
        let book = Arc::clone(&self.0.book.read().unwrap_or_else(PoisonError::into_inner));
        book.price(provider, model).cloned()
    }

    /// Puts another price book in the place of the one that is. Requests that run are priced by what they began with.
    pub fn set_prices(&self, book: Book) {
        *self.0.book.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(book);
    }

    fn store(&self) -> &Store {
        &self.0.store
    }

    fn rates(&self) -> &policy::rate::Rates {
        &self.0.rates
    }

    fn answers(&self) -> &policy::cache::Answers {
        &self.0.answers
    }

    fn ready(&self) -> &route::Ready {
        &self.0.ready
    }

    fn now(&self) -> u64 {
        self.0.clock.unix_seconds()
    }

    async fn forget(&self) {
        self.0.known.forget().await;
    }
}

/// The error of a request that needs the store when it fails; the database's own words are for the log.
#[must_use]
pub fn unavailable(what: &str, error: &store::Error) -> Error {
    tracing::warn!(%error, "{what}");
    let kind = match error {
        store::Error::Busy => ErrorKind::Overloaded,
        _ => ErrorKind::Unavailable,
    };
    let why = match error {
        store::Error::Full
        | store::Error::Busy
        | store::Error::Away
        | store::Error::Closed
        | store::Error::Unsure
        | store::Error::Undone(_) => error.to_string(),
        _ => "the store failed".to_owned(),
    };
    Error::new(kind, format!("{what}: {why}"))
}

#[cfg(test)]
mod tests;

//! One connection to a Postgres server, driven by the thread that uses it.

use super::{Address, translate, values};
use crate::work::Statements;
use crate::{Error, Row, Value};
use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::future::Future;
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio_postgres::error::{DbError, Severity, SqlState};
use tokio_postgres::tls::{MakeTlsConnect, TlsConnect};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, NoTls, Socket, Statement};

/// Prepared statements that a connection keeps.
const STATEMENTS: usize = 256;

/// Longest wait for one statement's answer; a server that takes longer counts as lost.
const ANSWER: Duration = Duration::from_secs(30);

/// Connections that are tried one after the other because each was lost before anything was asked of it.
pub(super) const ATTEMPTS: usize = 3;

/// Said on each connection. A process that holds a lock and has gone, by crash, halt or a cut line, loses it by the
/// server's own clock.
const SETTINGS: &str = "SET client_min_messages = warning; SET lock_timeout = '5s'; \
    SET idle_in_transaction_session_timeout = '10s'; SET tcp_keepalives_idle = 10; SET tcp_keepalives_interval = 5; \
    SET tcp_keepalives_count = 2; SET tcp_user_timeout = '20s'";

/// Why a server cannot be used.
pub(super) struct Refused {
    pub(super) error: Error,
    /// Whether it may be otherwise soon.
    pub(super) for_now: bool,
}

pub(super) struct Session {
    client: Client,
    /// Keyed by the text and the kinds of its values.
    prepared: RefCell<HashMap<String, Statement>>,
    lost: Cell<bool>,
    /// Taken when dropped.
    runtime: Option<Runtime>,
}

impl Drop for Session {
    fn drop(&mut self) {
        // Dropped as it is, it would wait for its threads, which an async caller must not.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Session {
    /// Connects once.
    pub(super) fn open(address: &Address) -> Result<Self, Refused> {
        let (config, tls) = address.connector().map_err(|error| Refused { error, for_now: false })?;
        let refused = |why: String, for_now| Refused {
            error: Error::Connect { address: address.to_string(), why },
            for_now,
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(|error| refused(error.to_string(), false))?;
        let connected = runtime.block_on(async {
            match tls {
                None => connect(&config, NoTls).await,
                Some(tls) => connect(&config, tls).await,
            }
        });
        let client = connected.map_err(|error| refused(words(&error), is_passing(&error)))?;
        let (prepared, lost) = (RefCell::default(), Cell::new(false));
        Ok(Self { client, prepared, lost, runtime: Some(runtime) })
    }

    /// Whether the connection is of no use any more, and its transaction undone, or beyond reach.
    pub(super) fn is_lost(&self) -> bool {
        self.lost.get() || self.client.is_closed()
    }

    /// Does several statements in one exchange.
    pub(super) fn batch(&self, sql: &str) -> Result<(), Error> {
        self.answer(self.client.batch_execute(sql), Some(ANSWER))
    }

    fn answer<T>(
        &self,
        asked: impl Future<Output = Result<T, tokio_postgres::Error>>,
        within: Option<Duration>,
    ) -> Result<T, Error> {
        let runtime = self.runtime.as_ref().expect("the runtime is there until the session is dropped");
        let answered = runtime.block_on(async {
            match within {
                Some(within) => tokio::time::timeout(within, asked).await,
                None => Ok(asked.await),
            }
        });
        match answered {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.told(&error)),
            Err(_) => {
                tracing::warn!("the database did not answer for {} s", ANSWER.as_secs());
                self.lost.set(true);
                Err(Error::Busy)
            }
        }
    }

    /// What an answer means. An error of severity FATAL ends the connection, whatever its reason.
    fn told(&self, error: &tokio_postgres::Error) -> Error {
        match error.as_db_error() {
            Some(fault) if !is_fatal(fault) => meaning(fault),
            None if !self.client.is_closed() => Error::Failed(words(error)),
            _ => {
                if !self.lost.replace(true) {
                    tracing::warn!(error = words(error), "the connection to the database was lost");
                }
                Error::Busy
            }
        }
    }

    fn prepared(&self, sql: &str, values: &[Value]) -> Result<Statement, Error> {
        let kinds = values.iter().map(|value| match value {
            Value::Null => '0',
            Value::Integer(_) => 'i',
            Value::Text(_) => 't',
        });
        let key: String = kinds.chain([' ']).chain(sql.chars()).collect();
        if let Some(statement) = self.prepared.borrow().get(&key) {
            return Ok(statement.clone());
        }
        let types: Vec<_> = values.iter().map(values::declared).collect();
        let sql = translate::statement(sql);
        let statement = self.answer(self.client.prepare_typed(&sql, &types), Some(ANSWER))?;
        let mut prepared = self.prepared.borrow_mut();
        if prepared.len() >= STATEMENTS {
            prepared.clear();
        }
        prepared.insert(key, statement.clone());
        Ok(statement)
    }
}

impl Statements for Session {
    fn execute(&self, sql: &str, values: &[Value]) -> Result<u64, Error> {
        let statement = self.prepared(sql, values)?;
        self.answer(self.client.execute(&statement, &parameters(values)), Some(ANSWER))
    }

    fn query(&self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Error> {
        let statement = self.prepared(sql, values)?;
        let rows = self.answer(self.client.query(&statement, &parameters(values)), Some(ANSWER))?;
        let row = |row: &tokio_postgres::Row| {
            let values = (0..row.len()).map(|column| row.try_get(column)).collect::<Result<_, _>>();
            values.map(Row).map_err(|error| Error::Failed(words(&error)))
        };
        rows.iter().map(row).collect()
    }

    fn step(&self, sql: &str) -> Result<(), Error> {
        // A step goes over tables of any size.
        self.answer(self.client.batch_execute(sql), None)
    }
}

fn parameters(values: &[Value]) -> Vec<&(dyn ToSql + Sync)> {
    values.iter().map(|value| value as &(dyn ToSql + Sync)).collect()
}

async fn connect<T>(config: &Config, tls: T) -> Result<Client, tokio_postgres::Error>
where
    T: MakeTlsConnect<Socket>,
    T::Stream: Send + 'static,
    T::TlsConnect: Send,
    <T::TlsConnect as TlsConnect<Socket>>::Future: Send,
{
    let (client, connection) = config.connect(tls).await?;
    // What ends it is told by whatever is asked next.
    tokio::spawn(async move { drop(connection.await) });
    client.batch_execute(SETTINGS).await?;
    Ok(client)
}

fn is_fatal(fault: &DbError) -> bool {
    matches!(fault.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
}

/// Whether connecting may succeed soon: the server is away, starting or full.
fn is_passing(error: &tokio_postgres::Error) -> bool {
    let Some(fault) = error.as_db_error() else {
        // A certificate that is not trusted, or a password that is missing, will not get better.
        let source = std::error::Error::source(error);
        return error.is_closed()
            || source.is_some_and(|source| {
                source
                    .downcast_ref::<std::io::Error>()
                    .is_some_and(|error| error.get_ref().is_none_or(|inner| !inner.is::<rustls::Error>()))
            });
    };
    let passing = [
        SqlState::CANNOT_CONNECT_NOW,
        SqlState::TOO_MANY_CONNECTIONS,
        SqlState::ADMIN_SHUTDOWN,
        SqlState::CRASH_SHUTDOWN,
    ];
    passing.contains(fault.code())
}

fn meaning(fault: &DbError) -> Error {
    let code = fault.code();
    let busy = [
        SqlState::T_R_SERIALIZATION_FAILURE,
        SqlState::T_R_DEADLOCK_DETECTED,
        SqlState::LOCK_NOT_AVAILABLE,
        SqlState::QUERY_CANCELED,
        SqlState::OUT_OF_MEMORY,
    ];
    if *code == SqlState::DISK_FULL {
        Error::Full
    } else if busy.contains(code) {
        Error::Busy
    } else {
        Error::Failed(fault.message().to_owned())
    }
}

/// What the server or the connection says; never a statement's values, which may stand in a detail.
fn words(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(fault), _) => fault.message().to_owned(),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

//! One connection to a SQLite file: opening, transactions of one or of a group, and values as SQLite has them.

use crate::migrate::{self, Kind, Part};
use crate::work::{Statements, Work};
use crate::writer::{Database, Job};
use crate::{Durability, Error, Row, Value};
use rusqlite::types::ValueRef;
use rusqlite::{OpenFlags, TransactionBehavior, params_from_iter};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::Duration;

/// Prepared statements that a connection keeps.
const STATEMENTS: usize = 64;

/// The write-ahead log is cut to this size after it grew larger.
const LOG_SIZE: i64 = 64 << 20;

pub(crate) struct Connection(pub(crate) rusqlite::Connection);

impl Statements for rusqlite::Connection {
    fn execute(&self, sql: &str, values: &[Value]) -> Result<u64, Error> {
        Ok(self.prepare_cached(sql)?.execute(params_from_iter(values))? as u64)
    }

    fn query(&self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Error> {
        let mut statement = self.prepare_cached(sql)?;
        let columns = statement.column_count();
        let mut rows = statement.query(params_from_iter(values))?;
        let mut found = Vec::new();
        while let Some(row) = rows.next()? {
            let values =
                (0..columns).map(|column| Ok(value(row.get_ref(column)?))).collect::<Result<_, Error>>();
            found.push(Row(values?));
        }
        Ok(found)
    }

    fn step(&self, sql: &str) -> Result<(), Error> {
        Ok(self.execute_batch(sql)?)
    }
}

fn value(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Null => Value::Null,
        ValueRef::Integer(number) => Value::Integer(number),
        // Nobody stores fractions or bytes; what stands there by mistake is readable.
        ValueRef::Real(number) => Value::Text(number.to_string()),
        ValueRef::Text(text) | ValueRef::Blob(text) => {
            Value::Text(String::from_utf8_lossy(text).into_owned())
        }
    }
}

impl rusqlite::ToSql for Value {
    fn to_sql(&self) -> rusqlite::Result<rusqlite::types::ToSqlOutput<'_>> {
        use rusqlite::types::ToSqlOutput;
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(number) => ValueRef::Integer(*number),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
        }))
    }
}

impl Connection {
    /// Makes the file where it is missing, brings its tables up to date, and gives the connection that writes.
    pub(crate) fn prepare(
        path: &Path,
        parts: &[Part],
        durability: Durability,
        patience: Duration,
    ) -> Result<Self, Error> {
        let unusable = |error: std::io::Error| Error::Open { path: path.to_owned(), why: error.to_string() };
        // Conversations are nobody else's business; SQLite gives its other files the rights of this one.
        OpenOptions::new().create(true).append(true).mode(0o600).open(path).map_err(unusable)?;
        let mut connection = Self::open(path, patience)?;
        connection.prepare_file(path, durability)?;
        let transaction = connection.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let place = path.display().to_string();
        Work::run(&*transaction, |work| migrate::run(work, Kind::Sqlite, parts, &place))?;
        transaction.commit()?;
        Ok(connection)
    }

    pub(crate) fn open(path: &Path, patience: Duration) -> Result<Self, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = rusqlite::Connection::open_with_flags(path, flags)
            .map_err(|error| Error::Open { path: path.to_owned(), why: error.to_string() })?;
        connection.busy_timeout(patience)?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        Ok(Self(connection))
    }

    pub(crate) fn open_for_reading(path: &Path, patience: Duration) -> Result<Self, Error> {
        let connection = Self::open(path, patience)?;
        connection.0.pragma_update(None, "query_only", true)?;
        Ok(connection)
    }

    /// Sets what holds for the file, or for the one connection that writes.
    fn prepare_file(&self, path: &Path, durability: Durability) -> Result<(), Error> {
        let synchronous = match durability {
            Durability::Process => "NORMAL",
            Durability::PowerLoss => "FULL",
        };
        let set = || -> rusqlite::Result<String> {
            let mode = self.0.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
            self.0.pragma_update(None, "synchronous", synchronous)?;
            self.0.query_row(&format!("PRAGMA journal_size_limit = {LOG_SIZE}"), [], |_| Ok(()))?;
            self.0.pragma_update(None, "foreign_keys", true)?;
            Ok(mode)
        };
        let unusable = |why: String| Error::Open { path: path.to_owned(), why };
        match set() {
            Ok(mode) if mode == "wal" => Ok(()),
            Ok(mode) => Err(unusable(format!("it has no write-ahead log (its mode is {mode})"))),
            Err(error) => Err(unusable(error.to_string())),
        }
    }

    /// Reads in a transaction of its own.
    pub(crate) fn read<T>(&mut self, asked: impl FnOnce(&Work<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let transaction = self.0.transaction_with_behavior(TransactionBehavior::Deferred)?;
        let result = Work::run(&*transaction, asked)?;
        transaction.commit()?;
        Ok(result)
    }

    /// Does a group in one transaction; gives what became of those jobs that it came to.
    ///
    /// Savepoints cost as much as a small job, so the first attempt is without: it is undone as a whole, and each job gets
    /// one, only if a job fails that had changed something.
    fn commit(
        &mut self,
        group: &mut [Box<dyn Job>],
        outcomes: &mut Vec<Result<(), Error>>,
    ) -> Result<(), Error> {
        for attempt in [Self::together, Self::apart] {
            self.statement("BEGIN IMMEDIATE")?;
            outcomes.clear();
            let done = attempt(self, group, outcomes);
            let committed = match &done {
                Ok(true) => self.statement("COMMIT"),
                Ok(false) | Err(_) => Ok(()),
            };
            // Some faults, such as a full disk, undo the whole transaction at once.
            if !self.0.is_autocommit() {
                self.statement("ROLLBACK")?;
            }
            if done? {
                return committed;
            }
        }
        Ok(())
    }

    /// Runs jobs within a transaction; `false` if one failed that has to be undone.
    fn together(
        &self,
        group: &mut [Box<dyn Job>],
        outcomes: &mut Vec<Result<(), Error>>,
    ) -> Result<bool, Error> {
        for job in group {
            let before = self.0.total_changes();
            let done = self.job(job.as_mut())?;
            if done.is_err() && self.0.total_changes() != before {
                return Ok(false);
            }
            outcomes.push(done);
        }
        Ok(true)
    }

    /// Runs jobs within a transaction; one that fails is undone alone.
    fn apart(
        &self,
        group: &mut [Box<dyn Job>],
        outcomes: &mut Vec<Result<(), Error>>,
    ) -> Result<bool, Error> {
        for job in group {
            self.statement("SAVEPOINT job")?;
            let done = self.job(job.as_mut())?;
            if done.is_err() {
                self.statement("ROLLBACK TO job")?;
            }
            self.statement("RELEASE job")?;
            outcomes.push(done);
        }
        Ok(true)
    }

    /// What became of a job; an error if its transaction is gone.
    fn job(&self, job: &mut dyn Job) -> Result<Result<(), Error>, Error> {
        let done = catch_unwind(AssertUnwindSafe(|| job.run(&self.0)));
        // The panic hook has logged the cause.
        let done = done.unwrap_or(Err(Error::Closed));
        if self.0.is_autocommit() {
            return Err(done.err().unwrap_or(Error::Closed));
        }
        Ok(done)
    }

    /// A statement without parameters and rows, prepared once.
    fn statement(&self, sql: &str) -> Result<(), Error> {
        self.0.prepare_cached(sql)?.execute([])?;
        Ok(())
    }
}

impl Database for Connection {
    fn write(&mut self, group: &mut [Box<dyn Job>]) -> Vec<Result<(), Error>> {
        let mut outcomes = Vec::with_capacity(group.len());
        if let Err(error) = self.commit(group, &mut outcomes) {
            outcomes.resize_with(group.len(), || Ok(()));
            for outcome in &mut outcomes {
                if outcome.is_ok() {
                    *outcome = Err(error.again());
                }
            }
        }
        outcomes
    }
}

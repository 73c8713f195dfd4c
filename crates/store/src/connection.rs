//! One connection to the file, and what may be done in a transaction on it.

use crate::{Error, Row, Value};
use rusqlite::types::ValueRef;
use rusqlite::{OpenFlags, TransactionBehavior, params_from_iter};
use std::path::Path;
use std::time::Duration;

/// Prepared statements that a connection keeps.
const STATEMENTS: usize = 64;

/// The write-ahead log is cut to this size after it grew larger.
const LOG_SIZE: i64 = 64 << 20;

pub(crate) struct Connection(pub(crate) rusqlite::Connection);

/// What may be done in a transaction. Placeholders are `?1`, `?2` and so on.
pub struct Work<'a>(pub(crate) &'a rusqlite::Connection);

impl Work<'_> {
    /// Changes something; gives the number of rows it touched.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn execute(&self, sql: &str, values: &[Value]) -> Result<u64, Error> {
        Ok(self.0.prepare_cached(sql)?.execute(params_from_iter(values))? as u64)
    }

    /// Asks for rows.
    ///
    /// # Errors
    /// When the database refuses.
    pub fn query(&self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Error> {
        let mut statement = self.0.prepare_cached(sql)?;
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

impl Connection {
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
    pub(crate) fn prepare_file(&self, path: &Path) -> Result<(), Error> {
        let set = || -> rusqlite::Result<String> {
            let mode = self.0.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0))?;
            self.0.pragma_update(None, "synchronous", "NORMAL")?;
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

    /// Does something in a transaction of its own.
    pub(crate) fn in_transaction<T>(
        &mut self,
        work: impl FnOnce(&Work<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let transaction = self.0.transaction_with_behavior(TransactionBehavior::Deferred)?;
        let result = work(&Work(&transaction))?;
        transaction.commit()?;
        Ok(result)
    }
}

//! Brings tables up to date: forward only, each part's own steps in their order, each once.

use crate::Error;
use crate::connection::Connection;
use rusqlite::{OptionalExtension, TransactionBehavior};
use std::path::Path;

/// A part of the program that has tables.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its name; its tables begin with it.
    pub name: &'static str,
    /// How its tables came to be what they are. A step that was ever released is never changed.
    pub steps: &'static [&'static str],
}

/// Does what has not been done yet, all of it or nothing.
pub(crate) fn run(connection: &mut Connection, parts: &[Part], path: &Path) -> Result<(), Error> {
    let transaction = connection.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(
        "CREATE TABLE IF NOT EXISTS migrations (part TEXT PRIMARY KEY, version INTEGER NOT NULL) STRICT",
    )?;
    for part in parts {
        let found: Option<i64> = transaction
            .query_row("SELECT version FROM migrations WHERE part = ?1", [part.name], |row| row.get(0))
            .optional()?;
        let (found, known) = (found.map_or(0, i64::unsigned_abs), part.steps.len() as u64);
        if found > known {
            return Err(Error::Newer { path: path.to_owned(), part: part.name.to_owned(), found, known });
        }
        for step in part.steps.iter().skip(found as usize) {
            transaction.execute_batch(step)?;
        }
        transaction.execute(
            "INSERT INTO migrations VALUES (?1, ?2) ON CONFLICT (part) DO UPDATE SET version = ?2",
            (part.name, known as i64),
        )?;
    }
    Ok(transaction.commit()?)
}

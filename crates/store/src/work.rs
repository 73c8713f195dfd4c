//! What may be done in a transaction, whichever database it is on.

use crate::{Error, Row, Value};
use std::cell::RefCell;

/// What a database does inside a transaction that is open.
pub(crate) trait Statements {
    fn execute(&self, sql: &str, values: &[Value]) -> Result<u64, Error>;
    fn query(&self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Error>;
    /// A step of a migration: several statements without values.
    fn step(&self, sql: &str) -> Result<(), Error>;
}

/// What may be done in a transaction. Placeholders are `?1`, `?2` and so on; what SQL may say stands at the crate's head.
///
/// When a statement fails, so does all of the work, even if it goes on and gives a result: Postgres takes no further
/// statement of such a transaction, so neither database does.
pub struct Work<'a> {
    statements: &'a dyn Statements,
    failed: RefCell<Option<Error>>,
}

impl<'a> Work<'a> {
    pub(crate) const fn new(statements: &'a dyn Statements) -> Self {
        Self { statements, failed: RefCell::new(None) }
    }

    /// Does what was asked for; a statement of it that failed makes it fail.
    pub(crate) fn run<T>(
        statements: &'a dyn Statements,
        asked: impl FnOnce(&Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let work = Self::new(statements);
        let result = asked(&work)?;
        work.failed.into_inner().map_or(Ok(result), Err)
    }

    /// Changes something; gives the number of rows it touched.
    ///
    /// # Errors
    /// When the database refuses, or refused something before.
    pub fn execute(&self, sql: &str, values: &[Value]) -> Result<u64, Error> {
        self.attempt(values, |statements| statements.execute(sql, values))
    }

    /// Asks for rows.
    ///
    /// # Errors
    /// When the database refuses, or refused something before.
    pub fn query(&self, sql: &str, values: &[Value]) -> Result<Vec<Row>, Error> {
        self.attempt(values, |statements| statements.query(sql, values))
    }

    pub(crate) fn step(&self, sql: &str) -> Result<(), Error> {
        self.attempt(&[], |statements| statements.step(sql))
    }

    fn attempt<T>(
        &self,
        values: &[Value],
        attempt: impl FnOnce(&dyn Statements) -> Result<T, Error>,
    ) -> Result<T, Error> {
        if let Some(error) = &*self.failed.borrow() {
            return Err(error.again());
        }
        let nul = values.iter().any(|value| matches!(value, Value::Text(text) if text.contains('\0')));
        let result = if nul {
            Err(Error::Failed("a text with a NUL character cannot be stored or looked for".to_owned()))
        } else {
            attempt(self.statements)
        };
        result.inspect_err(|error| *self.failed.borrow_mut() = Some(error.again()))
    }
}

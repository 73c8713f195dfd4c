//! What can go wrong with the store, told so that a person knows what to do.

use std::path::PathBuf;

/// Why something was not stored or read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be used.
    #[error("{path} cannot be opened: {why}")]
    Open {
        /// The file.
        path: PathBuf,
        /// Why.
        why: String,
    },
    /// The file was written by a newer version of the program.
    #[error(
        "{path} was written by a newer version of this program: its tables of '{part}' have version {found}, and this \
         version knows {known}"
    )]
    Newer {
        /// The file.
        path: PathBuf,
        /// Whose tables.
        part: String,
        /// The version in the file.
        found: u64,
        /// The newest that this program knows.
        known: u64,
    },
    /// There is no room on the disk.
    #[error("the disk of the data folder is full")]
    Full,
    /// Too many writes wait, or another process holds the file.
    #[error("the store is busy")]
    Busy,
    /// The store has been closed, or the work ended with a panic.
    #[error("the store did not answer")]
    Closed,
    /// The work gave up by itself; the text is its own.
    #[error("{0}")]
    Undone(String),
    /// Anything else; the text is the database's.
    #[error("the store failed: {0}")]
    Failed(String),
}

impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Self {
        use rusqlite::ErrorCode;
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => Self::Full,
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            _ => Self::Failed(error.to_string()),
        }
    }
}

//! What can go wrong with the store, told so that a person knows what to do.

use std::path::PathBuf;

/// Why something was not stored or read. Nothing was done, of a write nothing at all, unless it is [`Error::Unsure`].
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
    /// What should name a database does not. The text never holds the password.
    #[error("the database's address cannot be used: {0}")]
    Address(String),
    /// The database server cannot be reached or lets nobody in.
    #[error("{address} cannot be used: {why}")]
    Connect {
        /// Where it is, without the password.
        address: String,
        /// Why.
        why: String,
    },
    /// The tables were written by a newer version of the program.
    #[error(
        "{place} was written by a newer version of this program: its tables of '{part}' have version {found}, and this \
         version knows {known}"
    )]
    Newer {
        /// The file, or the database's address without the password.
        place: String,
        /// Whose tables.
        part: String,
        /// The version found.
        found: u64,
        /// The newest that this program knows.
        known: u64,
    },
    /// There is no room on the disk.
    #[error("the store's disk is full")]
    Full,
    /// Too many writes wait, another process holds the store, or its server was lost on the way. Asking again is safe.
    #[error("the store is busy")]
    Busy,
    /// The server is away, and was waited for.
    #[error("the database is away")]
    Away,
    /// The store has been closed, or the work ended with a panic.
    #[error("the store did not answer")]
    Closed,
    /// The server was lost while it committed and did not come back in time: the write may be done or not.
    #[error("the store was lost while it committed, and what was written may be there or not")]
    Unsure,
    /// The work gave up by itself; the text is its own.
    #[error("{0}")]
    Undone(String),
    /// Anything else; the text is the database's.
    #[error("the store failed: {0}")]
    Failed(String),
}

impl Error {
    /// The same again, for another who was hit by it.
    pub(crate) fn again(&self) -> Self {
        match self {
            Self::Full => Self::Full,
            Self::Busy => Self::Busy,
            Self::Away => Self::Away,
            Self::Closed => Self::Closed,
            Self::Unsure => Self::Unsure,
            Self::Failed(why) => Self::Failed(why.clone()),
            Self::Connect { address, why } => Self::Connect { address: address.clone(), why: why.clone() },
            Self::Open { .. } | Self::Address(_) | Self::Newer { .. } | Self::Undone(_) => {
                Self::Failed(self.to_string())
            }
        }
    }
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

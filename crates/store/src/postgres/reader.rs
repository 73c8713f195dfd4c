//! A connection for reads. It takes the next one when the server was away meanwhile.

use super::Address;
use super::session::{ATTEMPTS, Session};
use crate::Error;
use crate::work::Work;
use std::time::Instant;

pub(crate) struct Reader {
    address: Address,
    session: Option<Session>,
}

impl Reader {
    pub(crate) const fn new(address: Address) -> Self {
        Self { address, session: None }
    }

    /// Reads in a transaction of its own.
    pub(crate) fn read<T>(&mut self, asked: impl FnOnce(&Work<'_>) -> Result<T, Error>) -> Result<T, Error> {
        let session = self.begin()?;
        let result = Work::run(&session, asked);
        let ended = session.batch("ROLLBACK");
        if ended.is_ok() {
            self.session = Some(session);
        }
        result
    }

    fn begin(&mut self) -> Result<Session, Error> {
        let since = Instant::now();
        for _ in 0..ATTEMPTS {
            let session = match self.session.take() {
                Some(session) if !session.is_lost() => session,
                _ => Session::open_patiently(&self.address, since).map_err(away)?,
            };
            match session.batch("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY") {
                Ok(()) => return Ok(session),
                // It stood unused while the server restarted; nothing was asked yet.
                Err(_) if session.is_lost() => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::Busy)
    }
}

/// What a caller is told of a server that cannot be reached; the reason is for the log.
pub(super) fn away(error: Error) -> Error {
    tracing::warn!(%error, "the database cannot be reached");
    Error::Busy
}

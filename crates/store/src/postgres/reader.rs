//! A connection for reads. It takes the next one when the server was away meanwhile.

use super::Server;
use super::session::{ATTEMPTS, Session};
use crate::Error;
use crate::work::Work;

pub(crate) struct Reader {
    server: Server,
    session: Option<Session>,
}

impl Reader {
    pub(crate) const fn new(server: Server) -> Self {
        Self { server, session: None }
    }

    /// Reads in a transaction of its own. A server that is away is waited for, if `patient`.
    pub(crate) fn read<T>(
        &mut self,
        asked: impl FnOnce(&Work<'_>) -> Result<T, Error>,
        patient: bool,
    ) -> Result<T, Error> {
        let session = self.begin(patient)?;
        let result = Work::run(&session, asked);
        let ended = session.batch("ROLLBACK");
        if ended.is_ok() {
            self.session = Some(session);
        }
        result
    }

    fn begin(&mut self, patient: bool) -> Result<Session, Error> {
        for _ in 0..ATTEMPTS {
            let session = match self.session.take() {
                Some(session) if !session.is_lost() => session,
                _ => self.server.connect(patient).map_err(away)?,
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
    tracing::debug!(%error, "the database cannot be used");
    Error::Away
}

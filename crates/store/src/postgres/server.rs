//! Whether a store's server is there, as all its connections know it.
//!
//! The first that cannot connect says so. From then on one thread alone looks for the server, and whoever needs it waits
//! for that thread, 5 seconds at most from the moment the server was missed. After that nobody waits: what is asked fails
//! at once until the server is back. So a request that needs the store several times waits once.

use super::Address;
use super::session::{Refused, Session};
use crate::Error;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// How long a server that is away is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// First and longest wait between two looks.
const BACKOFF: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));

/// Clones are the same server.
#[derive(Clone)]
pub(crate) struct Server(Arc<Inner>);

struct Inner {
    address: Address,
    away: Mutex<Option<Away>>,
    back: Condvar,
}

/// What is known of a server that is not there.
struct Away {
    since: Instant,
    why: Error,
}

impl Server {
    pub(crate) fn new(address: Address) -> Self {
        Self(Arc::new(Inner { address, away: Mutex::new(None), back: Condvar::new() }))
    }

    pub(super) fn address(&self) -> &Address {
        &self.0.address
    }

    /// Whether it was missed and not found since.
    pub(crate) fn is_away(&self) -> bool {
        self.0.away().is_some()
    }

    /// Connects. Of a server that is away the reason is told.
    pub(super) fn connect(&self, patient: bool) -> Result<Session, Error> {
        let asked = Instant::now();
        loop {
            self.wait(asked, patient)?;
            let begun = Instant::now();
            match Session::open(&self.0.address) {
                Ok(session) => return Ok(session),
                Err(Refused { error, for_now: false }) => return Err(error),
                Err(Refused { error, .. }) => self.miss(begun, error)?,
            }
        }
    }

    /// Waits while it is away.
    fn wait(&self, asked: Instant, patient: bool) -> Result<(), Error> {
        let mut away = self.0.away();
        while let Some(Away { since, why }) = &*away {
            let left = PATIENCE.checked_sub(since.min(&asked).elapsed()).filter(|_| patient);
            let Some(left) = left.filter(|left| !left.is_zero()) else { return Err(why.again()) };
            away = self.0.back.wait_timeout(away, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(())
    }

    /// Says that it could not be reached, and has it looked for.
    fn miss(&self, since: Instant, why: Error) -> Result<(), Error> {
        let mut away = self.0.away();
        if away.is_some() {
            return Ok(());
        }
        tracing::warn!(error = %why, "the database cannot be reached");
        let inner = Arc::downgrade(&self.0);
        let looking = std::thread::Builder::new().name("store-look".to_owned()).spawn(move || look(&inner));
        looking.map_err(|error| Error::Failed(error.to_string()))?;
        *away = Some(Away { since, why });
        Ok(())
    }
}

impl Inner {
    fn away(&self) -> MutexGuard<'_, Option<Away>> {
        self.away.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks for a server until it is there, says something else than that it is away, or nobody needs it.
fn look(server: &Weak<Inner>) {
    let mut pause = BACKOFF.0;
    loop {
        std::thread::sleep(pause);
        pause = (pause * 2).min(BACKOFF.1);
        let Some(server) = server.upgrade() else { return };
        if let Err(Refused { for_now: true, error }) = Session::open(&server.address) {
            if let Some(away) = &mut *server.away() {
                away.why = error;
            }
            continue;
        }
        tracing::info!("the database can be reached again");
        *server.away() = None;
        server.back.notify_all();
        return;
    }
}

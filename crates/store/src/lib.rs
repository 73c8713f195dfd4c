//! Durable state behind one interface: one SQLite file in the data folder, or a Postgres database by URL, which several
//! processes may share. Tables belong to the [`Part`] of the program that lists their migrations.
//!
//! # What is promised, by both
//!
//! - A write is a transaction, done alone: no other write, of this process or another, comes between its statements. So
//!   it never has to be done again because of another. Whoever asked is told after the commit, and what was answered
//!   survives the end of the process by whatever means (and of the server; a power cut too where [`Durability`] says so,
//!   since SQLite's log is forced to the disk for each commit only then. What Postgres does is its own setting).
//! - One thread writes. It gathers what is asked for while it works and commits it together; one that fails, or panics,
//!   is undone alone.
//! - A read sees what was committed at one moment after it was asked for.
//! - An error means that nothing was done, except [`Error::Unsure`]: the server was lost while it committed and did not
//!   come back in 15 seconds. When it comes back in time, the store finds out what became of the commit, and answers
//!   that. Nothing is ever done twice.
//! - A server that is away is looked for and connected to again. Whoever needs it waits for that until 5 seconds after it
//!   was missed, and then nobody does: [`Error::Away`]. A write that had begun when it was lost is [`Error::Busy`].
//! - Processes that start together bring the tables up to date one after the other; tables of a newer version are
//!   refused.
//!
//! # What SQL may say
//!
//! What both databases understand alike. Values are whole numbers of 64 bits, texts without NUL characters, and nothing;
//! placeholders are `?1`, `?2` and so on; in Postgres `INTEGER` means `BIGINT`. Types are written in capitals.
//!
//! - Tables in migrations: `INTEGER` and `TEXT` columns, `STRICT`; `INTEGER PRIMARY KEY` counts by itself. Texts compare
//!   by their bytes. Triggers, functions and the like are written for each database ([`Part`]).
//! - `INSERT … ON CONFLICT (…) DO UPDATE` and `DO NOTHING` (with columns of the table named in full inside `SET`),
//!   `RETURNING`, `WITH RECURSIVE`, window functions, `FILTER`, `CASE`, `coalesce`, `count`, `sum`, `min`, `max`,
//!   `IS NOT DISTINCT FROM`.
//! - A query in `FROM` has a name; columns beside an aggregate stand in `GROUP BY`; a truth value is compared (`paid = 1`,
//!   not `paid`) and never added up; `NULLS FIRST` or `LAST` stands where an order has empty values; a sum that is
//!   calculated with is cast (`CAST(sum(a) AS INTEGER) / 2`), and so is a placeholder that is asked whether it is nothing
//!   (`CAST(?1 AS TEXT) IS NULL`).
//! - Not `rowid`, `INSERT OR …`, `LIKE` (which minds case in one of them only), `max` and `min` of several values,
//!   functions of dates or JSON.
//!
//! Callers see SQL, [`Value`] and [`Row`], and nothing of the libraries behind. Not here: what is stored, and news of
//! changed rows.

mod error;
mod migrate;
mod postgres;
mod sqlite;
mod value;
mod work;
mod writer;

pub use error::Error;
pub use migrate::Part;
pub use postgres::Address;
pub use value::{Row, Value};
pub use work::Work;

use sqlite::Connection;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use writer::{Asked, Job, Turn, Writer};

/// The file's name in the data folder.
pub const FILE: &str = "hearth.db";

/// Writes that may wait for the writer; more wait outside, and not for ever.
const QUEUE: usize = 256;

/// Reads at once.
const READERS: usize = 4;

/// How long a write waits for a place in the queue, and a statement for another process's lock.
const PATIENCE: Duration = Duration::from_secs(5);

/// The open store. Clones are the same store; when the last is dropped, writes that wait are done first.
#[derive(Clone)]
pub struct Store(Arc<Inner>);

struct Inner {
    place: Place,
    writer: Writer,
    /// Connections that no read uses now.
    readers: Mutex<Vec<Reader>>,
    permits: Arc<Semaphore>,
}

/// Where reads connect to.
enum Place {
    File(PathBuf),
    Server(postgres::Server),
}

enum Reader {
    File(Connection),
    Server(Box<postgres::Reader>),
}

/// What a commit in a file survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// The end of the process, by whatever means.
    #[default]
    Process,
    /// A power cut too: each group of writes waits for the disk.
    PowerLoss,
}

impl Store {
    /// Opens the store of a data folder, makes both where they are missing, and brings its tables up to date.
    ///
    /// # Errors
    /// When the folder or file cannot be used, is no store, or was written by a newer version.
    pub fn open(folder: &Path, parts: &[Part]) -> Result<Self, Error> {
        Self::open_with(folder, parts, Durability::default())
    }

    /// The same, with a durability.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open_with(folder: &Path, parts: &[Part], durability: Durability) -> Result<Self, Error> {
        let path = folder.join(FILE);
        std::fs::create_dir_all(folder)
            .map_err(|error| Error::Open { path: path.clone(), why: error.to_string() })?;
        let (file, parts) = (path.clone(), parts.to_vec());
        let writer = Writer::start(QUEUE, move || Connection::prepare(&file, &parts, durability, PATIENCE))?;
        Ok(Self::new(Place::File(path), writer))
    }

    /// Opens the store of a Postgres database (13 or newer), which must be there, and brings its tables up to date. Takes
    /// its time, during which the thread waits. The tables want a database or schema of their own.
    ///
    /// # Errors
    /// When the server cannot be reached within some seconds or refuses, or the tables are of a newer version.
    pub fn connect(address: &Address, parts: &[Part]) -> Result<Self, Error> {
        let (server, parts) = (postgres::Server::new(address.clone()), parts.to_vec());
        let of_writer = server.clone();
        let writer = Writer::start(QUEUE, move || postgres::Writer::open(of_writer, &parts))?;
        Ok(Self::new(Place::Server(server), writer))
    }

    fn new(place: Place, writer: Writer) -> Self {
        let permits = Arc::new(Semaphore::new(READERS));
        Self(Arc::new(Inner { place, writer, readers: Mutex::default(), permits }))
    }

    /// Does something in a transaction, alone; gives its result after it was committed. An error undoes all of it,
    /// and nothing of others. It may be run again, after all that it did was undone, when another of its group failed.
    ///
    /// # Errors
    /// What `work` gives back, or why it could not be done.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl Fn(&Work<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        let turn = Turn::default();
        let job: Box<dyn Job> = Box::new(Asked::new(work, answer, turn.clone()));
        let sent = tokio::time::timeout(PATIENCE, self.0.writer.queue().send(job)).await;
        match sent {
            Err(_) => Err(Error::Busy),
            Ok(Err(mpsc::error::SendError(_))) => Err(Error::Closed),
            Ok(Ok(())) => self.turn(turn, answered).await.unwrap_or(Err(Error::Closed)),
        }
    }

    /// Waits for an answer. One of a server that is away is not waited for where the work has not begun: the writer may
    /// need longer than that to find out what became of an earlier commit.
    async fn turn<T>(
        &self,
        turn: Turn,
        mut answered: oneshot::Receiver<Result<T, Error>>,
    ) -> Result<Result<T, Error>, oneshot::error::RecvError> {
        let Place::Server(server) = &self.0.place else { return answered.await };
        loop {
            match tokio::time::timeout(PATIENCE, &mut answered).await {
                Ok(answer) => return answer,
                Err(_) if server.is_away() && turn.give_up() => return Ok(Err(Error::Away)),
                Err(_) => {}
            }
        }
    }

    /// Reads what was committed so far, as it was at one moment.
    ///
    /// # Errors
    /// What `work` gives back, or why it could not be done.
    pub async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Work<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.read_of(work, true).await
    }

    /// The same for who can go on without: a server that is away is not waited for.
    ///
    /// # Errors
    /// As [`Store::read`].
    pub async fn read_if_there<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Work<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        // Those that wait for the server may have all connections.
        if matches!(&self.0.place, Place::Server(server) if server.is_away()) {
            return Err(Error::Away);
        }
        self.read_of(work, false).await
    }

    async fn read_of<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Work<'_>) -> Result<T, Error> + Send + 'static,
        patient: bool,
    ) -> Result<T, Error> {
        let permit = Arc::clone(&self.0.permits).acquire_owned();
        let permit = tokio::time::timeout(PATIENCE, permit).await.map_err(|_| Error::Busy)?;
        let permit = permit.map_err(|_| Error::Closed)?;
        let inner = Arc::clone(&self.0);
        let reading = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let idle = inner.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut reader = idle.map_or_else(|| inner.place.reader(), Ok)?;
            let result = match &mut reader {
                Reader::File(connection) => connection.read(work),
                Reader::Server(connection) => connection.read(work, patient),
            };
            inner.readers.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
            result
        });
        reading.await.unwrap_or(Err(Error::Closed))
    }
}

impl Place {
    fn reader(&self) -> Result<Reader, Error> {
        Ok(match self {
            Self::File(path) => Reader::File(Connection::open_for_reading(path, PATIENCE)?),
            Self::Server(server) => Reader::Server(Box::new(postgres::Reader::new(server.clone()))),
        })
    }
}

#[cfg(test)]
mod tests;

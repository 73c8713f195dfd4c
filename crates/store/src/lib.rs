//! Durable state behind one interface: one SQLite file in the data folder.
//!
//! One thread writes. It gathers what is asked for while it works and commits it together; whoever asked is told after
//! the commit, so what was answered survives the end of the process by whatever means (not a power cut: the log is
//! not forced to the disk for each commit). Reads run beside it, each on a connection of its own, and see what was
//! committed before they began. Tables belong to the [`Part`] of the program that lists their migrations.
//!
//! Not here: what is stored, and a second kind of database; callers see SQL, [`Value`] and [`Row`], and nothing of
//! the library behind.

mod connection;
mod error;
mod migrate;
mod value;
mod writer;

pub use connection::Work;
pub use error::Error;
pub use migrate::Part;
pub use value::{Row, Value};

use connection::Connection;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::{Semaphore, mpsc, oneshot};
use writer::{Asked, Job, Writer};

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
    path: PathBuf,
    writer: Writer,
    /// Connections that no read uses now.
    readers: Mutex<Vec<Connection>>,
    permits: Arc<Semaphore>,
}

impl Store {
    /// Opens the store of a data folder, makes both where they are missing, and brings its tables up to date.
    ///
    /// # Errors
    /// When the folder or file cannot be used, is no store, or was written by a newer version.
    pub fn open(folder: &Path, parts: &[Part]) -> Result<Self, Error> {
        let path = folder.join(FILE);
        let unusable = |error: std::io::Error| Error::Open { path: path.clone(), why: error.to_string() };
        std::fs::create_dir_all(folder).map_err(unusable)?;
        // Conversations are nobody else's business; SQLite gives its other files the rights of this one.
        OpenOptions::new().create(true).append(true).mode(0o600).open(&path).map_err(unusable)?;
        let mut connection = Connection::open(&path, PATIENCE)?;
        connection.prepare_file(&path)?;
        migrate::run(&mut connection, parts, &path)?;
        Ok(Self(Arc::new(Inner {
            writer: Writer::start(connection, QUEUE)?,
            path,
            readers: Mutex::default(),
            permits: Arc::new(Semaphore::new(READERS)),
        })))
    }

    /// Does something in a transaction, alone; gives its result after it was committed. An error undoes all of it,
    /// and nothing of others.
    ///
    /// # Errors
    /// What `work` gives back, or why it could not be done.
    pub async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Work<'_>) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let (answer, answered) = oneshot::channel();
        let job: Box<dyn Job> = Box::new(Asked::new(work, answer));
        let sent = tokio::time::timeout(PATIENCE, self.0.writer.queue().send(job)).await;
        match sent {
            Err(_) => Err(Error::Busy),
            Ok(Err(mpsc::error::SendError(_))) => Err(Error::Closed),
            Ok(Ok(())) => answered.await.unwrap_or(Err(Error::Closed)),
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
        let permit = Arc::clone(&self.0.permits).acquire_owned();
        let permit = tokio::time::timeout(PATIENCE, permit).await.map_err(|_| Error::Busy)?;
        let permit = permit.map_err(|_| Error::Closed)?;
        let inner = Arc::clone(&self.0);
        let reading = tokio::task::spawn_blocking(move || {
            let _permit = permit;
            let idle = inner.readers.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut connection = match idle {
                Some(connection) => connection,
                None => Connection::open_for_reading(&inner.path, PATIENCE)?,
            };
            let result = connection.in_transaction(work);
            inner.readers.lock().unwrap_or_else(PoisonError::into_inner).push(connection);
            result
        });
        reading.await.unwrap_or(Err(Error::Closed))
    }
}

#[cfg(test)]
mod tests;

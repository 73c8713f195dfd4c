//! The thread that writes. It takes what waits, does it in one transaction, commits, and only then tells who asked.
//!
//! Invariant: a job is told that it succeeded only after the transaction that holds it was committed. Each job stands
//! between a savepoint and its release, so that one that fails, or panics, undoes itself alone.

use crate::Error;
use crate::connection::{Connection, Work};
use rusqlite::TransactionBehavior;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot};

/// Jobs of one commit: enough to share its cost, few enough that nobody waits long.
const GROUP: usize = 64;

pub(crate) trait Job: Send {
    fn run(&mut self, work: &Work<'_>) -> Result<(), Error>;
    /// Tells who asked; an error goes before what `run` gave.
    fn answer(self: Box<Self>, outcome: Result<(), Error>);
}

/// A job from a closure.
pub(crate) struct Asked<T, F> {
    work: Option<F>,
    result: Option<T>,
    answer: oneshot::Sender<Result<T, Error>>,
}

impl<T, F> Asked<T, F> {
    pub(crate) const fn new(work: F, answer: oneshot::Sender<Result<T, Error>>) -> Self {
        Self { work: Some(work), result: None, answer }
    }
}

impl<T: Send, F: FnOnce(&Work<'_>) -> Result<T, Error> + Send> Job for Asked<T, F> {
    fn run(&mut self, work: &Work<'_>) -> Result<(), Error> {
        let Some(asked) = self.work.take() else { return Err(Error::Closed) };
        self.result = Some(asked(work)?);
        Ok(())
    }

    fn answer(self: Box<Self>, outcome: Result<(), Error>) {
        let Self { result, answer, .. } = *self;
        let result = outcome.and_then(|()| result.ok_or(Error::Closed));
        // Nobody may wait any more; what was asked for is done all the same.
        let _ = answer.send(result);
    }
}

pub(crate) struct Writer {
    /// Taken when the store is dropped.
    queue: Option<mpsc::Sender<Box<dyn Job>>>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    pub(crate) fn start(connection: Connection, queue: usize) -> Result<Self, Error> {
        let (sender, receiver) = mpsc::channel(queue);
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(move || run(connection, receiver))
            .map_err(|error| Error::Failed(error.to_string()))?;
        Ok(Self { queue: Some(sender), thread: Some(thread) })
    }

    pub(crate) fn queue(&self) -> &mpsc::Sender<Box<dyn Job>> {
        self.queue.as_ref().expect("the queue is there until the writer is dropped")
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.queue.take());
        let Some(thread) = self.thread.take() else { return };
        // A job may hold the last handle of the store; its thread cannot wait for itself.
        if thread.thread().id() != std::thread::current().id() && thread.join().is_err() {
            tracing::error!("the store's thread ended with a panic");
        }
    }
}

fn run(mut connection: Connection, mut queue: mpsc::Receiver<Box<dyn Job>>) {
    let mut group = Vec::with_capacity(GROUP);
    while queue.blocking_recv_many(&mut group, GROUP) > 0 {
        write(&mut connection, &mut group);
    }
}

/// Does a group of jobs and tells them.
fn write(connection: &mut Connection, group: &mut Vec<Box<dyn Job>>) {
    let mut outcomes = Vec::with_capacity(group.len());
    let committed = commit(connection, group, &mut outcomes);
    for (number, job) in group.drain(..).enumerate() {
        let own = outcomes.get_mut(number).map_or(Ok(()), |outcome| std::mem::replace(outcome, Ok(())));
        let shared = committed.as_ref().copied().map_err(same);
        job.answer(own.and(shared));
    }
}

fn commit(
    connection: &mut Connection,
    group: &mut [Box<dyn Job>],
    outcomes: &mut Vec<Result<(), Error>>,
) -> Result<(), Error> {
    let mut transaction = connection.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
    for job in group {
        let savepoint = transaction.savepoint()?;
        let done = catch_unwind(AssertUnwindSafe(|| job.run(&Work(&savepoint))));
        // The panic hook has logged the cause.
        let done = done.unwrap_or(Err(Error::Closed));
        let kept = done.is_ok();
        if savepoint.is_autocommit() {
            // Some faults, such as a full disk, undo the whole transaction at once.
            return Err(done.err().unwrap_or(Error::Closed));
        }
        if kept {
            savepoint.commit()?;
        } else {
            savepoint.finish()?;
        }
        outcomes.push(done);
    }
    Ok(transaction.commit()?)
}

/// The same error again, for each of the jobs that it hit.
fn same(error: &Error) -> Error {
    match error {
        Error::Full => Error::Full,
        Error::Busy => Error::Busy,
        Error::Closed => Error::Closed,
        Error::Open { .. } | Error::Newer { .. } | Error::Undone(_) | Error::Failed(_) => {
            Error::Failed(error.to_string())
        }
    }
}

//! The thread that writes. It takes what waits, has the database do it in one transaction, and then tells who asked.
//!
//! Invariant: a job is told that it succeeded only after the transaction that holds it was committed. One that fails, or
//! panics, is undone alone. Not here: the transaction, which each database has its own way to hold.
//!
//! Whoever asks wakes this thread, which on a busy machine would take the asker's core at once, for a commit of one job.
//! So it steps back once before it looks what waits; with a core of its own that takes about a microsecond.

use crate::Error;
use crate::work::{Statements, Work};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, mpsc as blocking};
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot};

/// Jobs of one commit: enough to share its cost, few enough that nobody waits long.
const GROUP: usize = 64;

/// What writes.
pub(crate) trait Database {
    /// Does a group of jobs and commits them; gives what became of each, in their order.
    fn write(&mut self, group: &mut [Box<dyn Job>]) -> Vec<Result<(), Error>>;
}

pub(crate) trait Job: Send {
    /// Does what was asked for. Done again only after all that it did was undone.
    fn run(&mut self, statements: &dyn Statements) -> Result<(), Error>;
    /// Tells who asked; an error goes before what `run` gave.
    fn answer(self: Box<Self>, outcome: Result<(), Error>);
}

/// Whether a job has begun, or who asked has given it up; only one of both. Clones are the same.
#[derive(Clone, Default)]
pub(crate) struct Turn(Arc<AtomicU8>);

impl Turn {
    const BEGUN: u8 = 1;
    const GIVEN_UP: u8 = 2;

    /// Whether it may be done. It may be done again.
    fn begin(&self) -> bool {
        let before = self.0.compare_exchange(0, Self::BEGUN, Ordering::AcqRel, Ordering::Acquire);
        before != Err(Self::GIVEN_UP)
    }

    /// Whether it will never be done.
    pub(crate) fn give_up(&self) -> bool {
        let before = self.0.compare_exchange(0, Self::GIVEN_UP, Ordering::AcqRel, Ordering::Acquire);
        before != Err(Self::BEGUN)
    }
}

/// A job from a closure.
pub(crate) struct Asked<T, F> {
    work: F,
    result: Option<T>,
    answer: oneshot::Sender<Result<T, Error>>,
    turn: Turn,
}

impl<T, F> Asked<T, F> {
    pub(crate) const fn new(work: F, answer: oneshot::Sender<Result<T, Error>>, turn: Turn) -> Self {
        Self { work, result: None, answer, turn }
    }
}

impl<T: Send, F: Fn(&Work<'_>) -> Result<T, Error> + Send> Job for Asked<T, F> {
    fn run(&mut self, statements: &dyn Statements) -> Result<(), Error> {
        if !self.turn.begin() {
            return Err(Error::Away);
        }
        self.result = Some(Work::run(statements, &self.work)?);
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
    /// Starts the thread and opens the database on it, which is waited for.
    pub(crate) fn start<D: Database>(
        queue: usize,
        open: impl FnOnce() -> Result<D, Error> + Send + 'static,
    ) -> Result<Self, Error> {
        let (sender, receiver) = mpsc::channel(queue);
        let (opened, open_told) = blocking::sync_channel(1);
        let work = move || match open() {
            Ok(database) => {
                // Whoever waits for it cannot have gone.
                let _ = opened.send(Ok(()));
                run(database, receiver);
            }
            Err(error) => drop(opened.send(Err(error))),
        };
        let thread = std::thread::Builder::new()
            .name("store".to_owned())
            .spawn(work)
            .map_err(|error| Error::Failed(error.to_string()))?;
        open_told.recv().unwrap_or(Err(Error::Closed))?;
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

fn run(mut database: impl Database, mut queue: mpsc::Receiver<Box<dyn Job>>) {
    let mut group = Vec::with_capacity(GROUP);
    while let Some(first) = queue.blocking_recv() {
        std::thread::yield_now();
        group.push(first);
        while group.len() < GROUP
            && let Ok(next) = queue.try_recv()
        {
            group.push(next);
        }
        let outcomes = database.write(&mut group);
        assert_eq!(outcomes.len(), group.len(), "each job has one outcome");
        for (job, outcome) in group.drain(..).zip(outcomes) {
            job.answer(outcome);
        }
    }
}

//! The way into an engine's thread: commands in, a wake-up, and what the engine last said of itself.
//!
//! Bounded: each command belongs to a [`Ticket`], of which at most `limit` exist; a ticket submits once, ends each
//! of its choices at most once and cancels at most once. Nothing here waits for the engine.

use base::RequestId;
use engine::{EventKind, Stats};
use protocol::{Error, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot};

/// What an engine's thread tells a request.
#[derive(Debug)]
pub(crate) enum Message {
    /// Something happened to it.
    Event(EventKind),
    /// It is over: the engine failed or is going away.
    Failed(Error),
}

/// A request on its way to the engine.
pub(crate) struct Submission {
    pub request: engine::Request,
    /// Has room for all that the request may produce.
    pub out: mpsc::Sender<Message>,
    /// Told whether the engine took it.
    pub accepted: oneshot::Sender<Result<(), Error>>,
    /// When it came.
    pub at: Duration,
}

pub(crate) enum Command {
    Submit(Box<Submission>),
    FinishChoice(RequestId, u32),
    Cancel(RequestId),
}

/// What the engine's thread finds when it looks.
pub(crate) struct Mail {
    pub commands: Vec<Command>,
    /// The thread shall end.
    pub closed: bool,
}

/// See the module.
pub(crate) struct Inbox {
    state: Mutex<State>,
    wake: Condvar,
    stats: Mutex<Stats>,
    ready: AtomicBool,
    tickets: AtomicUsize,
    limit: usize,
    /// Told when the last ticket is given back.
    idle: Notify,
}

#[derive(Default)]
struct State {
    commands: Vec<Command>,
    woken: bool,
    closed: bool,
}

impl Inbox {
    /// An inbox for at most `limit` requests at a time.
    pub fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            state: Mutex::default(),
            wake: Condvar::new(),
            stats: Mutex::default(),
            ready: AtomicBool::new(true),
            tickets: AtomicUsize::new(0),
            limit: limit.max(1),
            idle: Notify::new(),
        })
    }

    /// A place for one request, if the engine is there and has room.
    pub fn ticket(self: &Arc<Self>, id: RequestId) -> Result<Ticket, Error> {
        if !self.is_ready() {
            return Err(unavailable("the model is not ready; try again soon"));
        }
        let taken = self
            .tickets
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, |n| (n < self.limit).then_some(n + 1));
        match taken {
            Ok(_) => Ok(Ticket { inbox: Arc::clone(self), id, submitted: false, over: false }),
            Err(depth) => Err(overloaded(depth)),
        }
    }

    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire) && !self.lock().closed
    }

    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    /// What the engine last said of itself.
    pub fn stats(&self) -> Stats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn set_stats(&self, stats: Stats) {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }

    /// Makes the engine's thread look.
    pub fn wake(&self) {
        self.lock().woken = true;
        self.wake.notify_one();
    }

    /// Ends the engine's thread, and with it what is in flight.
    pub fn close(&self) {
        self.lock().closed = true;
        self.wake.notify_one();
    }

    /// Resolves when no request is in flight.
    pub async fn idle(&self) {
        loop {
            let idle = self.idle.notified();
            if self.tickets.load(Ordering::Acquire) == 0 {
                return;
            }
            idle.await;
        }
    }

    /// After `close` nobody may come to look: a command is then dropped, which tells a submission's caller.
    fn send(&self, command: Command) {
        let mut state = self.lock();
        if state.closed {
            return;
        }
        state.commands.push(command);
        drop(state);
        self.wake.notify_one();
    }

    /// Takes what has come; waits for something to come, at most so long.
    pub fn take(&self, wait: Wait) -> Mail {
        let mut state = self.lock();
        let nothing = |state: &mut State| state.commands.is_empty() && !state.woken && !state.closed;
        state = match wait {
            Wait::No => state,
            Wait::Forever => self.wake.wait_while(state, nothing).unwrap_or_else(PoisonError::into_inner),
            Wait::AtMost(limit) => {
                let waited = self.wake.wait_timeout_while(state, limit, nothing);
                waited.unwrap_or_else(PoisonError::into_inner).0
            }
        };
        state.woken = false;
        Mail { commands: std::mem::take(&mut state.commands), closed: state.closed }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How long [`Inbox::take`] waits.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    No,
    Forever,
    AtMost(Duration),
}

/// A request's place. Dropping it cancels the request, unless it is over.
pub(crate) struct Ticket {
    inbox: Arc<Inbox>,
    id: RequestId,
    submitted: bool,
    over: bool,
}

impl Ticket {
    pub fn submit(&mut self, submission: Submission) {
        debug_assert_eq!(submission.request.id, self.id, "a ticket is for one request");
        self.submitted = true;
        self.inbox.send(Command::Submit(Box::new(submission)));
    }

    /// Ends one answer.
    pub fn finish_choice(&self, choice: u32) {
        self.inbox.send(Command::FinishChoice(self.id, choice));
    }

    /// The engine has nothing more for this request.
    pub fn is_over(&mut self) {
        self.over = true;
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.submitted && !self.over {
            self.inbox.send(Command::Cancel(self.id));
        }
        if self.inbox.tickets.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.inbox.idle.notify_waiters();
        }
    }
}

/// An error after which the same request may be tried again.
pub(crate) fn unavailable(message: &str) -> Error {
    Error::new(ErrorKind::Unavailable, message).retry_after(Duration::from_secs(2))
}

/// The queue is full.
pub(crate) fn overloaded(depth: usize) -> Error {
    Error::new(
        ErrorKind::Overloaded,
        format!("the queue is full: {depth} requests are ahead; try again soon"),
    )
    .retry_after(Duration::from_secs(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{Namespace, Tokens};

    #[tokio::test]
    async fn a_submission_after_the_thread_has_looked_for_the_last_time_is_told() {
        let inbox = Inbox::new(1);
        let mut ticket = inbox.ticket(RequestId(1)).unwrap();
        inbox.close();
        assert!(inbox.take(Wait::No).closed);
        let (out, _events) = mpsc::channel(1);
        let (accepted, mut answer) = oneshot::channel();
        let request = engine::Request {
            id: RequestId(1),
            namespace: Namespace::default(),
            prompt: vec![1],
            sampling: engine::Sampling::default(),
            choices: 1,
            max_tokens: Tokens(1),
            stop_tokens: Vec::new(),
            ignore_eos: false,
            logprobs: None,
            prompt_logprobs: None,
            constraints: Vec::new(),
            prediction: Vec::new(),
        };
        ticket.submit(Submission { request, out, accepted, at: Duration::ZERO });
        assert_eq!(answer.try_recv().unwrap_err(), oneshot::error::TryRecvError::Closed);
    }
}

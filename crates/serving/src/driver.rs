//! The thread that owns an engine: takes commands in, steps, hands events out, and starts again after a panic.
//!
//! Supervision is here and nowhere else. A panic in a step fails what is in flight as retryable; the engine is
//! emptied and goes on with the weights it has. If that panics too, or another panic follows within a minute,
//! the model is loaded anew, with pauses that double from one second to one minute while that does not
//! help. Until the engine steps again the model is not ready and new requests are refused.
//!
//! Invariant: a request has a sink here from its admission until its last event; the sink's channel has room
//! for all events, so that handing them out never waits. Knows no text.

use crate::draft_cost::{DraftCosts, Step};
use crate::inbox::{Command, Inbox, Mail, Message, Submission, Wait, overloaded, unavailable};
use crate::metrics::Metrics;
use crate::pace::{Pace, StepTime};
use base::{Clock, RequestId};
use engine::{Activity, AdmitError, Engine, Event, EventKind, Stats};
use protocol::{Error, ErrorKind};
use rustc_hash::FxHashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc::{self, error::TrySendError};

/// A panic this soon after the one before means that emptying the engine did not help.
const CALM: Duration = Duration::from_secs(60);
const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);

/// Makes the engine again, from the model's files.
pub(crate) type Rebuild = Box<dyn FnMut() -> Result<Engine, String> + Send>;

/// Runs an engine until the inbox is closed.
pub(crate) struct Driver {
    pub model: String,
    pub engine: Engine,
    /// How long a step may take while answers are written.
    pub step_time: StepTime,
    pub rebuild: Rebuild,
    pub inbox: Arc<Inbox>,
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn Clock>,
}

struct Sink {
    out: mpsc::Sender<Message>,
    /// When it came, then when its last token was given.
    last: Duration,
    /// It has given a token.
    begun: bool,
}

/// Everything of the thread but the engine.
struct Requests {
    sinks: FxHashMap<RequestId, Sink>,
    /// Requests whose caller is gone.
    gone: Vec<RequestId>,
    events: Vec<Event>,
}

impl Driver {
    /// The body of the thread.
    pub fn run(self) {
        let Self { model, engine, step_time, mut rebuild, inbox, metrics, clock } = self;
        let mut requests = Requests { sinks: FxHashMap::default(), gone: Vec::new(), events: Vec::new() };
        let mut last_panic: Option<Duration> = None;
        let mut pause = Duration::ZERO;
        let mut pace = Pace::new(step_time);
        let mut engine = Some(engine);
        loop {
            let Some(mut running) = engine.take() else {
                // Nothing to run: wait out the pause, refuse what comes, then build.
                if wait_out(&inbox, pause) {
                    break;
                }
                pause = (pause * 2).clamp(FIRST_PAUSE, LONGEST_PAUSE);
                match catch_unwind(AssertUnwindSafe(&mut rebuild)) {
                    Ok(Ok(built)) => engine = Some(built),
                    Ok(Err(error)) => tracing::error!(%model, %error, "the model could not be loaded again"),
                    Err(_) => tracing::error!(%model, "loading the model again panicked"),
                }
                continue;
            };
            running.set_waker({
                let inbox = Arc::clone(&inbox);
                Arc::new(move || inbox.wake())
            });
            inbox.set_stats(running.stats());
            inbox.set_ready(true);
            let ended = catch_unwind(AssertUnwindSafe(|| {
                serve(&mut running, &mut pace, &inbox, &mut requests, &metrics, &*clock)
            }));
            if ended.is_ok() {
                break;
            }
            inbox.set_ready(false);
            tracing::error!(%model, in_flight = requests.sinks.len(), "the engine panicked");
            metrics.restarted();
            requests.fail("the engine failed and is starting again; try again");
            let now = clock.now();
            let again = last_panic.replace(now).is_some_and(|last| now.saturating_sub(last) < CALM);
            if !again {
                pause = Duration::ZERO;
            }
            let emptied =
                !again && catch_unwind(AssertUnwindSafe(|| running.fail_all(&mut requests.events))).is_ok();
            requests.events.clear();
            if emptied {
                engine = Some(running);
            } else {
                // Its own clean-up may panic as well; whatever it then leaks is lost with it.
                let _ = catch_unwind(AssertUnwindSafe(|| drop(running)));
                inbox.set_stats(Stats::default());
            }
        }
        inbox.set_ready(false);
        requests.fail("the server is shutting down");
        refuse(inbox.take(Wait::No), "the server is shutting down");
    }
}

/// Steps until the inbox is closed.
fn serve(
    engine: &mut Engine,
    pace: &mut Pace,
    inbox: &Inbox,
    requests: &mut Requests,
    metrics: &Metrics,
    clock: &dyn Clock,
) {
    engine.set_step_limit(Some(pace.limit()));
    let mut costs = DraftCosts::default();
    let mut before = engine.stats().counters;
    let mut wait = Wait::No;
    loop {
        let mail = inbox.take(wait);
        if mail.closed {
            refuse(mail, "the server is shutting down");
            return;
        }
        for command in mail.commands {
            requests.obey(engine, command);
        }
        let begin = clock.now();
        let activity = engine.step(&mut requests.events);
        let end = clock.now();
        requests.hand_out(end, metrics);
        // What they held may be what another waits for.
        let gave_back = !requests.gone.is_empty();
        for id in requests.gone.drain(..) {
            engine.cancel(id);
        }
        let stats = engine.stats();
        inbox.set_stats(stats);
        if activity == Activity::Worked {
            let took = end.saturating_sub(begin);
            let now = stats.counters;
            let rows = now.rows - before.rows;
            let drafted = now.drafted_tokens - before.drafted_tokens;
            let prompt = now.prompt_tokens_computed - before.prompt_tokens_computed;
            before = now;
            if let Some(cost) = costs.learn(Step { rows, prompt, drafted, took }) {
                engine.set_draft_cost(cost);
            }
            // Rows of drafts are neither a prompt's nor those of so many answers.
            if drafted == 0 {
                pace.learn(&engine.work(), took);
                engine.set_step_limit(Some(pace.limit()));
            }
        }
        wait = match activity {
            Activity::Worked => Wait::No,
            Activity::Idle | Activity::WaitingForMemory if gave_back => Wait::No,
            Activity::Idle | Activity::WaitingForMemory => Wait::Forever,
        };
        if cfg!(debug_assertions) && activity == Activity::Idle {
            engine.check();
        }
    }
}

impl Requests {
    fn obey(&mut self, engine: &mut Engine, command: Command) {
        match command {
            Command::Submit(submission) => self.submit(engine, *submission),
            Command::FinishChoice(id, choice) => engine.finish_choice(id, choice, &mut self.events),
            Command::Cancel(id) => {
                self.sinks.remove(&id);
                engine.cancel(id);
            }
        }
    }

    fn submit(&mut self, engine: &mut Engine, submission: Submission) {
        let Submission { request, out, accepted, at } = submission;
        let id = request.id;
        // The sink comes first: if the engine panics over this request, its caller is told.
        self.sinks.insert(id, Sink { out, last: at, begun: false });
        let answer = engine.submit(request).map_err(|error| refusal(&error));
        if answer.is_err() {
            self.sinks.remove(&id);
        }
        // A caller that is gone has sent, or will send, a cancellation.
        let _ = accepted.send(answer);
    }

    /// Gives each event to its request.
    fn hand_out(&mut self, now: Duration, metrics: &Metrics) {
        for Event { request, kind } in self.events.drain(..) {
            let Some(sink) = self.sinks.get_mut(&request) else { continue };
            if let EventKind::Token { .. } = kind {
                let gap = now.saturating_sub(std::mem::replace(&mut sink.last, now));
                if std::mem::replace(&mut sink.begun, true) {
                    metrics.next_token(gap);
                } else {
                    metrics.first_token(gap);
                }
            }
            let last = matches!(kind, EventKind::Done(_));
            match sink.out.try_send(Message::Event(kind)) {
                Ok(()) => {}
                Err(TrySendError::Closed(_)) => self.gone.push(request),
                Err(TrySendError::Full(_)) => {
                    unreachable!("a channel has room for all that a request produces")
                }
            }
            if last {
                self.sinks.remove(&request);
            }
        }
        for id in &self.gone {
            self.sinks.remove(id);
        }
    }

    /// Ends all requests with an error.
    fn fail(&mut self, message: &str) {
        for (_, sink) in self.sinks.drain() {
            let _ = sink.out.try_send(Message::Failed(unavailable(message)));
        }
        self.gone.clear();
    }
}

/// Refuses what comes until the pause is over. Gives whether the inbox was closed.
fn wait_out(inbox: &Inbox, pause: Duration) -> bool {
    const SLICE: Duration = Duration::from_millis(250);
    let mut left = pause;
    loop {
        let slice = left.min(SLICE);
        let mail = inbox.take(Wait::AtMost(slice));
        let closed = mail.closed;
        refuse(mail, "the model is being loaded again; try again soon");
        if closed {
            return true;
        }
        // A wake-up ends a slice early; the pause is then a little shorter.
        left = left.saturating_sub(slice);
        if left.is_zero() {
            return false;
        }
    }
}

fn refuse(mail: Mail, message: &str) {
    for command in mail.commands {
        if let Command::Submit(submission) = command {
            let _ = submission.accepted.send(Err(unavailable(message)));
        }
    }
}

fn refusal(error: &AdmitError) -> Error {
    match error {
        AdmitError::PromptTooLong { .. } => Error::new(ErrorKind::ContextLength, error.to_string()),
        AdmitError::Overloaded { depth } => overloaded(*depth),
    }
}

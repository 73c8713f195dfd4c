//! Streams that can be read on after the client lost them: what a model says is buffered apart from the client, and goes
//! on when nobody reads.
//!
//! A run is one stream. Its events are kept from the first one on, for [`Config::resume`] after its end or after the last
//! reader left, up to [`RUN_MAX`] bytes; whoever has its id and belongs to the account that began it reads from event `n`
//! (events are counted by their blank lines, comments too, as clients count them). Reading again asks nobody again. Invariant:
//! `first + events.len()` events have come, those before `first` are forgotten, and only where every reader has them. Runs are in memory:
//! they end with this process, and another one knows nothing of them. One that is ended, or whose answer breaks off, ends
//! with an error event for those who read it.

use super::refusal::{Answered, Dialect};
use super::{App, Config, dispatch, fresh_id, policy};
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::unfold;
use gateway::sse::{self, Framer};
use gateway::{Caller, flags};
use protocol::workers_ai::binding::{self, MODEL_HEADER};
use protocol::{Error, ErrorKind, Event, openai};
use std::collections::{HashMap, VecDeque};
use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

/// The id of a run, on its response.
const RUN: HeaderName = HeaderName::from_static("cf-aig-run-id");

/// Most bytes of a run that are kept. What goes beyond waits for the reader; without one it ends the run.
const RUN_MAX: usize = 4 << 20;

/// Most runs; beyond them a stream is an ordinary one.
const RUNS_MAX: usize = 256;

/// How a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Whole,
    Broken,
    /// Somebody asked for its end, or nobody read it.
    Dropped,
}

/// Streams whose errors have a form of their own, whichever path they came by.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Form {
    Messages,
    /// With the first event, which holds the response.
    Responses(Bytes),
}

#[derive(Debug, Default)]
struct Progress {
    events: VecDeque<Bytes>,
    /// How an error is told, as the first event with a name shows; else as the path has it.
    form: Option<Form>,
    /// Events with a name that have come.
    named: u64,
    /// The number of the first event that is kept.
    first: usize,
    bytes: usize,
    end: Option<End>,
    /// What each reader will get next.
    readers: HashMap<u64, usize>,
    readers_ever: u64,
    /// When the last reader left.
    alone_since: Option<Instant>,
}

/// One stream.
struct Run {
    account: Arc<str>,
    /// Of the path that the stream was asked at.
    dialect: Dialect,
    state: Mutex<Progress>,
    /// Counts changes, for those who wait for one.
    changes: watch::Sender<u64>,
    ended_by_request: watch::Sender<bool>,
}

impl Run {
    fn state(&self) -> MutexGuard<'_, Progress> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn changed(&self) {
        self.changes.send_modify(|count| *count += 1);
    }

    /// Forgets what every reader has, as far as there is too much.
    fn trim(state: &mut Progress) {
        let slowest = state.readers.values().min().copied();
        while state.bytes > RUN_MAX && slowest.is_some_and(|slowest| state.first < slowest) {
            let Some(event) = state.events.pop_front() else { return };
            state.bytes -= event.len();
            state.first += 1;
        }
    }

    /// Takes what has come, event by event.
    fn push(&self, events: impl Iterator<Item = Bytes>) {
        let mut state = self.state();
        for event in events {
            if let Some(name) = sse::name(&event) {
                state.named += 1;
                if state.form.is_none() && name == b"message_start" {
                    state.form = Some(Form::Messages);
                } else if state.form.is_none() && name.starts_with(b"response.") {
                    state.form = Some(Form::Responses(event.clone()));
                }
            }
            state.bytes += event.len();
            state.events.push_back(event);
        }
        Self::trim(&mut state);
        drop(state);
        self.changed();
    }

    /// Ends the stream with an error, which whoever reads it is told.
    fn fail(&self, end: End, error: &Error) {
        let (form, named) = {
            let state = self.state();
            (state.form.clone(), state.named)
        };
        let events = match form {
            Some(Form::Messages) => {
                Event { name: Some("error"), data: Dialect::Anthropic.event(error) }.to_wire()
            }
            Some(Form::Responses(begun)) => {
                openai::responses::broken(&sse::data(&begun).unwrap_or_default(), named, error)
            }
            None => Event::data(self.dialect.event(error)).to_wire(),
        };
        if let Ok(frames) = Framer::default().push(events.into()) {
            self.push(frames.iter());
        }
        self.end(end);
    }

    fn end(&self, end: End) {
        let mut state = self.state();
        state.end.get_or_insert(end);
        if state.readers.is_empty() {
            state.alone_since = Some(Instant::now());
        }
        drop(state);
        self.changed();
    }

    /// Reads the stream to its end, whoever listens.
    async fn pump(&self, body: Body, config: &Config) {
        let mut body = body.into_data_stream();
        let mut framer = Framer::default();
        let (mut changes, mut ending) = (self.changes.subscribe(), self.ended_by_request.subscribe());
        loop {
            let (full, alone) = {
                let state = self.state();
                (state.bytes > RUN_MAX, state.alone_since)
            };
            if full && alone.is_some() {
                tracing::warn!("a stream that nobody reads grew too long to be kept");
                return self.end(End::Dropped);
            }
            let forgotten = alone.unwrap_or_else(Instant::now) + config.resume;
            tokio::select! {
                next = body.next(), if !full => match next {
                    Some(Ok(bytes)) => match framer.push(bytes) {
                        Ok(frames) => self.push(frames.iter()),
                        Err(error) => return self.fail(End::Broken, &broken(&error)),
                    },
                    Some(Err(error)) => return self.fail(End::Broken, &broken(&error)),
                    None => {
                        let rest = framer.rest();
                        self.push(Some(rest).filter(|rest| !rest.is_empty()).into_iter());
                        return self.end(End::Whole);
                    }
                },
                _ = changes.changed() => {}
                _ = ending.wait_for(|ending| *ending) => {
                    let why = "This stream was ended by a request, or because the server stops";
                    return self.fail(End::Dropped, &Error::new(ErrorKind::Unavailable, why));
                }
                () = sleep_until(forgotten), if alone.is_some() => return self.end(End::Dropped),
            }
        }
    }

    /// The events from number `from` on; nothing where they are forgotten.
    fn read(self: &Arc<Self>, from: usize) -> Option<Body> {
        let mut state = self.state();
        if from < state.first || state.end == Some(End::Dropped) {
            return None;
        }
        let id = state.readers_ever;
        state.readers_ever += 1;
        state.readers.insert(id, from);
        state.alone_since = None;
        drop(state);
        self.changed();
        let reader = Reader { run: Arc::clone(self), id, changes: self.changes.subscribe() };
        Some(Body::from_stream(unfold(reader, async |mut reader| {
            let next = reader.next().await?;
            Some((Ok::<_, Infallible>(next), reader))
        })))
    }
}

/// Somebody who reads a run.
struct Reader {
    run: Arc<Run>,
    id: u64,
    changes: watch::Receiver<u64>,
}

impl Reader {
    async fn next(&mut self) -> Option<Bytes> {
        loop {
            self.changes.mark_unchanged();
            {
                let mut state = self.run.state();
                let at = *state.readers.get(&self.id)?;
                let found = at.checked_sub(state.first).and_then(|index| state.events.get(index).cloned());
                if let Some(event) = found {
                    state.readers.insert(self.id, at + 1);
                    let full = state.bytes > RUN_MAX;
                    Run::trim(&mut state);
                    drop(state);
                    if full {
                        self.run.changed();
                    }
                    return Some(event);
                }
                if state.end.is_some() {
                    return None;
                }
            }
            // The sender lives as long as the run.
            let _ = self.changes.changed().await;
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let mut state = self.run.state();
        state.readers.remove(&self.id);
        if state.readers.is_empty() {
            state.alone_since = Some(Instant::now());
        }
        drop(state);
        self.run.changed();
    }
}

/// An answer that does not go on, and why.
fn broken(why: &dyn std::fmt::Display) -> Error {
    Error::new(ErrorKind::Upstream, format!("The answer broke off: {why}"))
}

/// All runs of this process.
#[derive(Default)]
pub(super) struct Runs(Mutex<HashMap<String, Arc<Run>>>);

impl Runs {
    fn runs(&self) -> MutexGuard<'_, HashMap<String, Arc<Run>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Enters a run, unless there are too many. One that is over makes room.
    fn enter(&self, id: &str, run: &Arc<Run>) -> bool {
        let mut runs = self.runs();
        if runs.len() >= RUNS_MAX {
            let over = runs.iter().find(|(_, run)| {
                let state = run.state();
                state.end.is_some() && state.readers.is_empty()
            });
            let Some(over) = over.map(|(id, _)| id.clone()) else { return false };
            runs.remove(&over);
        }
        runs.insert(id.to_owned(), Arc::clone(run));
        true
    }

    fn find(&self, id: &str, account: &str) -> Option<Arc<Run>> {
        self.runs().get(id).filter(|run| *run.account == *account).cloned()
    }

    /// Ends all, with the server.
    pub(super) fn close(&self) {
        let runs: Vec<_> = self.runs().drain().collect();
        runs.iter().for_each(|(_, run)| {
            run.ended_by_request.send_replace(true);
        });
    }
}

/// Whether a request wants its stream to be one that can be read on: on the run path of the AI binding for models of
/// providers, as Cloudflare does it, and elsewhere where its header says so.
pub(super) fn wanted(app: &App, route: &str, request: &Request) -> bool {
    if *request.method() != Method::POST || request.extensions().get::<dispatch::Nested>().is_some() {
        return false;
    }
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
    match (flags::flag(request.headers(), flags::RESUMABLE).unwrap_or_default(), route) {
        (Some(wanted), _) => wanted,
        (None, "/run" | "/ai-gateway/run") => header(MODEL_HEADER)
            .is_some_and(|name| app.model(binding::model(name, |name| app.model(name).is_ok())).is_err()),
        (None, _) => false,
    }
}

/// Keeps a stream apart from its client.
pub(super) fn keep(app: &Arc<App>, caller: &Caller, dialect: Dialect, response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let may_be_kept = response.extensions().get::<policy::KeptByNobody>().is_none();
    if response.status() != StatusCode::OK || !may_be_kept || !kind.starts_with(b"text/event-stream") {
        return response;
    }
    let id = fresh_id();
    let run = Arc::new(Run {
        account: Arc::clone(&caller.account),
        dialect,
        state: Mutex::default(),
        changes: watch::channel(0).0,
        ended_by_request: watch::channel(false).0,
    });
    if !app.runs.enter(&id, &run) {
        return response;
    }
    let (mut head, body) = response.into_parts();
    let reader = run.read(0).expect("a run that begins has all of its events");
    let owner = Arc::clone(app);
    let name = id.clone();
    tokio::spawn(async move {
        run.pump(body, &owner.config).await;
        let kept = run.state().end != Some(End::Dropped);
        if kept {
            let mut ending = run.ended_by_request.subscribe();
            let _ = tokio::time::timeout(owner.config.resume, ending.wait_for(|ending| *ending)).await;
        }
        owner.runs.runs().remove(&name);
    });
    head.headers.insert(RUN, HeaderValue::from_str(&id).expect("an id is a header value"));
    Response::from_parts(head, reader)
}

/// Parameters of a path, by name.
type Named = Result<Path<HashMap<String, String>>, PathRejection>;

/// The run that a path names, where the caller's account began it.
fn run(app: &App, named: Named, caller: Option<&Caller>) -> Result<(String, Arc<Run>), Error> {
    let Path(mut named) = named.map_err(|error| Error::new(ErrorKind::RouteNotFound, error.body_text()))?;
    let id = named.remove("run").unwrap_or_default();
    let account = caller.map(|caller| &*caller.account).unwrap_or_default();
    app.runs.find(&id, account).map(|run| (id, run)).ok_or_else(gone)
}

fn gone() -> Error {
    Error::new(ErrorKind::NotFound, "This stream is not here, or no longer")
}

/// `GET …/{run}/resume?from=n`: the events from number n on, those to come included.
pub(super) async fn resume(State(app): State<Arc<App>>, named: Named, request: Request) -> Answered {
    let (id, run) = run(&app, named, request.extensions().get())?;
    let query = request.uri().query().unwrap_or_default();
    let from = query.split('&').find_map(|pair| pair.strip_prefix("from=")).unwrap_or("0");
    let wrong = || Error::invalid("from", "Invalid value for 'from': expected a number of events");
    let body = run.read(from.parse().map_err(|_| wrong())?).ok_or_else(gone)?;
    let mut response = Response::new(body);
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    headers.insert(RUN, HeaderValue::from_str(&id).map_err(|_| gone())?);
    Ok(response)
}

/// `DELETE …/{run}`: ends a stream, and what makes it.
pub(super) async fn end(State(app): State<Arc<App>>, named: Named, request: Request) -> Answered {
    let (id, run) = run(&app, named, request.extensions().get())?;
    run.ended_by_request.send_replace(true);
    app.runs.runs().remove(&id);
    Ok(StatusCode::NO_CONTENT.into_response())
}

#[cfg(test)]
#[path = "runs_tests.rs"]
mod tests;

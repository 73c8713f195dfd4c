//! Streams answers as server-sent events. Each event is one frame of the body, so that it leaves the machine as
//! soon as it is made; dropping the body drops the backend's streams, which ends their work.

use super::App;
use super::metrics::StreamGuard;
use super::refusal::Dialect;
use axum::body::Body;
use axum::http::{HeaderValue, header};
use axum::response::Response;
use bytes::Bytes;
use futures::future::{self, BoxFuture};
use futures::stream::{self, BoxStream, SelectAll};
use futures::{FutureExt, StreamExt};
use protocol::{Delta, DeltaStream, Error, ErrorKind, Event, StreamWriter, cut_short};
use std::collections::VecDeque;
use std::convert::Infallible;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

/// What clients that parse events pass over.
const KEEP_ALIVE: &[u8] = b": keep-alive\n\n";

/// Answers that come together, each delta with the number of its source.
type Merged = SelectAll<BoxStream<'static, (usize, Result<Delta, Error>)>>;

/// A writer that has something to do, for example to keep the answer, after the last delta and before the last event.
pub(super) trait Settle: StreamWriter {
    /// Does it. An error fails the answer.
    fn settle(&mut self) -> BoxFuture<'_, Result<(), Error>>;
}

/// A writer that has nothing to settle.
struct Plain<W>(W);

impl<W: StreamWriter> StreamWriter for Plain<W> {
    fn delta(&mut self, source: usize, delta: Delta) -> Vec<Event> {
        self.0.delta(source, delta)
    }

    fn finish(&mut self) -> Vec<Event> {
        self.0.finish()
    }

    fn fail(&mut self, error: &Error) -> Option<Vec<Event>> {
        self.0.fail(error)
    }
}

impl<W: StreamWriter> Settle for Plain<W> {
    fn settle(&mut self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(future::ready(Ok(())))
    }
}

struct Events {
    deltas: Merged,
    writer: Box<dyn Settle>,
    /// How an error is written.
    dialect: Dialect,
    /// Written and not yet sent.
    ready: VecDeque<Event>,
    /// Sources that have not told their usage.
    running: usize,
    silence: Duration,
    guard: StreamGuard,
}

/// A response that streams these answers.
pub(super) fn response(
    app: &Arc<App>,
    dialect: Dialect,
    answers: Vec<DeltaStream>,
    writer: impl StreamWriter + 'static,
) -> Response {
    settled(app, dialect, answers, Plain(writer))
}

/// The same for a writer that settles something before its last event.
pub(super) fn settled(
    app: &Arc<App>,
    dialect: Dialect,
    answers: Vec<DeltaStream>,
    writer: impl Settle + 'static,
) -> Response {
    let running = answers.len();
    let tagged = answers
        .into_iter()
        .enumerate()
        .map(|(source, deltas)| deltas.map(move |delta| (source, delta)).boxed());
    let events = Events {
        deltas: stream::select_all(tagged),
        writer: Box::new(writer),
        dialect,
        ready: VecDeque::new(),
        running,
        silence: app.config.stream_silence,
        guard: StreamGuard::new(Arc::clone(app)),
    };
    let frames = stream::unfold(events, |mut events| async move {
        let frame = events.next_frame().await?;
        Some((Ok::<_, Infallible>(frame), events))
    });
    let mut response = Response::new(Body::from_stream(frames));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    // Proxies such as nginx would gather events otherwise.
    headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
    response
}

impl Events {
    async fn next_frame(&mut self) -> Option<Bytes> {
        loop {
            if let Some(event) = self.ready.pop_front() {
                return Some(event.to_wire().into());
            }
            if self.running == 0 {
                self.guard.ended();
                return None;
            }
            let next = AssertUnwindSafe(self.deltas.next()).catch_unwind();
            match tokio::time::timeout(self.silence, next).await {
                Err(_) => return Some(Bytes::from_static(KEEP_ALIVE)),
                Ok(Ok(Some((source, Ok(delta))))) => self.take(source, delta).await,
                Ok(Ok(Some((_, Err(error))))) => self.fail(&error),
                Ok(Ok(None)) => self.fail(&cut_short()),
                Ok(Err(_)) => {
                    self.fail(&Error::new(ErrorKind::Internal, "The server failed on this request"));
                }
            }
        }
    }

    async fn take(&mut self, source: usize, delta: Delta) {
        let last = matches!(delta, Delta::Usage(_));
        self.ready.extend(self.writer.delta(source, delta));
        if last {
            self.running -= 1;
            if self.running == 0 {
                self.deltas.clear();
                match self.writer.settle().await {
                    Ok(()) => self.ready.extend(self.writer.finish()),
                    Err(error) => self.fail(&error),
                }
            }
        }
    }

    /// Ends all answers: the status is long sent, so the error is the last event.
    fn fail(&mut self, error: &Error) {
        tracing::warn!(%error, "a stream failed");
        match self.writer.fail(error) {
            Some(events) => self.ready.extend(events),
            None => self.ready.push_back(Event::data(self.dialect.event(error))),
        }
        self.running = 0;
        self.deltas.clear();
    }
}

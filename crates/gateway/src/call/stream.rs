//! An answer that is passed on as it comes.
//!
//! Events go on whole and untouched, as many together as arrived together; usage is read on the way. Before the event
//! that ends the answer goes out, the entry in the ledger is settled, and that is durable. In silence a comment tells the
//! client that the connection lives. A stream that breaks off, turns into something else, or ends before anything said
//! that the answer is all there ([`Form`]) ends with an error in the provider's dialect, since its
//! status is long sent; its entry ends as failed. Dropping the stream closes the connection to the provider and leaves
//! the entry interrupted, with the usage that was seen: where the answer's own tokens were told before they were made
//! (Anthropic's first event tells one), at least one for each piece since.

use super::breaker::Outcome;
use super::framing::{Framing, event};
use super::ready::Told;
use super::turn::Turn;
use super::{Target, retry};
use crate::dialect::{Dialect, Fault, Form, Seen, Watcher};
use crate::ledger::Entry;
use crate::upstream::{chunk, plainly};
use crate::usage::Usage;
use crate::{eventstream, sse};
use bytes::Bytes;
use futures::stream::unfold;
use futures::{FutureExt, Stream};
use hyper::body::Incoming;
use hyper::http::StatusCode;
use protocol::{Error, ErrorKind, anthropic, gemini, openai};
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Longest silence before a comment is sent.
const SILENCE: Duration = Duration::from_secs(15);

/// Most pieces that are taken before what is there goes out.
const GATHERED: usize = 16;

/// The status of an entry whose answer broke off.
const BROKEN: u16 = 502;

/// Events of an answer.
pub(super) struct Events {
    body: Incoming,
    /// What is known of the answer's form.
    form: Option<Form>,
    /// The event that begins a response, which is told again where it fails; how many have come.
    begun: Option<Bytes>,
    events: u64,
    slug: Arc<str>,
    dialect: Dialect,
    idle: Duration,
    framing: Framing,
    watcher: Watcher,
    /// The usage that was told last, and the pieces of the answer since it told tokens of one.
    told_usage: Option<Usage>,
    pieces: u64,
    /// Whether the chunk of usage is taken out, because the client did not ask for it.
    strip_usage: bool,
    /// What goes out next; before what is marked, the entry is settled.
    ready: VecDeque<(Bytes, bool)>,
    /// What may be the last: it waits for the end, or for more.
    held: Bytes,
    has_data: bool,
    has_last: bool,
    ended: bool,
    /// Whether its end was told.
    is_over: bool,
    /// Whether a reader judges if the answer is whole where its stream just ends.
    is_read: bool,
    entry: Option<Entry>,
    turn: Turn,
    /// Why it broke off, behind what is ready.
    broke: Option<String>,
    /// Hears once how the answer ends; not where the client leaves, which says nothing of the provider.
    told: Option<Told>,
}

impl Events {
    pub(super) fn new(body: Incoming, target: &Target, form: Option<Form>) -> Self {
        Self {
            body,
            form,
            begun: None,
            events: 0,
            slug: Arc::clone(&target.provider.slug),
            dialect: target.dialect,
            idle: target.provider.timeouts.idle,
            framing: Framing::new(target.dialect),
            watcher: Watcher::new(target.dialect).of(form),
            told_usage: None,
            pieces: 0,
            strip_usage: target.strip_usage,
            ready: VecDeque::new(),
            held: Bytes::new(),
            has_data: false,
            has_last: false,
            ended: false,
            is_over: false,
            is_read: false,
            entry: None,
            turn: Turn::default(),
            broke: None,
            told: None,
        }
    }

    /// Has a breaker told how the answer ends.
    pub(super) fn tell(&mut self, told: Told) {
        self.told = Some(told);
    }

    fn ends(&mut self, outcome: Outcome) {
        if let Some(told) = self.told.take() {
            told.tell(outcome);
        }
    }

    /// Leaves it to a reader to say how the answer ends, where its stream just ends.
    pub(super) const fn is_read(&mut self) {
        self.is_read = true;
    }

    /// What is spoken.
    pub(super) const fn dialect(&self) -> Dialect {
        self.dialect
    }

    /// Whether an event with data has come.
    pub(super) const fn has_data(&self) -> bool {
        self.has_data
    }

    /// The error that the stream told.
    pub(super) const fn fault(&self) -> Option<&Fault> {
        self.watcher.fault()
    }

    /// Takes what comes next; false at the end. Nothing is lost when it is dropped while it waits.
    pub(super) async fn read(&mut self) -> Result<bool, String> {
        match chunk(&mut self.body).await {
            None => {
                self.ended = true;
                self.release();
                let rest = self.framing.rest();
                if !rest.is_empty() {
                    self.look(&rest);
                    // What is cut in the middle would run into the error behind it.
                    if self.watcher.is_whole() {
                        self.ready.push_back((rest, false));
                    }
                }
                Ok(false)
            }
            Some(Err(error)) => Err(format!("its stream broke off: {}", plainly(&error))),
            Some(Ok(bytes)) => {
                self.take(bytes)?;
                Ok(true)
            }
        }
    }

    /// Takes what has arrived meanwhile, so that under load several events leave in one write; waits for nothing.
    async fn gather(&mut self) {
        for _ in 0..GATHERED {
            // The connection's own task hands over one piece at a time, and only while this one does not run.
            self.turn.pass().await;
            match self.read().now_or_never() {
                Some(Ok(true)) => {}
                Some(Ok(false)) | None => break,
                Some(Err(why)) => {
                    self.release();
                    self.broke = Some(why);
                    break;
                }
            }
        }
    }

    fn look(&mut self, frame: &[u8]) -> Seen {
        let seen = self.watcher.frame(frame);
        if self.form == Some(Form::Responses) {
            self.events += 1;
            self.begun.get_or_insert_with(|| Bytes::copy_from_slice(frame));
        }
        self.has_data = self.has_data || event(self.dialect, frame).is_some();
        self.pieces += u64::from(seen.piece);
        if seen.usage
            && let Some(reported) = self.watcher.reported()
        {
            if reported.usage.output > 0 {
                self.pieces = 0;
            }
            self.told_usage = Some(reported.usage);
        }
        if seen.usage || seen.piece {
            self.note();
        }
        seen
    }

    /// Tells the entry what was used so far.
    fn note(&mut self) {
        if let (Some(entry), Some(usage)) = (&mut self.entry, self.told_usage) {
            entry.see(Usage { output: usage.output.max(self.pieces), ..usage });
        }
    }

    /// Takes bytes that came.
    pub(super) fn take(&mut self, bytes: Bytes) -> Result<(), String> {
        let frames = self.framing.push(bytes)?;
        if !frames.ends.is_empty() {
            self.release();
        }
        // Begins where the last piece ended; frames that nothing is done to go out together.
        let (mut from, mut start, mut settles) = (0, 0, false);
        let whole = frames.bytes.len();
        for end in frames.ends {
            let seen = self.look(&frames.bytes[start..end]);
            if seen.rubbish {
                self.put(frames.bytes.slice(from..start), settles);
                return Err("an event of its stream is no JSON".to_owned());
            }
            if seen.closing && end == whole {
                self.put(frames.bytes.slice(from..start), settles);
                self.held = frames.bytes.slice(start..);
                return Ok(());
            }
            let last = seen.last && !self.has_last;
            let strip = self.strip_usage && seen.usage_only;
            if last || strip {
                self.put(frames.bytes.slice(from..start), settles);
                settles = last;
                self.has_last |= last;
                from = if strip { end } else { start };
            }
            start = end;
        }
        self.put(frames.bytes.slice(from..start), settles);
        Ok(())
    }

    /// What was held back goes on.
    fn release(&mut self) {
        let held = std::mem::take(&mut self.held);
        self.put(held, false);
    }

    fn put(&mut self, bytes: Bytes, settles: bool) {
        if !bytes.is_empty() {
            self.ready.push_back((bytes, settles));
        }
    }

    /// Whether an answer that ends here is whole, or has said itself why not.
    const fn is_whole(&self) -> bool {
        self.watcher.is_whole() || self.watcher.fault().is_some()
    }

    /// Ends the entry: the answer is whole, as far as anybody can tell.
    pub(super) async fn settle(&mut self) {
        let fault = self.watcher.fault().map(|fault| fault.status.unwrap_or(BROKEN));
        let passing = |status| StatusCode::from_u16(status).is_ok_and(retry::is_passing);
        self.ends(if fault.is_some_and(passing) { Outcome::Failed } else { Outcome::Answered });
        let Some(entry) = self.entry.take() else { return };
        match self.watcher.fault() {
            Some(fault) => entry.fail(fault.status.unwrap_or(BROKEN), &fault.message).await,
            None => {
                entry.settle(self.watcher.reported().map(|reported| reported.usage)).await;
            }
        }
    }

    /// Ends the entry of an answer whose reader found an error in it; gives that error with who it is from, and with
    /// the status and the words of the provider where it told one.
    pub(super) async fn fail(&mut self, error: Error) -> Error {
        self.ended = true;
        let status = self.watcher.fault().and_then(|fault| fault.status);
        let passing = StatusCode::from_u16(status.unwrap_or(BROKEN)).is_ok_and(retry::is_passing);
        self.ends(if passing { Outcome::Failed } else { Outcome::Refused });
        if let Some(entry) = self.entry.take() {
            entry.fail(status.unwrap_or(BROKEN), &error.message).await;
        }
        let message = format!("{}: {}", self.slug, error.message);
        Error { message, status, ..error }
    }

    async fn broken(&mut self, kind: ErrorKind, why: &str) -> Error {
        tracing::warn!(provider = &*self.slug, why, "an answer broke off");
        self.ended = true;
        self.is_over = true;
        self.ends(Outcome::Failed);
        if let Some(entry) = self.entry.take() {
            entry.fail(kind.status(), why).await;
        }
        Error::new(kind, format!("{}: {why}", self.slug))
    }

    /// An error as the last event of a stream.
    fn event(&self, error: &Error) -> Bytes {
        match self.dialect {
            Dialect::OpenAi if self.form == Some(Form::Responses) => {
                let begun = self.begun.as_deref().and_then(sse::data);
                openai::responses::broken(begun.as_deref().unwrap_or_default(), self.events, error)
            }
            Dialect::OpenAi | Dialect::Cohere | Dialect::Other => {
                format!("data: {}\n\n", openai::error::body(error))
            }
            Dialect::Anthropic => format!("event: error\ndata: {}\n\n", anthropic::error::body(error, None)),
            Dialect::Gemini => format!("data: {}\n\n", gemini::error::body(error)),
            Dialect::Bedrock => {
                let headers = [
                    (":exception-type", "modelStreamErrorException"),
                    (":content-type", "application/json"),
                    (":message-type", "exception"),
                ];
                let said = serde_json::json!({"message": error.message}).to_string();
                return eventstream::encode(&headers, said.as_bytes());
            }
        }
        .into()
    }

    /// The next bytes, which are whole events; an error where the answer broke off, behind which nothing comes.
    pub(super) async fn next(&mut self) -> Option<Result<Bytes, Error>> {
        let mut silent = Duration::ZERO;
        loop {
            if let Some((bytes, settles)) = self.ready.pop_front() {
                // What is left is all of it, and nothing in it said so.
                if settles || (self.ended && self.ready.is_empty() && !self.is_read && self.is_whole()) {
                    self.settle().await;
                }
                return Some(Ok(bytes));
            }
            if let Some(why) = self.broke.take() {
                if self.has_last {
                    // Behind the end of the answer there is nothing to miss.
                    self.ended = true;
                    return None;
                }
                return Some(Err(self.broken(ErrorKind::Upstream, &why).await));
            }
            if self.ended {
                if self.is_read || self.is_over {
                    return None;
                }
                self.is_over = true;
                if self.is_whole() {
                    self.settle().await;
                    return None;
                }
                let why = "its stream ended before the answer did";
                return Some(Err(self.broken(ErrorKind::Upstream, why).await));
            }
            match timeout(SILENCE.min(self.idle), self.read()).await {
                Ok(Ok(_)) => {
                    silent = Duration::ZERO;
                    self.gather().await;
                }
                Ok(Err(why)) => {
                    self.release();
                    self.broke = Some(why);
                }
                Err(_) => {
                    silent += SILENCE.min(self.idle);
                    if silent >= self.idle {
                        self.release();
                        if !self.ready.is_empty() {
                            continue;
                        }
                        if self.has_last {
                            self.ended = true;
                            return None;
                        }
                        let why = format!("its stream was silent for {silent:?}");
                        return Some(Err(self.broken(ErrorKind::UpstreamTimeout, &why).await));
                    }
                    if let Some(comment) = self.framing.keep_alive() {
                        return Some(Ok(comment));
                    }
                }
            }
        }
    }

    /// Takes the entry that the answer ends.
    pub(super) fn account(&mut self, entry: Option<Entry>) {
        self.entry = entry;
        self.note();
    }

    /// The bytes for the client.
    pub(super) fn stream(
        mut self: Box<Self>,
        entry: Option<Entry>,
    ) -> impl Stream<Item = io::Result<Bytes>> + Send {
        self.account(entry);
        unfold(self, async |mut events| {
            let bytes = events.next().await?.unwrap_or_else(|error| events.event(&error));
            Some((Ok(bytes), events))
        })
    }
}

/// An answer of another kind, such as sound.
pub(super) struct Raw {
    body: Incoming,
    idle: Duration,
    /// Held back until it is known whether more comes: the entry is settled before the last bytes.
    held: Option<Bytes>,
    entry: Option<Entry>,
}

impl Raw {
    pub(super) fn new(body: Incoming, target: &Target) -> Self {
        Self { body, idle: target.provider.timeouts.idle, held: None, entry: None }
    }

    async fn next(&mut self) -> Option<io::Result<Bytes>> {
        loop {
            let next = match timeout(self.idle, chunk(&mut self.body)).await {
                Err(_) => Some(Err(io::Error::from(io::ErrorKind::TimedOut))),
                Ok(next) => next.map(|piece| piece.map_err(io::Error::other)),
            };
            match next {
                Some(Ok(piece)) => match self.held.replace(piece) {
                    Some(held) => return Some(Ok(held)),
                    None => continue,
                },
                Some(Err(error)) => {
                    self.held = None;
                    if let Some(entry) = self.entry.take() {
                        entry.fail(BROKEN, &format!("its answer broke off: {error}")).await;
                    }
                    return Some(Err(error));
                }
                None => {
                    if let Some(entry) = self.entry.take() {
                        entry.settle(None).await;
                    }
                    return self.held.take().map(Ok);
                }
            }
        }
    }

    /// The bytes for the client.
    pub(super) fn stream(
        mut self: Box<Self>,
        entry: Option<Entry>,
    ) -> impl Stream<Item = io::Result<Bytes>> + Send {
        self.entry = entry;
        unfold(Some(self), async |raw| {
            let mut raw = raw?;
            let next = raw.next().await?;
            let raw = next.is_ok().then_some(raw);
            Some((next, raw))
        })
    }
}

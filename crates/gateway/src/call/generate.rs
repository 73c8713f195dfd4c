//! Calls whose answer is translated: a canonical request is written in each target's dialect, and what comes back is
//! read as canonical deltas. All else, from the ledger to retries, is as for a call that is passed on.

use super::attempt::{Begun, Failed};
use super::framing::{Framing, event};
use super::stream::Events;
use super::{Call, KeyOf, Proxy, Reached, Target, headers, retry::Policy};
use crate::dialect::Dialect;
use crate::elsewhere::longest_prompt;
use crate::ledger::Entry;
use crate::provider::Configured;
use crate::{Caller, Gateway};
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::{iter, unfold};
use hyper::http::{HeaderMap, Method, StatusCode};
use protocol::{AnswerReader, Delta, DeltaStream, Error, ErrorKind, GenerateRequest, broken_off};
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::Arc;

/// What is asked, in canonical form.
#[derive(Debug)]
pub struct Asking {
    /// Who asks.
    pub caller: Caller,
    /// The client's headers; of them only keys and the name of the client go on.
    pub headers: HeaderMap,
    /// Whose key goes before.
    pub key_of: KeyOf,
    /// How often each is asked.
    pub policy: Policy,
    /// Who may answer, and under which name they know the model; in the order in which they are asked.
    pub offers: Vec<(Arc<Configured>, String)>,
    /// What to generate.
    pub request: GenerateRequest,
    /// Tokens that are set aside for an answer whose length nobody limits.
    pub unlimited: u64,
}

/// An answer that has begun.
pub struct Generated {
    /// The answer.
    pub deltas: DeltaStream,
    /// Which of the offers answers, from 0.
    pub step: usize,
    /// The entry in the ledger.
    pub entry: Option<String>,
}

impl Proxy {
    /// Asks for an answer. What a provider refuses comes back as an error with its status and in its words.
    ///
    /// # Errors
    /// When the request cannot be written in the dialect of any offer, and as [`Proxy::call`].
    pub async fn generate(&self, ledger: Option<&Gateway>, asking: Asking) -> Result<Generated, Error> {
        let Asking { caller, headers, key_of, policy, offers, request, unlimited } = asking;
        let mut targets = Vec::with_capacity(offers.len());
        let mut refused = None;
        for (provider, model) in offers {
            match target(provider, &model, &request, unlimited) {
                Ok(target) => targets.push(target),
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        if let (true, Some(error)) = (targets.is_empty(), refused) {
            return Err(error);
        }
        let headers = headers::of_translated(&headers);
        let call = Call { caller, method: Method::POST, headers, key_of, targets, policy };
        let reads = |target: &Target, begun: &Begun| match begun {
            Begun::Whole(_, body, _) => match target.dialect.reader(&request).whole(body) {
                Err(error) if error.kind == ErrorKind::Upstream => Err(error.message),
                _ => Ok(()),
            },
            Begun::Events(..) => Ok(()),
            Begun::Raw(head, _) => {
                let kind = head.headers.get(hyper::http::header::CONTENT_TYPE);
                let kind = kind.and_then(|kind| kind.to_str().ok()).unwrap_or("no content type");
                Err(format!("its answer has {kind}, which is not read here"))
            }
        };
        let Reached { step, id: entry_id, target, entry, outcome } =
            self.reach(ledger, &call, Some(&reads)).await?;
        let begun = match outcome {
            Ok(begun) => begun,
            Err(failed) => return Err(told(&failed, target)),
        };
        let mut reader = target.dialect.reader(&request);
        let deltas = match begun {
            Begun::Whole(_, body, reported) => match reader.whole(&body) {
                Ok(deltas) => {
                    if let Some(entry) = entry {
                        entry.settle(reported.map(|reported| reported.usage)).await;
                    }
                    iter(deltas.into_iter().map(Ok)).boxed()
                }
                Err(error) => return Err(failed(entry, of(target, error)).await),
            },
            Begun::Events(_, events) => Reading::new(events, entry, reader).stream(),
            Begun::Raw(..) => unreachable!("what cannot be read counts as failed"),
        };
        Ok(Generated { deltas, step, entry: entry_id })
    }
}

/// A whole answer, as the provider wrote it.
#[derive(Debug)]
pub struct Fetched {
    /// The answer.
    pub body: Bytes,
    /// Which of the targets answered, from 0.
    pub step: usize,
    /// The entry in the ledger.
    pub entry: Option<String>,
}

impl Proxy {
    /// Makes a call whose answer is JSON and read here. What a provider refuses comes back as an error with its status
    /// and in its words.
    ///
    /// # Errors
    /// As [`Proxy::call`], and when the answer is not JSON.
    pub async fn fetch(&self, ledger: Option<&Gateway>, call: Call) -> Result<Fetched, Error> {
        let call = Call { headers: headers::of_translated(&call.headers), ..call };
        let reads = |_: &Target, begun: &Begun| match begun {
            Begun::Whole(..) => Ok(()),
            Begun::Events(..) | Begun::Raw(..) => Err("its answer is no JSON".to_owned()),
        };
        let Reached { step, id, target, entry, outcome } = self.reach(ledger, &call, Some(&reads)).await?;
        match outcome {
            Ok(Begun::Whole(_, body, reported)) => {
                if let Some(entry) = entry {
                    entry.settle(reported.map(|reported| reported.usage)).await;
                }
                Ok(Fetched { body, step, entry: id })
            }
            Ok(Begun::Events(..) | Begun::Raw(..)) => unreachable!("what cannot be read counts as failed"),
            Err(failed) => Err(told(&failed, target)),
        }
    }
}

/// Who may answer, with the request in its dialect.
fn target(
    provider: Arc<Configured>,
    model: &str,
    request: &GenerateRequest,
    unlimited: u64,
) -> Result<Target, Error> {
    let dialect = provider.dialect_of(model);
    let not_there = || Error::new(ErrorKind::RouteNotFound, "This model cannot be asked for at its provider");
    let way = provider.way(dialect, dialect.task(), model, request.stream).ok_or_else(not_there)?;
    let url = provider.url(&way.path, way.query.as_deref()).ok_or_else(not_there)?;
    let body = way.body(dialect.write(&provider, &way.model, request)?)?;
    let longest = request.max_tokens.map_or(unlimited, u64::from);
    // Its pieces end between members.
    let input = body.0.iter().map(|piece| longest_prompt(piece)).fold(0, u64::saturating_add);
    let most = Some((input, longest.saturating_mul(request.choices.max(1).into())));
    Ok(Target { provider, dialect, model: way.model, url, body, strip_usage: false, most })
}

/// Ends the entry of an answer that is none.
async fn failed(entry: Option<Entry>, error: Error) -> Error {
    if let Some(entry) = entry {
        entry.fail(error.kind.status(), &error.message).await;
    }
    error
}

/// An error of a reader, which does not know who it reads.
fn of(target: &Target, error: Error) -> Error {
    Error { message: format!("{}: {}", target.provider.slug, error.message), ..error }
}

/// What a provider refused, with its status and in its words.
fn told(failed: &Failed, target: &Target) -> Error {
    let Some((headers, body)) = &failed.response else {
        let error = failed.error(&target.provider);
        return Error { status: Some(failed.status.as_u16()).filter(|status| *status >= 400), ..error };
    };
    let body: Value = serde_json::from_slice(body).unwrap_or(Value::Null);
    let inner = inner(&body);
    let message = words(inner).unwrap_or_else(|| failed.message().to_owned());
    let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let code = text(inner, "code").unwrap_or_default();
    let kind = kind(failed.status, &code);
    let mut error = Error::new(kind, format!("{}: {message}", target.provider.slug));
    // One that sends the client elsewhere says nothing that the client could use.
    error.status = Some(failed.status.as_u16()).filter(|status| *status >= 400);
    error.retry_after = super::retry::asked(headers);
    // Canonical fields have OpenAI's names.
    error.param = text(inner, "param").filter(|param| !param.is_empty());
    error
}

/// What an error's body says, without what is around it.
fn inner(body: &Value) -> &Value {
    // Google's errors may stand in a list.
    let body = body.get(0).unwrap_or(body);
    body.get("error").filter(|error| !error.is_null()).unwrap_or(body)
}

/// The words of an error, where it has some.
fn words(inner: &Value) -> Option<String> {
    let text = |name: &str| inner.get(name).and_then(Value::as_str);
    let words =
        inner.as_str().or_else(|| ["message", "detail", "Message"].iter().find_map(|name| text(name)));
    words.map(str::to_owned)
}

/// The words of the body of an error, for a log.
pub(super) fn said(body: &[u8]) -> Option<String> {
    let read = serde_json::from_slice(body).ok();
    let said = read.and_then(|body: Value| words(inner(&body)));
    let text = || std::str::from_utf8(body).ok().map(|text| text.trim().to_owned());
    said.or_else(text).filter(|text| !text.is_empty())
}

/// What a status means in the canonical form.
pub(super) fn kind(status: StatusCode, code: &str) -> ErrorKind {
    match status.as_u16() {
        400 if code == "context_length_exceeded" => ErrorKind::ContextLength,
        401 => ErrorKind::KeyRefused,
        402 | 403 => ErrorKind::Forbidden,
        404 => ErrorKind::ModelNotFound,
        408 => ErrorKind::Timeout,
        413 => ErrorKind::TooLarge,
        429 => ErrorKind::Overloaded,
        503 | 529 => ErrorKind::Unavailable,
        504 => ErrorKind::UpstreamTimeout,
        500.. => ErrorKind::Upstream,
        ..400 => ErrorKind::Upstream,
        _ => ErrorKind::InvalidRequest,
    }
}

/// Events that are read as deltas.
struct Reading {
    events: Box<Events>,
    reader: Box<dyn AnswerReader>,
    dialect: Dialect,
    framing: Framing,
    ready: VecDeque<Result<Delta, Error>>,
    ended: bool,
}

impl Reading {
    fn new(mut events: Box<Events>, entry: Option<Entry>, reader: Box<dyn AnswerReader>) -> Self {
        events.account(entry);
        events.is_read();
        let dialect = events.dialect();
        Self { events, reader, dialect, framing: Framing::new(dialect), ready: VecDeque::new(), ended: false }
    }

    fn read(&mut self, frame: &[u8]) {
        let Some((name, data)) = event(self.dialect, frame) else { return };
        if self.ready.back().is_some_and(Result::is_err) {
            return;
        }
        let read = match std::str::from_utf8(&data) {
            Ok(data) => self.reader.event(name, data),
            Err(_) => Err(Error::new(ErrorKind::Upstream, "an event of its stream is not UTF-8")),
        };
        self.take(read);
    }

    fn take(&mut self, read: Result<Vec<Delta>, Error>) {
        match read {
            Ok(deltas) => self.ready.extend(deltas.into_iter().map(Ok)),
            Err(error) => self.ready.push_back(Err(error)),
        }
    }

    async fn next(&mut self) -> Option<Result<Delta, Error>> {
        loop {
            match self.ready.pop_front() {
                Some(Ok(delta)) => {
                    // Who reads on need not do so behind the last one.
                    if matches!(delta, Delta::Usage(_)) {
                        self.events.settle().await;
                        self.ended = true;
                        self.ready.clear();
                    }
                    return Some(Ok(delta));
                }
                Some(Err(error)) => {
                    self.ended = true;
                    return Some(Err(self.events.fail(error).await));
                }
                None if self.ended => return None,
                None => {}
            }
            match self.events.next().await {
                Some(Ok(bytes)) => self.push(bytes),
                Some(Err(error)) => {
                    self.ended = true;
                    return Some(Err(error));
                }
                None => {
                    let rest = self.framing.rest();
                    self.read(&rest);
                    let end = self.reader.end();
                    self.take(end);
                    if self.ready.is_empty() {
                        self.ready.push_back(Err(broken_off()));
                    }
                }
            }
        }
    }

    fn push(&mut self, bytes: Bytes) {
        match self.framing.push(bytes) {
            Ok(frames) => frames.iter().for_each(|frame| self.read(&frame)),
            Err(why) => self.ready.push_back(Err(Error::new(ErrorKind::Upstream, why))),
        }
    }

    fn stream(self) -> DeltaStream {
        unfold(self, async |mut reading| Some((reading.next().await?, reading))).boxed()
    }
}

//! One attempt: a request sent, and what came back until the client may get its first byte.
//!
//! Nothing goes to the client before it is known that there is an answer: of a stream the first event with data, of JSON
//! all of it. So an error inside an answer of status 200, or an answer that breaks off, can still be met by another
//! attempt.

use super::stream::{Events, Raw};
use super::{Target, retry};
use crate::dialect::{Bad, Dialect, Fault, Reported};
use crate::provider::Configured;
use crate::upstream::{Sent, Upstream, chunk, plainly};
use bytes::{Bytes, BytesMut};
use hyper::body::Incoming;
use hyper::http::response::Parts;
use hyper::http::{HeaderMap, Method, Request, StatusCode, header};
use protocol::Error;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// Largest answer that is read whole.
const WHOLE_MAX: usize = 256 << 20;

/// Most of an error's body that is passed on.
const ERROR_MAX: usize = 1 << 20;

/// Most of it that is read for a log.
const WHY_MAX: usize = 16 << 10;

/// How long an error's body may take.
const ERROR_TIME: Duration = Duration::from_secs(10);

/// How long a stream of comments alone is held back after its head.
const HOLD: Duration = Duration::from_secs(15);

/// An answer that has begun.
pub(super) enum Begun {
    /// All of it.
    Whole(Parts, Bytes, Option<Reported>),
    /// Events, the first of them here.
    Events(Parts, Box<Events>),
    /// Something else, which is passed on and not looked at.
    Raw(Parts, Box<Raw>),
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) struct Failed {
    /// What the client is told.
    pub(super) status: StatusCode,
    /// What the provider said, which is passed on as it is.
    pub(super) response: Option<(HeaderMap, Bytes)>,
    message: String,
    /// The pause that the provider asks for.
    pub(super) asked: Option<Duration>,
    /// Whether the caller gave it less time than the provider may take.
    pub(super) hurried: bool,
}

impl Failed {
    pub(super) fn broken(message: impl Into<String>) -> Self {
        let message = message.into();
        Self { status: StatusCode::BAD_GATEWAY, response: None, message, asked: None, hurried: false }
    }

    fn late(limit: Duration) -> Self {
        let message = format!("it did not answer within {limit:?}");
        Self { status: StatusCode::GATEWAY_TIMEOUT, ..Self::broken(message) }
    }

    /// No first byte came within a limit.
    fn no_answer(limit: Duration, target: &Target) -> Self {
        Self { hurried: limit < target.provider.timeouts.first_byte, ..Self::late(limit) }
    }

    /// An error inside an answer whose status was fine.
    fn fault(fault: &Fault, head: &Parts, body: Bytes) -> Self {
        let status = fault.status.and_then(|status| StatusCode::from_u16(status).ok());
        Self {
            status: status.unwrap_or(StatusCode::BAD_GATEWAY),
            response: Some((head.headers.clone(), body)),
            message: fault.message.clone(),
            asked: retry::asked(&head.headers),
            hurried: false,
        }
    }

    /// Whether another attempt may fare better.
    pub(super) fn is_passing(&self) -> bool {
        retry::is_passing(self.status)
    }

    /// What is wrong, in our words.
    pub(super) fn message(&self) -> &str {
        &self.message
    }

    /// Why there is no answer, for a log: in the provider's words where it said some.
    pub(super) fn why(&self) -> String {
        let body = self.response.as_ref().map(|(_, body)| &body[..body.len().min(WHY_MAX)]);
        let said = body.and_then(super::generate::said);
        said.unwrap_or_else(|| self.message.clone())
    }

    /// The error for the client where the provider said nothing.
    pub(super) fn error(&self, provider: &Configured) -> Error {
        // It may have been told inside an answer, whose own body is no error.
        let kind = super::generate::kind(self.status, "");
        let error = Error::new(kind, format!("{}: {}", provider.slug, self.message));
        let status = Some(self.status.as_u16()).filter(|status| *status >= 400);
        Error { status, retry_after: self.asked, ..error }
    }
}

/// Sends a request; `limit` is for the time to the first byte.
pub(super) async fn attempt(
    upstream: &Upstream,
    request: Request<Sent>,
    target: &Target,
    limit: Duration,
) -> Result<Begun, Failed> {
    let deadline = Instant::now() + limit;
    let asks = request.method() == Method::POST;
    let answered = timeout_at(deadline, upstream.send(request, target.provider.public_only))
        .await
        .map_err(|_| Failed::no_answer(limit, target))?;
    let (head, body) = answered.map_err(|error| Failed::broken(error.to_string()))?.into_parts();
    if head.status.is_redirection() && asks {
        // Whoever follows it would show its key elsewhere, and ask past the ledger.
        return Err(Failed::broken(format!("it answered {}, which leads elsewhere", head.status)));
    }
    if !head.status.is_success() {
        return Err(refused(head, body).await);
    }
    let form = target.form().filter(|_| asks);
    let is = |kind: &str| {
        let value = head.headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok());
        value.is_some_and(|value| {
            value.get(..kind.len()).is_some_and(|start| start.eq_ignore_ascii_case(kind))
        })
    };
    let kind = match target.dialect {
        Dialect::Bedrock => "application/vnd.amazon.eventstream",
        _ => "text/event-stream",
    };
    let named = is("application/json");
    if is(kind) {
        return first_event(head, Events::new(body, target, form), target, deadline, limit).await;
    }
    if !named && form.is_none() {
        return Ok(Begun::Raw(head, Box::new(Raw::new(body, target))));
    }
    let mut body = body;
    let mut begun = Bytes::new();
    if !named && target.dialect != Dialect::Bedrock {
        // Events of a server that calls them something else go on as they come, too.
        begun = match timeout_at(deadline, chunk(&mut body)).await {
            Err(_) => return Err(Failed::no_answer(limit, target)),
            Ok(None) => Bytes::new(),
            Ok(Some(Err(error))) => {
                return Err(Failed::broken(format!("its answer broke off: {}", plainly(&error))));
            }
            Ok(Some(Ok(piece))) => piece,
        };
        if [&b"data:"[..], b"event:", b"id:", b":"].iter().any(|start| begun.starts_with(start)) {
            let mut events = Events::new(body, target, form);
            events.take(begun).map_err(Failed::broken)?;
            return first_event(head, events, target, deadline, limit).await;
        }
    }
    let body = whole(begun, body, WHOLE_MAX, target.provider.timeouts.idle).await?;
    match target.dialect.answer_of_body(form, &body) {
        Ok(reported) => Ok(Begun::Whole(head, body, reported)),
        Err(_) if !asks => Ok(Begun::Whole(head, body, None)),
        Err(Bad::Told(fault)) => Err(Failed::fault(&fault, &head, body)),
        Err(Bad::Unreadable(why)) => Err(Failed::broken(why)),
    }
}

/// An answer that says itself that it is none.
async fn refused(head: Parts, body: Incoming) -> Failed {
    let body = timeout(ERROR_TIME, whole(Bytes::new(), body, ERROR_MAX, ERROR_TIME)).await;
    let body = body.ok().and_then(Result::ok).unwrap_or_default();
    Failed {
        status: head.status,
        message: format!("it answered {}", head.status),
        asked: retry::asked(&head.headers),
        hurried: false,
        response: Some((head.headers, body)),
    }
}

/// A whole body, whose first piece may have come already.
async fn whole(mut first: Bytes, mut body: Incoming, max: usize, idle: Duration) -> Result<Bytes, Failed> {
    let mut all = BytesMut::new();
    loop {
        let piece = match timeout(idle, chunk(&mut body)).await {
            Err(_) => return Err(Failed::late(idle)),
            Ok(None) => return Ok(if all.is_empty() { first } else { all.freeze() }),
            Ok(Some(Err(error))) => {
                return Err(Failed::broken(format!("its answer broke off: {}", plainly(&error))));
            }
            Ok(Some(Ok(piece))) => piece,
        };
        if first.len() + all.len() + piece.len() > max {
            return Err(Failed::broken(format!("its answer is larger than {} MiB", max >> 20)));
        }
        if first.is_empty() && all.is_empty() {
            first = piece;
        } else {
            all.extend_from_slice(&std::mem::take(&mut first));
            all.extend_from_slice(&piece);
        }
    }
}

/// Reads until the first event with data.
async fn first_event(
    head: Parts,
    events: Events,
    target: &Target,
    deadline: Instant,
    limit: Duration,
) -> Result<Begun, Failed> {
    let hold = Instant::now() + HOLD;
    let mut events = Box::new(events);
    while !events.has_data() {
        match timeout_at(hold.min(deadline), events.read()).await {
            Err(_) if hold <= deadline => break,
            Err(_) => return Err(Failed::no_answer(limit, target)),
            Ok(Ok(true)) => {}
            Ok(Ok(false)) if events.has_data() => break,
            Ok(Ok(false)) => return Err(Failed::broken("its stream ended without an event")),
            Ok(Err(why)) => return Err(Failed::broken(why)),
        }
    }
    match events.fault() {
        Some(fault) => Err(Failed { response: None, ..Failed::fault(fault, &head, Bytes::new()) }),
        None => Ok(Begun::Events(head, events)),
    }
}

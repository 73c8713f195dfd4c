//! Data loss prevention: what is asked and answered is looked at for data that may not pass.
//!
//! A policy that blocks holds an answer back until it has been looked at, a stream too, which then goes out at once. Where
//! all only flag, a stream goes out as it comes and is looked at when it has ended, so its findings are in the log alone.
//! Not here: what is looked for (`gateway::policy::dlp`).

use super::super::body::{Body, aside};
use super::super::refusal::Refusal;
use super::is_answer;
use axum::body::{Body as Sent, BodyDataStream, HttpBody, to_bytes};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::{Bytes, BytesMut};
use futures::StreamExt;
use futures::stream::unfold;
use gateway::log::Trace;
use gateway::policy::dlp::Findings;
use gateway::{Caller, Check, Dlp};
use protocol::{Error, ErrorKind};
use std::sync::Arc;

pub(in super::super) const FOUND: HeaderName = HeaderName::from_static("cf-aig-dlp");

/// Largest answer that is held back; larger ones are not looked at, and do not pass where something is blocked.
const ANSWER_MAX: usize = 64 << 20;

/// What of a stream that goes on is kept to be looked at.
const STREAM_MAX: usize = 8 << 20;

/// What is looked at without another thread.
const LOOK_HERE: usize = 64 << 10;

/// A request that has passed, with what was found in it.
pub(super) struct Looked {
    dlp: Arc<Dlp>,
    trace: Option<Trace>,
    findings: Findings,
}

impl Looked {
    /// Looks at what is asked; the refusal where it may not pass.
    pub(super) async fn before(
        dlp: &Dlp,
        caller: &Caller,
        headers: &HeaderMap,
        body: &Body,
    ) -> Result<Self, Response> {
        let mut looked =
            Self { dlp: Arc::new(dlp.clone()), trace: caller.trace.clone(), findings: Findings::default() };
        match looked.look(Check::Request, kind(headers), body.bytes().clone()).await {
            Ok(false) => Ok(looked),
            Ok(true) => Err(looked.refusal(Check::Request)),
            Err(error) => Err(Refusal(error).into_response()),
        }
    }

    /// Looks at the answer, which may be a refusal then.
    pub(super) async fn after(mut self, response: Response) -> Response {
        let looks = self.dlp.holding(Check::Response).next().is_some();
        if !looks || !is_answer(&response) {
            return self.told(response);
        }
        let (mut head, body) = response.into_parts();
        let kind = kind(&head.headers);
        let is_here = body.size_hint().exact().is_some();
        if !is_here && !self.dlp.blocks(Check::Response) {
            let response = Response::from_parts(head, Sent::empty());
            return self.told(response).map(|_| Watched::stream(self, kind, body.into_data_stream()));
        }
        let bytes = match to_bytes(body, ANSWER_MAX).await {
            Ok(bytes) => bytes,
            Err(error) => {
                let message = format!("The answer broke off or is too large to be looked at: {error}");
                return Refusal(Error::new(ErrorKind::Upstream, message)).into_response();
            }
        };
        match self.look(Check::Response, kind, bytes.clone()).await {
            Ok(false) => {
                head.headers.remove(header::CONTENT_LENGTH);
                self.told(Response::from_parts(head, Sent::from(bytes)))
            }
            Ok(true) => self.refusal(Check::Response),
            Err(error) => Refusal(error).into_response(),
        }
    }

    /// Looks at a payload; whether it is blocked.
    async fn look(&mut self, check: Check, kind: Option<String>, bytes: Bytes) -> Result<bool, Error> {
        let (dlp, mut findings) = (Arc::clone(&self.dlp), std::mem::take(&mut self.findings));
        let large = bytes.len() > LOOK_HERE;
        let look = move || {
            let blocked = findings.look(&dlp, check, &bytes, kind.as_deref());
            Ok((blocked, findings))
        };
        let blocked;
        (blocked, self.findings) = if large { aside(look).await? } else { look()? };
        if let (Some(trace), Some(action)) = (&self.trace, self.findings.action) {
            trace.found_data(action);
        }
        Ok(blocked)
    }

    /// A response with what was found.
    fn told(&self, mut response: Response) -> Response {
        let found = self.findings.header().and_then(|found| HeaderValue::from_str(&found).ok());
        if let Some(found) = found {
            response.headers_mut().insert(FOUND, found);
        }
        response
    }

    fn refusal(&self, check: Check) -> Response {
        let (kind, whose) = match check {
            Check::Request => (ErrorKind::PromptWithheld, "Request"),
            Check::Response => (ErrorKind::AnswerWithheld, "Response"),
        };
        let what = self.findings.entries(check).join(", ");
        let message = format!("{whose} blocked due to DLP policy: {what}");
        self.told(Refusal(Error::new(kind, message)).into_response())
    }
}

fn kind(headers: &HeaderMap) -> Option<String> {
    Some(headers.get(header::CONTENT_TYPE)?.to_str().ok()?.to_owned())
}

/// An answer that goes out and is looked at when it has ended.
struct Watched {
    looked: Looked,
    kind: Option<String>,
    /// The first of it.
    bytes: BytesMut,
}

impl Watched {
    fn stream(looked: Looked, kind: Option<String>, stream: BodyDataStream) -> Sent {
        let watched = Self { looked, kind, bytes: BytesMut::new() };
        Sent::from_stream(unfold((stream, Some(watched)), async |(mut stream, watched)| {
            let mut watched = watched?;
            match stream.next().await {
                None => {
                    watched.look().await;
                    None
                }
                Some(Err(error)) => Some((Err(error), (stream, None))),
                Some(Ok(piece)) => {
                    watched.take(&piece);
                    Some((Ok(piece), (stream, Some(watched))))
                }
            }
        }))
    }

    fn take(&mut self, piece: &Bytes) {
        let room = STREAM_MAX - self.bytes.len();
        self.bytes.extend_from_slice(&piece[..piece.len().min(room)]);
    }

    async fn look(mut self) {
        if let Err(error) = self.looked.look(Check::Response, self.kind.take(), self.bytes.freeze()).await {
            tracing::warn!(%error, "a stream was not looked at");
        }
    }
}

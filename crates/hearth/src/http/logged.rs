//! The log around a request: what it says of itself at its beginning, and what goes out at its end, told to the trace that
//! the gateway makes the record from.
//!
//! Nothing is waited for here and no body is copied unless the gateway stores payloads. A request without a gateway, on
//! a server that keeps nothing, is not followed. Not here: the record (`gateway::log`).

use super::front::parameter;
use super::policy::retention;
use super::refusal::{Dialect, Refusal};
use super::{App, bound, routes};
use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use gateway::log::{Answered, Asked, Collect, Finder, Finding, Trace};
use gateway::scan::{Field, scan};
use gateway::{Action, Caller, flags};
use hyper::body::{Body as _, Frame, SizeHint};
use protocol::Error;
use protocol::workers_ai::binding::MODEL_HEADER;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

const EVENT: &str = "cf-aig-event-id";
const PARENT: &str = "traceparent";
const LOG: HeaderName = HeaderName::from_static("cf-aig-log-id");

/// The kinds of requests by how their paths end: the kind, and the kind of model.
const KINDS: &[(&str, &str, &str)] = &[
    ("/chat/completions", "chat", "text-generation"),
    ("/completions", "completions", "text-generation"),
    ("/responses", "responses", "text-generation"),
    ("/messages", "messages", "text-generation"),
    ("/embeddings", "embeddings", "text-embeddings"),
    ("/rerank", "rerank", "rerank"),
];

/// A request that is followed. When it is dropped before there was a response, its client has left, or a panic ended it.
pub(super) struct Followed {
    trace: Trace,
    told: bool,
    account: Arc<str>,
    /// The model that the path or a header names.
    model: Option<String>,
    /// The body, which names it else: it is read where nobody was asked.
    body: Bytes,
}

impl Drop for Followed {
    fn drop(&mut self) {
        if !self.told {
            if std::thread::panicking() {
                self.trace.answered(Answered { status: 500, ..Answered::default() });
            }
            self.trace.ended(!std::thread::panicking());
        }
    }
}

/// Begins to follow a request, and has its caller carry that along.
pub(super) async fn begin(app: &App, route: &str, request: &mut Request) -> Option<Followed> {
    let asked = asked(route, request.uri().path(), request.headers());
    let caller = request.extensions_mut().get_mut::<Caller>()?;
    let mut followed = follow(app, caller, asked).await?;
    caller.trace = Some(followed.trace.clone());
    followed.model = model(route, request);
    Some(followed)
}

async fn follow(app: &App, caller: &Caller, asked: Asked) -> Option<Followed> {
    let gateway = app.gateway.as_ref()?;
    let named = gateway.gateway(&caller.account, &caller.gateway).await.ok()?;
    let trace = gateway.logs().trace(caller, &named, asked);
    let account = Arc::clone(&caller.account);
    let followed = Followed { trace, told: false, account, model: None, body: Bytes::new() };
    if let Some(unit) = caller.over {
        followed.trace.found(Finding { by: Finder::Key, action: Action::Flag, names: vec![unit.to_owned()] });
    }
    Some(followed)
}

/// The model that a request names otherwise than in its body.
fn model(route: &str, request: &Request) -> Option<String> {
    if bound::ROUTES.contains(&route) {
        let name = request.headers().get(MODEL_HEADER)?.to_str().ok()?;
        return Some(name.to_owned());
    }
    let rest =
        route.strip_suffix("/ai/run/{*model}").and_then(|_| request.uri().path().splitn(8, '/').nth(7));
    rest.map(str::to_owned)
}

/// Whether there is no answer.
pub(super) fn is_refusal(answered: &Result<Response, Error>) -> bool {
    answered.as_ref().map_or(true, |response| response.extensions().get::<Error>().is_some())
}

/// A request that is turned away before it comes to its gateway: by a limit of its key, or since it may not be asked so.
/// It is logged there all the same, so that whoever manages the gateway sees it.
pub(super) struct Turned {
    caller: Caller,
    asked: Asked,
    dialect: Dialect,
}

impl Turned {
    /// Nothing where the route leads to no model.
    pub(super) fn new(route: Option<&str>, path: &str, headers: &HeaderMap, caller: &Caller) -> Option<Self> {
        let route =
            route.filter(|route| routes::ASKING.contains(route) || routes::UNIVERSAL.contains(route))?;
        let dialect = Dialect::spoken(path, headers);
        Some(Self { caller: caller.clone(), asked: asked(route, path, headers), dialect })
    }

    pub(super) fn of(route: Option<&str>, request: &Request) -> Option<Self> {
        Self::new(route, request.uri().path(), request.headers(), request.extensions().get()?)
    }

    /// Logs it with what the client is told.
    pub(super) async fn log(self, app: &App, refused: Response) -> Response {
        let Self { caller, asked, dialect } = self;
        match follow(app, &caller, asked).await {
            Some(followed) => {
                followed.end(dialect, Ok(refused)).unwrap_or_else(|error| Refusal(error).into_response())
            }
            None => refused,
        }
    }
}

fn asked(route: &str, path: &str, headers: &HeaderMap) -> Asked {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let flag = |name| flags::flag(headers, name).unwrap_or_default();
    let provider = parameter(route, path, "{provider}").map(str::to_owned);
    // Behind /v1/ACCOUNT/GATEWAY/PROVIDER/.
    let shown = if provider.is_some() { path.splitn(6, '/').nth(5).unwrap_or_default() } else { path };
    let ends = |end: &str| path.trim_end_matches('/').ends_with(end);
    let kind = KINDS.iter().find(|(end, _, _)| ends(end));
    let (_, request_type, model_type) = kind.copied().unwrap_or(("", "run", ""));
    Asked {
        path: shown.to_owned(),
        request_type,
        model_type,
        compatibility: provider.as_deref() == Some("compat"),
        provider,
        content_type: text(header::CONTENT_TYPE.as_str()),
        user_agent: text(header::USER_AGENT.as_str()),
        event_id: text(EVENT),
        parent: text(PARENT),
        collect: Collect {
            log: flag(flags::COLLECT_LOG),
            payloads: flag(flags::COLLECT_PAYLOAD),
            zero_retention: retention::is_asked(headers),
        },
    }
}

impl Followed {
    /// The request's body.
    pub(super) fn body(&mut self, body: &Bytes) {
        self.trace.request(body);
        self.body = body.clone();
    }

    /// Says which model was asked for, where nobody was asked.
    pub(super) async fn name(&self, app: &App) {
        if self.trace.log_id().is_some() {
            return;
        }
        let in_body = || {
            let found = scan(&self.body).ok()?;
            Some(found.string(&self.body, Field::Model).ok()??.into_owned())
        };
        let Some(model) = self.model.clone().or_else(in_body) else { return };
        if self.trace.provider().is_some_and(|slug| slug != "compat" && slug != "workers-ai") {
            return self.trace.named(None, &model);
        }
        let model = model.strip_prefix("workers-ai/").map_or(model.clone(), str::to_owned);
        if let Ok(here) = app.model(&model) {
            return self.trace.named(Some("local"), &here.id);
        }
        let offers = app.elsewhere(&self.account, &model).await.unwrap_or_default();
        match offers.first() {
            Some((provider, name)) => self.trace.named(Some(&provider.slug), name),
            None => self.trace.named(None, &model),
        }
    }

    /// Follows what goes out.
    pub(super) fn end(
        mut self,
        dialect: Dialect,
        answered: Result<Response, Error>,
    ) -> Result<Response, Error> {
        self.told = true;
        let refused = match &answered {
            Err(error) => Some(error),
            // A handler's refusal, which the front puts into words.
            Ok(response) => response.extensions().get::<Error>(),
        };
        if let Some(error) = refused {
            let (status, error) = (dialect.status(error), Some(error.message.clone()));
            self.trace.answered(Answered { status, error, ..Answered::default() });
            self.trace.ended(false);
            let mut response = answered.unwrap_or_else(|error| Refusal(error).into_response());
            self.tell(response.headers_mut());
            return Ok(response);
        }
        let mut response = answered?;
        let headers = response.headers();
        let content_type = headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        self.trace.answered(Answered {
            status: response.status().as_u16(),
            content_type: content_type.map(str::to_owned),
            cached: headers.get("cf-aig-cache-status").is_some_and(|status| status == "HIT"),
            error: None,
        });
        self.tell(response.headers_mut());
        let trace = self.trace.clone();
        Ok(response.map(|body| Body::new(Followers { body, trace, whole: false })))
    }
}

impl Followed {
    /// Tells the client under which ids it finds this again.
    fn tell(&self, headers: &mut HeaderMap) {
        let value = |text: &str| HeaderValue::from_str(text).ok();
        let id = self.trace.log_id().unwrap_or_else(|| self.trace.id());
        if let Some(id) = value(&id) {
            headers.entry(LOG).or_insert(id);
        }
        if let Some(id) = self.trace.event_id().and_then(value) {
            headers.insert(EVENT, id);
        }
    }
}

/// A body that is looked at as it goes out. Its size and its pieces stay what they are.
struct Followers {
    body: Body,
    trace: Trace,
    whole: bool,
}

impl hyper::body::Body for Followers {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let polled = Pin::new(&mut self.body).poll_frame(context);
        match &polled {
            Poll::Ready(Some(Ok(frame))) => {
                if let Some(data) = frame.data_ref() {
                    self.trace.piece(data);
                }
                // The server asks for nothing more then.
                self.whole = self.body.is_end_stream();
            }
            Poll::Ready(None) => self.whole = true,
            Poll::Ready(Some(Err(_))) | Poll::Pending => {}
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

impl Drop for Followers {
    fn drop(&mut self) {
        let whole = self.whole || self.body.is_end_stream();
        // What makes the answer ends first, so that its entry tells how.
        self.body = Body::empty();
        self.trace.ended(!whole);
    }
}

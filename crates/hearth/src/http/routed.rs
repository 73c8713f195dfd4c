//! Requests for `dynamic/NAME`, on every surface: the route says who is asked, and this asks.
//!
//! A model that the route names is asked as a request of its own to the same path, with the model's name in the same place
//! (`dispatch.rs`); so translation, policy and ledger are those of any request. The next one is asked only where there is
//! no answer yet: what has begun to stream is never asked for again.

use super::body::Body;
use super::dispatch::{Behind, InRoute, Inner, is_answer, status};
use super::openai::session;
use super::{App, routes};
use axum::extract::Request;
use axum::http::uri::PathAndQuery;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};
use axum::response::Response;
use gateway::route::{Deployed, Facts, Model, PREFIX, Turn, Walk, mentioned};
use gateway::scan::{Edits, Field, Scan};
use gateway::{Caller, Gateway, flags};
use protocol::workers_ai::binding::{self, MODEL_HEADER};
use protocol::{Error, ErrorKind};
use serde_json::Value;
use std::time::Duration;

const STEP: HeaderName = HeaderName::from_static("cf-aig-step");
const MODEL: HeaderName = HeaderName::from_static("cf-aig-model");
const PROVIDER: HeaderName = HeaderName::from_static("cf-aig-provider");

/// Longest pause that attempts at one model may make between them, beside what each may take.
const PAUSE_MAX: Duration = Duration::from_secs(20);

/// The provider that stands for the models of this server.
const HERE: &str = "workers-ai";

/// Where a request names its model.
enum Place {
    /// The member `model` of its body.
    Body(Box<Scan>),
    /// The rest of its path, after this.
    Path(String),
    /// The header of the AI binding.
    Header,
}

/// A request for a route.
pub(super) struct Asked {
    name: String,
    place: Place,
}

/// Where a request may ask for a route.
pub(super) enum Named {
    /// Nowhere.
    No,
    /// In its path, and does.
    Yes(Asked),
    /// In a header, whose value this is.
    InHeader(String),
    /// In its body.
    InBody,
}

/// Where a request may ask for a route; it stands for one that does only if it does.
pub(super) fn named(route: &str, request: &Request) -> Named {
    let path = request.uri().path();
    let rest = match route {
        "/client/v4/accounts/{account}/ai/run/{*model}" => path.splitn(8, '/').nth(7),
        routes::PROVIDER => {
            let mut segments = path.splitn(6, '/').skip(4);
            match (segments.next(), segments.next()) {
                (Some("compat"), _) => None,
                (Some(HERE), Some(rest)) if rest.starts_with("v1/") => None,
                (Some(HERE), Some(rest)) => Some(rest.strip_prefix("run/").unwrap_or(rest)),
                // A provider's own API, whose models are its own.
                _ => return Named::No,
            }
        }
        "/run" | "/ai-gateway/run" => {
            let header = request.headers().get(MODEL_HEADER).and_then(|name| name.to_str().ok());
            let header = header.filter(|name| mentioned(name.as_bytes()));
            return header.map_or(Named::No, |name| Named::InHeader(name.to_owned()));
        }
        _ => None,
    };
    let Some(rest) = rest else { return Named::InBody };
    let model = rest.replace("%2F", "/").replace("%2f", "/");
    let before = path[..path.len() - rest.len()].to_owned();
    model
        .strip_prefix(PREFIX)
        .map_or(Named::No, |name| Named::Yes(Asked { name: name.to_owned(), place: Place::Path(before) }))
}

/// The route that the header of the AI binding asks for, before whose name a prefix may stand.
pub(super) async fn in_header(app: &App, account: &str, header: &str) -> Result<Option<Asked>, Error> {
    let Some(name) = binding::model(header, |_| false).strip_prefix(PREFIX) else { return Ok(None) };
    // A model whose own name has a colon is no route with a prefix.
    let is_model = !header.starts_with(PREFIX)
        && (app.model(header).is_ok() || !app.elsewhere(account, header).await?.is_empty());
    Ok((!is_model).then(|| Asked { name: name.to_owned(), place: Place::Header }))
}

/// The route that a body asks for.
pub(super) async fn in_body(body: &Body) -> Option<Asked> {
    // Nearly no body has the word, and whoever writes it with other escapes than of the slash asks for no route.
    if !mentioned(body.bytes()) {
        return None;
    }
    // What cannot be read is refused by the parser behind, in more words.
    let scan = body.scan().await.ok()?;
    let name = scan.string(body.bytes(), Field::Model).ok()??.strip_prefix(PREFIX)?.to_owned();
    Some(Asked { name, place: Place::Body(Box::new(scan)) })
}

/// A request that is asked again and again, each time with another model.
struct Outer<'a> {
    app: &'a App,
    behind: Behind,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    caller: Caller,
    body: Body,
    place: Place,
}

/// A path's characters that need no escape.
fn escaped(model: &str) -> String {
    let mut path = String::with_capacity(model.len());
    for byte in model.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~!$&'()*+,;=:@/".contains(&byte) {
            path.push(char::from(byte));
        } else {
            path.push_str(&format!("%{byte:02X}"));
        }
    }
    path
}

impl Outer<'_> {
    /// The name by which a model is asked for here.
    fn named(&self, model: &Model) -> String {
        let here = matches!(model.provider.as_str(), HERE | "local") && self.app.model(&model.model).is_ok();
        if here { model.model.clone() } else { format!("{}/{}", model.provider, model.model) }
    }

    fn inner(&self, model: &Model) -> Result<Inner, Error> {
        let named = self.named(model);
        let (mut uri, mut headers, mut body) = (self.uri.clone(), self.headers.clone(), self.body.clone());
        let no_name = || {
            Error::new(
                ErrorKind::Internal,
                format!("The model {named:?} of the route cannot be asked for here"),
            )
        };
        match &self.place {
            Place::Body(scan) => {
                let mut edits = Edits::none();
                edits.set(scan, Field::Model, &Value::from(named.as_str()).to_string());
                body = body.edited(edits.apply(self.body.bytes()).0.concat().into());
            }
            Place::Path(before) => {
                let query = uri.query().map_or(String::new(), |query| format!("?{query}"));
                let path = format!("{before}{}{query}", escaped(&named));
                let mut parts = uri.into_parts();
                parts.path_and_query = Some(PathAndQuery::try_from(path).map_err(|_| no_name())?);
                uri = Uri::from_parts(parts).map_err(|_| no_name())?;
            }
            Place::Header => {
                headers.insert(MODEL_HEADER, HeaderValue::from_str(&named).map_err(|_| no_name())?);
            }
        }
        if let Some(retries) = model.retries {
            headers.insert("cf-aig-max-attempts", HeaderValue::from(retries + 1));
        }
        if let Some(timeout) = model.timeout {
            let ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
            headers.insert("cf-aig-request-timeout", HeaderValue::from(ms));
            headers.insert(flags::STRICT_TIMEOUT, HeaderValue::from_static("true"));
        }
        if let Some(hedge) = model.hedge.as_deref().and_then(|hedge| HeaderValue::from_str(hedge).ok()) {
            headers.insert("cf-aig-hedge", hedge);
        }
        let (method, caller) = (self.method.clone(), self.caller.clone());
        Ok(Inner { method, uri, headers, caller, body, in_route: true })
    }

    /// Asks a model, for so long as the route lets it take.
    async fn ask(&self, model: &Model) -> Response {
        let inner = match self.inner(model) {
            Ok(inner) => inner,
            Err(error) => return refused(error),
        };
        let asking = self.behind.ask(inner);
        // Each attempt at a provider is held to it already, and told to the ledger and the breaker.
        let here = self.app.model(&self.named(model)).is_ok();
        let Some(timeout) = model.timeout.filter(|_| here) else { return asking.await };
        let retries = model.retries.unwrap_or(0);
        let most = timeout * (retries + 1) + PAUSE_MAX * retries;
        tokio::time::timeout(most, asking).await.unwrap_or_else(|_| {
            let message = format!("{} did not answer within {timeout:?}", self.named(model));
            refused(Error::new(ErrorKind::UpstreamTimeout, message))
        })
    }

    fn facts(&self, route: &Deployed) -> Result<Facts, Error> {
        let mut facts = Facts::of(&self.caller);
        for (name, value) in &self.headers {
            if let Ok(value) = value.to_str() {
                facts.header(name.as_str(), value);
            }
        }
        if route.graph.reads_body() {
            facts.body = serde_json::from_slice(self.body.bytes()).map_err(|error| {
                Error::new(ErrorKind::Malformed, format!("The body is not valid JSON: {error}"))
            })?;
        }
        let in_body = match &self.place {
            Place::Body(scan) => scan.string(self.body.bytes(), Field::PromptCacheKey).ok().flatten(),
            Place::Path(_) | Place::Header => None,
        };
        let named = session(&self.headers).or_else(|| in_body.map(|key| key.into_owned()));
        facts.session = named.unwrap_or_else(super::fresh_id);
        Ok(facts)
    }
}

fn refused(error: Error) -> Response {
    use axum::response::IntoResponse;
    super::refusal::Refusal(error).into_response()
}

/// Walks the route and answers.
pub(super) async fn answer(app: &App, asked: Asked, request: Request, body: Body) -> Result<Response, Error> {
    let Asked { name, place } = asked;
    if request.extensions().get::<InRoute>().is_some() {
        let message = "A step of a route names a route again; it must name a model";
        return Err(Error::new(ErrorKind::InvalidRequest, message).at("model"));
    }
    let behind = Behind::of(request.extensions());
    let caller: Caller = request.extensions().get().cloned().expect("the front says who asks");
    let unknown =
        || Error::new(ErrorKind::ModelNotFound, format!("There is no route '{name}' here")).at("model");
    let gateway: &Gateway = app.gateway.as_ref().ok_or_else(unknown)?;
    let route = gateway.deployed(&caller.account, &caller.gateway, &name).await?;
    let (parts, _) = request.into_parts();
    let (method, uri, headers) = (parts.method, parts.uri, parts.headers);
    let outer = Outer { app, behind, method, uri, headers, caller, body, place };
    let facts = outer.facts(&route)?;
    let mut walk = Walk::new(&route.graph, &route.id, &facts);
    let (mut step, mut last, mut limited) = (0u32, None, None);
    loop {
        match walk.turn() {
            Turn::End => break,
            Turn::Count(element, rate) => {
                let passed = gateway.pass_rate(&route.id, element, rate, &facts, true).await?;
                if !passed.passes && rate.fallback.is_none() {
                    limited = Some((passed.why.clone(), passed.after));
                }
                walk.told(passed.passes, passed.why);
            }
            Turn::Ask(_, model) => {
                let mut response = outer.ask(model).await;
                let answered = is_answer(&response);
                if !answered {
                    tracing::debug!(
                        route = route.name,
                        model = model.model,
                        status = status(&response),
                        "a step failed"
                    );
                }
                let headers = response.headers_mut();
                headers.insert(STEP, HeaderValue::from(step));
                for (name, value) in [(MODEL, &model.model), (PROVIDER, &model.provider)] {
                    if let Ok(value) = HeaderValue::from_str(value) {
                        headers.insert(name, value);
                    }
                }
                step += 1;
                last = Some(response);
                walk.told(answered, "");
            }
        }
    }
    match (limited, last) {
        (Some((why, after)), _) => {
            let message = format!("A limit of the route '{}' is reached: {why}", route.name);
            Err(Error::new(ErrorKind::Overloaded, message).retry_after(after))
        }
        (None, Some(response)) => Ok(response),
        (None, None) => {
            let message = format!("The route '{}' ends without a model for this request", route.name);
            Err(Error::new(ErrorKind::InvalidRequest, message).at("model"))
        }
    }
}

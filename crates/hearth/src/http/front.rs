//! What stands before every route: request id, Host and Origin, key, panics, errors in the caller's dialect.
//!
//! Without a key the server is for this machine only. A web page can make a browser send requests here, under a
//! name it controls (DNS rebinding) or across origins; such a request shows a foreign `Host` or `Origin` and is
//! refused. A request without `Host` comes from no browser and passes. With a key the key decides, and names do not: that
//! of `--api-key`, which may do everything in every account, or one from the store, which belongs to an account. From
//! the first key on one is needed, be there an `--api-key` or not.

use super::dispatch::Behind;
use super::logged::Turned;
use super::providers::percent_decoded;
use super::refusal::{Dialect, Refusal};
use super::socket::{KEY_PROTOCOL, Shown};
use super::{App, fresh_id, routes, universal};
use axum::extract::{MatchedPath, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use gateway::price::CustomCost;
use gateway::{Caller, DEFAULT, Gateway, Key, Metadata, flags};
use protocol::{Error, ErrorKind};
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

/// What the front knows: the server, and the routes behind itself.
#[derive(Clone)]
pub(super) struct Front {
    pub(super) app: Arc<App>,
    pub(super) behind: Behind,
}

pub(super) async fn front(State(front): State<Front>, mut request: Request, next: Next) -> Response {
    let Front { app, behind } = front;
    let dialect = Dialect::spoken(request.uri().path(), request.headers());
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let id = format!("req_{}", fresh_id());

    let admitted = admit(&app, &mut request, route.as_deref()).await;
    let mut response = match admitted {
        Err(refused) => {
            let told = Refusal(refused.error).into_response();
            let known = refused.caller.as_deref();
            match known.and_then(|caller| Turned::new(route.as_deref(), &path, request.headers(), caller)) {
                Some(turned) => Box::pin(turned.log(&app, told)).await,
                None => told,
            }
        }
        Ok(()) => {
            request.extensions_mut().insert(behind);
            AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|_| {
                // The panic hook has logged the cause.
                let error = Error::new(ErrorKind::Internal, "The server failed on this request");
                Refusal(error).into_response()
            })
        }
    };
    if let Some(error) = response.extensions_mut().remove::<Error>() {
        let told = std::mem::take(response.headers_mut());
        response = if error.kind == ErrorKind::MethodNotAllowed && method == Method::OPTIONS {
            // The router adds `Allow`, and nobody adds what CORS asks for.
            StatusCode::NO_CONTENT.into_response()
        } else {
            dialect.response(&error, &id)
        };
        let kept = |name: &str| name.starts_with("x-ratelimit-") || name.starts_with("cf-aig-");
        let told = told.iter().filter(|(name, _)| kept(name.as_str()));
        response.headers_mut().extend(told.map(|(name, value)| (name.clone(), value.clone())));
        tracing::debug!(id, %method, path, status = response.status().as_u16(), error = %error, "refused");
    }
    // A probe that asks again and again must not fill the log with what it was told.
    if response.status().is_server_error() && path != routes::HEALTH {
        tracing::warn!(id, %method, path, status = response.status().as_u16(), "a request failed");
    }
    app.metrics.count(route.as_deref(), response.status().as_u16());
    let id = HeaderValue::from_str(&id).expect("hexadecimal digits are a header value");
    if path.starts_with("/client/v4") || dialect == Dialect::Binding {
        response.headers_mut().insert("cf-ai-req-id", id.clone());
    }
    if dialect == Dialect::Anthropic {
        response.headers_mut().insert("request-id", id.clone());
    }
    response.headers_mut().insert("x-request-id", id);
    response
}

/// Why a request may not come in, and who asked, where that is known by a key.
struct Refused {
    error: Error,
    caller: Option<Box<Caller>>,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Self { error, caller: None }
    }
}

/// Says who asks, for everything behind, or why the request may not come in.
async fn admit(app: &App, request: &mut Request, route: Option<&str>) -> Result<(), Refused> {
    let nowhere = universal::no_gateway(request, route);
    let route = route.filter(|_| nowhere.is_none());
    let mut caller = match &app.gateway {
        Some(gateway) if gateway.has_keys().await? => keyed(app, Some(gateway), request, route).await?,
        gateway if app.config.api_key.is_some() => keyed(app, gateway.as_ref(), request, route).await?,
        _ => {
            local(request)?;
            Caller::default()
        }
    };
    if let Some(nowhere) = nowhere {
        return Err(nowhere.into());
    }
    match placed(app, request, route, &mut caller).await {
        Ok(()) => {
            request.extensions_mut().insert(caller);
            Ok(())
        }
        Err(error) => Err(Refused { error, caller: Some(Box::new(caller)) }),
    }
}

/// What a request says of itself, and through which gateway it goes.
async fn placed(
    app: &App,
    request: &mut Request,
    route: Option<&str>,
    caller: &mut Caller,
) -> Result<(), Error> {
    let headers = request.headers();
    described(caller, headers)?;
    let named = headers.get(GATEWAY).and_then(|id| id.to_str().ok());
    let in_path = route.filter(|route| !route.starts_with(CONTROL));
    let in_path = in_path.and_then(|route| parameter(route, request.uri().path(), "{gateway}"));
    match in_path.or(named) {
        Some(id) => through(app, caller, id, GATEWAY).await,
        None => Ok(()),
    }
}

/// Has a request go through the gateway of this id, which `at` names.
pub(super) async fn through(app: &App, caller: &mut Caller, id: &str, at: &str) -> Result<(), Error> {
    let Some(gateway) = &app.gateway else { return Ok(()) };
    gateway.gateway(&caller.account, id).await.map_err(|error| match error.kind {
        // What is wrong is the request, not the place it was sent to.
        ErrorKind::NotFound => Error { kind: ErrorKind::InvalidRequest, ..error.at(at) },
        _ => error,
    })?;
    caller.gateway = id.into();
    Ok(())
}

/// What headers say of a request: metadata, and what it costs; and whether those that say yes or no do.
pub(super) fn described(caller: &mut Caller, headers: &HeaderMap) -> Result<(), Error> {
    flags::check(headers)?;
    if let Some(json) = headers.get(METADATA) {
        let metadata = std::str::from_utf8(json.as_bytes()).ok().and_then(Metadata::read);
        let wrong = || Error::invalid(METADATA, format!("{METADATA} must be a JSON object"));
        caller.metadata = metadata.ok_or_else(wrong)?;
    }
    if let Some(json) = headers.get(CUSTOM_COST) {
        caller.custom_cost = Some(CustomCost::parse(json.to_str().unwrap_or_default())?);
    }
    Ok(())
}

/// Where a browser that opens a WebSocket can show a key.
const PROTOCOLS: &str = "sec-websocket-protocol";

/// Names the gateway that holds for a request.
const GATEWAY: &str = "cf-aig-gateway-id";
const METADATA: &str = "cf-aig-metadata";
const CUSTOM_COST: &str = "cf-aig-custom-cost";

/// Where accounts are managed, which wants a key with that scope.
pub(super) const CONTROL: &str = "/client/v4/accounts/{account}/ai-gateway";

/// The caller behind the first key of ours that is shown. All headers that show one are taken away: it is nobody else's
/// business, least of all a provider's.
async fn keyed(
    app: &App,
    gateway: Option<&Gateway>,
    request: &mut Request,
    route: Option<&str>,
) -> Result<Caller, Refused> {
    let path = request.uri().path();
    let account = route.and_then(|route| parameter(route, path, "{account}")).map(str::to_owned);
    let open = routes::OPEN.contains(&path);
    let mut found = None;
    for (header, key) in shown(request.headers()).into_iter().chain(in_query(request.uri())) {
        if app.config.api_key.as_deref().is_some_and(|ours| is_same(ours, &key)) {
            hide(request, header);
            if found.is_some() {
                continue;
            }
            // It manages all accounts, and asks for the one that the path names, which must be there: what is meant for
            // one account must not be booked to another.
            let account = match (gateway, &account) {
                (Some(gateway), Some(account)) => {
                    gateway.check_account(account).await?;
                    account.as_str().into()
                }
                _ => DEFAULT.into(),
            };
            found = Some(Ok(Caller { account, ..Caller::default() }));
            continue;
        }
        let Some(gateway) = gateway else { continue };
        if let Some(key) = gateway.authenticate(&key).await? {
            hide(request, header);
            found.get_or_insert_with(|| {
                let (account_of, id) = (key.account.as_str().into(), Some(key.id.clone()));
                let caller = Caller { account: account_of, key: id, ..Caller::default() };
                match allowed(&key, account.as_deref(), route, open) {
                    Ok(()) => Ok(caller),
                    Err(error) => Err(Refused { error, caller: Some(Box::new(caller)) }),
                }
            });
        }
    }
    if let Some(found) = found {
        return found;
    }
    if open {
        return Ok(Caller::default());
    }
    // Whoever has none could fill a log with it.
    app.metrics.keyless();
    let why = "No valid API key was given; send it as 'Authorization: Bearer KEY'";
    Err(Error::new(ErrorKind::Unauthorized, why).into())
}

/// Where Google's clients may show a key, on the paths of Google's API.
const QUERY: &str = "?key";
const GOOGLE: [&str; 2] = ["/google-ai-studio/", "/google-vertex-ai/"];

/// What may be a key of ours in a query.
fn in_query(uri: &Uri) -> Vec<(&'static str, Vec<u8>)> {
    let google = GOOGLE.iter().any(|part| uri.path().contains(part));
    let keys = uri.query().filter(|_| google).into_iter().flat_map(|query| query.split('&'));
    let keys = keys.filter_map(|part| percent_decoded(part.strip_prefix("key=")?));
    keys.map(|key| (QUERY, key.into_bytes())).collect()
}

/// Takes `key` out of a query.
fn hide_in_query(uri: &mut Uri) {
    let kept: Vec<&str> =
        uri.query().unwrap_or_default().split('&').filter(|part| !part.starts_with("key=")).collect();
    let mut whole = uri.path().to_owned();
    if kept.iter().any(|part| !part.is_empty()) {
        whole.push('?');
        whole.push_str(&kept.join("&"));
    }
    let mut parts = std::mem::take(uri).into_parts();
    parts.path_and_query = Some(whole.try_into().expect("a part of an address is one"));
    *uri = Uri::from_parts(parts).expect("a part of an address is one");
}

/// Takes away a header that showed a key.
fn hide(request: &mut Request, header: &'static str) {
    if header == QUERY {
        return hide_in_query(request.uri_mut());
    }
    let value = request.headers_mut().remove(header);
    // The answer to one who opens a WebSocket must name the protocol.
    if let Some(value) = value.filter(|_| header == PROTOCOLS) {
        let protocols = value.as_bytes().split(|byte| *byte == b',').map(<[u8]>::trim_ascii);
        let shown = protocols
            .filter(|name| name.starts_with(KEY_PROTOCOL.as_bytes()))
            .find_map(|name| HeaderValue::from_bytes(name).ok());
        if let Some(shown) = shown {
            request.extensions_mut().insert(Shown(shown));
        }
    }
}

/// Holds a key to its account and scopes.
fn allowed(key: &Key, account: Option<&str>, route: Option<&str>, open: bool) -> Result<(), Error> {
    let forbidden = |why: String| Err(Error::new(ErrorKind::Forbidden, why));
    if account.is_some_and(|account| account != key.account) {
        return forbidden(format!(
            "This key belongs to the account '{}', not to the one in the path",
            key.account
        ));
    }
    let of_all = route == Some(routes::METRICS);
    if of_all && key.account != DEFAULT {
        return forbidden(format!("This tells of all accounts, and only a key of '{DEFAULT}' may read it"));
    }
    let manages = of_all || route.is_some_and(|route| route.starts_with(CONTROL));
    let (scope, has) =
        if manages { ("admin", key.scopes.admin) } else { ("inference", key.scopes.inference) };
    // Where there is no route, that is what there is to say.
    if !has && !open && route.is_some() {
        return forbidden(format!("This key has no scope '{scope}'"));
    }
    Ok(())
}

/// The segment of a path that stands where the route has this parameter.
pub(super) fn parameter<'a>(route: &str, path: &'a str, name: &str) -> Option<&'a str> {
    route.split('/').zip(path.split('/')).find(|(segment, _)| *segment == name).map(|(_, value)| value)
}

/// Compares digests, and all of both, so that time tells nothing about the key.
pub(super) fn is_same(ours: &str, shown: &[u8]) -> bool {
    let wanted = Sha256::digest(ours.as_bytes());
    wanted.iter().zip(Sha256::digest(shown)).fold(0, |sum, (a, b)| sum | (a ^ b)) == 0
}

/// What may be a key of ours, and where it stands. One that is meant for us goes before those that may be a provider's.
fn shown(headers: &HeaderMap) -> Vec<(&'static str, Vec<u8>)> {
    let values = |name| headers.get_all(name).iter().map(move |value| (name, value.as_bytes()));
    let bearer = |(name, value): (&'static str, &[u8])| {
        let (scheme, rest) = value.split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| (name, rest.trim_ascii().to_vec()))
    };
    let protocols = values(PROTOCOLS).flat_map(|(_, value)| value.split(|byte| *byte == b','));
    let protocols = protocols.map(<[u8]>::trim_ascii);
    let by_protocol = protocols
        .filter_map(|name| name.strip_prefix(KEY_PROTOCOL.as_bytes()))
        .map(|key| (PROTOCOLS, key.to_vec()));
    let bare = |(name, value): (&'static str, &[u8])| (name, value.to_vec());
    ["cf-aig-authorization", "authorization"]
        .into_iter()
        .flat_map(values)
        .filter_map(bearer)
        .chain(by_protocol)
        .chain(["x-api-key", "api-key", "x-goog-api-key"].into_iter().flat_map(values).map(bare))
        .collect()
}

/// Whether a request speaks to this machine by a local name and comes from no other site.
fn local(request: &Request) -> Result<(), Error> {
    let forbidden = |what: &str| {
        Err(Error::new(
            ErrorKind::Forbidden,
            format!("{what} is not allowed: without an API key only this machine is served"),
        ))
    };
    let headers = request.headers();
    let mut hosts = headers.get_all(header::HOST).iter();
    let host = hosts.next();
    if hosts.next().is_some() || host.is_some_and(|host| !is_loopback(host)) {
        return forbidden("This Host");
    }
    if request.uri().authority().is_some_and(|authority| !is_loopback_name(authority.host())) {
        return forbidden("This Host");
    }
    let same = |origin: &HeaderValue| {
        let origin = origin.to_str().ok()?.split_once("://")?.1;
        Some(host.is_some_and(|host| origin.as_bytes().eq_ignore_ascii_case(host.as_bytes())))
    };
    if headers.get_all(header::ORIGIN).iter().any(|origin| same(origin) != Some(true)) {
        return forbidden("This Origin");
    }
    Ok(())
}

fn is_loopback(host: &HeaderValue) -> bool {
    host.to_str()
        .ok()
        .and_then(|host| host.parse::<Authority>().ok())
        .is_some_and(|authority| !authority.as_str().contains('@') && is_loopback_name(authority.host()))
}

fn is_loopback_name(name: &str) -> bool {
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    name.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::body::Body;

    fn request(headers: &[(&str, &str)]) -> Request {
        let builder = Request::builder().uri("/v1/models");
        headers
            .iter()
            .fold(builder, |builder, (name, value)| builder.header(*name, *value))
            .body(Body::empty())
            .unwrap()
    }

    #[test]
    fn without_a_key_only_local_names_pass() {
        for host in ["localhost", "LOCALHOST:80", "127.0.0.1:8790", "127.8.8.8", "[::1]:8790", "[::1]"] {
            assert_eq!(local(&request(&[("host", host)])), Ok(()), "{host}");
        }
        assert_eq!(local(&request(&[])), Ok(()));
        for host in [
            "example.com",
            "localhost.example.com",
            "10.0.0.1:8790",
            "[::2]",
            "a@localhost",
            "",
            "127.0.0.1.nip.io",
        ] {
            assert!(local(&request(&[("host", host)])).is_err(), "{host}");
        }
        assert!(local(&request(&[("host", "localhost"), ("host", "example.com")])).is_err());
    }

    #[test]
    fn without_a_key_only_the_servers_own_origin_passes() {
        let with = |origin: &str| local(&request(&[("host", "localhost:8790"), ("origin", origin)]));
        assert_eq!(with("http://localhost:8790"), Ok(()));
        for origin in
            ["null", "", "https://example.com", "http://localhost:3000", "http://localhost", "file://"]
        {
            assert!(with(origin).is_err(), "{origin}");
        }
        assert!(local(&request(&[("origin", "http://localhost:8790")])).is_err());
    }

    #[test]
    fn a_key_is_taken_from_five_headers_and_no_other() {
        let has = |name, value| {
            let request = request(&[(name, value), ("host", "example.com")]);
            shown(request.headers()).iter().any(|(_, key)| is_same("s3cret", key))
        };
        for (name, value) in [
            ("authorization", "Bearer s3cret"),
            ("authorization", "bearer  s3cret"),
            ("cf-aig-authorization", "Bearer s3cret"),
            ("x-api-key", "s3cret"),
            ("api-key", "s3cret"),
            ("x-goog-api-key", "s3cret"),
        ] {
            assert!(has(name, value), "{name}");
        }
        for (name, value) in [
            ("authorization", "s3cret"),
            ("authorization", "Basic s3cret"),
            ("authorization", ""),
            ("cf-aig-authorization", "s3cret"),
            ("x-api-key", "s3cre"),
            ("x-key", "s3cret"),
        ] {
            assert!(!has(name, value), "{name}: {value}");
        }
    }

    #[test]
    fn a_parameter_is_the_segment_at_its_place() {
        let route = "/client/v4/accounts/{account}/ai/run/{*model}";
        assert_eq!(parameter(route, "/client/v4/accounts/acme/ai/run/@cf/a", "{account}"), Some("acme"));
        assert_eq!(parameter("/v1/chat/completions", "/v1/chat/completions", "{account}"), None);
    }
}

//! What stands before every route: request id, Host and Origin, key, panics, errors in the caller's dialect.
//!
//! Without a key the server is for this machine only. A web page can make a browser send requests here, under a
//! name it controls (DNS rebinding) or across origins; such a request shows a foreign `Host` or `Origin` and is
//! refused. A request without `Host` comes from no browser and passes. With a key the key decides, and names do not.

use super::refusal::{Dialect, Refusal};
use super::{App, fresh_id, routes};
use axum::extract::{MatchedPath, Request, State};
use axum::http::uri::Authority;
use axum::http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use protocol::{Error, ErrorKind};
use sha2::{Digest, Sha256};
use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

pub(super) async fn front(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let dialect = Dialect::spoken(request.uri().path(), request.headers());
    let method = request.method().clone();
    let path = request.uri().path().to_owned();
    let route = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let id = format!("req_{}", fresh_id());

    let admitted = admit(app.config.api_key.as_deref(), &request);
    let mut response = match admitted {
        Err(error) => Refusal(error).into_response(),
        Ok(()) => AssertUnwindSafe(next.run(request)).catch_unwind().await.unwrap_or_else(|_| {
            // The panic hook has logged the cause.
            Refusal(Error::new(ErrorKind::Internal, "The server failed on this request")).into_response()
        }),
    };
    if let Some(error) = response.extensions_mut().remove::<Error>() {
        response = if error.kind == ErrorKind::MethodNotAllowed && method == Method::OPTIONS {
            // The router adds `Allow`, and nobody adds what CORS asks for.
            StatusCode::NO_CONTENT.into_response()
        } else {
            dialect.response(&error, &id)
        };
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

/// Whether a request may come in.
fn admit(key: Option<&str>, request: &Request) -> Result<(), Error> {
    match key {
        None => local(request),
        Some(_) if routes::OPEN.contains(&request.uri().path()) => Ok(()),
        Some(key) if has_key(key, request.headers()) => Ok(()),
        Some(_) => Err(Error::new(
            ErrorKind::Unauthorized,
            "No valid API key was given; send it as 'Authorization: Bearer KEY'",
        )),
    }
}

/// Compares digests, and all of both, so that time tells nothing about the key.
fn has_key(key: &str, headers: &HeaderMap) -> bool {
    let wanted = Sha256::digest(key.as_bytes());
    let matches = |shown: &[u8]| {
        let difference = wanted.iter().zip(Sha256::digest(shown)).fold(0, |sum, (a, b)| sum | (a ^ b));
        difference == 0
    };
    let bearer = headers.get(header::AUTHORIZATION).and_then(|value| {
        let (scheme, rest) = value.as_bytes().split_at_checked(7)?;
        scheme.eq_ignore_ascii_case(b"bearer ").then(|| rest.trim_ascii())
    });
    let others =
        ["x-api-key", "api-key"].into_iter().filter_map(|name| headers.get(name)).map(HeaderValue::as_bytes);
    bearer.into_iter().chain(others).any(matches)
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
            assert_eq!(admit(None, &request(&[("host", host)])), Ok(()), "{host}");
        }
        assert_eq!(admit(None, &request(&[])), Ok(()));
        for host in [
            "example.com",
            "localhost.example.com",
            "10.0.0.1:8790",
            "[::2]",
            "a@localhost",
            "",
            "127.0.0.1.nip.io",
        ] {
            assert!(admit(None, &request(&[("host", host)])).is_err(), "{host}");
        }
        assert!(admit(None, &request(&[("host", "localhost"), ("host", "example.com")])).is_err());
    }

    #[test]
    fn without_a_key_only_the_servers_own_origin_passes() {
        let with = |origin: &str| admit(None, &request(&[("host", "localhost:8790"), ("origin", origin)]));
        assert_eq!(with("http://localhost:8790"), Ok(()));
        for origin in
            ["null", "", "https://example.com", "http://localhost:3000", "http://localhost", "file://"]
        {
            assert!(with(origin).is_err(), "{origin}");
        }
        assert!(admit(None, &request(&[("origin", "http://localhost:8790")])).is_err());
    }

    #[test]
    fn a_key_is_taken_from_three_headers_and_no_other() {
        for (name, value) in [
            ("authorization", "Bearer s3cret"),
            ("authorization", "bearer  s3cret"),
            ("x-api-key", "s3cret"),
            ("api-key", "s3cret"),
        ] {
            assert_eq!(
                admit(Some("s3cret"), &request(&[(name, value), ("host", "example.com")])),
                Ok(()),
                "{name}"
            );
        }
        for (name, value) in [
            ("authorization", "s3cret"),
            ("authorization", "Basic s3cret"),
            ("authorization", ""),
            ("x-api-key", "s3cre"),
            ("x-key", "s3cret"),
        ] {
            assert!(admit(Some("s3cret"), &request(&[(name, value)])).is_err(), "{name}: {value}");
        }
    }
}

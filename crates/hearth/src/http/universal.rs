//! AI Gateway's universal endpoint: a list of requests to providers, tried in order until one is answered.
//!
//! Each entry goes through AI Gateway's own path of its provider, as a request of its own: policy, ledger and retries are
//! those of that path, and so are `compat` and `workers-ai`. What an entry says goes before what the request's headers
//! say, and that before the gateway's settings. Any failure asks the next entry; the last one's is the answer.

use super::App;
use super::body::{Body, read};
use super::dispatch::{Behind, Inner, is_answer};
use super::front::{described, is_same};
use super::refusal::Answered;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header};
use axum::response::Response;
use bytes::Bytes;
use gateway::Caller;
use protocol::{Error, ErrorKind};
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::sync::Arc;

/// Most entries of a list.
const ENTRIES_MAX: usize = 32;

/// Which entry answered.
const STEP: HeaderName = HeaderName::from_static("cf-aig-step");

/// Headers that an entry cannot set: they are about the connection, or say who calls.
const KEPT_OUT: &[&str] = &[
    "cf-aig-authorization",
    "cf-aig-gateway-id",
    "connection",
    "content-encoding",
    "content-length",
    "expect",
    "host",
    "origin",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What an entry's `config` is called in headers.
const CONFIG: &[(&str, &str)] = &[
    ("requestTimeout", "cf-aig-request-timeout"),
    ("maxAttempts", "cf-aig-max-attempts"),
    ("retryDelay", "cf-aig-retry-delay"),
    ("backoff", "cf-aig-backoff"),
];

/// One request to a provider.
pub(super) struct Entry {
    provider: String,
    endpoint: String,
    /// What its `config` and its `headers` say.
    headers: HeaderMap,
    /// The body for the provider, as it was written.
    query: Bytes,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, expecting = "an object with provider, endpoint, headers, query and config")]
struct Wire<'a> {
    #[serde(borrow)]
    provider: Cow<'a, str>,
    #[serde(borrow)]
    endpoint: Cow<'a, str>,
    #[serde(default)]
    headers: Option<Map<String, Value>>,
    #[serde(borrow, default)]
    query: Option<&'a RawValue>,
    #[serde(default)]
    config: Option<Map<String, Value>>,
    /// Of a WebSocket's message, which has read it.
    #[serde(rename = "eventId", default)]
    _event_id: IgnoredAny,
}

impl Entry {
    /// Reads an entry; `at` is how its place is called in errors.
    pub(super) fn parse(bytes: &Bytes, raw: &RawValue, at: &str) -> Result<Self, Error> {
        let wire: Wire<'_> = serde_json::from_str(raw.get()).map_err(|error| {
            Error::invalid(at, format!("{at} is no request {{provider, endpoint, headers, query}}: {error}"))
        })?;
        if wire.provider.is_empty() || wire.provider.contains(['/', '?', '#']) {
            let shown: String = wire.provider.chars().take(100).collect();
            return Err(Error::invalid("provider", format!("Invalid provider: {at}.provider is {shown:?}")));
        }
        let mut headers = HeaderMap::new();
        for (name, value) in wire.config.iter().flatten() {
            let Some((_, header)) = CONFIG.iter().find(|(known, _)| known == name) else {
                let shown: String = name.chars().take(64).collect();
                let place = format!("{at}.config.{shown}");
                return Err(Error::invalid(&place, format!("There is no setting '{place}'")));
            };
            set(&mut headers, header, value, &format!("{at}.config.{name}"))?;
        }
        for (name, value) in wire.headers.iter().flatten() {
            let lower = name.to_ascii_lowercase();
            if !KEPT_OUT.contains(&lower.as_str()) && !lower.starts_with("sec-websocket-") {
                set(&mut headers, &lower, value, &format!("{at}.headers.{name}"))?;
            }
        }
        let query = wire.query.map_or(Bytes::new(), |query| bytes.slice_ref(query.get().as_bytes()));
        Ok(Self {
            provider: wire.provider.into_owned(),
            endpoint: wire.endpoint.trim_start_matches('/').to_owned(),
            headers,
            query,
        })
    }

    /// AI Gateway's path to it.
    pub(super) fn uri(&self, caller: &Caller, at: &str) -> Result<Uri, Error> {
        let path = format!("/v1/{}/{}/{}/{}", caller.account, caller.gateway, self.provider, self.endpoint);
        path.parse().map_err(|_| {
            let place = format!("{at}.endpoint");
            Error::invalid(&place, format!("Invalid value for '{place}': it is no path"))
        })
    }

    /// Asks its provider for a caller, with these headers where it has none of its own.
    pub(super) async fn ask(
        self,
        app: &App,
        behind: &Behind,
        caller: &Caller,
        outer: &HeaderMap,
        body: &Body,
        at: &str,
    ) -> Result<Response, Error> {
        let uri = self.uri(caller, at)?;
        let mut headers = outer.clone();
        for name in [header::CONTENT_TYPE, header::CONTENT_ENCODING, header::EXPECT, header::UPGRADE] {
            headers.remove(name);
        }
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in &self.headers {
            // The key of this server is nobody else's business.
            let ours = app.config.api_key.as_deref().is_some_and(|ours| shows(value, ours));
            if !ours {
                headers.insert(name.clone(), value.clone());
            }
        }
        let mut caller = caller.clone();
        described(&mut caller, &headers)?;
        let body = body.edited(self.query);
        Ok(behind.ask(Inner { method: Method::POST, uri, headers, caller, body, in_route: false }).await)
    }
}

/// Whether a header's value is a key, bare or as a bearer's.
fn shows(value: &HeaderValue, key: &str) -> bool {
    let value = value.as_bytes();
    let bare = match value.split_at_checked(7) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case(b"bearer ") => rest.trim_ascii(),
        _ => value,
    };
    is_same(key, bare)
}

/// Sets a header from JSON: a text, a number or a truth value.
fn set(headers: &mut HeaderMap, name: &str, value: &Value, at: &str) -> Result<(), Error> {
    let text = match value {
        Value::Null => return Ok(()),
        Value::String(text) => text.clone(),
        Value::Number(_) | Value::Bool(_) => value.to_string(),
        Value::Array(_) | Value::Object(_) => {
            return Err(Error::invalid(at, format!("Invalid value for '{at}': expected a text")));
        }
    };
    let (Ok(name), Ok(value)) = (HeaderName::from_bytes(name.as_bytes()), HeaderValue::from_str(&text))
    else {
        return Err(Error::invalid(at, format!("Invalid value for '{at}': no header can say that")));
    };
    headers.insert(name, value);
    Ok(())
}

/// The entries of a body: a list, or a single one.
fn entries(bytes: &Bytes) -> Result<Vec<(String, Entry)>, Error> {
    let malformed = |error: serde_json::Error| {
        Error::new(ErrorKind::Malformed, format!("The body is no list of requests: {error}"))
    };
    if bytes.trim_ascii_start().starts_with(b"{") {
        let raw: &RawValue = serde_json::from_slice(bytes).map_err(malformed)?;
        return Ok(vec![("request".to_owned(), Entry::parse(bytes, raw, "request")?)]);
    }
    let raws: Vec<&RawValue> = serde_json::from_slice(bytes).map_err(malformed)?;
    if raws.is_empty() || raws.len() > ENTRIES_MAX {
        let message = format!("The list must have from 1 to {ENTRIES_MAX} requests, not {}", raws.len());
        return Err(Error::new(ErrorKind::InvalidRequest, message));
    }
    raws.iter()
        .enumerate()
        .map(|(index, raw)| {
            let at = format!("[{index}]");
            Ok((at.clone(), Entry::parse(bytes, raw, &at)?))
        })
        .collect()
}

/// First segments that are no account: OpenAI's and Anthropic's clients ask there for what is not built.
fn is_resource(path: &str) -> bool {
    gateway::RESERVED.contains(&path.split('/').nth(2).unwrap_or_default())
}

/// The answer where a path looks like a gateway's and is another API's.
pub(super) fn no_gateway(request: &Request, route: Option<&str>) -> Option<Error> {
    let path = request.uri().path();
    route.filter(|route| route.starts_with("/v1/{account}/") && is_resource(path)).map(|_| {
        let shown: String = path.chars().take(200).collect();
        let message = format!("No route for that URI ({} {shown})", request.method());
        Error::new(ErrorKind::RouteNotFound, message)
    })
}

/// `POST /v1/{account}/{gateway}`, and of the AI binding `POST /ai-gateway/universal/run/{gateway}`.
pub(super) async fn universal(State(app): State<Arc<App>>, request: Request) -> Answered {
    let behind = Behind::of(request.extensions());
    let (asking, body) = read(&app, request).await?;
    let bytes = body.bytes().clone();
    let entries = body.clone().parse(move |_| entries(&bytes)).await?;
    let last = entries.len() - 1;
    for (step, (at, entry)) in entries.into_iter().enumerate() {
        let asked = entry.ask(&app, &behind, &asking.caller, &asking.headers, &body, &at).await;
        let mut response = match asked {
            Ok(response) => response,
            Err(error) => return Err(error.into()),
        };
        if step < last && !is_answer(&response) {
            tracing::debug!(step, status = super::dispatch::status(&response), "the next entry is asked");
            continue;
        }
        response.headers_mut().insert(STEP, HeaderValue::from(step));
        return Ok(response);
    }
    unreachable!("a list has at least one entry")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Vec<(String, Entry)>, Error> {
        entries(&Bytes::copy_from_slice(json.as_bytes()))
    }

    #[test]
    fn a_query_stays_as_it_was_written_and_is_not_copied() {
        let body =
            Bytes::from_static(br#"[{"provider":"p","endpoint":"/e","query":{"b": 1.50,"a":"\u00e9"}}]"#);
        let found = entries(&body).unwrap();
        let entry = &found[0].1;
        assert_eq!(entry.query, br#"{"b": 1.50,"a":"\u00e9"}"#.as_slice());
        assert!(body.as_ptr_range().contains(&entry.query.as_ptr()));
        assert_eq!((entry.provider.as_str(), entry.endpoint.as_str()), ("p", "e"));
    }

    #[test]
    fn an_entrys_headers_go_before_its_config_and_none_says_who_calls() {
        let json = r#"{"provider":"p","endpoint":"e","query":{},
            "headers":{"X-A":"1","CF-AIG-Max-Attempts":2,"Host":"h","cf-aig-authorization":"k","origin":"o"},
            "config":{"maxAttempts":3,"requestTimeout":500,"backoff":"linear"}}"#;
        let found = parse(json).unwrap();
        let mut headers: Vec<_> = found[0]
            .1
            .headers
            .iter()
            .map(|(name, value)| format!("{name}={}", value.to_str().unwrap()))
            .collect();
        headers.sort();
        let expected =
            ["cf-aig-backoff=linear", "cf-aig-max-attempts=2", "cf-aig-request-timeout=500", "x-a=1"];
        assert_eq!(headers, expected);
    }

    #[test]
    fn a_wrong_entry_is_named_by_its_place() {
        for (json, param) in [
            (r#"[{"provider":"p","endpoint":"e"},{"provider":"p"}]"#, "[1]"),
            (r#"[{"provider":"p","endpoint":"e","config":{"retries":1}}]"#, "[0].config.retries"),
            (r#"{"provider":"p","endpoint":"e","headers":{"a":[1]}}"#, "request.headers.a"),
            (r#"[{"provider":"a/b","endpoint":"e"}]"#, "provider"),
        ] {
            assert_eq!(parse(json).err().unwrap().param.as_deref(), Some(param), "{json}");
        }
        for json in ["[]", "1", "[", "\"a\""] {
            assert!(parse(json).is_err(), "{json}");
        }
    }
}

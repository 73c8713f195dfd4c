//! What a Worker's AI binding calls, so that `env.AI` of an unmodified Worker can be this server.
//!
//! workerd sends the calls as they are (`POST /run?version=3`). Miniflare sends each to `/` and writes the original
//! address and headers into headers of its own; [`readdress`] puts them back before the request is routed, so that
//! the same front (key, Host, Origin) stands before both. Results have the type `application/json` exactly and no
//! envelope: the binding hands anything else to the Worker as a stream of bytes.

use super::App;
use super::body::{Head, read};
use super::refusal::{Answered, Refusal, json};
use super::workers_ai::{Form, Parameters, answer, parameters};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{self, HeaderName, HeaderValue};
use axum::http::uri::PathAndQuery;
use axum::http::{self, Uri};
use gateway::Caller;
use protocol::workers_ai::binding;
use protocol::{Error, ErrorKind};
use std::sync::Arc;

/// `POST /run` and `POST /ai-gateway/run`.
pub(super) async fn run(State(app): State<Arc<App>>, query: Parameters, request: Request) -> Answered {
    check_query(&parameters(query)?)?;
    let (asking, body) = read(&app, request).await?;
    let model = model(&app, &asking).await?;
    let inputs = body.parse(binding::parse).await?;
    answer(&app, &asking, &model, inputs, Form::Binding).await
}

/// `GET /run`: a WebSocket is asked for.
pub(super) async fn socket() -> Refusal {
    unsupported("WebSockets are not supported by this server; call AI.run without 'websocket'")
}

/// `/to-everything/…`.
pub(super) async fn no_markdown() -> Refusal {
    unsupported("AI.toMarkdown is not supported by this server")
}

/// `GET /ai-gateway/gateways/{gateway}/url/{provider}`: where a gateway's paths begin.
pub(super) async fn url(path: Result<Path<(String, String)>, PathRejection>, request: Request) -> Answered {
    let Path((_, provider)) =
        path.map_err(|error| Error::new(ErrorKind::RouteNotFound, error.body_text()))?;
    let caller: &Caller = request.extensions().get().expect("the front says who asks");
    let host = request.headers().get(header::HOST).and_then(|host| host.to_str().ok()).unwrap_or("localhost");
    let mut url = format!("http://{host}/v1/{}/{}", caller.account, caller.gateway);
    if provider != "universal" {
        url.push('/');
        url.push_str(&provider);
    }
    Ok(json(serde_json::json!({"result": {"url": url}}).to_string()))
}

/// `/ai-gateway/…`, except what has a route of its own.
pub(super) async fn no_gateway() -> Refusal {
    unsupported("This part of AI.gateway is not supported by this server")
}

fn unsupported(message: &str) -> Refusal {
    Refusal(Error::new(ErrorKind::Unsupported, message))
}

/// Inputs that are a stream of bytes come as the body, the others in the query.
fn check_query(query: &[(String, String)]) -> Result<(), Error> {
    let value = |name: &str| query.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str());
    if value("userInputs").is_some() {
        let message = "Inputs that are streams are not supported by this server";
        return Err(Error::new(ErrorKind::Unsupported, message).at("inputs"));
    }
    match value("version") {
        None | Some("3") => Ok(()),
        Some(_) => {
            let message = "Only version 3 of the AI binding is supported by this server";
            Err(Error::new(ErrorKind::Unsupported, message).at("version"))
        }
    }
}

async fn model(app: &App, asking: &Head) -> Result<String, Error> {
    let name =
        asking.headers.get(binding::MODEL_HEADER).and_then(|name| name.to_str().ok()).unwrap_or_default();
    if name.is_empty() {
        let message = format!("The header {} must name the model", binding::MODEL_HEADER);
        return Err(Error::new(ErrorKind::Malformed, message).at("model"));
    }
    let known = app.model(name).is_ok() || !app.elsewhere(&asking.caller.account, name).await?.is_empty();
    Ok(binding::model(name, |_| known).to_owned())
}

/// Where Miniflare writes the original address.
const ADDRESS: &str = "mf-url";

/// What it writes before the names of the original headers.
const ORIGINAL: &str = "mf-header-";

/// What the names of all headers of its own begin with.
const WRAPPING: &str = "mf-";

/// Original headers that are not taken over: they are about the connection or the body as it came, or say who calls,
/// which the outer request alone may say.
const KEPT_OUT: &[HeaderName] = &[
    header::CONNECTION,
    header::CONTENT_ENCODING,
    header::CONTENT_LENGTH,
    header::EXPECT,
    header::HOST,
    header::ORIGIN,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// Gives a request that comes from Miniflare its original address and headers; leaves any other as it is.
pub(super) fn readdress<B>(request: &mut http::Request<B>) {
    if request.uri().path() != "/" {
        return;
    }
    let original = match request.headers().get(ADDRESS).map(HeaderValue::to_str) {
        Some(Ok(address)) => {
            address.parse::<Uri>().ok().and_then(|address| address.path_and_query().cloned())
        }
        Some(Err(_)) => None,
        // Miniflare also tries to open a WebSocket, for calls that are none of HTTP.
        None => {
            let query = request.uri().query().unwrap_or_default();
            let tried = query.split('&').any(|parameter| parameter.starts_with("MF-Binding="));
            tried.then(|| PathAndQuery::from_static("/run"))
        }
    };
    let Some(original) = original else { return };
    // Admission looks at the authority too: only the path changes.
    let mut parts = request.uri().clone().into_parts();
    parts.path_and_query = Some(original);
    let Ok(uri) = Uri::from_parts(parts) else { return };
    *request.uri_mut() = uri;
    let headers = request.headers_mut();
    let originals: Vec<(HeaderName, HeaderValue)> = headers
        .iter()
        .filter_map(|(name, value)| {
            let name: HeaderName = name.as_str().strip_prefix(ORIGINAL)?.parse().ok()?;
            (!KEPT_OUT.contains(&name)).then(|| (name, value.clone()))
        })
        .collect();
    for (name, value) in originals {
        // What the outer request says itself, a key above all, stands.
        headers.entry(name).or_insert(value);
    }
    // One of them may be a key, which is nobody else's business.
    let wrapping: Vec<HeaderName> =
        headers.keys().filter(|name| name.as_str().starts_with(WRAPPING)).cloned().collect();
    for name in wrapping {
        headers.remove(name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readdressed(uri: &str, headers: &[(&str, &str)]) -> http::Request<()> {
        let builder = http::Request::builder().uri(uri);
        let builder = headers.iter().fold(builder, |builder, (name, value)| builder.header(*name, *value));
        let mut request = builder.body(()).unwrap();
        readdress(&mut request);
        request
    }

    #[test]
    fn an_original_address_and_its_headers_come_back() {
        let request = readdressed(
            "/",
            &[
                ("host", "localhost:1"),
                ("authorization", "Bearer outer"),
                ("MF-Binding", "AI"),
                ("MF-URL", "https://workers-binding.ai/run?version=3"),
                ("MF-Header-cf-consn-model-id", "@cf/a/b"),
                ("MF-Header-host", "workers-binding.ai"),
                ("MF-Header-origin", "https://evil.example"),
                ("MF-Header-content-length", "7"),
                ("MF-Header-authorization", "Bearer inner"),
            ],
        );
        assert_eq!(request.uri(), "/run?version=3");
        for (name, value) in [
            ("host", Some("localhost:1")),
            ("cf-consn-model-id", Some("@cf/a/b")),
            ("authorization", Some("Bearer outer")),
            ("origin", None),
            ("content-length", None),
        ] {
            assert_eq!(request.headers().get(name).map(|value| value.to_str().unwrap()), value, "{name}");
        }
        let left = request.headers().keys().find(|name| name.as_str().starts_with("mf-"));
        assert_eq!(left, None);
    }

    #[test]
    fn what_does_not_come_from_miniflare_stays() {
        assert_eq!(readdressed("/", &[]).uri(), "/");
        assert_eq!(readdressed("/", &[("mf-url", "no address at all")]).uri(), "/");
        let moved = readdressed("/v1/models", &[("mf-url", "https://workers-binding.ai/run")]);
        assert_eq!(moved.uri(), "/v1/models");
        assert_eq!(readdressed("/?MF-Binding=AI", &[]).uri(), "/run");
        let absolute = readdressed("http://evil.example/", &[("mf-url", "https://workers-binding.ai/run")]);
        assert_eq!(absolute.uri(), "http://evil.example/run");
    }
}

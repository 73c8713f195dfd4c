//! Errors on their way out: handlers give back a canonical error, the front writes it in the dialect of the path.

use axum::body::Body;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use gateway::RESERVED;
use protocol::{Error, ErrorKind, anthropic, openai, workers_ai};
use std::time::Duration;

/// When to come back, where the backend does not say.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// A request was refused. Becomes a response that carries the error for the front to write.
#[derive(Debug)]
pub(super) struct Refusal(pub(super) Error);

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Self(error)
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let mut response = Response::new(Body::empty());
        response.extensions_mut().insert(self.0);
        response
    }
}

/// What a handler gives back.
pub(super) type Answered = Result<Response, Refusal>;

/// What Anthropic's clients send with every request.
const ANTHROPIC_VERSION: &str = "anthropic-version";

/// The first segments of the AI binding's paths.
const BINDING: &[&str] = &["ai-api", "ai-gateway", "run", "to-everything"];

/// The dialect a path belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    OpenAi,
    /// Native Workers AI.
    WorkersNative,
    /// OpenAI's routes under Workers AI, called by clients of either.
    WorkersCompatible,
    /// What a Worker's AI binding calls.
    Binding,
    /// Anthropic's routes, also under Workers AI.
    Anthropic,
    /// AI Gateway's routes to providers.
    AiGateway,
    /// Where accounts are managed.
    Control,
}

impl Dialect {
    pub(super) fn of(path: &str) -> Self {
        if BINDING.contains(&path.split('/').nth(1).unwrap_or_default()) {
            return Self::Binding;
        }
        let is_messages = |path: &str| {
            path.strip_prefix("messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        };
        let Some(rest) = path.strip_prefix("/client/v4") else {
            // /v1/{account}/{gateway}/{provider}/...
            let mut segments = path.split('/').skip(2);
            if path.starts_with("/v1/")
                && segments.next().is_some_and(|first| !RESERVED.contains(&first))
                && segments.next().is_some()
            {
                return match (segments.next(), segments.next()) {
                    (Some("workers-ai"), Some("v1")) => Self::WorkersCompatible,
                    (Some("workers-ai"), _) => Self::WorkersNative,
                    _ => Self::AiGateway,
                };
            }
            let messages = path.strip_prefix("/v1/").is_some_and(is_messages);
            return if messages { Self::Anthropic } else { Self::OpenAi };
        };
        // accounts/{account}/ai/v1/...
        let mut segments = rest.splitn(6, '/').skip(3);
        let first = segments.next();
        if first == Some("ai-gateway") {
            return Self::Control;
        }
        if first == Some("ai") && segments.next() == Some("v1") {
            let messages = segments.next().is_some_and(is_messages);
            if messages { Self::Anthropic } else { Self::WorkersCompatible }
        } else {
            Self::WorkersNative
        }
    }

    /// The dialect of a request. Where a path serves clients of several, Anthropic's say that they are such.
    pub(super) fn spoken(path: &str, headers: &HeaderMap) -> Self {
        match Self::of(path) {
            Self::OpenAi | Self::WorkersCompatible if headers.contains_key(ANTHROPIC_VERSION) => {
                Self::Anthropic
            }
            other => other,
        }
    }

    /// The status of an error: the one that a provider gave, else that of its kind.
    pub(super) fn status(self, error: &Error) -> u16 {
        let kind = error.kind;
        if let Some(status) = error.status {
            return status;
        }
        match self {
            Self::OpenAi | Self::WorkersCompatible | Self::AiGateway => kind.status(),
            Self::WorkersNative | Self::Binding | Self::Control => workers_ai::error::status(kind),
            Self::Anthropic => anthropic::error::status(kind),
        }
    }

    fn body(self, error: &Error, request_id: &str) -> String {
        match self {
            Self::OpenAi => openai::error::body(error),
            Self::WorkersNative => workers_ai::error::body(error),
            Self::WorkersCompatible => workers_ai::error::body_for_openai_clients(error),
            Self::Binding => workers_ai::error::body_for_binding(error),
            Self::Anthropic => anthropic::error::body(error, Some(request_id)),
            Self::AiGateway => workers_ai::error::body_for_ai_gateway(error),
            Self::Control => workers_ai::error::body_for_control(error),
        }
    }

    /// An error in its words, without a request's id.
    pub(super) fn words(self, error: &Error) -> String {
        self.body(error, "")
    }

    /// The data of the last event of a stream that fails: on Workers AI's paths readable for clients of either API.
    pub(super) fn event(self, error: &Error) -> String {
        match self {
            // Of compat: what streams there is OpenAI's.
            Self::OpenAi | Self::AiGateway => openai::error::body(error),
            Self::WorkersNative | Self::WorkersCompatible | Self::Control => {
                workers_ai::error::body_for_openai_clients(error)
            }
            Self::Binding => workers_ai::error::body_for_binding(error),
            Self::Anthropic => anthropic::error::body(error, None),
        }
    }

    /// The response to an error of this request.
    pub(super) fn response(self, error: &Error, request_id: &str) -> Response {
        let mut response = json(self.body(error, request_id));
        *response.status_mut() =
            StatusCode::from_u16(self.status(error)).expect("error kinds and providers have valid statuses");
        let headers = response.headers_mut();
        if matches!(error.kind, ErrorKind::Overloaded | ErrorKind::Limited | ErrorKind::Unavailable) {
            let after = error.retry_after.unwrap_or(RETRY_AFTER).as_millis().max(1);
            let number = |n: u128| HeaderValue::from_str(&n.to_string()).expect("digits are a header value");
            headers.insert(header::RETRY_AFTER, number(after.div_ceil(1000)));
            headers.insert("retry-after-ms", number(after));
        }
        if error.kind == ErrorKind::Unauthorized {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        response
    }
}

/// A response of JSON text. The type is exactly this: one client takes `application/json; charset=utf-8` for a
/// stream of bytes.
pub(super) fn json(body: String) -> Response {
    let mut response = Response::new(Body::from(body));
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_decides_the_dialect() {
        for (path, dialect) in [
            ("/v1/chat/completions", Dialect::OpenAi),
            ("/nothing", Dialect::OpenAi),
            ("/client/v4/accounts/a/ai/run/@cf/x", Dialect::WorkersNative),
            ("/client/v4/accounts/a/ai/v1/models", Dialect::WorkersCompatible),
            ("/client/v4/accounts/ai/v1/models", Dialect::WorkersNative),
            ("/client/v4", Dialect::WorkersNative),
            ("/client/v4/accounts/a/ai-gateway/gateways", Dialect::Control),
            ("/client/v4/accounts/a/ai-gateway/gateways/g/logs", Dialect::Control),
            ("/run", Dialect::Binding),
            ("/ai-gateway/run", Dialect::Binding),
            ("/running", Dialect::OpenAi),
            ("/v1/messages", Dialect::Anthropic),
            ("/v1/messages/count_tokens", Dialect::Anthropic),
            ("/v1/messagesx", Dialect::OpenAi),
            ("/client/v4/accounts/a/ai/v1/messages/count_tokens", Dialect::Anthropic),
            ("/client/v4/accounts/a/ai/run/messages", Dialect::WorkersNative),
            ("/v1/acme/default/openai/chat/completions", Dialect::AiGateway),
            ("/v1/acme/default/openai/models", Dialect::AiGateway),
            ("/v1/acme/default/openai", Dialect::AiGateway),
            ("/v1/acme/default", Dialect::AiGateway),
            ("/v1/audio/speech", Dialect::OpenAi),
            ("/v1/acme/default/workers-ai/run/@cf/x", Dialect::WorkersNative),
            ("/v1/acme/default/workers-ai/v1/chat/completions", Dialect::WorkersCompatible),
            ("/v1/models/a/b/c", Dialect::OpenAi),
        ] {
            assert_eq!(Dialect::of(path), dialect, "{path}");
        }
    }

    #[test]
    fn anthropics_clients_are_known_by_their_header_where_a_path_is_shared() {
        let mut headers = HeaderMap::new();
        let spoken = |path: &str, headers: &HeaderMap| Dialect::spoken(path, headers);
        assert_eq!(spoken("/v1/models", &headers), Dialect::OpenAi);
        headers.insert(ANTHROPIC_VERSION, HeaderValue::from_static("2023-06-01"));
        for path in ["/v1/models", "/v1/nothing", "/client/v4/accounts/a/ai/v1/models"] {
            assert_eq!(spoken(path, &headers), Dialect::Anthropic, "{path}");
        }
        assert_eq!(spoken("/client/v4/accounts/a/ai/run/x", &headers), Dialect::WorkersNative);
    }

    #[test]
    fn times_to_come_back_are_rounded_up() {
        let error = Error::new(ErrorKind::Overloaded, "full").retry_after(Duration::from_millis(1200));
        let response = Dialect::OpenAi.response(&error, "req_1");
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "2");
        assert_eq!(response.headers()["retry-after-ms"], "1200");
    }
}

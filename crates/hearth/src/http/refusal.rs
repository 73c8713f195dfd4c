//! Errors on their way out: handlers give back a canonical error, the front writes it in the dialect of the path.

use axum::body::Body;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use protocol::{Error, ErrorKind, openai, workers_ai};
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

/// The dialect a path belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    OpenAi,
    /// Native Workers AI.
    WorkersNative,
    /// OpenAI's routes under Workers AI, called by clients of either.
    WorkersCompatible,
}

impl Dialect {
    pub(super) fn of(path: &str) -> Self {
        let Some(rest) = path.strip_prefix("/client/v4") else { return Self::OpenAi };
        // accounts/{account}/ai/v1/...
        let mut segments = rest.split('/').skip(3);
        if segments.next() == Some("ai") && segments.next() == Some("v1") {
            Self::WorkersCompatible
        } else {
            Self::WorkersNative
        }
    }

    /// Whether the path is Workers AI's.
    pub(super) const fn is_workers_ai(self) -> bool {
        matches!(self, Self::WorkersNative | Self::WorkersCompatible)
    }

    fn status(self, kind: ErrorKind) -> u16 {
        match self {
            Self::OpenAi | Self::WorkersCompatible => kind.status(),
            Self::WorkersNative => workers_ai::error::status(kind),
        }
    }

    fn body(self, error: &Error) -> String {
        match self {
            Self::OpenAi => openai::error::body(error),
            Self::WorkersNative => workers_ai::error::body(error),
            Self::WorkersCompatible => workers_ai::error::body_for_openai_clients(error),
        }
    }

    /// The data of the last event of a stream that fails: on Workers AI's paths readable for clients of either API.
    pub(super) fn event(self, error: &Error) -> String {
        match self {
            Self::OpenAi => openai::error::body(error),
            Self::WorkersNative | Self::WorkersCompatible => {
                workers_ai::error::body_for_openai_clients(error)
            }
        }
    }

    /// The response to an error.
    pub(super) fn response(self, error: &Error) -> Response {
        let mut response = json(self.body(error));
        *response.status_mut() =
            StatusCode::from_u16(self.status(error.kind)).expect("error kinds have valid statuses");
        let headers = response.headers_mut();
        if matches!(error.kind, ErrorKind::Overloaded | ErrorKind::Unavailable) {
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
        ] {
            assert_eq!(Dialect::of(path), dialect, "{path}");
        }
    }

    #[test]
    fn times_to_come_back_are_rounded_up() {
        let error = Error::new(ErrorKind::Overloaded, "full").retry_after(Duration::from_millis(1200));
        let response = Dialect::OpenAi.response(&error);
        assert_eq!(response.status(), 429);
        assert_eq!(response.headers()["retry-after"], "2");
        assert_eq!(response.headers()["retry-after-ms"], "1200");
    }
}

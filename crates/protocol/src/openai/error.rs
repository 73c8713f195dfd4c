//! Errors as OpenAI writes them: `{"error":{"message","type","param","code"}}`.

use super::to_json;
use crate::{Error, ErrorKind};
use serde::Serialize;

/// The value of `type` and `code` for a kind of error. `docs/errors.md` lists them for callers.
#[must_use]
pub const fn names(kind: ErrorKind) -> (&'static str, Option<&'static str>) {
    match kind {
        ErrorKind::InvalidRequest => ("invalid_request_error", Some("invalid_value")),
        ErrorKind::Malformed => ("invalid_request_error", Some("invalid_json")),
        ErrorKind::ContextLength => ("invalid_request_error", Some("context_length_exceeded")),
        ErrorKind::ModelNotFound => ("invalid_request_error", Some("model_not_found")),
        ErrorKind::RouteNotFound => ("invalid_request_error", Some("unknown_url")),
        ErrorKind::NotFound => ("invalid_request_error", Some("not_found")),
        ErrorKind::MethodNotAllowed => ("invalid_request_error", Some("method_not_supported")),
        ErrorKind::Unsupported => ("invalid_request_error", Some("unsupported_parameter")),
        ErrorKind::Unauthorized | ErrorKind::KeyRefused => ("invalid_request_error", Some("invalid_api_key")),
        ErrorKind::Forbidden => ("invalid_request_error", Some("forbidden")),
        ErrorKind::Timeout => ("invalid_request_error", Some("request_timeout")),
        ErrorKind::TooLarge => ("invalid_request_error", Some("request_too_large")),
        ErrorKind::UnsupportedEncoding => ("invalid_request_error", Some("unsupported_content_encoding")),
        ErrorKind::Overloaded => ("rate_limit_error", Some("rate_limit_exceeded")),
        ErrorKind::Limited => ("rate_limit_error", Some("rate_limit_exceeded")),
        ErrorKind::Unpaid => ("insufficient_quota", Some("insufficient_quota")),
        ErrorKind::PromptBlocked
        | ErrorKind::AnswerBlocked
        | ErrorKind::PromptWithheld
        | ErrorKind::AnswerWithheld => ("invalid_request_error", Some("content_filter")),
        ErrorKind::Unavailable => ("server_error", Some("service_unavailable")),
        ErrorKind::Upstream => ("server_error", Some("upstream_error")),
        ErrorKind::UpstreamTimeout => ("server_error", Some("upstream_timeout")),
        ErrorKind::Internal => ("server_error", None),
    }
}

/// The inner object.
#[derive(Debug, Serialize)]
pub(crate) struct WireError<'a> {
    message: &'a str,
    #[serde(rename = "type")]
    kind: &'static str,
    param: Option<&'a str>,
    code: Option<&'static str>,
}

impl<'a> From<&'a Error> for WireError<'a> {
    fn from(error: &'a Error) -> Self {
        let (kind, code) = names(error.kind);
        Self { message: &error.message, kind, param: error.param.as_deref(), code }
    }
}

/// The body of an error, also sent as the last event of a stream that fails.
#[must_use]
pub fn body(error: &Error) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        error: WireError<'a>,
    }
    to_json(&Body { error: error.into() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_its_field_and_code() {
        let error = Error::invalid("messages[0].role", "Invalid value");
        assert_eq!(
            body(&error),
            r#"{"error":{"message":"Invalid value","type":"invalid_request_error","param":"messages[0].role","code":"invalid_value"}}"#
        );
        let error = Error::new(ErrorKind::Internal, "oops");
        assert_eq!(
            body(&error),
            r#"{"error":{"message":"oops","type":"server_error","param":null,"code":null}}"#
        );
    }
}

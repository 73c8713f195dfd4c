//! Errors as Google's APIs write them: `{"error":{"code","message","status"}}` (`google.rpc.Status`).

use crate::openai::to_json;
use crate::{Error, ErrorKind};
use serde_json::json;

/// The value of `status` for a kind of error: names of `google.rpc.Code`.
#[must_use]
pub const fn name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidRequest
        | ErrorKind::Malformed
        | ErrorKind::ContextLength
        | ErrorKind::TooLarge
        | ErrorKind::UnsupportedEncoding => "INVALID_ARGUMENT",
        ErrorKind::ModelNotFound | ErrorKind::RouteNotFound | ErrorKind::NotFound => "NOT_FOUND",
        ErrorKind::MethodNotAllowed | ErrorKind::Unsupported => "UNIMPLEMENTED",
        ErrorKind::Unauthorized | ErrorKind::KeyRefused => "UNAUTHENTICATED",
        ErrorKind::Forbidden
        | ErrorKind::PromptBlocked
        | ErrorKind::AnswerBlocked
        | ErrorKind::PromptWithheld
        | ErrorKind::AnswerWithheld => "PERMISSION_DENIED",
        ErrorKind::Timeout | ErrorKind::UpstreamTimeout => "DEADLINE_EXCEEDED",
        ErrorKind::Overloaded | ErrorKind::Limited | ErrorKind::Unpaid => "RESOURCE_EXHAUSTED",
        ErrorKind::Unavailable | ErrorKind::Upstream => "UNAVAILABLE",
        ErrorKind::Internal => "INTERNAL",
    }
}

/// The body of an error, and the data of the last event of a stream that fails.
#[must_use]
pub fn body(error: &Error) -> String {
    let kind = error.kind;
    to_json(&json!({"error": {"code": kind.status(), "message": error.message, "status": name(kind)}}))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_a_number_and_a_name() {
        let error = Error::new(ErrorKind::Overloaded, "full");
        assert_eq!(body(&error), r#"{"error":{"code":429,"message":"full","status":"RESOURCE_EXHAUSTED"}}"#);
    }
}

//! Errors as Anthropic writes them: `{"type":"error","error":{"type","message"},"request_id"}`.
//!
//! There is no field for the place of a fault: the message begins with it, with dots where other dialects have
//! brackets (`messages.3.content.1: …`).

use crate::openai::to_json;
use crate::{Error, ErrorKind};
use serde::Serialize;

/// The HTTP status of a kind of error.
#[must_use]
pub const fn status(kind: ErrorKind) -> u16 {
    match kind {
        // An engine that fails may answer the same request a moment later; clients wait and ask again.
        ErrorKind::Unavailable => 529,
        ErrorKind::InvalidRequest
        | ErrorKind::Malformed
        | ErrorKind::ContextLength
        | ErrorKind::ModelNotFound
        | ErrorKind::RouteNotFound
        | ErrorKind::NotFound
        | ErrorKind::MethodNotAllowed
        | ErrorKind::Unsupported
        | ErrorKind::Unauthorized
        | ErrorKind::KeyRefused
        | ErrorKind::Forbidden
        | ErrorKind::Timeout
        | ErrorKind::TooLarge
        | ErrorKind::UnsupportedEncoding
        | ErrorKind::Overloaded
        | ErrorKind::Limited
        | ErrorKind::Unpaid
        | ErrorKind::PromptBlocked
        | ErrorKind::AnswerBlocked
        | ErrorKind::PromptWithheld
        | ErrorKind::AnswerWithheld
        | ErrorKind::Upstream
        | ErrorKind::UpstreamTimeout
        | ErrorKind::Internal => kind.status(),
    }
}

/// The value of `type` for a kind of error. `docs/errors.md` lists them for callers.
#[must_use]
pub const fn name(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::InvalidRequest
        | ErrorKind::Malformed
        | ErrorKind::ContextLength
        | ErrorKind::MethodNotAllowed
        | ErrorKind::Unsupported
        | ErrorKind::UnsupportedEncoding
        | ErrorKind::PromptBlocked
        | ErrorKind::AnswerBlocked
        | ErrorKind::PromptWithheld
        | ErrorKind::AnswerWithheld => "invalid_request_error",
        ErrorKind::ModelNotFound | ErrorKind::RouteNotFound | ErrorKind::NotFound => "not_found_error",
        ErrorKind::Unauthorized | ErrorKind::KeyRefused => "authentication_error",
        ErrorKind::Forbidden => "permission_error",
        ErrorKind::Timeout | ErrorKind::UpstreamTimeout => "timeout_error",
        ErrorKind::TooLarge => "request_too_large",
        ErrorKind::Overloaded | ErrorKind::Limited => "rate_limit_error",
        ErrorKind::Unpaid => "billing_error",
        ErrorKind::Unavailable => "overloaded_error",
        ErrorKind::Upstream | ErrorKind::Internal => "api_error",
    }
}

/// The body of an error, and the data of the event `error` with which a stream ends that fails.
#[must_use]
pub fn body(error: &Error, request_id: Option<&str>) -> String {
    #[derive(Serialize)]
    struct Body<'a> {
        #[serde(rename = "type")]
        kind: &'static str,
        error: Inner,
        #[serde(skip_serializing_if = "Option::is_none")]
        request_id: Option<&'a str>,
    }
    #[derive(Serialize)]
    struct Inner {
        #[serde(rename = "type")]
        kind: &'static str,
        message: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        details: Option<Details>,
    }
    #[derive(Serialize)]
    struct Details {
        error_code: &'static str,
    }
    // Of what is kept elsewhere this dialect names threads alone; by the code clients know to send all of one.
    let details = (error.kind == ErrorKind::NotFound).then_some(Details { error_code: "thread_not_found" });
    to_json(&Body {
        kind: "error",
        error: Inner { kind: name(error.kind), message: message(error), details },
        request_id,
    })
}

fn message(error: &Error) -> String {
    if error.kind == ErrorKind::ContextLength {
        // Clients look for these words, and shorten the conversation.
        return format!("prompt is too long: {}", error.message);
    }
    match &error.param {
        None => error.message.clone(),
        Some(param) => format!("{}: {}", dotted(param), without_path(&error.message, param)),
    }
}

/// `tools[0].name` as `tools.0.name`. What follows a `/` is a pointer inside a schema and stays.
fn dotted(param: &str) -> String {
    let (path, pointer) = param.split_at(param.find('/').unwrap_or(param.len()));
    format!("{}{pointer}", path.replace(']', "").replace('[', "."))
}

/// What readers of fields say names the path in OpenAI's words; here it stands before the message already.
fn without_path(message: &str, param: &str) -> String {
    if message == format!("Missing required parameter: '{param}'") {
        return "Field required".to_owned();
    }
    if let Some(hint) = message.strip_prefix(&format!("Unrecognized request argument supplied: {param}")) {
        return format!("Extra inputs are not permitted{hint}");
    }
    let said = ["Invalid type for", "Invalid value for"]
        .into_iter()
        .find_map(|words| message.strip_prefix(&format!("{words} '{param}': ")));
    said.unwrap_or(message).replace(&format!("'{param}'"), &format!("'{}'", dotted(param)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(error: &Error, said: &str) {
        assert_eq!(message(error), said);
    }

    #[test]
    fn a_message_begins_with_the_path_and_does_not_repeat_it() {
        check(&crate::fields::missing("messages.0.role"), "messages.0.role: Field required");
        check(
            &crate::fields::wrong_type("max_tokens", "an integer", &"x".into()),
            "max_tokens: expected an integer, but got a string",
        );
        let mut object = crate::fields::Object::root(serde_json::json!({"max_token": 5})).unwrap();
        assert!(object.take("max_tokens").is_none());
        check(
            &object.finish().unwrap_err(),
            "max_token: Extra inputs are not permitted; did you mean 'max_tokens'?",
        );
        check(
            &Error::invalid("tools[2].function.parameters/items", "no such type"),
            "tools.2.function.parameters/items: no such type",
        );
        check(&crate::fields::unsupported("stop[0]"), "stop.0: 'stop.0' is not supported by this server");
        check(&Error::new(ErrorKind::ContextLength, "9 of 5").at("messages"), "prompt is too long: 9 of 5");
    }

    #[test]
    fn an_error_has_a_type_and_the_requests_id() {
        let error = Error::new(ErrorKind::Overloaded, "full");
        assert_eq!(
            body(&error, Some("req_1")),
            r#"{"type":"error","error":{"type":"rate_limit_error","message":"full"},"request_id":"req_1"}"#
        );
        assert_eq!(
            body(&Error::new(ErrorKind::Internal, "oops"), None),
            r#"{"type":"error","error":{"type":"api_error","message":"oops"}}"#
        );
    }
}

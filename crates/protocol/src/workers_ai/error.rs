//! Errors as Workers AI writes them: numeric codes in an envelope; on `/ai/v1/*` OpenAI's object beside it; through
//! the AI binding an object of its own.

use crate::openai::{error as openai, to_json};
use crate::{Error, ErrorKind};
use serde::Serialize;

/// What a full queue is called here; clients look for this text.
const CAPACITY: &str = "Capacity temporarily exceeded, please try again.";

/// The code of an answer that is not the JSON that was asked for.
const UNMET: u32 = 5024;

/// The numeric code of a kind of error. `docs/errors.md` lists them for callers.
#[must_use]
pub const fn code(kind: ErrorKind) -> u32 {
    match kind {
        ErrorKind::InvalidRequest | ErrorKind::Unsupported => 5006,
        ErrorKind::Malformed | ErrorKind::UnsupportedEncoding => 3003,
        ErrorKind::ContextLength => 5021,
        ErrorKind::ModelNotFound => 5007,
        ErrorKind::RouteNotFound => 7000,
        ErrorKind::NotFound => 7002,
        ErrorKind::MethodNotAllowed => 7001,
        ErrorKind::Unauthorized => 10000,
        ErrorKind::KeyRefused => 2009,
        ErrorKind::Forbidden => 9109,
        ErrorKind::Timeout | ErrorKind::UpstreamTimeout => 3007,
        ErrorKind::TooLarge => 3006,
        ErrorKind::Overloaded | ErrorKind::Limited => 3040,
        ErrorKind::Unpaid => 2021,
        ErrorKind::PromptBlocked => 2016,
        ErrorKind::AnswerBlocked => 2017,
        ErrorKind::PromptWithheld => 2029,
        ErrorKind::AnswerWithheld => 2030,
        ErrorKind::Unavailable | ErrorKind::Upstream | ErrorKind::Internal => 5001,
    }
}

/// The HTTP status on native routes, where an unknown model is a bad request.
#[must_use]
pub const fn status(kind: ErrorKind) -> u16 {
    match kind {
        ErrorKind::ModelNotFound => 400,
        ErrorKind::InvalidRequest
        | ErrorKind::Malformed
        | ErrorKind::ContextLength
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
        | ErrorKind::Unavailable
        | ErrorKind::Upstream
        | ErrorKind::UpstreamTimeout
        | ErrorKind::Internal => kind.status(),
    }
}

/// Whether inference says it, and not the API layer before it.
const fn of_inference(kind: ErrorKind) -> bool {
    match kind {
        ErrorKind::Unauthorized
        | ErrorKind::KeyRefused
        | ErrorKind::RouteNotFound
        | ErrorKind::NotFound
        | ErrorKind::MethodNotAllowed
        | ErrorKind::Limited
        | ErrorKind::Unpaid
        | ErrorKind::PromptBlocked
        | ErrorKind::AnswerBlocked
        | ErrorKind::PromptWithheld
        | ErrorKind::AnswerWithheld
        | ErrorKind::Forbidden => false,
        ErrorKind::InvalidRequest
        | ErrorKind::Malformed
        | ErrorKind::ContextLength
        | ErrorKind::ModelNotFound
        | ErrorKind::Unsupported
        | ErrorKind::Timeout
        | ErrorKind::TooLarge
        | ErrorKind::UnsupportedEncoding
        | ErrorKind::Overloaded
        | ErrorKind::Unavailable
        | ErrorKind::Upstream
        | ErrorKind::UpstreamTimeout
        | ErrorKind::Internal => true,
    }
}

/// What went wrong, in words that clients may look for.
fn description(error: &Error) -> String {
    match error.kind {
        ErrorKind::Unauthorized => "Authentication error".to_owned(),
        // A provider says more, and which one it was.
        ErrorKind::Overloaded if error.status.is_some() => format!("{CAPACITY} ({})", error.message),
        ErrorKind::Overloaded => CAPACITY.to_owned(),
        _ => error.message.clone(),
    }
}

/// The text of an error: what the API layer says stands bare, what inference says has a prefix.
fn message(error: &Error) -> String {
    let description = description(error);
    if of_inference(error.kind) { format!("AiError: {description}") } else { description }
}

#[derive(Serialize)]
struct Body<'a> {
    result: Option<()>,
    success: bool,
    errors: [Entry; 1],
    messages: [(); 0],
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<openai::WireError<'a>>,
}

#[derive(Serialize)]
struct Entry {
    code: u32,
    message: String,
}

/// The body of an error on native routes.
#[must_use]
pub fn body(error: &Error) -> String {
    write(error, None)
}

/// The body of an error where accounts are managed: no inference has any part in it.
#[must_use]
pub fn body_for_control(error: &Error) -> String {
    let errors = [Entry { code: code(error.kind), message: description(error) }];
    to_json(&Body { result: None, success: false, errors, messages: [], error: None })
}

/// The body of an error on `/ai/v1/*`: readable for clients of either API.
#[must_use]
pub fn body_for_openai_clients(error: &Error) -> String {
    write(error, Some(error.into()))
}

fn write(error: &Error, openai: Option<openai::WireError<'_>>) -> String {
    let errors = [Entry { code: code(error.kind), message: message(error) }];
    to_json(&Body { result: None, success: false, errors, messages: [], error: openai })
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct BindingBody<'a> {
    internal_code: u32,
    message: &'a str,
    name: &'static str,
    description: &'a str,
    // Some calls of the binding read this form instead.
    errors: [Entry; 1],
}

/// The body of an error through the AI binding, which throws it as `<internalCode>: <description>`.
#[must_use]
pub fn body_for_binding(error: &Error) -> String {
    for_binding(code(error.kind), &message(error), &description(error))
}

fn for_binding(code: u32, message: &str, description: &str) -> String {
    let errors = [Entry { code, message: message.to_owned() }];
    to_json(&BindingBody { internal_code: code, message, name: "AiError", description, errors })
}

/// The numeric code on AI Gateway's routes.
const fn gateway_code(kind: ErrorKind) -> u32 {
    match kind {
        ErrorKind::Unauthorized | ErrorKind::KeyRefused | ErrorKind::Forbidden => 2009,
        ErrorKind::Upstream | ErrorKind::UpstreamTimeout | ErrorKind::Unavailable => 2005,
        ErrorKind::Limited => 2003,
        ErrorKind::InvalidRequest
        | ErrorKind::Malformed
        | ErrorKind::ContextLength
        | ErrorKind::ModelNotFound
        | ErrorKind::RouteNotFound
        | ErrorKind::NotFound
        | ErrorKind::MethodNotAllowed
        | ErrorKind::Unsupported
        | ErrorKind::Timeout
        | ErrorKind::TooLarge
        | ErrorKind::UnsupportedEncoding
        | ErrorKind::Overloaded
        | ErrorKind::Unpaid
        | ErrorKind::PromptBlocked
        | ErrorKind::AnswerBlocked
        | ErrorKind::PromptWithheld
        | ErrorKind::AnswerWithheld
        | ErrorKind::Internal => code(kind),
    }
}

/// The body of an error on AI Gateway's routes, where clients read `error` or `errors`, an array either way.
#[must_use]
pub fn body_for_ai_gateway(error: &Error) -> String {
    #[derive(Serialize)]
    #[serde(rename_all = "camelCase")]
    struct Body<'a> {
        success: bool,
        result: [(); 0],
        messages: [(); 0],
        error: &'a [Entry; 1],
        errors: &'a [Entry; 1],
        name: &'static str,
        http_code: u16,
        internal_code: u32,
        // Not Cloudflare's: clients of OpenAI, which find no object in `error`, show these.
        message: &'a str,
        param: Option<&'a str>,
    }
    // Two of its codes are for what the path names.
    let code = match error.param.as_deref() {
        Some("cf-aig-gateway-id") => 2001,
        Some("provider") => 2008,
        _ => gateway_code(error.kind),
    };
    let entry = [Entry { code, message: error.message.clone() }];
    to_json(&Body {
        success: false,
        result: [],
        messages: [],
        error: &entry,
        errors: &entry,
        name: "AiGatewayError",
        http_code: error.kind.status(),
        internal_code: code,
        message: &error.message,
        param: error.param.as_deref(),
    })
}

/// The body of the answer to a request in JSON mode whose text is no JSON; `why` says how that came.
#[must_use]
pub fn unmet_json_mode(why: &str) -> String {
    let errors = [Entry { code: UNMET, message: format!("AiError: {}", unmet(why)) }];
    to_json(&Body { result: None, success: false, errors, messages: [], error: None })
}

/// The same through the AI binding.
#[must_use]
pub fn unmet_json_mode_for_binding(why: &str) -> String {
    let description = unmet(why);
    for_binding(UNMET, &format!("AiError: {description}"), &description)
}

/// Clients look for these words.
fn unmet(why: &str) -> String {
    format!("JSON Mode couldn't be met: {why}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_accounts_are_managed_no_error_is_said_to_be_of_inference() {
        let body = body_for_control(&Error::invalid("page", "Invalid value for 'page'"));
        assert!(body.contains(r#""message":"Invalid value for 'page'""#), "{body}");
    }

    #[test]
    fn errors_have_the_documented_envelope() {
        assert_eq!(
            body(&Error::new(ErrorKind::Unauthorized, "whatever")),
            r#"{"result":null,"success":false,"errors":[{"code":10000,"message":"Authentication error"}],"messages":[]}"#
        );
        assert_eq!(
            body_for_openai_clients(&Error::invalid("n", "too many")),
            concat!(
                r#"{"result":null,"success":false,"errors":[{"code":5006,"message":"AiError: too many"}],"messages":[],"#,
                r#""error":{"message":"too many","type":"invalid_request_error","param":"n","code":"invalid_value"}}"#
            )
        );
    }

    #[test]
    fn the_binding_reads_code_and_description() {
        assert_eq!(
            body_for_binding(&Error::new(ErrorKind::Overloaded, "the queue is full at 3 requests")),
            concat!(
                r#"{"internalCode":3040,"message":"AiError: Capacity temporarily exceeded, please try again.","#,
                r#""name":"AiError","description":"Capacity temporarily exceeded, please try again.","#,
                r#""errors":[{"code":3040,"message":"AiError: Capacity temporarily exceeded, please try again."}]}"#
            )
        );
        assert!(
            unmet_json_mode("cut")
                .contains(r#""errors":[{"code":5024,"message":"AiError: JSON Mode couldn't be met: cut"}]"#)
        );
        assert!(unmet_json_mode_for_binding("cut").contains(r#""internalCode":5024"#));
    }

    /// As if the caller's own key were wrong, which it is not.
    #[test]
    fn what_a_provider_says_of_its_key_and_of_its_room_is_told_as_its_own() {
        let refused = Error::new(ErrorKind::KeyRefused, "openai: Incorrect API key");
        let entry = r#"{"code":2009,"message":"openai: Incorrect API key"}"#;
        assert!(body(&refused).contains(entry) && body_for_binding(&refused).contains(entry));
        let full = Error::new(ErrorKind::Overloaded, "openai: Rate limit reached for gpt-5");
        let full = body(&Error { status: Some(429), ..full });
        assert!(full.contains(CAPACITY) && full.contains("Rate limit reached for gpt-5"), "{full}");
    }

    #[test]
    fn ai_gateways_clients_find_its_codes_under_both_keys() {
        let check = |error: Error, code: u32| {
            let body: serde_json::Value = serde_json::from_str(&body_for_ai_gateway(&error)).unwrap();
            assert_eq!((&body["error"][0]["code"], &body["errors"][0]["code"]), (&code.into(), &code.into()));
            assert_eq!(
                (&body["internalCode"], &body["httpCode"]),
                (&code.into(), &error.kind.status().into())
            );
            assert_eq!(body["message"], error.message.as_str());
            assert_eq!(body["param"].as_str(), error.param.as_deref());
        };
        check(Error::invalid("cf-aig-gateway-id", "none"), 2001);
        check(Error::invalid("provider", "none"), 2008);
        check(Error::new(ErrorKind::Unauthorized, "none"), 2009);
        check(Error::new(ErrorKind::UpstreamTimeout, "late"), 2005);
        check(Error::invalid("stream", "must be true or false"), 5006);
    }

    #[test]
    fn a_full_queue_has_the_text_clients_look_for() {
        let error = Error::new(ErrorKind::Overloaded, "the queue is full at 3 requests");
        assert!(body(&error).contains(
            r#"{"code":3040,"message":"AiError: Capacity temporarily exceeded, please try again."}"#
        ));
    }
}

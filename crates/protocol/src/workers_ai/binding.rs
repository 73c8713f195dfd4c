//! The wire form of a Worker's AI binding: what `env.AI.run(model, inputs, options)` sends.
//!
//! The model stands in a header, the body holds inputs and options. Faults are named as the Worker's author wrote
//! them: `prompt`, and not `inputs.prompt`.

use crate::fields::{Object, missing, unsupported};
use crate::{Error, json};
use serde_json::Value;

/// The header that names the model.
pub const MODEL_HEADER: &str = "cf-consn-model-id";

/// The model that the header names; `known` tells whether there is one of that name. A name may have a prefix, which
/// says by whose tests the call is made and nothing about the model.
#[must_use]
pub fn model(header: &str, known: impl Fn(&str) -> bool) -> &str {
    match header.split_once(':') {
        Some((_, rest)) if !known(header) => rest,
        _ => header,
    }
}

/// Reads the body: the inputs.
pub fn parse(body: &[u8]) -> Result<Value, Error> {
    let mut fields = Object::root(json::parse(body)?)?;
    let inputs = fields.take("inputs").ok_or_else(|| missing("inputs"))?;
    if let Some(options) = fields.object("options")? {
        self::options(options)?;
    }
    fields.finish()?;
    Ok(inputs)
}

/// What `options.gateway` asks: the gateway that the call goes through, and what its headers would say.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Through {
    /// The gateway's id.
    pub id: Option<String>,
    /// Headers of AI Gateway and their values.
    pub headers: Vec<(&'static str, String)>,
}

/// Members of `options.gateway`, by the headers that say the same. Source: `GatewayOptions` in Cloudflare's
/// `@cloudflare/workers-types`.
const SETTINGS: &[(&str, &str)] = &[
    ("skipCache", "cf-aig-skip-cache"),
    ("cacheTtl", "cf-aig-cache-ttl"),
    ("cacheKey", "cf-aig-cache-key"),
    ("collectLog", "cf-aig-collect-log"),
    ("eventId", "cf-aig-event-id"),
    ("requestTimeoutMs", "cf-aig-request-timeout"),
];

/// The same, of its `retries`.
const RETRIES: &[(&str, &str)] = &[
    ("maxAttempts", "cf-aig-max-attempts"),
    ("retryDelayMs", "cf-aig-retry-delay"),
    ("backoff", "cf-aig-backoff"),
];

/// Reads the gateway that a body names in its options; nothing where it names none. What else is wrong with the body is
/// for [`parse`] to say.
///
/// # Errors
/// Names the member that is none, or has the wrong type.
pub fn through(body: &[u8]) -> Result<Option<Through>, Error> {
    #[derive(serde::Deserialize)]
    struct Body {
        options: Option<Options>,
    }
    #[derive(serde::Deserialize)]
    struct Options {
        gateway: Option<Value>,
    }
    let body = serde_json::from_slice::<Body>(body).ok();
    let Some(value) = body.and_then(|body| body.options?.gateway) else { return Ok(None) };
    const AT: &str = "options.gateway";
    let Value::Object(members) = value else { return Err(wrong(AT.to_owned(), "an object")) };
    let mut found = Through::default();
    for (name, value) in members {
        let place = format!("{AT}.{name}");
        match (name.as_str(), value) {
            (_, Value::Null) => {}
            ("id", Value::String(id)) => found.id = Some(id),
            ("id", _) => return Err(wrong(place, "a text")),
            ("metadata", metadata @ Value::Object(_)) => {
                found.headers.push(("cf-aig-metadata", in_ascii(&metadata)));
            }
            ("retries", Value::Object(retries)) => {
                for (name, value) in &retries {
                    found.headers.extend(setting(RETRIES, name, value, format!("{place}.{name}"))?);
                }
            }
            ("metadata" | "retries", _) => return Err(wrong(place, "an object")),
            (name, value) => found.headers.extend(setting(SETTINGS, name, &value, place)?),
        }
    }
    Ok(Some(found))
}

fn wrong(place: String, wanted: &str) -> Error {
    let message = format!("Invalid value for '{place}': expected {wanted}");
    Error::invalid(place, message)
}

/// The header that says what a setting of this table says.
fn setting(
    table: &[(&str, &'static str)],
    name: &str,
    value: &Value,
    place: String,
) -> Result<Option<(&'static str, String)>, Error> {
    let Some((_, header)) = table.iter().find(|(known, _)| *known == name) else {
        let message = format!("There is no setting '{place}'");
        return Err(Error::invalid(place, message));
    };
    match value {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some((header, text.clone()))),
        Value::Bool(_) | Value::Number(_) => Ok(Some((header, value.to_string()))),
        Value::Array(_) | Value::Object(_) => Err(wrong(place, "a text, a number or a truth value")),
    }
}

/// JSON as a header can hold it.
fn in_ascii(value: &Value) -> String {
    let mut text = String::new();
    for letter in value.to_string().chars() {
        if letter.is_ascii() {
            text.push(letter);
        } else {
            // Outside of texts JSON has none.
            letter.encode_utf16(&mut [0; 2]).iter().for_each(|half| text.push_str(&format!("\\u{half:04x}")));
        }
    }
    text
}

/// The gateway is read before ([`through`]).
fn options(mut options: Object) -> Result<(), Error> {
    options.object("gateway")?;
    options.boolean("returnRawResponse")?;
    options.harmless(&["signal", "tags"]);
    for name in ["queueRequest", "websocket"] {
        if options.boolean(name)? == Some(true) {
            return Err(unsupported(&options.path(name)));
        }
    }
    options.boolean("rejectIfBusy")?;
    options.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_prefix_is_no_part_of_the_model() {
        let known = |name: &str| name == "@cf/a/b" || name == "own:tag";
        assert_eq!(model("@cf/a/b", known), "@cf/a/b");
        assert_eq!(model("canary:@cf/a/b", known), "@cf/a/b");
        assert_eq!(model("own:tag", known), "own:tag");
    }

    #[test]
    fn a_gateway_in_the_options_says_what_its_headers_would() {
        let read = |gateway: Value| through(json!({"options": {"gateway": gateway}}).to_string().as_bytes());
        let asked = json!({"id": "g", "skipCache": true, "cacheTtl": 60, "cacheKey": "k", "metadata": {"a": 1},
            "collectLog": false, "eventId": "e", "requestTimeoutMs": 900,
            "retries": {"maxAttempts": 3, "retryDelayMs": 10, "backoff": "linear"}});
        let found = read(asked).unwrap().unwrap();
        assert_eq!(found.id.as_deref(), Some("g"));
        for (header, value) in [
            ("cf-aig-skip-cache", "true"),
            ("cf-aig-cache-ttl", "60"),
            ("cf-aig-cache-key", "k"),
            ("cf-aig-metadata", "{\"a\":1}"),
            ("cf-aig-collect-log", "false"),
            ("cf-aig-event-id", "e"),
            ("cf-aig-request-timeout", "900"),
            ("cf-aig-max-attempts", "3"),
            ("cf-aig-retry-delay", "10"),
            ("cf-aig-backoff", "linear"),
        ] {
            assert!(found.headers.contains(&(header, value.to_owned())), "{header}: {found:?}");
        }
        let found = read(json!({"metadata": {"a": "語🦀"}})).unwrap().unwrap();
        assert_eq!(found.headers, [("cf-aig-metadata", "{\"a\":\"\\u8a9e\\ud83e\\udd80\"}".to_owned())]);
        assert_eq!(through(b"{\"inputs\":{}}"), Ok(None));
        for (gateway, place) in [
            (json!("g"), "options.gateway"),
            (json!({"id": 1}), "options.gateway.id"),
            (json!({"colour": "red"}), "options.gateway.colour"),
            (json!({"metadata": "a"}), "options.gateway.metadata"),
            (json!({"cacheKey": {}}), "options.gateway.cacheKey"),
            (json!({"retries": {"colour": 1}}), "options.gateway.retries.colour"),
        ] {
            assert_eq!(read(gateway.clone()).unwrap_err().param.as_deref(), Some(place), "{gateway}");
        }
    }

    #[test]
    fn options_that_change_the_answer_are_refused_by_name() {
        let read = |body: Value| parse(body.to_string().as_bytes());
        let gateway = json!({"id": "g", "skipCache": true, "metadata": {"a": 1}});
        let body = json!({"inputs": {"prompt": "a"}, "options": {"gateway": gateway, "queueRequest": false}});
        assert_eq!(read(body), Ok(json!({"prompt": "a"})));
        for (body, param) in [
            (json!({}), "inputs"),
            (json!({"inputs": {}, "more": 1}), "more"),
            (json!({"inputs": {}, "options": {"queueRequest": true}}), "options.queueRequest"),
            (json!({"inputs": {}, "options": {"websocket": true}}), "options.websocket"),
            (json!({"inputs": {}, "options": {"gateway": "g"}}), "options.gateway"),
            (json!({"inputs": {}, "options": {"colour": 1}}), "options.colour"),
        ] {
            assert_eq!(read(body.clone()).unwrap_err().param.as_deref(), Some(param), "{body}");
        }
    }
}

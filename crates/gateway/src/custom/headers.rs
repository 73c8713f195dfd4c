//! Headers that an account's own provider is sent: read, shown by their last characters, and completed where a client
//! sends back what it was shown. Not here: sealing.

use crate::byok::preview;
use crate::call::may_be_set;
use hyper::http::{HeaderMap, HeaderName, HeaderValue};
use protocol::Error;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt;

/// Most headers, and most bytes of all of them.
const MOST: (usize, usize) = (32, 16 << 10);

/// What the preview of a value begins with, which no header's value does.
const HIDDEN: char = '…';

/// Names in small letters, and values.
#[derive(Clone, Default, PartialEq, Eq)]
pub(super) struct Headers(BTreeMap<String, String>);

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.keys()).finish()
    }
}

fn wrong<T>(why: &str) -> Result<T, Error> {
    Err(Error::invalid("headers", format!("Invalid value for 'headers': {why}")))
}

impl Headers {
    /// Reads a JSON object of texts, itself or as a text; nothing, and an empty text, are none.
    ///
    /// # Errors
    /// Names the header that cannot be one.
    pub(super) fn parse(value: &Value) -> Result<Self, Error> {
        let parsed;
        let object = match value {
            Value::Null => return Ok(Self::default()),
            Value::String(text) if text.is_empty() => return Ok(Self::default()),
            Value::String(text) => {
                parsed = serde_json::from_str::<Value>(text).unwrap_or_default();
                parsed.as_object()
            }
            other => other.as_object(),
        };
        let Some(object) = object else { return wrong("expected a JSON object of texts") };
        let mut headers = BTreeMap::new();
        for (name, value) in object {
            let shown: String = name.chars().take(64).collect();
            let Ok(known) = HeaderName::try_from(name) else {
                return wrong(&format!("'{shown}' is no name"));
            };
            if !may_be_set(&known) {
                return wrong(&format!("'{shown}' is set by this server"));
            }
            let Some(value) = value.as_str().map(str::trim) else {
                return wrong(&format!("'{shown}' is no text"));
            };
            if !value.starts_with(HIDDEN) && (HeaderValue::try_from(value).is_err() || !value.is_ascii()) {
                return wrong(&format!("the value of '{shown}' holds what no header can"));
            }
            headers.insert(known.as_str().to_owned(), value.to_owned());
        }
        let bytes: usize = headers.iter().map(|(name, value)| name.len() + value.len()).sum();
        if headers.len() > MOST.0 || bytes > MOST.1 {
            return wrong(&format!("at most {} headers and {} bytes", MOST.0, MOST.1));
        }
        Ok(Self(headers))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether values are what is shown of others.
    pub(super) fn has_previews(&self) -> bool {
        self.0.values().any(|value| value.starts_with(HIDDEN))
    }

    /// Puts the values of others in the place of what is shown of them.
    ///
    /// # Errors
    /// Names the header of which there is no such value.
    pub(super) fn complete(&mut self, old: &Self) -> Result<(), Error> {
        for (name, value) in self.0.iter_mut().filter(|(_, value)| value.starts_with(HIDDEN)) {
            match old.0.get(name) {
                Some(known) if preview(known) == *value => value.clone_from(known),
                _ => return wrong(&format!("the value of '{name}' is only its end")),
            }
        }
        Ok(())
    }

    /// What is shown.
    pub(super) fn previews(&self) -> BTreeMap<String, String> {
        self.0.iter().map(|(name, value)| (name.clone(), preview(value))).collect()
    }

    /// What is sealed.
    pub(super) fn text(&self) -> String {
        serde_json::json!(self.0).to_string()
    }

    /// What is sent; values are marked as secrets.
    pub(super) fn map(&self) -> HeaderMap {
        let mut map = HeaderMap::with_capacity(self.0.len());
        for (name, value) in &self.0 {
            if let (Ok(name), Ok(mut value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
                value.set_sensitive(true);
                map.insert(name, value);
            }
        }
        map
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn headers_are_an_object_of_texts_itself_or_written_as_one() {
        let object = json!({"X-Api-Key": "k-0123456789abcdef", "x-team": "search"});
        let headers = Headers::parse(&object).unwrap();
        assert_eq!(Headers::parse(&object.to_string().into()).unwrap(), headers);
        assert_eq!(json!(headers.previews()), json!({"x-api-key": "…cdef", "x-team": "…"}));
        for none in [Value::Null, json!(""), json!({}), json!("{}")] {
            assert!(Headers::parse(&none).unwrap().is_empty(), "{none}");
        }
        assert!(!format!("{headers:?}").contains("0123456789"));
    }

    #[test]
    fn what_is_shown_of_a_value_stands_for_it_when_it_comes_back() {
        let old = Headers::parse(&json!({"x-key": "k-0123456789abcdef"})).unwrap();
        let mut back = Headers::parse(&json!({"x-key": "…cdef", "x-new": "n"})).unwrap();
        back.complete(&old).unwrap();
        assert_eq!(back, Headers::parse(&json!({"x-key": "k-0123456789abcdef", "x-new": "n"})).unwrap());
        for other in [json!({"x-key": "…cdeg"}), json!({"x-other": "…cdef"})] {
            assert!(Headers::parse(&other).unwrap().complete(&old).is_err(), "{other}");
        }
    }

    #[test]
    fn what_cannot_be_sent_is_refused_by_name() {
        for (value, word) in [
            (json!("no object"), "object"),
            (json!([1]), "object"),
            (json!({"a b": "c"}), "a b"),
            (json!({"Host": "c"}), "Host"),
            (json!({"content-length": "1"}), "content-length"),
            (json!({"cf-aig-zdr": "true"}), "cf-aig-zdr"),
            (json!({"x": 1}), "'x'"),
            (json!({"x": "a\nb"}), "'x'"),
        ] {
            let error = Headers::parse(&value).unwrap_err();
            assert!(error.message.contains(word) && error.param.as_deref() == Some("headers"), "{error:?}");
        }
    }
}

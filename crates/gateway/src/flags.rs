//! Headers of AI Gateway that say yes or no. What is neither is refused by the header's name: who asks that nothing be
//! kept, and writes it wrong, must not have it kept.

use hyper::http::HeaderMap;
use protocol::Error;

/// Nothing of the request may be kept.
pub const ZERO_RETENTION: &str = "cf-aig-zdr";
/// Whether the request is logged.
pub const COLLECT_LOG: &str = "cf-aig-collect-log";
/// Whether what is said is logged too.
pub const COLLECT_PAYLOAD: &str = "cf-aig-collect-log-payload";
/// No answer is given again.
pub const SKIP_CACHE: &str = "cf-aig-skip-cache";
/// The same, as it was called before.
pub const SKIP_CACHE_OLD: &str = "cf-skip-cache";
/// Keys of the server are not for this request.
pub const NO_WHOLESALE: &str = "cf-aig-no-wholesale";
/// The stream can be read on after its connection was lost.
pub const RESUMABLE: &str = "cf-aig-resumable";
/// The time to the first byte holds for the last attempt too.
pub const STRICT_TIMEOUT: &str = "cf-aig-request-timeout-strict";

const ALL: [&str; 8] = [
    ZERO_RETENTION,
    COLLECT_LOG,
    COLLECT_PAYLOAD,
    SKIP_CACHE,
    SKIP_CACHE_OLD,
    NO_WHOLESALE,
    RESUMABLE,
    STRICT_TIMEOUT,
];

/// Checks all of them.
///
/// # Errors
/// Names the header that is neither `true`, `false`, `1` nor `0`, or is there twice and says both.
pub fn check(headers: &HeaderMap) -> Result<(), Error> {
    for name in headers.keys().map(hyper::http::HeaderName::as_str) {
        // All names but few are told apart by their beginning.
        if name.starts_with("cf-")
            && let Some(known) = ALL.iter().find(|known| **known == name)
        {
            flag(headers, known)?;
        }
    }
    Ok(())
}

/// What a header says; nothing where it is not there.
///
/// # Errors
/// As [`check`].
pub fn flag(headers: &HeaderMap, name: &'static str) -> Result<Option<bool>, Error> {
    let mut said = None;
    for value in headers.get_all(name) {
        let word = value.as_bytes().trim_ascii();
        let is = |words: [&str; 2]| words.iter().any(|known| word.eq_ignore_ascii_case(known.as_bytes()));
        let value = match (is(["true", "1"]), is(["false", "0"])) {
            (true, _) => true,
            (_, true) => false,
            _ => return Err(Error::invalid(name, format!("{name} must be true or false (or 1 or 0)"))),
        };
        if said.is_some_and(|said| said != value) {
            return Err(Error::invalid(name, format!("{name} says both true and false")));
        }
        said = Some(value);
    }
    Ok(said)
}

/// Whether a header that was checked before says yes.
#[must_use]
pub fn is_set(headers: &HeaderMap, name: &'static str) -> bool {
    matches!(flag(headers, name), Ok(Some(true)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::http::HeaderValue;

    fn headers(values: &[&'static str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(ZERO_RETENTION, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn a_flag_is_true_or_false_in_any_case_or_1_or_0_and_nothing_else() {
        for (values, said) in [
            (&[][..], None),
            (&["true"], Some(true)),
            (&["True"], Some(true)),
            (&["1"], Some(true)),
            (&[" FALSE "], Some(false)),
            (&["0", "false"], Some(false)),
        ] {
            assert_eq!(flag(&headers(values), ZERO_RETENTION), Ok(said), "{values:?}");
            assert_eq!(check(&headers(values)), Ok(()));
        }
        for values in [&["yes"][..], &[""], &["ture"], &["2"], &["true", "false"], &["on"]] {
            let error = check(&headers(values)).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(ZERO_RETENTION), "{values:?}");
        }
    }
}

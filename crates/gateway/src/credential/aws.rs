//! Amazon's signature of a request, version 4: `Authorization: AWS4-HMAC-SHA256 …` with `x-amz-date`.
//!
//! Signed are the method, the path, the query, the body and three headers (`host`, `x-amz-date`, and `content-type` or
//! `x-amz-security-token` where they are sent), so that a proxy between may touch the others. The path is encoded once
//! more than it is sent, which holds for all services but S3. Source: "Create a signed AWS API request" in the IAM User
//! Guide; vectors from the examples there and from AWS's published test suite.

use hyper::http::header::{AUTHORIZATION, CONTENT_TYPE, HOST};
use hyper::http::{HeaderMap, HeaderValue, Method, Uri};
use protocol::workers_ai::catalog::timestamp;
use ring::hmac;
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::fmt;

/// Access keys of an account.
#[derive(Clone, PartialEq, Eq, Deserialize)]
pub struct Keys {
    /// The access key's id.
    #[serde(alias = "AccessKeyId", alias = "aws_access_key_id")]
    access_key_id: String,
    #[serde(alias = "SecretAccessKey", alias = "aws_secret_access_key")]
    secret_access_key: String,
    /// Of temporary keys.
    #[serde(alias = "SessionToken", alias = "aws_session_token")]
    session_token: Option<String>,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Keys({})", self.access_key_id)
    }
}

impl Keys {
    /// Reads `ID:SECRET`, `ID:SECRET:TOKEN`, or an object with the three.
    pub(super) fn read(secret: &str) -> Option<Self> {
        let keys = if secret.starts_with('{') {
            serde_json::from_str(secret).ok()?
        } else {
            let mut parts = secret.splitn(3, ':').map(str::to_owned);
            let (access_key_id, secret_access_key) = (parts.next()?, parts.next()?);
            Self { access_key_id, secret_access_key, session_token: parts.next() }
        };
        let plain = |text: &String| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic());
        let fits =
            [&keys.access_key_id, &keys.secret_access_key].into_iter().chain(&keys.session_token).all(plain);
        fits.then_some(keys)
    }

    /// Signs a request: sets `x-amz-date`, `authorization` and, with a session, `x-amz-security-token`. `now` in seconds
    /// since 1970. Nothing where the address has no host.
    #[must_use]
    pub fn sign(
        &self,
        place: Place<'_>,
        method: &Method,
        uri: &Uri,
        headers: &mut HeaderMap,
        body: &[impl AsRef<[u8]>],
        now: u64,
    ) -> Option<()> {
        let moment = moment(now);
        let day = &moment[..8];
        let mut signed =
            vec![(HOST.as_str(), uri.authority()?.as_str().to_owned()), ("x-amz-date", moment.clone())];
        // One that is no plain text goes unsigned.
        if let Some(Ok(kind)) = headers.get(CONTENT_TYPE).map(HeaderValue::to_str) {
            signed.push((CONTENT_TYPE.as_str(), trimmed(kind)));
        }
        if let Some(token) = &self.session_token {
            signed.push(("x-amz-security-token", token.clone()));
        }
        signed.sort_unstable();
        let names: Vec<&str> = signed.iter().map(|(name, _)| *name).collect();
        let names = names.join(";");
        let lines: String = signed.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
        let path: Vec<String> = uri.path().split('/').map(encoded).collect();
        let mut hash = Sha256::new();
        body.iter().for_each(|piece| hash.update(piece));
        let canonical = format!(
            "{method}\n{}\n{}\n{lines}\n{names}\n{}",
            path.join("/"),
            query(uri.query().unwrap_or_default()),
            hex(&hash.finalize())
        );
        let scope = format!("{day}/{}/{}/aws4_request", place.region, place.service);
        let text = format!("AWS4-HMAC-SHA256\n{moment}\n{scope}\n{}", hex(&Sha256::digest(&canonical)));
        let first = format!("AWS4{}", self.secret_access_key);
        let key = [day, place.region, place.service, "aws4_request"]
            .into_iter()
            .fold(first.into_bytes(), |key, part| mac(&key, part));
        let authorization = format!(
            "AWS4-HMAC-SHA256 Credential={}/{scope}, SignedHeaders={names}, Signature={}",
            self.access_key_id,
            hex(&mac(&key, &text))
        );
        let mut authorization = HeaderValue::from_str(&authorization).ok()?;
        authorization.set_sensitive(true);
        headers.insert(AUTHORIZATION, authorization);
        headers.insert("x-amz-date", HeaderValue::from_str(&moment).ok()?);
        if let Some(token) = &self.session_token {
            let mut token = HeaderValue::from_str(token).ok()?;
            token.set_sensitive(true);
            headers.insert("x-amz-security-token", token);
        }
        Some(())
    }
}

/// What a signature is for.
#[derive(Clone, Copy, Debug)]
pub struct Place<'a> {
    /// Such as `us-east-1`.
    pub region: &'a str,
    /// Such as `bedrock`.
    pub service: &'a str,
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A header's value with each run of spaces as one.
fn trimmed(value: &str) -> String {
    let words: Vec<&str> = value.split(' ').filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// All but letters, digits and `-._~` as `%XX` (RFC 3986, 2.3).
pub(crate) fn encoded(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

/// The parameters in order, as they are written but for a missing `=`.
fn query(query: &str) -> String {
    let mut parts: Vec<(&str, &str)> = query
        .split('&')
        .filter(|part| !part.is_empty())
        .map(|part| part.split_once('=').unwrap_or((part, "")))
        .collect();
    parts.sort_unstable();
    let parts: Vec<String> = parts.iter().map(|(name, value)| format!("{name}={value}")).collect();
    parts.join("&")
}

/// `20150830T123600Z` of seconds since 1970.
fn moment(seconds: u64) -> String {
    let written = timestamp(seconds);
    let (day, time) = written.split_once(' ').unwrap_or((&written, ""));
    let time = time.split_once('.').map_or(time, |(whole, _)| whole);
    format!("{}T{}Z", day.replace('-', ""), time.replace(':', ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> Keys {
        Keys::read("AKIDEXAMPLE:wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY").unwrap()
    }

    /// 2015-08-30T12:36:00Z, of all the published vectors.
    const NOW: u64 = 1_440_938_160;

    #[track_caller]
    fn check(
        method: Method,
        uri: &str,
        service: &str,
        kind: Option<&'static str>,
        body: &str,
        names: &str,
        signature: &str,
    ) {
        let mut headers = HeaderMap::new();
        if let Some(kind) = kind {
            headers.insert(CONTENT_TYPE, HeaderValue::from_static(kind));
        }
        let place = Place { region: "us-east-1", service };
        keys().sign(place, &method, &uri.parse().unwrap(), &mut headers, &[body], NOW).unwrap();
        let expected = format!(
            "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20150830/us-east-1/{service}/aws4_request, SignedHeaders={names}, Signature={signature}"
        );
        assert_eq!(headers[AUTHORIZATION], expected, "{uri}");
        assert_eq!(headers["x-amz-date"], "20150830T123600Z");
    }

    /// AWS's published test suite: get-vanilla, get-vanilla-query-order-key-case, post-vanilla, post-x-www-form-urlencoded;
    /// and the example of the IAM User Guide.
    #[test]
    fn signatures_are_those_that_aws_published() {
        let plain = "host;x-amz-date";
        let typed = "content-type;host;x-amz-date";
        let home = "https://example.amazonaws.com/";
        check(
            Method::GET,
            home,
            "service",
            None,
            "",
            plain,
            "5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31",
        );
        check(
            Method::GET,
            "https://example.amazonaws.com/?Param2=value2&Param1=value1",
            "service",
            None,
            "",
            plain,
            "b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500",
        );
        check(
            Method::POST,
            home,
            "service",
            None,
            "",
            plain,
            "5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b",
        );
        check(
            Method::POST,
            home,
            "service",
            Some("application/x-www-form-urlencoded"),
            "Param1=value1",
            typed,
            "ff11897932ad3f4e8b18135d722051e5ac45fc38421b1da7b9d196a0fe09473a",
        );
        check(
            Method::GET,
            "https://iam.amazonaws.com/?Action=ListUsers&Version=2010-05-08",
            "iam",
            Some("application/x-www-form-urlencoded; charset=utf-8"),
            "",
            typed,
            "5d672d79c15b13162d9279b0855cfba6789a8edb4c82c400e06b5924a6f2b5d7",
        );
    }

    #[test]
    fn a_body_in_pieces_and_a_session_are_signed_too() {
        let signed = |keys: &Keys, body: &[&str]| {
            let mut headers = HeaderMap::new();
            let uri = "https://bedrock-runtime.eu-west-1.amazonaws.com/model/a%3A0/converse".parse().unwrap();
            let place = Place { region: "eu-west-1", service: "bedrock" };
            keys.sign(place, &Method::POST, &uri, &mut headers, body, NOW).unwrap();
            headers
        };
        assert_eq!(signed(&keys(), &["{\"a\"", ":1}"]), signed(&keys(), &["{\"a\":1}"]));
        assert_ne!(signed(&keys(), &["{}"]), signed(&keys(), &["[]"]));
        let session =
            Keys::read(r#"{"AccessKeyId":"AK","SecretAccessKey":"SK","SessionToken":"T"}"#).unwrap();
        let headers = signed(&session, &["{}"]);
        assert_eq!(headers["x-amz-security-token"], "T");
        let authorization = headers[AUTHORIZATION].to_str().unwrap();
        assert!(
            authorization.contains("SignedHeaders=host;x-amz-date;x-amz-security-token,"),
            "{authorization}"
        );
    }

    #[test]
    fn a_content_type_that_is_no_text_goes_unsigned() {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_bytes(b"application/\xff").unwrap());
        let place = Place { region: "eu-west-1", service: "bedrock" };
        let uri = "https://bedrock-runtime.eu-west-1.amazonaws.com/".parse().unwrap();
        keys().sign(place, &Method::POST, &uri, &mut headers, &["{}"], NOW).unwrap();
        assert!(headers[AUTHORIZATION].to_str().unwrap().contains("SignedHeaders=host;x-amz-date,"));
    }

    #[test]
    fn moments_are_those_of_the_calendar() {
        // As `date -u -d @… +%Y%m%dT%H%M%SZ` prints them.
        for (seconds, text) in [
            (0, "19700101T000000Z"),
            (951_782_400, "20000229T000000Z"),
            (1_440_938_160, "20150830T123600Z"),
            (1_764_547_199, "20251130T235959Z"),
            (4_107_542_400, "21000301T000000Z"),
        ] {
            assert_eq!(moment(seconds), text);
        }
    }

    #[test]
    fn keys_do_not_show_themselves() {
        let shown = format!("{:?}", keys());
        assert!(shown.contains("AKIDEXAMPLE") && !shown.contains("wJalr"), "{shown}");
    }
}

//! Access tokens of Google: a service account's key signs a claim (JWT, RS256), and the token server changes it for a
//! token that holds for an hour.
//!
//! A token is kept until five minutes before its end; while it is fetched, others who want the same one wait for it. The
//! token server is the one that the account's file names, which must be reached by TLS or be on this machine. Source:
//! "Using OAuth 2.0 for Server to Server Applications" of Google Identity, and RFC 7523.

use crate::scan::Pieces;
use crate::upstream::{Upstream, chunk};
use base::Clock;
use base64::Engine as _;
use base64::prelude::{BASE64_STANDARD, BASE64_URL_SAFE_NO_PAD};
use bytes::Bytes;
use hyper::http::{HeaderValue, Method, Request, Uri, header};
use protocol::{Error, ErrorKind};
use ring::rand::SystemRandom;
use ring::signature::{RSA_PKCS1_SHA256, RsaKeyPair};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// What a token may be used for.
const SCOPE: &str = "https://www.googleapis.com/auth/cloud-platform";

/// How long a claim holds, in seconds; Google takes no longer one.
const CLAIM: u64 = 3600;

/// How long before its end a token is changed for a new one.
const EARLY: Duration = Duration::from_secs(300);

/// How long the token server may take.
const PATIENCE: Duration = Duration::from_secs(20);

/// Longest answer of a token server.
const ANSWER_MAX: usize = 64 << 10;

/// A service account.
#[derive(Clone, PartialEq, Eq)]
pub struct Account {
    email: String,
    key_id: Option<String>,
    /// PKCS #8.
    key: Vec<u8>,
    token_uri: Uri,
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Account({})", self.email)
    }
}

impl Account {
    /// Reads a service account's file; nothing where it is none.
    pub(super) fn read(text: &str) -> Option<Self> {
        #[derive(Deserialize)]
        struct File {
            client_email: String,
            private_key: String,
            private_key_id: Option<String>,
            token_uri: String,
        }
        let file: File = serde_json::from_str(text).ok()?;
        let body = file.private_key.trim().strip_prefix("-----BEGIN PRIVATE KEY-----")?;
        let body = body.strip_suffix("-----END PRIVATE KEY-----")?;
        let body: String = body.split_whitespace().collect();
        let key = BASE64_STANDARD.decode(body).ok()?;
        RsaKeyPair::from_pkcs8(&key).ok()?;
        let token_uri: Uri = file.token_uri.parse().ok()?;
        is_trusted(&token_uri).then_some(())?;
        Some(Self { email: file.client_email, key_id: file.private_key_id, key, token_uri })
    }

    /// Whether its token server is Google's own.
    pub(crate) fn asks_google(&self) -> bool {
        let host = self.token_uri.host().unwrap_or_default();
        self.token_uri.scheme_str() == Some("https")
            && (host.ends_with(".googleapis.com") || host == "accounts.google.com")
    }

    /// A signed claim of this moment, in seconds since 1970.
    fn claim(&self, now: u64) -> Result<String, Error> {
        let header = json!({ "alg": "RS256", "typ": "JWT", "kid": self.key_id });
        let claim = json!({
            "iss": self.email, "scope": SCOPE, "aud": self.token_uri.to_string(), "iat": now, "exp": now + CLAIM,
        });
        let encoded = |value: serde_json::Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let text = format!("{}.{}", encoded(header), encoded(claim));
        let failed = || Error::new(ErrorKind::Internal, "the service account's key cannot sign");
        let pair = RsaKeyPair::from_pkcs8(&self.key).map_err(|_| failed())?;
        let mut signature = vec![0; pair.public().modulus_len()];
        pair.sign(&RSA_PKCS1_SHA256, &SystemRandom::new(), text.as_bytes(), &mut signature)
            .map_err(|_| failed())?;
        Ok(format!("{text}.{}", BASE64_URL_SAFE_NO_PAD.encode(signature)))
    }

    /// Tells accounts apart without holding their keys.
    fn print(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(self.token_uri.to_string());
        hash.update([0]);
        hash.update(&self.key);
        hash.finalize().into()
    }
}

/// Whether a claim may be sent there: it would let whoever reads it in.
fn is_trusted(uri: &Uri) -> bool {
    let Some(host) = uri.host() else { return false };
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let here = bare == "localhost" || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback());
    uri.scheme_str() == Some("https") || here
}

/// A token and when it ends, on the clock's own scale.
type Token = Option<(HeaderValue, Duration)>;

/// Tokens that were fetched.
#[derive(Debug, Default)]
pub struct Tokens(Mutex<HashMap<[u8; 32], Arc<Mutex<Token>>>>);

impl Tokens {
    /// The header's value for an account.
    ///
    /// # Errors
    /// When the token server gives none.
    pub async fn get(
        &self,
        account: &Account,
        upstream: &Upstream,
        clock: &dyn Clock,
    ) -> Result<HeaderValue, Error> {
        let slot = Arc::clone(self.0.lock().await.entry(account.print()).or_default());
        let mut slot = slot.lock().await;
        if let Some((value, end)) = &*slot
            && clock.now() + EARLY < *end
        {
            return Ok(value.clone());
        }
        let asked = clock.now();
        let fetched = timeout(PATIENCE, fetch(account, upstream, clock.unix_seconds())).await;
        let late = |_| Error::new(ErrorKind::UpstreamTimeout, "the token server did not answer in time");
        let (value, seconds) = fetched.map_err(late)??;
        *slot = Some((value.clone(), asked + Duration::from_secs(seconds)));
        Ok(value)
    }
}

async fn fetch(account: &Account, upstream: &Upstream, now: u64) -> Result<(HeaderValue, u64), Error> {
    let body = format!(
        "grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion={}",
        account.claim(now)?
    );
    let mut request = Request::new(Pieces::from(Bytes::from(body)).into());
    *request.method_mut() = Method::POST;
    *request.uri_mut() = account.token_uri.clone();
    let form = HeaderValue::from_static("application/x-www-form-urlencoded");
    request.headers_mut().insert(header::CONTENT_TYPE, form);
    let failed = |kind, why: String| Error::new(kind, format!("the token server gave no token: {why}"));
    let broken = |why: String| failed(ErrorKind::Upstream, why);
    let response = upstream.send(request, false).await.map_err(|error| broken(error.to_string()))?;
    let (head, mut body) = response.into_parts();
    let mut answer = Vec::new();
    while let Some(piece) = chunk(&mut body).await {
        answer.extend_from_slice(&piece.map_err(|error| broken(error.to_string()))?);
        if answer.len() > ANSWER_MAX {
            return Err(broken("its answer is too long".to_owned()));
        }
    }
    #[derive(Deserialize)]
    struct Granted {
        access_token: String,
        expires_in: u64,
    }
    #[derive(Default, Deserialize)]
    struct Refused {
        error: Option<String>,
        error_description: Option<String>,
    }
    if !head.status.is_success() {
        let said: Refused = serde_json::from_slice(&answer).unwrap_or_default();
        let words: Vec<String> = [said.error, said.error_description].into_iter().flatten().collect();
        let kind = if head.status.is_client_error() { ErrorKind::KeyRefused } else { ErrorKind::Upstream };
        return Err(failed(kind, format!("{} {}", head.status, words.join(": "))));
    }
    let granted: Granted =
        serde_json::from_slice(&answer).map_err(|_| broken("its answer is none".to_owned()))?;
    let mut value = HeaderValue::from_str(&format!("Bearer {}", granted.access_token))
        .map_err(|_| broken("its token is none".to_owned()))?;
    value.set_sensitive(true);
    Ok((value, granted.expires_in))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use ring::signature::{RSA_PKCS1_2048_8192_SHA256, UnparsedPublicKey};

    /// A service account whose token server is at this address.
    pub(crate) fn file(token_uri: &str) -> String {
        let key = include_str!("../../../../fixtures/keys/service-account.pem");
        json!({
            "type": "service_account", "project_id": "p", "private_key_id": "kid-1", "private_key": key,
            "client_email": "hearth@p.iam.gserviceaccount.com", "token_uri": token_uri,
        })
        .to_string()
    }

    /// Checks a claim's signature; its header and claim.
    pub(crate) fn verified(claim: &str) -> [serde_json::Value; 2] {
        let pem = include_str!("../../../../fixtures/keys/service-account.pem");
        let body: String = pem.lines().filter(|line| !line.starts_with('-')).collect();
        let pair = RsaKeyPair::from_pkcs8(&BASE64_STANDARD.decode(body).unwrap()).unwrap();
        let public = UnparsedPublicKey::new(&RSA_PKCS1_2048_8192_SHA256, pair.public());
        let (text, signature) = claim.rsplit_once('.').unwrap();
        let signature = BASE64_URL_SAFE_NO_PAD.decode(signature).unwrap();
        public.verify(text.as_bytes(), &signature).unwrap();
        let parts: Vec<_> = text.split('.').collect();
        [parts[0], parts[1]]
            .map(|part| serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(part).unwrap()).unwrap())
    }

    #[test]
    fn a_claim_is_signed_and_says_who_wants_what_until_when() {
        let account = Account::read(&file("https://oauth2.googleapis.com/token")).unwrap();
        let [header, claim] = verified(&account.claim(1000).unwrap());
        assert_eq!(header, json!({"alg": "RS256", "typ": "JWT", "kid": "kid-1"}));
        let expected = json!({
            "iss": "hearth@p.iam.gserviceaccount.com", "scope": SCOPE,
            "aud": "https://oauth2.googleapis.com/token", "iat": 1000, "exp": 4600,
        });
        assert_eq!(claim, expected);
        assert!(!format!("{account:?}").contains("PRIVATE"));
    }

    #[test]
    fn a_claim_goes_over_tls_or_nowhere_beyond_this_machine() {
        for (uri, taken) in [
            ("https://oauth2.googleapis.com/token", true),
            ("http://127.0.0.1:9/token", true),
            ("http://[::1]:9/token", true),
            ("http://10.0.0.1/token", false),
            ("http://localhost.example.com/token", false),
            ("/token", false),
        ] {
            let read = Account::read(&file(uri));
            assert_eq!(read.is_some(), taken, "{uri}");
            assert_eq!(
                read.is_some_and(|account| account.asks_google()),
                uri.contains("googleapis"),
                "{uri}"
            );
        }
        assert!(Account::read(&file("https://x/").replace("MII", "AAA")).is_none());
    }
}

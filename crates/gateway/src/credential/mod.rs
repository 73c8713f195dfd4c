//! What a provider's key is, and how it gets into a request: a header that is ready, a signature, or a token that must be
//! fetched.
//!
//! A key is one text wherever it is kept. For Google it is an access token or the JSON of a service account; for Amazon
//! `ACCESS_KEY_ID:SECRET_ACCESS_KEY`, with `:SESSION_TOKEN` where there is one, the JSON that `aws sts` prints, or an API
//! key of Bedrock. Not here: where keys are kept.

pub mod aws;
pub mod google;

use hyper::http::{HeaderName, HeaderValue, header};

/// How a provider wants its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Auth {
    /// `Authorization: Bearer KEY`.
    Bearer,
    /// In a header of this name.
    Header(&'static str),
    /// A token of Google's as `Authorization: Bearer`; a service account's key is changed for one.
    Google,
    /// Amazon's signature, version 4, of the request for this service; an API key is a bearer.
    Aws(&'static str),
}

impl Auth {
    /// The header that a key goes into.
    #[must_use]
    pub const fn header(self) -> HeaderName {
        match self {
            Self::Bearer | Self::Google | Self::Aws(_) => header::AUTHORIZATION,
            Self::Header(name) => HeaderName::from_static(name),
        }
    }
}

/// A key, read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Credential {
    /// The value of the provider's header.
    Header(HeaderValue),
    /// Signs each request.
    Aws(aws::Keys),
    /// Is changed for a token.
    Google(Box<google::Account>),
}

impl Credential {
    /// Reads a key; nothing where it is none.
    #[must_use]
    pub fn read(auth: Auth, secret: &str) -> Option<Self> {
        let secret = secret.trim();
        if secret.is_empty() {
            return None;
        }
        match auth {
            Auth::Google if secret.starts_with('{') => {
                return google::Account::read(secret).map(|account| Self::Google(Box::new(account)));
            }
            Auth::Aws(_) if secret.starts_with('{') || secret.contains(':') => {
                return aws::Keys::read(secret).map(Self::Aws);
            }
            Auth::Bearer | Auth::Header(_) | Auth::Google | Auth::Aws(_) => {}
        }
        let value = match auth {
            Auth::Bearer | Auth::Google | Auth::Aws(_) => format!("Bearer {secret}"),
            Auth::Header(_) => secret.to_owned(),
        };
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        Some(Self::Header(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_by_what_its_provider_wants() {
        let header = |auth, secret: &str| match Credential::read(auth, secret) {
            Some(Credential::Header(value)) => value.to_str().unwrap().to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!(header(Auth::Bearer, "k"), "Bearer k");
        assert_eq!(header(Auth::Header("x-goog-api-key"), "a:b"), "a:b");
        assert_eq!(header(Auth::Google, "ya29.t"), "Bearer ya29.t");
        assert_eq!(header(Auth::Aws("bedrock"), "ABSKxyz="), "Bearer ABSKxyz=");
        assert!(matches!(Credential::read(Auth::Aws("bedrock"), "AK:SK"), Some(Credential::Aws(_))));
        for (auth, secret) in [
            (Auth::Bearer, " "),
            (Auth::Bearer, "a\nb"),
            (Auth::Google, "{}"),
            (Auth::Aws("bedrock"), ":x"),
            (Auth::Aws("bedrock"), "{}"),
        ] {
            assert_eq!(Credential::read(auth, secret), None, "{secret}");
        }
    }
}

//! Which headers cross: to the provider all that are not the connection's, the gateway's or a key of Hearth's; back to
//! the client all that are not the connection's.

use crate::credential::Credential;
use crate::dialect::Dialect;
use crate::provider::Configured;
use hyper::http::{HeaderMap, HeaderName, HeaderValue, header};
use protocol::{Error, ErrorKind};
use std::sync::Arc;

/// Headers of one connection (RFC 9110, 7.6.1), and what is made anew for the next one.
const OF_THE_CONNECTION: &[&str] = &[
    "connection",
    "content-length",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// What the names of headers begin with that are for a gateway, or wrap those of another request (Miniflare's).
const OF_A_GATEWAY: &[&str] = &["cf-", "mf-"];

/// Of a request: what says who and where the client is, or asks for what could not be looked at.
const OF_THE_CLIENT: &[&str] = &[
    "accept-encoding",
    "cookie",
    "expect",
    "forwarded",
    "host",
    "origin",
    "referer",
    "x-forwarded-for",
    "x-real-ip",
];

/// Where a client may show a key.
const KEYS: &[&str] = &["authorization", "x-api-key", "api-key", "x-goog-api-key"];

/// What belongs to a signature of Amazon's beside `authorization`.
const OF_A_SIGNATURE: &[&str] = &["x-amz-content-sha256", "x-amz-date", "x-amz-security-token"];

/// The version of Anthropic's API that is asked for where the client says none.
const ANTHROPIC_VERSION: (&str, &str) = ("anthropic-version", "2023-06-01");

/// Whose key goes to a provider where both have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyOf {
    /// The client's: it has shown another one to Hearth, so this one is meant for the provider.
    Client,
    /// The one that is set: on an open server a client may send anything where a key stands.
    Settings,
}

/// Whether a header may be one of those that an account's own provider is sent.
pub(crate) fn may_be_set(name: &HeaderName) -> bool {
    !OF_THE_CONNECTION.contains(&name.as_str())
        && !OF_A_GATEWAY.iter().any(|start| name.as_str().starts_with(start))
        && !OF_THE_CLIENT.contains(&name.as_str())
}

fn crosses(name: &HeaderName, named: &[String]) -> bool {
    !OF_THE_CONNECTION.contains(&name.as_str()) && !named.iter().any(|named| named == name.as_str())
}

/// The names that `Connection` makes headers of the connection.
fn named_by_connection(headers: &HeaderMap) -> Vec<String> {
    let values = headers.get_all(header::CONNECTION).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).map(|name| name.trim().to_ascii_lowercase()).collect()
}

/// Whether a key that is set goes to a provider, and not the client's.
pub(super) fn wants_key(headers: &HeaderMap, provider: &Configured, key_of: KeyOf) -> bool {
    let key_header = provider.key_header();
    let is_key = |name: &HeaderName| KEYS.contains(&name.as_str()) || *name == key_header;
    key_of == KeyOf::Settings
        || !headers.iter().any(|(name, value)| is_key(name) && !is_ours(value.as_bytes()))
}

/// The headers that go to a provider, and the key that is not in them yet: it signs, or is changed for a token. `key` is
/// the one that is set and whose turn it is.
///
/// # Errors
/// When it wants a key and there is none.
pub(super) fn to_provider(
    headers: &HeaderMap,
    provider: &Configured,
    key_of: KeyOf,
    key: Option<&Arc<Credential>>,
) -> Result<(HeaderMap, Option<Arc<Credential>>), Error> {
    let named = named_by_connection(headers);
    let key_header = provider.key_header();
    let is_key = |name: &HeaderName| KEYS.contains(&name.as_str()) || *name == key_header;
    let mut sent = HeaderMap::with_capacity(headers.len() + 2);
    for (name, value) in headers {
        let ours = OF_A_GATEWAY.iter().any(|start| name.as_str().starts_with(start));
        let ours = ours || OF_THE_CLIENT.contains(&name.as_str());
        if crosses(name, &named) && !ours && !is_key(name) {
            sent.append(name, value.clone());
        }
    }
    sent.insert(header::ACCEPT_ENCODING, HeaderValue::from_static("identity"));
    if provider.dialect == Dialect::Anthropic && !sent.contains_key(ANTHROPIC_VERSION.0) {
        sent.insert(ANTHROPIC_VERSION.0, HeaderValue::from_static(ANTHROPIC_VERSION.1));
    }
    for (name, value) in &provider.headers {
        sent.insert(name, value.clone());
    }
    let theirs = headers.iter().filter(|(name, value)| is_key(name) && !is_ours(value.as_bytes()));
    let theirs: Vec<_> = theirs.collect();
    match key {
        Some(key) if key_of == KeyOf::Settings || theirs.is_empty() => match &**key {
            Credential::Header(value) => {
                sent.insert(key_header, value.clone());
            }
            Credential::Google(_) => return Ok((sent, Some(Arc::clone(key)))),
            Credential::Aws(_) => {
                OF_A_SIGNATURE.iter().for_each(|name| drop(sent.remove(*name)));
                return Ok((sent, Some(Arc::clone(key))));
            }
        },
        None if theirs.is_empty() && provider.withheld => {
            let slug = &provider.slug;
            let message = format!(
                "This request uses no key of the server's for {slug} (byok_only of the gateway, or cf-aig-no-wholesale); \
                 keep one of your own with provider_configs, or send it beside cf-aig-authorization"
            );
            return Err(Error::new(ErrorKind::Forbidden, message));
        }
        None if theirs.is_empty() && !provider.local => {
            let slug = &provider.slug;
            let message = format!(
                "No key for {slug} is set; set api-key-env under [providers.{slug}] in hearth.toml, or send your own beside cf-aig-authorization"
            );
            return Err(Error::new(ErrorKind::KeyRefused, message));
        }
        _ => {
            // A key that stands where this provider does not look is put where it does.
            if let Some((_, value)) = theirs.first()
                && !theirs.iter().any(|(name, _)| **name == key_header)
                && let Some(value) = provider.key_value(bare(value.as_bytes()))
            {
                sent.insert(key_header, value);
            }
            for (name, value) in theirs {
                sent.insert(name, value.clone());
            }
        }
    }
    Ok((sent, None))
}

/// Takes a client's keys out, wherever one of these providers would look for them.
pub(super) fn drop_keys<'a>(headers: &mut HeaderMap, providers: impl Iterator<Item = &'a Configured>) {
    for name in KEYS.iter().chain(OF_A_SIGNATURE) {
        headers.remove(*name);
    }
    for provider in providers {
        headers.remove(provider.key_header());
    }
}

/// Whether the key that goes to a provider is the client's own.
pub(super) fn has_clients_key(sent: &HeaderMap, client: &HeaderMap, provider: &Configured) -> bool {
    let key_header = provider.key_header();
    let mut names = KEYS.iter().copied().chain([key_header.as_str()]);
    // One who is asked without a key may be sent anything where it stands.
    !provider.local
        && names
            .any(|name| sent.get(name).is_some_and(|key| client.get_all(name).iter().any(|own| own == key)))
}

/// Of a client's headers those that count for a request that was written anew: its keys, who it is, and what it wants of
/// the gateway.
pub(super) fn of_translated(headers: &HeaderMap) -> HeaderMap {
    let goes = |name: &HeaderName| {
        KEYS.contains(&name.as_str()) || *name == header::USER_AGENT || name.as_str().starts_with("cf-")
    };
    let kept = headers.iter().filter(|(name, _)| goes(name));
    let mut kept: HeaderMap = kept.map(|(name, value)| (name.clone(), value.clone())).collect();
    kept.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    kept
}

/// A key without its scheme.
fn bare(value: &[u8]) -> &[u8] {
    match value.split_at_checked(7) {
        Some((scheme, rest)) if scheme.eq_ignore_ascii_case(b"bearer ") => rest.trim_ascii(),
        _ => value,
    }
}

fn is_ours(value: &[u8]) -> bool {
    bare(value).starts_with(crate::KEY_PREFIX.as_bytes())
}

/// The headers that go back to a client.
pub(super) fn to_client(headers: &HeaderMap) -> HeaderMap {
    let named = named_by_connection(headers);
    let passed =
        headers.iter().filter(|(name, _)| crosses(name, &named) && !name.as_str().starts_with("cf-aig-"));
    let mut kept = HeaderMap::with_capacity(headers.len());
    for (name, value) in passed {
        kept.append(name, value.clone());
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::{ProviderKey, Providers, Wishes};
    use std::sync::Arc;

    fn provider(slug: &str, key: Option<&str>) -> Arc<Configured> {
        let keys = key.map(|key| ProviderKey { secret: key.to_owned(), weight: 1 }).into_iter().collect();
        let base_url = Some("http://127.0.0.1:1".to_owned());
        let wishes = [(slug.to_owned(), Wishes { keys, base_url, ..Wishes::default() })];
        Arc::clone(Providers::new(wishes.into()).unwrap().get(slug).unwrap())
    }

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn what_is_the_connections_or_the_gateways_stays_here() {
        let openai = provider("openai", Some("sk"));
        let sent = to_provider(
            &headers(&[
                ("content-type", "application/json"),
                ("x-stainless-lang", "python"),
                ("openai-organization", "o"),
                ("connection", "x-hop, keep-alive"),
                ("x-hop", "1"),
                ("te", "trailers"),
                ("host", "hearth"),
                ("content-length", "7"),
                ("cookie", "c"),
                ("accept-encoding", "gzip"),
                ("cf-aig-metadata", "{}"),
                ("cf-connecting-ip", "1.2.3.4"),
                ("mf-header-authorization", "Bearer k"),
                ("x-forwarded-for", "1.2.3.4"),
            ]),
            &openai,
            KeyOf::Settings,
            openai.next_key(),
        );
        let expected = headers(&[
            ("content-type", "application/json"),
            ("x-stainless-lang", "python"),
            ("openai-organization", "o"),
            ("accept-encoding", "identity"),
            ("authorization", "Bearer sk"),
        ]);
        assert_eq!(sent.unwrap().0, expected);
    }

    #[test]
    fn the_key_that_goes_is_the_settings_or_the_one_meant_for_the_provider() {
        let shown = headers(&[("authorization", "Bearer theirs")]);
        let sent = |headers: &HeaderMap, slug: &str, key, key_of| {
            let provider = provider(slug, key);
            let (sent, _) = to_provider(headers, &provider, key_of, provider.next_key())?;
            let found =
                KEYS.iter().filter_map(|name| Some(format!("{name} {}", sent.get(*name)?.to_str().unwrap())));
            Ok::<_, Error>(found.collect::<Vec<_>>())
        };
        assert_eq!(sent(&shown, "openai", Some("sk"), KeyOf::Settings).unwrap(), ["authorization Bearer sk"]);
        assert_eq!(
            sent(&shown, "openai", Some("sk"), KeyOf::Client).unwrap(),
            ["authorization Bearer theirs"]
        );
        assert_eq!(sent(&shown, "openai", None, KeyOf::Settings).unwrap(), ["authorization Bearer theirs"]);
        assert_eq!(sent(&shown, "anthropic", Some("sk"), KeyOf::Settings).unwrap(), ["x-api-key sk"]);
        // A key of Hearth's own goes nowhere.
        for (name, value) in [("authorization", "Bearer hearth_x"), ("x-api-key", "hearth_x")] {
            let ours = headers(&[(name, value)]);
            assert!(sent(&ours, "openai", None, KeyOf::Client).is_err());
            assert_eq!(sent(&ours, "vllm", None, KeyOf::Client).unwrap(), [""; 0]);
            assert_eq!(
                sent(&ours, "openai", Some("sk"), KeyOf::Client).unwrap(),
                ["authorization Bearer sk"]
            );
        }
    }

    #[test]
    fn a_clients_own_key_is_known_among_what_is_sent() {
        let shown = headers(&[("authorization", "Bearer theirs")]);
        let own = |provider: &Configured, key_of| {
            let (sent, _) = to_provider(&shown, provider, key_of, provider.next_key()).unwrap();
            has_clients_key(&sent, &shown, provider)
        };
        assert!(own(&provider("openai", Some("sk")), KeyOf::Client));
        assert!(own(&provider("anthropic", None), KeyOf::Settings));
        assert!(!own(&provider("openai", Some("sk")), KeyOf::Settings));
        assert!(!own(&provider("vllm", None), KeyOf::Client));
    }

    #[test]
    fn anthropics_version_is_sent_where_the_client_says_none() {
        let provider = provider("anthropic", Some("sk"));
        let version = |headers: &HeaderMap| {
            let (sent, _) = to_provider(headers, &provider, KeyOf::Settings, provider.next_key()).unwrap();
            sent["anthropic-version"].to_str().unwrap().to_owned()
        };
        assert_eq!(version(&HeaderMap::new()), "2023-06-01");
        assert_eq!(version(&headers(&[("anthropic-version", "2099-01-01")])), "2099-01-01");
    }

    #[test]
    fn an_answers_headers_come_back() {
        let back = to_client(&headers(&[
            ("content-type", "text/event-stream"),
            ("x-ratelimit-remaining-tokens", "7"),
            ("content-length", "3"),
            ("transfer-encoding", "chunked"),
            ("cf-aig-step", "9"),
            ("cf-ray", "r"),
        ]));
        let expected = headers(&[
            ("content-type", "text/event-stream"),
            ("x-ratelimit-remaining-tokens", "7"),
            ("cf-ray", "r"),
        ]);
        assert_eq!(back, expected);
    }
}

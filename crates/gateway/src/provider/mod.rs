//! Providers: what is known of each by name, and what an operator has set.
//!
//! A provider is data. What differs between those that speak alike is its address, how its key is sent and whether it
//! must be asked for usage. One that is in no list is `custom-{slug}`, with an address of its own. Keys are taken in turn
//! by their weights. Not here: the keys and providers that accounts keep in the store (`byok`, `custom`).

mod list;
mod place;

pub use crate::credential::{Auth, Credential};
pub use list::PROVIDERS;
pub use place::{Asked, Place, Way};

use crate::dialect::Dialect;
use crate::policy::Rule;
use hyper::http::uri::Scheme;
use hyper::http::{HeaderMap, HeaderName, HeaderValue, Uri};
use protocol::openai::upstream::Speaker;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What is known of a provider.
#[derive(Clone, Copy, Debug)]
pub struct Provider {
    /// Its name in paths and before models.
    pub slug: &'static str,
    /// Where its API begins; empty where only an operator can know.
    pub base_url: &'static str,
    /// How it wants its key.
    pub auth: Auth,
    /// What it speaks.
    pub dialect: Dialect,
    /// How its addresses are made.
    pub place: Place,
    /// Behind which path OpenAI's dialect is spoken too, where its own is another.
    pub door: Option<&'static str>,
    /// Whether Anthropic's Messages are answered beside OpenAI's dialect.
    pub messages: bool,
    /// Whether a stream tells usage only where `stream_options.include_usage` asks for it.
    pub asks_usage: bool,
    /// Whether it is an engine of one's own.
    pub local: bool,
    /// Whether it answers OpenAI's Responses too; else they are translated.
    pub responses: bool,
    /// What it takes of OpenAI's dialect, for what is translated.
    pub speaker: Speaker,
}

/// A key of a provider.
#[derive(Clone, PartialEq, Eq)]
pub struct ProviderKey {
    /// The key.
    pub secret: String,
    /// Its share of the requests.
    pub weight: u32,
}

impl fmt::Debug for ProviderKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ProviderKey(weight {})", self.weight)
    }
}

/// How often a key may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Quota {
    /// By what it is counted.
    pub(crate) name: String,
    /// The limit.
    pub(crate) rule: Rule,
}

/// How long a provider may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timeouts {
    /// To the first byte of an answer.
    pub first_byte: Duration,
    /// Between two pieces of an answer.
    pub idle: Duration,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { first_byte: Duration::from_secs(600), idle: Duration::from_secs(300) }
    }
}

/// What an operator sets for a provider.
#[derive(Clone, Debug, Default)]
pub struct Wishes {
    /// Another address.
    pub base_url: Option<String>,
    /// Its dialect; for `custom-{slug}` only.
    pub dialect: Option<Dialect>,
    /// The region, for Vertex AI and Bedrock.
    pub region: Option<String>,
    /// The project, for Vertex AI.
    pub project: Option<String>,
    /// The version of Azure's API, where its deployments are asked in the way that wants one.
    pub api_version: Option<String>,
    /// Its keys.
    pub keys: Vec<ProviderKey>,
    /// Models that are asked for by their bare name.
    pub models: Vec<String>,
    /// How long it may take.
    pub timeouts: Timeouts,
    /// Whether it is asked at public addresses only: who set it is not to reach what this machine can reach.
    pub public_only: bool,
    /// Whose it is, where that is not everybody: its failures are then counted apart.
    pub owner: Option<Arc<str>>,
    /// Whether it is known to keep nothing of what it is sent.
    pub zero_retention: bool,
    /// Headers of one's own that it is sent. What stands where its key does is a key, used where none is set.
    pub headers: HeaderMap,
}

/// Settings of a provider that cannot be.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ProviderError {
    /// No such provider.
    #[error("there is no provider {0:?}; one of your own is called custom-NAME")]
    Unknown(String),
    /// It has no address.
    #[error("provider {0} needs a base-url")]
    NoAddress(String),
    /// Its address is none.
    #[error("provider {slug}: {url:?} is no address such as https://api.example.com/v1")]
    Address {
        /// Which.
        slug: String,
        /// What was set.
        url: String,
    },
    /// A key is none.
    #[error("provider {0}: a key is empty, holds what no header can, or is none of this provider's")]
    Key(String),
}

/// A provider, ready to be asked.
#[derive(Debug)]
pub struct Configured {
    /// Its name.
    pub slug: Arc<str>,
    /// What it speaks.
    pub dialect: Dialect,
    /// How it wants its key.
    pub auth: Auth,
    /// Whether Anthropic's Messages are answered beside OpenAI's dialect.
    pub messages: bool,
    /// Whether usage must be asked for.
    pub asks_usage: bool,
    /// Whether it may do without a key.
    pub local: bool,
    /// Whether it answers OpenAI's Responses.
    pub responses: bool,
    /// What it takes of OpenAI's dialect.
    pub speaker: Speaker,
    /// Models asked for by bare name.
    pub models: Vec<String>,
    /// How long it may take.
    pub timeouts: Timeouts,
    /// Whether it is asked at public addresses only.
    pub public_only: bool,
    /// By what its failures are counted.
    pub(crate) circuit: Arc<str>,
    wishes: Wishes,
    /// Whether it keeps nothing of what it is sent: an engine of one's own, or one that an operator says so of.
    pub zero_retention: bool,
    /// How its addresses are made.
    pub place: Place,
    door: Option<&'static str>,
    region: Option<String>,
    project: Option<String>,
    api_version: Option<String>,
    base: Uri,
    /// Whether the base was set, and is not the one of everybody.
    own_base: bool,
    /// Headers of one's own, without that of the key.
    pub(crate) headers: HeaderMap,
    /// Whether keys are set that this request is not to use.
    pub(crate) withheld: bool,
    /// Each as often as its weight says.
    keys: Vec<Arc<Credential>>,
    /// How often each of them may be used; nothing where none is limited.
    quotas: Vec<Option<Arc<Quota>>>,
    turn: AtomicUsize,
}

/// Weights are shares; beyond this they are cut.
const WEIGHT_MAX: u32 = 100;

impl Configured {
    pub(crate) fn new(slug: &str, wishes: Wishes) -> Result<Self, ProviderError> {
        let known = PROVIDERS.iter().find(|provider| provider.slug == slug);
        let provider = match known {
            Some(provider) => *provider,
            None if slug.strip_prefix("custom-").is_some_and(|name| !name.is_empty()) => Provider {
                slug: "",
                base_url: "",
                auth: match wishes.dialect {
                    Some(Dialect::Anthropic) => Auth::Header("x-api-key"),
                    Some(Dialect::Gemini) => Auth::Header("x-goog-api-key"),
                    Some(Dialect::OpenAi | Dialect::Bedrock | Dialect::Cohere | Dialect::Other) | None => {
                        Auth::Bearer
                    }
                },
                dialect: wishes.dialect.unwrap_or(Dialect::OpenAi),
                place: if wishes.dialect == Some(Dialect::Gemini) { Place::Gemini } else { Place::Base },
                door: None,
                messages: false,
                asks_usage: true,
                local: true,
                responses: false,
                speaker: Speaker::ENGINE,
            },
            None => return Err(ProviderError::Unknown(slug.to_owned())),
        };
        let own_base = wishes.base_url.is_some();
        let mut url = wishes.base_url.as_deref().unwrap_or(provider.base_url).trim_end_matches('/');
        if provider.place == Place::Azure {
            // What Azure's portal shows may hold what the paths begin with.
            url = ["/openai/v1", "/openai"].iter().find_map(|end| url.strip_suffix(end)).unwrap_or(url);
        }
        if url.is_empty() {
            return Err(ProviderError::NoAddress(slug.to_owned()));
        }
        let wrong = || ProviderError::Address { slug: slug.to_owned(), url: url.to_owned() };
        let base: Uri = url.parse().map_err(|_| wrong())?;
        if base.authority().is_none()
            || !base.scheme().is_some_and(|scheme| *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS)
            || base.query().is_some()
        {
            return Err(wrong());
        }
        let mut keys = Vec::new();
        for key in &wishes.keys {
            let no_key = || ProviderError::Key(slug.to_owned());
            let credential = Credential::read(provider.auth, &key.secret).ok_or_else(no_key)?;
            // An account's key must not send claims wherever it says.
            let own = wishes.owner.is_some() || wishes.public_only;
            if own && matches!(&credential, Credential::Google(account) if !account.asks_google()) {
                return Err(no_key());
            }
            let credential = Arc::new(credential);
            keys.extend(std::iter::repeat_n(credential, key.weight.clamp(1, WEIGHT_MAX) as usize));
        }
        let mut headers = wishes.headers.clone();
        let key_header = provider.auth.header();
        if let Some(value) = headers.remove(&key_header)
            && keys.is_empty()
        {
            keys.push(Arc::new(Credential::Header(value)));
        }
        Ok(Self {
            slug: slug.into(),
            dialect: provider.dialect,
            auth: provider.auth,
            messages: provider.messages,
            asks_usage: provider.asks_usage,
            local: provider.local,
            responses: provider.responses,
            speaker: provider.speaker,
            models: wishes.models.clone(),
            timeouts: wishes.timeouts,
            public_only: wishes.public_only,
            circuit: match &wishes.owner {
                Some(owner) => format!("{owner} {slug}").into(),
                None => slug.into(),
            },
            zero_retention: wishes.zero_retention || known.is_some_and(|provider| provider.local),
            place: provider.place,
            door: provider.door,
            region: wishes.region.clone(),
            project: wishes.project.clone(),
            api_version: wishes.api_version.clone(),
            wishes,
            base,
            own_base,
            headers,
            withheld: false,
            keys,
            quotas: Vec::new(),
            turn: AtomicUsize::new(0),
        })
    }

    /// The same provider with the keys of somebody, and how often each may be used.
    ///
    /// # Errors
    /// When a key is none.
    pub(crate) fn with_keys(
        &self,
        keys: Vec<(ProviderKey, Option<Quota>)>,
        owner: &str,
    ) -> Result<Self, ProviderError> {
        let mut quotas = Vec::new();
        if keys.iter().any(|(_, quota)| quota.is_some()) {
            for (key, quota) in &keys {
                let quota = quota.clone().map(Arc::new);
                quotas.extend(std::iter::repeat_n(quota, key.weight.clamp(1, WEIGHT_MAX) as usize));
            }
        }
        let keys = keys.into_iter().map(|(key, _)| key).collect();
        let made = Self::new(&self.slug, Wishes { keys, owner: Some(owner.into()), ..self.wishes.clone() })?;
        Ok(Self { quotas, ..made })
    }

    /// The same provider for a request that is not to use the keys which are set.
    ///
    /// # Errors
    /// None where the provider itself could be made.
    pub(crate) fn withholding_keys(&self, owner: &str) -> Result<Self, ProviderError> {
        let bare = self.with_keys(Vec::new(), owner)?;
        Ok(Self { withheld: !self.wishes.keys.is_empty(), ..bare })
    }

    /// Where its API begins.
    #[must_use]
    pub const fn base(&self) -> &Uri {
        &self.base
    }

    /// How many keys are set.
    #[must_use]
    pub const fn keys(&self) -> usize {
        self.wishes.keys.len()
    }

    /// The header that a key goes into.
    #[must_use]
    pub fn key_header(&self) -> HeaderName {
        self.auth.header()
    }

    /// A key as the header has it; nothing where it holds what no header can.
    #[must_use]
    pub fn key_value(&self, key: &[u8]) -> Option<HeaderValue> {
        let whole = match self.auth {
            Auth::Bearer | Auth::Google | Auth::Aws(_) => [b"Bearer ", key].concat(),
            Auth::Header(_) => key.to_vec(),
        };
        let mut value = HeaderValue::from_bytes(&whole).ok()?;
        value.set_sensitive(true);
        Some(value)
    }

    /// The next key in turn; nothing where none is set. One of Azure's is for the resource whose address is set, and goes
    /// nowhere where none is, since a path may name any.
    #[must_use]
    pub fn next_key(&self) -> Option<&Arc<Credential>> {
        if self.place == Place::Azure && !self.own_base {
            return None;
        }
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        self.keys.get(turn.checked_rem(self.keys.len())?)
    }

    /// Whether some of its keys may be used only so often.
    pub(crate) const fn has_quotas(&self) -> bool {
        !self.quotas.is_empty()
    }

    /// All keys from the next one in turn on, each as often as its weight says, and how often it may be used.
    pub(crate) fn keys_in_turn(&self) -> impl Iterator<Item = (&Arc<Credential>, Option<&Arc<Quota>>)> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let count = self.keys.len();
        let places = (0..count).map(move |place| (turn % count + place) % count);
        places.map(|place| (&self.keys[place], self.quotas.get(place).and_then(Option::as_ref)))
    }
}

/// All providers that can be asked.
#[derive(Debug, Default)]
pub struct Providers(BTreeMap<Arc<str>, Arc<Configured>>);

impl Providers {
    /// Those that were set, and all known ones that need no setting, for callers who bring keys of their own.
    ///
    /// # Errors
    /// Names the provider whose settings cannot be.
    pub fn new(wishes: BTreeMap<String, Wishes>) -> Result<Self, ProviderError> {
        let set = wishes.into_iter().map(|(slug, wishes)| Configured::new(&slug, wishes));
        let mut all = set
            .map(|provider| provider.map(|provider| (Arc::clone(&provider.slug), Arc::new(provider))))
            .collect::<Result<BTreeMap<_, _>, _>>()?;
        for provider in PROVIDERS.iter().filter(|provider| !provider.local) {
            if !all.contains_key(provider.slug) {
                let provider = Configured::new(provider.slug, Wishes::default())?;
                all.insert(Arc::clone(&provider.slug), Arc::new(provider));
            }
        }
        Ok(Self(all))
    }

    /// These with others over them.
    #[must_use]
    pub(crate) fn with<'a>(&self, others: impl IntoIterator<Item = &'a Arc<Configured>>) -> Self {
        let mut all = self.0.clone();
        all.extend(others.into_iter().map(|other| (Arc::clone(&other.slug), Arc::clone(other))));
        Self(all)
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Configured>> {
        self.0.values()
    }

    /// The provider of this name.
    #[must_use]
    pub fn get(&self, slug: &str) -> Option<&Arc<Configured>> {
        self.0.get(slug).or_else(|| {
            let (_, known) = list::ALIASES.iter().find(|(alias, _)| *alias == slug)?;
            self.0.get(*known)
        })
    }

    /// Who answers for a model: the provider before its first slash, else all whose settings list it, with the name by
    /// which they know it.
    #[must_use]
    pub fn of_model<'a>(&self, model: &'a str) -> Vec<(Arc<Configured>, &'a str)> {
        if let Some((slug, rest)) = model.split_once('/')
            && !rest.is_empty()
            && let Some(provider) = self.get(slug)
        {
            return vec![(Arc::clone(provider), rest)];
        }
        let lists = |provider: &&Arc<Configured>| provider.models.iter().any(|listed| listed == model);
        self.0.values().filter(lists).map(|provider| (Arc::clone(provider), model)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn configured(slug: &str, wishes: Wishes) -> Configured {
        Configured::new(slug, wishes).unwrap()
    }

    #[test]
    fn every_provider_of_the_list_can_be_set_up() {
        let mut slugs: Vec<_> = PROVIDERS.iter().map(|provider| provider.slug).collect();
        for slug in &slugs {
            configured(slug, Wishes { base_url: Some("http://127.0.0.1:1/v1".into()), ..Wishes::default() });
        }
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), PROVIDERS.len());
        let all = Providers::new(BTreeMap::new()).unwrap();
        assert!(all.get("openai").is_some());
        assert_eq!(all.get("xai").map(|provider| &*provider.slug), Some("grok"));
        assert_eq!(all.of_model("google/g")[0].0.slug, "google-ai-studio".into());
    }

    #[test]
    fn keys_take_turns_by_their_weights() {
        let key = |secret: &str, weight| ProviderKey { secret: secret.to_owned(), weight };
        let wishes = Wishes { keys: vec![key("a", 2), key("b", 1)], ..Wishes::default() };
        let provider = configured("anthropic", wishes);
        let value = |credential: &Credential| match credential {
            Credential::Header(value) => value.to_str().unwrap().to_owned(),
            other => format!("{other:?}"),
        };
        let turns: Vec<_> = (0..6).map(|_| value(provider.next_key().unwrap())).collect();
        assert_eq!(turns, ["a", "a", "b", "a", "a", "b"]);
        assert_eq!(configured("openai", Wishes::default()).next_key(), None);
    }

    #[test]
    fn a_provider_of_ones_own_needs_an_address() {
        let error = Configured::new("custom-x", Wishes::default()).unwrap_err();
        assert_eq!(error.to_string(), "provider custom-x needs a base-url");
        assert!(matches!(Configured::new("nobody", Wishes::default()), Err(ProviderError::Unknown(_))));
        for url in ["example.com", "ftp://x/", "https://", "https://x/?q=1"] {
            let wishes = Wishes { base_url: Some(url.to_owned()), ..Wishes::default() };
            assert!(
                matches!(Configured::new("custom-x", wishes), Err(ProviderError::Address { .. })),
                "{url}"
            );
        }
    }

    #[test]
    fn a_model_goes_to_its_provider_or_to_all_that_list_it() {
        let lists = |url: &str| Wishes {
            base_url: Some(url.to_owned()),
            models: vec!["m".to_owned()],
            ..Wishes::default()
        };
        let wishes = [("vllm", "http://a/v1"), ("custom-b", "http://b/v1")];
        let wishes = wishes.map(|(slug, url)| (slug.to_owned(), lists(url)));
        let providers = Providers::new(wishes.into()).unwrap();
        let of = |model: &'static str| {
            let found = providers.of_model(model);
            found
                .into_iter()
                .map(|(provider, model)| format!("{} {model}", provider.slug))
                .collect::<Vec<_>>()
        };
        assert_eq!(of("openrouter/meta/llama"), ["openrouter meta/llama"]);
        assert_eq!(of("m"), ["custom-b m", "vllm m"]);
        assert!(of("meta/llama").is_empty() && of("openai/").is_empty() && of("x").is_empty());
    }

    #[test]
    fn a_key_is_not_shown() {
        assert_eq!(format!("{:?}", ProviderKey { secret: "sk".into(), weight: 3 }), "ProviderKey(weight 3)");
    }
}

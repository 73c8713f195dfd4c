//! Files of the Hugging Face hub: what they are (a `HEAD` whose headers tell commit, size and SHA-256), then the bytes.
//!
//! Large files are answered by a redirect to a content host, and the facts stand in the redirect itself
//! (`x-linked-etag`, `x-linked-size`); the token is never sent to that other host. For small files the hub tells a git
//! object id instead of a SHA-256, and the hash we compute goes into the lock file.

use super::download::{self, Want, network, redirect_target, refusal};
use super::{FetchError, Progress, Puller, Staged};
use crate::catalog::{FileEntry, HubFile};
use reqwest::header::{CONTENT_LENGTH, ETAG, HeaderMap};
use reqwest::{Response, Url};
use std::path::{Path, PathBuf};

const ENDPOINT: &str = "https://huggingface.co";

/// Which hub, and as whom.
#[derive(Clone)]
pub struct Hub {
    endpoint: String,
    token: Option<String>,
}

impl std::fmt::Debug for Hub {
    /// Shows whether there is a token, never the token.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Hub").field("endpoint", &self.endpoint).field("token", &self.token.is_some()).finish()
    }
}

impl Hub {
    /// A hub at this address; `None` is the public one.
    #[must_use]
    pub fn new(endpoint: Option<String>, token: Option<String>) -> Self {
        let endpoint = endpoint.filter(|url| !url.is_empty()).unwrap_or_else(|| ENDPOINT.into());
        Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token: token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty()),
        }
    }

    /// `HF_ENDPOINT` and `HF_TOKEN`, or the token that the hub's own tools keep.
    #[must_use]
    pub fn from_environment() -> Self {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let kept = || {
            let home = variable("HF_HOME")
                .map(PathBuf::from)
                .or_else(|| Some(PathBuf::from(variable("HOME")?).join(".cache/huggingface")))?;
            std::fs::read_to_string(home.join("token")).ok()
        };
        Self::new(variable("HF_ENDPOINT"), variable("HF_TOKEN").or_else(kept))
    }
}

/// What the hub says about a file.
#[derive(Debug, Default)]
struct Facts {
    commit: Option<String>,
    size: Option<u64>,
    etag: Option<String>,
}

impl Facts {
    /// Takes what this answer tells and no earlier one told.
    fn learn(&mut self, headers: &HeaderMap, last: bool) {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
        let plain = |tag: String| tag.trim_start_matches("W/").trim_matches('"').to_owned();
        self.commit = self.commit.take().or_else(|| text("x-repo-commit"));
        self.size = self.size.or_else(|| text("x-linked-size")?.parse().ok());
        self.etag = self.etag.take().or_else(|| text("x-linked-etag").map(plain));
        if last {
            self.size = self.size.or_else(|| text(CONTENT_LENGTH.as_str())?.parse().ok());
            self.etag = self.etag.take().or_else(|| text(ETAG.as_str()).map(plain));
        }
    }

    /// The tag is a SHA-256 for large files, a git object id else.
    fn sha256(&self) -> Option<String> {
        self.etag.clone().filter(|tag| tag.len() == 64 && tag.bytes().all(|b| b.is_ascii_hexdigit()))
    }
}

pub(super) async fn fetch(
    puller: &Puller,
    at: &HubFile,
    file: &FileEntry,
    partial: &Path,
    progress: &mut dyn Progress,
) -> Result<Staged, FetchError> {
    let facts = facts(puller, at).await?;
    // The catalog's word goes before the hub's: a file that was exchanged there is refused here.
    if let (Some(expected), Some(got)) = (&file.sha256, facts.sha256())
        && *expected != got
    {
        return Err(FetchError::WrongHash { got, expected: expected.clone() });
    }
    if let (Some(expected), Some(got)) = (file.size, facts.size)
        && expected != got
    {
        return Err(FetchError::WrongSize { got, expected });
    }
    let sha256 = file.sha256.clone().or_else(|| facts.sha256());
    let identity = sha256.clone().or_else(|| facts.etag.clone()).unwrap_or_default();
    let want = Want {
        // By commit, so that what was described is what comes even if the branch moves meanwhile.
        url: url(&puller.hub, at, facts.commit.as_deref().unwrap_or(&at.revision)),
        token: puller.hub.token.clone(),
        size: file.size.or(facts.size),
        sha256,
        identity,
    };
    let staged = download::fetch(puller, &want, &file.name, partial, progress).await?;
    Ok(Staged { revision: facts.commit, ..staged })
}

fn url(hub: &Hub, at: &HubFile, revision: &str) -> String {
    format!("{}/{}/resolve/{revision}/{}", hub.endpoint, at.repo, at.path)
}

async fn facts(puller: &Puller, at: &HubFile) -> Result<Facts, FetchError> {
    let mut tries = 0;
    loop {
        match head(puller, at).await {
            Ok(facts) => return Ok(facts),
            Err(error) => {
                let again = matches!(error, FetchError::Status(_) | FetchError::Network(_));
                tries += 1;
                // A connection that cannot be made at all is told at once: the next source may be nearer.
                if !again || tries >= puller.retry.tries.min(3) {
                    return Err(error);
                }
                tokio::time::sleep(puller.retry.pause * (1 << tries)).await;
            }
        }
    }
}

async fn head(puller: &Puller, at: &HubFile) -> Result<Facts, FetchError> {
    let address = url(&puller.hub, at, &at.revision);
    let mut url = Url::parse(&address).map_err(|error| FetchError::Network(format!("{address}: {error}")))?;
    let mut facts = Facts::default();
    // A renamed repository answers by a redirect on the same host first.
    for _ in 0..5 {
        let response = send_head(puller, &url).await?;
        let next = redirect_target(&url, &response);
        let moved_within =
            next.as_ref().filter(|next| next.host_str() == url.host_str() && next.port() == url.port());
        let linked = response.headers().contains_key("x-linked-etag");
        facts.learn(response.headers(), next.is_none());
        match moved_within {
            Some(next) if !linked => url = next.clone(),
            _ if response.status().is_success() || response.status().is_redirection() => return Ok(facts),
            _ => return Err(refusal(response.status()).unwrap_or_else(|error| error)),
        }
    }
    Err(FetchError::Status("too many redirects".into()))
}

async fn send_head(puller: &Puller, url: &Url) -> Result<Response, FetchError> {
    let mut request = puller.client.head(url.clone()).header("accept-encoding", "identity");
    if let Some(token) = &puller.hub.token {
        request = request.bearer_auth(token);
    }
    request.send().await.map_err(|error| network(&error))
}

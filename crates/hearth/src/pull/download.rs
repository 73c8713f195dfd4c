//! Downloads over HTTP into a `.part` file, hashing on the way; takes up again by `Range` what was cut.

use super::{FetchError, Progress, Puller, Staged, check_room, hex, part_path, write_error};
use reqwest::header::{CONTENT_LENGTH, CONTENT_RANGE, LOCATION, RANGE};
use reqwest::{Response, StatusCode, Url};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// What to download.
pub(super) struct Want {
    pub url: String,
    /// Sent to the first host only, never along a redirect to another.
    pub token: Option<String>,
    pub size: Option<u64>,
    pub sha256: Option<String>,
    /// Changes when the content does; keeps two versions' unfinished files apart.
    pub identity: String,
}

const REDIRECTS: usize = 10;

/// The unfinished file with the hash of what it holds.
struct Part {
    path: PathBuf,
    file: File,
    hasher: Sha256,
    len: u64,
}

impl Part {
    fn open(path: PathBuf) -> Result<Self, FetchError> {
        let io = |error| FetchError::Io { path: path.clone(), error };
        let mut file = File::options().read(true).append(true).create(true).open(&path).map_err(io)?;
        let mut hasher = Sha256::new();
        let mut len = 0;
        // A device stands in for a full disk in tests; only a regular file has a past to read.
        if file.metadata().map_err(io)?.is_file() {
            let mut buffer = vec![0; 1 << 20];
            loop {
                match file.read(&mut buffer).map_err(io)? {
                    0 => break,
                    n => {
                        hasher.update(&buffer[..n]);
                        len += n as u64;
                    }
                }
            }
        }
        Ok(Self { path, file, hasher, len })
    }

    fn restart(&mut self) -> Result<(), FetchError> {
        self.file.set_len(0).map_err(FetchError::io(&self.path))?;
        self.file.seek(SeekFrom::Start(0)).map_err(FetchError::io(&self.path))?;
        self.hasher = Sha256::new();
        self.len = 0;
        Ok(())
    }

    fn append(&mut self, bytes: &[u8], size: Option<u64>) -> Result<(), FetchError> {
        let missing = size.unwrap_or(0).saturating_sub(self.len);
        self.file.write_all(bytes).map_err(|error| write_error(&self.path, missing, error))?;
        self.hasher.update(bytes);
        self.len += bytes.len() as u64;
        Ok(())
    }

    fn throw_away(self) {
        drop(self.file);
        // What cannot be removed now is refused again by its hash.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// How one request ended.
enum Round {
    /// All bytes are here.
    Done,
    /// Cut; the reason, in case it was the last try.
    Cut(FetchError),
}

pub(super) async fn fetch(
    puller: &Puller,
    want: &Want,
    name: &str,
    partial: &Path,
    progress: &mut dyn Progress,
) -> Result<Staged, FetchError> {
    let mut part = Part::open(part_path(partial, name, &want.identity))?;
    if want.size.is_some_and(|size| part.len > size) {
        part.restart()?;
    }
    if let Some(size) = want.size {
        check_room(partial, size.saturating_sub(part.len))?;
    }
    progress.begin(name, want.size, part.len);
    let mut idle = 0;
    while want.size != Some(part.len) || part.len == 0 {
        let before = part.len;
        match round(puller, want, &mut part, progress).await {
            Ok(Round::Done) => break,
            Ok(Round::Cut(reason)) => {
                idle = if part.len > before { 0 } else { idle + 1 };
                if idle >= puller.retry.tries {
                    progress.end();
                    return Err(reason);
                }
                tokio::time::sleep(puller.retry.pause * (1 << idle.min(6))).await;
            }
            Err(error) => {
                progress.end();
                return Err(error);
            }
        }
    }
    progress.end();
    check(part, want)
}

/// Compares what came with what was wanted.
fn check(part: Part, want: &Want) -> Result<Staged, FetchError> {
    if let Some(expected) = want.size.filter(|size| *size != part.len) {
        let got = part.len;
        part.throw_away();
        return Err(FetchError::WrongSize { got, expected });
    }
    let sha256 = hex(&part.hasher.clone().finalize());
    if let Some(expected) = want.sha256.as_ref().filter(|expected| **expected != sha256) {
        part.throw_away();
        return Err(FetchError::WrongHash { got: sha256, expected: expected.clone() });
    }
    Ok(Staged { size: part.len, path: part.path, sha256, revision: None })
}

/// One request, from the first missing byte on.
async fn round(
    puller: &Puller,
    want: &Want,
    part: &mut Part,
    progress: &mut dyn Progress,
) -> Result<Round, FetchError> {
    let mut response = match get(puller, want, part.len).await {
        Ok(response) => response,
        Err(error) => return Ok(Round::Cut(error)),
    };
    match response.status() {
        StatusCode::PARTIAL_CONTENT if content_range_start(&response) == Some(part.len) => {}
        // The server ignores ranges, or answers another one than we asked for: all over again.
        StatusCode::PARTIAL_CONTENT => {
            part.restart()?;
            return Ok(Round::Cut(FetchError::Status("206 with a wrong range".into())));
        }
        StatusCode::OK => {
            if part.len > 0 {
                part.restart()?;
                progress.advance(0);
            }
        }
        StatusCode::RANGE_NOT_SATISFIABLE => {
            part.restart()?;
            return Ok(Round::Cut(FetchError::Status("416: it has fewer bytes than we have".into())));
        }
        status => return refusal(status).map(Round::Cut),
    }
    // Without this, a connection that is closed early by a server that sends no length would look like the end.
    let end = content_length(&response).map(|length| part.len.saturating_add(length));
    if let (Some(expected), Some(got)) = (want.size, end)
        && expected != got
    {
        return Err(FetchError::WrongSize { got, expected });
    }
    loop {
        match response.chunk().await {
            Ok(Some(bytes)) => {
                if let Some(expected) = want.size.filter(|size| part.len + bytes.len() as u64 > *size) {
                    return Err(FetchError::WrongSize { got: part.len + bytes.len() as u64, expected });
                }
                part.append(&bytes, want.size)?;
                progress.advance(part.len);
            }
            Ok(None)
                if end.is_some_and(|end| part.len < end) || want.size.is_some_and(|size| part.len < size) =>
            {
                return Ok(Round::Cut(FetchError::Network("the connection was closed early".into())));
            }
            Ok(None) => return Ok(Round::Done),
            Err(error) => return Ok(Round::Cut(network(&error))),
        }
    }
}

/// Sends the request and follows redirects; the token goes to the first host alone.
async fn get(puller: &Puller, want: &Want, from: u64) -> Result<Response, FetchError> {
    let mut url =
        Url::parse(&want.url).map_err(|error| FetchError::Network(format!("{}: {error}", want.url)))?;
    let first = (url.host_str().map(str::to_owned), url.port_or_known_default());
    for _ in 0..REDIRECTS {
        let mut request = puller.client.get(url.clone());
        if from > 0 {
            request = request.header(RANGE, format!("bytes={from}-"));
        }
        let same_host = (url.host_str().map(str::to_owned), url.port_or_known_default()) == first;
        if let Some(token) = want.token.as_ref().filter(|_| same_host) {
            request = request.bearer_auth(token);
        }
        let response = request.send().await.map_err(|error| network(&error))?;
        match redirect_target(&url, &response) {
            Some(next) => url = next,
            None => return Ok(response),
        }
    }
    Err(FetchError::Status(format!("more than {REDIRECTS} redirects")))
}

/// Where a redirect leads; `https` is never left for `http`.
pub(super) fn redirect_target(from: &Url, response: &Response) -> Option<Url> {
    if !response.status().is_redirection() {
        return None;
    }
    let next = from.join(response.headers().get(LOCATION)?.to_str().ok()?).ok()?;
    (next.scheme() == "https" || from.scheme() == "http").then_some(next)
}

/// The error for a status that is no success: `Ok` when trying again may help.
pub(super) fn refusal(status: StatusCode) -> Result<FetchError, FetchError> {
    match status.as_u16() {
        401 | 403 => Err(FetchError::Refused {
            status: status.as_u16(),
            hint: "accept the model's licence on its page and set HF_TOKEN to a token that may read it",
        }),
        404 | 410 => Err(FetchError::NotFound),
        408 | 425 | 429 | 500.. => Ok(FetchError::Status(status.to_string())),
        _ => Err(FetchError::Status(status.to_string())),
    }
}

/// A transport error with its innermost cause, which is the part that tells something.
pub(super) fn network(error: &reqwest::Error) -> FetchError {
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    let host = error.url().and_then(Url::host_str).unwrap_or_default();
    FetchError::Network(if host.is_empty() { cause.to_string() } else { format!("{host}: {cause}") })
}

fn content_length(response: &Response) -> Option<u64> {
    response.headers().get(CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

fn content_range_start(response: &Response) -> Option<u64> {
    let text = response.headers().get(CONTENT_RANGE)?.to_str().ok()?;
    text.strip_prefix("bytes ")?.split_once('-')?.0.trim().parse().ok()
}

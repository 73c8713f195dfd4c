//! What lies in a folder of packed weights, and which of it nobody will use again.

use super::file::{self, Directory};
use super::{EXTENSION, PART, PackedFolder};
use base::Bytes;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// A file in a folder of packed weights.
#[derive(Clone, Debug)]
pub struct KeptFile {
    /// Where it lies.
    pub path: PathBuf,
    /// Its size.
    pub size: Bytes,
    /// The model's file or folder, where the file tells it.
    pub source: Option<PathBuf>,
    /// Whether a start would use it.
    pub state: KeptState,
    /// When it was written, or last used by a start that could note it.
    pub used: SystemTime,
}

/// Whether a start would use a file of packed weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptState {
    /// Yes, if its data is whole, which only a start checks.
    Current,
    /// The model's files are no longer there.
    Gone,
    /// The model's files changed since, or another version packed them.
    Stale,
    /// It is damaged, or no such file at all.
    Unreadable,
    /// What a process left that was ended while it wrote.
    Unfinished,
}

impl PackedFolder {
    /// The files of the folder, without those that are just being written. `packing` is the device's
    /// ([`device::Device::packing`]).
    ///
    /// # Errors
    /// The folder is there but cannot be read.
    pub fn list(&self, packing: Option<&str>) -> io::Result<Vec<KeptFile>> {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut files = Vec::new();
        for entry in entries {
            let path = entry?.path();
            let extension = path.extension().and_then(|extension| extension.to_str());
            // What goes away while we look is nothing to tell of.
            let found = match extension {
                Some(EXTENSION) => kept(&path, packing),
                Some(PART) => unfinished(&path),
                _ => continue,
            };
            files.extend(found.ok().flatten());
        }
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(files)
    }
}

impl KeptFile {
    /// Whether it belongs to a model whose file or folder is `path`.
    #[must_use]
    pub fn is_of(&self, path: &Path) -> bool {
        let absolute = std::path::absolute(path);
        self.source.as_ref().is_some_and(|source| absolute.is_ok_and(|path| source.starts_with(path)))
    }
}

fn kept(path: &Path, packing: Option<&str>) -> io::Result<Option<KeptFile>> {
    let file = crate::mapped::open_regular(path)?;
    let metadata = file.metadata()?;
    let read = file::read(metadata.len(), |at, len| {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at).map_err(|error| error.to_string())?;
        Ok(bytes)
    });
    let (source, state) = match read {
        Ok((_, directory)) => {
            let state = state(&directory, packing);
            (Some(directory.source.path), state)
        }
        Err(_) => (None, KeptState::Unreadable),
    };
    let used = metadata.modified()?;
    Ok(Some(KeptFile { path: path.to_owned(), size: Bytes(metadata.len()), source, state, used }))
}

fn state(directory: &Directory, packing: Option<&str>) -> KeptState {
    let mut state =
        if packing == Some(directory.packing.as_str()) { KeptState::Current } else { KeptState::Stale };
    for file in &directory.source.files {
        match fs::metadata(&file.path) {
            Err(_) => return KeptState::Gone,
            Ok(now) if (now.size(), (now.mtime(), now.mtime_nsec())) != (file.size, file.modified) => {
                state = KeptState::Stale;
            }
            Ok(_) => {}
        }
    }
    state
}

/// A file that was being written, unless somebody still writes it.
fn unfinished(path: &Path) -> io::Result<Option<KeptFile>> {
    let file = File::options().write(true).open(path)?;
    if file.try_lock().is_err() {
        return Ok(None);
    }
    let metadata = file.metadata()?;
    let (size, used) = (Bytes(metadata.len()), metadata.modified()?);
    let state = KeptState::Unfinished;
    Ok(Some(KeptFile { path: path.to_owned(), size, source: None, state, used }))
}

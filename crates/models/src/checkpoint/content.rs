//! Where a checkpoint's bytes lie: a mapped file, or memory.

use std::ops::{Deref, Range};
use std::path::{Path, PathBuf};

use super::CheckpointError;
use crate::mapped::{MappedFile, Stamp};

/// The bytes of one file, with its name for error texts.
#[derive(Debug)]
pub(crate) struct Content {
    path: PathBuf,
    bytes: Bytes,
}

#[derive(Debug)]
enum Bytes {
    Mapped(MappedFile),
    Memory(Vec<u8>),
}

impl Content {
    pub(crate) fn map(path: &Path) -> Result<Self, CheckpointError> {
        let mapped =
            MappedFile::open(path).map_err(|error| CheckpointError::Io { path: path.to_owned(), error })?;
        Ok(Self { path: path.to_owned(), bytes: Bytes::Mapped(mapped) })
    }

    pub(crate) fn memory(label: &Path, bytes: Vec<u8>) -> Self {
        Self { path: label.to_owned(), bytes: Bytes::Memory(bytes) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Size and time of a file when it was opened; memory has none.
    pub(crate) fn stamp(&self) -> Option<Stamp> {
        match &self.bytes {
            Bytes::Mapped(mapped) => Some(mapped.stamp()),
            Bytes::Memory(_) => None,
        }
    }

    /// Gives the memory of a part that was read back to the system.
    pub(crate) fn forget(&self, part: Range<usize>) {
        if let Bytes::Mapped(mapped) = &self.bytes {
            mapped.forget(part);
        }
    }

    pub(crate) fn verify(&self) -> Result<(), CheckpointError> {
        let Bytes::Mapped(mapped) = &self.bytes else { return Ok(()) };
        mapped.verify().map_err(|error| CheckpointError::Io { path: self.path.clone(), error })?.map_err(
            |change| CheckpointError::Changed { path: self.path.clone(), reason: change.to_string() },
        )
    }
}

impl Deref for Content {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.bytes {
            Bytes::Mapped(mapped) => mapped,
            Bytes::Memory(bytes) => bytes,
        }
    }
}

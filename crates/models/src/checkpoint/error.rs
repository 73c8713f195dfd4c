//! Why a checkpoint cannot be read. Texts from the file are shortened and escaped.

use std::fmt;
use std::io;
use std::path::PathBuf;

/// Why a checkpoint, or a part of it, cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    /// The system refused to read the file.
    // Not a `source` of the error: this text tells it already, and a report of the chain would tell it again.
    #[error("cannot read {}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The path is not a checkpoint at all.
    #[error("{} is not a checkpoint: {reason}", path.display())]
    NotACheckpoint {
        /// The file or folder.
        path: PathBuf,
        /// What was looked for.
        reason: String,
    },
    /// The file breaks its format: it is damaged, truncated or hostile.
    #[error("{}: {place}: {reason}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: Place,
        /// What is wrong there.
        reason: String,
    },
    /// The file may be in order, but this reader does not know it.
    #[error("{}: {place}: {reason}", path.display())]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// Where in it.
        place: Place,
        /// What is not known.
        reason: String,
    },
    /// The checkpoint has no such tensor.
    #[error("{} has no tensor {}", path.display(), Quoted(name))]
    MissingTensor {
        /// The file or folder.
        path: PathBuf,
        /// The tensor.
        name: String,
    },
    /// The metadata has no such key.
    #[error("{} has no metadata key {}", path.display(), Quoted(key))]
    MissingKey {
        /// The file.
        path: PathBuf,
        /// The key.
        key: String,
    },
    /// A file changed after it was opened, so what was read from it cannot be believed.
    #[error("{} changed while it was in use: {reason}", path.display())]
    Changed {
        /// The file.
        path: PathBuf,
        /// What changed.
        reason: String,
    },
}

/// A place in a checkpoint file, for error texts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// The fixed part or the frame of the file.
    Header,
    /// A metadata key, or a path of keys in a JSON file.
    Key(String),
    /// A tensor.
    Tensor(String),
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Header => f.write_str("header"),
            Self::Key(key) => write!(f, "metadata key {}", Quoted(key)),
            Self::Tensor(name) => write!(f, "tensor {}", Quoted(name)),
        }
    }
}

/// A text from a file as it may be shown: quoted, escaped, and cut when long.
pub(crate) struct Quoted<'a>(pub(crate) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        /// Longest text that is shown whole, in characters.
        const SHOWN: usize = 100;
        match self.0.char_indices().nth(SHOWN) {
            None => write!(f, "{:?}", self.0),
            Some((cut, _)) => write!(f, "{:?}... ({} bytes)", &self.0[..cut], self.0.len()),
        }
    }
}

/// What is wrong in a file whose name the caller knows.
#[derive(Debug)]
pub(crate) struct Fault {
    place: Place,
    reason: String,
    kind: FaultKind,
}

#[derive(Debug)]
enum FaultKind {
    Malformed,
    Unsupported,
}

impl Fault {
    pub(crate) fn new(place: Place, reason: impl Into<String>) -> Self {
        Self { place, reason: reason.into(), kind: FaultKind::Malformed }
    }

    pub(crate) fn header(reason: impl Into<String>) -> Self {
        Self::new(Place::Header, reason)
    }

    pub(crate) fn key(key: &str, reason: impl Into<String>) -> Self {
        Self::new(Place::Key(key.to_owned()), reason)
    }

    pub(crate) fn tensor(name: &str, reason: impl Into<String>) -> Self {
        Self::new(Place::Tensor(name.to_owned()), reason)
    }

    pub(crate) fn unsupported(place: Place, reason: impl Into<String>) -> Self {
        Self { place, reason: reason.into(), kind: FaultKind::Unsupported }
    }

    pub(crate) fn at(self, path: impl Into<PathBuf>) -> CheckpointError {
        let (path, place, reason) = (path.into(), self.place, self.reason);
        match self.kind {
            FaultKind::Malformed => CheckpointError::Malformed { path, place, reason },
            FaultKind::Unsupported => CheckpointError::Unsupported { path, place, reason },
        }
    }
}

//! Reads checkpoints: GGUF files and Hugging Face folders with safetensors.
//!
//! Files are mapped, headers are checked whole at opening, and tensors are slices of the map. A file is
//! taken as hostile: what breaks its format is an error that names file and key or tensor. A file that
//! changes while it is in use is an error of [`Checkpoint::verify`], which is to be called after reading.
//! What tensors and keys mean is not known here.

mod content;
mod error;
mod generation;
mod gguf;
mod huggingface;
mod ranges;
mod safetensors;
mod summary;

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use device::{DType, MatrixSource};

use crate::mapped::Stamp;
use content::Content;

pub use error::{CheckpointError, Place};
pub use generation::GenerationDefaults;
pub use gguf::{Array, ArrayRef, Gguf, GgufVocabulary, Value, ValueType};
pub use huggingface::HuggingFace;
pub use summary::{FormatShare, Summary};

/// An open checkpoint.
#[derive(Debug)]
pub enum Checkpoint {
    /// A GGUF file.
    Gguf(Gguf),
    /// A folder with `config.json` and safetensors.
    HuggingFace(HuggingFace),
}

/// A tensor as it stands in a checkpoint.
#[derive(Clone, Debug)]
pub struct Tensor<'a> {
    /// The tensor's name.
    pub name: &'a str,
    /// Outermost first: `[rows, cols]` for a matrix.
    pub shape: Vec<usize>,
    /// Element format; blocks run along the innermost dimension.
    pub dtype: DType,
    /// The elements, row after row; not necessarily aligned.
    pub bytes: &'a [u8],
}

impl<'a> Tensor<'a> {
    /// Number of elements.
    #[must_use]
    pub fn elements(&self) -> u64 {
        // No overflow: the bytes of all elements lie in a file.
        self.shape.iter().map(|dim| *dim as u64).product()
    }

    /// The tensor as a matrix, where it has two dimensions.
    #[must_use]
    pub fn matrix(&self) -> Option<MatrixSource<'a>> {
        let [rows, cols] = *self.shape.as_slice() else { return None };
        Some(MatrixSource { name: self.name, rows, cols, dtype: self.dtype, bytes: self.bytes })
    }
}

impl Checkpoint {
    /// Opens a GGUF file, a Hugging Face folder, or the folder around a named safetensors file.
    ///
    /// # Errors
    /// The path cannot be read, is none of these, or breaks its format.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        let io = |error| CheckpointError::Io { path: path.to_owned(), error };
        let metadata = fs::metadata(path).map_err(io)?;
        if metadata.is_dir() {
            return HuggingFace::open(path).map(Self::HuggingFace);
        }
        let mut magic = Vec::new();
        crate::mapped::open_regular(path)
            .and_then(|file| file.take(gguf::MAGIC.len() as u64).read_to_end(&mut magic))
            .map_err(io)?;
        if magic == gguf::MAGIC {
            return Gguf::open(path).map(Self::Gguf);
        }
        if path.extension().is_some_and(|extension| extension == "safetensors") {
            return HuggingFace::open_file(path).map(Self::HuggingFace);
        }
        if magic.is_empty() {
            return Err(io(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is empty")));
        }
        let reason = "it neither begins with GGUF nor is named .safetensors".to_owned();
        Err(CheckpointError::NotACheckpoint { path: path.to_owned(), reason })
    }

    /// The tensor with this name.
    ///
    /// # Errors
    /// There is none, or it is no weight that can be read.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        match self {
            Self::Gguf(gguf) => gguf.tensor(name),
            Self::HuggingFace(folder) => folder.tensor(name),
        }
    }

    /// Whether there is a tensor with this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        match self {
            Self::Gguf(gguf) => gguf.has(name),
            Self::HuggingFace(folder) => folder.has(name),
        }
    }

    /// The names of the tensors, in the checkpoint's order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        let names: Box<dyn Iterator<Item = &str>> = match self {
            Self::Gguf(gguf) => Box::new(gguf.tensor_names()),
            Self::HuggingFace(folder) => Box::new(folder.tensor_names()),
        };
        names
    }

    /// Whether the files still are what they were when they were opened. To be called after reading:
    /// what was read before a success is what the files held.
    ///
    /// # Errors
    /// A file changed or shrank, or the system does not say.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        match self {
            Self::Gguf(gguf) => gguf.verify(),
            Self::HuggingFace(folder) => folder.verify(),
        }
    }

    /// The weight files that are mapped, as they were when they were opened.
    pub(crate) fn files(&self) -> impl Iterator<Item = (&Path, Stamp)> {
        let contents: Box<dyn Iterator<Item = &Content>> = match self {
            Self::Gguf(gguf) => Box::new(std::iter::once(gguf.content())),
            Self::HuggingFace(folder) => Box::new(folder.contents()),
        };
        contents.filter_map(|content| Some((content.path(), content.stamp()?)))
    }

    /// Gives the memory of a tensor that was read back to the system; it can be read again.
    pub(crate) fn forget(&self, name: &str) {
        match self {
            Self::Gguf(gguf) => gguf.forget(name),
            Self::HuggingFace(folder) => folder.forget(name),
        }
    }

    /// The file or folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        match self {
            Self::Gguf(gguf) => gguf.path(),
            Self::HuggingFace(folder) => folder.path(),
        }
    }

    /// The chat template, in Jinja.
    #[must_use]
    pub fn chat_template(&self) -> Option<String> {
        match self {
            Self::Gguf(gguf) => gguf.chat_template(),
            Self::HuggingFace(folder) => folder.chat_template(),
        }
        .map(str::to_owned)
    }

    /// The sampling settings that the checkpoint recommends.
    ///
    /// # Errors
    /// A setting has a wrong type or is out of range.
    pub fn generation_defaults(&self) -> Result<GenerationDefaults, CheckpointError> {
        match self {
            Self::Gguf(gguf) => generation::from_gguf(gguf),
            Self::HuggingFace(folder) => generation::from_hugging_face(folder),
        }
    }

    /// What the checkpoint is, at a glance.
    ///
    /// # Errors
    /// It does not say its architecture, or says it or the context in a wrong type.
    pub fn summary(&self) -> Result<Summary, CheckpointError> {
        summary::of(self)
    }
}

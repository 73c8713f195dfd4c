//! GGUF files, versions 2 and 3, little endian.
//!
//! Opening one reads the header only; tensors and metadata arrays stay in the map. A model cut into
//! several GGUF files is refused.

mod header;
mod value;
mod vocabulary;

use std::path::Path;

pub use value::{Array, ArrayRef, Value, ValueType};
pub use vocabulary::GgufVocabulary;

use super::content::Content;
use super::error::{Fault, Place};
use super::{CheckpointError, Tensor};
use header::Header;

/// The first bytes of a GGUF file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";

const CHAT_TEMPLATE: &str = "tokenizer.chat_template";

/// An open GGUF file.
#[derive(Debug)]
pub struct Gguf {
    content: Content,
    header: Header,
}

impl Gguf {
    /// Maps a file and reads its header.
    ///
    /// # Errors
    /// The file cannot be read, is not GGUF of a known version, or breaks the format.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        Self::parse(Content::map(path)?)
    }

    /// Reads a GGUF file that lies in memory; `label` stands for its name in errors.
    ///
    /// # Errors
    /// As for [`Gguf::open`].
    pub fn from_memory(label: &Path, bytes: Vec<u8>) -> Result<Self, CheckpointError> {
        Self::parse(Content::memory(label, bytes))
    }

    fn parse(content: Content) -> Result<Self, CheckpointError> {
        let parsed = header::parse(&content);
        // A file that changed under the parser is told as such, not as malformed.
        content.verify()?;
        let header = parsed.map_err(|fault| fault.at(content.path()))?;
        let gguf = Self { content, header };
        gguf.find_str(CHAT_TEMPLATE)?;
        Ok(gguf)
    }

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.content.path()
    }

    /// Whether the file still is what it was when it was opened.
    ///
    /// # Errors
    /// It changed, or the system does not say.
    pub fn verify(&self) -> Result<(), CheckpointError> {
        self.content.verify()
    }

    pub(super) fn content(&self) -> &Content {
        &self.content
    }

    // === Tensors

    /// Gives the memory of a tensor that was read back to the system.
    pub(super) fn forget(&self, name: &str) {
        if let Some(info) = self.header.tensors.get(name) {
            self.content.forget(info.bytes.clone());
        }
    }

    /// The tensor with this name.
    ///
    /// # Errors
    /// There is none.
    pub fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        let Some((name, info)) = self.header.tensors.get_key_value(name) else {
            return Err(CheckpointError::MissingTensor { path: self.path().into(), name: name.to_owned() });
        };
        let bytes = &self.content[info.bytes.clone()];
        Ok(Tensor { name, shape: info.shape(), dtype: info.dtype, bytes })
    }

    /// Whether there is a tensor with this name.
    #[must_use]
    pub fn has(&self, name: &str) -> bool {
        self.header.tensors.contains_key(name)
    }

    /// The names of the tensors, in the file's order.
    pub fn tensor_names(&self) -> impl Iterator<Item = &str> {
        self.header.tensors.keys().map(|name| &**name)
    }

    // === Metadata

    /// The keys of the metadata, in the file's order.
    pub fn keys(&self) -> impl Iterator<Item = &str> {
        self.header.metadata.keys().map(|key| &**key)
    }

    /// The value of a metadata key.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.header.metadata.get(key)
    }

    /// An integer of any width that fits into 32 bits without sign.
    ///
    /// # Errors
    /// The key is missing, or has another type or range.
    pub fn u32(&self, key: &str) -> Result<u32, CheckpointError> {
        self.required(key, self.find_u32(key)?)
    }

    /// As [`Gguf::u32`], where the key may be missing.
    ///
    /// # Errors
    /// The key has another type or range.
    pub fn find_u32(&self, key: &str) -> Result<Option<u32>, CheckpointError> {
        self.find(key, "an integer", |value| match value {
            Value::Unsigned(n) => Some(u32::try_from(*n).map_err(|_| n.to_string())),
            Value::Signed(n) => Some(u32::try_from(*n).map_err(|_| n.to_string())),
            Value::Float(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => None,
        })
    }

    /// A finite float.
    ///
    /// # Errors
    /// The key is missing, or has another type, or is infinite or not a number.
    pub fn f32(&self, key: &str) -> Result<f32, CheckpointError> {
        self.required(key, self.find_f32(key)?)
    }

    /// As [`Gguf::f32`], where the key may be missing.
    ///
    /// # Errors
    /// The key has another type, or is infinite or not a number.
    pub fn find_f32(&self, key: &str) -> Result<Option<f32>, CheckpointError> {
        self.find(key, "a float", |value| match value {
            Value::Float(x) if (*x as f32).is_finite() => Some(Ok(*x as f32)),
            Value::Float(x) => Some(Err(x.to_string())),
            Value::Unsigned(_) | Value::Signed(_) | Value::Bool(_) | Value::String(_) | Value::Array(_) => {
                None
            }
        })
    }

    /// A truth value.
    ///
    /// # Errors
    /// The key is missing or has another type.
    pub fn bool(&self, key: &str) -> Result<bool, CheckpointError> {
        self.required(key, self.find_bool(key)?)
    }

    /// As [`Gguf::bool`], where the key may be missing.
    ///
    /// # Errors
    /// The key has another type.
    pub fn find_bool(&self, key: &str) -> Result<Option<bool>, CheckpointError> {
        self.find(key, "a bool", |value| match value {
            Value::Bool(b) => Some(Ok(*b)),
            Value::Unsigned(_) | Value::Signed(_) | Value::Float(_) | Value::String(_) | Value::Array(_) => {
                None
            }
        })
    }

    /// A text.
    ///
    /// # Errors
    /// The key is missing or has another type.
    pub fn str(&self, key: &str) -> Result<&str, CheckpointError> {
        self.required(key, self.find_str(key)?)
    }

    /// As [`Gguf::str`], where the key may be missing.
    ///
    /// # Errors
    /// The key has another type.
    pub fn find_str(&self, key: &str) -> Result<Option<&str>, CheckpointError> {
        self.find(key, "a string", |value| match value {
            Value::String(text) => Some(Ok(&**text)),
            Value::Unsigned(_) | Value::Signed(_) | Value::Float(_) | Value::Bool(_) | Value::Array(_) => {
                None
            }
        })
    }

    /// An array.
    ///
    /// # Errors
    /// The key is missing or has another type.
    pub fn array(&self, key: &str) -> Result<Array<'_>, CheckpointError> {
        self.required(key, self.find_array(key)?)
    }

    /// As [`Gguf::array`], where the key may be missing.
    ///
    /// # Errors
    /// The key has another type.
    pub fn find_array(&self, key: &str) -> Result<Option<Array<'_>>, CheckpointError> {
        let array = self.find(key, "an array", |value| match value {
            Value::Array(array) => Some(Ok(array)),
            Value::Unsigned(_) | Value::Signed(_) | Value::Float(_) | Value::Bool(_) | Value::String(_) => {
                None
            }
        })?;
        let key = self.header.metadata.get_key_value(key).map(|(key, _)| &**key);
        Ok(array.zip(key).map(|(array, key)| Array {
            key,
            element: array.element,
            len: array.len,
            bytes: &self.content[array.bytes.clone()],
        }))
    }

    /// An array of integers that fit into 32 bits without sign.
    ///
    /// # Errors
    /// The key is missing, has another type, or holds a number out of range.
    pub fn u32s(&self, key: &str) -> Result<Vec<u32>, CheckpointError> {
        self.locate(self.array(key)?.integers())
    }

    /// An array of floats, of which none is a NaN.
    ///
    /// # Errors
    /// The key is missing, has another type, or holds a NaN.
    pub fn f32s(&self, key: &str) -> Result<Vec<f32>, CheckpointError> {
        self.locate(self.array(key)?.floats())
    }

    /// An array of truth values.
    ///
    /// # Errors
    /// The key is missing or has another type.
    pub fn bools(&self, key: &str) -> Result<Vec<bool>, CheckpointError> {
        self.locate(self.array(key)?.bools())
    }

    /// An array of texts.
    ///
    /// # Errors
    /// The key is missing, has another type, or holds a string that is not UTF-8.
    pub fn strs(&self, key: &str) -> Result<Vec<&str>, CheckpointError> {
        self.locate(self.array(key)?.texts())
    }

    /// The architecture's name, `general.architecture`.
    ///
    /// # Errors
    /// The key is missing or has another type.
    pub fn architecture(&self) -> Result<&str, CheckpointError> {
        self.str("general.architecture")
    }

    /// The chat template, `tokenizer.chat_template`.
    #[must_use]
    pub fn chat_template(&self) -> Option<&str> {
        self.find_str(CHAT_TEMPLATE).expect("its type was checked when the file was opened")
    }

    /// What a tokenizer is made from.
    ///
    /// # Errors
    /// A needed key is missing, or one has another type or length than it must have.
    pub fn vocabulary(&self) -> Result<GgufVocabulary<'_>, CheckpointError> {
        vocabulary::read(self)
    }

    /// Looks a key up and reads it. `read` gives `None` for another type and the value's text for one
    /// out of range.
    fn find<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<Result<T, String>>,
    ) -> Result<Option<T>, CheckpointError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let reason = match read(value) {
            Some(Ok(value)) => return Ok(Some(value)),
            Some(Err(shown)) => format!("is {shown}: out of range"),
            None => format!("expected {expected}, found {}", value.kind()),
        };
        Err(self.fault(Fault::key(key, reason)))
    }

    fn required<T>(&self, key: &str, found: Option<T>) -> Result<T, CheckpointError> {
        found.ok_or_else(|| CheckpointError::MissingKey { path: self.path().into(), key: key.to_owned() })
    }

    fn locate<T>(&self, result: Result<T, Fault>) -> Result<T, CheckpointError> {
        result.map_err(|fault| self.fault(fault))
    }

    fn fault(&self, fault: Fault) -> CheckpointError {
        fault.at(self.path())
    }

    /// An error about a metadata key of this file, for those who read meaning into it.
    #[must_use]
    pub fn bad_key(&self, key: &str, reason: impl Into<String>) -> CheckpointError {
        self.fault(Fault::new(Place::Key(key.to_owned()), reason))
    }
}

//! One safetensors file: a JSON header, then the tensors' bytes.
//!
//! Layout (huggingface/safetensors, README): eight bytes little-endian length of the header, the header,
//! the data. The data belongs to tensors without gaps or overlap. The header is read as a stream into
//! the table of tensors, never as a tree, so that memory stays within a small multiple of its length.
//! Tensors of a type that is no weight format (integers, 8-bit floats) are kept in the table and refused
//! only when one is asked for, because checkpoints carry such tensors beside the weights.

use std::fmt;
use std::ops::Range;
use std::path::Path;

use device::DType;
use indexmap::IndexMap;
use indexmap::map::Entry;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::content::Content;
use super::error::{Fault, Place, Quoted};
use super::ranges::refuse_overlap;
use super::{CheckpointError, Tensor};

/// Longest header that is read, the format's own limit.
const MAX_HEADER: u64 = 100_000_000;
/// Most dimensions of a tensor that is given out.
const MAX_DIMS: usize = 4;

/// An open safetensors file.
#[derive(Debug)]
pub(super) struct SafeTensors {
    content: Content,
    tensors: IndexMap<Box<str>, Info>,
}

/// A tensor's line in the header; the range is of the file and was checked.
#[derive(Debug)]
struct Info {
    shape: Vec<usize>,
    dtype: StoredType,
    bytes: Range<usize>,
}

/// How large a tensor is.
pub(super) struct Measure<'a> {
    pub(super) elements: u64,
    pub(super) bytes: u64,
    /// The type's name in the file.
    pub(super) dtype: &'a str,
}

/// The element type of a tensor.
#[derive(Debug)]
enum StoredType {
    Weight(DType),
    Other(Box<str>),
}

impl StoredType {
    fn from_name(name: String) -> Self {
        match name.as_str() {
            "F32" => Self::Weight(DType::F32),
            "F16" => Self::Weight(DType::F16),
            "BF16" => Self::Weight(DType::Bf16),
            _ => Self::Other(name.into()),
        }
    }

    /// Bytes of an element; `None` for types that are not known here.
    fn size(&self) -> Option<usize> {
        match self {
            Self::Weight(dtype) => Some(dtype.block_bytes()),
            Self::Other(name) => match &**name {
                "F64" | "I64" | "U64" | "C64" => Some(8),
                "I32" | "U32" => Some(4),
                "I16" | "U16" => Some(2),
                "I8" | "U8" | "BOOL" | "F8_E4M3" | "F8_E5M2" | "F8_E8M0" => Some(1),
                _ => None,
            },
        }
    }
}

impl SafeTensors {
    pub(super) fn open(path: &Path) -> Result<Self, CheckpointError> {
        Self::parse(Content::map(path)?)
    }

    pub(super) fn parse(content: Content) -> Result<Self, CheckpointError> {
        let parsed = parse(&content);
        // A file that changed under the parser is told as such, not as malformed.
        content.verify()?;
        let tensors = parsed.map_err(|fault| fault.at(content.path()))?;
        Ok(Self { content, tensors })
    }

    pub(super) fn path(&self) -> &Path {
        self.content.path()
    }

    pub(super) fn content(&self) -> &Content {
        &self.content
    }

    /// Gives the memory of a tensor that was read back to the system.
    pub(super) fn forget(&self, name: &str) {
        if let Some(info) = self.tensors.get(name) {
            self.content.forget(info.bytes.clone());
        }
    }

    pub(super) fn verify(&self) -> Result<(), CheckpointError> {
        self.content.verify()
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.tensors.keys().map(|name| &**name)
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.tensors.contains_key(name)
    }

    /// How large a tensor is, whatever its type.
    pub(super) fn measure(&self, name: &str) -> Option<Measure<'_>> {
        let info = self.tensors.get(name)?;
        Some(Measure {
            elements: info.shape.iter().fold(1u64, |n, dim| n.saturating_mul(*dim as u64)),
            bytes: info.bytes.len() as u64,
            dtype: match &info.dtype {
                StoredType::Weight(dtype) => dtype.name(),
                StoredType::Other(name) => name,
            },
        })
    }

    pub(super) fn tensor(&self, name: &str) -> Result<Tensor<'_>, CheckpointError> {
        let path = self.path();
        let Some((name, info)) = self.tensors.get_key_value(name) else {
            return Err(CheckpointError::MissingTensor { path: path.into(), name: name.to_owned() });
        };
        let refuse = |reason| Err(Fault::unsupported(Place::Tensor(name.to_string()), reason).at(path));
        let dtype = match &info.dtype {
            StoredType::Weight(dtype) => *dtype,
            StoredType::Other(stored) => {
                return refuse(format!("has the type {}, which is not read", Quoted(stored)));
            }
        };
        if !(1..=MAX_DIMS).contains(&info.shape.len()) {
            return refuse(format!("has {} dimensions, not 1 to {MAX_DIMS}", info.shape.len()));
        }
        if info.shape.contains(&0) {
            return refuse(format!("has no elements: {:?}", info.shape));
        }
        Ok(Tensor { name, shape: info.shape.clone(), dtype, bytes: &self.content[info.bytes.clone()] })
    }
}

fn parse(file: &[u8]) -> Result<IndexMap<Box<str>, Info>, Fault> {
    let (len, rest) = file
        .split_first_chunk::<8>()
        .ok_or_else(|| Fault::header(format!("the file has only {} bytes", file.len())))?;
    let len = u64::from_le_bytes(*len);
    if len > MAX_HEADER {
        return Err(Fault::header(format!("claims {len} bytes, more than {MAX_HEADER}")));
    }
    let (header, data) = usize::try_from(len)
        .ok()
        .and_then(|len| rest.split_at_checked(len))
        .ok_or_else(|| Fault::header(format!("claims {len} bytes, but {} follow", rest.len())))?;
    let raw = read_header(header)?;

    let start = file.len() - data.len();
    let mut tensors: IndexMap<Box<str>, Info> = IndexMap::with_capacity(raw.len());
    for (name, raw) in raw {
        let info = place(&name, raw, start, data.len())?;
        tensors.insert(name, info);
    }
    let ranges = tensors.iter().map(|(name, info)| (&**name, &info.bytes));
    refuse_overlap(ranges)?;
    let used: usize = tensors.values().map(|info| info.bytes.len()).sum();
    if used != data.len() {
        let unused = data.len() - used;
        return Err(Fault::header(format!("{unused} bytes of the data belong to no tensor")));
    }
    Ok(tensors)
}

fn place(name: &str, raw: RawInfo, start: usize, data_len: usize) -> Result<Info, Fault> {
    let fault = |reason: String| Fault::tensor(name, reason);
    let [from, to] = raw.data_offsets;
    let range = usize::try_from(from)
        .ok()
        .zip(usize::try_from(to).ok())
        .filter(|(from, to)| from <= to && *to <= data_len)
        .map(|(from, to)| start + from..start + to)
        .ok_or_else(|| fault(format!("lies at [{from}, {to}) of {data_len} bytes of data")))?;
    let shape = raw
        .shape
        .iter()
        .map(|dim| usize::try_from(*dim).ok())
        .collect::<Option<Vec<usize>>>()
        .ok_or_else(|| fault("is too large".to_owned()))?;
    let dtype = StoredType::from_name(raw.dtype);
    if let Some(size) = dtype.size() {
        let need = shape.iter().try_fold(size, |bytes, dim| bytes.checked_mul(*dim));
        if need != Some(range.len()) {
            let need = need.map_or("too many".to_owned(), |need| need.to_string());
            return Err(fault(format!("needs {need} bytes for its shape and has {}", range.len())));
        }
    }
    Ok(Info { shape, dtype, bytes: range })
}

// === The JSON header

#[derive(serde::Deserialize)]
struct RawInfo {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

fn read_header(json: &[u8]) -> Result<IndexMap<Box<str>, RawInfo>, Fault> {
    let fault = |e: serde_json::Error| Fault::header(e.to_string());
    let mut deserializer = serde_json::Deserializer::from_slice(json);
    let tensors = deserializer.deserialize_map(HeaderVisitor).map_err(fault)?;
    // The header may be filled up with spaces.
    deserializer.end().map_err(fault)?;
    Ok(tensors)
}

struct HeaderVisitor;

impl<'de> Visitor<'de> for HeaderVisitor {
    type Value = IndexMap<Box<str>, RawInfo>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object from tensor names to their places")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut tensors = IndexMap::new();
        while let Some(name) = map.next_key::<Box<str>>()? {
            if &*name == "__metadata__" {
                map.next_value::<IgnoredAny>()?;
                continue;
            }
            let info = map
                .next_value::<RawInfo>()
                .map_err(|e| A::Error::custom(format_args!("tensor {}: {e}", Quoted(&name))))?;
            match tensors.entry(name) {
                Entry::Vacant(vacant) => vacant.insert(info),
                Entry::Occupied(taken) => {
                    return Err(A::Error::custom(format_args!(
                        "tensor {} is there twice",
                        Quoted(taken.key())
                    )));
                }
            };
        }
        Ok(tensors)
    }
}

//! Parses the header of a GGUF file: metadata and the table of tensors.
//!
//! The bytes are taken as hostile. Every count is held against what the rest of the file could carry
//! before anything is reserved for it, so memory stays within a small multiple of the header; every
//! loop consumes bytes; nested arrays end at a fixed depth. All offsets are checked here, once.
//!
//! Layout (ggml-org/ggml, `docs/gguf.md`), all little endian: magic, version, tensor count, metadata
//! count, metadata, tensor infos, padding to the alignment, tensor data.

use std::ops::Range;

use device::DType;
use indexmap::IndexMap;
use indexmap::map::Entry;

use super::super::error::{Fault, Place};
use super::value::{ArrayRef, Value, ValueType};

/// Deepest nesting of arrays that is read; real files have none.
const MAX_ARRAY_DEPTH: usize = 4;
/// Alignment of tensor data where the file does not state one.
const DEFAULT_ALIGNMENT: u64 = 32;
/// Largest alignment that is believed.
const MAX_ALIGNMENT: u64 = 1 << 20;
/// Most dimensions of a tensor.
pub(super) const MAX_DIMS: usize = 4;
/// Longest key or tensor name, the format's own limit for keys.
const MAX_NAME: usize = 65_535;

/// A parsed header.
#[derive(Debug)]
pub(super) struct Header {
    pub(super) metadata: IndexMap<Box<str>, Value>,
    pub(super) tensors: IndexMap<Box<str>, TensorInfo>,
}

/// What the header says of a tensor; the range was checked against the file.
#[derive(Clone, Debug)]
pub(super) struct TensorInfo {
    /// As in the file: innermost first.
    dims: [usize; MAX_DIMS],
    rank: usize,
    pub(super) dtype: DType,
    pub(super) bytes: Range<usize>,
}

impl TensorInfo {
    /// Outermost first.
    pub(super) fn shape(&self) -> Vec<usize> {
        self.dims[..self.rank].iter().rev().copied().collect()
    }
}

pub(super) fn parse(file: &[u8]) -> Result<Header, Fault> {
    let mut cursor = Cursor { file, at: 0 };
    let (tensor_count, metadata_count) = preamble(&mut cursor).map_err(Preamble::fault)?;

    let mut metadata = IndexMap::new();
    for index in 0..metadata_count {
        let (key, value) = entry(&mut cursor, index)?;
        match metadata.entry(key) {
            Entry::Vacant(vacant) => vacant.insert(value),
            Entry::Occupied(taken) => return Err(Fault::key(taken.key(), "is there twice")),
        };
    }
    refuse_parts(&metadata)?;
    let alignment = alignment(&metadata)?;

    let mut tensors = IndexMap::new();
    for index in 0..tensor_count {
        let (name, info) = tensor(&mut cursor, index)?;
        match tensors.entry(name) {
            Entry::Vacant(vacant) => vacant.insert(info),
            Entry::Occupied(taken) => return Err(Fault::tensor(taken.key(), "is there twice")),
        };
    }
    let data = (cursor.at as u64).next_multiple_of(alignment);
    let tensors = place(tensors, data, alignment, file.len())?;
    Ok(Header { metadata, tensors })
}

/// What can be wrong before the first entry.
enum Preamble {
    Malformed(String),
    Unsupported(String),
}

impl Preamble {
    fn fault(self) -> Fault {
        match self {
            Self::Malformed(reason) => Fault::header(reason),
            Self::Unsupported(reason) => Fault::unsupported(Place::Header, reason),
        }
    }
}

impl From<Short> for Preamble {
    fn from(short: Short) -> Self {
        Self::Malformed(format!("the file ends inside the header: {short}"))
    }
}

/// Gives the numbers of tensors and of metadata entries.
fn preamble(cursor: &mut Cursor<'_>) -> Result<(u64, u64), Preamble> {
    if cursor.take(4)? != super::MAGIC {
        return Err(Preamble::Malformed("does not begin with GGUF".to_owned()));
    }
    let version = cursor.u32()?;
    match version {
        2 | 3 => {}
        // Small versions read in the wrong byte order have their low half empty.
        _ if version & 0xffff == 0 && version != 0 => {
            return Err(Preamble::Unsupported("big-endian GGUF is not read".to_owned()));
        }
        _ => {
            return Err(Preamble::Unsupported(format!(
                "GGUF version {version} is not read, only versions 2 and 3"
            )));
        }
    }
    /// Fewest bytes of a tensor info: name length, rank, one dimension, type, offset.
    const LEAST_TENSOR: usize = 8 + 4 + 8 + 4 + 8;
    /// Fewest bytes of a metadata entry: key length, type, a one-byte value.
    const LEAST_ENTRY: usize = 8 + 4 + 1;
    let tensors = cursor.u64()?;
    let entries = cursor.u64()?;
    for (what, count, least) in
        [("tensors", tensors, LEAST_TENSOR), ("metadata entries", entries, LEAST_ENTRY)]
    {
        let most = cursor.rest() / least;
        if count > most as u64 {
            return Err(Preamble::Malformed(format!(
                "claims {count} {what}, but the file has room for at most {most}"
            )));
        }
    }
    Ok((tensors, entries))
}

// === Metadata

fn entry(cursor: &mut Cursor<'_>, index: u64) -> Result<(Box<str>, Value), Fault> {
    let key = name(cursor).map_err(|e| Fault::header(format!("key of metadata entry {index}: {e}")))?;
    let fault = |reason: String| Fault::key(&key, reason);
    let kind = value_type(cursor).map_err(fault)?;
    let value = value(cursor, kind).map_err(fault)?;
    Ok((key, value))
}

fn name(cursor: &mut Cursor<'_>) -> Result<Box<str>, String> {
    let bytes = cursor.string()?;
    if bytes.is_empty() {
        return Err("is empty".to_owned());
    }
    if bytes.len() > MAX_NAME {
        return Err(format!("has {} bytes, more than {MAX_NAME}", bytes.len()));
    }
    // Owned, because a name must stay valid UTF-8 even if the file changes.
    std::str::from_utf8(bytes).map(Box::from).map_err(|_| "is not UTF-8".to_owned())
}

fn value_type(cursor: &mut Cursor<'_>) -> Result<ValueType, String> {
    let id = cursor.u32()?;
    ValueType::from_id(id).ok_or_else(|| format!("has the unknown type {id}"))
}

fn value(cursor: &mut Cursor<'_>, kind: ValueType) -> Result<Value, String> {
    Ok(match kind {
        ValueType::U8 => Value::Unsigned(u8::from_le_bytes(cursor.array()?).into()),
        ValueType::I8 => Value::Signed(i8::from_le_bytes(cursor.array()?).into()),
        ValueType::U16 => Value::Unsigned(u16::from_le_bytes(cursor.array()?).into()),
        ValueType::I16 => Value::Signed(i16::from_le_bytes(cursor.array()?).into()),
        ValueType::U32 => Value::Unsigned(cursor.u32()?.into()),
        ValueType::I32 => Value::Signed(i32::from_le_bytes(cursor.array()?).into()),
        ValueType::F32 => Value::Float(f32::from_le_bytes(cursor.array()?).into()),
        ValueType::U64 => Value::Unsigned(cursor.u64()?),
        ValueType::I64 => Value::Signed(i64::from_le_bytes(cursor.array()?)),
        ValueType::F64 => Value::Float(f64::from_le_bytes(cursor.array()?)),
        ValueType::Bool => match cursor.array::<1>()? {
            [0] => Value::Bool(false),
            [1] => Value::Bool(true),
            [other] => return Err(format!("is a bool with the value {other}")),
        },
        ValueType::String => match std::str::from_utf8(cursor.string()?) {
            Ok(text) => Value::String(text.into()),
            Err(_) => return Err("is not UTF-8".to_owned()),
        },
        ValueType::Array => Value::Array(array(cursor, 1)?),
    })
}

fn array(cursor: &mut Cursor<'_>, depth: usize) -> Result<ArrayRef, String> {
    if depth > MAX_ARRAY_DEPTH {
        return Err(format!("nests arrays deeper than {MAX_ARRAY_DEPTH}"));
    }
    let element = value_type(cursor)?;
    let len = cursor.u64()?;
    let most = cursor.rest() / element.least_size();
    let len = usize::try_from(len).ok().filter(|len| *len <= most).ok_or_else(|| {
        format!("claims {len} elements of type {}, but the file has room for at most {most}", element.name())
    })?;
    let start = cursor.at;
    match (element, element.size()) {
        // No overflow: `len` elements of this size fit into the file.
        (_, Some(size)) => {
            cursor.take(len * size)?;
        }
        (ValueType::Array, None) => {
            for _ in 0..len {
                array(cursor, depth + 1)?;
            }
        }
        (_, None) => {
            for index in 0..len {
                cursor.string().map_err(|short| format!("string {index} of the array: {short}"))?;
            }
        }
    }
    Ok(ArrayRef { element, len, bytes: start..cursor.at })
}

fn alignment(metadata: &IndexMap<Box<str>, Value>) -> Result<u64, Fault> {
    const KEY: &str = "general.alignment";
    let bad = |shown: String| {
        let most = MAX_ALIGNMENT;
        Fault::key(KEY, format!("is {shown}, not a power of two from 8 to {most}"))
    };
    match metadata.get(KEY) {
        None => Ok(DEFAULT_ALIGNMENT),
        Some(Value::Unsigned(n)) if n.is_power_of_two() && (8..=MAX_ALIGNMENT).contains(n) => Ok(*n),
        Some(Value::Unsigned(n)) => Err(bad(n.to_string())),
        Some(Value::Signed(n)) => Err(bad(n.to_string())),
        Some(other) => Err(bad(other.kind().to_owned())),
    }
}

/// A model cut into several files holds only some of its tensors in each; one file of it is refused
/// here, where the reason can be told.
fn refuse_parts(metadata: &IndexMap<Box<str>, Value>) -> Result<(), Fault> {
    const KEY: &str = "split.count";
    match metadata.get(KEY) {
        Some(Value::Unsigned(parts @ 2..)) => Err(Fault::unsupported(
            Place::Key(KEY.to_owned()),
            format!("this is one of {parts} parts of a model; join them into one file first"),
        )),
        _ => Ok(()),
    }
}

// === Tensors

/// A tensor info before its place was checked.
struct Unplaced {
    dims: [usize; MAX_DIMS],
    rank: usize,
    dtype: DType,
    /// From the start of the tensor data.
    offset: u64,
    size: usize,
}

fn tensor(cursor: &mut Cursor<'_>, index: u64) -> Result<(Box<str>, Unplaced), Fault> {
    let name = name(cursor).map_err(|e| Fault::header(format!("name of tensor {index}: {e}")))?;
    let fault = |reason: String| Fault::tensor(&name, reason);
    let short = |short: Short| fault(short.to_string());

    let rank = cursor.u32().map_err(short)?;
    let rank = usize::try_from(rank)
        .ok()
        .filter(|rank| (1..=MAX_DIMS).contains(rank))
        .ok_or_else(|| fault(format!("has {rank} dimensions, not 1 to {MAX_DIMS}")))?;
    let mut dims = [1; MAX_DIMS];
    for dim in &mut dims[..rank] {
        let n = cursor.u64().map_err(short)?;
        *dim = usize::try_from(n)
            .ok()
            .filter(|n| *n > 0)
            .ok_or_else(|| fault(format!("has a dimension of {n}")))?;
    }
    let id = cursor.u32().map_err(short)?;
    let dtype = match dtype(id) {
        Ok(dtype) => dtype,
        Err(Some(known)) => {
            let reason = format!("has the type {known}, which is not read");
            return Err(Fault::unsupported(Place::Tensor(name.into()), reason));
        }
        Err(None) => return Err(fault(format!("has the unknown type {id}"))),
    };
    let offset = cursor.u64().map_err(short)?;
    if dims[0] % dtype.block_len() != 0 {
        return Err(fault(format!(
            "has rows of {} elements, which are not whole blocks of {} ({})",
            dims[0],
            dtype.block_len(),
            dtype.name()
        )));
    }
    let size = dtype
        .row_bytes(dims[0])
        .and_then(|row| dims[1..].iter().try_fold(row, |size, dim| size.checked_mul(*dim)))
        .ok_or_else(|| fault(format!("is too large: {:?}", &dims[..rank])))?;
    Ok((name, Unplaced { dims, rank, dtype, offset, size }))
}

/// Turns offsets into ranges of the file: inside it, aligned, and none over another.
fn place(
    tensors: IndexMap<Box<str>, Unplaced>,
    data: u64,
    alignment: u64,
    file_len: usize,
) -> Result<IndexMap<Box<str>, TensorInfo>, Fault> {
    let mut placed = IndexMap::with_capacity(tensors.len());
    for (name, tensor) in tensors {
        if tensor.offset % alignment != 0 {
            let reason = format!("begins at {}, not at a multiple of {alignment}", tensor.offset);
            return Err(Fault::tensor(&name, reason));
        }
        let range = data
            .checked_add(tensor.offset)
            .and_then(|start| usize::try_from(start).ok())
            .and_then(|start| Some(start..start.checked_add(tensor.size)?))
            .filter(|range| range.end <= file_len)
            .ok_or_else(|| {
                let (size, offset) = (tensor.size, tensor.offset);
                Fault::tensor(
                    &name,
                    format!("needs {size} bytes at {offset} of the tensor data, past the end of the file ({file_len} bytes)"),
                )
            })?;
        let Unplaced { dims, rank, dtype, .. } = tensor;
        placed.insert(name, TensorInfo { dims, rank, dtype, bytes: range });
    }
    let ranges = placed.iter().map(|(name, info)| (&**name, &info.bytes));
    super::super::ranges::refuse_overlap(ranges)?;
    Ok(placed)
}

/// The format with this number; the name of one that is known but not read.
fn dtype(id: u32) -> Result<DType, Option<&'static str>> {
    Ok(match id {
        0 => DType::F32,
        1 => DType::F16,
        2 => DType::Q4_0,
        3 => DType::Q4_1,
        6 => DType::Q5_0,
        7 => DType::Q5_1,
        8 => DType::Q8_0,
        10 => DType::Q2K,
        11 => DType::Q3K,
        12 => DType::Q4K,
        13 => DType::Q5K,
        14 => DType::Q6K,
        20 => DType::Iq4Nl,
        30 => DType::Bf16,
        _ => {
            return Err(Some(match id {
                9 => "Q8_1",
                15 => "Q8_K",
                16 => "IQ2_XXS",
                17 => "IQ2_XS",
                18 => "IQ3_XXS",
                19 => "IQ1_S",
                21 => "IQ3_S",
                22 => "IQ2_S",
                23 => "IQ4_XS",
                24 => "I8",
                25 => "I16",
                26 => "I32",
                27 => "I64",
                28 => "F64",
                29 => "IQ1_M",
                34 => "TQ1_0",
                35 => "TQ2_0",
                39 => "MXFP4",
                _ => return Err(None),
            }));
        }
    })
}

// === Bytes

/// Reads forward through the file and never past its end.
struct Cursor<'a> {
    file: &'a [u8],
    at: usize,
}

/// The file ends too early.
#[derive(Debug)]
struct Short {
    need: u64,
    left: usize,
}

impl std::fmt::Display for Short {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "needs {} bytes where {} are left in the file", self.need, self.left)
    }
}

impl From<Short> for String {
    fn from(short: Short) -> Self {
        short.to_string()
    }
}

impl<'a> Cursor<'a> {
    fn rest(&self) -> usize {
        self.file.len() - self.at
    }

    fn take(&mut self, len: usize) -> Result<&'a [u8], Short> {
        let taken = self.file[self.at..].get(..len).ok_or(Short { need: len as u64, left: self.rest() })?;
        self.at += len;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Short> {
        let bytes = self.take(N)?;
        Ok(bytes.try_into().expect("`take` gives as many bytes as were asked for"))
    }

    fn u32(&mut self) -> Result<u32, Short> {
        self.array().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Result<u64, Short> {
        self.array().map(u64::from_le_bytes)
    }

    fn string(&mut self) -> Result<&'a [u8], Short> {
        let need = self.u64()?;
        let len = usize::try_from(need).map_err(|_| Short { need, left: self.rest() })?;
        self.take(len)
    }
}

//! GGUF metadata values. Scalars and strings are owned; arrays stay in the file and are read when
//! asked for, because a vocabulary has hundreds of thousands of strings.

use std::ops::Range;

use super::super::error::Fault;

/// The type of a metadata value or of an array's elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ValueType {
    U8,
    I8,
    U16,
    I16,
    U32,
    I32,
    F32,
    Bool,
    String,
    Array,
    U64,
    I64,
    F64,
}

impl ValueType {
    /// From the number in the file.
    pub(super) const fn from_id(id: u32) -> Option<Self> {
        Some(match id {
            0 => Self::U8,
            1 => Self::I8,
            2 => Self::U16,
            3 => Self::I16,
            4 => Self::U32,
            5 => Self::I32,
            6 => Self::F32,
            7 => Self::Bool,
            8 => Self::String,
            9 => Self::Array,
            10 => Self::U64,
            11 => Self::I64,
            12 => Self::F64,
            _ => return None,
        })
    }

    /// The name used in error texts.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "u8",
            Self::I8 => "i8",
            Self::U16 => "u16",
            Self::I16 => "i16",
            Self::U32 => "u32",
            Self::I32 => "i32",
            Self::F32 => "f32",
            Self::Bool => "bool",
            Self::String => "string",
            Self::Array => "array",
            Self::U64 => "u64",
            Self::I64 => "i64",
            Self::F64 => "f64",
        }
    }

    /// Bytes of a value; `None` where that depends on the value.
    pub(super) const fn size(self) -> Option<usize> {
        match self {
            Self::U8 | Self::I8 | Self::Bool => Some(1),
            Self::U16 | Self::I16 => Some(2),
            Self::U32 | Self::I32 | Self::F32 => Some(4),
            Self::U64 | Self::I64 | Self::F64 => Some(8),
            Self::String | Self::Array => None,
        }
    }

    /// Fewest bytes that a value can take in the file.
    pub(super) const fn least_size(self) -> usize {
        match (self, self.size()) {
            (_, Some(size)) => size,
            (Self::Array, None) => 12,
            (_, None) => 8,
        }
    }
}

/// A metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Any of the unsigned integers.
    Unsigned(u64),
    /// Any of the signed integers.
    Signed(i64),
    /// Either of the floats.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// A text.
    String(Box<str>),
    /// An array; its elements are read by [`Gguf::array`](super::Gguf::array).
    Array(ArrayRef),
}

impl Value {
    /// What the value is, for error texts.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Unsigned(_) | Self::Signed(_) => "an integer",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a bool",
            Self::String(_) => "a string",
            Self::Array(_) => "an array",
        }
    }
}

/// Where an array lies in its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayRef {
    pub(super) element: ValueType,
    pub(super) len: usize,
    pub(super) bytes: Range<usize>,
}

impl ArrayRef {
    /// The type of the elements.
    #[must_use]
    pub const fn element(&self) -> ValueType {
        self.element
    }

    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }
}

/// A metadata array of which the elements can be read.
#[derive(Clone, Copy, Debug)]
pub struct Array<'a> {
    pub(super) key: &'a str,
    pub(super) element: ValueType,
    pub(super) len: usize,
    pub(super) bytes: &'a [u8],
}

impl<'a> Array<'a> {
    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The type of the elements.
    #[must_use]
    pub const fn element(&self) -> ValueType {
        self.element
    }

    /// The strings, as the bytes that they are in the file.
    pub(super) fn strings(&self) -> Result<Vec<&'a [u8]>, Fault> {
        if self.element != ValueType::String {
            return Err(self.expected("strings"));
        }
        let mut strings = Vec::with_capacity(self.len.min(self.bytes.len() / 8));
        let mut rest = self.bytes;
        // The lengths were checked when the file was opened, but the file may have changed since.
        let mut next = || -> Option<&'a [u8]> {
            let (len, tail) = rest.split_first_chunk::<8>()?;
            let len = usize::try_from(u64::from_le_bytes(*len)).ok()?;
            let (string, tail) = tail.split_at_checked(len)?;
            rest = tail;
            Some(string)
        };
        for index in 0..self.len {
            let string = next().ok_or_else(|| {
                Fault::key(self.key, format!("string {index} runs past the end of the array"))
            })?;
            strings.push(string);
        }
        Ok(strings)
    }

    /// The strings, which must be UTF-8.
    pub(super) fn texts(&self) -> Result<Vec<&'a str>, Fault> {
        self.strings()?
            .into_iter()
            .enumerate()
            .map(|(index, bytes)| {
                std::str::from_utf8(bytes)
                    .map_err(|_| Fault::key(self.key, format!("string {index} is not UTF-8")))
            })
            .collect()
    }

    /// The elements as 32-bit floats; a NaN among them is an error.
    pub(super) fn floats(&self) -> Result<Vec<f32>, Fault> {
        let floats: Vec<f32> = match self.element {
            ValueType::F32 => self.chunks(f32::from_le_bytes),
            ValueType::F64 => self.chunks(|bytes| f64::from_le_bytes(bytes) as f32),
            _ => return Err(self.expected("floats")),
        };
        match floats.iter().position(|x| x.is_nan()) {
            Some(index) => Err(Fault::key(self.key, format!("element {index} is not a number"))),
            None => Ok(floats),
        }
    }

    /// The elements as integers that fit into `T`.
    pub(super) fn integers<T: TryFrom<i128>>(&self) -> Result<Vec<T>, Fault> {
        let wide: Vec<i128> = match self.element {
            ValueType::U8 => self.chunks(|b| u8::from_le_bytes(b).into()),
            ValueType::I8 => self.chunks(|b| i8::from_le_bytes(b).into()),
            ValueType::U16 => self.chunks(|b| u16::from_le_bytes(b).into()),
            ValueType::I16 => self.chunks(|b| i16::from_le_bytes(b).into()),
            ValueType::U32 => self.chunks(|b| u32::from_le_bytes(b).into()),
            ValueType::I32 => self.chunks(|b| i32::from_le_bytes(b).into()),
            ValueType::U64 => self.chunks(|b| u64::from_le_bytes(b).into()),
            ValueType::I64 => self.chunks(|b| i64::from_le_bytes(b).into()),
            ValueType::F32 | ValueType::F64 | ValueType::Bool | ValueType::String | ValueType::Array => {
                return Err(self.expected("integers"));
            }
        };
        wide.into_iter()
            .enumerate()
            .map(|(index, value)| {
                T::try_from(value)
                    .map_err(|_| Fault::key(self.key, format!("element {index} is {value}: out of range")))
            })
            .collect()
    }

    /// The elements as truth values.
    pub(super) fn bools(&self) -> Result<Vec<bool>, Fault> {
        match self.element {
            ValueType::Bool => Ok(self.bytes.iter().map(|byte| *byte != 0).collect()),
            _ => Err(self.expected("bools")),
        }
    }

    fn chunks<const N: usize, T>(&self, read: impl Fn([u8; N]) -> T) -> Vec<T> {
        let (chunks, rest) = self.bytes.as_chunks::<N>();
        assert!(rest.is_empty() && chunks.len() == self.len, "an array's bytes are its elements");
        chunks.iter().map(|chunk| read(*chunk)).collect()
    }

    fn expected(&self, what: &str) -> Fault {
        Fault::key(self.key, format!("expected an array of {what}, found one of {}", self.element.name()))
    }
}

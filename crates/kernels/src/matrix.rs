//! Weight matrices repacked into panels of sixteen output rows, the same bytes on every instruction set.
//!
//! A panel of a quantised matrix is a sequence of spans: the scales of some blocks of 32 input elements, then the
//! codes of these blocks. So a panel is read from its first byte to its last, and so are all panels of a matrix:
//! memory gives most to one reader that goes straight on. In a block, group `g` of 0..8 is four input elements of
//! each of the sixteen rows (lane `l`, byte `j`: row `l`, element `4g + j`), 64 bytes once unpacked:
//!
//! ```text
//! low four bits   4 x 64 bytes: byte i of vector v holds group v (low half) and group v + 4 (high half)
//! fifth bit       1 x 64 bytes: bit g of byte i belongs to group g
//! bits five, six  2 x 64 bytes: bits 2(g % 4).. of byte i of vector g / 4 belong to group g
//! eight bits      8 x 64 bytes: group after group
//! ```
//!
//! A panel of a float matrix is `[cols][16]` elements in their own format.
//!
//! Invariants: the packed values are those of the file, bit for bit; rows past the matrix's last are
//! zero; each panel starts on a 64-byte border. What it does not do: multiply (see `matmul`).

use crate::blocks::{self, Codes, Scaling};
use crate::buffer::{ALIGN, Buffer, Shared};
use crate::pool::Pool;
use crate::simd::LANES;
use base::Bytes;
use device::{DType, DeviceError, LoadFormat, MatrixSource, SharedBytes};
use half::{bf16, f16};
use std::sync::Arc;

/// Names this form of packed bytes, which outlive a build on disk: whoever changes the panels of any format
/// counts it up. It is the same on every instruction set, as the bytes are.
pub(crate) const PACKING: &str = "cpu-panels-2";

/// The shape of a quantised format's panels.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layout {
    /// Bits of a code as it is stored.
    pub(crate) bits: u32,
    pub(crate) scaling: Scaling,
    /// The code of value zero, where the scaling has one.
    pub(crate) offset: i32,
}

impl Layout {
    /// The layout of a quantised format.
    pub(crate) const fn of(dtype: DType) -> Self {
        let (bits, scaling, offset) = match dtype {
            DType::Q4_0 => (4, Scaling::Plain, 8),
            DType::Iq4Nl => (4, Scaling::Plain, 0),
            DType::Q4_1 => (4, Scaling::Min, 0),
            DType::Q5_0 => (5, Scaling::Plain, 16),
            DType::Q5_1 => (5, Scaling::Min, 0),
            DType::Q8_0 => (8, Scaling::Plain, 128),
            DType::Q2K => (4, Scaling::HalvesMin, 0),
            DType::Q3K => (4, Scaling::Halves, 8),
            DType::Q4K => (4, Scaling::Super, 0),
            DType::Q5K => (5, Scaling::Super, 0),
            DType::Q6K => (6, Scaling::Halves, 32),
            DType::F32 | DType::F16 | DType::Bf16 => panic!("float formats have no codes"),
        };
        Self { bits, scaling, offset }
    }

    /// Bytes of a block's codes.
    pub(crate) const fn code_bytes(self) -> usize {
        self.bits as usize * 64
    }

    /// Blocks of a span, whose scales stand together before their codes. A panel's last span has the scales of all,
    /// and the codes of those blocks that there are.
    pub(crate) const fn span(self) -> usize {
        match self.scaling {
            Scaling::Min => 1,
            // The scales of two blocks fill a line of 64 bytes, so that codes keep to lines.
            Scaling::Plain => 2,
            Scaling::Super | Scaling::Halves | Scaling::HalvesMin => 8,
        }
    }

    /// Half-precision vectors that the blocks of a span share.
    const fn floats(self) -> usize {
        match self.scaling {
            Scaling::Plain | Scaling::Halves => 1,
            Scaling::Min | Scaling::Super | Scaling::HalvesMin => 2,
        }
    }

    /// Where the half-precision vectors of block `b` start in its span.
    #[inline(always)]
    pub(crate) const fn floats_at(self, b: usize) -> usize {
        match self.scaling {
            Scaling::Plain => b % 2 * 32,
            _ => 0,
        }
    }

    /// Vectors of small integers per block that follow.
    const fn integers(self) -> usize {
        match self.scaling {
            Scaling::Plain | Scaling::Min => 0,
            Scaling::Super | Scaling::Halves => 2,
            Scaling::HalvesMin => 4,
        }
    }

    /// Bytes of a span's scales, whole lines of 64.
    pub(crate) const fn scale_bytes(self) -> usize {
        match self.scaling {
            Scaling::Plain => 64,
            _ => (self.floats() * 32 + self.span() * self.integers() * 16).next_multiple_of(ALIGN),
        }
    }

    /// Where the block's small integers start in its span.
    #[inline(always)]
    pub(crate) const fn integers_at(self, b: usize) -> usize {
        self.floats() * 32 + b % self.span() * self.integers() * 16
    }

    /// Bytes of a whole span.
    pub(crate) const fn span_bytes(self) -> usize {
        self.scale_bytes() + self.span() * self.code_bytes()
    }

    /// Bytes of a panel of so many blocks.
    const fn panel_bytes(self, blocks: usize) -> usize {
        blocks.div_ceil(self.span()) * self.scale_bytes() + blocks * self.code_bytes()
    }

    /// Where block `b`'s span starts in its panel, and where its codes start in that span.
    #[inline(always)]
    pub(crate) const fn block_at(self, b: usize) -> (usize, usize) {
        let (span, within) = (b / self.span(), b % self.span());
        (span * self.span_bytes(), self.scale_bytes() + within * self.code_bytes())
    }

    /// Writes block `b` of sixteen rows.
    fn put(self, panel: &mut [u8], b: usize, rows: &[Codes; LANES]) {
        let mut groups = [[0u8; 64]; 8];
        for (lane, x) in rows.iter().enumerate() {
            let (fours, _) = x.codes.as_chunks::<4>();
            for (group, four) in groups.iter_mut().zip(fours) {
                group[lane * 4..][..4].copy_from_slice(four);
            }
        }
        let (span, codes_at) = self.block_at(b);
        let (scales, codes) = panel[span..].split_at_mut(codes_at);
        let block = &mut codes[..self.code_bytes()];
        let (vectors, _) = block.as_chunks_mut::<64>();
        if self.bits == 8 {
            vectors.copy_from_slice(&groups);
        } else {
            for (g, vector) in vectors[..4].iter_mut().enumerate() {
                for i in 0..64 {
                    vector[i] = (groups[g][i] & 15) | (groups[g + 4][i] << 4);
                }
            }
            for (g, group) in groups.iter().enumerate() {
                // The fifth bit of all groups in one vector, bits five and six in two.
                let (vector, shift) = match self.bits {
                    5 => (4, g),
                    6 => (4 + g / 4, 2 * (g % 4)),
                    _ => continue,
                };
                for i in 0..64 {
                    vectors[vector][i] |= (group[i] >> 4) << shift;
                }
            }
        }
        for (lane, x) in rows.iter().enumerate() {
            let floats = &mut scales[self.floats_at(b)..];
            floats[lane * 2..][..2].copy_from_slice(&x.d.to_le_bytes());
            if self.floats() == 2 {
                floats[32 + lane * 2..][..2].copy_from_slice(&x.m.to_le_bytes());
            }
            let small = &mut scales[self.integers_at(b)..];
            let values: [u8; 4] = match self.scaling {
                Scaling::Super => [x.s[0], x.t[0], 0, 0],
                _ => [x.s[0], x.s[1], x.t[0], x.t[1]],
            };
            for (i, value) in values.iter().take(self.integers()).enumerate() {
                small[i * 16 + lane] = *value;
            }
        }
    }

    /// Reads lane `lane` of block `b` back.
    fn get(self, panel: &[u8], b: usize, lane: usize) -> Codes {
        let (span, codes_at) = self.block_at(b);
        let (scales, codes) = panel[span..].split_at(codes_at);
        let block = &codes[..self.code_bytes()];
        let mut x = Codes::ZERO;
        for (k, code) in x.codes.iter_mut().enumerate() {
            let (g, i) = (k / 4, lane * 4 + k % 4);
            *code = match self.bits {
                8 => block[g * 64 + i],
                _ => (block[g % 4 * 64 + i] >> (4 * (g / 4))) & 15,
            };
            *code |= match self.bits {
                5 => ((block[256 + i] >> g) & 1) << 4,
                6 => ((block[256 + g / 4 * 64 + i] >> (2 * (g % 4))) & 3) << 4,
                _ => 0,
            };
        }
        let floats = &scales[self.floats_at(b)..];
        let float = |i: usize| u16::from_le_bytes([floats[i * 32 + lane * 2], floats[i * 32 + lane * 2 + 1]]);
        x.d = float(0);
        if self.floats() == 2 {
            x.m = float(1);
        }
        let small = |i: usize| scales[self.integers_at(b) + i * 16 + lane];
        match self.scaling {
            Scaling::Plain | Scaling::Min => {}
            Scaling::Super => (x.s, x.t) = ([small(0); 2], [small(1); 2]),
            Scaling::Halves => x.s = [small(0), small(1)],
            Scaling::HalvesMin => (x.s, x.t) = ([small(0), small(1)], [small(2), small(3)]),
        }
        x
    }
}

/// A packed weight matrix; clones share the memory.
#[derive(Clone)]
pub struct Matrix(pub(crate) Arc<Panels>);

pub(crate) struct Panels {
    pub(crate) dtype: DType,
    /// Output width.
    pub(crate) rows: usize,
    /// Input width.
    pub(crate) cols: usize,
    pub(crate) panel_bytes: usize,
    data: Data,
}

/// Where the panels lie.
enum Data {
    /// In memory of their own.
    Own(Buffer<u8>),
    /// In bytes that were packed earlier.
    Shared(SharedBytes),
}

impl Panels {
    /// All panels, one after the other.
    #[inline]
    pub(crate) fn data(&self) -> &[u8] {
        match &self.data {
            Data::Own(buffer) => buffer,
            Data::Shared(bytes) => bytes,
        }
    }

    pub(crate) fn panels(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    /// Blocks of 32 input elements; the last may be padded with zeros.
    pub(crate) fn blocks(&self) -> usize {
        self.cols.div_ceil(32)
    }

    pub(crate) fn panel(&self, i: usize) -> &[u8] {
        &self.data()[i * self.panel_bytes..][..self.panel_bytes]
    }

    pub(crate) fn bytes(&self) -> Bytes {
        Bytes(self.data().len() as u64)
    }

    /// Whether the weights want activations quantised to eight bits.
    pub(crate) fn quantised(&self) -> bool {
        is_quantised(self.dtype)
    }

    /// Hands the values of row `row` to `put(column, value)`.
    pub(crate) fn row(&self, row: usize, mut put: impl FnMut(usize, f32)) {
        assert!(row < self.rows, "row {row} of a table with {} rows", self.rows);
        let (panel, lane) = (self.panel(row / LANES), row % LANES);
        if self.quantised() {
            let layout = Layout::of(self.dtype);
            for b in 0..self.blocks() {
                let x = layout.get(panel, b, lane);
                let values = blocks::values(layout.scaling, layout.offset, self.dtype == DType::Iq4Nl, &x);
                let width = (self.cols - b * 32).min(32);
                values[..width].iter().enumerate().for_each(|(j, v)| put(b * 32 + j, *v));
            }
        } else {
            let size = self.dtype.block_bytes();
            for k in 0..self.cols {
                put(k, element(self.dtype, &panel[(k * LANES + lane) * size..][..size]));
            }
        }
    }
}

fn is_quantised(dtype: DType) -> bool {
    !matches!(dtype, DType::F32 | DType::F16 | DType::Bf16)
}

fn element(dtype: DType, x: &[u8]) -> f32 {
    match dtype {
        DType::F32 => f32::from_le_bytes([x[0], x[1], x[2], x[3]]),
        DType::F16 => f16::from_le_bytes([x[0], x[1]]).to_f32(),
        _ => bf16::from_le_bytes([x[0], x[1]]).to_f32(),
    }
}

/// What a source becomes when it is packed.
struct Plan {
    dtype: DType,
    /// Bytes of a row of the source.
    row_bytes: usize,
    panel_bytes: usize,
    /// Bytes of all panels.
    total: usize,
}

impl Plan {
    fn of(source: &MatrixSource<'_>, format: LoadFormat) -> Result<Self, DeviceError> {
        let unsupported = |reason: String| DeviceError::Unsupported { name: source.name.to_owned(), reason };
        let (rows, cols) = (source.rows, source.cols);
        let Some(row_bytes) = source.dtype.row_bytes(cols).filter(|_| rows > 0 && cols > 0) else {
            let name = source.dtype.name();
            return Err(unsupported(format!("a {name} matrix cannot have {rows} rows of {cols} elements")));
        };
        if Some(source.bytes.len()) != row_bytes.checked_mul(rows) {
            let len = source.bytes.len();
            return Err(unsupported(format!("{len} bytes do not hold {rows} rows of {row_bytes} bytes")));
        }
        let dtype = match format {
            LoadFormat::Int8 if !is_quantised(source.dtype) => DType::Q8_0,
            LoadFormat::Int4 if !is_quantised(source.dtype) => DType::Q4_0,
            LoadFormat::AsStored | LoadFormat::Int8 | LoadFormat::Int4 => source.dtype,
        };
        let panel_bytes = if is_quantised(dtype) {
            Layout::of(dtype).panel_bytes(cols.div_ceil(32))
        } else {
            cols * LANES * dtype.block_bytes()
        };
        let panel_bytes = panel_bytes.next_multiple_of(ALIGN);
        let total = rows.div_ceil(LANES).checked_mul(panel_bytes);
        let total = total.ok_or(DeviceError::OutOfMemory(Bytes(u64::MAX)))?;
        Ok(Self { dtype, row_bytes, panel_bytes, total })
    }
}

/// A matrix over bytes that were packed earlier.
pub(crate) fn unpack(
    source: &MatrixSource<'_>,
    format: LoadFormat,
    packed: SharedBytes,
) -> Result<Matrix, DeviceError> {
    let Plan { dtype, panel_bytes, total, .. } = Plan::of(source, format)?;
    if packed.len() != total {
        let reason = format!("{} packed bytes where there are to be {total}", packed.len());
        return Err(DeviceError::Unsupported { name: source.name.to_owned(), reason });
    }
    let data = if packed.as_ptr().align_offset(ALIGN) == 0 {
        Data::Shared(packed)
    } else {
        let mut own = Buffer::zeroed(total)?;
        own.copy_from_slice(&packed);
        Data::Own(own)
    };
    let (rows, cols) = (source.rows, source.cols);
    Ok(Matrix(Arc::new(Panels { dtype, rows, cols, panel_bytes, data })))
}

/// Packs a matrix, its panels in parallel.
pub(crate) fn pack(
    source: &MatrixSource<'_>,
    format: LoadFormat,
    pool: &Pool,
) -> Result<Matrix, DeviceError> {
    let Plan { dtype, row_bytes, panel_bytes, total } = Plan::of(source, format)?;
    let (rows, cols) = (source.rows, source.cols);
    let (panels, blocks) = (rows.div_ceil(LANES), cols.div_ceil(32));
    let mut data = Buffer::<u8>::lasting(total)?;
    let out = Shared::new(&mut data);
    pool.ranges(panels, panels.div_ceil(pool.threads() * 16), &|range| {
        let mut quantised = vec![Vec::new(); LANES];
        let mut floats = vec![0.0; cols];
        for panel in range {
            // SAFETY: each panel is written by the one item that has it in its range.
            let data = unsafe { out.part(panel * panel_bytes, panel_bytes) };
            let lanes = LANES.min(rows - panel * LANES);
            let mut sources: [&[u8]; LANES] = [&[]; LANES];
            for (lane, row) in sources[..lanes].iter_mut().enumerate() {
                *row = &source.bytes[(panel * LANES + lane) * row_bytes..][..row_bytes];
            }
            if dtype != source.dtype {
                let size = source.dtype.block_bytes();
                for (row, quantised) in sources.iter().zip(&mut quantised).take(lanes) {
                    for (x, bytes) in floats.iter_mut().zip(row.chunks_exact(size)) {
                        *x = element(source.dtype, bytes);
                    }
                    quantised.clear();
                    blocks::quantise_row(&floats, dtype, quantised);
                }
                for (row, quantised) in sources.iter_mut().zip(&quantised).take(lanes) {
                    *row = quantised;
                }
            }
            if is_quantised(dtype) {
                let layout = Layout::of(dtype);
                let mut block = [Codes::ZERO; LANES];
                for b in 0..blocks {
                    for (x, row) in block.iter_mut().zip(&sources[..lanes]) {
                        *x = blocks::read(dtype, row, b);
                    }
                    layout.put(data, b, &block);
                }
            } else {
                for (lane, row) in sources[..lanes].iter().enumerate() {
                    interleave(data, row, lane, dtype.block_bytes());
                }
            }
        }
    });
    let data = Data::Own(data);
    Ok(Matrix(Arc::new(Panels { dtype, rows, cols, panel_bytes, data })))
}

/// Writes a row of elements of `size` bytes as lane `lane` of a float panel.
fn interleave(panel: &mut [u8], row: &[u8], lane: usize, size: usize) {
    if size == 2 {
        interleave_sized::<2>(panel, row, lane);
    } else {
        interleave_sized::<4>(panel, row, lane);
    }
}

fn interleave_sized<const SIZE: usize>(panel: &mut [u8], row: &[u8], lane: usize) {
    let (row, _) = row.as_chunks::<SIZE>();
    let (panel, _) = panel.as_chunks_mut::<SIZE>();
    for (to, x) in panel.chunks_exact_mut(LANES).zip(row) {
        to[lane] = *x;
    }
}

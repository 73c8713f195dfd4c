//! Quantised blocks as they stand in files: 32 unsigned codes and what scales them.
//!
//! Written from the format's definition (ggml-org/ggml, `ggml-common.h` and the `dequantize_row_*`
//! reference functions describe the bits). Every format is read into one form, [`Codes`]; the value of
//! an element is stated at [`Scaling`].
//!
//! Invariant: reading is exact; nothing is rounded. What it does not do: any arithmetic in bulk.

use device::DType;
use half::f16;

/// The values that the codes of IQ4_NL stand for.
pub(crate) const IQ4_NL: [i8; 16] =
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

/// How the value of a code `c` is made. `d` and `m` are the block's two half-precision numbers, `s` and
/// `t` the small integers of its first and second 16 elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scaling {
    /// `d * (c - offset)`, a `d` per 32.
    Plain,
    /// `d * c + m`, both per 32.
    Min,
    /// `d * s0 * c - m * t0`; `d`, `m` per 256, `s0`, `t0` per 32.
    Super,
    /// `d * s * (c - offset)`; `d` per 256, signed `s` per 16.
    Halves,
    /// `d * s * c - m * t`; `d`, `m` per 256, `s`, `t` per 16.
    HalvesMin,
}

/// 32 elements of a row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Codes {
    pub(crate) codes: [u8; 32],
    /// Half-precision bits.
    pub(crate) d: u16,
    pub(crate) m: u16,
    pub(crate) s: [u8; 2],
    pub(crate) t: [u8; 2],
}

impl Codes {
    /// Elements that are all zero in every scaling.
    pub(crate) const ZERO: Self = Self { codes: [0; 32], d: 0, m: 0, s: [0; 2], t: [0; 2] };
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

/// The low halves of 16 bytes, then the high halves.
fn nibbles(qs: &[u8]) -> [u8; 32] {
    let mut codes = [0; 32];
    for j in 0..16 {
        codes[j] = qs[j] & 15;
        codes[j + 16] = qs[j] >> 4;
    }
    codes
}

/// As `nibbles`, with a fifth bit from bit `j` of four bytes.
fn fives(qh: &[u8], qs: &[u8]) -> [u8; 32] {
    let high = u32::from_le_bytes([qh[0], qh[1], qh[2], qh[3]]);
    let mut codes = nibbles(qs);
    for (j, code) in codes.iter_mut().enumerate() {
        *code |= (((high >> j) & 1) as u8) << 4;
    }
    codes
}

/// Scale and min of sub-block `j` of Q4_K and Q5_K: six bits each, packed in twelve bytes.
fn scale_min(q: &[u8], j: usize) -> (u8, u8) {
    if j < 4 {
        (q[j] & 63, q[j + 4] & 63)
    } else {
        ((q[j + 4] & 15) | ((q[j - 4] >> 6) << 4), (q[j + 4] >> 4) | ((q[j] >> 6) << 4))
    }
}

/// Elements `[32 b, 32 b + 32)` of a row of quantised format `dtype`.
pub(crate) fn read(dtype: DType, row: &[u8], b: usize) -> Codes {
    let per_block = dtype.block_len() / 32;
    let size = dtype.block_bytes();
    let block = &row[b / per_block * size..][..size];
    let sub = b % per_block;
    let mut out = Codes::ZERO;
    match dtype {
        DType::Q4_0 | DType::Iq4Nl => {
            out.d = u16_at(block, 0);
            out.codes = nibbles(&block[2..]);
        }
        DType::Q4_1 => {
            (out.d, out.m) = (u16_at(block, 0), u16_at(block, 2));
            out.codes = nibbles(&block[4..]);
        }
        DType::Q5_0 => {
            out.d = u16_at(block, 0);
            out.codes = fives(&block[2..6], &block[6..]);
        }
        DType::Q5_1 => {
            (out.d, out.m) = (u16_at(block, 0), u16_at(block, 2));
            out.codes = fives(&block[4..8], &block[8..]);
        }
        DType::Q8_0 => {
            out.d = u16_at(block, 0);
            for (code, q) in out.codes.iter_mut().zip(&block[2..]) {
                *code = q ^ 0x80;
            }
        }
        DType::Q2K => {
            (out.d, out.m) = (u16_at(block, 80), u16_at(block, 82));
            let qs = &block[16 + sub / 4 * 32..][..32];
            for (code, q) in out.codes.iter_mut().zip(qs) {
                *code = (q >> (2 * (sub % 4))) & 3;
            }
            for half in 0..2 {
                let scale = block[sub * 2 + half];
                (out.s[half], out.t[half]) = (scale & 15, scale >> 4);
            }
        }
        DType::Q3K => {
            out.d = u16_at(block, 108);
            let qs = &block[32 + sub / 4 * 32..][..32];
            for l in 0..32 {
                let high = (block[l] >> sub) & 1;
                // Three bits with offset 4; stored here as four bits with offset 8.
                out.codes[l] = (((qs[l] >> (2 * (sub % 4))) & 3) | (high << 2)) + 4;
            }
            let scales = &block[96..108];
            for half in 0..2 {
                let i = sub * 2 + half;
                let low = if i < 8 { scales[i] & 15 } else { scales[i - 8] >> 4 };
                let high = (scales[8 + i % 4] >> (2 * (i / 4))) & 3;
                out.s[half] = (low | (high << 4)).wrapping_sub(32);
            }
        }
        DType::Q4K | DType::Q5K => {
            (out.d, out.m) = (u16_at(block, 0), u16_at(block, 2));
            let (s, t) = scale_min(&block[4..16], sub);
            (out.s, out.t) = ([s; 2], [t; 2]);
            let qs = if dtype == DType::Q4K { &block[16..] } else { &block[48..] };
            let qs = &qs[sub / 2 * 32..][..32];
            for l in 0..32 {
                out.codes[l] = (qs[l] >> (4 * (sub % 2))) & 15;
                if dtype == DType::Q5K {
                    out.codes[l] |= ((block[16 + l] >> sub) & 1) << 4;
                }
            }
        }
        DType::Q6K => {
            out.d = u16_at(block, 208);
            let (half, quarter) = (sub / 4, sub % 4);
            let ql = &block[half * 64 + quarter % 2 * 32..][..32];
            let qh = &block[128 + half * 32..][..32];
            for l in 0..32 {
                let low = (ql[l] >> (4 * (quarter / 2))) & 15;
                out.codes[l] = low | (((qh[l] >> (2 * quarter)) & 3) << 4);
            }
            out.s = [block[192 + sub * 2], block[193 + sub * 2]];
        }
        DType::F32 | DType::F16 | DType::Bf16 => unreachable!("float formats have no blocks"),
    }
    out
}

/// The values of 32 codes. `offset` is what a code of zero value holds.
pub(crate) fn values(scaling: Scaling, offset: i32, iq4: bool, x: &Codes) -> [f32; 32] {
    let (d, m) = (f16::from_bits(x.d).to_f32(), f16::from_bits(x.m).to_f32());
    std::array::from_fn(|j| {
        let code = i32::from(x.codes[j]);
        let q = if iq4 { i32::from(IQ4_NL[x.codes[j] as usize]) } else { code - offset } as f32;
        let half = j / 16;
        match scaling {
            Scaling::Plain => d * q,
            Scaling::Min => d * q + m,
            Scaling::Super | Scaling::HalvesMin => d * f32::from(x.s[half]) * q - m * f32::from(x.t[half]),
            Scaling::Halves => d * f32::from(x.s[half] as i8) * q,
        }
    })
}

/// Quantises a row of floats to blocks of [`DType::Q8_0`] or [`DType::Q4_0`], padded with zeros to whole
/// blocks.
pub(crate) fn quantise_row(x: &[f32], to: DType, out: &mut Vec<u8>) {
    for chunk in x.chunks(32) {
        let mut block = [0.0f32; 32];
        block[..chunk.len()].copy_from_slice(chunk);
        let peak = block.iter().fold(0.0f32, |a, b| if b.abs() > a.abs() { *b } else { a });
        let full = if to == DType::Q8_0 { peak.abs() / 127.0 } else { peak / -8.0 };
        let d = f16::from_f32(full.clamp(-65504.0, 65504.0));
        out.extend_from_slice(&d.to_le_bytes());
        let inverse = if d.to_f32() == 0.0 { 0.0 } else { 1.0 / d.to_f32() };
        let q = |x: f32| (x * inverse).round_ties_even() as i32;
        if to == DType::Q8_0 {
            out.extend(block.map(|x| q(x).clamp(-127, 127) as i8 as u8));
        } else {
            let code = |x: f32| (q(x) + 8).clamp(0, 15) as u8;
            out.extend((0..16).map(|j| code(block[j]) | (code(block[j + 16]) << 4)));
        }
    }
}

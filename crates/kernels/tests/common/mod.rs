//! Shared by the tests: matrices of every format with random content, and devices to try.
#![allow(dead_code, clippy::unwrap_used)]

use base::rng;
use device::{DType, MatrixSource};
use kernels::{Cpu, CpuConfig, Isa};

pub const QUANTISED: [DType; 11] = [
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::Q8_0,
    DType::Q2K,
    DType::Q3K,
    DType::Q4K,
    DType::Q5K,
    DType::Q6K,
    DType::Iq4Nl,
];

pub fn cpu(isa: Isa, threads: usize) -> Cpu {
    Cpu::new(CpuConfig { threads: Some(threads), isa: Some(isa) }).unwrap()
}

/// Uniform in `[-1, 1)`.
pub fn random(seed: u64, i: usize) -> f32 {
    (rng::uniform(seed, (i >> 32) as u32, i as u32) * 2.0 - 1.0) as f32
}

pub fn randoms(seed: u64, n: usize) -> Vec<f32> {
    (0..n).map(|i| random(seed, i)).collect()
}

pub fn half_bits(x: f32) -> u16 {
    half::f16::from_f32(x).to_bits()
}

/// Random bytes of a format, with scales of sensible size.
pub fn weights(dtype: DType, rows: usize, cols: usize, seed: u64) -> Vec<u8> {
    let len = rows * dtype.row_bytes(cols).unwrap();
    match dtype {
        DType::F32 => randoms(seed, rows * cols).iter().flat_map(|x| x.to_le_bytes()).collect(),
        DType::F16 => randoms(seed, rows * cols).iter().flat_map(|x| half_bits(*x).to_le_bytes()).collect(),
        DType::Bf16 => randoms(seed, rows * cols)
            .iter()
            .flat_map(|x| half::bf16::from_f32(*x).to_bits().to_le_bytes())
            .collect(),
        _ => {
            let mut bytes: Vec<u8> = (0..len).map(|i| rng::bits(seed, 1, i as u32) as u8).collect();
            let floats: &[usize] = match dtype {
                DType::Q4_1 | DType::Q5_1 | DType::Q4K | DType::Q5K => &[0, 2],
                DType::Q2K => &[80, 82],
                DType::Q3K => &[108],
                DType::Q6K => &[208],
                _ => &[0],
            };
            for (i, block) in bytes.chunks_exact_mut(dtype.block_bytes()).enumerate() {
                for (j, at) in floats.iter().enumerate() {
                    let x = random(seed + 1, i * 2 + j) * 0.01;
                    block[*at..at + 2].copy_from_slice(&half_bits(x).to_le_bytes());
                }
            }
            bytes
        }
    }
}

pub fn source<'a>(dtype: DType, rows: usize, cols: usize, bytes: &'a [u8]) -> MatrixSource<'a> {
    MatrixSource { name: "test.weight", rows, cols, dtype, bytes }
}

pub fn bits(x: &[f32]) -> Vec<u32> {
    x.iter().map(|x| x.to_bits()).collect()
}

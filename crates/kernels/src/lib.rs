//! The CPU device: numeric kernels behind safe functions, each with a scalar reference.
//!
//! [`Cpu`] implements [`device::Device`] on AVX-512 with VNNI, on AVX2 with and without VNNI, on NEON, and on
//! plain Rust, chosen once when it is made. Kernels are written once over sixteen lanes ([`simd`]); all instruction sets give the same
//! bits, and what a row gets never depends on the other rows, the tiles or the threads.
//!
//! Layers, bottom up: `buffer` (memory), `pool` (threads), `simd` and `math` (lanes), `blocks` and `matrix`
//! (weights), `quantise` and `matmul` (products), `kv` and `attention`, `rows` (all else), `cpu` (the trait); beside
//! them [`probe`] (what the machine can do).
//!
//! What it does not do: know any model, read files, sample.

mod attention;
mod blocks;
mod buffer;
mod cpu;
mod kv;
mod math;
mod matmul;
mod matrix;
mod pool;
pub mod probe;
mod quantise;
mod rows;
mod simd;

pub use cpu::{Cpu, CpuConfig, CpuError, Isa, Tensor, Vector};
pub use kv::Kv;
pub use matrix::Matrix;

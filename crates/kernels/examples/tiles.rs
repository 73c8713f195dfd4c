//! Cycles per tile of the products' inner loops, weights and activations in the second-level cache, one thread:
//! a tile is 16 outputs times a block of 32 inputs, for some rows.
//!
//! `cargo run --release -p kernels --example tiles` prints the table for each instruction set. With
//! `-- ISA FORMAT ROWS REPEATS` it only does that product so many times, for tools that
//! count instructions.
#![allow(clippy::print_stdout, clippy::expect_used, missing_docs)]

use device::{DType, Device, LoadFormat, MatrixSource, Product};
use kernels::{Cpu, CpuConfig, Isa, Matrix, Tensor};
use std::hint::black_box;
use std::time::Instant;

// Up to 512 KiB of weights; `F32`, `F16` and `BF16` lie in the third level.
const OUTPUTS: usize = 512;
const INPUTS: usize = 1024;
const TILES: usize = OUTPUTS / 16 * INPUTS / 32;

struct Bench {
    cpu: Cpu,
    weight: Matrix,
    x: Tensor,
    out: Tensor,
}

impl Bench {
    fn new(isa: Isa, dtype: DType, rows: usize) -> Self {
        let cpu = Cpu::new(CpuConfig { threads: Some(1), isa: Some(isa) }).expect("a device");
        let len = OUTPUTS * dtype.row_bytes(INPUTS).expect("whole blocks");
        // Small bytes: every half-precision scale is then a small number.
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 59) as u8).collect();
        let source = MatrixSource { name: "tiles", rows: OUTPUTS, cols: INPUTS, dtype, bytes: &bytes };
        let weight = cpu.matrix(&source, LoadFormat::AsStored).expect("a matrix");
        let x: Vec<f32> = (0..rows * INPUTS).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect();
        let (x, out) = (cpu.upload(INPUTS, &x), cpu.tensor(OUTPUTS));
        Self { cpu, weight, x, out }
    }

    fn product(&mut self) {
        let product = Product { weight: &self.weight, bias: None, out: &mut self.out, accumulate: false };
        self.cpu.matmul(&self.x, &mut [product]);
    }
}

/// Seconds of the fastest of some calls: the one that nothing disturbed.
fn fastest(mut body: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed().as_millis() < 40 {
        let call = Instant::now();
        body();
        best = best.min(call.elapsed().as_secs_f64());
    }
    best
}

/// Cycles a second, from a chain of steps that take four: a 64-bit multiplication (three on Intel since 2008,
/// on AMD since 2017) and an exclusive or, which keeps the compiler from multiplying several factors first.
/// A virtual machine's time-stamp counter runs at another rate than its core.
fn hertz() -> f64 {
    const CHAIN: u32 = 100_000;
    let seconds = fastest(|| {
        let (factor, mask) = black_box((0x9e37_79b9_7f4a_7c15u64, 0x5555u64));
        black_box((0..CHAIN).fold(black_box(1u64), |x, _| (x ^ mask).wrapping_mul(factor)));
    });
    f64::from(CHAIN) * 4.0 / seconds
}

fn isa(name: &str) -> Isa {
    let same = |isa: &Isa| isa.name().eq_ignore_ascii_case(name);
    Cpu::isas().into_iter().find(same).unwrap_or_else(|| panic!("this CPU has no {name}"))
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [name, format, rows, repeats] = &args[..] {
        let dtype = DType::ALL.into_iter().find(|dtype| dtype.name() == format).expect("a format");
        let mut bench = Bench::new(isa(name), dtype, rows.parse().expect("a number of rows"));
        (0..repeats.parse().expect("a number of repeats")).for_each(|_| bench.product());
        return;
    }
    const ROWS: [usize; 5] = [1, 2, 4, 8, 16];
    for isa in Cpu::isas() {
        let hertz = hertz();
        println!("{} at {:.2} GHz, cycles per tile of {ROWS:?} rows", isa.name(), hertz / 1e9);
        for dtype in DType::ALL {
            let cycles = ROWS.map(|rows| {
                let mut bench = Bench::new(isa, dtype, rows);
                fastest(|| bench.product()) * hertz / TILES as f64
            });
            println!("{:<8}{}", dtype.name(), cycles.map(|c| format!("{c:9.1}")).concat());
        }
    }
}

//! Measures the kernels on this machine: GB/s of weights for one row and GOP/s for 512 rows, per format;
//! attention over a long context. `cargo run --release -p kernels --example probe [-- threads [isa]]`
#![allow(clippy::print_stdout, clippy::expect_used, missing_docs)]

use device::{
    AttentionSpec, Batch, DType, Device, KvGroup, KvReach, KvSpec, LoadFormat, MatrixSource, PageId, Product,
};
use kernels::{Cpu, CpuConfig, Isa, Matrix};
use std::time::Instant;

/// Time that this thread has spent on a CPU: with one thread the measure of a busy machine.
fn thread_seconds() -> f64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock writes one `timespec`.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    time.tv_sec as f64 + time.tv_nsec as f64 * 1e-9
}

/// Seconds of the best of some repetitions: processor time with one thread, wall time with several.
fn best(cpu: &mut Cpu, mut body: impl FnMut(&mut Cpu)) -> f64 {
    body(cpu);
    let start = Instant::now();
    let mut best = f64::INFINITY;
    while start.elapsed().as_secs_f64() < 0.25 {
        let (wall, own) = (Instant::now(), thread_seconds());
        body(cpu);
        let (wall, own) = (wall.elapsed().as_secs_f64(), thread_seconds() - own);
        best = best.min(if cpu.threads() == 1 { own } else { wall });
    }
    best
}

fn matrix(cpu: &Cpu, dtype: DType, rows: usize, cols: usize) -> (Matrix, f64) {
    let len = rows * dtype.row_bytes(cols).expect("whole blocks");
    // Small bytes: every half-precision scale is then a small number.
    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 59) as u8).collect();
    let (start, own) = (Instant::now(), thread_seconds());
    let source = MatrixSource { name: "probe", rows, cols, dtype, bytes: &bytes };
    let matrix = cpu.matrix(&source, LoadFormat::AsStored).expect("a matrix");
    let seconds = if cpu.threads() == 1 { thread_seconds() - own } else { start.elapsed().as_secs_f64() };
    (matrix, len as f64 / seconds)
}

fn product(cpu: &mut Cpu, weight: &Matrix, rows: usize, cols: usize, m: usize) -> f64 {
    let x = cpu.upload(cols, &(0..m * cols).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect::<Vec<_>>());
    let mut out = cpu.tensor(rows);
    best(cpu, |cpu| cpu.matmul(&x, &mut [Product { weight, bias: None, out: &mut out, accumulate: false }]))
}

fn attention(cpu: &mut Cpu, context: usize, m: usize) -> f64 {
    let spec = AttentionSpec { heads: 12, kv_heads: 2, head_dim: 128, scale: 0.1, window: None };
    let group = KvGroup { reach: KvReach::Full, layers: vec![0], kv_heads: 2, head_dim: 128 };
    let mut kv = cpu.kv(&KvSpec { groups: vec![group], ..KvSpec::default() });
    let pages: Vec<PageId> = (0..context.div_ceil(16) as u32).map(PageId).collect();
    for page in &pages {
        cpu.ensure_page(&mut kv, *page).expect("memory");
    }
    let mut batch = Batch::default();
    batch.push(&vec![0; m], (context - m) as u32, &pages);
    let q = cpu.upload(12 * 128, &vec![0.1; m * 12 * 128]);
    let mut out = cpu.tensor(12 * 128);
    best(cpu, |cpu| cpu.attention(&kv, 0, &q, &batch, &spec, &mut out))
}

fn main() {
    let mut args = std::env::args().skip(1);
    let threads = args.next().and_then(|a| a.parse().ok());
    let isa = args.next().map(|name| match name.as_str() {
        "scalar" => Isa::Scalar,
        "avx2" => Isa::Avx2,
        "avx2vnni" => Isa::Avx2Vnni,
        "avx512" => Isa::Avx512,
        "neon" => Isa::Neon,
        "neondot" => Isa::NeonDot,
        other => panic!("unknown instruction set {other}"),
    });
    let mut cpu = Cpu::new(CpuConfig { threads, isa }).expect("a device");
    println!("{}", cpu.describe());
    println!(
        "format   pack GB/s   M=1 GB/s (16 MB)   M=1 GB/s (200 MB)   M=4 GOP/s   M=16   M=64   M=512 (1536x4096)"
    );
    for dtype in DType::ALL {
        let (rows, cols) = (4096, 1536);
        let (small, _) = matrix(&cpu, dtype, rows, cols);
        let tall = (200 << 20) / dtype.row_bytes(cols).expect("whole blocks") / 16 * 16;
        let (large, pack) = matrix(&cpu, dtype, tall, cols);
        let rate = |cpu: &mut Cpu, w: &Matrix, rows| {
            cpu.matrix_bytes(w).0 as f64 / product(cpu, w, rows, cols, 1) / 1e9
        };
        let (near, far) = (rate(&mut cpu, &small, rows), rate(&mut cpu, &large, tall));
        let ops =
            |cpu: &mut Cpu, m| 2.0 * (rows * cols * m) as f64 / product(cpu, &small, rows, cols, m) / 1e9;
        let [m4, m16, m64, m512] = [4, 16, 64, 512].map(|m| ops(&mut cpu, m));
        println!(
            "{:<8} {:9.2} {near:18.1} {far:19.1} {m4:11.0} {m16:6.0} {m64:6.0} {m512:7.0}",
            dtype.name(),
            pack / 1e9
        );
    }
    for (context, m) in [(2048, 1), (512, 512), (2048, 512)] {
        let seconds = attention(&mut cpu, context, m);
        let seen: f64 = (context - m..context).map(|p| p as f64 + 1.0).sum();
        let flops = seen * 4.0 * 12.0 * 128.0;
        println!(
            "attention, {m} rows at {context}: {:.3} ms, {:.1} GFLOP/s",
            seconds * 1e3,
            flops / seconds / 1e9
        );
    }
}

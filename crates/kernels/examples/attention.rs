//! Measures attention alone, over keys and values that come from memory as in a step of a model: every layer
//! has its own, and other memory is read before each pass.
//! `cargo run --release -p kernels --example attention [-- THREADS [ISA [FORMAT]]]`, with the names of instruction sets that `probe`
//! knows and of KV formats as `--kv-type` has them.
//!
//! `times reading` is the time over that of reading the pass's distinct KV bytes once, at the bandwidth
//! that the same run's probe got.
#![allow(clippy::print_stdout, clippy::expect_used, missing_docs)]

use base::Bytes;
use device::{AttentionSpec, Batch, Device, KvFormat, KvGroup, KvReach, KvSpec, PAGE_TOKENS, PageId};
use kernels::probe::MemoryProbe;
use kernels::{Cpu, CpuConfig, Isa, Kv};
use std::time::Instant;

/// The attention of a model.
struct Shape {
    name: &'static str,
    layers: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
}

const SHAPES: [Shape; 2] = [
    Shape { name: "SmolLM2 135M", layers: 30, heads: 9, kv_heads: 3, head_dim: 64 },
    Shape { name: "Qwen2.5 1.5B", layers: 28, heads: 12, kv_heads: 2, head_dim: 128 },
];

/// What is computed: `sequences` of `depth` positions, the first `shared` of them in the same pages, with
/// `rows` new rows each.
struct Case {
    sequences: usize,
    shared: usize,
    depth: usize,
    rows: usize,
}

const CASES: [Case; 6] = [
    Case { sequences: 1, shared: 0, depth: 16, rows: 1 },
    Case { sequences: 1, shared: 0, depth: 256, rows: 1 },
    Case { sequences: 1, shared: 0, depth: 2048, rows: 1 },
    Case { sequences: 8, shared: 0, depth: 512, rows: 1 },
    Case { sequences: 8, shared: 1700, depth: 2048, rows: 1 },
    Case { sequences: 1, shared: 0, depth: 2048, rows: 512 },
];

/// Page tables of the case's sequences, and how many pages there are.
fn tables(case: &Case) -> (Vec<Vec<PageId>>, usize) {
    let shared = case.shared / PAGE_TOKENS;
    let own = case.depth.div_ceil(PAGE_TOKENS) - shared;
    let pages = |range: std::ops::Range<usize>| range.map(|i| PageId(i as u32));
    let table = |i: usize| pages(0..shared).chain(pages(shared + i * own..shared + (i + 1) * own));
    ((0..case.sequences).map(|i| table(i).collect()).collect(), shared + case.sequences * own)
}

/// Pages with some content in every layer.
fn filled(cpu: &mut Cpu, shape: &Shape, format: KvFormat, pages: usize) -> Kv {
    let Shape { layers, kv_heads, head_dim, .. } = *shape;
    let group = KvGroup { reach: KvReach::Full, layers: (0..layers).collect(), kv_heads, head_dim };
    let mut kv = cpu.kv(&KvSpec { groups: vec![group], format });
    let all: Vec<PageId> = (0..pages as u32).map(PageId).collect();
    for page in &all {
        cpu.ensure_page(&mut kv, *page).expect("memory");
    }
    let width = kv_heads * head_dim;
    for (piece, pages) in all.chunks(32).enumerate() {
        let rows = pages.len() * PAGE_TOKENS;
        let mut batch = Batch::default();
        batch.push(&vec![0; rows], 0, pages);
        let noise = |i: usize| ((i * 2_654_435_761 + piece) % 1009) as f32 / 504.0 - 1.0;
        let x = cpu.upload(width, &(0..rows * width).map(noise).collect::<Vec<_>>());
        for layer in 0..layers {
            cpu.store_kv(&mut kv, layer, &x, &x, &batch);
        }
    }
    kv
}

fn measure(cpu: &mut Cpu, probe: &MemoryProbe, shape: &Shape, format: KvFormat, case: &Case) {
    let (tables, pages) = tables(case);
    let kv = filled(cpu, shape, format, pages);
    let Shape { layers, heads, kv_heads, head_dim, .. } = *shape;
    let spec = AttentionSpec { heads, kv_heads, head_dim, scale: 0.125, window: None };
    let mut batch = Batch::default();
    for table in &tables {
        batch.push(&vec![0; case.rows], (case.depth - case.rows) as u32, table);
    }
    let width = heads * head_dim;
    let queries = (0..batch.rows() * width).map(|i| (i % 83) as f32 * 0.02 - 0.8);
    let queries = cpu.upload(width, &queries.collect::<Vec<_>>());
    let mut out = cpu.tensor(width);
    let (mut times, mut bandwidth) = (Vec::new(), 0.0f64);
    let start = Instant::now();
    while times.len() < 5 || (start.elapsed().as_secs_f64() < 1.0 && times.len() < 40) {
        // It also pushes what the last pass left out of the caches.
        bandwidth = bandwidth.max(probe.rate(cpu.threads(), probe.size()) / 1e9);
        let start = Instant::now();
        for layer in 0..layers {
            cpu.attention(&kv, layer, &queries, &batch, &spec, &mut out);
        }
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    let seconds = times[times.len() / 2];
    let bytes = kv_bytes(shape, format, pages * PAGE_TOKENS);
    let flops: f64 = (case.depth - case.rows..case.depth).map(|p| p as f64 + 1.0).sum::<f64>()
        * (4 * width * layers * case.sequences) as f64;
    println!(
        "{:<12} {:>2} x {:>3} rows at {:>4}, {:>4} shared: {:9.3} ms, {:6.1} MB, {:6.1} GB/s, {:5.2} times reading at {bandwidth:.1} GB/s, {:5.0} GFLOP/s",
        shape.name,
        case.sequences,
        case.rows,
        case.depth,
        case.shared,
        seconds * 1e3,
        bytes / 1e6,
        bytes / seconds / 1e9,
        seconds * bandwidth * 1e9 / bytes,
        flops / seconds / 1e9,
    );
}

/// Bytes of keys and values of these tokens, over all layers.
fn kv_bytes(shape: &Shape, format: KvFormat, tokens: usize) -> f64 {
    let Shape { layers, kv_heads, head_dim, .. } = *shape;
    let group = KvGroup { reach: KvReach::Full, layers: (0..layers).collect(), kv_heads, head_dim };
    KvSpec { groups: vec![group], format }.token_bytes().0 as f64 * tokens as f64
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
    let format = args.next().map_or(KvFormat::F16, |name| {
        KvFormat::ALL.into_iter().find(|format| format.name() == name).expect("a KV format")
    });
    let mut cpu = Cpu::new(CpuConfig { threads, isa }).expect("a device");
    println!("{}, {} keys and values", cpu.describe(), format.name());
    let probe = MemoryProbe::new(Bytes(256 << 20)).expect("memory");
    for shape in &SHAPES {
        for case in &CASES {
            measure(&mut cpu, &probe, shape, format, case);
        }
    }
}

//! Times the parts of one decoding step, with random weights in the shapes of SmolLM2-135M (Q4_1) or of Qwen2.5 1.5B
//! (Q4_K and Q6_K): `cargo run --release -p kernels --example token [-- THREADS [SECONDS [small|big [SEQUENCES]]]]`
#![allow(clippy::print_stdout, clippy::expect_used, missing_docs)]

use device::{
    Activation, AttentionSpec, Batch, DType, Device, KvGroup, KvReach, KvSpec, LoadFormat, MatrixSource,
    PageId, Product, RopeStyle,
};
use kernels::{Cpu, CpuConfig, Matrix, Tensor};
use std::time::Instant;

const PARTS: [&str; 9] = [
    "norms",
    "query, key, value",
    "rope, store",
    "attention",
    "output",
    "gate, up",
    "gating",
    "down",
    "logits",
];
/// Positions before the token.
const DEPTH: u32 = 64;

struct Shape {
    width: usize,
    hidden: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    vocab: usize,
    layers: usize,
    dtype: DType,
    /// Of the logits, and in every other layer of values and down.
    larger: DType,
}

const SMALL: Shape = Shape {
    width: 576,
    hidden: 1536,
    heads: 9,
    kv_heads: 3,
    head_dim: 64,
    vocab: 49_152,
    layers: 30,
    dtype: DType::Q4_1,
    larger: DType::Q4_1,
};

const BIG: Shape = Shape {
    width: 1536,
    hidden: 8960,
    heads: 12,
    kv_heads: 2,
    head_dim: 128,
    vocab: 151_936,
    layers: 28,
    dtype: DType::Q4K,
    larger: DType::Q6K,
};

struct Layer {
    query: Matrix,
    key: Matrix,
    value: Matrix,
    output: Matrix,
    gate: Matrix,
    up: Matrix,
    down: Matrix,
}

fn matrix(cpu: &Cpu, dtype: DType, rows: usize, cols: usize) -> Matrix {
    let len = rows * dtype.row_bytes(cols).expect("whole blocks");
    // Small bytes: every half-precision scale is then a small number.
    let bytes: Vec<u8> = (0..len).map(|i| (i * 7 % 59) as u8).collect();
    let source = MatrixSource { name: "token", rows, cols, dtype, bytes: &bytes };
    cpu.matrix(&source, LoadFormat::AsStored).expect("a matrix")
}

fn product<'a>(weight: &'a Matrix, out: &'a mut Tensor) -> Product<'a, Cpu> {
    Product { weight, bias: None, out, accumulate: false }
}

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |i: usize| args.get(i).and_then(|a| a.parse::<f64>().ok());
    let threads = number(0).map(|n| n as usize);
    let seconds = number(1).unwrap_or(1.5);
    let shape = if args.get(2).is_some_and(|a| a == "big") { BIG } else { SMALL };
    let rows = number(3).map_or(1, |n| n as usize);
    let mut cpu = Cpu::new(CpuConfig { threads, isa: None }).expect("a device");
    let Shape { width, hidden, heads, kv_heads, head_dim, vocab, .. } = shape;
    let (query_width, key_width) = (heads * head_dim, kv_heads * head_dim);
    let layer = |i: usize| {
        let larger = if i.is_multiple_of(2) { shape.larger } else { shape.dtype };
        Layer {
            query: matrix(&cpu, shape.dtype, query_width, width),
            key: matrix(&cpu, shape.dtype, key_width, width),
            value: matrix(&cpu, larger, key_width, width),
            output: matrix(&cpu, shape.dtype, width, query_width),
            gate: matrix(&cpu, shape.dtype, hidden, width),
            up: matrix(&cpu, shape.dtype, hidden, width),
            down: matrix(&cpu, larger, width, hidden),
        }
    };
    let layers: Vec<Layer> = (0..shape.layers).map(layer).collect();
    let logits_weight = matrix(&cpu, shape.larger, vocab, width);
    let all = layers.iter().flat_map(|l| [&l.query, &l.key, &l.value, &l.output, &l.gate, &l.up, &l.down]);
    let bytes: u64 = all.chain([&logits_weight]).map(|w| cpu.matrix_bytes(w).0).sum();

    let norm = cpu.vector(&vec![1.0; width]);
    let frequencies = cpu.vector(&(0..head_dim / 2).map(|i| 1.0 / (i as f32 + 1.0)).collect::<Vec<_>>());
    let spec = AttentionSpec { heads, kv_heads, head_dim, scale: 0.1, window: None };
    let group = KvGroup { reach: KvReach::Full, layers: (0..shape.layers).collect(), kv_heads, head_dim };
    let mut kv = cpu.kv(&KvSpec { groups: vec![group], ..KvSpec::default() });
    let mut batch = Batch::default();
    for sequence in 0..rows as u32 {
        let pages: Vec<PageId> = (sequence * 8..sequence * 8 + 8).map(PageId).collect();
        for page in &pages {
            cpu.ensure_page(&mut kv, *page).expect("memory");
        }
        batch.push(&[0], DEPTH, &pages);
    }
    let values: Vec<f32> = (0..rows * width).map(|i| (i % 17) as f32 * 0.1 - 0.8).collect();
    let mut stream = cpu.upload(width, &values);
    let [mut query, mut attended] = [query_width; 2].map(|w| cpu.tensor(w));
    let [mut key, mut value] = [key_width; 2].map(|w| cpu.tensor(w));
    let [mut gate, mut up] = [hidden; 2].map(|w| cpu.tensor(w));
    let (mut normed, mut logits) = (cpu.tensor(width), cpu.tensor(vocab));

    let mut best = [f64::INFINITY; PARTS.len()];
    let mut steps = Vec::new();
    let start = Instant::now();
    while start.elapsed().as_secs_f64() < seconds {
        let mut sums = [0.0f64; PARTS.len()];
        let first = Instant::now();
        let mut last = first;
        let mut mark = |part: usize| {
            let now = Instant::now();
            sums[part] += (now - last).as_secs_f64();
            last = now;
        };
        for (index, layer) in layers.iter().enumerate() {
            cpu.rms_norm(&stream, &norm, 1e-5, &mut normed);
            mark(0);
            let [q, k, v] = [
                product(&layer.query, &mut query),
                product(&layer.key, &mut key),
                product(&layer.value, &mut value),
            ];
            cpu.matmul(&normed, &mut [q, k, v]);
            mark(1);
            cpu.rope(&mut query, head_dim, &frequencies, RopeStyle::Pairs, &batch.positions);
            cpu.rope(&mut key, head_dim, &frequencies, RopeStyle::Pairs, &batch.positions);
            cpu.store_kv(&mut kv, index, &key, &value, &batch);
            mark(2);
            cpu.attention(&kv, index, &query, &batch, &spec, &mut attended);
            mark(3);
            cpu.matmul(&attended, &mut [product(&layer.output, &mut stream)]);
            mark(4);
            cpu.rms_norm(&stream, &norm, 1e-5, &mut normed);
            mark(0);
            cpu.matmul(&normed, &mut [product(&layer.gate, &mut gate), product(&layer.up, &mut up)]);
            mark(5);
            cpu.gate(&mut gate, &up, Activation::Silu);
            mark(6);
            cpu.matmul(&gate, &mut [product(&layer.down, &mut stream)]);
            mark(7);
        }
        cpu.rms_norm(&stream, &norm, 1e-5, &mut normed);
        mark(0);
        cpu.matmul(&normed, &mut [product(&logits_weight, &mut logits)]);
        mark(8);
        steps.push(first.elapsed().as_secs_f64());
        for (best, sum) in best.iter_mut().zip(sums) {
            *best = best.min(sum);
        }
    }
    steps.sort_by(f64::total_cmp);
    let (least, median) = (steps[0], steps[steps.len() / 2]);
    println!("{}, {rows} rows at {DEPTH}; microseconds of a step, best:", cpu.describe());
    for (name, best) in PARTS.iter().zip(best) {
        println!("{name:<18} {:9.0}", best * 1e6);
    }
    let megabytes = bytes as f64 / 1e6;
    println!(
        "{megabytes:.1} MB of weights; best {:.3} ms ({:.1} GB/s, {:.1} tok/s), median {:.3} ms",
        least * 1e3,
        megabytes / 1e3 / least,
        rows as f64 / least,
        median * 1e3
    );
}

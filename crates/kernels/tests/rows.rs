//! Norms, rotary embedding, gates, look-up: against double precision, and the same bits everywhere.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::*;
use device::{Activation, DType, Device, LoadFormat, RopeStyle};
use kernels::{Cpu, CpuConfig, Isa};

/// Runs `make` on every instruction set and one or three threads, demands the same bits, and checks the
/// result against `expected` to `bound`.
#[track_caller]
fn check(bound: f64, make: impl Fn(&mut Cpu) -> Vec<f32>, expected: &[f64]) {
    let mut first: Option<Vec<u32>> = None;
    for isa in Cpu::isas() {
        for threads in [1, 3] {
            let got = make(&mut cpu(isa, threads));
            assert_eq!(got.len(), expected.len());
            for (i, (got, expected)) in got.iter().zip(expected).enumerate() {
                let error = (f64::from(*got) - expected).abs();
                assert!(error <= bound * expected.abs().max(1.0), "{isa:?} {i}: {got}, not {expected}");
            }
            let first = first.get_or_insert_with(|| bits(&got));
            assert_eq!(*first, bits(&got), "{isa:?} with {threads} threads");
        }
    }
}

const WIDTHS: [usize; 5] = [16, 5, 64, 100, 2048];

#[test]
fn rms_norm_and_head_norm_are_the_textbook_ones() {
    for width in WIDTHS {
        let x = randoms(1, width * 12);
        let weight = randoms(2, width);
        let expected: Vec<f64> = x
            .chunks(width)
            .flat_map(|row| {
                let mean = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
                let scale = 1.0 / (mean + 1e-5).sqrt();
                row.iter().zip(&weight).map(move |(x, w)| f64::from(*x) * scale * f64::from(*w))
            })
            .collect();
        let rms = |cpu: &mut Cpu| {
            let (input, mut out) = (cpu.upload(width, &x), cpu.tensor(width));
            let weight = cpu.vector(&weight);
            cpu.rms_norm(&input, &weight, 1e-5, &mut out);
            cpu.host(&out).to_vec()
        };
        check(1e-6, rms, &expected);
        let head = |cpu: &mut Cpu| {
            let mut x = cpu.upload(width * 4, &x);
            let weight = cpu.vector(&weight);
            cpu.head_norm(&mut x, &weight, 1e-5);
            cpu.host(&x).to_vec()
        };
        check(1e-6, head, &expected);
    }
}

#[test]
fn layer_norm_is_the_textbook_one() {
    for width in WIDTHS {
        let x: Vec<f32> = randoms(1, width * 12).iter().map(|x| x + 0.5).collect();
        let (weight, bias) = (randoms(2, width), randoms(3, width));
        let expected: Vec<f64> = x
            .chunks(width)
            .flat_map(|row| {
                let n = width as f64;
                let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
                let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
                let scale = 1.0 / (variance + 1e-12).sqrt();
                let (weight, bias) = (&weight, &bias);
                (0..width)
                    .map(move |i| {
                        (f64::from(row[i]) - mean) * scale * f64::from(weight[i]) + f64::from(bias[i])
                    })
                    .collect::<Vec<_>>()
            })
            .collect();
        let make = |cpu: &mut Cpu| {
            let mut x = cpu.upload(width, &x);
            let (weight, bias) = (cpu.vector(&weight), cpu.vector(&bias));
            cpu.layer_norm(&mut x, &weight, &bias, 1e-12);
            cpu.host(&x).to_vec()
        };
        check(2e-6, make, &expected);
    }
}

#[test]
fn rotary_embedding_turns_pairs_by_their_angle_even_at_far_positions() {
    let positions = [0u32, 1, 7, 131_071, 1_000_003];
    for (head_dim, rotary) in [(64, 64), (64, 32), (6, 6), (128, 128), (40, 40)] {
        for style in [RopeStyle::Halves, RopeStyle::Pairs] {
            let half = rotary / 2;
            let frequencies: Vec<f32> =
                (0..half).map(|i| 10_000f32.powf(-(2.0 * i as f32) / rotary as f32)).collect();
            let heads = 3;
            let x = randoms(4, positions.len() * heads * head_dim);
            let mut expected: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            for (r, position) in positions.iter().enumerate() {
                for head in 0..heads {
                    let at = (r * heads + head) * head_dim;
                    for i in 0..half {
                        let (a, b) = match style {
                            RopeStyle::Halves => (at + i, at + i + half),
                            RopeStyle::Pairs => (at + 2 * i, at + 2 * i + 1),
                        };
                        let (sin, cos) = (f64::from(*position) * f64::from(frequencies[i])).sin_cos();
                        let (u, v) = (expected[a], expected[b]);
                        (expected[a], expected[b]) = (u * cos - v * sin, v * cos + u * sin);
                    }
                }
            }
            let make = |cpu: &mut Cpu| {
                let frequencies = cpu.vector(&frequencies);
                let mut x = cpu.upload(heads * head_dim, &x);
                // Other angles in between: the kept tables must not be mixed up.
                let mut other = cpu.upload(heads * head_dim, &randoms(1, heads * head_dim));
                cpu.rope(&mut other, head_dim, &frequencies, style, &[5]);
                cpu.rope(&mut x, head_dim, &frequencies, style, &positions);
                cpu.rope(&mut other, head_dim, &frequencies, style, &[6]);
                cpu.host(&x).to_vec()
            };
            check(3e-7, make, &expected);
        }
    }
}

#[test]
fn gates_and_sums_work_on_any_width() {
    for width in [3, 16, 37, 4096] {
        let (x, y) = (randoms(1, width * 9), randoms(2, width * 9));
        let silu = |x: f32| f64::from(x) / (1.0 + (-f64::from(x)).exp());
        let gated: Vec<f64> = x.iter().zip(&y).map(|(x, y)| silu(*x) * f64::from(*y)).collect();
        let make = |cpu: &mut Cpu| {
            let (mut x, y) = (cpu.upload(width, &x), cpu.upload(width, &y));
            cpu.gate(&mut x, &y, Activation::Silu);
            cpu.host(&x).to_vec()
        };
        check(1e-6, make, &gated);
        let activated: Vec<f64> = x.iter().map(|x| silu(*x)).collect();
        let make = |cpu: &mut Cpu| {
            let mut x = cpu.upload(width, &x);
            cpu.activate(&mut x, Activation::Silu);
            cpu.host(&x).to_vec()
        };
        check(1e-6, make, &activated);
        let added: Vec<f64> = x.iter().zip(&y).map(|(x, y)| f64::from(x + y)).collect();
        let make = |cpu: &mut Cpu| {
            let (mut x, y) = (cpu.upload(width, &x), cpu.upload(width, &y));
            cpu.add(&mut x, &y);
            cpu.host(&x).to_vec()
        };
        check(0.0, make, &added);
    }
}

#[test]
fn looking_up_scales_and_adds_rows() {
    let (rows, cols) = (50, 64);
    let bytes = weights(DType::Q8_0, rows, cols, 3);
    let ids = [7u32, 0, 49, 7];
    let mut cpu = cpu(Isa::Scalar, 2);
    let table = cpu.matrix(&source(DType::Q8_0, rows, cols, &bytes), LoadFormat::AsStored).unwrap();
    let (mut once, mut scaled) = (cpu.tensor(cols), cpu.tensor(cols));
    cpu.embed(&table, &ids, 1.0, &mut once);
    cpu.embed(&table, &ids, 3.0, &mut scaled);
    let once_host = cpu.host(&once).to_vec();
    assert_eq!(once_host[..cols], once_host[3 * cols..]);
    let tripled: Vec<f32> = once_host.iter().map(|x| x * 3.0).collect();
    assert_eq!(cpu.host(&scaled), tripled);
    cpu.embed_add(&table, &ids, &mut once);
    let doubled: Vec<f32> = once_host.iter().map(|x| x + x).collect();
    assert_eq!(cpu.host(&once), doubled);
    let mut picked = cpu.tensor(cols);
    cpu.select_rows(&scaled, &[2, 2, 0], &mut picked);
    let expected = [&tripled[2 * cols..3 * cols], &tripled[2 * cols..3 * cols], &tripled[..cols]].concat();
    assert_eq!(cpu.host(&picked), expected);
}

#[test]
fn the_device_describes_itself_and_refuses_what_the_machine_lacks() {
    let plain = cpu(Isa::Scalar, 1);
    assert_eq!(plain.describe(), "CPU, scalar, 1 thread");
    assert_eq!(cpu(Isa::Scalar, 3).clone().describe(), "CPU, scalar, 3 threads");
    let best = Cpu::new(CpuConfig::default()).unwrap();
    assert_eq!(Some(&best.isa()), Cpu::isas().last());
    for isa in Isa::ALL {
        let made = Cpu::new(CpuConfig { threads: Some(1), isa: Some(isa) });
        assert_eq!(made.is_ok(), Cpu::isas().contains(&isa));
    }
}

#[test]
fn engines_on_several_threads_share_one_pool() {
    let shared = cpu(*Cpu::isas().last().unwrap(), 2);
    let bytes = weights(DType::Q4_0, 200, 256, 3);
    let matrix = shared.matrix(&source(DType::Q4_0, 200, 256, &bytes), LoadFormat::AsStored).unwrap();
    let run = |cpu: &mut Cpu| {
        let x = cpu.upload(256, &randoms(1, 256 * 30));
        let mut out = cpu.tensor(200);
        let product = device::Product { weight: &matrix, bias: None, out: &mut out, accumulate: false };
        cpu.matmul(&x, &mut [product]);
        bits(cpu.host(&out))
    };
    let expected = run(&mut shared.clone());
    std::thread::scope(|scope| {
        for _ in 0..3 {
            let mut cpu = shared.clone();
            let (run, expected) = (&run, &expected);
            scope.spawn(move || {
                for _ in 0..10 {
                    assert_eq!(run(&mut cpu), *expected);
                }
            });
        }
    });
}

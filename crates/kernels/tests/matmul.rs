//! Products and table look-up of every weight format: against the format's definition, and bit for bit
//! against themselves under every way to cut the work.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::*;
use device::{DType, Device, LoadFormat, Product, SharedBytes};
use kernels::{Cpu, Isa, Matrix, Tensor};
use proptest::prelude::*;
use std::sync::Arc;

/// The matrix's values, through table look-up.
fn values(cpu: &mut Cpu, matrix: &Matrix, rows: usize, cols: usize) -> Vec<f32> {
    let ids: Vec<u32> = (0..rows as u32).collect();
    let mut out = cpu.tensor(cols);
    cpu.embed(matrix, &ids, 1.0, &mut out);
    cpu.host(&out).to_vec()
}

fn multiply(cpu: &mut Cpu, matrix: &Matrix, width: usize, x: &[f32], cols: usize) -> Vec<f32> {
    let x = cpu.upload(cols, x);
    let mut out = cpu.tensor(width);
    cpu.matmul(&x, &mut [Product { weight: matrix, bias: None, out: &mut out, accumulate: false }]);
    cpu.host(&out).to_vec()
}

#[test]
fn packed_values_are_those_of_the_reference_dequantiser() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/blocks");
    let (rows, cols) = (2, 512);
    let mut cpu = cpu(Isa::Scalar, 1);
    for dtype in QUANTISED {
        let file = std::fs::read(format!("{folder}/{}.bin", dtype.name())).unwrap();
        let (raw, expected) = file.split_at(rows * dtype.row_bytes(cols).unwrap());
        let matrix = cpu.matrix(&source(dtype, rows, cols, raw), LoadFormat::AsStored).unwrap();
        let expected = expected.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b));
        for (i, (got, expected)) in values(&mut cpu, &matrix, rows, cols).iter().zip(expected).enumerate() {
            // Where the reference multiplies in another order, the last bit may differ.
            let close = (got - expected).abs() <= expected.abs() * 2e-7 + 1e-7;
            assert!(close, "{} element {i}: {got}, expected {expected}", dtype.name());
        }
    }
}

#[test]
fn float_tables_are_kept_exactly() {
    let mut cpu = cpu(Isa::Scalar, 2);
    let (rows, cols) = (37, 45);
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let bytes = weights(dtype, rows, cols, 5);
        let matrix = cpu.matrix(&source(dtype, rows, cols, &bytes), LoadFormat::AsStored).unwrap();
        let expected: Vec<f32> = bytes
            .chunks_exact(dtype.block_bytes())
            .map(|b| match dtype {
                DType::F32 => f32::from_le_bytes([b[0], b[1], b[2], b[3]]),
                DType::F16 => half::f16::from_le_bytes([b[0], b[1]]).to_f32(),
                _ => half::bf16::from_le_bytes([b[0], b[1]]).to_f32(),
            })
            .collect();
        assert_eq!(bits(&values(&mut cpu, &matrix, rows, cols)), bits(&expected), "{}", dtype.name());
    }
}

#[test]
fn products_agree_with_the_definition_within_the_error_of_eight_bit_activations() {
    for isa in Cpu::isas() {
        let mut cpu = cpu(isa, 2);
        for dtype in DType::ALL {
            let (rows, cols, m) = (37, if dtype.block_len() == 1 { 500 } else { 512 }, 21);
            let bytes = weights(dtype, rows, cols, 11);
            let matrix = cpu.matrix(&source(dtype, rows, cols, &bytes), LoadFormat::AsStored).unwrap();
            let w = values(&mut cpu, &matrix, rows, cols);
            let x = randoms(3, m * cols);
            let got = multiply(&mut cpu, &matrix, rows, &x, cols);
            let float = dtype.block_len() == 1;
            for r in 0..m {
                for o in 0..rows {
                    let (x, w) = (&x[r * cols..][..cols], &w[o * cols..][..cols]);
                    let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
                    let expected: f64 = terms.sum();
                    // An activation is off by half a step of a 127th of its block's peak (here at most
                    // 1), independently: four deviations of the sum. Floats: rounding of f32 sums.
                    let norm = w.iter().map(|w| f64::from(*w).powi(2)).sum::<f64>().sqrt();
                    let bound = if float { norm * 2e-5 } else { norm * 4.0 / 127.0 / 12f64.sqrt() };
                    let error = (f64::from(got[r * rows + o]) - expected).abs();
                    assert!(error <= bound, "{isa:?} {}: {error} > {bound}", dtype.name());
                }
            }
        }
    }
}

/// What a product of quantised weights is by definition: activations in eight bits per block of 32, exact
/// integers inside a block, blocks added in order.
#[test]
fn quantised_products_are_exact_but_for_the_order_of_blocks() {
    let (rows, cols, m) = (16, 512, 3);
    let mut cpu = cpu(*Cpu::isas().last().unwrap(), 1);
    for dtype in QUANTISED {
        let bytes = weights(dtype, rows, cols, 17);
        let matrix = cpu.matrix(&source(dtype, rows, cols, &bytes), LoadFormat::AsStored).unwrap();
        let w = values(&mut cpu, &matrix, rows, cols);
        let x = randoms(4, m * cols);
        let rounded: Vec<f64> = x
            .chunks(32)
            .flat_map(|block| {
                let peak = block.iter().fold(0.0f32, |a, b| a.max(b.abs()));
                let scale = f64::from(peak / 127.0);
                block.iter().map(move |x| f64::from((x * (127.0 / peak)).round_ties_even()) * scale)
            })
            .collect();
        let got = multiply(&mut cpu, &matrix, rows, &x, cols);
        for r in 0..m {
            for o in 0..rows {
                let terms: Vec<f64> =
                    (0..cols).map(|k| rounded[r * cols + k] * f64::from(w[o * cols + k])).collect();
                let expected: f64 = terms.iter().sum();
                let size: f64 = terms.iter().map(|t| t.abs()).sum();
                let error = (f64::from(got[r * rows + o]) - expected).abs();
                assert!(error <= size * 1e-6, "{}: {error} of {size}", dtype.name());
            }
        }
    }
}

#[test]
fn every_instruction_set_and_thread_count_gives_the_same_bits() {
    for dtype in DType::ALL {
        let (rows, cols, m) = (83, if dtype.block_len() == 1 { 77 } else { 256 }, 19);
        let bytes = weights(dtype, rows, cols, 23);
        let x = randoms(9, m * cols);
        let mut first = None;
        for isa in Cpu::isas() {
            // Sixty-four: on most machines far more than there are processors.
            for threads in [1, 3, 64] {
                let mut cpu = cpu(isa, threads);
                let matrix = cpu.matrix(&source(dtype, rows, cols, &bytes), LoadFormat::AsStored).unwrap();
                let got = bits(&multiply(&mut cpu, &matrix, rows, &x, cols));
                let first = first.get_or_insert_with(|| got.clone());
                assert_eq!(*first, got, "{} on {isa:?} with {threads} threads", dtype.name());
            }
        }
    }
}

#[test]
#[allow(clippy::single_range_in_vec_init)] // Some formats have two ranges.
fn extreme_codes_do_not_saturate() {
    // All codes at their extremes against activations of full size: where sixteen-bit sums would clip.
    for dtype in QUANTISED {
        for fill in [0x00u8, 0xff] {
            let (rows, cols) = (16, 256);
            let mut bytes = vec![fill; rows * dtype.row_bytes(cols).unwrap()];
            let fresh = weights(dtype, rows, cols, 1);
            // Keep the scales that `weights` made: they are what differs from a uniform filling most.
            let spans: &[std::ops::Range<usize>] = match dtype {
                DType::Q4_1 | DType::Q5_1 => &[0..4],
                DType::Q4K | DType::Q5K => &[0..16],
                DType::Q2K => &[0..16, 80..84],
                DType::Q3K => &[96..110],
                DType::Q6K => &[192..210],
                _ => &[0..2],
            };
            let size = dtype.block_bytes();
            for (to, from) in bytes.chunks_exact_mut(size).zip(fresh.chunks_exact(size)) {
                for span in spans {
                    to[span.clone()].copy_from_slice(&from[span.clone()]);
                }
            }
            for sign in [1.0f32, -1.0] {
                let x = vec![sign; cols];
                let mut first = None;
                for isa in Cpu::isas() {
                    let mut cpu = cpu(isa, 1);
                    let matrix =
                        cpu.matrix(&source(dtype, rows, cols, &bytes), LoadFormat::AsStored).unwrap();
                    let got = bits(&multiply(&mut cpu, &matrix, rows, &x, cols));
                    let first = first.get_or_insert_with(|| got.clone());
                    assert_eq!(*first, got, "{} of {fill:#x} on {isa:?}", dtype.name());
                }
            }
        }
    }
}

#[test]
fn quantising_at_load_keeps_values_within_a_step() {
    let mut cpu = cpu(*Cpu::isas().last().unwrap(), 2);
    let (rows, cols) = (20, 50);
    for dtype in [DType::F32, DType::F16, DType::Bf16] {
        let bytes = weights(dtype, rows, cols, 31);
        let exact = cpu.matrix(&source(dtype, rows, cols, &bytes), LoadFormat::AsStored).unwrap();
        let exact = values(&mut cpu, &exact, rows, cols);
        for (format, step) in [(LoadFormat::Int8, 1.0 / 127.0), (LoadFormat::Int4, 1.0 / 8.0)] {
            let matrix = cpu.matrix(&source(dtype, rows, cols, &bytes), format).unwrap();
            let got = values(&mut cpu, &matrix, rows, cols);
            for (got, exact) in got.iter().zip(&exact) {
                assert!((got - exact).abs() <= step * 1.01, "{got} for {exact}");
            }
            let x = randoms(2, cols);
            let y = multiply(&mut cpu, &matrix, rows, &x, cols);
            let expected: f32 = got[..cols].iter().zip(&x).map(|(w, x)| w * x).sum();
            assert!((y[0] - expected).abs() < 0.05, "{} for {expected}", y[0]);
        }
    }
}

#[test]
fn bias_and_residual_are_added_and_one_call_serves_all_formats() {
    for isa in Cpu::isas() {
        let mut cpu = cpu(isa, 2);
        let cols = 64;
        let x = randoms(1, 5 * cols);
        let make = |cpu: &Cpu, dtype, rows| {
            let bytes = weights(dtype, rows, cols, 7);
            cpu.matrix(&source(dtype, rows, cols, &bytes), LoadFormat::AsStored).unwrap()
        };
        let (a, b) = (make(&cpu, DType::Q4_1, 33), make(&cpu, DType::F32, 18));
        let (plain_a, plain_b) = (multiply(&mut cpu, &a, 33, &x, cols), multiply(&mut cpu, &b, 18, &x, cols));
        let bias = randoms(2, 33);
        let old = randoms(3, 5 * 18);
        let input = cpu.upload(cols, &x);
        let (mut out_a, mut out_b) = (cpu.tensor(33), cpu.upload(18, &old));
        let bias_vector = cpu.vector(&bias);
        cpu.matmul(
            &input,
            &mut [
                Product { weight: &a, bias: Some(&bias_vector), out: &mut out_a, accumulate: false },
                Product { weight: &b, bias: None, out: &mut out_b, accumulate: true },
            ],
        );
        for (i, got) in cpu.host(&out_a).to_vec().iter().enumerate() {
            assert_eq!(*got, plain_a[i] + bias[i % 33]);
        }
        for (i, got) in cpu.host(&out_b).to_vec().iter().enumerate() {
            assert_eq!(*got, old[i] + plain_b[i]);
        }
    }
}

#[test]
fn matrices_that_do_not_add_up_are_refused_by_name() {
    let cpu = cpu(Isa::Scalar, 1);
    let refused = |source: device::MatrixSource<'_>| {
        cpu.matrix(&source, LoadFormat::AsStored).err().unwrap().to_string()
    };
    assert!(refused(source(DType::Q4K, 1, 32, &[0; 18])).contains("test.weight"));
    assert!(refused(source(DType::F32, 2, 2, &[0; 15])).contains("15 bytes"));
    assert!(refused(source(DType::F32, usize::MAX, 2, &[0; 16])).contains("test.weight"));
    assert!(refused(source(DType::F32, 0, 2, &[])).contains("test.weight"));
}

#[test]
fn packed_matrices_are_hardly_larger_than_the_file() {
    let cpu = cpu(Isa::Scalar, 1);
    for dtype in DType::ALL {
        if matches!(dtype, DType::Q2K | DType::Q3K) {
            continue; // Widened to four bits: rare, and kept simple.
        }
        let (rows, cols) = (64, 2048);
        let bytes = weights(dtype, rows, cols, 1);
        let matrix = cpu.matrix(&source(dtype, rows, cols, &bytes), LoadFormat::AsStored).unwrap();
        let ratio = cpu.matrix_bytes(&matrix).0 as f64 / bytes.len() as f64;
        assert!(ratio <= 1.03, "{}: {ratio}", dtype.name());
    }
}

fn tensor_rows(cpu: &mut Cpu, tensor: &Tensor) -> Vec<u32> {
    bits(cpu.host(tensor))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// The promise of the device: a row's result does not depend on its company.
    #[test]
    fn a_row_does_not_depend_on_the_other_rows(
        format in 0usize..DType::ALL.len(),
        outputs in 1usize..70,
        threads in 1usize..4,
        order in proptest::collection::vec(0usize..40, 1..50),
    ) {
        let dtype = DType::ALL[format];
        let cols = if dtype.block_len() == 1 { 50 } else { 256 };
        let mut cpu = cpu(*Cpu::isas().last().unwrap(), threads);
        let bytes = weights(dtype, outputs, cols, 3);
        let matrix = cpu.matrix(&source(dtype, outputs, cols, &bytes), LoadFormat::AsStored).unwrap();
        let x = randoms(8, 40 * cols);
        let gathered: Vec<f32> = order.iter().flat_map(|r| x[r * cols..][..cols].to_vec()).collect();
        let together = bits(&multiply(&mut cpu, &matrix, outputs, &gathered, cols));
        for (i, r) in order.iter().enumerate() {
            let input = cpu.upload(cols, &x[r * cols..][..cols]);
            let mut out = cpu.tensor(outputs);
            cpu.matmul(&input, &mut [Product { weight: &matrix, bias: None, out: &mut out, accumulate: false }]);
            prop_assert_eq!(&together[i * outputs..][..outputs], &tensor_rows(&mut cpu, &out)[..]);
        }
    }
}

#[test]
fn packed_matrices_take_hardly_more_than_the_file() {
    let cpu = cpu(*Cpu::isas().last().unwrap(), 1);
    // A vocabulary whose rows do not fill the last panel, and one that does.
    for (rows, cols) in [(32_003, 256), (1536, 1536)] {
        for dtype in DType::ALL {
            let bytes = vec![0; rows * dtype.row_bytes(cols).unwrap()];
            let matrix = cpu.matrix(&source(dtype, rows, cols, &bytes), LoadFormat::AsStored).unwrap();
            let share = cpu.matrix_bytes(&matrix).0 as f64 / bytes.len() as f64;
            // Codes of two and three bits are kept as four.
            let most = match dtype {
                DType::Q2K => 1.96,
                DType::Q3K => 1.35,
                _ => 1.03,
            };
            assert!(share <= most, "{} of {rows} rows: {share}", dtype.name());
        }
    }
}

#[test]
fn a_matrix_of_bytes_packed_earlier_is_the_same_matrix() {
    let mut cpu = cpu(*Cpu::isas().last().unwrap(), 2);
    let (rows, cols) = (37, 256);
    for dtype in DType::ALL {
        for format in [LoadFormat::AsStored, LoadFormat::Int8, LoadFormat::Int4] {
            let bytes = weights(dtype, rows, cols, 3);
            let source = source(dtype, rows, cols, &bytes);
            let matrix = cpu.matrix(&source, format).unwrap();
            let packed = Cpu::packed(&matrix).into_owned();
            // Wherever the bytes lie, on a border of the panels or not.
            for shift in [0, 1, 64] {
                let owner: Arc<dyn AsRef<[u8]> + Send + Sync> =
                    Arc::new([&vec![0; shift], &packed[..]].concat());
                let shared = SharedBytes::new(owner, shift..shift + packed.len()).unwrap();
                let again = cpu.unpack(&source, format, shared).unwrap();
                let expected = bits(&values(&mut cpu, &matrix, rows, cols));
                assert_eq!(bits(&values(&mut cpu, &again, rows, cols)), expected, "{}", dtype.name());
            }
            let short = SharedBytes::new(Arc::new(packed), 0..64).unwrap();
            assert!(cpu.unpack(&source, format, short).is_err());
        }
    }
}

/// Packed bytes outlive a build on disk: when this fails, `PACKING` in `matrix.rs` must be counted up.
#[test]
fn the_packed_form_has_not_changed_under_its_name() {
    let cpu = cpu(Isa::Scalar, 1);
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for dtype in DType::ALL {
        let bytes = weights(dtype, 19, 256, 29);
        let matrix = cpu.matrix(&source(dtype, 19, 256, &bytes), LoadFormat::AsStored).unwrap();
        for byte in Cpu::packed(&matrix).iter() {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    assert_eq!((Cpu::packing(), hash), (Some("cpu-panels-2"), 13_112_223_489_288_073_256));
}

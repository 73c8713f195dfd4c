//! A device without any cleverness: plain loops over `f32`, sums in `f64`, one row after the other.
//! The independent twin that says whether the forward pass asks for the right things.

use device::{
    Activation, AttentionSpec, Batch, DType, Device, DeviceError, KvSpec, LoadFormat, MatrixSource,
    PAGE_TOKENS, PageCopy, PageId, Product, RopeStyle,
};
use half::{bf16, f16};
use std::collections::HashMap;
use std::sync::Arc;

/// Rows of `f32`.
#[derive(Clone, Debug, Default)]
pub struct Rows {
    width: usize,
    data: Vec<f32>,
}

impl Rows {
    fn rows(&self) -> usize {
        self.data.len() / self.width
    }

    fn row(&self, index: usize) -> &[f32] {
        &self.data[index * self.width..][..self.width]
    }

    fn set(&mut self, width: usize, data: Vec<f32>) {
        assert_eq!(self.width, width, "the width of a tensor is fixed");
        self.data = data;
    }
}

/// What the cache keeps of a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvPrecision {
    Single,
    Half,
}

/// A page's keys and values by layer and slot.
type Slots = HashMap<(usize, usize), (Vec<f32>, Vec<f32>)>;

/// The pages that have memory.
#[derive(Default)]
pub struct Pages {
    has: HashMap<PageId, Slots>,
}

pub struct Naive {
    pub kv: KvPrecision,
}

fn dot(a: &[f32], b: &[f32]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum()
}

fn softmax_sum(scores: &[f64], values: &[&[f32]]) -> Vec<f32> {
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    (0..values[0].len())
        .map(|i| (weights.iter().zip(values).map(|(w, v)| w * f64::from(v[i])).sum::<f64>() / total) as f32)
        .collect()
}

/// The error function to about 1e-15, by its series (small x) or continued fraction.
fn erf(x: f64) -> f64 {
    let a = x.abs();
    let value = if a < 3.0 {
        let (mut term, mut sum) = (a, a);
        for n in 1..100 {
            term *= -a * a / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        sum * std::f64::consts::FRAC_2_SQRT_PI
    } else {
        let tail = (1..60).rev().fold(a, |tail, n| a + f64::from(n) / 2.0 / tail);
        1.0 - (-a * a).exp() / tail / std::f64::consts::PI.sqrt()
    };
    value.copysign(x)
}

fn activation(x: f32, kind: Activation) -> f32 {
    let x = f64::from(x);
    let y = match kind {
        Activation::Silu => x / (1.0 + (-x).exp()),
        Activation::GeluTanh => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x * x * x);
            0.5 * x * (1.0 + inner.tanh())
        }
        Activation::GeluErf => 0.5 * x * (1.0 + erf(x / std::f64::consts::SQRT_2)),
    };
    y as f32
}

fn rms(x: &[f32], weight: &[f32], eps: f32) -> Vec<f32> {
    let scale = 1.0 / (dot(x, x) / x.len() as f64 + f64::from(eps)).sqrt();
    x.iter().zip(weight).map(|(x, w)| (f64::from(*x) * scale) as f32 * w).collect()
}

impl Naive {
    fn stored(&self, x: &[f32]) -> Vec<f32> {
        match self.kv {
            KvPrecision::Single => x.to_vec(),
            KvPrecision::Half => x.iter().map(|x| f16::from_f32(*x).to_f32()).collect(),
        }
    }
}

impl Device for Naive {
    type Tensor = Rows;
    type Matrix = Arc<Rows>;
    type Vector = Arc<Vec<f32>>;
    type Kv = Pages;

    fn describe(&self) -> String {
        "naive".to_owned()
    }

    fn matrix(&self, source: &MatrixSource<'_>, _: LoadFormat) -> Result<Self::Matrix, DeviceError> {
        let halves = || source.bytes.as_chunks::<2>().0.iter();
        let data: Vec<f32> = match source.dtype {
            DType::F32 => source.bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
            DType::F16 => halves().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
            DType::Bf16 => halves().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
            other => {
                let reason = format!("{} is not plain", other.name());
                return Err(DeviceError::Unsupported { name: source.name.to_owned(), reason });
            }
        };
        assert_eq!(data.len(), source.rows * source.cols, "{}", source.name);
        Ok(Arc::new(Rows { width: source.cols, data }))
    }

    fn matrix_bytes(&self, matrix: &Self::Matrix) -> base::Bytes {
        base::Bytes(4 * matrix.data.len() as u64)
    }

    fn vector(&self, data: &[f32]) -> Self::Vector {
        Arc::new(data.to_vec())
    }

    fn tensor(&self, width: usize) -> Rows {
        Rows { width, data: Vec::new() }
    }

    fn kv(&self, _: &KvSpec) -> Pages {
        Pages::default()
    }

    fn ensure_page(&mut self, kv: &mut Pages, page: PageId) -> Result<(), DeviceError> {
        kv.has.entry(page).or_default();
        Ok(())
    }

    fn drop_page(&mut self, kv: &mut Pages, page: PageId) {
        kv.has.remove(&page);
    }

    fn copy_page(&mut self, kv: &mut Pages, copy: PageCopy) {
        let content = kv.has[&copy.from].clone();
        *kv.has.get_mut(&copy.to).expect("the page has memory") = content;
    }

    fn export_page(&self, _: &Pages, _: PageId, _: &mut Vec<u8>) {
        unreachable!("a model does not move pages");
    }

    fn import_page(&mut self, _: &mut Pages, _: PageId, _: &[u8]) {
        unreachable!("a model does not move pages");
    }

    fn embed(&mut self, table: &Arc<Rows>, ids: &[u32], scale: f32, out: &mut Rows) {
        let rows = ids.iter().flat_map(|id| table.row(*id as usize)).map(|x| x * scale);
        out.set(table.width, rows.collect());
    }

    fn embed_add(&mut self, table: &Arc<Rows>, ids: &[u32], x: &mut Rows) {
        assert_eq!(x.rows(), ids.len());
        let rows = ids.iter().flat_map(|id| table.row(*id as usize));
        x.data.iter_mut().zip(rows).for_each(|(x, y)| *x += y);
    }

    fn rms_norm(&mut self, x: &Rows, weight: &Self::Vector, eps: f32, out: &mut Rows) {
        assert_eq!(x.width, weight.len());
        out.set(x.width, (0..x.rows()).flat_map(|r| rms(x.row(r), weight, eps)).collect());
    }

    fn head_norm(&mut self, x: &mut Rows, weight: &Self::Vector, eps: f32) {
        x.data = x.data.chunks(weight.len()).flat_map(|head| rms(head, weight, eps)).collect();
    }

    fn layer_norm(&mut self, x: &mut Rows, weight: &Self::Vector, bias: &Self::Vector, eps: f32) {
        for row in x.data.chunks_mut(x.width) {
            let n = row.len() as f64;
            let mean = row.iter().map(|x| f64::from(*x)).sum::<f64>() / n;
            let variance = row.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / n;
            let scale = 1.0 / (variance + f64::from(eps)).sqrt();
            for (i, x) in row.iter_mut().enumerate() {
                *x = ((f64::from(*x) - mean) * scale) as f32 * weight[i] + bias[i];
            }
        }
    }

    fn matmul(&mut self, x: &Rows, products: &mut [Product<'_, Self>]) {
        for product in products {
            let weight = product.weight;
            let mut data = Vec::new();
            for r in 0..x.rows() {
                for o in 0..weight.rows() {
                    let bias = product.bias.map_or(0.0, |bias| f64::from(bias[o]));
                    data.push((dot(x.row(r), weight.row(o)) + bias) as f32);
                }
            }
            if product.accumulate {
                assert_eq!(product.out.data.len(), data.len());
                product.out.data.iter_mut().zip(data).for_each(|(out, x)| *out += x);
            } else {
                product.out.set(weight.rows(), data);
            }
        }
    }

    fn rope(
        &mut self,
        x: &mut Rows,
        head_dim: usize,
        frequencies: &Self::Vector,
        style: RopeStyle,
        positions: &[u32],
    ) {
        assert_eq!(x.rows(), positions.len());
        let half = frequencies.len();
        for (row, position) in x.data.chunks_mut(x.width).zip(positions) {
            for head in row.chunks_mut(head_dim) {
                for (i, frequency) in frequencies.iter().enumerate() {
                    let (a, b) = match style {
                        RopeStyle::Halves => (i, i + half),
                        RopeStyle::Pairs => (2 * i, 2 * i + 1),
                    };
                    let (sin, cos) = (f64::from(*position) * f64::from(*frequency)).sin_cos();
                    let (x, y) = (f64::from(head[a]), f64::from(head[b]));
                    head[a] = (x * cos - y * sin) as f32;
                    head[b] = (x * sin + y * cos) as f32;
                }
            }
        }
    }

    fn store_kv(&mut self, kv: &mut Pages, layer: usize, keys: &Rows, values: &Rows, batch: &Batch) {
        for sequence in &batch.sequences {
            for row in sequence.rows.clone() {
                let position = batch.positions[row] as usize;
                let page = batch.pages(sequence)[position / PAGE_TOKENS];
                let slots = kv.has.get_mut(&page).expect("the page has memory");
                let pair = (self.stored(keys.row(row)), self.stored(values.row(row)));
                slots.insert((layer, position % PAGE_TOKENS), pair);
            }
        }
    }

    fn attention(
        &mut self,
        kv: &Pages,
        layer: usize,
        queries: &Rows,
        batch: &Batch,
        spec: &AttentionSpec,
        out: &mut Rows,
    ) {
        let mut data = Vec::new();
        for sequence in &batch.sequences {
            for row in sequence.rows.clone() {
                let position = batch.positions[row] as usize;
                let first = spec.window.map_or(0, |window| (position + 1).saturating_sub(window as usize));
                let slots: Vec<_> = (first..=position)
                    .map(|p| &kv.has[&batch.pages(sequence)[p / PAGE_TOKENS]][&(layer, p % PAGE_TOKENS)])
                    .collect();
                for (head, query) in queries.row(row).chunks(spec.head_dim).enumerate() {
                    let at = head / (spec.heads / spec.kv_heads) * spec.head_dim;
                    let own = at..at + spec.head_dim;
                    let scores: Vec<f64> = slots
                        .iter()
                        .map(|slot| dot(query, &slot.0[own.clone()]) * f64::from(spec.scale))
                        .collect();
                    let values: Vec<&[f32]> = slots.iter().map(|slot| &slot.1[own.clone()]).collect();
                    data.extend(softmax_sum(&scores, &values));
                }
            }
        }
        out.set(queries.width, data);
    }

    fn attention_full(
        &mut self,
        queries: &Rows,
        keys: &Rows,
        values: &Rows,
        segments: &[u32],
        spec: &AttentionSpec,
        out: &mut Rows,
    ) {
        let mut data = Vec::new();
        let mut first = 0;
        for len in segments {
            let segment = first..first + *len as usize;
            for row in segment.clone() {
                for (head, query) in queries.row(row).chunks(spec.head_dim).enumerate() {
                    let at = head / (spec.heads / spec.kv_heads) * spec.head_dim;
                    let own = at..at + spec.head_dim;
                    let scores: Vec<f64> = segment
                        .clone()
                        .map(|r| dot(query, &keys.row(r)[own.clone()]) * f64::from(spec.scale))
                        .collect();
                    let values: Vec<&[f32]> = segment.clone().map(|r| &values.row(r)[own.clone()]).collect();
                    data.extend(softmax_sum(&scores, &values));
                }
            }
            first = segment.end;
        }
        assert_eq!(first, queries.rows(), "segments tile the rows");
        out.set(queries.width, data);
    }

    fn gate(&mut self, gate: &mut Rows, up: &Rows, kind: Activation) {
        gate.data.iter_mut().zip(&up.data).for_each(|(gate, up)| *gate = activation(*gate, kind) * up);
    }

    fn activate(&mut self, x: &mut Rows, kind: Activation) {
        x.data.iter_mut().for_each(|x| *x = activation(*x, kind));
    }

    fn add(&mut self, x: &mut Rows, y: &Rows) {
        assert_eq!(x.data.len(), y.data.len());
        x.data.iter_mut().zip(&y.data).for_each(|(x, y)| *x += y);
    }

    fn select_rows(&mut self, x: &Rows, rows: &[u32], out: &mut Rows) {
        out.set(x.width, rows.iter().flat_map(|row| x.row(*row as usize)).copied().collect());
    }

    fn host<'a>(&'a mut self, x: &'a Rows) -> &'a [f32] {
        &x.data
    }
}

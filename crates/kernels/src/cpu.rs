//! The device trait on the CPU: checks shapes, keeps scratch space, hands work to the kernels.
//!
//! Invariant: a tensor's memory holds `rows * width` elements. Clones of a [`Cpu`] share the threads and
//! nothing else, so several engines may each have one.

use crate::attention::{self, Paging};
use crate::buffer::{Buffer, Shared};
pub use crate::kv::Kv;
use crate::matmul::{self, Input, Task};
use crate::matrix::{self, Matrix};
use crate::pool::Pool;
use crate::quantise::Quantised;
use crate::rows::{self, Angles};
use crate::simd::Level;
use base::Bytes;
use device::{
    Activation, AttentionSpec, Batch, Device, DeviceError, KvSpec, LoadFormat, MatrixSource, PageCopy,
    PageId, Product, RopeStyle, SharedBytes,
};
use std::borrow::Cow;
use std::sync::Arc;

/// An instruction set that the kernels are compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// The compiler's baseline; the reference.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX2 with FMA, F16C, and VNNI on 256 bits.
    Avx2Vnni,
    /// AVX-512 F, BW, VL and VNNI.
    Avx512,
    /// NEON.
    Neon,
    /// NEON with the dot product of Armv8.2.
    NeonDot,
}

impl Isa {
    /// All instruction sets, each machine's slowest first.
    pub const ALL: [Self; 6] =
        [Self::Scalar, Self::Avx2, Self::Avx2Vnni, Self::Avx512, Self::Neon, Self::NeonDot];

    /// The name that people know it by.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "AVX2",
            Self::Avx2Vnni => "AVX2 VNNI",
            Self::Avx512 => "AVX-512 VNNI",
            Self::Neon => "NEON",
            Self::NeonDot => "NEON dotprod",
        }
    }
}

/// How to make a [`Cpu`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuConfig {
    /// Threads that work together, the caller's included; `None`: as many as this process may use
    /// (affinity and control group considered), 64 at most.
    pub threads: Option<usize>,
    /// The instruction set; `None`: the best that this CPU has.
    pub isa: Option<Isa>,
}

/// Why a [`Cpu`] could not be made.
#[derive(Debug, thiserror::Error)]
pub enum CpuError {
    /// The CPU lacks the instruction set that was asked for.
    #[error("this CPU does not have {}", .0.name())]
    NoIsa(Isa),
    /// The system refused threads.
    #[error("threads could not be started: {0}")]
    Threads(#[from] std::io::Error),
}

/// The CPU; see the module.
pub struct Cpu {
    level: Level,
    pool: Arc<Pool>,
    quantised: Quantised,
    /// Angles of the last two calls' kinds: models with two kinds of layer alternate.
    angles: [Angles; 2],
    paging: Paging,
}

impl Clone for Cpu {
    /// Shares the threads; scratch space starts empty.
    fn clone(&self) -> Self {
        Self::assemble(self.level, Arc::clone(&self.pool))
    }
}

impl Cpu {
    /// Starts the threads.
    pub fn new(config: CpuConfig) -> Result<Self, CpuError> {
        let best = || Self::isas().last().copied().unwrap_or(Isa::Scalar);
        let isa = config.isa.unwrap_or_else(best);
        let level = Level::detect(isa).ok_or(CpuError::NoIsa(isa))?;
        let available = || std::thread::available_parallelism().map_or(1, usize::from).min(64);
        let pool = Pool::new(config.threads.unwrap_or_else(available).max(1))?;
        Ok(Self::assemble(level, Arc::new(pool)))
    }

    fn assemble(level: Level, pool: Arc<Pool>) -> Self {
        Self { level, pool, quantised: Quantised::empty(), angles: Default::default(), paging: Paging::new() }
    }

    /// The instruction sets that this CPU has, slowest first.
    #[must_use]
    pub fn isas() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| Level::detect(*isa).is_some()).collect()
    }

    /// The instruction set in use.
    #[must_use]
    pub fn isa(&self) -> Isa {
        self.level.isa()
    }

    /// Threads that work together.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// A tensor with these rows, for tests and tools; `data` is whole rows of `width`.
    #[must_use]
    pub fn upload(&self, width: usize, data: &[f32]) -> Tensor {
        let mut tensor = self.tensor(width);
        assert_eq!(data.len() % width, 0, "whole rows");
        tensor.set_rows(data.len() / width);
        tensor.data.copy_from_slice(data);
        tensor
    }
}

/// Activations: rows of `f32`.
pub struct Tensor {
    width: usize,
    data: Buffer<f32>,
}

impl Tensor {
    /// Elements of a row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows of the last operation that wrote it.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.data.len() / self.width
    }

    fn set_rows(&mut self, rows: usize) {
        self.data.resize(rows * self.width);
    }
}

/// A small vector of `f32`; clones share the memory.
#[derive(Clone)]
pub struct Vector(Arc<[f32]>);

impl std::ops::Deref for Vector {
    type Target = [f32];
    fn deref(&self) -> &[f32] {
        &self.0
    }
}

impl Vector {
    /// Whether both are the same memory.
    pub(crate) fn same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Device for Cpu {
    type Tensor = Tensor;
    type Matrix = Matrix;
    type Vector = Vector;
    type Kv = Kv;

    fn describe(&self) -> String {
        let (isa, threads) = (self.level.isa().name(), self.pool.threads());
        format!("CPU, {isa}, {threads} thread{}", if threads == 1 { "" } else { "s" })
    }

    fn matrix(&self, source: &MatrixSource<'_>, format: LoadFormat) -> Result<Matrix, DeviceError> {
        matrix::pack(source, format, &self.pool)
    }

    fn packing() -> Option<&'static str> {
        Some(matrix::PACKING)
    }

    fn packed(matrix: &Matrix) -> Cow<'_, [u8]> {
        Cow::Borrowed(matrix.0.data())
    }

    fn unpack(
        &self,
        source: &MatrixSource<'_>,
        format: LoadFormat,
        packed: SharedBytes,
    ) -> Result<Matrix, DeviceError> {
        matrix::unpack(source, format, packed)
    }

    fn matrix_bytes(&self, matrix: &Matrix) -> Bytes {
        matrix.0.bytes()
    }

    fn vector(&self, data: &[f32]) -> Vector {
        Vector(data.into())
    }

    fn tensor(&self, width: usize) -> Tensor {
        assert!(width > 0, "a tensor has some width");
        Tensor { width, data: Buffer::empty() }
    }

    fn kv(&self, spec: &KvSpec) -> Kv {
        Kv::new(spec)
    }

    fn ensure_page(&mut self, kv: &mut Kv, page: PageId) -> Result<(), DeviceError> {
        kv.ensure(page)
    }

    fn drop_page(&mut self, kv: &mut Kv, page: PageId) {
        kv.discard(page);
    }

    fn copy_page(&mut self, kv: &mut Kv, copy: PageCopy) {
        kv.copy(copy.from, copy.to);
    }

    fn export_page(&self, kv: &Kv, page: PageId, out: &mut Vec<u8>) {
        kv.export(page, out);
    }

    fn import_page(&mut self, kv: &mut Kv, page: PageId, bytes: &[u8]) {
        kv.import(page, bytes);
    }

    fn embed(&mut self, table: &Matrix, ids: &[u32], scale: f32, out: &mut Tensor) {
        assert_eq!(out.width, table.0.cols, "the table's width");
        out.set_rows(ids.len());
        rows::embed(&self.pool, &table.0, ids, scale, false, &mut out.data);
    }

    fn embed_add(&mut self, table: &Matrix, ids: &[u32], x: &mut Tensor) {
        assert_eq!((x.width, x.rows()), (table.0.cols, ids.len()), "an id per row of the table's width");
        rows::embed(&self.pool, &table.0, ids, 1.0, true, &mut x.data);
    }

    fn rms_norm(&mut self, x: &Tensor, weight: &Vector, eps: f32, out: &mut Tensor) {
        assert_eq!((x.width, out.width), (weight.len(), weight.len()), "a weight per element");
        out.set_rows(x.rows());
        out.data.copy_from_slice(&x.data);
        rms_norm(self, &mut out.data, weight, eps);
    }

    fn head_norm(&mut self, x: &mut Tensor, weight: &Vector, eps: f32) {
        assert_eq!(x.width % weight.len(), 0, "a row is whole heads");
        rms_norm(self, &mut x.data, weight, eps);
    }

    fn layer_norm(&mut self, x: &mut Tensor, weight: &Vector, bias: &Vector, eps: f32) {
        assert_eq!((x.width, x.width), (weight.len(), bias.len()), "a weight and a bias per element");
        rows::for_rows(&self.pool, &mut x.data, x.width, &|_, x| {
            self.level.run(rows::LayerNorm { x, weight, bias, eps });
        });
    }

    fn matmul(&mut self, x: &Tensor, products: &mut [Product<'_, Self>]) {
        let rows = x.rows();
        for product in &mut *products {
            let weight = &product.weight.0;
            assert_eq!((weight.cols, weight.rows), (x.width, product.out.width), "the weight's shape");
            assert!(product.bias.is_none_or(|b| b.len() == weight.rows), "a bias per output");
            if product.accumulate {
                assert_eq!(product.out.rows(), rows, "rows to add to");
            } else {
                product.out.set_rows(rows);
            }
        }
        if rows == 0 {
            return;
        }
        if products.iter().any(|p| p.weight.0.quantised()) {
            self.quantised.set(&x.data, x.width, self.level, &self.pool);
        }
        let tasks: Vec<Task<'_>> = products
            .iter_mut()
            .map(|p| Task {
                weight: &p.weight.0,
                bias: p.bias.map(|b| &**b),
                out: Shared::new(&mut p.out.data),
                accumulate: p.accumulate,
            })
            .collect();
        let input = Input { x: &x.data, width: x.width, quantised: &self.quantised };
        matmul::run(self.level, &self.pool, &input, &tasks);
    }

    fn rope(
        &mut self,
        x: &mut Tensor,
        head_dim: usize,
        frequencies: &Vector,
        style: RopeStyle,
        positions: &[u32],
    ) {
        let rotary = 2 * frequencies.len();
        assert!(x.width.is_multiple_of(head_dim) && rotary <= head_dim, "whole heads that hold what turns");
        assert_eq!(x.rows(), positions.len(), "a position per row");
        if positions.is_empty() || rotary == 0 {
            return;
        }
        if !self.angles[0].fits(frequencies, style, positions) {
            self.angles.swap(0, 1);
        }
        if !self.angles[0].fits(frequencies, style, positions) {
            self.angles[0].set(frequencies, style, positions, &self.pool);
        }
        let (angles, width) = (&self.angles[0], x.width);
        rows::for_rows(&self.pool, &mut x.data, width, &|first, x| {
            self.level.run(rows::Rope { x, width, head_dim, rotary, style, angles, first });
        });
    }

    fn store_kv(&mut self, kv: &mut Kv, layer: usize, keys: &Tensor, values: &Tensor, batch: &Batch) {
        let shape = kv.layer(layer);
        let width = shape.kv_heads * shape.head_dim;
        assert_eq!((keys.width, values.width), (width, width), "the layer's heads");
        assert_eq!((keys.rows(), values.rows()), (batch.rows(), batch.rows()), "a row per row");
        kv.store(layer, &keys.data, &values.data, batch, self.level, &self.pool);
    }

    fn attention(
        &mut self,
        kv: &Kv,
        layer: usize,
        queries: &Tensor,
        batch: &Batch,
        spec: &AttentionSpec,
        out: &mut Tensor,
    ) {
        let width = spec.heads * spec.head_dim;
        assert_eq!((queries.width, out.width), (width, width), "all query heads");
        assert_eq!(queries.rows(), batch.rows(), "a query row per row");
        out.set_rows(queries.rows());
        let Self { level, pool, paging, .. } = self;
        paging.run(*level, pool, kv, layer, &queries.data, batch, spec, &mut out.data);
    }

    fn attention_full(
        &mut self,
        queries: &Tensor,
        keys: &Tensor,
        values: &Tensor,
        segments: &[u32],
        spec: &AttentionSpec,
        out: &mut Tensor,
    ) {
        let (width, kv_width) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
        assert_eq!((queries.width, out.width), (width, width), "all query heads");
        assert_eq!((keys.width, values.width), (kv_width, kv_width), "all KV heads");
        let rows = segments.iter().map(|s| *s as usize).sum::<usize>();
        assert_eq!((queries.rows(), keys.rows(), values.rows()), (rows, rows, rows), "the segments' rows");
        out.set_rows(rows);
        let (q, k, v) = (&queries.data, &keys.data, &values.data);
        attention::full(self.level, &self.pool, q, k, v, segments, spec, &mut out.data);
    }

    fn gate(&mut self, gate: &mut Tensor, up: &Tensor, activation: Activation) {
        assert_eq!((gate.width, gate.data.len()), (up.width, up.data.len()), "the same shape");
        let width = gate.width;
        rows::for_rows(&self.pool, &mut gate.data, width, &|first, x| {
            let up = Some(&up.data[first * width..][..x.len()]);
            self.level.run(rows::Gate { x, up, activation });
        });
    }

    fn activate(&mut self, x: &mut Tensor, activation: Activation) {
        rows::for_rows(&self.pool, &mut x.data, x.width, &|_, x| {
            self.level.run(rows::Gate { x, up: None, activation });
        });
    }

    fn add(&mut self, x: &mut Tensor, y: &Tensor) {
        assert_eq!((x.width, x.data.len()), (y.width, y.data.len()), "the same shape");
        let width = x.width;
        rows::for_rows(&self.pool, &mut x.data, width, &|first, x| {
            let y = &y.data[first * width..][..x.len()];
            self.level.run(rows::Add { x, y });
        });
    }

    fn select_rows(&mut self, x: &Tensor, rows: &[u32], out: &mut Tensor) {
        assert_eq!(x.width, out.width, "the same width");
        out.set_rows(rows.len());
        for (to, row) in out.data.chunks_exact_mut(x.width).zip(rows) {
            to.copy_from_slice(&x.data[*row as usize * x.width..][..x.width]);
        }
    }

    fn host<'a>(&'a mut self, x: &'a Tensor) -> &'a [f32] {
        &x.data
    }
}

fn rms_norm(cpu: &Cpu, x: &mut [f32], weight: &[f32], eps: f32) {
    rows::for_rows(&cpu.pool, x, weight.len(), &|_, x| {
        cpu.level.run(rows::RmsNorm { x, weight, eps });
    });
}

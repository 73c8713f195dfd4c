//! Softmax attention over keys and values in units of sixteen positions.
//!
//! A `plan` cuts a batch into pieces, the `kernel` computes them (`soften` turns scores to weights), `parts` merges
//! what they give, `units` say where keys and values lie.
//!
//! Invariant: what a row gets depends on its queries and on the keys and values that it sees; the parts of
//! its blocks are computed and merged with the same operations whatever other queries share a tile, how
//! blocks are shared out between threads, or which sequences share pages.

mod kernel;
mod parts;
mod plan;
mod soften;
mod units;

use crate::buffer::{Buffer, Shared};
use crate::kv::{I8, Kv, Layer, Stored};
use crate::matmul::{Bf16, F16};
use crate::pool::Pool;
use crate::simd::{LANES, Level};
use device::{AttentionSpec, Batch, KvFormat};
use kernel::{BLOCK, Item, QUERIES};
use parts::{Call, Finish};
use plan::{Piece, Plan, Row};
use std::cell::RefCell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use units::{Paged, Segment};

thread_local! {
    /// Working memory of an item; kept, so that steps do not allocate.
    static SUMS: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
    /// Keys and values of a segment, as units.
    static SEGMENT: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

/// Runs `body` with the sums of this many queries, all zero. Outside of the kernels: a closure in them would be
/// compiled without their instruction set.
fn with_sums(spec: &AttentionSpec, queries: usize, body: impl FnOnce(&mut [f32])) {
    debug_assert!(queries <= QUERIES);
    SUMS.with_borrow_mut(|sums| {
        sums.clear();
        sums.resize(queries * spec.head_dim.next_multiple_of(LANES), 0.0);
        body(sums);
    });
}

/// Query heads that share a KV head.
fn group(spec: &AttentionSpec) -> usize {
    let group = spec.heads / spec.kv_heads;
    assert!(group * spec.kv_heads == spec.heads, "query heads are a multiple of KV heads");
    assert!(group <= device::QUERY_GROUP_MAX, "query heads that share a KV head");
    group
}

/// Causal attention over pages, with what it keeps from layer to layer.
pub(crate) struct Paging {
    /// Of the last two calls' kinds: models with two kinds of layer alternate.
    plans: [Plan; 2],
    parts: Buffer<f32>,
    /// Pieces still to come, for each row that has parts and each KV head.
    left: Vec<AtomicUsize>,
}

impl Paging {
    pub(crate) fn new() -> Self {
        Self { plans: Default::default(), parts: Buffer::empty(), left: Vec::new() }
    }

    /// Sets `out` to the attention of the batch's rows.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn run(
        &mut self,
        level: Level,
        pool: &Pool,
        kv: &Kv,
        layer: usize,
        queries: &[f32],
        batch: &Batch,
        spec: &AttentionSpec,
        out: &mut [f32],
    ) {
        let layer = kv.layer(layer);
        assert_eq!((layer.kv_heads, layer.head_dim), (spec.kv_heads, spec.head_dim), "the layer's shape");
        if !self.plans[0].fits(batch, spec, pool.threads()) {
            self.plans.swap(0, 1);
        }
        if !self.plans[0].fits(batch, spec, pool.threads()) {
            self.plans[0].set(batch, spec, pool.threads());
        }
        let Self { plans: [plan, _], parts, left } = self;
        parts.resize(plan.parts * spec.heads * parts::part_len(spec));
        left.clear();
        for row in &plan.rows {
            let pieces = row.parts.map(|parts| parts.pieces);
            left.extend(
                pieces.into_iter().flat_map(|n| (0..spec.kv_heads).map(move |_| AtomicUsize::new(n))),
            );
        }
        let (out, parts) = (Shared::new(out), Shared::new(parts));
        let call = Call { queries, out: &out, parts: &parts, spec };
        let item = |index: usize| {
            let (piece, kv_head) = (&plan.pieces[index / spec.kv_heads], index % spec.kv_heads);
            let place = Place { kv, layer, kv_head, batch };
            match kv.format() {
                KvFormat::F16 => compute::<F16>(level, call, piece, &plan.rows, place),
                KvFormat::Bf16 => compute::<Bf16>(level, call, piece, &plan.rows, place),
                KvFormat::Int8 => compute::<I8>(level, call, piece, &plan.rows, place),
            }
            for row in &plan.rows[piece.rows.clone()] {
                let Some(place) = row.parts else { continue };
                // The last one to leave a part merges them: it sees what the others wrote before.
                if left[place.index * spec.kv_heads + kv_head].fetch_sub(1, Ordering::AcqRel) == 1 {
                    with_sums(spec, call.group(), |sums| {
                        level.run(Finish { call, row: *row, kv_head, sums })
                    });
                }
            }
        };
        let items = plan.pieces.len() * spec.kv_heads;
        if plan.serial {
            (0..items).for_each(item);
        } else {
            pool.run(items, &item);
        }
    }
}

/// Where the keys and values of a piece lie.
#[derive(Clone, Copy)]
struct Place<'a> {
    kv: &'a Kv,
    layer: Layer,
    kv_head: usize,
    batch: &'a Batch,
}

/// Computes a piece over pages of one format.
fn compute<E: Stored>(level: Level, call: Call<'_>, piece: &Piece, rows: &[Row], place: Place<'_>) {
    let Place { kv, layer, kv_head, batch } = place;
    let pages = batch.pages(&batch.sequences[piece.sequence]);
    let units = Paged::<E> { kv, layer, head: kv_head, pages, element: PhantomData };
    with_sums(call.spec, piece.rows.len() * call.group(), |sums| {
        level.run(Item::of(call, piece, rows, units, kv_head, sums));
    });
}

/// Attention of each segment's rows over that segment.
#[allow(clippy::too_many_arguments)]
pub(crate) fn full(
    level: Level,
    pool: &Pool,
    queries: &[f32],
    keys: &[f32],
    values: &[f32],
    segments: &[u32],
    spec: &AttentionSpec,
    out: &mut [f32],
) {
    let most = QUERIES / 2 / group(spec);
    let mut starts = Vec::with_capacity(segments.len());
    let mut next = 0;
    for len in segments {
        starts.push(next);
        next += *len as usize;
    }
    let dim = spec.head_dim;
    let stride = dim.next_multiple_of(LANES);
    let unit = LANES * (dim + stride);
    let (out, parts) = (Shared::new(out), Shared::new(&mut []));
    let call = Call { queries, out: &out, parts: &parts, spec };
    pool.run(segments.len() * spec.kv_heads, &|item| {
        let (segment, kv_head) = (item / spec.kv_heads, item % spec.kv_heads);
        let (first, len) = (starts[segment], segments[segment] as usize);
        SEGMENT.with_borrow_mut(|units| {
            units.clear();
            units.resize(len.div_ceil(LANES) * unit, 0.0);
            for position in 0..len {
                let at = ((first + position) * spec.kv_heads + kv_head) * dim;
                let (k, v) = units[position / LANES * unit..][..unit].split_at_mut(LANES * dim);
                for d in 0..dim {
                    k[d * LANES + position % LANES] = keys[at + d];
                }
                v[position % LANES * stride..][..dim].copy_from_slice(&values[at..at + dim]);
            }
            for skip in (0..len).step_by(most) {
                let rows = most.min(len - skip);
                let row = |i| Row { row: first + skip + i, from: 0, to: len, parts: None };
                let mut all = [row(0); QUERIES];
                for (i, to) in all[..rows].iter_mut().enumerate() {
                    *to = row(i);
                }
                with_sums(spec, rows * group(spec), |sums| {
                    level.run(Item {
                        call,
                        units: Segment { units, unit, keys: LANES * dim },
                        kv_head,
                        rows: &all[..rows],
                        blocks: 0..len.div_ceil(BLOCK),
                        leads: true,
                        sums,
                    });
                });
            }
        });
    });
}

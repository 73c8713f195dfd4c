//! Attention and KV pages: against softmax in double precision, and bit for bit under every way to cut a
//! prompt, share a batch, or place pages; in every format of keys and values.
#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use common::*;
use device::{
    AttentionSpec, Batch, Device, KvFormat, KvGroup, KvReach, KvSpec, PAGE_TOKENS, PageCopy, PageId,
};
use kernels::{Cpu, Isa, Kv};
use proptest::prelude::*;

/// A sequence's queries, keys and values at all positions.
struct Sequence {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
}

fn spec(heads: usize, kv_heads: usize, head_dim: usize, window: Option<u32>) -> AttentionSpec {
    AttentionSpec { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), window }
}

fn sequence(spec: &AttentionSpec, len: usize, seed: u64) -> Sequence {
    let (width, kv_width) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    let scaled = |seed, n| randoms(seed, n).into_iter().map(|x| x * 3.0).collect();
    Sequence {
        q: scaled(seed, len * width),
        k: scaled(seed + 1, len * kv_width),
        v: scaled(seed + 2, len * kv_width),
    }
}

fn kv_spec(spec: &AttentionSpec, format: KvFormat) -> KvSpec {
    let group =
        |layers| KvGroup { reach: KvReach::Full, layers, kv_heads: spec.kv_heads, head_dim: spec.head_dim };
    KvSpec { groups: vec![group(vec![1]), group(vec![0, 2])], format }
}

fn kv(cpu: &Cpu, spec: &AttentionSpec, format: KvFormat) -> Kv {
    cpu.kv(&kv_spec(spec, format))
}

/// Runs rows `[from, to)` of each named sequence as one batch on layer 1; gives all rows' results.
fn step(
    cpu: &mut Cpu,
    kv: &mut Kv,
    spec: &AttentionSpec,
    parts: &[(&Sequence, usize, usize, &[PageId])],
) -> Vec<f32> {
    let (width, kv_width) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    let mut batch = Batch::default();
    let (mut q, mut k, mut v) = (Vec::new(), Vec::new(), Vec::new());
    for (sequence, from, to, pages) in parts {
        batch.push(&vec![0; to - from], *from as u32, pages);
        q.extend_from_slice(&sequence.q[from * width..to * width]);
        k.extend_from_slice(&sequence.k[from * kv_width..to * kv_width]);
        v.extend_from_slice(&sequence.v[from * kv_width..to * kv_width]);
    }
    batch.check();
    for page in &batch.page_tables {
        cpu.ensure_page(kv, *page).unwrap();
    }
    let (q, k, v) = (cpu.upload(width, &q), cpu.upload(kv_width, &k), cpu.upload(kv_width, &v));
    let mut out = cpu.tensor(width);
    cpu.store_kv(kv, 1, &k, &v, &batch);
    cpu.attention(kv, 1, &q, &batch, spec, &mut out);
    cpu.host(&out).to_vec()
}

fn pages(first: u32, len: usize) -> Vec<PageId> {
    (0..len.div_ceil(PAGE_TOKENS) as u32).map(|i| PageId(first + i)).collect()
}

/// Keys or values, heads of `dim` elements, as a format keeps them.
fn kept(x: &[f32], dim: usize, format: KvFormat) -> Vec<f64> {
    let wide = |x: f32| f64::from(x);
    match format {
        KvFormat::F16 => x.iter().map(|x| wide(half::f16::from_f32(*x).to_f32())).collect(),
        KvFormat::Bf16 => x.iter().map(|x| wide(half::bf16::from_f32(*x).to_f32())).collect(),
        KvFormat::Int8 => {
            let head = |x: &[f32]| {
                let peak = x.iter().fold(0.0, |peak, x| x.abs().max(peak));
                let code = move |x: &f32| wide((x * (127.0 / peak)).round_ties_even()) * wide(peak / 127.0);
                x.iter().map(code).collect::<Vec<_>>()
            };
            x.chunks(dim).flat_map(head).collect()
        }
    }
}

/// Softmax attention in double precision over `keys` and `values`.
fn naive(
    queries: &[f32],
    (keys, values): (&[f64], &[f64]),
    spec: &AttentionSpec,
    row: usize,
    sees: std::ops::Range<usize>,
) -> Vec<f64> {
    let dim = spec.head_dim;
    let mut out = Vec::new();
    for head in 0..spec.heads {
        let kv_head = head / (spec.heads / spec.kv_heads);
        let q = &queries[(row * spec.heads + head) * dim..][..dim];
        let at = |x: &[f64], p: usize, d: usize| x[(p * spec.kv_heads + kv_head) * dim + d];
        let scores: Vec<f64> = sees
            .clone()
            .map(|p| (0..dim).map(|d| f64::from(q[d]) * at(keys, p, d)).sum::<f64>() * f64::from(spec.scale))
            .collect();
        let peak = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|x| (x - peak).exp()).collect();
        let total: f64 = weights.iter().sum();
        for d in 0..dim {
            let sum: f64 = weights.iter().zip(sees.clone()).map(|(w, p)| w * at(values, p, d)).sum();
            out.push(sum / total);
        }
    }
    out
}

#[track_caller]
fn check_close(got: &[f32], expected: &[f64]) {
    for (got, expected) in got.iter().zip(expected) {
        assert!((f64::from(*got) - expected).abs() < 2e-5, "{got}, expected {expected}");
    }
}

#[test]
fn paged_attention_is_softmax_over_what_a_row_sees() {
    for format in KvFormat::ALL {
        for (heads, kv_heads, dim, window) in [
            (6, 2, 64, None),
            (4, 4, 24, None),
            (8, 1, 128, Some(40)),
            (2, 1, 80, Some(1)),
            (3, 3, 8, Some(17)),
            (4, 1, 256, Some(500)),
        ] {
            let spec = spec(heads, kv_heads, dim, window);
            let len = 150;
            let s = sequence(&spec, len, 5);
            let (k, v) = (kept(&s.k, dim, format), kept(&s.v, dim, format));
            let rows = [0, 1, 15, 16, 17, 63, 64, 100, 149].map(|row| {
                let from = window.map_or(0, |w| (row + 1usize).saturating_sub(w as usize));
                (row, naive(&s.q, (&k, &v), &spec, row, from..row + 1))
            });
            for isa in Cpu::isas() {
                let mut cpu = cpu(isa, 2);
                let mut kv = kv(&cpu, &spec, format);
                let got = step(&mut cpu, &mut kv, &spec, &[(&s, 0, len, &pages(3, len))]);
                for (row, expected) in &rows {
                    check_close(&got[row * heads * dim..][..heads * dim], expected);
                }
            }
        }
    }
}

#[test]
fn full_attention_sees_the_whole_segment_in_single_precision() {
    for isa in Cpu::isas() {
        for (heads, kv_heads, dim) in [(12, 12, 32), (4, 2, 20)] {
            let spec = spec(heads, kv_heads, dim, None);
            let lens = [1usize, 70, 16, 33];
            let rows: usize = lens.iter().sum();
            let s = sequence(&spec, rows, 9);
            let wide = |x: &[f32]| x.iter().map(|x| f64::from(*x)).collect::<Vec<_>>();
            let (wide_k, wide_v) = (wide(&s.k), wide(&s.v));
            let mut cpu = cpu(isa, 2);
            let (q, k, v) = (
                cpu.upload(heads * dim, &s.q),
                cpu.upload(kv_heads * dim, &s.k),
                cpu.upload(kv_heads * dim, &s.v),
            );
            let mut out = cpu.tensor(heads * dim);
            let segments: Vec<u32> = lens.iter().map(|n| *n as u32).collect();
            cpu.attention_full(&q, &k, &v, &segments, &spec, &mut out);
            let got = cpu.host(&out).to_vec();
            let mut first = 0;
            for len in lens {
                for row in first..first + len {
                    let expected = naive(&s.q, (&wide_k, &wide_v), &spec, row, first..first + len);
                    check_close(&got[row * heads * dim..][..heads * dim], &expected);
                }
                first += len;
            }
        }
    }
}

#[test]
fn every_instruction_set_and_thread_count_gives_the_same_bits() {
    let spec = spec(6, 2, 40, Some(90));
    let len = 130;
    let s = sequence(&spec, len, 4);
    for format in KvFormat::ALL {
        let mut first = None;
        for isa in Cpu::isas() {
            for threads in 1..=3 {
                let mut cpu = cpu(isa, threads);
                let mut kv = kv(&cpu, &spec, format);
                let got = bits(&step(&mut cpu, &mut kv, &spec, &[(&s, 0, len, &pages(0, len))]));
                let first = first.get_or_insert_with(|| got.clone());
                assert_eq!(*first, got, "{format:?}, {isa:?} with {threads} threads");
            }
        }
    }
}

#[test]
fn pages_before_the_window_are_never_read() {
    let spec = spec(4, 2, 32, Some(40));
    let len = 300;
    let mut cpu = cpu(*Cpu::isas().last().unwrap(), 2);
    let s = sequence(&spec, len, 8);
    let width = spec.heads * spec.head_dim;
    for (rows, format) in [(1, KvFormat::F16), (3, KvFormat::Int8), (60, KvFormat::Bf16), (60, KvFormat::F16)]
    {
        let mut kv = kv(&cpu, &spec, format);
        let all = step(&mut cpu, &mut kv, &spec, &[(&s, 0, len, &pages(0, len))]);
        // The first row sees from here on; reading a page that has no memory would panic.
        let first = len - rows + 1 - 40;
        for page in 0..first / PAGE_TOKENS {
            cpu.drop_page(&mut kv, PageId(page as u32));
        }
        let mut batch = Batch::default();
        batch.push(&vec![0; rows], (len - rows) as u32, &pages(0, len));
        let q = cpu.upload(width, &s.q[(len - rows) * width..]);
        let mut out = cpu.tensor(width);
        cpu.attention(&kv, 1, &q, &batch, &spec, &mut out);
        assert_eq!(bits(cpu.host(&out)), bits(&all[(len - rows) * width..]), "{rows} rows");
    }
}

#[test]
fn what_a_page_held_before_does_not_matter() {
    for format in KvFormat::ALL {
        let spec = spec(2, 1, 64, None);
        let mut cpu = cpu(*Cpu::isas().last().unwrap(), 1);
        let mut kv = kv(&cpu, &spec, format);
        let s = sequence(&spec, 20, 1);
        let clean = step(&mut cpu, &mut kv, &spec, &[(&s, 0, 20, &pages(0, 20))]);
        // Values beyond the format's range, and not-a-number, then the same page again.
        let mut bad = sequence(&spec, 32, 2);
        bad.k.iter_mut().for_each(|x| *x = f32::NAN);
        bad.v.iter_mut().for_each(|x| *x = f32::INFINITY);
        step(&mut cpu, &mut kv, &spec, &[(&bad, 0, 32, &pages(0, 32))]);
        let again = step(&mut cpu, &mut kv, &spec, &[(&s, 0, 20, &pages(0, 20))]);
        assert_eq!(bits(&clean), bits(&again), "{format:?}");
    }
}

#[test]
fn values_that_no_format_holds_are_kept_as_the_nearest_finite_ones() {
    let bf16_max = half::bf16::MAX.to_f32();
    for isa in Cpu::isas() {
        for (format, most) in
            [(KvFormat::F16, 65504.0), (KvFormat::Bf16, bf16_max), (KvFormat::Int8, bf16_max)]
        {
            let spec = spec(1, 1, 16, None);
            let mut cpu = cpu(isa, 1);
            let mut kv = kv(&cpu, &spec, format);
            let values = [f32::INFINITY, f32::NEG_INFINITY, f32::NAN, f32::MAX, f32::MIN, 0.0];
            let v = (0..16).map(|i| values[i.min(5)]).collect();
            let s = Sequence { q: vec![1.0; 16], k: vec![0.0; 16], v };
            let got = step(&mut cpu, &mut kv, &spec, &[(&s, 0, 1, &pages(0, 1))]);
            for (got, expected) in got.iter().zip([most, -most, -most, most, -most, 0.0]) {
                // An eight-bit code times its scale may round once more.
                assert!((got - expected).abs() <= most * 1e-6, "{format:?}, {isa:?}: {got}");
            }
            // Nothing but zeros has scale zero; values too small for any scale are zeros.
            let s = Sequence { q: vec![1.0; 16], k: vec![0.0; 16], v: vec![1e-38; 16] };
            let got = step(&mut cpu, &mut kv, &spec, &[(&s, 0, 1, &pages(0, 1))]);
            assert!(got.iter().all(|x| (0.0..1.1e-38).contains(x)), "{format:?}, {isa:?}: {got:?}");
        }
    }
}

#[test]
fn pages_can_be_copied_shared_exported_and_given_back() {
    for format in KvFormat::ALL {
        let spec = spec(4, 2, 64, None);
        let mut cpu = cpu(*Cpu::isas().last().unwrap(), 2);
        let mut kv = kv(&cpu, &spec, format);
        let s = sequence(&spec, 40, 1);
        let width = spec.heads * spec.head_dim;
        let whole = step(&mut cpu, &mut kv, &spec, &[(&s, 0, 40, &pages(0, 40))]);
        let last = &whole[39 * width..];
        // Pages 0 and 1 shared, the tail page copied.
        cpu.ensure_page(&mut kv, PageId(9)).unwrap();
        cpu.copy_page(&mut kv, PageCopy { from: PageId(2), to: PageId(9) });
        let shared = [PageId(0), PageId(1), PageId(9)];
        assert_eq!(bits(&step(&mut cpu, &mut kv, &spec, &[(&s, 39, 40, &shared)])), bits(last));
        // Page 1 goes out, loses its memory, and comes back elsewhere.
        let mut bytes = Vec::new();
        cpu.export_page(&kv, PageId(1), &mut bytes);
        let layer = match format {
            KvFormat::F16 | KvFormat::Bf16 => 2 * 2 * 64 * 16 * 2,
            KvFormat::Int8 => 2 * 2 * (64 + 4) * 16,
        };
        assert_eq!(bytes.len(), 3 * layer);
        assert_eq!(bytes.len() as u64, kv_spec(&spec, format).page_bytes().0, "a page is counted in full");
        cpu.drop_page(&mut kv, PageId(1));
        cpu.drop_page(&mut kv, PageId(1));
        cpu.drop_page(&mut kv, PageId(1000));
        cpu.ensure_page(&mut kv, PageId(77)).unwrap();
        cpu.import_page(&mut kv, PageId(77), &bytes);
        let moved = [PageId(0), PageId(77), PageId(9)];
        assert_eq!(bits(&step(&mut cpu, &mut kv, &spec, &[(&s, 39, 40, &moved)])), bits(last));
    }
}

#[test]
fn a_page_that_cannot_be_had_is_an_error() {
    let mut cpu = cpu(Isa::Scalar, 1);
    let group = KvGroup { reach: KvReach::Full, layers: vec![0], kv_heads: 1 << 22, head_dim: 1 << 22 };
    let mut kv = cpu.kv(&KvSpec { groups: vec![group], ..KvSpec::default() });
    let refused = cpu.ensure_page(&mut kv, PageId(0)).err().unwrap();
    assert!(matches!(refused, device::DeviceError::OutOfMemory(_)));
}

#[derive(Clone, Debug)]
struct Plan {
    format: KvFormat,
    shape: usize,
    window: Option<u32>,
    /// Cuts of the sequence under test.
    chunks: Vec<usize>,
    /// Length and rows of a companion in each step.
    others: Vec<(usize, usize)>,
    threads: usize,
    first_page: u32,
}

fn formats() -> impl Strategy<Value = KvFormat> {
    proptest::sample::select(&KvFormat::ALL)
}

fn plans() -> impl Strategy<Value = Plan> {
    let window = prop_oneof![Just(None), (1u32..200).prop_map(Some)];
    let chunk = prop_oneof![Just(1usize), 2usize..20, 20usize..90];
    (
        formats(),
        0usize..4,
        window,
        proptest::collection::vec(chunk, 1..8),
        proptest::collection::vec((1usize..100, 1usize..40), 8),
        1usize..4,
        0u32..50,
    )
        .prop_map(|(format, shape, window, chunks, others, threads, first_page)| Plan {
            format,
            shape,
            window,
            chunks,
            others,
            threads,
            first_page,
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    /// A row's attention does not depend on how the prompt was cut, who else was in the batch, which pages
    /// it got, or how many threads worked.
    #[test]
    fn chunked_prefill_in_company_equals_one_shot_alone(plan in plans()) {
        let (heads, kv_heads, dim) = [(3, 1, 64), (4, 4, 16), (9, 3, 64), (14, 2, 32)][plan.shape];
        let spec = spec(heads, kv_heads, dim, plan.window);
        let len: usize = plan.chunks.iter().sum();
        let s = sequence(&spec, len, 5);
        let best = *Cpu::isas().last().unwrap();

        let mut alone = cpu(best, 1);
        let mut alone_kv = kv(&alone, &spec, plan.format);
        let expected = step(&mut alone, &mut alone_kv, &spec, &[(&s, 0, len, &pages(0, len))]);

        let mut cpu = cpu(best, plan.threads);
        let mut kv = kv(&cpu, &spec, plan.format);
        let own = pages(plan.first_page, len);
        let mut got = Vec::new();
        let mut from = 0;
        for (chunk, (other_len, other_rows)) in plan.chunks.iter().zip(&plan.others) {
            let other = sequence(&spec, *other_len, 77);
            let other_pages = pages(1000, *other_len);
            let other_from = other_len.saturating_sub(*other_rows);
            let parts = [
                (&other, other_from, *other_len, &other_pages[..]),
                (&s, from, from + chunk, &own[..]),
            ];
            let out = step(&mut cpu, &mut kv, &spec, &parts);
            got.extend_from_slice(&out[(other_len - other_from) * heads * dim..]);
            from += chunk;
        }
        prop_assert_eq!(bits(&got), bits(&expected));
    }
}

/// A family of sequences: each goes on where another one's pages are shared with it.
#[derive(Clone, Debug)]
struct Family {
    format: KvFormat,
    shape: usize,
    window: Option<u32>,
    /// For each member: the earlier member that it follows, for how many pages, its length and new rows.
    members: Vec<(usize, usize, usize, usize)>,
    threads: usize,
}

fn families() -> impl Strategy<Value = Family> {
    let window = prop_oneof![3 => Just(None), 1 => (1u32..400).prop_map(Some)];
    let rows = prop_oneof![4 => Just(1usize), 2 => 2usize..17, 1 => 17usize..40];
    let member = (0usize..8, 0usize..40, 1usize..700, rows);
    (formats(), 0usize..4, window, proptest::collection::vec(member, 1..7), 1usize..5).prop_map(
        |(format, shape, window, members, threads)| Family { format, shape, window, members, threads },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// Sequences that share pages with others get what they get alone.
    #[test]
    fn shared_pages_give_what_own_pages_give(family in families()) {
        let (heads, kv_heads, dim) = [(3, 1, 64), (4, 4, 16), (9, 3, 24), (14, 2, 32)][family.shape];
        let spec = spec(heads, kv_heads, dim, family.window);
        let (width, kv_width) = (heads * dim, kv_heads * dim);
        let best = *Cpu::isas().last().unwrap();
        let mut together = cpu(best, family.threads);
        let mut together_kv = kv(&together, &spec, family.format);
        let mut members: Vec<(Sequence, Vec<PageId>, usize)> = Vec::new();
        let mut next = 0;
        let mut expected = Vec::new();
        for (i, (leader, shared, len, rows)) in family.members.iter().enumerate() {
            let mut s = sequence(&spec, *len, 10 + 3 * i as u64);
            let mut own = pages(next, *len);
            next += own.len() as u32;
            let rows = (*rows).min(*len);
            if let Some((other, other_pages, other_rows)) = members.get(*leader) {
                // Whole pages of both that are in the cache before this step.
                let other_done = (other.k.len() / kv_width - other_rows) / PAGE_TOKENS;
                let shared = (*shared).min(other_done).min((len - rows) / PAGE_TOKENS);
                own[..shared].copy_from_slice(&other_pages[..shared]);
                let tokens = shared * PAGE_TOKENS * kv_width;
                s.k[..tokens].copy_from_slice(&other.k[..tokens]);
                s.v[..tokens].copy_from_slice(&other.v[..tokens]);
            }
            if *len > rows {
                step(&mut together, &mut together_kv, &spec, &[(&s, 0, len - rows, &own)]);
            }
            let mut alone = cpu(best, 1);
            let mut alone_kv = kv(&alone, &spec, family.format);
            let all = step(&mut alone, &mut alone_kv, &spec, &[(&s, 0, *len, &pages(0, *len))]);
            expected.extend_from_slice(&all[(len - rows) * width..]);
            members.push((s, own, rows));
        }
        let parts: Vec<_> = members
            .iter()
            .map(|(s, pages, rows)| (s, s.k.len() / kv_width - rows, s.k.len() / kv_width, &pages[..]))
            .collect();
        let got = step(&mut together, &mut together_kv, &spec, &parts);
        prop_assert_eq!(bits(&got), bits(&expected));
    }
}

//! NEON: four registers are the sixteen lanes. Products of bytes are added up by what every 64-bit Arm CPU has
//! or by the dot product of Armv8.2 ([`Dot`]).

use super::{Kernel, Simd, TileKernel};
use std::arch::aarch64::*;
use std::arch::{asm, is_aarch64_feature_detected};
use std::array::from_fn;
use std::marker::PhantomData;

/// Proof that the CPU has NEON and `D`; only `detect` makes one.
#[derive(Clone, Copy)]
pub(crate) struct Neon<D>(PhantomData<D>);

impl<D: Dot> Neon<D> {
    pub(super) fn detect() -> Option<Self> {
        (is_aarch64_feature_detected!("neon") && D::detect()).then_some(Self(PhantomData))
    }
}

/// How products of bytes are added up.
pub(crate) trait Dot: Copy + Send + Sync + 'static {
    /// Whether the CPU has it.
    fn detect() -> bool;
    /// Runs a kernel compiled for it.
    fn run<K: Kernel>(simd: Neon<Self>, kernel: K) -> K::Output;
    /// `sum` plus the four-byte products of `w` with the four bytes that stand in `a` from `4 * LANE` on.
    fn dot<const LANE: i32>(simd: Neon<Self>, sum: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t;
}

/// The intrinsics below are safe but for the proof that the CPU has them, which `Neon` is.
macro_rules! proven {
    ($e:expr) => {{
        // SAFETY: a value of `Neon` proves that the CPU has these instructions; loads and stores go
        // through references to arrays of at least the width that is moved.
        #[allow(unused_unsafe)]
        unsafe {
            $e
        }
    }};
}

type F = [float32x4_t; 4];
type I = [int32x4_t; 4];
type B = [uint8x16_t; 4];

#[inline(always)]
fn map<A: Copy, T>(a: [A; 4], f: impl Fn(A) -> T) -> [T; 4] {
    [f(a[0]), f(a[1]), f(a[2]), f(a[3])]
}

#[inline(always)]
fn zip<A: Copy, T>(a: [A; 4], b: [A; 4], f: impl Fn(A, A) -> T) -> [T; 4] {
    [f(a[0], b[0]), f(a[1], b[1]), f(a[2], b[2]), f(a[3], b[3])]
}

/// Sixteen halves from memory.
#[inline(always)]
fn halves(x: &[u8; 32]) -> [uint16x4_t; 4] {
    from_fn(
        #[inline(always)]
        |i| proven!(vreinterpret_u16_u8(vld1_u8(x[8 * i..].as_ptr()))),
    )
}

impl<D: Dot> Simd for Neon<D> {
    type F = F;
    type I = I;
    type B = B;
    const WIDE: bool = false;

    #[inline]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        D::run(self, kernel)
    }

    #[inline(always)]
    fn tiles<K: TileKernel>(self, kernel: &K, rows: usize) {
        let mut first = 0;
        while first < rows {
            match rows - first {
                1 => kernel.tile::<Self, 1>(self, first, 1),
                left => kernel.tile::<Self, 4>(self, first, left.min(4)),
            }
            first += 4;
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> F {
        proven!([vdupq_n_f32(x); 4])
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> F {
        from_fn(
            #[inline(always)]
            |i| proven!(vld1q_f32(x[4 * i..].as_ptr())),
        )
    }
    #[inline(always)]
    fn store(self, v: F, to: &mut [f32; 16]) {
        for i in 0..4 {
            proven!(vst1q_f32(to[4 * i..].as_mut_ptr(), v[i]));
        }
    }
    #[inline(always)]
    fn load_part(self, x: &[f32]) -> F {
        let mut all = [0.0; 16];
        all[..x.len()].copy_from_slice(x);
        self.load(&all)
    }
    #[inline(always)]
    fn store_part(self, v: F, to: &mut [f32]) {
        let all = self.array(v);
        to.copy_from_slice(&all[..to.len()]);
    }
    #[inline(always)]
    fn load_f32_bytes(self, x: &[u8; 64]) -> F {
        from_fn(
            #[inline(always)]
            |i| proven!(vreinterpretq_f32_u8(vld1q_u8(x[16 * i..].as_ptr()))),
        )
    }
    #[inline(always)]
    fn load_f16(self, x: &[u8; 32]) -> F {
        map(
            halves(x),
            #[inline(always)]
            |h| proven!(vcvt_f32_f16(vreinterpret_f16_u16(h))),
        )
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u8; 32]) -> F {
        map(
            halves(x),
            #[inline(always)]
            |h| proven!(vreinterpretq_f32_u32(vshll_n_u16::<16>(h))),
        )
    }
    #[inline(always)]
    fn to_f16(self, v: F) -> [u16; 16] {
        let mut out = [0u16; 16];
        for i in 0..4 {
            proven!(vst1_u16(out[4 * i..].as_mut_ptr(), vreinterpret_u16_f16(vcvt_f16_f32(v[i]))));
        }
        out
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        zip(
            a,
            b,
            #[inline(always)]
            |a, b| proven!(vaddq_f32(a, b)),
        )
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        zip(
            a,
            b,
            #[inline(always)]
            |a, b| proven!(vsubq_f32(a, b)),
        )
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        zip(
            a,
            b,
            #[inline(always)]
            |a, b| proven!(vmulq_f32(a, b)),
        )
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        zip(
            a,
            b,
            #[inline(always)]
            |a, b| proven!(vdivq_f32(a, b)),
        )
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        from_fn(
            #[inline(always)]
            |i| proven!(vfmaq_f32(c[i], a[i], b[i])),
        )
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        // Not `fmin`, which orders zeros by their sign.
        self.select_lt(a, b, a, b)
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        self.select_lt(b, a, a, b)
    }
    #[inline(always)]
    fn select_lt(self, a: F, b: F, x: F, y: F) -> F {
        from_fn(
            #[inline(always)]
            |i| proven!(vbslq_f32(vcltq_f32(a[i], b[i]), x[i], y[i])),
        )
    }
    #[inline(always)]
    fn swap_pairs(self, v: F) -> F {
        map(
            v,
            #[inline(always)]
            |v| proven!(vrev64q_f32(v)),
        )
    }
    #[inline(always)]
    fn pow2_of_magic(self, v: F) -> F {
        map(
            v,
            #[inline(always)]
            |v| {
                proven!(vreinterpretq_f32_s32(vaddq_s32(
                    vshlq_n_s32::<23>(vreinterpretq_s32_f32(v)),
                    vdupq_n_s32(127 << 23)
                )))
            },
        )
    }
    #[inline(always)]
    fn max_lane(self, v: F) -> f32 {
        proven!(vmaxvq_f32(vmaxq_f32(vmaxq_f32(v[0], v[1]), vmaxq_f32(v[2], v[3]))))
    }
    #[inline(always)]
    fn array(self, v: F) -> [f32; 16] {
        let mut out = [0.0; 16];
        self.store(v, &mut out);
        out
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> I {
        proven!([vdupq_n_s32(x); 4])
    }
    #[inline(always)]
    fn add_i(self, a: I, b: I) -> I {
        zip(
            a,
            b,
            #[inline(always)]
            |a, b| proven!(vaddq_s32(a, b)),
        )
    }
    #[inline(always)]
    fn mul_i(self, a: I, b: I) -> I {
        zip(
            a,
            b,
            #[inline(always)]
            |a, b| proven!(vmulq_s32(a, b)),
        )
    }
    #[inline(always)]
    fn shl_i<const BY: u32>(self, a: I) -> I {
        map(
            a,
            #[inline(always)]
            |a| proven!(vshlq_s32(a, vdupq_n_s32(BY as i32))),
        )
    }
    #[inline(always)]
    fn to_f(self, a: I) -> F {
        map(
            a,
            #[inline(always)]
            |a| proven!(vcvtq_f32_s32(a)),
        )
    }
    #[inline(always)]
    fn widen_u8(self, x: &[u8; 16]) -> I {
        proven!({
            let x = vld1q_u8(x.as_ptr());
            let (low, high) = (vmovl_u8(vget_low_u8(x)), vmovl_high_u8(x));
            let quarters = [
                vmovl_u16(vget_low_u16(low)),
                vmovl_high_u16(low),
                vmovl_u16(vget_low_u16(high)),
                vmovl_high_u16(high),
            ];
            map(
                quarters,
                #[inline(always)]
                |x| vreinterpretq_s32_u32(x),
            )
        })
    }
    #[inline(always)]
    fn widen_i8(self, x: &[u8; 16]) -> I {
        proven!({
            let x = vreinterpretq_s8_u8(vld1q_u8(x.as_ptr()));
            let (low, high) = (vmovl_s8(vget_low_s8(x)), vmovl_high_s8(x));
            [
                vmovl_s16(vget_low_s16(low)),
                vmovl_high_s16(low),
                vmovl_s16(vget_low_s16(high)),
                vmovl_high_s16(high),
            ]
        })
    }
    #[inline(always)]
    fn to_i8(self, v: F) -> [i8; 16] {
        let mut out = [0i8; 16];
        proven!({
            let wide = map(
                v,
                #[inline(always)]
                |v| vcvtnq_s32_f32(v),
            );
            let low = vqmovn_high_s32(vqmovn_s32(wide[0]), wide[1]);
            let high = vqmovn_high_s32(vqmovn_s32(wide[2]), wide[3]);
            vst1q_s8(out.as_mut_ptr(), vqmovn_high_s16(vqmovn_s16(low), high));
        });
        out
    }

    #[inline(always)]
    fn load_b(self, x: &[u8; 64]) -> B {
        from_fn(
            #[inline(always)]
            |i| proven!(vld1q_u8(x[16 * i..].as_ptr())),
        )
    }
    #[inline(always)]
    fn low4(self, x: B) -> B {
        map(
            x,
            #[inline(always)]
            |x| proven!(vandq_u8(x, vdupq_n_u8(15))),
        )
    }
    #[inline(always)]
    fn high4(self, x: B) -> B {
        map(
            x,
            #[inline(always)]
            |x| proven!(vshrq_n_u8::<4>(x)),
        )
    }
    #[inline(always)]
    fn or_bits<const LEFT: i32, const RIGHT: i32, const MASK: u8>(self, base: B, bits: B) -> B {
        // One shift does: what the other would bring back has left the byte, and the mask drops it.
        const { assert!(LEFT == 0 || RIGHT == 0) };
        zip(
            base,
            bits,
            #[inline(always)]
            |base, bits| {
                proven!({
                    let moved = vshlq_u8(bits, vdupq_n_s8((LEFT - RIGHT) as i8));
                    vorrq_u8(base, vandq_u8(moved, vdupq_n_u8(MASK)))
                })
            },
        )
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: B) -> B {
        proven!({
            let table = vld1q_u8(table.as_ptr());
            map(
                x,
                #[inline(always)]
                |x| vqtbl1q_u8(table, x),
            )
        })
    }
    #[inline(always)]
    fn dot<const N: usize>(self, bits: u32, w: &[B; N], a: &[i8], offset: I) -> I {
        const { assert!(N.is_multiple_of(4)) };
        // Both factors are signed: codes of eight bits lose their offset of 128, and the caller's with it;
        // smaller ones are the same number either way.
        let mut sum = if bits == 8 { self.splat_i(0) } else { offset };
        let (quads, _) = a.as_chunks::<16>();
        for g in 0..N {
            proven!({
                let a = vld1q_s8(quads[g / 4].as_ptr());
                for i in 0..4 {
                    let w = if bits == 8 { veorq_u8(w[g][i], vdupq_n_u8(128)) } else { w[g][i] };
                    let w = vreinterpretq_s8_u8(w);
                    sum[i] = match g % 4 {
                        0 => D::dot::<0>(self, sum[i], w, a),
                        1 => D::dot::<1>(self, sum[i], w, a),
                        2 => D::dot::<2>(self, sum[i], w, a),
                        _ => D::dot::<3>(self, sum[i], w, a),
                    };
                }
            });
        }
        sum
    }
}

/// `smull`, `addp` and `sadalp`: what every 64-bit Arm CPU has.
#[derive(Clone, Copy)]
pub(crate) struct Smull;

impl Dot for Smull {
    fn detect() -> bool {
        true
    }

    #[inline]
    fn run<K: Kernel>(simd: Neon<Self>, kernel: K) -> K::Output {
        kernel.run(simd)
    }

    #[inline(always)]
    fn dot<const LANE: i32>(_: Neon<Self>, sum: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
        proven!({
            let a = vreinterpretq_s8_s32(vdupq_laneq_s32::<LANE>(vreinterpretq_s32_s8(a)));
            // |w| <= 128 and |a| <= 127: a pair of products is at most 32,512, so it fits 16 bits.
            let pairs = vpaddq_s16(vmull_s8(vget_low_s8(w), vget_low_s8(a)), vmull_high_s8(w, a));
            vpadalq_s16(sum, pairs)
        })
    }
}

/// `sdot`.
#[derive(Clone, Copy)]
pub(crate) struct Sdot;

impl Dot for Sdot {
    fn detect() -> bool {
        is_aarch64_feature_detected!("dotprod")
    }

    #[inline]
    fn run<K: Kernel>(simd: Neon<Self>, kernel: K) -> K::Output {
        #[target_feature(enable = "dotprod")]
        fn run<K: Kernel>(simd: Neon<Sdot>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        proven!(run(simd, kernel))
    }

    #[inline(always)]
    fn dot<const LANE: i32>(_: Neon<Self>, sum: int32x4_t, w: int8x16_t, a: int8x16_t) -> int32x4_t {
        let mut sum = sum;
        // The intrinsic is not stable in Rust yet.
        // SAFETY: a value of `Neon<Sdot>` proves that the CPU has the instruction; it touches registers only.
        unsafe {
            asm!(
                "sdot {sum:v}.4s, {w:v}.16b, {a:v}.4b[{lane}]",
                sum = inlateout(vreg) sum,
                w = in(vreg) w,
                a = in(vreg) a,
                lane = const LANE,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sum
    }
}

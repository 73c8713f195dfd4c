//! AVX2 with FMA and F16C: two registers are the sixteen lanes. Products of bytes are added up by one of
//! three instructions ([`Dot`]): what all of these CPUs have, or VNNI in one of its two encodings.

use super::word;
use super::{Kernel, Simd, TileKernel};
use std::arch::x86_64::*;
use std::marker::PhantomData;

/// Proof that the CPU has AVX2, FMA and F16C, and `D`; only `detect` makes one.
#[derive(Clone, Copy)]
pub(crate) struct Avx2<D>(PhantomData<D>);

impl<D: Dot> Avx2<D> {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c")
            && D::detect())
        .then_some(Self(PhantomData))
    }
}

/// How products of bytes are added up.
pub(crate) trait Dot: Copy + Send + Sync + 'static {
    /// Whether the CPU has it.
    fn detect() -> bool;
    /// Runs a kernel compiled for it.
    fn run<K: Kernel>(simd: Avx2<Self>, kernel: K) -> K::Output;
    /// [`Simd::dot`].
    fn dot<const N: usize>(simd: Avx2<Self>, bits: u32, w: &[I; N], a: &[i8], offset: I) -> I;
}

/// The intrinsics below are safe but for the proof that the CPU has them, which `Avx2` is.
macro_rules! proven {
    ($e:expr) => {{
        // SAFETY: a value of `Avx2` proves that the CPU has these instructions; loads and stores go
        // through references to arrays of at least the width that is moved.
        #[allow(unused_unsafe)]
        unsafe {
            $e
        }
    }};
}

type F = [__m256; 2];
type I = [__m256i; 2];

#[inline(always)]
fn both<A: Copy, B>(a: [A; 2], f: impl Fn(A) -> B) -> [B; 2] {
    [f(a[0]), f(a[1])]
}

#[inline(always)]
fn zip<A: Copy, B>(a: [A; 2], b: [A; 2], f: impl Fn(A, A) -> B) -> [B; 2] {
    [f(a[0], b[0]), f(a[1], b[1])]
}

impl<D: Dot> Simd for Avx2<D> {
    type F = F;
    type I = I;
    type B = I;
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
        proven!([_mm256_set1_ps(x); 2])
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> F {
        proven!([_mm256_loadu_ps(x.as_ptr()), _mm256_loadu_ps(x[8..].as_ptr())])
    }
    #[inline(always)]
    fn store(self, v: F, to: &mut [f32; 16]) {
        proven!({
            _mm256_storeu_ps(to.as_mut_ptr(), v[0]);
            _mm256_storeu_ps(to[8..].as_mut_ptr(), v[1]);
        })
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
        proven!([_mm256_loadu_ps(x.as_ptr().cast()), _mm256_loadu_ps(x[32..].as_ptr().cast())])
    }
    #[inline(always)]
    fn load_f16(self, x: &[u8; 32]) -> F {
        proven!([
            _mm256_cvtph_ps(_mm_loadu_si128(x.as_ptr().cast())),
            _mm256_cvtph_ps(_mm_loadu_si128(x[16..].as_ptr().cast())),
        ])
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u8; 32]) -> F {
        proven!({
            let halves = [_mm_loadu_si128(x.as_ptr().cast()), _mm_loadu_si128(x[16..].as_ptr().cast())];
            both(
                halves,
                #[inline(always)]
                |h| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(h))),
            )
        })
    }
    #[inline(always)]
    fn to_f16(self, v: F) -> [u16; 16] {
        let mut out = [0u16; 16];
        proven!({
            let halves = both(
                v,
                #[inline(always)]
                |v| _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(v),
            );
            _mm_storeu_si128(out.as_mut_ptr().cast(), halves[0]);
            _mm_storeu_si128(out[8..].as_mut_ptr().cast(), halves[1]);
        });
        out
    }
    #[inline(always)]
    fn add(self, a: F, b: F) -> F {
        proven!(zip(
            a,
            b,
            #[inline(always)]
            |a, b| _mm256_add_ps(a, b)
        ))
    }
    #[inline(always)]
    fn sub(self, a: F, b: F) -> F {
        proven!(zip(
            a,
            b,
            #[inline(always)]
            |a, b| _mm256_sub_ps(a, b)
        ))
    }
    #[inline(always)]
    fn mul(self, a: F, b: F) -> F {
        proven!(zip(
            a,
            b,
            #[inline(always)]
            |a, b| _mm256_mul_ps(a, b)
        ))
    }
    #[inline(always)]
    fn div(self, a: F, b: F) -> F {
        proven!(zip(
            a,
            b,
            #[inline(always)]
            |a, b| _mm256_div_ps(a, b)
        ))
    }
    #[inline(always)]
    fn fma(self, a: F, b: F, c: F) -> F {
        proven!([_mm256_fmadd_ps(a[0], b[0], c[0]), _mm256_fmadd_ps(a[1], b[1], c[1])])
    }
    #[inline(always)]
    fn min(self, a: F, b: F) -> F {
        proven!(zip(
            a,
            b,
            #[inline(always)]
            |a, b| _mm256_min_ps(a, b)
        ))
    }
    #[inline(always)]
    fn max(self, a: F, b: F) -> F {
        proven!(zip(
            a,
            b,
            #[inline(always)]
            |a, b| _mm256_max_ps(a, b)
        ))
    }
    #[inline(always)]
    fn select_lt(self, a: F, b: F, x: F, y: F) -> F {
        proven!({
            let less = zip(
                a,
                b,
                #[inline(always)]
                |a, b| _mm256_cmp_ps::<_CMP_LT_OQ>(a, b),
            );
            [_mm256_blendv_ps(y[0], x[0], less[0]), _mm256_blendv_ps(y[1], x[1], less[1])]
        })
    }
    #[inline(always)]
    fn swap_pairs(self, v: F) -> F {
        proven!(both(
            v,
            #[inline(always)]
            |v| _mm256_permute_ps::<0b10_11_00_01>(v)
        ))
    }
    #[inline(always)]
    fn pow2_of_magic(self, v: F) -> F {
        proven!(both(
            v,
            #[inline(always)]
            |v| _mm256_castsi256_ps(_mm256_add_epi32(
                _mm256_slli_epi32::<23>(_mm256_castps_si256(v)),
                _mm256_set1_epi32(127 << 23)
            ))
        ))
    }
    #[inline(always)]
    fn max_lane(self, v: F) -> f32 {
        let halves = self.max(v, [v[1], v[0]]);
        let x = self.array(halves);
        x[..8].iter().fold(f32::NEG_INFINITY, |a, b| if a > *b { a } else { *b })
    }
    #[inline(always)]
    fn array(self, v: F) -> [f32; 16] {
        let mut out = [0.0; 16];
        self.store(v, &mut out);
        out
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> I {
        proven!([_mm256_set1_epi32(x); 2])
    }
    #[inline(always)]
    fn add_i(self, a: I, b: I) -> I {
        proven!(zip(
            a,
            b,
            #[inline(always)]
            |a, b| _mm256_add_epi32(a, b)
        ))
    }
    #[inline(always)]
    fn mul_i(self, a: I, b: I) -> I {
        proven!(zip(
            a,
            b,
            #[inline(always)]
            |a, b| _mm256_mullo_epi32(a, b)
        ))
    }
    #[inline(always)]
    fn shl_i<const BY: u32>(self, a: I) -> I {
        proven!(both(
            a,
            #[inline(always)]
            |a| _mm256_sll_epi32(a, _mm_cvtsi32_si128(BY as i32))
        ))
    }
    #[inline(always)]
    fn to_f(self, a: I) -> F {
        proven!(both(
            a,
            #[inline(always)]
            |a| _mm256_cvtepi32_ps(a)
        ))
    }
    #[inline(always)]
    fn widen_u8(self, x: &[u8; 16]) -> I {
        proven!({
            let x = _mm_loadu_si128(x.as_ptr().cast());
            both(
                [x, _mm_srli_si128::<8>(x)],
                #[inline(always)]
                |x| _mm256_cvtepu8_epi32(x),
            )
        })
    }
    #[inline(always)]
    fn widen_i8(self, x: &[u8; 16]) -> I {
        proven!({
            let x = _mm_loadu_si128(x.as_ptr().cast());
            both(
                [x, _mm_srli_si128::<8>(x)],
                #[inline(always)]
                |x| _mm256_cvtepi8_epi32(x),
            )
        })
    }
    #[inline(always)]
    fn to_i8(self, v: F) -> [i8; 16] {
        let mut out = [0i8; 16];
        proven!({
            let wide = both(
                v,
                #[inline(always)]
                |v| _mm256_cvtps_epi32(v),
            );
            // Packing works inside 128-bit halves, so the quarters come out as 0, 2, 1, 3.
            let words = _mm256_permute4x64_epi64::<0b11_01_10_00>(_mm256_packs_epi32(wide[0], wide[1]));
            let bytes = _mm_packs_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256::<1>(words));
            _mm_storeu_si128(out.as_mut_ptr().cast(), bytes);
        });
        out
    }

    #[inline(always)]
    fn load_b(self, x: &[u8; 64]) -> I {
        proven!([_mm256_loadu_si256(x.as_ptr().cast()), _mm256_loadu_si256(x[32..].as_ptr().cast())])
    }
    #[inline(always)]
    fn low4(self, x: I) -> I {
        proven!(both(
            x,
            #[inline(always)]
            |x| _mm256_and_si256(x, _mm256_set1_epi8(15))
        ))
    }
    #[inline(always)]
    fn high4(self, x: I) -> I {
        proven!(both(
            x,
            #[inline(always)]
            |x| _mm256_and_si256(_mm256_srli_epi16::<4>(x), _mm256_set1_epi8(15))
        ))
    }
    #[inline(always)]
    fn or_bits<const LEFT: i32, const RIGHT: i32, const MASK: u8>(self, base: I, bits: I) -> I {
        proven!(zip(
            base,
            bits,
            #[inline(always)]
            |base, bits| {
                let left = _mm256_sll_epi16(bits, _mm_cvtsi32_si128(LEFT));
                let moved = _mm256_srl_epi16(left, _mm_cvtsi32_si128(RIGHT));
                _mm256_or_si256(base, _mm256_and_si256(moved, _mm256_set1_epi8(MASK as i8)))
            }
        ))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: I) -> I {
        proven!({
            let table = _mm256_broadcastsi128_si256(_mm_loadu_si128(table.as_ptr().cast()));
            both(
                x,
                #[inline(always)]
                |x| _mm256_shuffle_epi8(table, x),
            )
        })
    }
    #[inline(always)]
    fn dot<const N: usize>(self, bits: u32, w: &[I; N], a: &[i8], offset: I) -> I {
        D::dot(self, bits, w, a, offset)
    }
}

/// `vpmaddubsw` and `vpmaddwd`: no VNNI.
#[derive(Clone, Copy)]
pub(crate) struct Maddubs;

impl Dot for Maddubs {
    fn detect() -> bool {
        true
    }

    #[inline(always)]
    fn run<K: Kernel>(simd: Avx2<Self>, kernel: K) -> K::Output {
        #[target_feature(enable = "avx2,fma,f16c")]
        fn run<K: Kernel>(simd: Avx2<Maddubs>, kernel: K) -> K::Output {
            kernel.run(simd)
        }
        proven!(run(simd, kernel))
    }

    #[inline(always)]
    fn dot<const N: usize>(simd: Avx2<Self>, bits: u32, w: &[I; N], a: &[i8], offset: I) -> I {
        // `maddubs` adds two products of up to 127 * (2^bits - 1) in 16 bits that saturate: this many of
        // its results may be added before they are widened.
        let together = match bits {
            0..=4 => 8,
            5 => 4,
            6 => 2,
            _ => 1,
        };
        let (groups, _) = a.as_chunks::<4>();
        let mut sum = if bits == 8 { simd.splat_i(0) } else { offset };
        let mut words = simd.splat_i(0);
        for g in 0..N {
            let a = word(&groups[g]);
            for half in 0..2 {
                proven!({
                    let a = _mm256_set1_epi32(a);
                    let product = if bits == 8 {
                        // |w| <= 128 and |a| <= 127: the pair of products is at most 32,512.
                        let w = _mm256_xor_si256(w[g][half], _mm256_set1_epi8(-128));
                        _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(a, w))
                    } else {
                        _mm256_maddubs_epi16(w[g][half], a)
                    };
                    words[half] =
                        if g % together == 0 { product } else { _mm256_add_epi16(words[half], product) };
                    if g % together == together - 1 || g == N - 1 {
                        let wide = _mm256_madd_epi16(words[half], _mm256_set1_epi16(1));
                        sum[half] = _mm256_add_epi32(sum[half], wide);
                    }
                });
            }
        }
        sum
    }
}

/// A [`Dot`] of `vpdpbusd` in one encoding.
macro_rules! vnni {
    ($(#[$doc:meta])* $name:ident, $features:literal, [$($feature:tt),+], $instruction:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name;

        impl Dot for $name {
            fn detect() -> bool {
                $(is_x86_feature_detected!($feature))&&+
            }

            #[inline(always)]
            fn run<K: Kernel>(simd: Avx2<Self>, kernel: K) -> K::Output {
                #[target_feature(enable = $features)]
                fn run<K: Kernel>(simd: Avx2<$name>, kernel: K) -> K::Output {
                    kernel.run(simd)
                }
                proven!(run(simd, kernel))
            }

            #[inline(always)]
            fn dot<const N: usize>(_simd: Avx2<Self>, _bits: u32, w: &[I; N], a: &[i8], offset: I) -> I {
                let (groups, _) = a.as_chunks::<4>();
                let mut sum = offset;
                for g in 0..N {
                    let a = word(&groups[g]);
                    proven!({
                        let a = _mm256_set1_epi32(a);
                        sum = [$instruction(sum[0], w[g][0], a), $instruction(sum[1], w[g][1], a)];
                    });
                }
                sum
            }
        }
    };
}

vnni! {
    /// AVX-VNNI: for CPUs that have no AVX-512.
    Vex, "avx2,fma,f16c,avxvnni", ["avxvnni"], _mm256_dpbusd_avx_epi32
}

vnni! {
    /// AVX-512 VNNI on half registers. CPUs that have it are faster with whole ones; it is how this file is
    /// tested and measured on CPUs without AVX-VNNI.
    Evex, "avx2,fma,f16c,avx512vl,avx512vnni", ["avx512vl", "avx512vnni"], _mm256_dpbusd_epi32
}

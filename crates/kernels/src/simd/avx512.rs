//! AVX-512 with VNNI: one register is the sixteen lanes.

use super::word;
use super::{Kernel, Simd, TileKernel};
use std::arch::x86_64::*;

/// Proof that the CPU has AVX-512 F, BW, VL and VNNI, and F16C; only `detect` makes one.
#[derive(Clone, Copy)]
pub(crate) struct Avx512(());

impl Avx512 {
    pub(super) fn detect() -> Option<Self> {
        (is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vnni")
            && is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("fma")
            && is_x86_feature_detected!("f16c"))
        .then_some(Self(()))
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512vnni,avx2,fma,f16c")]
    fn run_with_features<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }
}

/// The intrinsics below are safe but for the proof that the CPU has them, which `Avx512` is.
macro_rules! proven {
    ($e:expr) => {{
        // SAFETY: a value of `Avx512` proves that the CPU has these instructions; loads and stores go
        // through references to arrays of exactly the width that is moved.
        #[allow(unused_unsafe)]
        unsafe {
            $e
        }
    }};
}

#[inline(always)]
fn part(len: usize) -> __mmask16 {
    debug_assert!(len <= 16);
    ((1u32 << len) - 1) as u16
}

impl Simd for Avx512 {
    type F = __m512;
    type I = __m512i;
    type B = __m512i;
    const WIDE: bool = true;

    #[inline]
    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        proven!(self.run_with_features(kernel))
    }

    #[inline(always)]
    fn tiles<K: TileKernel>(self, kernel: &K, rows: usize) {
        let mut first = 0;
        while first < rows {
            let left = rows - first;
            match left {
                1 => kernel.tile::<Self, 1>(self, first, 1),
                2 => kernel.tile::<Self, 2>(self, first, 2),
                3 | 4 => kernel.tile::<Self, 4>(self, first, left),
                5..=8 => kernel.tile::<Self, 8>(self, first, left),
                9..=12 => kernel.tile::<Self, 12>(self, first, left),
                _ => kernel.tile::<Self, 16>(self, first, left.min(16)),
            }
            first += left.min(16);
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> __m512 {
        proven!(_mm512_set1_ps(x))
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> __m512 {
        proven!(_mm512_loadu_ps(x.as_ptr()))
    }
    #[inline(always)]
    fn store(self, v: __m512, to: &mut [f32; 16]) {
        proven!(_mm512_storeu_ps(to.as_mut_ptr(), v))
    }
    #[inline(always)]
    fn load_part(self, x: &[f32]) -> __m512 {
        let mask = part(x.len().min(16));
        // SAFETY: the mask names only elements of `x`; masked lanes are not read.
        unsafe { _mm512_maskz_loadu_ps(mask, x.as_ptr()) }
    }
    #[inline(always)]
    fn store_part(self, v: __m512, to: &mut [f32]) {
        let mask = part(to.len().min(16));
        // SAFETY: the mask names only elements of `to`; masked lanes are not written.
        unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), mask, v) }
    }
    #[inline(always)]
    fn load_f32_bytes(self, x: &[u8; 64]) -> __m512 {
        proven!(_mm512_loadu_ps(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn load_f16(self, x: &[u8; 32]) -> __m512 {
        proven!(_mm512_cvtph_ps(_mm256_loadu_si256(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u8; 32]) -> __m512 {
        proven!(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(
            x.as_ptr().cast()
        )))))
    }
    #[inline(always)]
    fn to_f16(self, v: __m512) -> [u16; 16] {
        let mut out = [0u16; 16];
        proven!(_mm256_storeu_si256(
            out.as_mut_ptr().cast(),
            _mm512_cvtps_ph::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(v)
        ));
        out
    }
    #[inline(always)]
    fn add(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_add_ps(a, b))
    }
    #[inline(always)]
    fn sub(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_sub_ps(a, b))
    }
    #[inline(always)]
    fn mul(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_mul_ps(a, b))
    }
    #[inline(always)]
    fn div(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_div_ps(a, b))
    }
    #[inline(always)]
    fn fma(self, a: __m512, b: __m512, c: __m512) -> __m512 {
        proven!(_mm512_fmadd_ps(a, b, c))
    }
    #[inline(always)]
    fn min(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_min_ps(a, b))
    }
    #[inline(always)]
    fn max(self, a: __m512, b: __m512) -> __m512 {
        proven!(_mm512_max_ps(a, b))
    }
    #[inline(always)]
    fn select_lt(self, a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        proven!(_mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x))
    }
    #[inline(always)]
    fn swap_pairs(self, v: __m512) -> __m512 {
        proven!(_mm512_permute_ps::<0b10_11_00_01>(v))
    }
    #[inline(always)]
    fn pow2_of_magic(self, v: __m512) -> __m512 {
        proven!(_mm512_castsi512_ps(_mm512_add_epi32(
            _mm512_slli_epi32::<23>(_mm512_castps_si512(v)),
            _mm512_set1_epi32(127 << 23)
        )))
    }
    #[inline(always)]
    fn max_lane(self, v: __m512) -> f32 {
        proven!(_mm512_reduce_max_ps(v))
    }
    #[inline(always)]
    fn array(self, v: __m512) -> [f32; 16] {
        let mut out = [0.0; 16];
        self.store(v, &mut out);
        out
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> __m512i {
        proven!(_mm512_set1_epi32(x))
    }
    #[inline(always)]
    fn add_i(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(_mm512_add_epi32(a, b))
    }
    #[inline(always)]
    fn mul_i(self, a: __m512i, b: __m512i) -> __m512i {
        proven!(_mm512_mullo_epi32(a, b))
    }
    #[inline(always)]
    fn shl_i<const BY: u32>(self, a: __m512i) -> __m512i {
        proven!(_mm512_slli_epi32::<BY>(a))
    }
    #[inline(always)]
    fn to_f(self, a: __m512i) -> __m512 {
        proven!(_mm512_cvtepi32_ps(a))
    }
    #[inline(always)]
    fn widen_u8(self, x: &[u8; 16]) -> __m512i {
        proven!(_mm512_cvtepu8_epi32(_mm_loadu_si128(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn widen_i8(self, x: &[u8; 16]) -> __m512i {
        proven!(_mm512_cvtepi8_epi32(_mm_loadu_si128(x.as_ptr().cast())))
    }
    #[inline(always)]
    fn to_i8(self, v: __m512) -> [i8; 16] {
        let mut out = [0i8; 16];
        proven!(_mm_storeu_si128(out.as_mut_ptr().cast(), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v))));
        out
    }

    #[inline(always)]
    fn load_b(self, x: &[u8; 64]) -> __m512i {
        proven!(_mm512_loadu_si512(x.as_ptr().cast()))
    }
    #[inline(always)]
    fn low4(self, x: __m512i) -> __m512i {
        proven!(_mm512_and_si512(x, _mm512_set1_epi8(15)))
    }
    #[inline(always)]
    fn high4(self, x: __m512i) -> __m512i {
        proven!(_mm512_and_si512(_mm512_srli_epi16::<4>(x), _mm512_set1_epi8(15)))
    }
    #[inline(always)]
    fn or_bits<const LEFT: i32, const RIGHT: i32, const MASK: u8>(
        self,
        base: __m512i,
        bits: __m512i,
    ) -> __m512i {
        proven!({
            let left = _mm512_sll_epi16(bits, _mm_cvtsi32_si128(LEFT));
            let moved = _mm512_srl_epi16(left, _mm_cvtsi32_si128(RIGHT));
            _mm512_or_si512(base, _mm512_and_si512(moved, _mm512_set1_epi8(MASK as i8)))
        })
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: __m512i) -> __m512i {
        proven!(_mm512_shuffle_epi8(_mm512_broadcast_i32x4(_mm_loadu_si128(table.as_ptr().cast())), x))
    }
    #[inline(always)]
    fn dot<const N: usize>(self, _bits: u32, w: &[__m512i; N], a: &[i8], offset: __m512i) -> __m512i {
        let (groups, _) = a.as_chunks::<4>();
        let mut sum = offset;
        for g in 0..N {
            let a = word(&groups[g]);
            sum = proven!(_mm512_dpbusd_epi32(sum, w[g], _mm512_set1_epi32(a)));
        }
        sum
    }
}

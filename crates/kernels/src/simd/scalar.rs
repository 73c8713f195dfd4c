//! The reference: the sixteen lanes as plain loops. Clear, not fast; runs anywhere.

use super::{Kernel, Simd, TileKernel};
use half::{bf16, f16};
use std::array::from_fn;

/// No instruction set beyond the compiler's baseline.
#[derive(Clone, Copy)]
pub(crate) struct Scalar;

impl Scalar {
    pub(super) fn detect() -> Option<Self> {
        Some(Self)
    }
}

impl Simd for Scalar {
    type F = [f32; 16];
    type I = [i32; 16];
    type B = [u8; 64];
    const WIDE: bool = false;

    fn run<K: Kernel>(self, kernel: K) -> K::Output {
        kernel.run(self)
    }

    #[inline(always)]
    fn tiles<K: TileKernel>(self, kernel: &K, rows: usize) {
        for row in 0..rows {
            kernel.tile::<Self, 1>(self, row, 1);
        }
    }

    #[inline(always)]
    fn splat(self, x: f32) -> [f32; 16] {
        [x; 16]
    }
    #[inline(always)]
    fn load(self, x: &[f32; 16]) -> [f32; 16] {
        *x
    }
    #[inline(always)]
    fn store(self, v: [f32; 16], to: &mut [f32; 16]) {
        *to = v;
    }
    #[inline(always)]
    fn load_part(self, x: &[f32]) -> [f32; 16] {
        from_fn(|i| x.get(i).copied().unwrap_or(0.0))
    }
    #[inline(always)]
    fn store_part(self, v: [f32; 16], to: &mut [f32]) {
        to.copy_from_slice(&v[..to.len()]);
    }
    #[inline(always)]
    fn load_f32_bytes(self, x: &[u8; 64]) -> [f32; 16] {
        from_fn(|i| f32::from_le_bytes([x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]]))
    }
    #[inline(always)]
    fn load_f16(self, x: &[u8; 32]) -> [f32; 16] {
        from_fn(|i| f16::from_le_bytes([x[2 * i], x[2 * i + 1]]).to_f32())
    }
    #[inline(always)]
    fn load_bf16(self, x: &[u8; 32]) -> [f32; 16] {
        from_fn(|i| bf16::from_le_bytes([x[2 * i], x[2 * i + 1]]).to_f32())
    }
    #[inline(always)]
    fn to_f16(self, v: [f32; 16]) -> [u16; 16] {
        v.map(|x| f16::from_f32(x).to_bits())
    }
    #[inline(always)]
    fn add(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn sub(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        from_fn(|i| a[i] - b[i])
    }
    #[inline(always)]
    fn mul(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        from_fn(|i| a[i] * b[i])
    }
    #[inline(always)]
    fn div(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        from_fn(|i| a[i] / b[i])
    }
    #[inline(always)]
    fn fma(self, a: [f32; 16], b: [f32; 16], c: [f32; 16]) -> [f32; 16] {
        from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn min(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        from_fn(|i| if a[i] < b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn max(self, a: [f32; 16], b: [f32; 16]) -> [f32; 16] {
        from_fn(|i| if a[i] > b[i] { a[i] } else { b[i] })
    }
    #[inline(always)]
    fn select_lt(self, a: [f32; 16], b: [f32; 16], x: [f32; 16], y: [f32; 16]) -> [f32; 16] {
        from_fn(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn swap_pairs(self, v: [f32; 16]) -> [f32; 16] {
        from_fn(|i| v[i ^ 1])
    }
    #[inline(always)]
    fn pow2_of_magic(self, v: [f32; 16]) -> [f32; 16] {
        v.map(|x| f32::from_bits((x.to_bits() << 23).wrapping_add(127 << 23)))
    }
    #[inline(always)]
    fn max_lane(self, v: [f32; 16]) -> f32 {
        v.iter().fold(f32::NEG_INFINITY, |a, b| if a > *b { a } else { *b })
    }
    #[inline(always)]
    fn array(self, v: [f32; 16]) -> [f32; 16] {
        v
    }

    #[inline(always)]
    fn splat_i(self, x: i32) -> [i32; 16] {
        [x; 16]
    }
    #[inline(always)]
    fn add_i(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    fn mul_i(self, a: [i32; 16], b: [i32; 16]) -> [i32; 16] {
        from_fn(|i| a[i].wrapping_mul(b[i]))
    }
    #[inline(always)]
    fn shl_i<const BY: u32>(self, a: [i32; 16]) -> [i32; 16] {
        a.map(|x| x << BY)
    }
    #[inline(always)]
    fn to_f(self, a: [i32; 16]) -> [f32; 16] {
        a.map(|x| x as f32)
    }
    #[inline(always)]
    fn widen_u8(self, x: &[u8; 16]) -> [i32; 16] {
        x.map(i32::from)
    }
    #[inline(always)]
    fn widen_i8(self, x: &[u8; 16]) -> [i32; 16] {
        x.map(|x| i32::from(x as i8))
    }
    #[inline(always)]
    fn to_i8(self, v: [f32; 16]) -> [i8; 16] {
        v.map(|x| x.round_ties_even() as i8)
    }

    #[inline(always)]
    fn load_b(self, x: &[u8; 64]) -> [u8; 64] {
        *x
    }
    #[inline(always)]
    fn low4(self, x: [u8; 64]) -> [u8; 64] {
        x.map(|x| x & 15)
    }
    #[inline(always)]
    fn high4(self, x: [u8; 64]) -> [u8; 64] {
        x.map(|x| x >> 4)
    }
    #[inline(always)]
    fn or_bits<const LEFT: i32, const RIGHT: i32, const MASK: u8>(
        self,
        base: [u8; 64],
        bits: [u8; 64],
    ) -> [u8; 64] {
        from_fn(|i| base[i] | (((u32::from(bits[i]) << LEFT) >> RIGHT) as u8 & MASK))
    }
    #[inline(always)]
    fn lookup(self, table: &[u8; 16], x: [u8; 64]) -> [u8; 64] {
        x.map(|x| table[usize::from(x)])
    }
    #[inline(always)]
    fn dot<const N: usize>(self, _bits: u32, w: &[[u8; 64]; N], a: &[i8], offset: [i32; 16]) -> [i32; 16] {
        let mut sum = offset;
        for (group, w) in w.iter().enumerate() {
            for (lane, sum) in sum.iter_mut().enumerate() {
                for j in 0..4 {
                    *sum += i32::from(w[4 * lane + j]) * i32::from(a[4 * group + j]);
                }
            }
        }
        sum
    }
}

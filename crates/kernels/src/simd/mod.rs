//! Sixteen lanes of arithmetic on every instruction set, so that each kernel is written once.
//!
//! Invariants:
//! - every operation gives the same bits on every instruction set (`fma` rounds once everywhere), so a
//!   kernel that only uses these operations in a fixed order gives the same bits too. The exception is
//!   what becomes of NaN, which nothing here promises;
//! - a value of a [`Simd`] type proves that the CPU has that instruction set; only `detect` makes one.
//!
//! What it does not do: choose tile shapes or split work; kernels and the pool do.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod scalar;

use crate::Isa;

/// Lanes of a vector; also the number of output rows that a weight panel interleaves.
pub(crate) const LANES: usize = 16;

/// Asks for the line of memory that is `at` bytes after the start of `x`, up to the second-level cache. A hint,
/// without effect on what is computed, wherever it points.
#[inline(always)]
pub(crate) fn prefetch(x: &[u8], at: usize) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: the instruction is in the baseline and reads nothing that the program could see.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T1, _mm_prefetch};
        _mm_prefetch::<{ _MM_HINT_T1 }>(x.as_ptr().wrapping_add(at).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _no_hint = (x, at);
}

/// Four bytes as the word that they are in memory.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn word(x: &[i8; 4]) -> i32 {
    let [a, b, c, d] = *x;
    i32::from_le_bytes([a as u8, b as u8, c as u8, d as u8])
}

/// A piece of work that can run on any instruction set.
pub(crate) trait Kernel {
    /// What it gives.
    type Output;
    /// Does the work. Implementations are `#[inline(always)]`, so that the body is compiled with the
    /// instruction set of the [`Simd::run`] that it is inlined into.
    fn run<S: Simd>(self, simd: S) -> Self::Output;
}

/// A kernel over a tile of rows whose height is a constant, so that its sums stay in registers.
pub(crate) trait TileKernel {
    /// Computes `rows <= R` rows from `first` on. What a row gets must not depend on `R`.
    fn tile<S: Simd, const R: usize>(&self, simd: S, first: usize, rows: usize);
}

/// One instruction set; see the module's invariants.
pub(crate) trait Simd: Copy + Send + Sync + 'static {
    /// Sixteen `f32`.
    type F: Copy;
    /// Sixteen `i32`.
    type I: Copy;
    /// Sixteen groups of four bytes.
    type B: Copy;
    /// Whether there are registers for tiles of several panels.
    const WIDE: bool;

    /// Runs a kernel compiled for this instruction set.
    fn run<K: Kernel>(self, kernel: K) -> K::Output;
    /// Covers `rows` rows with tiles of the heights that suit this instruction set.
    fn tiles<K: TileKernel>(self, kernel: &K, rows: usize);

    fn splat(self, x: f32) -> Self::F;
    fn load(self, x: &[f32; 16]) -> Self::F;
    fn store(self, v: Self::F, to: &mut [f32; 16]);
    /// Loads up to sixteen elements; the other lanes are zero.
    fn load_part(self, x: &[f32]) -> Self::F;
    /// Stores the first `to.len() <= 16` lanes.
    fn store_part(self, v: Self::F, to: &mut [f32]);
    fn load_f32_bytes(self, x: &[u8; 64]) -> Self::F;
    fn load_f16(self, x: &[u8; 32]) -> Self::F;
    fn load_bf16(self, x: &[u8; 32]) -> Self::F;
    /// Rounds to nearest even.
    fn to_f16(self, v: Self::F) -> [u16; 16];
    fn add(self, a: Self::F, b: Self::F) -> Self::F;
    fn sub(self, a: Self::F, b: Self::F) -> Self::F;
    fn mul(self, a: Self::F, b: Self::F) -> Self::F;
    fn div(self, a: Self::F, b: Self::F) -> Self::F;
    /// `a * b + c`, rounded once.
    fn fma(self, a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    fn min(self, a: Self::F, b: Self::F) -> Self::F;
    fn max(self, a: Self::F, b: Self::F) -> Self::F;
    /// Lane by lane: `a < b ? x : y`.
    fn select_lt(self, a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// Swaps lanes `2i` and `2i + 1`.
    fn swap_pairs(self, v: Self::F) -> Self::F;
    /// `2^n`, where `v = n + 1.5 * 2^23` and `-126 <= n <= 127`.
    fn pow2_of_magic(self, v: Self::F) -> Self::F;
    /// The largest lane.
    fn max_lane(self, v: Self::F) -> f32;
    fn array(self, v: Self::F) -> [f32; 16];
    /// The lanes' sum, in one fixed order of additions.
    #[inline(always)]
    fn sum(self, v: Self::F) -> f32 {
        let x = self.array(v);
        let mut half = [0.0f32; 8];
        for i in 0..8 {
            half[i] = x[i] + x[i + 8];
        }
        ((half[0] + half[4]) + (half[2] + half[6])) + ((half[1] + half[5]) + (half[3] + half[7]))
    }

    fn splat_i(self, x: i32) -> Self::I;
    fn add_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn mul_i(self, a: Self::I, b: Self::I) -> Self::I;
    fn shl_i<const BY: u32>(self, a: Self::I) -> Self::I;
    fn to_f(self, a: Self::I) -> Self::F;
    fn widen_u8(self, x: &[u8; 16]) -> Self::I;
    fn widen_i8(self, x: &[u8; 16]) -> Self::I;
    /// Rounds to nearest even and narrows to bytes; the values are in `[-127, 127]`.
    fn to_i8(self, v: Self::F) -> [i8; 16];

    fn load_b(self, x: &[u8; 64]) -> Self::B;
    /// The low half of each byte.
    fn low4(self, x: Self::B) -> Self::B;
    /// The high half of each byte.
    fn high4(self, x: Self::B) -> Self::B;
    /// `base | ((bits << LEFT) >> RIGHT) & MASK` on each byte; `MASK` keeps nothing that crosses bytes.
    fn or_bits<const LEFT: i32, const RIGHT: i32, const MASK: u8>(
        self,
        base: Self::B,
        bits: Self::B,
    ) -> Self::B;
    /// `table[x]` for each byte `x < 16`.
    fn lookup(self, table: &[u8; 16], x: Self::B) -> Self::B;
    /// The four-byte products `w * a` of `N` groups on top of `offset`: lane `l` gets
    /// `offset[l] + sum(w[g].lane(l)[j] * a[4g + j])`, exactly.
    ///
    /// `w` are unsigned codes below `2^bits`. With `bits == 8` the caller's `offset` must be
    /// `-128 * sum(a)`: codes stand for `code - 128`. `a` is in `[-127, 127]` and `N * 4` long.
    fn dot<const N: usize>(self, bits: u32, w: &[Self::B; N], a: &[i8], offset: Self::I) -> Self::I;
}

/// [`Level`] from its kinds: where one is compiled, its vectors, and the instruction set that it is. Of two
/// for the same instruction set the first that the CPU has is taken.
macro_rules! levels {
    ($($(#[$on:meta])? $level:ident($simd:ty): $isa:ident,)+) => {
        /// The instruction set in use; found once when the device is made.
        #[derive(Clone, Copy)]
        pub(crate) enum Level {
            $($(#[$on])? $level($simd),)+
        }

        impl Level {
            /// The level for `isa`, if this CPU has it.
            pub(crate) fn detect(isa: Isa) -> Option<Self> {
                $(
                    $(#[$on])?
                    if isa == Isa::$isa && let Some(simd) = <$simd>::detect() {
                        return Some(Self::$level(simd));
                    }
                )+
                None
            }

            /// Which instruction set it is.
            pub(crate) fn isa(self) -> Isa {
                match self {
                    $($(#[$on])? Self::$level(_) => Isa::$isa,)+
                }
            }

            /// Runs a kernel on this instruction set.
            pub(crate) fn run<K: Kernel>(self, kernel: K) -> K::Output {
                match self {
                    $($(#[$on])? Self::$level(simd) => simd.run(kernel),)+
                }
            }
        }
    };
}

levels! {
    Scalar(scalar::Scalar): Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2(avx2::Avx2<avx2::Maddubs>): Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx2Vex(avx2::Avx2<avx2::Vex>): Avx2Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx2Evex(avx2::Avx2<avx2::Evex>): Avx2Vnni,
    #[cfg(target_arch = "x86_64")]
    Avx512(avx512::Avx512): Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon(neon::Neon<neon::Smull>): Neon,
    #[cfg(target_arch = "aarch64")]
    NeonDot(neon::Neon<neon::Sdot>): NeonDot,
}

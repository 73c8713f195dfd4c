//! Exponential and the activations built on it, as polynomials over sixteen lanes.
//!
//! Invariant: a lane's result depends on that lane alone and is the same on every instruction set.
//! Relative error of [`exp`] is below 2e-7 in `[-87, 88]`; below that range it is exactly zero.

use crate::simd::Simd;
use device::Activation;

/// `e^x`: `x = n ln 2 + r`, `2^n` by the exponent bits, `e^r` by its Taylor polynomial of degree 7
/// (`|r| <= 0.35`, so the first left-out term is below 6e-9).
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    const LOW: f32 = -87.0;
    let clamped = s.min(s.max(x, s.splat(LOW)), s.splat(88.0));
    let magic = s.splat(12_582_912.0);
    let shifted = s.fma(clamped, s.splat(std::f32::consts::LOG2_E), magic);
    let n = s.sub(shifted, magic);
    // ln 2 in two parts; the first has few enough bits that its product with `n` is exact.
    let r = s.fma(n, s.splat(-0.693_359_4), clamped);
    let r = s.fma(n, s.splat(2.121_944_4e-4), r);
    let mut y = s.splat(1.0 / 5040.0);
    for c in [1.0 / 720.0, 1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0] {
        y = s.fma(y, r, s.splat(c));
    }
    let y = s.mul(y, s.pow2_of_magic(shifted));
    s.select_lt(x, s.splat(LOW), s.splat(0.0), y)
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
fn sigmoid<S: Simd>(s: S, x: S::F) -> S::F {
    let one = s.splat(1.0);
    s.div(one, s.add(one, exp(s, s.sub(s.splat(0.0), x))))
}

/// `erfc(|x|)` by a rational-exponential fit with a fractional error below 1.2e-7 in exact arithmetic
/// (Numerical Recipes, section 6.2, "erfcc").
#[inline(always)]
#[allow(clippy::excessive_precision)] // The published digits.
fn erfc_of_magnitude<S: Simd>(s: S, x: S::F) -> S::F {
    let z = s.max(x, s.sub(s.splat(0.0), x));
    let t = s.div(s.splat(1.0), s.fma(z, s.splat(0.5), s.splat(1.0)));
    let mut p = s.splat(0.170_872_77);
    for c in [
        -0.822_152_23,
        1.488_515_87,
        -1.135_203_98,
        0.278_868_07,
        -0.186_288_06,
        0.096_784_18,
        0.374_091_96,
        1.000_023_68,
        -1.265_512_23,
    ] {
        p = s.fma(p, t, s.splat(c));
    }
    s.mul(t, exp(s, s.sub(p, s.mul(z, z))))
}

/// An activation function.
#[inline(always)]
pub(crate) fn activation<S: Simd>(s: S, x: S::F, which: Activation) -> S::F {
    match which {
        Activation::Silu => s.mul(x, sigmoid(s, x)),
        Activation::GeluTanh => {
            // (1 + tanh z) / 2 = sigmoid(2z)
            let cubic = s.fma(s.mul(x, x), s.splat(0.044_715), s.splat(1.0));
            let z2 = s.mul(s.mul(x, s.splat(1.595_769_2)), cubic);
            s.mul(x, sigmoid(s, z2))
        }
        Activation::GeluErf => {
            let tail =
                s.mul(s.splat(0.5), erfc_of_magnitude(s, s.mul(x, s.splat(std::f32::consts::FRAC_1_SQRT_2))));
            // The normal distribution function: the tail itself below zero, its complement above.
            let below = s.select_lt(x, s.splat(0.0), tail, s.sub(s.splat(1.0), tail));
            s.mul(x, below)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Isa;
    use crate::simd::{Kernel, Level};

    struct Map<'a>(&'a [f32], Option<Activation>);
    impl Kernel for Map<'_> {
        type Output = Vec<f32>;
        #[inline(always)]
        fn run<S: Simd>(self, s: S) -> Vec<f32> {
            let mut out = Vec::new();
            for x in self.0.chunks(16) {
                let x16 = s.load_part(x);
                let y = match self.1 {
                    None => exp(s, x16),
                    Some(which) => activation(s, x16, which),
                };
                out.extend_from_slice(&s.array(y)[..x.len()]);
            }
            out
        }
    }

    fn grid() -> Vec<f32> {
        (-40_000..40_000).map(|i| i as f32 * 0.002 + 0.0007).collect()
    }

    /// The error function to double precision: its Taylor series, and beyond 3 the continued fraction.
    fn erfc(x: f64) -> f64 {
        if x < 0.0 {
            return 2.0 - erfc(-x);
        }
        if x < 3.0 {
            let (mut term, mut sum, mut n) = (x, x, 0.0);
            while term.abs() > 1e-18 {
                n += 1.0;
                term *= -x * x / n;
                sum += term / (2.0 * n + 1.0);
            }
            return 1.0 - sum * 2.0 / std::f64::consts::PI.sqrt();
        }
        let mut f = 0.0;
        for k in (1..200).rev() {
            f = f64::from(k) / 2.0 / (x + f);
        }
        (-x * x).exp() / std::f64::consts::PI.sqrt() / (x + f)
    }

    #[track_caller]
    fn check(which: Option<Activation>, bound: f64, expected: impl Fn(f64) -> f64) {
        let x = grid();
        let scalar = Level::detect(Isa::Scalar).expect("always there").run(Map(&x, which));
        for (x, y) in x.iter().zip(&scalar) {
            let e = expected(f64::from(*x));
            let error = (f64::from(*y) - e).abs();
            assert!(error <= bound * e.abs().max(1e-6), "{which:?}({x}) = {y}, expected {e}");
        }
        for isa in crate::Cpu::isas() {
            let fast = Level::detect(isa).expect("listed").run(Map(&x, which));
            let same = fast.iter().zip(&scalar).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "{isa:?} differs from scalar for {which:?}");
        }
    }

    #[test]
    fn exponential_is_accurate_and_the_same_everywhere() {
        check(None, 2e-7, |x| x.clamp(-88.0, 88.0).exp());
    }

    #[test]
    fn activations_are_accurate_and_the_same_everywhere() {
        check(Some(Activation::Silu), 1e-6, |x| x / (1.0 + (-x).exp()));
        check(Some(Activation::GeluTanh), 4e-6, |x| {
            let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            0.5 * x * (1.0 + z.tanh())
        });
        check(Some(Activation::GeluErf), 4e-6, |x| 0.5 * x * erfc(-x / std::f64::consts::SQRT_2));
    }

    #[test]
    fn exponential_of_minus_infinity_is_exactly_zero() {
        for isa in crate::Cpu::isas() {
            let y = Level::detect(isa).expect("listed").run(Map(&[f32::NEG_INFINITY, -1e30, -88.0], None));
            assert_eq!(y, [0.0, 0.0, 0.0]);
        }
    }
}

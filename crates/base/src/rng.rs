//! Counter-based random numbers: the value depends on its coordinates alone, so the same seed gives
//! the same answer whatever ran before, beside or in another order.
//!
//! The mixer is the finaliser of SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom
//! number generators", OOPSLA 2014), applied once per coordinate.

/// Mixes one word; a bijection.
#[must_use]
pub const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The 64 random bits at these coordinates.
#[must_use]
pub const fn bits(seed: u64, choice: u32, position: u32) -> u64 {
    mix(mix(seed) ^ mix(((choice as u64) << 32) | position as u64))
}

/// A uniform number in `[0, 1)` at these coordinates, with 53 random bits.
#[must_use]
pub fn uniform(seed: u64, choice: u32, position: u32) -> f64 {
    (bits(seed, choice, position) >> 11) as f64 / (1u64 << 53) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uniform_numbers_fill_the_unit_interval_evenly() {
        let n = 100_000;
        let mut buckets = [0u32; 10];
        for position in 0..n {
            let u = uniform(7, 0, position);
            assert!((0.0..1.0).contains(&u));
            buckets[(u * 10.0) as usize] += 1;
        }
        for count in buckets {
            assert!((count as f64 - n as f64 / 10.0).abs() < 500.0, "{buckets:?}");
        }
    }

    #[test]
    fn each_coordinate_changes_the_number() {
        let base = bits(1, 2, 3);
        assert_ne!(base, bits(2, 2, 3));
        assert_ne!(base, bits(1, 3, 3));
        assert_ne!(base, bits(1, 2, 4));
        assert_eq!(base, bits(1, 2, 3));
    }
}

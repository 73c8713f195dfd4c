//! Counts and sizes as types, so that a count of tokens is never mistaken for a size in bytes.

use std::fmt;
use std::ops::{Add, AddAssign, Sub, SubAssign};
use std::str::FromStr;

/// A count of tokens, never an index into a sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Tokens(pub u32);

impl Tokens {
    /// The count as a `usize`, for slice arithmetic.
    #[must_use]
    pub const fn get(self) -> usize {
        self.0 as usize
    }

    /// `self - other`, or zero where that would be negative.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for Tokens {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} token{}", self.0, if self.0 == 1 { "" } else { "s" })
    }
}

impl From<usize> for Tokens {
    /// Saturates: no sequence here holds 2^32 tokens.
    fn from(n: usize) -> Self {
        Self(u32::try_from(n).unwrap_or(u32::MAX))
    }
}

impl Add for Tokens {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}

impl AddAssign for Tokens {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}

impl Sub for Tokens {
    type Output = Self;
    fn sub(self, other: Self) -> Self {
        Self(self.0 - other.0)
    }
}

impl SubAssign for Tokens {
    fn sub_assign(&mut self, other: Self) {
        self.0 -= other.0;
    }
}

impl std::iter::Sum for Tokens {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self(0), Add::add)
    }
}

/// A size in bytes. Reads and prints binary units: `512MiB`, `4GiB`; `4G` and `4GB` mean `4GiB`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

const UNITS: [(&str, u64); 5] =
    [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1)];

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (unit, size) = UNITS.iter().copied().find(|(_, size)| self.0 >= *size).unwrap_or(("B", 1));
        if self.0.is_multiple_of(size) || size == 1 {
            write!(f, "{} {unit}", self.0 / size)
        } else {
            write!(f, "{:.1} {unit}", self.0 as f64 / size as f64)
        }
    }
}

/// The text was not a size such as `512MiB`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a size; write for example 512MiB or 4GiB")]
pub struct ParseBytesError(pub String);

impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseBytesError(text.to_owned());
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(trimmed.len());
        let (number, unit) = trimmed.split_at(split);
        let number: f64 = number.parse().map_err(|_| error())?;
        let unit = unit.trim().to_ascii_lowercase();
        let scale = match unit.as_str() {
            "" | "b" => 1u64,
            "k" | "kb" | "ki" | "kib" => 1 << 10,
            "m" | "mb" | "mi" | "mib" => 1 << 20,
            "g" | "gb" | "gi" | "gib" => 1 << 30,
            "t" | "tb" | "ti" | "tib" => 1 << 40,
            _ => return Err(error()),
        };
        let bytes = number * scale as f64;
        if !bytes.is_finite() || bytes >= (1u64 << 63) as f64 {
            return Err(error());
        }
        Ok(Self(bytes as u64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_back_what_people_type() {
        for (text, bytes) in [
            ("0", 0),
            ("17", 17),
            ("1KiB", 1024),
            ("1k", 1024),
            ("1.5 GiB", 3 << 29),
            ("4GB", 4 << 30),
            ("4g", 4 << 30),
            ("2T", 2 << 40),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_as_a_size() {
        for text in ["", "GiB", "-1", "1XB", "1e400", "99999999999999999999T", "1.2.3", "1ib", "1gbb", "1mii"]
        {
            assert!(text.parse::<Bytes>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_print_in_the_largest_fitting_unit() {
        assert_eq!(Bytes(0).to_string(), "0 B");
        assert_eq!(Bytes(4 << 30).to_string(), "4 GiB");
        assert_eq!(Bytes(3 << 29).to_string(), "1.5 GiB");
    }
}

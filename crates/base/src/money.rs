//! Money in whole billionths of a US dollar, so that sums do not depend on their order.

use std::fmt;

/// An amount of money in billionths of a US dollar.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NanoUsd(pub i64);

impl NanoUsd {
    /// From dollars, rounded to the nearest billionth; `None` when it does not fit.
    #[must_use]
    pub fn from_dollars(dollars: f64) -> Option<Self> {
        let nanos = (dollars * 1e9).round();
        (nanos.is_finite() && nanos.abs() < i64::MAX as f64).then_some(Self(nanos as i64))
    }

    /// In dollars, for display and for wire formats that carry a float.
    #[must_use]
    pub fn dollars(self) -> f64 {
        self.0 as f64 / 1e9
    }
}

impl fmt::Display for NanoUsd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "${}", self.dollars())
    }
}

/// Prices of a model, each per million tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Price {
    /// Prompt tokens that had to be computed.
    pub input: NanoUsd,
    /// Prompt tokens that were found in the prefix cache.
    pub cached_input: NanoUsd,
    /// Tokens of the answer.
    pub output: NanoUsd,
}

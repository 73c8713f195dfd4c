//! Time as a parameter: code that needs it takes a [`Clock`].

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where the time comes from.
pub trait Clock: Send + Sync {
    /// Time since some fixed instant of this process; never goes back.
    fn now(&self) -> Duration;
    /// Seconds since 1970-01-01 UTC.
    fn unix_seconds(&self) -> u64;
}

/// The machine's clock.
#[derive(Debug)]
pub struct SystemClock(Instant);

impl Default for SystemClock {
    fn default() -> Self {
        Self(Instant::now())
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Duration {
        self.0.elapsed()
    }

    fn unix_seconds(&self) -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
    }
}

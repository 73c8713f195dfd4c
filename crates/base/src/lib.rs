//! The shared vocabulary: units, ids, clock, seeded randomness, money. No I/O, no domain logic.

mod clock;
mod id;
mod money;
pub mod rng;
mod units;

pub use clock::{Clock, SystemClock};
pub use id::{Namespace, RequestId};
pub use money::{NanoUsd, Price};
pub use units::{Bytes, ParseBytesError, Tokens};

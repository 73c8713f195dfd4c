//! Scheduler, page pool, radix prefix cache, sampler and drafter. Knows token ids only: no I/O, JSON, text or
//! async.

mod budget;
mod constraint;
mod cost;
mod draft;
mod engine;
mod eviction;
mod memory;
mod pool;
mod publish;
mod radix;
mod request;
mod sampler;
mod scheduler;
mod sequence;
mod stats;

pub use budget::{KvBudget, Waker};
pub use constraint::{Constraint, Standing, TokenMask};
pub use cost::{Prices, StepLimit, Work};
pub use draft::DraftCost;
pub use engine::{Activity, Config, Engine, Error};
pub use request::{
    AdmitError, Event, EventKind, FinishReason, Request, Sampling, TokenChoice, TokenLogprobs, Usage,
};
pub use stats::{Counters, PageStats, Stats};

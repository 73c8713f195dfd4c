//! Scheduler, page pool, radix prefix cache and sampler. Knows token ids only: no I/O, JSON, text or
//! async.

mod constraint;
mod request;

pub use constraint::{Constraint, TokenMask};
pub use request::{
    AdmitError, Event, EventKind, FinishReason, Request, Sampling, TokenChoice, TokenLogprobs, Usage,
};

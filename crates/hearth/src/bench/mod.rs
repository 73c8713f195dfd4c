//! Measuring: a model file in this process ([`model`]), a server under load ([`load`]), two results side by side
//! ([`compare`]).
//!
//! Each measurement gives a [`report::Report`], which is printed as one table, saved as JSON, drawn as a [`page`] and
//! compared by the names of its rows. Times are wall time; a [`probe`] of the machine goes with each run, since machines
//! drift. What a load run sends is a [`workload::Workload`]: a [`scenario`], or a [`trace`] by way of [`replay`]. No file
//! here prints or parses arguments: the command line does.

pub mod chart;
pub mod client;
pub mod compare;
pub mod load;
pub mod memory;
pub mod model;
pub mod page;
pub mod probe;
pub mod replay;
pub mod report;
mod roofline;
pub mod scenario;
pub mod statistics;
pub mod trace;
pub mod turns;
pub mod workload;

/// Told before each piece of work how far the whole has come.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

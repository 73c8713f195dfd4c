//! Measuring: a model file in this process ([`model`]), a server under load ([`load`]), two results side by side
//! ([`compare`]).
//!
//! Each measurement gives a [`report::Report`], which is printed as one table, saved as JSON and compared by the names
//! of its rows. Times are wall time; a [`probe`] of the machine goes with each report, since machines drift. No file
//! here prints or parses arguments: the command line does.

pub mod client;
pub mod compare;
pub mod load;
pub mod model;
pub mod probe;
pub mod report;
pub mod scenario;
pub mod statistics;

/// Told before each piece of work how far the whole has come.
pub type Progress<'a> = &'a mut dyn FnMut(&str);

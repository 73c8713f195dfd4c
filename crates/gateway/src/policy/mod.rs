//! What an operator allows: how often, how much money, which answers are given again, and what is judged.
//!
//! Each limit holds over all processes on one store. Limits of requests and tokens are taken from the store in shares
//! ([`rate`]); money is set aside in the ledger's own transaction ([`spend`], [`credit`]). Not here: HTTP, and who judges.

pub mod cache;
pub mod credit;
pub mod dlp;
pub mod guard;
pub mod rate;
pub(crate) mod spend;

pub use rate::{Refused, Rule, Technique};

use store::Part;

/// The tables.
pub const TABLES: Part =
    Part { name: "policy", steps: &[include_str!("tables_1.sql"), include_str!("tables_2.sql")] };

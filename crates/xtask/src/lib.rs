//! Holds the code to its documents: the graph of crates, and the rules that no compiler checks.
//!
//! The rules are plain functions over text, so that each has a test of its own; the tests in `tests/` run them over
//! the real tree. `cargo run -p xtask` prints what they find.

pub mod graph;
pub mod tidy;

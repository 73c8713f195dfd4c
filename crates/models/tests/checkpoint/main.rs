//! Checkpoint readers: what they read, what they refuse and how, and that no file can hurt the process.

// Helpers of tests are not seen as tests by the lints.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod changed;
mod folder;
mod gguf;
mod hostile;
mod memory;
mod real;
mod writer;

//! Hearth's command line, configuration and HTTP server; `main.rs` only calls [`cli::main`].

pub mod bench;
pub mod catalog;
pub mod cli;
pub mod config;
pub mod http;
pub mod kept;
pub mod metrics;
pub mod moment;
pub(crate) mod peer;
pub mod pull;
pub mod state;
pub mod store;
pub mod suggest;

//! The built binary between clients and a provider that misbehaves: what it was asked for is entered once, and what ends
//! early ends everywhere; and the commands that manage providers.
//!
//! The provider (`fake.rs`) runs in the test's process, which no kill reaches, and writes down each request as it comes.
//! Rounds and numbers are small here; `HEARTH_KILL_ROUNDS` and `HEARTH_ABORTS` ask for more, as `scripts/test --peers` does.

mod fake;
mod gone;
mod kill;
mod providers;
mod reload;
mod server;
mod sick;
mod streams;
mod two;

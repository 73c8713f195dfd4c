//! Messages from the other side: asking a provider that speaks them, and reading its answer.

mod reader;
mod request;

pub use reader::Reader;
pub use request::{MAX_TOKENS, write};
pub(crate) use request::{is_of_claude, sampled, thought};

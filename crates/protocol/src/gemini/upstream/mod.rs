//! `generateContent` from the other side: asking a provider that speaks it, and reading its answer.

mod count;
mod reader;
mod request;
mod schema;

pub use count::{read_count, write_count};
pub use reader::Reader;
pub use request::write;

#[cfg(test)]
mod tests;

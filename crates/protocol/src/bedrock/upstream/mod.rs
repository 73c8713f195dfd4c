//! Converse from the other side: asking a provider that speaks it, and reading its answer.

mod reader;
mod request;

pub use reader::Reader;
pub use request::write;

#[cfg(test)]
mod tests;

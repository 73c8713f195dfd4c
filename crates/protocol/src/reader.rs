//! What reads a provider's answer, in whatever dialect it comes.

use crate::{Delta, Error};

/// Reads one answer of a provider as deltas, in the order that [`Delta`] demands. Each dialect that providers speak has one,
/// beside a function that writes a [`GenerateRequest`](crate::GenerateRequest) as a body in that dialect.
pub trait AnswerReader: Send {
    /// Reads an event of a stream: its name, where it has one, and its data.
    ///
    /// # Errors
    /// When the event is an error of the provider, or no event of the dialect.
    fn event(&mut self, name: Option<&str>, data: &str) -> Result<Vec<Delta>, Error>;

    /// The stream has ended: what is still owed, [`Delta::Usage`] at the latest.
    ///
    /// # Errors
    /// When the stream ended before the answer did.
    fn end(&mut self) -> Result<Vec<Delta>, Error>;

    /// Reads an answer that was not streamed; gives all of its deltas.
    ///
    /// # Errors
    /// When it is an error of the provider, or no answer of the dialect.
    fn whole(&mut self, body: &[u8]) -> Result<Vec<Delta>, Error>;
}

//! Server-sent events as the dialects write them. Framing into HTTP is the server's business.

use crate::{Delta, Error};

/// One server-sent event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    /// The event's name, in dialects that name them.
    pub name: Option<&'static str>,
    /// One line of data.
    pub data: String,
}

impl Event {
    /// An event without a name.
    #[must_use]
    pub fn data(data: impl Into<String>) -> Self {
        Self { name: None, data: data.into() }
    }

    /// The event on the wire.
    #[must_use]
    pub fn to_wire(&self) -> String {
        match self.name {
            None => format!("data: {}\n\n", self.data),
            Some(name) => format!("event: {name}\ndata: {}\n\n", self.data),
        }
    }
}

/// Writes an answer as events in one dialect.
///
/// A request of the caller may be several canonical ones (a completion of many prompts); `source` counts them.
pub trait StreamWriter: Send {
    /// Writes one delta.
    fn delta(&mut self, source: usize, delta: Delta) -> Vec<Event>;
    /// Ends the answer. Called once, after every source gave its usage.
    fn finish(&mut self) -> Vec<Event>;
    /// Ends an answer that failed, in dialects whose streams have events for that. `None` leaves it to the server,
    /// which writes the error as the path wants it.
    fn fail(&mut self, _error: &Error) -> Option<Vec<Event>> {
        None
    }
}

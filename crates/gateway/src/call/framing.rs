//! Streams of either kind, cut into their events: server-sent ones, and Amazon's.

use crate::dialect::Dialect;
use crate::sse::Frames;
use crate::{eventstream, sse};
use bytes::Bytes;
use std::borrow::Cow;

/// Cuts a stream into events.
#[derive(Debug)]
pub(super) enum Framing {
    Sent(sse::Framer),
    Amazon(eventstream::Framer),
}

impl Framing {
    /// For a stream in this dialect.
    pub(super) fn new(dialect: Dialect) -> Self {
        match dialect {
            Dialect::Bedrock => Self::Amazon(eventstream::Framer::default()),
            _ => Self::Sent(sse::Framer::default()),
        }
    }

    /// Takes the next bytes; gives the events that they complete.
    pub(super) fn push(&mut self, bytes: Bytes) -> Result<Frames, String> {
        match self {
            Self::Sent(framer) => framer.push(bytes).map_err(|error| error.to_string()),
            Self::Amazon(framer) => framer.push(bytes).map_err(|error| error.to_string()),
        }
    }

    /// What came after the last whole event; nothing of a message that is not whole.
    pub(super) fn rest(&mut self) -> Bytes {
        match self {
            Self::Sent(framer) => std::mem::take(framer).rest(),
            Self::Amazon(framer) => std::mem::take(framer).rest(),
        }
    }

    /// What goes to a client in silence; nothing where a stream has no comments.
    pub(super) const fn keep_alive(&self) -> Option<Bytes> {
        match self {
            Self::Sent(_) => Some(Bytes::from_static(b": keep-alive\n\n")),
            Self::Amazon(_) => None,
        }
    }
}

/// An event's name and data; nothing where it has no data, as a comment.
pub(super) fn event(dialect: Dialect, frame: &[u8]) -> Option<(Option<&str>, Cow<'_, [u8]>)> {
    match dialect {
        Dialect::Bedrock => {
            let message = eventstream::decode(frame)?;
            Some((Some(message.name), message.payload.into()))
        }
        _ => {
            let name = sse::name(frame).and_then(|name| std::str::from_utf8(name).ok());
            Some((name, sse::data(frame)?))
        }
    }
}

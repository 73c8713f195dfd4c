//! Server-sent events as bytes: where each ends, wherever the stream was cut, and what its data is.
//!
//! A *frame* is an event with the blank line that ends it, or a comment with its own. Frames are slices of what came
//! in; only one that was cut is put together by copying. Nothing is decoded, so no character can be broken. Lines end
//! with `\n`, `\r\n` or `\r` (WHATWG HTML, 9.2.6). A frame that nothing ends is no event; it is given back as the rest.

use bytes::{Bytes, BytesMut};
use std::borrow::Cow;

/// Longest frame that is waited for: an answer's last event may hold all of it, images included.
const FRAME_MAX: usize = 64 << 20;

/// A frame is longer than any event should be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an event of the stream is longer than {} MiB", FRAME_MAX >> 20)]
pub struct TooLong;

/// Cuts a stream into frames.
#[derive(Debug, Default)]
pub struct Framer {
    /// The begun frame.
    held: BytesMut,
    /// Whether the line being read has any byte.
    in_line: bool,
    /// Whether the last byte was `\r`, so that a `\n` belongs to it.
    after_return: bool,
}

/// Whole frames, one after the other.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Frames {
    /// All their bytes.
    pub bytes: Bytes,
    /// Where each ends.
    pub ends: Vec<usize>,
}

impl Frames {
    /// Each frame.
    pub fn iter(&self) -> impl Iterator<Item = Bytes> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| self.bytes.slice(start..*end))
    }
}

impl Framer {
    /// Takes the next bytes; gives the frames that they complete.
    ///
    /// # Errors
    /// When a frame grows too long.
    pub fn push(&mut self, chunk: Bytes) -> Result<Frames, TooLong> {
        let mut ends = Vec::new();
        let mut at = 0;
        while at < chunk.len() {
            if std::mem::take(&mut self.after_return) && chunk[at] == b'\n' {
                at += 1;
                // Of the frame that the `\r` ended, where that is in this chunk; else at the head of the next.
                if let Some(end) = ends.last_mut().filter(|end| **end == at - 1) {
                    *end = at;
                }
                continue;
            }
            let Some(length) = memchr::memchr2(b'\n', b'\r', &chunk[at..]) else {
                self.in_line = true;
                break;
            };
            let blank = length == 0 && !self.in_line;
            at += length + 1;
            self.in_line = false;
            self.after_return = chunk[at - 1] == b'\r';
            if blank {
                ends.push(at);
            }
        }
        let Some(end) = ends.last().copied() else {
            self.hold(&chunk)?;
            return Ok(Frames::default());
        };
        let mut bytes = chunk;
        let rest = bytes.split_off(end);
        if !self.held.is_empty() {
            let shift = self.held.len();
            self.held.extend_from_slice(&bytes);
            bytes = std::mem::take(&mut self.held).freeze();
            ends.iter_mut().for_each(|end| *end += shift);
        }
        self.hold(&rest)?;
        Ok(Frames { bytes, ends })
    }

    /// What came after the last whole frame.
    #[must_use]
    pub fn rest(self) -> Bytes {
        self.held.freeze()
    }

    /// Whether a frame is begun.
    #[must_use]
    pub fn is_inside(&self) -> bool {
        !self.held.is_empty()
    }

    fn hold(&mut self, bytes: &[u8]) -> Result<(), TooLong> {
        if self.held.len() + bytes.len() > FRAME_MAX {
            return Err(TooLong);
        }
        self.held.extend_from_slice(bytes);
        Ok(())
    }
}

/// The lines of a frame.
fn lines(frame: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = frame.strip_prefix(b"\xef\xbb\xbf").unwrap_or(frame);
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let end = memchr::memchr2(b'\n', b'\r', rest).unwrap_or(rest.len());
        let line = &rest[..end];
        let after = if rest[end..].starts_with(b"\r\n") { end + 2 } else { (end + 1).min(rest.len()) };
        rest = &rest[after..];
        Some(line)
    })
}

/// The values of a field of a frame.
fn values<'a>(frame: &'a [u8], field: &'static [u8]) -> impl Iterator<Item = &'a [u8]> {
    lines(frame).filter_map(move |line| match line.strip_prefix(field)? {
        [] => Some(&[][..]),
        [b':', b' ', value @ ..] | [b':', value @ ..] => Some(value),
        _ => None,
    })
}

/// A frame's data, its lines joined by `\n`; nothing where it has none, as a comment.
#[must_use]
pub fn data(frame: &[u8]) -> Option<Cow<'_, [u8]>> {
    let mut values = values(frame, b"data");
    let first = values.next()?;
    let Some(second) = values.next() else { return Some(Cow::Borrowed(first)) };
    let mut data = [first, b"\n", second].concat();
    for value in values {
        data.push(b'\n');
        data.extend_from_slice(value);
    }
    Some(Cow::Owned(data))
}

/// A frame's event name.
#[must_use]
pub fn name(frame: &[u8]) -> Option<&[u8]> {
    values(frame, b"event").last()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// An event's name and data.
    type Event = (Vec<u8>, Vec<u8>);

    /// The events of a stream that comes in these pieces, and all bytes that came out.
    fn events<'a>(pieces: impl Iterator<Item = &'a [u8]>) -> (Vec<Event>, Vec<u8>) {
        let mut framer = Framer::default();
        let (mut events, mut bytes) = (Vec::new(), Vec::new());
        for piece in pieces {
            let frames = framer.push(Bytes::copy_from_slice(piece)).unwrap();
            for frame in frames.iter() {
                if let Some(data) = data(&frame) {
                    events.push((name(&frame).unwrap_or_default().to_owned(), data.into_owned()));
                }
            }
            bytes.extend_from_slice(&frames.bytes);
        }
        bytes.extend_from_slice(&framer.rest());
        (events, bytes)
    }

    #[track_caller]
    fn check(stream: &str, expected: &[(&str, &str)]) {
        for cut in 0..=stream.len() {
            let (left, right) = stream.as_bytes().split_at(cut);
            let (events, bytes) = events([left, right].into_iter());
            let events: Vec<_> = events
                .iter()
                .map(|(name, data)| (std::str::from_utf8(name).unwrap(), std::str::from_utf8(data).unwrap()))
                .collect();
            assert_eq!(events, expected, "cut at {cut}");
            assert_eq!(bytes, stream.as_bytes(), "cut at {cut}");
        }
    }

    #[test]
    fn every_end_of_line_ends_lines() {
        for end in ["\n", "\r\n", "\r"] {
            let stream = "event: a|data: 1||data:2|data: 3||".replace('|', end);
            check(&stream, &[("a", "1"), ("", "2\n3")]);
        }
    }

    #[test]
    fn comments_and_unknown_fields_are_no_data() {
        check(": hello\n\n:\n\nid: 7\nretry: 5\n\ndatax: 1\n\ndata\n\n", &[("", "")]);
    }

    #[test]
    fn one_space_after_the_colon_is_not_data() {
        check("data:  two\n\ndata:none\n\n", &[("", " two"), ("", "none")]);
    }

    #[test]
    fn a_mark_of_byte_order_is_passed_over() {
        check("\u{feff}data: x\n\n", &[("", "x")]);
    }

    #[test]
    fn an_event_that_nothing_ends_is_no_event() {
        check("data: 1\n\ndata: 2\n", &[("", "1")]);
    }

    /// Row 23 of the public faults: a character cut in two became U+FFFD.
    #[test]
    fn characters_of_several_bytes_survive_any_cut() {
        check("data: {\"text\":\"語🦀é\"}\n\n", &[("", "{\"text\":\"語🦀é\"}")]);
    }

    #[test]
    fn whole_frames_are_slices_of_what_came() {
        let chunk = Bytes::from_static(b"data: 1\n\ndata: 2\n\n");
        let frames = Framer::default().push(chunk.clone()).unwrap();
        assert_eq!(frames.bytes.as_ptr(), chunk.as_ptr());
        assert_eq!(frames.ends, [9, 18]);
    }

    #[test]
    fn an_endless_event_is_refused() {
        let mut framer = Framer::default();
        let chunk = Bytes::from(vec![b'x'; 16 << 20]);
        let results: Vec<bool> = (0..5).map(|_| framer.push(chunk.clone()).is_ok()).collect();
        assert_eq!(results, [true, true, true, true, false]);
    }

    proptest! {
        #[test]
        fn any_cut_gives_the_same_events_and_bytes(
            stream in "(data|event|: |語|🦀|a|\n|\r|\r\n|\n\n|:| ){0,40}",
            cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..8),
        ) {
            let stream = stream.as_bytes();
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
            cuts.extend([0, stream.len()]);
            cuts.sort_unstable();
            let cut = events(cuts.windows(2).map(|pair| &stream[pair[0]..pair[1]]));
            let whole = events(std::iter::once(stream));
            prop_assert_eq!(&cut.0, &whole.0);
            prop_assert_eq!(&cut.1, stream);
        }
    }
}

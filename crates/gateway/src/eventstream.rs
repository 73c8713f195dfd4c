//! Amazon's event streams as bytes (`application/vnd.amazon.eventstream`): where each message ends, wherever the stream was
//! cut, and what is in it.
//!
//! A message is its length, the length of its headers and a checksum of the two, then headers, payload and a checksum of
//! all, numbers in network order. Whose checksum is wrong is an error: behind it nobody can tell where the next begins.
//! Source: "Event stream encoding" in the Amazon Transcribe Developer Guide, and the format's page in Smithy 2.0.

use crate::sse::Frames;
use bytes::{BufMut, Bytes, BytesMut};

/// Lengths and their checksum.
const PRELUDE: usize = 12;

/// A message without headers and payload.
const SHORTEST: usize = PRELUDE + 4;

/// The longest message: 16 MiB of payload and 128 KiB of headers, as the format has it.
const LONGEST: usize = SHORTEST + (16 << 20) + (128 << 10);

/// Why a stream cannot be cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadStream {
    /// The length is none.
    #[error("a message of the event stream is {0} bytes long, which none can be")]
    Length(u32),
    /// The bytes are not those that were sent.
    #[error("a message of the event stream has a wrong checksum")]
    Checksum,
}

/// Cuts a stream into messages.
#[derive(Debug, Default)]
pub struct Framer {
    /// The begun message.
    held: BytesMut,
}

impl Framer {
    /// Takes the next bytes; gives the messages that they complete.
    ///
    /// # Errors
    /// When what comes is no event stream, or was changed on the way.
    pub fn push(&mut self, chunk: Bytes) -> Result<Frames, BadStream> {
        let mut bytes = if self.held.is_empty() {
            chunk
        } else {
            self.held.extend_from_slice(&chunk);
            std::mem::take(&mut self.held).freeze()
        };
        let (mut ends, mut at) = (Vec::new(), 0);
        while let Some(length) = length(&bytes[at..])? {
            let Some(message) = bytes.get(at..at + length) else { break };
            let (body, sum) = message.split_at(length - 4);
            if crc32(body) != number(sum) {
                return Err(BadStream::Checksum);
            }
            at += length;
            ends.push(at);
        }
        let rest = bytes.split_off(at);
        self.held.extend_from_slice(&rest);
        Ok(Frames { bytes, ends })
    }

    /// What came after the last whole message.
    #[must_use]
    pub fn rest(self) -> Bytes {
        self.held.freeze()
    }
}

/// The length of the message that begins here; nothing where too little of it is there.
fn length(bytes: &[u8]) -> Result<Option<usize>, BadStream> {
    let Some(prelude) = bytes.get(..PRELUDE) else { return Ok(None) };
    if crc32(&prelude[..8]) != number(&prelude[8..]) {
        return Err(BadStream::Checksum);
    }
    let (length, headers) = (number(prelude), number(&prelude[4..]));
    let fits = (SHORTEST..=LONGEST).contains(&(length as usize));
    if !fits || headers as usize > length as usize - SHORTEST {
        return Err(BadStream::Length(length));
    }
    Ok(Some(length as usize))
}

fn number(bytes: &[u8]) -> u32 {
    bytes.first_chunk().map_or(0, |four| u32::from_be_bytes(*four))
}

/// A message's parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message<'a> {
    /// `:event-type`, or what is wrong (`:exception-type`, `:error-code`).
    pub name: &'a str,
    /// Whether it tells an error.
    pub is_error: bool,
    /// What it says.
    pub payload: &'a [u8],
}

/// Reads a whole message; nothing where its headers are none.
#[must_use]
pub fn decode(frame: &[u8]) -> Option<Message<'_>> {
    let headers_length = number(frame.get(4..8)?) as usize;
    let mut headers = frame.get(PRELUDE..PRELUDE.checked_add(headers_length)?)?;
    let payload = frame.get(PRELUDE + headers_length..frame.len().checked_sub(4)?)?;
    let mut message = Message { name: "", is_error: false, payload };
    while !headers.is_empty() {
        let (name, value) = header(&mut headers)?;
        match (name, value) {
            (":message-type", Some(kind)) => message.is_error |= kind != "event",
            (":event-type" | ":exception-type" | ":error-code", Some(name)) => message.name = name,
            _ => {}
        }
    }
    Some(message)
}

/// Takes a header off; its value where that is a text.
fn header<'a>(headers: &mut &'a [u8]) -> Option<(&'a str, Option<&'a str>)> {
    fn take<'a>(from: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = from.split_at_checked(count)?;
        *from = rest;
        Some(taken)
    }
    let length = take(headers, 1)?[0];
    let name = std::str::from_utf8(take(headers, length.into())?).ok()?;
    let kind = take(headers, 1)?[0];
    let length = match kind {
        0 | 1 => 0,
        2 => 1,
        3 => 2,
        4 => 4,
        5 | 8 => 8,
        9 => 16,
        6 | 7 => {
            let two = take(headers, 2)?;
            usize::from(u16::from_be_bytes([two[0], two[1]]))
        }
        _ => return None,
    };
    let value = take(headers, length)?;
    Some((name, if kind == 7 { Some(std::str::from_utf8(value).ok()?) } else { None }))
}

/// Writes a message with headers of text.
#[must_use]
pub fn encode(headers: &[(&str, &str)], payload: &[u8]) -> Bytes {
    let mut written = BytesMut::new();
    for (name, value) in headers {
        written.put_u8(u8::try_from(name.len()).expect("names of headers are short"));
        written.put_slice(name.as_bytes());
        written.put_u8(7);
        written.put_u16(u16::try_from(value.len()).expect("values of headers are short"));
        written.put_slice(value.as_bytes());
    }
    let long = |length: usize| u32::try_from(length).expect("a message of ours is short");
    let mut message = BytesMut::new();
    message.put_u32(long(SHORTEST + written.len() + payload.len()));
    message.put_u32(long(written.len()));
    message.put_u32(crc32(&message));
    message.put_slice(&written);
    message.put_slice(payload);
    message.put_u32(crc32(&message));
    message.freeze()
}

/// CRC-32 of IEEE 802.3, of each byte's remainder.
const REMAINDERS: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut sum, mut bit) = (byte as u32, 0);
        while bit < 8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
};

fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |sum, byte| sum >> 8 ^ REMAINDERS[(sum as u8 ^ byte) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream() -> Vec<u8> {
        let event = |name: &str, payload: &str| {
            let headers =
                [(":event-type", name), (":content-type", "application/json"), (":message-type", "event")];
            encode(&headers, payload.as_bytes())
        };
        [event("messageStart", "{\"role\":\"assistant\"}"), event("x", ""), event("metadata", "{\"語\":1}")]
            .concat()
    }

    /// The check value of CRC-32 (ISO-HDLC), and the message that the format's guide shows: no headers, no payload.
    #[test]
    fn checksums_are_those_of_the_format() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        let empty = [0, 0, 0, 0x10, 0, 0, 0, 0, 0x05, 0xc2, 0x48, 0xeb, 0x7d, 0x98, 0xc8, 0xff];
        assert_eq!(encode(&[], b""), empty.as_slice());
    }

    #[test]
    fn messages_tell_their_name_and_payload() {
        let frames = Framer::default().push(stream().into()).unwrap();
        let frames: Vec<Bytes> = frames.iter().collect();
        let read: Vec<_> = frames.iter().map(|frame| decode(frame).unwrap()).collect();
        assert_eq!(
            read[0],
            Message { name: "messageStart", is_error: false, payload: b"{\"role\":\"assistant\"}" }
        );
        assert_eq!((read.len(), read[2].name), (3, "metadata"));
        let fault =
            encode(&[(":message-type", "exception"), (":exception-type", "throttlingException")], b"{}");
        assert_eq!(
            decode(&fault),
            Some(Message { name: "throttlingException", is_error: true, payload: b"{}" })
        );
    }

    #[test]
    fn wherever_a_stream_is_cut_the_messages_are_the_same() {
        let stream = stream();
        let whole = Framer::default().push(stream.clone().into()).unwrap();
        for cut in 0..=stream.len() {
            let mut framer = Framer::default();
            let mut found = Vec::new();
            for piece in [&stream[..cut], &stream[cut..]] {
                found.extend(framer.push(Bytes::copy_from_slice(piece)).unwrap().iter());
            }
            assert_eq!(found, whole.iter().collect::<Vec<_>>(), "cut at {cut}");
            assert!(framer.rest().is_empty());
        }
    }

    #[test]
    fn a_changed_byte_is_found() {
        let stream = stream();
        for at in 0..stream.len() {
            let mut changed = stream.clone();
            changed[at] ^= 0x10;
            assert!(Framer::default().push(changed.into()).is_err(), "byte {at}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = Framer::default().push(bytes.clone().into());
            let _ = decode(&bytes);
        }
    }
}

//! What is kept of a body while it passes: its size always, its bytes only where the gateway stores payloads.
//!
//! Invariant: bytes that are kept are at most the limit of a log, and all that are kept by a process, in answers that run
//! and in records that wait for the store, at most its room. Where there is no room for more, all of that body is let
//! go. Bytes are copied, so that a small piece does not hold the large buffer it was cut from.

use bytes::Bytes;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Room for payloads, in bytes.
#[derive(Debug)]
pub(super) struct Room {
    max: u64,
    held: AtomicU64,
}

impl Room {
    pub(super) fn new(max: u64) -> Arc<Self> {
        Arc::new(Self { max, held: AtomicU64::new(0) })
    }

    /// Bytes that are kept now.
    pub(super) fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

/// A part of the room; dropping it gives it back.
#[derive(Debug)]
struct Held {
    room: Arc<Room>,
    bytes: u64,
}

impl Held {
    /// Whether there was room for so many more.
    fn grow(&mut self, more: u64) -> bool {
        let before = self.room.held.fetch_add(more, Ordering::Relaxed);
        if before + more > self.room.max {
            self.room.held.fetch_sub(more, Ordering::Relaxed);
            return false;
        }
        self.bytes += more;
        true
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.room.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// Bytes of a payload and their part of the room.
#[derive(Debug)]
pub struct Payload {
    pub(super) bytes: Vec<u8>,
    /// Whether it was cut at the limit, or at the end of an answer that broke off.
    pub(super) cut: bool,
    _held: Held,
}

/// What has passed so far.
#[derive(Debug)]
pub(super) struct Capture {
    pub(super) size: u64,
    limit: usize,
    kept: Option<Payload>,
    /// Whether there was no room for it.
    pub(super) dropped: bool,
}

impl Capture {
    /// Keeps up to `limit` bytes, where there is one; else the size alone.
    pub(super) fn new(room: &Arc<Room>, limit: Option<u64>) -> Self {
        let payload =
            |_| Payload { bytes: Vec::new(), cut: false, _held: Held { room: Arc::clone(room), bytes: 0 } };
        let kept = limit.map(payload);
        let limit = usize::try_from(limit.unwrap_or(0)).unwrap_or(usize::MAX);
        Self { size: 0, limit, kept, dropped: false }
    }

    /// Takes the next piece.
    pub(super) fn push(&mut self, piece: &Bytes) {
        self.size += piece.len() as u64;
        let Some(kept) = &mut self.kept else { return };
        let fits = piece.len().min(self.limit - kept.bytes.len());
        kept.cut |= fits < piece.len();
        if fits == 0 {
            return;
        }
        if kept._held.grow(fits as u64) {
            kept.bytes.extend_from_slice(&piece[..fits]);
        } else {
            self.kept = None;
            self.dropped = true;
        }
    }

    /// What was kept.
    pub(super) fn take(&mut self) -> Option<Payload> {
        self.kept.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Row 34 of the public faults: memory that grew with each chunk.
    #[test]
    fn a_million_chunks_take_no_memory_where_payloads_are_not_stored_and_a_bounded_part_where_they_are() {
        let room = Room::new(1 << 20);
        let mut none = Capture::new(&room, None);
        let mut some = Capture::new(&room, Some(1000));
        let chunk = Bytes::from_static(b"data: {\"delta\":\"word\"}\n\n");
        for _ in 0..1_000_000 {
            none.push(&chunk);
            some.push(&chunk);
            assert!(room.held() <= 1000);
        }
        assert_eq!((none.size, some.size), (24_000_000, 24_000_000));
        assert!(none.take().is_none());
        let payload = some.take().unwrap();
        assert!(payload.cut && payload.bytes.len() == 1000 && payload.bytes.capacity() <= 2048);
        drop(payload);
        assert_eq!(room.held(), 0);
    }

    #[test]
    fn a_body_for_which_there_is_no_room_is_let_go_and_its_room_is_free() {
        let room = Room::new(100);
        let (mut one, mut two) = (Capture::new(&room, Some(1000)), Capture::new(&room, Some(1000)));
        let piece = Bytes::from_static(&[b'x'; 60]);
        one.push(&piece);
        two.push(&piece);
        assert!(two.dropped && !one.dropped && two.take().is_none());
        assert_eq!((room.held(), two.size), (60, 60));
        two.push(&piece);
        assert_eq!((room.held(), two.size), (60, 120));
        drop(one);
        assert_eq!(room.held(), 0);
    }
}

//! A 64-bit checksum at the speed of memory: it finds damage, not malice.
//!
//! Eight lanes of `(lane ^ word) * odd`, each step a bijection of the lane, so that a change of one word
//! never goes unnoticed. Long data is cut at fixed places and the pieces' sums are summed, which lets
//! several threads work.

use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Where long data is cut.
pub(super) const PIECE: usize = 2 << 20;
/// Threads beyond these would wait for memory.
const THREADS_MAX: usize = 16;

const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The checksum of one piece.
pub(super) fn sum(bytes: &[u8]) -> u64 {
    let mut lanes: [u64; 8] = std::array::from_fn(|lane| ODD.wrapping_mul(lane as u64 + 1));
    let (blocks, rest) = bytes.as_chunks::<64>();
    for block in blocks {
        let (words, _) = block.as_chunks::<8>();
        for (lane, word) in lanes.iter_mut().zip(words) {
            *lane = (*lane ^ u64::from_le_bytes(*word)).wrapping_mul(ODD).rotate_left(29);
        }
    }
    let mut last = [0; 64];
    last[..rest.len()].copy_from_slice(rest);
    let (words, _) = last.as_chunks::<8>();
    // Zeros at the end are told from their absence by the length.
    let mut sum = bytes.len() as u64;
    for (lane, word) in lanes.iter().zip(words) {
        let lane = (lane ^ u64::from_le_bytes(*word)).wrapping_mul(ODD);
        sum = (sum ^ lane ^ (lane >> 32)).wrapping_mul(ODD).rotate_left(31);
    }
    sum ^ (sum >> 29)
}

/// The checksum of sums, in order.
pub(super) fn sum_of(sums: &[u64]) -> u64 {
    sum(&sums.iter().flat_map(|sum| sum.to_le_bytes()).collect::<Vec<u8>>())
}

/// The checksum of long data by several threads: the sums of its pieces of [`PIECE`] bytes, summed. The
/// first piece is shorter by `skip`.
pub(super) fn sum_pieces(bytes: &[u8], skip: usize) -> u64 {
    let mut pieces = Vec::with_capacity(bytes.len() / PIECE + 2);
    let (first, rest) = bytes.split_at(bytes.len().min(PIECE - skip));
    pieces.push(first);
    pieces.extend(rest.chunks(PIECE));
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS_MAX);
    let (next, sums) = (AtomicUsize::new(0), Mutex::new(vec![0; pieces.len()]));
    let work = || {
        while let Some((index, piece)) =
            Some(next.fetch_add(1, Ordering::Relaxed)).and_then(|index| Some((index, pieces.get(index)?)))
        {
            let sum = sum(piece);
            sums.lock().unwrap_or_else(PoisonError::into_inner)[index] = sum;
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(pieces.len()) {
            scope.spawn(work);
        }
        work();
    });
    sum_of(&sums.into_inner().unwrap_or_else(PoisonError::into_inner))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_length_shows() {
        let bytes: Vec<u8> = (0..=200).collect();
        let whole = sum(&bytes);
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut damaged = bytes.clone();
                damaged[at] ^= 1 << bit;
                assert_ne!(sum(&damaged), whole, "bit {bit} of byte {at}");
            }
        }
        let zeros = [0; 130];
        let mut sums: Vec<u64> = (0..=130).map(|len| sum(&zeros[..len])).collect();
        sums.sort_unstable();
        sums.dedup();
        assert_eq!(sums.len(), 131);
    }

    #[test]
    fn pieces_are_cut_where_the_writer_cuts_them() {
        let bytes: Vec<u8> = (0..2 * PIECE as u32 + 100).map(|i| (i % 251) as u8).collect();
        let sums =
            [sum(&bytes[..PIECE - 7]), sum(&bytes[PIECE - 7..2 * PIECE - 7]), sum(&bytes[2 * PIECE - 7..])];
        assert_eq!(sum_pieces(&bytes, 7), sum_of(&sums));
    }
}

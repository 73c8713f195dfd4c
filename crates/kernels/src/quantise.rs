//! Activations in eight bits: per row and block of 32 elements a scale, the codes, and their sums.
//!
//! Rows are kept in tiles of [`TILE`] (the last tile may be lower). In a tile, block `b` of row `r` stands at
//! `b * height + r`, so that a kernel that walks the blocks of several rows reads straight on.
//!
//! Invariant: a row's codes depend on that row alone. A row of width not a multiple of 32 is padded with
//! zeros. [`SLACK`] blocks past the end may be read (their content is of no meaning).

use crate::buffer::{Buffer, Plain, Shared};
use crate::pool::Pool;
use crate::simd::{Kernel, Level, Simd};

/// Rows of a tile.
pub(crate) const TILE: usize = 16;
/// Blocks that may be read past the end, so that a kernel may compute rows that do not exist.
pub(crate) const SLACK: usize = TILE;

/// What a kernel needs beside the codes `a` of a block.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Meta {
    /// An element is `scale * a`.
    pub(crate) scale: f32,
    /// `scale * sum(a)`.
    pub(crate) sum: f32,
    /// `-8 * sum(a)`: most formats' offsets are 8 times a power of two.
    pub(crate) neg8: i32,
    /// `-8 * sum(a)` of the first and of the second 16 elements.
    pub(crate) neg8_halves: [i32; 2],
}
// SAFETY: five words without padding.
unsafe impl Plain for Meta {}

/// The rows of one tensor in eight bits.
pub(crate) struct Quantised {
    /// Blocks of a row.
    pub(crate) blocks: usize,
    pub(crate) rows: usize,
    pub(crate) codes: Buffer<[i8; 32]>,
    pub(crate) meta: Buffer<Meta>,
}

impl Quantised {
    pub(crate) const fn empty() -> Self {
        Self { blocks: 0, rows: 0, codes: Buffer::empty(), meta: Buffer::empty() }
    }

    /// Fills this with the rows of `x`, `width` elements each.
    pub(crate) fn set(&mut self, x: &[f32], width: usize, level: Level, pool: &Pool) {
        self.rows = x.len() / width;
        self.blocks = width.div_ceil(32);
        let len = self.rows * self.blocks;
        self.codes.resize(len + SLACK);
        self.meta.resize(len + SLACK);
        let (codes, meta) = (Shared::new(&mut self.codes), Shared::new(&mut self.meta));
        // Below some tens of thousands of elements a region costs more than it saves.
        let tiles = self.rows.div_ceil(TILE);
        let piece = if x.len() < 1 << 15 { tiles } else { tiles.div_ceil(pool.threads() * 4) };
        pool.ranges(tiles, piece, &|range| {
            for tile in range {
                let height = TILE.min(self.rows - tile * TILE);
                let at = tile * TILE * self.blocks;
                // SAFETY: each tile is written by the one item that has it in its range.
                let (codes, meta) =
                    unsafe { (codes.part(at, height * self.blocks), meta.part(at, height * self.blocks)) };
                let x = &x[tile * TILE * width..][..height * width];
                level.run(Tile { x, width, height, codes, meta });
            }
        });
    }
}

struct Tile<'a> {
    x: &'a [f32],
    width: usize,
    height: usize,
    codes: &'a mut [[i8; 32]],
    meta: &'a mut [Meta],
}

impl Kernel for Tile<'_> {
    type Output = ();
    #[inline(always)]
    fn run<S: Simd>(self, s: S) {
        for (r, row) in self.x.chunks_exact(self.width).enumerate() {
            let (whole, rest) = row.as_chunks::<32>();
            for (b, block) in whole.iter().enumerate() {
                let at = b * self.height + r;
                (self.codes[at], self.meta[at]) = quantise_block(s, block);
            }
            if !rest.is_empty() {
                let mut block = [0.0; 32];
                block[..rest.len()].copy_from_slice(rest);
                let at = whole.len() * self.height + r;
                (self.codes[at], self.meta[at]) = quantise_block(s, &block);
            }
        }
    }
}

#[inline(always)]
fn quantise_block<S: Simd>(s: S, x: &[f32; 32]) -> ([i8; 32], Meta) {
    let zero = s.splat(0.0);
    let ([x0, x1], _) = x.as_chunks::<16>() else { unreachable!("32 elements are twice 16") };
    let (x0, x1) = (s.load(x0), s.load(x1));
    let peak = s.max_lane(s.max(s.max(x0, s.sub(zero, x0)), s.max(x1, s.sub(zero, x1))));
    // A peak so small that its inverse overflows is no signal; all zeros then.
    let (scale, inverse) = if peak < 1e-30 { (0.0, 0.0) } else { (peak / 127.0, 127.0 / peak) };
    let inverse = s.splat(inverse);
    let halves = [s.to_i8(s.mul(x0, inverse)), s.to_i8(s.mul(x1, inverse))];
    let sums = halves.map(|h| h.iter().map(|a| i32::from(*a)).sum::<i32>());
    let mut codes = [0; 32];
    codes[..16].copy_from_slice(&halves[0]);
    codes[16..].copy_from_slice(&halves[1]);
    let sum = sums[0] + sums[1];
    let meta =
        Meta { scale, sum: scale * sum as f32, neg8: -8 * sum, neg8_halves: [-8 * sums[0], -8 * sums[1]] };
    (codes, meta)
}

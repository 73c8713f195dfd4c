//! How a batch's attention is cut into pieces of work.
//!
//! Invariants: the pieces of a row tile the blocks that it sees; where sequences' page tables begin alike
//! (a shared prefix), a piece holds the rows of all of them, so that a page is read once for all; how the cut
//! falls never changes what a row gets, because a block's part of a row does not depend on its piece, and
//! the parts are merged in order of blocks.

use super::kernel::{BLOCK, QUERIES};
use device::{AttentionSpec, Batch, BatchSequence, PAGE_TOKENS, PageId};
use std::ops::Range;

/// Pages of a block.
const PAGES: usize = BLOCK / PAGE_TOKENS;
/// Sequences with more rows than this are prompts: each row of theirs stays in one piece.
const FEW_ROWS: usize = 16;
/// Queries of a prompt's piece, about.
const PROMPT_QUERIES: usize = 32;
/// Pieces that each thread should find, where there is enough work for it.
const SHARE: usize = 4;
/// Least work of a piece that was cut off, in queries times elements of a block: some microseconds.
const LEAST: usize = 1024;
/// Work of all pieces below which one thread does it faster alone.
const SERIAL: usize = 1024;

/// A row of the batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Its index in the batch.
    pub(crate) row: usize,
    /// The first position that it sees.
    pub(crate) from: usize,
    /// The position after the last that it sees.
    pub(crate) to: usize,
    /// Where it leaves its parts; `None`: it is computed in one go.
    pub(crate) parts: Option<Parts>,
}

/// The parts that a row's result is merged from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Number of the row among those that have parts.
    pub(crate) index: usize,
    /// Its first part among all rows' parts.
    pub(crate) first: usize,
    /// The block of its first part: the last of its first piece, which holds what came before as well.
    pub(crate) block: usize,
    /// Parts.
    pub(crate) count: usize,
    /// Pieces that leave parts for this row.
    pub(crate) pieces: usize,
}

/// Rows that are computed side by side over some blocks, for each KV head.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// A range of [`Plan::rows`].
    pub(crate) rows: Range<usize>,
    pub(crate) blocks: Range<usize>,
    /// A sequence of the batch whose pages these are.
    pub(crate) sequence: usize,
    /// No row sees anything before these blocks.
    pub(crate) leads: bool,
}

/// The pieces of a batch for one kind of layer.
#[derive(Default)]
pub(crate) struct Plan {
    /// What it was made for.
    sequences: Vec<BatchSequence>,
    tables: Vec<PageId>,
    spec: Option<AttentionSpec>,
    threads: usize,

    pub(crate) rows: Vec<Row>,
    /// The largest first, so that the last of a region are short.
    pub(crate) pieces: Vec<Piece>,
    /// Rows that have parts, and parts.
    pub(crate) parted: usize,
    pub(crate) parts: usize,
    /// Too little to share out.
    pub(crate) serial: bool,
}

impl Plan {
    /// Whether this is the plan of such a call.
    pub(crate) fn fits(&self, batch: &Batch, spec: &AttentionSpec, threads: usize) -> bool {
        self.threads == threads
            && self.spec.as_ref() == Some(spec)
            && self.sequences == batch.sequences
            && self.tables == batch.page_tables
    }

    /// Makes the plan of a batch.
    pub(crate) fn set(&mut self, batch: &Batch, spec: &AttentionSpec, threads: usize) {
        self.sequences.clone_from(&batch.sequences);
        self.tables.clone_from(&batch.page_tables);
        (self.spec, self.threads) = (Some(*spec), threads);
        self.rows.clear();
        self.pieces.clear();
        let group = spec.heads / spec.kv_heads;
        let mut few: Vec<usize> = Vec::new();
        for (index, sequence) in batch.sequences.iter().enumerate() {
            if sequence.rows.len() <= FEW_ROWS {
                few.push(index);
                continue;
            }
            let height = (PROMPT_QUERIES / group).max(1);
            for first in sequence.rows.clone().step_by(height) {
                let end = sequence.rows.end.min(first + height);
                let start = self.rows.len();
                self.rows.extend((first..end).map(|row| seen(sequence, row, spec)));
                let blocks = blocks(&self.rows[start..]);
                self.pieces.push(Piece {
                    rows: start..self.rows.len(),
                    blocks,
                    sequence: index,
                    leads: true,
                });
            }
        }
        let prompts = self.pieces.len();
        self.share(batch, spec, &mut few);
        self.cut(prompts, spec, threads);
        self.place();
        self.pieces.sort_by_key(|p| std::cmp::Reverse(p.rows.len() * p.blocks.len()));
        let seen: usize = self.rows.iter().map(|r| r.to - r.from).sum();
        self.serial = seen * spec.heads * spec.head_dim < SERIAL * BLOCK;
    }

    /// Adds the rows of sequences with few of them, together as long as their pages are the same.
    fn share(&mut self, batch: &Batch, spec: &AttentionSpec, few: &mut [usize]) {
        let most = QUERIES / (spec.heads / spec.kv_heads);
        let pages = |index: usize| batch.pages(&batch.sequences[index]);
        few.sort_by(|a, b| pages(*a).cmp(pages(*b)));
        // Where each sequence's rows start: a run of sequences is a range of rows.
        let mut starts = Vec::with_capacity(few.len() + 1);
        for index in &*few {
            starts.push(self.rows.len());
            let sequence = &batch.sequences[*index];
            self.rows.extend(sequence.rows.clone().map(|row| seen(sequence, row, spec)));
        }
        starts.push(self.rows.len());
        let alike = |a: usize, b: usize, block: usize| {
            let range = block * PAGES..(block + 1) * PAGES;
            let first = pages(few[a]).get(range.clone());
            first.is_some() && first == pages(few[b]).get(range)
        };
        // Runs of `few` that have the same pages before a block.
        let mut runs = vec![(0..few.len(), 0)];
        while let Some((run, block)) = runs.pop() {
            if run.is_empty() {
                continue;
            }
            let rows = starts[run.start]..starts[run.end];
            let seen = blocks(&self.rows[rows.clone()]);
            let mut end = seen.end;
            if run.len() > 1 {
                end = block;
                // By the order, what the first and the last have in common is common to all.
                while alike(run.start, run.end - 1, end) {
                    end += 1;
                }
                if end == block {
                    let same = run.clone().take_while(|i| *i == run.start || alike(run.start, *i, block));
                    let same = run.start + same.count();
                    runs.extend([(same..run.end, block), (run.start..same, block)]);
                    continue;
                }
                runs.push((run.clone(), end));
                end = end.min(seen.end);
            }
            let span = block.max(seen.start)..end;
            if span.is_empty() {
                continue;
            }
            for start in rows.clone().step_by(most) {
                let rows = start..rows.end.min(start + most);
                let sequence = few[run.start];
                self.pieces.push(Piece { rows, blocks: span.clone(), sequence, leads: false });
            }
        }
    }

    /// Cuts pieces from `first` on that would keep other threads waiting.
    fn cut(&mut self, first: usize, spec: &AttentionSpec, threads: usize) {
        let group = spec.heads / spec.kv_heads;
        let work = |p: &Piece| p.rows.len() * group * p.blocks.len() * spec.head_dim;
        let total = self.pieces.iter().map(work).sum::<usize>() * spec.kv_heads;
        let fair = (total / (threads * SHARE)).max(LEAST);
        for index in first..self.pieces.len() {
            let piece = self.pieces[index].clone();
            let cuts = (work(&piece) / fair).min(piece.blocks.len());
            if threads == 1 || cuts < 2 {
                continue;
            }
            let at = |i: usize| piece.blocks.start + piece.blocks.len() * i / cuts;
            self.pieces[index].blocks.end = at(1);
            for i in 1..cuts {
                self.pieces.push(Piece { blocks: at(i)..at(i + 1), ..piece.clone() });
            }
        }
    }

    /// Gives places to the parts of rows that have several pieces.
    fn place(&mut self) {
        // Pieces of each row, and the end of the first.
        let mut counts = vec![(0, usize::MAX); self.rows.len()];
        for piece in &self.pieces {
            for (pieces, end) in &mut counts[piece.rows.clone()] {
                *pieces += 1;
                *end = piece.blocks.end.min(*end);
            }
        }
        (self.parted, self.parts) = (0, 0);
        for (row, (pieces, end)) in self.rows.iter_mut().zip(&counts) {
            if *pieces < 2 {
                continue;
            }
            let count = row.to.div_ceil(BLOCK).max(*end) - (end - 1);
            let (index, first) = (self.parted, self.parts);
            row.parts = Some(Parts { index, first, block: end - 1, count, pieces: *pieces });
            self.parted += 1;
            self.parts += count;
        }
        for piece in &mut self.pieces {
            // The rows of a piece came the same way, so what is so of one is so of all.
            piece.leads = self.rows[piece.rows.start].parts.is_none_or(|p| p.block + 1 == piece.blocks.end);
        }
    }
}

fn seen(sequence: &BatchSequence, row: usize, spec: &AttentionSpec) -> Row {
    let to = sequence.start as usize + row - sequence.rows.start + 1;
    let from = spec.window.map_or(0, |window| to.saturating_sub(window as usize));
    Row { row, from, to, parts: None }
}

/// The blocks that hold what some of these rows see.
fn blocks(rows: &[Row]) -> Range<usize> {
    let from = rows.iter().map(|r| r.from / BLOCK).min().unwrap_or(0);
    from..rows.iter().map(|r| r.to.div_ceil(BLOCK)).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPEC: AttentionSpec =
        AttentionSpec { heads: 9, kv_heads: 3, head_dim: 64, scale: 0.125, window: None };

    /// The plan of sequences of `len` positions with `rows` new ones, the first `shared` pages in common.
    fn plan(sequences: &[(usize, usize)], shared: usize, threads: usize, window: Option<u32>) -> Plan {
        let mut batch = Batch::default();
        for (i, (len, rows)) in sequences.iter().enumerate() {
            let page = |p: usize| PageId(if p < shared { p } else { 1000 * (i + 1) + p } as u32);
            let table: Vec<PageId> = (0..len.div_ceil(PAGE_TOKENS)).map(page).collect();
            batch.push(&vec![0; *rows], (len - rows) as u32, &table);
        }
        batch.check();
        let mut plan = Plan::default();
        let spec = AttentionSpec { window, ..SPEC };
        plan.set(&batch, &spec, threads);
        assert!(plan.fits(&batch, &spec, threads));
        plan
    }

    /// How many pieces hold this block of this row of the batch.
    fn holders(plan: &Plan, row: usize, block: usize) -> usize {
        let holds =
            |p: &&Piece| p.blocks.contains(&block) && plan.rows[p.rows.clone()].iter().any(|r| r.row == row);
        plan.pieces.iter().filter(holds).count()
    }

    #[test]
    fn the_pieces_of_a_row_tile_what_it_sees() {
        for (threads, window) in [(1, None), (2, None), (16, None), (2, Some(300))] {
            let plan = plan(&[(2000, 1), (40, 40), (1990, 3), (900, 100), (1, 1)], 100, threads, window);
            assert_eq!(plan.rows.len(), 145);
            for row in &plan.rows {
                for block in row.from / BLOCK..row.to.div_ceil(BLOCK) {
                    assert_eq!(holders(&plan, row.row, block), 1, "{row:?}, block {block}");
                }
            }
        }
    }

    #[test]
    fn a_shared_prefix_is_in_pieces_of_all_who_share_it() {
        let plan = plan(&[(2048, 1); 8], 1700 / PAGE_TOKENS, 2, None);
        for piece in &plan.pieces {
            let expected = if piece.blocks.start < 1700 / BLOCK { 8 } else { 1 };
            assert_eq!(piece.rows.len(), expected, "{piece:?}");
        }
        assert_eq!(
            plan.pieces.iter().filter(|p| p.rows.len() == 8).map(|p| p.blocks.len()).sum::<usize>(),
            13
        );
    }

    #[test]
    fn one_long_sequence_gives_every_thread_something_to_do() {
        for threads in [2, 8, 16] {
            let plan = plan(&[(4096, 1)], 0, threads, None);
            assert!(plan.pieces.len() * SPEC.kv_heads >= threads, "{threads} threads");
            assert!(!plan.serial);
        }
        assert!(plan(&[(20, 1)], 0, 2, None).serial, "a short one is not worth a region");
    }
}

//! One step's work as plain data: which rows, of which sequences, over which pages.
//!
//! Invariant (`check`): the sequences' row ranges tile `[0, rows)` in order; each row's position follows
//! from its sequence's start; each sequence's page table covers its last position.

use crate::PAGE_TOKENS;
use std::ops::Range;

/// A page of KV cache; an index into the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageId(pub u32);

/// Copy a page before the step runs (copy on write of a part-filled page).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PageCopy {
    /// The page that is read.
    pub from: PageId,
    /// The page that is overwritten.
    pub to: PageId,
}

/// One sequence's share of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchSequence {
    /// Its rows of the batch.
    pub rows: Range<usize>,
    /// Position of its first row; positions count up from there.
    pub start: u32,
    /// Its page table, a range of [`Batch::page_tables`]: page `i` holds positions
    /// `[i * PAGE_TOKENS, (i + 1) * PAGE_TOKENS)`.
    pub pages: Range<usize>,
}

impl BatchSequence {
    /// Positions `[0, end)` are in the cache once the step has run.
    #[must_use]
    pub fn end(&self) -> u32 {
        self.start + self.rows.len() as u32
    }
}

/// The rows of one step, grouped by sequence (ragged: each sequence may have any number of rows).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Batch {
    /// Token id of each row.
    pub ids: Vec<u32>,
    /// Position of each row in its sequence.
    pub positions: Vec<u32>,
    /// The sequences, in row order.
    pub sequences: Vec<BatchSequence>,
    /// All page tables, one after the other.
    pub page_tables: Vec<PageId>,
    /// Rows whose logits are wanted, in ascending order.
    pub logit_rows: Vec<u32>,
    /// Copies to make before anything else.
    pub copies: Vec<PageCopy>,
}

impl Batch {
    /// Empties the batch and keeps its memory.
    pub fn clear(&mut self) {
        self.ids.clear();
        self.positions.clear();
        self.sequences.clear();
        self.page_tables.clear();
        self.logit_rows.clear();
        self.copies.clear();
    }

    /// Rows in the batch.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.ids.len()
    }

    /// Appends a sequence's rows: `ids` at positions from `start` over `pages`.
    pub fn push(&mut self, ids: &[u32], start: u32, pages: &[PageId]) {
        let first = self.ids.len();
        self.ids.extend_from_slice(ids);
        self.positions.extend(start..start + ids.len() as u32);
        let first_page = self.page_tables.len();
        self.page_tables.extend_from_slice(pages);
        self.sequences.push(BatchSequence {
            rows: first..self.ids.len(),
            start,
            pages: first_page..self.page_tables.len(),
        });
    }

    /// Appends rows to the sequence that was pushed last; its page table must cover them.
    pub fn extend(&mut self, ids: &[u32]) {
        let sequence = self.sequences.last_mut().expect("a sequence was pushed");
        let end = sequence.end();
        self.ids.extend_from_slice(ids);
        self.positions.extend(end..end + ids.len() as u32);
        sequence.rows.end = self.ids.len();
    }

    /// The page table of a sequence.
    #[must_use]
    pub fn pages(&self, sequence: &BatchSequence) -> &[PageId] {
        &self.page_tables[sequence.pages.clone()]
    }

    /// Checks the module invariant.
    pub fn check(&self) {
        assert_eq!(self.ids.len(), self.positions.len(), "an id and a position per row");
        let mut next = 0;
        for sequence in &self.sequences {
            assert_eq!(sequence.rows.start, next, "rows tile the batch");
            assert!(!sequence.rows.is_empty(), "a sequence without rows");
            next = sequence.rows.end;
            for (i, row) in sequence.rows.clone().enumerate() {
                assert_eq!(self.positions[row], sequence.start + i as u32, "positions count up");
            }
            assert!(
                sequence.pages.len() * PAGE_TOKENS >= sequence.end() as usize,
                "the page table covers the last position"
            );
        }
        assert_eq!(next, self.ids.len(), "rows tile the batch");
        assert!(self.logit_rows.is_sorted(), "logit rows ascend");
        assert!(self.logit_rows.iter().all(|r| (*r as usize) < self.ids.len()), "logit rows exist");
    }
}

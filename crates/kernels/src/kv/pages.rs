//! The memory of pages: chunks of several pages each, in which a head's keys and values of neighbouring pages lie side
//! by side. Reading a layer's head over many pages is then a few long streams on huge pages: in pages that each had
//! their own memory it was bound by the misses of the processor's address tables.
//!
//! ```text
//! chunk = for each run of a page: that run of the chunk's first page, of its second, ..
//! ```
//! A run is what a layer's head keeps in a page.
//!
//! Invariants: a page that has memory has one slot, and a slot one page; all chunks but for less than two hold pages
//! without a gap in number (pages move to lower slots when others are dropped), so dropped pages' memory goes back to
//! the system but for two chunks at most, and all of it when the last is dropped.
//!
//! What it does not do: know what a run holds.

use crate::buffer::{Buffer, Shared};
use device::{DeviceError, PageId};
use std::ops::Range;

/// Pages of a chunk, at most. More gave nothing when it was measured.
const PAGES: usize = 16;
/// Bytes of a chunk, where it has several pages.
const BYTES: usize = 8 << 20;

/// Pages' memory.
pub(super) struct Pages {
    /// The runs of a page, back to back.
    runs: Vec<Range<usize>>,
    /// Bytes of a page.
    bytes: usize,
    /// Pages of a chunk; a power of two.
    chunk: usize,
    chunks: Vec<Buffer<u8>>,
    /// Of each page, if it has memory.
    slots: Vec<Option<usize>>,
    /// The pages in the chunks' slots.
    pages: Vec<Option<PageId>>,
    /// Pages that have memory.
    held: usize,
    /// Slots below are taken.
    taken: usize,
}

impl Pages {
    /// No pages yet; `runs` tile a page.
    pub(super) fn new(runs: Vec<Range<usize>>) -> Self {
        let bytes = runs.last().map_or(0, |run| run.end);
        let chunk = 1 << (BYTES / bytes.max(1)).clamp(1, PAGES).ilog2();
        let (chunks, slots, pages) = (Vec::new(), Vec::new(), Vec::new());
        Self { runs, bytes, chunk, chunks, slots, pages, held: 0, taken: 0 }
    }

    pub(super) fn ensure(&mut self, page: PageId) -> Result<(), DeviceError> {
        let index = page.0 as usize;
        if self.slots.get(index).copied().flatten().is_some() {
            return Ok(());
        }
        let slot = self.vacant();
        if slot == self.pages.len() {
            self.chunks.push(Buffer::lasting(self.bytes * self.chunk)?);
            self.pages.resize(slot + self.chunk, None);
        }
        if index >= self.slots.len() {
            self.slots.resize(index + 1, None);
        }
        (self.slots[index], self.pages[slot]) = (Some(slot), Some(page));
        self.held += 1;
        Ok(())
    }

    /// The lowest slot without a page, or that after the last.
    fn vacant(&mut self) -> usize {
        let free = self.pages[self.taken..].iter().position(Option::is_none);
        self.taken = free.map_or(self.pages.len(), |free| self.taken + free);
        self.taken
    }

    /// Takes a page's memory away, if it has any.
    pub(super) fn discard(&mut self, page: PageId) {
        let Some(slot) = self.slots.get_mut(page.0 as usize).and_then(Option::take) else { return };
        self.pages[slot] = None;
        self.taken = self.taken.min(slot);
        self.held -= 1;
        while self.pages.len() - self.held >= 2 * self.chunk || (self.held == 0 && !self.pages.is_empty()) {
            for last in self.pages.len() - self.chunk..self.pages.len() {
                if let Some(page) = self.pages[last].take() {
                    // There is one in the chunks before, since two chunks' worth is vacant.
                    let slot = self.vacant();
                    self.transfer(last, slot);
                    (self.slots[page.0 as usize], self.pages[slot]) = (Some(slot), Some(page));
                }
            }
            self.pages.truncate(self.pages.len() - self.chunk);
            self.taken = self.taken.min(self.pages.len());
            self.chunks.pop();
        }
    }

    /// Copies what a slot holds to another.
    fn transfer(&mut self, from: usize, to: usize) {
        let chunk = self.chunk;
        for run in &self.runs {
            let (source, target) = (place(chunk, from, run), place(chunk, to, run));
            if from / chunk == to / chunk {
                self.chunks[from / chunk].copy_within(source, target.start);
            } else {
                let both = self.chunks.get_disjoint_mut([from / chunk, to / chunk]);
                let [a, b] = both.expect("two chunks");
                b[target].copy_from_slice(&a[source]);
            }
        }
    }

    #[inline(always)]
    fn slot(&self, page: PageId) -> usize {
        self.slots.get(page.0 as usize).copied().flatten().expect("the page has memory")
    }

    /// Whether a page has memory.
    #[inline(always)]
    pub(super) fn has(&self, page: PageId) -> bool {
        self.slots.get(page.0 as usize).is_some_and(Option::is_some)
    }

    /// A run of a page.
    #[inline(always)]
    pub(super) fn run(&self, page: PageId, run: &Range<usize>) -> &[u8] {
        let slot = self.slot(page);
        &self.chunks[slot >> self.chunk.trailing_zeros()][place(self.chunk, slot, run)]
    }

    pub(super) fn copy(&mut self, from: PageId, to: PageId) {
        self.transfer(self.slot(from), self.slot(to));
    }

    /// Appends a page's runs to `out`, in order.
    pub(super) fn export(&self, page: PageId, out: &mut Vec<u8>) {
        out.reserve(self.bytes);
        self.runs.iter().for_each(|run| out.extend_from_slice(self.run(page, run)));
    }

    pub(super) fn import(&mut self, page: PageId, bytes: &[u8]) {
        assert_eq!(bytes.len(), self.bytes, "an exported page has this layout's size");
        let slot = self.slot(page);
        let chunk = &mut self.chunks[slot / self.chunk];
        for run in &self.runs {
            chunk[place(self.chunk, slot, run)].copy_from_slice(&bytes[run.clone()]);
        }
    }

    /// The pages, to be written by several threads.
    pub(super) fn writer(&mut self) -> Writer<'_> {
        let chunks = self.chunks.iter_mut().map(|chunk| Shared::new(chunk)).collect();
        Writer { chunks, slots: &self.slots, chunk: self.chunk }
    }
}

/// Where a run of a slot lies in its chunk.
#[inline(always)]
fn place(chunk: usize, slot: usize, run: &Range<usize>) -> Range<usize> {
    let start = run.start * chunk + (slot & (chunk - 1)) * run.len();
    start..start + run.len()
}

/// Pages that several threads write, each its own runs.
pub(super) struct Writer<'a> {
    chunks: Vec<Shared<'a, u8>>,
    slots: &'a [Option<usize>],
    chunk: usize,
}

impl Writer<'_> {
    /// A run of a page.
    ///
    /// # Safety
    /// Nobody else has this run of this page.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn run(&self, page: PageId, run: &Range<usize>) -> &mut [u8] {
        let slot = self.slots.get(page.0 as usize).copied().flatten().expect("the page has memory");
        let place = place(self.chunk, slot, run);
        // SAFETY: the caller promises that the run is alone, and runs of slots do not overlap.
        unsafe { self.chunks[slot / self.chunk].part(place.start, place.len()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUNS: [Range<usize>; 3] = [0..64, 64..192, 192..256];

    fn pages(count: u32) -> Pages {
        let mut pages = Pages::new(RUNS.to_vec());
        for page in (0..count).map(PageId) {
            pages.ensure(page).expect("memory");
            pages.import(page, &content(page));
        }
        pages
    }

    fn content(page: PageId) -> Vec<u8> {
        (0..256).map(|i| (i as u32 * 7 + page.0 * 31) as u8).collect()
    }

    #[track_caller]
    fn check(pages: &Pages, page: PageId) {
        let mut bytes = Vec::new();
        pages.export(page, &mut bytes);
        assert_eq!(bytes, content(page), "{page:?}");
        let runs: Vec<u8> = RUNS.iter().flat_map(|run| pages.run(page, run).to_vec()).collect();
        assert_eq!(runs, bytes, "{page:?}");
    }

    #[test]
    fn runs_of_pages_in_order_of_need_lie_side_by_side() {
        let pages = pages(PAGES as u32 + 1);
        let start = |page: u32| pages.run(PageId(page), &RUNS[1]).as_ptr().addr();
        for page in 1..PAGES as u32 {
            assert_eq!(start(page), start(page - 1) + 128);
        }
    }

    #[test]
    fn pages_keep_their_content_while_others_are_dropped_and_memory_goes_back() {
        let count = 10 * PAGES as u32;
        // Upwards, downwards, and criss-cross.
        for order in [1, count - 1, 7 * 13] {
            let mut pages = pages(count);
            let mut kept: Vec<u32> = (0..count).collect();
            for i in 0..count {
                let page = i * order % count;
                kept.retain(|p| *p != page);
                pages.discard(PageId(page));
                pages.discard(PageId(page));
                assert!(!pages.has(PageId(page)));
                kept.iter().for_each(|page| check(&pages, PageId(*page)));
                assert!(pages.chunks.len() * PAGES < kept.len() + 2 * PAGES, "{} kept", kept.len());
            }
            assert!(pages.chunks.is_empty());
            // A page of any number can come back.
            pages.ensure(PageId(5)).expect("memory");
            pages.import(PageId(5), &content(PageId(5)));
            check(&pages, PageId(5));
        }
    }

    #[test]
    fn copies_go_within_a_chunk_and_between_chunks() {
        let mut pages = pages(2 * PAGES as u32);
        for (from, to) in [(0, 1), (2, PAGES as u32 + 3)] {
            pages.copy(PageId(from), PageId(to));
            let mut bytes = Vec::new();
            pages.export(PageId(to), &mut bytes);
            assert_eq!(bytes, content(PageId(from)));
        }
        check(&pages, PageId(PAGES as u32));
    }
}

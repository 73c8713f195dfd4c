//! Random ways to work on the same sequences: cut into chunks, interleaved, over shared and copied pages.
//!
//! The promise of [`device::Device`] says that none of it changes a logit; [`check_against`] holds a model to it
//! bit for bit.

use super::logits;
use base::rng;
use device::{Batch, PAGE_TOKENS, PageCopy, PageId};
use models::LanguageModel;

const CHUNKS: [usize; 5] = [1, 3, 7, 16, 64];

/// A sequence on its way through the model.
struct Sequence {
    ids: Vec<u32>,
    /// Positions that are in the cache.
    done: usize,
    pages: Vec<PageId>,
    /// Sequence and length of the prefix that it shares.
    parent: Option<(usize, usize)>,
    /// Logits of each position, worked out alone and in one go.
    expected: Vec<f32>,
}

/// Numbers that depend on the seed and on how many were drawn.
struct Dice {
    seed: u64,
    drawn: u32,
}

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.drawn += 1;
        (rng::bits(self.seed, 0, self.drawn) % sides as u64) as usize
    }
}

fn ids(dice: &mut Dice, vocab: u32, len: usize) -> Vec<u32> {
    (0..len).map(|_| dice.roll(vocab as usize) as u32).collect()
}

/// Two sequences of their own and three that begin as the first one does: on a page's border, within a
/// page, and within a page of a sequence that itself has a copied page.
fn sequences(model: &mut dyn LanguageModel, dice: &mut Dice) -> Vec<Sequence> {
    let vocab = model.spec().vocab;
    let shapes = [(None, 90), (Some((0, 32)), 65), (Some((0, 41)), 70), (Some((2, 45)), 60), (None, 23)];
    let mut sequences: Vec<Sequence> = Vec::new();
    for (parent, len) in shapes {
        let mut all = parent.map_or(Vec::new(), |(from, shared)| sequences[from].ids[..shared].to_vec());
        let own = len - all.len();
        all.extend(ids(dice, vocab, own));
        let positions: Vec<u32> = (0..len as u32).collect();
        let expected = logits(model, &all, &positions);
        sequences.push(Sequence { ids: all, done: 0, pages: Vec::new(), parent, expected });
    }
    sequences
}

/// Page ids that no two sequences share by accident, in no order.
struct Free(Vec<PageId>);

impl Free {
    fn take(&mut self, model: &mut dyn LanguageModel, dice: &mut Dice) -> PageId {
        let page = self.0.swap_remove(dice.roll(self.0.len()));
        model.ensure_page(page).unwrap();
        page
    }
}

/// Gives a sequence the pages of its parent: whole ones are shared, a part-filled one is copied.
fn fork(
    sequences: &mut [Sequence],
    child: usize,
    (parent, shared): (usize, usize),
    copies: &mut Vec<PageCopy>,
    mut page: impl FnMut() -> PageId,
) {
    let mut pages = sequences[parent].pages[..shared / PAGE_TOKENS].to_vec();
    if !shared.is_multiple_of(PAGE_TOKENS) {
        let copy = PageCopy { from: sequences[parent].pages[shared / PAGE_TOKENS], to: page() };
        copies.push(copy);
        pages.push(copy.to);
    }
    sequences[child].pages = pages;
    sequences[child].done = shared;
}

/// Runs the sequences by the schedule that the seed stands for and compares every wanted logit with the
/// one that `alone` gives for the sequence alone, bit for bit.
pub fn check_against(alone: &mut dyn LanguageModel, model: &mut dyn LanguageModel, seed: u64) {
    let mut dice = Dice { seed, drawn: 0 };
    let vocab = model.spec().vocab as usize;
    let mut sequences = sequences(alone, &mut dice);
    let mut free = Free((0..64).map(PageId).collect());
    let mut started = [false; 5];
    let mut batch = Batch::default();
    while sequences.iter().any(|sequence| sequence.done < sequence.ids.len()) {
        batch.clear();
        let mut wanted = Vec::new();
        // Forks copy from what earlier steps wrote, so they are decided before this step's rows.
        for child in 0..sequences.len() {
            match sequences[child].parent {
                None => started[child] = true,
                Some((parent, shared)) if !started[child] && sequences[parent].done >= shared => {
                    let copies = &mut batch.copies;
                    fork(&mut sequences, child, (parent, shared), copies, || free.take(model, &mut dice));
                    started[child] = true;
                }
                Some(_) => {}
            }
        }
        for (index, sequence) in sequences.iter_mut().enumerate() {
            let left = sequence.ids.len() - sequence.done;
            if !started[index] || left == 0 || dice.roll(3) == 0 {
                continue;
            }
            let start = sequence.done;
            let len = CHUNKS[dice.roll(CHUNKS.len())].min(left);
            while sequence.pages.len() * PAGE_TOKENS < start + len {
                sequence.pages.push(free.take(model, &mut dice));
            }
            let first_row = batch.rows();
            batch.push(&sequence.ids[start..start + len], start as u32, &sequence.pages);
            for row in (0..len).filter(|row| *row + 1 == len || dice.roll(3) > 0) {
                batch.logit_rows.push((first_row + row) as u32);
                wanted.push((index, start + row));
            }
            sequence.done += len;
        }
        let found = model.forward(&batch);
        assert_eq!(found.len(), wanted.len() * vocab);
        for (found, (index, position)) in found.chunks(vocab).zip(wanted) {
            let expected = &sequences[index].expected[position * vocab..][..vocab];
            let same = found.iter().zip(expected).all(|(a, b)| a.to_bits() == b.to_bits());
            assert!(same, "seed {seed}: sequence {index} differs at position {position}");
        }
    }
}

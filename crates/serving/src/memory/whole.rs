//! Whole answers: what a model said with its marks, found again where a template writes it anew.
//!
//! Content is found by its span (see the parent module). An answer with tool calls or a thought is more than
//! content: the template writes its marks, names and arguments itself, often to the same text. So such
//! an answer is remembered under the text of the prompt that it followed,
//!
//! ```text
//! (namespace, hash of the rendered prompt)  ->  [ids and text of an answer, marks shown]
//! ```
//!
//! and looked for at every place of a rendering where a prompt may have ended. Prompts of one template end in a
//! few ways only (`<|im_start|>assistant\n`), so those ends are kept, and only behind one of them is the hash of
//! the text before looked up.
//!
//! What stands for text that reads the same: ids are spliced as far as their text is the rendering's. An id of
//! a control token stands only for text that the template itself wrote, never for a caller's, whoever said
//! it first. An answer that was changed in the middle is spliced up to the change if that saves a page.
//!
//! Invariant: as in the parent, for this store's own entries, order and `used`; each end has the number of entries
//! with it, and there are at most [`ENDS`].

use super::OVERHEAD;
use crate::template::{Origin, Span};
use base::{Namespace, rng};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use tokenizer::Tokenizer;

/// Bytes of a prompt's end that are kept.
const END: usize = 8;
/// Most different ends. A template that ends a prompt with what the caller wrote has any number of them.
const ENDS: usize = 8;
/// Most answers to one prompt that are kept.
const ANSWERS: usize = 8;
/// Ids that a splice must save where the answer does not come back whole: a page.
const WORTHWHILE: usize = 16;

/// What an answer followed: the hash of the rendered prompt and the last bytes of the template's text.
#[derive(Clone, Debug)]
pub struct RenderedPrompt {
    hash: u64,
    end: Box<str>,
}

/// Ids that stand for a stretch of a rendering.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Splice {
    pub range: Range<usize>,
    pub ids: Vec<u32>,
}

type Key = (Namespace, u64);

pub(super) struct Whole {
    limit: usize,
    seed: u64,
    entries: FxHashMap<Key, Entry>,
    order: BTreeMap<u64, Key>,
    /// How many entries have this end.
    ends: Vec<(Box<str>, usize)>,
    clock: u64,
    used: usize,
}

struct Entry {
    answers: Vec<Said>,
    end: Box<str>,
    cost: usize,
    used: u64,
}

/// An answer.
pub(super) struct Said {
    ids: Box<[u32]>,
    /// Per id: where its text ends in the answer's, and whether it is a control token.
    ends: Box<[(u32, bool)]>,
    text: Box<str>,
}

impl Said {
    /// What was said in `ids`, of which those of `shown` are marks; up to the first other control token.
    pub fn new(tokenizer: &Tokenizer, shown: &Arc<[u32]>, ids: &[u32]) -> Self {
        let mut detokenizer = tokenizer.detokenizer_showing(Arc::clone(shown));
        let (mut text, mut ends) = (String::new(), Vec::with_capacity(ids.len()));
        for id in ids {
            let control = tokenizer.is_control(*id);
            if control && !shown.contains(id) {
                break;
            }
            text.push_str(detokenizer.push(*id));
            let Ok(end) = u32::try_from(text.len()) else { break };
            ends.push((end, control));
        }
        Self { ids: ids[..ends.len()].into(), ends: ends.into(), text: text.into() }
    }

    fn cost(&self) -> usize {
        self.text.len() + 12 * self.ids.len()
    }
}

impl Whole {
    pub fn new(limit: usize, seed: u64) -> Self {
        Self {
            limit,
            seed,
            entries: FxHashMap::default(),
            order: BTreeMap::new(),
            ends: Vec::new(),
            clock: 0,
            used: 0,
        }
    }

    /// What an answer to this prompt is remembered by, under this memory's `seed`.
    pub fn prompt(seed: u64, spans: &[Span]) -> RenderedPrompt {
        let hash = spans.iter().fold(seed, |hash, span| extended(hash, span.text.as_bytes()));
        let last = spans.last().filter(|span| span.origin == Origin::Template);
        let end = last.map_or("", |span| {
            let from = (span.text.len().saturating_sub(END)..).find(|at| span.text.is_char_boundary(*at));
            &span.text[from.unwrap_or(0)..]
        });
        RenderedPrompt { hash, end: end.into() }
    }

    /// Remembers what was said after a prompt.
    pub fn remember(&mut self, namespace: Namespace, prompt: &RenderedPrompt, said: Said) {
        if prompt.end.is_empty() || said.text.is_empty() || OVERHEAD + said.cost() > self.limit {
            return;
        }
        let key = (namespace, prompt.hash);
        let mut answers = self.remove(&key).map_or_else(Vec::new, |entry| entry.answers);
        answers.retain(|known| known.text != said.text);
        if answers.len() >= ANSWERS {
            answers.remove(0);
        }
        answers.push(said);
        while OVERHEAD + answers.iter().map(Said::cost).sum::<usize>() > self.limit {
            answers.remove(0);
        }
        match self.ends.iter().position(|(end, _)| *end == prompt.end) {
            Some(at) => self.ends[at].1 += 1,
            None if self.ends.len() < ENDS => self.ends.push((prompt.end.clone(), 1)),
            None => return,
        }
        let cost = OVERHEAD + answers.iter().map(Said::cost).sum::<usize>();
        self.clock += 1;
        self.order.insert(self.clock, key);
        self.entries.insert(key, Entry { answers, end: prompt.end.clone(), cost, used: self.clock });
        self.used += cost;
        while self.used > self.limit {
            let (_, oldest) = self.order.first_key_value().expect("used bytes belong to entries");
            let oldest = *oldest;
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, key: &Key) -> Option<Entry> {
        let entry = self.entries.remove(key)?;
        self.order.remove(&entry.used);
        self.used -= entry.cost;
        let at = self.ends.iter().position(|(end, _)| *end == entry.end).expect("an entry's end is listed");
        self.ends[at].1 -= 1;
        if self.ends[at].1 == 0 {
            self.ends.swap_remove(at);
        }
        Some(entry)
    }

    /// Answers that stand in a rendering, in order; `text` is the text of all its spans.
    pub fn find(&mut self, namespace: Namespace, spans: &[Span], text: &str) -> Vec<Splice> {
        if self.entries.is_empty() {
            return Vec::new();
        }
        let mut places: Vec<usize> = self
            .ends
            .iter()
            .flat_map(|(end, _)| text.match_indices(&**end).map(|(at, _)| at + end.len()))
            .collect();
        places.sort_unstable();
        places.dedup();
        let (mut hash, mut hashed) = (self.seed, 0);
        let mut splices: Vec<Splice> = Vec::new();
        for place in places {
            hash = extended(hash, &text.as_bytes()[hashed..place]);
            hashed = place;
            if splices.last().is_some_and(|splice| place < splice.range.end) {
                continue;
            }
            let key = (namespace, hash);
            let Some(entry) = self.entries.get_mut(&key) else { continue };
            let covered = entry.answers.iter().map(|said| (said.cover(text, place, spans), said));
            let Some((count, said)) = covered.max_by_key(|(count, _)| *count) else { continue };
            let Some(last) = count.checked_sub(1) else { continue };
            let end = said.ends[last].0 as usize;
            if count < WORTHWHILE && !said.text[end..].trim().is_empty() {
                continue;
            }
            let end = place + end;
            splices.push(Splice { range: place..end, ids: said.ids[..count].to_vec() });
            self.clock += 1;
            let before = std::mem::replace(&mut entry.used, self.clock);
            self.order.remove(&before);
            self.order.insert(self.clock, key);
        }
        splices
    }

    pub fn check(&self) {
        assert_eq!(self.entries.values().map(|e| e.cost).sum::<usize>(), self.used, "bytes add up");
        assert!(self.used <= self.limit, "the limit is kept");
        assert_eq!(self.order.len(), self.entries.len(), "each entry has its place in the order");
        assert!(self.order.iter().all(|(used, key)| self.entries[key].used == *used), "the order is right");
        assert!(self.ends.len() <= ENDS, "ends are few");
        assert_eq!(self.ends.iter().map(|(_, n)| n).sum::<usize>(), self.entries.len(), "each has its end");
    }
}

impl Said {
    /// How many first ids stand for what `text` has from `place` on.
    fn cover(&self, text: &str, place: usize, spans: &[Span]) -> usize {
        let common = self.text.bytes().zip(text[place..].bytes()).take_while(|(a, b)| a == b).count();
        let mut from = 0;
        let mut count = 0;
        for (i, (end, control)) in self.ends.iter().enumerate() {
            let end = *end as usize;
            if end > common || (*control && !of_template(spans, place + from..place + end)) {
                break;
            }
            // An id without text of its own is part of a character that a later one ends.
            if end > from {
                count = i + 1;
            }
            from = end;
        }
        count
    }
}

/// Whether this stretch of a rendering is the template's.
fn of_template(spans: &[Span], range: Range<usize>) -> bool {
    let mut at = 0;
    for span in spans {
        let end = at + span.text.len();
        if at < range.end && end > range.start && span.origin != Origin::Template {
            return false;
        }
        at = end;
    }
    true
}

/// The hash of a text that goes on: of all its bytes in order, however it was cut.
fn extended(hash: u64, bytes: &[u8]) -> u64 {
    bytes.iter().fold(hash, |hash, byte| rng::mix(hash ^ u64::from(*byte)))
}

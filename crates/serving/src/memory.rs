//! Turn memory: the token ids of the answers that were given, so that the next turn of a conversation can say
//! them in the same tokens.
//!
//! A model seldom answers in the tokens that a tokenizer would choose for the answer's text. When the text
//! comes back in the next request's history and is tokenised anew, the prompt leaves the cached prefix inside
//! the last answer. So each answer is remembered under what it followed and what it said:
//!
//! ```text
//! (namespace, hash of the prompt's ids, text of the answer)  ->  ids of the answer
//! ```
//!
//! and [`TurnMemory::encode`] puts the ids in place of a span that says the same after the same ids. The next
//! turn's prompt is then, id for id, the last prompt, the last answer, and what is new.
//!
//! The borders:
//! - *White space.* Templates trim content, and spans have their outer white space outside. An answer is found
//!   by its text without white space around it; its leading white space must stand before the span, and of the
//!   trailing one what does not follow the span is not spliced. SentencePiece drops a leading space
//!   when it decodes, which a template then writes itself: both forms are remembered.
//! - *Cut text.* Of an answer that ended by a stop text or by a client that went away, those tokens
//!   are kept whose text was wholly delivered; the rest of the text is tokenised. An answer that ended
//!   by `max_tokens` is remembered whole, a broken last character included.
//! - *Several answers* to one prompt are remembered each under its own text.
//! - *Control tokens.* Ids are kept up to the first control token: no text may stand for one.
//! - *Calls and thoughts* are more than content, and are remembered as whole answers, see [`whole`].
//!
//! Invariant: the entries' bytes add up to `used`, `used <= limit`, and every entry stands in the order of use
//! and in the index by text exactly once. The least recently used entries go first. A hash that lies (64 bits)
//! would splice what the same namespace said after another prompt; the text would still be right.

mod whole;

pub use whole::RenderedPrompt;

use crate::template::{Origin, Span};
use base::{Bytes, Namespace, rng};
use rustc_hash::FxHashMap;
use std::collections::BTreeMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokenizer::{Piece, Specials, Tokenizer, TooLong};
use whole::{Said, Splice, Whole};

/// What an entry costs beside its text and ids.
const OVERHEAD: usize = 256;
/// How often a prompt is tokenised up to a span in vain before spans are no longer looked up: each time costs
/// the prompt so far, and a prompt may hold many short texts that were said elsewhere.
const MISSES: usize = 16;

/// A hash of a row of ids, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PrefixHash(u64);

impl PrefixHash {
    /// Of these ids.
    #[must_use]
    pub fn of(ids: &[u32]) -> Self {
        Self(ids.iter().fold(ids.len() as u64, |hash, id| rng::mix(hash ^ u64::from(*id))))
    }
}

/// Remembers answers; shared by all requests of a model.
pub struct TurnMemory {
    limit: usize,
    hasher: RandomState,
    state: Mutex<State>,
    /// What whole answers' prompts are hashed under; apart, so that nobody hashes under the lock.
    seed: u64,
    whole: Mutex<Whole>,
}

#[derive(Default)]
struct State {
    entries: FxHashMap<Key, Entry>,
    /// By text: the white space that stands before it in some entry, and in how many.
    leads: FxHashMap<(Namespace, u64), Vec<Lead>>,
    /// Keys by last use.
    order: BTreeMap<u64, Key>,
    clock: u64,
    used: usize,
}

/// White space before an answer's text, and how many entries have it.
struct Lead {
    text: Box<str>,
    entries: usize,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    namespace: Namespace,
    prefix: PrefixHash,
    core: u64,
    lead: u64,
}

struct Entry {
    /// The whole text, as it may stand in a rendering.
    text: Box<str>,
    /// Bytes of `text` in front that decoding the ids does not give.
    unsaid: usize,
    ids: Box<[u32]>,
    used: u64,
}

/// An answer that was found again.
struct Found {
    text: Box<str>,
    unsaid: usize,
    ids: Box<[u32]>,
}

impl TurnMemory {
    /// A memory that holds about this much of what was said, and as much again of whole answers.
    #[must_use]
    pub fn new(limit: Bytes) -> Self {
        let limit = usize::try_from(limit.0).unwrap_or(usize::MAX);
        let hasher = RandomState::new();
        let seed = hasher.hash_one(0u8);
        Self { limit, hasher, state: Mutex::default(), seed, whole: Mutex::new(Whole::new(limit, seed)) }
    }

    /// What a whole answer to this prompt is remembered by.
    #[must_use]
    pub fn prompt(&self, spans: &[Span]) -> RenderedPrompt {
        Whole::prompt(self.seed, spans)
    }

    /// Remembers that after a rendered prompt a whole answer was said in `ids`, of which `shown` are control tokens
    /// that mark its parts.
    pub fn remember_whole(
        &self,
        tokenizer: &Tokenizer,
        namespace: Namespace,
        prompt: &RenderedPrompt,
        shown: &Arc<[u32]>,
        ids: &[u32],
    ) {
        // Long answers take a while to read, and others ask the store meanwhile.
        let said = Said::new(tokenizer, shown, ids);
        self.whole().remember(namespace, prompt, said);
    }

    /// Remembers that after a prompt the answer `text` was said in `ids`; the ids may go on past the text.
    pub fn remember(
        &self,
        tokenizer: &Tokenizer,
        namespace: Namespace,
        prefix: PrefixHash,
        text: &str,
        ids: &[u32],
    ) {
        let ordinary = ids.iter().position(|id| tokenizer.is_control(*id)).unwrap_or(ids.len());
        let (count, _) = cover(tokenizer, &ids[..ordinary], text);
        if count == 0 || text.trim().is_empty() {
            return;
        }
        let ids = &ids[..count];
        self.insert(namespace, prefix, text, 0, ids);
        if tokenizer.token_bytes(ids[0]).starts_with(b" ") && !text.starts_with(' ') {
            self.insert(namespace, prefix, &format!(" {text}"), 1, ids);
        }
    }

    fn insert(&self, namespace: Namespace, prefix: PrefixHash, text: &str, unsaid: usize, ids: &[u32]) {
        let core = text.trim();
        let lead = &text[..text.len() - text.trim_start().len()];
        let key =
            Key { namespace, prefix, core: self.hasher.hash_one(core), lead: self.hasher.hash_one(lead) };
        let cost = OVERHEAD + text.len() + 4 * ids.len();
        if cost > self.limit {
            return;
        }
        let mut state = self.lock();
        state.remove(&key, lead);
        state.clock += 1;
        let used = state.clock;
        state.entries.insert(key, Entry { text: text.into(), unsaid, ids: ids.into(), used });
        state.order.insert(used, key);
        state.used += cost;
        let leads = state.leads.entry((namespace, key.core)).or_default();
        match leads.iter_mut().find(|known| *known.text == *lead) {
            Some(known) => known.entries += 1,
            None => leads.push(Lead { text: lead.into(), entries: 1 }),
        }
        while state.used > self.limit {
            let (_, oldest) = state.order.pop_first().expect("used bytes belong to entries");
            let text = &state.entries[&oldest].text;
            let lead = text[..text.len() - text.trim_start().len()].to_owned();
            state.remove(&oldest, &lead);
        }
    }

    /// White space that stood before this text in some answer.
    fn leads(&self, namespace: Namespace, core: &str) -> Vec<Box<str>> {
        let state = self.lock();
        let leads = state.leads.get(&(namespace, self.hasher.hash_one(core)));
        leads.map_or_else(Vec::new, |leads| leads.iter().map(|lead| lead.text.clone()).collect())
    }

    fn find(&self, namespace: Namespace, prefix: PrefixHash, lead: &str, core: &str) -> Option<Found> {
        let key =
            Key { namespace, prefix, core: self.hasher.hash_one(core), lead: self.hasher.hash_one(lead) };
        let mut state = self.lock();
        state.clock += 1;
        let now = state.clock;
        let entry = state.entries.get_mut(&key)?;
        if entry.text.trim() != core {
            return None;
        }
        let before = std::mem::replace(&mut entry.used, now);
        let found = Found { text: entry.text.clone(), unsaid: entry.unsaid, ids: entry.ids.clone() };
        state.order.remove(&before);
        state.order.insert(now, key);
        Some(found)
    }

    /// Tokenises a rendered conversation, with remembered ids in place of answers that are in it.
    pub fn encode(
        &self,
        tokenizer: &Tokenizer,
        namespace: Namespace,
        spans: &[Span],
        limit: Option<usize>,
    ) -> Result<Vec<u32>, TooLong> {
        let whole: String = spans.iter().map(|span| span.text.as_str()).collect();
        let splices = self.whole().find(namespace, spans, &whole);
        let items = cut(spans, &splices);
        let mut text = Text { tokenizer, limit, done: Vec::new(), open: Vec::new(), misses: 0 };
        let mut skip = 0;
        for (i, item) in items.iter().enumerate() {
            let said = match *item {
                Piece::Trusted(said) | Piece::Untrusted(said) => &said[std::mem::take(&mut skip)..],
                Piece::Tokens(_) => {
                    text.open.push(*item);
                    continue;
                }
            };
            if let Piece::Trusted(_) = item {
                text.open.push(Piece::Trusted(said));
                continue;
            }
            let after = if let Some(Piece::Trusted(next)) = items.get(i + 1) { *next } else { "" };
            match self.splice(&mut text, namespace, said, after)? {
                Some(spliced) => skip = spliced,
                None => text.open.push(Piece::Untrusted(said)),
            }
        }
        text.encode(&text.open)
    }

    /// Puts remembered ids in place of `said`, if there are any for it here. Gives how many bytes of the text
    /// `after` the span they stand for as well.
    fn splice<'a>(
        &self,
        text: &mut Text<'a>,
        namespace: Namespace,
        said: &'a str,
        after: &str,
    ) -> Result<Option<usize>, TooLong> {
        for lead in self.leads(namespace, said) {
            let Some(before) = without_end(&text.open, &lead) else { continue };
            if text.misses >= MISSES {
                return Ok(None);
            }
            let prefix = text.encode(&before)?;
            text.misses += 1;
            let Some(found) = self.find(namespace, PrefixHash::of(&prefix), &lead, said) else { continue };
            let tail = &found.text[lead.len() + said.len()..];
            let shown = after.len() - after.trim_start().len();
            let follows = if after.starts_with(tail) { tail.len() } else { 0 };
            debug_assert!(follows <= shown, "a tail is white space");
            let wanted = &found.text[found.unsaid..lead.len() + said.len() + follows];
            let (count, bytes) = cover(text.tokenizer, &found.ids, wanted);
            // Ids that reach into the tail stand for it; whatever of the answer's text is left is tokenised.
            let bytes = bytes + found.unsaid;
            let (end, core_end) = (bytes, lead.len() + said.len());
            if count == 0 || end < lead.len() {
                continue;
            }
            text.misses -= 1;
            text.done = prefix;
            text.done.extend_from_slice(&found.ids[..count]);
            text.open.clear();
            if end < core_end {
                text.open.push(Piece::Untrusted(&said[end - lead.len()..]));
            }
            return Ok(Some(end.saturating_sub(core_end)));
        }
        Ok(None)
    }

    /// Checks the module invariant.
    pub fn check(&self) {
        let state = self.lock();
        let cost = |e: &Entry| OVERHEAD + e.text.len() + 4 * e.ids.len();
        assert_eq!(state.entries.values().map(cost).sum::<usize>(), state.used, "bytes add up");
        assert!(state.used <= self.limit, "the limit is kept");
        assert_eq!(state.order.len(), state.entries.len(), "each entry has its place in the order");
        assert!(state.order.iter().all(|(used, key)| state.entries[key].used == *used), "the order is right");
        let listed: usize = state.leads.values().flatten().map(|lead| lead.entries).sum();
        assert_eq!(listed, state.entries.len(), "each entry is in the index");
        self.whole().check();
    }

    fn whole(&self) -> MutexGuard<'_, Whole> {
        self.whole.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn remove(&mut self, key: &Key, lead: &str) {
        let Some(entry) = self.entries.remove(key) else { return };
        self.order.remove(&entry.used);
        self.used -= OVERHEAD + entry.text.len() + 4 * entry.ids.len();
        let place = (key.namespace, key.core);
        let leads = self.leads.get_mut(&place).expect("an entry is in the index");
        let at = leads.iter().position(|known| *known.text == *lead).expect("an entry is in the index");
        leads[at].entries -= 1;
        if leads[at].entries == 0 {
            leads.swap_remove(at);
        }
        if leads.is_empty() {
            self.leads.remove(&place);
        }
    }
}

/// The spans with splices in place of what they stand for.
fn cut<'a>(spans: &'a [Span], splices: &'a [Splice]) -> Vec<Piece<'a>> {
    let mut out = Vec::with_capacity(spans.len() + 2 * splices.len());
    let mut splices = splices.iter().peekable();
    let mut begin = 0;
    for span in spans {
        let end = begin + span.text.len();
        let mut from = begin;
        let add = |from: usize, to: usize, out: &mut Vec<Piece<'a>>| {
            let text = &span.text[from - begin..to - begin];
            match span.origin {
                _ if text.is_empty() => {}
                Origin::Template => out.push(Piece::Trusted(text)),
                Origin::Caller => out.push(Piece::Untrusted(text)),
            }
        };
        while let Some(splice) = splices.peek().filter(|splice| splice.range.start < end) {
            if splice.range.start >= begin {
                add(from, splice.range.start, &mut out);
                out.push(Piece::Tokens(&splice.ids));
            }
            from = splice.range.end.min(end);
            if splice.range.end > end {
                break;
            }
            splices.next();
        }
        add(from, end, &mut out);
        begin = end;
    }
    out
}

/// A prompt in the making: ids that are settled, then text.
struct Text<'a> {
    tokenizer: &'a Tokenizer,
    limit: Option<usize>,
    done: Vec<u32>,
    open: Vec<Piece<'a>>,
    /// Look-ups that found nothing.
    misses: usize,
}

impl Text<'_> {
    fn encode(&self, open: &[Piece<'_>]) -> Result<Vec<u32>, TooLong> {
        if self.done.is_empty() {
            return self.tokenizer.encode(open, self.limit);
        }
        let pieces: Vec<Piece<'_>> =
            std::iter::once(Piece::Tokens(&self.done)).chain(open.iter().copied()).collect();
        self.tokenizer.encode(&pieces, self.limit)
    }
}

/// The pieces without `end`, if the last one ends so.
fn without_end<'a>(pieces: &[Piece<'a>], end: &str) -> Option<Vec<Piece<'a>>> {
    let mut pieces = pieces.to_vec();
    if !end.is_empty() {
        match pieces.last_mut()? {
            Piece::Trusted(text) | Piece::Untrusted(text) => *text = text.strip_suffix(end)?,
            Piece::Tokens(_) => return None,
        }
    }
    Some(pieces)
}

/// The longest row of first ids whose text is a beginning of `text`, and the length of that text in bytes.
fn cover(tokenizer: &Tokenizer, ids: &[u32], text: &str) -> (usize, usize) {
    if tokenizer.decode(ids, Specials::Skip) == text {
        return (ids.len(), text.len());
    }
    let mut detokenizer = tokenizer.detokenizer();
    let (mut len, mut ends) = (0, Vec::new());
    for (i, id) in ids.iter().enumerate() {
        let piece = detokenizer.push(*id);
        if !text[len..].starts_with(piece) {
            break;
        }
        len += piece.len();
        ends.push((i + 1, len));
    }
    // Only a row that ends between characters decodes to exactly the text so far.
    let whole =
        |(count, end): &(usize, usize)| tokenizer.decode(&ids[..*count], Specials::Skip) == text[..*end];
    ends.into_iter().rev().take(8).find(whole).unwrap_or((0, 0))
}

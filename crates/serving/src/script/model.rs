//! The language model of a script: its logits put nearly all mass on the next token of the line that is being said.
//!
//! Each slot of a page holds the hash of all tokens up to its own, the line under way there, and how many of the line's
//! bytes have been said; a row goes on from the slot before it. Where a prompt ends that serving gave a cue for, a line
//! begins. The line is followed by its bytes and not by its tokens: a grammar may cut the same text into other tokens,
//! and may write other white space between JSON's parts.
//!
//! A token that does not go with the line (a grammar, a bias or chance chose it) loses the line for good. The answer
//! then ends as soon as it may: the end token first, then the end of a think block that is open, then tokens that
//! close strings, objects and arrays, then any by a chance that the tokens so far decide. Where the end of a think
//! block is several tokens nobody sees whether one is open; then that end is said once, after [`PATIENCE`] tokens that
//! ended nothing. So a grammar comes to an end.

use super::cues::{Cues, Prefix};
use super::line::Line;
use base::{Tokens as TokenCount, rng};
use device::{Batch, DeviceError, KvGroup, KvReach, KvSpec, PAGE_TOKENS, PageId};
use models::{LanguageModel, ModelSpec};
use rustc_hash::FxHashMap;
use std::sync::Arc;
use std::time::Duration;
use tokenizer::Tokenizer;

/// The next token of the line, as the tokenizer cuts it, or its end.
const NEXT: f32 = 100.0;
/// Another token with the line's next text; more for a longer one.
const ALIKE: f32 = 50.0;
/// The same behind white space of the line that a grammar may not have.
const UNSPACED: f32 = 30.0;
/// White space that a grammar may want where the line has none.
const SPACE: f32 = 28.0;
/// The end of a line that was lost.
const END: f32 = 40.0;
/// What ends a think block, where a line was lost in one.
const THOUGHT: f32 = 30.0;
/// What closes strings, objects and arrays.
const CLOSING: f32 = 20.0;
/// The end where the line goes on: all that a grammar may leave.
const TOO_EARLY: f32 = 10.0;

/// Tokens of a lost line until the end of a think block is tried.
const PATIENCE: u16 = 64;

/// Longest token that is looked for in a line's text, in bytes.
const LONGEST: usize = 32;

/// Tokens by their text.
pub(super) struct Tokens {
    bytes: Vec<Box<[u8]>>,
    by_bytes: FxHashMap<Box<[u8]>, u32>,
    closing: Vec<u32>,
    /// What begins and ends a think block in this family's answers.
    think: Option<Block>,
}

/// A think block's marks.
struct Block {
    open: Option<u32>,
    /// The end's token, where it is one, and its text.
    close: Option<u32>,
    text: Box<[u8]>,
}

impl Tokens {
    /// `think`: the marks of a think block.
    pub fn new(tokenizer: &Tokenizer, think: Option<(&str, &str)>) -> Self {
        let bytes: Vec<Box<[u8]>> =
            (0..tokenizer.vocab_size()).map(|id| tokenizer.token_bytes(id).into()).collect();
        let ordinary = |id: &u32| !tokenizer.is_control(*id) && !bytes[*id as usize].is_empty();
        let mut by_bytes = FxHashMap::default();
        let mut closing = Vec::new();
        for id in (0..tokenizer.vocab_size()).filter(ordinary) {
            let text = &bytes[id as usize];
            if text.iter().all(|byte| b"\"}]".contains(byte)) {
                closing.push(id);
            }
            if text.len() <= LONGEST {
                by_bytes.entry(text.clone()).or_insert(id);
            }
        }
        let think = think.map(|(open, close)| Block {
            open: tokenizer.token_id(open),
            close: tokenizer.token_id(close),
            text: close.as_bytes().into(),
        });
        Self { bytes, by_bytes, closing, think }
    }

    /// Tokens that a text begins with, and their lengths, shortest first.
    fn beginning<'a>(&'a self, text: &'a [u8]) -> impl Iterator<Item = (u32, usize)> {
        let lengths = 1..=text.len().min(LONGEST);
        lengths.filter_map(|length| Some((*self.by_bytes.get(&text[..length])?, length)))
    }
}

/// What a script's model is made of.
#[derive(Clone)]
pub(super) struct Spec {
    pub vocab: u32,
    pub context: TokenCount,
    pub pace: Option<Duration>,
    pub tokens: Arc<Tokens>,
    pub lines: Arc<[Line]>,
}

/// A line that is being said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progress {
    /// No prompt that is known ended so far.
    Silent,
    /// So many bytes of the line were said.
    Line { line: u32, said: u32 },
    /// Something else was said, or the line has been ended: so many tokens ago, at most [`PATIENCE`], and so many
    /// bytes of a think block's end were said since then.
    Lost { since: u16, ended: u16 },
}

impl Progress {
    const LOST: Self = Self::Lost { since: 0, ended: 0 };
}

/// What a page holds of a token.
#[derive(Clone, Copy, Debug)]
struct Slot {
    prefix: Prefix,
    progress: Progress,
    /// Whether the last mark of a think block was one that begins it.
    thinking: bool,
}

type Page = [Slot; PAGE_TOKENS];

/// See the module.
pub(super) struct ScriptModel {
    spec: ModelSpec,
    script: Spec,
    cues: Arc<Cues>,
    pages: Vec<Option<Box<Page>>>,
    logits: Vec<f32>,
}

impl ScriptModel {
    pub fn new(script: Spec, cues: Arc<Cues>) -> Self {
        // One layer of one head of twelve: 48 bytes a token, as much as a slot and its share of the page's box.
        let group = KvGroup { reach: KvReach::Full, layers: vec![0], kv_heads: 1, head_dim: 12 };
        let spec = ModelSpec {
            architecture: "script".to_owned(),
            vocab: script.vocab,
            context: script.context,
            kv: KvSpec { groups: vec![group], ..KvSpec::default() },
        };
        debug_assert!(size_of::<Page>() as u64 <= spec.kv.page_bytes().0, "a page is counted in full");
        Self { spec, script, cues, pages: Vec::new(), logits: Vec::new() }
    }

    fn page(&self, page: PageId) -> &Page {
        self.pages[page.0 as usize].as_deref().expect("the engine uses pages that have memory")
    }

    fn page_mut(&mut self, page: PageId) -> &mut Page {
        self.pages[page.0 as usize].as_deref_mut().expect("the engine uses pages that have memory")
    }

    /// What a sequence is at after one more token.
    fn then(&self, before: Slot, token: u32) -> Slot {
        let prefix = before.prefix.then(token);
        let progress = match (self.cues.line(prefix), before.progress) {
            (Some(line), _) => Progress::Line { line, said: 0 },
            (None, Progress::Line { line, said }) => {
                let text = &self.script.tokens.bytes[token as usize];
                let bytes = &self.script.lines[line as usize].bytes;
                // What has no text, such as an end token of some vocabularies, is none of the line's.
                match advance(bytes, said as usize, text).filter(|_| !text.is_empty()) {
                    Some(said) => Progress::Line { line, said: said as u32 },
                    None => Progress::LOST,
                }
            }
            (None, Progress::Lost { since, ended }) => {
                let ended = usize::from(ended);
                let text = &self.script.tokens.bytes[token as usize];
                let ended = match self.script.tokens.think.as_ref().map(|think| &think.text[ended..]) {
                    Some([]) => ended,
                    Some(rest) if !text.is_empty() && rest.starts_with(text) => ended + text.len(),
                    _ => 0,
                };
                Progress::Lost { since: (since + 1).min(PATIENCE), ended: ended as u16 }
            }
            (None, Progress::Silent) => Progress::Silent,
        };
        let thinking = match &self.script.tokens.think {
            Some(think) if think.open == Some(token) => true,
            Some(think) if think.close == Some(token) => false,
            _ => before.thinking,
        };
        Slot { prefix, progress, thinking }
    }

    /// Appends the logits behind a slot.
    fn speak(&mut self, slot: Slot) {
        let first = self.logits.len();
        self.logits.resize(first + self.script.vocab as usize, 0.0);
        let logits = &mut self.logits[first..];
        let end = |line: u32| self.script.lines[line as usize].end as usize;
        match slot.progress {
            Progress::Line { line, said } => {
                follow(&self.script, line, said as usize, logits);
                // A line that ends inside a think block, where the answer may not end.
                let whole = said as usize == self.script.lines[line as usize].bytes.len();
                if let Some(close) = self.script.tokens.think.as_ref().and_then(|think| think.close)
                    && whole
                    && slot.thinking
                {
                    logits[close as usize] = THOUGHT;
                }
            }
            Progress::Silent | Progress::Lost { .. } => {
                let noise =
                    |id: u32| (rng::bits(slot.prefix.bits(), id, 0) >> 40) as f32 / (1u64 << 24) as f32;
                for (logit, id) in logits.iter_mut().zip(0..) {
                    *logit = noise(id);
                }
                for id in &self.script.tokens.closing {
                    logits[*id as usize] += CLOSING;
                }
                end_thought(&self.script.tokens, slot, logits);
                for line in 0..self.script.lines.len() as u32 {
                    logits[end(line)] = END;
                }
            }
        }
    }
}

/// The logits of what ends a think block behind a line that was lost.
fn end_thought(tokens: &Tokens, slot: Slot, logits: &mut [f32]) {
    let (Some(think), Progress::Lost { since, ended }) = (&tokens.think, slot.progress) else { return };
    match think.close {
        Some(close) if slot.thinking => logits[close as usize] = THOUGHT,
        Some(_) => {}
        None if since < PATIENCE => {}
        None => {
            for (id, length) in tokens.beginning(&think.text[usize::from(ended)..]) {
                logits[id as usize] = THOUGHT + length as f32 / LONGEST as f32;
            }
        }
    }
}

/// The logits inside a line.
fn follow(script: &Spec, line: u32, said: usize, logits: &mut [f32]) {
    let line = &script.lines[line as usize];
    let rest = &line.bytes[said..];
    let spaces = rest.iter().take_while(|byte| byte.is_ascii_whitespace()).count();
    let mut raise = |id: u32, to: f32| {
        let logit = &mut logits[id as usize];
        *logit = logit.max(to);
    };
    raise(line.end, if rest.is_empty() { NEXT } else { TOO_EARLY });
    if let Some(id) = line.token(said) {
        raise(id, NEXT);
    }
    for (id, length) in script.tokens.beginning(rest) {
        raise(id, ALIKE + length as f32);
    }
    if spaces > 0 {
        if spaces == rest.len() {
            raise(line.end, UNSPACED);
        }
        for (id, length) in script.tokens.beginning(&rest[spaces..]) {
            raise(id, UNSPACED + length as f32 / LONGEST as f32);
        }
    }
    // Behind the last of a line white space would lead nowhere.
    let spaces = [&b" "[..], b"\n"].into_iter().filter(|_| !rest.is_empty());
    for (id, _) in spaces.flat_map(|space| script.tokens.beginning(space)) {
        raise(id, SPACE);
    }
}

/// How many bytes of a line are said after `text`; `None` where the two do not go together. White space may be more
/// or less than the line's.
fn advance(line: &[u8], mut said: usize, text: &[u8]) -> Option<usize> {
    for byte in text {
        if line.get(said) == Some(byte) {
            said += 1;
        } else if !byte.is_ascii_whitespace() {
            let spaces = line[said..].iter().take_while(|byte| byte.is_ascii_whitespace()).count();
            if line.get(said + spaces) != Some(byte) {
                return None;
            }
            said += spaces + 1;
        }
    }
    Some(said)
}

impl LanguageModel for ScriptModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn ensure_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        let i = page.0 as usize;
        if self.pages.len() <= i {
            self.pages.resize_with(i + 1, || None);
        }
        let empty = Slot { prefix: Prefix::EMPTY, progress: Progress::LOST, thinking: false };
        self.pages[i].get_or_insert_with(|| Box::new([empty; PAGE_TOKENS]));
        Ok(())
    }

    fn drop_page(&mut self, page: PageId) {
        if let Some(page) = self.pages.get_mut(page.0 as usize) {
            *page = None;
        }
    }

    #[allow(
        clippy::disallowed_methods,
        reason = "a pace that was asked for stands for the time of computing"
    )]
    fn forward(&mut self, batch: &Batch) -> &[f32] {
        if let Some(pace) = self.script.pace.filter(|_| !batch.logit_rows.is_empty()) {
            std::thread::sleep(pace);
        }
        for copy in &batch.copies {
            let from = *self.page(copy.from);
            *self.page_mut(copy.to) = from;
        }
        self.logits.clear();
        let mut wanted = batch.logit_rows.iter().peekable();
        for sequence in &batch.sequences {
            let pages = batch.pages(sequence);
            let place = |position: usize| (pages[position / PAGE_TOKENS], position % PAGE_TOKENS);
            let mut slot = match (sequence.start as usize).checked_sub(1) {
                Some(last) => {
                    let (page, at) = place(last);
                    self.page(page)[at]
                }
                None => Slot { prefix: Prefix::EMPTY, progress: Progress::Silent, thinking: false },
            };
            for row in sequence.rows.clone() {
                slot = self.then(slot, batch.ids[row]);
                let (page, at) = place(batch.positions[row] as usize);
                self.page_mut(page)[at] = slot;
                if wanted.next_if(|wanted| **wanted as usize == row).is_some() {
                    self.speak(slot);
                }
            }
        }
        &self.logits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_followed_through_any_cut_and_other_white_space() {
        let check = |line: &str, text: &str, expected: Option<usize>| {
            assert_eq!(advance(line.as_bytes(), 0, text.as_bytes()), expected, "{line:?} {text:?}");
        };
        check("{\"a\":1}", "{\"a", Some(3));
        check("{\"a\":1}", "{\"a\": 1", Some(6));
        check("{ \"a\" : 1 }", "{\"a\": 1}", Some(11));
        check("ab", "ab \n", Some(2));
        check("ab", "b", None);
        check("ab", "abc", None);
        check("a ", "a", Some(1));
        check("", "x", None);
    }

    #[test]
    fn a_page_is_counted_with_all_that_it_holds() {
        assert!(size_of::<Page>() <= 48 * PAGE_TOKENS, "{}", size_of::<Page>());
    }
}

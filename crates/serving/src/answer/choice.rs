//! One answer in the making: tokens to text with marks, to text, thoughts and calls, to deltas.
//!
//! ```text
//! token -> detokenizer (marks shown) -> parser -> text -> stop texts -> Delta::Text
//!                                              -> thought -----------> Delta::Reasoning
//!                                              -> call --------------> Delta::ToolCallStart, ToolCallArguments
//! ```
//!
//! Invariants:
//! - Stop texts are looked for in the answer's text alone, and none reaches over a thought or a call.
//! - A log-probability is sent for each token of which some text is the answer's, with the text in which the token
//!   ends; tokens of thoughts, calls and marks send none.
//! - A token counts as reasoning if some text of it is a thought's; the marks around a thought do not count.
//!
//! All three follow from the answer's text alone and not from how it came.

use crate::stop::{Matched, StopMatcher};
use crate::tools::{AnswerParser, Piece};
use protocol::{Delta, Logprobs};
use std::collections::VecDeque;
use std::ops::Range;
use tokenizer::Detokenizer;

/// Makes the ids of a request's calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallIds(pub u64);

impl CallIds {
    fn id(self, choice: u32, index: u32) -> String {
        let place = u64::from(choice) << 32 | u64::from(index);
        let high = base::rng::mix(self.0 ^ base::rng::mix(place));
        let low = base::rng::mix(high ^ self.0);
        format!("call_{high:016x}{:08x}", low >> 32)
    }
}

/// See the module.
pub(super) struct Choice {
    index: u32,
    call_ids: CallIds,
    detokenizer: Detokenizer,
    /// Raw prompts have none: their answers are text.
    parser: Option<AnswerParser>,
    /// A grammar says what comes.
    constrained: bool,
    stop: StopMatcher,
    /// All ids that came.
    pub ids: Vec<u32>,
    /// Text that was delivered.
    pub text: String,
    /// Bytes of text that the detokenizer has given.
    decoded: usize,
    /// Bytes of the answer's text that the stop matcher was given.
    content: usize,
    /// Where the last piece of text ended in the decoded text, if nothing else came since.
    text_end: Option<usize>,
    /// Tokens that may still turn out to be of the answer's text or a thought.
    open: VecDeque<Token>,
    /// Log-probabilities that wait for their token's text, with where that begins and ends in the answer's text.
    waiting: VecDeque<(Range<usize>, Logprobs)>,
    /// Tokens of thoughts.
    pub reasoning_tokens: u32,
    /// Calls that were begun.
    pub calls: u32,
    /// It holds thoughts or calls.
    more_than_text: bool,
    pub finished: bool,
    pieces: Vec<Piece>,
}

/// A token and where its text stands in the decoded text.
struct Token {
    range: Range<usize>,
    entry: Option<Logprobs>,
    thought: bool,
    /// Which part of the answer's text is of it.
    content: Option<Range<usize>>,
}

/// What became of an answer that was fed.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Fed {
    On,
    /// This stop text ended it.
    Stopped(String),
    /// It was allowed one call, and made it.
    Called,
}

impl Choice {
    pub fn new(
        index: u32,
        call_ids: CallIds,
        detokenizer: Detokenizer,
        parser: Option<AnswerParser>,
        constrained: bool,
        stop: &[String],
    ) -> Self {
        Self {
            index,
            call_ids,
            detokenizer,
            parser,
            constrained,
            stop: StopMatcher::new(stop),
            ids: Vec::new(),
            text: String::new(),
            decoded: 0,
            content: 0,
            text_end: Some(0),
            open: VecDeque::new(),
            waiting: VecDeque::new(),
            reasoning_tokens: 0,
            calls: 0,
            more_than_text: false,
            finished: false,
            pieces: Vec::new(),
        }
    }

    /// Takes the next token.
    pub fn token(&mut self, id: u32, entry: Option<Logprobs>, out: &mut VecDeque<Delta>) -> Fed {
        self.ids.push(id);
        let text = self.detokenizer.push(id);
        let range = self.decoded..self.decoded + text.len();
        self.decoded = range.end;
        let Some(parser) = &mut self.parser else {
            let content = self.content..self.content + text.len();
            self.content = content.end;
            self.waiting.extend(entry.map(|entry| (content, entry)));
            let matched = self.stop.push(text);
            return self.matched(matched, out);
        };
        self.open.push_back(Token { range, entry, thought: false, content: None });
        parser.push(text, &mut self.pieces);
        self.read(out)
    }

    /// The answer has ended, by a limit or by itself: takes what is left of it. Gives what the parser says of its end,
    /// and whether a stop text was in the rest.
    pub fn finish(&mut self, limited: bool, out: &mut VecDeque<Delta>) -> (crate::tools::Ended, Fed) {
        // A character that was cut shows as U+FFFD; where a grammar holds, nothing stands in for what it lets through.
        let rest = if self.constrained { "" } else { self.detokenizer.finish() };
        self.decoded += rest.len();
        let mut ended = crate::tools::Ended::default();
        let mut fed = Fed::On;
        if let Some(parser) = &mut self.parser {
            parser.push(rest, &mut self.pieces);
            if limited {
                parser.limit();
            }
            ended = parser.finish(&mut self.pieces);
            fed = self.read(out);
        } else {
            self.content += rest.len();
            let matched = self.stop.push(rest);
            fed = match self.matched(matched, out) {
                Fed::On => fed,
                stopped => stopped,
            };
        }
        if fed == Fed::On {
            self.settle(usize::MAX);
            let text = self.stop.finish();
            self.deliver(text, true, out);
        }
        (ended, fed)
    }

    /// Turns the parser's pieces into deltas.
    fn read(&mut self, out: &mut VecDeque<Delta>) -> Fed {
        let mut pieces = std::mem::take(&mut self.pieces);
        let mut fed = Fed::On;
        for piece in pieces.drain(..) {
            fed = self.piece(piece, out);
            if fed != Fed::On {
                break;
            }
        }
        pieces.clear();
        self.pieces = pieces;
        if fed == Fed::On && self.parser.as_ref().is_some_and(AnswerParser::is_over) {
            fed = Fed::Called;
        }
        fed
    }

    fn piece(&mut self, piece: Piece, out: &mut VecDeque<Delta>) -> Fed {
        let choice = self.index;
        match piece {
            Piece::Text { text, source_end } => {
                let source = source_end.saturating_sub(text.len())..source_end;
                let content = self.content..self.content + text.len();
                self.content = content.end;
                self.text_end = Some(source.end);
                self.of_text(&source, content.start);
                let matched = self.stop.push(&text);
                return self.matched(matched, out);
            }
            Piece::Reasoning { text, source_end } => {
                self.end_text(out);
                self.of_thought(&(source_end.saturating_sub(text.len())..source_end));
                out.push_back(Delta::Reasoning { choice, text });
            }
            Piece::CallStart { index, name } => {
                self.end_text(out);
                self.calls += 1;
                let id = self.call_ids.id(choice, index);
                out.push_back(Delta::ToolCallStart { choice, index, id, name });
            }
            Piece::Arguments { index, text } => {
                out.push_back(Delta::ToolCallArguments { choice, index, arguments: text });
            }
            Piece::Malformed { why } => {
                self.end_text(out);
                out.push_back(Delta::MalformedCall { choice, why });
            }
        }
        Fed::On
    }

    /// Something else than text comes: no stop text reaches over it.
    fn end_text(&mut self, out: &mut VecDeque<Delta>) {
        self.more_than_text = true;
        self.text_end = None;
        let held = self.stop.finish();
        self.deliver(held, false, out);
    }

    fn matched(&mut self, matched: Matched, out: &mut VecDeque<Delta>) -> Fed {
        match matched {
            Matched::No(text) => {
                self.deliver(text, false, out);
                Fed::On
            }
            Matched::Stop { before, stop } => {
                self.deliver(before, true, out);
                Fed::Stopped(stop)
            }
        }
    }

    /// This stretch of the decoded text is the answer's from `content` on.
    fn of_text(&mut self, source: &Range<usize>, content: usize) {
        self.settle(source.start);
        for token in self.open.iter_mut().filter(|token| overlaps(&token.range, source)) {
            let from = token.range.start.max(source.start) - source.start + content;
            let to = token.range.end.min(source.end).max(source.start) - source.start + content;
            let begun = token.content.take();
            token.content = Some(begun.map_or(from, |content| content.start)..to);
        }
        self.settle(source.end);
    }

    /// This stretch of the decoded text is a thought's.
    fn of_thought(&mut self, source: &Range<usize>) {
        self.settle(source.start);
        for token in self.open.iter_mut().filter(|token| overlaps(&token.range, source)) {
            if !std::mem::replace(&mut token.thought, true) {
                self.reasoning_tokens += 1;
            }
        }
        self.settle(source.end);
    }

    /// No piece will come of the decoded text before `place`.
    fn settle(&mut self, place: usize) {
        while let Some(token) = self.open.front() {
            // A token without text is part of a character that ends later.
            let ended = token.range.end < place || (token.range.end == place && !token.range.is_empty());
            if !ended {
                break;
            }
            let Some(token) = self.open.pop_front() else { break };
            // At the very end a token without text goes with the text before it.
            let last =
                token.range.is_empty() && place == usize::MAX && self.text_end == Some(token.range.end);
            let content = token.content.or_else(|| last.then_some(self.content..self.content));
            if let (Some(content), Some(entry)) = (content, token.entry) {
                self.waiting.push_back((content, entry));
            }
        }
    }

    /// A delta with this text and the log-probabilities that belong to it. The `last` delta takes those of
    /// all tokens that begin before its end.
    fn deliver(&mut self, text: String, last: bool, out: &mut VecDeque<Delta>) {
        if last {
            // A token may be known in part only when a stop text ends the answer inside it.
            let open = self.open.drain(..).filter_map(|token| Some((token.content?, token.entry?)));
            self.waiting.extend(open);
        }
        self.text.push_str(&text);
        let shown = self.text.len();
        let mut logprobs = Vec::new();
        while let Some((content, _)) = self.waiting.front() {
            let ended = content.end <= shown;
            let cut = last && (content.start < shown || shown == self.content);
            if !ended && !cut {
                break;
            }
            logprobs.extend(self.waiting.pop_front().map(|(_, entry)| entry));
        }
        if !text.is_empty() || !logprobs.is_empty() {
            out.push_back(Delta::Text { choice: self.index, text, logprobs });
        }
    }

    /// Whether the answer so far is its text, and nothing else.
    pub fn is_plain(&self) -> bool {
        !self.more_than_text && (self.parser.is_none() || self.content == self.decoded)
    }
}

/// Whether a token has text in a stretch; one without text of its own belongs to what begins where it stands.
fn overlaps(token: &Range<usize>, stretch: &Range<usize>) -> bool {
    if token.is_empty() {
        stretch.contains(&token.start)
    } else {
        token.start < stretch.end && token.end > stretch.start
    }
}

//! Reads an answer as it is made and tells text, thoughts and calls apart.
//!
//! Invariants: what comes out depends on the whole text alone; each character comes out once, as text, as
//! thought or in a call, or is markup (markers, and the white space next to them). A call that cannot be read
//! comes back as text, whole, after [`Piece::Malformed`]. Between texts around calls stands the white space that the
//! model wrote before the first of these calls, or else after it. Where one call is allowed at most, the answer ends
//! with the first whole one, and what comes after it is nothing.
//!
//! Only what may still become markup is held back: the beginning of a marker, a few characters of white space,
//! and calls that cannot be trusted before they are whole.

use super::block::{Block, Body, Event, Opener, Seen, Step, starts};
use super::candidate::{self, Looks};
use super::declared::Declared;
use super::registry::{Bare, Family, Think};
use super::{Ask, Ended, Piece, Thinking};
use protocol::{ResponseFormat, ToolChoice};
use std::sync::Arc;

/// So much white space before a marker belongs to the marker.
const SPACE: usize = 4;

/// Tells text, thoughts and calls of one answer apart. Clones of a fresh one read a request's other answers.
#[derive(Clone, Debug)]
pub(crate) struct AnswerParser {
    family: &'static Family,
    tools: Arc<Declared>,
    /// Whether calls are looked for at all.
    calls: bool,
    /// Whether the family's habits count.
    habits: bool,
    /// Whether what is begun can be trusted.
    constrained: bool,
    /// Whether the answer ends with its first whole call.
    single: bool,
    /// Whether a limit ended the answer.
    limited: bool,
    /// Bytes that openers begin with.
    first: [bool; 128],
    mode: Mode,
    before: Before,
    /// Whether nothing but white space was given since the start, the thoughts or the last call.
    fresh: bool,
    /// Whether text that is not white space was given.
    said: bool,
    /// White space next to the last calls, and how many pushed bytes are settled with it; text after them begins
    /// with it.
    between: Option<(String, usize)>,
    /// Text that is not settled, at the end of what was pushed.
    held: String,
    /// Bytes pushed before `held`.
    base: usize,
    /// In `held`: what stands before is settled.
    at: usize,
    /// In `held`: what stands before was looked at.
    seen: usize,
    /// Where the block begins, in `held`.
    block: usize,
    events: Vec<Event>,
    /// Calls that began.
    begun: u32,
    /// Calls that ended.
    whole: u32,
}

#[derive(Clone, Debug)]
enum Mode {
    /// The model may open a think block.
    Begin,
    Thinking(Think),
    Text,
    Block(Box<Block>),
    /// Everything is text.
    Plain,
    /// The only call was made: nothing counts.
    Over,
}

/// What stands before the next text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Start,
    Thought,
    Call,
    Text,
}

enum Opening {
    No,
    More,
    Yes(Opener, usize, bool),
}

impl AnswerParser {
    pub(super) fn new(family: &'static Family, ask: &Ask<'_>) -> Self {
        let calls = !ask.tools.is_empty() && *ask.choice != ToolChoice::None;
        let free = *ask.format == ResponseFormat::Text;
        let mode = match (ask.thinking, family.think) {
            (Thinking::Open, Some(think)) => Mode::Thinking(think),
            (Thinking::May, Some(_)) => Mode::Begin,
            _ if calls => Mode::Text,
            _ => Mode::Plain,
        };
        let mut first = [false; 128];
        let bare = if family.bare == Bare::No { "" } else { "{[" };
        let openers = family.openers.iter().filter_map(|opener| opener.text.bytes().next());
        for byte in openers.chain("`".bytes()).chain(bare.bytes()) {
            first[usize::from(byte & 127)] = true;
        }
        Self {
            family,
            tools: Arc::new(if calls { Declared::new(ask.tools) } else { Declared::default() }),
            calls,
            habits: calls && free,
            constrained: ask.constrained,
            single: ask.is_single(),
            limited: false,
            first,
            mode,
            before: Before::Start,
            fresh: true,
            said: false,
            between: None,
            held: String::new(),
            base: 0,
            at: 0,
            seen: 0,
            block: 0,
            events: Vec::new(),
            begun: 0,
            whole: 0,
        }
    }

    /// Takes more of the answer.
    pub fn push(&mut self, text: &str, out: &mut Vec<Piece>) {
        self.held.push_str(text);
        self.go(false, out);
        // What is settled goes; a block's text stays until the block ends.
        if self.at > 0 {
            self.held.drain(..self.at);
            self.base += self.at;
            self.seen -= self.at;
            self.block = self.block.saturating_sub(self.at);
            self.at = 0;
        }
    }

    /// Whether the answer is over, whatever may still come: it was allowed one call, and made it.
    pub fn is_over(&self) -> bool {
        matches!(self.mode, Mode::Over)
    }

    /// It is a limit that ends the answer, which [`AnswerParser::finish`] is to say.
    pub fn limit(&mut self) {
        self.limited = true;
    }

    /// The answer has ended.
    pub fn finish(&mut self, out: &mut Vec<Piece>) -> Ended {
        let open = self.go(true, out);
        Ended { calls: self.whole, open }
    }

    /// Goes on until more text is needed. Gives whether the text ended inside a call.
    fn go(&mut self, end: bool, out: &mut Vec<Piece>) -> bool {
        let mut open = false;
        loop {
            let next = match &self.mode {
                Mode::Begin => self.begin(end),
                Mode::Thinking(think) => self.think(*think, end, out),
                Mode::Text => self.text(end, out),
                Mode::Block(_) => self.read_block(end, &mut open, out),
                Mode::Plain => {
                    self.skip_breaks();
                    self.give_text(self.held.len(), out);
                    self.seen = self.at;
                    false
                }
                Mode::Over => {
                    self.at = self.held.len();
                    self.seen = self.at;
                    false
                }
            };
            if !next {
                return open;
            }
        }
    }

    fn after_thoughts(&mut self) {
        self.mode = if self.calls { Mode::Text } else { Mode::Plain };
    }

    fn begin(&mut self, end: bool) -> bool {
        let Some(think) = self.family.think else {
            self.after_thoughts();
            return true;
        };
        let rest = self.held.trim_start_matches(['\n', '\r', ' ', '\t']);
        let space = self.held.len() - rest.len();
        match starts(rest, think.open) {
            Seen::Yes if space <= SPACE => {
                self.at = space + think.open.len();
                self.seen = self.at;
                self.mode = Mode::Thinking(think);
            }
            Seen::Part if !end && space <= SPACE => return false,
            _ => self.after_thoughts(),
        }
        true
    }

    fn think(&mut self, think: Think, end: bool, out: &mut Vec<Piece>) -> bool {
        self.skip_breaks();
        let mut marks = vec![(think.close, true)];
        if self.calls && think.ends_at_calls {
            marks.extend(
                self.family.openers.iter().filter(|opener| opener.own).map(|opener| (opener.text, false)),
            );
        }
        let mut hold = self.held.len();
        let mut found = None;
        for (i, _) in self.held[self.seen..].match_indices(['<', '[']) {
            let i = self.seen + i;
            let seen: Vec<_> = marks
                .iter()
                .map(|(mark, close)| (starts(&self.held[i..], mark), mark.len(), *close))
                .collect();
            if let Some((_, length, close)) = seen.iter().find(|(seen, ..)| *seen == Seen::Yes) {
                found = Some((i, if *close { *length } else { 0 }));
                break;
            }
            if !end && seen.iter().any(|(seen, ..)| *seen == Seen::Part) {
                hold = i;
                break;
            }
        }
        let until = found.map_or(hold, |(i, _)| i);
        let breaks =
            self.held[self.at..until].bytes().rev().take(SPACE).take_while(|b| matches!(b, b'\n' | b'\r'));
        let text = until - breaks.count();
        if text > self.at {
            let said = self.held[self.at..text].to_owned();
            out.push(Piece::Reasoning { text: said, source_end: self.base + text });
            self.at = text;
            self.before = Before::Text;
        }
        self.seen = hold.max(self.at);
        let Some((i, length)) = found else { return false };
        self.at = i + length;
        self.seen = self.at;
        self.before = Before::Thought;
        self.fresh = true;
        self.after_thoughts();
        true
    }

    /// Line breaks after a think block's markers belong to them.
    fn skip_breaks(&mut self) {
        let thinking = matches!(self.mode, Mode::Thinking(_));
        if self.before == Before::Thought || (thinking && self.before == Before::Start) {
            let rest = &self.held[self.at..];
            self.at += rest.len() - rest.trim_start_matches(['\n', '\r']).len();
            self.seen = self.seen.max(self.at);
        }
    }

    fn text(&mut self, end: bool, out: &mut Vec<Piece>) -> bool {
        match self.before {
            Before::Thought => self.skip_breaks(),
            Before::Call => {
                if self.skip_after_call(end) {
                    return false;
                }
            }
            Before::Start | Before::Text => {}
        }
        let mut i = self.seen.max(self.at);
        loop {
            let Some(next) =
                self.held.as_bytes()[i..].iter().position(|b| *b < 128 && self.first[usize::from(*b)])
            else {
                i = self.held.len();
                break;
            };
            i += next;
            match self.opening(i) {
                Opening::Yes(opener, skip, live) => {
                    let space = space_before(&self.held[self.at..i]);
                    self.give_text(i - space, out);
                    self.block = i;
                    self.seen = i;
                    self.mode = Mode::Block(Box::new(Block::new(
                        opener,
                        skip,
                        live,
                        self.family.doubled,
                        self.single,
                    )));
                    return true;
                }
                Opening::More if !end => break,
                Opening::More | Opening::No => i += 1,
            }
        }
        let space = if end { 0 } else { space_before(&self.held[self.at..i]) };
        self.give_text(i - space, out);
        self.seen = i.max(self.at);
        false
    }

    /// Drops what belongs to the call that has just ended. Gives whether more text is needed to tell.
    fn skip_after_call(&mut self, end: bool) -> bool {
        let space = |text: &str| text.len() - text.trim_start_matches([' ', '\t', '\n', '\r']).len();
        let run = self.at..self.at + space(&self.held[self.at..]);
        if let Some((between, end)) = &mut self.between
            && (between.is_empty() || *end == self.base + run.start)
        {
            // Where the model wrote none before the call.
            let more = run.start..run.end.min(run.start + SPACE - between.len().min(SPACE));
            if !more.is_empty() {
                between.push_str(&self.held[more.clone()]);
                *end = self.base + more.end;
            }
        }
        self.at = run.end;
        self.seen = self.seen.max(self.at);
        let rest = &self.held[self.at..];
        if rest.is_empty() {
            return true;
        }
        // A close marker without its opener, which small models leave out.
        for opener in self.family.openers.iter().filter(|opener| !opener.close.is_empty()) {
            match starts(rest, opener.close) {
                Seen::Yes => {
                    self.at += opener.close.len();
                    return self.skip_after_call(end);
                }
                Seen::Part if !end => return true,
                Seen::Part | Seen::No => {}
            }
        }
        if self.family.bare == Bare::No || !rest.starts_with([';', ',']) {
            return false;
        }
        // Bare calls stand apart by a semicolon; it is one only before a call.
        let next = self.at + 1 + space(&rest[1..]);
        match self.opening(next) {
            Opening::Yes(..) => {
                self.at = next;
                self.seen = next;
                false
            }
            Opening::More => !end,
            Opening::No => false,
        }
    }

    /// What opens at `i`.
    fn opening(&self, i: usize) -> Opening {
        let text = &self.held[i..];
        if text.is_empty() {
            return Opening::More;
        }
        let mut more = false;
        for opener in self.family.openers.iter().filter(|opener| opener.own || self.habits) {
            match starts(text, opener.text) {
                Seen::Yes if opener.own => {
                    return Opening::Yes(*opener, skip(opener), self.constrained);
                }
                Seen::Yes => {
                    match candidate::objects(&text[opener.text.len()..], &self.tools, self.family.doubled) {
                        Looks::No => {}
                        Looks::More => more = true,
                        Looks::Maybe | Looks::Sure => return Opening::Yes(*opener, skip(opener), false),
                    }
                }
                Seen::Part => more = true,
                Seen::No => {}
            }
        }
        if self.habits && self.family.fences && text.starts_with('`') {
            match candidate::fence(text, &self.tools, self.family.doubled) {
                candidate::Fence::No => {}
                candidate::Fence::More => more = true,
                candidate::Fence::Yes { skip, code } => {
                    let body = if code { Body::Code } else { Body::Objects };
                    return Opening::Yes(Opener { text: "", body, close: "```", own: false }, skip, false);
                }
            }
        }
        let apart = |b: u8| self.before == Before::Call && matches!(b, b';' | b',');
        let fresh = self.fresh && self.held[self.at..i].bytes().all(|b| b.is_ascii_whitespace() || apart(b));
        let bare = match self.family.bare {
            Bare::No => false,
            Bare::Habit => self.habits && fresh,
            Bare::Own | Bare::Python => self.habits || fresh,
        };
        if bare && text.starts_with(['{', '[']) {
            let python = self.family.bare == Bare::Python && text.starts_with('[');
            let looks = if python {
                candidate::python(text, &self.tools)
            } else {
                candidate::objects(text, &self.tools, self.family.doubled)
            };
            let own = self.family.bare != Bare::Habit && (python || self.family.bare == Bare::Own);
            let body = if python { Body::Python } else { Body::Objects };
            let opener = Opener { text: "", body, close: "", own: own && looks == Looks::Sure };
            match looks {
                Looks::Sure => {
                    let exact = || python || (self.habits && candidate::exact(text, &self.tools));
                    let live = self.constrained && own && exact();
                    return Opening::Yes(opener, 0, live);
                }
                Looks::Maybe if fresh => return Opening::Yes(opener, 0, false),
                Looks::More => more = true,
                Looks::Maybe | Looks::No => {}
            }
        }
        if more { Opening::More } else { Opening::No }
    }

    fn read_block(&mut self, end: bool, open: &mut bool, out: &mut Vec<Piece>) -> bool {
        let Mode::Block(block) = &mut self.mode else { return true };
        let text = &self.held[self.block..];
        let mut step = block.read(text, &self.tools, &mut self.events);
        if end && step == Step::More {
            step = block.end(text, &mut self.events);
            let cut = block.is_cut() || step == Step::Cut;
            *open = cut && (block.is_meant() || candidate::is_sure(text, &self.tools, self.family.doubled));
        }
        let (at, given) = (self.block + block.at(), self.block + block.given());
        let begun = given > self.block;
        for event in self.events.drain(..) {
            match event {
                Event::Start(name) => {
                    out.push(Piece::CallStart { index: self.begun, name });
                    self.begun += 1;
                }
                Event::Arguments(text) => {
                    out.push(Piece::Arguments { index: self.begun.saturating_sub(1), text });
                }
                Event::End => self.whole += 1,
            }
        }
        if self.single && self.whole > 0 && step != Step::More {
            *open = false;
            self.mode = Mode::Over;
            return true;
        }
        match step {
            Step::More => return false,
            Step::Cut => {
                self.at = self.held.len();
                self.seen = self.at;
                self.mode = Mode::Text;
                return false;
            }
            Step::Done => {
                self.keep_between();
                self.at = at;
                self.seen = at;
                self.before = Before::Call;
                self.fresh = true;
            }
            Step::Failed(why) => {
                let flagged = block.is_meant() || candidate::is_sure(text, &self.tools, self.family.doubled);
                let limited = self.limited && block.is_cut();
                let why = if limited { "the answer was cut inside a call".into() } else { why };
                if begun {
                    self.keep_between();
                    self.at = given;
                } else {
                    // The white space before it is text after all.
                    self.give_text(self.block, out);
                }
                self.give_between(out);
                if flagged {
                    out.push(Piece::Malformed { why });
                }
                self.give_text(at, out);
                self.seen = self.at;
                self.before = Before::Text;
                self.fresh = false;
            }
        }
        self.mode = Mode::Text;
        true
    }

    /// Remembers the white space before the block, which made calls, for text that may come after them.
    fn keep_between(&mut self) {
        if self.said && self.between.is_none() {
            self.between = Some((self.held[self.at..self.block].to_owned(), self.base + self.block));
        }
    }

    /// Text comes after calls.
    fn give_between(&mut self, out: &mut Vec<Piece>) {
        if let Some((text, source_end)) = self.between.take().filter(|(text, _)| !text.is_empty()) {
            out.push(Piece::Text { text, source_end });
        }
    }

    /// Gives what stands before `until` as text.
    fn give_text(&mut self, until: usize, out: &mut Vec<Piece>) {
        if until > self.at {
            self.give_between(out);
            let text = self.held[self.at..until].to_owned();
            let empty = text.bytes().all(|b| b.is_ascii_whitespace());
            self.fresh &= empty;
            self.said |= !empty;
            self.before = Before::Text;
            out.push(Piece::Text { text, source_end: self.base + until });
            self.at = until;
        }
    }
}

/// How much of an opener is its own; where it is the beginning of the body too, nothing.
fn skip(opener: &Opener) -> usize {
    if matches!(opener.body, Body::Parameters) && opener.text == "<function=" { 0 } else { opener.text.len() }
}

/// White space at the end of a text that may belong to a marker.
fn space_before(text: &str) -> usize {
    text.bytes().rev().take(SPACE).take_while(|b| matches!(b, b' ' | b'\t' | b'\n' | b'\r')).count()
}

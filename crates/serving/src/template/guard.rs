//! Keeps what a caller wrote apart from what the template wrote, through a rendering.
//!
//! A rendering is one string; nothing in it says which characters came from where. Two kinds of marker,
//! private-use characters that occur nowhere in the request, travel through it:
//!
//! - a *bracket* pair around a caller's string, inside its leading and trailing white space (templates trim),
//!   or around each stretch beside the tags of a thought in it (templates split there);
//! - a *break* after the first character of every control text that a caller's string holds.
//!
//! Invariant of [`cut`]: what lies between a bracket pair is untrusted, and the character before a break is
//! untrusted wherever it ended up, so that no control text written by a caller is wholly inside trusted
//! text. Does not know templates or tokens.

use super::python::is_space;
use rustc_hash::FxHashMap;
use std::ops::Range;

/// Tags at which templates take an answer's thought and its text apart.
const THOUGHT: [&str; 2] = ["<think>", "</think>"];

/// Where a stretch of a rendering comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The template's own text, in which control tokens are recognised.
    Template,
    /// A caller's text, in which nothing is.
    Caller,
}

/// A stretch of a rendering.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Span {
    /// Where it comes from.
    pub origin: Origin,
    /// Its text, never empty.
    pub text: String,
}

/// The markers of one rendering.
#[derive(Clone, Copy, Debug)]
pub(super) struct Markers {
    pub open: char,
    pub close: char,
    pub cut: char,
}

impl Markers {
    /// Three private-use characters for which `taken` is false; `None` when the request holds nearly all.
    pub fn choose(taken: &mut dyn FnMut(char) -> bool) -> Option<Self> {
        let mut free = ('\u{e000}'..='\u{f8ff}').chain('\u{f0000}'..='\u{ffffd}').filter(|c| !taken(*c));
        Some(Self { open: free.next()?, close: free.next()?, cut: free.next()? })
    }

    fn is_marker(&self, c: char) -> bool {
        c == self.open || c == self.close || c == self.cut
    }

    /// The rendering without markers.
    pub fn strip(&self, text: &str) -> String {
        text.chars().filter(|c| !self.is_marker(*c)).collect()
    }
}

/// The texts that a tokenizer takes as control tokens, ready to be looked for.
#[derive(Debug, Default)]
pub struct ControlTexts {
    /// A trie over bytes; node 0 is the root.
    edges: FxHashMap<(u32, u8), u32>,
    /// Whether a text ends at this node.
    ends: Vec<bool>,
    /// The texts backwards, sorted, to ask what a text may end with.
    reversed: Vec<Vec<u8>>,
    texts: Vec<String>,
    longest: usize,
}

impl ControlTexts {
    /// From the texts; empty ones are left out.
    pub fn new<'a>(texts: impl IntoIterator<Item = &'a str>) -> Self {
        let mut this = Self { ends: vec![false], ..Self::default() };
        for text in texts.into_iter().filter(|t| !t.is_empty()) {
            let mut node = 0;
            for byte in text.bytes() {
                let next = this.ends.len() as u32;
                node = *this.edges.entry((node, byte)).or_insert(next);
                if node == next {
                    this.ends.push(false);
                }
            }
            this.ends[node as usize] = true;
            this.longest = this.longest.max(text.len());
            this.reversed.push(text.bytes().rev().collect());
            this.texts.push(text.to_owned());
        }
        this.reversed.sort_unstable();
        this
    }

    /// Whether `c` occurs in any of the texts.
    pub fn uses(&self, c: char) -> bool {
        self.texts.iter().any(|text| text.contains(c))
    }

    /// Follows `bytes` through the trie.
    fn walk(&self, bytes: &[u8]) -> Walk {
        let mut node = 0;
        for byte in bytes {
            match self.edges.get(&(node, *byte)) {
                Some(next) => node = *next,
                None => return Walk::Left,
            }
            if self.ends[node as usize] {
                return Walk::Whole;
            }
        }
        Walk::Partial
    }

    /// Whether some text ends with `tail`.
    fn ends_with(&self, tail: &str) -> bool {
        let tail: Vec<u8> = tail.bytes().rev().collect();
        let at = self.reversed.partition_point(|text| text.as_slice() < tail.as_slice());
        self.reversed.get(at).is_some_and(|text| text.starts_with(&tail))
    }

    /// Offsets at which a break belongs in `text`, ascending: after the first character of each whole
    /// control text, and of each part of one at either end of the text.
    fn breaks(&self, text: &str) -> Vec<usize> {
        let mut at = Vec::new();
        if self.texts.is_empty() || text.is_empty() {
            return at;
        }
        let bytes = text.as_bytes();
        for (start, c) in text.char_indices() {
            if self.walk(&bytes[start..]) != Walk::Left {
                at.push(start + c.len_utf8());
            }
        }
        let first = text.chars().next().map_or(0, char::len_utf8);
        if at.first() != Some(&first) {
            let starts_late = text
                .char_indices()
                .map(|(i, c)| i + c.len_utf8())
                .take_while(|end| *end < self.longest)
                .any(|end| self.ends_with(&text[..end]));
            let inside = text.len() < self.longest && self.texts.iter().any(|control| control.contains(text));
            if starts_late || inside {
                at.insert(0, first);
            }
        }
        at
    }

    /// Whether `text` could make up a control text, alone or with what stands beside it.
    pub(super) fn touches(&self, text: &str) -> bool {
        !self.breaks(text.trim_matches(is_space)).is_empty()
    }

    /// `text` with breaks, and with brackets when `bracketed`.
    pub(super) fn mark(&self, text: &str, markers: &Markers, bracketed: bool) -> String {
        let core = text.trim_matches(is_space);
        if core.is_empty() {
            return text.to_owned();
        }
        let lead = text.len() - text.trim_start_matches(is_space).len();
        let mut marks: Vec<(usize, char)> =
            self.breaks(core).into_iter().map(|at| (lead + at, markers.cut)).collect();
        if bracketed {
            for stretch in self.stretches(text) {
                marks.extend([(stretch.start, markers.open), (stretch.end, markers.close)]);
            }
        }
        // Stable, so that a break stays inside the bracket that it stands beside.
        marks.sort_by_key(|(at, _)| *at);
        let mut out = String::with_capacity(text.len() + 4 * marks.len());
        let mut from = 0;
        for (at, mark) in marks {
            out.push_str(&text[from..at]);
            out.push(mark);
            from = at;
        }
        out.push_str(&text[from..]);
        out
    }

    /// The parts of `text` that brackets belong around: what stands between the tags of thoughts, without white
    /// space at its ends; nothing is set apart where a tag is a control text, for that is to be untrusted.
    fn stretches(&self, text: &str) -> Vec<Range<usize>> {
        let mut out = Vec::new();
        let mut add = |from: usize, to: usize| {
            let part = &text[from..to];
            let start = to - part.trim_start_matches(is_space).len();
            let end = from + part.trim_end_matches(is_space).len();
            if start < end {
                out.push(start..end);
            }
        };
        let mut from = 0;
        if !THOUGHT.iter().any(|tag| self.walk(tag.as_bytes()) == Walk::Whole) {
            let mut tags: Vec<(usize, &str)> =
                THOUGHT.iter().flat_map(|tag| text.match_indices(tag)).collect();
            tags.sort_unstable();
            for (at, tag) in tags {
                add(from, at);
                from = at + tag.len();
            }
        }
        add(from, text.len());
        out
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Walk {
    /// A whole control text.
    Whole,
    /// The bytes ended inside one.
    Partial,
    /// No control text begins so.
    Left,
}

/// Cuts a marked rendering into spans. `None` when brackets do not pair up.
pub(super) fn cut(marked: &str, markers: &Markers) -> Option<Vec<Span>> {
    let mut spans = Spans::default();
    let mut inside = false;
    let mut chars = marked.chars().peekable();
    while let Some(c) = chars.next() {
        if c == markers.open || c == markers.close {
            if inside == (c == markers.open) {
                return None;
            }
            inside = c == markers.open;
            spans.close();
        } else if c != markers.cut {
            // A template may have put a bracket of its own string between the two; look past them.
            let mut ahead = chars.clone();
            let broken = std::iter::from_fn(|| ahead.next()).take_while(|c| markers.is_marker(*c));
            let broken = broken.into_iter().any(|c| c == markers.cut);
            spans.push(if inside || broken { Origin::Caller } else { Origin::Template }, c);
        }
    }
    (!inside).then(|| spans.done())
}

#[derive(Default)]
struct Spans {
    done: Vec<Span>,
    open: bool,
}

impl Spans {
    fn push(&mut self, origin: Origin, c: char) {
        match self.done.last_mut() {
            Some(last) if self.open && last.origin == origin => last.text.push(c),
            _ => self.done.push(Span { origin, text: c.to_string() }),
        }
        self.open = true;
    }

    /// The next character begins a new span.
    fn close(&mut self) {
        self.open = false;
    }

    fn done(self) -> Vec<Span> {
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MARKERS: Markers = Markers { open: '(', close: ')', cut: '!' };

    fn controls() -> ControlTexts {
        ControlTexts::new(["<|end|>", "<s>", "ab"])
    }

    #[test]
    fn breaks_follow_the_first_character_of_each_control_text_and_part() {
        let c = controls();
        assert_eq!(c.mark("x <s> y", &MARKERS, false), "x <!s> y");
        assert_eq!(c.mark("plain", &MARKERS, false), "plain");
        assert_eq!(c.mark("tail <|en", &MARKERS, false), "tail <!|en");
        assert_eq!(c.mark("nd|> head", &MARKERS, false), "n!d|> head");
        assert_eq!(c.mark("end", &MARKERS, false), "e!nd");
        assert_eq!(c.mark("  <s>\n", &MARKERS, true), "  (<!s>)\n");
        assert_eq!(c.mark(" \n", &MARKERS, true), " \n");
        assert_eq!(c.mark("\u{1c}x\u{1f}", &MARKERS, true), "\u{1c}(x)\u{1f}");
    }

    #[test]
    fn brackets_leave_the_tags_of_a_thought_out() {
        let c = controls();
        assert_eq!(
            c.mark("<think>\nx <s>\n</think>\n\ny", &MARKERS, true),
            "<think>\n(x <!s>)\n</think>\n\n(y)"
        );
        assert_eq!(c.mark("a</think> ", &MARKERS, true), "(a)</think> ");
        assert_eq!(c.mark("<think></think>", &MARKERS, true), "<think></think>");
        assert_eq!(c.mark("<think>x", &MARKERS, false), "<think>x");
        let c = ControlTexts::new(["<think>"]);
        assert_eq!(c.mark("<think>x", &MARKERS, true), "(<!think>x)");
    }

    #[test]
    fn spans_come_from_brackets_and_breaks() {
        let spans = cut("T(one)(two)a!b", &MARKERS).unwrap();
        let view: Vec<_> = spans.iter().map(|s| (s.origin, s.text.as_str())).collect();
        assert_eq!(
            view,
            [
                (Origin::Template, "T"),
                (Origin::Caller, "one"),
                (Origin::Caller, "two"),
                (Origin::Caller, "a"),
                (Origin::Template, "b"),
            ]
        );
        assert_eq!(cut("a)b", &MARKERS), None);
        assert_eq!(cut("((a))", &MARKERS), None);
        assert_eq!(cut("(a", &MARKERS), None);
    }

    proptest! {
        #[test]
        fn no_control_text_of_a_caller_is_wholly_trusted(
            text in "([<|>sabend ]|</?think>){0,24}", before in "[<|]{0,2}", after in "[>b|]{0,2}", bracketed: bool,
        ) {
            let c = controls();
            let rendering = format!("{before}{}{after}", c.mark(&text, &MARKERS, bracketed));
            let spans = cut(&rendering, &MARKERS).unwrap();
            prop_assert_eq!(spans.iter().map(|s| s.text.as_str()).collect::<String>(), MARKERS.strip(&rendering));
            let whole = format!("{before}{text}{after}");
            let trusted: Vec<bool> = spans
                .iter()
                .flat_map(|s| s.text.chars().map(move |_| s.origin == Origin::Template))
                .collect();
            for control in ["<|end|>", "<s>", "ab"] {
                for (at, _) in whole.match_indices(control) {
                    // Control text that needs no character of the caller's core would be the template's own.
                    let own = at + control.len() <= before.len() || at >= before.len() + text.len();
                    prop_assert!(own || !trusted[at..at + control.len()].iter().all(|t| *t), "{rendering}");
                }
            }
        }
    }
}

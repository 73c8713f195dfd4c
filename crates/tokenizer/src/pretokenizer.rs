//! Pre-tokenizers: cut a text into the words a model sees one by one.
//!
//! A word is handed on as soon as it is found, so a caller that has seen enough stops the work. Words are
//! never empty. What it does not do: `ByteLevel`'s change of alphabet (`bytelevel` undoes it at load).

use std::ops::ControlFlow;

use fancy_regex::Regex;

use crate::class::{Classes, NUMBER, PUNCTUATION, SPACE};
use crate::pattern::Pattern;

/// SentencePiece's visible space.
pub(crate) const VISIBLE_SPACE: char = '\u{2581}';

/// What becomes of the matches of a splitter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Behavior {
    /// Dropped.
    Removed,
    /// Words of their own.
    Isolated,
    /// The end of the word before.
    MergedWithPrevious,
    /// The beginning of the word after.
    MergedWithNext,
    /// Adjoining matches are one word.
    Contiguous,
}

/// When a text gets a space in front.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Prefix {
    Never,
    /// Only at the beginning of the prompt.
    First,
    /// After each special token too.
    Always,
}

/// Where a text stands in the prompt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    /// Nothing comes before.
    pub(crate) first: bool,
    /// It begins anew: nothing or a special token comes before, and not tokens that were spliced in.
    pub(crate) fresh: bool,
}

impl Prefix {
    pub(crate) fn applies(self, place: Place) -> bool {
        match self {
            Self::Never => false,
            Self::First => place.first,
            Self::Always => place.fresh,
        }
    }
}

/// One pre-tokenizer.
pub(crate) enum Step {
    /// A known expression that matches everything.
    Pattern(Pattern),
    Regex {
        regex: Box<Regex>,
        behavior: Behavior,
        invert: bool,
    },
    Literal {
        text: String,
        behavior: Behavior,
        invert: bool,
    },
    Digits {
        behavior: Behavior,
    },
    Punctuation {
        behavior: Behavior,
    },
    WhitespaceSplit,
    Bert,
    /// A space in front of each piece that does not begin with one (`ByteLevel`).
    SpaceInFront,
    Metaspace {
        replacement: char,
        prefix: Prefix,
        split: bool,
    },
}

/// Bytes that a step of a regular expression may swallow when the expression gives up (its work is
/// bounded): the text goes on in words of this size. Only texts made to hurt get there.
const GIVE_UP: usize = 4096;

impl Step {
    /// Whether some of the text may end up in no word.
    pub(crate) fn drops_text(&self) -> bool {
        match self {
            Self::Regex { behavior, .. }
            | Self::Literal { behavior, .. }
            | Self::Digits { behavior }
            | Self::Punctuation { behavior } => *behavior == Behavior::Removed,
            Self::WhitespaceSplit | Self::Bert => true,
            Self::Pattern(_) | Self::SpaceInFront | Self::Metaspace { .. } => false,
        }
    }
}

type Emit<'e> = &'e mut dyn FnMut(&str) -> ControlFlow<()>;

/// Runs `text` through all steps and hands each word to `emit`.
pub(crate) fn run(steps: &[Step], text: &str, place: Place, emit: Emit<'_>) -> ControlFlow<()> {
    if text.is_empty() {
        return ControlFlow::Continue(());
    }
    let Some((step, rest)) = steps.split_first() else { return emit(text) };
    // The first piece of a text stands where the text stands; the others are words of their own.
    let mut at = place;
    let mut next = |piece: &str| {
        if piece.is_empty() {
            return ControlFlow::Continue(());
        }
        let at = std::mem::replace(&mut at, Place { first: false, fresh: true });
        if rest.is_empty() { emit(piece) } else { run(rest, piece, at, emit) }
    };
    step.apply(text, place, &mut next)
}

impl Step {
    fn apply(&self, text: &str, place: Place, next: Emit<'_>) -> ControlFlow<()> {
        let classes = Classes::get();
        match self {
            Self::Pattern(pattern) => {
                let mut at = 0;
                while at < text.len() {
                    let end = pattern.end(classes, text, at);
                    next(&text[at..end])?;
                    at = end;
                }
                ControlFlow::Continue(())
            }
            Self::Regex { regex, behavior, invert } => {
                split(text, *behavior, *invert, next, |at| find_regex(regex, text, at))
            }
            Self::Literal { text: literal, behavior, invert } => {
                split(text, *behavior, *invert, next, |at| {
                    text[at..].find(literal.as_str()).map(|found| (at + found, at + found + literal.len()))
                })
            }
            Self::Digits { behavior } => split(text, *behavior, false, next, |at| {
                find_class(text, at, |c| classes.of(c) & NUMBER != 0)
            }),
            Self::Punctuation { behavior } => {
                split(text, *behavior, false, next, |at| find_class(text, at, |c| is_punctuation(classes, c)))
            }
            Self::WhitespaceSplit => split(text, Behavior::Removed, false, next, |at| {
                find_class(text, at, |c| classes.of(c) & SPACE != 0)
            }),
            Self::Bert => {
                let mut word = |word: &str| {
                    split(word, Behavior::Isolated, false, next, |at| {
                        find_class(word, at, |c| is_punctuation(classes, c))
                    })
                };
                split(text, Behavior::Removed, false, &mut word, |at| {
                    find_class(text, at, |c| classes.of(c) & SPACE != 0)
                })
            }
            Self::SpaceInFront if text.starts_with(' ') => next(text),
            Self::SpaceInFront => next(&format!(" {text}")),
            Self::Metaspace { replacement, prefix, split: cut } => {
                let mut marked = String::with_capacity(text.len() + 8);
                if prefix.applies(place) && !text.starts_with([' ', *replacement]) {
                    marked.push(*replacement);
                }
                marked.extend(text.chars().map(|c| if c == ' ' { *replacement } else { c }));
                if !cut {
                    return next(&marked);
                }
                split(&marked, Behavior::MergedWithNext, false, next, |at| {
                    find_class(&marked, at, |c| c == *replacement)
                })
            }
        }
    }
}

fn is_punctuation(classes: Classes, c: char) -> bool {
    c.is_ascii_punctuation() || classes.of(c) & PUNCTUATION != 0
}

fn find_class(text: &str, at: usize, is: impl Fn(char) -> bool) -> Option<(usize, usize)> {
    let (found, c) = text[at..].char_indices().find(|(_, c)| is(*c))?;
    Some((at + found, at + found + c.len_utf8()))
}

fn find_regex(regex: &Regex, text: &str, at: usize) -> Option<(usize, usize)> {
    match regex.find_from_pos(text, at) {
        Ok(found) => found.map(|found| (found.start(), found.end())),
        Err(_) => {
            let end = text.ceil_char_boundary((at + GIVE_UP).min(text.len()));
            Some((at, end))
        }
    }
}

/// Cuts `text` at the matches that `find` gives from a position on.
fn split(
    text: &str,
    behavior: Behavior,
    invert: bool,
    next: Emit<'_>,
    find: impl Fn(usize) -> Option<(usize, usize)>,
) -> ControlFlow<()> {
    let mut cutter = Cutter { text, behavior, pending: None, after_match: false };
    let (mut at, mut done) = (0, 0);
    while at <= text.len() {
        let Some((start, end)) = find(at) else { break };
        if start > done {
            cutter.part(done, start, invert, next)?;
        }
        if end > start {
            cutter.part(start, end, !invert, next)?;
            at = end;
        } else {
            // An empty match cuts but covers nothing; go on behind the next character.
            at = end + text[end..].chars().next().map_or(1, char::len_utf8);
        }
        done = end;
    }
    if done < text.len() {
        cutter.part(done, text.len(), invert, next)?;
    }
    cutter.flush(next)
}

/// Joins the parts of a split as its behaviour says; `pending` is the word that may still grow.
struct Cutter<'t> {
    text: &'t str,
    behavior: Behavior,
    pending: Option<(usize, usize)>,
    after_match: bool,
}

impl Cutter<'_> {
    fn part(&mut self, start: usize, end: usize, is_match: bool, next: Emit<'_>) -> ControlFlow<()> {
        let after_match = std::mem::replace(&mut self.after_match, is_match);
        let joins = match self.behavior {
            Behavior::Removed if is_match => return ControlFlow::Continue(()),
            Behavior::Removed | Behavior::Isolated => return next(&self.text[start..end]),
            Behavior::MergedWithPrevious => is_match && !after_match,
            Behavior::MergedWithNext => !is_match && after_match,
            Behavior::Contiguous => is_match == after_match,
        };
        match &mut self.pending {
            Some(pending) if joins => pending.1 = end,
            _ => {
                self.flush(next)?;
                self.pending = Some((start, end));
            }
        }
        ControlFlow::Continue(())
    }

    fn flush(&mut self, next: Emit<'_>) -> ControlFlow<()> {
        match self.pending.take() {
            Some((start, end)) => next(&self.text[start..end]),
            None => ControlFlow::Continue(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(step: Step, text: &str) -> Vec<String> {
        let mut out = Vec::new();
        let _ = run(&[step], text, Place { first: true, fresh: true }, &mut |word| {
            out.push(word.to_owned());
            ControlFlow::Continue(())
        });
        out
    }

    #[track_caller]
    fn check(behavior: Behavior, expected: &[&str]) {
        let step = Step::Literal { text: "-".into(), behavior, invert: false };
        assert_eq!(words(step, "the-final--countdown-"), expected, "{behavior:?}");
    }

    #[test]
    fn each_behavior_keeps_its_promise() {
        check(Behavior::Removed, &["the", "final", "countdown"]);
        check(Behavior::Isolated, &["the", "-", "final", "-", "-", "countdown", "-"]);
        check(Behavior::MergedWithPrevious, &["the-", "final-", "-", "countdown-"]);
        check(Behavior::MergedWithNext, &["the", "-final", "-", "-countdown", "-"]);
        check(Behavior::Contiguous, &["the", "-", "final", "--", "countdown", "-"]);
    }

    #[test]
    fn bert_cuts_at_spaces_and_isolates_punctuation() {
        assert_eq!(words(Step::Bert, " a.b  «c» "), ["a", ".", "b", "«", "c", "»"]);
    }

    #[test]
    fn metaspace_marks_each_word() {
        let step = Step::Metaspace { replacement: VISIBLE_SPACE, prefix: Prefix::Always, split: true };
        assert_eq!(words(step, "a  b"), ["▁a", "▁", "▁b"]);
    }

    #[test]
    fn a_caller_that_stops_sees_no_more_words() {
        let mut seen = 0;
        let flow = run(
            &[Step::Digits { behavior: Behavior::Isolated }],
            "1234",
            Place { first: true, fresh: true },
            &mut |_| {
                seen += 1;
                if seen == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            },
        );
        assert!(flow.is_break());
        assert_eq!(seen, 2);
    }

    #[test]
    fn an_expression_that_gives_up_still_covers_the_text() {
        let regex = fancy_regex::RegexBuilder::new(r"(a|aa)+(?=b)\1").backtrack_limit(1000).build().unwrap();
        let step = Step::Regex { regex: Box::new(regex), behavior: Behavior::Isolated, invert: false };
        let text = "a".repeat(20_000);
        assert_eq!(words(step, &text).concat(), text);
    }
}

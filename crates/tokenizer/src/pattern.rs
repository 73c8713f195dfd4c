//! Hand-made splitters for the regular expressions of the large byte-level BPE families.
//!
//! Each [`Pattern`] matches every character, so a text is a row of adjacent matches, and each match is
//! found in one pass over its characters: no backtracking whatever the text. The tests hold each against
//! the regular expression it stands for. Other expressions go through `pretokenizer::Step::Regex`.

use crate::class::{CASELESS, Class, Classes, LETTER, LOWER, MARK, NEWLINE, NUMBER, SPACE, UPPER};

/// GPT-2, SmolLM2 and many others.
pub(crate) const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
/// Llama 3 and GPT-4.
pub(crate) const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Qwen2 and Qwen3: as Llama 3, digits one by one.
pub(crate) const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// Mistral's tekken.
pub(crate) const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
/// GPT-4o.
pub(crate) const O200K: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// An expression with a hand-made matcher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pattern {
    Gpt2,
    Llama3,
    Qwen2,
    Tekken,
    O200k,
}

impl Pattern {
    /// The matcher for a regular expression, where there is one.
    pub(crate) fn of(regex: &str) -> Option<Self> {
        // Llama 3's own file writes the group of contractions out, which means the same.
        match regex {
            GPT2 => Some(Self::Gpt2),
            LLAMA3 => Some(Self::Llama3),
            QWEN2 => Some(Self::Qwen2),
            TEKKEN => Some(Self::Tekken),
            O200K => Some(Self::O200k),
            _ => None,
        }
    }

    /// The regular expression.
    #[cfg(test)]
    fn regex(self) -> &'static str {
        match self {
            Self::Gpt2 => GPT2,
            Self::Llama3 => LLAMA3,
            Self::Qwen2 => QWEN2,
            Self::Tekken => TEKKEN,
            Self::O200k => O200K,
        }
    }

    /// Where the match that begins at `at` ends. `at` is a character border before the end of `text`.
    #[inline]
    pub(crate) fn end(self, classes: Classes, text: &str, at: usize) -> usize {
        let scan = Scan { classes, text };
        match self {
            Self::Gpt2 => scan.gpt2(at),
            Self::Llama3 => scan.llama3(at, 3),
            Self::Qwen2 => scan.llama3(at, 1),
            Self::Tekken => scan.cased(at, 1, false),
            Self::O200k => scan.cased(at, 3, true),
        }
    }
}

/// What may begin a cased word: upper case, no case, marks.
const HEAD: Class = UPPER | CASELESS | MARK;
/// What may end one: lower case, no case, marks.
const TAIL: Class = LOWER | CASELESS | MARK;

#[derive(Clone, Copy)]
struct Scan<'a> {
    classes: Classes,
    text: &'a str,
}

impl Scan<'_> {
    fn gpt2(self, at: usize) -> usize {
        let bytes = self.text.as_bytes();
        if bytes[at] == b'\''
            && let Some(end) = self.contraction(at, false)
        {
            return end;
        }
        let start = at + usize::from(bytes[at] == b' ');
        let Some((class, len)) = self.classes.at(self.text, start) else { return start };
        if class & LETTER != 0 {
            self.classes.run(self.text, start + len, LETTER)
        } else if class & NUMBER != 0 {
            self.classes.run(self.text, start + len, NUMBER)
        } else if class & SPACE == 0 {
            self.classes.run_without(self.text, start + len, SPACE | LETTER | NUMBER)
        } else {
            self.spaces(at, self.classes.run(self.text, start + len, SPACE))
        }
    }

    fn llama3(self, at: usize, digits: usize) -> usize {
        let bytes = self.text.as_bytes();
        if bytes[at] == b'\''
            && let Some(end) = self.contraction(at, true)
        {
            return end;
        }
        let (class, len) = self.classes.at(self.text, at).expect("there is a character at `at`");
        if class & LETTER != 0 {
            return self.classes.run(self.text, at + len, LETTER);
        }
        if class & NUMBER != 0 {
            return self.numbers(at + len, digits - 1);
        }
        if class & NEWLINE == 0
            && let Some((next, next_len)) = self.classes.at(self.text, at + len)
            && next & LETTER != 0
        {
            return self.classes.run(self.text, at + len + next_len, LETTER);
        }
        self.rest(at, class, len, false)
    }

    /// Tekken and GPT-4o: words end where lower case turns to upper case.
    fn cased(self, at: usize, digits: usize, contractions: bool) -> usize {
        let (class, len) = self.classes.at(self.text, at).expect("there is a character at `at`");
        let may_lead = class & (NEWLINE | LETTER | NUMBER) == 0;
        let word = if may_lead { self.mixed(at + len) } else { None }
            .or_else(|| self.mixed(at))
            .or_else(|| if may_lead { self.upper(at + len) } else { None })
            .or_else(|| self.upper(at));
        if let Some(end) = word {
            let suffix = if contractions { self.contraction(end, true) } else { None };
            return suffix.unwrap_or(end);
        }
        if class & NUMBER != 0 {
            return self.numbers(at + len, digits - 1);
        }
        self.rest(at, class, len, true)
    }

    /// `HEAD* TAIL+`, greedy.
    fn mixed(self, at: usize) -> Option<usize> {
        let head = self.classes.run(self.text, at, HEAD);
        let tail = self.classes.run(self.text, head, TAIL);
        if tail > head {
            return Some(tail);
        }
        // The head must give back characters up to one that may also be a tail.
        let mut end = head;
        for c in self.text[at..head].chars().rev() {
            if self.classes.of(c) & TAIL != 0 {
                return Some(end);
            }
            end -= c.len_utf8();
        }
        None
    }

    /// `HEAD+ TAIL*`, greedy; called where [`Scan::mixed`] found nothing, so the tail is empty.
    fn upper(self, at: usize) -> Option<usize> {
        let head = self.classes.run(self.text, at, HEAD);
        (head > at).then_some(head)
    }

    fn numbers(self, mut at: usize, more: usize) -> usize {
        for _ in 0..more {
            match self.classes.at(self.text, at) {
                Some((class, len)) if class & NUMBER != 0 => at += len,
                _ => break,
            }
        }
        at
    }

    /// ` ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`, with `/` among the newlines where `slash`.
    fn rest(self, at: usize, class: Class, len: usize, slash: bool) -> usize {
        const WORDS: Class = SPACE | LETTER | NUMBER;
        let bytes = self.text.as_bytes();
        let start = at + usize::from(bytes[at] == b' ');
        let symbols = if class & SPACE == 0 {
            self.classes.run_without(self.text, at + len, WORDS)
        } else {
            // Equal to `start` where the character after a space is no symbol.
            self.classes.run_without(self.text, start, WORDS)
        };
        if symbols > start && (class & SPACE == 0 || bytes[at] == b' ') {
            let tail = bytes[symbols..]
                .iter()
                .take_while(|byte| matches!(byte, b'\r' | b'\n') || (slash && **byte == b'/'))
                .count();
            return symbols + tail;
        }
        let end = self.classes.run(self.text, at + len, SPACE);
        match bytes[at..end].iter().rposition(|byte| matches!(byte, b'\r' | b'\n')) {
            Some(newline) => at + newline + 1,
            None => self.spaces(at, end),
        }
    }

    /// `\s+(?!\S)|\s+` on the run of spaces `[at, end)`: all but the last where a word follows.
    fn spaces(self, at: usize, end: usize) -> usize {
        if end == self.text.len() {
            return end;
        }
        let last = self.text[at..end].chars().next_back().map_or(0, char::len_utf8);
        if end - last > at { end - last } else { end }
    }

    /// `'s|'t|'re|'ve|'m|'ll|'d` at `at`.
    fn contraction(self, at: usize, any_case: bool) -> Option<usize> {
        let rest = self.text[at..].strip_prefix('\'')?;
        // `ſ` folds to `s`; no other character outside ASCII folds to one of these letters.
        let fold = |c: char| match c {
            'ſ' if any_case => 's',
            c if any_case => c.to_ascii_lowercase(),
            c => c,
        };
        let mut chars = rest.chars();
        let first = chars.next()?;
        let end = at + 1 + first.len_utf8();
        match (fold(first), chars.next().map(fold)) {
            ('s' | 't' | 'm' | 'd', _) => Some(end),
            ('r' | 'v', Some('e')) | ('l', Some('l')) => Some(end + 1),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    const ALL: [Pattern; 5] =
        [Pattern::Gpt2, Pattern::Llama3, Pattern::Qwen2, Pattern::Tekken, Pattern::O200k];

    fn by_hand(pattern: Pattern, text: &str) -> Vec<&str> {
        let (classes, mut at, mut out) = (Classes::get(), 0, Vec::new());
        while at < text.len() {
            let end = pattern.end(classes, text, at);
            out.push(&text[at..end]);
            at = end;
        }
        out
    }

    fn by_regex(pattern: Pattern, text: &str) -> Vec<&str> {
        static REGEXES: LazyLock<Vec<fancy_regex::Regex>> =
            LazyLock::new(|| ALL.iter().map(|p| fancy_regex::Regex::new(p.regex()).unwrap()).collect());
        let regex = &REGEXES[ALL.iter().position(|p| *p == pattern).unwrap()];
        regex.find_iter(text).map(|m| m.unwrap().as_str()).collect()
    }

    #[track_caller]
    fn check(text: &str) {
        for pattern in ALL {
            assert_eq!(by_hand(pattern, text), by_regex(pattern, text), "{pattern:?} on {text:?}");
        }
    }

    #[test]
    fn hand_made_splitters_equal_their_regular_expressions_on_hard_cases() {
        for text in [
            "Hello, world's  best\n\n  code",
            "'s 'S 'ſ 'RE 'll'LL'l 'x ' ''s",
            "   \n \r\n\t x",
            "a\u{301}b \u{301}x \u{301} \u{301}",
            "ABCdef中ABC中 中aA ǅǅa ʰA",
            " /// //\n/\r\n/a",
            "1234567 ½ Ⅷ ٣٤٥",
            "\u{3000}\u{3000}中 \u{a0}x\u{2028}",
            "don't DON'T it'S we'Ve",
            "  ",
            "\n",
            " \n",
        ] {
            check(text);
        }
    }

    proptest! {
        #[test]
        fn hand_made_splitters_equal_their_regular_expressions(
            parts in prop::collection::vec(prop::sample::select(vec![
                "a", "b", "Z", "Q", "'", "s", "S", "ſ", "re", "LL", "'ve", " ", "  ", "\n", "\r", "\t", "\u{a0}",
                "\u{2028}", "1", "23", "½", "é", "e\u{301}", "\u{301}", "中", "ア", "ǅ", "ʰ", "ß", "-", "/", "//",
                "!", "€", "👩‍💻", "ا", "\u{64b}", "ไ", "\u{e34}", "\0", "\u{feff}", "\u{200d}",
            ]), 0..24)
        ) {
            check(&parts.concat());
        }

        #[test]
        fn hand_made_splitters_equal_their_regular_expressions_on_any_text(text in any::<String>()) {
            check(&text);
        }
    }
}

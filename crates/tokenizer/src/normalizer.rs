//! Normalizers: rewrite a text before it is cut into words.
//!
//! Offsets are not kept: nobody downstream asks which input a token came from.

use std::borrow::Cow;

use fancy_regex::Regex;
use unicode_normalization::{IsNormalized, UnicodeNormalization, is_nfc_quick, is_nfkc_quick};

use crate::charsmap::Charsmap;
use crate::class::{Classes, MARK, NONSPACING, OTHER, SPACE};
use crate::pretokenizer::{Place, Prefix};

/// One normalizer.
pub(crate) enum Step {
    Nfc,
    Nfd,
    Nfkc,
    Nfkd,
    Lowercase,
    StripAccents,
    /// Trims white space.
    Strip {
        left: bool,
        right: bool,
    },
    ReplaceText {
        from: String,
        to: String,
    },
    ReplaceRegex {
        regex: Box<Regex>,
        to: String,
    },
    /// A text in front, where [`Prefix`] says so.
    Prepend {
        text: String,
        prefix: Prefix,
    },
    Bert {
        clean: bool,
        chinese: bool,
        accents: bool,
        lowercase: bool,
    },
    /// SentencePiece's compiled rules.
    Precompiled(Charsmap),
}

impl Step {
    /// How many times shorter a text can become, where there is a bound.
    pub(crate) fn shrinks_at_most(&self) -> Option<usize> {
        match self {
            Self::Prepend { .. } => Some(1),
            Self::ReplaceText { from, to } if from.len() <= to.len() => Some(1),
            // Three conjoining jamo, nine bytes, make a syllable of three; no composition gains more than
            // four times.
            Self::Nfc => Some(4),
            _ => None,
        }
    }
}

/// Runs `text` through all steps.
pub(crate) fn run<'t>(steps: &[Step], text: &'t str, place: Place) -> Cow<'t, str> {
    let mut text = Cow::Borrowed(text);
    for step in steps {
        let changed = match step.apply(&text, place) {
            Cow::Owned(changed) => Some(changed),
            Cow::Borrowed(kept) if kept.len() != text.len() => Some(kept.to_owned()),
            Cow::Borrowed(_) => None,
        };
        if let Some(changed) = changed {
            text = Cow::Owned(changed);
        }
    }
    text
}

impl Step {
    fn apply<'t>(&self, text: &'t str, place: Place) -> Cow<'t, str> {
        let plain = text.is_ascii();
        match self {
            Self::Nfc | Self::Nfkc | Self::Nfd | Self::Nfkd | Self::StripAccents if plain => text.into(),
            Self::Nfc if is_nfc_quick(text.chars()) == IsNormalized::Yes => text.into(),
            Self::Nfc => text.nfc().collect::<String>().into(),
            Self::Nfkc if is_nfkc_quick(text.chars()) == IsNormalized::Yes => text.into(),
            Self::Nfkc => text.nfkc().collect::<String>().into(),
            Self::Nfd => text.nfd().collect::<String>().into(),
            Self::Nfkd => text.nfkd().collect::<String>().into(),
            // Character by character as the reference does: no final sigma.
            Self::Lowercase => text.chars().flat_map(char::to_lowercase).collect::<String>().into(),
            Self::StripAccents => {
                let classes = Classes::get();
                text.chars().filter(|c| classes.of(*c) & MARK == 0).collect::<String>().into()
            }
            Self::Strip { left, right } => {
                let text = if *left { text.trim_start() } else { text };
                if *right { text.trim_end() } else { text }.into()
            }
            Self::ReplaceText { from, to } if !text.contains(from.as_str()) => {
                let _ = to;
                text.into()
            }
            Self::ReplaceText { from, to } => text.replace(from.as_str(), to).into(),
            Self::ReplaceRegex { regex, to } => replace(regex, text, to),
            Self::Prepend { text: prefix, prefix: when } => {
                if text.is_empty() || !when.applies(place) {
                    text.into()
                } else {
                    format!("{prefix}{text}").into()
                }
            }
            Self::Bert { clean, chinese, accents, lowercase } => {
                bert(text, plain, *clean, *chinese, *accents, *lowercase).into()
            }
            Self::Precompiled(rules) => rules.apply(text),
        }
    }
}

/// Replaces each match with the literal `to`; an expression that gives up leaves the rest as it is.
fn replace<'t>(regex: &Regex, text: &'t str, to: &str) -> Cow<'t, str> {
    let (mut out, mut done) = (String::new(), 0);
    for found in regex.find_iter(text) {
        let Ok(found) = found else { break };
        if found.start() == found.end() {
            continue;
        }
        out.push_str(&text[done..found.start()]);
        out.push_str(to);
        done = found.end();
    }
    if done == 0 {
        return text.into();
    }
    out.push_str(&text[done..]);
    out.into()
}

/// BERT's normalizer in one pass: clean, space out ideographs, strip accents, lowercase.
fn bert(text: &str, plain: bool, clean: bool, chinese: bool, accents: bool, lowercase: bool) -> String {
    let classes = Classes::get();
    let mut spaced = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        let class = classes.of(c);
        let is_break = matches!(c, '\t' | '\n' | '\r');
        if clean && (c == '\0' || c == '\u{fffd}' || (class & OTHER != 0 && !is_break)) {
            continue;
        }
        let c = if clean && (is_break || class & SPACE != 0) { ' ' } else { c };
        if chinese && is_ideograph(c) {
            spaced.extend([' ', c, ' ']);
        } else {
            spaced.push(c);
        }
    }
    if accents && !plain {
        spaced = spaced.nfd().filter(|c| classes.of(*c) & NONSPACING == 0).collect();
    }
    if lowercase {
        spaced = spaced.chars().flat_map(char::to_lowercase).collect();
    }
    spaced
}

/// The ranges that BERT calls Chinese.
fn is_ideograph(c: char) -> bool {
    matches!(u32::from(c),
        0x4E00..=0x9FFF | 0x3400..=0x4DBF | 0x20000..=0x2A6DF | 0x2A700..=0x2B73F | 0x2B740..=0x2B81F
        | 0x2B920..=0x2CEAF | 0xF900..=0xFAFF | 0x2F800..=0x2FA1F)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRESH: Place = Place { first: true, fresh: true };

    #[track_caller]
    fn check(step: Step, text: &str, expected: &str) {
        assert_eq!(run(&[step], text, FRESH), expected);
    }

    #[test]
    fn each_step_rewrites_as_its_name_says() {
        check(Step::Nfc, "e\u{301}", "é");
        check(Step::Nfkc, "ﬁ①", "fi1");
        check(Step::Nfd, "é", "e\u{301}");
        check(Step::Lowercase, "ΑΣ", "ας".replace('ς', "σ").as_str());
        check(Step::StripAccents, "e\u{301}", "e");
        check(Step::Strip { left: true, right: false }, "  a ", "a ");
        check(Step::ReplaceText { from: " ".into(), to: "▁".into() }, "a b", "a▁b");
        check(Step::Prepend { text: "▁".into(), prefix: Prefix::Always }, "a", "▁a");
        check(Step::Prepend { text: "▁".into(), prefix: Prefix::Always }, "", "");
    }

    #[test]
    fn bert_cleans_spaces_strips_and_lowers() {
        let step = || Step::Bert { clean: true, chinese: true, accents: true, lowercase: true };
        check(step(), "É\u{0}\u{200d}\tA中b", "e a 中 b");
    }

    #[test]
    fn no_prefix_goes_behind_spliced_tokens() {
        let step = Step::Prepend { text: "▁".into(), prefix: Prefix::Always };
        assert_eq!(run(&[step], "a", Place { first: false, fresh: false }), "a");
    }
}

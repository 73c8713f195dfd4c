//! Normalizers and pre-tokenizers of `tokenizer.json`.

use base64::Engine as _;
use fancy_regex::{Regex, RegexBuilder};
use serde_json::Value;

use super::unsupported;
use crate::charsmap::Charsmap;
use crate::pattern::{GPT2, Pattern};
use crate::pretokenizer::{self, Behavior, Prefix, VISIBLE_SPACE};
use crate::{Error, normalizer};

/// Deepest nesting of sequences; real files have one level.
const DEPTH_MAX: usize = 16;

/// Steps of an expression before it gives up on a place.
const BACKTRACKS_MAX: usize = 100_000;

/// The pre-tokenizers, and whether they write bytes as characters (`ByteLevel`).
pub(super) struct Pretokenizers {
    pub(super) steps: Vec<pretokenizer::Step>,
    pub(super) byte_level: bool,
}

pub(super) fn normalizers(component: Option<&Value>) -> Result<Vec<normalizer::Step>, Error> {
    let mut steps = Vec::new();
    if let Some(component) = component.filter(|component| !component.is_null()) {
        normalizer(component, &mut steps, 0)?;
    }
    Ok(steps)
}

/// The `type` of a component.
pub(super) fn kind(component: &Value) -> &str {
    component.get("type").and_then(Value::as_str).unwrap_or("(no type)")
}

pub(super) fn flag(component: &Value, name: &str, default: bool) -> bool {
    component.get(name).and_then(Value::as_bool).unwrap_or(default)
}

pub(super) fn text<'v>(part: &'static str, component: &'v Value, name: &str) -> Result<&'v str, Error> {
    component
        .get(name)
        .and_then(Value::as_str)
        .ok_or_else(|| unsupported(part, format!("{} without a text `{name}`", kind(component))))
}

pub(super) fn list<'v>(part: &'static str, component: &'v Value, name: &str) -> Result<&'v [Value], Error> {
    component
        .get(name)
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .ok_or_else(|| unsupported(part, format!("{} without a list `{name}`", kind(component))))
}

pub(super) fn check_depth(part: &'static str, depth: usize) -> Result<(), Error> {
    if depth > DEPTH_MAX { Err(unsupported(part, "Sequence nested this deep")) } else { Ok(()) }
}

/// A character given as a text of one character.
pub(super) fn character(part: &'static str, component: &Value, name: &str) -> Result<char, Error> {
    let Some(text) = component.get(name).and_then(Value::as_str) else { return Ok(VISIBLE_SPACE) };
    let mut chars = text.chars();
    match (chars.next(), chars.next()) {
        (Some(c), None) => Ok(c),
        _ => Err(unsupported(part, format!("{} with `{name}` of other than one character", kind(component)))),
    }
}

/// Compiles an expression with a bound on the work at each place.
pub(crate) fn compile(pattern: &str) -> Result<Box<Regex>, Error> {
    RegexBuilder::new(pattern)
        .backtrack_limit(BACKTRACKS_MAX)
        .build()
        .map(Box::new)
        .map_err(|error| Error::Pattern { pattern: pattern.into(), problem: error.to_string() })
}

/// A pattern field: a literal or an expression.
pub(super) enum Matched<'v> {
    Literal(&'v str),
    Regex(&'v str),
}

pub(super) fn pattern<'v>(part: &'static str, component: &'v Value) -> Result<Matched<'v>, Error> {
    let pattern = component.get("pattern").unwrap_or(&Value::Null);
    match (pattern.get("String").and_then(Value::as_str), pattern.get("Regex").and_then(Value::as_str)) {
        (Some(text), _) if !text.is_empty() => Ok(Matched::Literal(text)),
        (None, Some(regex)) => Ok(Matched::Regex(regex)),
        _ => Err(unsupported(part, format!("{} without a pattern", kind(component)))),
    }
}

fn normalizer(component: &Value, steps: &mut Vec<normalizer::Step>, depth: usize) -> Result<(), Error> {
    const PART: &str = "normalizer";
    use normalizer::Step;
    check_depth(PART, depth)?;
    steps.push(match kind(component) {
        "Sequence" => {
            for inner in list(PART, component, "normalizers")? {
                normalizer(inner, steps, depth + 1)?;
            }
            return Ok(());
        }
        "NFC" => Step::Nfc,
        "NFD" => Step::Nfd,
        "NFKC" => Step::Nfkc,
        "NFKD" => Step::Nfkd,
        "Lowercase" => Step::Lowercase,
        "StripAccents" => Step::StripAccents,
        "Strip" => Step::Strip {
            left: flag(component, "strip_left", true),
            right: flag(component, "strip_right", true),
        },
        "Prepend" => Step::Prepend { text: text(PART, component, "prepend")?.into(), prefix: Prefix::Always },
        "Replace" => {
            let to = text(PART, component, "content")?.to_owned();
            match pattern(PART, component)? {
                Matched::Literal(from) => Step::ReplaceText { from: from.into(), to },
                Matched::Regex(from) => Step::ReplaceRegex { regex: compile(from)?, to },
            }
        }
        "BertNormalizer" => {
            let lowercase = flag(component, "lowercase", true);
            Step::Bert {
                clean: flag(component, "clean_text", true),
                chinese: flag(component, "handle_chinese_chars", true),
                accents: flag(component, "strip_accents", lowercase),
                lowercase,
            }
        }
        "Precompiled" => {
            let map = base64::engine::general_purpose::STANDARD
                .decode(text(PART, component, "precompiled_charsmap")?)
                .map_err(|_| "that is not base64");
            let rules = map.and_then(|map| Charsmap::new(&map));
            Step::Precompiled(rules.map_err(|fault| {
                unsupported(PART, format!("Precompiled with a `precompiled_charsmap` {fault}"))
            })?)
        }
        other => return Err(unsupported(PART, other)),
    });
    Ok(())
}

pub(super) fn pretokenizers(component: Option<&Value>) -> Result<Pretokenizers, Error> {
    let mut all = Pretokenizers { steps: Vec::new(), byte_level: false };
    if let Some(component) = component.filter(|component| !component.is_null()) {
        pretokenizer(component, &mut all, 0)?;
    }
    Ok(all)
}

fn pretokenizer(component: &Value, all: &mut Pretokenizers, depth: usize) -> Result<(), Error> {
    const PART: &str = "pre_tokenizer";
    use pretokenizer::Step;
    check_depth(PART, depth)?;
    let name = kind(component);
    if all.byte_level {
        // Steps behind `ByteLevel` would see its alphabet, which we do not write.
        return Err(unsupported(PART, format!("{name} after ByteLevel")));
    }
    let step = match name {
        "Sequence" => {
            for inner in list(PART, component, "pretokenizers")? {
                pretokenizer(inner, all, depth + 1)?;
            }
            return Ok(());
        }
        "ByteLevel" => {
            if flag(component, "add_prefix_space", true) {
                all.steps.push(Step::SpaceInFront);
            }
            if flag(component, "use_regex", true) {
                all.steps.push(Step::Pattern(Pattern::of(GPT2).expect("GPT-2's expression is known")));
            }
            all.byte_level = true;
            return Ok(());
        }
        "Split" => split(component)?,
        "Digits" if flag(component, "individual_digits", false) => {
            Step::Digits { behavior: Behavior::Isolated }
        }
        "Digits" => Step::Digits { behavior: Behavior::Contiguous },
        "Punctuation" => Step::Punctuation { behavior: behavior(component)? },
        "Whitespace" => {
            Step::Regex { regex: compile(r"\w+|[^\w\s]+")?, behavior: Behavior::Removed, invert: true }
        }
        "WhitespaceSplit" => Step::WhitespaceSplit,
        "BertPreTokenizer" => Step::Bert,
        "Metaspace" => Step::Metaspace {
            replacement: character(PART, component, "replacement")?,
            prefix: metaspace_prefix(PART, component)?,
            split: flag(component, "split", true),
        },
        other => return Err(unsupported(PART, other)),
    };
    all.steps.push(step);
    Ok(())
}

/// `prepend_scheme`, or `add_prefix_space` of older files.
pub(super) fn metaspace_prefix(part: &'static str, component: &Value) -> Result<Prefix, Error> {
    match component.get("prepend_scheme").and_then(Value::as_str) {
        Some("always") => Ok(Prefix::Always),
        Some("first") => Ok(Prefix::First),
        Some("never") => Ok(Prefix::Never),
        Some(other) => Err(unsupported(part, format!("Metaspace with prepend_scheme {other}"))),
        None if flag(component, "add_prefix_space", true) => Ok(Prefix::Always),
        None => Ok(Prefix::Never),
    }
}

fn behavior(component: &Value) -> Result<Behavior, Error> {
    match component.get("behavior").and_then(Value::as_str) {
        Some("Removed") => Ok(Behavior::Removed),
        Some("Isolated") | None => Ok(Behavior::Isolated),
        Some("MergedWithPrevious") => Ok(Behavior::MergedWithPrevious),
        Some("MergedWithNext") => Ok(Behavior::MergedWithNext),
        Some("Contiguous") => Ok(Behavior::Contiguous),
        Some(other) => {
            Err(unsupported("pre_tokenizer", format!("{} with behavior {other}", kind(component))))
        }
    }
}

fn split(component: &Value) -> Result<pretokenizer::Step, Error> {
    use pretokenizer::Step;
    let (behavior, invert) = (behavior(component)?, flag(component, "invert", false));
    Ok(match pattern("pre_tokenizer", component)? {
        Matched::Literal(text) => Step::Literal { text: text.into(), behavior, invert },
        Matched::Regex(regex) => match Pattern::of(regex) {
            // These cover the whole text, so there is nothing between matches to treat otherwise.
            Some(pattern)
                if (behavior == Behavior::Isolated && !invert)
                    || (behavior == Behavior::Removed && invert) =>
            {
                Step::Pattern(pattern)
            }
            _ => Step::Regex { regex: compile(regex)?, behavior, invert },
        },
    })
}

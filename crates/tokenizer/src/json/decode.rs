//! Decoders of `tokenizer.json`, worked out once per token into a table.
//!
//! What acts on each token alone is applied to its text here; what acts on the joined text (`Strip` behind
//! `Fuse`) becomes the rule for the start. Other decoders that look across tokens are not supported.

use serde_json::Value;

use super::component::{Matched, character, check_depth, flag, kind, list, metaspace_prefix, pattern, text};
use super::{Tokens, unsupported};
use crate::decoder::{self, Decoder, Start};
use crate::pretokenizer::Prefix;
use crate::vocab::{Kind, Strings, byte_of};
use crate::{Error, bytelevel};

const PART: &str = "decoder";

/// What is done to a token's text, in order.
enum Step {
    Replace {
        from: String,
        to: String,
    },
    /// `<0x0A>` becomes its byte.
    Bytes,
    ByteLevel,
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
}

#[derive(Default)]
struct Plan {
    steps: Vec<Step>,
    fused: bool,
    start: Option<Start>,
    wordpiece: Option<(String, bool)>,
}

pub(super) fn read(component: Option<&Value>, tokens: &Tokens) -> Result<Decoder, Error> {
    let Some(component) = component.filter(|component| !component.is_null()) else {
        // Without a decoder the reference puts a space between tokens.
        return Ok(decoder::wordpiece(&tokens.texts, "", false));
    };
    let mut plan = Plan::default();
    plan.add(component, 0)?;
    if let Some((prefix, tidy)) = &plan.wordpiece {
        return Ok(decoder::wordpiece(&tokens.texts, prefix, *tidy));
    }
    let mut bytes = Strings::with_capacity(tokens.texts.len(), tokens.texts.len() * 8);
    for (id, kind) in (0u32..).zip(&tokens.kinds) {
        let text = tokens.texts.get(id);
        match kind {
            // Added tokens say literally what they say.
            Kind::UserDefined | Kind::Added if plan.byte_level() => bytes.push(text),
            Kind::Control | Kind::Unknown | Kind::Unused => bytes.push(text),
            Kind::Normal | Kind::UserDefined | Kind::Added | Kind::Byte => bytes.push(&plan.apply(text)),
        }
    }
    Ok(Decoder { bytes, start: plan.start.unwrap_or(Start::Keep), bare: None })
}

impl Plan {
    fn byte_level(&self) -> bool {
        self.steps.iter().any(|step| matches!(step, Step::ByteLevel))
    }

    fn add(&mut self, component: &Value, depth: usize) -> Result<(), Error> {
        check_depth(PART, depth)?;
        let name = kind(component);
        if self.wordpiece.is_some() {
            return Err(unsupported(PART, format!("{name} after WordPiece")));
        }
        let step = match name {
            "Sequence" => {
                for inner in list(PART, component, "decoders")? {
                    self.add(inner, depth + 1)?;
                }
                return Ok(());
            }
            "Fuse" => {
                self.fused = true;
                return Ok(());
            }
            "Strip" => {
                let count = |name| {
                    let count = component.get(name).and_then(Value::as_u64).unwrap_or(0);
                    usize::try_from(count).unwrap_or(usize::MAX)
                };
                let content = character(PART, component, "content")?;
                let (start, stop) = (count("start"), count("stop"));
                if !self.fused {
                    Step::Strip { content, start, stop }
                } else if stop == 0 && self.start.is_none() {
                    self.start = Some(Start::Strip { content, count: start });
                    return Ok(());
                } else {
                    return Err(unsupported(PART, "Strip of the end of the text"));
                }
            }
            _ if self.fused => return Err(unsupported(PART, format!("{name} after Fuse"))),
            "Replace" => match pattern(PART, component)? {
                Matched::Literal(from) => {
                    Step::Replace { from: from.into(), to: text(PART, component, "content")?.into() }
                }
                Matched::Regex(_) => return Err(unsupported(PART, "Replace with a Regex")),
            },
            "ByteFallback" => Step::Bytes,
            "ByteLevel" => Step::ByteLevel,
            "Metaspace" => {
                let replacement = character(PART, component, "replacement")?;
                if metaspace_prefix(PART, component)? != Prefix::Never {
                    self.start = Some(Start::FirstTokenLosesSpaces);
                }
                Step::Replace { from: replacement.into(), to: " ".into() }
            }
            "WordPiece" if self.steps.is_empty() => {
                let prefix = component.get("prefix").and_then(Value::as_str).unwrap_or("##");
                self.wordpiece = Some((prefix.into(), flag(component, "cleanup", true)));
                return Ok(());
            }
            other => return Err(unsupported(PART, other)),
        };
        self.steps.push(step);
        Ok(())
    }

    fn apply(&self, token: &[u8]) -> Vec<u8> {
        let mut text = String::from_utf8_lossy(token).into_owned();
        for (at, step) in self.steps.iter().enumerate() {
            match step {
                Step::Replace { from, to } => text = text.replace(from.as_str(), to),
                Step::Strip { content, start, stop } => text = strip(&text, *content, *start, *stop),
                Step::Bytes => {
                    if let Some(byte) = byte_of(text.as_bytes()) {
                        return vec![byte];
                    }
                }
                Step::ByteLevel => {
                    let mut out = Vec::new();
                    bytelevel::decode(text.as_bytes(), &mut out);
                    // Bytes are no text to go on with; nothing real comes behind this step.
                    match String::from_utf8(out) {
                        Ok(decoded) if at + 1 < self.steps.len() => text = decoded,
                        Ok(decoded) => return decoded.into_bytes(),
                        Err(error) => return error.into_bytes(),
                    }
                }
            }
        }
        text.into_bytes()
    }
}

fn strip(text: &str, content: char, start: usize, stop: usize) -> String {
    let mut text = text;
    for _ in 0..start {
        let Some(rest) = text.strip_prefix(content) else { break };
        text = rest;
    }
    for _ in 0..stop {
        let Some(rest) = text.strip_suffix(content) else { break };
        text = rest;
    }
    text.to_owned()
}

//! A turn as tokens, in the form that the model's own template gives it.
//!
//! The template is asked twice: for a conversation up to the assistant's word, and for the same conversation with the
//! turn in it. What the second has beyond the first is what a model of this family would say. So calls, thoughts and
//! ends come in each family's form without a list of families here; a template that cannot show a turn so refuses it,
//! and `raw` is left.

use super::file::Turn;
use crate::template::{ChatTemplate, Conversation, Origin, Rendering};
use serde_json::{Map, Value as Json, json};
use tokenizer::{Piece, Tokenizer};

/// What is said once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Line {
    /// The text, as the tokens' bytes.
    pub bytes: Vec<u8>,
    /// Each token and where its bytes begin, ascending.
    tokens: Vec<(u32, u32)>,
    /// The token that ends it.
    pub end: u32,
}

impl Line {
    fn new(ids: &[u32], end: u32, tokenizer: &Tokenizer) -> Result<Self, String> {
        let (mut bytes, mut tokens) = (Vec::new(), Vec::new());
        for id in ids {
            let start = u32::try_from(bytes.len()).map_err(|_| "is too long".to_owned())?;
            tokens.push((*id, start));
            bytes.extend_from_slice(tokenizer.token_bytes(*id));
        }
        Ok(Self { bytes, tokens, end })
    }

    /// The token that the tokenizer has at this byte; `None` inside a token.
    pub fn token(&self, said: usize) -> Option<u32> {
        let at = self.tokens.partition_point(|(_, start)| (*start as usize) < said);
        self.tokens.get(at).filter(|(_, start)| *start as usize == said).map(|(id, _)| *id)
    }
}

/// Makes lines and keeps them.
pub(super) struct Writer<'a> {
    tokenizer: &'a Tokenizer,
    template: &'a ChatTemplate,
    /// Tokens that end an answer.
    ends: Vec<u32>,
    /// The one that ends a raw answer.
    end: u32,
    lines: Vec<Line>,
}

impl<'a> Writer<'a> {
    pub fn new(
        tokenizer: &'a Tokenizer,
        template: &'a ChatTemplate,
        more_ends: &[u32],
    ) -> Result<Self, String> {
        let vocab = tokenizer.vocab_size();
        let all = tokenizer.end_tokens().iter().chain(more_ends).copied();
        let ends: Vec<u32> = all.filter(|id| *id < vocab).collect();
        let end = tokenizer.eos().or_else(|| ends.first().copied());
        let end = end.ok_or("the tokenizer has no token that ends an answer")?;
        Ok(Self { tokenizer, template, ends, end, lines: Vec::new() })
    }

    /// The lines that were made, by their numbers.
    pub fn lines(self) -> Vec<Line> {
        self.lines
    }

    /// Writes a turn: the line with its thoughts, and the line for a request that wants no thinking.
    pub fn write(&mut self, turn: &Turn) -> Result<(u32, u32), String> {
        if let Some(raw) = &turn.raw {
            let ids = self.encode(&[Piece::Trusted(raw)]);
            let ids = match ids.iter().position(|id| self.ends.contains(id)) {
                Some(end) if end + 1 < ids.len() => {
                    return Err("raw goes on after a token that ends the answer".into());
                }
                Some(end) => &ids[..end],
                None => &ids[..],
            };
            let line = self.push(Line::new(ids, self.end, self.tokenizer)?);
            return Ok((line, line));
        }
        let thinking = self.render(turn, true)?;
        let thinking = self.push(thinking);
        if turn.reasoning.is_none() && !self.template.mentions("enable_thinking") {
            return Ok((thinking, thinking));
        }
        let silent = Turn { reasoning: None, ..turn.clone() };
        // Some templates put an empty thought where the model is to speak, and show none in what it has said.
        let plain = self.render(&silent, false).or_else(|_| self.render(&silent, true))?;
        let plain = self.push(plain);
        Ok((thinking, plain))
    }

    fn push(&mut self, line: Line) -> u32 {
        let number = self.lines.iter().position(|known| *known == line).unwrap_or_else(|| {
            self.lines.push(line);
            self.lines.len() - 1
        });
        u32::try_from(number).expect("a file of bounded size has fewer turns")
    }

    fn render(&self, turn: &Turn, thinking: bool) -> Result<Line, String> {
        for (there, word, what) in [
            (!turn.calls.is_empty(), "tool_calls", "tool calls"),
            (turn.reasoning.is_some(), "reasoning_content", "reasoning"),
        ] {
            if there && !self.template.mentions(word) {
                return Err(format!("the chat template knows no {what}; write the answer as `raw`"));
            }
        }
        let mut variables = Map::new();
        if !thinking && self.template.mentions("enable_thinking") {
            variables.insert("enable_thinking".into(), false.into());
        }
        let asked = vec![object(json!({"role": "user", "content": "?"}))];
        let answered = [asked.clone(), vec![message(turn)]].concat();
        let render = |messages: Vec<Map<String, Json>>, add_generation_prompt| {
            let variables = variables.clone();
            let conversation =
                Conversation { messages, tools: None, variables, add_generation_prompt, now: 0 };
            self.template.render(&conversation).map_err(|error| error.to_string())
        };
        let (before, whole) = (render(asked, true)?, render(answered, false)?);
        let Some(rest) = self.rest(&before, &whole) else {
            let what =
                "the chat template does not show it as a model would say it; write the answer as `raw`";
            return Err(what.into());
        };
        match rest.iter().position(|id| self.ends.contains(id)) {
            Some(at) => Line::new(&rest[..at], rest[at], self.tokenizer),
            None => Line::new(&rest, self.end, self.tokenizer),
        }
    }

    /// The tokens that a rendering has beyond another.
    fn rest(&self, before: &Rendering, whole: &Rendering) -> Option<Vec<u32>> {
        let ids = self.encode(&pieces(whole, 0));
        // Where tokens grow over the border of the two, a model would still begin with a token of its own.
        match ids.strip_prefix(self.encode(&pieces(before, 0)).as_slice()) {
            Some(rest) => Some(rest.to_vec()),
            None => {
                let (before, whole_text) = (before.text(), whole.text());
                whole_text.starts_with(&before).then(|| self.encode(&pieces(whole, before.len())))
            }
        }
    }

    fn encode(&self, pieces: &[Piece<'_>]) -> Vec<u32> {
        self.tokenizer.encode(pieces, None).expect("no limit was given")
    }
}

/// A rendering from a byte on, which is at a border of characters.
fn pieces(rendering: &Rendering, mut skip: usize) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    for span in &rendering.spans {
        let skipped = skip.min(span.text.len());
        skip -= skipped;
        let text = &span.text[skipped..];
        if !text.is_empty() {
            pieces.push(match span.origin {
                Origin::Template => Piece::Trusted(text),
                Origin::Caller => Piece::Untrusted(text),
            });
        }
    }
    pieces
}

fn message(turn: &Turn) -> Map<String, Json> {
    let call = |(i, call): (usize, &super::file::Call)| {
        // Some templates insist on ids of nine letters and digits.
        json!({
            "id": format!("call{i:05}"),
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        })
    };
    let mut message =
        object(json!({"role": "assistant", "content": turn.text.as_deref().unwrap_or_default()}));
    if !turn.calls.is_empty() {
        if turn.text.is_none() {
            message.insert("content".into(), Json::Null);
        }
        message.insert("tool_calls".into(), turn.calls.iter().enumerate().map(call).collect());
    }
    if let Some(reasoning) = &turn.reasoning {
        message.insert("reasoning_content".into(), reasoning.as_str().into());
    }
    message
}

fn object(value: Json) -> Map<String, Json> {
    match value {
        Json::Object(object) => object,
        _ => unreachable!("messages are written as objects"),
    }
}

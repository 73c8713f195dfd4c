//! `system` and `messages`: blocks to canonical messages.
//!
//! A turn of the user becomes first the results of tools, each a message of its own, and then what else was said, in
//! order: results answer the assistant's calls and stand right behind them, as templates have it. Neighbours of
//! one role are one message. Invariant: every call has exactly one result, and every result a call in the turn
//! before it; anything else is refused by the path of its block.

use super::layout::{Spot, Written};
use super::{canonical_id, proof, written_id};
use crate::fields::{Object, missing, wrong_type};
use crate::{CacheFor, CacheMark, Content, Error, ErrorKind, Message, Part, Role, Thought, ToolCall};
use indexmap::IndexMap;
use serde_json::Value;

/// Fields of blocks that do not change what they say: hints, and what clients echo from an earlier answer.
const HARMLESS: &[&str] = &["citations", "parsed_output", "caller", "toolset_name"];

/// What Claude Code puts before its system prompt for accounting. It differs from request to request, so it would
/// keep the prefix of every request from being found again, and it says nothing to a model.
const BILLING: &str = "x-anthropic-billing-header:";

/// Between two turns of one role that become one message.
const BETWEEN_TURNS: &str = "\n\n";

/// Ids of calls that one error names.
const IDS_SHOWN: usize = 8;

/// A canonical message and where it stood.
type Placed = (Message, Written);

/// Reads messages one after the other.
#[derive(Default)]
pub(super) struct History {
    /// Whole turns.
    out: Vec<Placed>,
    /// Results of tools in the running turn.
    results: Vec<Placed>,
    /// What else was said in it.
    said: Vec<Placed>,
    /// Calls of the last assistant's turn: where they stand, and whether they have their result.
    calls: IndexMap<String, (Spot, bool)>,
    /// Who spoke last.
    last: Option<Role>,
}

impl History {
    /// `system`, which comes first.
    pub(super) fn system(&mut self, value: Value) -> Result<(), Error> {
        let (message, spots) = match value {
            Value::String(text) => (Message::text(Role::System, text), vec![Spot::System(None)]),
            Value::Array(blocks) => {
                text_blocks(Role::System, "system", blocks, |block| Spot::System(Some(block)))?
            }
            other => return Err(wrong_type("system", "a string or an array of text blocks", &other)),
        };
        let written = Written { parts: spots, ..Written::at(Spot::System(None)) };
        self.say(message, written);
        Ok(())
    }

    /// Message `m`.
    pub(super) fn message(&mut self, m: usize, value: Value) -> Result<(), Error> {
        let mut fields = Object::at(format!("messages.{m}"), value)?;
        let role = match fields.required_string("role")?.as_str() {
            "user" => Role::User,
            "assistant" => Role::Assistant,
            "system" => Role::System,
            "developer" => Role::Developer,
            _ => {
                let message = "supported are 'user', 'assistant' and 'system'";
                return Err(Error::invalid(fields.path("role"), message));
            }
        };
        let path = fields.path("content");
        let content = fields.take("content").ok_or_else(|| missing(&path))?;
        // What clients echo from a whole answer.
        fields.harmless(&["id", "type", "model", "stop_reason", "stop_sequence", "usage"]);
        fields.finish()?;
        match role {
            Role::Assistant => self.assistant(m, &path, content)?,
            Role::User | Role::Tool => self.user(m, &path, content)?,
            Role::System | Role::Developer => {
                let (message, spots) = match content {
                    Value::String(text) => (Message::text(role, text), vec![Spot::Content(m)]),
                    Value::Array(blocks) => text_blocks(role, &path, blocks, |block| Spot::Block(m, block))?,
                    other => return Err(wrong_type(&path, "a string or an array of text blocks", &other)),
                };
                self.say(message, Written { parts: spots, ..Written::at(Spot::Message(m)) });
            }
        }
        self.last = Some(role);
        Ok(())
    }

    /// The canonical messages. With `answer` the model speaks next.
    pub(super) fn finish(mut self, answer: bool) -> Result<(Vec<Message>, Vec<Written>), Error> {
        self.end_turn()?;
        if answer
            && self.last == Some(Role::Assistant)
            && let Some((_, written)) = self.out.last()
        {
            let message = "This server does not continue a message of the assistant (prefill). The conversation \
                           must end with a user message.";
            return Err(Error::new(ErrorKind::Unsupported, message).at(written.whole.to_string()));
        }
        Ok(self.out.into_iter().unzip())
    }

    fn assistant(&mut self, m: usize, path: &str, content: Value) -> Result<(), Error> {
        if self.last != Some(Role::Assistant) {
            self.end_turn()?;
            self.calls.clear();
        }
        let mut message = said(Role::Assistant, Vec::new());
        let mut written = Written::at(Spot::Message(m));
        let blocks = match content {
            Value::String(text) => {
                message.content.0.push(Part::Text(text));
                written.parts.push(Spot::Content(m));
                Vec::new()
            }
            Value::Array(blocks) => blocks,
            other => return Err(wrong_type(path, "a string or an array of blocks", &other)),
        };
        for (b, value) in blocks.into_iter().enumerate() {
            let mut block = Object::at(format!("{path}.{b}"), value)?;
            let kind = block.required_string("type")?;
            block.harmless(HARMLESS);
            let cache = block.cache_control();
            match kind.as_str() {
                "text" => {
                    message.content.0.push(Part::Text(block.required_string("text")?));
                    written.parts.push(Spot::Block(m, b));
                }
                "thinking" => {
                    let text = block.required_string("thinking")?;
                    message.reasoning.get_or_insert_default().push_str(&text);
                    // What stands in for one tells nothing, and a thought is trusted no more than what else a caller
                    // says. That of a service is for that service.
                    let proof = block.string("signature")?.filter(|proof| !proof.is_empty());
                    if let Some((signature, maker)) = proof.and_then(proof::read) {
                        message.thoughts.push(Thought::Signed { text, signature, maker });
                    }
                }
                // A thought of another service, which only that can read.
                "redacted_thinking" => {
                    let sealed = proof::read(block.required_string("data")?);
                    message.thoughts.extend(sealed.map(|(data, maker)| Thought::Redacted { data, maker }));
                }
                "tool_use" => {
                    let call = self.call(&mut block, Spot::Block(m, b))?;
                    message.tool_calls.push(call);
                    written.calls.push(Spot::Block(m, b));
                }
                other => return Err(no_such_block(&block, other, "assistant")),
            }
            if let Some(keep) = cache {
                let part = if kind == "tool_use" { None } else { message.content.0.len().checked_sub(1) };
                message.cache_marks.push(CacheMark { part, keep });
            }
            block.finish()?;
        }
        message.reasoning = message.reasoning.filter(|text| !text.is_empty());
        push(&mut self.out, message, written);
        Ok(())
    }

    fn call(&mut self, block: &mut Object, spot: Spot) -> Result<ToolCall, Error> {
        let id = block.required_string("id")?;
        let name = block.required_string("name")?;
        let path = block.path("input");
        let input = block.take("input").ok_or_else(|| missing(&path))?;
        if !input.is_object() {
            return Err(wrong_type(&path, "an object", &input));
        }
        let id = canonical_id(&id);
        if self.calls.insert(id.clone(), (spot, false)).is_some() {
            return Err(Error::invalid(block.path("id"), "`tool_use` ids must be unique"));
        }
        Ok(ToolCall { id, name, arguments: input.to_string() })
    }

    fn user(&mut self, m: usize, path: &str, content: Value) -> Result<(), Error> {
        let mut message = said(Role::User, Vec::new());
        let mut written = Written::at(Spot::Message(m));
        let blocks = match content {
            Value::String(text) => {
                message.content.0.push(Part::Text(text));
                written.parts.push(Spot::Content(m));
                Vec::new()
            }
            Value::Array(blocks) if blocks.is_empty() => {
                return Err(Error::invalid(path, "at least one block is needed"));
            }
            Value::Array(blocks) => blocks,
            other => return Err(wrong_type(path, "a string or an array of blocks", &other)),
        };
        for (b, value) in blocks.into_iter().enumerate() {
            let mut block = Object::at(format!("{path}.{b}"), value)?;
            let kind = block.required_string("type")?;
            block.harmless(HARMLESS);
            let cache = block.cache_control();
            if kind == "tool_result" {
                self.result(&mut block, m, b, cache)?;
            } else {
                if let Some(keep) = cache {
                    message.cache_marks.push(CacheMark { part: Some(message.content.0.len()), keep });
                }
                message.content.0.push(part(&mut block, &kind, "user")?);
                written.parts.push(Spot::Block(m, b));
            }
            block.finish()?;
        }
        self.say(message, written);
        Ok(())
    }

    fn result(
        &mut self,
        block: &mut Object,
        m: usize,
        b: usize,
        cache: Option<CacheFor>,
    ) -> Result<(), Error> {
        let spot = Spot::Block(m, b);
        let shown = block.required_string("tool_use_id")?;
        let id = canonical_id(&shown);
        let shown: String = shown.chars().take(64).collect();
        let Some((_, answered)) = self.calls.get_mut(&id) else {
            let message = format!(
                "unexpected `tool_use_id` found in `tool_result` blocks: {shown}. Each `tool_result` block must have \
                 a corresponding `tool_use` block in the previous message."
            );
            return Err(Error::invalid(spot.to_string(), message));
        };
        if std::mem::replace(answered, true) {
            let message = format!("each `tool_use` must have a single result; this is another of {shown}");
            return Err(Error::invalid(spot.to_string(), message));
        }
        let failed = block.boolean("is_error")?.unwrap_or(false);
        let path = block.path("content");
        let mut written = Written::at(spot);
        let mut parts = Vec::new();
        match block.take("content") {
            None => {}
            Some(Value::String(text)) => {
                parts.push(Part::Text(text));
                written.parts.push(Spot::Result(m, b));
            }
            Some(Value::Array(inner)) => {
                for (i, value) in inner.into_iter().enumerate() {
                    let mut inner = Object::at(format!("{path}.{i}"), value)?;
                    let kind = inner.required_string("type")?;
                    inner.harmless(HARMLESS);
                    // The mark that counts is that of the whole result.
                    inner.cache_control();
                    parts.push(part(&mut inner, &kind, "tool_result")?);
                    written.parts.push(Spot::Inner(m, b, i));
                    inner.finish()?;
                }
            }
            Some(other) => return Err(wrong_type(&path, "a string or an array of blocks", &other)),
        }
        // Templates have no word for a failure, so the text says it.
        match parts.first_mut() {
            _ if !failed => {}
            Some(Part::Text(text)) if begins_with_error(text) => {}
            Some(Part::Text(text)) => text.insert_str(0, "Error: "),
            _ => {
                parts.insert(0, Part::Text("Error: ".to_owned()));
                written.parts.insert(0, spot);
            }
        }
        let cache_marks = cache.map(|keep| CacheMark { part: None, keep }).into_iter().collect();
        let message = Message { tool_call_id: Some(id), cache_marks, ..said(Role::Tool, parts) };
        self.results.push((message, written));
        Ok(())
    }

    /// What a user or the system says, where it says anything.
    fn say(&mut self, message: Message, written: Written) {
        if !message.content.0.is_empty() {
            push(&mut self.said, message, written);
        }
    }

    /// The assistant speaks next, or nobody.
    fn end_turn(&mut self) -> Result<(), Error> {
        let mut open = self.calls.iter().filter(|(_, (_, answered))| !answered);
        if let Some((first, (spot, _))) = open.next() {
            let ids: Vec<String> = std::iter::once(first)
                .chain(open.map(|(id, _)| id))
                .take(IDS_SHOWN)
                .map(|id| written_id(id).chars().take(64).collect())
                .collect();
            let message = format!(
                "`tool_use` ids were found without `tool_result` blocks immediately after: {}. Each `tool_use` block \
                 must have a corresponding `tool_result` block in the next message.",
                ids.join(", ")
            );
            return Err(Error::invalid(spot.to_string(), message));
        }
        self.out.append(&mut self.results);
        for (message, written) in self.said.drain(..) {
            push(&mut self.out, message, written);
        }
        Ok(())
    }
}

/// Adds a message, or joins it to the one before where the same one speaks.
fn push(messages: &mut Vec<Placed>, message: Message, written: Written) {
    match messages.last_mut() {
        Some((last, place)) if last.role == message.role && last.role != Role::Tool => {
            if !last.content.0.is_empty() && !message.content.0.is_empty() {
                last.content.0.push(Part::Text(BETWEEN_TURNS.to_owned()));
                place.parts.push(written.whole);
            }
            let before = last.content.0.len();
            let marks = message.cache_marks.into_iter();
            last.cache_marks
                .extend(marks.map(|mark| CacheMark { part: mark.part.map(|part| part + before), ..mark }));
            last.thoughts.extend(message.thoughts);
            last.content.0.extend(message.content.0);
            place.parts.extend(written.parts);
            last.tool_calls.extend(message.tool_calls);
            place.calls.extend(written.calls);
            if let Some(thought) = message.reasoning {
                last.reasoning.get_or_insert_default().push_str(&thought);
            }
        }
        _ => messages.push((message, written)),
    }
}

fn said(role: Role, parts: Vec<Part>) -> Message {
    Message { content: Content(parts), ..Message::text(role, "") }
}

/// Blocks of text alone, without what is there for accounting.
fn text_blocks(
    role: Role,
    path: &str,
    blocks: Vec<Value>,
    spot: impl Fn(usize) -> Spot,
) -> Result<(Message, Vec<Spot>), Error> {
    let (mut message, mut spots) = (said(role, Vec::new()), Vec::new());
    for (b, value) in blocks.into_iter().enumerate() {
        let mut block = Object::at(format!("{path}.{b}"), value)?;
        let kind = block.required_string("type")?;
        if kind != "text" {
            return Err(no_such_block(&block, &kind, "system"));
        }
        block.harmless(HARMLESS);
        let cache = block.cache_control();
        let text = block.required_string("text")?;
        block.finish()?;
        if !text.starts_with(BILLING) {
            if let Some(keep) = cache {
                message.cache_marks.push(CacheMark { part: Some(message.content.0.len()), keep });
            }
            message.content.0.push(Part::Text(text));
            spots.push(spot(b));
        }
    }
    Ok((message, spots))
}

/// A block of text or an image.
fn part(block: &mut Object, kind: &str, inside: &str) -> Result<Part, Error> {
    match kind {
        "text" => Ok(Part::Text(block.required_string("text")?)),
        "image" => image(block),
        other => Err(no_such_block(block, other, inside)),
    }
}

fn image(block: &mut Object) -> Result<Part, Error> {
    // How an image is made smaller.
    block.harmless(&["transformations"]);
    let path = block.path("source");
    let mut source = block.object("source")?.ok_or_else(|| missing(&path))?;
    let kind = source.required_string("type")?;
    let url = match kind.as_str() {
        "base64" => {
            let media = source.required_string("media_type")?;
            if !["image/jpeg", "image/png", "image/gif", "image/webp"].contains(&media.as_str()) {
                let message = "supported are 'image/jpeg', 'image/png', 'image/gif' and 'image/webp'";
                return Err(Error::invalid(source.path("media_type"), message));
            }
            format!("data:{media};base64,{}", source.required_string("data")?)
        }
        "url" => {
            let url = source.required_string("url")?;
            if !["https:", "http:"].iter().any(|scheme| url.starts_with(scheme)) {
                return Err(Error::invalid(source.path("url"), "expected an https: URL"));
            }
            url
        }
        _ => {
            let message = "sources of images are of type 'base64' or 'url' on this server";
            return Err(Error::new(ErrorKind::Unsupported, message).at(source.path("type")));
        }
    };
    source.finish()?;
    Ok(Part::Image { url, detail: None })
}

fn no_such_block(block: &Object, kind: &str, inside: &str) -> Error {
    let shown: String = kind.chars().take(64).collect();
    let supported = match inside {
        "assistant" => "'text', 'thinking', 'redacted_thinking' and 'tool_use'",
        "user" => "'text', 'image' and 'tool_result'",
        "tool_result" => "'text' and 'image'",
        _ => "'text'",
    };
    let message =
        format!("blocks of type '{shown}' are not supported here; {inside} content has {supported}");
    Error::new(ErrorKind::Unsupported, message).at(block.path("type"))
}

fn begins_with_error(text: &str) -> bool {
    let word = text.trim_start_matches(|c: char| !c.is_alphabetic());
    let mut rest = word.chars();
    "error".chars().all(|c| rest.next().is_some_and(|said| said.eq_ignore_ascii_case(&c)))
        || word.starts_with("tool_use_error")
}

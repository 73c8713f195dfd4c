//! Answers: one message, or the events of a stream.
//!
//! A message is what its stream adds up to, for any way in which the deltas were cut.

use super::blocks::{Blocks, Kind, Step};
use super::{error, partial, proof};
use crate::openai::to_json;
use crate::{Delta, Error, Event, FinishReason, StreamWriter, Usage};
use serde_json::{Map, Value, json};

/// What an answer begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The message's id, with its prefix (`msg_`).
    pub id: String,
    /// The model's id.
    pub model: String,
    /// Whether the text of thoughts is sent; else their blocks come without it.
    pub thoughts: bool,
}

/// The answer to a count of tokens.
#[must_use]
pub fn count(tokens: u32) -> String {
    to_json(&json!({"input_tokens": tokens}))
}

/// Cached tokens stand beside the others here, not among them. What a request adds to the cache of a model here costs
/// nothing and is not counted apart.
fn counts(usage: &Usage) -> Map<String, Value> {
    let beside = usage.cached_tokens.saturating_add(usage.cache_write_tokens);
    let counts = json!({
        "input_tokens": usage.prompt_tokens.saturating_sub(beside),
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_creation": {
            "ephemeral_5m_input_tokens": usage.cache_write_tokens.saturating_sub(usage.cache_write_1h_tokens),
            "ephemeral_1h_input_tokens": usage.cache_write_1h_tokens,
        },
        "cache_read_input_tokens": usage.cached_tokens,
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"thinking_tokens": usage.reasoning_tokens},
        "server_tool_use": null,
    });
    object(counts)
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(fields) => fields,
        _ => unreachable!("written as an object"),
    }
}

/// The whole message's usage.
fn usage(usage: &Usage) -> Value {
    let mut fields = counts(usage);
    fields.insert("service_tier".into(), "standard".into());
    fields.into()
}

/// How an answer ended. `malformed_calls` is not Anthropic's: it says what is wrong with calls that came back as text.
fn ending(blocks: &Blocks) -> Map<String, Value> {
    let (reason, stop_text) = match &blocks.end {
        None => (Value::Null, None),
        Some((reason, stop_text)) => {
            let reason = match reason {
                FinishReason::Stop if stop_text.is_some() => "stop_sequence",
                FinishReason::Stop => "end_turn",
                FinishReason::Length => "max_tokens",
                FinishReason::ToolCalls => "tool_use",
                FinishReason::ContentFilter => "refusal",
            };
            // Only then does a text belong to the reason.
            (reason.into(), stop_text.as_deref().filter(|_| reason == "stop_sequence"))
        }
    };
    let mut ending = object(json!({"stop_reason": reason, "stop_sequence": stop_text, "stop_details": null}));
    if !blocks.malformed.is_empty() {
        ending.insert("malformed_calls".into(), json!(blocks.malformed));
    }
    ending
}

/// A message around its content.
fn message(head: &Head, content: Vec<Value>, ending: Map<String, Value>, spent: &Usage) -> Value {
    let mut message = object(json!({
        "id": head.id,
        "type": "message",
        "role": "assistant",
        "model": head.model,
        "content": content,
    }));
    message.extend(ending);
    message.insert("usage".into(), usage(spent));
    message.into()
}

/// Gathers an answer into one message.
pub struct MessageWriter {
    head: Head,
    blocks: Blocks,
    /// Each block: what it is, its text, and its proof where it has one.
    content: Vec<(Kind, String, Option<String>)>,
    usage: Option<Usage>,
}

impl MessageWriter {
    /// A writer for one answer.
    #[must_use]
    pub fn new(head: Head) -> Self {
        Self { head, blocks: Blocks::default(), content: Vec::new(), usage: None }
    }

    /// Takes in a delta.
    pub fn push(&mut self, delta: Delta) {
        if let Delta::Usage(usage) = delta {
            self.usage = Some(usage);
            return;
        }
        for step in self.blocks.steps(delta) {
            match step {
                Step::Open(kind) => self.content.push((kind, String::new(), None)),
                Step::Add(more) => {
                    if let Some((_, text, _)) = self.content.last_mut() {
                        text.push_str(&more);
                    }
                }
                Step::Sign(proof) => {
                    if let Some((_, _, signature)) = self.content.last_mut() {
                        *signature = Some(proof);
                    }
                }
                Step::Close => {}
            }
        }
    }

    /// Whether the last delta has come.
    #[must_use]
    pub const fn is_complete(&self) -> bool {
        self.usage.is_some()
    }

    /// The message.
    #[must_use]
    pub fn finish(self) -> String {
        let Self { head, blocks, content, usage } = self;
        let content = content.into_iter().enumerate().map(|(index, (kind, text, signature))| match kind {
            Kind::Thinking => json!({
                "type": "thinking",
                "thinking": if head.thoughts { text } else { String::new() },
                "signature": signature.unwrap_or_else(|| proof::stand_in(&head.id, index)),
            }),
            Kind::Redacted(data) => json!({"type": "redacted_thinking", "data": data}),
            Kind::Text => json!({"type": "text", "text": text, "citations": null}),
            Kind::Call { id, name } => {
                json!({"type": "tool_use", "id": id, "name": name, "input": partial::object(&text)})
            }
        });
        let content = content.collect();
        to_json(&message(&head, content, ending(&blocks), &usage.unwrap_or_default()))
    }
}

/// Writes an answer as events.
pub struct EventWriter {
    head: Head,
    blocks: Blocks,
    started: bool,
    /// What is in the open block, and its index.
    open: Option<(Kind, usize)>,
    /// Whether the open block has its proof.
    signed: bool,
    /// Blocks begun.
    count: usize,
    usage: Usage,
}

impl EventWriter {
    /// A writer for one answer.
    #[must_use]
    pub fn new(head: Head) -> Self {
        Self {
            head,
            blocks: Blocks::default(),
            started: false,
            open: None,
            signed: false,
            count: 0,
            usage: Usage::default(),
        }
    }

    /// The message without its content, before anything else.
    fn start(&mut self) -> Vec<Event> {
        if std::mem::replace(&mut self.started, true) {
            return Vec::new();
        }
        let ending = object(json!({"stop_reason": null, "stop_sequence": null, "stop_details": null}));
        let message = message(&self.head, Vec::new(), ending, &self.usage);
        vec![event("message_start", json!({"message": message})), event("ping", json!({}))]
    }

    fn step(&mut self, step: Step) -> Vec<Event> {
        match step {
            Step::Open(kind) => {
                let index = self.count;
                self.count += 1;
                let block = match &kind {
                    Kind::Thinking => json!({"type": "thinking", "thinking": "", "signature": ""}),
                    Kind::Redacted(data) => json!({"type": "redacted_thinking", "data": data}),
                    Kind::Text => json!({"type": "text", "text": "", "citations": null}),
                    Kind::Call { id, name } => {
                        json!({"type": "tool_use", "id": id, "name": name, "input": {}})
                    }
                };
                self.open = Some((kind, index));
                self.signed = false;
                vec![event("content_block_start", json!({"index": index, "content_block": block}))]
            }
            Step::Add(text) => {
                let Some((kind, index)) = &self.open else { return Vec::new() };
                let delta = match kind {
                    Kind::Thinking if !self.head.thoughts => return Vec::new(),
                    Kind::Thinking => json!({"type": "thinking_delta", "thinking": text}),
                    Kind::Text | Kind::Redacted(_) => json!({"type": "text_delta", "text": text}),
                    Kind::Call { .. } => json!({"type": "input_json_delta", "partial_json": text}),
                };
                vec![event("content_block_delta", json!({"index": index, "delta": delta}))]
            }
            Step::Sign(proof) => {
                let Some((_, index)) = &self.open else { return Vec::new() };
                self.signed = true;
                vec![sign(*index, &proof)]
            }
            Step::Close => {
                let Some((kind, index)) = self.open.take() else { return Vec::new() };
                let mut events = Vec::new();
                if kind == Kind::Thinking && !self.signed {
                    events.push(sign(index, &proof::stand_in(&self.head.id, index)));
                }
                events.push(event("content_block_stop", json!({"index": index})));
                events
            }
        }
    }
}

fn sign(index: usize, signature: &str) -> Event {
    let delta = json!({"type": "signature_delta", "signature": signature});
    event("content_block_delta", json!({"index": index, "delta": delta}))
}

/// An event; its data begin with its name as `type`.
fn event(name: &'static str, fields: Value) -> Event {
    let mut data = object(json!({"type": name}));
    data.extend(object(fields));
    Event { name: Some(name), data: to_json(&data) }
}

impl StreamWriter for EventWriter {
    fn delta(&mut self, _source: usize, delta: Delta) -> Vec<Event> {
        match delta {
            Delta::Started { prompt_tokens, cached_tokens } => {
                self.usage = Usage { prompt_tokens, cached_tokens, ..Usage::default() };
            }
            Delta::Usage(usage) => {
                let events = self.start();
                self.usage = usage;
                return events;
            }
            _ => {}
        }
        let mut events = self.start();
        for step in self.blocks.steps(delta) {
            events.extend(self.step(step));
        }
        events
    }

    fn finish(&mut self) -> Vec<Event> {
        let mut events = self.start();
        let delta = ending(&self.blocks);
        events.push(event("message_delta", json!({"delta": delta, "usage": counts(&self.usage)})));
        events.push(event("message_stop", json!({})));
        events
    }

    fn fail(&mut self, error: &Error) -> Option<Vec<Event>> {
        Some(vec![Event { name: Some("error"), data: error::body(error, None) }])
    }
}

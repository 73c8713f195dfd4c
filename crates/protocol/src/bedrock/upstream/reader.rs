//! An answer of Converse, whole or as the events of ConverseStream, as deltas.

use crate::counts;
use crate::upstream::{InOrder, broken_off, finish, malformed, object, unreadable};
use crate::{AnswerReader, Delta, Error, ErrorKind, FinishReason, Maker, Thought, Usage};
use serde_json::{Map, Value};
use std::collections::HashMap;

/// Reads one answer.
#[derive(Debug, Default)]
pub struct Reader {
    /// The blocks that are open, by their index.
    open: HashMap<u64, Block>,
    calls: u32,
    order: InOrder,
    usage: Map<String, Value>,
    stop: Option<FinishReason>,
    ended: bool,
}

#[derive(Debug)]
enum Block {
    /// Its text, and its proof as far as it came.
    Thinking(String, String),
    /// The call's number, and whether arguments came.
    Call(u32, bool),
}

impl Reader {
    /// A reader of one answer.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn call(&mut self, call: &Value) -> (u32, Delta) {
        let index = self.calls;
        self.calls += 1;
        let text = |name: &str| call[name].as_str().unwrap_or_default().to_owned();
        (index, Delta::ToolCallStart { choice: 0, index, id: text("toolUseId"), name: text("name") })
    }

    fn delta(&mut self, at: u64, delta: &Value) -> Vec<Delta> {
        if let Some(text) = delta["text"].as_str() {
            return said(text);
        }
        if let Some(input) = delta["toolUse"]["input"].as_str() {
            let Some(Block::Call(index, more)) = self.open.get_mut(&at) else { return Vec::new() };
            *more |= !input.is_empty();
            return vec![Delta::ToolCallArguments { choice: 0, index: *index, arguments: input.to_owned() }];
        }
        let thought = &delta["reasoningContent"];
        if let Some(data) = thought["redactedContent"].as_str() {
            return vec![Delta::Thought { choice: 0, thought: redacted(data) }];
        }
        let (text, signature) = (thought["text"].as_str(), thought["signature"].as_str());
        if text.is_none() && signature.is_none() {
            return Vec::new();
        }
        let block = self.open.entry(at).or_insert_with(|| Block::Thinking(String::new(), String::new()));
        if let Block::Thinking(all, proof) = block {
            all.push_str(text.unwrap_or_default());
            proof.push_str(signature.unwrap_or_default());
        }
        reasoned(text.unwrap_or_default())
    }

    fn close(&mut self, at: u64) -> Vec<Delta> {
        match self.open.remove(&at) {
            Some(Block::Thinking(text, signature)) if !signature.is_empty() => {
                vec![Delta::Thought {
                    choice: 0,
                    thought: Thought::Signed { text, signature, maker: Maker::Anthropic },
                }]
            }
            Some(Block::Call(index, false)) => {
                vec![Delta::ToolCallArguments { choice: 0, index, arguments: "{}".to_owned() }]
            }
            _ => Vec::new(),
        }
    }

    fn block(&mut self, block: &Value) -> Vec<Delta> {
        if let Some(text) = block["text"].as_str() {
            return said(text);
        }
        if block["toolUse"].is_object() {
            let (index, start) = self.call(&block["toolUse"]);
            let arguments = Value::Object(object(&block["toolUse"]["input"])).to_string();
            return vec![start, Delta::ToolCallArguments { choice: 0, index, arguments }];
        }
        let thought = &block["reasoningContent"];
        if let Some(data) = thought["redactedContent"].as_str() {
            return vec![Delta::Thought { choice: 0, thought: redacted(data) }];
        }
        let text = thought["reasoningText"]["text"].as_str().unwrap_or_default();
        let mut out = reasoned(text);
        if let Some(signature) = thought["reasoningText"]["signature"].as_str() {
            let thought = signed(text, signature);
            out.push(Delta::Thought { choice: 0, thought });
        }
        out
    }

    fn ending(&mut self, answer: &Value) -> Result<(), Error> {
        let Some(reason) = answer["stopReason"].as_str() else { return Ok(()) };
        self.stop = Some(match reason {
            "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
            "tool_use" => FinishReason::ToolCalls,
            "malformed_model_output" | "malformed_tool_use" => return Err(malformed(reason)),
            "guardrail_intervened" | "content_filtered" => FinishReason::ContentFilter,
            _ => FinishReason::Stop,
        });
        Ok(())
    }

    fn spent(&self) -> Usage {
        counts::converse(&self.usage).into()
    }
}

impl AnswerReader for Reader {
    fn event(&mut self, name: Option<&str>, data: &str) -> Result<Vec<Delta>, Error> {
        let event: Value = serde_json::from_str(data).map_err(unreadable)?;
        let name = name.unwrap_or_default();
        let at = event["contentBlockIndex"].as_u64().unwrap_or(0);
        let deltas = match name {
            "contentBlockStart" if event["start"]["toolUse"].is_object() => {
                let (index, start) = self.call(&event["start"]["toolUse"]);
                self.open.insert(at, Block::Call(index, false));
                vec![start]
            }
            "contentBlockDelta" => self.delta(at, &event["delta"]),
            "contentBlockStop" => self.close(at),
            "messageStop" => {
                self.ending(&event)?;
                Vec::new()
            }
            "metadata" => {
                self.usage = object(&event["usage"]);
                Vec::new()
            }
            name if name.ends_with("Exception") => {
                let said =
                    ["message", "Message", "originalMessage"].iter().find_map(|name| event[*name].as_str());
                return Err(Error::new(
                    ErrorKind::Upstream,
                    format!("{name}: {}", said.unwrap_or("no words")),
                ));
            }
            // The beginning says who speaks; what is new is not for us.
            _ => Vec::new(),
        };
        let mut out = Vec::with_capacity(deltas.len());
        deltas.into_iter().for_each(|delta| self.order.push(delta, &mut out));
        Ok(out)
    }

    fn end(&mut self) -> Result<Vec<Delta>, Error> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(Vec::new());
        }
        let reason = self.stop.take().ok_or_else(broken_off)?;
        let mut out = Vec::new();
        self.order.end(&mut out);
        let reason = finish(reason, self.calls > 0);
        out.extend([Delta::Finish { choice: 0, reason, stop_text: None }, Delta::Usage(self.spent())]);
        Ok(out)
    }

    fn whole(&mut self, body: &[u8]) -> Result<Vec<Delta>, Error> {
        let answer: Value = serde_json::from_slice(body).map_err(unreadable)?;
        let Some(content) = answer["output"]["message"]["content"].as_array() else {
            return Err(unreadable("it has no content"));
        };
        self.usage = object(&answer["usage"]);
        let Usage { prompt_tokens, cached_tokens, .. } = self.spent();
        let mut out = vec![Delta::Started { prompt_tokens, cached_tokens }];
        for block in content {
            out.extend(self.block(block));
        }
        self.ending(&answer)?;
        self.stop.get_or_insert(FinishReason::Stop);
        out.extend(self.end()?);
        Ok(out)
    }
}

fn said(text: &str) -> Vec<Delta> {
    if text.is_empty() {
        return Vec::new();
    }
    vec![Delta::Text { choice: 0, text: text.to_owned(), logprobs: Vec::new() }]
}

fn reasoned(text: &str) -> Vec<Delta> {
    if text.is_empty() { Vec::new() } else { vec![Delta::Reasoning { choice: 0, text: text.to_owned() }] }
}

/// Claude's alone prove their thoughts.
fn signed(text: &str, signature: &str) -> Thought {
    Thought::Signed { text: text.to_owned(), signature: signature.to_owned(), maker: Maker::Anthropic }
}

fn redacted(data: &str) -> Thought {
    Thought::Redacted { data: data.to_owned(), maker: Maker::Anthropic }
}

//! A provider's message as deltas.

use crate::anthropic::canonical_id;
use crate::counts;
use crate::upstream::{broken_off, finish, object, unreadable};
use crate::{AnswerReader, Delta, Error, ErrorKind, FinishReason, Maker, Thought, Usage};
use serde_json::{Map, Value};

/// Reads one message.
#[derive(Debug, Default)]
pub struct Reader {
    block: Block,
    calls: u32,
    /// Usage as far as it was told; later reports lie over earlier ones.
    usage: Map<String, Value>,
    stop: Option<(FinishReason, Option<String>)>,
    /// Whether the last delta was given.
    ended: bool,
}

/// The block that is open.
#[derive(Debug, Default)]
enum Block {
    /// None, or one that has no place in the canonical form.
    #[default]
    None,
    Text,
    /// Its text, and its proof as far as it came.
    Thinking(String, String),
    /// The call's number, the input it began with, and whether more came.
    Call(u32, Map<String, Value>, bool),
}

impl Reader {
    /// A reader of one message.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    fn tell(&mut self, usage: &Value) {
        self.usage.extend(object(usage).into_iter().filter(|(_, value)| !value.is_null()));
    }

    fn start(&mut self, block: &Value) -> Vec<Delta> {
        let text = |name: &str| block[name].as_str().unwrap_or_default().to_owned();
        match block["type"].as_str().unwrap_or_default() {
            "text" => {
                self.block = Block::Text;
                said(text("text"))
            }
            "thinking" => {
                self.block = Block::Thinking(text("thinking"), text("signature"));
                thought(text("thinking"))
            }
            "redacted_thinking" => {
                self.block = Block::None;
                vec![Delta::Thought {
                    choice: 0,
                    thought: Thought::Redacted { data: text("data"), maker: Maker::Anthropic },
                }]
            }
            "tool_use" => {
                let index = self.calls;
                self.calls += 1;
                self.block = Block::Call(index, object(&block["input"]), false);
                let id = canonical_id(&text("id"));
                vec![Delta::ToolCallStart { choice: 0, index, id, name: text("name") }]
            }
            // What servers of Anthropic's run, which nobody can ask for from here.
            _ => {
                self.block = Block::None;
                Vec::new()
            }
        }
    }

    fn more(&mut self, delta: &Value) -> Vec<Delta> {
        let text = |name: &str| delta[name].as_str().unwrap_or_default().to_owned();
        match (delta["type"].as_str().unwrap_or_default(), &mut self.block) {
            ("text_delta", Block::Text) => said(text("text")),
            ("thinking_delta", Block::Thinking(all, _)) => {
                let more = text("thinking");
                all.push_str(&more);
                thought(more)
            }
            ("signature_delta", Block::Thinking(_, proof)) => {
                proof.push_str(&text("signature"));
                Vec::new()
            }
            ("input_json_delta", Block::Call(index, _, more)) => {
                let arguments = text("partial_json");
                if arguments.is_empty() {
                    return Vec::new();
                }
                *more = true;
                vec![Delta::ToolCallArguments { choice: 0, index: *index, arguments }]
            }
            _ => Vec::new(),
        }
    }

    fn stop(&mut self) -> Vec<Delta> {
        match std::mem::take(&mut self.block) {
            Block::Thinking(text, signature) if !signature.is_empty() => {
                vec![Delta::Thought {
                    choice: 0,
                    thought: Thought::Signed { text, signature, maker: Maker::Anthropic },
                }]
            }
            // Of a call whose arguments did not come in pieces, the block began with all of them.
            Block::Call(index, input, false) => {
                let arguments = Value::Object(input).to_string();
                vec![Delta::ToolCallArguments { choice: 0, index, arguments }]
            }
            _ => Vec::new(),
        }
    }

    fn ending(&mut self, message: &Value) {
        let Some(reason) = message["stop_reason"].as_str() else { return };
        let reason = match reason {
            "max_tokens" | "model_context_window_exceeded" => FinishReason::Length,
            "tool_use" => FinishReason::ToolCalls,
            "refusal" => FinishReason::ContentFilter,
            _ => FinishReason::Stop,
        };
        self.stop = Some((reason, message["stop_sequence"].as_str().map(str::to_owned)));
    }

    fn close(&mut self) -> Result<Vec<Delta>, Error> {
        if self.ended {
            return Ok(Vec::new());
        }
        let Some((reason, stop_text)) = self.stop.take() else { return Err(broken_off()) };
        self.ended = true;
        let mut out = self.stop();
        let reason = finish(reason, self.calls > 0);
        out.extend([Delta::Finish { choice: 0, reason, stop_text }, Delta::Usage(self.spent())]);
        Ok(out)
    }

    /// Usage in the canonical form, where cached tokens stand among those of the prompt.
    fn spent(&self) -> Usage {
        counts::anthropic(&self.usage).into()
    }
}

impl AnswerReader for Reader {
    fn event(&mut self, _name: Option<&str>, data: &str) -> Result<Vec<Delta>, Error> {
        let event: Value = serde_json::from_str(data).map_err(unreadable)?;
        match event["type"].as_str().unwrap_or_default() {
            "message_start" => {
                self.tell(&event["message"]["usage"]);
                let Usage { prompt_tokens, cached_tokens, .. } = self.spent();
                Ok(vec![Delta::Started { prompt_tokens, cached_tokens }])
            }
            "content_block_start" => {
                let mut out = self.stop();
                out.extend(self.start(&event["content_block"]));
                Ok(out)
            }
            "content_block_delta" => Ok(self.more(&event["delta"])),
            "content_block_stop" => Ok(self.stop()),
            "message_delta" => {
                self.tell(&event["usage"]);
                self.ending(&event["delta"]);
                Ok(Vec::new())
            }
            "message_stop" => self.close(),
            "error" => Err(told(&event["error"])),
            _ => Ok(Vec::new()),
        }
    }

    fn end(&mut self) -> Result<Vec<Delta>, Error> {
        self.close()
    }

    fn whole(&mut self, body: &[u8]) -> Result<Vec<Delta>, Error> {
        let message: Value = serde_json::from_slice(body).map_err(unreadable)?;
        if !message["error"].is_null() {
            return Err(told(&message["error"]));
        }
        let Some(content) = message["content"].as_array() else {
            return Err(unreadable("it has no content"));
        };
        self.tell(&message["usage"]);
        let Usage { prompt_tokens, cached_tokens, .. } = self.spent();
        let mut out = vec![Delta::Started { prompt_tokens, cached_tokens }];
        for block in content {
            out.extend(self.start(block));
            out.extend(self.stop());
        }
        self.ending(&message);
        self.stop.get_or_insert((FinishReason::Stop, None));
        out.extend(self.close()?);
        Ok(out)
    }
}

fn said(text: String) -> Vec<Delta> {
    if text.is_empty() { Vec::new() } else { vec![Delta::Text { choice: 0, text, logprobs: Vec::new() }] }
}

fn thought(text: String) -> Vec<Delta> {
    if text.is_empty() { Vec::new() } else { vec![Delta::Reasoning { choice: 0, text }] }
}

fn told(error: &Value) -> Error {
    let message = error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned);
    Error::new(ErrorKind::Upstream, message)
}

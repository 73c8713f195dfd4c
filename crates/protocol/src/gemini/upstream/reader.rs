//! An answer of `generateContent` as deltas.
//!
//! A chunk of a stream and a whole answer are the same object. Calls come whole, and where the service gives them no id
//! they get one from the answer's own id. Why a candidate ended is told when the stream ends, since nothing says which
//! chunk is the last.

use crate::counts;
use crate::upstream::{broken_off, finish, malformed, object, unreadable};
use crate::{AnswerReader, Delta, Error, ErrorKind, FinishReason, Maker, Thought, Usage};
use serde_json::{Map, Value};

/// Reads one answer.
#[derive(Debug)]
pub struct Reader {
    /// By the candidates' index.
    choices: Vec<Choice>,
    id: String,
    usage: Map<String, Value>,
    /// Whether a first chunk was read.
    begun: bool,
    /// Whether the prompt was refused.
    blocked: bool,
    ended: bool,
}

#[derive(Clone, Debug, Default)]
struct Choice {
    calls: u32,
    /// Thoughts whose proof did not come yet.
    thoughts: String,
    finish: Option<FinishReason>,
}

impl Reader {
    /// A reader of so many candidates.
    #[must_use]
    pub fn new(choices: u32) -> Self {
        let choices = vec![Choice::default(); choices.max(1) as usize];
        Self { choices, id: String::new(), usage: Map::new(), begun: false, blocked: false, ended: false }
    }

    fn chunk(&mut self, chunk: &Value) -> Result<Vec<Delta>, Error> {
        if !chunk["error"].is_null() {
            let error = &chunk["error"];
            let message = error["message"].as_str().map_or_else(|| error.to_string(), str::to_owned);
            return Err(Error::new(ErrorKind::Upstream, message));
        }
        let usage = object(&chunk["usageMetadata"]);
        if !usage.is_empty() {
            self.usage = usage;
        }
        if let Some(id) = chunk["responseId"].as_str() {
            id.clone_into(&mut self.id);
        }
        let mut out = Vec::new();
        if !std::mem::replace(&mut self.begun, true) && !self.usage.is_empty() {
            let Usage { prompt_tokens, cached_tokens, .. } = self.spent();
            out.push(Delta::Started { prompt_tokens, cached_tokens });
        }
        self.blocked |= chunk["promptFeedback"]["blockReason"].is_string();
        for candidate in chunk["candidates"].as_array().into_iter().flatten() {
            let index = candidate["index"].as_u64().unwrap_or(0);
            let Some(at) = usize::try_from(index).ok().filter(|at| *at < self.choices.len()) else {
                return Err(unreadable(format!("it has a candidate {index} that nobody asked for")));
            };
            for part in candidate["content"]["parts"].as_array().into_iter().flatten() {
                self.part(at, part, &mut out)?;
            }
            self.ending(at, candidate)?;
        }
        Ok(out)
    }

    fn part(&mut self, at: usize, part: &Value, out: &mut Vec<Delta>) -> Result<(), Error> {
        let choice = u32::try_from(at).expect("there are no more choices than a u32 asked for");
        let state = &mut self.choices[at];
        let text = part["text"].as_str().filter(|text| !text.is_empty());
        if part["thought"] == true
            && let Some(text) = text
        {
            state.thoughts.push_str(text);
            out.push(Delta::Reasoning { choice, text: text.to_owned() });
        }
        if let Some(signature) = part["thoughtSignature"].as_str() {
            let (text, signature) = (std::mem::take(&mut state.thoughts), signature.to_owned());
            out.push(Delta::Thought {
                choice,
                thought: Thought::Signed { text, signature, maker: Maker::Google },
            });
        }
        if part["thought"] == true {
            return Ok(());
        }
        if let Some(text) = text {
            out.push(Delta::Text { choice, text: text.to_owned(), logprobs: Vec::new() });
        }
        let call = &part["functionCall"];
        if call.is_object() {
            let index = state.calls;
            state.calls += 1;
            let name = call["name"].as_str().unwrap_or_default().to_owned();
            let id = match call["id"].as_str().filter(|id| !id.is_empty()) {
                Some(id) => id.to_owned(),
                None => format!("call_{}_{choice}_{index}", self.id),
            };
            let arguments = if call["args"].is_null() { "{}".to_owned() } else { call["args"].to_string() };
            out.push(Delta::ToolCallStart { choice, index, id, name });
            out.push(Delta::ToolCallArguments { choice, index, arguments });
        }
        if part["inlineData"].is_object() || part["fileData"].is_object() {
            return Err(unreadable(
                "it holds a picture or sound, which no client's dialect here has a place for",
            ));
        }
        Ok(())
    }

    fn ending(&mut self, at: usize, candidate: &Value) -> Result<(), Error> {
        let Some(reason) = candidate["finishReason"].as_str() else { return Ok(()) };
        let reason = match reason {
            "FINISH_REASON_UNSPECIFIED" => return Ok(()),
            "MAX_TOKENS" => FinishReason::Length,
            "SAFETY"
            | "RECITATION"
            | "BLOCKLIST"
            | "PROHIBITED_CONTENT"
            | "SPII"
            | "IMAGE_SAFETY"
            | "IMAGE_PROHIBITED_CONTENT"
            | "IMAGE_RECITATION"
            | "MODEL_ARMOR" => FinishReason::ContentFilter,
            "MALFORMED_FUNCTION_CALL"
            | "UNEXPECTED_TOOL_CALL"
            | "TOO_MANY_TOOL_CALLS"
            | "MALFORMED_RESPONSE"
            | "MISSING_THOUGHT_SIGNATURE" => {
                return Err(malformed(candidate["finishMessage"].as_str().unwrap_or(reason)));
            }
            _ => FinishReason::Stop,
        };
        self.choices[at].finish = Some(reason);
        Ok(())
    }

    /// Usage in the canonical form.
    fn spent(&self) -> Usage {
        counts::gemini(&self.usage).into()
    }
}

impl AnswerReader for Reader {
    fn event(&mut self, _name: Option<&str>, data: &str) -> Result<Vec<Delta>, Error> {
        self.chunk(&serde_json::from_str(data).map_err(unreadable)?)
    }

    fn end(&mut self) -> Result<Vec<Delta>, Error> {
        if std::mem::replace(&mut self.ended, true) {
            return Ok(Vec::new());
        }
        if !self.blocked && self.choices.iter().all(|choice| choice.finish.is_none()) {
            return Err(broken_off());
        }
        let missing = if self.blocked { FinishReason::ContentFilter } else { FinishReason::Stop };
        let mut out: Vec<Delta> = Vec::with_capacity(self.choices.len() + 1);
        for (choice, state) in (0..).zip(&self.choices) {
            let reason = finish(state.finish.unwrap_or(missing), state.calls > 0);
            out.push(Delta::Finish { choice, reason, stop_text: None });
        }
        out.push(Delta::Usage(self.spent()));
        Ok(out)
    }

    fn whole(&mut self, body: &[u8]) -> Result<Vec<Delta>, Error> {
        let answer: Value = serde_json::from_slice(body).map_err(unreadable)?;
        if !answer.is_object() {
            return Err(unreadable("it is no object"));
        }
        let mut out = self.chunk(&answer)?;
        out.extend(self.end()?);
        Ok(out)
    }
}

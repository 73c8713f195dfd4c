//! A provider's chat completion as deltas.

use crate::counts;
use crate::openai::thoughts;
use crate::upstream::{InOrder, broken_off, finish, unreadable};
use crate::{AnswerReader, Delta, Error, ErrorKind, FinishReason, Logprobs, Thought, TokenLogprob, Usage};
use serde_json::{Map, Value};

/// Calls of one answer.
const CALLS_MAX: usize = 1024;

/// Reads one chat completion.
#[derive(Debug, Default)]
pub struct Reader {
    /// The completion's id, from which ids of calls are made that have none.
    id: String,
    choices: Vec<Answering>,
    usage: Usage,
    /// Whether the last delta was given.
    ended: bool,
}

/// One of the answers.
#[derive(Debug, Default)]
struct Answering {
    order: InOrder,
    calls: Vec<Call>,
    /// What was thought since the last proof.
    thought: String,
    finish: Option<FinishReason>,
    /// Whether the model refused to answer, and said so in the field for that.
    refused: bool,
    /// The stop text that ended it, where an engine says so.
    stop_text: Option<String>,
}

/// A call as far as it has come.
#[derive(Debug)]
struct Call {
    /// The number on the wire; some say the same one for every call.
    number: u64,
    id: String,
    /// Arguments that came before the name.
    early: Option<String>,
}

impl Reader {
    /// A reader of an answer of so many choices.
    #[must_use]
    pub fn new(choices: u32) -> Self {
        Self { choices: (0..choices.max(1)).map(|_| Answering::default()).collect(), ..Self::default() }
    }

    /// A chunk or a completion: both are read alike, by the field that holds the message.
    fn take(&mut self, body: &Value, field: &str) -> Result<Vec<Delta>, Error> {
        if let Some(error) = body.get("error").filter(|error| !error.is_null()) {
            return Err(told(error));
        }
        if self.id.is_empty() {
            body["id"].as_str().unwrap_or_default().clone_into(&mut self.id);
        }
        let mut out = Vec::new();
        for (place, choice) in body["choices"].as_array().into_iter().flatten().enumerate() {
            let index = choice["index"].as_u64().unwrap_or(place as u64);
            let number = u32::try_from(index).ok();
            let Some((number, answering)) =
                number.and_then(|number| Some((number, self.choices.get_mut(number as usize)?)))
            else {
                return Err(unreadable(format_args!("it has a choice {index} that nobody asked for")));
            };
            answering.take(number, &choice[field], &choice["logprobs"], &self.id, &mut out)?;
            if let Some(reason) = choice["finish_reason"].as_str() {
                answering.finish = Some(reason_of(reason));
                answering.stop_text = choice["stop_reason"].as_str().map(str::to_owned);
            }
        }
        // It may come in any chunk; the last one counts.
        if let Some(told) = counts::of_completion(body) {
            self.usage = counts::openai(told).into();
        }
        Ok(out)
    }

    /// The end of every choice, and the usage.
    fn close(&mut self) -> Vec<Delta> {
        if std::mem::replace(&mut self.ended, true) {
            return Vec::new();
        }
        let mut out = Vec::new();
        for (number, answering) in (0..).zip(&mut self.choices) {
            answering.order.end(&mut out);
            let said = match answering.finish.unwrap_or(FinishReason::Stop) {
                FinishReason::Stop if answering.refused => FinishReason::ContentFilter,
                said => said,
            };
            let reason = finish(said, !answering.calls.is_empty());
            out.push(Delta::Finish { choice: number, reason, stop_text: answering.stop_text.take() });
        }
        out.push(Delta::Usage(self.usage));
        out
    }
}

impl AnswerReader for Reader {
    fn event(&mut self, _name: Option<&str>, data: &str) -> Result<Vec<Delta>, Error> {
        if data.trim() == "[DONE]" {
            return Ok(self.close());
        }
        if data.trim().is_empty() || self.ended {
            return Ok(Vec::new());
        }
        let chunk: Value = serde_json::from_str(data).map_err(unreadable)?;
        self.take(&chunk, "delta")
    }

    fn end(&mut self) -> Result<Vec<Delta>, Error> {
        if !self.ended && self.choices.iter().any(|answering| answering.finish.is_none()) {
            return Err(broken_off());
        }
        Ok(self.close())
    }

    fn whole(&mut self, body: &[u8]) -> Result<Vec<Delta>, Error> {
        let body: Value = serde_json::from_slice(body).map_err(unreadable)?;
        if !body["choices"].is_array() && body["error"].is_null() {
            return Err(unreadable("it has no choices"));
        }
        let mut out = self.take(&body, "message")?;
        out.extend(self.close());
        Ok(out)
    }
}

/// An error inside an answer.
fn told(error: &Value) -> Error {
    let message = error.as_str().or_else(|| error["message"].as_str());
    let message = message.map_or_else(|| error.to_string(), str::to_owned);
    Error::new(ErrorKind::Upstream, message)
}

fn reason_of(reason: &str) -> FinishReason {
    match reason {
        "length" | "max_tokens" | "model_length" => FinishReason::Length,
        "tool_calls" | "function_call" | "tool_use" => FinishReason::ToolCalls,
        "content_filter" | "safety" | "refusal" => FinishReason::ContentFilter,
        // Whatever else speakers say means that the model was done.
        _ => FinishReason::Stop,
    }
}

impl Answering {
    fn take(
        &mut self,
        choice: u32,
        said: &Value,
        logprobs: &Value,
        id: &str,
        out: &mut Vec<Delta>,
    ) -> Result<(), Error> {
        // Some write the thoughts under both names.
        let reasoning = ["reasoning_content", "reasoning"]
            .iter()
            .find_map(|name| said[*name].as_str().filter(|text| !text.is_empty()));
        let details = thoughts::of(&said["reasoning_details"]);
        let own =
            details.iter().filter(|one| matches!(one, Thought::Signed { text, .. } if !text.is_empty()));
        // Several that bring their texts are told in their order, each before its proof.
        let in_details = self.thought.is_empty() && own.count() > 1;
        if let Some(text) = reasoning.filter(|_| !in_details) {
            self.thought.push_str(text);
            self.order.push(Delta::Reasoning { choice, text: text.to_owned() }, out);
        }
        for mut thought in details {
            let before = std::mem::take(&mut self.thought);
            if let Thought::Signed { text, .. } = &mut thought {
                // Its text may have come before, and then perhaps not again.
                if text.is_empty() {
                    *text = before;
                } else if before.is_empty() {
                    self.order.push(Delta::Reasoning { choice, text: text.clone() }, out);
                }
            }
            self.order.push(Delta::Thought { choice, thought }, out);
        }
        self.content(choice, &said["content"], logprobs, out);
        if let Some(refusal) = said["refusal"].as_str().filter(|text| !text.is_empty()) {
            self.refused = true;
            let delta = Delta::Text { choice, text: refusal.to_owned(), logprobs: Vec::new() };
            self.order.push(delta, out);
        }
        for call in said["malformed_tool_calls"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            self.order.push(Delta::MalformedCall { choice, why: call.to_owned() }, out);
        }
        for (place, call) in said["tool_calls"].as_array().into_iter().flatten().enumerate() {
            self.call(choice, place, call, id, out)?;
        }
        Ok(())
    }

    /// Content: a text, or parts, of which Mistral's models have some that are thoughts.
    fn content(&mut self, choice: u32, content: &Value, logprobs: &Value, out: &mut Vec<Delta>) {
        let logprobs = read_logprobs(logprobs);
        match content {
            Value::String(text) if !text.is_empty() || !logprobs.is_empty() => {
                self.order.push(Delta::Text { choice, text: text.clone(), logprobs }, out);
            }
            Value::Array(parts) => {
                for part in parts {
                    if let Some(text) = part["text"].as_str().filter(|text| !text.is_empty()) {
                        let delta = Delta::Text { choice, text: text.to_owned(), logprobs: Vec::new() };
                        self.order.push(delta, out);
                    }
                    let thinking = &part["thinking"];
                    let inner =
                        thinking.as_array().into_iter().flatten().filter_map(|part| part["text"].as_str());
                    let text: String = thinking.as_str().into_iter().chain(inner).collect();
                    if !text.is_empty() {
                        self.order.push(Delta::Reasoning { choice, text }, out);
                    }
                }
            }
            _ => {}
        }
    }

    fn call(
        &mut self,
        choice: u32,
        place: usize,
        call: &Value,
        answer: &str,
        out: &mut Vec<Delta>,
    ) -> Result<(), Error> {
        let text = |value: &Value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned);
        let id = text(&call["id"]);
        let function = &call["function"];
        let name = text(&function["name"]);
        let arguments = match &function["arguments"] {
            Value::String(text) => text.clone(),
            Value::Null => String::new(),
            object => object.to_string(),
        };
        let number = call["index"].as_u64();
        // Without an id a name begins another call where all its arguments come with it.
        let is_whole = serde_json::from_str::<Map<String, Value>>(&arguments).is_ok();
        let another = |known: &Call| {
            let other = id.as_ref().map_or(known.early.is_none() && is_whole, |id| *id != known.id);
            name.is_some() && other
        };
        let same = match (number, &id) {
            // Some give every call the same number, and tell them apart by their ids.
            (Some(number), _) => {
                let found = self.calls.iter().rposition(|known| known.number == number);
                found.filter(|found| !another(&self.calls[*found]))
            }
            (None, Some(id)) => {
                let found = self.calls.iter().rposition(|known| known.id == *id);
                found.filter(|found| name.is_none() || self.calls[*found].early.is_some())
            }
            (None, None) if name.is_some() => None,
            (None, None) => self.calls.len().checked_sub(1),
        };
        let index = match same {
            Some(index) => index,
            None if self.calls.len() >= CALLS_MAX => return Err(unreadable("it has too many calls")),
            None => {
                let index = self.calls.len();
                let id = id.unwrap_or_else(|| format!("call_{}_{index}", made_of(answer)));
                let number = number.unwrap_or(place as u64);
                self.calls.push(Call { number, id, early: Some(String::new()) });
                index
            }
        };
        let known = &mut self.calls[index];
        let index = index as u32;
        let arguments = match (&mut known.early, name) {
            (Some(early), None) => {
                early.push_str(&arguments);
                return Ok(());
            }
            (Some(early), Some(name)) => {
                let early = std::mem::take(early) + &arguments;
                known.early = None;
                let delta = Delta::ToolCallStart { choice, index, id: known.id.clone(), name };
                self.order.push(delta, out);
                early
            }
            (None, _) => arguments,
        };
        if !arguments.is_empty() {
            self.order.push(Delta::ToolCallArguments { choice, index, arguments }, out);
        }
        Ok(())
    }
}

/// What of an answer's id may stand in that of a call.
fn made_of(id: &str) -> String {
    id.chars().filter(char::is_ascii_alphanumeric).take(32).collect()
}

/// `logprobs.content`, whose tokens have no ids on this wire.
fn read_logprobs(logprobs: &Value) -> Vec<Logprobs> {
    let token = |entry: &Value| {
        let token = entry["token"].as_str().unwrap_or_default().to_owned();
        let bytes = entry["bytes"].as_array().map(|bytes| {
            bytes.iter().filter_map(|byte| u8::try_from(byte.as_u64()?).ok()).collect::<Vec<u8>>()
        });
        let bytes = bytes.unwrap_or_else(|| token.as_bytes().to_vec());
        let logprob = entry["logprob"].as_f64().unwrap_or(f64::NEG_INFINITY) as f32;
        TokenLogprob { token, bytes, id: 0, logprob }
    };
    let entries = logprobs["content"].as_array().into_iter().flatten();
    entries
        .map(|entry| Logprobs {
            chosen: token(entry),
            top: entry["top_logprobs"].as_array().into_iter().flatten().map(token).collect(),
        })
        .collect()
}

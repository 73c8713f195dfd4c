//! A response while it is made: takes in deltas, gives out events, and at the end the whole object. An answer that is
//! not streamed goes the same way and its events are dropped, so both are the same by construction.
//!
//! Thoughts go out as `reasoning_text`, which clients know as the raw thoughts of an open model. Where the caller asks
//! for a summary they go out as one: many clients show nothing else, and nothing is left out of it.

use super::output::{Change, Output, Status, What, text_part, thought_part};
use super::{Form, Head, turn_of};
use crate::openai::error::names;
use crate::openai::logprobs::chat_tokens;
use crate::openai::to_json;
use crate::{Delta, Error, ErrorKind, Event, FinishReason, StreamWriter, Usage};
use serde_json::{Map, Value, json};

/// One response.
pub struct Responding {
    head: Head,
    form: Form,
    output: Output,
    usage: Option<Usage>,
    completed_at: Option<u64>,
    /// Whether it is kept.
    store: bool,
    started: bool,
    /// The next event's number.
    sequence: u64,
}

impl Responding {
    /// A response to a request of so many input items.
    #[must_use]
    pub fn new(head: Head, form: Form, input_items: usize, store: bool) -> Self {
        let output = Output::new(turn_of(&head.id).to_owned(), input_items);
        Self { head, form, output, usage: None, completed_at: None, store, started: false, sequence: 0 }
    }

    /// Says when the last delta came; before the object is taken for the last time.
    pub fn completed(&mut self, unix_seconds: u64) {
        self.completed_at = Some(unix_seconds);
    }

    /// Says that it is not kept after all.
    pub fn not_kept(&mut self) {
        self.store = false;
    }

    /// The output's items as they stand, for keeping.
    #[must_use]
    pub fn items(&self) -> Vec<Value> {
        self.output.items.iter().map(|item| item.kept(&self.form)).collect()
    }

    fn written(&self) -> Vec<Value> {
        self.output.items.iter().map(|item| item.write(&self.form)).collect()
    }

    /// The response as one object.
    #[must_use]
    pub fn object(&self) -> Value {
        self.object_with(self.written(), Value::Null)
    }

    fn object_with(&self, output: Vec<Value>, error: Value) -> Value {
        let status = if error.is_null() { self.output.status().as_str() } else { "failed" };
        let incomplete = match self.output.finish {
            Some(FinishReason::Length) => json!({"reason": "max_output_tokens"}),
            Some(FinishReason::ContentFilter) => json!({"reason": "content_filter"}),
            Some(FinishReason::Stop | FinishReason::ToolCalls) | None => Value::Null,
        };
        let completed_at = self.completed_at.filter(|_| status == Status::Completed.as_str());
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| {
            object.insert(name.to_owned(), value);
        };
        put("id", json!(self.head.id));
        put("object", json!("response"));
        put("created_at", json!(self.head.created));
        put("completed_at", json!(completed_at));
        put("status", json!(status));
        put("background", json!(false));
        put("error", error);
        put("incomplete_details", incomplete);
        put("model", json!(self.head.model));
        put("output", Value::Array(output));
        put("store", json!(self.store));
        put("usage", self.usage.map_or(Value::Null, |usage| usage_of(&usage)));
        object.extend(self.form.echo.clone());
        Value::Object(object)
    }

    fn event(&mut self, name: &'static str, mut data: Value) -> Event {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.sequence);
        self.sequence += 1;
        Event { name: Some(name), data: to_json(&data) }
    }

    fn start(&mut self) -> Vec<Event> {
        if std::mem::replace(&mut self.started, true) {
            return Vec::new();
        }
        let begun = json!({"response": self.object_with(Vec::new(), Value::Null)});
        let created = self.event("response.created", begun.clone());
        vec![created, self.event("response.in_progress", begun)]
    }

    fn changed(&mut self, change: Change, events: &mut Vec<Event>) {
        match change {
            Change::Opened(item) => self.opened(item, events),
            Change::Begun(item) => self.begun(item, events),
            Change::Text { item, text, logprobs } => {
                let tokens = if self.form.logprobs { chat_tokens(&logprobs) } else { json!([]) };
                let data = self.of_part(item, json!({"delta": text, "logprobs": tokens}));
                events.push(self.event("response.output_text.delta", data));
            }
            Change::Thought { item, text } => {
                let name = if self.form.summary {
                    "response.reasoning_summary_text.delta"
                } else {
                    "response.reasoning_text.delta"
                };
                let data = self.of_part(item, json!({"delta": text}));
                events.push(self.event(name, data));
            }
            Change::Arguments { item, text } => {
                let data = self.of_item(item, json!({"delta": text}));
                events.push(self.event("response.function_call_arguments.delta", data));
            }
            Change::Closed(item) => self.closed(item, events),
        }
    }

    fn of_item(&self, item: usize, mut data: Value) -> Value {
        data["item_id"] = json!(self.output.items[item].id);
        data["output_index"] = json!(item);
        data
    }

    fn of_part(&self, item: usize, data: Value) -> Value {
        let mut data = self.of_item(item, data);
        let thought = matches!(self.output.items[item].what, What::Reasoning { .. });
        data[if thought && self.form.summary { "summary_index" } else { "content_index" }] = json!(0);
        data
    }

    fn opened(&mut self, item: usize, events: &mut Vec<Event>) {
        let added = json!({"output_index": item, "item": self.output.items[item].write_empty(&self.form)});
        events.push(self.event("response.output_item.added", added));
    }

    fn begun(&mut self, item: usize, events: &mut Vec<Event>) {
        let part = match self.output.items[item].what {
            What::Message { .. } => text_part("", &[]),
            What::Reasoning { .. } => thought_part(&self.form, ""),
            What::Call { .. } => return,
        };
        let name =
            self.part_event(item, "response.content_part.added", "response.reasoning_summary_part.added");
        let data = self.of_part(item, json!({"part": part}));
        events.push(self.event(name, data));
    }

    fn part_event(&self, item: usize, content: &'static str, summary: &'static str) -> &'static str {
        let thought = matches!(self.output.items[item].what, What::Reasoning { .. });
        if thought && self.form.summary { summary } else { content }
    }

    fn closed(&mut self, item: usize, events: &mut Vec<Event>) {
        let made = &self.output.items[item];
        let part = json!({"part": made.part(&self.form)});
        match &made.what {
            What::Message { text, logprobs, .. } => {
                let data = json!({"text": text, "logprobs": chat_tokens(logprobs)});
                let data = self.of_part(item, data);
                events.push(self.event("response.output_text.done", data));
                let data = self.of_part(item, part);
                events.push(self.event("response.content_part.done", data));
            }
            What::Reasoning { text, .. } if text.is_empty() => {}
            What::Reasoning { text, .. } => {
                let data = self.of_part(item, json!({"text": text}));
                let name = self.part_event(
                    item,
                    "response.reasoning_text.done",
                    "response.reasoning_summary_text.done",
                );
                events.push(self.event(name, data));
                let name = self.part_event(
                    item,
                    "response.content_part.done",
                    "response.reasoning_summary_part.done",
                );
                let data = self.of_part(item, part);
                events.push(self.event(name, data));
            }
            What::Call { name, arguments, .. } => {
                let data = self.of_item(item, json!({"name": name, "arguments": arguments}));
                events.push(self.event("response.function_call_arguments.done", data));
            }
        }
        let done = json!({"output_index": item, "item": self.output.items[item].write(&self.form)});
        events.push(self.event("response.output_item.done", done));
    }
}

impl StreamWriter for Responding {
    fn delta(&mut self, _source: usize, delta: Delta) -> Vec<Event> {
        let mut events = self.start();
        if let Delta::Usage(usage) = delta {
            self.usage = Some(usage);
            return events;
        }
        for change in self.output.push(delta) {
            self.changed(change, &mut events);
        }
        events
    }

    fn finish(&mut self) -> Vec<Event> {
        let mut events = self.start();
        let name = match self.output.status() {
            Status::Incomplete => "response.incomplete",
            Status::Completed | Status::InProgress => "response.completed",
        };
        let data = json!({"response": self.object()});
        events.push(self.event(name, data));
        events
    }

    fn fail(&mut self, error: &Error) -> Option<Vec<Event>> {
        let mut events = self.start();
        let code = names(error.kind).1.unwrap_or("server_error");
        let data = json!({"code": code, "message": error.message, "param": error.param});
        events.push(self.event("error", data));
        self.store = false;
        let failed = self.object_with(self.written(), of_object(error));
        events.push(self.event("response.failed", json!({"response": failed})));
        Some(events)
    }
}

/// An error as the object of a response has it, which knows fewer names.
fn of_object(error: &Error) -> Value {
    let code = match error.kind {
        ErrorKind::Overloaded | ErrorKind::Limited => "rate_limit_exceeded",
        kind if kind.status() < 500 => "invalid_prompt",
        _ => "server_error",
    };
    json!({"code": code, "message": error.message})
}

/// The events, as bytes of a stream, that end somebody else's response which broke off: `error` and `response.failed`.
/// `begun` is the data of its first event, which holds the response; `sequence` is the number of the next one.
#[must_use]
pub fn broken(begun: &[u8], sequence: u64, error: &Error) -> String {
    let mut begun: Value = serde_json::from_slice(begun).unwrap_or_default();
    let mut response = match begun["response"].take() {
        response @ Value::Object(_) => response,
        _ => json!({"id": "", "object": "response", "output": []}),
    };
    response["status"] = "failed".into();
    response["error"] = of_object(error);
    let code = names(error.kind).1.unwrap_or("server_error");
    let told = json!({
        "type": "error", "sequence_number": sequence, "code": code, "message": error.message, "param": error.param,
    });
    let failed = json!({"type": "response.failed", "sequence_number": sequence + 1, "response": response});
    format!(
        "event: error\ndata: {}\n\nevent: response.failed\ndata: {}\n\n",
        to_json(&told),
        to_json(&failed)
    )
}

fn usage_of(usage: &Usage) -> Value {
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details":
            {"cached_tokens": usage.cached_tokens, "cache_write_tokens": usage.cache_write_tokens},
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens(),
    })
}

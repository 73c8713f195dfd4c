//! Generated text on its way out: the native object and its events, and chat completions as `ai/run` streams them.

use crate::openai::chat::ChunkWriter;
use crate::openai::{WireUsage, to_json};
use crate::{Answer, Delta, Event, FinishReason, ResponseFormat, StreamWriter, ToolCall, Usage};
use serde::Serialize;
use serde_json::Value;

#[derive(Serialize)]
struct Generated<'a> {
    response: Value,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
    #[serde(skip_serializing_if = "<[String]>::is_empty")]
    malformed_tool_calls: &'a [String],
    // Two names are in use for the same thing; clients read either.
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    usage: WireUsage,
    finish_reason: &'static str,
}

#[derive(Serialize)]
struct WireCall<'a> {
    id: &'a str,
    // Some clients gather the calls of a stream by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    index: Option<u32>,
    name: &'a str,
    arguments: Value,
}

impl<'a> WireCall<'a> {
    /// Arguments are an object here; text that is no JSON (cut by `max_tokens`) stays text.
    fn new(call: &'a ToolCall, index: Option<u32>) -> Self {
        let arguments =
            serde_json::from_str(&call.arguments).unwrap_or_else(|_| Value::String(call.arguments.clone()));
        Self { id: &call.id, index, name: &call.name, arguments }
    }
}

/// The whole answer. With a JSON format the response is the parsed value, as documented; an answer whose text is no
/// JSON has none, and `Err` says why it is not there.
pub fn result(format: &ResponseFormat, answer: &Answer) -> Result<String, String> {
    let Some(choice) = answer.choices.first() else { unreachable!("a request has at least one choice") };
    let response = match format {
        ResponseFormat::Text | ResponseFormat::Regex(_) | ResponseFormat::Lark(_) => {
            Value::String(choice.text.clone())
        }
        ResponseFormat::JsonObject | ResponseFormat::JsonSchema { .. } => {
            match serde_json::from_str(&choice.text) {
                Ok(value) => value,
                // The answer was calls instead.
                Err(_) if choice.text.is_empty() && !choice.tool_calls.is_empty() => Value::Null,
                Err(_) if choice.finish == Some(FinishReason::Length) => {
                    let tokens = answer.usage.unwrap_or_default().completion_tokens;
                    return Err(format!("the answer was cut after {tokens} tokens; raise max_tokens"));
                }
                Err(_) => return Err("the answer ended before its JSON did".to_owned()),
            }
        }
    };
    let reasoning = Some(choice.reasoning.as_str()).filter(|text| !text.is_empty());
    let generated = Generated {
        response,
        tool_calls: choice.tool_calls.iter().map(|call| WireCall::new(call, None)).collect(),
        malformed_tool_calls: &choice.malformed_calls,
        reasoning_content: reasoning,
        reasoning,
        usage: answer.usage.unwrap_or_default().into(),
        finish_reason: choice.finish.unwrap_or(FinishReason::Stop).as_str(),
    };
    Ok(to_json(&generated))
}

/// One event of a stream.
#[derive(Default, Serialize)]
struct Frame<'a> {
    response: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reasoning: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    tool_calls: Vec<WireCall<'a>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    malformed_tool_calls: Vec<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<WireUsage>,
    #[serde(skip_serializing_if = "Option::is_none")]
    finish_reason: Option<&'static str>,
}

impl Frame<'_> {
    fn event(&self) -> Event {
        Event::data(to_json(self))
    }
}

/// Writes an answer as native events: text as it comes, each tool call once it is whole, then the usage.
#[derive(Default)]
pub struct FrameWriter {
    /// The call whose arguments are coming in.
    open: Option<(u32, ToolCall)>,
    finish_reason: Option<&'static str>,
    usage: Usage,
}

impl FrameWriter {
    /// A call is whole when anything else begins.
    fn close(&mut self) -> Option<Event> {
        let (index, call) = self.open.take()?;
        let tool_calls = vec![WireCall::new(&call, Some(index))];
        Some(Frame { tool_calls, ..Frame::default() }.event())
    }
}

impl StreamWriter for FrameWriter {
    fn delta(&mut self, _source: usize, delta: Delta) -> Vec<Event> {
        if let Delta::ToolCallArguments { index, arguments, .. } = &delta {
            if let Some((_, call)) = self.open.as_mut().filter(|(open, _)| open == index) {
                call.arguments.push_str(arguments);
            }
            return Vec::new();
        }
        let mut events: Vec<Event> = self.close().into_iter().collect();
        match delta {
            Delta::Started { .. }
            | Delta::PromptLogprobs(_)
            | Delta::Thought { .. }
            | Delta::ToolCallArguments { .. } => {}
            Delta::Text { text, .. } if text.is_empty() => {}
            Delta::Text { text, .. } => events.push(Frame { response: &text, ..Frame::default() }.event()),
            Delta::Reasoning { text, .. } => {
                let (reasoning_content, reasoning) = (Some(text.as_str()), Some(text.as_str()));
                events.push(Frame { reasoning_content, reasoning, ..Frame::default() }.event());
            }
            Delta::ToolCallStart { index, id, name, .. } => {
                self.open = Some((index, ToolCall { id, name, arguments: String::new() }));
            }
            Delta::MalformedCall { why, .. } => {
                events.push(Frame { malformed_tool_calls: vec![&why], ..Frame::default() }.event());
            }
            Delta::Finish { reason, .. } => self.finish_reason = Some(reason.as_str()),
            Delta::Usage(usage) => self.usage = usage,
        }
        events
    }

    fn finish(&mut self) -> Vec<Event> {
        vec![last_frame(self.usage, self.finish_reason), Event::data("[DONE]")]
    }
}

fn last_frame(usage: Usage, finish_reason: Option<&'static str>) -> Event {
    Frame { usage: Some(usage.into()), finish_reason, ..Frame::default() }.event()
}

/// Writes a chat completion's chunks as `ai/run` does: after them, and before `[DONE]`, the native last frame.
pub struct ChunkFrameWriter {
    chunks: ChunkWriter,
    usage: Usage,
}

impl ChunkFrameWriter {
    /// A writer around that of OpenAI's route.
    #[must_use]
    pub fn new(chunks: ChunkWriter) -> Self {
        Self { chunks, usage: Usage::default() }
    }
}

impl StreamWriter for ChunkFrameWriter {
    fn delta(&mut self, source: usize, delta: Delta) -> Vec<Event> {
        if let Delta::Usage(usage) = &delta {
            self.usage = *usage;
        }
        self.chunks.delta(source, delta)
    }

    fn finish(&mut self) -> Vec<Event> {
        let mut events = self.chunks.finish();
        let done = events.pop();
        events.push(last_frame(self.usage, None));
        events.extend(done);
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::openai::Head;
    use crate::openai::chat::Asked;
    use serde_json::json;

    fn text(text: &str) -> Delta {
        Delta::Text { choice: 0, text: text.to_owned(), logprobs: Vec::new() }
    }

    fn call(index: u32, name: &str) -> Delta {
        Delta::ToolCallStart { choice: 0, index, id: format!("c{index}"), name: name.to_owned() }
    }

    fn arguments(index: u32, arguments: &str) -> Delta {
        Delta::ToolCallArguments { choice: 0, index, arguments: arguments.to_owned() }
    }

    fn finish(reason: FinishReason) -> Delta {
        Delta::Finish { choice: 0, reason, stop_text: None }
    }

    const USAGE: Delta = Delta::Usage(Usage {
        cache_write_tokens: 0,
        cache_write_1h_tokens: 0,
        prompt_tokens: 3,
        cached_tokens: 1,
        completion_tokens: 2,
        reasoning_tokens: 0,
        accepted_prediction_tokens: 0,
        rejected_prediction_tokens: 0,
    });

    fn answer(deltas: Vec<Delta>) -> Answer {
        let mut answer = Answer::new(1);
        deltas.into_iter().for_each(|delta| answer.push(delta));
        answer
    }

    fn events(writer: &mut impl StreamWriter, deltas: Vec<Delta>) -> Vec<Value> {
        let events: Vec<Event> = deltas.into_iter().flat_map(|delta| writer.delta(0, delta)).collect();
        let last = writer.finish();
        assert_eq!(last.last(), Some(&Event::data("[DONE]")));
        events
            .iter()
            .chain(&last[..last.len() - 1])
            .map(|event| serde_json::from_str(&event.data).unwrap())
            .collect()
    }

    #[test]
    fn calls_stream_one_by_one_when_they_are_whole_and_usage_comes_last() {
        let mut frames = events(
            &mut FrameWriter::default(),
            vec![
                Delta::Started { prompt_tokens: 3, cached_tokens: 1 },
                text("hé"),
                call(0, "add"),
                arguments(0, "{\"a\":"),
                arguments(0, "2}"),
                call(1, "add"),
                arguments(1, "{\"a\":"),
                finish(FinishReason::Length),
                USAGE,
            ],
        );
        let mut last = frames.pop().unwrap();
        assert_eq!(last["usage"].take()["total_tokens"], 5);
        assert_eq!(last, json!({"response": "", "usage": null, "finish_reason": "length"}));
        assert_eq!(
            frames,
            [
                json!({"response": "hé"}),
                json!({"response": "", "tool_calls": [{"id": "c0", "index": 0, "name": "add", "arguments": {"a": 2}}]}),
                json!({"response": "", "tool_calls": [{"id": "c1", "index": 1, "name": "add", "arguments": "{\"a\":"}]}),
            ]
        );
    }

    #[test]
    fn thoughts_and_malformed_calls_are_told_in_both_forms() {
        let deltas = vec![
            Delta::Reasoning { choice: 0, text: "hm".to_owned() },
            Delta::MalformedCall { choice: 0, why: "no name".to_owned() },
            text("{\"nam"),
            finish(FinishReason::Stop),
            USAGE,
        ];
        let frames = events(&mut FrameWriter::default(), deltas.clone());
        assert_eq!(frames[0], json!({"response": "", "reasoning_content": "hm", "reasoning": "hm"}));
        assert_eq!(frames[1], json!({"response": "", "malformed_tool_calls": ["no name"]}));
        let whole = result(&ResponseFormat::Text, &answer(deltas)).unwrap();
        let mut whole: Value = serde_json::from_str(&whole).unwrap();
        whole["usage"].take();
        assert_eq!(
            whole,
            json!({
                "response": "{\"nam", "malformed_tool_calls": ["no name"], "reasoning_content": "hm",
                "reasoning": "hm", "usage": null, "finish_reason": "stop",
            })
        );
    }

    #[test]
    fn json_mode_gives_a_value_or_says_why_not() {
        let of = |format: &ResponseFormat, deltas: Vec<Delta>| {
            result(format, &answer(deltas)).map(|result| serde_json::from_str::<Value>(&result).unwrap())
        };
        let whole = vec![text("{\"a\":"), text("1}"), finish(FinishReason::Stop), USAGE];
        assert_eq!(of(&ResponseFormat::Text, whole.clone()).unwrap()["response"], "{\"a\":1}");
        assert_eq!(of(&ResponseFormat::JsonObject, whole).unwrap()["response"], json!({"a": 1}));
        let cut = of(&ResponseFormat::JsonObject, vec![text("{\"a\":"), finish(FinishReason::Length), USAGE]);
        assert_eq!(cut.unwrap_err(), "the answer was cut after 2 tokens; raise max_tokens");
        let stopped = of(&ResponseFormat::JsonObject, vec![text("{"), finish(FinishReason::Stop), USAGE]);
        assert_eq!(stopped.unwrap_err(), "the answer ended before its JSON did");
        let called = vec![call(0, "f"), arguments(0, "{}"), finish(FinishReason::ToolCalls), USAGE];
        let called = of(&ResponseFormat::JsonObject, called).unwrap();
        assert_eq!((&called["response"], &called["tool_calls"][0]["name"]), (&Value::Null, &json!("f")));
    }

    #[test]
    fn chunks_end_with_the_native_frame() {
        let head = Head { id: "x".to_owned(), created: 0, model: "m".to_owned() };
        for include_usage in [false, true] {
            let asked = Asked { choices: 1, logprobs: false, include_usage };
            let mut writer = ChunkFrameWriter::new(ChunkWriter::new(head.clone(), asked));
            let events = events(&mut writer, vec![text("a"), finish(FinishReason::Stop), USAGE]);
            let last = events.last().unwrap();
            assert_eq!((&last["response"], &last["usage"]["total_tokens"]), (&json!(""), &json!(5)));
            assert_eq!(events[events.len() - 2]["usage"].is_object(), include_usage);
            assert_eq!(events[1]["choices"][0]["delta"]["content"], "a");
        }
    }
}

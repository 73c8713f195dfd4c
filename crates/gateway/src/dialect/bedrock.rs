//! Amazon Bedrock.
//!
//! Converse tells usage as `usage.inputTokens` and `outputTokens`; tokens read from a cache and written to one stand beside
//! the input and are added here. What InvokeModel answers is the model's own: Amazon's models tell usage as Converse does,
//! others as OpenAI does, Llama and Titan beside their answer. Source: `TokenUsage` in the Bedrock Runtime API Reference, and
//! `litellm/llms/bedrock/chat/` of LiteLLM 1.106.12.

use super::{Fault, MESSAGE_MAX, Reported};
use crate::eventstream::Message;
use crate::scan::{Field, Scan};
use crate::usage::Usage;
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use memchr::memmem;
use protocol::counts::{self, Counts};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The message behind the last piece of an answer of Converse's.
pub(super) const STOP: &str = "messageStop";

/// Reads a usage object.
pub(super) fn counts(raw: &Map<String, Value>) -> Counts {
    if raw.contains_key("inputTokens") { counts::converse(raw) } else { counts::openai(raw) }
}

/// The usage of an answer that tells it beside everything else.
pub(super) fn usage_beside(body: &[u8]) -> Option<Reported> {
    #[derive(Deserialize)]
    struct Beside {
        #[serde(alias = "inputTextTokenCount")]
        prompt_token_count: u32,
        #[serde(default)]
        generation_token_count: u32,
        #[serde(default)]
        results: Vec<Titan>,
    }
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Titan {
        token_count: u32,
    }
    let told: Beside = serde_json::from_slice(body).ok()?;
    let titan: u64 = told.results.iter().map(|result| u64::from(result.token_count)).sum();
    let (input, output) = (told.prompt_token_count.into(), u64::from(told.generation_token_count) + titan);
    let raw = format!(r#"{{"inputTokens":{input},"outputTokens":{output}}}"#);
    Some(Reported { usage: Usage { input, output, ..Usage::default() }, raw })
}

/// The usage object of a message: that of Converse's `metadata`, or the counts behind the last piece of a model's own
/// stream, brought into the same form.
pub(super) fn usage_of_event(message: &Message<'_>) -> Option<Map<String, Value>> {
    const COUNTS: &str = "amazon-bedrock-invocationMetrics";
    #[derive(Deserialize)]
    struct Metadata {
        usage: Map<String, Value>,
    }
    #[derive(Deserialize)]
    struct Chunk {
        bytes: String,
    }
    match message.name {
        "metadata" => Some(serde_json::from_slice::<Metadata>(message.payload).ok()?.usage),
        "chunk" => {
            let chunk: Chunk = serde_json::from_slice(message.payload).ok()?;
            let inner = BASE64_STANDARD.decode(chunk.bytes).ok()?;
            memmem::find(&inner, COUNTS.as_bytes())?;
            let inner: Value = serde_json::from_slice(&inner).ok()?;
            let counts = inner.get(COUNTS)?.as_object()?;
            let names = counts.iter().map(|(name, value)| {
                (
                    name.strip_suffix("TokenCount").map_or(name.clone(), |kind| format!("{kind}Tokens")),
                    value.clone(),
                )
            });
            Some(names.collect())
        }
        _ => None,
    }
}

/// What a message that tells an error means.
pub(super) fn fault(message: &Message<'_>) -> Fault {
    let status = match message.name {
        "throttlingException" => Some(429),
        "validationException" => Some(400),
        "accessDeniedException" => Some(403),
        "resourceNotFoundException" => Some(404),
        "modelTimeoutException" => Some(408),
        "internalServerException" => Some(500),
        "serviceUnavailableException" | "modelNotReadyException" => Some(503),
        _ => None,
    };
    let said: Value = serde_json::from_slice(message.payload).unwrap_or_default();
    let said = ["message", "Message", "originalMessage"].iter().find_map(|name| said[*name].as_str());
    let words: String = said.unwrap_or(message.name).chars().take(MESSAGE_MAX).collect();
    Fault { status, message: words }
}

/// The most tokens of an answer that a request allows.
pub(super) fn longest(found: &Scan, body: &[u8]) -> Option<u64> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Limits {
        max_tokens: Option<u64>,
    }
    match found.raw(body, Field::InferenceConfig) {
        Some(config) => serde_json::from_slice::<Limits>(config).ok()?.max_tokens,
        None => found.count(body, Field::MaxTokens).ok()?,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Dialect, Seen, Watcher};
    use super::*;
    use crate::eventstream::encode;
    use crate::scan::scan;

    #[track_caller]
    fn check(body: &str, expected: Usage) {
        let found = Dialect::Bedrock.usage_of_body(body.as_bytes());
        assert_eq!(found.map(|reported| reported.usage), Some(expected), "{body}");
    }

    #[test]
    fn cached_tokens_are_added_to_the_prompt() {
        check(
            r#"{"output":{},"stopReason":"end_turn","usage":{"inputTokens":10,"outputTokens":5,"totalTokens":65,"cacheReadInputTokens":30,"cacheWriteInputTokens":20,"cacheDetails":[{"ttl":"5m","inputTokens":12},{"ttl":"1h","inputTokens":8}]}}"#,
            Usage {
                input: 60,
                cached_input: Some(30),
                cache_write: Some(20),
                cache_write_1h: Some(8),
                output: 5,
                ..Usage::default()
            },
        );
        check(
            r#"{"usage":{"inputTokens":10,"outputTokens":5,"totalTokens":15}}"#,
            Usage { input: 10, output: 5, ..Usage::default() },
        );
    }

    #[test]
    fn a_models_own_answer_tells_it_in_the_models_way() {
        let expected = Usage { input: 7, output: 3, ..Usage::default() };
        for body in [
            r#"{"generation":"x","prompt_token_count":7,"generation_token_count":3,"stop_reason":"stop"}"#,
            r#"{"inputTextTokenCount":7,"results":[{"tokenCount":1,"outputText":"a"},{"tokenCount":2,"outputText":"b"}]}"#,
            r#"{"choices":[],"usage":{"prompt_tokens":7,"completion_tokens":3}}"#,
        ] {
            check(body, expected);
        }
        check(r#"{"embedding":[1.0],"inputTextTokenCount":7}"#, Usage { input: 7, ..Usage::default() });
        assert_eq!(Dialect::Bedrock.usage_of_body(br#"{"embeddings":[]}"#), None);
    }

    #[test]
    fn the_longest_answer_is_that_of_converse_or_of_the_model() {
        for body in [r#"{"inferenceConfig":{"maxTokens":9}}"#, r#"{"max_tokens":9}"#] {
            let found = scan(body.as_bytes()).unwrap();
            assert_eq!(Dialect::Bedrock.longest(&found, body.as_bytes()), Ok(Some(9)), "{body}");
        }
    }

    #[test]
    fn a_stream_tells_usage_in_its_last_message() {
        let event = |name: &str, payload: &str| {
            encode(&[(":event-type", name), (":message-type", "event")], payload.as_bytes())
        };
        let mut watcher = Watcher::new(Dialect::Bedrock);
        let text = event("contentBlockDelta", r#"{"delta":{"text":"\"usage\""},"contentBlockIndex":0}"#);
        assert_eq!(watcher.frame(&text), Seen::default());
        let usage = event(
            "metadata",
            r#"{"usage":{"inputTokens":10,"outputTokens":5,"cacheReadInputTokens":30},"metrics":{}}"#,
        );
        assert_eq!(watcher.frame(&usage), Seen { usage: true, last: true, ..Seen::default() });
        let expected = Usage { input: 40, cached_input: Some(30), output: 5, ..Usage::default() };
        assert_eq!(watcher.reported().map(|reported| reported.usage), Some(expected));
        // A model's own stream.
        let piece = r#"{"type":"message_stop","amazon-bedrock-invocationMetrics":{"inputTokenCount":10,"outputTokenCount":5,"cacheReadInputTokenCount":30,"invocationLatency":9}}"#;
        let mut watcher = Watcher::new(Dialect::Bedrock);
        let chunk = format!(r#"{{"bytes":"{}","p":"abc"}}"#, BASE64_STANDARD.encode(piece));
        assert!(watcher.frame(&event("chunk", &chunk)).last);
        assert_eq!(watcher.reported().map(|reported| reported.usage), Some(expected));
    }

    #[test]
    fn an_exception_inside_a_stream_is_a_fault() {
        let mut watcher = Watcher::new(Dialect::Bedrock);
        let headers = [(":exception-type", "throttlingException"), (":message-type", "exception")];
        watcher.frame(&encode(&headers, br#"{"message":"slow down"}"#));
        assert_eq!(watcher.fault(), Some(&Fault { status: Some(429), message: "slow down".to_owned() }));
    }
}

//! Gemini, as Google AI Studio and Vertex AI have it.
//!
//! Usage is `usageMetadata`, in every chunk of a stream, each time of all so far. `promptTokenCount` holds the cached
//! tokens (`cachedContentTokenCount`); what tools put into the prompt (`toolUsePromptTokenCount`) stands beside it.
//! `candidatesTokenCount` and `thoughtsTokenCount` stand beside each other, and `totalTokenCount` is the sum of the four;
//! some models count the thoughts among the candidates too, which that sum shows. Zeros are left out, as always in JSON
//! that is made from protocol buffers. Source: `GenerateContentResponseUsageMetadata` in `google-genai` 3.6.1 (`types.py`),
//! and `litellm/llms/vertex_ai/gemini/vertex_and_google_ai_studio_gemini.py` of LiteLLM 1.106.12 for the two ways of counting.
//!
//! A stream has no event that ends it. The chunk with a `finishReason` is the last in practice, but nothing says so.

use super::{Dialect, Reported};
use crate::scan::{Field, Scan};
use memchr::memmem;
use serde::Deserialize;
use serde_json::{Map, Value};

/// The usage of a list of chunks: the last that is told.
pub(super) fn usage_of_list(body: &[u8]) -> Option<Reported> {
    #[derive(Deserialize)]
    #[serde(rename_all = "camelCase")]
    struct Chunk {
        usage_metadata: Option<Map<String, Value>>,
    }
    let chunks: Vec<Chunk> = serde_json::from_slice(body).ok()?;
    let raw = chunks.into_iter().rev().find_map(|chunk| chunk.usage_metadata)?;
    Some(Reported { usage: Dialect::Gemini.usage(&raw)?, raw: serde_json::to_string(&raw).ok()? })
}

/// Whether a frame holds a `finishReason` that is one, or says why there is no answer.
pub(super) fn is_closing(frame: &[u8]) -> bool {
    let has = |name: &str| memmem::find(frame, name.as_bytes()).is_some();
    has("\"finishReason\"") || has("\"blockReason\"")
}

/// Whether a frame holds a piece of the answer.
pub(super) fn is_piece(frame: &[u8]) -> bool {
    memmem::find(frame, b"\"parts\"").is_some()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Limits {
    #[serde(alias = "max_output_tokens")]
    max_output_tokens: Option<u64>,
    #[serde(alias = "candidate_count")]
    candidate_count: Option<u64>,
}

fn limits(found: &Scan, body: &[u8]) -> Option<Limits> {
    serde_json::from_slice(found.raw(body, Field::GenerationConfig)?).ok()
}

/// The most tokens of an answer that a request allows.
pub(super) fn longest(found: &Scan, body: &[u8]) -> Option<u64> {
    limits(found, body)?.max_output_tokens
}

/// How many answers a request asks for.
pub(super) fn answers(found: &Scan, body: &[u8]) -> Option<u64> {
    limits(found, body)?.candidate_count
}

#[cfg(test)]
mod tests {
    use super::super::{Fault, Watcher};
    use super::*;
    use crate::scan::scan;
    use crate::usage::Usage;

    #[track_caller]
    fn check(told: &str, input: u64, cached: Option<u64>, output: u64, reasoning: Option<u64>) {
        let expected = Usage { input, cached_input: cached, output, reasoning, ..Usage::default() };
        let body = format!(r#"{{"candidates":[],"usageMetadata":{told}}}"#);
        let whole = Dialect::Gemini.usage_of_body(body.as_bytes()).map(|reported| reported.usage);
        assert_eq!(whole, Some(expected), "{told}");
        let mut watcher = Watcher::new(Dialect::Gemini);
        watcher.frame(b"data: {\"candidates\":[],\"usageMetadata\":{\"promptTokenCount\":9,\"totalTokenCount\":9}}\r\n\r\n");
        watcher.frame(format!("data: {body}\r\n\r\n").as_bytes());
        assert_eq!(watcher.reported().map(|reported| reported.usage), Some(expected), "{told}");
        let list = format!(r#"[{{"usageMetadata":{{"promptTokenCount":9}}}},{body},{{}}]"#);
        let listed = Dialect::Gemini.usage_of_body(list.as_bytes()).map(|reported| reported.usage);
        assert_eq!(listed, Some(expected), "{told}");
    }

    #[test]
    fn cached_tokens_are_in_the_prompt_and_thoughts_beside_the_candidates() {
        check(
            r#"{"promptTokenCount":1000,"cachedContentTokenCount":600,"candidatesTokenCount":100,"thoughtsTokenCount":50,"totalTokenCount":1150}"#,
            1000,
            Some(600),
            150,
            Some(50),
        );
        check(
            r#"{"promptTokenCount":10,"toolUsePromptTokenCount":7,"candidatesTokenCount":5,"totalTokenCount":22}"#,
            17,
            None,
            5,
            None,
        );
        // Zeros are left out.
        check(r#"{"promptTokenCount":10,"totalTokenCount":10}"#, 10, None, 0, None);
        check(r#"{"promptTokenCount":10,"thoughtsTokenCount":5,"totalTokenCount":15}"#, 10, None, 5, Some(5));
    }

    #[test]
    fn thoughts_that_the_candidates_hold_already_are_not_counted_twice() {
        check(
            r#"{"promptTokenCount":10,"candidatesTokenCount":9,"thoughtsTokenCount":5,"totalTokenCount":19}"#,
            10,
            None,
            9,
            Some(5),
        );
    }

    #[test]
    fn what_tells_no_tokens_is_no_usage() {
        for body in [r#"{"usageMetadata":{}}"#, r#"{"totalTokens":7}"#, "[]", r#"[{"candidates":[]}]"#] {
            assert_eq!(Dialect::Gemini.usage_of_body(body.as_bytes()), None, "{body}");
        }
    }

    #[test]
    fn an_error_inside_a_stream_is_seen_with_its_status() {
        let mut watcher = Watcher::new(Dialect::Gemini);
        watcher.frame(b"data: {\"error\": {\"code\": 503, \"message\": \"The model is overloaded.\", \"status\": \"UNAVAILABLE\"}}\r\n\r\n");
        let expected = Fault { status: Some(503), message: "The model is overloaded.".to_owned() };
        assert_eq!(watcher.fault(), Some(&expected));
    }

    #[test]
    fn a_finish_reason_closes_and_text_does_not() {
        let mut watcher = Watcher::new(Dialect::Gemini);
        let text =
            watcher.frame(br#"data: {"candidates":[{"content":{"parts":[{"text":"\"finishReason\""}]}}]}"#);
        assert!(!text.closing && !text.last);
        assert!(watcher.frame(br#"data: {"candidates":[{"finishReason": "STOP"}]}"#).closing);
    }

    #[test]
    fn the_longest_answer_is_read_in_both_spellings() {
        for body in [
            r#"{"generationConfig":{"maxOutputTokens":70,"candidateCount":2}}"#,
            r#"{"generationConfig":{"max_output_tokens":70,"candidate_count":2}}"#,
        ] {
            let found = scan(body.as_bytes()).unwrap();
            assert_eq!(Dialect::Gemini.longest(&found, body.as_bytes()).unwrap(), Some(70));
            assert_eq!(Dialect::Gemini.answers(&found, body.as_bytes()).unwrap(), 2);
        }
    }
}

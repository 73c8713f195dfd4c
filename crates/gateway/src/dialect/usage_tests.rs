//! One answer as each provider tells it, whole and streamed: the ledger counts both alike, what a client is told of a
//! translated one adds up to the same, and each costs what the formula says, to the billionth of a dollar.

use super::*;
use crate::eventstream::{decode, encode};
use crate::price::{Price, Rates};
use base::NanoUsd;
use protocol::{Answer, GenerateRequest};

/// A provider's words.
struct Case {
    name: &'static str,
    dialect: Dialect,
    /// The usage object of a whole answer, in `{usage}` of the answer.
    whole: &'static str,
    /// Name and data of the events that end a stream.
    events: &'static [(&'static str, &'static str)],
    /// Input, cached, written, output, thoughts.
    tokens: (u64, Option<u64>, Option<u64>, u64, Option<u64>),
    nano_usd: i64,
    /// Whether requests are translated to this dialect.
    translated: bool,
}

const CHAT: &str = r#"{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"ab"},"finish_reason":"stop"}],"usage":{usage}}"#;
const RESPONSE: &str = r#"{"id":"r","object":"response","status":"completed","output":[],"usage":{usage}}"#;
const MESSAGE: &str =
    r#"{"type":"message","content":[{"type":"text","text":"ab"}],"stop_reason":"end_turn","usage":{usage}}"#;
const CANDIDATES: &str = r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"ab"}]},"finishReason":"STOP"}],"usageMetadata":{usage}}"#;
const CONVERSE: &str = r#"{"output":{"message":{"role":"assistant","content":[{"text":"ab"}]}},"stopReason":"end_turn","usage":{usage}}"#;
const COHERE: &str = r#"{"id":"x","finish_reason":"COMPLETE","message":{},"usage":{usage}}"#;

impl Case {
    fn body(&self) -> String {
        let frame = match self.dialect {
            Dialect::OpenAi if self.name.ends_with("responses") => RESPONSE,
            Dialect::OpenAi | Dialect::Other => CHAT,
            Dialect::Anthropic => MESSAGE,
            Dialect::Gemini => CANDIDATES,
            Dialect::Bedrock => CONVERSE,
            Dialect::Cohere => COHERE,
        };
        frame.replace("{usage}", self.whole)
    }

    /// The frames as they come off the wire.
    fn frames(&self) -> Vec<Vec<u8>> {
        let sent = |(name, data): &(&str, &str)| match (self.dialect, *name) {
            (Dialect::Bedrock, name) => {
                encode(&[(":event-type", name), (":message-type", "event")], data.as_bytes()).to_vec()
            }
            (_, "") => format!("data: {data}\n\n").into_bytes(),
            (_, name) => format!("event: {name}\ndata: {data}\n\n").into_bytes(),
        };
        self.events.iter().map(sent).collect()
    }

    /// What the client of a translated stream is told.
    fn told_streamed(&self) -> protocol::Usage {
        let request = GenerateRequest { choices: 1, ..GenerateRequest::default() };
        let (mut reader, mut answer) = (self.dialect.reader(&request), Answer::new(1));
        for frame in self.frames() {
            let deltas = match decode(&frame).filter(|_| self.dialect == Dialect::Bedrock) {
                Some(message) => {
                    reader.event(Some(message.name), std::str::from_utf8(message.payload).unwrap())
                }
                None => {
                    let name = sse::name(&frame).map(|name| std::str::from_utf8(name).unwrap());
                    reader.event(name, std::str::from_utf8(&sse::data(&frame).unwrap()).unwrap())
                }
            };
            deltas.unwrap().into_iter().for_each(|delta| answer.push(delta));
        }
        reader.end().unwrap().into_iter().for_each(|delta| answer.push(delta));
        answer.usage.unwrap()
    }

    fn told_whole(&self) -> protocol::Usage {
        let request = GenerateRequest { choices: 1, ..GenerateRequest::default() };
        let mut answer = Answer::new(1);
        let deltas = self.dialect.reader(&request).whole(self.body().as_bytes()).unwrap();
        deltas.into_iter().for_each(|delta| answer.push(delta));
        answer.usage.unwrap()
    }
}

/// In `delta` and `finish_reason` as in the dialect; usage where the provider puts it.
const CASES: &[Case] = &[
    Case {
        name: "openai chat completions",
        dialect: Dialect::OpenAi,
        whole: r#"{"prompt_tokens":1003,"completion_tokens":77,"total_tokens":1080,"prompt_tokens_details":{"cached_tokens":601,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":33,"audio_tokens":0,"accepted_prediction_tokens":0,"rejected_prediction_tokens":0}}"#,
        events: &[
            (
                "",
                r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":"ab"},"finish_reason":null}],"usage":null}"#,
            ),
            ("", r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":null}"#),
            (
                "",
                r#"{"id":"c","choices":[],"usage":{"prompt_tokens":1003,"completion_tokens":77,"total_tokens":1080,"prompt_tokens_details":{"cached_tokens":601,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":33,"audio_tokens":0}}}"#,
            ),
            ("", "[DONE]"),
        ],
        tokens: (1003, Some(601), None, 77, Some(33)),
        nano_usd: 1_121_618,
        translated: true,
    },
    Case {
        name: "openai responses",
        dialect: Dialect::OpenAi,
        whole: r#"{"input_tokens":1003,"input_tokens_details":{"cached_tokens":601},"output_tokens":77,"output_tokens_details":{"reasoning_tokens":33},"total_tokens":1080}"#,
        events: &[
            ("response.created", r#"{"type":"response.created","response":{"id":"r","usage":null}}"#),
            ("response.output_text.delta", r#"{"type":"response.output_text.delta","delta":"ab"}"#),
            (
                "response.completed",
                r#"{"type":"response.completed","response":{"id":"r","usage":{"input_tokens":1003,"input_tokens_details":{"cached_tokens":601},"output_tokens":77,"output_tokens_details":{"reasoning_tokens":33},"total_tokens":1080}}}"#,
            ),
        ],
        tokens: (1003, Some(601), None, 77, Some(33)),
        nano_usd: 1_121_618,
        translated: false,
    },
    Case {
        name: "anthropic",
        dialect: Dialect::Anthropic,
        whole: r#"{"input_tokens":302,"cache_read_input_tokens":601,"cache_creation_input_tokens":100,"output_tokens":77,"service_tier":"standard"}"#,
        events: &[
            (
                "message_start",
                r#"{"type":"message_start","message":{"id":"m","usage":{"input_tokens":302,"cache_read_input_tokens":601,"cache_creation_input_tokens":100,"output_tokens":1,"service_tier":"standard"}}}"#,
            ),
            (
                "content_block_start",
                r#"{"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}"#,
            ),
            (
                "content_block_delta",
                r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"ab"}}"#,
            ),
            ("content_block_stop", r#"{"type":"content_block_stop","index":0}"#),
            (
                "message_delta",
                r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":77}}"#,
            ),
            ("message_stop", r#"{"type":"message_stop"}"#),
        ],
        tokens: (1003, Some(601), Some(100), 77, None),
        nano_usd: 1_372_543,
        translated: true,
    },
    Case {
        name: "gemini",
        dialect: Dialect::Gemini,
        whole: r#"{"promptTokenCount":1003,"cachedContentTokenCount":601,"candidatesTokenCount":44,"thoughtsTokenCount":33,"totalTokenCount":1080,"promptTokensDetails":[{"modality":"TEXT","tokenCount":1003}]}"#,
        events: &[
            (
                "",
                r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"a"}]}}],"usageMetadata":{"promptTokenCount":1003,"thoughtsTokenCount":33,"totalTokenCount":1036}}"#,
            ),
            (
                "",
                r#"{"candidates":[{"content":{"role":"model","parts":[{"text":"b"}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":1003,"cachedContentTokenCount":601,"candidatesTokenCount":44,"thoughtsTokenCount":33,"totalTokenCount":1080}}"#,
            ),
        ],
        tokens: (1003, Some(601), None, 77, Some(33)),
        nano_usd: 1_121_618,
        translated: true,
    },
    Case {
        name: "bedrock converse",
        dialect: Dialect::Bedrock,
        whole: r#"{"inputTokens":302,"outputTokens":77,"totalTokens":1080,"cacheReadInputTokens":601,"cacheWriteInputTokens":100}"#,
        events: &[
            ("messageStart", r#"{"role":"assistant"}"#),
            ("contentBlockDelta", r#"{"contentBlockIndex":0,"delta":{"text":"ab"}}"#),
            ("contentBlockStop", r#"{"contentBlockIndex":0}"#),
            ("messageStop", r#"{"stopReason":"end_turn"}"#),
            (
                "metadata",
                r#"{"usage":{"inputTokens":302,"outputTokens":77,"totalTokens":1080,"cacheReadInputTokens":601,"cacheWriteInputTokens":100},"metrics":{"latencyMs":9}}"#,
            ),
        ],
        tokens: (1003, Some(601), Some(100), 77, None),
        nano_usd: 1_372_543,
        translated: true,
    },
    Case {
        name: "groq",
        dialect: Dialect::OpenAi,
        whole: r#"{"queue_time":0.01,"prompt_tokens":1003,"prompt_time":0.02,"completion_tokens":77,"completion_time":0.03,"total_tokens":1080,"total_time":0.05,"prompt_tokens_details":{"cached_tokens":601}}"#,
        events: &[
            (
                "",
                r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":"ab"},"finish_reason":null}],"x_groq":{"id":"req_1"}}"#,
            ),
            (
                "",
                r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"x_groq":{"id":"req_1","usage":{"queue_time":0.01,"prompt_tokens":1003,"completion_tokens":77,"total_tokens":1080,"total_time":0.05,"prompt_tokens_details":{"cached_tokens":601}}}}"#,
            ),
            ("", "[DONE]"),
        ],
        tokens: (1003, Some(601), None, 77, None),
        nano_usd: 1_341_618,
        translated: true,
    },
    Case {
        name: "moonshot",
        dialect: Dialect::OpenAi,
        whole: r#"{"prompt_tokens":1003,"completion_tokens":77,"total_tokens":1080,"cached_tokens":601}"#,
        events: &[
            (
                "",
                r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":"ab"},"finish_reason":null}]}"#,
            ),
            (
                "",
                r#"{"id":"c","choices":[{"index":0,"delta":{},"finish_reason":"stop","usage":{"prompt_tokens":1003,"completion_tokens":77,"total_tokens":1080,"cached_tokens":601}}]}"#,
            ),
            ("", "[DONE]"),
        ],
        tokens: (1003, Some(601), None, 77, None),
        nano_usd: 1_341_618,
        translated: true,
    },
    Case {
        name: "moonshot, whose own is null",
        dialect: Dialect::OpenAi,
        whole: r#"{"prompt_tokens":1003,"completion_tokens":77,"total_tokens":1080,"cached_tokens":601}"#,
        events: &[
            (
                "",
                r#"{"id":"c","choices":[{"index":0,"delta":{"content":"ab"},"finish_reason":"stop","usage":{"prompt_tokens":1003,"completion_tokens":77,"total_tokens":1080,"cached_tokens":601}}],"usage":null}"#,
            ),
            ("", "[DONE]"),
        ],
        tokens: (1003, Some(601), None, 77, None),
        nano_usd: 1_341_618,
        translated: true,
    },
    Case {
        name: "deepseek",
        dialect: Dialect::OpenAi,
        whole: r#"{"prompt_tokens":1003,"completion_tokens":77,"total_tokens":1080,"prompt_cache_hit_tokens":601,"prompt_cache_miss_tokens":402,"completion_tokens_details":{"reasoning_tokens":33}}"#,
        events: &[
            (
                "",
                r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":"ab"},"finish_reason":null}],"usage":null}"#,
            ),
            (
                "",
                r#"{"id":"c","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}],"usage":{"prompt_tokens":1003,"completion_tokens":77,"total_tokens":1080,"prompt_cache_hit_tokens":601,"prompt_cache_miss_tokens":402,"completion_tokens_details":{"reasoning_tokens":33}}}"#,
            ),
            ("", "[DONE]"),
        ],
        tokens: (1003, Some(601), None, 77, Some(33)),
        nano_usd: 1_121_618,
        translated: true,
    },
    Case {
        name: "mistral",
        dialect: Dialect::OpenAi,
        whole: r#"{"prompt_tokens":1003,"total_tokens":1080,"completion_tokens":77,"prompt_tokens_details":{"cached_tokens":601}}"#,
        events: &[
            (
                "",
                r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":"ab"},"finish_reason":null}]}"#,
            ),
            (
                "",
                r#"{"id":"c","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}],"usage":{"prompt_tokens":1003,"total_tokens":1080,"completion_tokens":77,"prompt_tokens_details":{"cached_tokens":601}}}"#,
            ),
            ("", "[DONE]"),
        ],
        tokens: (1003, Some(601), None, 77, None),
        nano_usd: 1_341_618,
        translated: true,
    },
    Case {
        name: "xai, which counts thoughts beside the answer",
        dialect: Dialect::OpenAi,
        whole: r#"{"prompt_tokens":1003,"completion_tokens":77,"total_tokens":1113,"prompt_tokens_details":{"text_tokens":1003,"audio_tokens":0,"image_tokens":0,"cached_tokens":601},"completion_tokens_details":{"reasoning_tokens":33,"audio_tokens":0},"num_sources_used":0}"#,
        events: &[
            ("", r#"{"id":"c","choices":[{"index":0,"delta":{"content":"ab","role":"assistant"}}]}"#),
            (
                "",
                r#"{"id":"c","choices":[{"index":0,"delta":{"content":"","role":"assistant"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1003,"completion_tokens":77,"total_tokens":1113,"prompt_tokens_details":{"text_tokens":1003,"audio_tokens":0,"image_tokens":0,"cached_tokens":601},"completion_tokens_details":{"reasoning_tokens":33,"audio_tokens":0},"num_sources_used":0}}"#,
            ),
            ("", "[DONE]"),
        ],
        tokens: (1003, Some(601), None, 110, Some(33)),
        nano_usd: 1_451_618,
        translated: true,
    },
    Case {
        name: "perplexity, which tells what it costs and how far it is in each chunk",
        dialect: Dialect::OpenAi,
        whole: r#"{"prompt_tokens":1003,"completion_tokens":77,"total_tokens":1080,"search_context_size":"low","cost":{"input_tokens_cost":0.001,"output_tokens_cost":0.000077,"request_cost":0.005,"total_cost":0.006077}}"#,
        events: &[
            (
                "",
                r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":"ab"},"finish_reason":null}],"usage":{"prompt_tokens":1003,"completion_tokens":9,"total_tokens":1012,"search_context_size":"low"}}"#,
            ),
            (
                "",
                r#"{"id":"c","choices":[{"index":0,"delta":{"content":""},"finish_reason":"stop"}],"usage":{"prompt_tokens":1003,"completion_tokens":77,"total_tokens":1080,"search_context_size":"low","cost":{"total_cost":0.006077}}}"#,
            ),
            ("", "[DONE]"),
        ],
        tokens: (1003, None, None, 77, None),
        nano_usd: 6_077_000,
        translated: true,
    },
    Case {
        name: "cohere",
        dialect: Dialect::Cohere,
        whole: r#"{"billed_units":{"input_tokens":1003,"output_tokens":77},"tokens":{"input_tokens":1600,"output_tokens":80},"cached_tokens":601}"#,
        events: &[
            (
                "content-delta",
                r#"{"type":"content-delta","index":0,"delta":{"message":{"content":{"text":"ab"}}}}"#,
            ),
            (
                "message-end",
                r#"{"type":"message-end","delta":{"finish_reason":"COMPLETE","usage":{"billed_units":{"input_tokens":1003,"output_tokens":77},"tokens":{"input_tokens":1600,"output_tokens":80},"cached_tokens":601}}}"#,
            ),
        ],
        tokens: (1003, Some(601), None, 77, None),
        nano_usd: 1_341_618,
        translated: false,
    },
    Case {
        name: "openrouter",
        dialect: Dialect::OpenAi,
        whole: r#"{"prompt_tokens":1003,"completion_tokens":77,"total_tokens":1080,"cost":0.9,"prompt_tokens_details":{"cached_tokens":601,"cache_write_tokens":100},"completion_tokens_details":{"reasoning_tokens":33}}"#,
        events: &[
            (
                "",
                r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":"ab"},"finish_reason":"stop"}]}"#,
            ),
            (
                "",
                r#"{"id":"c","choices":[{"index":0,"delta":{"role":"assistant","content":""},"finish_reason":null}],"usage":{"prompt_tokens":1003,"completion_tokens":77,"total_tokens":1080,"cost":0.9,"prompt_tokens_details":{"cached_tokens":601,"cache_write_tokens":100},"completion_tokens_details":{"reasoning_tokens":33}}}"#,
            ),
            ("", "[DONE]"),
        ],
        tokens: (1003, Some(601), Some(100), 77, Some(33)),
        nano_usd: 1_152_543,
        translated: true,
    },
];

/// Prices whose sums do not come out even.
fn price() -> Price {
    let rates = Rates {
        input: Some(NanoUsd(1_237_000_001)),
        cached_input: Some(NanoUsd(123_700_003)),
        cache_write: Some(NanoUsd(1_546_250_007)),
        cache_write_1h: None,
        output: Some(NanoUsd(9_999_999_999)),
        reasoning: Some(NanoUsd(3_333_333_337)),
    };
    Price { rates, ..Price::default() }
}

#[test]
fn whole_streamed_and_translated_an_answer_costs_the_same_in_each_providers_words() {
    for case in CASES {
        let name = case.name;
        let whole = case.dialect.usage_of_body(case.body().as_bytes()).expect(name).usage;
        let mut watcher = Watcher::new(case.dialect);
        for frame in case.frames() {
            watcher.frame(&frame);
        }
        let streamed = watcher.reported().expect(name).usage;
        assert_eq!(whole, streamed, "{name}");
        let (input, cached, written, output, thoughts) = case.tokens;
        let tokens = (whole.input, whole.cached_input, whole.cache_write, whole.output, whole.reasoning);
        assert_eq!(tokens, (input, cached, written, output, thoughts), "{name}");
        let cost = |usage: &Usage| price().cost(usage).map(|cost| cost.cost.0);
        assert_eq!(cost(&whole), Some(case.nano_usd), "{name}");
        if !case.translated {
            continue;
        }
        for told in [case.told_whole(), case.told_streamed()].map(Usage::from) {
            let zero = |count: Option<u64>| count.unwrap_or(0);
            let tokens = (told.input, told.cached_input, zero(told.cache_write), told.output, told.reasoning);
            let expected = (input, Some(zero(cached)), zero(written), output, Some(zero(thoughts)));
            assert_eq!(tokens, expected, "{name}");
            if whole.told.is_none() {
                assert_eq!(cost(&told), Some(case.nano_usd), "{name}");
            }
        }
    }
}

#[test]
fn what_has_a_price_of_its_own_makes_a_cost_unknown_unless_the_provider_tells_it() {
    for (dialect, body) in [
        (Dialect::OpenAi, CHAT.replace("{usage}", r#"{"prompt_tokens":9,"completion_tokens":4,"search_context_size":"low"}"#)),
        (Dialect::OpenAi, CHAT.replace("{usage}", r#"{"prompt_tokens":9,"completion_tokens":4,"num_search_queries":2}"#)),
        (Dialect::OpenAi, CHAT.replace("{usage}", r#"{"prompt_tokens":9,"completion_tokens":4,"num_sources_used":2}"#)),
        (Dialect::Anthropic, MESSAGE.replace("{usage}", r#"{"input_tokens":9,"output_tokens":4,"server_tool_use":{"web_search_requests":1}}"#)),
        (Dialect::Gemini, CANDIDATES.replace("{usage}", r#"{"promptTokenCount":9,"candidatesTokenCount":4,"promptTokensDetails":[{"modality":"AUDIO","tokenCount":5}]}"#)),
        (Dialect::Gemini, CANDIDATES.replace("{usage}", r#"{"promptTokenCount":9,"candidatesTokenCount":4,"candidatesTokensDetails":[{"modality":"IMAGE","tokenCount":4}]}"#)),
    ] {
        let usage = dialect.usage_of_body(body.as_bytes()).unwrap().usage;
        assert_eq!((usage.input, usage.output, price().cost(&usage)), (9, 4, None), "{body}");
    }
    let told = CHAT.replace(
        "{usage}",
        r#"{"prompt_tokens":9,"completion_tokens":4,"num_search_queries":2,"cost":{"total_cost":1e300}}"#,
    );
    let usage = Dialect::OpenAi.usage_of_body(told.as_bytes()).unwrap().usage;
    assert_eq!(price().cost(&usage), None, "an amount that nobody means");
}

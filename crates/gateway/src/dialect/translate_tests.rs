//! Streams as they come off the wire, cut anywhere: the same answer and the same cost as the whole one.

use super::*;
use crate::price::{Price, Rates};
use crate::provider::{Providers, Wishes};
use crate::sse::{self, Framer};
use base::NanoUsd;
use bytes::Bytes;
use proptest::prelude::*;
use protocol::{Answer, GenerateRequest};
use std::collections::BTreeMap;

/// One answer in each dialect: streamed, and whole.
const ANSWERS: [(Dialect, &str, &str); 2] = [
    (
        Dialect::OpenAi,
        concat!(
            "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n",
            ": keep-alive\n\n",
            "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"想\"}}]}\n\n",
            "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\"語🦀\"}}]}\n\n",
            "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"content\":\" é\"}}]}\n\n",
            "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":\"}}]}}]}\n\n",
            "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"\\\"ü\\\"}\"}}]}}]}\n\n",
            "data: {\"id\":\"c\",\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"tool_calls\"}]}\n\n",
            "data: {\"id\":\"c\",\"choices\":[],\"usage\":{\"prompt_tokens\":1003,\"completion_tokens\":77,\"prompt_tokens_details\":{\"cached_tokens\":601}}}\n\n",
            "data: [DONE]\n\n",
        ),
        r#"{"id":"c","choices":[{"index":0,"message":{"role":"assistant","content":"語🦀 é","reasoning_content":"想","tool_calls":[{"id":"call_1","type":"function","function":{"name":"f","arguments":"{\"a\":\"ü\"}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1003,"completion_tokens":77,"prompt_tokens_details":{"cached_tokens":601}}}"#,
    ),
    (
        Dialect::Anthropic,
        concat!(
            "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"id\":\"m\",\"usage\":{\"input_tokens\":302,\"cache_read_input_tokens\":601,\"cache_creation_input_tokens\":100,\"output_tokens\":1}}}\n\n",
            "event: ping\ndata: {\"type\":\"ping\"}\n\n",
            "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"thinking\",\"thinking\":\"\",\"signature\":\"\"}}\n\n",
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"thinking_delta\",\"thinking\":\"想\"}}\n\n",
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"signature_delta\",\"signature\":\"sig\"}}\n\n",
            "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":0}\n\n",
            "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":1,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n",
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":1,\"delta\":{\"type\":\"text_delta\",\"text\":\"語🦀 é\"}}\n\n",
            "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":1}\n\n",
            "event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":2,\"content_block\":{\"type\":\"tool_use\",\"id\":\"toolu_1\",\"name\":\"f\",\"input\":{}}}\n\n",
            "event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":2,\"delta\":{\"type\":\"input_json_delta\",\"partial_json\":\"{\\\"a\\\":\\\"ü\\\"}\"}}\n\n",
            "event: content_block_stop\ndata: {\"type\":\"content_block_stop\",\"index\":2}\n\n",
            "event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"tool_use\",\"stop_sequence\":null},\"usage\":{\"output_tokens\":77}}\n\n",
            "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        ),
        r#"{"type":"message","id":"m","content":[{"type":"thinking","thinking":"想","signature":"sig"},{"type":"text","text":"語🦀 é"},{"type":"tool_use","id":"toolu_1","name":"f","input":{"a":"ü"}}],"stop_reason":"tool_use","stop_sequence":null,"usage":{"input_tokens":302,"cache_read_input_tokens":601,"cache_creation_input_tokens":100,"output_tokens":77}}"#,
    ),
];

/// The answer of a stream that comes in these pieces, and the usage that a gateway reads beside.
fn streamed<'a>(dialect: Dialect, pieces: impl Iterator<Item = &'a [u8]>) -> (Answer, Option<Usage>) {
    let request = GenerateRequest { choices: 1, ..GenerateRequest::default() };
    let (mut reader, mut watcher) = (dialect.reader(&request), Watcher::new(dialect));
    let (mut framer, mut answer) = (Framer::default(), Answer::new(1));
    for piece in pieces {
        for frame in framer.push(Bytes::copy_from_slice(piece)).unwrap().iter() {
            watcher.frame(&frame);
            let Some(data) = sse::data(&frame) else { continue };
            let name = sse::name(&frame).map(|name| std::str::from_utf8(name).unwrap());
            let deltas = reader.event(name, std::str::from_utf8(&data).unwrap()).unwrap();
            deltas.into_iter().for_each(|delta| answer.push(delta));
        }
    }
    reader.end().unwrap().into_iter().for_each(|delta| answer.push(delta));
    (answer, watcher.reported().map(|reported| reported.usage))
}

fn whole(dialect: Dialect, body: &str) -> (Answer, Option<Usage>) {
    let request = GenerateRequest { choices: 1, ..GenerateRequest::default() };
    let mut answer = Answer::new(1);
    let deltas = dialect.reader(&request).whole(body.as_bytes()).unwrap();
    deltas.into_iter().for_each(|delta| answer.push(delta));
    (answer, dialect.usage_of_body(body.as_bytes()).map(|reported| reported.usage))
}

#[test]
fn a_stream_and_a_whole_answer_say_and_cost_the_same() {
    let rates = Rates {
        input: Some(NanoUsd(1_237_000_001)),
        cached_input: Some(NanoUsd(123_700_003)),
        cache_write: Some(NanoUsd(1_546_250_007)),
        output: Some(NanoUsd(9_999_999_999)),
        ..Rates::default()
    };
    let price = Price { rates, ..Price::default() };
    for (dialect, stream, body) in ANSWERS {
        let (streamed, whole) = (streamed(dialect, std::iter::once(stream.as_bytes())), whole(dialect, body));
        assert_eq!(streamed, whole, "{dialect:?}");
        let cost = |usage: &Option<Usage>| price.cost(usage.as_ref().unwrap()).unwrap().cost;
        assert_eq!(cost(&streamed.1), cost(&whole.1));
        // What the client is told adds up to what is charged for.
        let told = Usage::from(streamed.0.usage.unwrap());
        let reported = whole.1.unwrap();
        assert_eq!(
            (told.input, told.cached_input, told.output),
            (reported.input, reported.cached_input, reported.output)
        );
    }
}

/// Row 23 of the public faults, for what is translated.
#[test]
fn a_stream_that_is_cut_at_any_byte_is_the_same_answer() {
    for (dialect, stream, body) in ANSWERS {
        let expected = whole(dialect, body);
        for cut in 0..=stream.len() {
            let (left, right) = stream.as_bytes().split_at(cut);
            assert_eq!(streamed(dialect, [left, right].into_iter()), expected, "{dialect:?} cut at {cut}");
        }
    }
}

proptest! {
    #[test]
    fn any_cuts_give_the_same_answer(
        which in 0..ANSWERS.len(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let (dialect, stream, body) = ANSWERS[which];
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(stream.len() + 1)).collect();
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        let pieces = cuts.windows(2).map(|pair| &stream.as_bytes()[pair[0]..pair[1]]);
        prop_assert_eq!(streamed(dialect, pieces), whole(dialect, body));
    }
}

#[test]
fn each_provider_is_asked_where_it_answers_and_for_usage_where_it_must_be() {
    let providers = Providers::new(BTreeMap::from([(
        "custom-a".to_owned(),
        Wishes {
            base_url: Some("http://127.0.0.1:1/v1".to_owned()),
            dialect: Some(Dialect::Anthropic),
            ..Wishes::default()
        },
    )]))
    .unwrap();
    let request = GenerateRequest { stream: true, choices: 1, ..GenerateRequest::default() };
    for (slug, path, usage) in [
        ("openai", "chat/completions", true),
        ("mistral", "chat/completions", false),
        ("custom-a", "messages", false),
    ] {
        let provider = providers.get(slug).unwrap();
        let dialect = provider.dialect_of("m");
        let way = provider.way(dialect, dialect.task(), "m", true).unwrap();
        assert_eq!(way.path, path, "{slug}");
        let body = dialect.write(provider, &way.model, &request).unwrap();
        let body: serde_json::Value = serde_json::from_slice(&body).unwrap();
        assert_eq!(body["stream_options"]["include_usage"] == true, usage, "{slug}");
        assert_eq!(body["model"], "m");
    }
}

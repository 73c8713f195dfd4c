//! Calls to Bedrock: its streams pass byte for byte, tell usage, and are read as deltas.

use super::signed::one;
use super::*;
use crate::eventstream::{decode, encode};
use protocol::{Answer, GenerateRequest, Input, Message, Role};

fn stream() -> Vec<u8> {
    let event = |name: &str, payload: &str| {
        encode(&[(":event-type", name), (":message-type", "event")], payload.as_bytes())
    };
    [
        event("messageStart", r#"{"role":"assistant"}"#),
        event("contentBlockDelta", r#"{"contentBlockIndex":0,"delta":{"text":"語🦀"}}"#),
        event("contentBlockStop", r#"{"contentBlockIndex":0}"#),
        event("messageStop", r#"{"stopReason":"end_turn"}"#),
        event("metadata", r#"{"usage":{"inputTokens":6,"outputTokens":5,"cacheReadInputTokens":4}}"#),
    ]
    .concat()
}

/// A stream in two pieces, cut anywhere.
fn script(bytes: &[u8], cut: usize) -> Vec<Step> {
    let head = b"HTTP/1.1 200 OK\r\ncontent-type: application/vnd.amazon.eventstream\r\ntransfer-encoding: chunked\r\n\r\n";
    let pieces =
        [&bytes[..cut], &bytes[cut..]].map(|piece| if piece.is_empty() { Vec::new() } else { chunk(piece) });
    vec![Step::Say([head.to_vec(), pieces.concat(), chunk(b"")].concat())]
}

const PATH: &str = "model/amazon.nova-pro-v1:0/converse-stream";

#[tokio::test]
async fn a_stream_passes_byte_for_byte_and_its_usage_is_entered() {
    let bytes = stream();
    let one = one("aws-bedrock", "AK:SK", vec![script(&bytes, 30)]).await;
    let response = one.ask(PATH, "{}").await.unwrap();
    let AnswerBody::Stream(body) = response.into_body() else { panic!() };
    let passed: Vec<Bytes> = body.map(|piece| piece.unwrap()).collect().await;
    assert_eq!(passed.concat(), bytes);
    let line = one.line().await;
    assert_eq!((line.requests, line.input, line.cached_input, line.output), (1, 10, 4, 5));
}

#[tokio::test]
async fn a_stream_that_was_changed_on_the_way_ends_with_an_exception() {
    let mut bytes = stream();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    let one = one("aws-bedrock", "AK:SK", vec![script(&bytes, 100)]).await;
    let response = one.ask(PATH, "{}").await.unwrap();
    let AnswerBody::Stream(body) = response.into_body() else { panic!() };
    let passed: Vec<Bytes> = body.map(|piece| piece.unwrap()).collect().await;
    let message = decode(passed.last().unwrap()).unwrap();
    assert!(message.is_error && message.name == "modelStreamErrorException");
    assert_eq!(one.line().await.failed, 1);
}

#[tokio::test]
async fn a_translated_stream_is_the_same_wherever_it_is_cut() {
    let bytes = stream();
    let cuts: Vec<usize> = (0..bytes.len()).step_by(37).collect();
    let one = one("aws-bedrock", "AK:SK", cuts.iter().map(|cut| script(&bytes, *cut)).collect()).await;
    for cut in cuts {
        let request = GenerateRequest {
            model: "x".to_owned(),
            input: Input::Chat(vec![Message::text(Role::User, "a")]),
            choices: 1,
            stream: true,
            ..GenerateRequest::default()
        };
        let generated = one.generate("amazon.nova-pro-v1:0", request).await.unwrap();
        let mut answer = Answer::new(1);
        generated
            .deltas
            .map(|delta| delta.unwrap())
            .collect::<Vec<_>>()
            .await
            .into_iter()
            .for_each(|delta| answer.push(delta));
        assert_eq!(answer.choices[0].text, "語🦀", "cut at {cut}");
        assert_eq!(answer.usage.map(|usage| (usage.prompt_tokens, usage.completion_tokens)), Some((10, 5)));
    }
    let head = one.fake.requests.lock().unwrap()[0].head.clone();
    assert!(head.starts_with("post /model/amazon.nova-pro-v1%3a0/converse-stream "), "{head}");
}

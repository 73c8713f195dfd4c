//! Calls to Gemini: what it tells of usage, and streams that nothing ends but their end.

use super::signed::one;
use super::*;

const TEXT: &str = "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"語🦀\"}],\"role\":\"model\"},\"index\":0}],\"usageMetadata\":{\"promptTokenCount\":10,\"totalTokenCount\":10}}\r\n\r\n";
const LAST: &str = "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\".\"}],\"role\":\"model\"},\"finishReason\":\"STOP\",\"index\":0}],\"usageMetadata\":{\"promptTokenCount\":10,\"cachedContentTokenCount\":4,\"candidatesTokenCount\":3,\"thoughtsTokenCount\":2,\"totalTokenCount\":15}}\r\n\r\n";
const WHOLE: &str = r#"{"candidates":[{"content":{"parts":[{"text":"語🦀."}]},"finishReason":"STOP"}],"usageMetadata":{"promptTokenCount":10,"cachedContentTokenCount":4,"candidatesTokenCount":3,"thoughtsTokenCount":2,"totalTokenCount":15}}"#;

fn asking(world: &World, verb: &str) -> Call {
    let mut call = world.call();
    for target in &mut call.targets {
        target.dialect = Dialect::Gemini;
        target.url = target.provider.url(&format!("v1beta/models/g:{verb}"), None).unwrap();
    }
    call
}

#[tokio::test]
async fn a_stream_and_a_whole_answer_tell_the_same_usage_and_pass_untouched() {
    let stream = [TEXT, LAST].concat();
    let world = world(vec![vec![json(WHOLE), events(&stream)]]).await;
    assert_eq!(world.whole(asking(&world, "generateContent")).await, (200, WHOLE.to_owned()));
    assert_eq!(world.whole(asking(&world, "streamGenerateContent")).await, (200, stream));
    let line = world.line().await;
    assert_eq!((line.requests, line.input, line.cached_input, line.output), (2, 20, 8, 10));
    assert_eq!(world.ends().await, [2, 0, 0, 0]);
}

#[tokio::test]
async fn what_may_be_the_last_event_waits_until_its_entry_is_settled() {
    let go = Arc::new(Notify::new());
    let script = vec![
        Step::Say([stream_head(), chunk(TEXT.as_bytes())].concat()),
        Step::Say(chunk(LAST.as_bytes())),
        Step::Wait(Arc::clone(&go)),
        Step::Say(chunk(b"")),
    ];
    let world = world(vec![vec![script]]).await;
    let response = world.make(asking(&world, "streamGenerateContent")).await.unwrap();
    let AnswerBody::Stream(mut body) = response.into_body() else { panic!() };
    assert_eq!(body.next().await.unwrap().unwrap(), TEXT.as_bytes());
    go.notify_one();
    assert_eq!(body.next().await.unwrap().unwrap(), LAST.as_bytes());
    assert_eq!(world.ends().await, [1, 0, 0, 0]);
    assert_eq!(world.line().await.output, 5);
}

#[tokio::test]
async fn a_stream_that_breaks_off_ends_in_words_of_its_dialect() {
    // What was held back comes before the error.
    for said in [TEXT.to_owned(), [TEXT, LAST].concat()] {
        let script = vec![Step::Say([stream_head(), chunk(said.as_bytes())].concat()), Step::Reset];
        let world = world(vec![vec![script]]).await;
        let (_, text) = world.whole(asking(&world, "streamGenerateContent")).await;
        let last = text.strip_prefix(said.as_str()).unwrap();
        assert!(
            last.starts_with("data: {\"error\":{\"code\":502,") && last.contains("UNAVAILABLE"),
            "{last}"
        );
    }
}

#[tokio::test]
async fn counting_tokens_is_entered_nowhere() {
    let one = one("google-ai-studio", "k", vec![json(r#"{"totalTokens":3}"#)]).await;
    let response = one.ask("v1beta/models/g:countTokens", "{}").await.unwrap();
    assert_eq!(response.headers().get("cf-aig-log-id"), None);
    assert_eq!(one.fake.requests.lock().unwrap()[0].header("x-goog-api-key"), Some("k"));
}

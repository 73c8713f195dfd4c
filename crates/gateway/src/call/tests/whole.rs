//! Answers in the client's own dialect that are not whole, or none at all, are told from those that are.

use super::*;

const FINISH: &str = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";

impl World {
    /// A call of providers that speak this, at this path.
    fn at(&self, dialect: Dialect, path: &str) -> Call {
        let mut call = self.call();
        for target in &mut call.targets {
            target.dialect = dialect;
            target.url = target.provider.url(path, None).unwrap();
        }
        call.policy.attempts = 1;
        call
    }
}

fn amazon(name: &str, payload: &str) -> Vec<u8> {
    crate::eventstream::encode(&[(":event-type", name), (":message-type", "event")], payload.as_bytes())
        .to_vec()
}

/// The beginning of a stream of each dialect, what it needs to be whole, and what its error looks like.
const STREAMS: &[(Dialect, &str, &str, &str, &str)] = &[
    (
        Dialect::OpenAi,
        "chat/completions",
        TEXT,
        DONE,
        "data: {\"error\":{\"message\":\"custom-0: its stream ended",
    ),
    (
        Dialect::OpenAi,
        "completions",
        TEXT,
        FINISH,
        "data: {\"error\":{\"message\":\"custom-0: its stream ended",
    ),
    (
        Dialect::OpenAi,
        "responses",
        "event: response.created\ndata: {\"type\":\"response.created\",\"response\":{\"id\":\"resp_7\"}}\n\n",
        "data: {\"type\":\"response.completed\",\"response\":{\"id\":\"resp_7\"}}\n\n",
        "event: response.failed\ndata: {\"type\":\"response.failed\",",
    ),
    (
        Dialect::Anthropic,
        "messages",
        "event: message_start\ndata: {\"type\":\"message_start\"}\n\n",
        "event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
        "event: error\ndata: {\"type\":\"error\",\"error\":{\"type\":\"api_error\"",
    ),
    (
        Dialect::Gemini,
        "models/g:streamGenerateContent",
        "data: {\"candidates\":[{\"content\":{\"parts\":[{\"text\":\"a\"}]}}]}\r\n\r\n",
        "data: {\"candidates\":[{\"finishReason\":\"STOP\"}]}\r\n\r\n",
        "data: {\"error\":{\"code\":502",
    ),
];

#[tokio::test]
async fn a_stream_that_ends_too_early_ends_with_an_error_of_its_dialect_and_fails() {
    for (dialect, path, begin, end, error) in STREAMS {
        let world = world(vec![vec![events(begin), events(&format!("{begin}{end}"))]]).await;
        let (status, body) = world.whole(world.at(*dialect, path)).await;
        assert_eq!(status, 200);
        assert!(body.starts_with(begin) && body.contains(error), "{path}: {body}");
        assert_eq!(world.ends().await, [0, 1, 0, 0], "{path}");
        assert_eq!(world.whole(world.at(*dialect, path)).await, (200, format!("{begin}{end}")), "{path}");
        assert_eq!(world.ends().await, [1, 1, 0, 0], "{path}");
    }
}

#[tokio::test]
async fn a_stream_of_amazons_that_ends_too_early_ends_with_its_exception_and_fails() {
    let begin = amazon("messageStart", "{\"role\":\"assistant\"}");
    let whole = [begin.clone(), amazon("messageStop", "{\"stopReason\":\"end_turn\"}")].concat();
    let say = |bytes: &[u8]| {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: application/vnd.amazon.eventstream\r\ntransfer-encoding: chunked\r\n\r\n";
        vec![Step::Say([head.as_bytes(), &chunk(bytes), &chunk(b"")].concat())]
    };
    let world = world(vec![vec![say(&begin), say(&whole)]]).await;
    for (ends, failed) in [([0, 1, 0, 0], true), ([1, 1, 0, 0], false)] {
        let response = world.make(world.at(Dialect::Bedrock, "model/m/converse-stream")).await.unwrap();
        let AnswerBody::Stream(pieces) = response.into_body() else { panic!("a stream was asked for") };
        let bytes: Vec<u8> = pieces.map(|piece| piece.unwrap().to_vec()).concat().await;
        assert_eq!(memchr::memmem::find(&bytes, b"modelStreamErrorException").is_some(), failed);
        assert_eq!(world.ends().await, ends);
    }
}

/// What broke off tells the response that it was, so that clients find it again.
#[tokio::test]
async fn a_response_that_broke_off_ends_as_failed_under_its_own_id() {
    let (_, path, begin, ..) = STREAMS[2];
    let cut = vec![Step::Say([stream_head(), chunk(begin.as_bytes())].concat()), Step::Reset];
    let world = world(vec![vec![cut]]).await;
    let (_, body) = world.whole(world.at(Dialect::OpenAi, path)).await;
    let last = body.trim_end().rsplit("data: ").next().unwrap();
    let last: serde_json::Value = serde_json::from_str(last).unwrap();
    assert_eq!((&last["type"], &last["sequence_number"]), (&"response.failed".into(), &2.into()));
    assert_eq!((&last["response"]["id"], &last["response"]["status"]), (&"resp_7".into(), &"failed".into()));
}

#[tokio::test]
async fn servers_that_say_no_done_and_end_without_a_blank_line_are_whole() {
    let bare = "data: [DONE]";
    for stream in [format!("{TEXT}{FINISH}"), format!("{TEXT}{FINISH}{USAGE}"), format!("{TEXT}{bare}")] {
        let world = world(vec![vec![events(&stream)]]).await;
        assert_eq!(world.whole(world.call()).await, (200, stream));
        assert_eq!(world.ends().await, [1, 0, 0, 0]);
    }
}

#[tokio::test]
async fn a_stream_that_turns_into_rubbish_is_broken_off_there_or_asked_for_again() {
    let rubbish = format!("data: <html>502 Bad Gateway</html>\n\n{FINISH}{DONE}");
    let go = Arc::new(Notify::new());
    let late = vec![
        Step::Say([stream_head(), chunk(TEXT.as_bytes())].concat()),
        Step::Wait(Arc::clone(&go)),
        Step::Say([chunk(rubbish.as_bytes()), chunk(b"")].concat()),
    ];
    let world = world(vec![vec![late, events(&format!("{TEXT}{rubbish}")), json(WHOLE)]]).await;
    let AnswerBody::Stream(mut pieces) = world.make(world.call()).await.unwrap().into_body() else {
        panic!("a stream was asked for")
    };
    assert_eq!(pieces.next().await.unwrap().unwrap(), TEXT);
    go.notify_one();
    let rest: Vec<u8> = pieces.map(|piece| piece.unwrap().to_vec()).concat().await;
    let rest = String::from_utf8(rest).unwrap();
    assert!(!rest.contains("<html>") && rest.contains("is no JSON") && !rest.contains("[DONE]"), "{rest}");
    assert_eq!(world.ends().await, [0, 1, 0, 0]);
    // Before the first byte another attempt may fare better.
    assert_eq!(world.whole(world.call()).await, (200, WHOLE.to_owned()));
}

#[tokio::test]
async fn a_cut_event_does_not_run_into_the_error_behind_it() {
    let world = world(vec![vec![events(&format!("{TEXT}data: {{\"choices\":[{{\"del"))]]).await;
    let (_, body) = world.whole(world.call()).await;
    assert!(body.starts_with(&format!("{TEXT}data: {{\"error\"")), "{body}");
}

fn page(kind: &str, body: &[u8]) -> Vec<Step> {
    vec![Step::Say(answer(200, &[("content-type", kind)], body))]
}

#[tokio::test]
async fn what_is_no_answer_of_the_dialect_is_asked_for_elsewhere_and_else_a_bad_gateway() {
    for bad in [
        || page("text/html", b"<html>\x00\x01"),
        || json("{}"),
        || json(""),
        || json("{\"choices\":[{\"mess"),
        || json("[1,2]"),
        || page("application/octet-stream", b"\xff\xfe"),
    ] {
        let two = world(vec![vec![bad()], vec![json(WHOLE)]]).await;
        let call = two.at(Dialect::OpenAi, "chat/completions");
        assert_eq!(two.whole(call).await, (200, WHOLE.to_owned()));
        assert_eq!(two.ends().await, [1, 1, 0, 0]);
        let one = world(vec![vec![bad()]]).await;
        let error = one.make(one.at(Dialect::OpenAi, "chat/completions")).await.err().unwrap();
        assert_eq!((error.kind, error.status), (ErrorKind::Upstream, Some(502)), "{error}");
    }
}

#[tokio::test]
async fn an_answer_that_is_called_something_else_is_read_all_the_same() {
    let stream = format!("{TEXT}{FINISH}");
    let world =
        world(vec![vec![page("text/plain", WHOLE.as_bytes()), page("text/plain", stream.as_bytes())]]).await;
    assert_eq!(world.whole(world.call()).await, (200, WHOLE.to_owned()));
    assert_eq!(world.line().await.input, 10);
    assert_eq!(world.whole(world.call()).await, (200, stream));
}

#[tokio::test]
async fn of_paths_that_are_not_known_nothing_is_asked() {
    for (kind, body) in [("text/html", "<html>"), ("application/json", "{}"), ("text/event-stream", TEXT)] {
        let world = world(vec![vec![page(kind, body.as_bytes())]]).await;
        assert_eq!(world.whole(world.at(Dialect::OpenAi, "audio/speech")).await, (200, body.to_owned()));
        assert_eq!(world.ends().await, [1, 0, 0, 0]);
    }
}

#[tokio::test]
async fn streams_that_end_too_early_open_the_breaker() {
    let world = world(vec![(0..5).map(|_| events(TEXT)).collect()]).await;
    for _ in 0..5 {
        world.whole(world.call()).await;
    }
    assert_eq!(world.make(world.call()).await.err().unwrap().kind, ErrorKind::Unavailable);
}

/// Whoever follows it would show its key elsewhere, and ask past the ledger.
#[tokio::test]
async fn an_answer_that_leads_elsewhere_is_a_bad_gateway() {
    let leads = vec![Step::Say(answer(302, &[("location", "https://example.com/")], b""))];
    let world = world(vec![vec![leads]]).await;
    let error = world.make(world.at(Dialect::OpenAi, "chat/completions")).await.err().unwrap();
    assert_eq!((error.kind, error.status), (ErrorKind::Upstream, Some(502)));
    assert!(error.message.contains("302"), "{error}");
}

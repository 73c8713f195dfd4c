//! Calls over loopback, before an upstream that refuses, hangs, breaks off and lies, with a real ledger behind.

mod bedrock;
mod ends;
mod fake;
mod gemini;
mod signed;
mod whole;

use super::*;
use crate::ledger::{Line, Question};
use crate::price::CustomCost;
use crate::provider::{Timeouts, Wishes};
use crate::scan::{Edits, Field, scan};
use crate::tests::{Hand, gateway};
use fake::{Fake, Step, answer, chunk, events, json, stream_head};
use futures::FutureExt;
use proptest::prelude::*;
use std::future::poll_fn;
use std::task::Poll;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::Notify;

const DONE: &str = "data: [DONE]\n\n";
const TEXT: &str = "data: {\"choices\":[{\"delta\":{\"content\":\"語🦀\"}}]}\n\n";
const USAGE: &str = "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":5,\"prompt_tokens_details\":{\"cached_tokens\":4}}}\n\n";
const WHOLE: &str = r#"{"choices":[{}],"usage":{"prompt_tokens":10,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":4}}}"#;

struct World {
    _folder: TempDir,
    clock: Arc<Hand>,
    ledger: Gateway,
    proxy: Proxy,
    fakes: Vec<Fake>,
}

/// Providers `custom-0`, `custom-1`, …, each with an upstream that follows its scripts.
async fn world(scripts: Vec<Vec<Vec<Step>>>) -> World {
    let folder = tempfile::tempdir().unwrap();
    let clock = Hand::new();
    let ledger = gateway(folder.path(), &clock).await;
    ledger.ledger().start(&folder.path().join("processes")).await.unwrap();
    let (mut fakes, mut wishes) = (Vec::new(), std::collections::BTreeMap::new());
    for (number, scripts) in scripts.into_iter().enumerate() {
        let fake = Fake::new(scripts).await;
        let timeouts = Timeouts { idle: Duration::from_millis(200), ..Timeouts::default() };
        let base_url = Some(format!("http://{}/v1", fake.address));
        wishes.insert(format!("custom-{number}"), Wishes { base_url, timeouts, ..Wishes::default() });
        fakes.push(fake);
    }
    let upstream = Upstream::new().unwrap();
    let proxy = Proxy::new(Providers::new(wishes).unwrap(), upstream, Arc::clone(&clock) as Arc<dyn Clock>);
    World { _folder: folder, clock, ledger, proxy, fakes }
}

impl World {
    fn target(&self, number: usize, strip_usage: bool) -> Target {
        let provider = Arc::clone(self.proxy.providers().get(&format!("custom-{number}")).unwrap());
        let url = provider.url("chat/completions", None).unwrap();
        let body = Pieces::from(Bytes::from_static(b"{\"model\":\"m\"}"));
        Target {
            provider,
            dialect: Dialect::OpenAi,
            model: "m".to_owned(),
            url,
            body,
            strip_usage,
            most: None,
        }
    }

    fn call(&self) -> Call {
        Call {
            caller: Caller::default(),
            method: Method::POST,
            headers: HeaderMap::new(),
            key_of: KeyOf::Settings,
            targets: (0..self.fakes.len()).map(|number| self.target(number, false)).collect(),
            policy: Policy { delay: Duration::ZERO, ..Policy::default() },
        }
    }

    async fn make(&self, call: Call) -> Result<Response<AnswerBody>, Error> {
        self.proxy.call(Some(&self.ledger), call).await
    }

    /// Makes the call; its status and all of its body.
    async fn whole(&self, call: Call) -> (u16, String) {
        let response = self.make(call).await.unwrap();
        let status = response.status().as_u16();
        let body = match response.into_body() {
            AnswerBody::Whole(body) => body.to_vec(),
            AnswerBody::Stream(pieces) => pieces.map(|piece| piece.unwrap().to_vec()).concat().await,
        };
        (status, String::from_utf8(body).unwrap())
    }

    async fn line(&self) -> Line {
        while self.ledger.ledger().waiting() > 0 {
            tokio::task::yield_now().await;
        }
        self.ledger.usage(Question::default()).await.unwrap().remove(0)
    }

    /// Entries: settled, failed, interrupted, open.
    async fn ends(&self) -> [u64; 4] {
        let line = self.line().await;
        let ended = line.failed + line.interrupted + line.open;
        [line.requests - ended, line.failed, line.interrupted, line.open]
    }
}

/// Each write costs more than all else that is done to an event.
#[tokio::test]
async fn events_that_arrived_together_leave_together() {
    let mut bytes = stream_head();
    (0..40).for_each(|_| bytes.extend(chunk(TEXT.as_bytes())));
    bytes.extend([chunk(DONE.as_bytes()), chunk(b"")].concat());
    let world = world(vec![vec![vec![Step::Say(bytes)]]]).await;
    let response = world.make(world.call()).await.unwrap();
    let AnswerBody::Stream(pieces) = response.into_body() else { panic!("a stream was asked for") };
    // Asked again and again, as a server does that has nothing else to do.
    let mut pieces = pieces.ready_chunks(100);
    let mut groups = Vec::new();
    loop {
        let mut next = pieces.next();
        let twice = poll_fn(|context| match next.poll_unpin(context) {
            Poll::Pending => next.poll_unpin(context),
            ready @ Poll::Ready(_) => ready,
        });
        let Some(group) = twice.await else { break };
        groups.push(group.len());
    }
    assert!(groups.len() < 10, "{groups:?}");
}

#[tokio::test]
async fn an_answer_comes_back_untouched_and_settled_streamed_or_not() {
    let stream = format!("{TEXT}{USAGE}{DONE}");
    let world = world(vec![vec![json(WHOLE), events(&stream)]]).await;
    assert_eq!(world.whole(world.call()).await, (200, WHOLE.to_owned()));
    assert_eq!(world.whole(world.call()).await, (200, stream));
    let line = world.line().await;
    assert_eq!((line.requests, line.input, line.cached_input, line.output), (2, 20, 8, 10));
    assert_eq!(world.ends().await, [2, 0, 0, 0]);
    // One connection served both.
    let requests = world.fakes[0].requests.lock().unwrap();
    assert!(requests[0].head.starts_with("post /v1/chat/completions http/1.1"));
    assert_eq!(requests[0].header("content-length"), Some("13"));
    assert_eq!(requests[0].body, b"{\"model\":\"m\"}");
}

#[tokio::test]
async fn usage_that_nobody_asked_for_is_taken_out_and_nothing_else() {
    let world = world(vec![vec![events(&format!("{TEXT}{USAGE}{DONE}"))]]).await;
    let call = Call { targets: vec![world.target(0, true)], ..world.call() };
    assert_eq!(world.whole(call).await, (200, format!("{TEXT}{DONE}")));
    assert_eq!(world.line().await.input, 10);
}

/// Row 12 of the public faults: pieces were held back and came in a burst.
#[tokio::test]
async fn each_event_goes_on_before_the_next_one_is_made() {
    let go = Arc::new(Notify::new());
    let script = vec![
        Step::Say([stream_head(), chunk(TEXT.as_bytes())].concat()),
        Step::Wait(Arc::clone(&go)),
        Step::Say([chunk(USAGE.as_bytes()), chunk(DONE.as_bytes()), chunk(b"")].concat()),
    ];
    let world = world(vec![vec![script]]).await;
    let AnswerBody::Stream(mut pieces) = world.make(world.call()).await.unwrap().into_body() else {
        panic!()
    };
    assert_eq!(pieces.next().await.unwrap().unwrap(), TEXT);
    go.notify_one();
    let rest: Vec<u8> = pieces.map(|piece| piece.unwrap().to_vec()).concat().await;
    assert_eq!(rest, format!("{USAGE}{DONE}").as_bytes());
}

#[tokio::test]
async fn the_entry_is_settled_before_the_last_event_goes_out() {
    let world = world(vec![vec![events(&format!("{TEXT}{USAGE}{DONE}"))]]).await;
    let AnswerBody::Stream(mut pieces) = world.make(world.call()).await.unwrap().into_body() else {
        panic!()
    };
    assert_eq!(pieces.next().await.unwrap().unwrap(), format!("{TEXT}{USAGE}"));
    assert_eq!(world.ends().await, [0, 0, 0, 1]);
    assert_eq!(pieces.next().await.unwrap().unwrap(), DONE);
    assert_eq!(world.ends().await, [1, 0, 0, 0]);
}

/// Row 16: the upstream went on generating for a client that had left.
#[tokio::test]
async fn a_client_that_leaves_closes_the_upstream_and_keeps_the_usage_seen() {
    let (closed, early) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let seen = "data: {\"choices\":[{}],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":1}}\n\n";
    let script =
        vec![Step::Say([stream_head(), chunk(seen.as_bytes())].concat()), Step::Hang(Arc::clone(&closed))];
    let world = world(vec![vec![script, vec![Step::Hang(Arc::clone(&early))]]]).await;
    let AnswerBody::Stream(mut pieces) = world.make(world.call()).await.unwrap().into_body() else {
        panic!()
    };
    pieces.next().await.unwrap().unwrap();
    drop(pieces);
    closed.notified().await;
    assert_eq!(world.ends().await, [0, 0, 1, 0]);
    assert_eq!(world.line().await.input, 10);
    // The same before the answer has begun.
    world.fakes[0].came.notified().await;
    tokio::select! {
        _ = world.make(world.call()) => panic!("the upstream says nothing"),
        () = world.fakes[0].came.notified() => {}
    }
    early.notified().await;
    assert_eq!(world.ends().await, [0, 0, 2, 0]);
}

/// Anthropic's first event tells one token of an answer that is still to come.
#[tokio::test]
async fn who_leaves_an_answer_whose_usage_was_told_at_its_start_pays_for_each_piece() {
    let closed = Arc::new(Notify::new());
    let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":10,"output_tokens":1}}}"#;
    let piece = r#"{"type":"content_block_delta","delta":{"type":"text_delta","text":"a"}}"#;
    let piece = format!("event: content_block_delta\ndata: {piece}\n\n");
    let seen = format!("event: message_start\ndata: {start}\n\n{}", piece.repeat(3));
    let script =
        vec![Step::Say([stream_head(), chunk(seen.as_bytes())].concat()), Step::Hang(Arc::clone(&closed))];
    let world = world(vec![vec![script]]).await;
    let mut call = world.call();
    call.targets[0].dialect = Dialect::Anthropic;
    let AnswerBody::Stream(mut pieces) = world.make(call).await.unwrap().into_body() else { panic!() };
    pieces.next().await.unwrap().unwrap();
    drop(pieces);
    closed.notified().await;
    assert_eq!(world.ends().await, [0, 0, 1, 0]);
    assert_eq!((world.line().await.input, world.line().await.output), (10, 3));
}

/// Row 25: a retry after the first bytes doubled the text.
#[tokio::test]
async fn after_the_first_event_nothing_is_sent_again_and_the_break_is_told() {
    let script = vec![Step::Say([stream_head(), chunk(TEXT.as_bytes())].concat()), Step::Reset];
    let world = world(vec![vec![script, json(WHOLE)]]).await;
    let (status, body) = world.whole(world.call()).await;
    assert_eq!((status, world.fakes[0].count()), (200, 1));
    let error = body.strip_prefix(TEXT).unwrap();
    assert!(
        error.starts_with(
            "data: {\"error\":{\"message\":\"custom-0: its stream broke off: the connection was closed\""
        ),
        "{error}"
    );
    assert!(!body.contains("[DONE]"));
    assert_eq!(world.ends().await, [0, 1, 0, 0]);
}

/// Row 26: a failed stream was billed by the length of its text.
#[tokio::test]
async fn a_stream_that_failed_without_usage_costs_nothing_and_is_no_guess() {
    let long = TEXT.repeat(500);
    let script = vec![Step::Say([stream_head(), chunk(long.as_bytes())].concat()), Step::Reset];
    let world = world(vec![vec![script]]).await;
    let rates = CustomCost::parse(r#"{"per_token_in":1,"per_token_out":1}"#).unwrap();
    let mut call = world.call();
    call.caller.custom_cost = Some(rates);
    world.whole(call).await;
    let line = world.line().await;
    assert_eq!((line.failed, line.cost.0, line.unpriced, line.output), (1, 0, 0, 0));
}

#[tokio::test]
async fn silence_beyond_the_limit_ends_a_stream_in_words() {
    let (closed, begun) = (Arc::new(Notify::new()), [stream_head(), chunk(TEXT.as_bytes())].concat());
    let world = world(vec![vec![vec![Step::Say(begun), Step::Hang(Arc::clone(&closed))]]]).await;
    let (_, body) = world.whole(world.call()).await;
    assert!(body.contains("upstream_timeout"), "{body}");
    closed.notified().await;
}

#[tokio::test]
async fn what_may_pass_is_tried_again_before_the_first_byte() {
    let error = "data: {\"error\":{\"message\":\"busy\",\"code\":503}}\n\n";
    let broken = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{\"ch";
    let failures: Vec<(&str, Vec<Step>)> = vec![
        ("reset", vec![Step::Reset]),
        ("garbage", vec![Step::Say(b"\x00\xffno HTTP\r\n\r\n".to_vec()), Step::Reset]),
        ("500", vec![Step::Say(answer(500, &[], b"no"))]),
        ("429", vec![Step::Say(answer(429, &[("retry-after-ms", "1")], b"no"))]),
        // Row 32: an error inside an answer of status 200.
        ("error in 200", json(r#"{"error":{"message":"no route to host","code":502}}"#)),
        ("no JSON in 200", json("<html>gateway</html>")),
        ("half an answer", vec![Step::Say(broken.to_vec()), Step::Reset]),
        ("an empty stream", events("")),
        ("an error first", events(error)),
        ("a stream that breaks off", vec![Step::Say(stream_head()), Step::Reset]),
    ];
    for (what, failure) in failures {
        let world = world(vec![vec![failure, json(WHOLE)]]).await;
        assert_eq!(world.whole(world.call()).await, (200, WHOLE.to_owned()), "{what}");
        assert_eq!(world.fakes[0].count(), 2, "{what}");
        assert_eq!(world.ends().await, [1, 0, 0, 0], "{what}");
    }
}

#[tokio::test]
async fn a_clients_fault_comes_back_as_it_was_said_and_is_not_tried_again() {
    let said = vec![Step::Say(answer(400, &[("x-request-id", "r"), ("x-why", "w")], b"{\"error\":1}"))];
    let world = world(vec![vec![said, json(WHOLE)], vec![json(WHOLE)]]).await;
    let response = world.make(world.call()).await.unwrap();
    assert_eq!(
        (response.status().as_u16(), &response.headers()["x-why"]),
        (400, &HeaderValue::from_static("w"))
    );
    assert_eq!(response.headers()["cf-aig-step"], "0");
    assert_eq!((world.fakes[0].count(), world.fakes[1].count()), (1, 0));
    assert_eq!(world.ends().await, [0, 1, 0, 0]);
}

/// Row 32, with nobody left to ask: the status says that it went wrong.
#[tokio::test]
async fn an_error_inside_200_is_no_200_for_the_client() {
    let body = r#"{"error":{"message":"no route to host"}}"#;
    let world = world(vec![vec![json(body), json(body)]]).await;
    assert_eq!(world.whole(world.call()).await, (502, body.to_owned()));
    assert_eq!(world.ends().await, [0, 1, 0, 0]);
}

#[tokio::test]
async fn a_provider_that_is_not_there_is_told_in_words() {
    let world = world(vec![vec![]]).await;
    let address = world.fakes[0].address;
    let free = {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        listener.local_addr().unwrap()
    };
    let mut call = world.call();
    call.targets[0].url =
        call.targets[0].url.to_string().replace(&address.to_string(), &free.to_string()).parse().unwrap();
    let error = world.make(call).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Upstream);
    assert!(error.message.starts_with("custom-0: it cannot be reached: "), "{error}");
}

#[tokio::test]
async fn a_provider_that_does_not_answer_in_time_is_given_up() {
    let (first, second) = (Arc::new(Notify::new()), Arc::new(Notify::new()));
    let hang = |closed: &Arc<Notify>| vec![Step::Hang(Arc::clone(closed))];
    let world = world(vec![vec![hang(&first), hang(&second)]]).await;
    let policy = Policy { attempts: 1, first_byte: Some(Duration::from_millis(20)), ..Policy::default() };
    let error = world.make(Call { policy, ..world.call() }).await.err().unwrap();
    assert_eq!(
        (error.kind, error.message.as_str()),
        (ErrorKind::UpstreamTimeout, "custom-0: it did not answer within 20ms")
    );
    first.notified().await;
    assert_eq!(world.ends().await, [0, 1, 0, 0]);
}

#[tokio::test]
async fn the_next_provider_answers_where_one_fails_and_each_has_its_entry() {
    let fails = || vec![Step::Say(answer(503, &[], b"down"))];
    let world = world(vec![vec![fails(), fails()], vec![json(WHOLE)]]).await;
    let response = world.make(world.call()).await.unwrap();
    assert_eq!((response.status().as_u16(), response.headers()["cf-aig-step"].as_bytes()), (200, &b"1"[..]));
    assert_eq!(world.ends().await, [1, 1, 0, 0]);
}

#[tokio::test]
async fn a_provider_that_keeps_failing_is_left_alone_and_tried_again_after_its_rest() {
    let fails = || vec![Step::Say(answer(500, &[], b"down"))];
    let mut scripts: Vec<_> = (0..5).map(|_| fails()).collect();
    scripts.push(json(WHOLE));
    let world = world(vec![scripts]).await;
    let call = || Call { policy: Policy { attempts: 1, ..Policy::default() }, ..world.call() };
    for _ in 0..5 {
        assert_eq!(world.whole(call()).await.0, 500);
    }
    let error = world.make(call()).await.err().unwrap();
    assert_eq!((error.kind, error.retry_after), (ErrorKind::Unavailable, Some(Duration::from_secs(10))));
    assert_eq!(world.fakes[0].count(), 5);
    world.clock.advance(Duration::from_secs(10));
    assert_eq!(world.whole(call()).await.0, 200);
}

#[tokio::test]
async fn a_clients_own_short_limit_leaves_the_circuit_alone() {
    let closed = Arc::new(Notify::new());
    let scripts = (0..6).map(|_| vec![Step::Hang(Arc::clone(&closed))]).collect();
    let world = world(vec![scripts]).await;
    let policy = Policy { attempts: 1, first_byte: Some(Duration::from_millis(1)), ..Policy::default() };
    for _ in 0..6 {
        let error = world.make(Call { policy, ..world.call() }).await.err().unwrap();
        assert_eq!(error.kind, ErrorKind::UpstreamTimeout);
    }
    let metrics = world.proxy.metrics();
    assert!(metrics.contains("hearth_gateway_breakers_open 0"), "{metrics}");
}

/// Row 31: long prompts hit a small limit.
#[tokio::test]
async fn a_body_of_64_mb_passes_untouched_but_for_its_edit() {
    let world = world(vec![vec![json(WHOLE)]]).await;
    let body = Bytes::from(format!(r#"{{"model":"custom-0/m","x":"{}"}}"#, "y".repeat(64_000_000)));
    let mut edits = Edits::none();
    edits.set(&scan(&body).unwrap(), Field::Model, "\"m\"");
    let target = Target { body: edits.apply(&body), ..world.target(0, false) };
    assert_eq!(world.whole(Call { targets: vec![target], ..world.call() }).await.0, 200);
    let requests = world.fakes[0].requests.lock().unwrap();
    assert_eq!(requests[0].body.len(), body.len() - "custom-0/".len());
    assert!(requests[0].body.starts_with(br#"{"model":"m","x":"yy"#));
}

#[tokio::test]
async fn what_is_no_json_and_no_stream_passes_and_is_settled_without_usage() {
    let sound = vec![Step::Say(answer(200, &[("content-type", "audio/mpeg")], b"\xff\x00sound"))];
    let world = world(vec![vec![sound]]).await;
    let mut call = world.call();
    call.targets[0].url = call.targets[0].provider.url("audio/speech", None).unwrap();
    let AnswerBody::Stream(pieces) = world.make(call).await.unwrap().into_body() else { panic!() };
    let bytes: Vec<u8> = pieces.map(|piece| piece.unwrap().to_vec()).concat().await;
    assert_eq!(bytes, b"\xff\x00sound");
    assert_eq!(world.ends().await, [1, 0, 0, 0]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    /// Row 23 over the whole way: wherever the upstream's bytes are cut, the client's are the same.
    #[test]
    fn wherever_a_stream_is_cut_the_client_gets_the_same_bytes(
        cuts in prop::collection::vec(0..=(TEXT.len() + USAGE.len() + DONE.len()), 0..12),
    ) {
        let stream = format!("{TEXT}{USAGE}{DONE}");
        let mut cuts = cuts;
        cuts.extend([0, stream.len()]);
        cuts.sort_unstable();
        cuts.dedup();
        let mut steps = vec![Step::Say(stream_head())];
        steps.extend(cuts.windows(2).map(|pair| Step::Say(chunk(&stream.as_bytes()[pair[0]..pair[1]]))));
        steps.push(Step::Say(chunk(b"")));
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (answered, input) = runtime.block_on(async {
            let world = world(vec![vec![steps]]).await;
            let answered = world.whole(world.call()).await;
            (answered, world.line().await.input)
        });
        prop_assert_eq!(answered, (200, stream));
        prop_assert_eq!(input, 10);
    }
}

#[tokio::test]
async fn of_a_hedged_call_one_answers_and_the_other_is_closed_and_says_so() {
    let closed = Arc::new(Notify::new());
    let world = world(vec![vec![vec![Step::Hang(Arc::clone(&closed))], json(WHOLE)]]).await;
    let hedge = Some(retry::Hedge::After(Duration::from_millis(1)));
    let policy = Policy { hedge, ..world.call().policy };
    let outcome = crate::Outcome::default();
    let caller = Caller { outcome: Some(outcome.clone()), ..Caller::default() };
    assert_eq!(world.whole(Call { policy, caller, ..world.call() }).await, (200, WHOLE.to_owned()));
    closed.notified().await;
    // To those around it there is one whole answer, which may be kept.
    assert!(outcome.seen().is_whole(0), "{:?}", outcome.seen());
    assert_eq!(world.ends().await, [1, 0, 1, 0]);
    let line = world.line().await;
    // What the other one cost nobody knows; what is known is that of one answer.
    assert_eq!((line.requests, line.input, line.unpriced), (2, 10, 2));
}

/// The second request goes to the next provider, and the ledger has one answer and one that was closed.
#[tokio::test]
async fn a_slow_call_is_hedged_at_the_next_provider_of_its_model() {
    let closed = Arc::new(Notify::new());
    let world =
        world(vec![vec![vec![Step::Hang(Arc::clone(&closed))]], vec![json(WHOLE)], vec![json(WHOLE)]]).await;
    let hedge = Some(retry::Hedge::After(Duration::from_millis(1)));
    let policy = Policy { hedge, ..world.call().policy };
    let outcome = crate::Outcome::default();
    let caller = Caller { outcome: Some(outcome.clone()), ..Caller::default() };
    let response = world.make(Call { policy, caller, ..world.call() }).await.unwrap();
    assert_eq!(response.headers()["cf-aig-step"], "1");
    closed.notified().await;
    assert_eq!(world.fakes.iter().map(Fake::count).collect::<Vec<_>>(), [1, 1, 0]);
    let seen = outcome.seen();
    assert!(seen.is_whole(0), "{seen:?}");
    assert_eq!(seen.last.map(|(_, provider, _)| provider).as_deref(), Some("custom-1"));
    assert_eq!(world.ends().await, [1, 0, 1, 0]);
    let line = world.line().await;
    assert_eq!((line.input, line.output), (10, 5), "one answer is charged");
}

#[tokio::test]
async fn where_both_of_a_hedged_call_fail_the_provider_behind_them_is_asked() {
    let go = Arc::new(Notify::new());
    let slow = vec![Step::Wait(Arc::clone(&go)), Step::Reset];
    let failing = vec![Step::Say(answer(503, &[], b"no"))];
    let world = world(vec![vec![slow], vec![failing], vec![json(WHOLE)]]).await;
    let hedge = Some(retry::Hedge::After(Duration::from_millis(1)));
    let policy = Policy { hedge, attempts: 1, ..world.call().policy };
    let came = Arc::clone(&world.fakes[1].came);
    let call = world.make(Call { policy, ..world.call() });
    let (response, ()) = tokio::join!(call, async {
        came.notified().await;
        go.notify_one();
    });
    assert_eq!(response.unwrap().headers()["cf-aig-step"], "2");
    assert_eq!(world.fakes.iter().map(Fake::count).collect::<Vec<_>>(), [1, 1, 1]);
    assert_eq!(world.ends().await, [1, 2, 0, 0]);
}

#[tokio::test]
async fn a_call_that_is_quick_is_not_hedged() {
    let world = world(vec![vec![json(WHOLE)]]).await;
    for hedge in [retry::Hedge::After(Duration::from_secs(3600)), retry::Hedge::P95] {
        let policy = Policy { hedge: Some(hedge), attempts: 1, ..world.call().policy };
        world.whole(Call { policy, ..world.call() }).await;
    }
    assert_eq!(world.fakes[0].count(), 2);
    assert_eq!(world.ends().await, [1, 1, 0, 0]);
}

/// Row 15 over the whole way.
#[tokio::test]
async fn what_clients_get_wrong_never_closes_a_provider_to_others() {
    let wrong = [400, 401, 403, 404, 413, 422, 400, 400];
    let mut scripts: Vec<_> =
        wrong.iter().map(|status| vec![Step::Say(answer(*status, &[], b"no"))]).collect();
    scripts.push(json(WHOLE));
    let world = world(vec![scripts]).await;
    for status in wrong {
        assert_eq!(world.whole(world.call()).await, (status, "no".to_owned()));
    }
    assert_eq!(world.whole(world.call()).await, (200, WHOLE.to_owned()));
    assert_eq!(world.fakes[0].count(), wrong.len() + 1);
}

#[tokio::test]
async fn streams_that_break_after_their_first_byte_open_the_breaker() {
    let broken = || vec![Step::Say([stream_head(), chunk(TEXT.as_bytes())].concat()), Step::Reset];
    let world = world(vec![(0..5).map(|_| broken()).collect()]).await;
    for _ in 0..5 {
        let (status, body) = world.whole(world.call()).await;
        assert_eq!(status, 200);
        assert!(body.contains("broke off"), "{body}");
    }
    let error = world.make(world.call()).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Unavailable);
    assert_eq!(world.fakes[0].count(), 5);
}

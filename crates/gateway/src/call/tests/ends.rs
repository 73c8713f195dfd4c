//! Where an answer ends too early or cannot be read, and what the next provider is shown and hides.

use super::*;
use protocol::{Delta, GenerateRequest};

fn asking(world: &World, stream: bool) -> Asking {
    let call = world.call();
    let offers = call.targets.iter().map(|target| (Arc::clone(&target.provider), "m".to_owned()));
    Asking {
        caller: Caller::default(),
        headers: HeaderMap::new(),
        key_of: KeyOf::Settings,
        offers: offers.collect(),
        policy: Policy { attempts: 1, ..call.policy },
        request: GenerateRequest { stream, choices: 1, ..GenerateRequest::default() },
        unlimited: 100,
    }
}

async fn deltas(world: &World) -> Vec<Result<Delta, Error>> {
    world.proxy.generate(Some(&world.ledger), asking(world, true)).await.unwrap().deltas.collect().await
}

#[tokio::test]
async fn a_translated_stream_that_just_ends_fails_its_entry_and_counts_against_its_provider() {
    let world = world(vec![(0..5).map(|_| events(TEXT)).collect()]).await;
    for _ in 0..5 {
        assert!(deltas(&world).await.last().unwrap().is_err());
    }
    assert_eq!(world.ends().await, [0, 5, 0, 0]);
    let error = world.proxy.generate(Some(&world.ledger), asking(&world, true)).await.err().unwrap();
    assert_eq!(error.kind, ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_translated_stream_without_a_last_word_is_whole_where_it_said_why_it_ends() {
    let finish = "data: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\n\n";
    let world = world(vec![vec![events(&[TEXT, finish, USAGE].concat())]]).await;
    let deltas = deltas(&world).await;
    assert!(matches!(deltas.last(), Some(Ok(Delta::Usage(_)))), "{deltas:?}");
    assert_eq!(world.ends().await, [1, 0, 0, 0]);
    assert_eq!(world.line().await.input, 10);
}

#[tokio::test]
async fn behind_the_last_event_neither_a_break_nor_silence_is_told() {
    let whole = format!("{TEXT}{USAGE}{DONE}");
    let said = || Step::Say([stream_head(), chunk(whole.as_bytes())].concat());
    let world = world(vec![vec![vec![said(), Step::Reset], vec![said(), Step::Hang(Arc::default())]]]).await;
    for _ in 0..2 {
        assert_eq!(world.whole(world.call()).await, (200, whole.clone()));
    }
    assert_eq!(world.ends().await, [2, 0, 0, 0]);
}

#[tokio::test]
async fn an_answer_that_cannot_be_read_is_asked_for_elsewhere() {
    let page = vec![Step::Say(answer(200, &[("content-type", "text/html")], b"<html>"))];
    let good = r#"{"choices":[{"message":{"content":"a"},"finish_reason":"stop"}]}"#;
    for bad in [page, json("{}")] {
        let world = world(vec![vec![bad], vec![json(good)]]).await;
        let generated = world.proxy.generate(Some(&world.ledger), asking(&world, false)).await.unwrap();
        assert_eq!(generated.step, 1);
        assert_eq!(world.ends().await, [1, 1, 0, 0]);
    }
}

#[tokio::test]
async fn a_clients_key_is_shown_to_the_first_provider_alone() {
    let fails = vec![Step::Say(answer(503, &[], b"down"))];
    let world = world(vec![vec![fails], vec![json(WHOLE)]]).await;
    let mut call = Call { policy: Policy { attempts: 1, ..Policy::default() }, ..world.call() };
    call.key_of = KeyOf::Client;
    call.headers.insert("authorization", HeaderValue::from_static("Bearer theirs"));
    call.headers.insert("x-api-key", HeaderValue::from_static("theirs"));
    let response = world.make(call).await;
    let shown = |number: usize| {
        let requests = world.fakes[number].requests.lock().unwrap();
        requests.iter().any(|request| request.head.to_lowercase().contains("theirs"))
    };
    assert!(shown(0) && !shown(1));
    drop(response);
}

#[tokio::test]
async fn what_a_provider_said_is_not_hidden_by_one_who_cannot_be_asked() {
    let fails = vec![Step::Say(answer(503, &[], b"down"))];
    let world = world(vec![vec![fails], vec![]]).await;
    let mut call = Call { policy: Policy { attempts: 1, ..Policy::default() }, ..world.call() };
    call.caller.zdr = true;
    let base_url = Some(format!("http://{}/v1", world.fakes[0].address));
    let wishes = Wishes { base_url, zero_retention: true, ..Wishes::default() };
    let keeps_nothing = Providers::new([("custom-0".to_owned(), wishes)].into()).unwrap();
    call.targets[0].provider = Arc::clone(keeps_nothing.get("custom-0").unwrap());
    let (status, body) = world.whole(call).await;
    assert_eq!((status, body.as_str(), world.fakes[1].count()), (503, "down", 0));
}

#[tokio::test]
async fn an_error_that_comes_first_in_a_stream_keeps_its_status() {
    for (kind, status) in [("invalid_request_error", 400), ("authentication_error", 401)] {
        let error = format!("data: {{\"error\":{{\"type\":\"{kind}\",\"message\":\"no\"}}}}\n\n");
        let world = world(vec![vec![events(&error)]]).await;
        assert_eq!(world.make(world.call()).await.err().unwrap().status, Some(status));
    }
}

#[test]
fn an_error_event_of_a_response_is_its_last_and_its_fault() {
    let mut watcher = crate::dialect::Watcher::new(Dialect::OpenAi);
    let error = "event: error\ndata: {\"type\":\"error\",\"code\":\"server_error\",\"message\":\"no\"}\n\n";
    assert!(watcher.frame(error.as_bytes()).last);
    assert_eq!(watcher.fault().unwrap().message, "no");
}

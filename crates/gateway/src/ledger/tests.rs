//! Entries over a real store: each ends once, whatever happens.

mod postgres;

use super::*;
use crate::price::{CustomCost, Price, Rates};
use crate::tests::{Hand, gateway, new_key};
use crate::{Budget, Caller, KeyId, Limits, Metadata, PARTS, Tier, Usage};
use base::NanoUsd;
use serde_json::json;
use std::sync::mpsc;
use tempfile::TempDir;

/// $1 a million tokens in, half of it cached, $2 out: in billionths a token 1000, 500, 2000.
fn price() -> Price {
    let dollars = |amount: i64| Some(NanoUsd(amount * 500_000_000));
    let rates = Rates { input: dollars(2), cached_input: dollars(1), output: dollars(4), ..Rates::default() };
    Price { rates, ..Price::default() }
}

fn opening(request: &str) -> Opening {
    Opening {
        request: request.to_owned(),
        caller: Caller::default(),
        provider: "openai".to_owned(),
        model: "m".to_owned(),
        price: Some(price()),
        most: Some((100, 10)),
    }
}

const USAGE: Usage = Usage {
    input: 10,
    cached_input: Some(4),
    cache_write: None,
    cache_write_1h: None,
    output: 5,
    reasoning: Some(2),
    tier: Tier::Standard,
    other: false,
    told: None,
};

async fn started(clock: &Arc<Hand>) -> (TempDir, Gateway) {
    let folder = tempfile::tempdir().unwrap();
    let gateway = gateway(folder.path(), clock).await;
    gateway.ledger().start(&folder.path().join("processes")).await.unwrap();
    (folder, gateway)
}

async fn total(gateway: &Gateway) -> Line {
    let mut lines = gateway.usage(Question::default()).await.unwrap();
    assert_eq!(lines.len(), 1);
    lines.remove(0)
}

/// Waits until every end is in the store.
async fn drained(gateway: &Gateway) {
    while gateway.ledger().waiting() > 0 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn an_entry_is_there_before_the_answer_and_settled_with_what_was_reported() {
    let (_folder, gateway) = started(&Hand::new()).await;
    let entry = gateway.enter(opening("r")).await.unwrap();
    let open = total(&gateway).await;
    assert_eq!((open.requests, open.open, open.unpriced), (1, 1, 0));
    let cost = entry.settle(Some(USAGE)).await.unwrap();
    assert_eq!(cost.cost, NanoUsd(6 * 1000 + 4 * 500 + 5 * 2000));
    let line = total(&gateway).await;
    assert_eq!((line.requests, line.open, line.interrupted, line.failed), (1, 0, 0, 0));
    assert_eq!((line.input, line.cached_input, line.output, line.reasoning), (10, 4, 5, 2));
    assert_eq!((line.cost, line.saved), (cost.cost, NanoUsd(2000)));
}

#[tokio::test]
async fn unreported_usage_and_a_missing_price_make_an_unknown_cost_and_not_zero() {
    let (_folder, gateway) = started(&Hand::new()).await;
    assert_eq!(gateway.enter(opening("a")).await.unwrap().settle(None).await, None);
    let unpriced = Opening { price: None, ..opening("b") };
    assert_eq!(gateway.enter(unpriced).await.unwrap().settle(Some(USAGE)).await, None);
    let line = total(&gateway).await;
    assert_eq!((line.requests, line.unpriced, line.input, line.cost), (2, 2, 10, NanoUsd(0)));
}

#[tokio::test]
async fn a_cost_that_the_caller_names_goes_before_the_price() {
    let (_folder, gateway) = started(&Hand::new()).await;
    let caller = Caller { custom_cost: Some(CustomCost::Total(NanoUsd(77))), ..Caller::default() };
    let entry = gateway.enter(Opening { caller, ..opening("a") }).await.unwrap();
    entry.settle(Some(USAGE)).await;
    assert_eq!(total(&gateway).await.cost, NanoUsd(77));
}

#[tokio::test]
async fn an_entry_that_is_dropped_is_interrupted_with_what_was_seen() {
    let (_folder, gateway) = started(&Hand::new()).await;
    let mut entry = gateway.enter(opening("a")).await.unwrap();
    entry.asked();
    drop(entry);
    let mut entry = gateway.enter(opening("b")).await.unwrap();
    entry.see(Usage { output: 3, ..USAGE });
    drop(entry);
    drained(&gateway).await;
    let line = total(&gateway).await;
    assert_eq!((line.requests, line.open, line.interrupted, line.unpriced), (2, 0, 2, 1));
    assert_eq!((line.output, line.cost), (3, NanoUsd(6 * 1000 + 4 * 500 + 3 * 2000)));
}

#[tokio::test]
async fn who_leaves_before_anybody_was_asked_owes_nothing_and_keeps_the_budget() {
    let (_folder, gateway) = started(&Hand::new()).await;
    // Room for one worst case.
    let budget = Budget { amount: NanoUsd(130_000), period: None };
    let (key, _) =
        gateway.create_key(new_key(Limits { budget: Some(budget), ..Limits::default() })).await.unwrap();
    for request in ["a", "b"] {
        drop(gateway.enter(Opening { caller: caller(&key.id), ..opening(request) }).await.unwrap());
        drained(&gateway).await;
    }
    let line = total(&gateway).await;
    assert_eq!((line.requests, line.interrupted, line.unpriced, line.cost), (2, 2, 0, NanoUsd(0)));
}

#[tokio::test]
async fn a_name_that_no_store_keeps_is_refused_and_wedges_nothing() {
    let (_folder, gateway) = started(&Hand::new()).await;
    let refused = gateway.enter(Opening { model: "a\0b".to_owned(), ..opening("a") }).await.err().unwrap();
    assert_eq!((refused.kind, refused.param.as_deref()), (ErrorKind::InvalidRequest, Some("model")));
    assert_eq!(gateway.ledger().waiting(), 0);
}

/// What the store knows of spending: rows.
async fn spendings(gateway: &Gateway) -> i64 {
    let sql = "SELECT count(*) FROM gateway_spend";
    gateway.store().read(move |work| work.query(sql, &[])?[0].integer(0)).await.unwrap()
}

pub(super) async fn windows_that_are_over_are_swept(gateway: &Gateway, clock: &Arc<Hand>) {
    for (number, period) in [Some(3600), None].into_iter().enumerate() {
        let budget = Budget { amount: NanoUsd(1_000_000_000), period };
        let (key, _) =
            gateway.create_key(new_key(Limits { budget: Some(budget), ..Limits::default() })).await.unwrap();
        let opening = Opening { caller: caller(&key.id), ..opening(&number.to_string()) };
        gateway.enter(opening).await.unwrap().settle(Some(USAGE)).await;
        drained(gateway).await;
    }
    gateway.ledger().sweep().await.unwrap();
    assert_eq!(spendings(gateway).await, 2);
    clock.advance(Duration::from_secs(3600 + 2 * 86_400));
    gateway.ledger().sweep().await.unwrap();
    assert_eq!(spendings(gateway).await, 1, "a budget for ever stays");
}

#[tokio::test]
async fn what_was_spent_in_windows_that_are_over_is_deleted_and_budgets_for_ever_stay() {
    let clock = Hand::new();
    let (_folder, gateway) = started(&clock).await;
    windows_that_are_over_are_swept(&gateway, &clock).await;
}

#[tokio::test]
async fn a_failure_owes_nothing() {
    let (_folder, gateway) = started(&Hand::new()).await;
    gateway.enter(opening("a")).await.unwrap().fail(502, "no").await;
    let line = total(&gateway).await;
    assert_eq!((line.failed, line.unpriced, line.cost), (1, 0, NanoUsd(0)));
}

#[tokio::test]
async fn the_same_request_is_entered_and_settled_once() {
    let (_folder, gateway) = started(&Hand::new()).await;
    let first = gateway.enter(opening("a")).await.unwrap();
    let second = gateway.enter(opening("a")).await.unwrap();
    first.settle(Some(USAGE)).await;
    second.settle(Some(Usage { output: 500, ..USAGE })).await;
    let line = total(&gateway).await;
    assert_eq!((line.requests, line.output), (1, 5));
}

#[tokio::test]
async fn whoever_stops_waiting_for_the_opening_leaves_nothing_open() {
    let (_folder, gateway) = started(&Hand::new()).await;
    // Keys and gateways are known, as they are when the front has let a request in.
    gateway.has_keys().await.unwrap();
    for number in 0..50 {
        let mut entering = Box::pin(gateway.enter(opening(&number.to_string())));
        // One step puts the entry into the store's queue; a quick store has it written by then.
        poll_once(entering.as_mut()).await;
        drop(entering);
    }
    drained(&gateway).await;
    let line = total(&gateway).await;
    assert_eq!((line.open, line.interrupted), (0, 50));
}

/// Polls once, and drops what that gives.
async fn poll_once<F: Future>(mut future: std::pin::Pin<&mut F>) {
    std::future::poll_fn(|context| {
        let _dropped = future.as_mut().poll(context);
        std::task::Poll::Ready(())
    })
    .await;
}

#[tokio::test]
async fn entries_of_a_process_that_died_are_interrupted_at_the_next_start_and_those_of_a_living_one_are_not()
{
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let places = folder.path().join("processes");
    let living = gateway(folder.path(), &clock).await;
    living.ledger().start(&places).await.unwrap();
    let entry = living.enter(opening("living")).await.unwrap();
    // Another one left an entry, its row, and a lock that nobody holds; a third was never on this machine.
    let store = Store::open(folder.path(), &PARTS).unwrap();
    let now = number(clock.unix_seconds());
    let left = store.write(move |work| {
        for process in ["dead", "far"] {
            work.execute(
                "INSERT INTO gateway_processes (id, seen) VALUES (?1, ?2)",
                &[process.into(), now.into()],
            )?;
            work.execute(
                "INSERT INTO gateway_ledger (request, process, account, gateway, provider, model, state, created, custom)
                 VALUES (?1, ?1, 'default', 'default', 'p', 'm', 'open', ?2, 0)",
                &[process.into(), now.into()],
            )?;
        }
        Ok(())
    });
    left.await.unwrap();
    File::create(places.join("dead")).unwrap();

    let next = gateway(folder.path(), &clock).await;
    next.ledger().start(&places).await.unwrap();
    let line = total(&next).await;
    assert_eq!((line.requests, line.open, line.interrupted, line.unpriced), (3, 2, 1, 1));
    assert!(!places.join("dead").exists());

    // One that is not heard of for long has died, too; whoever holds its lock has not.
    clock.advance(Duration::from_secs(SILENCE + 1));
    next.ledger().recover().await.unwrap();
    assert_eq!(total(&next).await.open, 1);
    entry.settle(Some(USAGE)).await;
    assert_eq!((total(&next).await.open, total(&next).await.interrupted), (0, 2));
}

#[tokio::test]
async fn a_closed_ledger_leaves_nothing_to_recover() {
    let (folder, gateway) = started(&Hand::new()).await;
    let entry = gateway.enter(opening("a")).await.unwrap();
    gateway.ledger().close(Duration::from_secs(5)).await;
    assert_eq!(total(&gateway).await.interrupted, 1);
    assert_eq!(std::fs::read_dir(folder.path().join("processes")).unwrap().count(), 0);
    // What ends after all is what counts.
    entry.settle(Some(USAGE)).await;
    assert_eq!((total(&gateway).await.interrupted, total(&gateway).await.output), (0, 5));
}

fn caller(key: &KeyId) -> Caller {
    Caller { key: Some(key.clone()), ..Caller::default() }
}

#[tokio::test]
async fn parallel_requests_at_a_nearly_spent_budget_never_overspend_it() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let (one, two) = (gateway(folder.path(), &clock).await, gateway(folder.path(), &clock).await);
    for gateway in [&one, &two] {
        gateway.ledger().start(&folder.path().join("processes")).await.unwrap();
    }
    // The worst case is 100 * 1000 + 10 * 2000; there is room for three and a half.
    let budget = Budget { amount: NanoUsd(420_000), period: Some(86_400) };
    let limits = Limits { budget: Some(budget), ..Limits::default() };
    let (key, _) = one.create_key(new_key(limits)).await.unwrap();
    let tasks: Vec<_> = (0..64)
        .map(|number| {
            let gateway = if number % 2 == 0 { one.clone() } else { two.clone() };
            let opening = Opening { caller: caller(&key.id), ..opening(&format!("r{number}")) };
            tokio::spawn(async move { gateway.enter(opening).await })
        })
        .collect();
    let mut entries = Vec::new();
    for task in tasks {
        match task.await.unwrap() {
            Ok(entry) => entries.push(entry),
            Err(error) => assert_eq!(error.kind, ErrorKind::Limited, "{error}"),
        }
    }
    assert_eq!(entries.len(), 3);
    // Settled for less than was reserved: there is room again.
    for entry in entries {
        entry.settle(Some(USAGE)).await;
    }
    let again = |request: &str| one.enter(Opening { caller: caller(&key.id), ..opening(request) });
    let kept = again("later").await.unwrap();
    kept.settle(None).await;
    // What is not known counts with its worst case.
    again("b").await.unwrap().settle(None).await;
    again("c").await.unwrap().settle(None).await;
    assert!(again("d").await.is_err());
    clock.advance(Duration::from_secs(86_400));
    assert!(again("e").await.is_ok(), "the next day has its own");
}

#[tokio::test]
async fn a_key_with_a_budget_cannot_use_what_has_no_price() {
    let (_folder, gateway) = started(&Hand::new()).await;
    let budget = Budget { amount: NanoUsd(1_000_000), period: None };
    let (key, _) =
        gateway.create_key(new_key(Limits { budget: Some(budget), ..Limits::default() })).await.unwrap();
    for unknown in [Opening { price: None, ..opening("a") }, Opening { most: None, ..opening("b") }] {
        let refused = gateway.enter(Opening { caller: caller(&key.id), ..unknown }).await;
        assert_eq!(refused.err().map(|error| error.kind), Some(ErrorKind::Forbidden));
    }
    assert_eq!(total(&gateway).await.requests, 0);
}

#[tokio::test]
async fn a_key_with_a_budget_cannot_name_its_own_costs() {
    let (_folder, gateway) = started(&Hand::new()).await;
    let budget = Budget { amount: NanoUsd(1_000_000_000), period: None };
    let (key, _) =
        gateway.create_key(new_key(Limits { budget: Some(budget), ..Limits::default() })).await.unwrap();
    let custom_cost = Some(CustomCost::Total(NanoUsd(0)));
    let free = Caller { custom_cost, ..caller(&key.id) };
    let refused = gateway.enter(Opening { caller: free, ..opening("a") }).await.err();
    assert_eq!(refused.map(|error| error.kind), Some(ErrorKind::Forbidden));
    assert!(gateway.enter(Opening { caller: caller(&key.id), ..opening("b") }).await.is_ok());
}

#[tokio::test]
async fn a_store_that_is_held_up_holds_no_answer_of_an_open_server_and_loses_no_entry() {
    let (folder, gateway) = started(&Hand::new()).await;
    let other = Store::open(folder.path(), &PARTS).unwrap();
    let (held, mut holding) = tokio::sync::mpsc::unbounded_channel();
    let (go, wait) = mpsc::channel::<()>();
    let holder = tokio::spawn(async move {
        other
            .write(move |work| {
                work.execute("UPDATE gateway_version SET version = version WHERE id = 1", &[])?;
                let _ = held.send(());
                let _ = wait.recv();
                Ok(())
            })
            .await
    });
    holding.recv().await.unwrap();
    let entry = gateway.enter(opening("a")).await.unwrap();
    let cost = entry.settle(Some(USAGE)).await;
    assert!(cost.is_some());
    assert!(gateway.ledger().waiting() > 0);
    go.send(()).unwrap();
    holder.await.unwrap().unwrap();
    drained(&gateway).await;
    let line = total(&gateway).await;
    assert_eq!((line.requests, line.open, line.output), (1, 0, 5));
}

#[tokio::test]
async fn usage_is_added_up_by_any_of_key_model_provider_gateway_metadata_and_time() {
    let clock = Hand::new();
    let (_folder, gateway) = started(&clock).await;
    let metadata = |json: &str| Metadata::parse(json);
    for (request, model, tags, hours) in [
        ("a", "m", r#"{"team":"red","n":1}"#, 0),
        ("b", "m", r#"{"team":"blue"}"#, 0),
        ("c", "o", r#"{"team":"red"}"#, 1),
        ("d", "o", "", 24),
    ] {
        clock.advance(Duration::from_secs(hours * 3600));
        let caller = Caller { metadata: metadata(tags), ..Caller::default() };
        let opening = Opening { caller, model: model.to_owned(), ..opening(request) };
        gateway.enter(opening).await.unwrap().settle(Some(USAGE)).await;
    }
    let ask = async |groups: &[&str], filter: Filter| {
        let groups = groups.iter().map(|word| Group::parse(word).unwrap()).collect();
        let lines = gateway.usage(Question { filter, groups }).await.unwrap();
        let lines = lines.into_iter().map(|line| (json!(line.groups), line.requests));
        lines.collect::<Vec<_>>()
    };
    let all = Filter::default;
    assert_eq!(ask(&["model"], all()).await, [(json!(["m"]), 2), (json!(["o"]), 2)]);
    assert_eq!(
        ask(&["metadata.team"], all()).await,
        [(json!([null]), 1), (json!(["blue"]), 1), (json!(["red"]), 2)]
    );
    assert_eq!(ask(&["metadata.n"], all()).await, [(json!([null]), 3), (json!([1]), 1)]);
    assert_eq!(
        ask(&["metadata.team", "model"], Filter { model: Some("o".into()), ..all() }).await,
        [(json!([null, "o"]), 1), (json!(["red", "o"]), 1)]
    );
    assert_eq!(
        ask(&["account", "provider", "gateway", "key"], all()).await,
        [(json!(["default", "openai", "default", null]), 4)]
    );
    let start = 1_800_000_000 / 3600 * 3600;
    assert_eq!(
        ask(&["hour"], all()).await,
        [(json!([start]), 2), (json!([start + 3600]), 1), (json!([start + 25 * 3600]), 1)]
    );
    assert_eq!(ask(&["day"], all()).await.len(), 2);
    let late = Filter { from: Some(1_800_000_000 + 3600), to: Some(1_800_000_000 + 3601), ..all() };
    assert_eq!(ask(&[], late).await, [(json!([]), 1)]);
    assert_eq!(ask(&[], Filter { key: Some("k".into()), ..all() }).await, [(json!([]), 0)]);
}

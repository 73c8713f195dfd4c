//! The ledger of two processes on one Postgres.

use super::*;
use crate::DEFAULT;
use base::Clock;
use std::time::Duration;
use store::Store;

/// Two gateways on one database, and a folder for the processes' signs of life.
async fn two(server: &testdb::Server, clock: &Arc<Hand>) -> (TempDir, [Gateway; 2]) {
    let (folder, address) = (tempfile::tempdir().unwrap(), server.database().parse().unwrap());
    let mut gateways = Vec::new();
    for _ in 0..2 {
        let store = Store::connect(&address, &PARTS).unwrap();
        let clock = Arc::clone(clock) as Arc<dyn Clock>;
        let gateway = Gateway::open(store, clock, crate::price::Book::default()).await.unwrap();
        gateway.ledger().start(&folder.path().join("processes")).await.unwrap();
        gateways.push(gateway);
    }
    (folder, gateways.try_into().ok().unwrap())
}

#[tokio::test]
async fn parallel_requests_of_two_processes_on_postgres_never_overspend_a_budget() {
    let Some(server) = testdb::Server::shared("parallel_requests_of_two_processes") else { return };
    let clock = Hand::new();
    let (_folder, gateways) = two(&server, &clock).await;
    // The worst case is 100 * 1000 + 10 * 2000; there is room for three and a half.
    let budget = Budget { amount: NanoUsd(420_000), period: Some(86_400) };
    let limits = Limits { budget: Some(budget), ..Limits::default() };
    let (key, _) = gateways[0].create_key(new_key(limits)).await.unwrap();
    clock.advance(Duration::from_secs(2));
    let tasks: Vec<_> = (0..64)
        .map(|number| {
            let opening = Opening { caller: caller(&key.id), ..opening(&format!("r{number}")) };
            let gateway = gateways[number % 2].clone();
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
    for entry in entries {
        entry.settle(Some(USAGE)).await;
    }
    for gateway in &gateways {
        drained(gateway).await;
    }
    let line = total(&gateways[1]).await;
    assert_eq!((line.requests, line.open, line.output), (3, 0, 15));
}

#[tokio::test]
async fn keys_gateways_and_usage_are_the_same_for_two_processes_on_postgres() {
    let Some(server) = testdb::Server::shared("keys_gateways_and_usage_are_the_same") else { return };
    let clock = Hand::new();
    let (_folder, [one, two]) = two(&server, &clock).await;
    let (key, secret) = one.create_key(new_key(Limits::default())).await.unwrap();
    one.create_gateway(DEFAULT, "g", &serde_json::Map::new()).await.unwrap();
    clock.advance(Duration::from_secs(2));
    assert_eq!(two.authenticate(secret.0.as_bytes()).await.unwrap().as_deref(), Some(&key));
    assert_eq!(two.gateway(DEFAULT, "g").await.unwrap().id, "g");
    for (gateway, request, model) in [(&one, "a", "m"), (&two, "b", "n"), (&two, "c", "n")] {
        let opening = Opening { caller: caller(&key.id), model: model.to_owned(), ..opening(request) };
        gateway.enter(opening).await.unwrap().settle(Some(USAGE)).await.unwrap();
        drained(gateway).await;
    }
    let words = ["model", "key", "account", "provider", "gateway", "day", "hour", "metadata.x"];
    let groups: Vec<_> = words.iter().map(|word| Group::parse(word).unwrap()).collect();
    let filter = Filter { model: Some("n".to_owned()), from: Some(0), ..Filter::default() };
    let lines = one.usage(Question { filter, groups }).await.unwrap();
    assert_eq!(lines.len(), 1);
    assert_eq!((lines[0].requests, lines[0].input, lines[0].cached_input), (2, 20, 8));
    assert_eq!(lines[0].groups[..4], [json!("n"), json!(&*key.id.0), json!("default"), json!("openai")]);
    one.revoke_key(&key.id.0).await.unwrap();
    clock.advance(Duration::from_secs(2));
    assert!(two.authenticate(secret.0.as_bytes()).await.unwrap().is_none());
}

#[tokio::test]
async fn what_was_spent_in_windows_that_are_over_is_deleted_on_postgres() {
    let Some(server) = testdb::Server::shared("what_was_spent_in_windows_that_are_over") else { return };
    let clock = Hand::new();
    let (_folder, [gateway, _]) = two(&server, &clock).await;
    windows_that_are_over_are_swept(&gateway, &clock).await;
}

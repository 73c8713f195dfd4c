//! Limits over processes, and windows against their naive twin.

use super::*;
use crate::ledger::Opening;
use crate::price::{Price, Rates as Prices};
use crate::tests::{Hand, gateway, new_key};
use crate::{Caller, DEFAULT, Limits, PARTS, Usage};
use base::{Clock, NanoUsd};
use proptest::prelude::*;
use store::Store;

const FIXED: Rule = Rule { limit: 10, window: 60, technique: Technique::Fixed };

/// Three processes on one store.
async fn three(folder: &std::path::Path, clock: &Arc<Hand>) -> [Gateway; 3] {
    [gateway(folder, clock).await, gateway(folder, clock).await, gateway(folder, clock).await]
}

/// Row 13 of the public faults: limits that each process counts alone let N times as much through.
#[tokio::test]
async fn three_processes_on_one_store_let_through_what_one_would() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let handles = three(folder.path(), &clock).await;
    check_three(&handles).await;
}

#[tokio::test]
async fn three_processes_on_one_postgres_let_through_what_one_would() {
    let Some(server) = testdb::Server::shared("three_processes_on_one_postgres") else { return };
    let (address, clock) = (server.database().parse().unwrap(), Hand::new());
    let mut handles = Vec::new();
    for _ in 0..3 {
        let store = Store::connect(&address, &PARTS).unwrap();
        let clock = Arc::clone(&clock) as Arc<dyn Clock>;
        handles.push(Gateway::open(store, clock, crate::price::Book::default()).await.unwrap());
    }
    check_three(&handles.try_into().ok().unwrap()).await;
}

async fn check_three(handles: &[Gateway; 3]) {
    for technique in [Technique::Fixed, Technique::Sliding] {
        // Shares of one: exact. Shares of five: what two others hold may be missing.
        for (limit, missing) in [(10, 0), (100, 10)] {
            let rule = Rule { limit, window: 3600, technique };
            let tasks: Vec<_> = (0..300)
                .map(|number| {
                    let gateway = handles[number % 3].clone();
                    let name = format!("{technique:?}{limit}");
                    tokio::spawn(async move { gateway.take(&name, rule).await })
                })
                .collect();
            let mut passed = 0;
            for task in tasks {
                passed += u64::from(task.await.unwrap().is_ok());
            }
            assert!((limit - missing..=limit).contains(&passed), "{technique:?}: {passed} of {limit}");
        }
    }
}

#[tokio::test]
async fn a_fixed_window_begins_anew_and_says_when() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let gateway = gateway(folder.path(), &clock).await;
    clock.advance(Duration::from_secs(15));
    for _ in 0..10 {
        assert_eq!(gateway.take("n", FIXED).await, Ok(()));
    }
    for _ in 0..2 {
        assert_eq!(gateway.take("n", FIXED).await.unwrap_err().after, Duration::from_secs(45));
    }
    assert_eq!(gateway.take("other", FIXED).await, Ok(()));
    // A limit that was raised holds at once.
    assert_eq!(gateway.take("n", Rule { limit: 11, ..FIXED }).await, Ok(()));
    clock.advance(Duration::from_secs(45));
    assert_eq!(gateway.take("n", FIXED).await, Ok(()));
}

#[tokio::test]
async fn most_of_a_limit_is_taken_without_a_write() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let gateway = gateway(folder.path(), &clock).await;
    let rule = Rule { limit: 1000, ..FIXED };
    let used = async || {
        let read = gateway.store().read(|work| {
            work.query("SELECT used FROM policy_rates WHERE name = 'n'", &[])?
                .first()
                .map_or(Ok(0), |row| row.integer(0))
        });
        read.await.unwrap()
    };
    for done in 0..1000 {
        gateway.take("n", rule).await.unwrap();
        assert_eq!(used().await, (done / 50 + 1) * 50);
    }
    assert!(gateway.take("n", rule).await.is_err());
}

#[tokio::test]
async fn tokens_that_answers_used_hold_up_the_next_request_in_every_process() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let [one, two, _] = three(folder.path(), &clock).await;
    for (number, gateway) in [&one, &two].into_iter().enumerate() {
        gateway.ledger().start(&folder.path().join(format!("processes{number}"))).await.unwrap();
    }
    let limits = Limits { tokens_per_minute: Some(100), ..Limits::default() };
    let (key, _) = one.create_key(new_key(limits)).await.unwrap();
    clock.advance(Duration::from_secs(1));
    let enter = async |gateway: &Gateway, id: &str| {
        let caller = Caller { key: Some(key.id.clone()), ..Caller::default() };
        let rates = Prices { input: Some(NanoUsd(1)), output: Some(NanoUsd(1)), ..Prices::default() };
        let opening = Opening {
            request: id.to_owned(),
            caller,
            provider: "p".to_owned(),
            model: "m".to_owned(),
            price: Some(Price { rates, ..Price::default() }),
            most: Some((1, 1)),
        };
        gateway.enter(opening).await.unwrap()
    };
    assert_eq!(one.count(&key.id).await, Ok(None));
    let usage = Usage { input: 90, output: 30, ..Usage::default() };
    enter(&one, "a").await.settle(Some(usage)).await;
    let refused = one.count(&key.id).await.unwrap_err();
    assert_eq!((refused.unit, refused.rule.limit), ("tokens", 100));
    assert_eq!(two.count(&key.id).await.unwrap_err().unit, "tokens");
    clock.advance(Duration::from_secs(60));
    assert_eq!((one.count(&key.id).await, two.count(&key.id).await), (Ok(None), Ok(None)));
    assert_eq!(one.keys(Some(DEFAULT)).await.unwrap()[0].limits, limits);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// The twin remembers the second of each request that passed.
    #[test]
    fn a_sliding_window_never_lets_through_more_than_its_naive_twin_and_holds_up_a_tenth_longer_at_most(
        limit in 1u64..45,
        window in 5u64..100,
        steps in prop::collection::vec((0u64..40, 1usize..12), 1..25),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
            let gateway = gateway(folder.path(), &clock).await;
            let rule = Rule { limit, window, technique: Technique::Sliding };
            let mut passed: Vec<u64> = Vec::new();
            for (pause, count) in steps {
                clock.advance(Duration::from_secs(pause));
                let now = clock.unix_seconds();
                for _ in 0..count {
                    let within = |length: u64| passed.iter().filter(|time| now - **time < length).count() as u64;
                    let (exact, longer) = (within(window), within(window + rule.part() + 1));
                    match gateway.take("n", rule).await {
                        Ok(()) => {
                            prop_assert!(exact < limit, "{exact} of {limit} were in the window");
                            passed.push(now);
                        }
                        Err(refused) => {
                            prop_assert!(longer >= limit, "{longer} of {limit} were in the window");
                            prop_assert!(refused.after.as_secs() <= window + rule.part());
                        }
                    }
                }
            }
            Ok(())
        })?;
    }
}

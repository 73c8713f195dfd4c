//! Answers of one process and of two.

use super::*;
use crate::tests::{Hand, gateway};
use crate::{DEFAULT, PARTS, Settings};
use base::Clock;
use proptest::prelude::*;
use std::time::Duration;
use store::Store;

fn named(account: &str) -> Named {
    let settings = Settings::default();
    Named { account: account.to_owned(), id: DEFAULT.to_owned(), settings, created: 1, modified: 1 }
}

fn id(account: &str, body: &str) -> Id {
    let mut id = IdOf::new(&named(account));
    id.part("body", body.as_bytes());
    id.done()
}

fn answer(body: &str) -> Answer {
    let head = Head {
        headers: vec![("content-type".to_owned(), "application/json".to_owned())],
        provider: "p".to_owned(),
        model: "m".to_owned(),
        cost: Some(7),
    };
    Answer { head, body: Bytes::from(body.to_owned()) }
}

async fn written(gateway: &Gateway) {
    while gateway.answers_waiting() > 0 {
        tokio::task::yield_now().await;
    }
}

#[test]
fn requests_are_the_same_when_every_byte_is_and_the_account_too() {
    assert_eq!(id("a", r#"{"x":1,"y":2}"#), id("a", r#"{"x":1,"y":2}"#));
    assert_ne!(id("a", r#"{"x":1,"y":2}"#), id("a", r#"{"y":2,"x":1}"#));
    assert_ne!(id("a", r#"{"x":1,"y":2}"#), id("a", r#"{"x":1, "y":2}"#));
    assert_ne!(id("a", "x"), id("b", "x"));
}

#[test]
fn a_change_of_settings_makes_another_id_where_they_want_that_and_new_guardrails_always() {
    let of = |named: &Named| IdOf::new(named).done();
    let mut keeps = named("a");
    keeps.settings.cache.cache_invalidate_on_update = false;
    let mut changed = keeps.clone();
    (changed.modified, changed.settings.retry.retry_delay) = (2, Some(1));
    assert_eq!(of(&keeps), of(&changed));
    changed.settings.guard.zdr = true;
    assert_ne!(of(&keeps), of(&changed));
    let mut other = named("a");
    other.modified = 2;
    assert_ne!(of(&named("a")), of(&other));
}

#[tokio::test]
async fn an_answer_is_given_until_its_time_is_over_here_and_in_another_process() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let (here, there) = (gateway(folder.path(), &clock).await, gateway(folder.path(), &clock).await);
    check_two(&here, &there, &clock).await;
}

#[tokio::test]
async fn an_answer_is_given_by_two_processes_on_postgres() {
    let Some(server) = testdb::Server::shared("an_answer_is_given_by_two_processes") else { return };
    let (address, clock) = (server.database().parse().unwrap(), Hand::new());
    let open = async || {
        let store = Store::connect(&address, &PARTS).unwrap();
        let clock = Arc::clone(&clock) as Arc<dyn Clock>;
        Gateway::open(store, clock, crate::price::Book::default()).await.unwrap()
    };
    check_two(&open().await, &open().await, &clock).await;
}

async fn check_two(here: &Gateway, there: &Gateway, clock: &Hand) {
    here.keep_answer(id("a", "x"), answer("one"), 60);
    assert_eq!(here.answer(&id("a", "x")).await.as_deref(), Some(&answer("one")));
    written(here).await;
    assert_eq!(there.answer(&id("a", "x")).await.as_deref(), Some(&answer("one")));
    assert_eq!(there.answer(&id("b", "x")).await, None);
    assert_eq!(there.answer(&id("a", "y")).await, None);
    here.keep_answer(id("a", "x"), answer("two"), 60);
    written(here).await;
    clock.advance(Duration::from_secs(59));
    assert_eq!(here.answer(&id("a", "x")).await.as_deref(), Some(&answer("two")));
    clock.advance(Duration::from_secs(1));
    assert_eq!(here.answer(&id("a", "x")).await, None);
    assert_eq!(there.answer(&id("a", "x")).await, None);
}

#[tokio::test]
async fn a_hit_does_not_wait_for_the_writer() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let (here, there) = (gateway(folder.path(), &clock).await, gateway(folder.path(), &clock).await);
    here.keep_answer(id("a", "x"), answer("one"), 60);
    written(&here).await;
    let (held, mut holding) = tokio::sync::mpsc::unbounded_channel();
    let (go, wait) = std::sync::mpsc::channel::<()>();
    let writer = tokio::spawn(async move {
        let work = move |work: &Work<'_>| {
            work.execute("UPDATE gateway_version SET version = version WHERE id = 1", &[])?;
            let _ = held.send(());
            let _ = wait.recv();
            Ok(())
        };
        here.store().write(work).await
    });
    holding.recv().await.unwrap();
    assert!(there.answer(&id("a", "x")).await.is_some());
    go.send(()).unwrap();
    writer.await.unwrap().unwrap();
}

#[tokio::test]
async fn what_is_no_text_is_kept_in_memory_and_what_is_too_large_is_not_kept() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let (here, there) = (gateway(folder.path(), &clock).await, gateway(folder.path(), &clock).await);
    let sound = Answer { body: Bytes::from_static(&[0xff, 0]), ..answer("") };
    here.keep_answer(id("a", "x"), sound.clone(), 60);
    written(&here).await;
    assert_eq!(here.answer(&id("a", "x")).await.as_deref(), Some(&sound));
    assert_eq!(there.answer(&id("a", "x")).await, None);
    here.set_cache_size(2000);
    here.keep_answer(id("a", "y"), answer(&"y".repeat(2000)), 60);
    assert_eq!(here.answer(&id("a", "y")).await, None);
    here.set_cache_size(0);
    assert!(!here.caches());
}

#[tokio::test]
async fn the_store_has_no_more_than_its_room_and_what_ends_soonest_goes() {
    let (folder, clock) = (tempfile::tempdir().unwrap(), Hand::new());
    let (here, there) = (gateway(folder.path(), &clock).await, gateway(folder.path(), &clock).await);
    here.set_cache_size(60_000);
    for number in 0..200 {
        here.keep_answer(id("a", &number.to_string()), answer(&"z".repeat(500)), 1000 - number);
        written(&here).await;
    }
    let sums = there.store().read(|work| {
        let rows = work.query(
            "SELECT CAST(sum(bytes) AS INTEGER), CAST(count(*) AS INTEGER),
             (SELECT bytes FROM policy_room WHERE id = 1) FROM policy_answers",
            &[],
        )?;
        Ok((rows[0].integer(0)?, rows[0].integer(1)?, rows[0].integer(2)?))
    });
    let (sum, count, room) = sums.await.unwrap();
    assert_eq!(sum, room);
    assert!(sum <= 60_000 && count > 20, "{count} have {sum}");
    assert!(there.answer(&id("a", "199")).await.is_some(), "the newest is there");
    assert!(there.answer(&id("a", "0")).await.is_some(), "the one that lasts longest is there");
}

proptest! {
    #[test]
    fn memory_keeps_what_was_used_last_within_its_room(
        steps in prop::collection::vec((0usize..12, 0usize..900, prop::bool::ANY), 1..80),
    ) {
        let (mut memory, room) = (Memory::default(), 5000);
        let mut recent: Vec<usize> = Vec::new();
        for (number, size, puts) in steps {
            let id = id("a", &number.to_string());
            if puts {
                memory.put(id, Arc::new(answer(&"x".repeat(size))), 100, room);
            } else if memory.get(&id, 1).is_none() {
                continue;
            }
            recent.retain(|seen| *seen != number);
            recent.push(number);
            memory.check(room);
            // The three used last always have room.
            for seen in recent.iter().rev().take(3) {
                prop_assert!(memory.held.contains_key(&super::tests::id("a", &seen.to_string())));
            }
        }
    }
}

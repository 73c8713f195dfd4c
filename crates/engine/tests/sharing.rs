//! A prefix that is being computed for one request is awaited by the others, whatever becomes of that one.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use base::{Bytes, Namespace, RequestId, Tokens};
use common::*;
use engine::{Config, Engine, EventKind, FinishReason, KvBudget, Request};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const COMMON: usize = 500;
const OWN: usize = 30;

fn steps(rows: u32) -> Config {
    Config { step_tokens: Tokens(rows), ..Config::default() }
}

/// Eight cold sessions over one system prompt; the first token of the own part differs.
fn session(id: u64) -> Request {
    let own = [vec![id as u32], text(20 + id, OWN - 1)].concat();
    request(id, [text(1, COMMON), own].concat(), 1)
}

fn rows(engine: &Engine) -> usize {
    engine.stats().counters.rows as usize
}

#[test]
fn a_leader_that_is_cancelled_leaves_what_it_computed_to_a_follower() {
    for before in 1..5 {
        let mut engine = engine(512, steps(128));
        (0..8).for_each(|id| engine.submit(session(id)).unwrap());
        let mut events = Vec::new();
        for _ in 0..before {
            engine.step(&mut events);
        }
        assert_eq!(engine.stats().running, 1, "the others wait for the prefix");
        engine.cancel(RequestId(0));
        let mut listener = Listener::default();
        drain(&mut engine, &mut listener);
        let own = (before * 128usize).saturating_sub(COMMON);
        assert_eq!(rows(&engine), COMMON + 7 * OWN + own, "after {before} steps");
    }
}

#[test]
fn a_leader_that_fails_leaves_its_prefix_to_the_others() {
    let mut model = FakeModel::new(4096);
    model.poison = Some(39);
    let budget = Arc::new(KvBudget::new(Bytes(512 * PAGE_BYTES)));
    let mut engine = Engine::new(Box::new(model), budget, steps(128)).unwrap();
    let mut leader = session(0);
    leader.prompt.push(39);
    let mut listener = Listener::default();
    engine.submit(leader).unwrap();
    (1..8).for_each(|id| engine.submit(session(id)).unwrap());
    drain(&mut engine, &mut listener);
    assert_eq!(listener.outcomes[&RequestId(0)].answers[0].finished, Some(FinishReason::Failed));
    assert_eq!(rows(&engine), COMMON + 8 * OWN + 1);
}

#[test]
fn a_leader_that_is_preempted_is_followed_again() {
    // An old answer needs page after page until the leader, which is younger, has to give up its own.
    let mut engine = engine(52, steps(5));
    let mut listener = Listener::default();
    engine.submit(request(100, text(100, 10), 400)).unwrap();
    let mut events = Vec::new();
    while engine.stats().pages.held < 14 {
        engine.step(&mut events);
    }
    listener.hear(&mut events);
    (0..8).for_each(|id| engine.submit(session(id)).unwrap());
    drain(&mut engine, &mut listener);
    let counters = engine.stats().counters;
    assert!(counters.preemptions > 0, "the pool is too small for all");
    let again = rows(&engine) - (10 + 399) - (COMMON + 8 * OWN);
    let gone = (counters.evicted_pages + counters.preemptions) as usize * device::PAGE_TOKENS;
    assert!(again <= gone && again < COMMON, "{again} rows again, {gone} gone");
    for id in 0..8 {
        assert_eq!(
            listener.outcomes[&RequestId(id)].clone().without_cache(),
            alone(FakeModel::new(4096), session(id), Tokens(832))
        );
    }
}

#[test]
fn another_namespace_neither_waits_nor_finds() {
    let mut engine = engine(512, steps(128));
    for id in 0..8 {
        engine.submit(Request { namespace: Namespace(id % 2), ..session(id) }).unwrap();
    }
    let mut listener = Listener::default();
    drain(&mut engine, &mut listener);
    assert_eq!(rows(&engine), 2 * COMMON + 8 * OWN);
    assert_eq!(listener.outcomes[&RequestId(1)].cached, Some(Tokens(0)));
    assert_eq!(listener.outcomes[&RequestId(7)].cached, Some(Tokens(COMMON as u32)));
}

#[test]
fn further_answers_share_the_prefix_as_well() {
    let model = FakeModel::new(4096);
    let seen = model.seen();
    let budget = Arc::new(KvBudget::new(Bytes(512 * PAGE_BYTES)));
    let mut engine = Engine::new(Box::new(model), budget, steps(128)).unwrap();
    for id in 0..4 {
        engine.submit(Request { choices: 3, ..session(id) }).unwrap();
    }
    drain(&mut engine, &mut Listener::default());
    // A further answer computes the last token of its prompt again, for its logits.
    assert_eq!(seen.rows.load(Ordering::Relaxed), COMMON + 4 * OWN + 4 * 2);
}

#[test]
fn a_prefix_of_less_than_a_page_is_not_waited_for() {
    let mut engine = engine(512, steps(512));
    for id in 0..8 {
        engine.submit(request(id, [text(1, 15), vec![id as u32], text(20 + id, 20)].concat(), 3)).unwrap();
    }
    let mut events = Vec::new();
    engine.step(&mut events);
    let started = events.iter().filter(|e| matches!(e.kind, EventKind::Started { cached: Tokens(0) }));
    assert_eq!(started.count(), 8);
}

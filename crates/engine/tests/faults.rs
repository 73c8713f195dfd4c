//! What users of other engines reported about their caches and memory, one test each; the report stands above it.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use base::{Bytes, RequestId, Tokens};
use common::*;
use engine::{Activity, AdmitError, Config, Engine, FinishReason, KvBudget};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering;

const SYSTEM: usize = 96;
const TURN: usize = 12;
const ANSWER: u32 = 10;

/// Conversations that begin alike.
fn sessions(n: u64) -> Vec<Vec<u32>> {
    (0..n).map(|s| [text(1, SYSTEM), text(30 + s, 10)].concat()).collect()
}

/// All sessions say their next turn at once; returns how many prompt tokens were computed for it.
fn turn(engine: &mut Engine, sessions: &mut [Vec<u32>], turn: u64) -> usize {
    let before = engine.stats().counters.prompt_tokens_computed;
    let (n, mut listener) = (sessions.len() as u64, Listener::default());
    for (s, session) in (0..).zip(sessions.iter_mut()) {
        session.extend(text(1000 + turn * n + s, TURN));
        engine.submit(request(turn * n + s, session.clone(), ANSWER)).unwrap();
    }
    drain(engine, &mut listener);
    for (s, session) in (0..).zip(sessions.iter_mut()) {
        let outcome = &listener.outcomes[&RequestId(turn * n + s)];
        assert_eq!(outcome.answers[0].finished, Some(FinishReason::Length), "no turn fails");
        let expected = alone(FakeModel::new(4096), request(0, session.clone(), ANSWER), engine.context());
        assert_eq!(outcome.clone().without_cache(), expected, "nor says anything else");
        session.extend(outcome.ids());
    }
    (engine.stats().counters.prompt_tokens_computed - before) as usize
}

// https://github.com/ggml-org/llama.cpp/pull/22083: slots are chosen by similarity, so sessions over one system prompt
// evict each other and read it again in each turn.
#[test]
fn sessions_over_fewer_places_than_there_are_of_them_compute_only_their_new_tokens() {
    let mut engine = engine(200, Config { max_running: 4, ..Config::default() });
    let mut sessions = sessions(8);
    for t in 0..5 {
        let computed = turn(&mut engine, &mut sessions, t);
        // The last token of an answer was never an input.
        let expected = if t == 0 { SYSTEM + 8 * (10 + TURN) } else { 8 * (TURN + 1) };
        assert_eq!(computed, expected, "turn {t}");
    }
    assert_eq!(engine.stats().counters.preemptions, 0);
}

// https://github.com/ollama/ollama/issues/18264: the host's prompt cache grows outside every accounting.
// https://github.com/ggml-org/llama.cpp/issues/22629: its limit is looked at after the allocation.
// https://github.com/ikawrakow/ik_llama.cpp/issues/2320: an entry larger than the limit is never evicted.
#[test]
fn a_thousand_alternating_sessions_stay_within_the_budget_and_so_does_one_larger_than_it() {
    const PAGES: u64 = 30;
    let model = FakeModel::new(4096);
    let seen = model.seen();
    let budget = Arc::new(KvBudget::new(Bytes(PAGES * PAGE_BYTES)));
    let mut engine = Engine::new(Box::new(model), Arc::clone(&budget), Config::default()).unwrap();
    let context = engine.context().get();
    for id in 0..1000 {
        let len = if id % 50 == 7 { context - 1 } else { 20 + (id as usize * 37) % 150 };
        engine.submit(request(id, text(id % 100, len), 8)).unwrap();
        let mut events = Vec::new();
        while engine.step(&mut events) == Activity::Worked {
            assert!(seen.pages.load(Ordering::Relaxed) as u64 <= PAGES && budget.used() <= budget.total());
        }
        let larger = engine.submit(request(5000, text(id, context), 8));
        assert!(matches!(larger, Err(AdmitError::PromptTooLong { .. })), "{larger:?}");
        let pages = engine.stats().pages;
        assert_eq!((pages.held, pages.free + pages.cached), (0, PAGES as usize));
    }
    // The largest went like any other: what came after it is still there.
    let last = run(&mut engine, request(5001, text(99, 20), 1));
    assert_eq!(last.cached, Some(Tokens(19)));
}

// Seen on llama-server: once the shared pool is full, all running requests fail with "Context size has been exceeded".
proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn no_turn_fails_over_any_pool_that_holds_one_session(pages in 12u64..80, n in 1u64..9) {
        const TURNS: u64 = 3;
        let mut engine = engine(pages, Config { step_tokens: Tokens(64), ..Config::default() });
        let mut all = sessions(n);
        let mut computed = 0;
        for t in 0..TURNS {
            computed += turn(&mut engine, &mut all, t);
        }
        let counters = engine.stats().counters;
        let new = SYSTEM + n as usize * (10 + TURN + (TURNS as usize - 1) * (TURN + 1));
        // What is computed again is what had to go. A page goes for a whole turn, and its tokens with it.
        let gone = counters.evicted_pages as usize * device::PAGE_TOKENS;
        prop_assert!(computed >= new && computed <= new + gone, "{computed} computed, {new} new, {gone} evicted");
        assert_at_rest(&engine, pages as usize);
    }
}

// https://github.com/vllm-project/vllm/issues/12077: use falls to nothing when idle although prefixes are cached.
#[test]
fn cached_pages_that_nobody_uses_are_told_from_held_ones() {
    let mut engine = engine(50, Config::default());
    engine.submit(request(0, text(0, 100), 20)).unwrap();
    engine.step(&mut Vec::new());
    let pages = engine.stats().pages;
    assert_eq!((pages.free, pages.cached, pages.held), (43, 0, 7));
    while engine.step(&mut Vec::new()) == Activity::Worked {}
    let pages = engine.stats().pages;
    assert_eq!((pages.free, pages.cached, pages.held), (42, 8, 0));
}

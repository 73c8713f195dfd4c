//! Order, limits, the prefix cache, cancellation, and what happens when something goes wrong.

mod common;

use base::{Bytes, Namespace, RequestId, Tokens};
use common::*;
use engine::{Activity, AdmitError, Config, Engine, Error, EventKind, FinishReason, KvBudget, Request};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

fn steps(rows: u32) -> Config {
    Config { step_tokens: Tokens(rows), ..Config::default() }
}

#[test]
fn the_next_turn_computes_only_its_new_tokens() {
    let mut engine = engine(64, steps(64));
    let mut conversation = text(1, 50);
    let mut known = 0;
    for turn in 0..5 {
        let outcome = run(&mut engine, request(turn, conversation.clone(), 13));
        assert_eq!(outcome.cached, Some(Tokens(known)), "turn {turn}");
        conversation.extend(outcome.ids());
        // The last token of an answer was never an input.
        known = conversation.len() as u32 - 1;
        conversation.extend(text(10 + turn, 21));
    }
}

#[test]
fn the_cache_matches_exactly_to_the_token() {
    let mut engine = engine(64, steps(512));
    let prompt = text(1, 61);
    run(&mut engine, request(0, prompt.clone(), 1));
    for same in [0, 1, 15, 16, 17, 31, 32, 40, 60] {
        let mut other = prompt[..same].to_vec();
        other.push((prompt[same] + 1) % VOCAB);
        other.extend(text(77, 9));
        let outcome = run(&mut engine, request(1, other.clone(), 4));
        assert_eq!(outcome.cached, Some(Tokens(same as u32)));
        let outcome = run(&mut engine, request(2, other.clone(), 4));
        assert_eq!(outcome.cached, Some(Tokens(other.len() as u32 - 1)), "one token is always computed");
    }
}

#[test]
fn nothing_is_found_in_another_namespace() {
    let mut engine = engine(64, steps(512));
    let prompt = text(1, 61);
    run(&mut engine, request(0, prompt.clone(), 1));
    let foreign = Request { namespace: Namespace(1), ..request(1, prompt.clone(), 1) };
    assert_eq!(run(&mut engine, foreign).cached, Some(Tokens(0)));
    assert_eq!(run(&mut engine, request(2, prompt, 1)).cached, Some(Tokens(60)));
}

#[test]
fn requests_that_come_together_compute_their_common_prefix_once() {
    let model = FakeModel::new(4096);
    let seen = model.seen();
    let budget = Arc::new(KvBudget::new(Bytes(512 * PAGE_BYTES)));
    let mut engine = Engine::new(Box::new(model), budget, steps(128)).unwrap();
    let mut listener = Listener::default();
    for id in 0..8 {
        let prompt = [text(1, 500), vec![id as u32], text(20 + id, 29)].concat();
        engine.submit(request(id, prompt, 5)).unwrap();
    }
    drain(&mut engine, &mut listener);
    // The common part once, eight own parts, eight times four answer tokens as inputs.
    assert_eq!(seen.rows.load(Ordering::Relaxed), 500 + 8 * 30 + 8 * 4);
    assert_eq!(listener.outcomes[&RequestId(7)].cached, Some(Tokens(500)));
    assert!(seen.most_rows.load(Ordering::Relaxed) <= 128 + 8);
}

#[test]
fn eight_sessions_over_a_pool_for_few_all_come_to_an_end() {
    // Each session needs up to 9 pages of its own beside the 6 they share; the pool has 30.
    let mut engine = engine(30, steps(64));
    let mut sessions: Vec<Vec<u32>> = (0..8)
        .map(|s| {
            let mut prompt = text(1, 96);
            prompt.extend(text(30 + s, 10));
            prompt
        })
        .collect();
    for turn in 0..6 {
        let mut listener = Listener::default();
        for (s, session) in sessions.iter().enumerate() {
            engine.submit(request(turn * 8 + s as u64, session.clone(), 10)).unwrap();
        }
        drain(&mut engine, &mut listener);
        for (s, session) in sessions.iter_mut().enumerate() {
            let outcome = &listener.outcomes[&RequestId(turn * 8 + s as u64)];
            let expected = alone(FakeModel::new(4096), request(0, session.clone(), 10), Tokens(480));
            assert_eq!(outcome.clone().without_cache(), expected);
            session.extend(outcome.ids());
            session.extend(text(1000 + turn * 8 + s as u64, 12));
        }
    }
    assert_at_rest(&engine, 30);
}

#[test]
fn sessions_that_fit_keep_their_history_from_turn_to_turn() {
    let mut engine = engine(100, steps(64));
    let mut sessions: Vec<Vec<u32>> = (0..8).map(|s| [text(1, 96), text(30 + s, 10)].concat()).collect();
    for turn in 0..4 {
        let before = engine.stats().counters;
        let mut new = 0;
        let mut listener = Listener::default();
        for (s, session) in sessions.iter_mut().enumerate() {
            let more = text(1000 + turn * 8 + s as u64, 12);
            new += more.len() as u64 + 1;
            session.extend(more);
            engine.submit(request(turn * 8 + s as u64, session.clone(), 10)).unwrap();
        }
        drain(&mut engine, &mut listener);
        for (s, session) in sessions.iter_mut().enumerate() {
            session.extend(listener.outcomes[&RequestId(turn * 8 + s as u64)].ids());
        }
        let computed = engine.stats().counters.prompt_tokens_computed - before.prompt_tokens_computed;
        if turn > 0 {
            assert_eq!(computed, new, "turn {turn} computes its new tokens only");
        }
    }
    assert_eq!(engine.stats().counters.preemptions, 0);
}

#[test]
fn one_session_may_fill_the_whole_pool() {
    let mut engine = engine(8, steps(512));
    assert_eq!(engine.context(), Tokens(128));
    for id in 0..3 {
        let outcome = run(&mut engine, request(id, text(id, 100), 500));
        assert_eq!(outcome.ids().len(), 28, "the room left limits the answer");
        assert_eq!(outcome.answers[0].finished, Some(FinishReason::Length));
    }
    // The cached prefix is of use only as far as there is room for what follows.
    let mut prompt = text(2, 100);
    prompt.extend(text(5, 27));
    assert_eq!(run(&mut engine, request(9, prompt, 500)).ids().len(), 1);
    assert_at_rest(&engine, 8);
}

#[test]
fn the_older_request_is_not_held_back_by_younger_ones() {
    let mut engine = engine(12, steps(512));
    let mut listener = Listener::default();
    let mut events = Vec::new();
    engine.submit(request(0, text(0, 20), 150)).unwrap();
    for id in 1..6 {
        engine.submit(request(id, text(id, 20), 150)).unwrap();
    }
    let mut order = Vec::new();
    while engine.step(&mut events) != Activity::Idle {
        engine.check();
        order.extend(events.iter().filter(|e| matches!(e.kind, EventKind::Done(_))).map(|e| e.request.0));
        listener.hear(&mut events);
    }
    assert_eq!(order, [0, 1, 2, 3, 4, 5]);
    assert!(engine.stats().counters.preemptions > 0, "the pool is too small for all");
    assert_at_rest(&engine, 12);
}

#[test]
fn decodes_go_on_while_a_long_prompt_comes_in() {
    let mut engine = engine(300, steps(32));
    let mut events = Vec::new();
    engine.submit(request(0, text(0, 5), 100)).unwrap();
    engine.step(&mut events);
    engine.submit(request(1, text(1, 1000), 1)).unwrap();
    for _ in 0..20 {
        events.clear();
        engine.step(&mut events);
        let tokens = events.iter().filter(|e| matches!(e.kind, EventKind::Token { choice: 0, .. }));
        assert_eq!(tokens.filter(|e| e.request == RequestId(0)).count(), 1);
    }
}

#[test]
fn prompts_come_in_although_decodes_take_all_rows() {
    let mut engine = engine(100, steps(2));
    let mut events = Vec::new();
    for id in 0..4 {
        engine.submit(request(id, text(id, 3), 60)).unwrap();
    }
    for _ in 0..40 {
        engine.step(&mut events);
    }
    assert_eq!(engine.stats().running, 4);
}

#[test]
fn a_choice_shares_the_prompt_and_the_prompt_counts_once() {
    let mut engine = engine(100, steps(512));
    let wanted = Request {
        choices: 4,
        sampling: engine::Sampling { seed: 3, ..Default::default() },
        ..request(0, text(0, 70), 6)
    };
    let outcome = run(&mut engine, wanted);
    let usage = outcome.usage.unwrap();
    assert_eq!((usage.prompt, usage.cached, usage.completion), (Tokens(70), Tokens(0), Tokens(24)));
    assert_eq!(engine.stats().counters.prompt_tokens_computed, 70 + 3);
    assert_ne!(outcome.answers[0], outcome.answers[1], "each choice has its own random numbers");
}

#[test]
fn limits_are_told_with_their_numbers() {
    let mut engine = engine(8, Config { queue: 2, ..Config::default() });
    let refused = engine.submit(request(0, text(0, 128), 1));
    assert_eq!(refused, Err(AdmitError::PromptTooLong { prompt: Tokens(128), limit: Tokens(128) }));
    engine.submit(request(0, text(0, 127), 1)).unwrap();
    engine.submit(request(1, text(0, 9), 1)).unwrap();
    assert_eq!(engine.submit(request(2, text(0, 9), 1)), Err(AdmitError::Overloaded { depth: 2 }));
    let budget = Arc::new(KvBudget::new(Bytes(3 * PAGE_BYTES)));
    let error = Engine::new(Box::new(FakeModel::new(64)), budget, Config::default()).err();
    assert_eq!(error, Some(Error::BudgetTooSmall { budget: Bytes(192), least: Bytes(256) }));
}

#[test]
fn no_tokens_wanted_computes_the_prompt_only() {
    let mut engine = engine(8, Config::default());
    let outcome = run(&mut engine, request(0, text(0, 33), 0));
    assert_eq!(outcome.answers[0].finished, Some(FinishReason::Length));
    assert_eq!(outcome.answers[0].tokens, []);
    assert_eq!(run(&mut engine, request(1, text(0, 33), 1)).cached, Some(Tokens(32)));
}

#[test]
fn a_stop_token_ends_the_answer_unsent_but_is_counted() {
    let mut engine = engine(8, Config::default());
    let free = run(&mut engine, request(0, text(0, 10), 20));
    let stop = free.ids()[3];
    let first = free.ids().iter().position(|id| *id == stop).unwrap();
    let stopping = Request { stop_tokens: vec![stop], ..request(1, text(0, 10), 20) };
    let stopped = run(&mut engine, stopping);
    assert_eq!(stopped.ids(), free.ids()[..first]);
    assert_eq!(stopped.answers[0].finished, Some(FinishReason::Stop));
    assert_eq!(stopped.usage.unwrap().completion, Tokens(first as u32 + 1));
    let ignoring = Request { stop_tokens: vec![stop], ignore_eos: true, ..request(2, text(0, 10), 20) };
    assert_eq!(run(&mut engine, ignoring).ids(), free.ids());
}

#[test]
fn a_cancelled_request_frees_its_pages_and_says_nothing_more() {
    let mut engine = engine(40, steps(16));
    let mut events = Vec::new();
    for id in 0..4 {
        engine.submit(Request { choices: 2, ..request(id, text(id, 40), 50) }).unwrap();
    }
    for _ in 0..7 {
        engine.step(&mut events);
    }
    for id in [0, 3, 1, 2, 2, 9] {
        engine.cancel(RequestId(id));
        engine.check();
    }
    events.clear();
    assert_eq!(engine.step(&mut events), Activity::Idle);
    assert_eq!(events, []);
    assert_at_rest(&engine, 40);
    assert_eq!(engine.stats().counters.cancelled, 4);
}

#[test]
fn finishing_one_answer_leaves_the_others_as_they_are() {
    let id = RequestId(0);
    let wanted = || Request { choices: 3, logprobs: Some(0), ..request(0, text(4, 30), 20) };
    let whole = alone(FakeModel::new(4096), wanted(), Tokens(4096));
    for steps_before in 2..8 {
        let mut engine = engine(64, steps(64));
        let (mut listener, mut events) = (Listener::default(), Vec::new());
        engine.submit(wanted()).unwrap();
        for _ in 0..steps_before {
            engine.step(&mut events);
        }
        engine.finish_choice(id, 1, &mut events);
        engine.check();
        // A second time, an answer that is not there, and a request that is not: nothing happens.
        let told = events.len();
        engine.finish_choice(id, 1, &mut events);
        engine.finish_choice(id, 7, &mut events);
        engine.finish_choice(RequestId(9), 0, &mut events);
        assert_eq!(events.len(), told);
        listener.hear(&mut events);
        drain(&mut engine, &mut listener);
        assert_at_rest(&engine, 64);
        let outcome = &listener.outcomes[&id];
        let [first, cut, last] = &outcome.answers[..] else { panic!("three answers") };
        assert_eq!((first, last), (&whole.answers[0], &whole.answers[2]));
        assert_eq!(cut.finished, Some(engine::FinishReason::Stop));
        assert!(!cut.tokens.is_empty() && cut.tokens.len() < 20);
        assert!(whole.answers[1].tokens.starts_with(&cut.tokens));
        assert_eq!(outcome.usage.unwrap().completion, Tokens::from(40 + cut.tokens.len()));
    }
}

#[test]
fn an_answer_without_a_token_is_not_finished_early() {
    let mut engine = engine(64, steps(16));
    let mut events = Vec::new();
    engine.submit(request(0, text(4, 40), 5)).unwrap();
    engine.finish_choice(RequestId(0), 0, &mut events);
    engine.step(&mut events);
    engine.finish_choice(RequestId(0), 0, &mut events);
    let mut listener = Listener::default();
    listener.hear(&mut events);
    drain(&mut engine, &mut listener);
    assert_eq!(listener.outcomes[&RequestId(0)].ids().len(), 5);
}

// https://github.com/vllm-project/vllm/issues/5822: one bad parameter killed the engine's loop for everybody.
#[test]
fn logits_that_are_no_numbers_fail_only_their_request() {
    let mut model = FakeModel::new(512);
    model.poison = Some(39);
    let budget = Arc::new(KvBudget::new(Bytes(64 * PAGE_BYTES)));
    let mut engine = Engine::new(Box::new(model), budget, steps(512)).unwrap();
    let mut listener = Listener::default();
    engine.submit(request(0, vec![1, 2, 39], 5)).unwrap();
    let banned = engine::Sampling { temperature: 0.0, logit_bias: vec![(39, -100.0)], ..Default::default() };
    engine.submit(Request { sampling: banned, ..request(1, vec![1, 2, 3], 5) }).unwrap();
    drain(&mut engine, &mut listener);
    let outcome = |id| &listener.outcomes[&RequestId(id)];
    assert_eq!(outcome(0).answers[0].finished, Some(FinishReason::Failed));
    assert_eq!(outcome(1).answers[0].finished, Some(FinishReason::Length));
    assert_eq!(outcome(1).ids().len(), 5);
}

#[test]
fn after_a_panic_everything_in_flight_fails_and_the_engine_goes_on() {
    let mut model = FakeModel::new(512);
    model.bomb = Some(39);
    let budget = Arc::new(KvBudget::new(Bytes(64 * PAGE_BYTES)));
    let mut engine = Engine::new(Box::new(model), Arc::clone(&budget), steps(8)).unwrap();
    let mut events = Vec::new();
    for id in 0..3 {
        engine.submit(Request { choices: 2, ..request(id, [text(id, 20), vec![39]].concat(), 5) }).unwrap();
    }
    let panicked = catch_unwind(AssertUnwindSafe(|| while engine.step(&mut events) != Activity::Idle {}));
    assert!(panicked.is_err());
    engine.fail_all(&mut events);
    let mut listener = Listener::default();
    listener.outcomes.insert(RequestId(0), Outcome::default());
    events.retain(|e| !matches!(e.kind, EventKind::Started { .. }));
    let done = events.iter().filter(|e| matches!(e.kind, EventKind::Done(_))).count();
    let failed =
        |e: &&engine::Event| matches!(e.kind, EventKind::Finished { reason: FinishReason::Failed, .. });
    assert_eq!((done, events.iter().filter(failed).count()), (3, 6));
    assert_eq!(budget.used(), Bytes(0));
    assert_at_rest(&engine, 64);
    assert_eq!(run(&mut engine, request(0, vec![1, 2, 3], 1)).ids().len(), 1);
}

#[test]
fn a_device_with_less_memory_than_the_budget_fails_what_cannot_fit_and_serves_the_rest() {
    let mut model = FakeModel::new(512);
    model.most_pages = 6;
    let budget = Arc::new(KvBudget::new(Bytes(64 * PAGE_BYTES)));
    let mut engine = Engine::new(Box::new(model), budget, steps(512)).unwrap();
    let mut listener = Listener::default();
    for id in 0..4 {
        engine.submit(request(id, text(id, 20), 40)).unwrap();
    }
    engine.submit(request(4, text(4, 200), 1)).unwrap();
    drain(&mut engine, &mut listener);
    for id in 0..4 {
        assert_eq!(listener.outcomes[&RequestId(id)].ids().len(), 40);
    }
    assert_eq!(listener.outcomes[&RequestId(4)].answers[0].finished, Some(FinishReason::Failed));
}

#[test]
fn logits_for_reports_are_bounded_per_step() {
    let model = FakeModel::new(4096);
    let seen = model.seen();
    let budget = Arc::new(KvBudget::new(Bytes(256 * PAGE_BYTES)));
    let mut engine = Engine::new(Box::new(model), budget, steps(512)).unwrap();
    let mut listener = Listener::default();
    for id in 0..4 {
        engine.submit(Request { prompt_logprobs: Some(0), ..request(id, text(id, 300), 3) }).unwrap();
    }
    drain(&mut engine, &mut listener);
    assert!(seen.most_logit_rows.load(Ordering::Relaxed) <= 32 + 4);
    assert_eq!(listener.outcomes[&RequestId(3)].prompt.len(), 299);
}

#[test]
fn a_thousand_requests_with_cancellations_leave_nothing_behind() {
    let model = FakeModel::new(4096);
    let seen = model.seen();
    let budget = Arc::new(KvBudget::new(Bytes(40 * PAGE_BYTES)));
    let mut engine = Engine::new(Box::new(model), budget, steps(64)).unwrap();
    let (mut listener, mut events) = (Listener::default(), Vec::new());
    for id in 0..1000 {
        let dice = |n: u64| base::rng::bits(5, 0, id as u32) % n;
        let prompt = [text(dice(3), 40), text(id, 1 + dice(50) as usize)].concat();
        let choices = 1 + dice(2) as u32;
        engine.submit(Request { choices, ..request(id, prompt, dice(40) as u32) }).unwrap();
        for _ in 0..dice(6) {
            engine.step(&mut events);
            listener.hear(&mut events);
        }
        if dice(4) == 0 {
            engine.cancel(RequestId(id - dice(20).min(id)));
            engine.check();
        }
    }
    drain(&mut engine, &mut listener);
    assert_at_rest(&engine, 40);
    let counters = engine.stats().counters;
    assert_eq!(counters.finished + counters.cancelled, 1000);
    assert!(counters.cancelled > 0 && counters.preemptions > 0 && counters.evicted_pages > 0);
    assert!(seen.pages.load(Ordering::Relaxed) <= 40, "the model holds no more pages than the budget");
}

//! Drafts: when they run, what they cost, and that nothing but the number of steps tells of them. That no answer
//! changes under any schedule is `exactness.rs`.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use base::{Namespace, RequestId, Tokens};
use common::*;
use engine::{Activity, Config, Counters, DraftCost, Engine, FinishReason, Request, Sampling};
use std::sync::atomic::Ordering;

fn cost(engine: &mut Engine, row: f32) {
    engine.set_draft_cost(DraftCost { first: row, row });
}

fn echoing(pages: u64, speculation: bool) -> Engine {
    let mut engine =
        engine_of(FakeModel::new(4096).echoing(), pages, Config { speculation, ..Config::default() });
    cost(&mut engine, 0.05);
    engine
}

/// Runs a request with drafts and without; the outcome is the same.
fn both(make: impl Fn() -> Request) -> (Outcome, [Counters; 2]) {
    let [with, without] = [true, false].map(|speculation| {
        let mut engine = echoing(256, speculation);
        let outcome = run(&mut engine, make());
        assert_at_rest(&engine, 256);
        (outcome, engine.stats().counters)
    });
    assert_eq!(with.0, without.0);
    assert_eq!((without.1.drafted_tokens, without.1.accepted_tokens), (0, 0));
    (with.0, [with.1, without.1])
}

#[test]
fn a_text_that_repeats_itself_takes_few_steps_and_is_billed_like_any_other() {
    let (outcome, [with, without]) = both(|| request(0, text(1, 40), 200));
    assert_eq!(outcome.usage.unwrap().completion, Tokens(200));
    assert!(with.steps * 3 < without.steps, "{} of {}", with.steps, without.steps);
    assert_eq!(with.completion_tokens, without.completion_tokens);
    assert_eq!(with.prompt_tokens_computed, without.prompt_tokens_computed);
    // Each token but the first was either accepted or chosen in a step of its own.
    assert_eq!(with.accepted_tokens + with.steps, 200);
    assert_eq!(with.rows - with.drafted_tokens, without.rows - with.accepted_tokens);
}

#[test]
fn log_probabilities_penalties_and_chance_are_those_of_no_draft() {
    for temperature in [0.0, 0.8, 1.5] {
        let sampling = Sampling { temperature, seed: 3, frequency_penalty: 0.1, ..Sampling::default() };
        let make = || Request {
            sampling: sampling.clone(),
            logprobs: Some(3),
            choices: 2,
            ..request(0, text(1, 40), 90)
        };
        let (_, [with, _]) = both(make);
        assert!(with.accepted_tokens > 0, "{temperature}: {with:?}");
    }
}

#[test]
fn an_answer_ends_within_a_draft_as_it_would_without() {
    let (whole, _) = both(|| request(0, text(1, 40), 80));
    let ids = whole.ids();
    for at in 30..60 {
        let stop = ids[at];
        let first = ids.iter().position(|id| *id == stop).unwrap();
        let (outcome, _) = both(|| Request { stop_tokens: vec![stop], ..request(0, text(1, 40), 80) });
        assert_eq!(outcome.ids(), ids[..first]);
        assert_eq!(outcome.answers[0].finished, Some(FinishReason::Stop));
        let (outcome, _) = both(|| Request { logprobs: Some(0), ..request(0, text(1, 40), at as u32) });
        assert_eq!(outcome.ids(), ids[..at]);
        assert_eq!(outcome.answers[0].finished, Some(FinishReason::Length));
    }
}

#[test]
fn what_a_dropped_draft_computed_is_never_read() {
    // Chance often drops a draft, and then the same pages serve another request's prefix. The fake's logits would show
    // any token that does not belong there.
    let mut engine = echoing(32, true);
    let sampling = Sampling { temperature: 1.6, seed: 1, ..Sampling::default() };
    let first = run(&mut engine, Request { sampling, ..request(0, text(1, 40), 120) });
    let counters = engine.stats().counters;
    assert!(counters.drafted_tokens > counters.accepted_tokens, "{counters:?}");
    for cut in [41, 60, 79, 100, 140] {
        let mut prompt = text(1, 40);
        prompt.extend(first.ids());
        prompt.truncate(cut);
        let wanted = || request(cut as u64, prompt.clone(), 30);
        let outcome = run(&mut engine, wanted());
        assert!(outcome.cached.unwrap() > Tokens(16), "{cut}");
        let model = FakeModel::new(4096).echoing();
        assert_eq!(outcome.without_cache(), alone(model, wanted(), engine.context()), "{cut}");
    }
}

#[test]
fn a_namespaces_answers_are_drafted_from_and_no_others() {
    let steps = |second: u64| {
        let mut engine = engine(256, Config::default());
        cost(&mut engine, 0.01);
        run(&mut engine, request(0, text(1, 20), 60));
        let before = engine.stats().counters;
        let again = Request { namespace: Namespace(second), ..request(1, text(1, 20), 60) };
        run(&mut engine, again);
        let after = engine.stats().counters;
        (after.steps - before.steps, after.accepted_tokens - before.accepted_tokens)
    };
    let (steps_same, accepted) = steps(0);
    assert!(steps_same < 20 && accepted > 40, "{steps_same} steps, {accepted} accepted");
    let (steps_other, accepted) = steps(1);
    assert!(steps_other > 55 && accepted < 5, "{steps_other} steps, {accepted} accepted");
}

#[test]
fn a_prediction_saves_steps_as_far_as_it_comes_true_and_changes_no_answer() {
    let ask = |prediction: Vec<u32>, speculation| {
        let mut engine = engine(256, Config { speculation, ..Config::default() });
        cost(&mut engine, 0.01);
        let sampling = Sampling { temperature: 0.8, seed: 5, ..Sampling::default() };
        let wanted = Request { prediction, sampling, choices: 2, ..request(0, text(1, 20), 60) };
        let Outcome { answers, usage, predicted, .. } = run(&mut engine, wanted);
        assert_at_rest(&engine, 256);
        (answers, usage, predicted, engine.stats().counters.steps)
    };
    let (answers, usage, predicted, steps) = ask(Vec::new(), false);
    assert_eq!(predicted, (0, 0));
    let right = answers[0].ids();
    let mut changed = right.clone();
    changed.splice(30..33, [1, 2, 3, 4]);
    let mut told = Vec::new();
    for prediction in [right.clone(), changed, text(9, 60)] {
        let with = ask(prediction.clone(), true);
        assert_eq!((&with.0, with.1), (&answers, usage), "{prediction:?}");
        told.push((with.2, with.3));
        assert_eq!(ask(prediction, false), (answers.clone(), usage, (0, 0), steps), "drafts are off");
    }
    let [(whole, _), (changed, _), (wrong, _)] = told[..] else { panic!("three predictions") };
    assert!(whole.0 > 50, "{whole:?}");
    assert!(changed.0 > 40 && changed.1 > whole.1, "it goes on behind the change: {changed:?}");
    assert!(wrong.0 < 5, "{wrong:?}");
}

#[test]
fn rows_that_cost_too_much_are_not_drafted() {
    for (row, drafts) in [(5.0, false), (0.9, false), (0.02, true)] {
        let mut engine = echoing(256, true);
        cost(&mut engine, row);
        run(&mut engine, request(0, text(1, 40), 80));
        assert_eq!(engine.stats().counters.drafted_tokens > 0, drafts, "{row}");
    }
    let mut engine = echoing(256, true);
    for nonsense in [f32::NAN, f32::INFINITY, -1.0] {
        cost(&mut engine, nonsense);
    }
    run(&mut engine, request(0, text(1, 40), 80));
    assert!(engine.stats().counters.drafted_tokens > 0, "what is no cost is ignored");
}

#[test]
fn a_crowd_does_without_drafts() {
    let drafted = |sequences: u64| {
        let mut engine = echoing(1024, true);
        (0..sequences).for_each(|id| engine.submit(request(id, text(id, 40), 60)).unwrap());
        drain(&mut engine, &mut Listener::default());
        engine.stats().counters.drafted_tokens
    };
    assert!(drafted(1) > 0 && drafted(2) > 0);
    assert_eq!(drafted(30), 0);
}

#[test]
fn a_step_with_a_prompt_has_no_drafts() {
    let model = FakeModel::new(4096).echoing();
    let seen = model.seen();
    let mut engine = engine_of(model, 1024, Config { step_tokens: Tokens(32), ..Config::default() });
    cost(&mut engine, 0.01);
    let mut events = Vec::new();
    engine.submit(request(0, text(1, 30), 400)).unwrap();
    while engine.stats().counters.accepted_tokens == 0 {
        engine.step(&mut events);
    }
    engine.submit(request(1, text(2, 320), 1)).unwrap();
    let before = engine.stats().counters;
    while engine.stats().counters.prompt_tokens_computed < 350 {
        engine.step(&mut events);
    }
    let after = engine.stats().counters;
    assert_eq!(after.drafted_tokens, before.drafted_tokens);
    assert!(seen.most_rows.load(Ordering::Relaxed) <= 33);
}

#[test]
fn drafts_take_no_memory_from_anybody() {
    // Two sequences that fill the pool to the last page; a draft that crossed into a page of its own would cost the
    // younger one its pages.
    let tell = |speculation| {
        let mut engine = echoing(8, speculation);
        let mut listener = Listener::default();
        (0..2).for_each(|id| engine.submit(request(id, text(id, 40), 24)).unwrap());
        drain(&mut engine, &mut listener);
        (listener.outcomes, engine.stats().counters)
    };
    let (with, without) = (tell(true), tell(false));
    assert_eq!(with.0, without.0);
    assert!(with.1.drafted_tokens > 0);
    assert_eq!((with.1.preemptions, without.1.preemptions), (0, 0));
}

#[test]
fn a_panic_or_a_cancellation_amid_drafts_leaves_nothing_behind() {
    let mut engine = echoing(64, true);
    let mut events = Vec::new();
    engine.submit(request(0, text(1, 40), 400)).unwrap();
    while engine.stats().counters.accepted_tokens == 0 {
        assert_eq!(engine.step(&mut events), Activity::Worked);
    }
    engine.cancel(RequestId(0));
    assert_at_rest(&engine, 64);
    engine.submit(request(1, text(1, 40), 400)).unwrap();
    (0..20).for_each(|_| assert_eq!(engine.step(&mut events), Activity::Worked));
    engine.fail_all(&mut events);
    assert_at_rest(&engine, 64);
    let outcome = run(&mut engine, request(2, text(1, 40), 50));
    let model = FakeModel::new(4096).echoing();
    assert_eq!(outcome.without_cache(), alone(model, request(2, text(1, 40), 50), engine.context()));
}

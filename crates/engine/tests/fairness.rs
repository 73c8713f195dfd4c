//! What a step is shared out to: long and short prompts, and answers that are being written. Counted in steps and
//! rows; a step's time is what the prices say.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use base::{RequestId, Tokens};
use common::*;
use engine::{Activity, Config, Engine, Event, EventKind, Prices, StepLimit};
use proptest::prelude::*;

fn steps(rows: u32) -> Config {
    Config { step_tokens: Tokens(rows), ..Config::default() }
}

fn tokens_of(events: &[Event], id: u64) -> usize {
    let tokens = events.iter().filter(|e| matches!(e.kind, EventKind::Token { .. }));
    tokens.filter(|e| e.request == RequestId(id)).count()
}

/// Steps until a request gives its first token.
fn first_token(engine: &mut Engine, id: u64) -> usize {
    for step in 1..5000 {
        let mut events = Vec::new();
        assert_eq!(engine.step(&mut events), Activity::Worked);
        engine.check();
        if tokens_of(&events, id) > 0 {
            return step;
        }
    }
    panic!("no token comes");
}

#[test]
fn a_short_prompt_behind_long_ones_waits_for_twice_its_own_rows_only() {
    let mut engine = engine(1000, steps(64));
    for id in 0..20 {
        engine.submit(request(id, text(id, 1000), 1)).unwrap();
    }
    engine.step(&mut Vec::new());
    engine.submit(request(99, text(99, 100), 1)).unwrap();
    assert!(first_token(&mut engine, 99) <= (2 * 100usize).div_ceil(64));
    // The oldest has had half meanwhile, and all since.
    assert!(first_token(&mut engine, 0) <= (1000usize + 100).div_ceil(64) - 4);
    while engine.step(&mut Vec::new()) == Activity::Worked {}
    assert!(engine.stats().counters.prompt_tokens_computed <= 20 * 1000 + 100, "nothing is computed twice");
}

#[test]
fn prompts_of_about_a_length_come_one_after_the_other() {
    let mut engine = engine(100, steps(64));
    for id in 0..4 {
        engine.submit(request(id, text(id, 200 - 20 * id as usize), 1)).unwrap();
    }
    let mut order = Vec::new();
    for _ in 0..20 {
        let mut events = Vec::new();
        engine.step(&mut events);
        order.extend((0..4).filter(|id| tokens_of(&events, *id) > 0));
    }
    assert_eq!(order, [0, 1, 2, 3]);
}

#[test]
fn where_nothing_decodes_a_step_ends_with_a_prompt() {
    let mut engine = engine(200, steps(512));
    for id in 0..8 {
        engine.submit(request(id, text(id, 125), 9)).unwrap();
    }
    let mut events = Vec::new();
    engine.step(&mut events);
    assert_eq!(
        (tokens_of(&events, 0), engine.work().prompt_rows),
        (1, 128),
        "the first need not wait for more"
    );
    engine.step(&mut events);
    assert_eq!((engine.work().decode_rows, engine.work().prompt_rows), (1, 511));
}

/// A machine on which a row costs more the further back it looks.
const PRICES: Prices =
    Prices { step: 5.0, decode_row: 1.0, decode_read: 0.01, prompt_row: 1.0, prompt_read: 0.002 };

// https://github.com/local-inference-lab/vllm/issues/541: decoding fell from 270 to 6.6 tokens a second while 64k tokens
// of a prompt came in. https://github.com/blazux/qwen3.8-Flash-DGX/issues/9: one token in 3.5 s.
#[test]
fn answers_keep_half_their_speed_while_a_cold_long_prompt_comes_in_and_it_takes_twice_its_time_at_most() {
    let mut alone = engine(400, steps(512));
    alone.submit(request(9, text(9, 2000), 1)).unwrap();
    let mut seconds_alone = 0.0;
    while alone.step(&mut Vec::new()) == Activity::Worked {
        seconds_alone += PRICES.of(&alone.work());
    }
    for answers in [1, 8] {
        let mut engine = engine(400, steps(512));
        engine.set_step_limit(Some(StepLimit { prices: PRICES, seconds: 40.0, decodes: 2.0 }));
        for id in 0..answers {
            engine.submit(request(id, text(id, 30), 3000)).unwrap();
        }
        while engine.work().decode_rows < answers {
            engine.step(&mut Vec::new());
        }
        engine.submit(request(9, text(9, 2000), 1)).unwrap();
        let (mut seconds, mut came) = (0.0, false);
        while !came {
            let mut events = Vec::new();
            engine.step(&mut events);
            let work = engine.work();
            // The last row of the prompt may count as one that decodes.
            assert!(work.decode_rows >= answers);
            assert!((0..answers).all(|id| tokens_of(&events, id) == 1), "each answer goes on in each step");
            let decodes = PRICES.of(&engine::Work { prompt_rows: 0, prompt_reads: 0, ..work });
            let took = PRICES.of(&work);
            assert!(took <= f64::max(40.0, 2.0 * decodes), "{took} for {decodes}");
            seconds += took;
            came = tokens_of(&events, 9) > 0;
        }
        // Rows are whole, so a little of each step stays unused.
        assert!(seconds <= 2.05 * seconds_alone, "{answers}: {seconds} instead of {seconds_alone}");
    }
}

#[test]
fn only_decodes_bound_a_step_and_a_prompt_gets_on_under_any_limit() {
    let mut engine = engine(100, steps(512));
    engine.set_step_limit(Some(StepLimit { prices: PRICES, seconds: 1.0, decodes: 0.0 }));
    engine.submit(request(0, text(0, 300), 50)).unwrap();
    engine.step(&mut Vec::new());
    assert_eq!(engine.work().prompt_rows, 300);
    engine.submit(request(1, text(1, 39), 1)).unwrap();
    engine.submit(request(2, text(2, 5), 1)).unwrap();
    assert_eq!(first_token(&mut engine, 1), 10, "four rows in each step");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    /// Whatever short prompts come, and however many, the oldest prompt has half of all rows; and no short one waits
    /// for ever.
    #[test]
    fn no_prompt_starves(
        rows in prop::sample::select(vec![2u32, 16, 64, 300]),
        long in 50usize..600,
        shorts in prop::collection::vec((0usize..3, 1usize..120), 0..60),
        limit in prop::option::of(10.0f64..200.0),
    ) {
        let mut engine = engine(2000, steps(rows));
        engine.set_step_limit(limit.map(|seconds| StepLimit { prices: PRICES, seconds, decodes: 2.0 }));
        engine.submit(request(0, text(0, long), 1)).unwrap();
        let (mut listener, mut events) = (Listener::default(), Vec::new());
        let mut needed = None;
        for (id, (pause, len)) in (1..).zip(&shorts) {
            engine.submit(request(id, text(id, *len), 1)).unwrap();
            for _ in 0..*pause {
                engine.step(&mut events);
                engine.check();
                if tokens_of(&events, 0) > 0 {
                    needed.get_or_insert(engine.stats().counters.rows);
                }
                listener.hear(&mut events);
            }
        }
        while engine.step(&mut events) == Activity::Worked {
            if tokens_of(&events, 0) > 0 {
                needed.get_or_insert(engine.stats().counters.rows);
            }
            listener.hear(&mut events);
        }
        prop_assert!(needed.unwrap() as usize <= 2 * long + rows as usize, "{needed:?}");
        prop_assert_eq!(listener.outcomes.len(), shorts.len() + 1);
    }
}

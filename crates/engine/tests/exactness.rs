//! Whatever the schedule, the pool and the cache do, each request gets the answer that it gets alone.

mod common;

use base::{Namespace, RequestId, Tokens};
use common::*;
use engine::{Activity, Config, Constraint, DraftCost, Request, Sampling};
use proptest::prelude::*;

/// A request as plain data, so that it can be made twice.
#[derive(Clone, Debug)]
struct Plan {
    system: (u64, usize),
    own: (u64, usize),
    namespace: u64,
    max_tokens: u32,
    choices: u32,
    sampling: u32,
    logprobs: Option<u32>,
    prompt_logprobs: Option<u32>,
    constraint: u32,
    stop: bool,
}

impl Plan {
    fn request(&self, id: u64) -> Request {
        let mut prompt = text(self.system.0, self.system.1);
        prompt.extend(text(100 + self.own.0, self.own.1));
        let constraint = |choice: u32| -> Box<dyn Constraint> {
            let lead = if self.constraint == 2 { text(50, 20) } else { vec![] };
            Box::new(Alternate { end: 12 + choice as usize, lead, ..Alternate::default() })
        };
        let constraints =
            if self.constraint > 0 { (0..self.choices).map(constraint).collect() } else { vec![] };
        let sampling = Sampling { temperature: 0.0, seed: 7, ..Sampling::default() };
        let sampling = match self.sampling {
            0 => sampling,
            1 => Sampling { temperature: 0.9, ..sampling },
            2 => Sampling { temperature: 1.3, top_k: Some(9), top_p: 0.8, min_p: 0.05, ..sampling },
            _ => Sampling {
                temperature: 0.7,
                repetition_penalty: 1.3,
                frequency_penalty: 0.4,
                presence_penalty: 0.2,
                logit_bias: vec![(3, -100.0), (4, 1.5)],
                ..sampling
            },
        };
        Request {
            namespace: Namespace(self.namespace),
            sampling,
            choices: self.choices,
            stop_tokens: if self.stop { vec![7, 8] } else { vec![] },
            logprobs: self.logprobs,
            prompt_logprobs: self.prompt_logprobs,
            constraints,
            ..request(id, prompt, self.max_tokens)
        }
    }
}

fn plans() -> impl Strategy<Value = Plan> {
    let prompt = (
        (0u64..2, prop::sample::select(vec![0usize, 5, 16, 20, 33])),
        (0u64..4, 1usize..30),
        0u64..2,
        prop::sample::select(vec![0u32, 1, 3, 12, 25, 40]),
    );
    let answer = (
        prop::sample::select(vec![1u32, 1, 1, 2, 3]),
        0u32..4,
        prop::option::weighted(0.3, 0u32..4),
        prop::option::weighted(0.15, 0u32..3),
        prop::sample::select(vec![0u32, 0, 0, 1, 2]),
        any::<bool>(),
    );
    (prompt, answer).prop_map(|((system, own, namespace, max_tokens), answer)| {
        let (choices, sampling, logprobs, prompt_logprobs, constraint, stop) = answer;
        Plan {
            system,
            own,
            namespace,
            max_tokens,
            choices,
            sampling,
            logprobs,
            prompt_logprobs,
            constraint,
            stop,
        }
    })
}

#[derive(Clone, Debug)]
enum Op {
    Submit(Plan),
    Step(usize),
    Cancel(usize),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![
        4 => plans().prop_map(Op::Submit),
        4 => (1usize..6).prop_map(Op::Step),
        1 => any::<usize>().prop_map(Op::Cancel),
    ];
    prop::collection::vec(op, 1..40)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_schedule_changes_an_answer_or_loses_a_page(
        ops in ops(),
        pages in 7u64..24,
        step_tokens in prop::sample::select(vec![1u32, 7, 16, 64, 512]),
        max_running in 1usize..8,
        echoing in any::<bool>(),
        speculation in prop::bool::weighted(0.8),
        row_cost in prop::sample::select(vec![0.001f32, 0.1, 0.3]),
    ) {
        let model = || if echoing { FakeModel::new(4096).echoing() } else { FakeModel::new(4096) };
        let config = Config { step_tokens: Tokens(step_tokens), max_running, queue: 1000, context: None, speculation };
        let mut engine = engine_of(model(), pages, config);
        engine.set_draft_cost(DraftCost { first: row_cost, row: row_cost });
        let (mut listener, mut events) = (Listener::default(), Vec::new());
        let mut submitted: Vec<(Plan, bool)> = Vec::new();
        for op in ops {
            match op {
                Op::Submit(plan) => {
                    let id = submitted.len() as u64;
                    engine.submit(plan.request(id)).unwrap();
                    submitted.push((plan, false));
                }
                Op::Step(n) => for _ in 0..n {
                    engine.step(&mut events);
                    listener.hear(&mut events);
                    engine.check();
                },
                Op::Cancel(which) if !submitted.is_empty() => {
                    let which = which % submitted.len();
                    engine.cancel(RequestId(which as u64));
                    submitted[which].1 = true;
                }
                Op::Cancel(which) => engine.cancel(RequestId(which as u64)),
            }
            engine.check();
        }
        drain(&mut engine, &mut listener);
        assert_at_rest(&engine, pages as usize);
        for (id, (plan, cancelled)) in submitted.iter().enumerate() {
            let id = id as u64;
            let outcome = listener.outcomes.remove(&RequestId(id)).unwrap_or_default();
            if outcome.usage.is_none() {
                prop_assert!(*cancelled, "request {id} was forgotten");
                continue;
            }
            if plan.prompt_logprobs.is_some() {
                prop_assert_eq!(outcome.cached, Some(Tokens(0)));
            }
            prop_assert_eq!(outcome.cached, outcome.usage.map(|usage| usage.cached));
            let expected = alone(model(), plan.request(id), engine.context());
            prop_assert_eq!(outcome.without_cache(), expected, "request {}: {:?}", id, plan);
        }
    }
}

#[test]
fn a_greedy_answer_follows_the_logits_of_its_own_prefix() {
    let mut engine = engine(8, Config { step_tokens: Tokens(7), ..Config::default() });
    for (id, len) in [(0, 3), (1, 40), (2, 41)] {
        let prompt = text(id, len);
        let outcome = run(&mut engine, Request { logprobs: Some(2), ..request(id, prompt.clone(), 20) });
        let mut tokens = prompt;
        for (id, reported) in &outcome.answers[0].tokens {
            let logits = logits_after(&tokens);
            let mut order: Vec<u32> = (0..VOCAB).collect();
            order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]));
            assert_eq!(*id, order[0]);
            let reported = reported.as_ref().unwrap();
            assert_eq!(reported.top.iter().map(|t| t.id).collect::<Vec<_>>(), order[..2]);
            let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
            let logprob = f64::from(logits[*id as usize]) - sum.ln();
            assert!((f64::from(reported.chosen.logprob) - logprob).abs() < 1e-5);
            tokens.push(*id);
        }
        assert_eq!(outcome.answers[0].tokens.len(), 20);
    }
}

#[test]
fn prompt_logprobs_tell_how_likely_each_prompt_token_was() {
    let prompt = text(3, 90);
    let mut engine = engine(64, Config::default());
    run(&mut engine, request(0, prompt.clone(), 1));
    let wanted = Request { prompt_logprobs: Some(1), logprobs: Some(0), ..request(1, prompt.clone(), 2) };
    let outcome = run(&mut engine, wanted);
    assert_eq!(outcome.cached, Some(Tokens(0)), "the logits are owed, so nothing is taken from the cache");
    assert_eq!(outcome.prompt.len(), prompt.len() - 1);
    for (i, entry) in outcome.prompt.iter().enumerate() {
        let logits = logits_after(&prompt[..=i]);
        let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        assert_eq!(entry.chosen.id, prompt[i + 1]);
        let logprob = f64::from(logits[entry.chosen.id as usize]) - sum.ln();
        assert!((f64::from(entry.chosen.logprob) - logprob).abs() < 1e-5);
    }
}

#[test]
fn a_prompt_of_one_token_has_no_log_probabilities_and_lends_none_to_the_answer() {
    let mut engine = engine(64, Config::default());
    let wanted = Request { prompt_logprobs: Some(2), ..request(0, text(3, 1), 4) };
    let outcome = run(&mut engine, wanted);
    assert!(outcome.prompt.is_empty());
    assert_eq!(outcome.ids().len(), 4);
    assert!(outcome.answers[0].tokens.iter().all(|(_, logprobs)| logprobs.is_none()), "none were asked for");
}

#[test]
fn forced_tokens_are_answer_tokens_and_count() {
    let mut engine = engine(64, Config::default());
    let lead = text(9, 30);
    let constraint = Alternate { end: 99, lead: lead.clone(), ..Alternate::default() };
    let wanted = Request { constraints: vec![Box::new(constraint)], ..request(0, text(1, 10), 40) };
    let outcome = run(&mut engine, wanted);
    assert_eq!(outcome.ids()[..30], lead);
    assert_eq!(outcome.ids().len(), 40);
    let steps = engine.stats().counters.steps;
    assert!(steps < 20, "30 forced tokens run in one step, not in 30: {steps}");
}

#[test]
fn a_constraint_that_says_so_when_asked_for_a_mask_ends_the_answer() {
    let mut engine = engine(64, Config::default());
    let constraint = Alternate { end: 4, ..Alternate::default() };
    let wanted = Request { constraints: vec![Box::new(constraint)], ..request(0, text(1, 10), 40) };
    let outcome = run(&mut engine, wanted);
    assert_eq!(outcome.answers[0].finished, Some(engine::FinishReason::Complete));
    assert!(outcome.ids().len() >= 4 && outcome.ids().len() < 8);
}

#[test]
fn a_step_with_nothing_to_do_is_idle() {
    let mut engine = engine(8, Config::default());
    assert_eq!(engine.step(&mut Vec::new()), Activity::Idle);
    engine.cancel(RequestId(3));
    assert_eq!(engine.step(&mut Vec::new()), Activity::Idle);
}

//! What an engine does with what a constraint says: forced tokens, ends, failures, one constraint per choice.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use base::Tokens;
use common::*;
use engine::{Config, Constraint, FinishReason, Request, Sampling, Standing, TokenMask};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Wants these tokens one after the other; then ends, or fails. What is `forced` it does not leave to the model.
#[derive(Clone)]
struct Script {
    tokens: Vec<u32>,
    accepted: usize,
    /// The tokens at these places are forced.
    forced: std::ops::Range<usize>,
    /// What follows the last token.
    after: Standing,
    /// Says how it stands as soon as it knows, not only when asked for a mask.
    early: bool,
    masks: Arc<AtomicUsize>,
}

impl Script {
    fn new(tokens: &[u32]) -> Self {
        Self {
            tokens: tokens.to_vec(),
            accepted: 0,
            forced: 0..0,
            after: Standing::Ended,
            early: true,
            masks: Arc::default(),
        }
    }

    fn now(&self) -> Standing {
        if self.accepted < self.tokens.len() { Standing::Open } else { self.after }
    }
}

impl Constraint for Script {
    fn mask(&mut self, allowed: &mut TokenMask) -> Standing {
        self.masks.fetch_add(1, Ordering::Relaxed);
        if let Some(token) = self.tokens.get(self.accepted) {
            allowed.allow(*token);
        }
        self.now()
    }

    fn accept(&mut self, token: u32) {
        assert_eq!(self.tokens.get(self.accepted), Some(&token), "only what is allowed comes");
        self.accepted += 1;
    }

    fn forced(&mut self, out: &mut Vec<u32>) {
        if self.forced.contains(&self.accepted) {
            out.extend(&self.tokens[self.accepted..self.forced.end]);
        }
    }

    fn standing(&mut self) -> Standing {
        if self.early { self.now() } else { Standing::Open }
    }
}

fn asked(constraint: Script, max_tokens: u32) -> Request {
    Request { constraints: vec![Box::new(constraint)], ..request(0, text(1, 10), max_tokens) }
}

#[test]
fn an_answer_that_is_whole_ends_without_a_stop_token_and_without_a_step_for_it() {
    let ids = text(5, 6);
    let mut steps = Vec::new();
    for early in [true, false] {
        let mut engine = engine(64, Config::default());
        let outcome = run(&mut engine, asked(Script { early, ..Script::new(&ids) }, 40));
        assert_eq!(outcome.ids(), ids);
        assert_eq!(outcome.answers[0].finished, Some(FinishReason::Complete));
        assert_eq!(outcome.usage.unwrap().completion, Tokens(6), "no token is billed that was not made");
        steps.push(engine.stats().counters.steps);
    }
    assert_eq!(steps[0] + 1, steps[1], "one that tells early saves the step that would find it out");
}

#[test]
fn an_answer_that_is_whole_with_its_last_token_is_not_cut() {
    let ids = text(5, 6);
    for (max_tokens, reason) in
        [(5, FinishReason::Length), (6, FinishReason::Complete), (7, FinishReason::Complete)]
    {
        let outcome = run(&mut engine(64, Config::default()), asked(Script::new(&ids), max_tokens));
        assert_eq!(outcome.answers[0].finished, Some(reason), "{max_tokens}");
    }
}

#[test]
fn a_constraint_with_nothing_to_say_gives_an_empty_answer() {
    let outcome = run(&mut engine(64, Config::default()), asked(Script::new(&[]), 8));
    assert_eq!(outcome.answers[0].finished, Some(FinishReason::Complete));
    assert!(outcome.ids().is_empty());
    assert_eq!(outcome.usage.unwrap().completion, Tokens(0));
}

#[test]
fn a_failed_constraint_ends_the_answer_as_failed_and_never_unconstrained() {
    let ids = text(5, 6);
    for early in [true, false] {
        for forced in [0..0, 2..6] {
            let script = Script { after: Standing::Failed, early, forced, ..Script::new(&ids) };
            let mut engine = engine(64, Config::default());
            let outcome = run(&mut engine, asked(script, 40));
            assert_eq!(outcome.answers[0].finished, Some(FinishReason::ConstraintFailed), "{early}");
            assert_eq!(outcome.ids(), ids, "what came before it stays");
            let after = run(&mut engine, request(1, text(2, 10), 4));
            assert_eq!(after.answers[0].finished, Some(FinishReason::Length), "others go on");
        }
    }
}

#[test]
fn bans_that_leave_nothing_of_what_is_allowed_fail_the_answer() {
    let sampling = Sampling { logit_bias: vec![(7, -100.0)], temperature: 0.0, ..Sampling::default() };
    let wanted = Request { sampling, ..asked(Script::new(&[3, 7, 9]), 40) };
    let outcome = run(&mut engine(64, Config::default()), wanted);
    assert_eq!(outcome.answers[0].finished, Some(FinishReason::ConstraintFailed), "a stop would look whole");
    assert_eq!(outcome.ids(), [3]);
}

#[test]
fn forced_tokens_are_the_same_tokens_with_the_same_log_probabilities_in_fewer_steps() {
    let ids = text(5, 30);
    let tell = |forced: std::ops::Range<usize>| {
        let mut engine = engine(64, Config::default());
        let script = Script { forced, ..Script::new(&ids) };
        let masks = Arc::clone(&script.masks);
        let outcome = run(&mut engine, Request { logprobs: Some(2), ..asked(script, 99) });
        (outcome, masks.load(Ordering::Relaxed), engine.stats().counters.steps)
    };
    let (sampled, masks, steps) = tell(0..0);
    assert_eq!(masks, 30);
    for forced in [0..30, 0..12, 4..25, 20..30] {
        let (outcome, fewer_masks, fewer_steps) = tell(forced.clone());
        assert_eq!(outcome, sampled, "{forced:?}");
        assert_eq!(fewer_masks, 30 - forced.len(), "no mask is asked for a forced token");
        assert!(fewer_steps + forced.len() as u64 <= steps + 3, "{forced:?}: {fewer_steps} of {steps}");
    }
}

#[test]
fn each_choice_has_its_own_constraint() {
    let mut engine = engine(64, Config::default());
    let scripts: Vec<_> = (0..3).map(|i| text(20 + i, 4 + i as usize)).collect();
    let wanted = Request {
        choices: 3,
        constraints: scripts.iter().map(|ids| Box::new(Script::new(ids)) as Box<dyn Constraint>).collect(),
        ..request(0, text(1, 10), 40)
    };
    let outcome = run(&mut engine, wanted);
    for (answer, ids) in outcome.answers.iter().zip(&scripts) {
        assert_eq!(answer.ids(), *ids);
        assert_eq!(answer.finished, Some(FinishReason::Complete));
    }
    assert_at_rest(&engine, 64);
}

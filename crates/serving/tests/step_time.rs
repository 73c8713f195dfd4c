//! The time of a step while answers are written, on a machine whose clock moves only by what its steps cost.

#![allow(clippy::unwrap_used)]

mod common;

use base::{Bytes, Clock};
use common::{Controls, Scripted, chat, until};
use device::Batch;
use futures::StreamExt as _;
use models::checkpoint::GenerationDefaults;
use protocol::{Backend, GenerateRequest, Role};
use serving::{Local, LocalConfig, StepTime, TextParts};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const ANSWERS: usize = 4;

/// Moves only when it is told to.
#[derive(Default)]
struct Hands(AtomicU64);

impl Clock for Hands {
    fn now(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::SeqCst))
    }

    fn unix_seconds(&self) -> u64 {
        0
    }
}

/// What each step with rows of a prompt beside all answers took, and what the answers alone would have.
type Steps = Arc<Mutex<Vec<(Duration, Duration)>>>;

/// 5 ms for a step, 1 ms for a row, and as much again for 2,000 positions that one attends to.
fn took(rows: usize, reads: u64) -> Duration {
    Duration::from_micros(5_000 + 1_000 * rows as u64 + reads / 2)
}

/// A machine with such a clock.
fn machine(step_time: StepTime) -> (Arc<Local>, Arc<Controls>, Steps) {
    let (clock, steps) = (Arc::new(Hands::default()), Steps::default());
    let controls = Arc::new(Controls::default());
    let watch = {
        let (clock, steps) = (Arc::clone(&clock), Arc::clone(&steps));
        move |batch: &Batch| {
            let reads = |rows: &[u32]| rows.iter().map(|position| u64::from(position + 1)).sum::<u64>();
            let all = took(batch.rows(), reads(&batch.positions));
            clock.0.fetch_add(all.as_micros() as u64, Ordering::SeqCst);
            let decodes: Vec<u32> = batch
                .sequences
                .iter()
                .filter(|sequence| sequence.rows.len() == 1)
                .map(|sequence| batch.positions[sequence.rows.start])
                .collect();
            if decodes.len() == ANSWERS && batch.rows() > ANSWERS {
                steps.lock().unwrap().push((all, took(ANSWERS, reads(&decodes))));
            }
        }
    };
    assert!(controls.watch.set(Box::new(watch)).is_ok());
    let config = LocalConfig {
        threads: Some(1),
        kv_memory: Some(Bytes(4 << 20)),
        step_time,
        ..LocalConfig::default()
    };
    let local = Local::new(config, clock).unwrap();
    let parts = TextParts {
        tokenizer: common::tokenizer(),
        template: Some(common::TEMPLATE.into()),
        defaults: GenerationDefaults::default(),
        model: Box::new(Scripted::new("a", Arc::clone(&controls)).with_context(8192)),
        reload: Box::new(|| Err("there is none".into())),
    };
    local.attach(common::source("m"), parts).unwrap();
    (local, controls, steps)
}

/// Lets the engine step until `done`.
async fn step_until(controls: &Controls, done: impl Fn() -> bool) {
    let mut allowed = controls.steps.load(Ordering::SeqCst);
    until(|| {
        if controls.steps.load(Ordering::SeqCst) >= allowed {
            controls.allow(1);
            allowed += 1;
        }
        done()
    })
    .await;
}

/// The steps while a long prompt comes in.
async fn steps_of_a_long_prompt(step_time: StepTime) -> Vec<(Duration, Duration)> {
    let (local, controls, steps) = machine(step_time);
    controls.hold();
    let ask = |text: &str, tokens| {
        let request =
            GenerateRequest { ignore_eos: true, max_tokens: Some(tokens), ..chat(&[(Role::User, text)]) };
        let local = Arc::clone(&local);
        tokio::spawn(async move { local.generate(request).await.unwrap().count().await })
    };
    let answers: Vec<_> = (0..ANSWERS).map(|_| ask("go", 6000)).collect();
    step_until(&controls, || local.stats()[0].engine.unwrap().running == ANSWERS).await;
    let prompt = ask(&"0123456789".repeat(200), 1);
    step_until(&controls, || prompt.is_finished()).await;
    let steps = std::mem::take(&mut *steps.lock().unwrap());
    assert!(steps.len() > 2000 / 512 + 1, "the prompt came in several steps");
    answers.iter().for_each(|answer| answer.abort());
    controls.release();
    steps
}

// Seen on llama-server: one token in 5 to 11 seconds while cold prompts come in.
#[tokio::test(flavor = "multi_thread")]
async fn a_step_takes_twice_its_answers_time_or_fifty_milliseconds_while_a_long_prompt_comes_in() {
    for (step, alone) in steps_of_a_long_prompt(StepTime::Auto).await {
        let most = Duration::from_millis(50).max(2 * alone);
        assert!(step <= most + most / 20, "{step:?}; {alone:?} alone");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_takes_the_time_that_is_set() {
    let steps = steps_of_a_long_prompt(StepTime::AtMost(Duration::from_millis(120))).await;
    let longest = steps.iter().map(|(step, _)| *step).max().unwrap();
    assert!((90..=126).contains(&longest.as_millis()), "{longest:?}");
}

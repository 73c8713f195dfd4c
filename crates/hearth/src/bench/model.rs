//! A model file measured in this process: the engine is driven step by step, with no server, text or sampling beyond
//! the most likely token between it and the clock.
//!
//! Prompts are random token ids, other ones in each run, so that no prefix is found in a cache where the prompt is
//! what is measured. Decoding is timed from the step that gave each sequence its first token. The machine is probed
//! before each run, and runs whose probe is off are repeated at the end.

use super::Progress;
use super::probe::{Probe, Prober, drifted};
use super::report::{Better, Kind, Report, Row};
use super::roofline::Roofline;
use super::scenario::Random;
use super::statistics::median;
use anyhow::{Context, bail};
use base::{Bytes, Namespace, RequestId, Tokens};
use device::PAGE_TOKENS;
use engine::{Activity, Config, Engine, Event, EventKind, KvBudget, Request, Sampling};
use models::LanguageModel;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// Prompt and answer of a sequence in a batch, in tokens.
pub(super) const BATCHED: u32 = 32;

/// What to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Tokens of the prompts whose computation is timed, each at least 1.
    pub prompt: BTreeSet<u32>,
    /// Tokens that are decoded, each at least 1.
    pub tokens: BTreeSet<u32>,
    /// Sequences at a time, each at least 1.
    pub batch: BTreeSet<u32>,
    /// Tokens before those that are decoded.
    pub depth: BTreeSet<u32>,
    /// Runs whose median is given; at least 1.
    pub runs: u32,
    /// Times that runs whose probe is off are repeated.
    pub repeats: u32,
}

impl Plan {
    /// Tokens of the longest sequence, the first answer token and the last one included.
    fn longest(&self) -> u64 {
        let most = |set: &BTreeSet<u32>| u64::from(set.last().copied().unwrap_or(0));
        let decode = if self.tokens.is_empty() { 0 } else { most(&self.depth).max(1) + most(&self.tokens) };
        let batched = if self.batch.is_empty() { 0 } else { u64::from(2 * BATCHED) };
        decode.max(most(&self.prompt)).max(batched) + 1
    }

    /// KV pages for the largest measurement, a few to spare.
    fn pages(&self) -> u64 {
        let page = PAGE_TOKENS as u64;
        let batch = u64::from(self.batch.last().copied().unwrap_or(0));
        let batched = batch * (u64::from(2 * BATCHED) + 1).div_ceil(page);
        self.longest().div_ceil(page).max(batched) + 8
    }

    fn settings(&self, device: &str) -> BTreeMap<String, Value> {
        BTreeMap::from([("device".to_owned(), device.into()), ("runs".to_owned(), self.runs.into())])
    }
}

/// A run of a row, with the machine just before it.
struct Sample {
    row: usize,
    rate: f64,
    probe: Probe,
}

/// Measures a model.
///
/// # Errors
/// When a sequence of the plan is longer than the model's context, or its memory cannot be had.
pub fn run(
    model: Box<dyn LanguageModel>,
    subject: &str,
    device: &str,
    plan: &Plan,
    prober: Prober<'_>,
    progress: Progress<'_>,
) -> anyhow::Result<Report> {
    let spec = model.spec();
    if plan.longest() > u64::from(spec.context.0) {
        bail!("the longest sequence would have {} tokens; this model holds {}", plan.longest(), spec.context);
    }
    let roofline = model.token_cost().map(|cost| Roofline::new(cost, &spec.kv));
    let (vocab, kv_type) = (u64::from(spec.vocab), spec.kv.format.name());
    let memory = Bytes(spec.kv.page_bytes().0.saturating_mul(plan.pages()));
    let most = plan.batch.last().copied().unwrap_or(1) as usize;
    // Models loop on random prompts, and a draft of a loop would be timed as a decode.
    let speculation = false;
    let config = Config { max_running: most.max(1), queue: most.max(1), speculation, ..Config::default() };
    let engine = Engine::new(model, Arc::new(KvBudget::new(memory)), config)?;
    let mut bench = Bench { engine, vocab, requests: 0, prober };
    // The first pages, threads and caches are nobody's figure.
    progress("warming up");
    bench.steps(vec![bench.prompt(0, 32)], 8)?;
    let measurements = measurements(plan);
    let mut samples = Vec::new();
    for (row, (name, what)) in measurements.iter().enumerate() {
        for run in 1..=plan.runs {
            let (number, rows, runs) = (row + 1, measurements.len(), plan.runs);
            progress(&format!("{number} of {rows}: {name}, run {run} of {runs}"));
            samples.push(bench.sample(row, *what)?);
        }
    }
    let mut repeated = 0;
    for _ in 0..plan.repeats {
        for index in off(&samples) {
            let row = samples[index].row;
            let (name, what) = &measurements[row];
            progress(&format!("the machine was not itself, once more: {name}"));
            samples[index] = bench.sample(row, *what)?;
            repeated += 1;
        }
    }
    let unsteady = off(&samples).len();
    let mut settings = plan.settings(device);
    settings.insert("kv-type".to_owned(), kv_type.into());
    settings.extend(roofline.iter().flat_map(Roofline::settings));
    let rows = measurements.into_iter().enumerate().map(|(index, (name, what))| {
        let samples: Vec<&Sample> = samples.iter().filter(|sample| sample.row == index).collect();
        row(name, what, &samples, roofline.as_ref())
    });
    let rows = rows.collect();
    let probes: Vec<Probe> = samples.into_iter().map(|sample| sample.probe).collect();
    Ok(Report {
        kind: Kind::Model,
        subject: subject.to_owned(),
        hearth: env!("CARGO_PKG_VERSION").to_owned(),
        settings,
        probe: Probe::median(&probes).context("there is a run")?,
        probes,
        repeated,
        unsteady,
        rows,
        failures: BTreeMap::new(),
        turns: Vec::new(),
    })
}

fn off(samples: &[Sample]) -> Vec<usize> {
    drifted(&samples.iter().map(|sample| std::slice::from_ref(&sample.probe)).collect::<Vec<_>>())
}

/// The medians: of the speed, and of what each run was of its own probe.
fn row(name: String, what: What, samples: &[&Sample], roofline: Option<&Roofline>) -> Row {
    let rates = samples.iter().map(|sample| sample.rate).collect();
    let share = |of: fn(&Roofline, What, f64, &Probe) -> Option<f64>| {
        let shares = samples.iter().filter_map(|sample| of(roofline?, what, sample.rate, &sample.probe));
        median(&shares.collect::<Vec<_>>())
    };
    let (memory, int8) = (share(Roofline::memory_share), share(Roofline::int8_share));
    Row { memory, int8, ..Row::of_runs(name, "tok/s", Better::Higher, rates) }
}

/// One row of the table; all counts are tokens but `sequences`.
#[derive(Clone, Copy, Debug)]
pub(super) enum What {
    Prefill { prompt: u32 },
    Decode { depth: u32, tokens: u32 },
    Batched { sequences: u32 },
}

fn measurements(plan: &Plan) -> Vec<(String, What)> {
    let mut all = Vec::new();
    all.extend(plan.prompt.iter().map(|&prompt| (format!("prefill {prompt}"), What::Prefill { prompt })));
    all.extend(
        plan.tokens.iter().map(|&tokens| (format!("decode {tokens}"), What::Decode { depth: 0, tokens })),
    );
    for &sequences in &plan.batch {
        let name = format!("decode {BATCHED}+{BATCHED}, batch {sequences}");
        all.push((name, What::Batched { sequences }));
    }
    for &depth in plan.depth.iter().filter(|depth| **depth > 0) {
        for &tokens in &plan.tokens {
            all.push((format!("decode {tokens} at depth {depth}"), What::Decode { depth, tokens }));
        }
    }
    all
}

/// Tokens that came out of one step, and when it ended, in seconds from the submission.
#[derive(Clone, Copy, Debug)]
struct Step {
    at: f64,
    tokens: usize,
    /// Sequences that have at least one token by now.
    begun: usize,
}

struct Bench<'a> {
    engine: Engine,
    vocab: u64,
    requests: u64,
    prober: Prober<'a>,
}

impl Bench<'_> {
    fn sample(&mut self, row: usize, what: What) -> anyhow::Result<Sample> {
        let probe = (self.prober)();
        // The probe has swept the caches, and threads may have gone to sleep: neither is the run's fault.
        self.steps(vec![self.prompt(0, 1)], 2)?;
        Ok(Sample { row, rate: self.measure(what)?, probe })
    }

    fn measure(&mut self, what: What) -> anyhow::Result<f64> {
        match what {
            What::Prefill { prompt } => {
                let ids = self.prompt(0, prompt);
                let steps = self.steps(vec![ids], 1)?;
                let first = steps.last().context("a prompt has a step")?;
                Ok(f64::from(prompt) / first.at.max(1e-9))
            }
            What::Decode { depth, tokens } => {
                let ids = self.prompt(0, depth.max(1));
                decode_rate(&self.steps(vec![ids], tokens + 1)?, 1)
            }
            What::Batched { sequences } => {
                let prompts = (0..sequences).map(|sequence| self.prompt(sequence, BATCHED)).collect();
                decode_rate(&self.steps(prompts, BATCHED)?, sequences as usize)
            }
        }
    }

    /// Random ids that no earlier measurement used.
    fn prompt(&self, sequence: u32, tokens: u32) -> Vec<u32> {
        let mut random = Random::new(self.requests, &[u64::from(sequence)]);
        (0..tokens).map(|_| random.below(self.vocab) as u32).collect()
    }

    /// Runs these prompts together to the end of their answers.
    fn steps(&mut self, prompts: Vec<Vec<u32>>, tokens: u32) -> anyhow::Result<Vec<Step>> {
        let wanted = prompts.len() * tokens as usize;
        let mut open = prompts.len();
        let mut begun = BTreeSet::new();
        let start = Instant::now();
        for prompt in prompts {
            self.requests += 1;
            self.engine.submit(Request {
                id: RequestId(self.requests),
                namespace: Namespace(self.requests),
                prompt,
                sampling: Sampling { temperature: 0.0, ..Sampling::default() },
                choices: 1,
                max_tokens: Tokens(tokens),
                stop_tokens: Vec::new(),
                ignore_eos: true,
                logprobs: None,
                prompt_logprobs: None,
                constraints: Vec::new(),
                prediction: Vec::new(),
            })?;
        }
        let (mut steps, mut events, mut made) = (Vec::new(), Vec::new(), 0);
        while open > 0 {
            let activity = self.engine.step(&mut events);
            let at = start.elapsed().as_secs_f64();
            let mut tokens = 0;
            for Event { request, kind } in events.drain(..) {
                match kind {
                    EventKind::Token { .. } => {
                        tokens += 1;
                        begun.insert(request.0);
                    }
                    EventKind::Done(_) => open -= 1,
                    _ => {}
                }
            }
            made += tokens;
            steps.push(Step { at, tokens, begun: begun.len() });
            if open > 0 && activity != Activity::Worked {
                bail!("there is not enough memory for the KV pages of this measurement");
            }
        }
        if made != wanted {
            bail!("the engine gave {made} of {wanted} tokens; memory may be too short");
        }
        Ok(steps)
    }
}

/// Tokens per second after the step in which the last sequence began.
fn decode_rate(steps: &[Step], sequences: usize) -> anyhow::Result<f64> {
    let first = steps.iter().position(|step| step.begun == sequences).context("each sequence has a token")?;
    let tokens: usize = steps[first + 1..].iter().map(|step| step.tokens).sum();
    let seconds = steps.last().context("there are steps")?.at - steps[first].at;
    Ok(tokens as f64 / seconds.max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::super::probe::tests::example;
    use super::*;
    use device::{Batch, DeviceError, KvGroup, KvReach, KvSpec, PageId};
    use models::{ModelSpec, TokenCost};

    /// Takes no time and always answers 0.
    struct Zero {
        spec: ModelSpec,
        logits: Vec<f32>,
    }

    impl LanguageModel for Zero {
        fn spec(&self) -> &ModelSpec {
            &self.spec
        }
        fn token_cost(&self) -> Option<TokenCost> {
            Some(TokenCost { weights: Bytes(1000), layers: 1500, output: 500 })
        }
        fn ensure_page(&mut self, _: PageId) -> Result<(), DeviceError> {
            Ok(())
        }
        fn drop_page(&mut self, _: PageId) {}
        fn forward(&mut self, batch: &Batch) -> &[f32] {
            self.logits = vec![0.0; batch.logit_rows.len() * self.spec.vocab as usize];
            &self.logits
        }
    }

    fn zero(context: u32) -> Box<Zero> {
        let group = KvGroup { reach: KvReach::Full, layers: vec![0], kv_heads: 1, head_dim: 8 };
        let kv = KvSpec { groups: vec![group], ..KvSpec::default() };
        let spec = ModelSpec { architecture: "zero".into(), vocab: 50, context: Tokens(context), kv };
        Box::new(Zero { spec, logits: Vec::new() })
    }

    fn plan() -> Plan {
        let (batch, depth) = (BTreeSet::from([2, 20]), BTreeSet::from([0, 100]));
        let (prompt, tokens) = (BTreeSet::from([16, 600]), BTreeSet::from([5]));
        Plan { prompt, tokens, batch, depth, runs: 3, repeats: 2 }
    }

    #[test]
    fn every_row_of_the_plan_has_as_many_runs_as_asked_for() {
        let mut told = Vec::new();
        let mut probe = || example(30.0, 900.0);
        let report =
            run(zero(700), "zero", "none", &plan(), &mut probe, &mut |line| told.push(line.to_owned()))
                .expect("a report");
        let names: Vec<&str> = report.rows.iter().map(|row| row.name.as_str()).collect();
        let wanted = [
            "prefill 16",
            "prefill 600",
            "decode 5",
            "decode 32+32, batch 2",
            "decode 32+32, batch 20",
            "decode 5 at depth 100",
        ];
        assert_eq!(names, wanted);
        assert!(report.rows.iter().all(|row| row.runs.len() == 3 && row.value.is_some_and(|v| v > 0.0)));
        assert!(report.rows.iter().all(|row| row.int8.is_some_and(|share| share > 0.0)));
        assert_eq!(report.rows[1].memory, None, "a prompt is not read at the speed of memory");
        assert_eq!((report.probes.len(), report.repeated, report.unsteady), (18, 0, 0));
        assert_eq!(told.last().map(String::as_str), Some("6 of 6: decode 5 at depth 100, run 3 of 3"));
    }

    #[test]
    fn runs_on_a_machine_that_was_off_are_repeated_a_bounded_number_of_times() {
        let slow_from = |from: u32, to: u32| {
            let mut number = 0;
            let mut probe = || {
                number += 1;
                example(if (from..to).contains(&number) { 20.0 } else { 30.0 }, 900.0)
            };
            let report = run(zero(700), "zero", "none", &plan(), &mut probe, &mut |_| {}).expect("a report");
            (report.repeated, report.unsteady, report.probes.len())
        };
        assert_eq!(slow_from(3, 5), (2, 0, 18), "two slow runs, both repeated");
        assert_eq!(slow_from(17, u32::MAX), (4, 2, 18), "the last two stay slow however often");
    }

    #[test]
    fn a_plan_beyond_the_context_is_refused_before_anything_runs() {
        let mut probe = || -> Probe { panic!("nothing runs") };
        let error = run(zero(600), "zero", "none", &plan(), &mut probe, &mut |_| {}).expect_err("too long");
        assert_eq!(
            error.to_string(),
            "the longest sequence would have 601 tokens; this model holds 600 tokens"
        );
    }

    #[test]
    fn decoding_is_timed_from_the_step_in_which_the_last_sequence_began() {
        let step = |at, tokens, begun| Step { at, tokens, begun };
        let steps = [step(1.0, 1, 1), step(3.0, 2, 2), step(3.5, 2, 2), step(4.0, 2, 2)];
        assert_eq!(decode_rate(&steps, 2).expect("a rate"), 4.0);
        assert!(decode_rate(&steps, 3).is_err());
    }
}

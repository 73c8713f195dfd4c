//! Load on a server: sessions of a [`Workload`], each with one request at a time and the history as the server really
//! answered it.
//!
//! A turn that fails is counted with its reason; what was said in it is taken back from the history, and the session
//! goes on with its next turn. The machine is probed before and after each run; a run during which it was not itself
//! is repeated with other texts, since a server may have kept the old ones.

use super::Progress;
use super::client::Server;
use super::memory;
use super::probe::{self, Probe, Prober};
use super::report::{Better, Kind, Report, Row};
use super::turns::{Turn, failures, over_runs, rows};
use super::workload::Workload;
use anyhow::Context;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

/// How to run a workload.
#[derive(Clone, Copy, Debug, Default)]
pub struct Plan {
    /// Runs that the figures are of; at least 1.
    pub runs: u32,
    /// Times that runs whose probe is off are repeated.
    pub repeats: u32,
    /// A run ends after so long, whatever is unanswered then.
    pub time_limit: Option<Duration>,
    /// The server's process on this machine, whose memory is told.
    pub pid: Option<u32>,
}

/// Gives the load of each run: the same lengths and times, other texts.
pub type Texts<'a> = &'a dyn Fn(u32) -> Arc<dyn Workload>;

/// What one run gave.
struct Run {
    rows: Vec<Row>,
    turns: Vec<Turn>,
    probes: [Probe; 2],
}

/// Runs the plan against a server. `texts` is asked for a number of its own for each run, from 0 on.
///
/// # Errors
/// When the memory of the server's process cannot be told.
pub async fn run(
    server: &Server,
    texts: Texts<'_>,
    plan: &Plan,
    prober: Prober<'_>,
    progress: Progress<'_>,
) -> anyhow::Result<Report> {
    let mut bench = Bench { server, texts, plan, prober, progress, begun: 0 };
    let mut runs = Vec::new();
    for number in 1..=plan.runs {
        runs.push(bench.measure(&format!("run {number} of {}", plan.runs)).await?);
    }
    let mut repeated = 0;
    for _ in 0..plan.repeats {
        for index in drifted(&runs) {
            runs[index] = bench.measure("the machine was not itself, once more").await?;
            repeated += 1;
        }
    }
    let mut settings = texts(0).settings();
    settings.insert("runs".to_owned(), plan.runs.into());
    if let Some(limit) = plan.time_limit {
        settings.insert("time-limit".to_owned(), limit.as_secs_f64().into());
    }
    let unsteady = drifted(&runs).len();
    let rows = over_runs(&runs.iter().map(|run| &run.rows[..]).collect::<Vec<_>>());
    let probes: Vec<Probe> = runs.iter().flat_map(|run| run.probes.clone()).collect();
    let turns: Vec<Turn> = runs.into_iter().flat_map(|run| run.turns).collect();
    Ok(Report {
        kind: Kind::Load,
        subject: format!("{}, model {}", server.url(), server.model()),
        hearth: env!("CARGO_PKG_VERSION").to_owned(),
        settings,
        probe: Probe::median(&probes).context("there is a run")?,
        probes,
        repeated,
        unsteady,
        rows,
        failures: failures(&turns),
        turns,
    })
}

fn drifted(runs: &[Run]) -> Vec<usize> {
    probe::drifted(&runs.iter().map(|run| &run.probes[..]).collect::<Vec<_>>())
}

struct Bench<'a> {
    server: &'a Server,
    texts: Texts<'a>,
    plan: &'a Plan,
    prober: Prober<'a>,
    progress: Progress<'a>,
    begun: u32,
}

impl Bench<'_> {
    /// One run, from probe to probe.
    async fn measure(&mut self, name: &str) -> anyhow::Result<Run> {
        let resident = |pid| memory::resident(pid).context("--pid");
        (self.progress)(&format!("{name}: probing the machine"));
        let before = (self.prober)();
        let memory_before = self.plan.pid.map(resident).transpose()?;
        let workload = (self.texts)(self.begun);
        let (mut turns, wall) = self.talk(name, &workload).await;
        // The same number for each of its turns, and the order of the plan, so that two files can be read side by side.
        turns.iter_mut().for_each(|turn| turn.run = self.begun);
        turns.sort_by_key(|turn| (turn.session, turn.turn));
        self.begun += 1;
        let mut rows = rows(&turns, &*workload, wall);
        let memory_after = self.plan.pid.map(resident).transpose()?;
        for (name, bytes) in [("before", memory_before), ("after", memory_after)] {
            let mib = bytes.map(|bytes| bytes.0 as f64 / (1 << 20) as f64);
            rows.extend(
                mib.map(|mib| Row::new(format!("server memory {name}"), "MiB", Better::Lower, Some(mib))),
            );
        }
        (self.progress)(&format!("{name}: probing the machine"));
        Ok(Run { rows, turns, probes: [before, (self.prober)()] })
    }

    /// All turns that ended in time, and the seconds that it took.
    async fn talk(&mut self, name: &str, workload: &Arc<dyn Workload>) -> (Vec<Turn>, f64) {
        let planned = workload.planned();
        (self.progress)(&format!("{name}: waiting for the first of {planned} turns"));
        let start = Instant::now();
        let (sender, mut receiver) = mpsc::unbounded_channel();
        let mut tasks = JoinSet::new();
        for session in 0..workload.sessions() {
            tasks.spawn(talk(self.server.clone(), Arc::clone(workload), session, start, sender.clone()));
        }
        drop(sender);
        let (mut turns, mut failed): (Vec<Turn>, usize) = (Vec::new(), 0);
        let collect = async {
            while let Some(turn) = receiver.recv().await {
                failed += usize::from(turn.failed.is_some());
                turns.push(turn);
                (self.progress)(&format!("{name}: {} of {planned} turns, {failed} failed", turns.len()));
            }
        };
        match self.plan.time_limit {
            // Late turns are counted by their absence.
            Some(limit) => tokio::time::timeout(limit, collect).await.unwrap_or_default(),
            None => collect.await,
        }
        let wall = start.elapsed().as_secs_f64();
        tasks.shutdown().await;
        (turns, wall)
    }
}

/// One session.
async fn talk(
    server: Server,
    workload: Arc<dyn Workload>,
    session: usize,
    start: Instant,
    sender: mpsc::UnboundedSender<Turn>,
) {
    let first: Vec<Value> =
        workload.system().into_iter().map(|text| json!({"role": "system", "content": text})).collect();
    let mut messages = first.clone();
    let mut due = start + workload.start(session);
    for number in 0..workload.turns(session) {
        tokio::time::sleep_until(due.into()).await;
        messages.push(json!({"role": "user", "content": workload.user(session, number)}));
        let sent = Instant::now();
        let result = server.ask(&messages, workload.max_tokens(session, number)).await;
        let ended = Instant::now();
        match &result {
            _ if !workload.keeps_history() => messages.clone_from(&first),
            Ok(answer) => messages.push(json!({"role": "assistant", "content": answer.text})),
            Err(_) => drop(messages.pop()),
        }
        let seconds = |from: Instant| sent.saturating_duration_since(from).as_secs_f64();
        let mut turn =
            Turn { session, turn: number, sent_s: seconds(start), late_s: seconds(due), ..Turn::default() };
        turn.end(result);
        if sender.send(turn).is_err() {
            return;
        }
        if number + 1 < workload.turns(session) {
            due = ended + workload.pause(session, number + 1);
        }
    }
}

#[cfg(test)]
mod tests;

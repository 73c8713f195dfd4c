//! `hearth bench load`.

use super::{Outputs, Status, runtime};
use crate::bench::load::{self, Plan};
use crate::bench::probe::Machine;
use crate::bench::replay::{Fit, Replay};
use crate::bench::scenario::{Crowd, Kind, Scenario};
use crate::bench::trace::{self, Trace};
use crate::bench::workload::Workload;
use crate::bench::{client, memory};
use crate::config::Count;
use anyhow::{Context, bail};
use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "With a scenario, all sessions start together, and each has one request at a time with the history of its session.
With a trace, requests start when the trace says, answered or not. A server that ran the same seed before may have
its texts cached: start it afresh, or take another seed.

Traces: Mooncake's JSON lines (timestamp, input_length, output_length, hash_ids), AIPerf's with session_id and delay,
Azure's CSV (TIMESTAMP,ContextTokens,GeneratedTokens). Equal hash_ids become equal text.

Examples:
  hearth bench load --url http://127.0.0.1:8790 --report agents.html
  hearth bench load --url http://127.0.0.1:8080 --scenario long-prompt --sessions 2 --json theirs.json
  xz -dc trace.jsonl.xz | hearth bench load --url http://127.0.0.1:8790 --trace - --limit 50 --shrink 16"
)]
pub(super) struct Args {
    /// Address of the server
    #[arg(long, value_name = "URL")]
    url: String,

    /// Model of the server [default: the first of its list]
    #[arg(long, short, value_name = "NAME")]
    model: Option<String>,

    /// Key of the server
    #[arg(long, value_name = "KEY", env = "HEARTH_API_KEY", hide_env_values = true)]
    api_key: Option<String>,

    /// Who the sessions are
    #[arg(long, value_enum, default_value = "agents", conflicts_with = "trace")]
    scenario: Kind,

    /// Sessions at a time
    #[arg(long, value_name = "N", default_value = "8", conflicts_with = "trace")]
    sessions: Count<10_000>,

    /// Turns of each session
    #[arg(long, value_name = "N", default_value = "6", conflicts_with = "trace")]
    turns: Count<10_000>,

    /// Tokens of each answer
    #[arg(long, value_name = "TOKENS", default_value = "64", conflicts_with = "trace")]
    max_tokens: Count<1_000_000>,

    /// Seconds that a session waits between its turns
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds, conflicts_with = "trace")]
    think_time: Duration,

    /// Replay a recorded trace instead; - reads it from standard input
    #[arg(long, value_name = "FILE", help_heading = "Traces")]
    trace: Option<PathBuf>,

    /// Replay the first N sessions; requests without a session count as one each
    #[arg(long, value_name = "N", requires = "trace", help_heading = "Traces")]
    limit: Option<Count<10_000_000>>,

    /// Times as fast as recorded
    #[arg(long, value_name = "FACTOR", default_value = "1", value_parser = factor, requires = "trace",
        help_heading = "Traces")]
    speed: f64,

    /// Divide all lengths by N; what prompts share stays shared
    #[arg(long, value_name = "N", default_value = "1", requires = "trace", help_heading = "Traces")]
    shrink: Count<512>,

    /// Longest prompt, to fit the model's context: longer ones are cut, and a session ends before its history grows
    /// beyond
    #[arg(long, value_name = "TOKENS", requires = "trace", help_heading = "Traces")]
    input_max: Option<Count<10_000_000>>,

    /// Longest answer
    #[arg(long, value_name = "TOKENS", requires = "trace", help_heading = "Traces")]
    output_max: Option<Count<10_000_000>>,

    /// Makes other texts of the same lengths
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,

    /// Runs whose median is shown, each with a seed of its own: N, N+1, and so on
    #[arg(long, value_name = "N", default_value = "1")]
    runs: Count<1000>,

    /// Seconds after which a run ends, whatever is unanswered then
    #[arg(long, value_name = "SECONDS", value_parser = seconds)]
    time_limit: Option<Duration>,

    /// Process of the server on this machine, whose resident memory is told before and after
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,

    #[command(flatten)]
    outputs: Outputs,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "must be a number of seconds, 0 or more".to_owned())
}

fn factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor| (0.001..=1e6).contains(factor));
    factor.ok_or_else(|| "must be a number from 0.001 to 1000000".to_owned())
}

pub(super) fn run(args: Args) -> anyhow::Result<()> {
    args.outputs.check()?;
    let recorded = args.trace.as_deref().map(|path| open_trace(path, args.limit)).transpose()?;
    if let Some(pid) = args.pid {
        memory::resident(pid).context("--pid")?;
    }
    let plan = Plan {
        runs: args.runs.get(),
        repeats: args.outputs.repeats,
        time_limit: args.time_limit,
        pid: args.pid,
    };
    let texts = |run: u32| -> Arc<dyn Workload> {
        let seed = args.seed.wrapping_add(u64::from(run));
        match &recorded {
            Some((name, trace)) => Arc::new(Replay::new(name, trace, args.fit(), seed)),
            None => Arc::new(args.crowd(seed)),
        }
    };
    let status = Status::new();
    let runtime = runtime()?;
    let server = runtime
        .block_on(client::Server::connect(&args.url, args.api_key.as_deref(), args.model.clone()))
        .context("--url")?;
    let machine = Machine::new(std::thread::available_parallelism().map_or(1, usize::from))?;
    let mut probe = || machine.probe(None);
    let report =
        runtime.block_on(load::run(&server, &texts, &plan, &mut probe, &mut |line| status.show(line)))?;
    status.end();
    args.outputs.finish(&report)?;
    if report.turns.iter().all(|turn| turn.failed.is_some()) {
        bail!("no turn ended well");
    }
    Ok(())
}

impl Args {
    fn crowd(&self, seed: u64) -> Crowd {
        Crowd {
            scenario: Scenario { kind: self.scenario, seed },
            sessions: self.sessions.get() as usize,
            turns: self.turns.get() as usize,
            max_tokens: self.max_tokens.get(),
            think_time: self.think_time,
        }
    }

    fn fit(&self) -> Fit {
        Fit {
            speed: self.speed,
            shrink: self.shrink.get(),
            input_max: self.input_max.map(|n| n.get()),
            output_max: self.output_max.map(|n| n.get()),
        }
    }
}

/// The trace with the name that a report gives it.
fn open_trace(path: &Path, limit: Option<Count<10_000_000>>) -> anyhow::Result<(String, Trace)> {
    let limit = limit.map_or(usize::MAX, |n| n.get() as usize);
    if path == Path::new("-") {
        let trace = trace::read(io::stdin().lock(), limit).context("--trace: standard input")?;
        return Ok(("standard input".to_owned(), trace));
    }
    let told = || format!("--trace: {}", path.display());
    let file = File::open(path).with_context(told)?;
    let trace = trace::read(BufReader::new(file), limit).with_context(told)?;
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    Ok((name, trace))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn think_time_is_a_number_of_seconds() {
        assert_eq!(seconds("0.25"), Ok(Duration::from_millis(250)));
        for text in ["-1", "x", "inf", "nan", ""] {
            assert!(seconds(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_speed_is_a_number_above_nothing() {
        assert_eq!(factor("2.5"), Ok(2.5));
        for text in ["0", "-1", "nan", "inf", "x"] {
            assert!(factor(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_trace_is_told_with_its_flag_and_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.jsonl");
        let fails = || format!("{:#}", open_trace(&path, None).expect_err("a fault"));
        assert!(fails().starts_with("--trace: "), "{}", fails());
        std::fs::write(&path, "{}").expect("written");
        assert!(fails().contains("t.jsonl: line 1: is neither"), "{}", fails());
        std::fs::write(&path, r#"{"timestamp":0,"input_length":1,"output_length":1}"#).expect("written");
        assert_eq!(open_trace(&path, None).expect("a trace").0, "t.jsonl");
    }
}

//! `hearth bench`: measures a model file or a server, and sets two results side by side.

use super::locate::locate;
use super::style::{self, Style};
use super::{Session, runtime};
use crate::bench::probe::{self, Probe};
use crate::bench::report::Report;
use crate::bench::{client, compare, load, model, scenario};
use crate::config::{Count, ModelArg, Threads};
use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kernels::{Cpu, CpuConfig};
use models::{Checkpoint, LoadFormat, Loaded};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `hearth bench`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Measure a model file in this process: tokens per second of prompts and of answers
    Model(ModelArgs),
    /// Measure a server that speaks OpenAI's dialect under the load of several sessions
    Load(LoadArgs),
    /// Show two results side by side, with ratios
    Compare(CompareArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  hearth bench model --model smollm2-135m-instruct
  hearth bench model --model ./model.gguf --threads 2 --batch 8 --depth 2048 --json before.json")]
struct ModelArgs {
    /// Model to measure: an id of the catalog, a .gguf file or a Hugging Face folder
    #[arg(long, short, value_name = "ID_OR_PATH", env = "HEARTH_MODEL", hide_env_values = true)]
    model: ModelArg,

    /// Threads that compute [default: what the machine has]
    #[arg(long, value_name = "N")]
    threads: Option<Threads>,

    /// Tokens of the prompt whose computation is timed
    #[arg(long, value_name = "TOKENS", default_value = "512")]
    prompt: Count<1_000_000>,

    /// Tokens to decode
    #[arg(long, value_name = "TOKENS", default_value = "128")]
    tokens: Count<1_000_000>,

    /// Sequences to decode at a time, each of 32 tokens after a prompt of 32
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,8,16")]
    batch: Vec<Count<4096>>,

    /// Tokens before those that are decoded; 0 is always measured
    #[arg(long, value_name = "TOKENS,…", value_delimiter = ',', default_value = "0,1024,2048",
        value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    depth: Vec<u32>,

    /// Runs whose median is shown
    #[arg(long, value_name = "N", default_value = "5")]
    runs: Count<1000>,

    /// Save the result, for `hearth bench compare`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each session has one request at a time, with the history of its session. A server that ran the same seed
before may have its texts cached: start it afresh, or take another seed.

Examples:
  hearth bench load --url http://127.0.0.1:8790
  hearth bench load --url http://127.0.0.1:8080 --scenario long-prompt --sessions 2 --json theirs.json"
)]
struct LoadArgs {
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
    #[arg(long, value_enum, default_value = "agents")]
    scenario: scenario::Kind,

    /// Sessions at a time
    #[arg(long, value_name = "N", default_value = "8")]
    sessions: Count<10_000>,

    /// Turns of each session
    #[arg(long, value_name = "N", default_value = "6")]
    turns: Count<10_000>,

    /// Tokens of each answer
    #[arg(long, value_name = "TOKENS", default_value = "64")]
    max_tokens: Count<1_000_000>,

    /// Seconds that a session waits between its turns
    #[arg(long, value_name = "SECONDS", default_value = "0", value_parser = seconds)]
    think_time: Duration,

    /// Makes other texts of the same lengths
    #[arg(long, value_name = "N", default_value = "1")]
    seed: u64,

    /// Save the result, for `hearth bench compare`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
struct CompareArgs {
    /// A result that was saved with --json
    #[arg(value_name = "A.json")]
    a: PathBuf,

    /// Another one; ratios say how many times better it is
    #[arg(value_name = "B.json")]
    b: PathBuf,
}

fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| "must be a number of seconds, 0 or more".to_owned())
}

/// Runs `hearth bench`.
pub(super) fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Model(args) => measure_model(session, &args),
        Command::Load(args) => measure_server(args),
        Command::Compare(args) => {
            let (a, b) = (Report::open(&args.a)?, Report::open(&args.b)?);
            print(&compare::table(&a, &b)?)
        }
    }
}

fn measure_model(session: &Session, args: &ModelArgs) -> anyhow::Result<()> {
    check_writable(args.json.as_deref())?;
    let located = runtime()?.block_on(locate(&args.model, &session.catalog()?, &session.data_dir()?))?;
    if located.script {
        bail!("{} is a script; only models that compute can be measured", located.id);
    }
    let cpu = Cpu::new(CpuConfig { threads: args.threads.map(|n| n.get() as usize), isa: None })?;
    let threads = cpu.threads();
    let device = device::Device::describe(&cpu);
    let status = Status::new();
    let probe = status.probe(threads);
    status.show("loading the model");
    let loaded = Checkpoint::open(&located.path)
        .map_err(anyhow::Error::new)
        .and_then(|checkpoint| Ok(models::load(&checkpoint, cpu, LoadFormat::AsStored, &mut |_, _| {})?));
    let Loaded::Language(language) = loaded.with_context(|| format!("cannot load {}", located.id))? else {
        bail!("{} is an embedding model; only models that make text can be measured", located.id);
    };
    let plan = model::Plan {
        prompt: args.prompt.get(),
        tokens: args.tokens.get(),
        batch: args.batch.iter().map(|n| n.get()).collect(),
        depth: args.depth.iter().copied().collect(),
        runs: args.runs.get(),
    };
    let report = model::run(language, &located.id, &device, &plan, probe, &mut |line| status.show(line))?;
    status.end();
    finish(&report, args.json.as_deref())
}

fn measure_server(args: LoadArgs) -> anyhow::Result<()> {
    check_writable(args.json.as_deref())?;
    let plan = load::Plan {
        scenario: scenario::Scenario { kind: args.scenario, seed: args.seed },
        sessions: args.sessions.get() as usize,
        turns: args.turns.get() as usize,
        max_tokens: args.max_tokens.get(),
        think_time: args.think_time,
    };
    let status = Status::new();
    let runtime = runtime()?;
    let server = runtime.block_on(client::Server::connect(&args.url, args.api_key.as_deref(), args.model))?;
    let probe = status.probe(std::thread::available_parallelism().map_or(1, usize::from));
    status.show("waiting for the first answers");
    let report = runtime.block_on(load::run(&server, &plan, probe, &mut |line| status.show(line)));
    status.end();
    let failed: usize = report.failures.values().sum();
    finish(&report, args.json.as_deref())?;
    if failed == plan.sessions * plan.turns {
        bail!("every turn failed");
    }
    Ok(())
}

fn finish(report: &Report, json: Option<&Path>) -> anyhow::Result<()> {
    // Saved first: a closed pipe must not cost a long run's result.
    if let Some(path) = json {
        report.save(path)?;
    }
    print(&report.table())?;
    if let Some(path) = json {
        style::say(&Style::for_stderr().dim(format!("saved as {}", path.display())));
    }
    Ok(())
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

/// Tells what can be told about a result file before minutes of work.
fn check_writable(path: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() || !folder.is_dir() {
        bail!("cannot write {}: it is a folder, or its folder is not there", path.display());
    }
    Ok(())
}

/// One line that says how far the work is, on a terminal; nothing elsewhere.
struct Status(ProgressBar);

impl Status {
    fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(
            ProgressStyle::with_template("  {msg} ({elapsed})").expect("the template is well formed"),
        );
        // So that the seconds go on while a step or an answer takes long.
        bar.enable_steady_tick(Duration::from_secs(1));
        Self(bar)
    }

    fn show(&self, line: &str) {
        self.0.set_message(line.to_owned());
    }

    fn probe(&self, threads: usize) -> Probe {
        self.show("probing the machine");
        probe::take(threads)
    }

    fn end(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
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
    fn a_result_file_whose_folder_is_missing_is_told_before_the_run() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(check_writable(Some(&folder.path().join("a.json"))).is_ok());
        assert!(check_writable(Some(Path::new("a.json"))).is_ok());
        assert!(check_writable(Some(&folder.path().join("none/a.json"))).is_err());
        assert!(check_writable(Some(folder.path())).is_err());
    }
}

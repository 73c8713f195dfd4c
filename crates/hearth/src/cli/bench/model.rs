//! `hearth bench model`.

use super::locate::locate;
use super::{Outputs, Session, Status, runtime};
use crate::bench::model::{self, Plan};
use crate::bench::probe::Machine;
use crate::config::{Count, KvType, ModelArg, Threads};
use anyhow::{Context, bail};
use kernels::{Cpu, CpuConfig};
use models::{Checkpoint, LoadOptions, Loaded};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The machine is probed before each run. \"Of memory\" is what must be read for these tokens (weights, keys
and values) as a share of what memory gives; \"of int8\" is their products as a share of what the CPU's 8-bit
instructions give.

Examples:
  hearth bench model --model smollm2-135m-instruct
  hearth bench model --model ./model.gguf --threads 2 --prompt 128,512 --batch 8 --depth 2048 --json before.json"
)]
pub(super) struct Args {
    /// Model to measure: an id of the catalog, a .gguf file or a Hugging Face folder
    #[arg(long, short, value_name = "ID_OR_PATH", env = "HEARTH_MODEL", hide_env_values = true)]
    model: ModelArg,

    /// Threads that compute [default: what the machine has]
    #[arg(long, value_name = "N")]
    threads: Option<Threads>,

    /// Format of keys and values in the KV cache
    #[arg(long, value_name = "FORMAT", default_value = "f16")]
    kv_type: KvType,

    /// Tokens of the prompts whose computation is timed
    #[arg(long, value_name = "TOKENS,…", value_delimiter = ',', default_value = "512")]
    prompt: Vec<Count<1_000_000>>,

    /// Tokens to decode
    #[arg(long, value_name = "TOKENS,…", value_delimiter = ',', default_value = "128")]
    tokens: Vec<Count<1_000_000>>,

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

    #[command(flatten)]
    outputs: Outputs,
}

pub(super) fn run(session: &Session, args: &Args) -> anyhow::Result<()> {
    args.outputs.check()?;
    let located = runtime()?.block_on(locate(&args.model, &session.catalog()?, &session.data_dir()?))?;
    if located.script {
        bail!("--model: {} is a script; only models that compute can be measured", located.id);
    }
    let cpu = Cpu::new(CpuConfig { threads: args.threads.map(|n| n.get() as usize), isa: None })?;
    let threads = cpu.threads();
    let device = device::Device::describe(&cpu);
    let status = Status::new();
    status.show("loading the model");
    let options = LoadOptions { kv: args.kv_type.into(), ..LoadOptions::default() };
    let loaded = Checkpoint::open(&located.path)
        .map_err(anyhow::Error::new)
        .and_then(|checkpoint| Ok(models::load(&checkpoint, cpu, options, &mut |_, _| {})?));
    let Loaded::Language(language) = loaded.with_context(|| format!("cannot load {}", located.id))? else {
        bail!("--model: {} does not make text; only models that do can be measured", located.id);
    };
    let plan = Plan {
        prompt: args.prompt.iter().map(|n| n.get()).collect(),
        tokens: args.tokens.iter().map(|n| n.get()).collect(),
        batch: args.batch.iter().map(|n| n.get()).collect(),
        depth: args.depth.iter().copied().collect(),
        runs: args.runs.get(),
        repeats: args.outputs.repeats,
    };
    let weights = language.token_cost().map(|cost| cost.weights);
    let machine = Machine::new(threads)?;
    let mut probe = || machine.probe(weights);
    let report =
        model::run(language, &located.id, &device, &plan, &mut probe, &mut |line| status.show(line))?;
    status.end();
    args.outputs.finish(&report)
}

//! Settings: what they are, where they come from, and what they are when nobody says anything.
//!
//! A [`Layer`] is one source's wishes, each optional. Flags and environment (merged by clap, flags first) lie over the
//! file `hearth.toml`, which lies over the defaults; [`Settings`] is the result, checked and without options where a
//! default exists. Reading files happens in [`file`]; nothing here reads the environment by itself.

pub mod file;
mod logs;
mod providers;
mod values;

pub use logs::LogsArg;
pub use providers::{KeyArg, KeyError, ProviderArg, Spoken};
pub(crate) use values::RawPrice;
pub use values::{
    ApiKey, Count, DEFAULT_PORT, DatabaseUrl, Durability, KvType, Listen, ModelArg, Quantize, Size,
    StepTimeArg, Switch, Target, Threads,
};

use base::{Bytes, Tokens};
use gateway::custom::Reach;
use serde::Deserialize;
use serving::{KvFormat, StepTime};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// One source's wishes. The file's keys are these names with `-` for `_`, as the flags' are.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, clap::Args)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Layer {
    /// Model to serve: an id of the catalog (pulled when missing), hf:OWNER/REPO/FILE.gguf, a .gguf file, a Hugging
    /// Face folder, or script:FILE, which replays given answers; NAME=… sets the id that callers use. May be given
    /// several times
    #[arg(long = "model", value_name = "[NAME=]ID_OR_PATH", env = "HEARTH_MODEL", hide_env_values = true)]
    #[serde(rename = "models")]
    pub models: Option<Vec<ModelArg>>,

    /// Address and port to listen on; any but loopback needs --api-key, or a key of `hearth keys` [default: 127.0.0.1:8790]
    #[arg(long, value_name = "ADDR", env = "HEARTH_LISTEN", hide_env_values = true)]
    pub listen: Option<Listen>,

    /// Key that callers must send as `Authorization: Bearer KEY` (the environment keeps it out of the process list)
    #[arg(long, value_name = "KEY", env = "HEARTH_API_KEY", hide_env_values = true)]
    pub api_key: Option<ApiKey>,

    /// Threads that compute [default: the cores this process may use]
    #[arg(long, value_name = "N", env = "HEARTH_THREADS", hide_env_values = true)]
    pub threads: Option<Threads>,

    /// Longest sequence in tokens, where the model's own limit is higher [default: the model's own]
    #[arg(long, value_name = "TOKENS", env = "HEARTH_CONTEXT", hide_env_values = true)]
    pub context: Option<Count>,

    /// Memory for the KV cache of all models together, for example 4GiB [default: half of the free memory]
    #[arg(long, value_name = "SIZE", env = "HEARTH_KV_MEMORY", hide_env_values = true)]
    pub kv_memory: Option<Size>,

    /// Format of keys and values in the KV cache; int8 takes about half the memory of the others [default: f16]
    #[arg(long, value_name = "FORMAT", env = "HEARTH_KV_TYPE", hide_env_values = true)]
    pub kv_type: Option<KvType>,

    /// Quantise F32, F16 and BF16 weights while loading
    #[arg(long, value_name = "FORMAT", env = "HEARTH_QUANTIZE", hide_env_values = true)]
    pub quantize: Option<Quantize>,

    /// Keep packed weights in the data folder, so that the next start need not pack them; takes about as much disk as
    /// the model itself [default: on]
    #[arg(long, value_name = "ON_OR_OFF", env = "HEARTH_PACKED_WEIGHTS", hide_env_values = true)]
    pub packed_weights: Option<Switch>,

    /// Requests that may wait for each model; more are told to come back later [default: 1024]
    #[arg(long, value_name = "N", env = "HEARTH_QUEUE", hide_env_values = true)]
    pub queue: Option<Count>,

    /// Most tokens computed in one step of a model [default: 512]
    #[arg(long, value_name = "TOKENS", env = "HEARTH_STEP_TOKENS", hide_env_values = true)]
    pub step_tokens: Option<Count>,

    /// Longest step with tokens of prompts while answers are being written, for example 80ms; auto is the longer of
    /// 50ms and twice what the answers alone take [default: auto]
    #[arg(long, value_name = "TIME", env = "HEARTH_STEP_TIME", hide_env_values = true)]
    pub step_time: Option<StepTimeArg>,
    /// Draft tokens from what was said before; answers stay the same, and come sooner [default: on]
    #[arg(long, value_name = "ON_OFF", env = "HEARTH_SPECULATION", hide_env_values = true)]
    pub speculation: Option<Switch>,

    /// Seconds that running requests may go on after a stop was asked for [default: 10]
    #[arg(long, value_name = "SECONDS", env = "HEARTH_SHUTDOWN_LIMIT", hide_env_values = true)]
    pub shutdown_limit: Option<u64>,

    /// Days that responses are kept after the last turn of their conversation; 0 keeps none [default: 30]
    #[arg(long, value_name = "DAYS", env = "HEARTH_RESPONSES_RETENTION", hide_env_values = true)]
    pub responses_retention: Option<u32>,

    /// Room for kept responses, for example 4GiB; those unused for longest make room [default: 1GiB]
    #[arg(long, value_name = "SIZE", env = "HEARTH_RESPONSES_SIZE", hide_env_values = true)]
    pub responses_size: Option<Size>,

    /// Postgres database for state, which several servers may share, as postgres://USER:PASSWORD@HOST/DATABASE (the
    /// environment keeps it out of the process list) [default: a file in the data folder]
    #[arg(long, value_name = "URL", env = "HEARTH_DATABASE", hide_env_values = true)]
    pub database: Option<DatabaseUrl>,

    /// What the file in the data folder survives: `process` the end of the process by whatever means, `power-loss` a
    /// power cut too, at the price of waiting for the disk [default: process]
    #[arg(long, value_name = "WHAT", env = "HEARTH_DURABILITY", hide_env_values = true)]
    pub durability: Option<Durability>,

    /// File of prices that lie over those that come with Hearth, in the form of LiteLLM's
    /// model_prices_and_context_window.json or of models.dev's api.json. May be given several times, the last on top
    #[arg(long, value_name = "FILE", env = "HEARTH_PRICES", hide_env_values = true)]
    pub prices: Option<Vec<PathBuf>>,

    /// Room for answers that gateways with a cache give again, for example 1GiB; 0 keeps none [default: 256MiB]
    #[arg(long, value_name = "SIZE", env = "HEARTH_CACHE_SIZE", hide_env_values = true)]
    pub cache_size: Option<Size>,

    /// Who judges prompts and answers for gateways with guardrails: a model's id, or the http(s) address of a webhook
    #[arg(long, value_name = "MODEL_OR_URL", env = "HEARTH_GUARDRAIL_JUDGE", hide_env_values = true)]
    pub guardrail_judge: Option<String>,

    /// Providers by their names; in the file only.
    #[arg(skip)]
    pub providers: Option<BTreeMap<String, ProviderArg>>,

    /// Whether accounts may make providers that speak plain HTTP or lie inside private networks [default: off]
    #[arg(long, value_name = "ON_OFF", env = "HEARTH_PRIVATE_PROVIDERS", hide_env_values = true)]
    pub private_providers: Option<Switch>,
    /// What holds for logs of gateways that set nothing; in the file only.
    #[arg(skip)]
    pub logs: Option<LogsArg>,

    /// Folder for models and state; a global flag, so not declared here.
    #[arg(skip)]
    pub data_dir: Option<PathBuf>,
}

/// The keys of `hearth.toml`, as its reader compares them; a test holds them to [`Layer`].
const KEYS: [&str; 25] = [
    "models",
    "listen",
    "api-key",
    "threads",
    "context",
    "kv-memory",
    "kv-type",
    "quantize",
    "packed-weights",
    "queue",
    "step-tokens",
    "step-time",
    "speculation",
    "shutdown-limit",
    "responses-retention",
    "responses-size",
    "database",
    "durability",
    "prices",
    "cache-size",
    "guardrail-judge",
    "providers",
    "private-providers",
    "logs",
    "data-dir",
];

impl Layer {
    /// These wishes where there are any, else those of `lower`.
    #[must_use]
    pub fn over(self, lower: Self) -> Self {
        Self {
            models: self.models.or(lower.models),
            listen: self.listen.or(lower.listen),
            api_key: self.api_key.or(lower.api_key),
            threads: self.threads.or(lower.threads),
            context: self.context.or(lower.context),
            kv_memory: self.kv_memory.or(lower.kv_memory),
            kv_type: self.kv_type.or(lower.kv_type),
            quantize: self.quantize.or(lower.quantize),
            packed_weights: self.packed_weights.or(lower.packed_weights),
            queue: self.queue.or(lower.queue),
            step_tokens: self.step_tokens.or(lower.step_tokens),
            step_time: self.step_time.or(lower.step_time),
            speculation: self.speculation.or(lower.speculation),
            shutdown_limit: self.shutdown_limit.or(lower.shutdown_limit),
            responses_retention: self.responses_retention.or(lower.responses_retention),
            responses_size: self.responses_size.or(lower.responses_size),
            database: self.database.or(lower.database),
            durability: self.durability.or(lower.durability),
            prices: self.prices.or(lower.prices),
            cache_size: self.cache_size.or(lower.cache_size),
            guardrail_judge: self.guardrail_judge.or(lower.guardrail_judge),
            providers: self.providers.or(lower.providers),
            private_providers: self.private_providers.or(lower.private_providers),
            logs: self.logs.or(lower.logs),
            data_dir: self.data_dir.or(lower.data_dir),
        }
    }
}

/// All settings, checked.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Models to serve; may be empty.
    pub models: Vec<ModelArg>,
    /// Where to listen.
    pub listen: std::net::SocketAddr,
    /// The key callers must send.
    pub api_key: Option<ApiKey>,
    /// Threads; `None` leaves it to the kernels.
    pub threads: Option<usize>,
    /// Upper limit of a sequence.
    pub context: Option<Tokens>,
    /// KV memory of all models; `None` leaves it to serving.
    pub kv_memory: Option<Bytes>,
    /// How keys and values are kept.
    pub kv_type: KvFormat,
    /// Quantisation of float weights, for models that name none themselves.
    pub quantize: Option<Quantize>,
    /// Whether packed weights are kept for the next start.
    pub packed_weights: bool,
    /// Requests that may wait per model.
    pub queue: usize,
    /// Tokens of one step.
    pub step_tokens: Tokens,
    /// Time of one step while answers are being written.
    pub step_time: StepTime,
    /// Whether tokens are drafted.
    pub speculation: bool,
    /// How long a shutdown may take.
    pub shutdown_limit: Duration,
    /// How long responses are kept.
    pub responses_retention: Duration,
    /// Room for kept responses.
    pub responses_size: Bytes,
    /// Where state lies; `None` is a file in the data folder.
    pub database: Option<store::Address>,
    /// What that file survives.
    pub durability: store::Durability,
    /// Files of prices.
    pub prices: Vec<PathBuf>,
    /// Room for answers that are given again.
    pub cache_size: Bytes,
    /// Who judges for guardrails.
    pub guardrail_judge: Option<String>,
    /// Providers by their names.
    pub providers: BTreeMap<String, ProviderArg>,
    /// Where providers may be that accounts make.
    pub reach: Reach,
    /// What holds for logs of gateways that set nothing.
    pub logs: LogsArg,
    /// Folder for models and state.
    pub data_dir: PathBuf,
}

/// Settings that cannot be.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum SettingsError {
    /// Neither a home folder nor a wish.
    #[error("there is no home folder; say where models may lie with --data-dir or HEARTH_DATA_DIR")]
    NoDataDir,
    /// What should name a database does not.
    #[error("--database (HEARTH_DATABASE, `database` in hearth.toml): {0}")]
    Database(String),
    /// Two models under one name.
    #[error("two models would answer to {0:?}; give one of them another name with --model NAME=…")]
    SameName(String),
}

impl Settings {
    /// Fills in the defaults and checks what only the whole can tell.
    ///
    /// # Errors
    /// When the settings contradict each other or the rules.
    pub fn resolve(wishes: Layer, default_data_dir: Option<&Path>) -> Result<Self, SettingsError> {
        let listen = wishes.listen.unwrap_or_default().0;
        let models = wishes.models.unwrap_or_default();
        let mut names = std::collections::HashSet::new();
        for name in models.iter().flat_map(ModelArg::names) {
            if !names.insert(name.clone()) {
                return Err(SettingsError::SameName(name));
            }
        }
        let database = address(wishes.database)?;
        let data_dir = wishes.data_dir.or_else(|| default_data_dir.map(Path::to_owned));
        Ok(Self {
            models,
            listen,
            api_key: wishes.api_key,
            threads: wishes.threads.map(|n| n.get() as usize),
            context: wishes.context.map(|n| Tokens(n.get())),
            kv_memory: wishes.kv_memory.map(|size| size.0),
            kv_type: wishes.kv_type.map_or(KvFormat::F16, KvFormat::from),
            quantize: wishes.quantize,
            packed_weights: wishes.packed_weights != Some(Switch::Off),
            queue: wishes.queue.map_or(1024, |n| n.get() as usize),
            step_tokens: Tokens(wishes.step_tokens.map_or(512, Count::get)),
            step_time: wishes.step_time.map_or(StepTime::Auto, |time| time.0),
            speculation: wishes.speculation != Some(Switch::Off),
            shutdown_limit: Duration::from_secs(wishes.shutdown_limit.unwrap_or(10)),
            responses_retention: Duration::from_secs(86_400) * wishes.responses_retention.unwrap_or(30),
            responses_size: wishes.responses_size.map_or(Bytes(1 << 30), |size| size.0),
            database,
            durability: wishes.durability.map_or_else(Default::default, store::Durability::from),
            prices: wishes.prices.unwrap_or_default(),
            cache_size: wishes.cache_size.map_or(Bytes(gateway::policy::cache::SIZE), |size| size.0),
            guardrail_judge: wishes.guardrail_judge,
            providers: wishes.providers.unwrap_or_default(),
            reach: match wishes.private_providers {
                Some(Switch::On) => Reach::Private,
                _ => Reach::Public,
            },
            logs: wishes.logs.unwrap_or_default(),
            data_dir: data_dir.ok_or(SettingsError::NoDataDir)?,
        })
    }
}

impl Settings {
    /// The keys of what differs and holds from a start on only; what can be changed while a server runs is none of them.
    #[must_use]
    pub fn needs_restart(&self, new: &Self) -> Vec<&'static str> {
        // Each setting is either compared here or taken over by `hearth serve` when it reads them again.
        let Self {
            models,
            listen,
            api_key,
            threads,
            context,
            kv_memory,
            kv_type,
            quantize,
            packed_weights,
            queue,
            step_tokens,
            step_time,
            speculation,
            shutdown_limit,
            responses_retention,
            responses_size,
            database,
            durability,
            prices: _,
            cache_size: _,
            guardrail_judge,
            providers: _,
            reach,
            logs,
            data_dir,
        } = self;
        let same = [
            ("models", *models == new.models),
            ("listen", *listen == new.listen),
            ("api-key", *api_key == new.api_key),
            ("threads", *threads == new.threads),
            ("context", *context == new.context),
            ("kv-memory", *kv_memory == new.kv_memory),
            ("kv-type", *kv_type == new.kv_type),
            ("quantize", *quantize == new.quantize),
            ("packed-weights", *packed_weights == new.packed_weights),
            ("queue", *queue == new.queue),
            ("step-tokens", *step_tokens == new.step_tokens),
            ("step-time", *step_time == new.step_time),
            ("speculation", *speculation == new.speculation),
            ("shutdown-limit", *shutdown_limit == new.shutdown_limit),
            ("responses-retention", *responses_retention == new.responses_retention),
            ("responses-size", *responses_size == new.responses_size),
            ("database", *database == new.database),
            ("durability", *durability == new.durability),
            ("guardrail-judge", *guardrail_judge == new.guardrail_judge),
            ("private-providers", *reach == new.reach),
            ("logs.collectors", logs.collectors == new.logs.collectors),
            ("data-dir", *data_dir == new.data_dir),
        ];
        same.into_iter().filter(|(_, same)| !same).map(|(key, _)| key).collect()
    }
}

/// Where a database is, when one is named.
///
/// # Errors
/// When the text is no address.
pub fn address(url: Option<DatabaseUrl>) -> Result<Option<store::Address>, SettingsError> {
    let address = url.map(|url| url.0.parse()).transpose();
    address.map_err(|error: store::Error| SettingsError::Database(error.to_string()))
}

/// `$XDG_DATA_HOME/hearth`, or `~/.local/share/hearth`.
#[must_use]
pub fn default_data_dir() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_DATA_HOME").or_else(|| Some(absolute("HOME")?.join(".local/share")))?;
    Some(base.join("hearth"))
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;

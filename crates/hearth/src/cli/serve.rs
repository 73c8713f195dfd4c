//! `hearth serve`: models behind HTTP.
//!
//! The port is taken first, so that a taken one is told at once; then models are pulled and loaded while the server
//! already listens and says on `/healthz` that it cannot answer yet. It can once every model that was asked for is
//! there: what watches health may then rely on all of them. A model that cannot be loaded ends the start. SIGINT or
//! SIGTERM ends: requests in flight may go on for the shutdown limit, a second signal ends at once. SIGHUP reads the
//! settings file again and takes its providers; requests in flight go on with those that they began with.

use super::locate::{Located, locate};
use super::style::{self, Style};
use super::{Session, runtime};
use crate::catalog::Catalog;
use crate::config::{ApiKey, Layer, ModelArg, Quantize, Settings};
use crate::http::{self, ModelHealth, ModelState, Status};
use crate::kept::{Kept, Limits};
use crate::metrics;
use crate::pull::{self, Progress};
use crate::state;
use anyhow::{Context, bail, ensure};
use base::{Clock, SystemClock};
use gateway::Gateway;
use gateway::call::Proxy;
use gateway::provider::Providers;
use gateway::upstream::Upstream;
use protocol::{Backend, ModelTask};
use serving::{LoadFormat, Local, LocalConfig, ModelSource};
use std::collections::HashSet;
use std::io::{self, IsTerminal};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use store::Store;
use tokio::net::TcpListener;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Arguments of `hearth serve`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Every option is also a key of hearth.toml (--model is the list `models`).

Examples:
  hearth serve --model smollm2-135m-instruct
  hearth serve --model coder=./qwen2.5-coder-1.5b-instruct-q4_k_m.gguf --model all-minilm-l6-v2
  HEARTH_API_KEY=… hearth serve --model qwen3-4b --listen 0.0.0.0:8790
  hearth serve --model agent=script:./turns.json    replays answers for tests of your own (docs/scripts.md)")]
pub(super) struct Args {
    #[command(flatten)]
    wishes: Layer,
}

/// Exit code of a process that a second signal ended.
const ENDED_AT_ONCE: i32 = 130;

/// Runs `hearth serve`.
pub(super) fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    let (settings, file) = session.settings(args.wishes.clone())?;
    let catalog = session.catalog()?;
    let runtime = runtime()?;
    let again = || session.settings(args.wishes.clone()).map(|(settings, _)| settings);
    let result = runtime.block_on(serve(&settings, &catalog, file.as_deref(), &again));
    // What still runs has had its time: a load that was interrupted need not be waited for.
    runtime.shutdown_background();
    result
}

async fn serve(
    settings: &Settings,
    catalog: &Catalog,
    file: Option<&Path>,
    again: &(dyn Fn() -> anyhow::Result<Settings> + Sync),
) -> anyhow::Result<()> {
    let listener =
        TcpListener::bind(settings.listen).await.map_err(|error| cannot_listen(settings.listen, &error))?;
    let address = listener.local_addr().context("the socket has no address")?;
    let local = start_device(settings)?;
    let status = Arc::new(Health::new(Arc::clone(&local), &settings.models));
    let proxy = start_proxy(settings)?;
    let accounts = OnceLock::new();
    let reload = || reload(settings, &proxy, accounts.get(), again);
    let mut stop = Stop::new(&reload).context("signals cannot be watched")?;
    let (ended, end) = tokio::sync::oneshot::channel::<()>();
    // The engines end their streams properly a little before connections are cut.
    let config = http::Config {
        api_key: settings.api_key.as_ref().map(|key| key.secret().to_owned()),
        grace: settings.shutdown_limit,
        proxy: Some(Arc::clone(&proxy)),
        reach: settings.reach,
        judge: settings.guardrail_judge.clone(),
        ..http::Config::default()
    };
    let store = open_state(settings)?;
    let kept = keep(settings, &store);
    let gateway = start_gateway(settings, store).await?;
    accounts.get_or_init(|| gateway.clone());
    if !settings.listen.ip().is_loopback() && settings.api_key.is_none() {
        check_keys(settings.listen, &gateway).await?;
    }
    let served = Arc::clone(&status) as Arc<dyn Status>;
    let server = http::serve(config, backend(&local), served, kept, Some(gateway), listener, end);
    let server = tokio::spawn(server);
    let loaded = tokio::select! {
        loaded = load_aside(&local, settings, catalog) => loaded.map(|()| true),
        () = stop.asked() => Ok(false),
    };
    if matches!(loaded, Ok(true)) {
        status.starting.store(false, Ordering::Release);
        first_screen(settings, file, address, &local);
        stop.asked().await;
    }
    if loaded.is_ok() {
        let limit = settings.shutdown_limit.as_secs();
        style::say(&format!("stopping; requests in flight have {limit} s, and another Ctrl-C ends at once"));
    }
    // The receiver is gone only if the server has ended by itself, which is what this asks for.
    let _ = ended.send(());
    tokio::select! {
        () = wind_down(server, &local, settings) => {}
        () = stop.asked() => std::process::exit(ENDED_AT_ONCE),
    }
    loaded.map(|_| ())
}

/// Time between the last word of a stream that was ended and the cut of its connection.
const LAST_WORDS: Duration = Duration::from_millis(500);

async fn wind_down(server: tokio::task::JoinHandle<anyhow::Result<()>>, local: &Local, settings: &Settings) {
    let engines = local.shutdown(settings.shutdown_limit.saturating_sub(LAST_WORDS));
    let (server, ()) = tokio::join!(server, engines);
    match server {
        Ok(Ok(())) => {}
        Ok(Err(error)) => style::warn(&format!("the server ended with {error:#}")),
        Err(error) => style::warn(&format!("the server's task failed: {error}")),
    }
}

fn cannot_listen(address: SocketAddr, error: &io::Error) -> anyhow::Error {
    match error.kind() {
        io::ErrorKind::AddrInUse => anyhow::anyhow!(
            "{address} is taken by another program (perhaps Hearth itself); choose another with --listen"
        ),
        io::ErrorKind::AddrNotAvailable => anyhow::anyhow!("{address} is no address of this machine"),
        io::ErrorKind::PermissionDenied => {
            anyhow::anyhow!("listening on {address} needs more rights; choose a port above 1023")
        }
        _ => anyhow::anyhow!("cannot listen on {address}: {error}"),
    }
}

/// The signals that end the server, and the one that has it read its settings again.
struct Stop<'a> {
    interrupt: Signal,
    terminate: Signal,
    hangup: Signal,
    /// Whether there is a terminal, whose end is a hangup too and ends the server.
    terminal: bool,
    reload: &'a (dyn Fn() + Sync),
}

impl<'a> Stop<'a> {
    fn new(reload: &'a (dyn Fn() + Sync)) -> io::Result<Self> {
        Ok(Self {
            interrupt: signal(SignalKind::interrupt())?,
            terminate: signal(SignalKind::terminate())?,
            hangup: signal(SignalKind::hangup())?,
            terminal: io::stdin().is_terminal(),
            reload,
        })
    }

    /// Resolves at each signal that ends the server, once.
    async fn asked(&mut self) {
        loop {
            tokio::select! {
                _ = self.interrupt.recv() => return,
                _ = self.terminate.recv() => return,
                _ = self.hangup.recv() => {
                    if self.terminal && !io::stdin().is_terminal() {
                        return;
                    }
                    (self.reload)();
                }
            }
        }
    }
}

/// The models of this process as a backend.
pub(super) fn backend(local: &Arc<Local>) -> Arc<dyn Backend> {
    Arc::clone(local) as Arc<dyn Backend>
}

/// The store of all state. Without it a server would not know who may ask, nor enter what is spent, so it does not start.
fn open_state(settings: &Settings) -> anyhow::Result<Store> {
    let opened = state::open(settings.database.as_ref(), &settings.data_dir, settings.durability);
    opened.map_err(|error| {
        // What to do about a newer version, or a server, the message says or another must.
        if settings.database.is_some() || matches!(error, store::Error::Newer { .. }) {
            return error.into();
        }
        let place = match error {
            store::Error::Open { .. } => String::new(),
            _ => format!("{} cannot be used: ", settings.data_dir.join(store::FILE).display()),
        };
        anyhow::anyhow!(
            "{place}{error}; keys and what requests use are kept there, so nothing is served without it: let this user \
             read and write it, put back a copy if it is damaged, or name another folder with --data-dir"
        )
    })
}

/// The store of responses.
fn keep(settings: &Settings, store: &Store) -> Kept {
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let limits = Limits { retention: settings.responses_retention, size: settings.responses_size };
    if limits.retention.is_zero() {
        Kept::nothing("responses-retention is 0", clock)
    } else {
        Kept::new(store.clone(), limits, clock)
    }
}

/// Keys, prices and the ledger.
async fn start_gateway(settings: &Settings, store: Store) -> anyhow::Result<Gateway> {
    let gateway = state::gateway(store, state::prices(&settings.prices)?).await?;
    gateway.seal_with(state::secrets(&settings.data_dir));
    gateway.set_cache_size(settings.cache_size.0);
    gateway
        .ledger()
        .start(&settings.data_dir.join(PROCESSES))
        .await
        .context("the ledger cannot be opened")?;
    let collectors = settings.logs.collectors.clone();
    let allowed = gateway::log::Allowed { reach: settings.reach, collectors };
    gateway.logs().start(settings.logs.defaults(), allowed);
    Ok(gateway)
}

/// The folder in which processes that share a ledger find each other.
const PROCESSES: &str = "processes";

/// A server that the network reaches needs a key that somebody can show.
async fn check_keys(listen: SocketAddr, gateway: &Gateway) -> anyhow::Result<()> {
    let has_keys = gateway.has_keys().await?;
    ensure!(
        has_keys,
        "--listen {listen} is open to the network, which needs a key: make one with `hearth keys create NAME`, or set --api-key or HEARTH_API_KEY (or listen on 127.0.0.1)"
    );
    Ok(())
}

/// What asks providers.
fn start_proxy(settings: &Settings) -> anyhow::Result<Arc<Proxy>> {
    let upstream = Upstream::new().context("TLS cannot be set up")?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    Ok(Arc::new(Proxy::new(providers(settings)?, upstream, clock)))
}

/// The providers of the settings.
fn providers(settings: &Settings) -> anyhow::Result<Providers> {
    let environment = |name: &str| std::env::var(name).ok();
    let wishes = settings
        .providers
        .iter()
        .map(|(slug, arg)| Ok((slug.clone(), arg.wishes(slug, environment)?)))
        .collect::<anyhow::Result<_>>()?;
    Ok(Providers::new(wishes)?)
}

/// Puts the providers of the settings file as it is now in the place of those before, and its prices, the room of the
/// cache and what holds for logs. Where the file cannot be used, what is goes on.
fn reload(
    old: &Settings,
    proxy: &Proxy,
    gateway: Option<&Gateway>,
    again: &(dyn Fn() -> anyhow::Result<Settings> + Sync),
) {
    let read = again().and_then(|new| Ok((providers(&new)?, state::prices(&new.prices)?, new)));
    match read {
        Ok((providers, prices, new)) => {
            proxy.replace(providers);
            if let Some(gateway) = gateway {
                gateway.set_prices(prices);
                gateway.set_cache_size(new.cache_size.0);
                gateway.logs().set_defaults(new.logs.defaults());
            }
            style::say(&format!("read the settings again; {} providers are set", new.providers.len()));
            let others = old.needs_restart(&new);
            if !others.is_empty() {
                style::warn(&format!("{} changed, and will hold from the next start on", others.join(", ")));
            }
        }
        Err(error) => style::warn(&format!("the settings stay as they were: {error:#}")),
    }
}

/// The device and everything but models.
fn start_device(settings: &Settings) -> anyhow::Result<Arc<Local>> {
    let config = LocalConfig {
        threads: settings.threads,
        kv_memory: settings.kv_memory,
        kv_format: settings.kv_type,
        context: settings.context,
        queue: settings.queue,
        step_tokens: settings.step_tokens,
        packed: settings.packed_weights.then(|| crate::store::packed_weights(&settings.data_dir)),
        step_time: settings.step_time,
        speculation: settings.speculation,
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    Ok(Local::new(config, clock)?)
}

/// Starts the device and loads all models of the settings.
pub(super) async fn load_all(settings: &Settings, catalog: &Catalog) -> anyhow::Result<Arc<Local>> {
    let local = start_device(settings)?;
    load(&local, settings, catalog).await?;
    Ok(local)
}

/// [`load`] on a thread of its own: hashing and unpacking files takes a thread for seconds, in which a signal must
/// still be seen. Dropping the future ends the work where it waits for something.
async fn load_aside(local: &Arc<Local>, settings: &Settings, catalog: &Catalog) -> anyhow::Result<()> {
    let (local, settings, catalog) = (Arc::clone(local), settings.clone(), catalog.clone());
    let (_wanted, unwanted) = tokio::sync::oneshot::channel::<()>();
    let runtime = tokio::runtime::Handle::current();
    let loading = tokio::task::spawn_blocking(move || {
        runtime.block_on(async {
            tokio::select! {
                loaded = load(&local, &settings, &catalog) => loaded,
                _ = unwanted => bail!("loading was interrupted"),
            }
        })
    });
    loading.await.context("loading was interrupted")?
}

/// Finds or pulls all models, then loads one after the other.
async fn load(local: &Arc<Local>, settings: &Settings, catalog: &Catalog) -> anyhow::Result<()> {
    let mut found = Vec::new();
    for arg in &settings.models {
        found.push(locate(arg, catalog, &settings.data_dir).await?);
    }
    // Names that were set go before aliases that only the catalog gives.
    let mut taken = HashSet::new();
    for (arg, located) in settings.models.iter().zip(&found) {
        for name in std::iter::once(&located.id).chain(&arg.aliases) {
            if !taken.insert(name.clone()) {
                bail!(crate::config::SettingsError::SameName(name.clone()));
            }
        }
    }
    for (arg, located) in settings.models.iter().zip(found) {
        let free = located.aliases.iter().filter(|alias| taken.insert((*alias).clone())).cloned();
        let aliases = arg.aliases.iter().cloned().chain(free).collect();
        load_one(local, arg, located, aliases, settings.quantize).await?;
    }
    Ok(())
}

async fn load_one(
    local: &Arc<Local>,
    arg: &ModelArg,
    located: Located,
    aliases: Vec<String>,
    quantize: Option<Quantize>,
) -> anyhow::Result<()> {
    let source = ModelSource {
        id: located.id.clone(),
        aliases,
        path: located.path.clone(),
        format: match arg.quantize.or(quantize) {
            None => LoadFormat::AsStored,
            Some(Quantize::Int8) => LoadFormat::Int8,
            Some(Quantize::Int4) => LoadFormat::Int4,
        },
        price: arg.price.or(located.price),
        description: located.description,
        defaults: located.sampling,
    };
    let (local, script) = (Arc::clone(local), located.script);
    let label = format!("loading {}", located.id);
    let load = tokio::task::spawn_blocking(move || {
        // Seconds, mostly: worth a bar on a terminal, and one line in a log.
        let mut progress: Box<dyn Progress> = if io::stderr().is_terminal() {
            Box::new(pull::Bars::default())
        } else {
            style::say(&label);
            Box::new(pull::Silent)
        };
        let mut begun = false;
        let mut watch = |done, total| {
            if !begun {
                progress.begin(&label, Some(total), done);
                begun = true;
            }
            progress.advance(done);
        };
        let result = if script { local.load_script(source) } else { local.load(source, &mut watch) };
        progress.end();
        result
    });
    // By id: an error about the file names the file itself.
    load.await.context("loading was interrupted")?.with_context(|| format!("cannot load {}", located.id))
}

/// How the models do, for `/healthz` and `/metrics`.
struct Health {
    local: Arc<Local>,
    starting: AtomicBool,
    /// What was asked for, so that it shows before it is there.
    wanted: Vec<String>,
}

impl Health {
    fn new(local: Arc<Local>, models: &[ModelArg]) -> Self {
        let name = |arg: &ModelArg| {
            arg.names().next().unwrap_or_else(|| match &arg.target {
                crate::config::Target::Source(source) => source.clone(),
                _ => String::new(),
            })
        };
        Self { local, starting: AtomicBool::new(true), wanted: models.iter().map(name).collect() }
    }
}

impl Status for Health {
    fn metrics(&self) -> String {
        metrics::render(&self.local)
    }

    fn health(&self) -> Vec<ModelHealth> {
        if self.starting.load(Ordering::Acquire) {
            let loading =
                |id: &String| ModelHealth { id: id.clone(), state: ModelState::Loading, detail: None };
            return self.wanted.iter().map(loading).collect();
        }
        self.local
            .stats()
            .into_iter()
            .map(|model| ModelHealth {
                id: model.id,
                state: if model.ready { ModelState::Ready } else { ModelState::Restarting },
                detail: None,
            })
            .collect()
    }
}

/// What a person sees when the server is ready.
fn first_screen(settings: &Settings, file: Option<&Path>, address: SocketAddr, local: &Arc<Local>) {
    let style = Style::for_stderr();
    let models = backend(local).models();
    style::say(&format!("\n{} {}", style.bold("Hearth"), env!("CARGO_PKG_VERSION")));
    if models.is_empty() {
        style::say("  models    none; start with --model ID (`hearth models list` shows which there are)");
    }
    for (number, model) in models.iter().enumerate() {
        let what = match model.task {
            ModelTask::TextGeneration => format!("text, context {} tokens", model.context),
            ModelTask::TextEmbeddings => {
                format!("embeddings of {} dimensions", model.dimensions.unwrap_or_default())
            }
            ModelTask::Rerank => "rerank".to_owned(),
        };
        let label = if number == 0 { "models" } else { "" };
        style::say(&format!("  {label:8}  {} {}", style.bold(&model.id), style.dim(format!("({what})"))));
    }
    // Port 0 and the wildcard are no addresses to call.
    let host = if address.ip().is_unspecified() { "127.0.0.1".into() } else { host(address) };
    let key = if settings.api_key.as_ref().map(ApiKey::secret).is_some() { ", with the key" } else { "" };
    style::say(&format!("  base URL  {}{key}", style.green(format!("http://{host}:{}/v1", address.port()))));
    if address.ip().is_unspecified() {
        style::say(&format!("  listening on all addresses of this machine, port {}", address.port()));
    }
    style::say(&format!("  device    {}", local.describe()));
    style::say(&format!("  data      {}", settings.data_dir.display()));
    if let Some(file) = file {
        style::say(&format!("  settings  {}", file.display()));
    }
    style::say(&format!("  stop      Ctrl-C, or: kill {}\n", std::process::id()));
}

fn host(address: SocketAddr) -> String {
    match address {
        SocketAddr::V4(address) => address.ip().to_string(),
        SocketAddr::V6(address) => format!("[{}]", address.ip()),
    }
}

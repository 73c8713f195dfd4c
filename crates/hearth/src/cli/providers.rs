//! `hearth providers`: who else answers for models, with which keys, and whether it can be reached.
//!
//! What `hearth.toml` says is shown and not changed; what is added here lies in the store, for one account. A secret is
//! read from standard input or a variable and never from the command line, which other users of the machine see.

use super::managed::{Place, print};
use super::serve::providers as of_settings;
use super::{Session, style};
use crate::config::Layer;
use crate::state;
use anyhow::{Context, bail, ensure};
use base::SystemClock;
use gateway::byok::{KeyLimit, NewKept};
use gateway::call::retry::Policy;
use gateway::call::{AnswerBody, Call, KeyOf, Proxy, Target};
use gateway::custom::Reach;
use gateway::provider::{Configured, Providers};
use gateway::scan::Pieces;
use gateway::upstream::Upstream;
use gateway::{Caller, DEFAULT, Gateway};
use hyper::http::{HeaderMap, HeaderValue, Method};
use serde_json::{Map, Value};
use std::io::{self, IsTerminal, Read};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a test may take.
const TEST_LIMIT: Duration = Duration::from_secs(20);

/// Arguments of `hearth providers`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Providers of hearth.toml are shown and not changed here (docs/providers.md).

Examples:
  hearth providers add lab --base-url https://llm.example.com/v1
  hearth providers set-key openai < key.txt
  hearth providers set-key custom-lab --env LAB_KEY --alias team-b
  hearth providers test openai
  hearth providers remove lab")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    /// The account they belong to
    #[arg(long, global = true, value_name = "ID", default_value = DEFAULT)]
    account: String,
    /// The gateway that keys are for
    #[arg(long, global = true, value_name = "ID", default_value = DEFAULT)]
    gateway: String,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List the providers that are set, and the keys that are kept
    List {
        /// Also those that are known and have no key
        #[arg(long)]
        all: bool,
    },
    /// Add a provider of the account's own; it is called custom-NAME
    Add {
        /// What stands after custom-
        name: String,
        /// Where its API begins
        #[arg(long, value_name = "URL")]
        base_url: String,
        /// What it speaks: openai or anthropic
        #[arg(long, default_value = "openai")]
        dialect: String,
        /// Allow plain HTTP and addresses inside private networks
        #[arg(long)]
        private: bool,
    },
    /// Keep a key of a provider, sealed; it is read from standard input
    SetKey {
        /// The provider, as openai or custom-NAME
        provider: String,
        /// Read it from this variable of the environment instead
        #[arg(long, value_name = "NAME")]
        env: Option<String>,
        /// By what requests name it (cf-aig-byok-alias)
        #[arg(long, default_value = DEFAULT)]
        alias: String,
        /// Use it for requests that name no alias
        #[arg(long)]
        default: bool,
        /// Its share among the keys of its alias, 1 to 100
        #[arg(long, default_value = "1")]
        weight: u32,
        /// Use it for so many requests only, in 60 seconds or --rate-limit-period
        #[arg(long, value_name = "REQUESTS")]
        rate_limit: Option<u64>,
        /// The time of --rate-limit, in seconds
        #[arg(long, value_name = "SECONDS", default_value = "60", requires = "rate_limit")]
        rate_limit_period: u64,
    },
    /// Remove a provider of the account's own, or a key that is kept
    Remove {
        /// The provider's name, or the key's id
        name: String,
    },
    /// Ask a provider for its models and tell what happens; that costs nothing
    Test {
        /// The provider, as openai or custom-NAME
        provider: String,
        /// Use the key that is kept under this alias
        #[arg(long)]
        alias: Option<String>,
    },
    /// Seal all kept keys with a new key, and forget the old one
    Reseal,
}

/// Runs `hearth providers`.
pub(super) fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    let (settings, _) = session.settings(Layer::default())?;
    let secrets = state::secrets(&settings.data_dir);
    let (account, id) = (&args.account, &args.gateway);
    args.place.with(session, async |gateway| {
        gateway.seal_with(secrets);
        let found = gateway.gateway(account, id).await;
        found.map_err(|error| anyhow::anyhow!("account {account}: {}", error.message))?;
        match args.command {
            Command::List { all } => {
                let providers = gateway.providers(account, &Arc::new(of_settings(&settings)?)).await?;
                list(&gateway, &providers, account, id, all).await
            }
            Command::Add { name, base_url, dialect, private } => {
                let fields =
                    [("name", &name), ("slug", &name), ("base_url", &base_url), ("dialect", &dialect)];
                let fields: Map<String, Value> = fields
                    .map(|(name, value)| (name.to_owned(), value.as_str().into()))
                    .into_iter()
                    .collect();
                let reach = if private { Reach::Private } else { settings.reach };
                let made = gateway.create_custom(account, &fields, reach).await.map_err(|error| {
                    let hint = if private { "" } else { "; --private allows http and private networks" };
                    anyhow::anyhow!("{}{hint}", error.message)
                })?;
                style::say(&format!("added the provider custom-{}", made.slug));
                Ok(())
            }
            Command::SetKey { provider, env, alias, default, weight, rate_limit, rate_limit_period } => {
                let limit = |requests| KeyLimit { requests, period: rate_limit_period };
                let kept = NewKept {
                    account: account.clone(),
                    gateway: id.clone(),
                    provider,
                    alias,
                    is_default: default,
                    weight,
                    limit: rate_limit.map(limit),
                    secret: secret(env.as_deref())?.into(),
                };
                let kept = gateway.keep_key(kept).await?;
                let (provider, alias) = (&kept.provider, &kept.alias);
                style::say(&format!("kept a key of {provider} as {}, alias {alias}", kept.id));
                Ok(())
            }
            Command::Remove { name } => remove(&gateway, account, id, &name).await,
            Command::Test { provider, alias } => {
                let caller = Caller {
                    account: account.as_str().into(),
                    gateway: id.as_str().into(),
                    ..Caller::default()
                };
                test(&gateway, of_settings(&settings)?, caller, &provider, alias.as_deref()).await
            }
            Command::Reseal => {
                let count = gateway.reseal().await?;
                style::say(&format!("sealed {count} keys of providers anew"));
                Ok(())
            }
        }
    })
}

async fn list(
    gateway: &Gateway,
    providers: &Providers,
    account: &str,
    id: &str,
    all: bool,
) -> anyhow::Result<()> {
    let kept = gateway.kept_keys(account, id).await?;
    let customs = gateway.customs(account).await?;
    let mut rows = Vec::new();
    for provider in providers.iter() {
        let own = customs.iter().any(|custom| provider.slug.strip_prefix("custom-") == Some(&*custom.slug));
        let keys = kept.iter().filter(|key| *key.provider == *provider.slug);
        let keys: Vec<String> =
            keys.map(|key| format!("{} {} ({})", key.alias, key.preview, key.id)).collect();
        let in_settings = if own { 0 } else { provider.keys() };
        if !(all || own || provider.local || in_settings > 0 || !keys.is_empty()) {
            continue;
        }
        let from = if own { "store" } else { "settings" };
        let keys = match (keys.is_empty(), in_settings) {
            (false, _) => keys.join(", "),
            (true, 0) => "none".to_owned(),
            (true, count) => format!("{count} in the settings"),
        };
        rows.push(vec![provider.slug.to_string(), from.to_owned(), provider.base().to_string(), keys]);
    }
    print(&["provider", "from", "address", "keys"].map(str::to_owned), &rows)?;
    for custom in customs.iter().filter(|custom| !custom.enabled) {
        style::say(&format!("custom-{} is not enabled", custom.slug));
    }
    Ok(())
}

/// The secret, without what an editor adds at its end.
fn secret(env: Option<&str>) -> anyhow::Result<String> {
    if let Some(name) = env {
        return std::env::var(name).with_context(|| format!("the environment has no variable {name}"));
    }
    if io::stdin().is_terminal() {
        style::say("paste the key, then Enter and Ctrl-D (it is shown here as you type):");
    }
    let mut text = String::new();
    io::stdin().lock().read_to_string(&mut text).context("standard input cannot be read")?;
    ensure!(!text.trim().is_empty(), "standard input has no key");
    Ok(text.trim().to_owned())
}

async fn remove(gateway: &Gateway, account: &str, id: &str, name: &str) -> anyhow::Result<()> {
    if gateway.kept_keys(account, id).await?.iter().any(|key| key.id == name) {
        let key = gateway.forget_key(account, id, name).await?;
        style::say(&format!("removed the key {} of {}", key.id, key.provider));
        return Ok(());
    }
    let gone = gateway.delete_custom(account, name).await.map_err(|error| {
        anyhow::anyhow!("{}, and no key has that id; what hearth.toml says is changed there", error.message)
    })?;
    style::say(&format!("removed the provider custom-{} and its keys", gone.slug));
    Ok(())
}

/// Asks once for the list of models.
async fn test(
    gateway: &Gateway,
    set: Providers,
    caller: Caller,
    slug: &str,
    alias: Option<&str>,
) -> anyhow::Result<()> {
    let proxy =
        Proxy::new(set, Upstream::new().context("TLS cannot be set up")?, Arc::new(SystemClock::default()));
    let providers = gateway.providers(&caller.account, &proxy.providers()).await?;
    let provider = providers.get(slug).with_context(|| format!("there is no provider {slug:?}"))?;
    let mut headers = HeaderMap::new();
    if let Some(alias) = alias {
        headers.insert("cf-aig-byok-alias", HeaderValue::from_str(alias).context("--alias cannot be one")?);
    }
    let url = provider.url("models", None).context("its address is none")?;
    let call = Call {
        caller,
        method: Method::GET,
        headers,
        key_of: KeyOf::Settings,
        targets: vec![target(provider, url.clone())],
        policy: Policy { attempts: 1, ..Policy::default() },
    };
    let begun = Instant::now();
    let called = tokio::time::timeout(TEST_LIMIT, proxy.call(Some(gateway), call)).await;
    let Ok(called) = called else { bail!("{slug}: no answer from {url} within {TEST_LIMIT:?}") };
    let answer = called.map_err(|error| anyhow::anyhow!("{url}: {}", error.message))?;
    let (status, took) = (answer.status(), begun.elapsed().as_millis());
    let body = match answer.into_body() {
        AnswerBody::Whole(body) => body,
        AnswerBody::Stream(_) => bytes::Bytes::new(),
    };
    if !status.is_success() {
        let said: String = String::from_utf8_lossy(&body).chars().take(300).collect();
        bail!("{slug}: {url} answered {status}: {}", said.trim());
    }
    let models = serde_json::from_slice::<Value>(&body).ok();
    let count = models.as_ref().and_then(|models| models["data"].as_array()).map(Vec::len);
    let what = count.map_or_else(|| "no list of models".to_owned(), |count| format!("{count} models"));
    style::say(&format!("{slug}: {url} answered {status} in {took} ms, with {what}"));
    Ok(())
}

fn target(provider: &Arc<Configured>, url: hyper::Uri) -> Target {
    Target {
        provider: Arc::clone(provider),
        dialect: provider.dialect,
        model: String::new(),
        url,
        body: Pieces::default(),
        strip_usage: false,
        most: None,
    }
}

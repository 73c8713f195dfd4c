//! `hearth providers`: who else answers for models, with which keys, and whether it can be reached.
//!
//! What `hearth.toml` says is shown and not changed; what is added here lies in the store, for one account. A secret is
//! read from standard input or a variable and never from the command line, which other users of the machine see.

use super::managed::{Place, print};
use super::{Session, style};
use crate::config::{KeyError, Layer, ProviderArg};
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
use std::collections::{BTreeMap, BTreeSet};
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
        let found = gateway.gateway(account, id).await?;
        match args.command {
            Command::List { all } => {
                let (found, missing) = of_settings(&settings.providers)?;
                let providers = gateway.providers(account, &Arc::new(found)).await?;
                let set = settings.providers.keys().map(String::as_str).collect();
                list(&gateway, &providers, &set, (account, id), all).await?;
                missing.iter().for_each(|(_, error)| style::warn(&error.to_string()));
                Ok(())
            }
            Command::Add { name, base_url, dialect, private } => {
                let slug = format!("custom-{name}");
                anyhow::ensure!(
                    !settings.providers.contains_key(&slug),
                    "hearth.toml has a provider '{slug}'; choose another name"
                );
                let fields =
                    [("name", &name), ("slug", &name), ("base_url", &base_url), ("dialect", &dialect)];
                let fields: Map<String, Value> = fields
                    .map(|(name, value)| (name.to_owned(), value.as_str().into()))
                    .into_iter()
                    .collect();
                let reach = if private { Reach::Private } else { settings.reach };
                let made = gateway.create_custom(account, &fields, reach).await.map_err(|error| {
                    // Of the address alone.
                    let of_address = error.param.as_deref() == Some("base_url") && !private;
                    let hint = if of_address { "; --private allows http and private networks" } else { "" };
                    anyhow::anyhow!("{}{hint}", error.message)
                })?;
                style::say(&format!("added the provider custom-{}", made.slug));
                Ok(())
            }
            Command::SetKey { provider, env, alias, default, weight, rate_limit, rate_limit_period } => {
                if let Some(name) = provider.strip_prefix("custom-")
                    && !settings.providers.contains_key(&provider)
                    && !gateway.customs(account).await?.iter().any(|custom| *custom.slug == *name)
                {
                    bail!("there is no provider {provider}; `hearth providers add {name} --base-url URL` adds one");
                }
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
                    own_keys_only: found.settings.keys.byok_only,
                    ..Caller::default()
                };
                let (set, missing) = of_settings(&settings.providers)?;
                if let Some((_, error)) = missing.into_iter().find(|(slug, _)| *slug == provider) {
                    style::warn(&error.to_string());
                }
                test(&gateway, set, caller, &provider, alias.as_deref()).await
            }
            Command::Reseal => {
                let count = gateway.reseal().await?;
                style::say(&format!("sealed {count} keys of providers anew"));
                Ok(())
            }
        }
    })
}

/// Providers whose keys cannot be had, and why.
type Missing = Vec<(String, KeyError)>;

/// The providers of the settings. One whose key is not in this environment is among them without it: that of the server
/// may have it.
fn of_settings(args: &BTreeMap<String, ProviderArg>) -> anyhow::Result<(Providers, Missing)> {
    let (mut wishes, mut missing) = (BTreeMap::new(), Vec::new());
    for (slug, arg) in args {
        let wish = arg.wishes(slug, |name| std::env::var(name).ok()).or_else(|error| {
            missing.push((slug.clone(), error));
            ProviderArg { api_key_env: None, keys: Vec::new(), ..arg.clone() }.wishes(slug, |_| None)
        })?;
        wishes.insert(slug.clone(), wish);
    }
    Ok((Providers::new(wishes)?, missing))
}

async fn list(
    gateway: &Gateway,
    providers: &Providers,
    set: &BTreeSet<&str>,
    (account, id): (&str, &str),
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
        let from = match own {
            true => "store",
            false if set.contains(&*provider.slug) => "settings",
            false => "built in",
        };
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
    let no_address = "it has no one address; set base-url for it in hearth.toml";
    let url = provider.models_url().with_context(|| format!("{slug}: {no_address}"))?;
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
    let count = models.as_ref().and_then(listed);
    let what = count.map_or_else(|| "no list of models".to_owned(), |count| format!("{count} models"));
    style::say(&format!("{slug}: {url} answered {status} in {took} ms, with {what}"));
    Ok(())
}

/// How many models a list has, in whatever member it stands.
fn listed(answer: &Value) -> Option<usize> {
    let members = ["data", "models", "modelSummaries", "publisherModels"];
    let list = answer.as_array().or_else(|| members.iter().find_map(|name| answer[*name].as_array()));
    list.map(Vec::len)
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever lists or tests one provider need not have the keys of all.
    #[test]
    fn a_variable_that_is_missing_for_one_provider_stops_no_other() {
        let text = "[providers.openai]\napi-key-env = 'HEARTH_NO_SUCH_VARIABLE'\n[providers.groq]\nkeys = [{ key = 'k' }]";
        let layer: Layer = toml::from_str(text).unwrap();
        let (providers, missing) = of_settings(&layer.providers.unwrap()).unwrap();
        let keys = |slug| providers.get(slug).unwrap().keys();
        assert_eq!((keys("groq"), keys("openai")), (1, 0));
        assert_eq!(missing.iter().map(|(slug, _)| slug.as_str()).collect::<Vec<_>>(), ["openai"]);
        assert!(missing[0].1.to_string().contains("HEARTH_NO_SUCH_VARIABLE"));
    }

    #[test]
    fn lists_of_models_are_counted_in_every_providers_form() {
        for list in ["[1,2]", r#"{"data":[1,2]}"#, r#"{"models":[1,2]}"#, r#"{"modelSummaries":[1,2]}"#] {
            assert_eq!(listed(&serde_json::from_str(list).unwrap()), Some(2), "{list}");
        }
        assert_eq!(listed(&serde_json::json!({"x": []})), None);
    }
}

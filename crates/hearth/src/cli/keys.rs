//! `hearth keys`: API keys, shown once.

use super::managed::{Place, print};
use super::{Session, style};
use crate::moment;
use anyhow::Context;
use base::NanoUsd;
use gateway::{Budget, DEFAULT, Key, Limits, NewKey, Scopes, Secret};
use protocol::workers_ai::catalog::timestamp;
use std::io::{self, Write};
use std::ops::RangeInclusive;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

const DAY: u64 = 86_400;

/// A hundred years and a little, which every clock can add up.
const DAYS: RangeInclusive<u64> = 1..=36_525;

/// Arguments of `hearth keys`.
#[derive(Debug, clap::Args)]
#[command(after_help = "From the first key on, the server asks for one.

Examples:
  hearth keys create laptop
  hearth keys create ci --days 90 --requests-per-minute 60 --budget 20 --budget-days 30
  hearth keys rotate laptop --overlap 3600
  hearth keys revoke laptop")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Make a key and print it, this one time
    Create(Box<Create>),
    /// List keys
    List {
        /// Only those of this account
        #[arg(long, value_name = "ID")]
        account: Option<String>,
    },
    /// Give a key a new secret and print it, this one time; its id, limits and history stay
    Rotate {
        /// The key's id or name, or the first 8 characters or more of the key or its id, where no other key has them
        key: String,
        /// Seconds for which the old secret is still taken
        #[arg(long, value_name = "SECONDS", default_value = "0")]
        overlap: u64,
    },
    /// End a key; every server takes it no more within a second
    Revoke {
        /// The key's id or name, or the first 8 characters or more of the key or its id, where no other key has them
        key: String,
    },
}

#[derive(Debug, clap::Args)]
struct Create {
    /// Its name, for people
    name: String,
    /// The account it belongs to
    #[arg(long, value_name = "ID", default_value = DEFAULT)]
    account: String,
    /// What it may be used for: inference, admin (gateways and usage of its account), or both with a comma between
    #[arg(long, default_value = "inference")]
    scopes: String,
    /// Days after which it ends [default: never]
    #[arg(long, value_name = "DAYS", conflicts_with = "expires", value_parser = clap::value_parser!(u64).range(DAYS))]
    days: Option<u64>,
    /// When it ends, as 2026-12-31 or 2026-12-31T12:00:00Z
    #[arg(long, value_name = "TIME")]
    expires: Option<String>,
    /// Requests in a minute
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    requests_per_minute: Option<u32>,
    /// Tokens of prompts and answers in a minute
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    tokens_per_minute: Option<u32>,
    /// Have the limits of a minute only report: a request beyond them is marked in its log, and passes
    #[arg(long)]
    shadow: bool,
    /// Dollars it may spend
    #[arg(long, value_name = "DOLLARS", allow_negative_numbers = true, value_parser = dollars)]
    budget: Option<NanoUsd>,
    /// Days after which the budget begins anew [default: never]
    #[arg(long, value_name = "DAYS", requires = "budget", value_parser = clap::value_parser!(u64).range(DAYS))]
    budget_days: Option<u64>,
}

/// Runs `hearth keys`.
pub(super) fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    args.place.with(session, async |gateway| match args.command {
        Command::Create(wish) => {
            let (key, secret) = gateway.create_key(wish.key()?).await?;
            show(&key, &secret)
        }
        Command::List { account } => {
            let keys = gateway.keys(account.as_deref()).await?;
            let rows: Vec<_> = keys.iter().map(row).collect();
            print(&["id", "key", "account", "name", "scopes", "state", "limits"].map(str::to_owned), &rows)
        }
        Command::Rotate { key, overlap } => {
            let (key, secret) = gateway.rotate_key(&key, Duration::from_secs(overlap)).await?;
            show(&key, &secret)
        }
        Command::Revoke { key } => {
            let key = gateway.revoke_key(&key).await?;
            style::say(&format!("revoked the key {} ({})", key.id, key.name));
            Ok(())
        }
    })
}

impl Create {
    fn key(&self) -> anyhow::Result<NewKey> {
        let expires = match (&self.expires, self.days) {
            (Some(text), _) => {
                Some(moment::parse(text).with_context(|| format!("--expires: {text:?} is no time"))?)
            }
            (None, Some(days)) => Some(now().saturating_add(days.saturating_mul(DAY))),
            (None, None) => None,
        };
        let period = self.budget_days.map(|days| days.saturating_mul(DAY));
        let budget = self.budget.map(|amount| Budget { amount, period });
        Ok(NewKey {
            account: self.account.clone(),
            name: self.name.clone(),
            scopes: Scopes::parse(&self.scopes)?,
            limits: Limits {
                requests_per_minute: self.requests_per_minute,
                tokens_per_minute: self.tokens_per_minute,
                budget,
                shadow: self.shadow,
            },
            expires,
        })
    }
}

fn dollars(text: &str) -> Result<NanoUsd, String> {
    let amount = text.parse().ok().and_then(NanoUsd::from_dollars).filter(|amount| amount.0 >= 0);
    amount.ok_or_else(|| "expected an amount of dollars such as 20 or 0.50, not below zero".to_owned())
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The secret alone goes to standard output, so that a script can take it.
fn show(key: &Key, secret: &Secret) -> anyhow::Result<()> {
    style::say(&format!(
        "key {} ({}) of the account {}; it is shown this one time:",
        key.id, key.name, key.account
    ));
    writeln!(io::stdout().lock(), "{}", secret.0)?;
    Ok(())
}

fn row(key: &Key) -> Vec<String> {
    let state = match (key.revoked, key.expires) {
        (Some(time), _) => format!("revoked {}", timestamp(time)),
        (None, Some(time)) if time <= now() => format!("expired {}", timestamp(time)),
        (None, Some(time)) => format!("valid until {}", timestamp(time)),
        (None, None) => "valid".to_owned(),
    };
    let mut limits = Vec::new();
    limits.extend(key.limits.requests_per_minute.map(|limit| format!("{limit} a minute")));
    limits.extend(key.limits.tokens_per_minute.map(|limit| format!("{limit} tokens a minute")));
    if key.limits.shadow && !limits.is_empty() {
        limits = vec![format!("{} (only reported)", limits.join(", "))];
    }
    limits.extend(key.limits.budget.map(|budget| match budget.period {
        Some(DAY) => format!("{} a day", budget.amount),
        Some(period) => format!("{} in {} days", budget.amount, period / DAY),
        None => budget.amount.to_string(),
    }));
    let limits = if limits.is_empty() { "none".to_owned() } else { limits.join(", ") };
    let scopes = key.scopes.to_string();
    vec![key.id.to_string(), key.shown.clone(), key.account.clone(), key.name.clone(), scopes, state, limits]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_is_an_amount_of_dollars_and_says_so() {
        assert_eq!(dollars("0.5"), Ok(NanoUsd(500_000_000)));
        for text in ["-5", "many", "NaN", "1e300"] {
            assert!(dollars(text).is_err_and(|why| why.contains("dollars")), "{text}");
        }
    }
}

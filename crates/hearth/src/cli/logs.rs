//! `hearth logs`: what was asked and how it went.

use super::Session;
use super::managed::{Place, cell, print, print_json};
use crate::moment;
use anyhow::{Context, bail};
use base::NanoUsd;
use gateway::log::{Direction, Query, Record};
use gateway::{DEFAULT, Gateway};
use serde_json::Value;
use std::io::{self, Write};
use std::time::Duration;

/// How often new logs are looked for.
const FOLLOW: Duration = Duration::from_secs(1);

/// Arguments of `hearth logs`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Filters are KEY, an operator and a value: = (one of several, with commas between), !=, ~ (has this inside), < and >.
Keys: id, created_at, provider, model, success, cached, cost, tokens, tokens_in, tokens_out, duration (in
milliseconds), status_code, feedback, event_id, metadata.key, metadata.value, user_agent, key_id and others.

Examples:
  hearth logs                                  the last 20
  hearth logs --filter success=false --filter 'duration>5000'
  hearth logs --filter metadata.key=team --filter metadata.value=search
  hearth logs show LOG --payloads
  hearth logs follow --format json
  hearth logs rm --filter 'created_at<2026-11-01'"
)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    which: Which,
    /// The account they belong to
    #[arg(long, global = true, value_name = "ID", default_value = DEFAULT)]
    account: String,
    /// The gateway they went through
    #[arg(long, global = true, value_name = "ID", default_value = DEFAULT)]
    gateway: String,
    /// How to print them
    #[arg(long, global = true, value_name = "FORMAT", default_value = "table")]
    format: Format,
    #[command(flatten)]
    place: Place,
}

/// Which logs.
#[derive(Debug, clap::Args)]
struct Which {
    /// Only logs of which this holds; may be given several times
    #[arg(long, global = true, value_name = "FILTER")]
    filter: Vec<String>,
    /// Only logs with this text in their model, path, metadata, error, or the beginning of a payload
    #[arg(long, global = true, value_name = "TEXT")]
    search: Option<String>,
    /// What to order by; a - before it turns the order round
    #[arg(
        long,
        global = true,
        value_name = "FIELD",
        default_value = "-created_at",
        allow_hyphen_values = true
    )]
    order: String,
    /// Most logs to show
    #[arg(long, global = true, value_name = "N", default_value_t = 20)]
    limit: u64,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Show all of one log
    Show {
        /// Its id
        id: String,
        /// With its payloads, where they are stored
        #[arg(long)]
        payloads: bool,
    },
    /// Print new logs as they come
    Follow,
    /// Delete logs that --filter or --search finds; without either, all of the gateway
    Rm,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Format {
    /// For people
    Table,
    /// For scripts: one object a line
    Json,
}

/// Runs `hearth logs`.
pub(super) fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    let Args { command, which, account, gateway: id, format, place } = args;
    place.with(session, async |gateway| {
        gateway.gateway(&account, &id).await?;
        match command {
            None => {
                let records = gateway.list_logs(&which.query(&account, &id)?, 0, which.limit).await?;
                show(&records, format)
            }
            Some(Command::Show { id: log, payloads }) => one(&gateway, &account, &id, &log, payloads).await,
            Some(Command::Follow) => follow(&gateway, &which, &account, &id, format).await,
            Some(Command::Rm) => {
                let deleted = gateway.delete_logs(&which.query(&account, &id)?, None).await?;
                let logs = if deleted == 1 { "log" } else { "logs" };
                super::style::say(&format!("deleted {deleted} {logs}"));
                Ok(())
            }
        }
    })
}

impl Which {
    fn query(&self, account: &str, gateway: &str) -> anyhow::Result<Query> {
        let mut query = Query::new(account, gateway);
        for filter in &self.filter {
            let (key, operator, values) = read(filter)?;
            let taken = query.filter(key, operator, &values, moment::millis);
            taken.map_err(|error| Query::said_of(error, filter))?;
        }
        if let Some(text) = &self.search {
            query.search(text);
        }
        match self.order.strip_prefix('-') {
            Some(field) => query.order(field, Direction::Descending)?,
            None => query.order(&self.order, Direction::Ascending)?,
        }
        Ok(query)
    }
}

/// A filter as people write it.
fn read(filter: &str) -> anyhow::Result<(&str, &'static str, Vec<String>)> {
    let at = filter.find(['=', '!', '~', '<', '>']).with_context(|| format!("{filter:?} has no operator"))?;
    let (key, rest) = filter.split_at(at);
    let signs = [("!=", "neq"), ("=", "eq"), ("~", "contains"), ("<", "lt"), (">", "gt")];
    let found = signs.iter().find_map(|(sign, name)| Some((*name, rest.strip_prefix(sign)?)));
    let Some((operator, value)) = found else { bail!("{filter:?} has no operator") };
    let values = match operator {
        "eq" | "neq" => value.split(',').map(str::to_owned).collect(),
        _ => vec![value.to_owned()],
    };
    Ok((key, operator, values))
}

fn show(records: &[Record], format: Format) -> anyhow::Result<()> {
    match format {
        Format::Json => {
            let mut out = io::stdout().lock();
            records.iter().try_for_each(|record| writeln!(out, "{}", record.object(moment::text)))?;
            Ok(())
        }
        Format::Table => {
            let head =
                ["id", "created", "provider", "model", "status", "ms", "in", "cached", "out", "cost", "key"];
            print(&head.map(str::to_owned), &records.iter().map(row).collect::<Vec<_>>())
        }
    }
}

fn row(record: &Record) -> Vec<String> {
    let count = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), |count| count.to_string());
    let time = moment::text(record.created);
    vec![
        record.id.clone(),
        time.trim_end_matches('Z').replace('T', " "),
        record.provider.clone(),
        cell(&record.model),
        record.status.to_string(),
        record.duration.to_string(),
        count(record.tokens_in),
        count(record.tokens_cached),
        count(record.tokens_out),
        record.cost.map_or_else(|| "-".to_owned(), |cost: NanoUsd| cost.to_string()),
        record.key.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
    ]
}

async fn one(gateway: &Gateway, account: &str, id: &str, log: &str, payloads: bool) -> anyhow::Result<()> {
    let mut object = gateway.log(account, id, log).await?.object(moment::text);
    for side in ["request", "response"].into_iter().filter(|_| payloads) {
        let found = gateway.log_payload(account, id, log, side).await?;
        object[side] = found.map_or(Value::Null, |(form, text)| match serde_json::from_str(&text) {
            Ok(json) if form == "text" => json,
            _ => text.into(),
        });
    }
    print_json(&object)
}

/// Prints what comes, until the process is ended.
async fn follow(
    gateway: &Gateway,
    which: &Which,
    account: &str,
    id: &str,
    format: Format,
) -> anyhow::Result<()> {
    // From the newest that is there.
    let newest = gateway.list_logs(&which.query(account, id)?, 0, which.limit).await?;
    let mut seen: Vec<String> = newest.iter().map(|record| record.id.clone()).collect();
    let mut since = newest.iter().map(|record| record.created).max().unwrap_or(0);
    loop {
        tokio::time::sleep(FOLLOW).await;
        let mut query = which.query(account, id)?;
        query.order("created_at", Direction::Ascending)?;
        // A log is written when its answer ends, so some of those that began earlier come later.
        let from = since.saturating_sub(600_000);
        query.least("created_at", &from.to_string(), |text| text.parse().ok())?;
        let mut new = gateway.list_logs(&query, 0, 10_000).await?;
        let ids: Vec<String> = new.iter().map(|record| record.id.clone()).collect();
        new.retain(|record| !seen.contains(&record.id));
        since = new.iter().map(|record| record.created).max().unwrap_or(since).max(since);
        seen = ids;
        if !new.is_empty() {
            show(&new, format)?;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_is_a_key_a_sign_and_its_values() {
        let values = |list: &[&str]| list.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        for (text, expected) in [
            ("model=a,b", ("model", "eq", values(&["a", "b"]))),
            ("model!=a", ("model", "neq", values(&["a"]))),
            ("path~x=y", ("path", "contains", values(&["x=y"]))),
            ("duration>5000", ("duration", "gt", values(&["5000"]))),
            ("created_at<2026-11-01T00:00:00Z", ("created_at", "lt", values(&["2026-11-01T00:00:00Z"]))),
        ] {
            assert_eq!(read(text).unwrap(), expected);
        }
        assert!(read("model").is_err() && read("a!b").is_err());
    }
}

//! `hearth usage`: what was used and what it cost.

use super::Session;
use super::managed::{self, Place, print, print_json};
use crate::moment;
use anyhow::Context;
use gateway::ledger::{Filter, Group, Line, Question};
use protocol::workers_ai::catalog::timestamp;
use serde_json::Value;
use std::collections::HashMap;
use std::io::{self, Write};

/// Arguments of `hearth usage`.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Costs are in dollars. `unpriced` requests have ended with a cost that is not known; it is not in the sum.

Examples:
  hearth usage --by key,model --from 2026-11-01
  hearth usage --by day --format csv
  hearth usage --by metadata.team --account acme"
)]
pub(super) struct Args {
    /// What to tell apart: account, key, model, provider, gateway, hour, day or metadata.NAME, with commas between
    #[arg(long, value_name = "LIST", default_value = "provider,model")]
    by: String,
    /// Only requests that began then or later, as 2026-11-30 or 2026-11-30T12:00:00Z
    #[arg(long, value_name = "TIME")]
    from: Option<String>,
    /// Only requests that began before then
    #[arg(long, value_name = "TIME")]
    to: Option<String>,
    /// Only of this account
    #[arg(long, value_name = "ID")]
    account: Option<String>,
    /// Only of this key: its id or name, or the first 8 characters or more of it or its id
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    /// Only of this model
    #[arg(long, value_name = "ID")]
    model: Option<String>,
    /// Only of this provider; models of this machine are of `local`
    #[arg(long, value_name = "NAME")]
    provider: Option<String>,
    /// Only through this gateway
    #[arg(long, value_name = "ID")]
    gateway: Option<String>,
    /// How to print it
    #[arg(long, value_name = "FORMAT", default_value = "table")]
    format: Format,
    #[command(flatten)]
    place: Place,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum Format {
    /// For people
    Table,
    /// For scripts
    Json,
    /// For spreadsheets
    Csv,
}

/// Runs `hearth usage`.
pub(super) fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    let time = |flag: &str, text: Option<&String>| {
        text.map(|text| moment::parse(text).with_context(|| format!("{flag}: {text:?} is no time")))
            .transpose()
    };
    let words = args.by.split(',').filter(|word| !word.is_empty());
    let groups = words.map(Group::parse).collect::<Result<Vec<_>, _>>()?;
    let mut filter = Filter {
        from: time("--from", args.from.as_ref())?,
        to: time("--to", args.to.as_ref())?,
        account: args.account,
        key: args.key,
        model: args.model,
        provider: args.provider,
        gateway: args.gateway,
    };
    let asked = groups.clone();
    let (lines, names) = args.place.with(session, async |gateway| {
        if let Some(named) = &filter.key {
            filter.key = Some(gateway.key(named).await?.id.to_string());
        }
        let keys = gateway.keys(None).await?.into_iter().map(|key| (key.id.to_string(), key.name));
        Ok((gateway.usage(Question { filter, groups: asked }).await?, keys.collect::<HashMap<_, _>>()))
    })?;
    match args.format {
        Format::Json => print_json(&lines.iter().map(|line| line.object(&groups)).collect()),
        Format::Csv => Ok(io::stdout().lock().write_all(Line::csv(&lines, &groups).as_bytes())?),
        Format::Table => {
            let head = groups.iter().map(Group::name).chain(Line::COLUMNS.map(column));
            let rows = lines.iter().map(|line| {
                let groups = groups.iter().zip(&line.groups).map(|(group, value)| cell(group, value, &names));
                groups.chain(line.values()).collect()
            });
            print(&head.collect::<Vec<_>>(), &rows.collect::<Vec<_>>())
        }
    }
}

/// A column's name, short enough for a terminal.
fn column(name: &str) -> String {
    name.trim_end_matches("_tokens").replace('_', " ")
}

/// `keys`: the names of keys by their ids.
fn cell(group: &Group, value: &Value, keys: &HashMap<String, String>) -> String {
    match (group, value) {
        (Group::Key, Value::String(id)) => match keys.get(id) {
            Some(name) => format!("{id} ({})", managed::cell(name)),
            None => id.clone(),
        },
        (Group::Hour | Group::Day, Value::Number(seconds)) => {
            let text = timestamp(seconds.as_u64().unwrap_or_default());
            let length = if *group == Group::Day { "2026-11-30".len() } else { "2026-11-30 12:00".len() };
            text.chars().take(length).collect()
        }
        (_, Value::Null) => "none".to_owned(),
        (_, Value::String(text)) => managed::cell(text),
        (_, other) => managed::cell(&other.to_string()),
    }
}

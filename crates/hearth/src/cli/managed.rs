//! What the commands that manage accounts, keys and gateways share: the store they work on, and tables.
//!
//! They work on the store itself and not through a server: that is right whether one runs or not, needs no key of it,
//! and is bound by nothing but the rights to the data folder or the database. A server that runs sees each change
//! within half a second, because it looks whether there was one before it trusts what it knows.

use super::style::Style;
use super::{Session, runtime};
use crate::config::{self, DatabaseUrl};
use crate::state;
use anyhow::Context;
use gateway::Gateway;
use gateway::price::Book;
use serde_json::Value;
use std::io::{self, Write};
use store::Durability;

/// Which store.
#[derive(Debug, clap::Args)]
pub(super) struct Place {
    /// Postgres database that holds the state, as for `hearth serve` [default: a file in the data folder]
    #[arg(long, global = true, value_name = "URL", env = "HEARTH_DATABASE", hide_env_values = true)]
    database: Option<DatabaseUrl>,
}

impl Place {
    /// Does something with the gateway of the store that the settings name.
    pub(super) fn with<T>(
        self,
        session: &Session,
        work: impl AsyncFnOnce(Gateway) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        let (data_dir, file) = session.place()?;
        let database = config::address(self.database.or(file))?;
        // A server may promise that what is written survives a power cut. A command writes little and can always wait for that.
        let store = state::open(database.as_ref(), &data_dir, Durability::PowerLoss)?;
        let runtime = runtime()?;
        runtime.block_on(async { work(state::gateway(store, Book::default()).await?).await })
    }
}

/// Most characters of a caller's text in a table.
const CELL: usize = 64;

/// A caller's text for a table: in one line, without what would steer a terminal, and cut where it is long.
pub(super) fn cell(text: &str) -> String {
    let shown = |c: char| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c };
    let mut cell: String = text.chars().take(CELL).map(shown).collect();
    if text.chars().nth(CELL).is_some() {
        cell.pop();
        cell.push('…');
    }
    cell
}

/// A table with a head; numbers stand to the right.
pub(super) fn print(head: &[String], rows: &[Vec<String>]) -> anyhow::Result<()> {
    let width = |column: usize| {
        rows.iter().map(|row| row[column].chars().count()).chain([head[column].chars().count()]).max()
    };
    let widths: Vec<usize> = (0..head.len()).map(|column| width(column).unwrap_or_default()).collect();
    let is_number = |cell: &str| cell.starts_with(|c: char| c.is_ascii_digit() || c == '-');
    let right: Vec<bool> = (0..head.len())
        .map(|column| !rows.is_empty() && rows.iter().all(|row| is_number(&row[column])))
        .collect();
    let line = |cells: &[String]| {
        let cells = cells.iter().zip(&widths).zip(&right).map(|((cell, width), right)| {
            if *right { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    let mut out = io::stdout().lock();
    let head: Vec<String> = head.iter().map(|name| name.to_uppercase()).collect();
    writeln!(out, "{}", Style::for_stdout().bold(line(&head)))?;
    for row in rows {
        writeln!(out, "{}", line(row))?;
    }
    Ok(())
}

/// JSON for scripts.
pub(super) fn print_json(value: &Value) -> anyhow::Result<()> {
    writeln!(io::stdout().lock(), "{}", serde_json::to_string_pretty(value).context("JSON can be written")?)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_callers_wrote_neither_widens_a_table_nor_steers_a_terminal() {
        assert_eq!(cell("gpt-5"), "gpt-5");
        assert_eq!(cell(&"x".repeat(64)), "x".repeat(64));
        assert_eq!(cell(&"x".repeat(5000)), format!("{}…", "x".repeat(63)));
        assert_eq!(cell("a\n\u{1b}[2Jb"), "a\u{fffd}\u{fffd}[2Jb");
    }
}

//! The result of a measurement: named figures with all that is needed to judge them. Printed as a table, saved as JSON.
//!
//! Invariant: the names of a report's rows are distinct, and the same settings give the same names.

use super::probe::Probe;
use super::statistics;
use anyhow::Context;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

/// What was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// A model file in this process.
    Model,
    /// A server, by sessions that call it.
    Load,
}

/// Which of two values is the better one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Better {
    /// The greater: speeds, shares.
    Higher,
    /// The smaller: times, failures.
    Lower,
}

/// One figure.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What was measured.
    pub name: String,
    /// The unit of the value.
    pub unit: String,
    /// `None` where nothing was there to measure or the server does not tell.
    pub value: Option<f64>,
    /// Which way is better.
    pub better: Better,
    /// The runs whose median the value is; empty where it is no median.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<f64>,
}

impl Row {
    /// A figure of one measurement.
    pub fn new(name: impl Into<String>, unit: &str, better: Better, value: Option<f64>) -> Self {
        Self { name: name.into(), unit: unit.to_owned(), value, better, runs: Vec::new() }
    }

    /// The value as it is shown: a count is whole.
    pub(super) fn shown(&self) -> String {
        let count = self.value.filter(|_| self.unit.is_empty());
        count.map_or_else(|| figure(self.value), |count| format!("{count:.0}"))
    }

    /// The median of several runs.
    pub fn of_runs(name: impl Into<String>, unit: &str, better: Better, runs: Vec<f64>) -> Self {
        Self { runs: runs.clone(), ..Self::new(name, unit, better, statistics::median(&runs)) }
    }
}

/// A result.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// What was measured.
    pub kind: Kind,
    /// The model or the server.
    pub subject: String,
    /// Version of the program that measured.
    pub hearth: String,
    /// All settings that the figures depend on.
    pub settings: BTreeMap<String, Value>,
    /// The machine that measured, just before.
    pub probe: Probe,
    /// The figures, in the order of the table.
    pub rows: Vec<Row>,
    /// Reasons of failed turns with their counts.
    #[serde(default)]
    pub failures: BTreeMap<String, usize>,
    /// Each turn of a load run as it was seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<Value>,
}

impl Report {
    /// The table that a person reads.
    #[must_use]
    pub fn table(&self) -> String {
        let mut text = format!("{}\n", self.subject);
        for (name, value) in &self.settings {
            let _ = write!(text, "{name} {}  ", plain(value));
        }
        text.truncate(text.trim_end().len());
        text.push_str("\n\n");
        let width = self.rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
        for row in &self.rows {
            let line = format!("{:width$}  {:>9} {:6}", row.name, row.shown(), row.unit);
            let range = statistics::range(&row.runs).filter(|_| row.runs.len() > 1);
            let range = range.map(|(low, high)| format!("{} to {}", figure(Some(low)), figure(Some(high))));
            let line = format!("{line} {}", range.unwrap_or_default());
            let _ = writeln!(text, "{}", line.trim_end());
        }
        for (reason, count) in &self.failures {
            let _ = writeln!(text, "failed {count} times: {reason}");
        }
        let Probe { threads, read_gb_s, f32_gflop_s } = self.probe;
        let (read, product) = (figure(Some(read_gb_s)), figure(Some(f32_gflop_s)));
        let threads = if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
        let _ = writeln!(
            text,
            "\nprobe of this machine: memory read {read} GB/s, f32 {product} GFLOP/s ({threads})"
        );
        text
    }

    /// Writes the report as JSON.
    pub fn save(&self, path: &Path) -> anyhow::Result<()> {
        let mut json = serde_json::to_vec_pretty(self)?;
        json.push(b'\n');
        std::fs::write(path, json).with_context(|| format!("cannot write {}", path.display()))
    }

    /// Reads what [`Report::save`] wrote.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        let json = std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))?;
        serde_json::from_slice(&json)
            .with_context(|| format!("{} is no result of `hearth bench`", path.display()))
    }
}

/// A value with three digits or more that count; a dash for none.
#[must_use]
pub fn figure(value: Option<f64>) -> String {
    match value {
        None => "-".to_owned(),
        Some(value) if value.abs() >= 100.0 || value == 0.0 => format!("{value:.0}"),
        Some(value) if value.abs() >= 10.0 => format!("{value:.1}"),
        Some(value) if value.abs() >= 1.0 => format!("{value:.2}"),
        Some(value) => format!("{value:.3}"),
    }
}

/// A setting as it was given.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub fn example() -> Report {
        Report {
            kind: Kind::Load,
            subject: "http://a, model m".into(),
            hearth: "0.1.0".into(),
            settings: BTreeMap::from([("seed".into(), 1.into()), ("scenario".into(), "agents".into())]),
            probe: Probe { threads: 2, read_gb_s: 30.04, f32_gflop_s: 17.25 },
            rows: vec![
                Row::new("TTFT first p50", "s", Better::Lower, Some(4.0)),
                Row::of_runs("output", "tok/s", Better::Higher, vec![90.0, 110.0, 100.0]),
                Row::new("cached", "%", Better::Higher, None),
                Row::new("failed turns", "", Better::Lower, Some(2.0)),
            ],
            failures: BTreeMap::from([("HTTP 503: busy".into(), 2)]),
            turns: Vec::new(),
        }
    }

    #[test]
    fn a_table_shows_settings_figures_failures_and_the_probe() {
        let wanted = "http://a, model m
scenario agents  seed 1

TTFT first p50       4.00 s
output                100 tok/s  90.0 to 110
cached                  - %
failed turns            2
failed 2 times: HTTP 503: busy

probe of this machine: memory read 30.0 GB/s, f32 17.2 GFLOP/s (2 threads)
";
        assert_eq!(example().table(), wanted);
    }

    #[test]
    fn a_report_is_read_back_as_it_was_saved() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.json");
        example().save(&path).expect("saved");
        assert_eq!(Report::open(&path).expect("read"), example());
        std::fs::write(&path, "{}").expect("written");
        let error = Report::open(&path).expect_err("no report").to_string();
        assert!(error.ends_with("a.json is no result of `hearth bench`"), "{error}");
    }
}

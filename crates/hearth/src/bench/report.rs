//! The result of a measurement: named figures with all that is needed to judge them. Printed as a table, saved as JSON.
//!
//! Invariant: the names of a report's rows are distinct, and the same settings give the same names.

use super::probe::{DRIFT_MAX, Probe};
use super::statistics;
use super::turns::Turn;
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
    /// Percent of the bytes that memory could have given in this time, where they bound the figure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<f64>,
    /// Percent of the 8-bit products that the machine could have made in this time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub int8: Option<f64>,
}

impl Row {
    /// A figure of one measurement.
    pub fn new(name: impl Into<String>, unit: &str, better: Better, value: Option<f64>) -> Self {
        let (name, unit) = (name.into(), unit.to_owned());
        Self { name, unit, value, better, runs: Vec::new(), memory: None, int8: None }
    }

    /// The value as it is shown: a count is whole.
    pub(super) fn shown(&self) -> String {
        let count = self.value.filter(|_| self.unit.is_empty());
        count.map_or_else(|| figure(self.value), |count| format!("{count:.0}"))
    }

    /// The least and the greatest run, where there are several.
    pub(super) fn range(&self) -> Option<String> {
        let (low, high) = statistics::range(&self.runs).filter(|_| self.runs.len() > 1)?;
        Some(format!("{} to {}", figure(Some(low)), figure(Some(high))))
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
    /// The machine that measured: the median of `probes`.
    pub probe: Probe,
    /// The machine at each run that the figures are of.
    #[serde(default)]
    pub probes: Vec<Probe>,
    /// Runs that were repeated because their probe was off.
    #[serde(default)]
    pub repeated: usize,
    /// Runs among the figures whose probe is off all the same.
    #[serde(default)]
    pub unsteady: usize,
    /// The figures, in the order of the table.
    pub rows: Vec<Row>,
    /// Reasons of failed turns with their counts.
    #[serde(default)]
    pub failures: BTreeMap<String, usize>,
    /// Each turn of a load run as it was seen.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub turns: Vec<Turn>,
}

impl Report {
    /// The row of this name.
    #[must_use]
    pub fn row(&self, name: &str) -> Option<&Row> {
        self.rows.iter().find(|row| row.name == name)
    }

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
        let shared = self.rows.iter().any(|row| row.memory.is_some() || row.int8.is_some());
        if shared {
            let _ = writeln!(text, "{:width$}  {:>16} {:>9} {:>9}   runs", "", "", "of memory", "of int8");
        }
        for row in &self.rows {
            let mut line = format!("{:width$}  {:>9} {:6}", row.name, row.shown(), row.unit);
            if shared {
                let _ = write!(line, " {:>9} {:>9}  ", percent(row.memory), percent(row.int8));
            }
            if let Some(range) = row.range() {
                let _ = write!(line, " {range}");
            }
            let _ = writeln!(text, "{}", line.trim_end());
        }
        for (reason, count) in &self.failures {
            let _ = writeln!(text, "failed {count} times: {reason}");
        }
        text.push('\n');
        for line in self.machine() {
            let _ = writeln!(text, "{line}");
        }
        text
    }

    /// What the probes say, in sentences.
    pub(super) fn machine(&self) -> Vec<String> {
        let Probe { threads, read_gb_s, weights_gb_s, int8_gop_s, instructions } = &self.probe;
        let rate = |value: f64| figure(Some(value));
        let threads = if *threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") };
        let weights = weights_gb_s.map_or_else(String::new, |rate| {
            format!(" ({} GB/s for as many bytes as the weights)", figure(Some(rate)))
        });
        let mut lines = vec![format!(
            "probe of this machine, {threads}: memory read {} GB/s{weights}, int8 {} GOP/s by {instructions}",
            rate(*read_gb_s),
            rate(*int8_gop_s)
        )];
        if self.probes.len() > 1 {
            let range = |of: fn(&Probe) -> f64| {
                let (low, high) = statistics::range(&self.probes.iter().map(of).collect::<Vec<_>>())?;
                Some(format!("{} to {}", rate(low), rate(high)))
            };
            let (read, int8) = (range(|probe| probe.read_gb_s), range(|probe| probe.int8_gop_s));
            let (read, int8) = (read.unwrap_or_default(), int8.unwrap_or_default());
            lines.push(format!("of {} probes: memory read {read}, int8 {int8}", self.probes.len()));
        }
        let off = DRIFT_MAX * 100.0;
        if self.repeated > 0 {
            lines.push(format!(
                "repeated because the probe was off by more than {off:.0} %: {}",
                runs(self.repeated)
            ));
        }
        if self.unsteady > 0 {
            lines.push(format!("still off by more than {off:.0} %: {}; measure again", runs(self.unsteady)));
        }
        lines
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

fn runs(count: usize) -> String {
    if count == 1 { "1 run".to_owned() } else { format!("{count} runs") }
}

/// A share; nothing for none.
pub(super) fn percent(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| {
        format!("{} %", if value < 10.0 { figure(Some(value)) } else { format!("{value:.0}") })
    })
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
        let instructions = "AVX-512 VNNI".to_owned();
        let probe =
            Probe { threads: 2, read_gb_s: 30.04, weights_gb_s: None, int8_gop_s: 901.2, instructions };
        Report {
            kind: Kind::Load,
            subject: "http://a, model m".into(),
            hearth: "0.1.0".into(),
            settings: BTreeMap::from([("seed".into(), 1.into()), ("scenario".into(), "agents".into())]),
            probe: probe.clone(),
            probes: vec![Probe { read_gb_s: 31.5, ..probe.clone() }, probe],
            repeated: 0,
            unsteady: 0,
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

probe of this machine, 2 threads: memory read 30.0 GB/s, int8 901 GOP/s by AVX-512 VNNI
of 2 probes: memory read 30.0 to 31.5, int8 901 to 901
";
        assert_eq!(example().table(), wanted);
    }

    #[test]
    fn a_model_s_table_shows_shares_and_what_was_repeated() {
        let mut report = example();
        report.probe.weights_gb_s = Some(41.0);
        (report.repeated, report.unsteady) = (3, 1);
        report.rows = vec![
            Row {
                int8: Some(31.4),
                ..Row::of_runs("prefill 512", "tok/s", Better::Higher, vec![1825.0, 1801.0, 1850.0])
            },
            Row {
                memory: Some(98.4),
                int8: Some(4.62),
                ..Row::new("decode 128", "tok/s", Better::Higher, Some(36.1))
            },
        ];
        let wanted = "
                              of memory   of int8   runs
prefill 512       1825 tok/s                 31 %   1801 to 1850
decode 128        36.1 tok/s       98 %    4.62 %
failed 2 times: HTTP 503: busy

probe of this machine, 2 threads: memory read 30.0 GB/s (41.0 GB/s for as many bytes as the weights), int8 901 GOP/s by AVX-512 VNNI
of 2 probes: memory read 30.0 to 31.5, int8 901 to 901
repeated because the probe was off by more than 15 %: 3 runs
still off by more than 15 %: 1 run; measure again
";
        let table = report.table();
        let (_, table) = table.split_once("\n\n").expect("settings come first");
        assert_eq!(format!("\n{table}"), wanted);
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

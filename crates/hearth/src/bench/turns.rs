//! The turns of a load run as they were seen, and the figures that they give.

use super::client::Answer;
use super::report::{Better, Row};
use super::statistics::percentile;
use super::workload::Workload;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// What became of a turn. Times are seconds.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Turn {
    /// The run, counted from 0.
    #[serde(default)]
    pub run: u32,
    /// The session, counted from 0.
    pub session: usize,
    /// The turn of its session, counted from 0.
    pub turn: usize,
    /// When it was sent, since the start of the run.
    #[serde(default)]
    pub sent_s: f64,
    /// How long after it was due that was.
    #[serde(default)]
    pub late_s: f64,
    /// When each piece of text came, since it was sent; at least one where it ended well.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub text_at_s: Vec<f64>,
    /// When the answer ended, since it was sent.
    #[serde(default)]
    pub end_s: f64,
    /// Tokens of the prompt, where the server tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_tokens: Option<u64>,
    /// Of these, found in a cache, where the server tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cached_tokens: Option<u64>,
    /// Tokens of the answer.
    #[serde(default)]
    pub completion_tokens: u64,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failed: Option<String>,
}

impl Turn {
    /// Puts in what the server answered.
    pub fn end(&mut self, result: Result<Answer, String>) {
        match result {
            Ok(answer) => {
                self.text_at_s = answer.times;
                self.end_s = answer.end;
                self.prompt_tokens = answer.prompt;
                self.cached_tokens = answer.cached;
                self.completion_tokens = answer.completion;
            }
            Err(reason) => self.failed = Some(reason),
        }
    }

    /// Seconds until the first piece of text, where the turn ended well.
    #[must_use]
    pub fn first_text(&self) -> Option<f64> {
        self.text_at_s.first().copied().filter(|_| self.failed.is_none())
    }

    /// Milliseconds between pieces of text.
    pub fn gaps(&self) -> impl Iterator<Item = f64> {
        self.text_at_s.windows(2).map(|pair| (pair[1] - pair[0]) * 1e3)
    }
}

/// The figures of one run that took `wall` seconds. Which there are depends on the workload alone.
#[must_use]
pub fn rows(turns: &[Turn], workload: &dyn Workload, wall: f64) -> Vec<Row> {
    let good: Vec<&Turn> = turns.iter().filter(|turn| turn.failed.is_none()).collect();
    let first_text = |later: bool| -> Vec<f64> {
        good.iter().filter(|turn| (turn.turn > 0) == later).filter_map(|turn| turn.first_text()).collect()
    };
    let mut rows = Vec::new();
    let mut shares = |name: &str, unit: &str, values: &[f64], shares: &[(&str, f64)]| {
        for (share, value) in shares {
            let value = percentile(values, *value);
            rows.push(Row::new(format!("{name}, {share}"), unit, Better::Lower, value));
        }
    };
    shares("TTFT, first turn", "s", &first_text(false), &[("p50", 0.5), ("p95", 0.95)]);
    if workload.has_later_turns() {
        shares("TTFT, later turn", "s", &first_text(true), &[("p50", 0.5), ("p95", 0.95)]);
    }
    let gaps: Vec<f64> = good.iter().flat_map(|turn| turn.gaps()).collect();
    shares("gap", "ms", &gaps, &[("p50", 0.5), ("p95", 0.95), ("p99", 0.99), ("max", 1.0)]);
    if workload.is_timed() {
        let late: Vec<f64> = turns.iter().map(|turn| turn.late_s * 1e3).collect();
        shares("sent late", "ms", &late, &[("p95", 0.95), ("max", 1.0)]);
    }
    let output: u64 = good.iter().map(|turn| turn.completion_tokens).sum();
    rows.push(Row::new("wall", "s", Better::Lower, Some(wall)));
    rows.push(Row::new("output", "tok/s", Better::Higher, Some(output as f64 / wall.max(1e-9))));
    rows.push(Row::new("cached share of prompts", "%", Better::Higher, cached(&good)));
    let unended = workload.planned().saturating_sub(turns.len());
    rows.push(Row::new("turns that ended well", "", Better::Higher, Some(good.len() as f64)));
    rows.push(Row::new("failed turns", "", Better::Lower, Some((turns.len() - good.len()) as f64)));
    rows.push(Row::new("turns not ended in time", "", Better::Lower, Some(unended as f64)));
    rows
}

/// Over the turns whose server tells both; percent.
fn cached(good: &[&Turn]) -> Option<f64> {
    let told = good.iter().filter_map(|turn| Some((turn.prompt_tokens?, turn.cached_tokens?)));
    let (prompt, cached) = told.fold((0, 0), |sum, (prompt, cached)| (sum.0 + prompt, sum.1 + cached));
    (prompt > 0).then(|| cached as f64 / prompt as f64 * 100.0)
}

/// Reasons with their counts.
#[must_use]
pub fn failures(turns: &[Turn]) -> BTreeMap<String, usize> {
    let mut failures = BTreeMap::new();
    for reason in turns.iter().filter_map(|turn| turn.failed.as_ref()) {
        *failures.entry(reason.clone()).or_default() += 1;
    }
    failures
}

/// The figures of several runs: counts are summed, of all else the median is taken.
#[must_use]
pub fn over_runs(runs: &[&[Row]]) -> Vec<Row> {
    let Some(first) = runs.first() else { return Vec::new() };
    let merge = |row: &Row| {
        let same = runs.iter().flat_map(|rows| rows.iter().filter(|other| other.name == row.name));
        let values: Vec<f64> = same.filter_map(|row| row.value).collect();
        match row.unit.as_str() {
            "" => Row { value: Some(values.iter().sum()), ..row.clone() },
            _ if runs.len() == 1 => row.clone(),
            unit => Row::of_runs(row.name.clone(), unit, row.better, values),
        }
    };
    first.iter().map(merge).collect()
}

#[cfg(test)]
mod tests {
    use super::super::scenario::{Crowd, Kind, Scenario};
    use super::*;
    use std::time::Duration;

    fn crowd(turns: usize) -> Crowd {
        let scenario = Scenario { kind: Kind::Agents, seed: 1 };
        Crowd { scenario, sessions: 2, turns, max_tokens: 3, think_time: Duration::ZERO }
    }

    fn turns() -> Vec<Turn> {
        let turn = |session, turn, times: &[f64]| {
            let (text_at_s, completion_tokens) = (times.to_vec(), 3);
            Turn { session, turn, text_at_s, completion_tokens, ..Turn::default() }
        };
        let failed = Turn { failed: Some("x".into()), ..turn(1, 0, &[]) };
        vec![turn(0, 0, &[4.0, 4.1, 4.3]), turn(0, 1, &[0.5, 0.75]), failed]
    }

    fn value(rows: &[Row], name: &str) -> Option<f64> {
        rows.iter().find(|row| row.name == name).expect(name).value
    }

    #[test]
    fn times_are_kept_apart_by_turn_and_gaps_are_between_pieces_of_one_answer() {
        let rows = rows(&turns(), &crowd(2), 2.0);
        assert_eq!(value(&rows, "TTFT, first turn, p95"), Some(4.0));
        assert_eq!(value(&rows, "TTFT, later turn, p50"), Some(0.5));
        assert_eq!(value(&rows, "gap, max"), Some(250.0));
        assert_eq!(value(&rows, "output"), Some(3.0));
        assert_eq!(value(&rows, "cached share of prompts"), None, "the server told nothing");
        assert_eq!(value(&rows, "turns not ended in time"), Some(1.0));
        assert_eq!(failures(&turns()), BTreeMap::from([("x".to_owned(), 1)]));
    }

    #[test]
    fn a_load_of_single_turns_has_no_figures_of_later_ones() {
        let named = |turns| {
            let rows = rows(&[], &crowd(turns), 1.0);
            rows.iter().any(|row| row.name.starts_with("TTFT, later"))
        };
        assert_eq!((named(1), named(2)), (false, true));
    }

    #[test]
    fn over_runs_times_are_medians_and_failures_are_summed() {
        let run = |wall, failed| {
            let wall = Row::new("wall", "s", Better::Lower, Some(wall));
            vec![wall, Row::new("failed turns", "", Better::Lower, Some(failed))]
        };
        let runs = [run(1.0, 0.0), run(9.0, 2.0), run(3.0, 1.0)];
        let rows = over_runs(&runs.each_ref().map(Vec::as_slice));
        assert_eq!((value(&rows, "wall"), value(&rows, "failed turns")), (Some(3.0), Some(3.0)));
        assert_eq!(rows[0].runs, [1.0, 9.0, 3.0]);
        assert_eq!(over_runs(&[&runs[0]]), runs[0], "one run is as it was");
    }
}

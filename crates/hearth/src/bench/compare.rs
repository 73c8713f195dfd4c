//! Two results side by side. A ratio above 1 says that the second is the better one, whichever way a row counts.

use super::report::{Better, Report, Row, plain};
use anyhow::bail;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Two results of one kind.
#[derive(Clone, Debug)]
pub struct Comparison {
    /// The settings in which they differ.
    pub differences: Vec<String>,
    /// What makes the ratios doubtful.
    pub warnings: Vec<String>,
    /// The figures of either, the probes last.
    pub lines: Vec<Line>,
}

/// A figure in both results.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// The row's name.
    pub name: String,
    /// Its unit.
    pub unit: String,
    /// The first result's value as it is shown; a dash for none.
    pub a: String,
    /// The second's.
    pub b: String,
    /// How many times better the second is; `None` where a value is missing or nothing.
    pub ratio: Option<f64>,
}

impl Comparison {
    /// Sets two results side by side.
    ///
    /// # Errors
    /// When the results are not of one kind, or have no row in common.
    pub fn new(a: &Report, b: &Report) -> anyhow::Result<Self> {
        if a.kind != b.kind {
            bail!("one is a result of `bench model`, the other of `bench load`: there is nothing to compare");
        }
        let mut names: Vec<&str> = Vec::new();
        for row in a.rows.iter().chain(&b.rows) {
            if !names.contains(&row.name.as_str()) {
                names.push(&row.name);
            }
        }
        if !names.iter().any(|name| a.row(name).is_some() && b.row(name).is_some()) {
            bail!("the two results have no row in common");
        }
        let mut lines: Vec<Line> =
            names.iter().map(|name| Line::new(name, a.row(name), b.row(name))).collect();
        let probes = [
            ("probe: memory read", "GB/s", a.probe.read_gb_s, b.probe.read_gb_s),
            ("probe: int8", "GOP/s", a.probe.int8_gop_s, b.probe.int8_gop_s),
        ];
        lines.extend(probes.map(|(name, unit, a, b)| {
            let row = |value| Row::new(name, unit, Better::Higher, Some(value));
            Line::new(name, Some(&row(a)), Some(&row(b)))
        }));
        Ok(Self { differences: differences(a, b), warnings: warnings(a, b), lines })
    }

    /// The table that a person reads.
    #[must_use]
    pub fn table(&self, a: &Report, b: &Report) -> String {
        let mut text = format!("A  {}\nB  {}\n", a.subject, b.subject);
        for difference in &self.differences {
            let _ = writeln!(text, "differs: {difference}");
        }
        for warning in &self.warnings {
            let _ = writeln!(text, "warning: {warning}");
        }
        let width = self.lines.iter().map(|line| line.name.chars().count()).max().unwrap_or(0);
        let _ = writeln!(text, "\n{:width$}  {:>9} {:>9} {:7}  {:>8}", "", "A", "B", "", "B better");
        for line in &self.lines {
            let Line { name, unit, a, b, .. } = line;
            let _ = writeln!(text, "{name:width$}  {a:>9} {b:>9} {unit:7}  {:>8}", line.ratio_shown());
        }
        text
    }
}

impl Line {
    fn new(name: &str, a: Option<&Row>, b: Option<&Row>) -> Self {
        let shown = |row: Option<&Row>| row.map_or_else(|| "-".to_owned(), Row::shown);
        Self {
            name: name.to_owned(),
            unit: a.or(b).map_or_else(String::new, |row| row.unit.clone()),
            a: shown(a),
            b: shown(b),
            ratio: ratio(a, b),
        }
    }

    /// The ratio as it is shown; a dash for none.
    #[must_use]
    pub fn ratio_shown(&self) -> String {
        self.ratio.map_or_else(|| "-".to_owned(), |ratio| format!("{ratio:.2}x"))
    }
}

fn differences(a: &Report, b: &Report) -> Vec<String> {
    let show = |value: Option<&Value>| value.map_or_else(|| "-".to_owned(), plain);
    let names: BTreeSet<&String> = a.settings.keys().chain(b.settings.keys()).collect();
    let both = names.into_iter().map(|name| (name, a.settings.get(name), b.settings.get(name)));
    let differing = both.filter(|(_, a, b)| a != b);
    differing.map(|(name, a, b)| format!("{name} is {} in A, {} in B", show(a), show(b))).collect()
}

fn warnings(a: &Report, b: &Report) -> Vec<String> {
    let mut warnings = Vec::new();
    for (name, unit, a, b) in b.probe.apart(&a.probe) {
        let off = (a / b - 1.0) * 100.0;
        warnings.push(format!(
            "the machine was not the same: {name} was {b:.1} {unit} for A and {a:.1} {unit} for B ({off:+.0} %)"
        ));
    }
    for name in ["failed turns", "turns that ended well", "turns not ended in time"] {
        let value = |report: &Report| report.row(name).and_then(|row| row.value);
        if let (Some(a), Some(b)) = (value(a), value(b))
            && a != b
        {
            warnings.push(format!("{name}: {a:.0} in A, {b:.0} in B; their times are of different turns"));
        }
    }
    for (name, report) in [("A", a), ("B", b)] {
        if report.unsteady > 0 {
            warnings.push(format!(
                "the machine changed while {name} was measured: {} of its runs",
                report.unsteady
            ));
        }
    }
    warnings
}

/// How many times better the second is; `None` where a value is missing or nothing.
fn ratio(a: Option<&Row>, b: Option<&Row>) -> Option<f64> {
    let better = a?.better;
    let (a, b) = (a?.value?, b?.value?);
    let (above, below) = if better == Better::Higher { (b, a) } else { (a, b) };
    (above > 0.0 && below > 0.0).then(|| above / below)
}

#[cfg(test)]
mod tests {
    use super::super::report::{Kind, tests::example};
    use super::*;

    fn table(a: &Report, b: &Report) -> anyhow::Result<String> {
        Ok(Comparison::new(a, b)?.table(a, b))
    }

    #[test]
    fn a_ratio_above_one_says_that_the_second_is_better() {
        let a = example();
        let mut b = example();
        b.subject = "http://b, model m".into();
        b.settings.insert("seed".into(), 2.into());
        b.probe.read_gb_s = 15.02;
        b.unsteady = 1;
        b.rows[0].value = Some(1.6);
        b.rows[1].value = Some(150.0);
        b.rows[2].value = Some(92.5);
        b.rows[3].value = Some(0.0);
        b.rows.push(Row::new("wall", "s", Better::Lower, Some(12.0)));
        let wanted = "\
A  http://a, model m
B  http://b, model m
differs: seed is 1 in A, 2 in B
warning: the machine was not the same: memory read was 30.0 GB/s for A and 15.0 GB/s for B (-50 %)
warning: failed turns: 2 in A, 0 in B; their times are of different turns
warning: the machine changed while B was measured: 1 of its runs

                            A         B          B better
TTFT first p50           4.00      1.60 s           2.50x
output                    100       150 tok/s       1.50x
cached                      -      92.5 %               -
failed turns                2         0                 -
wall                        -      12.0 s               -
probe: memory read       30.0      15.0 GB/s        0.50x
probe: int8               901       901 GOP/s       1.00x
";
        assert_eq!(table(&a, &b).expect("alike"), wanted);
    }

    #[test]
    fn a_machine_that_differs_by_less_than_15_percent_is_no_warning() {
        let (a, mut b) = (example(), example());
        b.probe.read_gb_s *= 1.14;
        b.probe.int8_gop_s *= 0.87;
        assert!(Comparison::new(&a, &b).expect("alike").warnings.is_empty());
        b.probe.int8_gop_s *= 0.9;
        assert_eq!(Comparison::new(&a, &b).expect("alike").warnings.len(), 1);
    }

    #[test]
    fn results_of_two_kinds_are_not_compared() {
        let b = Report { kind: Kind::Model, ..example() };
        assert!(table(&example(), &b).is_err());
        let b = Report { rows: Vec::new(), ..example() };
        assert_eq!(
            table(&example(), &b).expect_err("nothing").to_string(),
            "the two results have no row in common"
        );
    }
}

//! Two results side by side. A ratio above 1 says that the second is the better one, whichever way a row counts.

use super::report::{Better, Report, Row, plain};
use anyhow::bail;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;

/// The table of both, the settings in which they differ, and the probes.
///
/// # Errors
/// When the results are not of one kind, or have no row in common.
pub fn table(a: &Report, b: &Report) -> anyhow::Result<String> {
    if a.kind != b.kind {
        bail!("one is a result of `bench model`, the other of `bench load`: there is nothing to compare");
    }
    let find = |report: &Report, name: &str| report.rows.iter().find(|row| row.name == name).cloned();
    let mut names: Vec<&str> = Vec::new();
    for row in a.rows.iter().chain(&b.rows) {
        if !names.contains(&row.name.as_str()) {
            names.push(&row.name);
        }
    }
    if !names.iter().any(|name| find(a, name).is_some() && find(b, name).is_some()) {
        bail!("the two results have no row in common");
    }
    let mut text = format!("A  {}\nB  {}\n", a.subject, b.subject);
    let settings: BTreeSet<&String> = a.settings.keys().chain(b.settings.keys()).collect();
    for name in settings {
        let (a, b) = (a.settings.get(name), b.settings.get(name));
        if a != b {
            let show = |value: Option<&Value>| value.map_or_else(|| "-".to_owned(), plain);
            let _ = writeln!(text, "differs: {name} is {} in A, {} in B", show(a), show(b));
        }
    }
    let probes = [
        ("probe: memory read", "GB/s", a.probe.read_gb_s, b.probe.read_gb_s),
        ("probe: f32", "GFLOP/s", a.probe.f32_gflop_s, b.probe.f32_gflop_s),
    ];
    let mut lines: Vec<(String, Option<Row>, Option<Row>)> =
        names.iter().map(|name| ((*name).to_owned(), find(a, name), find(b, name))).collect();
    lines.extend(probes.map(|(name, unit, a, b)| {
        let row = |value| Some(Row::new(name, unit, Better::Higher, Some(value)));
        (name.to_owned(), row(a), row(b))
    }));
    let width = lines.iter().map(|(name, ..)| name.chars().count()).max().unwrap_or(0);
    let _ = writeln!(text, "\n{:width$}  {:>9} {:>9} {:7}  {:>8}", "", "A", "B", "", "B better");
    for (name, a, b) in lines {
        let unit = a.as_ref().or(b.as_ref()).map_or("", |row| &row.unit);
        let value = |row: &Option<Row>| row.as_ref().map_or_else(|| "-".to_owned(), Row::shown);
        let ratio = ratio(a.as_ref(), b.as_ref()).map_or_else(|| "-".to_owned(), |x| format!("{x:.2}x"));
        let _ = writeln!(text, "{name:width$}  {:>9} {:>9} {unit:7}  {ratio:>8}", value(&a), value(&b));
    }
    Ok(text)
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

    #[test]
    fn a_ratio_above_one_says_that_the_second_is_better() {
        let a = example();
        let mut b = example();
        b.subject = "http://b, model m".into();
        b.settings.insert("seed".into(), 2.into());
        b.probe.read_gb_s = 15.02;
        b.rows[0].value = Some(1.6);
        b.rows[1].value = Some(150.0);
        b.rows[2].value = Some(92.5);
        b.rows[3].value = Some(0.0);
        b.rows.push(Row::new("wall", "s", Better::Lower, Some(12.0)));
        let wanted = "\
A  http://a, model m
B  http://b, model m
differs: seed is 1 in A, 2 in B

                            A         B          B better
TTFT first p50           4.00      1.60 s           2.50x
output                    100       150 tok/s       1.50x
cached                      -      92.5 %               -
failed turns                2         0                 -
wall                        -      12.0 s               -
probe: memory read       30.0      15.0 GB/s        0.50x
probe: f32               17.2      17.2 GFLOP/s     1.00x
";
        assert_eq!(table(&a, &b).expect("alike"), wanted);
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

//! A result, or two of them in the same axes, as one HTML page that needs nothing from elsewhere: charts, the table,
//! the machine and the settings. Light or dark as the reader's system is.
//!
//! Everything that came from outside (names of models and servers, settings, words of errors) is escaped.

use super::chart::{DotRow, Form, Plot, Scale, Series, Side, dots, escape};
use super::compare::Comparison;
use super::report::{Kind, Report, percent, plain};
use super::statistics::percentile;
use super::turns::Turn;
use std::fmt::Write;

/// Colours that people with any kind of colour vision tell apart (after Okabe and Ito), a little lighter on dark.
const STYLE: &str = ":root{color-scheme:light dark;--page:#fff;--text:#1c1e21;--dim:#5c6370;--rule:#d9dce1;--a:#0072b2;--b:#c4500a;--warn:#fff3d6}
@media (prefers-color-scheme:dark){:root{--page:#16181c;--text:#e6e8eb;--dim:#a0a7b4;--rule:#363b44;--a:#56b4e9;--b:#f0a04b;--warn:#3d3319}}
body{background:var(--page);color:var(--text);font:15px/1.5 system-ui,sans-serif;max-width:780px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem;margin-bottom:.3rem}h2{font-size:1.1rem;margin:2rem 0 .5rem}
p{margin:.3rem 0}.dim{color:var(--dim)}
.warn{background:var(--warn);padding:.4rem .7rem;border-radius:4px;margin:.4rem 0}
.key{display:inline-block;width:.8em;height:.8em;margin-right:.5em}.key.a{background:var(--a);border-radius:50%}.key.b{background:var(--b)}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.25rem .5rem;border-bottom:1px solid var(--rule);text-align:right}th{font-weight:600;color:var(--dim)}
th:first-child,td:first-child,td.left{text-align:left}td.left{overflow-wrap:anywhere}.scroll{overflow-x:auto}
svg{display:block;width:100%;height:auto;margin:1.2rem 0 1.8rem}
svg text{fill:var(--text);font:12px system-ui,sans-serif}svg .title{font-size:14px;font-weight:600}svg .tick,svg .axis{fill:var(--dim)}
svg .grid{stroke:var(--rule);stroke-width:1}svg .line{fill:none;stroke-width:2}svg .dashed{stroke-dasharray:6 4}
svg .line.a{stroke:var(--a)}svg .line.b{stroke:var(--b)}svg .dot.a{fill:var(--a)}svg .dot.b{fill:var(--b)}svg .faint{fill-opacity:.35}";

/// Points of a distribution that are drawn at most: more than a screen shows.
const POINTS_MAX: usize = 600;

/// The page of one result.
#[must_use]
pub fn of_one(report: &Report) -> String {
    let mut page = Page::new(&format!("Hearth bench: {}", report.subject));
    page.paragraph("dim", &format!("Measured by hearth {} ({}).", report.hearth, kind(report.kind)));
    page.charts(&[(Side::A, report)]);
    page.heading("Figures");
    page.figures(report);
    page.failures(&[("", report)]);
    page.heading("Machine");
    report.machine().iter().for_each(|line| page.paragraph("", line));
    page.heading("Settings");
    page.settings(&[report]);
    page.end()
}

/// The page of two results.
#[must_use]
pub fn of_two(a: &Report, b: &Report, comparison: &Comparison) -> String {
    let mut page = Page::new("Hearth bench: A and B");
    for (class, name, report) in [("a", "A", a), ("b", "B", b)] {
        let subject = escape(&report.subject);
        let version = escape(&report.hearth);
        let _ = write!(
            page.html,
            r#"<p><span class="key {class}"></span><b>{name}</b> {subject} <span class="dim">measured by hearth {version} ({})</span></p>"#,
            kind(report.kind)
        );
    }
    comparison.warnings.iter().for_each(|warning| page.paragraph("warn", warning));
    page.charts(&[(Side::A, a), (Side::B, b)]);
    page.heading("Figures");
    page.paragraph(
        "dim",
        "\"B better\" is how many times better B is than A; above 1 is better, for times as for speeds.",
    );
    let cells = comparison.lines.iter().map(|line| {
        vec![
            line.name.clone(),
            with_unit(&line.a, &line.unit),
            with_unit(&line.b, &line.unit),
            line.ratio_shown(),
        ]
    });
    page.table(&["", "A", "B", "B better"], cells);
    page.failures(&[("A: ", a), ("B: ", b)]);
    page.heading("Machine");
    for (name, report) in [("A", a), ("B", b)] {
        report.machine().iter().for_each(|line| page.paragraph("", &format!("{name}: {line}")));
    }
    page.heading("Settings");
    comparison
        .differences
        .iter()
        .for_each(|difference| page.paragraph("warn", &format!("differs: {difference}")));
    page.settings(&[a, b]);
    page.end()
}

const fn kind(kind: Kind) -> &'static str {
    match kind {
        Kind::Model => "bench model",
        Kind::Load => "bench load",
    }
}

struct Page {
    html: String,
}

impl Page {
    fn new(title: &str) -> Self {
        let title = escape(title);
        let html = format!(
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\
             <title>{title}</title><style>{STYLE}</style></head><body>\n<h1>{title}</h1>\n"
        );
        Self { html }
    }

    fn end(mut self) -> String {
        self.html.push_str("</body></html>\n");
        self.html
    }

    fn heading(&mut self, text: &str) {
        let _ = writeln!(self.html, "<h2>{}</h2>", escape(text));
    }

    fn paragraph(&mut self, class: &str, text: &str) {
        let _ = writeln!(self.html, r#"<p class="{class}">{}</p>"#, escape(text));
    }

    fn table(&mut self, head: &[&str], rows: impl Iterator<Item = Vec<String>>) {
        let cells = |tag: &str, cells: &[String]| -> String {
            cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escape(cell))).collect()
        };
        let head: Vec<String> = head.iter().map(|cell| (*cell).to_owned()).collect();
        let _ = write!(self.html, r#"<div class="scroll"><table><tr>{}</tr>"#, cells("th", &head));
        for row in rows {
            let _ = writeln!(self.html, "<tr>{}</tr>", cells("td", &row));
        }
        self.html.push_str("</table></div>\n");
    }

    fn figures(&mut self, report: &Report) {
        let shared = report.rows.iter().any(|row| row.memory.is_some() || row.int8.is_some());
        let ranged = report.rows.iter().any(|row| row.range().is_some());
        let mut head = vec!["", "median"];
        if !ranged {
            head[1] = "value";
        }
        if shared {
            head.extend(["of memory", "of int8"]);
        }
        if ranged {
            head.push("runs");
        }
        let rows = report.rows.iter().map(|row| {
            let mut cells = vec![row.name.clone(), with_unit(&row.shown(), &row.unit)];
            if shared {
                cells.extend([percent(row.memory), percent(row.int8)]);
            }
            if ranged {
                cells.push(row.range().unwrap_or_default());
            }
            cells
        });
        self.table(&head, rows);
        if shared {
            let text = "\"Of memory\" is what must be read (weights, keys and values) against what memory could have \
                given in that time; \"of int8\" is the products of the weights against those that the CPU could have \
                made.";
            self.paragraph("dim", text);
        }
    }

    fn failures(&mut self, reports: &[(&str, &Report)]) {
        for (name, report) in reports {
            for (reason, count) in &report.failures {
                self.paragraph("warn", &format!("{name}failed {count} times: {reason}"));
            }
        }
    }

    fn settings(&mut self, reports: &[&Report]) {
        let mut names: Vec<&String> = reports.iter().flat_map(|report| report.settings.keys()).collect();
        names.sort();
        names.dedup();
        let value =
            |report: &&Report, name: &str| report.settings.get(name).map_or_else(|| "-".to_owned(), plain);
        let rows = names.into_iter().map(|name| {
            let values = reports.iter().map(|report| value(report, name));
            std::iter::once(name.clone()).chain(values).collect()
        });
        let head: &[&str] = if reports.len() > 1 { &["", "A", "B"] } else { &["", ""] };
        self.table(head, rows);
    }

    fn charts(&mut self, reports: &[(Side, &Report)]) {
        if reports.iter().any(|(_, report)| report.kind == Kind::Model) {
            self.html.push_str(&speeds(reports));
        } else {
            self.html.push_str(&load_charts(reports));
        }
    }
}

/// A value as it is shown, where there is one.
fn with_unit(value: &str, unit: &str) -> String {
    if value == "-" || unit.is_empty() { value.to_owned() } else { format!("{value} {unit}") }
}

/// The name of a series, with the result's where there are two.
fn named(reports: &[(Side, &Report)], side: Side, name: &str) -> String {
    match (reports.len(), side) {
        (1, _) => name.to_owned(),
        (_, Side::A) => format!("A {name}"),
        (_, Side::B) => format!("B {name}"),
    }
}

fn speeds(reports: &[(Side, &Report)]) -> String {
    let mut names: Vec<(&str, &str)> = Vec::new();
    for row in reports.iter().flat_map(|(_, report)| &report.rows) {
        if !names.contains(&(&row.name, &row.unit)) {
            names.push((&row.name, &row.unit));
        }
    }
    let row = |(name, _): (&str, &str)| {
        let values = reports.iter().filter_map(|(side, report)| {
            let row = report.row(name)?;
            Some((*side, row.value?, row.shown(), row.runs.clone()))
        });
        DotRow { name: name.to_owned(), values: values.collect() }
    };
    let unit = names.first().map_or("", |(_, unit)| unit);
    let rows: Vec<DotRow> = names.iter().copied().map(row).collect();
    let title = match reports.len() {
        1 => "Speed: median (full) and single runs (faint)",
        _ => "Speed of A (circles) and B (squares): median (full) and single runs (faint)",
    };
    dots(title, &format!("{unit}, logarithmic; farther right is better"), &rows)
}

fn load_charts(reports: &[(Side, &Report)]) -> String {
    let later = reports.iter().any(|(_, report)| report.turns.iter().any(|turn| turn.turn > 0));
    let timed = reports.iter().any(|(_, report)| report.settings.contains_key("trace"));
    let mut charts = String::new();
    let mut draw = |title: &str, x: (&str, Scale), y: (&str, Scale), series: Vec<Series>| {
        if series.iter().all(|series| series.points.is_empty()) {
            return;
        }
        let plot = Plot {
            title: title.to_owned(),
            x_title: x.0.to_owned(),
            y_title: y.0.to_owned(),
            x_scale: x.1,
            y_scale: y.1,
            series,
        };
        charts.push_str(&plot.svg());
    };
    let seconds = ("seconds, logarithmic", Scale::Log);
    if later {
        let x = ("turn of its session", Scale::Count);
        draw("Time to first token, by turn", x, seconds, ttft_by_turn(reports));
    }
    if timed || !later {
        let x = ("seconds since the start of the run", Scale::Linear);
        draw("Time to first token, by time of sending", x, seconds, ttft_by_time(reports));
    }
    let share = |of: &'static str| (of, Scale::Linear);
    let ttft = distributions(reports, |turn| turn.first_text().into_iter().collect());
    let x = ("seconds to the first token, logarithmic", Scale::Log);
    draw("Distribution of the time to first token", x, share("% of turns that had it by then"), ttft);
    let gaps = distributions(reports, |turn| turn.gaps().collect());
    let x = ("milliseconds between two pieces of an answer, logarithmic", Scale::Log);
    draw("Distribution of the gaps", x, share("% of gaps that are not longer"), gaps);
    charts
}

/// The 50th and the 95th percentile of each turn, over sessions and runs.
fn ttft_by_turn(reports: &[(Side, &Report)]) -> Vec<Series> {
    let mut all = Vec::new();
    for (side, report) in reports {
        let turns = report.turns.iter().map(|turn| turn.turn + 1).max().unwrap_or(0);
        let times = |number: usize| -> Vec<f64> {
            report.turns.iter().filter(|turn| turn.turn == number).filter_map(Turn::first_text).collect()
        };
        for (name, share, dashed) in [("p50", 0.5, false), ("p95", 0.95, true)] {
            let points =
                (0..turns).filter_map(|turn| Some((turn as f64 + 1.0, percentile(&times(turn), share)?)));
            let label = named(reports, *side, name);
            all.push(Series { label, side: *side, dashed, form: Form::Line, points: points.collect() });
        }
    }
    all
}

fn ttft_by_time(reports: &[(Side, &Report)]) -> Vec<Series> {
    let series = |(side, report): &(Side, &Report)| {
        let points = report.turns.iter().filter_map(|turn| Some((turn.sent_s, turn.first_text()?)));
        let (label, points) = (named(reports, *side, "each turn"), thin(points.collect()));
        Series { label, side: *side, dashed: false, form: Form::Dots, points }
    };
    reports.iter().map(series).collect()
}

/// For each value the share of all values that are not greater, in percent.
fn distributions(reports: &[(Side, &Report)], values: fn(&Turn) -> Vec<f64>) -> Vec<Series> {
    let series = |(side, report): &(Side, &Report)| {
        let good = report.turns.iter().filter(|turn| turn.failed.is_none());
        let mut values: Vec<f64> = good.flat_map(values).collect();
        values.sort_by(f64::total_cmp);
        let count = values.len() as f64;
        let points =
            values.iter().enumerate().map(|(index, value)| (*value, (index as f64 + 1.0) / count * 100.0));
        let points =
            values.first().map(|value| (*value, 0.0)).into_iter().chain(thin(points.collect())).collect();
        let label = named(reports, *side, &format!("{} values", values.len()));
        Series { label, side: *side, dashed: *side == Side::B, form: Form::Steps, points }
    };
    reports.iter().map(series).collect()
}

/// Not more points than can be seen, the first and the last among them.
fn thin(points: Vec<(f64, f64)>) -> Vec<(f64, f64)> {
    if points.len() <= POINTS_MAX {
        return points;
    }
    let last = points.len() - 1;
    (0..POINTS_MAX).map(|index| points[index * last / (POINTS_MAX - 1)]).collect()
}

#[cfg(test)]
mod tests {
    use super::super::chart::tests::well_formed;
    use super::super::report::{Better, Row, tests::example};
    use super::*;

    /// A load result with three turns of two sessions, one of them failed, and names that would be markup.
    fn load() -> Report {
        let mut report = example();
        report.subject = "http://a, model <b>\"R&D\"</b>".into();
        report.failures.insert("HTTP 500: <script>alert('x')</script>".into(), 1);
        for session in 0..2 {
            for turn in 0..3 {
                let text_at_s = vec![0.5 + turn as f64, 0.6 + turn as f64, 0.9 + turn as f64];
                report.turns.push(Turn { session, turn, text_at_s, ..Turn::default() });
            }
        }
        report.turns.push(Turn { turn: 1, failed: Some("x".into()), ..Turn::default() });
        report
    }

    #[track_caller]
    fn check(page: &str, svgs: usize) {
        let body = page.strip_prefix("<!DOCTYPE html>").expect("a document type");
        well_formed(body);
        assert_eq!(page.matches("<svg").count(), svgs);
        for bad in ["<script", "<b>\"R", "src=", "href=", "url(", "@import", "NaN"] {
            assert!(!page.contains(bad), "{bad} in {page}");
        }
    }

    #[test]
    fn a_page_of_one_load_is_well_formed_and_escapes_what_came_from_outside() {
        let page = of_one(&load());
        check(&page, 3);
        assert!(page.contains("model &lt;b&gt;&quot;R&amp;D&quot;&lt;/b&gt;"));
        assert!(page.contains("12 values"), "gaps of the turns that ended well");
    }

    #[test]
    fn two_loads_are_drawn_in_the_same_axes_with_the_ratios_beside() {
        let (a, mut b) = (load(), load());
        b.rows[0].value = Some(2.0);
        b.turns.retain(|turn| turn.session == 0);
        b.settings.insert("seed".into(), "</td>".into());
        let page = of_two(&a, &b, &Comparison::new(&a, &b).expect("alike"));
        check(&page, 3);
        for part in ["A p50", "B p95", "2.00x", "differs: seed is 1 in A, &lt;/td&gt; in B"] {
            assert!(page.contains(part), "{part}");
        }
    }

    #[test]
    fn single_turns_are_drawn_by_time_and_nothing_is_drawn_of_nothing() {
        let mut report = load();
        report.turns.retain(|turn| turn.turn == 0);
        let page = of_one(&report);
        check(&page, 3);
        assert!(page.contains("by time of sending") && !page.contains("by turn"));
        report.turns.clear();
        check(&of_one(&report), 0);
    }

    #[test]
    fn speeds_of_models_are_drawn_with_their_runs() {
        let mut report = Report { kind: Kind::Model, ..example() };
        report.rows = vec![
            Row {
                memory: Some(98.0),
                ..Row::of_runs("decode <8>", "tok/s", Better::Higher, vec![30.0, 31.0, 33.0])
            },
            Row::of_runs("prefill", "tok/s", Better::Higher, Vec::new()),
        ];
        report.subject = "http://a".into();
        let page = of_one(&report);
        check(&page, 1);
        assert!(page.contains("30.0 to 33.0") && page.contains("98 %"));
        check(&of_two(&report, &report, &Comparison::new(&report, &report).expect("alike")), 1);
    }

    #[test]
    fn thinning_keeps_the_ends() {
        let points: Vec<(f64, f64)> = (0..5000).map(|i| (f64::from(i), 0.0)).collect();
        let thinned = thin(points.clone());
        assert_eq!(
            (thinned.len(), thinned[0], thinned[POINTS_MAX - 1]),
            (POINTS_MAX, points[0], points[4999])
        );
    }
}

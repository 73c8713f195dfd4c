//! Charts as SVG, to be put into a page whose style sheet gives the colours (`.a`, `.b` and the text's), so that one
//! drawing serves light and dark. Two results are told apart by marker as well as by colour.

use std::fmt::Write;

const WIDTH: f64 = 720.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 66.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 44.0;
const BOTTOM: f64 = 50.0;
/// Width of a character of the labels, about.
const CHARACTER: f64 = 6.6;

/// How values become places on an axis.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// Equal differences are equal distances.
    Linear,
    /// The same for numbers of things: ticks at whole numbers, and not from 0.
    Count,
    /// Equal ratios are; for values above 0.
    Log,
}

/// Which of two results something belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The first, or the only one: circles.
    A,
    /// The second: squares.
    B,
}

/// Values along a line.
#[derive(Clone, Debug)]
pub struct Series {
    /// What it is called in the legend.
    pub label: String,
    /// Whose it is.
    pub side: Side,
    /// Dashed lines go with solid ones of the same result.
    pub dashed: bool,
    /// How the points are drawn.
    pub form: Form,
    /// In the order of drawing.
    pub points: Vec<(f64, f64)>,
}

/// How points are drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A line through them, with a marker on each.
    Line,
    /// A line that goes right, then up.
    Steps,
    /// Markers alone.
    Dots,
}

/// Values over values.
#[derive(Clone, Debug)]
pub struct Plot {
    /// Says what is seen.
    pub title: String,
    /// With its unit.
    pub x_title: String,
    /// With its unit.
    pub y_title: String,
    /// Of the horizontal axis.
    pub x_scale: Scale,
    /// Of the vertical axis.
    pub y_scale: Scale,
    /// What is drawn.
    pub series: Vec<Series>,
}

/// One line of a dot chart: a name, and for each result the median and the runs.
#[derive(Clone, Debug)]
pub struct DotRow {
    /// What was measured.
    pub name: String,
    /// Whose, the value, its label, and the single runs.
    pub values: Vec<(Side, f64, String, Vec<f64>)>,
}

/// The axis of some values: its ends and where its ticks stand.
struct Axis {
    scale: Scale,
    low: f64,
    high: f64,
    ticks: Vec<f64>,
}

impl Axis {
    fn of(scale: Scale, values: impl Iterator<Item = f64>) -> Self {
        let usable = values.filter(|x| x.is_finite() && (scale != Scale::Log || *x > 0.0));
        let range = usable.fold(None, |range: Option<(f64, f64)>, x| {
            Some(range.map_or((x, x), |(low, high)| (low.min(x), high.max(x))))
        });
        let (low, high) = range.unwrap_or((1.0, 1.0));
        match scale {
            Scale::Linear => Self::linear(low.min(0.0), high),
            Scale::Count => Self::count(low, high),
            Scale::Log => Self::log(low, high),
        }
    }

    /// From a round number to a round number, with four to eight steps of 1, 2 or 5.
    fn linear(low: f64, high: f64) -> Self {
        let span = if high > low { high - low } else { 1.0 };
        let rough = span / 5.0;
        let power = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0].map(|m| m * power).into_iter().find(|step| *step >= rough * 0.99);
        let step = step.unwrap_or(10.0 * power);
        let (first, last) = ((low / step).floor(), ((low + span) / step - 1e-9).ceil());
        let count = (last - first) as usize;
        let ticks: Vec<f64> = (0..=count).map(|i| (first + i as f64) * step).collect();
        Self { scale: Scale::Linear, low: first * step, high: last * step, ticks }
    }

    /// With some room at both ends, and ten ticks at most.
    fn count(low: f64, high: f64) -> Self {
        let step = ((high - low) / 9.0).ceil().max(1.0);
        let ticks = (0..10).map(|i| low.ceil() + f64::from(i) * step).filter(|tick| *tick <= high).collect();
        Self { scale: Scale::Count, low: low - step * 0.4, high: high + step * 0.4, ticks }
    }

    /// With ticks at 1, 2 and 5 of each power of ten, or at the powers alone where there are many.
    fn log(low: f64, high: f64) -> Self {
        // Some room, so that no marker sits on an end.
        let (low, high) = (low / 1.1, high * 1.1);
        let powers = low.log10().floor() as i32..=high.log10().ceil() as i32;
        let many = high / low > 3000.0;
        let steps: &[f64] = if many { &[1.0] } else { &[1.0, 2.0, 5.0] };
        let ticks = powers.flat_map(|power| steps.iter().map(move |step| step * 10f64.powi(power)));
        let ticks: Vec<f64> = ticks.filter(|tick| (low..=high).contains(tick)).collect();
        Self { scale: Scale::Log, low, high, ticks }
    }

    /// 0 at the low end, 1 at the high one.
    fn at(&self, value: f64) -> f64 {
        let share = match self.scale {
            Scale::Linear | Scale::Count => (value - self.low) / (self.high - self.low),
            Scale::Log => (value.max(self.low) / self.low).ln() / (self.high / self.low).ln(),
        };
        if share.is_finite() { share.clamp(0.0, 1.0) } else { 0.0 }
    }
}

impl Plot {
    /// The drawing.
    #[must_use]
    pub fn svg(&self) -> String {
        let points = || self.series.iter().flat_map(|series| &series.points);
        let x = Axis::of(self.x_scale, points().map(|point| point.0));
        let y = Axis::of(self.y_scale, points().map(|point| point.1));
        let legend = Legend::new(self.series.iter().map(|series| series.label.as_str()));
        let top = TOP + legend.height();
        let height = HEIGHT + legend.height();
        let bottom = height - BOTTOM;
        let across = |value: f64| LEFT + x.at(value) * (WIDTH - LEFT - RIGHT);
        let up = |value: f64| bottom - y.at(value) * (bottom - top);
        let mut svg = start(&self.title, height);
        for tick in &y.ticks {
            let (at, label) = (up(*tick), label(*tick));
            let _ = write!(
                svg,
                r#"<line class="grid" x1="{LEFT}" x2="{}" y1="{at:.1}" y2="{at:.1}"/>"#,
                WIDTH - RIGHT
            );
            let _ = write!(
                svg,
                r#"<text class="tick" x="{}" y="{:.1}" text-anchor="end">{label}</text>"#,
                LEFT - 7.0,
                at + 4.0
            );
        }
        vertical_ticks(&mut svg, &x, &across, (top, bottom));
        let _ = write!(
            svg,
            r#"<text class="axis" x="{:.1}" y="{:.1}" text-anchor="middle">{}</text>"#,
            (LEFT + WIDTH - RIGHT) / 2.0,
            height - 10.0,
            escape(&self.x_title)
        );
        let middle = (top + bottom) / 2.0;
        let _ = write!(
            svg,
            r#"<text class="axis" x="16" y="{middle:.1}" text-anchor="middle" transform="rotate(-90 16 {middle:.1})">{}</text>"#,
            escape(&self.y_title)
        );
        for (series, place) in self.series.iter().zip(&legend.places) {
            draw_series(&mut svg, series, &across, &up);
            let (x, y) = *place;
            draw_line(&mut svg, series, &format!("M{x:.1} {y:.1}h26"));
            if series.form != Form::Steps {
                marker(&mut svg, series.side, "dot", (x + 13.0, y));
            }
            let _ = write!(
                svg,
                r#"<text class="legend" x="{:.1}" y="{:.1}">{}</text>"#,
                x + 32.0,
                y + 4.0,
                escape(&series.label)
            );
        }
        svg.push_str("</svg>\n");
        svg
    }
}

fn vertical_ticks(svg: &mut String, axis: &Axis, across: &dyn Fn(f64) -> f64, (top, bottom): (f64, f64)) {
    let mut free = f64::NEG_INFINITY;
    for tick in &axis.ticks {
        let (at, label) = (across(*tick), label(*tick));
        let _ =
            write!(svg, r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="{top:.1}" y2="{bottom:.1}"/>"#);
        let half = label.chars().count() as f64 * CHARACTER / 2.0;
        // A label that would touch the one before it is left out; its line stays.
        if at - half > free {
            let _ = write!(
                svg,
                r#"<text class="tick" x="{at:.1}" y="{:.1}" text-anchor="middle">{label}</text>"#,
                bottom + 17.0
            );
            free = at + half + 4.0;
        }
    }
}

fn draw_series(svg: &mut String, series: &Series, across: &dyn Fn(f64) -> f64, up: &dyn Fn(f64) -> f64) {
    let places: Vec<(f64, f64)> = series.points.iter().map(|(x, y)| (across(*x), up(*y))).collect();
    let mut path = String::new();
    for (index, (x, y)) in places.iter().enumerate() {
        let _ = match (index, series.form) {
            (0, _) => write!(path, "M{x:.1} {y:.1}"),
            (_, Form::Steps) => write!(path, "H{x:.1}V{y:.1}"),
            _ => write!(path, "L{x:.1} {y:.1}"),
        };
    }
    if !path.is_empty() {
        draw_line(svg, series, &path);
    }
    if series.form != Form::Steps {
        let kind = if series.form == Form::Dots { "dot faint" } else { "dot" };
        places.into_iter().for_each(|place| marker(svg, series.side, kind, place));
    }
}

fn draw_line(svg: &mut String, series: &Series, path: &str) {
    if series.form == Form::Dots {
        return;
    }
    let dashed = if series.dashed { " dashed" } else { "" };
    let _ = write!(svg, r#"<path class="line {}{dashed}" d="{path}"/>"#, side(series.side));
}

fn marker(svg: &mut String, of: Side, kind: &str, (x, y): (f64, f64)) {
    let class = side(of);
    let _ = match of {
        Side::A => write!(svg, r#"<circle class="{kind} {class}" cx="{x:.1}" cy="{y:.1}" r="4"/>"#),
        Side::B => {
            write!(
                svg,
                r#"<rect class="{kind} {class}" x="{:.1}" y="{:.1}" width="7" height="7"/>"#,
                x - 3.5,
                y - 3.5
            )
        }
    };
}

const fn side(side: Side) -> &'static str {
    match side {
        Side::A => "a",
        Side::B => "b",
    }
}

/// Where the entries of a legend stand: in lines from the left, under the title.
struct Legend {
    places: Vec<(f64, f64)>,
    lines: usize,
}

impl Legend {
    fn new<'a>(labels: impl Iterator<Item = &'a str>) -> Self {
        let (mut x, mut lines) = (LEFT, 1);
        let place = |label: &str| {
            let width = 32.0 + label.chars().count() as f64 * CHARACTER;
            if x > LEFT && x + width > WIDTH - RIGHT {
                (x, lines) = (LEFT, lines + 1);
            }
            let place = (x, 22.0 + 18.0 * lines as f64);
            x += width + 20.0;
            place
        };
        let places = labels.map(place).collect();
        Self { places, lines }
    }

    fn height(&self) -> f64 {
        18.0 * self.lines as f64
    }
}

/// Names one under another with their values on one logarithmic axis.
#[must_use]
pub fn dots(title: &str, x_title: &str, rows: &[DotRow]) -> String {
    const ROW: f64 = 38.0;
    let values = || rows.iter().flat_map(|row| &row.values);
    let axis =
        Axis::of(Scale::Log, values().flat_map(|(_, value, _, runs)| runs.iter().chain([value]).copied()));
    let names = rows.iter().map(|row| row.name.chars().count()).max().unwrap_or(0);
    let left = (names as f64 * CHARACTER + 24.0).min(WIDTH / 2.0);
    let label_width =
        values().map(|(.., label, _)| label.chars().count()).max().unwrap_or(0) as f64 * CHARACTER;
    let right = RIGHT + label_width;
    let bottom = TOP + ROW * rows.len() as f64;
    let height = bottom + BOTTOM;
    let across = |value: f64| left + axis.at(value) * (WIDTH - left - right);
    let mut svg = start(title, height);
    vertical_ticks(&mut svg, &axis, &across, (TOP, bottom));
    for (index, row) in rows.iter().enumerate() {
        let middle = TOP + ROW * (index as f64 + 0.5);
        let _ = write!(
            svg,
            r#"<text class="name" x="{:.1}" y="{:.1}" text-anchor="end">{}</text>"#,
            left - 12.0,
            middle + 4.0,
            escape(&row.name)
        );
        for (of, value, label, runs) in &row.values {
            let y = match (of, row.values.len()) {
                (_, 1) => middle,
                (Side::A, _) => middle - 8.0,
                (Side::B, _) => middle + 8.0,
            };
            runs.iter().for_each(|run| marker(&mut svg, *of, "dot faint", (across(*run), y)));
            marker(&mut svg, *of, "dot", (across(*value), y));
            // To the right of the last marker, so that it crosses none.
            let end = runs.iter().chain([value]).map(|run| across(*run)).fold(0.0, f64::max);
            let _ = write!(
                svg,
                r#"<text class="tick" x="{:.1}" y="{:.1}">{}</text>"#,
                end + 9.0,
                y + 4.0,
                escape(label)
            );
        }
    }
    let _ = write!(
        svg,
        r#"<text class="axis" x="{:.1}" y="{:.1}" text-anchor="middle">{}</text></svg>"#,
        (left + WIDTH - right) / 2.0,
        height - 10.0,
        escape(x_title)
    );
    svg.push('\n');
    svg
}

fn start(title: &str, height: f64) -> String {
    let title = escape(title);
    format!(
        r#"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0}" role="img"><title>{title}</title><text class="title" x="0" y="18">{title}</text>"#
    )
}

/// A number without zeros that say nothing.
fn label(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text.is_empty() || text == "-" || text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// Text that HTML and XML take as it is.
#[must_use]
pub fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            // XML has no way to write these.
            c if c.is_control() && !matches!(c, '\n' | '\t') => escaped.push('\u{fffd}'),
            c => escaped.push(c),
        }
    }
    escaped
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Checks that a text is one XML element: tags are balanced, attributes are quoted and distinct, and nothing is
    /// left unescaped. Comments, processing instructions and CDATA are taken for faults: nothing here writes any.
    #[track_caller]
    pub fn well_formed(text: &str) {
        let mut open: Vec<&str> = Vec::new();
        let mut roots = 0;
        let mut rest = text.trim();
        while let Some(at) = rest.find('<') {
            let (before, tag) = rest.split_at(at);
            plain(before);
            assert!(!open.is_empty() || before.trim().is_empty(), "text outside of the element: {before:?}");
            let mut quoted = false;
            let end = tag.find(|c| {
                quoted ^= c == '"';
                c == '>' && !quoted
            });
            let end = end.unwrap_or_else(|| panic!("a tag is not closed: {:.80}", tag));
            let inside = &tag[1..end];
            rest = &tag[end + 1..];
            if let Some(name) = inside.strip_prefix('/') {
                assert_eq!(open.pop(), Some(name.trim()), "what is closed is what was opened last");
                continue;
            }
            let (inside, alone) = inside.strip_suffix('/').map_or((inside, false), |inside| (inside, true));
            let name = inside.split_whitespace().next().unwrap_or_default();
            assert!(
                !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric()),
                "a tag called {name:?}"
            );
            attributes(&inside[name.len()..]);
            roots += usize::from(open.is_empty());
            if !alone {
                open.push(name);
            }
        }
        assert!(open.is_empty(), "left open: {open:?}");
        assert!(rest.trim().is_empty() && roots == 1, "one element");
    }

    #[track_caller]
    fn attributes(mut text: &str) {
        let mut names = Vec::new();
        while !text.trim().is_empty() {
            assert!(text.starts_with(char::is_whitespace), "a space before each attribute: {text:?}");
            let (name, rest) = text.trim_start().split_once("=\"").expect("a quoted value");
            assert!(
                name.chars().all(|c| c.is_ascii_alphanumeric() || "-:".contains(c)),
                "an attribute {name:?}"
            );
            assert!(!names.contains(&name), "{name} twice");
            names.push(name);
            let (value, rest) = rest.split_once('"').expect("the value's end");
            assert!(!value.contains('<'), "{value:?}");
            plain(value);
            text = rest;
        }
    }

    #[track_caller]
    fn plain(text: &str) {
        for part in text.split('&').skip(1) {
            let name = part.split(';').next().unwrap_or_default();
            assert!(["amp", "lt", "gt", "quot", "#39"].contains(&name), "an ampersand in {text:?}");
        }
    }

    #[test]
    #[should_panic(expected = "what is closed")]
    fn the_check_itself_sees_a_tag_that_is_not_closed() {
        well_formed("<svg><text></svg>");
    }

    fn plot(points: Vec<(f64, f64)>) -> Plot {
        let series = |label: &str, side, form| Series {
            label: label.into(),
            side,
            dashed: false,
            form,
            points: points.clone(),
        };
        Plot {
            title: "a < b & \"c\"".into(),
            x_title: "x > 0 [s]".into(),
            y_title: "y".into(),
            x_scale: Scale::Log,
            y_scale: Scale::Linear,
            series: vec![
                series("A <m>", Side::A, Form::Line),
                series("B", Side::B, Form::Steps),
                series(&"long ".repeat(30), Side::B, Form::Dots),
            ],
        }
    }

    #[test]
    fn drawings_are_well_formed_whatever_they_show() {
        let some = vec![(0.001, 5.0), (20.0, 7.0)];
        let odd = vec![(0.0, 0.0), (f64::NAN, f64::INFINITY), (-1.0, 3.0)];
        for points in [some, odd, vec![(1.0, 1.0)], Vec::new()] {
            let svg = plot(points).svg();
            well_formed(&svg);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
        let row = |value: f64| DotRow {
            name: "<script>".into(),
            values: vec![
                (Side::A, value, "5 & 6".into(), vec![4.0, value]),
                (Side::B, 7.0, "7".into(), Vec::new()),
            ],
        };
        well_formed(&dots("t", "tok/s", &[row(5.0), row(0.0)]));
        well_formed(&dots("t", "tok/s", &[]));
    }

    #[test]
    fn ticks_are_round_and_span_the_values() {
        assert_eq!(Axis::linear(0.0, 93.0).ticks, [0.0, 20.0, 40.0, 60.0, 80.0, 100.0]);
        assert_eq!(Axis::linear(0.0, 100.0).high, 100.0);
        assert_eq!(Axis::linear(0.0, 0.0).ticks.len(), 6);
        assert_eq!(Axis::count(1.0, 6.0).ticks, [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
        assert_eq!(Axis::count(1.0, 1.0).ticks, [1.0]);
        assert_eq!(Axis::count(1.0, 100.0).ticks[..3], [1.0, 12.0, 23.0]);
        let log = Axis::log(0.3, 9.0);
        assert_eq!(log.ticks.iter().map(|tick| label(*tick)).collect::<Vec<_>>(), ["0.5", "1", "2", "5"]);
        assert_eq!(Axis::log(1e-3, 1e3).ticks.len(), 7);
        assert_eq!((log.at(0.0), log.at(1e9)), (0.0, 1.0));
    }

    #[test]
    fn labels_have_no_empty_digits() {
        for (value, wanted) in [(0.0, "0"), (20.0, "20"), (0.05, "0.05"), (-0.0, "0"), (1500.0, "1500")] {
            assert_eq!(label(value), wanted);
        }
    }

    #[test]
    fn what_comes_from_outside_cannot_become_markup() {
        assert_eq!(escape("<b a='\"'>&\u{1}"), "&lt;b a=&#39;&quot;&#39;&gt;&amp;\u{fffd}");
    }
}

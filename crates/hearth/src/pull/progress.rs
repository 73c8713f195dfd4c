//! How a pull shows that it moves: a bar on a terminal, a line now and then elsewhere, nothing in tests.

use base::Bytes;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{IsTerminal, Write};

/// A line on standard error, when there is one.
fn say(line: &str) {
    // Progress that nobody sees is no fault.
    let _ = writeln!(std::io::stderr(), "{line}");
}

/// Told how a pull goes.
pub trait Progress {
    /// A file begins; `done` of its `total` bytes are here already.
    fn begin(&mut self, name: &str, total: Option<u64>, done: u64);
    /// So many bytes are here now.
    fn advance(&mut self, done: u64);
    /// Something worth a line.
    fn note(&mut self, line: &str);
    /// The file has ended, well or not.
    fn end(&mut self);
}

/// Bars on a terminal, lines elsewhere.
#[must_use]
pub fn for_stderr() -> Box<dyn Progress> {
    if std::io::stderr().is_terminal() { Box::new(Bars::default()) } else { Box::new(Lines::default()) }
}

/// One bar at a time on standard error.
#[derive(Debug, Default)]
pub struct Bars(Option<ProgressBar>);

impl Progress for Bars {
    fn begin(&mut self, name: &str, total: Option<u64>, done: u64) {
        self.end();
        let bar = ProgressBar::with_draw_target(total, ProgressDrawTarget::stderr());
        let template = if total.is_some() {
            "  {msg} [{bar:30}] {bytes}/{total_bytes} {bytes_per_sec} {eta}"
        } else {
            "  {msg} {spinner} {bytes} {bytes_per_sec}"
        };
        let style = ProgressStyle::with_template(template).expect("the template is well formed");
        bar.set_style(style.progress_chars("=> "));
        bar.set_message(name.to_owned());
        // So that bytes from an earlier pull do not count as speed.
        bar.set_position(done);
        bar.reset_eta();
        self.0 = Some(bar);
    }

    fn advance(&mut self, done: u64) {
        if let Some(bar) = &self.0 {
            bar.set_position(done);
        }
    }

    fn note(&mut self, line: &str) {
        match &self.0 {
            Some(bar) => bar.suspend(|| say(&format!("  {line}"))),
            None => say(&format!("  {line}")),
        }
    }

    fn end(&mut self) {
        if let Some(bar) = self.0.take() {
            bar.abandon();
        }
    }
}

/// A line at the start and at each tenth.
#[derive(Debug, Default)]
pub struct Lines {
    name: String,
    total: Option<u64>,
    next: u64,
}

/// Without a known total, a line for each so many bytes.
const STEP: u64 = 64 << 20;
/// Less than this is worth no line of its own.
const STEP_MIN: u64 = 16 << 20;

impl Lines {
    fn step(&self) -> u64 {
        self.total.map_or(STEP, |total| (total / 10).max(STEP_MIN))
    }
}

impl Progress for Lines {
    fn begin(&mut self, name: &str, total: Option<u64>, done: u64) {
        (self.name, self.total) = (name.to_owned(), total);
        self.next = done + self.step();
        let size = total.map_or_else(String::new, |total| format!(" ({})", Bytes(total)));
        let kept = if done > 0 { format!(", {} are here already", Bytes(done)) } else { String::new() };
        say(&format!("  {name}{size}{kept}"));
    }

    fn advance(&mut self, done: u64) {
        if done < self.next {
            return;
        }
        self.next = done + self.step();
        match self.total {
            Some(total) if total > 0 => {
                say(&format!("  {} {} %", self.name, done.saturating_mul(100) / total))
            }
            _ => say(&format!("  {} {}", self.name, Bytes(done))),
        }
    }

    fn note(&mut self, line: &str) {
        say(&format!("  {line}"));
    }

    fn end(&mut self) {}
}

/// Nothing.
#[derive(Debug, Default)]
pub struct Silent;

impl Progress for Silent {
    fn begin(&mut self, _: &str, _: Option<u64>, _: u64) {}
    fn advance(&mut self, _: u64) {}
    fn note(&mut self, _: &str) {}
    fn end(&mut self) {}
}

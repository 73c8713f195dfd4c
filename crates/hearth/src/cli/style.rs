//! Colours on terminals, none elsewhere; and the one place that prints errors.

use std::fmt::Display;
use std::io::{IsTerminal, Write};

/// Whether to colour.
#[derive(Clone, Copy, Debug)]
pub(super) struct Style(bool);

impl Style {
    pub fn for_stdout() -> Self {
        Self(wanted() && std::io::stdout().is_terminal())
    }

    pub fn for_stderr() -> Self {
        Self(wanted() && std::io::stderr().is_terminal())
    }

    pub const fn is_colourful(self) -> bool {
        self.0
    }

    pub fn bold(self, text: impl Display) -> String {
        self.paint("1", text)
    }

    pub fn dim(self, text: impl Display) -> String {
        self.paint("2", text)
    }

    pub fn green(self, text: impl Display) -> String {
        self.paint("32", text)
    }

    fn red(self, text: impl Display) -> String {
        self.paint("1;31", text)
    }

    fn yellow(self, text: impl Display) -> String {
        self.paint("33", text)
    }

    fn paint(self, code: &str, text: impl Display) -> String {
        if self.0 { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_string() }
    }
}

/// The conventions of <https://no-color.org> and of dumb terminals.
fn wanted() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
        && std::env::var_os("TERM").is_none_or(|term| term != "dumb")
}

/// Prints an error with its causes.
pub(super) fn error(error: &anyhow::Error) {
    say(&format!("{} {error:#}", Style::for_stderr().red("error:")));
}

/// Prints a warning.
pub(super) fn warn(text: &str) {
    say(&format!("{} {text}", Style::for_stderr().yellow("warning:")));
}

/// Prints a line of news.
pub(super) fn say(text: &str) {
    say_part(&format!("{text}\n"));
}

/// Prints a part of a line of news.
pub(super) fn say_part(text: &str) {
    let mut stderr = std::io::stderr().lock();
    // A server outlives the terminal it was started from; then there is nobody left to tell.
    let _ = stderr.write_all(text.as_bytes()).and_then(|()| stderr.flush());
}

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
    say(&format!("{} {}", Style::for_stderr().red("error:"), chain(error)));
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

/// An error and its causes in one line. A cause that its error tells already is not told again.
fn chain(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.ends_with(&cause) {
            text = format!("{text}: {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::Context;

    #[test]
    fn a_cause_that_is_told_already_is_not_told_again() {
        #[derive(Debug, thiserror::Error)]
        #[error("cannot read x: {0}")]
        struct Unreadable(#[source] std::io::Error);
        let cause = std::io::Error::other("it is empty");
        let error = Err::<(), _>(Unreadable(cause)).context("cannot load y").expect_err("an error");
        assert_eq!(chain(&error), "cannot load y: cannot read x: it is empty");
    }
}

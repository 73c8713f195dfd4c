//! `hearth bench`: measures a model file or a server, and sets two results side by side.

mod load;
mod model;

use super::style::{self, Style};
use super::{Session, locate, runtime};
use crate::bench::compare::Comparison;
use crate::bench::page;
use crate::bench::report::Report;
use anyhow::{Context, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `hearth bench`.
#[derive(Debug, clap::Args)]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Measure a model file in this process: tokens per second of prompts and of answers
    Model(Box<model::Args>),
    /// Measure a server that speaks OpenAI's dialect under the load of several sessions
    Load(Box<load::Args>),
    /// Show two results side by side, with ratios
    Compare(CompareArgs),
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Settings in which the two differ are told, and what makes the ratios doubtful: a machine that
was not the same, turns that failed.

Example:
  hearth bench compare before.json after.json --report compared.html"
)]
struct CompareArgs {
    /// A result that was saved with --json
    #[arg(value_name = "A.json")]
    a: PathBuf,

    /// Another one; ratios say how many times better it is
    #[arg(value_name = "B.json")]
    b: PathBuf,

    /// Draw both into one page of charts and tables, for a browser
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
}

/// Where a result goes besides the terminal.
#[derive(Debug, clap::Args)]
struct Outputs {
    /// Save the result, for `hearth bench compare`
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,

    /// Draw the result as a page of charts and tables, for a browser
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,

    /// Times that runs are repeated beside which the machine was off by more than 15 % (0: never)
    #[arg(long, value_name = "N", default_value = "2", value_parser = clap::value_parser!(u32).range(0..=100))]
    repeats: u32,
}

/// Runs `hearth bench`.
pub(super) fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::Model(args) => model::run(session, &args),
        Command::Load(args) => load::run(*args),
        Command::Compare(args) => compare(&args),
    }
}

fn compare(args: &CompareArgs) -> anyhow::Result<()> {
    check_writable("--report", args.report.as_deref())?;
    let (a, b) = (Report::open(&args.a)?, Report::open(&args.b)?);
    let comparison = Comparison::new(&a, &b)?;
    if let Some(path) = &args.report {
        save_page(path, &page::of_two(&a, &b, &comparison))?;
    }
    print(&comparison.table(&a, &b))?;
    args.report.iter().for_each(|path| say_saved(path));
    Ok(())
}

impl Outputs {
    /// Tells what can be told about the files before minutes of work.
    fn check(&self) -> anyhow::Result<()> {
        check_writable("--json", self.json.as_deref())?;
        check_writable("--report", self.report.as_deref())
    }

    fn finish(&self, report: &Report) -> anyhow::Result<()> {
        // Saved first: a closed pipe must not cost a long run's result.
        if let Some(path) = &self.json {
            report.save(path)?;
        }
        if let Some(path) = &self.report {
            save_page(path, &page::of_one(report))?;
        }
        print(&report.table())?;
        self.json.iter().chain(&self.report).for_each(|path| say_saved(path));
        Ok(())
    }
}

fn save_page(path: &Path, page: &str) -> anyhow::Result<()> {
    std::fs::write(path, page).with_context(|| format!("--report: cannot write {}", path.display()))
}

fn say_saved(path: &Path) {
    style::say(&Style::for_stderr().dim(format!("saved as {}", path.display())));
}

fn print(text: &str) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    Ok(out.flush()?)
}

fn check_writable(flag: &str, path: Option<&Path>) -> anyhow::Result<()> {
    let Some(path) = path else { return Ok(()) };
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if path.is_dir() || !folder.is_dir() {
        bail!("{flag}: cannot write {}: it is a folder, or its folder is not there", path.display());
    }
    Ok(())
}

/// One line that says how far the work is, on a terminal; nothing elsewhere.
struct Status(ProgressBar);

impl Status {
    fn new() -> Self {
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(
            ProgressStyle::with_template("  {msg} ({elapsed})").expect("the template is well formed"),
        );
        // So that the seconds go on while a step or an answer takes long.
        bar.enable_steady_tick(Duration::from_secs(1));
        Self(bar)
    }

    fn show(&self, line: &str) {
        self.0.set_message(line.to_owned());
    }

    fn end(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Status {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_file_whose_folder_is_missing_is_told_before_the_run_with_its_flag() {
        let folder = tempfile::tempdir().expect("a folder");
        assert!(check_writable("--json", Some(&folder.path().join("a.json"))).is_ok());
        assert!(check_writable("--json", Some(Path::new("a.json"))).is_ok());
        assert!(check_writable("--json", Some(&folder.path().join("none/a.json"))).is_err());
        let error = check_writable("--report", Some(folder.path())).expect_err("a folder").to_string();
        assert!(error.starts_with("--report: cannot write"), "{error}");
    }
}

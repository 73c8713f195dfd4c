//! The command line: one list of commands, one file each.
//!
//! A command gets what it needs through [`Session`] (settings, catalog, an async runtime) and gives back an error in
//! words, which is printed in one place. Colours appear on terminals only. A closed pipe ends a command quietly.

mod accounts;
mod bench;
mod chat;
mod gateways;
mod keys;
mod locate;
mod logs;
mod managed;
mod models;
mod providers;
mod prune;
mod routes;
mod serve;
mod style;
mod tokenize;
mod usage;

use crate::catalog::Catalog;
use crate::config::{self, Layer, Settings};
use anyhow::Context;
use clap::{Parser, Subcommand};
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use style::Style;

/// Hearth serves large language models on your own machines, with the APIs of OpenAI and Workers AI.
#[derive(Debug, Parser)]
#[command(
    name = "hearth",
    version,
    max_term_width = 100,
    after_help = "Examples:
  hearth serve --model smollm2-135m-instruct     serve a small model on 127.0.0.1:8790
  hearth chat                                    talk to it
  hearth chat -p \"Name three rivers.\"            ask one question
  hearth models list                             which models there are"
)]
struct Cli {
    /// Settings file [default: ./hearth.toml, then hearth.toml in the data folder]
    #[arg(
        long,
        global = true,
        value_name = "FILE",
        env = "HEARTH_CONFIG",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    config: Option<PathBuf>,

    /// Folder for models and state [default: ~/.local/share/hearth]
    #[arg(
        long,
        global = true,
        value_name = "DIR",
        env = "HEARTH_DATA_DIR",
        hide_env_values = true,
        help_heading = "Global options"
    )]
    data_dir: Option<PathBuf>,

    #[command(subcommand)]
    command: Command,
}

/// The commands, in the order of `--help`.
#[derive(Debug, Subcommand)]
enum Command {
    /// Serve models over HTTP
    Serve(Box<serve::Args>),
    /// Talk to a model in the terminal
    Chat(chat::Args),
    /// List, pull, show, remove and prune models
    Models(models::Args),
    /// Make, list, rotate and revoke API keys
    Keys(keys::Args),
    /// Make and list accounts
    Accounts(accounts::Args),
    /// Make, list, change and remove gateways
    Gateways(gateways::Args),
    /// Make, list, deploy and explain dynamic routes
    Routes(routes::Args),
    /// List, add, test and remove providers, and keep their keys
    Providers(providers::Args),
    /// List, show, follow and delete logs of requests
    Logs(logs::Args),
    /// Show what was used and what it cost
    Usage(usage::Args),
    /// Show text as the tokens a model sees
    Tokenize(tokenize::Args),
    /// Measure a model file, or a server under load
    Bench(bench::Args),
}

/// What commands share.
struct Session {
    config: Option<PathBuf>,
    data_dir: Option<PathBuf>,
}

impl Session {
    /// These wishes over the settings file's over the defaults. Gives the file's path, when there is one.
    fn settings(&self, wishes: Layer) -> anyhow::Result<(Settings, Option<PathBuf>)> {
        let default = config::default_data_dir();
        let data_dir = self.data_dir.clone().or_else(|| default.clone());
        let working_dir = std::env::current_dir().context("the working folder is gone")?;
        let found = config::file::find(self.config.as_deref(), &working_dir, data_dir.as_deref())?;
        let (path, file) = found.map_or((None, Layer::default()), |(path, layer)| (Some(path), layer));
        let wishes = Layer { data_dir: self.data_dir.clone(), ..wishes };
        Ok((Settings::resolve(wishes.over(file), default.as_deref())?, path))
    }

    /// The data folder, for commands that need no other setting. What the file says about the server is not their
    /// business, so its rules between settings are not checked.
    fn data_dir(&self) -> anyhow::Result<PathBuf> {
        if let Some(data_dir) = &self.data_dir {
            return Ok(data_dir.clone());
        }
        self.place().map(|(data_dir, _)| data_dir)
    }

    /// The data folder, and the database that the settings file names.
    fn place(&self) -> anyhow::Result<(PathBuf, Option<config::DatabaseUrl>)> {
        let default = self.data_dir.clone().or_else(config::default_data_dir);
        let working_dir = std::env::current_dir().context("the working folder is gone")?;
        let found = config::file::find(self.config.as_deref(), &working_dir, default.as_deref())?;
        let file = found.map(|(_, layer)| layer).unwrap_or_default();
        let data_dir = self.data_dir.clone().or(file.data_dir).or(default);
        Ok((data_dir.context(config::SettingsError::NoDataDir)?, file.database))
    }

    fn catalog(&self) -> anyhow::Result<Catalog> {
        Ok(Catalog::load(&self.data_dir()?)?)
    }
}

/// An async runtime; the commands' own waiting needs no more than this.
fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread().enable_all().build().context("cannot start the async runtime")
}

/// Runs the program and gives its exit code: 0 done, 1 failed, 2 called wrongly.
#[must_use]
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    start_log();
    let session = Session { config: cli.config, data_dir: cli.data_dir };
    let result = match cli.command {
        Command::Serve(args) => serve::run(&session, *args),
        Command::Chat(args) => chat::run(&session, args),
        Command::Models(args) => models::run(&session, args),
        Command::Keys(args) => keys::run(&session, args),
        Command::Accounts(args) => accounts::run(&session, args),
        Command::Gateways(args) => gateways::run(&session, args),
        Command::Routes(args) => routes::run(&session, args),
        Command::Providers(args) => providers::run(&session, args),
        Command::Logs(args) => logs::run(&session, args),
        Command::Usage(args) => usage::run(&session, args),
        Command::Tokenize(args) => tokenize::run(&session, args),
        Command::Bench(args) => bench::run(&session, args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            style::error(&error);
            ExitCode::FAILURE
        }
    }
}

/// Whoever read our output has gone, which is no fault.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
    })
}

/// Log lines go to standard error; `HEARTH_LOG` says which (`info`, `debug`, `hearth=debug,warn`).
fn start_log() {
    let filter = std::env::var("HEARTH_LOG").unwrap_or_else(|_| "warn".into());
    let filter = tracing_subscriber::EnvFilter::try_new(&filter).unwrap_or_else(|error| {
        style::warn(&format!("HEARTH_LOG is not understood ({error}); logging warnings"));
        tracing_subscriber::EnvFilter::new("warn")
    });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(Style::for_stderr().is_colourful())
        // Without standard error, telling that a line could not be written would end the process.
        .log_internal_errors(false)
        .init();
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_and_option_has_help() {
        fn check(command: &clap::Command) {
            assert!(command.get_about().is_some(), "{}", command.get_name());
            for argument in command.get_arguments() {
                assert!(argument.get_help().is_some(), "{} {}", command.get_name(), argument.get_id());
            }
            command.get_subcommands().filter(|sub| sub.get_name() != "help").for_each(check);
        }
        check(&Cli::command());
    }

    #[test]
    fn global_options_may_stand_after_the_command() {
        let cli = Cli::try_parse_from(["hearth", "models", "list", "--data-dir", "/d"]).expect("parses");
        assert_eq!(cli.data_dir, Some("/d".into()));
    }

    #[test]
    fn a_closed_pipe_is_recognised_through_context() {
        let pipe: anyhow::Result<()> = Err(io::Error::from(io::ErrorKind::BrokenPipe)).context("writing");
        assert!(is_broken_pipe(&pipe.expect_err("an error")));
        assert!(!is_broken_pipe(&anyhow::anyhow!("other")));
    }
}

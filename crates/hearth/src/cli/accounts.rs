//! `hearth accounts`: who pays.

use super::managed::{Place, print};
use super::{Session, style};
use anyhow::Context;
use base::NanoUsd;
use protocol::workers_ai::catalog::timestamp;

/// Arguments of `hearth accounts`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  hearth accounts create acme --name \"Acme, Inc.\"
  hearth accounts credit acme 50 --note \"invoice 7\"
  hearth accounts list")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List accounts
    List,
    /// Make an account, with a gateway `default`
    Create {
        /// Its id, as it stands in paths
        id: String,
        /// Its name, for people [default: the id]
        #[arg(long)]
        name: Option<String>,
    },
    /// Add to what an account has paid in advance, or take from it; from the first time on it can spend no more than that
    Credit {
        /// Its id
        account: String,
        /// Dollars; below zero takes away
        #[arg(allow_negative_numbers = true)]
        amount: f64,
        /// What is written beside it
        #[arg(long, default_value = "")]
        note: String,
    },
}

/// Runs `hearth accounts`.
pub(super) fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    args.place.with(session, async |gateway| match args.command {
        Command::List => {
            let mut rows = Vec::new();
            for account in gateway.accounts().await? {
                let balance = gateway.balance(&account.id).await?;
                let credit = balance.map_or_else(|| "-".to_owned(), |balance| balance.to_string());
                rows.push(vec![account.id, account.name, timestamp(account.created), credit]);
            }
            print(&["id", "name", "created", "credit"].map(str::to_owned), &rows)
        }
        Command::Create { id, name } => {
            let account = gateway.create_account(&id, name.as_deref().unwrap_or(&id)).await?;
            style::say(&format!("made the account {}", account.id));
            Ok(())
        }
        Command::Credit { account, amount, note } => {
            let amount = NanoUsd::from_dollars(amount).context("the amount must be one of dollars")?;
            let balance = gateway.credit(&account, amount, &note).await?;
            style::say(&format!("the account {account} has {balance}"));
            Ok(())
        }
    })
}

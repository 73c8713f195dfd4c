//! `hearth accounts`: who pays.

use super::managed::{Place, print};
use super::{Session, style};
use protocol::workers_ai::catalog::timestamp;

/// Arguments of `hearth accounts`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  hearth accounts create acme --name \"Acme, Inc.\"
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
}

/// Runs `hearth accounts`.
pub(super) fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    args.place.with(session, async |gateway| match args.command {
        Command::List => {
            let accounts = gateway.accounts().await?.into_iter();
            let rows: Vec<_> =
                accounts.map(|account| vec![account.id, account.name, timestamp(account.created)]).collect();
            print(&["id", "name", "created"].map(str::to_owned), &rows)
        }
        Command::Create { id, name } => {
            let account = gateway.create_account(&id, name.as_deref().unwrap_or(&id)).await?;
            style::say(&format!("made the account {}", account.id));
            Ok(())
        }
    })
}

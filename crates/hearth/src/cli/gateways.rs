//! `hearth gateways`: named settings inside an account.

use super::managed::{Place, print, print_json};
use super::{Session, style};
use anyhow::Context;
use gateway::{DEFAULT, Named};
use protocol::workers_ai::catalog::timestamp;
use serde_json::{Map, Value};
use std::sync::Arc;

/// Arguments of `hearth gateways`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Settings are those of AI Gateway's control plane (docs/gateway.md).

Examples:
  hearth gateways create prod --set retry_max_attempts=3
  hearth gateways set prod retry_delay=500 retry_backoff=exponential
  hearth gateways show prod")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    /// The account they belong to
    #[arg(long, global = true, value_name = "ID", default_value = DEFAULT)]
    account: String,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List gateways
    List,
    /// Show all settings of a gateway as JSON
    Show {
        /// Its id
        id: String,
    },
    /// Make a gateway
    Create {
        /// Its id
        id: String,
        /// A setting and its value; may be given several times
        #[arg(long, value_name = "NAME=VALUE")]
        set: Vec<String>,
    },
    /// Change settings of a gateway
    Set {
        /// Its id
        id: String,
        /// Settings and their values
        #[arg(required = true, value_name = "NAME=VALUE")]
        settings: Vec<String>,
    },
    /// Remove a gateway; what it was used for stays in the ledger
    Rm {
        /// Its id
        id: String,
    },
}

/// Runs `hearth gateways`.
pub(super) fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    let account = &args.account;
    args.place.with(session, async |gateway| match args.command {
        Command::List => {
            gateway.check_account(account).await?;
            let gateways = gateway.gateways(account).await?;
            let rows: Vec<_> = gateways
                .iter()
                .map(|named| vec![named.id.clone(), timestamp(named.created), timestamp(named.modified)])
                .collect();
            print(&["id", "created", "modified"].map(str::to_owned), &rows)
        }
        Command::Show { id } => show(&gateway.gateway(account, &id).await?),
        Command::Create { id, set } => {
            gateway.create_gateway(account, &id, &fields(&set)?).await?;
            style::say(&format!("made the gateway {id}"));
            Ok(())
        }
        Command::Set { id, settings } => {
            show(&gateway.update_gateway(account, &id, &fields(&settings)?).await?)
        }
        Command::Rm { id } => {
            gateway.delete_gateway(account, &id).await?;
            style::say(&format!("removed the gateway {id}"));
            Ok(())
        }
    })
}

fn show(named: &Arc<Named>) -> anyhow::Result<()> {
    print_json(&named.object(timestamp))
}

/// Values are JSON, or texts where they are none.
fn fields(settings: &[String]) -> anyhow::Result<Map<String, Value>> {
    let field = |setting: &String| {
        let (name, value) =
            setting.split_once('=').with_context(|| format!("{setting:?} is no NAME=VALUE"))?;
        Ok((name.to_owned(), serde_json::from_str(value).unwrap_or_else(|_| Value::from(value))))
    };
    settings.iter().map(field).collect()
}

//! `hearth routes`: dynamic routes of a gateway, and which way a request would take.

use super::managed::{Place, print, print_json};
use super::{Session, style};
use anyhow::Context;
use gateway::DEFAULT;
use gateway::route::Facts;
use protocol::workers_ai::catalog::timestamp;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};

/// Arguments of `hearth routes`.
#[derive(Debug, clap::Args)]
#[command(after_help = "A file holds the elements of a route, a JSON list (docs/routes.md).

Examples:
  hearth routes create fast elements.json
  hearth routes explain fast --metadata '{\"plan\":\"free\"}' --failing primary")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
    /// The account they belong to
    #[arg(long, global = true, value_name = "ID", default_value = DEFAULT)]
    account: String,
    /// The gateway they are in
    #[arg(long, global = true, value_name = "ID", default_value = DEFAULT)]
    gateway: String,
    #[command(flatten)]
    place: Place,
}

#[derive(Debug, clap::Subcommand)]
enum Command {
    /// List routes
    List,
    /// Show a route as JSON, with its versions
    Show {
        /// Its name or id
        route: String,
    },
    /// Make a route
    Create {
        /// Its name
        name: String,
        /// Its elements
        file: PathBuf,
    },
    /// Make a version of a route hold
    Deploy {
        /// Its name or id
        route: String,
        /// A version's id, or a file of elements, which becomes a version
        version: String,
    },
    /// Say which way a request would take, and why; nothing is asked
    Explain {
        /// Its name or id
        route: String,
        /// The request's metadata, a JSON object
        #[arg(long, value_name = "JSON", default_value = "{}")]
        metadata: String,
        /// The request's body, JSON
        #[arg(long, value_name = "JSON", default_value = "null")]
        body: String,
        /// The id of the key that asks
        #[arg(long, value_name = "ID")]
        key: Option<String>,
        /// The session, which shares are drawn by
        #[arg(long, value_name = "NAME", default_value = "")]
        session: String,
        /// A model that is taken to fail, by its element's id; may be given several times
        #[arg(long, value_name = "ELEMENT")]
        failing: Vec<String>,
    },
}

/// Runs `hearth routes`.
pub(super) fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    let (account, named) = (&args.account, &args.gateway);
    args.place.with(session, async |gateway| match args.command {
        Command::List => {
            let routes = gateway.routes(account, named).await?;
            let rows: Vec<_> = routes
                .iter()
                .map(|route| vec![route.name.clone(), route.version.id.clone(), timestamp(route.modified)])
                .collect();
            print(&["name", "version", "modified"].map(str::to_owned), &rows)
        }
        Command::Show { route } => {
            let route = gateway.route(account, named, &route).await?;
            let versions = gateway.route_versions(&route).await?;
            let mut object = route.object(timestamp);
            object["versions"] = versions.iter().map(|version| version.object(timestamp)).collect();
            print_json(&object)
        }
        Command::Create { name, file } => {
            let route = gateway.create_route(account, named, &name, &elements(&file)?).await?;
            style::say(&format!("made the route {}; its model is dynamic/{}", route.name, route.name));
            Ok(())
        }
        Command::Deploy { route, version } => {
            let route = gateway.route(account, named, &route).await?;
            let file = Path::new(&version);
            let version = if file.exists() {
                gateway.create_route_version(&route, &elements(file)?).await?.id
            } else {
                version
            };
            let route = gateway.deploy_route(&route, &version).await?;
            style::say(&format!("{} is now as in version {}", route.name, route.version.id));
            Ok(())
        }
        Command::Explain { route, metadata, body, key, session, failing } => {
            let route = gateway.route(account, named, &route).await?;
            let metadata: Map<String, Value> =
                serde_json::from_str(&metadata).context("--metadata is no JSON object")?;
            let facts = Facts {
                metadata,
                body: serde_json::from_str(&body).context("--body is no JSON")?,
                key,
                account: account.clone(),
                gateway: named.clone(),
                session,
                ..Facts::default()
            };
            print_json(&gateway.explain_route(&route, &route.version, &facts, &failing).await?)
        }
    })
}

fn elements(file: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{} is no JSON", file.display()))
}

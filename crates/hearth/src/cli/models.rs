//! `hearth models`: what there is, getting it, looking at it, removing it.

use super::locate::unknown;
use super::style::{self, Style};
use super::{Session, prune, runtime};
use crate::catalog::{Catalog, Entry};
use crate::pull::{self, Puller};
use crate::store::{self, Installed, Place};
use anyhow::{Context, bail};
use base::Bytes;
use clap::Subcommand;
use models::KeptFile;
use protocol::ModelTask;
use serde::Serialize;
use std::io::{self, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Arguments of `hearth models`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:
  hearth models list
  hearth models pull qwen3-0.6b
  hearth models pull hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf
  hearth models rm qwen3-0.6b
  hearth models prune --dry-run

HF_TOKEN gives access to models behind a licence, HF_ENDPOINT names a mirror of the Hugging Face hub.")]
pub(super) struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List the models of the catalog and those pulled from elsewhere
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Get models, going on where an earlier pull stopped
    Pull {
        /// Ids of the catalog, or sources such as hf:OWNER/REPO/FILE.gguf
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        /// Take the ids from this catalog file instead
        #[arg(long, value_name = "FILE")]
        catalog: Option<PathBuf>,
        /// Put the files into this folder instead of the data folder
        #[arg(long, value_name = "DIR")]
        to: Option<PathBuf>,
    },
    /// Show one model: files, sources, licence, what was pulled
    Show {
        /// The model's id
        id: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a model's files from this machine
    Rm {
        /// The models' ids
        #[arg(required = true, value_name = "ID")]
        ids: Vec<String>,
        /// Do not ask
        #[arg(long, short)]
        yes: bool,
    },
    /// Remove packed weights that no start will use again: of models that are gone or changed, by other versions, or
    /// unused for long
    Prune {
        /// Days after which unused ones go
        #[arg(long, value_name = "DAYS", default_value = "30")]
        days: u32,
        /// Only say what would go
        #[arg(long)]
        dry_run: bool,
    },
}

/// Runs `hearth models`.
pub(super) fn run(session: &Session, args: Args) -> anyhow::Result<()> {
    match args.command {
        Command::List { json } => list(session, json),
        Command::Pull { ids, catalog, to } => pull(session, &ids, catalog.as_deref(), to.as_deref()),
        Command::Show { id, json } => show(session, &id, json),
        Command::Rm { ids, yes } => remove(session, &ids, yes),
        Command::Prune { days, dry_run } => {
            prune::prune(session, Duration::from_secs(86_400) * days, dry_run)
        }
    }
}

/// How much of a model is here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum State {
    Pulled,
    Partial,
    Absent,
}

impl State {
    const fn word(self) -> &'static str {
        match self {
            Self::Pulled => "pulled",
            Self::Partial => "partial",
            Self::Absent => "-",
        }
    }
}

/// One line of the list.
#[derive(Debug, Serialize)]
struct Row {
    id: String,
    aliases: Vec<String>,
    state: State,
    size: Option<u64>,
    /// Bytes of its packed weights.
    packed: u64,
    task: &'static str,
    context: Option<u32>,
    licence: String,
    description: String,
    path: Option<PathBuf>,
}

impl Row {
    fn new(entry: &Entry, data_dir: &Path, kept: &[KeptFile]) -> anyhow::Result<Self> {
        let place = Place::in_data_dir(data_dir, &entry.id);
        let installed = place.installed()?;
        let state = match &installed {
            Some(_) => State::Pulled,
            None if place.partial_bytes() > 0 => State::Partial,
            None => State::Absent,
        };
        Ok(Self {
            id: entry.id.clone(),
            aliases: entry.aliases.clone(),
            state,
            size: installed.as_ref().map(|model| model.lock.size()).or_else(|| entry.size()),
            packed: packed_size(place.folder(), kept),
            task: task_name(entry.task),
            context: entry.context.map(|tokens| tokens.0),
            licence: entry.licence.clone(),
            description: entry.description.clone(),
            path: installed.map(|model| model.path),
        })
    }

    /// A model that was pulled from a source which no catalog names.
    fn elsewhere(installed: &Installed, kept: &[KeptFile]) -> Self {
        let source = installed.lock.files.first().map_or("", |file| file.source.as_str());
        Self {
            id: installed.id.clone(),
            aliases: Vec::new(),
            state: State::Pulled,
            size: Some(installed.lock.size()),
            packed: packed_size(&installed.path, kept),
            task: task_name(ModelTask::TextGeneration),
            context: None,
            licence: "not stated".into(),
            description: format!("from {source}"),
            path: Some(installed.path.clone()),
        }
    }
}

/// Bytes of the packed weights of what lies at `path`.
fn packed_size(path: &Path, kept: &[KeptFile]) -> u64 {
    kept.iter().filter(|file| file.is_of(path)).map(|file| file.size.0).sum()
}

const fn task_name(task: ModelTask) -> &'static str {
    match task {
        ModelTask::TextGeneration => "text-generation",
        ModelTask::TextEmbeddings => "text-embeddings",
        ModelTask::Rerank => "rerank",
    }
}

fn list(session: &Session, json: bool) -> anyhow::Result<()> {
    let data_dir = session.data_dir()?;
    let catalog = session.catalog()?;
    let kept = prune::packed_weights(&data_dir)?;
    let mut rows: Vec<Row> =
        catalog.entries().iter().map(|entry| Row::new(entry, &data_dir, &kept)).collect::<Result<_, _>>()?;
    for installed in store::all_installed(&data_dir)? {
        if !rows.iter().any(|row| row.id == installed.id) {
            rows.push(Row::elsewhere(&installed, &kept));
        }
    }
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&rows)?)?;
        return Ok(());
    }
    let style = Style::for_stdout();
    let width = rows.iter().map(|row| row.id.len()).max().unwrap_or(2);
    let head = format!(
        "{:width$}  {:>9}  {:>9}  {:7}  {:>7}  {:20}  DESCRIPTION",
        "ID", "SIZE", "PACKED", "STATE", "CONTEXT", "LICENCE"
    );
    writeln!(out, "{}", style.bold(head))?;
    for row in &rows {
        let size = row.size.map_or_else(|| "-".into(), |size| Bytes(size).to_string());
        let packed = if row.packed == 0 { "-".into() } else { Bytes(row.packed).to_string() };
        let context = row.context.map_or_else(|| "-".into(), |context| context.to_string());
        let line = format!(
            "{:width$}  {size:>9}  {packed:>9}  {:7}  {context:>7}  {:20}  {}",
            row.id,
            row.state.word(),
            row.licence,
            row.description
        );
        let line = if row.state == State::Pulled { style.green(line) } else { line };
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn pull(session: &Session, ids: &[String], file: Option<&Path>, to: Option<&Path>) -> anyhow::Result<()> {
    let catalog = match file {
        Some(file) => Catalog::read(file)?,
        None => session.catalog()?,
    };
    // All names are resolved before the first byte moves: a slip in the last one should not come after an hour.
    let entries: Vec<Entry> = ids.iter().map(|id| find(id, &catalog)).collect::<Result<_, _>>()?;
    let puller = Puller::from_environment().context("cannot make a TLS client")?;
    let runtime = runtime()?;
    for entry in &entries {
        let place = match to {
            Some(folder) => Place::in_folder(folder, &entry.id),
            None => Place::in_data_dir(&session.data_dir()?, &entry.id),
        };
        style::say(&format!("{} ({})", entry.id, entry.licence));
        let mut progress = pull::for_stderr();
        let installed = runtime.block_on(puller.pull(entry, &place, progress.as_mut()))?;
        writeln!(io::stdout().lock(), "{}", installed.path.display())?;
    }
    Ok(())
}

fn find(id: &str, catalog: &Catalog) -> anyhow::Result<Entry> {
    if id.contains(':') {
        return Entry::ad_hoc(id, None).map_err(|reason| anyhow::anyhow!("{id}: {reason}"));
    }
    catalog.find(id).cloned().ok_or_else(|| unknown(id, catalog))
}

#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    row: Row,
    architecture: String,
    /// What the catalog says about its files.
    catalog: Vec<ShownFile>,
    /// What was pulled.
    pulled: Option<store::Lock>,
}

#[derive(Serialize)]
struct ShownFile {
    name: String,
    size: Option<u64>,
    sha256: Option<String>,
    sources: Vec<String>,
}

fn show(session: &Session, id: &str, json: bool) -> anyhow::Result<()> {
    let data_dir = session.data_dir()?;
    let catalog = session.catalog()?;
    let kept = prune::packed_weights(&data_dir)?;
    let shown = match catalog.find(id) {
        Some(entry) => Shown {
            row: Row::new(entry, &data_dir, &kept)?,
            architecture: entry.architecture.clone(),
            catalog: entry
                .files
                .iter()
                .map(|file| ShownFile {
                    name: file.name.clone(),
                    size: file.size,
                    sha256: file.sha256.clone(),
                    sources: file.sources.iter().map(ToString::to_string).collect(),
                })
                .collect(),
            pulled: Place::in_data_dir(&data_dir, &entry.id).installed()?.map(|installed| installed.lock),
        },
        None => {
            let installed = pulled_from_elsewhere(id, &data_dir)?.ok_or_else(|| unknown(id, &catalog))?;
            Shown {
                row: Row::elsewhere(&installed, &kept),
                architecture: String::new(),
                catalog: Vec::new(),
                pulled: Some(installed.lock),
            }
        }
    };
    let mut out = io::stdout().lock();
    if json {
        writeln!(out, "{}", serde_json::to_string_pretty(&shown)?)?;
    } else {
        write_shown(&mut out, &shown)?;
    }
    Ok(())
}

fn write_shown(out: &mut impl Write, shown: &Shown) -> io::Result<()> {
    let style = Style::for_stdout();
    let row = &shown.row;
    writeln!(out, "{}", style.bold(&row.id))?;
    let mut line = |name: &str, value: String| {
        if value.is_empty() { Ok(()) } else { writeln!(out, "  {name:12}  {value}") }
    };
    line("description", row.description.clone())?;
    line("also called", row.aliases.join(", "))?;
    line("task", row.task.into())?;
    line("architecture", shown.architecture.clone())?;
    line("licence", row.licence.clone())?;
    line("context", row.context.map_or_else(String::new, |context| format!("{context} tokens")))?;
    line("size", row.size.map_or_else(String::new, |size| format!("{} ({size} B)", Bytes(size))))?;
    let packed = if row.packed == 0 { String::new() } else { Bytes(row.packed).to_string() };
    line("packed", packed)?;
    line("state", if row.state == State::Absent { "not pulled".into() } else { row.state.word().into() })?;
    line("path", row.path.as_ref().map_or_else(String::new, |path| path.display().to_string()))?;
    for file in &shown.catalog {
        line("file", file.name.clone())?;
        line("  sha256", file.sha256.clone().unwrap_or_else(|| "told by the hub at the pull".into()))?;
        for source in &file.sources {
            line("  source", source.clone())?;
        }
    }
    for file in shown.pulled.iter().flat_map(|lock| &lock.files) {
        line("pulled", file.name.clone())?;
        line("  sha256", file.sha256.clone().unwrap_or_default())?;
        line("  from", file.source.clone())?;
        line("  commit", file.revision.clone().unwrap_or_default())?;
    }
    Ok(())
}

fn pulled_from_elsewhere(id: &str, data_dir: &Path) -> io::Result<Option<Installed>> {
    Ok(store::all_installed(data_dir)?.into_iter().find(|installed| installed.id == id))
}

fn remove(session: &Session, ids: &[String], yes: bool) -> anyhow::Result<()> {
    let data_dir = session.data_dir()?;
    let catalog = session.catalog()?;
    for id in ids {
        let entry = catalog.find(id);
        let elsewhere = pulled_from_elsewhere(id, &data_dir)?;
        let Some(id) = entry.map(|entry| &entry.id).or(elsewhere.as_ref().map(|installed| &installed.id))
        else {
            return Err(unknown(id, &catalog));
        };
        let place = Place::in_data_dir(&data_dir, id);
        let packed: Vec<KeptFile> =
            prune::packed_weights(&data_dir)?.into_iter().filter(|file| file.is_of(place.folder())).collect();
        let size = place.installed()?.map_or(0, |installed| installed.lock.size())
            + place.partial_bytes()
            + packed.iter().map(|file| file.size.0).sum::<u64>();
        if size == 0 && !place.folder().exists() {
            style::say(&format!("{id} is not on this machine"));
            continue;
        }
        if !yes && !confirmed(&format!("Remove {id} ({}) from {}?", Bytes(size), place.folder().display()))? {
            style::say("kept");
            continue;
        }
        let Some(_guard) = place.try_guard()? else {
            bail!("another process is pulling {id}; end it first");
        };
        place.remove(entry).with_context(|| format!("removing {}", place.folder().display()))?;
        packed.iter().try_for_each(prune::remove)?;
        style::say(&format!("removed {id} ({})", Bytes(size)));
    }
    Ok(())
}

fn confirmed(question: &str) -> anyhow::Result<bool> {
    if !io::stdin().is_terminal() {
        bail!("{question} Nobody is there to answer; say --yes");
    }
    style::say_part(&format!("{question} [y/N] "));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim().to_ascii_lowercase().as_str(), "y" | "yes"))
}

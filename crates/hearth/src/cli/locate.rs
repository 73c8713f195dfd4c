//! From what a person calls a model to a file or folder on this machine, pulling it when need be.

use crate::catalog::{Catalog, Entry};
use crate::config::{ModelArg, Target};
use crate::pull::{self, Puller};
use crate::store::Place;
use anyhow::{Context, bail};
use models::checkpoint::GenerationDefaults;
use std::path::{Path, PathBuf};

/// A model that is here.
#[derive(Debug)]
pub(super) struct Located {
    /// The id callers use.
    pub id: String,
    /// Other ids for it, from the catalog; they yield to names that were set.
    pub aliases: Vec<String>,
    /// One line about it.
    pub description: String,
    /// What to open.
    pub path: PathBuf,
    /// Whether that is a script and no checkpoint.
    pub script: bool,
    /// The catalog's price.
    pub price: Option<base::Price>,
    /// The catalog's sampling settings.
    pub sampling: GenerationDefaults,
}

/// Finds a model, pulling it when it is in the catalog and not here yet.
pub(super) async fn locate(arg: &ModelArg, catalog: &Catalog, data_dir: &Path) -> anyhow::Result<Located> {
    let entry = match &arg.target {
        Target::Path(path) | Target::Script(path) => return at_path(arg, path),
        Target::Source(source) => {
            Entry::ad_hoc(source, None).map_err(|reason| anyhow::anyhow!("{source}: {reason}"))?
        }
        Target::Id(id) => match catalog.find(id) {
            Some(entry) => entry.clone(),
            None => return by_own_id(arg, id, catalog, data_dir),
        },
    };
    let place = Place::in_data_dir(data_dir, &entry.id);
    let mut progress = pull::for_stderr();
    let puller = Puller::from_environment().context("cannot make a TLS client")?;
    let installed = puller.pull(&entry, &place, progress.as_mut()).await?;
    Ok(Located {
        id: arg.name.clone().unwrap_or_else(|| entry.id.clone()),
        aliases: if arg.name.is_none() { entry.aliases.clone() } else { Vec::new() },
        description: entry.description.clone(),
        path: installed.path,
        script: false,
        price: entry.price,
        sampling: entry.sampling,
    })
}

fn at_path(arg: &ModelArg, path: &Path) -> anyhow::Result<Located> {
    let script = matches!(arg.target, Target::Script(_));
    if !path.exists() {
        bail!("there is no {} at {}", if script { "script" } else { "model" }, path.display());
    }
    let id = arg.name.clone().or_else(|| arg.target.default_name());
    Ok(Located {
        id: id.with_context(|| {
            format!("{} gives no name; set one with NAME={}", path.display(), path.display())
        })?,
        aliases: Vec::new(),
        // Callers read this, and where files lie on this machine is not theirs to know.
        description: path.file_name().map_or_else(String::new, |name| match script {
            true => format!("replays {}", name.display()),
            false => format!("from {}", name.display()),
        }),
        path: path.to_owned(),
        script,
        price: None,
        sampling: GenerationDefaults::default(),
    })
}

/// A model that was pulled from a source which no catalog names.
fn by_own_id(arg: &ModelArg, id: &str, catalog: &Catalog, data_dir: &Path) -> anyhow::Result<Located> {
    // The id comes from the command line; as a path part it must be one part.
    let plain = !id.starts_with('.') && !id.contains(['/', '\\']);
    if plain && let Some(installed) = Place::in_data_dir(data_dir, id).installed()? {
        let source = installed.lock.files.first().map_or("", |file| file.source.as_str());
        return Ok(Located {
            id: arg.name.clone().unwrap_or_else(|| id.to_owned()),
            aliases: Vec::new(),
            description: format!("from {source}"),
            path: installed.path,
            script: false,
            price: None,
            sampling: GenerationDefaults::default(),
        });
    }
    Err(unknown(id, catalog))
}

/// The error for an id that nothing goes by.
pub(super) fn unknown(id: &str, catalog: &Catalog) -> anyhow::Error {
    if Path::new(id).exists() {
        return anyhow::anyhow!(
            "no model goes by the id {id:?}; for the file or folder of that name write ./{id}"
        );
    }
    match catalog.suggest(id) {
        Some(near) => anyhow::anyhow!("no model goes by the id {id:?}; did you mean {near:?}?"),
        None => anyhow::anyhow!("no model goes by the id {id:?}; `hearth models list` shows which there are"),
    }
}

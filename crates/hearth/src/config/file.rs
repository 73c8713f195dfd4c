//! `hearth.toml`: where it is looked for, and how it is read.

use super::{KEYS, Layer};
use std::io;
use std::path::{Path, PathBuf};

/// The file's name.
pub const NAME: &str = "hearth.toml";

/// Parts of the names of keys whose values are never shown; providers have `keys` with a `key` in each.
const SECRETS: [&str; 2] = ["key", "database"];

/// What is wrong with a file.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// It has a key that is none.
    #[error("{path}, line {line}: there is no setting {key:?}{}", did_you_mean(.suggestion.as_deref()))]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// Where, from 1.
        line: usize,
        /// What stands there.
        key: String,
        /// What may have been meant.
        suggestion: Option<String>,
    },
    /// A value is wrong, or it is no TOML.
    #[error("{path}: {message}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// Where and why, with the line.
        message: String,
    },
}

fn did_you_mean(suggestion: Option<&str>) -> String {
    match suggestion {
        Some(suggestion) => format!("; did you mean {suggestion:?}?"),
        None => format!("; there are: {}", KEYS.join(", ")),
    }
}

/// Reads the file that counts: the one that was named, else `hearth.toml` in the working folder, else the one in the
/// data folder. Gives its path too; without any, no wishes.
///
/// # Errors
/// When the named file is missing, or the one found cannot be read or has a fault.
pub fn find(
    named: Option<&Path>,
    working_dir: &Path,
    data_dir: Option<&Path>,
) -> Result<Option<(PathBuf, Layer)>, FileError> {
    if let Some(path) = named {
        return read(path).map(|layer| Some((path.to_owned(), layer)));
    }
    for folder in std::iter::once(working_dir).chain(data_dir) {
        let path = folder.join(NAME);
        match read(&path) {
            Err(FileError::Read { error, .. }) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other.map(|layer| Some((path, layer))),
        }
    }
    Ok(None)
}

/// Reads one file. Relative paths in it start at its folder.
///
/// # Errors
/// When it cannot be read or has a fault.
pub fn read(path: &Path) -> Result<Layer, FileError> {
    let text =
        std::fs::read_to_string(path).map_err(|error| FileError::Read { path: path.to_owned(), error })?;
    let mut layer = parse(&text, path)?;
    let folder = path.parent().unwrap_or(Path::new(""));
    layer.data_dir = layer.data_dir.map(|data_dir| folder.join(data_dir));
    for prices in layer.prices.iter_mut().flatten() {
        *prices = folder.join(&*prices);
    }
    for model in layer.models.iter_mut().flatten() {
        if let super::Target::Path(target) | super::Target::Script(target) = &mut model.target {
            *target = folder.join(&*target);
        }
    }
    Ok(layer)
}

/// Parses a file's text; `path` names it in errors.
///
/// # Errors
/// When it has a fault.
pub fn parse(text: &str, path: &Path) -> Result<Layer, FileError> {
    let malformed =
        |error: toml::de::Error| FileError::Malformed { path: path.to_owned(), message: shown(&error, text) };
    let table = toml::de::DeTable::parse(text).map_err(malformed)?;
    for key in table.get_ref().keys() {
        let name: &str = key.get_ref();
        if !KEYS.contains(&name) {
            let suggestion = match name {
                "model" => Some("models"),
                _ => crate::suggest::closest(name, KEYS),
            };
            return Err(FileError::UnknownKey {
                path: path.to_owned(),
                line: text[..key.span().start].matches('\n').count() + 1,
                key: name.to_owned(),
                suggestion: suggestion.map(str::to_owned),
            });
        }
    }
    toml::from_str(text).map_err(malformed)
}

/// What is told of a fault: with the line as it stands, unless a secret may stand there.
fn shown(error: &toml::de::Error, text: &str) -> String {
    let at = error.span().map_or(text.len(), |span| span.start.min(text.len()));
    let number = text.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
    let names_one = |line: &str| SECRETS.iter().any(|key| line.contains(key));
    // A list may go over several lines: the one that names it has the last `=` before.
    let mut before = text.lines().take(number + 1).collect::<Vec<_>>().into_iter().rev();
    let named = before.next().is_some_and(names_one)
        || text.lines().nth(number).is_some_and(|line| !line.contains('='))
            && before.find(|line| line.contains('=')).is_some_and(names_one);
    if named {
        return format!("line {}: {}", number + 1, protocol::plain(&without_value(error.message())));
    }
    protocol::plain(error.to_string().trim_end())
}

/// A fault without the value that it is about: `invalid type: string "…", expected …` says it in words of serde's.
fn without_value(message: &str) -> String {
    let Some((kind, rest)) = message.split_once(['"', '`']) else { return message.to_owned() };
    if !kind.starts_with("invalid ") {
        return message.to_owned();
    }
    match rest.rfind(", expected") {
        Some(at) => format!("{}{}", kind.trim_end(), &rest[at..]),
        None => kind.trim_end().to_owned(),
    }
}

//! Where the keys lie: in a file of the data folder that only its owner can read, or in the environment
//! (`HEARTH_SECRET_KEY`, which goes first), each a line or a word, the newest first.
//!
//! The file is made when the first secret is sealed, never to open one. It is written beside and put in place whole, so that two servers that start at once
//! use the same key, and a crash leaves the old one or the new one. Servers that share a database share the keys.
//!
//! To change the key: [`Keyring::add_key`], then every row that is not [current](Keyring::is_current) is sealed again, then
//! [`Keyring::retire_keys`].

use super::{Keyring, SecretError, make_key};
use std::fs;
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// The file's name in the data folder.
pub const FILE: &str = "secret.key";

impl Keyring {
    /// The keys of the environment, where it has some, else those of the data folder, which gets one when it has none.
    ///
    /// # Errors
    /// When the file cannot be used or made, others can read it, or what stands there is no key.
    pub fn load(folder: &Path, environment: Option<&str>) -> Result<Self, SecretError> {
        if let Some(text) = environment {
            return Self::parse(text, "HEARTH_SECRET_KEY");
        }
        let path = folder.join(FILE);
        if !path.try_exists().map_err(fault(&path))? {
            fs::create_dir_all(folder).map_err(fault(&path))?;
            let beside = write_beside(&path, &make_key()?)?;
            // Unlike a rename this leaves a file alone that another process has put there meanwhile.
            let placed = fs::hard_link(&beside, &path);
            fs::remove_file(&beside).map_err(fault(&beside))?;
            match placed {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(fault(&path)(error));
                }
                _ => {}
            }
        }
        read(&path)
    }

    /// The keys that are there; none is made.
    ///
    /// # Errors
    /// When there are none, the file cannot be used, others can read it, or what stands there is no key.
    pub fn find(folder: &Path, environment: Option<&str>) -> Result<Self, SecretError> {
        match environment {
            Some(text) => Self::parse(text, "HEARTH_SECRET_KEY"),
            None => read(&folder.join(FILE)),
        }
    }

    /// Puts a new key before those of the data folder's file, and gives them all.
    ///
    /// # Errors
    /// As [`Keyring::load`].
    pub fn add_key(folder: &Path) -> Result<Self, SecretError> {
        Self::load(folder, None)?;
        let path = folder.join(FILE);
        let old = fs::read_to_string(&path).map_err(fault(&path))?;
        replace(&path, &format!("{}\n{old}", make_key()?))
    }

    /// Leaves only the newest key in the data folder's file. What an older one sealed can then be opened no more.
    ///
    /// # Errors
    /// As [`Keyring::load`].
    pub fn retire_keys(folder: &Path) -> Result<Self, SecretError> {
        Self::load(folder, None)?;
        let path = folder.join(FILE);
        let old = fs::read_to_string(&path).map_err(fault(&path))?;
        replace(&path, old.split_ascii_whitespace().next().unwrap_or_default())
    }
}

fn fault(path: &Path) -> impl Fn(io::Error) -> SecretError {
    move |error| SecretError::File { path: path.to_owned(), why: error.to_string() }
}

fn read(path: &Path) -> Result<Keyring, SecretError> {
    let mode = fs::metadata(path).map_err(fault(path))?.permissions().mode();
    if mode & 0o077 != 0 {
        let why = "others than its owner can read it; say chmod 600".to_owned();
        return Err(SecretError::File { path: path.to_owned(), why });
    }
    let text = fs::read_to_string(path).map_err(fault(path))?;
    Keyring::parse(&text, &path.display().to_string())
}

/// Writes a file of a name that nobody else has, in the same folder, to the disk.
fn write_beside(path: &Path, keys: &str) -> Result<PathBuf, SecretError> {
    let beside = path.with_extension(format!("key.{}", uuid::Uuid::now_v7()));
    let mut file = fs::OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&beside)
        .map_err(fault(&beside))?;
    writeln!(file, "{}", keys.trim_end()).and_then(|()| file.sync_all()).map_err(fault(&beside))?;
    Ok(beside)
}

fn replace(path: &Path, keys: &str) -> Result<Keyring, SecretError> {
    let beside = write_beside(path, keys)?;
    fs::rename(&beside, path).map_err(fault(path))?;
    read(path)
}

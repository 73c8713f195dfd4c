//! Where pulled models lie, and what is known about them.
//!
//! A model's folder holds its files and `<id>.lock.toml`, which says what they are (size, SHA-256, source). The lock
//! file is written last, so a model is either whole with a lock file, or not there. Unfinished downloads lie in
//! `.partial-<id>` beside the files. Nothing here touches the network.

use crate::catalog::Entry;
use models::PackedFolder;
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The place of one model on disk.
#[derive(Clone, Debug)]
pub struct Place {
    id: String,
    folder: PathBuf,
    root: PathBuf,
}

/// A model that is whole on disk.
#[derive(Clone, Debug, PartialEq)]
pub struct Installed {
    /// Its id.
    pub id: String,
    /// The file or folder to open.
    pub path: PathBuf,
    /// What the lock file says.
    pub lock: Lock,
}

/// What was pulled, and from where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lock {
    /// The model's id.
    pub id: String,
    /// Its files, in the catalog's order.
    #[serde(rename = "file")]
    pub files: Vec<LockedFile>,
}

/// One file that was pulled.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LockedFile {
    /// Path relative to the model's folder.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// SHA-256 in hex; missing for a linked file that was not read.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// The source it came from.
    pub source: String,
    /// The commit of the repository it came from, where there is one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<String>,
}

impl Lock {
    /// Size of all files.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.files.iter().map(|file| file.size).sum()
    }
}

/// Held while a model is pulled or removed; other processes wait. Freed by the system if we die.
#[derive(Debug)]
pub struct Guard(#[allow(dead_code, reason = "the open file is the lock")] File);

impl Place {
    /// The usual place: `<data_dir>/models/<id>/`.
    #[must_use]
    pub fn in_data_dir(data_dir: &Path, id: &str) -> Self {
        let root = data_dir.join("models");
        Self { id: id.to_owned(), folder: root.join(id), root }
    }

    /// A folder shared by several models, whose files lie directly in it.
    #[must_use]
    pub fn in_folder(folder: &Path, id: &str) -> Self {
        Self { id: id.to_owned(), folder: folder.to_owned(), root: folder.to_owned() }
    }

    /// The folder of the model's files.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Where a file of the model lies.
    #[must_use]
    pub fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Where its unfinished downloads lie.
    #[must_use]
    pub fn partial(&self) -> PathBuf {
        self.folder.join(format!(".partial-{}", self.id))
    }

    fn lock_file(&self) -> PathBuf {
        self.folder.join(format!("{}.lock.toml", self.id))
    }

    fn open_guard(&self) -> io::Result<File> {
        let locks = self.root.join(".locks");
        fs::create_dir_all(&locks)?;
        File::options().create(true).append(true).open(locks.join(&self.id))
    }

    /// Takes the model's lock if nobody holds it.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn try_guard(&self) -> io::Result<Option<Guard>> {
        let file = self.open_guard()?;
        match file.try_lock() {
            Ok(()) => Ok(Some(Guard(file))),
            Err(fs::TryLockError::WouldBlock) => Ok(None),
            Err(fs::TryLockError::Error(error)) => Err(error),
        }
    }

    /// Takes the model's lock, waiting for whoever holds it.
    ///
    /// # Errors
    /// When the folder cannot be written.
    pub fn guard(&self) -> io::Result<Guard> {
        let file = self.open_guard()?;
        file.lock()?;
        Ok(Guard(file))
    }

    /// The model, when it is whole: a lock file, and every file it lists with the size it lists.
    ///
    /// # Errors
    /// When the lock file is there but cannot be read.
    pub fn installed(&self) -> io::Result<Option<Installed>> {
        let text = match fs::read_to_string(self.lock_file()) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        // A lock file we cannot parse is from another version or damaged; pulling again repairs it.
        let Ok(lock) = toml::from_str::<Lock>(&text) else { return Ok(None) };
        let whole = !lock.files.is_empty()
            && lock
                .files
                .iter()
                .all(|file| fs::metadata(self.file(&file.name)).is_ok_and(|found| found.len() == file.size));
        Ok(whole.then(|| Installed { id: self.id.clone(), path: self.model_path(&lock), lock }))
    }

    /// A single file is opened as it is; of several, the folder that holds the first.
    fn model_path(&self, lock: &Lock) -> PathBuf {
        let first = self.file(&lock.files[0].name);
        match (lock.files.len(), first.parent()) {
            (1, _) | (_, None) => first,
            (_, Some(folder)) => folder.to_owned(),
        }
    }

    /// Records that all files are there. The caller holds the guard.
    ///
    /// # Errors
    /// When it cannot be written.
    pub fn finish(&self, lock: &Lock) -> io::Result<Installed> {
        let text = toml::to_string(lock).map_err(io::Error::other)?;
        let text = format!("# Written by `hearth models pull`: what was pulled, and from where.\n\n{text}");
        write_atomically(&self.lock_file(), text.as_bytes())?;
        remove_dir_if_there(&self.partial())?;
        Ok(Installed { id: self.id.clone(), path: self.model_path(lock), lock: lock.clone() })
    }

    /// Removes the model's files, and what an unfinished pull left. The caller holds the guard.
    ///
    /// # Errors
    /// When something cannot be removed.
    pub fn remove(&self, entry: Option<&Entry>) -> io::Result<()> {
        // The lock file goes first: from here on the model counts as missing, whatever happens.
        let lock =
            fs::read_to_string(self.lock_file()).ok().and_then(|text| toml::from_str::<Lock>(&text).ok());
        remove_if_there(&self.lock_file())?;
        let locked = lock.iter().flat_map(|lock| lock.files.iter().map(|file| file.name.clone()));
        let listed = entry.iter().flat_map(|entry| entry.files.iter().map(|file| file.name.clone()));
        for name in locked.chain(listed) {
            let inside =
                Path::new(&name).components().all(|part| matches!(part, std::path::Component::Normal(_)));
            if inside {
                remove_if_there(&self.file(&name))?;
            }
        }
        remove_dir_if_there(&self.partial())?;
        if self.folder != self.root {
            remove_dir_if_there(&self.folder)?;
        }
        Ok(())
    }

    /// Bytes that an unfinished pull has kept.
    #[must_use]
    pub fn partial_bytes(&self) -> u64 {
        fn sum(folder: &Path) -> u64 {
            let Ok(entries) = fs::read_dir(folder) else { return 0 };
            entries
                .flatten()
                .map(|entry| match entry.metadata() {
                    Ok(data) if data.is_dir() => sum(&entry.path()),
                    Ok(data) => data.len(),
                    Err(_) => 0,
                })
                .sum()
        }
        sum(&self.partial())
    }
}

/// Where the packed weights of a data folder lie.
#[must_use]
pub fn packed_folder(data_dir: &Path) -> PathBuf {
    data_dir.join("packed")
}

/// The packed weights of a data folder, those of models that lie elsewhere included.
#[must_use]
pub fn packed_weights(data_dir: &Path) -> PackedFolder {
    PackedFolder::new(packed_folder(data_dir))
}

/// All whole models of a data folder, by id.
///
/// # Errors
/// When the folder is there but cannot be read.
pub fn all_installed(data_dir: &Path) -> io::Result<Vec<Installed>> {
    let entries = match fs::read_dir(data_dir.join("models")) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error),
    };
    let mut found = Vec::new();
    for entry in entries {
        if let Some(id) = entry?.file_name().to_str().filter(|name| !name.starts_with('.')) {
            found.extend(Place::in_data_dir(data_dir, id).installed()?);
        }
    }
    found.sort_by(|a, b| a.id.cmp(&b.id));
    Ok(found)
}

/// Puts a finished file in its place: its bytes are on the disk before the name is.
pub(crate) fn move_into_place(staged: &Path, target: &Path) -> io::Result<()> {
    File::open(staged)?.sync_all()?;
    let folder = target.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    fs::rename(staged, target)?;
    File::open(folder)?.sync_all()
}

/// Writes a small file so that a reader sees the old one or the new one, never a part.
fn write_atomically(target: &Path, content: &[u8]) -> io::Result<()> {
    let folder = target.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)?;
    // Readable as any file is; the temporary ones are private unless told otherwise.
    let permissions = fs::Permissions::from_mode(0o644);
    let mut file = tempfile::Builder::new().permissions(permissions).tempfile_in(folder)?;
    file.write_all(content)?;
    file.as_file().sync_all()?;
    file.persist(target).map_err(|error| error.error)?;
    File::open(folder)?.sync_all()
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

fn remove_dir_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn locked(name: &str, size: u64) -> LockedFile {
        LockedFile { name: name.into(), size, sha256: None, source: "path:/x".into(), revision: None }
    }

    #[test]
    fn a_model_is_there_only_with_its_lock_file_and_all_its_files() {
        let dir = tempfile::tempdir().expect("tempdir");
        let place = Place::in_data_dir(dir.path(), "m");
        assert_eq!(place.installed().expect("readable"), None);
        fs::create_dir_all(place.folder()).expect("mkdir");
        fs::write(place.file("a.gguf"), "1234").expect("write");
        assert_eq!(place.installed().expect("readable"), None, "no lock file");
        place.finish(&Lock { id: "m".into(), files: vec![locked("a.gguf", 4)] }).expect("finish");
        let installed = place.installed().expect("readable").expect("whole");
        assert_eq!(installed.path, place.file("a.gguf"));
        assert_eq!(all_installed(dir.path()).expect("list"), [installed]);
        fs::write(place.file("a.gguf"), "123").expect("write");
        assert_eq!(place.installed().expect("readable"), None, "a shrunk file");
    }

    #[test]
    fn a_model_of_several_files_is_opened_by_its_folder() {
        let dir = tempfile::tempdir().expect("tempdir");
        let place = Place::in_folder(dir.path(), "m");
        fs::create_dir_all(place.file("sub/deeper")).expect("mkdir");
        fs::write(place.file("sub/config.json"), "{}").expect("write");
        fs::write(place.file("sub/deeper/x"), "").expect("write");
        let files = vec![locked("sub/config.json", 2), locked("sub/deeper/x", 0)];
        let installed = place.finish(&Lock { id: "m".into(), files }).expect("finish");
        assert_eq!(installed.path, dir.path().join("sub"));
    }

    #[test]
    fn removing_takes_the_files_and_what_an_unfinished_pull_left() {
        let dir = tempfile::tempdir().expect("tempdir");
        let place = Place::in_data_dir(dir.path(), "m");
        fs::create_dir_all(place.partial()).expect("mkdir");
        fs::write(place.partial().join("a.part"), "123").expect("write");
        assert_eq!(place.partial_bytes(), 3);
        fs::write(place.file("a"), "1").expect("write");
        place.remove(None).expect("remove");
        assert!(!place.folder().exists());
        place.remove(None).expect("removing nothing is fine");
    }

    #[test]
    fn one_holder_of_the_guard_at_a_time() {
        let dir = tempfile::tempdir().expect("tempdir");
        let place = Place::in_data_dir(dir.path(), "m");
        let held = place.try_guard().expect("io").expect("free");
        assert!(place.try_guard().expect("io").is_none());
        drop(held);
        assert!(place.try_guard().expect("io").is_some());
    }
}

//! Packed weights kept on disk, so that a second start maps them in place of packing anew.
//!
//! One file per checkpoint and load format. It is believed only if it was written whole, for these very
//! files (size, time of change, tensors) by the same packer, and its checksums are right; anything else is
//! as if it were not there, and is replaced. A file is written under another name, synced and renamed; a
//! lock on that other name keeps two processes from writing the same one, and a name without a lock is what
//! a killed process left.
//!
//! Does not know what a packed matrix looks like: that is the device's ([`device::Device::packed`]).

mod checksum;
mod file;
mod listing;

pub use listing::{KeptFile, KeptState};

use crate::checkpoint::Checkpoint;
use crate::mapped::MappedFile;
use base::Bytes;
use device::{Device, LoadFormat, SharedBytes};
use file::{Directory, Entry, Source, SourceFile, Writer};
use std::collections::HashMap;
use std::fs::{self, File, FileTimes};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

const EXTENSION: &str = "packed";
/// Of a file that is being written.
const PART: &str = "part";
/// Longest part of a file's name that comes from the model's.
const STEM_MAX: usize = 80;

/// A folder of packed weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedFolder {
    path: PathBuf,
}

impl PackedFolder {
    /// The folder at `path`, which is made when it is first needed.
    #[must_use]
    pub fn new(path: PathBuf) -> Self {
        Self { path }
    }

    /// Where the weights of what was opened at `source` lie; other formats have other names.
    fn file(&self, source: &Path, format: LoadFormat) -> PathBuf {
        let key = format!("{}\0{}", source.display(), format_name(format));
        let stem = source.file_stem().unwrap_or_default().to_string_lossy();
        let plain = |c: char| if c.is_ascii_alphanumeric() || "._-".contains(c) { c } else { '_' };
        let stem: String = stem.chars().map(plain).take(STEM_MAX).collect();
        self.path.join(format!("{stem}-{:016x}.{EXTENSION}", checksum::sum(key.as_bytes())))
    }

    fn part(target: &Path) -> PathBuf {
        target.with_extension(PART)
    }
}

fn format_name(format: LoadFormat) -> &'static str {
    match format {
        LoadFormat::AsStored => "as-stored",
        LoadFormat::Int8 => "int8",
        LoadFormat::Int4 => "int4",
    }
}

/// What identifies a checkpoint; `None` where it lies in memory or its path cannot be written down.
fn identity(checkpoint: &Checkpoint) -> Option<Source> {
    let mut files = Vec::new();
    for (path, stamp) in checkpoint.files() {
        files.push(SourceFile {
            path: std::path::absolute(path).ok()?,
            size: stamp.size,
            modified: (stamp.modified_seconds, stamp.modified_nanos),
        });
    }
    let path = std::path::absolute(checkpoint.path()).ok()?;
    let written = files.iter().map(|file| &file.path).chain([&path]).all(|path| path.to_str().is_some());
    if files.is_empty() || !written {
        return None;
    }
    let mut tensors = Vec::new();
    for name in checkpoint.tensor_names() {
        // One that cannot be read is none that was packed.
        if let Ok(tensor) = checkpoint.tensor(name) {
            let line = format!("{name}\0{}\0{:?}\n", tensor.dtype.name(), tensor.shape);
            tensors.extend_from_slice(line.as_bytes());
        }
    }
    Some(Source { path, files, tensors: checksum::sum(&tensors) })
}

/// Takes a loader's matrices from a packed file, or collects them for one.
pub(crate) struct Shelf<D: Device> {
    packing: &'static str,
    target: PathBuf,
    source: Source,
    format: LoadFormat,
    kept: Option<Kept>,
    /// Every matrix so far, while it is not known that the file holds them all.
    made: Vec<(String, LoadFormat, D::Matrix)>,
    fresh: bool,
}

/// A packed file that is believed.
struct Kept {
    map: Arc<MappedFile>,
    entries: HashMap<String, Entry>,
}

impl<D: Device> Shelf<D> {
    /// `None` where this device's matrices or this checkpoint's cannot be kept.
    pub fn open(folder: &PackedFolder, checkpoint: &Checkpoint, format: LoadFormat) -> Option<Self> {
        let (packing, source) = (D::packing()?, identity(checkpoint)?);
        let target = folder.file(&source.path, format);
        let kept = Kept::open(&target, |directory| {
            directory.packing == packing
                && directory.format == format_name(format)
                && directory.source == source
        });
        Some(Self { packing, target, source, format, kept, made: Vec::new(), fresh: false })
    }

    /// The packed bytes of a matrix, where there are any.
    pub fn find(&self, name: &str, format: LoadFormat) -> Option<SharedBytes> {
        let kept = self.kept.as_ref()?;
        let entry = kept.entries.get(name).filter(|entry| entry.format == format_name(format))?;
        let start = usize::try_from(entry.at).ok()?.checked_add(file::DATA_AT)?;
        let end = start.checked_add(usize::try_from(entry.len).ok()?)?;
        let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::clone(&kept.map) as _;
        SharedBytes::new(owner, start..end)
    }

    /// Remembers a matrix; `fresh` says that it was not in the file.
    pub fn add(&mut self, name: &str, format: LoadFormat, matrix: &D::Matrix, fresh: bool) {
        self.fresh |= fresh;
        self.made.push((name.to_owned(), format, matrix.clone()));
    }

    /// The map that matrices lie in, and what is to be written now that all are there.
    pub fn finish(self) -> (Backing, Option<PackedWrite>) {
        let backing = Backing(self.kept.map(|kept| kept.map));
        if !self.fresh {
            return (backing, None);
        }
        let Self { packing, target, source, format, made, .. } = self;
        let write = move |file: File| {
            let mut writer = Writer::new(file);
            let mut matrices = Vec::with_capacity(made.len());
            for (name, format, matrix) in made {
                let (at, len) = writer.matrix(&D::packed(&matrix))?;
                matrices.push(Entry { name, format: format_name(format).to_owned(), at, len });
            }
            let format = format_name(format).to_owned();
            writer.finish(&Directory { packing: packing.to_owned(), format, source, matrices })
        };
        (backing, Some(PackedWrite { target, write: Box::new(write) }))
    }
}

impl Kept {
    /// The file at `path`, if it is whole and `ours` accepts what it holds.
    fn open(path: &Path, ours: impl FnOnce(&Directory) -> bool) -> Option<Self> {
        let map = MappedFile::open(path).ok()?;
        let part = |at: u64, len: usize| {
            let range = usize::try_from(at).ok().and_then(|at| map.get(at..at.checked_add(len)?));
            range.map(<[u8]>::to_vec).ok_or_else(|| "it is too short".to_owned())
        };
        let (header, directory) = file::read(map.len() as u64, part).ok()?;
        if !ours(&directory) {
            return None;
        }
        map.want_huge_pages();
        let data = &map[file::DATA_AT..][..usize::try_from(header.data).ok()?];
        if checksum::sum_pieces(data, file::DATA_AT) != header.data_sum || map.faulted() {
            return None;
        }
        // Tells `KeptFile::used`; a folder that cannot be written needs no such word.
        if let Ok(file) = File::options().append(true).open(path) {
            let _ = file.set_times(FileTimes::new().set_modified(SystemTime::now()));
        }
        let entries = directory.matrices.into_iter().map(|entry| (entry.name.clone(), entry)).collect();
        Some(Self { map: Arc::new(map), entries })
    }
}

/// The file that a model's weights lie in, where they lie in one.
pub(crate) struct Backing(Option<Arc<MappedFile>>);

impl Backing {
    /// Weights in memory of their own.
    pub const NONE: Self = Self(None);

    /// Panics when a part of the weights could not be read since: what was computed with the zeros in its
    /// place must not be used, and loading anew packs them anew.
    pub fn check(&self) {
        assert!(
            self.0.as_ref().is_none_or(|map| !map.faulted()),
            "the file of packed weights was cut short, or its disk failed"
        );
    }
}

/// Packed weights to be written; that may be done while the model works.
pub struct PackedWrite {
    target: PathBuf,
    write: Box<dyn FnOnce(File) -> io::Result<u64> + Send>,
}

impl PackedWrite {
    /// The file that is going to be.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.target
    }

    /// Writes the file and tells its size; `None` when another process is just doing that.
    ///
    /// # Errors
    /// The folder cannot be written, or the disk is full; nothing stays behind then.
    pub fn run(self) -> io::Result<Option<Bytes>> {
        let Self { target, write } = self;
        let folder = target.parent().unwrap_or(Path::new("."));
        fs::create_dir_all(folder)?;
        let part = PackedFolder::part(&target);
        let Some(file) = take_part(&part)? else { return Ok(None) };
        // Held until the file has its name.
        let lock = file.try_clone()?;
        let written = write(file).and_then(|size| fs::rename(&part, &target).map(|()| size));
        if written.is_err() {
            // Nobody else has it: we hold its lock.
            let _ = fs::remove_file(&part);
        }
        let size = written?;
        File::open(folder)?.sync_all()?;
        drop(lock);
        Ok(Some(Bytes(size)))
    }
}

/// An empty file of this name under our lock, also where a killed process left one; `None` when a living one
/// has it.
fn take_part(path: &Path) -> io::Result<Option<File>> {
    loop {
        let file = File::options().create(true).truncate(false).write(true).open(path)?;
        match file.try_lock() {
            Ok(()) => {}
            Err(fs::TryLockError::WouldBlock) => return Ok(None),
            Err(fs::TryLockError::Error(error)) => return Err(error),
        }
        let ours = file.metadata()?;
        // Between the two calls its last writer may have given it its final name, which is not to be touched.
        if fs::metadata(path).is_ok_and(|now| (now.dev(), now.ino()) == (ours.dev(), ours.ino())) {
            if ours.len() > 0 {
                file.set_len(0)?;
            }
            return Ok(Some(file));
        }
    }
}

//! The form of a file of packed weights.
//!
//! ```text
//! 0     header of 64 bytes: magic, version, length and checksum of data and directory, its own checksum
//! 4096  data: the packed matrices, each on a 64-byte border
//! ..    directory: JSON that says whose weights these are and where each matrix lies
//! ```
//!
//! Invariant: what [`read`] gives was written whole by [`Writer`]; header and directory have the right
//! checksums, and every matrix lies within the data. Checking the data itself is for whoever uses it.

use super::checksum::{self, PIECE};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::path::PathBuf;

const MAGIC: [u8; 8] = *b"HEARTHPW";
/// Of the header's and the directory's form; what is in the data has its own name (`Directory::packing`).
const VERSION: u64 = 1;
const HEADER: usize = 64;
/// Where the data starts: on a page of its own, so that the header can be read alone.
pub(super) const DATA_AT: usize = 4096;
/// Every matrix starts on such a border.
const ALIGN: u64 = 64;
/// A directory has some 100 bytes for each of at most some ten thousand matrices.
const DIRECTORY_MAX: u64 = 16 << 20;

/// Whose weights a file holds, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Directory {
    /// The device's name of its packed form.
    pub packing: String,
    /// How float matrices were quantised at load.
    pub format: String,
    pub source: Source,
    pub matrices: Vec<Entry>,
}

/// A checkpoint as it was when its weights were packed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Source {
    /// What was opened: a file, or a folder.
    pub path: PathBuf,
    pub files: Vec<SourceFile>,
    /// Checksum of all tensors' names, formats and shapes.
    pub tensors: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SourceFile {
    pub path: PathBuf,
    pub size: u64,
    /// Time of the last change, in seconds and nanoseconds of the Unix epoch.
    pub modified: (i64, i64),
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Entry {
    pub name: String,
    /// The load format that held for this matrix.
    pub format: String,
    /// Bytes from the start of the data.
    pub at: u64,
    pub len: u64,
}

/// Lengths and checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub data: u64,
    pub data_sum: u64,
    directory: u64,
    directory_sum: u64,
}

impl Header {
    fn encode(self) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..8].copy_from_slice(&MAGIC);
        let words = [VERSION, self.data, self.data_sum, self.directory, self.directory_sum];
        for (to, word) in bytes[8..].chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        let sum = checksum::sum(&bytes[..HEADER - 8]);
        bytes[HEADER - 8..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Result<Self, String> {
        let bytes: &[u8; HEADER] =
            bytes.first_chunk().ok_or_else(|| format!("it has only {} bytes", bytes.len()))?;
        let (words, _) = bytes.as_chunks::<8>();
        let word = |i: usize| u64::from_le_bytes(words[i]);
        if words[0] != MAGIC {
            return Err("it is no file of packed weights".to_owned());
        }
        if word(7) != checksum::sum(&bytes[..HEADER - 8]) {
            return Err("its header is damaged".to_owned());
        }
        if word(1) != VERSION {
            return Err(format!("it has version {}, not {VERSION}", word(1)));
        }
        Ok(Self { data: word(2), data_sum: word(3), directory: word(4), directory_sum: word(5) })
    }

    /// Bytes of the whole file.
    fn size(self) -> Option<u64> {
        if self.directory > DIRECTORY_MAX {
            return None;
        }
        self.data.checked_add(DATA_AT as u64)?.checked_add(self.directory)
    }
}

/// Header and directory of a file of `size` bytes; `part` gives some of its bytes.
pub(super) fn read(
    size: u64,
    part: impl Fn(u64, usize) -> Result<Vec<u8>, String>,
) -> Result<(Header, Directory), String> {
    let header = Header::decode(&part(0, HEADER.min(usize::try_from(size).unwrap_or(HEADER)))?)?;
    if header.size() != Some(size) {
        return Err(format!("it has {size} bytes, which is not its length"));
    }
    let directory = part(DATA_AT as u64 + header.data, header.directory as usize)?;
    if checksum::sum(&directory) != header.directory_sum {
        return Err("its directory is damaged".to_owned());
    }
    let directory: Directory =
        serde_json::from_slice(&directory).map_err(|error| format!("its directory: {error}"))?;
    let fits = |entry: &Entry| {
        entry.at.is_multiple_of(ALIGN)
            && entry.at.checked_add(entry.len).is_some_and(|end| end <= header.data)
    };
    match directory.matrices.iter().find(|entry| !fits(entry)) {
        Some(entry) => Err(format!("matrix {:?} lies outside of its data", entry.name)),
        None => Ok((header, directory)),
    }
}

/// Writes a file from front to back; the header, which makes it one, comes last.
pub(super) struct Writer {
    file: File,
    /// Bytes that wait for their piece to be full; long writes at round places let the system keep the file
    /// in huge pages.
    piece: Vec<u8>,
    /// Checksums of the data's pieces so far.
    sums: Vec<u64>,
    data: u64,
}

impl Writer {
    /// Begins with an empty file.
    pub fn new(file: File) -> Self {
        let mut piece = Vec::with_capacity(PIECE);
        piece.resize(DATA_AT, 0);
        Self { file, piece, sums: Vec::new(), data: 0 }
    }

    /// Appends a matrix; tells where it lies.
    pub fn matrix(&mut self, mut bytes: &[u8]) -> io::Result<(u64, u64)> {
        let (at, len) = (self.data, bytes.len() as u64);
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(PIECE - self.piece.len()));
            self.piece.extend_from_slice(now);
            bytes = later;
            self.flush_full()?;
        }
        self.data = (at + len).next_multiple_of(ALIGN);
        let mut padding = (self.data - at - len) as usize;
        while padding > 0 {
            let now = padding.min(PIECE - self.piece.len());
            self.piece.resize(self.piece.len() + now, 0);
            padding -= now;
            self.flush_full()?;
        }
        Ok((at, len))
    }

    fn flush_full(&mut self) -> io::Result<()> {
        if self.piece.len() == PIECE { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        let skip = if self.sums.is_empty() { DATA_AT } else { 0 };
        self.sums.push(checksum::sum(&self.piece[skip..]));
        self.file.write_all(&self.piece)?;
        self.piece.clear();
        Ok(())
    }

    /// Writes directory and header; afterwards all is on the disk. Tells the file's size.
    pub fn finish(mut self, directory: &Directory) -> io::Result<u64> {
        if !self.piece.is_empty() {
            self.flush()?;
        }
        let directory = serde_json::to_vec(directory)?;
        self.file.write_all(&directory)?;
        let header = Header {
            data: self.data,
            data_sum: checksum::sum_of(&self.sums),
            directory: directory.len() as u64,
            directory_sum: checksum::sum(&directory),
        };
        let size = header.size().ok_or_else(|| io::Error::other("the directory is too long"))?;
        // What the header vouches for is on the disk before it.
        self.file.sync_data()?;
        self.file.seek(SeekFrom::Start(0))?;
        self.file.write_all(&header.encode())?;
        self.file.sync_all()?;
        Ok(size)
    }
}

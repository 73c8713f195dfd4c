//! A file mapped into memory that tells when it changed underneath, instead of ending the process.
//!
//! Reading a mapped page that the file no longer backs (it was truncated, or the disk failed) raises
//! SIGBUS. One process-wide handler knows the ranges of all live [`MappedFile`]s: a fault inside one of
//! them is answered with zero pages and noted, and [`MappedFile::verify`] reports it; any other fault
//! goes on to the handler that was there before.
//!
//! Invariant: a range is in the table from before its first read until after its last one; the slot of
//! a range does not change while anybody may read from the range.
//!
//! Not covered: a change that leaves both size and modification time as they were. Replacing the file
//! by renaming another over it is not a change: the map keeps the old file.

// Mapping a file and answering its faults cannot be written in safe Rust; this is the only module of
// the crate that may.
#![allow(unsafe_code)]

use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

use memmap2::Mmap;

/// Most files that one process may have mapped at a time.
pub(crate) const MAX_MAPS: usize = 1024;

/// Why a mapped file can no longer be believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Part of it could not be read: the file shrank, or its disk failed.
    Unreadable,
    /// Its size is no longer what it was.
    Size {
        /// Bytes when it was opened.
        before: u64,
        /// Bytes now.
        now: u64,
    },
    /// It was written to.
    Written,
}

impl std::fmt::Display for Change {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unreadable => f.write_str("part of it could not be read (it shrank, or the disk failed)"),
            Self::Size { before, now } => write!(f, "it had {before} bytes and now has {now}"),
            Self::Written => f.write_str("it was written to"),
        }
    }
}

/// A regular file, mapped read-only.
#[derive(Debug)]
pub(crate) struct MappedFile {
    // Dropped in this order: the range leaves the table before the memory goes.
    range: Range,
    map: Mmap,
    file: File,
    opened: Stamp,
}

/// What must stay the same for the bytes to stay the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    /// Bytes.
    pub size: u64,
    /// Time of the last change, since the Unix epoch.
    pub modified_seconds: i64,
    /// Nanoseconds on top.
    pub modified_nanos: i64,
}

impl Stamp {
    fn of(metadata: &Metadata) -> Self {
        Self {
            size: metadata.size(),
            modified_seconds: metadata.mtime(),
            modified_nanos: metadata.mtime_nsec(),
        }
    }
}

impl MappedFile {
    /// Maps a file. Anything but a regular file with at least one byte is an error.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let file = open_regular(path)?;
        let opened = Stamp::of(&file.metadata()?);
        if opened.size == 0 {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the file is empty"));
        }
        install_handler()?;
        // SAFETY: the map is read-only. That the file may change under it is dealt with as the module
        // comment says: faults are answered, and readers take the bytes as untrusted.
        let map = unsafe { Mmap::map(&file)? };
        let range = Range::register(&map)?;
        Ok(Self { range, map, file, opened })
    }

    /// Size and time of the file when it was opened.
    pub(crate) fn stamp(&self) -> Stamp {
        self.opened
    }

    /// Whether a part of the file could not be read and was answered with zeros.
    pub(crate) fn faulted(&self) -> bool {
        self.range.faulted()
    }

    /// Gives the memory of whole pages of `[start, end)` back; reading them again reads the file again.
    pub(crate) fn forget(&self, range: std::ops::Range<usize>) {
        let start = range.start.next_multiple_of(page_size());
        let end = range.end - range.end % page_size();
        if start < end {
            // SAFETY: the map is read-only and of a file, so that dropped pages come back with the file's
            // bytes. A page of zeros that stands for a fault stays what it is: fresh zeros.
            let _ = unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start)
            };
        }
    }

    /// Asks for huge pages, where the system can have them for files.
    pub(crate) fn want_huge_pages(&self) {
        #[cfg(target_os = "linux")]
        let _ = self.map.advise(memmap2::Advice::HugePage);
    }

    /// Whether everything read so far was what the file held when it was opened.
    ///
    /// # Errors
    /// The outer error is the system's refusal to say.
    pub(crate) fn verify(&self) -> io::Result<Result<(), Change>> {
        let now = Stamp::of(&self.file.metadata()?);
        Ok(if now.size != self.opened.size {
            Err(Change::Size { before: self.opened.size, now: now.size })
        } else if self.range.faulted() {
            Err(Change::Unreadable)
        } else if now != self.opened {
            Err(Change::Written)
        } else {
            Ok(())
        })
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Deref for MappedFile {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.map
    }
}

/// Opens a regular file for reading; never waits, as opening a pipe would.
pub(crate) fn open_regular(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(path)?;
    if !file.metadata()?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "not a regular file"));
    }
    Ok(file)
}

// === The table of live ranges

/// A place in the table. The signal handler reads it at any moment, so it is made of atomics alone.
struct Slot {
    taken: AtomicBool,
    /// Odd while `start` and `end` are being written, and never the same for two ranges.
    version: AtomicUsize,
    /// `[start, end)`, addresses of whole pages; `0, 0` when there is no range.
    start: AtomicUsize,
    end: AtomicUsize,
    faulted: AtomicBool,
}

static SLOTS: [Slot; MAX_MAPS] = [const {
    Slot {
        taken: AtomicBool::new(false),
        version: AtomicUsize::new(0),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        faulted: AtomicBool::new(false),
    }
}; MAX_MAPS];

impl Slot {
    fn write(&self, start: usize, end: usize) {
        self.version.fetch_add(1, SeqCst);
        self.start.store(start, SeqCst);
        self.end.store(end, SeqCst);
        self.version.fetch_add(1, SeqCst);
    }

    /// The range, unless it is just being changed: then it is not one that anybody reads from.
    fn read(&self) -> Option<(usize, usize)> {
        let before = self.version.load(SeqCst);
        let range = (self.start.load(SeqCst), self.end.load(SeqCst));
        (before.is_multiple_of(2) && self.version.load(SeqCst) == before).then_some(range)
    }
}

/// A registered range; leaves the table when dropped.
#[derive(Debug)]
struct Range {
    slot: usize,
}

impl Range {
    fn register(map: &Mmap) -> io::Result<Self> {
        let start = map.as_ptr() as usize;
        let end = (start + map.len()).next_multiple_of(page_size());
        for (index, slot) in SLOTS.iter().enumerate() {
            if slot.taken.compare_exchange(false, true, SeqCst, SeqCst).is_ok() {
                slot.faulted.store(false, SeqCst);
                slot.write(start, end);
                return Ok(Self { slot: index });
            }
        }
        Err(io::Error::other(format!("more than {MAX_MAPS} files are mapped")))
    }

    fn faulted(&self) -> bool {
        SLOTS[self.slot].faulted.load(SeqCst)
    }
}

impl Drop for Range {
    fn drop(&mut self) {
        let slot = &SLOTS[self.slot];
        slot.write(0, 0);
        slot.taken.store(false, SeqCst);
    }
}

// === The handler

/// The action that was there before ours.
static PREVIOUS: OnceLock<libc::sigaction> = OnceLock::new();
static PAGE_SIZE: AtomicUsize = AtomicUsize::new(4096);

fn page_size() -> usize {
    PAGE_SIZE.load(SeqCst)
}

/// Installs the handler, once for the process.
fn install_handler() -> io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    INSTALLED
        .get_or_init(|| {
            // SAFETY: asking for a system constant has no preconditions.
            let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            if let Ok(size @ 1..) = usize::try_from(size) {
                PAGE_SIZE.store(size, SeqCst);
            }
            let failure = || Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EINVAL));
            // SAFETY: all-zero bytes are a valid `sigaction` (the default action).
            let mut previous: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: `previous` is a writable `sigaction`; a null new action only asks.
            if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), &raw mut previous) } != 0 {
                return failure();
            }
            // Stored before the handler can run, which reads it.
            PREVIOUS.get_or_init(|| previous);
            // SAFETY: all-zero bytes are a valid `sigaction`.
            let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
            action.sa_sigaction = on_sigbus as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
            // SAFETY: `action` is whole, and its handler does only what a signal handler may.
            if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } != 0 {
                return failure();
            }
            Ok(())
        })
        .map_err(io::Error::from_raw_os_error)
}

/// Runs in a signal handler: no allocation, no lock, no panic.
extern "C" fn on_sigbus(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the kernel hands a SA_SIGINFO handler a valid `siginfo_t`.
    let code = unsafe { (*info).si_code };
    if code == libc::BUS_ADRERR {
        // SAFETY: with BUS_ADRERR the address field is the one that is filled in.
        let address = unsafe { (*info).si_addr() } as usize;
        for slot in &SLOTS {
            if let Some((start, end)) = slot.read()
                && (start..end).contains(&address)
                && put_zero_pages(address, end)
            {
                slot.faulted.store(true, SeqCst);
                return;
            }
        }
    }
    pass_on(signal, code, info, context);
}

/// Puts zero pages in place of the map from the page of `address` to its end, so that a file which
/// lost many pages costs one fault.
fn put_zero_pages(address: usize, end: usize) -> bool {
    let start = address - address % page_size();
    // SAFETY: `[start, end)` is page-aligned and inside one of our read-only maps, which nobody unmaps
    // while it is being read; readers take its bytes as untrusted. `mmap` is a bare system call.
    let placed = unsafe {
        libc::mmap(
            start as *mut libc::c_void,
            end - start,
            libc::PROT_READ,
            libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED,
            -1,
            0,
        )
    };
    placed != libc::MAP_FAILED
}

/// Does what would have happened without our handler.
fn pass_on(signal: libc::c_int, code: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    /// Codes up to this one mean that a process sent the signal, not that an instruction faulted.
    const SENT: libc::c_int = 0;
    let previous = PREVIOUS.get();
    match previous.map_or(libc::SIG_DFL, |p| p.sa_sigaction) {
        libc::SIG_IGN if code <= SENT => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: all-zero bytes are a valid `sigaction`: the default action.
            let default: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: `default` is whole. On return the faulting instruction runs again and ends the
            // process, as it would have without us.
            unsafe { libc::sigaction(signal, &raw const default, std::ptr::null_mut()) };
            if code <= SENT {
                // SAFETY: `raise` may be called in a handler; the signal is delivered on return.
                unsafe { libc::raise(signal) };
            }
        }
        handler if previous.is_some_and(|p| p.sa_flags & libc::SA_SIGINFO != 0) => {
            type WithInfo = extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void);
            // SAFETY: the flag says that the handler has this signature.
            let handler = unsafe { std::mem::transmute::<usize, WithInfo>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without the flag a handler takes the signal's number alone.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(libc::c_int)>(handler) };
            handler(signal);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;
    use std::process::Command;

    use super::*;

    /// Set in a test's second process, which is to die.
    const CHILD: &str = "HEARTH_TEST_SIGBUS_CHILD";

    /// Runs `die` in a process of its own, with our handler installed and a map of ours alive, and checks
    /// that SIGBUS ended it.
    #[track_caller]
    fn dies_of_sigbus(test: &str, die: impl FnOnce(&Path)) {
        if std::env::var_os(CHILD).is_some() {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("ours");
            std::fs::write(&path, [1; 100]).unwrap();
            let ours = MappedFile::open(&path).unwrap();
            assert_eq!(ours[99], 1);
            die(&folder.path().join("other"));
            return;
        }
        let status = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", &format!("mapped::tests::{test}"), "--nocapture"])
            .env(CHILD, "1")
            .status()
            .unwrap();
        assert_eq!(status.signal(), Some(libc::SIGBUS), "{status}");
    }

    #[test]
    fn a_fault_outside_our_maps_still_ends_the_process() {
        dies_of_sigbus("a_fault_outside_our_maps_still_ends_the_process", |path| {
            std::fs::write(path, [1; 8192]).unwrap();
            let file = OpenOptions::new().read(true).write(true).open(path).unwrap();
            // SAFETY: reading the map is meant to fault.
            let map = unsafe { Mmap::map(&file).unwrap() };
            file.set_len(0).unwrap();
            std::hint::black_box(map[5000]);
        });
    }

    #[test]
    fn a_signal_that_was_sent_still_ends_the_process() {
        dies_of_sigbus("a_signal_that_was_sent_still_ends_the_process", |_| {
            // The handler before ours is the standard library's, which answers the first one by going
            // back to the default action.
            for _ in 0..2 {
                // SAFETY: raising a signal has no preconditions.
                unsafe { libc::raise(libc::SIGBUS) };
            }
        });
    }

    #[test]
    fn a_slot_being_written_has_no_range() {
        let slot = Slot {
            taken: AtomicBool::new(true),
            version: AtomicUsize::new(0),
            start: AtomicUsize::new(0),
            end: AtomicUsize::new(0),
            faulted: AtomicBool::new(false),
        };
        slot.write(4096, 8192);
        assert_eq!(slot.read(), Some((4096, 8192)));
        slot.version.fetch_add(1, SeqCst);
        assert_eq!(slot.read(), None);
    }

    #[test]
    fn the_table_holds_whole_pages_and_is_given_back() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), [1; 5000]).unwrap();
        let map = MappedFile::open(file.path()).unwrap();
        let range = SLOTS[map.range.slot].read().unwrap();
        assert_eq!(range.0, map.as_ptr() as usize);
        assert_eq!((range.1 - range.0) % page_size(), 0);
        assert!(range.1 - range.0 >= 5000);
        // Many more than the table holds: each gives its slot back.
        for _ in 0..2 * MAX_MAPS {
            MappedFile::open(file.path()).unwrap();
        }
        drop(map);
    }
}

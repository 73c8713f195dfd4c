//! A file that changes or shrinks under its map is an error, and the process lives.

use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use models::{Checkpoint, CheckpointError};

use crate::writer::{GgufWriter, float_tensors, folder};

const ROWS: u64 = 64;

/// A file with a tensor of a mebibyte, last written an hour ago, so that no write of a test falls into
/// the same tick of the file system's clock.
fn large_gguf() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("large.gguf");
    let data = vec![1; ROWS as usize * 4096 * 4];
    let bytes = GgufWriter::default()
        .str("general.architecture", "llama")
        .tensor("large", &[4096, ROWS], 0, &data)
        .bytes();
    std::fs::write(&path, bytes).unwrap();
    age(&path);
    (folder, path)
}

fn age(path: &Path) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() - Duration::from_secs(3600)).unwrap();
}

fn sum(checkpoint: &Checkpoint, name: &str) -> u64 {
    let bytes = checkpoint.tensor(name).unwrap().bytes;
    // The reads must happen, even where the sum is not used.
    std::hint::black_box(bytes.iter().map(|byte| u64::from(*byte)).sum())
}

#[track_caller]
fn assert_changed(checkpoint: &Checkpoint, reason: &str) {
    match checkpoint.verify() {
        Err(CheckpointError::Changed { reason: found, .. }) => {
            assert!(found.contains(reason), "{found:?} does not contain {reason:?}");
        }
        other => panic!("expected a change, found {other:?}"),
    }
}

#[test]
fn an_untouched_file_verifies_after_reading() {
    let (_folder, path) = large_gguf();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(sum(&checkpoint, "large"), ROWS * 4096 * 4);
    checkpoint.verify().unwrap();
}

#[test]
fn reading_a_file_that_shrank_is_an_error_and_no_signal() {
    let (_folder, path) = large_gguf();
    let checkpoint = Checkpoint::open(&path).unwrap();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(8192).unwrap();
    assert!(sum(&checkpoint, "large") < ROWS * 4096 * 4, "lost pages read as zero");
    assert_changed(&checkpoint, "now has 8192");
}

#[test]
fn a_file_that_shrank_and_grew_again_is_an_error() {
    let (_folder, path) = large_gguf();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let size = std::fs::metadata(&path).unwrap().len();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(0).unwrap();
    sum(&checkpoint, "large");
    file.set_len(size).unwrap();
    assert_changed(&checkpoint, "could not be read");
}

#[test]
fn a_file_written_in_place_is_an_error() {
    let (_folder, path) = large_gguf();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
    file.seek(SeekFrom::End(-1)).unwrap();
    file.write_all(&[2]).unwrap();
    drop(file);
    assert_changed(&checkpoint, "written to");
}

#[test]
fn a_file_that_grew_is_an_error() {
    let (_folder, path) = large_gguf();
    let checkpoint = Checkpoint::open(&path).unwrap();
    OpenOptions::new().append(true).open(&path).unwrap().write_all(&[0]).unwrap();
    assert_changed(&checkpoint, "bytes and now has");
}

#[test]
fn a_file_replaced_by_renaming_is_read_on_as_it_was() {
    let (folder, path) = large_gguf();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let new = folder.path().join("new");
    File::create(&new).unwrap().write_all(b"something else").unwrap();
    std::fs::rename(&new, &path).unwrap();
    assert_eq!(sum(&checkpoint, "large"), ROWS * 4096 * 4);
    checkpoint.verify().unwrap();
}

#[test]
fn a_fault_in_one_map_leaves_the_others_alone() {
    let files: Vec<_> = (0..20).map(|_| large_gguf()).collect();
    let open: Vec<_> = files.iter().map(|(_, path)| Checkpoint::open(path).unwrap()).collect();
    for (_, path) in files.iter().step_by(2) {
        OpenOptions::new().write(true).open(path).unwrap().set_len(1).unwrap();
    }
    std::thread::scope(|scope| {
        for part in open.chunks(5) {
            scope.spawn(move || part.iter().map(|checkpoint| sum(checkpoint, "large")).max());
        }
    });
    for (index, checkpoint) in open.iter().enumerate() {
        assert_eq!(checkpoint.verify().is_ok(), index % 2 == 1, "file {index}");
    }
}

#[test]
fn a_shard_that_shrank_is_an_error_of_the_folder() {
    let weights = float_tensors(&[("large", &[64, 4096])]);
    let folder = folder(&[("model.safetensors", &weights)]);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let path = folder.path().join("model.safetensors");
    OpenOptions::new().write(true).open(path).unwrap().set_len(100).unwrap();
    sum(&checkpoint, "large");
    assert_changed(&checkpoint, "now has 100");
}

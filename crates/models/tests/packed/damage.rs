//! Files that must not be believed, and folders that cannot be written.

use super::{World, answers, write_model};
use device::{DType, LoadFormat};
use models::{KeptState, Loaded};
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::SystemTime;

/// Damages the packed file, then expects one cold start and warm ones after it, all with the same answers.
#[track_caller]
fn is_replaced(world: &World, expected: &[u32], damage: impl FnOnce(&Path)) {
    let file = world.file();
    damage(&file);
    assert_eq!(world.cold(), expected);
    assert_eq!(world.warm(), expected);
    assert_eq!(world.states(), [KeptState::Current]);
}

fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

#[test]
fn a_flipped_bit_anywhere_is_noticed() {
    let world = World::new(DType::Q4K);
    let expected = world.cold();
    let len = fs::metadata(world.file()).unwrap().len();
    // Header, the data's first and last part, the directory's first and last byte.
    let directory =
        fs::read(world.file()).unwrap().windows(11).rposition(|w| w == br#"{"packing":"#).unwrap() as u64;
    for at in [0, 9, 17, 25, 60, 4096, 4096 + 77_777, directory - 1, directory, directory + 40, len - 1] {
        is_replaced(&world, &expected, |file| flip(file, at));
    }
}

#[test]
fn a_file_of_the_wrong_length_is_not_believed() {
    let world = World::new(DType::Q5_0);
    let expected = world.cold();
    let resize = |len: fn(u64) -> u64| {
        move |path: &Path| {
            let file = File::options().write(true).open(path).unwrap();
            file.set_len(len(file.metadata().unwrap().len())).unwrap();
        }
    };
    for len in [|_| 0, |_| 1, |_| 63, |_| 64, |_| 5000, |len| len - 1, |len| len + 1] as [fn(u64) -> u64; 7] {
        is_replaced(&world, &expected, resize(len));
    }
}

#[test]
fn a_file_of_another_model_under_this_name_is_not_believed() {
    let (world, other) = (World::new(DType::Q4_0), World::new(DType::Q4_0));
    let expected = world.cold();
    write_model(&other.model, DType::Q4_0, 77);
    other.cold();
    is_replaced(&world, &expected, |file| {
        fs::copy(other.file(), file).unwrap();
    });
    is_replaced(&world, &expected, |file| {
        fs::copy(&world.model, file).unwrap();
    });
}

#[test]
fn weights_that_changed_are_packed_anew() {
    let world = World::new(DType::Q4_0);
    let before = world.cold();
    // The same size, format and shapes; only the time tells.
    write_model(&world.model, DType::Q4_0, 2);
    let stamp = |nanos: u32| SystemTime::UNIX_EPOCH + std::time::Duration::new(1_700_000_000, nanos);
    let touch = |nanos| File::options().append(true).open(&world.model).unwrap().set_modified(stamp(nanos));
    touch(5).unwrap();
    let after = world.cold();
    assert_ne!(before, after);
    assert_eq!(world.warm(), after);
    write_model(&world.model, DType::Q4_0, 3);
    touch(6).unwrap();
    assert_ne!(world.cold(), after, "a nanosecond is enough");
    // Other tensors in a file of the same size and time.
    write_model(&world.model, DType::Iq4Nl, 3);
    touch(6).unwrap();
    world.cold();
    assert_eq!(world.states(), [KeptState::Current], "each took its predecessor's place");
}

#[test]
fn a_folder_that_cannot_be_written_costs_the_start_nothing() {
    let world = World::new(DType::F16);
    fs::write(world.folder.path().join("packed"), "a file where the folder should be").unwrap();
    let (mut loaded, write) = world.start(LoadFormat::AsStored);
    assert!(write.unwrap().run().is_err());
    assert!(!answers(&mut loaded).is_empty());
}

#[test]
fn a_full_disk_leaves_nothing_behind_and_the_old_file_as_it_was() {
    let world = World::new(DType::Q8_0);
    let expected = world.cold();
    let part = world.file().with_extension("part");
    let old = fs::read(world.file()).unwrap();
    write_model(&world.model, DType::Q8_0, 5);
    symlink("/dev/full", &part).unwrap();
    let (_, write) = world.start(LoadFormat::AsStored);
    let error = write.unwrap().run().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
    assert!(fs::symlink_metadata(&part).is_err(), "the part is gone");
    assert_eq!(fs::read(world.file()).unwrap(), old);
    assert_ne!(world.cold(), expected, "there is room again");
}

#[test]
fn weights_that_are_cut_short_under_a_running_model_end_the_step_and_not_the_process() {
    let world = World::new(DType::Q4_1);
    let expected = world.cold();
    let (mut loaded, write) = world.start(LoadFormat::AsStored);
    assert!(write.is_none());
    assert_eq!(answers(&mut loaded), expected);
    File::options().write(true).open(world.file()).unwrap().set_len(4096).unwrap();
    let Loaded::Language(mut model) = loaded else { panic!("a language model") };
    for _ in 0..2 {
        let step = catch_unwind(AssertUnwindSafe(|| super::support::logits(&mut *model, &[1, 2, 3], &[2])));
        assert!(step.is_err(), "an answer of zeros");
    }
    assert_eq!(world.cold(), expected, "loading again packs again");
}

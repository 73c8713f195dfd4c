//! Several processes with one folder, and processes that die.

use super::World;
use device::{DType, LoadFormat};
use models::KeptState;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

/// Set in a test's second process: the folder to work in.
const CHILD: &str = "HEARTH_TEST_PACKED_CHILD";

#[test]
fn who_finds_another_at_work_leaves_it_the_writing() {
    let world = World::new(DType::Q4_0);
    let expected = world.cold();
    fs::remove_file(world.file()).unwrap();
    let (_, write) = world.start(LoadFormat::AsStored);
    let write = write.unwrap();
    let other = File::create(write.path().with_extension("part")).unwrap();
    other.lock().unwrap();
    assert_eq!(world.states(), [], "what is being written is not to be removed");
    assert_eq!(write.run().unwrap(), None);
    assert_eq!(world.states(), []);
    drop(other);
    assert_eq!(world.states(), [KeptState::Unfinished], "nobody writes it any more");
    assert_eq!(world.cold(), expected);
    assert_eq!(world.states(), [KeptState::Current], "the leftover was used up");
}

#[test]
fn starts_at_the_same_time_all_answer_alike_and_leave_one_whole_file() {
    let world = World::new(DType::Q6K);
    let started: Vec<_> = (0..6).map(|_| world.start(LoadFormat::AsStored)).collect();
    let answers: Vec<Vec<u32>> = std::thread::scope(|scope| {
        let threads: Vec<_> = started
            .into_iter()
            .map(|(mut loaded, write)| {
                scope.spawn(move || {
                    write.unwrap().run().unwrap();
                    super::answers(&mut loaded)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(world.states(), [KeptState::Current]);
    let warm = world.warm();
    assert!(answers.iter().all(|answer| *answer == warm));
}

#[test]
fn a_process_killed_while_it_writes_leaves_nothing_that_is_believed_and_wrong() {
    if let Some(folder) = std::env::var_os(CHILD) {
        write_for_ever(folder.as_ref());
    }
    let world = World::new(DType::F32);
    let expected = world.cold();
    for round in 0..10 {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--exact",
                "processes::a_process_killed_while_it_writes_leaves_nothing_that_is_believed_and_wrong",
            ])
            .arg("--nocapture")
            .env(CHILD, world.folder.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        // Killed as it begins its first, second, ... writing; where in it is up to the machine.
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut begun = 0;
        while begun <= round {
            let mut line = String::new();
            assert!(out.read_line(&mut line).unwrap() > 0, "the child ended by itself");
            begun += usize::from(line.contains("writing"));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        let _ = out.read_to_end(&mut Vec::new());
        let (mut loaded, write) = world.start(LoadFormat::AsStored);
        assert_eq!(super::answers(&mut loaded), expected, "round {round}");
        if let Some(write) = write {
            write.run().unwrap().expect("a dead process holds no lock");
        }
        assert_eq!(world.warm(), expected, "round {round}");
    }
}

/// Writes the file again and again, until somebody ends this process.
fn write_for_ever(folder: &std::path::Path) -> ! {
    loop {
        let model = folder.join("model.gguf");
        let packed = models::PackedFolder::new(folder.join("packed"));
        for file in packed.list(None).unwrap() {
            let _ = fs::remove_file(file.path);
        }
        let checkpoint = models::Checkpoint::open(&model).unwrap();
        let loaded =
            models::load_kept(&checkpoint, super::cpu(), LoadFormat::AsStored, &packed, &mut |_, _| {});
        let (_, write) = loaded.unwrap();
        println!("writing");
        write.unwrap().run().unwrap();
    }
}

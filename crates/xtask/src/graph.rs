//! The graph of crates is the table in `ARCHITECTURE.md`: this is that table, and the check against `cargo metadata`.

use anyhow::Context;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Crate, the crates it may name, and those that its tests may name besides.
const ALLOWED: &[(&str, &[&str], &[&str])] = &[
    ("base", &[], &[]),
    ("protocol", &["base"], &[]),
    ("tokenizer", &["base"], &[]),
    ("device", &["base"], &[]),
    ("kernels", &["device", "base"], &[]),
    // Golden logits need a device that computes.
    ("models", &["device", "base"], &["kernels"]),
    ("engine", &["models", "device", "base"], &["kernels"]),
    ("serving", &["engine", "models", "kernels", "device", "tokenizer", "protocol", "base"], &[]),
    ("store", &["base"], &["testdb"]),
    ("gateway", &["store", "protocol", "base"], &["testdb"]),
    (
        "hearth",
        &[
            "gateway",
            "store",
            "serving",
            "engine",
            "models",
            "kernels",
            "device",
            "tokenizer",
            "protocol",
            "base",
        ],
        &["testdb"],
    ),
    ("testdb", &[], &[]),
    ("xtask", &[], &[]),
];

/// Names that say nothing about what is inside.
const FORBIDDEN_NAMES: &[&str] = &["common", "core", "helpers", "misc", "types", "util", "utils"];

/// Faults of a workspace as `cargo metadata --no-deps` tells it.
#[must_use]
pub fn faults(metadata: &Value) -> Vec<String> {
    let packages = || metadata["packages"].as_array().into_iter().flatten();
    let name = |package: &Value| package["name"].as_str().unwrap_or_default().to_owned();
    let ours: Vec<String> = packages().map(name).collect();
    let mut faults = Vec::new();
    for package in packages() {
        let from = name(package);
        if FORBIDDEN_NAMES.contains(&from.as_str()) {
            faults.push(format!("{from} is a name that says nothing"));
        }
        let Some((_, allowed, in_tests)) = ALLOWED.iter().find(|(name, ..)| *name == from) else {
            faults.push(format!("{from} is not in the table of crates"));
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let to = name(dependency);
            let dev = dependency["kind"] == "dev";
            let fine = allowed.contains(&to.as_str()) || (dev && in_tests.contains(&to.as_str()));
            if ours.contains(&to) && !fine {
                let whose = if dev { "the tests of " } else { "" };
                faults.push(format!("{whose}{from} must not depend on {to}"));
            }
        }
    }
    faults
}

/// The workspace's root.
#[must_use]
pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Faults of this workspace.
///
/// # Errors
/// When cargo cannot be asked.
pub fn check_workspace() -> anyhow::Result<Vec<String>> {
    let output = Command::new(option_env!("CARGO").unwrap_or("cargo"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--offline"])
        .current_dir(root())
        .output()
        .context("cargo metadata cannot be run")?;
    anyhow::ensure!(
        output.status.success(),
        "cargo metadata failed: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(faults(&serde_json::from_slice(&output.stdout).context("cargo metadata printed no JSON")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn package(name: &str, dependencies: &[(&str, Option<&str>)]) -> Value {
        let dependencies: Vec<Value> =
            dependencies.iter().map(|(name, kind)| json!({"name": name, "kind": kind})).collect();
        json!({"name": name, "dependencies": dependencies})
    }

    fn check(packages: &[Value], expected: &[&str]) {
        assert_eq!(faults(&json!({ "packages": packages })), expected);
    }

    #[test]
    fn models_may_not_see_the_engine() {
        let packages = [package("engine", &[("models", None)]), package("models", &[("engine", None)])];
        check(&packages, &["models must not depend on engine"]);
    }

    #[test]
    fn tests_of_models_may_use_kernels_and_models_may_not() {
        let kernels = package("kernels", &[]);
        check(&[kernels.clone(), package("models", &[("kernels", Some("dev"))])], &[]);
        check(&[kernels, package("models", &[("kernels", None)])], &["models must not depend on kernels"]);
    }

    #[test]
    fn tests_obey_the_table_too() {
        let packages = [package("engine", &[]), package("base", &[("engine", Some("dev"))])];
        check(&packages, &["the tests of base must not depend on engine"]);
    }

    #[test]
    fn crates_of_others_are_not_in_the_table() {
        check(&[package("base", &[("serde", None)])], &[]);
    }

    #[test]
    fn a_new_crate_needs_a_line_in_the_table_and_a_name_that_says_something() {
        check(
            &[package("utils", &[])],
            &["utils is a name that says nothing", "utils is not in the table of crates"],
        );
    }
}

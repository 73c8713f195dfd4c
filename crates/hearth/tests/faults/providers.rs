//! `hearth providers` as a person calls it: what it adds, keeps, shows, tests and removes holds in a server that runs.

use super::server::{Home, Running, chat};
use std::process::Output;

/// Another server, which wants a key, as the provider.
fn provider(folder: &std::path::Path, key: &str) -> Running {
    std::fs::create_dir_all(folder).expect("made");
    std::fs::write(folder.join("turns.json"), r#"{"turns": [{"text": "Yes."}]}"#).expect("written");
    let home = Home::new(folder);
    home.start(&["--api-key", key, "--model", "me=script:turns.json"])
}

fn providers(home: &Home, args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = home.command(&[&["providers"], args].concat());
    command.envs(environment.iter().copied()).output().expect("hearth runs")
}

/// What a command said, where it succeeded.
#[track_caller]
fn said(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].map(String::from_utf8_lossy).concat();
    assert!(output.status.success(), "{both}");
    both
}

#[test]
fn providers_are_added_given_keys_tested_listed_and_removed_under_a_server_that_runs() {
    let folder = tempfile::tempdir().expect("tempdir");
    let key = "sk-of-the-lab-0123456789";
    let lab = provider(&folder.path().join("lab"), key);
    let home = Home::new(folder.path());
    let running = home.start(&[]);
    let status = || chat(&running.address, "", "1", "custom-lab/me", false).expect("sent").status;
    // A server sees a change within half a second; one that never does fails here.
    let until = |wanted: u16| {
        let seen = (0..50_000).map(|_| status()).find(|status| *status == wanted);
        assert_eq!(seen, Some(wanted), "the last was {}", status());
    };

    let url = format!("http://{}/v1", lab.address);
    let refused = providers(&home, &["add", "lab", "--base-url", &url], &[]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && why.contains("--private"), "{why}");
    let added = providers(&home, &["add", "lab", "--base-url", &url, "--private"], &[]);
    assert!(said(&added).contains("custom-lab"));
    until(401);
    assert!(!providers(&home, &["test", "custom-lab"], &[]).status.success(), "it wants a key");

    let set = ["set-key", "custom-lab", "--env", "LAB_KEY", "--rate-limit", "1000"];
    assert!(!providers(&home, &set, &[]).status.success(), "the variable is not there");
    let kept = said(&providers(&home, &set, &[("LAB_KEY", key)]));
    let id = kept.split(" as ").nth(1).and_then(|rest| rest.split(',').next()).expect("an id").to_owned();
    until(200);
    assert!(said(&providers(&home, &["test", "custom-lab"], &[])).contains("1 models"));
    let list = said(&providers(&home, &["list"], &[]));
    assert!(list.contains("custom-lab") && list.contains(&id) && list.contains("…6789"), "{list}");
    assert!(!list.contains("of-the-lab"), "a kept key is not shown: {list}");

    // The key that seals is another then, and what was sealed opens.
    assert!(said(&providers(&home, &["reseal"], &[])).contains("sealed 1 "));
    assert_eq!(status(), 200);
    said(&providers(&home, &["remove", &id], &[]));
    until(401);
    said(&providers(&home, &["remove", "lab"], &[]));
    until(404);
    assert!(!providers(&home, &["remove", "lab"], &[]).status.success(), "it is gone");
    assert!(!said(&providers(&home, &["list"], &[])).contains("custom-lab"));
}

//! The real tree obeys the rules.

#[track_caller]
fn none(faults: Vec<String>) {
    assert!(faults.is_empty(), "\n{}\n", faults.join("\n"));
}

#[test]
fn the_graph_of_crates_is_the_table() {
    none(xtask::graph::check_workspace().expect("cargo answers"));
}

#[test]
fn files_are_tidy() {
    none(xtask::tidy::check_workspace().expect("git answers"));
}

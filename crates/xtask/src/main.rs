//! `cargo run -p xtask`: prints every broken rule and fails when there is one.
#![allow(clippy::print_stdout, reason = "a development tool for the terminal")]

use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let mut faults = xtask::graph::check_workspace()?;
    faults.extend(xtask::tidy::check_workspace()?);
    for fault in &faults {
        println!("{fault}");
    }
    Ok(if faults.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

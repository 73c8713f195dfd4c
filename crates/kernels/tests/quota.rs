//! The default number of threads inside a control group with a CPU quota, as containers have them.
//!
//! Makes a real group for itself, which takes root and a writable hierarchy; elsewhere the test is skipped by name.

#![cfg(target_os = "linux")]
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use kernels::{Cpu, CpuConfig};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Set for the process in the group.
const INSIDE: &str = "HEARTH_TEST_IN_GROUP";
/// What it says before its number of threads.
const SAYS: &str = "threads by default:";
/// Microseconds.
const PERIOD: usize = 100_000;

/// A control group, which goes with this value.
struct Group {
    path: PathBuf,
    /// The second version has one file for quota and period.
    unified: bool,
}

impl Group {
    fn new() -> Option<Self> {
        let name = format!("hearth-test-{}", std::process::id());
        // Where both are mounted, the CPU belongs to the first version's.
        for (hierarchy, unified) in [("/sys/fs/cgroup/cpu", false), ("/sys/fs/cgroup", true)] {
            let quota = if unified { "cpu.max" } else { "cpu.cfs_quota_us" };
            let path = Path::new(hierarchy).join(&name);
            if fs::create_dir(&path).is_ok() {
                let group = Self { path, unified };
                if group.path.join(quota).exists() {
                    return Some(group);
                }
            }
        }
        None
    }

    /// Gives the group so many microseconds a period, and tells the default in it. `None` where this is not allowed.
    fn default_threads(&self, quota: usize) -> Option<usize> {
        let set = |file: &str, value: String| fs::write(self.path.join(file), value);
        let quota_is_set = if self.unified {
            set("cpu.max", format!("{quota} {PERIOD}"))
        } else {
            set("cpu.cfs_period_us", PERIOD.to_string())
                .and_then(|()| set("cpu.cfs_quota_us", quota.to_string()))
        };
        quota_is_set.ok()?;
        let output = Command::new("sh")
            .args(["-c", "echo $$ >\"$0\" && exec \"$@\""])
            .arg(self.path.join("cgroup.procs"))
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "the_default_keeps_to_a_quota_rounded_up_and_is_at_least_one", "--nocapture"])
            .env(INSIDE, "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        let (_, threads) = said.split_once(SAYS)?;
        threads.split_whitespace().next()?.parse().ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _gone = fs::remove_dir(&self.path);
    }
}

fn default_threads() -> usize {
    Cpu::new(CpuConfig::default()).unwrap().threads()
}

#[test]
fn the_default_keeps_to_a_quota_rounded_up_and_is_at_least_one() {
    if std::env::var_os(INSIDE).is_some() {
        println!("{SAYS} {}", default_threads());
        return;
    }
    let all = default_threads();
    let group = Group::new();
    for percent in [5, 50, 99, 100, 150, 200, 250, 800] {
        let told = group.as_ref().and_then(|group| group.default_threads(PERIOD * percent / 100));
        let Some(threads) = told else {
            println!("skipped: the default under a quota (no control group with one can be made here)");
            return;
        };
        assert!((1..=percent.div_ceil(100).min(all)).contains(&threads), "{percent} %: {threads}");
    }
}

//! Memory of a process on this machine.

use anyhow::{Context, bail};
use base::Bytes;

/// Resident memory of a process (Linux: `VmRSS`).
///
/// # Errors
/// When there is no such process, or the system does not tell.
pub fn resident(pid: u32) -> anyhow::Result<Bytes> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"));
    let Some(bytes) = parse(&status.with_context(|| format!("no process {pid} is seen on this machine"))?)
    else {
        bail!("the system does not tell the memory of process {pid}");
    };
    Ok(bytes)
}

fn parse(status: &str) -> Option<Bytes> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(Bytes(kib * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_memory_is_read_as_linux_writes_it() {
        assert_eq!(
            parse("Name:\tx\nVmHWM:\t  9 kB\nVmRSS:\t   1200 kB\nThreads:\t1\n"),
            Some(Bytes(1_228_800))
        );
        assert_eq!(parse("Name:\tkthreadd\n"), None);
    }
}

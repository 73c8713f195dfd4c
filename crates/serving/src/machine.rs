//! How much memory this process may use for KV pages when nobody says: half of what is available, with a control
//! group's limit respected.

use base::Bytes;

/// What is taken where the system does not tell.
const FALLBACK: Bytes = Bytes(1 << 30);
/// Less is of no use.
const LEAST: Bytes = Bytes(64 << 20);

/// The default budget of KV pages.
pub(crate) fn kv_memory() -> Bytes {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| available(&text));
    let group = [
        ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    ];
    let group = group.into_iter().find_map(|(limit, used)| room(&read(limit)?, &read(used)?));
    share(machine, group)
}

/// All the memory that this process could ever have, where the system tells.
pub(crate) fn memory() -> Option<Bytes> {
    let read = |path: &str| std::fs::read_to_string(path).ok();
    let machine = read("/proc/meminfo").and_then(|text| kilobytes(&text, "MemTotal:"));
    let group = ["/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"];
    let group = group.into_iter().find_map(|path| read(path)?.trim().parse().ok());
    [machine, group].into_iter().flatten().min().map(Bytes)
}

fn share(machine: Option<u64>, group: Option<u64>) -> Bytes {
    let room = [machine, group].into_iter().flatten().min();
    room.map_or(FALLBACK, |room| Bytes(room / 2).max(LEAST))
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available(meminfo: &str) -> Option<u64> {
    kilobytes(meminfo, "MemAvailable:")
}

/// A line of `/proc/meminfo`, in bytes.
fn kilobytes(meminfo: &str, name: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix(name))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// What a control group has left; `None` when it has no limit.
fn room(limit: &str, used: &str) -> Option<u64> {
    let (limit, used) = (limit.trim().parse::<u64>().ok()?, used.trim().parse::<u64>().ok()?);
    Some(limit.saturating_sub(used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tighter_of_machine_and_group_decides() {
        let meminfo = "MemTotal:       1000 kB\nMemAvailable:   8388608 kB\n";
        assert_eq!(available(meminfo), Some(8 << 30));
        assert_eq!(kilobytes(meminfo, "MemTotal:"), Some(1_024_000));
        assert_eq!(room("max\n", "5\n"), None);
        assert_eq!(room("2147483648\n", "1073741824\n"), Some(1 << 30));
        assert_eq!(share(available(meminfo), Some(1 << 30)), Bytes(512 << 20));
        assert_eq!(share(available(meminfo), None), Bytes(4 << 30));
        assert_eq!(share(None, None), FALLBACK);
        assert_eq!(share(Some(1), None), LEAST);
    }
}

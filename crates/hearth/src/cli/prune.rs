//! `hearth models prune`: packed weights that no start will use again.

use super::Session;
use super::style;
use crate::store;
use anyhow::Context;
use base::Bytes;
use models::{KeptFile, KeptState};
use std::fs;
use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// All packed weights of a data folder.
pub(super) fn packed_weights(data_dir: &Path) -> anyhow::Result<Vec<KeptFile>> {
    let packing = <kernels::Cpu as device::Device>::packing();
    let folder = store::packed_folder(data_dir);
    store::packed_weights(data_dir).list(packing).with_context(|| format!("cannot read {}", folder.display()))
}

/// Why a file is of no more use; `None` where it is.
fn reason(file: &KeptFile, unused: Duration, now: SystemTime) -> Option<String> {
    match file.state {
        KeptState::Gone => Some("its model is gone".to_owned()),
        KeptState::Stale => Some("its model changed, or another version packed it".to_owned()),
        KeptState::Unreadable => Some("it is damaged".to_owned()),
        KeptState::Unfinished => Some("it was never finished".to_owned()),
        KeptState::Current => {
            // A clock that was set back has seen nothing grow old.
            let age = now.duration_since(file.used).unwrap_or_default();
            let days = age.as_secs() / 86_400;
            (age >= unused).then(|| format!("not used for {days} day{}", if days == 1 { "" } else { "s" }))
        }
    }
}

/// Removes what is of no more use and says what that freed.
pub(super) fn prune(session: &Session, unused: Duration, dry_run: bool) -> anyhow::Result<()> {
    let (mut count, mut freed, now) = (0, 0, SystemTime::now());
    for file in packed_weights(&session.data_dir()?)? {
        let Some(reason) = reason(&file, unused, now) else { continue };
        style::say(&format!("{} ({}): {reason}", file.path.display(), file.size));
        if !dry_run {
            remove(&file)?;
        }
        count += 1;
        freed += file.size.0;
    }
    let files = if count == 1 { "file" } else { "files" };
    style::say(&match (count, dry_run) {
        (0, _) => "nothing to prune".to_owned(),
        (_, true) => format!("would free {} in {count} {files}", Bytes(freed)),
        (_, false) => format!("freed {} in {count} {files}", Bytes(freed)),
    });
    Ok(())
}

/// Removes a file; a process that has it mapped keeps its memory.
pub(super) fn remove(file: &KeptFile) -> anyhow::Result<()> {
    match fs::remove_file(&file.path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.with_context(|| format!("removing {}", file.path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(state: KeptState, age: Duration) -> (KeptFile, SystemTime) {
        let used = SystemTime::UNIX_EPOCH;
        (KeptFile { path: "/p".into(), size: Bytes(1), source: None, state, used }, used + age)
    }

    #[test]
    fn what_a_start_would_use_stays_until_it_was_unused_for_long() {
        let day = Duration::from_secs(86_400);
        let told = |state, age| {
            let (file, now) = file(state, age);
            reason(&file, 30 * day, now)
        };
        assert_eq!(told(KeptState::Current, 29 * day), None);
        assert_eq!(told(KeptState::Current, 31 * day).as_deref(), Some("not used for 31 days"));
        for state in [KeptState::Gone, KeptState::Stale, KeptState::Unreadable, KeptState::Unfinished] {
            assert!(told(state, Duration::ZERO).is_some(), "{state:?}");
        }
        let (file, _) = file(KeptState::Current, day);
        assert_eq!(reason(&file, 30 * day, SystemTime::UNIX_EPOCH - day), None, "a clock that was set back");
    }
}

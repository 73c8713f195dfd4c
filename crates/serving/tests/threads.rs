//! Threads that compute, whatever the number of models.

#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use base::{Bytes, SystemClock};
use models::checkpoint::GenerationDefaults;
use protocol::Backend;
use serving::{LoadFormat, Local, LocalConfig, ModelSource};
use std::path::Path;
use std::sync::Arc;

/// Threads of this process that belong to a pool.
fn pooled() -> usize {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let names = tasks.filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
    names.filter(|name| name.starts_with("kernels-")).count()
}

#[test]
fn several_models_compute_with_the_threads_of_one() {
    let config = LocalConfig { threads: Some(3), kv_memory: Some(Bytes(64 << 20)), ..LocalConfig::default() };
    let local = Local::new(config, Arc::new(SystemClock::default())).unwrap();
    // One of three is the thread of whichever engine asks; a thread names itself once it runs.
    while pooled() < 2 {
        std::thread::yield_now();
    }
    for name in ["llama", "qwen2"] {
        let source = ModelSource {
            id: name.into(),
            aliases: Vec::new(),
            path: Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name),
            format: LoadFormat::AsStored,
            price: None,
            description: String::new(),
            defaults: GenerationDefaults::default(),
        };
        local.load(source, &mut |_, _| ()).unwrap();
    }
    assert_eq!((local.models().len(), pooled()), (2, 2));
}

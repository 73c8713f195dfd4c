//! Any bytes as the weights of a folder.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use models::Checkpoint;
use tempfile::TempDir;

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| {
    let folder = tempfile::tempdir().expect("a folder can be made");
    std::fs::write(folder.path().join("config.json"), r#"{"model_type":"llama"}"#)
        .expect("it can be written");
    folder
});

fuzz_target!(|bytes: &[u8]| {
    std::fs::write(FOLDER.path().join("model.safetensors"), bytes).expect("it can be written");
    let Ok(checkpoint) = Checkpoint::open(FOLDER.path()) else { return };
    for name in checkpoint.tensor_names() {
        if let Ok(tensor) = checkpoint.tensor(name) {
            assert_eq!(tensor.bytes.len() as u64, tensor.elements() * tensor.dtype.block_bytes() as u64);
        }
    }
    let _ = (checkpoint.summary(), checkpoint.verify());
});

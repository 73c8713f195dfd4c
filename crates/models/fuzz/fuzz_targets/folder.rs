//! Any bytes as the JSON files of a folder; the first byte says which one.
#![no_main]

use std::fs;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use models::Checkpoint;
use tempfile::TempDir;

/// A safetensors file with the tensor `a`.
const WEIGHTS: &[u8] =
    b"\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}  \0\0\0\0";

const FILES: [&str; 4] =
    ["config.json", "generation_config.json", "tokenizer_config.json", "model.safetensors.index.json"];

static FOLDER: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("a folder can be made"));

fuzz_target!(|bytes: &[u8]| {
    let Some((which, bytes)) = bytes.split_first() else { return };
    let which = usize::from(*which) % FILES.len();
    let folder = FOLDER.path();
    let write = |name: &str, bytes: &[u8]| fs::write(folder.join(name), bytes).expect("it can be written");
    for name in FILES {
        let _ = fs::remove_file(folder.join(name));
    }
    let _ = fs::remove_file(folder.join("model.safetensors"));
    write("config.json", br#"{"model_type":"llama"}"#);
    write(if which == 3 { "one.safetensors" } else { "model.safetensors" }, WEIGHTS);
    write(FILES[which], bytes);
    let Ok(checkpoint) = Checkpoint::open(folder) else { return };
    let _ = (checkpoint.summary(), checkpoint.generation_defaults(), checkpoint.chat_template());
});

//! Any bytes as a GGUF file: opened, and where that goes well, read to the last value.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;
use models::checkpoint::Gguf;

fuzz_target!(|bytes: &[u8]| {
    let Ok(gguf) = Gguf::from_memory(Path::new("fuzz.gguf"), bytes.to_vec()) else { return };
    for name in gguf.tensor_names() {
        let tensor = gguf.tensor(name).expect("a listed tensor is there");
        let row = tensor.shape.last().and_then(|cols| tensor.dtype.row_bytes(*cols)).expect("whole blocks");
        let rows: usize = tensor.shape[..tensor.shape.len() - 1].iter().product();
        assert_eq!(tensor.bytes.len(), rows * row);
    }
    for key in gguf.keys() {
        let _ = (gguf.u32(key), gguf.f32(key), gguf.bool(key), gguf.str(key));
        let _ = (gguf.u32s(key), gguf.f32s(key), gguf.bools(key), gguf.strs(key));
    }
    let _ = gguf.vocabulary();
});

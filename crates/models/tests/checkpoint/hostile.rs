//! No bytes, however made, panic a reader or make it hold more than a small multiple of them.

use std::path::Path;

use models::Checkpoint;
use models::checkpoint::Gguf;
use proptest::prelude::*;

use crate::memory::most_held;
use crate::writer::{GgufWriter, array, float_tensors, folder, small_gguf, string, write};

/// Bytes held for each byte of a file: an entry of 14 bytes costs a table entry and its hash, and the
/// table is moved when it grows.
const HELD_PER_BYTE: usize = 24;
/// Bytes held whatever the file: error texts, paths, first tables.
const HELD_ALWAYS: usize = 16 << 10;

/// Opens a GGUF file and, where that goes well, reads everything in it.
fn exercise(bytes: Vec<u8>) {
    let len = bytes.len();
    let (gguf, held) = most_held(|| Gguf::from_memory(Path::new("hostile.gguf"), bytes));
    assert!(held <= HELD_ALWAYS + HELD_PER_BYTE * len, "{held} bytes held for a file of {len}");
    let Ok(gguf) = gguf else { return };
    for name in gguf.tensor_names() {
        let tensor = gguf.tensor(name).unwrap();
        let row = tensor.dtype.row_bytes(*tensor.shape.last().unwrap()).unwrap();
        let rows: usize = tensor.shape[..tensor.shape.len() - 1].iter().product();
        assert_eq!(tensor.bytes.len(), rows * row);
    }
    for key in gguf.keys() {
        let _ = (gguf.u32(key), gguf.f32(key), gguf.bool(key), gguf.str(key));
        let _ = (gguf.u32s(key), gguf.f32s(key), gguf.bools(key), gguf.strs(key));
    }
    let _ = gguf.vocabulary();
}

/// The same for a file of weights in a folder.
fn exercise_safetensors(bytes: &[u8]) {
    let folder = folder(&[("model.safetensors", bytes)]);
    let (checkpoint, held) = most_held(|| Checkpoint::open(folder.path()));
    assert!(held <= HELD_ALWAYS + HELD_PER_BYTE * bytes.len(), "{held} bytes held for {}", bytes.len());
    let Ok(checkpoint) = checkpoint else { return };
    for name in checkpoint.tensor_names() {
        if let Ok(tensor) = checkpoint.tensor(name) {
            let size = tensor.dtype.block_bytes() as u64;
            assert_eq!(tensor.bytes.len() as u64, size * tensor.elements());
        }
    }
    checkpoint.summary().unwrap();
}

/// One change to a file.
#[derive(Clone, Debug)]
enum Change {
    Flip { at: usize, mask: u8 },
    Number { at: usize, value: u64 },
    Cut { at: usize },
    Remove { at: usize, len: usize },
    Splice { from: usize, len: usize, to: usize },
}

fn changes() -> impl Strategy<Value = Vec<Change>> {
    let edge = prop_oneof![
        Just(0u64),
        Just(1),
        Just(u64::MAX),
        Just(1 << 63),
        Just(u64::from(u32::MAX)),
        any::<u64>(),
        0..100u64,
    ];
    let change = prop_oneof![
        (any::<usize>(), 1..=u8::MAX).prop_map(|(at, mask)| Change::Flip { at, mask }),
        (any::<usize>(), edge).prop_map(|(at, value)| Change::Number { at, value }),
        any::<usize>().prop_map(|at| Change::Cut { at }),
        (any::<usize>(), 1..64usize).prop_map(|(at, len)| Change::Remove { at, len }),
        (any::<usize>(), 1..256usize, any::<usize>()).prop_map(|(from, len, to)| Change::Splice {
            from,
            len,
            to
        }),
    ];
    prop::collection::vec(change, 1..5)
}

fn apply(mut file: Vec<u8>, changes: &[Change]) -> Vec<u8> {
    for change in changes {
        if file.is_empty() {
            break;
        }
        let len = file.len();
        match *change {
            Change::Flip { at, mask } => file[at % len] ^= mask,
            Change::Number { at, value } => {
                let at = at % len;
                let end = (at + 8).min(len);
                file[at..end].copy_from_slice(&value.to_le_bytes()[..end - at]);
            }
            Change::Cut { at } => file.truncate(at % len),
            Change::Remove { at, len: removed } => {
                let at = at % len;
                file.drain(at..(at + removed).min(len));
            }
            Change::Splice { from, len: copied, to } => {
                let from = from % len;
                let piece = file[from..(from + copied).min(len)].to_vec();
                let to = to % len;
                file.splice(to..to, piece);
            }
        }
    }
    file
}

/// A metadata value's bytes, right or nearly so.
fn value() -> impl Strategy<Value = (u32, Vec<u8>)> {
    let scalar = (0..14u32, prop::collection::vec(any::<u8>(), 0..9));
    let text = prop::collection::vec(any::<u8>(), 0..20).prop_map(|text| (8, string(&text)));
    let list = (0..14u32, 0..6u64, prop::collection::vec(any::<u8>(), 0..48))
        .prop_map(|(element, len, bytes)| (9, array(element, len, &bytes)));
    let texts = prop::collection::vec(prop::collection::vec(any::<u8>(), 0..5), 0..6).prop_map(|texts| {
        let elements: Vec<u8> = texts.iter().flat_map(|text| string(text)).collect();
        (9, array(8, texts.len() as u64, &elements))
    });
    prop_oneof![scalar, text, list, texts]
}

fn key() -> impl Strategy<Value = String> {
    prop_oneof![
        Just("general.alignment".to_owned()),
        Just("general.architecture".to_owned()),
        Just("split.count".to_owned()),
        Just("tokenizer.ggml.tokens".to_owned()),
        Just("tokenizer.ggml.model".to_owned()),
        Just("tokenizer.ggml.scores".to_owned()),
        Just("tokenizer.ggml.eos_token_id".to_owned()),
        "[a-z]{0,3}",
    ]
}

fn structured() -> impl Strategy<Value = GgufWriter> {
    let dims = prop::collection::vec(prop_oneof![1..5u64, Just(32), Just(256), any::<u64>()], 0..6);
    let type_id = prop_oneof![Just(0u32), 0..32u32, any::<u32>()];
    let offset = prop::option::of(prop_oneof![any::<u64>(), (0..20u64).prop_map(|n| n * 32)]);
    let data = prop::collection::vec(any::<u8>(), 0..300);
    let tensor = ("[a-z]{0,3}", dims, type_id, data, offset);
    let count = || prop::option::weighted(0.1, any::<u64>());
    let entries = prop::collection::vec((key(), value()), 0..6);
    (entries, prop::collection::vec(tensor, 0..5), count(), count()).prop_map(
        |(entries, tensors, claimed_entries, claimed_tensors)| {
            let mut writer = GgufWriter { claimed_entries, claimed_tensors, ..GgufWriter::default() };
            for (key, (type_id, bytes)) in entries {
                writer = writer.raw(&key, type_id, &bytes);
            }
            for (name, dims, type_id, data, offset) in tensors {
                writer = writer.tensor(&name, &dims, type_id, &data);
                writer.tensors.last_mut().expect("one was just added").claimed_offset = offset;
            }
            writer
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        exercise([&b"GGUF\x03\0\0\0"[..], &bytes].concat());
        exercise(bytes);
    }

    #[test]
    fn a_changed_file_never_panics(changes in changes()) {
        exercise(apply(small_gguf().bytes(), &changes));
    }

    #[test]
    fn structured_nonsense_never_panics(writer in structured()) {
        exercise(writer.bytes());
    }

    #[test]
    fn what_is_written_rightly_is_read_back(
        texts in prop::collection::vec(".{0,8}", 0..20),
        floats in prop::collection::vec(-1e6f32..1e6, 0..20),
        number in any::<u32>(),
        rows in 1..4u64,
        data in prop::collection::vec(any::<u8>(), 3 * 64),
    ) {
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let data = &data[..rows as usize * 64];
        let bytes = GgufWriter::default()
            .strs("texts", &texts)
            .f32s("floats", &floats)
            .u32("number", number)
            .tensor("first", &[16, rows], 0, data)
            .tensor("second", &[32, rows], 1, data)
            .bytes();
        let gguf = Gguf::from_memory(Path::new("right.gguf"), bytes).unwrap();
        prop_assert_eq!(gguf.strs("texts").unwrap(), texts);
        prop_assert_eq!(gguf.f32s("floats").unwrap(), floats);
        prop_assert_eq!(gguf.u32("number").unwrap(), number);
        for (name, cols) in [("first", 16), ("second", 32)] {
            let tensor = gguf.tensor(name).unwrap();
            prop_assert_eq!(tensor.shape, vec![rows as usize, cols]);
            prop_assert_eq!(tensor.bytes, data);
        }
    }
}

proptest! {
    // Each case writes a file.
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_changed_safetensors_file_never_panics(changes in changes()) {
        exercise_safetensors(&apply(float_tensors(&[("a", &[2, 3]), ("b", &[4]), ("c", &[1, 1, 2])]), &changes));
    }

    #[test]
    fn a_changed_index_never_panics(changes in changes()) {
        let index = br#"{"weight_map":{"a":"one.safetensors","b":"two.safetensors"}}"#.to_vec();
        let folder = folder(&[("one.safetensors", &float_tensors(&[("a", &[2, 3])]))]);
        write(folder.path(), "two.safetensors", &float_tensors(&[("b", &[4])]));
        write(folder.path(), "model.safetensors.index.json", &apply(index, &changes));
        let _ = Checkpoint::open(folder.path()).map(|checkpoint| checkpoint.tensor_names().count());
    }
}

#[test]
fn a_header_full_of_smallest_entries_is_held_in_bounds() {
    let mut writer = GgufWriter::default();
    for i in 0..50_000 {
        writer = writer.raw(&format!("{i:x}"), 0, &[1]);
    }
    exercise(writer.bytes());
    let mut writer = GgufWriter::default();
    for i in 0..20_000 {
        writer = writer.tensor(&format!("{i:x}"), &[1], 0, &[0; 4]);
    }
    exercise(writer.bytes());
    // Empty strings are the elements with the least bytes.
    let elements = vec![0; 8 * 100_000];
    exercise(GgufWriter::default().raw("list", 9, &array(8, 100_000, &elements)).bytes());
    exercise(GgufWriter::default().raw("list", 9, &array(9, 60_000, &[0; 12 * 60_000])).bytes());
}

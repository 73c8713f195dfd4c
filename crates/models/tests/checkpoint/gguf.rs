//! GGUF: what is read, and what is refused with which words.

use std::path::Path;

use device::DType;
use models::checkpoint::{Checkpoint, Gguf, Value};

use crate::writer::{GgufWriter, array, small_gguf, string};

fn open(writer: &GgufWriter) -> Gguf {
    Gguf::from_memory(Path::new("test.gguf"), writer.bytes()).unwrap()
}

#[track_caller]
fn refused(bytes: Vec<u8>, expected: &str) {
    match Gguf::from_memory(Path::new("test.gguf"), bytes) {
        Ok(_) => panic!("accepted, expected {expected:?}"),
        Err(e) => {
            let text = e.to_string();
            assert!(text.starts_with("test.gguf: ") && text.contains(expected), "{text:?} for {expected:?}");
        }
    }
}

// === What is read

#[test]
fn what_was_written_is_read_back() {
    for version in [2, 3] {
        let gguf = open(&GgufWriter { version, ..small_gguf() });
        assert_eq!(gguf.architecture().unwrap(), "llama");
        assert_eq!(gguf.u32("llama.context_length").unwrap(), 2048);
        assert_eq!(gguf.f32("llama.rope.freq_base").unwrap(), 10_000.0);
        assert!(!gguf.bool("tokenizer.ggml.add_bos_token").unwrap());
        assert_eq!(gguf.strs("tokenizer.ggml.merges").unwrap(), ["a b"]);
        assert_eq!(gguf.f32s("tokenizer.ggml.scores").unwrap(), [0.0, -1.0, -2.0, 0.0]);
        assert_eq!(gguf.chat_template(), Some("{{ messages }}"));
        let names: Vec<_> = gguf.tensor_names().collect();
        assert_eq!(names, ["token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight"]);
        let tensor = gguf.tensor("blk.0.attn_q.weight").unwrap();
        assert_eq!((tensor.shape, tensor.dtype, tensor.bytes), (vec![2, 32], DType::Q4_0, &[1; 36][..]));
        let norm = gguf.tensor("output_norm.weight").unwrap();
        assert_eq!(norm.bytes[4..8], 1f32.to_le_bytes());
        gguf.verify().unwrap();
    }
}

#[test]
fn integers_of_every_width_are_read_as_one_kind() {
    let gguf = open(
        &GgufWriter::default()
            .raw("u8", 0, &[200])
            .raw("i8", 1, &[0x80])
            .raw("u16", 2, &60_000u16.to_le_bytes())
            .raw("i16", 3, &(-2i16).to_le_bytes())
            .raw("i32", 5, &7i32.to_le_bytes())
            .raw("u64", 10, &(1u64 << 40).to_le_bytes())
            .raw("i64", 11, &9i64.to_le_bytes())
            .raw("f64", 12, &0.5f64.to_le_bytes()),
    );
    assert_eq!(gguf.u32("u8").unwrap(), 200);
    assert_eq!(gguf.get("i8"), Some(&Value::Signed(-128)));
    assert_eq!(gguf.u32("u16").unwrap(), 60_000);
    assert_eq!(gguf.u32("i32").unwrap(), 7);
    assert_eq!(gguf.u32("i64").unwrap(), 9);
    assert_eq!(gguf.f32("f64").unwrap(), 0.5);
    assert!(gguf.u32("i16").unwrap_err().to_string().contains("is -2: out of range"));
    assert!(gguf.u32("u64").unwrap_err().to_string().contains("is 1099511627776: out of range"));
}

#[test]
fn the_vocabulary_is_borrowed_as_it_stands() {
    let writer = small_gguf();
    let gguf = open(&writer);
    let vocabulary = gguf.vocabulary().unwrap();
    assert_eq!(vocabulary.model, "gpt2");
    assert_eq!(vocabulary.pre, Some("smollm"));
    assert_eq!(vocabulary.tokens, [&b"a"[..], b"b", b"ab", b"</s>"]);
    assert_eq!(vocabulary.types, [1, 1, 1, 3]);
    assert_eq!(vocabulary.merges, ["a b"]);
    assert_eq!((vocabulary.bos, vocabulary.eos), (None, Some(3)));
    assert_eq!((vocabulary.add_bos, vocabulary.add_eos), (Some(false), None));
}

#[test]
fn any_alignment_of_the_format_is_read() {
    for alignment in [8, 64, 4096] {
        let mut writer = small_gguf().u32("general.alignment", alignment);
        writer.alignment = alignment as usize;
        assert_eq!(open(&writer).tensor("blk.0.attn_q.weight").unwrap().bytes, [1; 36]);
    }
}

#[test]
fn every_weight_format_has_its_size() {
    for (id, dtype) in [
        (0, DType::F32),
        (1, DType::F16),
        (2, DType::Q4_0),
        (3, DType::Q4_1),
        (6, DType::Q5_0),
        (7, DType::Q5_1),
        (8, DType::Q8_0),
        (10, DType::Q2K),
        (11, DType::Q3K),
        (12, DType::Q4K),
        (13, DType::Q5K),
        (14, DType::Q6K),
        (20, DType::Iq4Nl),
        (30, DType::Bf16),
    ] {
        let data = vec![0; 3 * dtype.row_bytes(512).unwrap()];
        let gguf = open(&GgufWriter::default().tensor("w", &[512, 3], id, &data));
        let tensor = gguf.tensor("w").unwrap();
        assert_eq!((tensor.dtype, tensor.bytes.len()), (dtype, data.len()));
    }
}

#[test]
fn a_file_with_metadata_alone_is_read() {
    let gguf = open(&GgufWriter::default().str("general.architecture", "llama"));
    assert_eq!(gguf.tensor_names().count(), 0);
    assert_eq!(gguf.keys().collect::<Vec<_>>(), ["general.architecture"]);
}

#[test]
fn a_tensor_may_have_four_dimensions() {
    let gguf = open(&GgufWriter::default().tensor("w", &[2, 3, 4, 5], 0, &[0; 480]));
    let tensor = gguf.tensor("w").unwrap();
    assert_eq!(tensor.shape, [5, 4, 3, 2]);
    assert_eq!(tensor.elements(), 120);
}

#[test]
fn the_summary_counts_what_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("any name");
    std::fs::write(&path, small_gguf().bytes()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let summary = checkpoint.summary().unwrap();
    assert_eq!(summary.architecture, "llama");
    assert_eq!(summary.parameters, 128 + 32 + 64);
    assert_eq!(summary.context, Some(base::Tokens(2048)));
    assert_eq!(summary.licence.as_deref(), Some("apache-2.0"));
    assert!(summary.has_chat_template);
    let formats: Vec<_> = summary.formats.iter().map(|share| (&*share.format, share.tensors)).collect();
    assert_eq!(formats, [("Q8_0", 1), ("Q4_0", 1), ("F32", 1)]);
    let defaults = checkpoint.generation_defaults().unwrap();
    assert_eq!((defaults.temperature, defaults.end_tokens), (Some(0.7), vec![3]));
}

// === What is refused

#[test]
fn other_versions_and_byte_orders_are_refused() {
    refused(b"GGJT".to_vec(), "does not begin with GGUF");
    refused(b"GG".to_vec(), "the file ends inside the header");
    refused(GgufWriter { version: 1, ..small_gguf() }.bytes(), "GGUF version 1 is not read");
    refused(GgufWriter { version: 4, ..small_gguf() }.bytes(), "GGUF version 4 is not read");
    refused(GgufWriter { version: 0, ..small_gguf() }.bytes(), "GGUF version 0 is not read");
    refused(GgufWriter { version: 3 << 24, ..small_gguf() }.bytes(), "big-endian");
}

#[test]
fn counts_beyond_the_file_are_refused() {
    for count in [1 << 20, u64::MAX] {
        let writer = GgufWriter { claimed_entries: Some(count), ..small_gguf() };
        refused(writer.bytes(), &format!("claims {count} metadata entries"));
        let writer = GgufWriter { claimed_tensors: Some(count), ..small_gguf() };
        refused(writer.bytes(), &format!("claims {count} tensors"));
    }
}

#[test]
fn every_truncation_is_refused() {
    let whole = small_gguf().bytes();
    // The last tensor's padding may go, nothing else.
    for len in 0..whole.len() - 28 {
        assert!(Gguf::from_memory(Path::new("test.gguf"), whole[..len].to_vec()).is_err(), "{len}");
    }
}

#[test]
fn strings_past_the_end_are_refused() {
    for len in [1000, u64::MAX, u64::MAX - 7] {
        let writer = GgufWriter::default().raw("text", 8, &len.to_le_bytes());
        refused(writer.bytes(), &format!("metadata key \"text\": needs {len} bytes where 0 are left"));
        let mut elements = string(b"first");
        elements.extend(len.to_le_bytes());
        let writer = GgufWriter::default().raw("list", 9, &array(8, 2, &elements));
        refused(writer.bytes(), "metadata key \"list\": string 1 of the array: needs");
    }
}

#[test]
fn arrays_past_the_end_are_refused() {
    for len in [100, u64::MAX, 1 << 61] {
        for element in [0, 4, 8, 9, 12] {
            let writer = GgufWriter::default().raw("list", 9, &array(element, len, &[0; 16]));
            refused(writer.bytes(), &format!("metadata key \"list\": claims {len} elements"));
        }
    }
}

#[test]
fn deeply_nested_arrays_are_refused() {
    let mut nested = array(0, 1, &[1]);
    for _ in 0..3 {
        nested = array(9, 1, &nested);
    }
    open(&GgufWriter::default().raw("nested", 9, &nested));
    for _ in 0..50_000 {
        let mut outer = array(9, 1, &[]);
        outer.append(&mut nested);
        nested = outer;
        if nested.len() > 2000 {
            break;
        }
    }
    refused(GgufWriter::default().raw("nested", 9, &nested).bytes(), "nests arrays deeper than 4");
}

#[test]
fn what_is_there_twice_is_refused() {
    refused(
        small_gguf().u32("general.license", 1).bytes(),
        "metadata key \"general.license\": is there twice",
    );
    let writer = small_gguf().tensor("output_norm.weight", &[1], 0, &[0; 4]);
    refused(writer.bytes(), "tensor \"output_norm.weight\": is there twice");
}

#[test]
fn unknown_types_are_refused() {
    refused(GgufWriter::default().raw("key", 13, &[0; 8]).bytes(), "\"key\": has the unknown type 13");
    let writer = GgufWriter::default().raw("key", 9, &array(77, 1, &[0; 8]));
    refused(writer.bytes(), "\"key\": has the unknown type 77");
    let tensor = |id| GgufWriter::default().tensor("w", &[256], id, &[0; 512]).bytes();
    refused(tensor(4), "tensor \"w\": has the unknown type 4");
    refused(tensor(u32::MAX), "has the unknown type 4294967295");
    refused(tensor(17), "has the type IQ2_XS, which is not read");
}

#[test]
fn broken_values_are_refused() {
    refused(GgufWriter::default().raw("flag", 7, &[2]).bytes(), "is a bool with the value 2");
    refused(GgufWriter::default().raw("text", 8, &string(&[0xff])).bytes(), "\"text\": is not UTF-8");
    refused(GgufWriter::default().u32("", 1).bytes(), "key of metadata entry 0: is empty");
    let mut writer = GgufWriter::default();
    writer.entries.push([string(&[0xc3]), vec![0; 5]].concat());
    refused(writer.bytes(), "key of metadata entry 0: is not UTF-8");
    let long = "k".repeat(65_536);
    refused(GgufWriter::default().u32(&long, 1).bytes(), "has 65536 bytes, more than 65535");
    refused(GgufWriter::default().u32("tokenizer.chat_template", 1).bytes(), "expected a string");
}

#[test]
fn broken_alignments_are_refused() {
    for alignment in [0, 1, 4, 24, 1 << 21, u32::MAX] {
        let writer = small_gguf().u32("general.alignment", alignment);
        refused(writer.bytes(), "\"general.alignment\": is");
    }
    refused(small_gguf().str("general.alignment", "32").bytes(), "\"general.alignment\": is a string");
}

#[test]
fn impossible_shapes_are_refused() {
    let tensor = |dims: &[u64]| GgufWriter::default().tensor("w", dims, 0, &[0; 64]).bytes();
    refused(tensor(&[]), "tensor \"w\": has 0 dimensions");
    refused(tensor(&[1; 5]), "has 5 dimensions");
    refused(tensor(&[4, 0]), "has a dimension of 0");
    refused(tensor(&[1 << 62, 4]), "is too large");
    refused(tensor(&[1 << 20, 1 << 20, 1 << 20, 1 << 20]), "is too large");
    refused(tensor(&[u64::MAX]), "is too large");
    refused(tensor(&[1 << 40]), "past the end of the file");
    let writer = GgufWriter::default().tensor("w", &[33], 8, &[0; 68]);
    refused(writer.bytes(), "rows of 33 elements, which are not whole blocks of 32 (Q8_0)");
}

#[test]
fn tensors_that_are_misplaced_are_refused() {
    let at = |offset| {
        let mut writer = small_gguf();
        writer.tensors[1].claimed_offset = Some(offset);
        writer.bytes()
    };
    refused(at(161), "tensor \"output_norm.weight\": begins at 161, not at a multiple of 32");
    refused(at(0), "lies over tensor");
    refused(at(96), "lies over tensor \"token_embd.weight\"");
    for offset in [1 << 20, u64::MAX - 31, 1 << 63] {
        refused(at(offset), &format!("needs 128 bytes at {offset} of the tensor data, past the end"));
    }
}

#[test]
fn a_part_of_a_model_is_refused() {
    let writer = small_gguf().raw("split.count", 2, &3u16.to_le_bytes());
    refused(writer.bytes(), "one of 3 parts");
    open(&small_gguf().raw("split.count", 2, &1u16.to_le_bytes()));
}

#[test]
fn hostile_names_are_shown_short_and_escaped() {
    let name = format!("\u{1b}[31m\n{}", "x".repeat(10_000));
    let bytes = GgufWriter::default().tensor(&name, &[0], 0, &[]).bytes();
    let text = Gguf::from_memory(Path::new("test.gguf"), bytes).unwrap_err().to_string();
    assert!(text.len() < 300 && !text.contains('\u{1b}') && !text.contains('\n'), "{text}");
}

#[test]
fn wrong_types_and_missing_things_are_named() {
    #[track_caller]
    fn check<T: std::fmt::Debug>(result: Result<T, models::CheckpointError>, expected: &str) {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(expected), "{text:?} for {expected:?}");
    }
    let gguf = open(
        &small_gguf()
            .f32("nan", f32::NAN)
            .f32("infinite", f32::INFINITY)
            .f32s("nans", &[0.0, f32::NAN])
            .i32s("signed", &[1, -1])
            .raw("bytes", 9, &array(8, 1, &string(&[0xff]))),
    );
    check(gguf.u32("llama.block_count"), "test.gguf has no metadata key \"llama.block_count\"");
    check(gguf.u32("general.license"), "\"general.license\": expected an integer, found a string");
    check(gguf.str("llama.context_length"), "expected a string, found an integer");
    check(gguf.f32("nan"), "\"nan\": is NaN: out of range");
    check(gguf.f32("infinite"), "is inf: out of range");
    check(gguf.f32s("nans"), "\"nans\": element 1 is not a number");
    check(gguf.u32s("signed"), "\"signed\": element 1 is -1: out of range");
    check(gguf.strs("signed"), "expected an array of strings, found one of i32");
    check(gguf.strs("bytes"), "\"bytes\": string 0 is not UTF-8");
    check(gguf.tensor("output.weight"), "test.gguf has no tensor \"output.weight\"");
}

#[test]
fn broken_vocabularies_are_refused() {
    #[track_caller]
    fn check(writer: &GgufWriter, expected: &str) {
        let text = open(writer).vocabulary().unwrap_err().to_string();
        assert!(text.contains(expected), "{text:?} for {expected:?}");
    }
    let base = || GgufWriter::default().str("tokenizer.ggml.model", "gpt2");
    let tokens = || base().strs("tokenizer.ggml.tokens", &["a", "b"]);
    check(&base(), "no metadata key \"tokenizer.ggml.tokens\"");
    check(&base().strs("tokenizer.ggml.tokens", &[]), "has no tokens");
    check(&base().i32s("tokenizer.ggml.tokens", &[1]), "expected an array of strings");
    check(&tokens().f32s("tokenizer.ggml.scores", &[1.0]), "has 1 elements for 2 tokens");
    check(&tokens().i32s("tokenizer.ggml.token_type", &[1; 3]), "has 3 elements for 2 tokens");
    check(&tokens().f32s("tokenizer.ggml.scores", &[1.0, f32::NAN]), "is not a number");
    check(&tokens().u32("tokenizer.ggml.eos_token_id", 2), "is 2, but there are 2 tokens");
}

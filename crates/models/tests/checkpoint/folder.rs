//! Hugging Face folders: weights in one file or in shards, side files, and what is refused.

use std::os::unix::fs::symlink;
use std::path::Path;

use models::checkpoint::HuggingFace;
use models::{Checkpoint, CheckpointError};

use crate::writer::{float_tensors, folder, safetensors, write};

/// Name and content.
type File<'a> = (&'a str, &'a [u8]);

#[track_caller]
fn assert_text(error: &CheckpointError, expected: &str) {
    let text = error.to_string();
    assert!(text.contains(expected), "{text:?} for {expected:?}");
}

/// Opening a folder with these files fails with this text.
#[track_caller]
fn refused(files: &[File], expected: &str) {
    let folder = folder(files);
    assert_text(&Checkpoint::open(folder.path()).expect_err(expected), expected);
}

fn weights() -> Vec<u8> {
    float_tensors(&[("a", &[2, 3]), ("b", &[4])])
}

fn open(files: &[File]) -> (tempfile::TempDir, Checkpoint) {
    let folder = folder(files);
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    (folder, checkpoint)
}

// === What is read

#[test]
fn one_file_of_weights_is_read_by_folder_or_by_name() {
    let (folder, checkpoint) = open(&[("model.safetensors", &weights())]);
    for checkpoint in [checkpoint, Checkpoint::open(&folder.path().join("model.safetensors")).unwrap()] {
        assert_eq!(checkpoint.tensor_names().collect::<Vec<_>>(), ["a", "b"]);
        let tensor = checkpoint.tensor("b").unwrap();
        assert_eq!((tensor.shape, tensor.bytes), (vec![4], &(24..40).collect::<Vec<u8>>()[..]));
        assert_text(&checkpoint.tensor("c").unwrap_err(), "has no tensor \"c\"");
        checkpoint.verify().unwrap();
    }
}

#[test]
fn shards_are_found_through_the_index() {
    let index =
        br#"{"metadata":{"total_size":40},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}}"#;
    let one = float_tensors(&[("a", &[2, 3]), ("not in the index", &[1])]);
    let two = float_tensors(&[("b", &[4])]);
    let (_folder, checkpoint) = open(&[
        ("model.safetensors.index.json", index),
        ("one.safetensors", &one),
        ("two.safetensors", &two),
    ]);
    assert_eq!(checkpoint.tensor_names().collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(checkpoint.tensor("b").unwrap().bytes[..2], [0, 1]);
    assert!(!checkpoint.has("not in the index"));
}

#[test]
fn links_into_a_neighbour_folder_are_followed() {
    let cache = tempfile::tempdir().unwrap();
    let snapshot = cache.path().join("snapshot");
    std::fs::create_dir(&snapshot).unwrap();
    write(cache.path(), "blob1", br#"{"model_type":"llama"}"#);
    write(cache.path(), "blob2", &weights());
    symlink("../blob1", snapshot.join("config.json")).unwrap();
    symlink("../blob2", snapshot.join("model.safetensors")).unwrap();
    assert!(Checkpoint::open(&snapshot).unwrap().has("a"));
}

#[test]
fn tensors_that_are_no_weights_are_refused_only_when_asked_for() {
    let header = r#"{"ids":{"dtype":"I64","shape":[1,2],"data_offsets":[0,16]},
        "scalar":{"dtype":"F32","shape":[],"data_offsets":[16,20]},
        "empty":{"dtype":"F16","shape":[0,4],"data_offsets":[20,20]},
        "new":{"dtype":"F4","shape":[3],"data_offsets":[20,22]},
        "deep":{"dtype":"BF16","shape":[1,1,1,1,1],"data_offsets":[22,24]},
        "w":{"dtype":"BF16","shape":[1],"data_offsets":[24,26]},"__metadata__":{"format":"pt"}}   "#;
    let (_folder, checkpoint) = open(&[("model.safetensors", &safetensors(header, 26))]);
    for (name, expected) in [
        ("ids", "tensor \"ids\": has the type \"I64\", which is not read"),
        ("scalar", "has 0 dimensions"),
        ("empty", "has no elements: [0, 4]"),
        ("new", "has the type \"F4\""),
        ("deep", "has 5 dimensions"),
    ] {
        assert_text(&checkpoint.tensor(name).unwrap_err(), expected);
    }
    assert_eq!(checkpoint.tensor("w").unwrap().bytes, [24, 25]);
    let summary = checkpoint.summary().unwrap();
    assert_eq!(summary.parameters, 2 + 1 + 3 + 1 + 1);
    assert_eq!(summary.size, base::Bytes(26));
}

#[test]
fn the_chat_template_is_found_in_its_places_in_order() {
    let weights = weights();
    let config: &[u8] = br#"{"chat_template":"from config","other":{"chat_template":1}}"#;
    let list: &[u8] =
        br#"{"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]}"#;
    let no_default: &[u8] = br#"{"chat_template":[{"name":"tool_use","template":"t"}]}"#;
    let cases: [(&[File], Option<&str>); 7] = [
        (&[], None),
        (&[("tokenizer_config.json", b"{}")], None),
        (&[("tokenizer_config.json", br#"{"chat_template":null}"#)], None),
        (&[("tokenizer_config.json", config)], Some("from config")),
        (&[("tokenizer_config.json", list)], Some("d")),
        (&[("tokenizer_config.json", config), ("chat_template.jinja", b"from file")], Some("from file")),
        (
            &[("tokenizer_config.json", no_default), ("chat_template.json", br#"{"chat_template":"j"}"#)],
            Some("j"),
        ),
    ];
    for (files, expected) in cases {
        let files = [&[("model.safetensors", &weights[..])], files].concat();
        assert_eq!(open(&files).1.chat_template().as_deref(), expected);
    }
}

#[test]
fn side_files_are_read_but_none_from_outside() {
    let outside = tempfile::tempdir().unwrap();
    write(outside.path(), "secret", b"secret");
    let (folder, checkpoint) = open(&[("model.safetensors", &weights()), ("tokenizer.json", b"{}")]);
    std::fs::create_dir(folder.path().join("1_Pooling")).unwrap();
    write(&folder.path().join("1_Pooling"), "config.json", b"[]");
    let Checkpoint::HuggingFace(model) = &checkpoint else { panic!("a folder") };
    assert_eq!(model.file("tokenizer.json").unwrap(), b"{}");
    assert_eq!(model.file("1_Pooling/config.json").unwrap(), b"[]");
    assert_eq!(model.file("missing"), None);
    assert_eq!(model.file("1_Pooling"), None);
    for name in ["../secret", "/etc/hostname", "1_Pooling/../../secret"] {
        assert_eq!(model.file(name), None, "{name}");
    }
    assert_eq!(model.config()["model_type"], "llama");
}

#[test]
fn generation_defaults_are_read_and_checked() {
    let weights = weights();
    let defaults = |json: &str| {
        let files = [("model.safetensors", &weights[..]), ("generation_config.json", json.as_bytes())];
        open(&files).1.generation_defaults()
    };
    let read = defaults(
        r#"{"do_sample":true,"temperature":0.6,"top_p":0.95,"top_k":20,"min_p":0,"eos_token_id":[7,9,7]}"#,
    )
    .unwrap();
    assert_eq!((read.sample, read.temperature, read.top_p), (Some(true), Some(0.6), Some(0.95)));
    assert_eq!((read.top_k, read.min_p, read.end_tokens), (Some(20), Some(0.0), vec![7, 9]));
    assert_eq!(defaults(r#"{"eos_token_id":3,"top_k":0,"temperature":null}"#).unwrap().end_tokens, [3]);
    for (json, expected) in [
        (r#"{"temperature":-1}"#, "\"temperature\": is -1, not at least 0"),
        (r#"{"temperature":"hot"}"#, "expected a number, found a string"),
        (r#"{"temperature":1e300}"#, "not at least 0"),
        (r#"{"top_p":1.5}"#, "\"top_p\": is 1.5, not above 0 and at most 1"),
        (r#"{"top_p":NaN}"#, "generation_config.json: header: expected value"),
        (r#"{"top_k":2.5}"#, "\"top_k\": is not a 32-bit integer"),
        (r#"{"do_sample":1}"#, "is not true or false"),
        (r#"{"eos_token_id":[-1]}"#, "is not a token id"),
        (r#"[]"#, "is not a JSON object"),
    ] {
        assert_text(&defaults(json).unwrap_err(), expected);
    }
}

#[test]
fn the_licence_is_read_from_the_model_card() {
    let weights = weights();
    let licence = |card: &str| {
        let (_folder, checkpoint) = open(&[("model.safetensors", &weights), ("README.md", card.as_bytes())]);
        checkpoint.summary().unwrap().licence
    };
    assert_eq!(licence("---\nlanguage: en\nlicense: apache-2.0\n---\ntext").as_deref(), Some("apache-2.0"));
    assert_eq!(licence("---\nlanguage: en\n---\nlicense: mit"), None);
    assert_eq!(licence("license: mit"), None);
}

// === What is refused

#[test]
fn paths_that_are_no_checkpoint_are_refused() {
    let empty = tempfile::tempdir().unwrap();
    let path = |name: &str| empty.path().join(name);
    let text = |path: &Path| Checkpoint::open(path).unwrap_err().to_string();
    assert!(text(empty.path()).contains("there is neither model.safetensors nor"));
    assert!(text(&path("missing.gguf")).contains("No such file"));
    write(empty.path(), "empty.gguf", b"");
    assert!(text(&path("empty.gguf")).contains("the file is empty"));
    write(empty.path(), "notes.txt", b"hello world");
    assert!(text(&path("notes.txt")).contains("neither begins with GGUF nor is named .safetensors"));
    write(empty.path(), "pytorch_model.bin", b"PK");
    assert!(text(empty.path()).contains("convert them to safetensors"));
    write(empty.path(), "model.safetensors", &weights());
    assert!(text(empty.path()).contains("there is no config.json"));
}

#[test]
fn cyclic_links_and_devices_are_refused_without_waiting() {
    let folder = folder(&[]);
    let path = |name: &str| folder.path().join(name);
    symlink("model.safetensors", path("model.safetensors")).unwrap();
    let error = Checkpoint::open(folder.path()).unwrap_err();
    assert!(matches!(error, CheckpointError::Io { .. }));
    assert_text(&error, "model.safetensors");
    symlink("/dev/zero", path("zero.gguf")).unwrap();
    assert_text(&Checkpoint::open(&path("zero.gguf")).unwrap_err(), "not a regular file");
    // A pipe without a writer would be waited for.
    assert!(std::process::Command::new("mkfifo").arg(path("pipe.gguf")).status().unwrap().success());
    assert_text(&Checkpoint::open(&path("pipe.gguf")).unwrap_err(), "not a regular file");
    std::fs::create_dir(path("folder.gguf")).unwrap();
    assert_text(&Checkpoint::open(&path("folder.gguf")).unwrap_err(), "is not a checkpoint");
}

#[test]
fn an_index_cannot_lead_out_of_the_folder() {
    for file in ["../model.safetensors", "/etc/passwd", "", ".", "..", "a/b", "a\\\\b", "C:x", "a\\u0000b"] {
        let index = format!(r#"{{"weight_map":{{"a":"{file}"}}}}"#);
        refused(&[("model.safetensors.index.json", index.as_bytes())], "tensor \"a\": lies in \"");
    }
}

#[test]
fn broken_indexes_are_refused() {
    let weights = weights();
    for (index, expected) in [
        ("", "EOF while parsing"),
        ("[]", "invalid length 0"),
        ("{}", "missing field `weight_map`"),
        (r#"{"weight_map":{}}"#, "names no tensors"),
        (r#"{"weight_map":[]}"#, "an object from tensor names to file names"),
        (r#"{"weight_map":{"a":1}}"#, "invalid type: integer"),
        (r#"{"weight_map":{"a":"x","a":"y"}}"#, "tensor \"a\" is there twice"),
        (r#"{"weight_map":{"a":"missing.safetensors"}}"#, "missing.safetensors: No such file"),
        (r#"{"weight_map":{"c":"x.safetensors"}}"#, "tensor \"c\": is not in \"x.safetensors\""),
    ] {
        refused(&[("model.safetensors.index.json", index.as_bytes()), ("x.safetensors", &weights)], expected);
    }
}

#[test]
fn broken_headers_are_refused() {
    let tensor = |rest: &str| format!(r#"{{"w":{{{rest}}}}}"#);
    for (header, data, expected) in [
        ("", 0, "EOF while parsing"),
        ("[]", 0, "an object from tensor names to their places"),
        ("{} x", 0, "trailing characters"),
        ("{}", 1, "1 bytes of the data belong to no tensor"),
        (r#"{"w":1}"#, 0, "tensor \"w\": invalid type: integer"),
        (&tensor(r#""dtype":"F32","shape":[1]"#), 4, "missing field `data_offsets`"),
        (&tensor(r#""dtype":3,"shape":[1],"data_offsets":[0,4]"#), 4, "invalid type: integer `3`"),
        (&tensor(r#""dtype":"F32","shape":[-1],"data_offsets":[0,4]"#), 4, "invalid value: integer `-1`"),
        (&tensor(r#""dtype":"F32","shape":[1.5],"data_offsets":[0,4]"#), 4, "invalid type: floating point"),
        (&tensor(r#""dtype":"F32","shape":[1],"data_offsets":[0,4,8]"#), 4, "tensor \"w\": "),
        (&tensor(r#""dtype":"F32","shape":[1],"data_offsets":[4,0]"#), 4, "lies at [4, 0) of 4 bytes"),
        (&tensor(r#""dtype":"F32","shape":[2],"data_offsets":[0,8]"#), 4, "lies at [0, 8) of 4 bytes"),
        (&tensor(r#""dtype":"F32","shape":[2],"data_offsets":[0,4]"#), 4, "needs 8 bytes for its shape"),
        (
            &tensor(r#""dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,4]"#),
            4,
            "needs too many bytes",
        ),
        (
            &tensor(r#""dtype":"F32","shape":[1],"data_offsets":[0,18446744073709551615]"#),
            4,
            "lies at [0, 18446744073709551615)",
        ),
        (
            r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#,
            4,
            "tensor \"w\" is there twice",
        ),
        (
            r#"{"v":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F16","shape":[2],"data_offsets":[2,6]}}"#,
            6,
            "tensor \"w\": lies over tensor \"v\"",
        ),
        (&format!("{{\"w\":{}", "[".repeat(100_000)), 0, "tensor \"w\""),
        (&format!("{{\"__metadata__\":{}", "[".repeat(100_000)), 0, "EOF while parsing"),
    ] {
        refused(&[("model.safetensors", &safetensors(header, data))], expected);
    }
}

#[test]
fn headers_longer_than_the_file_are_refused() {
    for (len, expected) in [
        (11u64, "claims 11 bytes, but 2 follow"),
        (99_999_999, "claims 99999999 bytes, but 2 follow"),
        (u64::MAX, "claims 18446744073709551615 bytes, more than 100000000"),
    ] {
        let file = [&len.to_le_bytes()[..], b"{}"].concat();
        refused(&[("model.safetensors", &file)], expected);
    }
    refused(&[("model.safetensors", b"1234567")], "the file has only 7 bytes");
}

#[test]
fn broken_side_files_are_refused_by_name() {
    let weights = weights();
    let deep = "[".repeat(100_000);
    let with = |name, bytes| [("model.safetensors", &weights[..]), (name, bytes)];
    refused(&with("config.json", b"[1]"), "config.json: header: is not a JSON object");
    refused(&with("config.json", b"{"), "config.json: header: EOF while parsing");
    refused(&with("config.json", &[b' '; (1 << 20) + 1]), "config.json: has more than 1048576 bytes");
    refused(&with("config.json", deep.as_bytes()), "recursion limit exceeded");
    refused(&with("tokenizer_config.json", b"{"), "tokenizer_config.json: header: EOF");
    refused(&with("tokenizer_config.json", br#"{"chat_template":1}"#), "expected a chat template or a list");
    refused(&with("chat_template.jinja", &[0xff]), "chat_template.jinja: header: is not UTF-8");
}

#[test]
fn a_relative_file_name_means_the_current_folder() {
    // There is no such file here; what matters is that the name alone is a path.
    let error = HuggingFace::open_file(Path::new("no such.safetensors")).unwrap_err();
    assert_text(&error, "cannot read no such.safetensors");
}

//! What the tests share: fixtures, a reader of GGUF metadata, and tokenizers by family.
//!
//! The GGUF reader stops where the tensors begin and trusts its file: it is a tool of the tests.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "test code outside of #[test] functions")]

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tokenizer::{GgufVocab, Tokenizer};

pub fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/tokenizers")
}

pub fn json(name: &str) -> Value {
    let path = fixtures().join(name);
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

pub fn corpus() -> Vec<String> {
    serde_json::from_value(json("corpus.json")).unwrap()
}

/// The folder of real models; says what is skipped where there is none.
pub fn model(name: &str, test: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("HEARTH_TEST_MODELS") else {
        println!("skipped: {test} (HEARTH_TEST_MODELS is not set)");
        return None;
    };
    let path = Path::new(&folder).join(name);
    if !path.exists() {
        println!("skipped: {test} (HEARTH_TEST_MODELS has no {name})");
        return None;
    }
    Some(path)
}

/// The tokenizer keys of a GGUF file, owned.
#[derive(Default)]
pub struct Metadata {
    texts: HashMap<String, String>,
    numbers: HashMap<String, i64>,
    strings: HashMap<String, Vec<Vec<u8>>>,
    floats: HashMap<String, Vec<f32>>,
    ints: HashMap<String, Vec<i32>>,
}

impl Metadata {
    pub fn read(path: &Path) -> Self {
        let mut file = Reader(BufReader::new(File::open(path).unwrap()));
        assert_eq!(&file.bytes(4), b"GGUF");
        file.u32();
        file.u64();
        let mut all = Self::default();
        for _ in 0..file.u64() {
            let key = String::from_utf8(file.string()).unwrap();
            let kind = file.u32();
            all.value(&mut file, key.trim_start_matches("tokenizer.ggml.").to_owned(), kind);
        }
        all
    }

    fn value(&mut self, file: &mut Reader, key: String, kind: u32) {
        match kind {
            8 => drop(self.texts.insert(key, String::from_utf8_lossy(&file.string()).into_owned())),
            9 => {
                let (kind, count) = (file.u32(), file.u64());
                match kind {
                    8 => drop(self.strings.insert(key, (0..count).map(|_| file.string()).collect())),
                    6 => drop(
                        self.floats.insert(key, (0..count).map(|_| f32::from_bits(file.u32())).collect()),
                    ),
                    5 => drop(self.ints.insert(key, (0..count).map(|_| file.u32() as i32).collect())),
                    kind => drop(file.bytes(width(kind) * count as usize)),
                }
            }
            kind => {
                let mut bytes = file.bytes(width(kind));
                bytes.resize(8, 0);
                self.numbers.insert(key, i64::from_le_bytes(bytes.try_into().unwrap()));
            }
        }
    }

    fn id(&self, key: &str) -> Option<u32> {
        self.numbers.get(&format!("{key}_token_id")).map(|id| *id as u32)
    }

    fn flag(&self, key: &str) -> Option<bool> {
        self.numbers.get(key).map(|flag| *flag != 0)
    }

    pub fn vocab(&self) -> GgufVocab<'_> {
        let merges = self.strings.get("merges").map(Vec::as_slice).unwrap_or_default();
        GgufVocab {
            model: &self.texts["model"],
            pre: self.texts.get("pre").map(String::as_str),
            tokens: self.strings["tokens"].iter().map(Vec::as_slice).collect(),
            scores: self.floats.get("scores").cloned().unwrap_or_default(),
            types: self.ints.get("token_type").cloned().unwrap_or_default(),
            merges: merges.iter().map(|merge| std::str::from_utf8(merge).unwrap()).collect(),
            bos: self.id("bos"),
            eos: self.id("eos"),
            eot: self.id("eot"),
            unk: self.id("unknown"),
            sep: self.id("seperator"),
            cls: self.id("cls"),
            pad: self.id("padding"),
            add_bos: self.flag("add_bos_token"),
            add_eos: self.flag("add_eos_token"),
            add_space_prefix: self.flag("add_space_prefix"),
        }
    }
}

fn width(kind: u32) -> usize {
    match kind {
        0 | 1 | 7 => 1,
        2 | 3 => 2,
        4..=6 => 4,
        10..=12 => 8,
        kind => panic!("value type {kind}"),
    }
}

struct Reader(BufReader<File>);

impl Reader {
    fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.bytes(4).try_into().unwrap())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.bytes(8).try_into().unwrap())
    }

    fn string(&mut self) -> Vec<u8> {
        let count = self.u64() as usize;
        self.bytes(count)
    }
}

pub fn gguf(path: &Path) -> Tokenizer {
    Tokenizer::from_gguf(Metadata::read(path).vocab()).unwrap()
}

/// A committed `tokenizer.json`.
pub fn tiny(name: &str) -> Tokenizer {
    let bytes = std::fs::read(fixtures().join(format!("tiny/{name}.json"))).unwrap();
    Tokenizer::from_json(&bytes, None).unwrap()
}

/// The committed byte-level vocabulary as a GGUF file of the family would hold it.
pub fn tiny_byte_level(pre: &str) -> Tokenizer {
    let file = json("tiny/byte-level.json");
    let mut tokens: Vec<(u32, String, i32)> = Vec::new();
    for (text, id) in file["model"]["vocab"].as_object().unwrap() {
        tokens.push((id.as_u64().unwrap() as u32, text.clone(), 1));
    }
    for token in file["added_tokens"].as_array().unwrap() {
        let kind = if token["special"].as_bool().unwrap() { 3 } else { 4 };
        tokens.push((token["id"].as_u64().unwrap() as u32, token["content"].as_str().unwrap().into(), kind));
    }
    tokens.sort();
    let merges: Vec<String> = file["model"]["merges"]
        .as_array()
        .unwrap()
        .iter()
        .map(|merge| format!("{} {}", merge[0].as_str().unwrap(), merge[1].as_str().unwrap()))
        .collect();
    Tokenizer::from_gguf(GgufVocab {
        model: "gpt2",
        pre: Some(pre),
        tokens: tokens.iter().map(|(_, text, _)| text.as_bytes()).collect(),
        types: tokens.iter().map(|(_, _, kind)| *kind).collect(),
        merges: merges.iter().map(String::as_str).collect(),
        eos: tokens.iter().find(|(_, text, _)| text == "<|endoftext|>").map(|(id, _, _)| *id),
        ..GgufVocab::default()
    })
    .unwrap()
}

/// A committed model of the sentencepiece package as a GGUF file would hold it.
pub fn tiny_sentencepiece(name: &str) -> Tokenizer {
    let file = json(&format!("tiny/{name}.json"));
    let tokens: Vec<String> = serde_json::from_value(file["tokens"].clone()).unwrap();
    let id = |key: &str| file[key].as_u64().map(|id| id as u32);
    Tokenizer::from_gguf(GgufVocab {
        model: "llama",
        tokens: tokens.iter().map(|text| text.as_bytes()).collect(),
        scores: serde_json::from_value(file["scores"].clone()).unwrap(),
        types: serde_json::from_value(file["types"].clone()).unwrap(),
        bos: id("bos"),
        eos: id("eos"),
        unk: id("unk"),
        add_space_prefix: file["add_space_prefix"].as_bool(),
        ..GgufVocab::default()
    })
    .unwrap()
}

//! Our tokens and texts are the reference's, on the corpus, for every family.

#![allow(clippy::unwrap_used, reason = "test code outside of #[test] functions")]

mod support;

use serde_json::Value;
use support::{corpus, gguf, json, model, tiny, tiny_byte_level, tiny_sentencepiece};
use tokenizer::{Specials, Tokenizer};

/// Holds a tokenizer against a golden file: ids of each text, and the texts that the ids decode to.
#[track_caller]
fn check(tokenizer: &Tokenizer, golden: &str) {
    let golden_file = json(&format!("golden/{golden}.json"));
    let ids: Vec<Vec<u32>> = serde_json::from_value(golden_file["ids"].clone()).unwrap();
    let corpus = corpus();
    assert_eq!(ids.len(), corpus.len(), "make.py was not run after a change of the corpus");
    let mut wrong = Vec::new();
    for (text, expected) in corpus.iter().zip(&ids) {
        let found = tokenizer.encode_ordinary(text);
        if found != *expected {
            wrong.push(format!("{text:?}\n   ours {found:?}\n  their {expected:?}"));
        }
    }
    if let Some(Value::Array(texts)) = golden_file.get("texts") {
        for (text, row) in texts.iter().zip(&ids) {
            let found = tokenizer.decode(row, Specials::Skip);
            if Some(found.as_str()) != text.as_str() {
                wrong.push(format!("decoding\n   ours {found:?}\n  their {text:?}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{golden}: {} differ\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn byte_level_families_equal_the_reference() {
    for pre in ["gpt-2", "smollm", "qwen2", "llama-bpe", "tekken", "gpt-4o", "deepseek-v3"] {
        check(&tiny_byte_level(pre), &format!("tiny-{pre}"));
    }
}

#[test]
fn a_byte_level_tokenizer_json_equals_the_reference() {
    check(&tiny("byte-level"), "tiny-gpt-2");
}

#[test]
fn a_llama_tokenizer_json_equals_the_reference() {
    check(&tiny("llama"), "tiny-llama");
}

#[test]
fn a_gemma_tokenizer_json_equals_the_reference() {
    check(&tiny("gemma"), "tiny-gemma");
}

#[test]
fn a_unigram_tokenizer_json_equals_the_reference() {
    check(&tiny("unigram"), "tiny-unigram");
}

#[test]
fn xlm_roberta_tokenizer_jsons_with_sentencepiece_s_rules_equal_the_reference() {
    for name in ["xlm-roberta", "xlm-roberta-new"] {
        check(&tiny(name), &format!("tiny-{name}"));
    }
}

#[test]
fn a_wordpiece_tokenizer_json_equals_the_reference() {
    check(&tiny("wordpiece"), "tiny-wordpiece");
}

#[test]
fn a_tokenizer_json_of_many_parts_equals_the_reference() {
    check(&tiny("mixed"), "tiny-mixed");
}

#[test]
fn sentencepiece_models_equal_the_reference() {
    for name in ["spm", "spm-no-prefix", "spm-unknown"] {
        check(&tiny_sentencepiece(name), &format!("tiny-{name}"));
    }
}

#[test]
fn smollm2_equals_the_reference() {
    if let Some(path) = model("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2_equals_the_reference") {
        check(&gguf(&path), "smollm2");
    }
}

#[test]
fn qwen2_equals_the_reference() {
    if let Some(path) = model("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "qwen2_equals_the_reference") {
        check(&gguf(&path), "qwen2");
    }
}

#[test]
fn gemma3_equals_the_reference() {
    if let Some(path) = model("gemma-3-270m-q4_k_m.gguf", "gemma3_equals_the_reference") {
        check(&gguf(&path), "gemma3");
    }
}

#[test]
fn minilm_equals_the_reference() {
    let Some(path) = model("all-MiniLM-L6-v2/tokenizer.json", "minilm_equals_the_reference") else { return };
    let tokenizer = Tokenizer::from_json(&std::fs::read(path).unwrap(), None).unwrap();
    check(&tokenizer, "minilm");
    assert_eq!(tokenizer.add_special(tokenizer.encode_ordinary("hello")), [101, 7592, 102]);
}

//! Files made to hurt are clear errors, texts made to hurt cost no more than their length.

#![allow(clippy::unwrap_used, reason = "test code outside of #[test] functions")]

mod support;

use support::{tiny, tiny_byte_level, tiny_sentencepiece};
use tokenizer::{Error, GgufVocab, Piece, Tokenizer};

#[track_caller]
fn refused(json: &str, expected: &str) {
    let error = Tokenizer::from_json(json.as_bytes(), None).unwrap_err().to_string();
    assert!(error.contains(expected), "{error:?} does not say {expected:?}");
}

/// A `tokenizer.json` around a BPE model, with more fields.
fn bpe(vocab: &str, merges: &str, more: &str) -> String {
    format!(r#"{{"model": {{"type": "BPE", "vocab": {vocab}, "merges": {merges}}}{more}}}"#)
}

#[test]
fn an_unknown_component_is_named() {
    let with = |part: &str, component: &str| bpe(r#"{"a": 0}"#, "[]", &format!(r#", "{part}": {component}"#));
    refused(&with("normalizer", r#"{"type": "Other"}"#), "normalizer `Other`");
    let charsmap = |map: &str| {
        with("normalizer", &format!(r#"{{"type": "Precompiled", "precompiled_charsmap": {map}}}"#))
    };
    refused(&charsmap("null"), "Precompiled without a text `precompiled_charsmap`");
    refused(&charsmap("\"?\""), "that is not base64");
    refused(&charsmap("\"AAAA\""), "shorter than its head");
    refused(&charsmap("\"BAAAAP////8=\""), "leads outside");
    refused(&with("pre_tokenizer", r#"{"type": "UnicodeScripts"}"#), "pre_tokenizer `UnicodeScripts`");
    refused(&with("decoder", r#"{"type": "CTC"}"#), "decoder `CTC`");
    refused(&with("post_processor", r#"{"type": "Other"}"#), "post_processor `Other`");
    refused(r#"{"model": {"type": "WordLevel", "vocab": {"a": 0}}}"#, "model `WordLevel`");
    let nested = r#"{"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Nmt"}]}"#;
    refused(&with("normalizer", nested), "`Nmt`");
    refused(
        &with("pre_tokenizer", r#"{"type": "Split", "pattern": {"Regex": "(a"}, "behavior": "Isolated"}"#),
        "does not compile",
    );
    refused(
        r#"{"model": {"type": "BPE", "vocab": {"a": 0}, "merges": [], "end_of_word_suffix": "</w>"}}"#,
        "end_of_word_suffix",
    );
}

#[test]
fn an_unknown_gguf_tokenizer_is_named() {
    let vocab = || GgufVocab { model: "gpt2", tokens: vec![b"a"], ..GgufVocab::default() };
    let error = Tokenizer::from_gguf(GgufVocab { pre: Some("whatever"), ..vocab() }).unwrap_err();
    assert!(matches!(&error, Error::UnknownPre { pre, .. } if pre == "whatever"), "{error}");
    let error = Tokenizer::from_gguf(GgufVocab { model: "rwkv", ..vocab() }).unwrap_err();
    assert!(matches!(&error, Error::UnknownModel { model } if model == "rwkv"), "{error}");
}

#[test]
fn numbers_out_of_range_are_errors() {
    refused(&bpe(r#"{"a": 4294967295}"#, "[]", ""), "the largest token id");
    refused(&bpe(r#"{"a": 4294967296}"#, "[]", ""), "tokenizer.json");
    refused(&bpe(r#"{"a": -1}"#, "[]", ""), "tokenizer.json");
    refused(&bpe(r#"{"a": 0, "b": 0}"#, "[]", ""), "two tokens");
    refused(&bpe(r#"{}"#, "[]", ""), "no tokens");
    refused(
        &bpe(r#"{"a": 0}"#, "[]", r#", "added_tokens": [{"id": 4000000000, "content": "x"}]"#),
        "largest token id",
    );
    let post = r#", "post_processor": {"type": "BertProcessing", "cls": ["a", 7], "sep": ["a", 0]}"#;
    refused(&bpe(r#"{"a": 0}"#, "[]", post), "id 7");
    let vocab = GgufVocab { model: "llama", tokens: vec![b"a"], scores: vec![0.0], ..GgufVocab::default() };
    let error = Tokenizer::from_gguf(GgufVocab { eos: Some(1), ..vocab.clone() }).unwrap_err();
    assert!(matches!(error, Error::IdOutOfRange { id: 1, size: 1, .. }), "{error}");
    let error = Tokenizer::from_gguf(GgufVocab { scores: vec![], ..vocab.clone() }).unwrap_err();
    assert!(matches!(error, Error::Mismatch { what: "scores", tokens: 1, found: 0 }), "{error}");
    let error = Tokenizer::from_gguf(GgufVocab { types: vec![1, 1], ..vocab }).unwrap_err();
    assert!(matches!(error, Error::Mismatch { what: "types", .. }), "{error}");
}

#[test]
fn merges_that_make_no_sense_are_errors() {
    let vocab = r#"{"a": 0, "b": 1, "ab": 2}"#;
    refused(&bpe(vocab, r#"["a c"]"#, ""), "merge 0 (`ac`)");
    refused(&bpe(vocab, r#"["a"]"#, ""), "not two parts");
    refused(&bpe(vocab, r#"["a b c"]"#, ""), "not two parts");
    refused(&bpe(vocab, r#"[["a", "b"], ["b", "a"]]"#, ""), "merge 1");
    refused(&bpe(vocab, r#"[7]"#, ""), "tokenizer.json");
}

#[test]
fn repeated_merges_do_no_harm() {
    let json = bpe(r#"{"a": 0, "b": 1, "ab": 2}"#, r#"["a b", "a b", "a b"]"#, "");
    let tokenizer = Tokenizer::from_json(json.as_bytes(), None).unwrap();
    assert_eq!(tokenizer.encode_ordinary("abab"), [2, 2]);
}

#[test]
fn deep_nesting_is_an_error() {
    let open = r#"{"type": "Sequence", "normalizers": ["#;
    let json = bpe(
        r#"{"a": 0}"#,
        "[]",
        &format!(r#", "normalizer": {}{}{}"#, open.repeat(40), r#"{"type": "NFC"}"#, "]}".repeat(40)),
    );
    refused(&json, "nested");
    refused(&"[".repeat(100_000), "tokenizer.json");
}

#[test]
fn a_file_cut_anywhere_is_an_error_and_no_panic() {
    let bytes = std::fs::read(support::fixtures().join("tiny/wordpiece.json")).unwrap();
    for end in (0..bytes.len() - 2).step_by(61) {
        assert!(Tokenizer::from_json(&bytes[..end], None).is_err());
    }
}

#[test]
fn a_file_with_any_byte_changed_never_panics() {
    let bytes = std::fs::read(support::fixtures().join("tiny/llama.json")).unwrap();
    for at in (0..bytes.len()).step_by(97) {
        for byte in [b'"', b'0', 0xFF] {
            let mut changed = bytes.clone();
            changed[at] = byte;
            if let Ok(tokenizer) = Tokenizer::from_json(&changed, None) {
                let ids = tokenizer.encode_ordinary("the cache \u{1F600} 12");
                let _ = tokenizer.decode(&ids, tokenizer::Specials::Show);
            }
        }
    }
}

/// Long texts of few kinds of character, where naive merging or backtracking is quadratic.
fn runs(bytes: usize) -> Vec<String> {
    [
        "a", "ab", " ", "\n", " \n", "1", "A", "aA", "é", "中", "中A", "\u{301}", "'s", "🙂", "!", "▁", "a ",
        "\u{3000}", "\t", "<|", "<",
    ]
    .iter()
    .map(|unit| unit.repeat(bytes / unit.len()))
    .collect()
}

#[test]
fn long_runs_are_encoded_in_every_family() {
    let byte_level = [
        "gpt-2",
        "smollm",
        "qwen2",
        "llama-bpe",
        "tekken",
        "gpt-4o",
        "deepseek-v3",
        "deepseek-coder",
        "default",
    ];
    let files = ["llama", "gemma", "unigram", "wordpiece", "mixed"];
    let tokenizers = byte_level
        .into_iter()
        .map(tiny_byte_level)
        .chain(files.into_iter().map(tiny))
        .chain(["spm", "spm-unknown"].into_iter().map(tiny_sentencepiece));
    for tokenizer in tokenizers {
        for text in runs(60_000) {
            assert!(
                !tokenizer.encode_ordinary(&text).is_empty()
                    || text.trim().is_empty()
                    || text.starts_with('\u{301}')
            );
        }
    }
}

#[test]
fn a_megabyte_of_one_letter_is_encoded() {
    for tokenizer in [tiny_byte_level("qwen2"), tiny_sentencepiece("spm"), tiny("llama"), tiny("unigram")] {
        assert!(tokenizer.encode_ordinary(&"a".repeat(1 << 20)).len() > 1000);
    }
}

#[test]
fn a_huge_prompt_is_refused_without_reading_it_to_the_end() {
    let text = "the server answers ".repeat(600_000);
    for tokenizer in [tiny_byte_level("qwen2"), tiny_sentencepiece("spm"), tiny("llama"), tiny("wordpiece")] {
        let error = tokenizer.encode(&[Piece::Untrusted(&text)], Some(8192)).unwrap_err();
        assert!(error.at_least > 8192);
    }
}

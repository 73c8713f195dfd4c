//! What files say beside the vocabulary: special tokens, what goes around a prompt, what ends an answer.
#![allow(clippy::unwrap_used, reason = "test code outside of #[test] functions")]

mod support;

use support::{gguf, json, model, tiny, tiny_byte_level, tiny_sentencepiece};
use tokenizer::{GgufVocab, Specials, Tokenizer};

#[test]
fn a_template_says_what_goes_around_a_prompt() {
    assert_eq!(tiny("llama").add_special(vec![7]), [1, 7]);
    assert!(tiny("llama").adds_bos());
    assert_eq!(tiny("wordpiece").add_special(vec![7]), [2, 7, 3]);
    assert_eq!(tiny("unigram").add_special(vec![7]), [0, 7, 1]);
    assert_eq!(tiny("byte-level").add_special(vec![7]), [7]);
    assert!(!tiny("byte-level").adds_bos());
}

#[test]
fn the_config_names_bos_and_eos_and_decides_on_bos() {
    let bytes = std::fs::read(support::fixtures().join("tiny/llama.json")).unwrap();
    let read = |config: &str| Tokenizer::from_json(&bytes, Some(config.as_bytes())).unwrap();
    let tokenizer = read(r#"{"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": "</s>"}"#);
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(1), Some(2)));
    assert_eq!(tokenizer.end_tokens(), [2]);
    assert_eq!(tokenizer.add_special(vec![7]), [1, 7]);
    assert!(!read(r#"{"bos_token": "<s>", "add_bos_token": false}"#).adds_bos());
    assert!(read(r#"{"bos_token": "<s>", "add_bos_token": true}"#).adds_bos());
    assert!(
        Tokenizer::from_json(&bytes, Some(b"{")).unwrap_err().to_string().contains("tokenizer_config.json")
    );
}

#[test]
fn gguf_flags_decide_on_bos_and_eos() {
    let tokens: Vec<&[u8]> = vec![b"<unk>", b"<s>", b"</s>", b"\xe2\x96\x81", b"a"];
    let vocab = GgufVocab {
        model: "llama",
        scores: vec![0.0; 5],
        types: vec![2, 3, 3, 1, 1],
        tokens,
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        ..GgufVocab::default()
    };
    let around = |vocab: GgufVocab<'_>| Tokenizer::from_gguf(vocab).unwrap().add_special(vec![4]);
    assert_eq!(around(vocab.clone()), [1, 4], "SentencePiece files that do not say add bos");
    assert_eq!(around(GgufVocab { add_bos: Some(false), ..vocab.clone() }), [4]);
    assert_eq!(around(GgufVocab { add_eos: Some(true), ..vocab }), [1, 4, 2]);
}

#[test]
fn answers_end_at_eos_and_at_what_ends_a_turn() {
    let tokenizer = tiny_byte_level("qwen2");
    let ends: Vec<_> = ["<|endoftext|>", "<|im_end|>"].map(|text| tokenizer.token_id(text).unwrap()).into();
    let mut sorted = ends.clone();
    sorted.sort_unstable();
    assert_eq!(tokenizer.end_tokens(), sorted);
    assert!(ends.iter().all(|id| tokenizer.is_control(*id)));
}

#[test]
fn a_token_is_found_by_plain_text_and_by_its_text_in_the_file() {
    let tokenizer = tiny_byte_level("gpt-2");
    let id = tokenizer.token_id(" the").unwrap();
    assert_eq!(tokenizer.token_id("Ġthe"), Some(id));
    assert_eq!(tokenizer.token_bytes(id), b" the");
    assert_eq!(tokenizer.token_id("no such token"), None);
    assert!(tokenizer.token_bytes(u32::MAX).is_empty());
}

#[test]
fn decoding_shows_control_tokens_only_when_asked() {
    let tokenizer = tiny_byte_level("qwen2");
    let end = tokenizer.token_id("<|im_end|>").unwrap();
    let ids = [tokenizer.encode_ordinary("a"), vec![end], tokenizer.encode_ordinary("b")].concat();
    assert_eq!(tokenizer.decode(&ids, Specials::Skip), "ab");
    assert_eq!(tokenizer.decode(&ids, Specials::Show), "a<|im_end|>b");
}

#[test]
fn a_second_text_of_one_detokenizer_begins_anew() {
    let tokenizer = tiny_sentencepiece("spm");
    let ids = tokenizer.encode_ordinary("the");
    let mut detokenizer = tokenizer.detokenizer();
    for _ in 0..2 {
        let text: String = ids.iter().map(|id| detokenizer.push(*id).to_owned()).collect();
        assert_eq!(text + detokenizer.finish(), "the");
    }
}

#[test]
fn a_bert_vocabulary_of_gguf_encodes_as_its_tokenizer_json() {
    let file = json("tiny/wordpiece.json");
    let mut tokens: Vec<(u64, String)> = file["model"]["vocab"]
        .as_object()
        .unwrap()
        .iter()
        .map(|(text, id)| {
            // GGUF marks the beginning of words instead of their continuation.
            let text = match text.strip_prefix("##") {
                // GGUF's marks cannot tell these from the beginning of a word.
                Some(rest) if rest.starts_with('\u{2581}') => format!("[unused{id}]"),
                Some(rest) => rest.to_owned(),
                None if text.starts_with('[') && text.len() > 1 => text.clone(),
                None => format!("\u{2581}{text}"),
            };
            (id.as_u64().unwrap(), text)
        })
        .collect();
    tokens.sort();
    let tokenizer = Tokenizer::from_gguf(GgufVocab {
        model: "bert",
        tokens: tokens.iter().map(|(_, text)| text.as_bytes()).collect(),
        types: tokens.iter().map(|(_, text)| if text.starts_with('[') { 3 } else { 1 }).collect(),
        ..GgufVocab::default()
    })
    .unwrap();
    let reference = tiny("wordpiece");
    for text in support::corpus().into_iter().filter(|text| !text.contains('\u{2581}')) {
        let ids = tokenizer.encode_ordinary(&text);
        assert_eq!(ids, reference.encode_ordinary(&text), "{text:?}");
        assert_eq!(
            tokenizer.decode(&ids, Specials::Skip),
            reference.decode(&ids, Specials::Skip),
            "{text:?}"
        );
    }
    assert_eq!(tokenizer.add_special(vec![9]), [2, 9, 3]);
}

#[test]
fn real_models_know_their_end_tokens() {
    let test = "real_models_know_their_end_tokens";
    if let Some(path) = model("SmolLM2-135M-Instruct.Q4_1.gguf", test) {
        assert_eq!(gguf(&path).end_tokens(), [0, 2]);
        assert!(!gguf(&path).adds_bos());
    }
    if let Some(path) = model("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", test) {
        assert_eq!(gguf(&path).end_tokens(), [151_643, 151_645]);
        assert!(!gguf(&path).adds_bos());
    }
    if let Some(path) = model("gemma-3-270m-q4_k_m.gguf", test) {
        let tokenizer = gguf(&path);
        assert_eq!(tokenizer.end_tokens(), [1, 106]);
        assert!(tokenizer.adds_bos());
        assert!(!tokenizer.is_control(tokenizer.token_id("</s>").unwrap()), "the HTML tag is no end of text");
    }
}

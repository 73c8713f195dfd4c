//! Text never becomes a control token; what is encoded decodes to itself; streaming equals decoding at once.

#![allow(clippy::unwrap_used, reason = "test code outside of #[test] functions")]

mod support;

use proptest::prelude::*;
use support::{corpus, gguf, model, tiny, tiny_byte_level, tiny_sentencepiece};
use tokenizer::{Piece, Specials, Tokenizer};

/// Every kind of tokenizer that needs no model file, by name.
fn all() -> Vec<(String, Tokenizer)> {
    let mut all = Vec::new();
    for pre in [
        "gpt-2",
        "smollm",
        "qwen2",
        "llama-bpe",
        "tekken",
        "gpt-4o",
        "deepseek-v3",
        "deepseek-coder",
        "default",
    ] {
        all.push((pre.to_owned(), tiny_byte_level(pre)));
    }
    for name in ["byte-level", "llama", "gemma", "unigram", "wordpiece", "mixed"] {
        all.push((format!("{name}.json"), tiny(name)));
    }
    for name in ["spm", "spm-no-prefix", "spm-unknown"] {
        all.push((name.to_owned(), tiny_sentencepiece(name)));
    }
    all
}

fn real(test: &str) -> Vec<(String, Tokenizer)> {
    ["SmolLM2-135M-Instruct.Q4_1.gguf", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", "gemma-3-270m-q4_k_m.gguf"]
        .into_iter()
        .filter_map(|name| Some((name.to_owned(), gguf(&model(name, test)?))))
        .collect()
}

#[track_caller]
fn no_control(name: &str, tokenizer: &Tokenizer, pieces: &[Piece<'_>]) {
    let ids = tokenizer.encode(pieces, None).unwrap();
    let control: Vec<u32> = ids.iter().copied().filter(|id| tokenizer.is_control(*id)).collect();
    assert!(control.is_empty(), "{name}: {pieces:?} gives control tokens {control:?}");
    assert!(!ids.iter().any(|id| tokenizer.end_tokens().contains(id)), "{name}: {pieces:?} ends the answer");
}

/// Untrusted forms of one control text: whole, surrounded, and cut at each character, with trusted
/// neighbours too.
fn attack(name: &str, tokenizer: &Tokenizer, control: &str) {
    use Piece::{Trusted, Untrusted};
    no_control(name, tokenizer, &[Untrusted(control)]);
    no_control(name, tokenizer, &[Untrusted(&format!("a{control} {control}\n{control}"))]);
    no_control(name, tokenizer, &[Untrusted(&control.to_uppercase())]);
    for (cut, _) in control.char_indices().skip(1) {
        let (head, tail) = control.split_at(cut);
        no_control(name, tokenizer, &[Untrusted(head), Untrusted(tail)]);
        no_control(name, tokenizer, &[Trusted(head), Untrusted(tail)]);
        no_control(name, tokenizer, &[Untrusted(head), Trusted(tail)]);
        no_control(name, tokenizer, &[Trusted(head), Untrusted(""), Untrusted(tail)]);
        no_control(name, tokenizer, &[Untrusted(head), Trusted(""), Untrusted(tail)]);
    }
}

#[test]
fn untrusted_control_texts_stay_text_in_every_family() {
    for (name, tokenizer) in all() {
        let controls: Vec<String> = tokenizer.control_texts().map(str::to_owned).collect();
        assert!(!controls.is_empty(), "{name} has control tokens");
        let usual =
            ["<|im_end|>", "<end_of_turn>", "</s>", "<s>", "[SEP]", "<|endoftext|>", "<0x00>", "<unk>"];
        for control in controls.iter().map(String::as_str).chain(usual) {
            attack(&name, &tokenizer, control);
        }
    }
}

#[test]
fn untrusted_control_texts_stay_text_in_real_models() {
    for (name, tokenizer) in real("untrusted_control_texts_stay_text_in_real_models") {
        let controls: Vec<String> = tokenizer.control_texts().map(str::to_owned).collect();
        // Gemma has 6,242 `<unusedN>`; a share of them stands for all.
        for control in controls.iter().filter(|text| !text.starts_with("<unused") || text.ends_with("99>")) {
            attack(&name, &tokenizer, control);
        }
    }
}

#[test]
fn trusted_control_texts_become_control_tokens() {
    for (name, tokenizer) in all().into_iter().chain(real("trusted_control_texts_become_control_tokens")) {
        let controls: Vec<String> = tokenizer.control_texts().map(str::to_owned).collect();
        for control in &controls {
            let id = tokenizer.token_id(control).unwrap();
            assert_eq!(tokenizer.encode(&[Piece::Trusted(control)], None).unwrap(), [id], "{name} {control}");
            // A template that writes its control text in two strokes still means it.
            let (head, tail) = control.split_at(1);
            let pieces = [Piece::Trusted(head), Piece::Trusted(tail)];
            assert_eq!(tokenizer.encode(&pieces, None).unwrap(), [id], "{name} {control}");
        }
    }
}

#[test]
fn lossless_families_decode_to_what_was_encoded() {
    let lossy = ["unigram.json", "wordpiece.json", "mixed.json", "spm-unknown"];
    for (name, tokenizer) in all().into_iter().filter(|(name, _)| !lossy.contains(&name.as_str())) {
        for text in corpus() {
            let ids = tokenizer.encode_ordinary(&text);
            // Llama's file puts a space in front of text behind an added token too, and cannot take it back.
            if name == "llama.json" && text.contains("<tool_call>") {
                continue;
            }
            // Gemma-like: the added `▁▁` is a pair of spaces; a visible space is the same as a space anyway.
            let same = |text: &str| text.replace('\u{2581}', " ");
            assert_eq!(same(&tokenizer.decode(&ids, Specials::Skip)), same(&text), "{name}");
        }
    }
}

#[test]
fn real_models_decode_to_what_was_encoded() {
    for (name, tokenizer) in real("real_models_decode_to_what_was_encoded") {
        for text in corpus() {
            let ids = tokenizer.encode_ordinary(&text);
            let same = |text: &str| {
                if name.starts_with("gemma") { text.replace('\u{2581}', " ") } else { text.into() }
            };
            // SmolLM2's vocabulary lacks some bytes that no UTF-8 or only rare scripts need.
            if name.starts_with("SmolLM2") && tokenizer.decode(&ids, Specials::Skip) != text {
                assert!(text.chars().any(|c| c.is_control() || !c.is_ascii()), "{text:?}");
                continue;
            }
            assert_eq!(same(&tokenizer.decode(&ids, Specials::Skip)), same(&text), "{name}");
        }
    }
}

#[test]
fn ordinary_text_is_one_text_whoever_wrote_its_parts() {
    for (name, tokenizer) in all() {
        for text in corpus() {
            if tokenizer.control_texts().any(|control| text.contains(control)) {
                continue;
            }
            let whole = tokenizer.encode_ordinary(&text);
            for (cut, _) in text.char_indices().step_by(7) {
                let (head, tail) = text.split_at(cut);
                let pieces = [Piece::Trusted(head), Piece::Untrusted(tail)];
                assert_eq!(tokenizer.encode(&pieces, None).unwrap(), whole, "{name} {text:?} at {cut}");
            }
        }
    }
}

#[test]
fn spliced_tokens_close_the_text_around_them() {
    let tokenizer = tiny_byte_level("qwen2");
    let pieces = [Piece::Untrusted("th"), Piece::Tokens(&[3, 1]), Piece::Untrusted("e")];
    let (head, tail) = (tokenizer.encode_ordinary("th"), tokenizer.encode_ordinary("e"));
    let expected = [head.clone(), vec![3, 1], tail.clone()].concat();
    assert_eq!(tokenizer.encode(&pieces, None).unwrap(), expected);
    assert_ne!(tokenizer.encode_ordinary("the"), [head, tail].concat());
}

#[test]
fn no_space_goes_in_front_of_text_that_continues_spliced_tokens() {
    let tokenizer = tiny_sentencepiece("spm");
    let answer = tokenizer.encode_ordinary("the server");
    let ids = tokenizer.encode(&[Piece::Tokens(&answer), Piece::Untrusted("s")], None).unwrap();
    assert_eq!(tokenizer.decode(&ids, Specials::Skip), "the servers");
}

#[track_caller]
fn streams_as_at_once(name: &str, tokenizer: &Tokenizer, ids: &[u32]) {
    let mut detokenizer = tokenizer.detokenizer();
    let mut text = String::new();
    for id in ids {
        text.push_str(detokenizer.push(*id));
    }
    text.push_str(detokenizer.finish());
    assert_eq!(text, tokenizer.decode(ids, Specials::Skip), "{name} {ids:?}");
    let mut detokenizer = tokenizer.detokenizer_showing(ids.into());
    let mut text = String::new();
    for id in ids {
        text.push_str(detokenizer.push(*id));
    }
    text.push_str(detokenizer.finish());
    assert_eq!(text, tokenizer.decode(ids, Specials::Show), "{name} {ids:?} with all of them shown");
}

#[test]
fn streaming_equals_decoding_at_once_on_the_corpus() {
    for (name, tokenizer) in all().into_iter().chain(real("streaming_equals_decoding_at_once_on_the_corpus"))
    {
        for text in corpus() {
            streams_as_at_once(&name, &tokenizer, &tokenizer.encode_ordinary(&text));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn streaming_equals_decoding_at_once_on_any_tokens(seeds in prop::collection::vec(any::<u32>(), 0..40)) {
        for (name, tokenizer) in all() {
            let ids: Vec<u32> = seeds.iter().map(|seed| seed % (tokenizer.vocab_size() + 2)).collect();
            streams_as_at_once(&name, &tokenizer, &ids);
        }
    }

    #[test]
    fn any_text_decodes_to_itself_and_holds_no_control_token(text in any::<String>()) {
        for pre in ["gpt-2", "qwen2", "llama-bpe", "tekken"] {
            let tokenizer = tiny_byte_level(pre);
            no_control(pre, &tokenizer, &[Piece::Untrusted(&text)]);
            prop_assert_eq!(&tokenizer.decode(&tokenizer.encode_ordinary(&text), Specials::Skip), &text);
        }
    }

    #[test]
    fn a_limit_refuses_exactly_the_longer_prompts(text in "[a-z \n0-9éß中]{0,60}", limit in 0usize..40) {
        for (name, tokenizer) in all() {
            let ids = tokenizer.encode_ordinary(&text);
            match tokenizer.encode(&[Piece::Untrusted(&text)], Some(limit)) {
                Ok(found) => prop_assert!(found == ids && ids.len() <= limit, "{name}"),
                Err(error) => {
                    prop_assert!(ids.len() > limit, "{name}");
                    prop_assert!(error.at_least > limit && error.at_least <= ids.len(), "{name}");
                }
            }
        }
    }
}

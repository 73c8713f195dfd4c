//! Turn memory by itself: what was said comes back in the same tokens, and nothing else does.

#![allow(clippy::unwrap_used)]

mod common;

use base::{Bytes, Namespace};
use common::replay::MARKS;
use common::{tokenizer, tokenizer_with};
use proptest::prelude::*;
use serving::memory::{PrefixHash, TurnMemory};
use serving::template::{Origin, Span};
use tokenizer::{GgufVocab, Piece, Specials, Tokenizer};

const NAMESPACE: Namespace = Namespace(7);

fn ours(text: &str) -> Span {
    Span { origin: Origin::Template, text: text.into() }
}

fn theirs(text: &str) -> Span {
    Span { origin: Origin::Caller, text: text.into() }
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn memory() -> TurnMemory {
    TurnMemory::new(Bytes(1 << 20))
}

#[track_caller]
fn encode(memory: &TurnMemory, tokenizer: &Tokenizer, spans: &[Span]) -> Vec<u32> {
    memory.check();
    memory.encode(tokenizer, NAMESPACE, spans, None).unwrap()
}

#[test]
fn white_space_around_an_answer_is_found_outside_its_span() {
    let (tokenizer, memory) = (tokenizer(), memory());
    let prompt = tokenizer.encode(&[Piece::Trusted("<|im_start|>a\n")], None).unwrap();
    let said = "\n help \n";
    memory.remember(&tokenizer, NAMESPACE, PrefixHash::of(&prompt), said, &bytes(said));
    let start = || [prompt.clone(), bytes(said)].concat();

    let kept = [ours("<|im_start|>a\n\n "), theirs("help"), ours(" \n<|im_end|>")];
    let ids = encode(&memory, &tokenizer, &kept);
    assert!(ids.starts_with(&start()) && ids.len() == start().len() + 1);

    // A template that trims the end: the tokens up to there.
    let trimmed = [ours("<|im_start|>a\n\n "), theirs("help"), ours("<|im_end|>")];
    let ids = encode(&memory, &tokenizer, &trimmed);
    assert!(ids.starts_with(&[prompt.clone(), bytes("\n help")].concat()));
    assert_eq!(tokenizer.decode(&ids, Specials::Show), "<|im_start|>a\n\n help<|im_end|>");

    // One that trims the start changes what was said: nothing is spliced.
    let other = [ours("<|im_start|>a\n"), theirs("help"), ours("<|im_end|>")];
    let plain = [Piece::Trusted("<|im_start|>a\n"), Piece::Untrusted("help"), Piece::Trusted("<|im_end|>")];
    assert_eq!(encode(&memory, &tokenizer, &other), tokenizer.encode(&plain, None).unwrap());
}

#[test]
fn another_namespace_or_prompt_finds_nothing() {
    let (tokenizer, memory) = (tokenizer(), memory());
    let prompt = tokenizer.encode(&[Piece::Trusted("<|im_start|>")], None).unwrap();
    memory.remember(&tokenizer, Namespace(8), PrefixHash::of(&prompt), "help", &bytes("help"));
    memory.remember(&tokenizer, NAMESPACE, PrefixHash::of(&[1, 2]), "help", &bytes("help"));
    let ids = encode(&memory, &tokenizer, &[ours("<|im_start|>"), theirs("help")]);
    assert_eq!(ids.len(), 2, "the tokenizer has one token for it");
}

#[test]
fn a_control_token_ends_what_is_remembered() {
    let (tokenizer, memory) = (tokenizer(), memory());
    let prompt = tokenizer.encode(&[Piece::Trusted("<|im_start|>")], None).unwrap();
    let end = tokenizer.token_id("<|im_end|>").unwrap();
    let ids = [bytes("he"), vec![end], bytes("lp")].concat();
    memory.remember(&tokenizer, NAMESPACE, PrefixHash::of(&prompt), "help", &ids);
    let ids = encode(&memory, &tokenizer, &[ours("<|im_start|>"), theirs("help")]);
    assert!(!ids[1..].iter().any(|id| tokenizer.is_control(*id)));
    assert_eq!(ids[1..3], bytes("he"));
    assert_eq!(tokenizer.decode(&ids[1..], Specials::Show), "help");
}

/// A SentencePiece model says the first word with a space in front, which decoding drops and templates write.
#[test]
fn a_space_that_decoding_drops_may_stand_in_the_template() {
    let tokens = ["<unk>", "<s>", "</s>", "[/I]", "▁", "h", "i", "hi", "▁hi", "x"];
    let tokenizer = Tokenizer::from_gguf(GgufVocab {
        model: "llama",
        tokens: tokens.iter().map(|t| t.as_bytes()).collect(),
        scores: vec![0.0, 0.0, 0.0, 0.0, -9.0, -5.0, -5.0, -2.0, -1.0, -5.0],
        types: vec![2, 3, 3, 3, 1, 1, 1, 1, 1, 1],
        bos: Some(1),
        eos: Some(2),
        unk: Some(0),
        add_space_prefix: Some(false),
        ..GgufVocab::default()
    })
    .unwrap();
    let memory = memory();
    let prompt = tokenizer.encode(&[Piece::Trusted("<s>x[/I]")], None).unwrap();
    let said = [4, 5, 6];
    let text = tokenizer.decode(&said, Specials::Skip);
    memory.remember(&tokenizer, NAMESPACE, PrefixHash::of(&prompt), &text, &said);
    let spaced = encode(&memory, &tokenizer, &[ours("<s>x[/I] "), theirs("hi"), ours("</s>")]);
    assert_eq!(spaced, [prompt.as_slice(), &said, &[2]].concat());
    if text == "hi" {
        let close = encode(&memory, &tokenizer, &[ours("<s>x[/I]"), theirs("hi"), ours("</s>")]);
        assert_eq!(close, spaced);
    }
}

#[test]
fn the_least_recently_used_answers_go_first() {
    let tokenizer = tokenizer();
    let memory = TurnMemory::new(Bytes(1100));
    let prompt = tokenizer.encode(&[Piece::Trusted("<|im_start|>")], None).unwrap();
    let prefix = PrefixHash::of(&prompt);
    let spelt = |text: &str| {
        encode(&memory, &tokenizer, &[ours("<|im_start|>"), theirs(text)]).len() == 1 + text.len()
    };
    for text in ["help a", "help b", "help c"] {
        memory.remember(&tokenizer, NAMESPACE, prefix, text, &bytes(text));
    }
    assert!(spelt("help a") && spelt("help b") && spelt("help c"));
    assert!(spelt("help a"));
    memory.remember(&tokenizer, NAMESPACE, prefix, "help d", &bytes("help d"));
    assert!(spelt("help a") && !spelt("help b") && spelt("help c") && spelt("help d"));
    memory.remember(&tokenizer, NAMESPACE, prefix, &"long".repeat(1000), &bytes(&"long".repeat(1000)));
    assert!(spelt("help a"), "an answer larger than the memory is not remembered");
}

/// Tokens of a text as a model may say it: marks as such, all else byte by byte.
fn spelt(tokenizer: &Tokenizer, mut text: &str) -> Vec<u32> {
    let mut ids = Vec::new();
    while let Some(c) = text.chars().next() {
        let mark = MARKS.iter().find(|mark| text.starts_with(**mark));
        let len = mark.map_or(c.len_utf8(), |mark| mark.len());
        match mark {
            Some(mark) => ids.extend(tokenizer.token_id(mark)),
            None => ids.extend(bytes(&text[..len])),
        }
        text = &text[len..];
    }
    ids
}

const PROMPT: &str = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n";
const CALL: &str = "<think>\nhelp\n</think>\n\n<tool_call>\n{\"he\": \"help\"}\n</tool_call>";

#[test]
fn a_whole_answer_is_found_where_the_template_writes_it_again() {
    let (tokenizer, memory) = (tokenizer_with(&MARKS), memory());
    let shown: std::sync::Arc<[u32]> = MARKS.iter().filter_map(|mark| tokenizer.token_id(mark)).collect();
    let prompt = [ours("<|im_start|>user\n"), theirs("hi"), ours("<|im_end|>\n<|im_start|>assistant\n")];
    let ids = spelt(&tokenizer, CALL);
    memory.remember_whole(&tokenizer, NAMESPACE, &memory.prompt(&prompt), &shown, &ids);
    let before = tokenizer.encode(&[Piece::Trusted(PROMPT)], None).unwrap();
    let said = [before.clone(), ids.clone()].concat();
    let again = |spans: &[Span]| encode(&memory, &tokenizer, &[&prompt[..], spans].concat());

    // In any spans, with what the caller brought in the middle.
    let middle = [
        "<think>\n",
        "help",
        "\n</think>\n\n<tool_call>\n{\"he\": \"",
        "help",
        "\"}\n</tool_call><|im_end|>",
    ];
    let spans = [ours(middle[0]), theirs(middle[1]), ours(middle[2]), theirs(middle[3]), ours(middle[4])];
    let found = again(&spans);
    assert!(found.starts_with(&said), "{found:?}");
    assert_eq!(found.len(), said.len() + 1);

    // A caller's marks are letters, whoever said them first.
    let found = again(&[theirs(CALL), ours("<|im_end|>")]);
    assert_eq!(tokenizer.decode(&found, Specials::Show), format!("{PROMPT}{CALL}<|im_end|>"));
    assert_eq!(found.iter().filter(|id| tokenizer.is_control(**id)).count(), 4, "the template's own");

    // Changed behind the thought: what is still the same is spliced.
    let found = again(&[ours(&CALL.replace("\"help\"", "\"hello\"")), ours("<|im_end|>")]);
    assert!(found.starts_with(&said[..before.len() + 23]), "{found:?}");
    assert_eq!(
        tokenizer.decode(&found, Specials::Show),
        format!("{PROMPT}{CALL}<|im_end|>").replace("\"help\"", "\"hello\"")
    );

    // After another prompt nothing was said.
    let other = [ours("<|im_start|>user\nho<|im_end|>\n<|im_start|>assistant\n"), ours(CALL)];
    let plain: String = other.iter().map(|span| span.text.as_str()).collect();
    assert_eq!(
        encode(&memory, &tokenizer, &other),
        tokenizer.encode(&[Piece::Trusted(&plain)], None).unwrap()
    );
}

proptest! {
    #[test]
    fn whole_answers_keep_the_text_the_bounds_and_what_was_said(
        answers in prop::collection::vec("(<think>|</think>|<tool_call>|</tool_call>|[heélp \\n]{1,6}){1,5}", 1..5),
        cuts in prop::collection::vec(0usize..60, 0..8), limit in 300u64..3000, callers in any::<u8>(),
    ) {
        let tokenizer = tokenizer_with(&MARKS);
        let shown: std::sync::Arc<[u32]> = MARKS.iter().filter_map(|mark| tokenizer.token_id(mark)).collect();
        let small = TurnMemory::new(Bytes(limit));
        let large = TurnMemory::new(Bytes(1 << 20));
        let mut text = String::new();
        let mut said: Option<Vec<u32>> = None;
        for answer in &answers {
            text += "<|im_start|>assistant\n";
            let prompt = [ours(&text)];
            for memory in [&small, &large] {
                let ids = encode(memory, &tokenizer, &prompt);
                prop_assert_eq!(tokenizer.decode(&ids, Specials::Show), text.as_str());
            }
            let ids = encode(&large, &tokenizer, &prompt);
            if let Some(said) = said {
                prop_assert!(ids.starts_with(&said));
            }
            let spoken = spelt(&tokenizer, answer);
            for memory in [&small, &large] {
                memory.remember_whole(&tokenizer, NAMESPACE, &memory.prompt(&prompt), &shown, &spoken);
                memory.check();
            }
            said = Some([ids, spoken].concat());
            text += answer;
            text += "<|im_end|>";
        }
        // The same text in other spans, some of them callers': no caller's text becomes a mark.
        let mut spans = Vec::new();
        let mut from = 0;
        let mut cuts: Vec<usize> = cuts.into_iter().filter(|at| text.is_char_boundary(*at) && *at < text.len()).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        cuts.dedup();
        for (i, at) in cuts.into_iter().enumerate() {
            if at > from {
                let part = &text[from..at];
                spans.push(if callers >> (i % 8) & 1 == 1 { theirs(part) } else { ours(part) });
            }
            from = at;
        }
        let ids = encode(&large, &tokenizer, &spans);
        prop_assert_eq!(tokenizer.decode(&ids, Specials::Show), text.as_str());
        let mut at = 0;
        let origins: Vec<(usize, usize)> = spans.iter().scan(0, |begin, span| {
            let range = (*begin, *begin + span.text.len());
            *begin = range.1;
            Some(range)
        }).collect();
        for id in ids {
            let len = tokenizer.token_bytes(id).len();
            if tokenizer.is_control(id) {
                let theirs = spans.iter().zip(&origins).any(|(span, (begin, end))| {
                    span.origin == Origin::Caller && *begin < at + len && *end > at
                });
                prop_assert!(!theirs, "a caller's text became {}", tokenizer.decode(&[id], Specials::Show));
            }
            at += len;
        }
    }

    #[test]
    fn splicing_keeps_the_text_and_gives_back_what_was_said(
        answers in prop::collection::vec(("[heélp \n]{1,12}", any::<u64>(), 0usize..14), 1..5), limit in 600u64..4000,
    ) {
        let tokenizer = tokenizer();
        let memory = TurnMemory::new(Bytes(limit));
        let large = TurnMemory::new(Bytes(1 << 20));
        let mut spans = Vec::new();
        let mut said: Option<Vec<u32>> = None;
        let mut text = String::new();
        for (answer, ways, cut) in answers {
            spans.push(ours("<|im_start|>a\n"));
            text += "<|im_start|>a\n";
            for memory in [&memory, &large] {
                let ids = encode(memory, &tokenizer, &spans);
                prop_assert_eq!(tokenizer.decode(&ids, Specials::Show), text.as_str());
            }
            let prompt = encode(&large, &tokenizer, &spans);
            if let Some(said) = said {
                prop_assert!(prompt.starts_with(&said));
            }
            // The answer in a random tokenisation, delivered up to a random place.
            let mut ids = Vec::new();
            for (i, word) in answer.split_inclusive(' ').enumerate() {
                ids.extend(if ways >> (i % 64) & 1 == 1 { bytes(word) } else { tokenizer.encode_ordinary(word) });
            }
            let cut = answer.char_indices().map(|(at, _)| at).nth(cut).unwrap_or(answer.len());
            let shown = &answer[..cut];
            for memory in [&memory, &large] {
                memory.remember(&tokenizer, NAMESPACE, PrefixHash::of(&prompt), shown, &ids);
                memory.check();
            }
            let core = shown.trim();
            let lead = shown.len() - shown.trim_start().len();
            let covered = |n: &usize| shown.starts_with(&tokenizer.decode(&ids[..*n], Specials::Skip));
            let count = (0..=ids.len()).rev().find(covered).unwrap_or(0);
            said = (!core.is_empty() && tokenizer.decode(&ids[..count], Specials::Skip).len() > lead)
                .then(|| [prompt, ids[..count].to_vec()].concat());
            if core.is_empty() {
                spans.push(ours(shown));
            } else {
                spans.extend([ours(&shown[..lead]), theirs(core), ours(&shown[lead + core.len()..])]);
            }
            spans.retain(|span| !span.text.is_empty());
            text += shown;
            spans.push(ours("<|im_end|>"));
            text += "<|im_end|>";
        }
    }
}

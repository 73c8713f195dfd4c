//! Real files: a greedy answer that anyone can judge, and sentence vectors that transformers gave.
//!
//! The folder is named by HEARTH_TEST_MODELS; the closer comparison with llama.cpp is in `oracle.rs`.
#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "helpers of tests may end the test")]

mod support;

use device::{Batch, LoadFormat, PAGE_TOKENS, PageId};
use kernels::{Cpu, CpuConfig};
use models::{Checkpoint, Loaded, load};
use std::path::PathBuf;
use support::argmax;

fn path(file: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("HEARTH_TEST_MODELS") else {
        println!("skipped: {file} (HEARTH_TEST_MODELS is not set)");
        return None;
    };
    Some(PathBuf::from(folder).join(file))
}

fn open(path: &std::path::Path) -> (Checkpoint, Loaded) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let cpu = Cpu::new(CpuConfig::default()).unwrap();
    let loaded = load(&checkpoint, cpu, LoadFormat::AsStored, &mut |_, _| {}).unwrap();
    (checkpoint, loaded)
}

/// The words are single tokens of these vocabularies, with `Ġ` for the space before them.
fn greedy(file: &str, words: &[&str], len: usize) -> Option<String> {
    let (checkpoint, loaded) = open(&path(file)?);
    let Loaded::Language(mut model) = loaded else { panic!("{file} is a language model") };
    let Checkpoint::Gguf(gguf) = &checkpoint else { panic!("{file} is a GGUF file") };
    let tokens = gguf.strs("tokenizer.ggml.tokens").unwrap();
    let id = |word: &&str| tokens.iter().position(|token| token == word).unwrap() as u32;
    let mut ids: Vec<u32> = words.iter().map(id).collect();
    let pages: Vec<PageId> = (0..(ids.len() + len).div_ceil(PAGE_TOKENS) as u32).map(PageId).collect();
    pages.iter().for_each(|page| model.ensure_page(*page).unwrap());
    let (mut batch, mut done) = (Batch::default(), 0);
    for _ in 0..len {
        batch.clear();
        batch.push(&ids[done..], done as u32, &pages);
        batch.logit_rows.push((ids.len() - done - 1) as u32);
        done = ids.len();
        ids.push(argmax(model.forward(&batch)) as u32);
    }
    let answer: String = ids[words.len()..].iter().map(|id| tokens[*id as usize]).collect();
    let answer = answer.replace('Ġ', " ");
    println!("{file}: {answer:?}");
    Some(answer)
}

#[track_caller]
fn knows_paris(file: &str, words: &[&str]) {
    if let Some(answer) = greedy(file, words, 12) {
        assert!(answer.contains("Paris"), "{file}: {answer:?}");
    }
}

#[test]
fn smollm2_knows_the_capital_of_france() {
    knows_paris("SmolLM2-135M-Instruct.Q4_1.gguf", &["The", "Ġcapital", "Ġof", "ĠFrance", "Ġis"]);
}

#[test]
fn qwen_coder_knows_the_capital_of_france() {
    let words = ["The", "Ġcapital", "Ġof", "ĠFrance", "Ġis"];
    knows_paris("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf", &words);
}

/// First elements of what transformers gives in float64, mean pooled and scaled to unit length.
const SENTENCES: [(&[u32], [f32; 8]); 2] = [
    (
        &[101, 1996, 3007, 1997, 2605, 2003, 3000, 1012, 102],
        [0.103257, 0.03042, 0.029096, -0.037323, 0.078676, -0.054723, 0.002692, -0.008628],
    ),
    (
        &[101, 1037, 4937, 2938, 2006, 1996, 13523, 102],
        [0.123372, -0.020183, -0.029067, 0.050429, -0.063558, 0.026168, 0.044656, 0.02219],
    ),
];

#[test]
fn minilm_gives_the_vectors_that_transformers_gives() {
    let Some(path) = path("all-MiniLM-L6-v2") else { return };
    let (_, Loaded::Embedding(mut model)) = open(&path) else { panic!("MiniLM is an encoder") };
    assert_eq!((model.spec().context.0, model.spec().dimensions), (256, 384));
    let inputs = SENTENCES.map(|(ids, _)| ids);
    for (vector, (_, expected)) in model.embed(&inputs).iter().zip(SENTENCES) {
        assert!((vector.iter().map(|x| x * x).sum::<f32>() - 1.0).abs() < 1e-5);
        for (found, expected) in vector.iter().zip(expected) {
            assert!((found - expected).abs() < 2e-6, "{found} {expected}");
        }
    }
}

//! Measures load time and encoding speed: `cargo run --release -p tokenizer --example speed FILE [TEXT]`, where FILE
//! is a GGUF file or a `tokenizer.json`.
//!
//! Without a text it encodes the fixture corpus over and over, which no word cache can hold whole but which
//! is harder than ordinary prose.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a tool for developers")]

#[path = "../tests/support/mod.rs"]
mod support;

use std::time::Instant;

use tokenizer::{Piece, Specials, Tokenizer};

fn main() {
    let mut arguments = std::env::args().skip(1);
    let file = arguments.next().unwrap();
    let (tokenizer, start);
    if file.ends_with(".json") {
        let bytes = std::fs::read(&file).unwrap();
        start = Instant::now();
        tokenizer = Tokenizer::from_json(&bytes, None).unwrap();
    } else {
        let metadata = support::Metadata::read(file.as_ref());
        start = Instant::now();
        tokenizer = Tokenizer::from_gguf(metadata.vocab()).unwrap();
    }
    println!("load {:.0} ms, {} tokens", start.elapsed().as_secs_f64() * 1e3, tokenizer.vocab_size());
    let text = match arguments.next() {
        Some(path) => String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned(),
        None => support::corpus().join("\n").repeat(200),
    };
    for _ in 0..3 {
        let start = Instant::now();
        let ids = tokenizer.encode(&[Piece::Untrusted(&text)], None).unwrap();
        let seconds = start.elapsed().as_secs_f64();
        let speed = text.len() as f64 / 1e6 / seconds;
        println!("encode {:.2} MB in {} tokens: {speed:.1} MB/s", text.len() as f64 / 1e6, ids.len());
        let start = Instant::now();
        let same = tokenizer.decode(&ids, Specials::Skip) == text;
        println!("decode {:.1} MB/s, same {same}", text.len() as f64 / 1e6 / start.elapsed().as_secs_f64());
    }
    for unit in ["a", " ", "\n", "é", "中", "ab"] {
        let run = unit.repeat((1 << 20) / unit.len());
        let start = Instant::now();
        let ids = tokenizer.encode_ordinary(&run);
        println!("1 MiB of {unit:?}: {} tokens in {:.0} ms", ids.len(), start.elapsed().as_secs_f64() * 1e3);
    }
}

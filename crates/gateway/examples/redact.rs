//! Times the look for secrets and personal data in an agent's body: `cargo run --release -p gateway --example redact`. With
//! files as arguments, prints each of their lines in which something is found instead, to judge what is found wrongly.

#![allow(clippy::print_stdout, clippy::expect_used, missing_docs)]

use gateway::log::redacted;
use gateway::policy::dlp::Findings;
use gateway::{Check, Dlp, Settings};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A body such as coding agents send, with code in it.
fn body(size: usize) -> String {
    let code = "    let total = items.iter().filter(|item| item.is_open()).count();\n    println!(\"{total} open at {}:{}\", 12, 0x3f);\n";
    let mut messages = vec![json!({ "role": "system", "content": "You write code.".repeat(200) })];
    loop {
        let body = json!({ "model": "provider/model", "messages": messages, "max_tokens": 4096 }).to_string();
        if body.len() >= size {
            return body;
        }
        let call = json!({ "path": format!("src/{}.rs", messages.len()), "content": code.repeat(4) });
        messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": "call_1", "type": "function", "function": { "name": "tool_1", "arguments": call.to_string() } }] }));
        messages.push(json!({ "role": "tool", "tool_call_id": "call_1", "content": code.repeat(12) }));
    }
}

/// Everything that can be looked for.
fn all() -> Dlp {
    let profiles = ["credentials", "financial", "contact", "network"];
    let dlp: Value = json!({ "dlp": { "enabled": true, "action": "FLAG", "profiles": profiles } });
    let fields = dlp.as_object().expect("an object was written");
    Settings::default().parse(fields).ok().and_then(|settings| settings.loss.dlp).expect("a right setting")
}

/// The fastest of many runs.
fn best(mut work: impl FnMut()) -> Duration {
    let run = || {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    std::iter::repeat_with(run).take(50).min().unwrap_or_default()
}

fn main() {
    let files: Vec<String> = std::env::args().skip(1).collect();
    for file in &files {
        let Ok(text) = std::fs::read_to_string(file) else { continue };
        for (number, line) in text.lines().enumerate() {
            let changed = redacted(line, Some("text/plain"));
            if changed != line {
                let shown: String = line.trim().chars().take(160).collect();
                let changed: String = changed.trim().chars().take(160).collect();
                println!("{file}:{}: {shown}\n    {changed}", number + 1);
            }
        }
    }
    if files.is_empty() {
        let dlp = all();
        for size in [2 << 10, 257_000, 2_570_000] {
            let body = body(size);
            let json = Some("application/json");
            let looked =
                best(|| assert!(!Findings::default().look(&dlp, Check::Request, body.as_bytes(), json)));
            let rate = body.len() as f64 / 1e6 / looked.as_secs_f64();
            println!("{} bytes: looked at in {looked:?}, {rate:.0} MB/s", body.len());
        }
    }
}

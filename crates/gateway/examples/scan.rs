//! Times the scan of an agent's body beside a parse of it: `cargo run --release -p gateway --example scan`.

#![allow(clippy::print_stdout, clippy::expect_used, missing_docs)]

use gateway::scan::{Field, scan};
use serde_json::{Value, json};
use std::time::{Duration, Instant};

/// A body such as coding agents send: tools with schemas, then turns with code, escapes in all of it.
fn body(size: usize) -> Vec<u8> {
    let property = |name: &str| {
        (name.to_owned(), json!({ "type": "string", "description": "A path, from the project's folder" }))
    };
    let tools: Vec<Value> = (0..20)
        .map(|n| {
            let properties: serde_json::Map<_, _> = ["path", "content", "mode"].map(property).into_iter().collect();
            let schema = json!({ "type": "object", "properties": properties, "required": ["path"], "additionalProperties": false });
            json!({ "type": "function", "function": { "name": format!("tool_{n}"), "description": "Does what its name says.\n\nTakes a path.", "parameters": schema, "strict": true } })
        })
        .collect();
    let code = "    let total = items.iter().filter(|item| item.is_open()).count();\n    println!(\"{total} open\");\n";
    let mut messages = vec![json!({ "role": "system", "content": "You write code.".repeat(200) })];
    loop {
        let body = json!({ "model": "provider/model", "messages": messages, "tools": tools, "stream": true, "max_tokens": 4096 });
        let body = serde_json::to_vec(&body).expect("a value is written");
        if body.len() >= size {
            return body;
        }
        let call = json!({ "path": format!("src/{}.rs", messages.len()), "content": code.repeat(4) });
        messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [{ "id": "call_1", "type": "function", "function": { "name": "tool_1", "arguments": call.to_string() } }] }));
        messages.push(json!({ "role": "tool", "tool_call_id": "call_1", "content": code.repeat(12) }));
    }
}

/// The fastest of many runs.
fn best(mut work: impl FnMut()) -> Duration {
    let run = || {
        let start = Instant::now();
        work();
        start.elapsed()
    };
    std::iter::repeat_with(run).take(500).min().unwrap_or_default()
}

fn main() {
    for size in [2 << 10, 257_000] {
        let body = body(size);
        let scanned = best(|| assert!(scan(&body).is_ok_and(|scan| scan.span(Field::Model).is_some())));
        let parsed = best(|| assert!(serde_json::from_slice::<Value>(&body).is_ok()));
        println!("{} bytes: scan {scanned:?}, parse to a tree {parsed:?}", body.len());
    }
}

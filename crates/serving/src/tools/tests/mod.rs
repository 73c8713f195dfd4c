//! Answers as models write them, read by their families' parsers: examples, properties, hostile ones.

mod bounds;
mod examples;
mod hostile;
mod made;
mod recognition;
mod rules;
mod walks;

use super::registry::{FAMILIES, Family};
use super::{Ask, Ended, Piece, Thinking};
use protocol::{ResponseFormat, Tool, ToolChoice};
use serde_json::{Value, json};

/// What an answer came to.
#[derive(Clone, Debug, PartialEq)]
enum Out {
    Text(String),
    Thought(String),
    Call(String, String),
    Malformed,
}

fn text(text: &str) -> Out {
    Out::Text(text.into())
}

fn thought(text: &str) -> Out {
    Out::Thought(text.into())
}

fn call(name: &str, arguments: &str) -> Out {
    Out::Call(name.into(), arguments.into())
}

fn named(name: &str) -> &'static Family {
    FAMILIES.iter().find(|family| family.name == name).unwrap_or_else(|| panic!("no family {name}"))
}

fn tool(name: &str, parameters: Value) -> Tool {
    Tool { name: name.into(), description: None, parameters: Some(parameters), strict: None, cache: None }
}

fn tools() -> Vec<Tool> {
    vec![
        tool(
            "get_weather",
            json!({"type": "object", "properties": {
                "city": {"type": "string"}, "unit": {"enum": ["c", "f"]}, "days": {"type": "integer"}
            }, "required": ["city"]}),
        ),
        tool(
            "edit",
            json!({"type": "object", "properties": {
                "path": {"type": "string"}, "text": {"type": "string"}, "all": {"type": "boolean"}
            }, "required": ["path", "text"]}),
        ),
        Tool { name: "now".into(), description: None, parameters: None, strict: None, cache: None },
    ]
}

/// How an answer is read.
#[derive(Clone, Copy)]
struct How {
    thinking: Thinking,
    constrained: bool,
    parallel: Option<bool>,
    choice: &'static ToolChoice,
    format: &'static ResponseFormat,
}

const HELD: How = How {
    thinking: Thinking::No,
    constrained: false,
    parallel: None,
    choice: &ToolChoice::Auto,
    format: &ResponseFormat::Text,
};
const LIVE: How = How { constrained: true, ..HELD };

fn ask(how: How, tools: &[Tool]) -> Ask<'_> {
    Ask {
        tools,
        choice: how.choice,
        parallel: how.parallel,
        format: how.format,
        thinking: how.thinking,
        constrained: how.constrained,
    }
}

/// Reads an answer cut into these pieces.
fn read(family: &'static Family, how: How, tools: &[Tool], pieces: &[&str]) -> (Vec<Out>, Ended) {
    let mut parser = family.parser(&ask(how, tools));
    let (mut out, mut settled, mut pushed) = (Vec::new(), 0, 0);
    let mut all = Vec::new();
    for piece in pieces {
        parser.push(piece, &mut out);
        pushed += piece.len();
        for piece in &out {
            if let Piece::Text { text, source_end } | Piece::Reasoning { text, source_end } = piece {
                assert!(!text.is_empty(), "an empty piece");
                assert!(
                    settled + text.len() <= *source_end && *source_end <= pushed,
                    "{piece:?} at {settled}"
                );
                settled = *source_end;
            }
        }
        all.append(&mut out);
    }
    let ended = parser.finish(&mut all);
    (merge(all), ended)
}

fn merge(pieces: Vec<Piece>) -> Vec<Out> {
    let mut out: Vec<Out> = Vec::new();
    let mut index = 0;
    for piece in pieces {
        match (piece, out.last_mut()) {
            (Piece::Text { text: more, .. }, Some(Out::Text(text))) => text.push_str(&more),
            (Piece::Text { text, .. }, _) => out.push(Out::Text(text)),
            (Piece::Reasoning { text: more, .. }, Some(Out::Thought(text))) => text.push_str(&more),
            (Piece::Reasoning { text, .. }, _) => out.push(Out::Thought(text)),
            (Piece::CallStart { index: at, name }, _) => {
                assert_eq!(at, index, "indexes count up");
                index += 1;
                out.push(Out::Call(name, String::new()));
            }
            (Piece::Arguments { index: at, text: more }, Some(Out::Call(_, text))) => {
                assert_eq!(at + 1, index, "arguments of the call that began last");
                text.push_str(&more);
            }
            (Piece::Arguments { .. }, other) => panic!("arguments after {other:?}"),
            (Piece::Malformed { why }, _) => {
                assert!(!why.is_empty() && why.len() < 300, "{why}");
                out.push(Out::Malformed);
            }
        }
    }
    out
}

/// Reads an answer whole, cut in two at each place, and character by character; the outcome must be the same.
#[track_caller]
fn outcome(family: &str, how: How, tools: &[Tool], answer: &str) -> (Vec<Out>, Ended) {
    let family = named(family);
    let whole = read(family, how, tools, &[answer]);
    for (i, _) in answer.char_indices() {
        let cut = read(family, how, tools, &[&answer[..i], &answer[i..]]);
        assert_eq!(cut, whole, "{}: {answer:?} cut at {i}", family.name);
    }
    let mut buffer = [0; 4];
    let single: Vec<String> = answer.chars().map(|c| c.encode_utf8(&mut buffer).to_owned()).collect();
    let single: Vec<&str> = single.iter().map(String::as_str).collect();
    assert_eq!(read(family, how, tools, &single), whole, "{}: {answer:?} by character", family.name);
    whole
}

#[track_caller]
fn check(family: &str, how: How, answer: &str, expected: &[Out]) {
    let (out, ended) = outcome(family, how, &tools(), answer);
    assert_eq!(out, expected, "{family}: {answer:?}");
    let calls = expected.iter().filter(|out| matches!(out, Out::Call(..))).count();
    assert_eq!(ended, Ended { calls: calls as u32, open: false }, "{family}: {answer:?}");
}

/// The same whether the answer can be trusted or not.
#[track_caller]
fn both(family: &str, answer: &str, expected: &[Out]) {
    check(family, HELD, answer, expected);
    check(family, LIVE, answer, expected);
}

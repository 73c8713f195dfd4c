//! Calls that families write are read again as they were, whatever stands in them and however they are cut.

use super::*;
use crate::tools::form::Form;
use proptest::prelude::*;
use serde_json::Map;

/// Characters that readers may trip over.
fn nasty() -> impl Strategy<Value = String> {
    let parts = prop_oneof![
        Just("\""),
        Just("\\"),
        Just("{"),
        Just("}"),
        Just("["),
        Just("]"),
        Just("'"),
        Just("\n"),
        Just("```"),
        Just("<tool_call>"),
        Just("</tool_call>"),
        Just("</think>"),
        Just("<｜tool▁call▁end｜>"),
        Just("[ARGS]"),
        Just("<|tool_call_end|>"),
        Just("[TOOL_CALLS]"),
        Just("é"),
        Just("😀"),
        Just("a b"),
        Just("\u{2028}"),
        Just("\\n"),
        Just("\\u00e9"),
        Just("("),
        Just(")"),
        Just(", "),
        Just(": "),
        Just("{\"name\": \"f\""),
        Just("\t"),
        Just("</function>"),
        Just("\u{1}"),
        Just("1"),
        Just(";"),
        Just("|"),
        Just("<"),
    ];
    prop::collection::vec(parts, 0..8).prop_map(|parts| parts.concat())
}

fn json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (-1000i32..1000).prop_map(|n| Value::from(f64::from(n) / 8.0)),
        nasty().prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 16, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(nasty(), inner, 0..4)
                .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>())),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    prop::collection::btree_map(nasty(), json(), 0..4)
        .prop_map(|fields| Value::Object(fields.into_iter().collect::<Map<_, _>>()))
}

/// A tool with a name that JSON must escape where the form can carry one.
fn declared(form: Form) -> Vec<Tool> {
    let odd = if matches!(form, Form::Tagged { .. } | Form::Bare { .. } | Form::List { .. }) {
        "say \"hi\",\n{é😀}\\"
    } else {
        "naïve-tool.v2"
    };
    let mut tools = tools();
    tools.push(tool(odd, json!({"type": "object"})));
    tools
}

fn cuts(answer: &str, cut: &[prop::sample::Index]) -> Vec<String> {
    let places: Vec<usize> = answer.char_indices().map(|(i, _)| i).collect();
    let mut at: Vec<usize> = cut.iter().map(|index| places[index.index(places.len())]).collect();
    at.extend([0, answer.len()]);
    at.sort_unstable();
    at.windows(2).map(|pair| answer[pair[0]..pair[1]].to_owned()).collect()
}

proptest! {
    #[test]
    fn made_calls_are_read_as_they_were(
        calls in prop::collection::vec((any::<prop::sample::Index>(), object()), 1..4),
        cut in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        constrained: bool,
    ) {
        for family in FAMILIES {
            let tools = declared(family.form);
            let made: Vec<(String, Value)> = calls
                .iter()
                .map(|(tool, arguments)| (tools[tool.index(tools.len())].name.clone(), arguments.clone()))
                // A tag ends at the first one that reads like its end: not every key and text can be written.
                .map(|(name, arguments)| match family.form {
                    Form::Parameters => (name, plain(&arguments)),
                    _ => (name, arguments),
                })
                .collect();
            let texts: Vec<String> = made.iter().map(|(_, arguments)| arguments.to_string()).collect();
            let pairs: Vec<(&str, &str)> =
                made.iter().zip(&texts).map(|((name, _), text)| (name.as_str(), text.as_str())).collect();
            let answer = format!("Now:\n{}\n", family.form.write(&pairs));
            let pieces = cuts(&answer, &cut);
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (out, ended) = read(family, How { constrained, ..HELD }, &tools, &pieces);
            let mut read = out.iter().filter(|out| **out != text("Now:"));
            for (name, arguments) in &made {
                let Some(Out::Call(found, text)) = read.next() else {
                    panic!("{}: {answer:?} came to {out:?}", family.name)
                };
                prop_assert_eq!(found, name, "{}", family.name);
                let found: Value = serde_json::from_str(text).unwrap();
                prop_assert_eq!(&found, arguments, "{}", family.name);
            }
            prop_assert_eq!(read.next(), None, "{}", family.name);
            prop_assert_eq!(ended, Ended { calls: made.len() as u32, open: false });
        }
    }

    #[test]
    fn no_cut_changes_an_outcome_and_no_character_is_lost(
        parts in prop::collection::vec(prop::sample::select(SCRAPS.to_vec()), 0..12),
        cut in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
        which: prop::sample::Index,
        constrained: bool,
        single: bool,
        thinking in prop::sample::select(vec![Thinking::No, Thinking::May, Thinking::Open]),
    ) {
        let family = &FAMILIES[which.index(FAMILIES.len())];
        let answer = parts.concat();
        let how = How { constrained, thinking, parallel: single.then_some(false), ..HELD };
        let tools = tools();
        let whole = read(family, how, &tools, &[&answer]);
        if !answer.is_empty() {
            let pieces = cuts(&answer, &cut);
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(&read(family, how, &tools, &pieces), &whole, "{} {:?}", family.name, answer);
        }
        prop_assert!(!single || whole.1.calls <= 1);
        // Text and thoughts stand in the answer in their order; white space before a call may begin what comes after it.
        let mut rest = answer.as_str();
        for out in &whole.0 {
            if let Out::Text(text) | Out::Thought(text) = out {
                let text = text.trim_start();
                let at = rest.find(text);
                prop_assert!(at.is_some(), "{}: {text:?} of {answer:?}", family.name);
                rest = &rest[at.unwrap_or(0) + text.len()..];
            }
        }
        if single && whole.1.calls > 0 {
            return Ok(());
        }
        // Letters that stand in no call and no marker come out.
        let kept: usize = whole.0.iter().map(|out| match out {
            Out::Text(text) | Out::Thought(text) => text.matches("zzz").count(),
            _ => 0,
        }).sum();
        prop_assert_eq!(kept, answer.matches("zzz").count(), "{} {:?} {:?}", family.name, answer, &whole.0);
    }
}

/// An object whose keys and texts a tag can hold.
fn plain(arguments: &Value) -> Value {
    let Value::Object(fields) = arguments else { return json!({}) };
    let held = fields.iter().filter(|(_, value)| {
        value.as_str().is_none_or(|text| {
            serde_json::from_str::<Value>(text.trim()).is_err() && !text.contains("</function>")
        }) && !value.to_string().contains("None")
    });
    held.enumerate().map(|(i, (_, value))| (format!("key {i}"), value.clone())).collect::<Map<_, _>>().into()
}

const SCRAPS: &[&str] = &[
    "zzz",
    "\n",
    " ",
    "\n\n\n\n\n\n",
    "<tool_call>",
    "</tool_call>",
    "<tools>",
    "</tools>",
    "```json\n",
    "```",
    "```tool_code\n",
    "{\"name\": \"now\", \"arguments\": {}}",
    "{\"name\": \"now\", \"parameters\": {\"a\": \"}\"}}",
    "{\"name\": \"later\", \"arguments\": {}}",
    "{\"name\": \"now\", ",
    "{",
    "}",
    "[",
    "]",
    ",",
    "; ",
    "<think>",
    "</think>",
    "[THINK]",
    "[/THINK]",
    "<",
    "<t",
    "[TOOL_CALLS]",
    "[ARGS]",
    "now",
    "now()",
    "[now(), now(a='x')]",
    "print(",
    "<function=now>",
    "</function>",
    "<parameter=a>",
    "</parameter>",
    "é😀",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "functions.now:0",
    "<|tool_call_argument_begin|>",
    "<|tool_call_end|>",
    "<|tool_calls_section_end|>",
    "<｜tool▁calls▁begin｜>",
    "<｜tool▁call▁begin｜>",
    "<｜tool▁sep｜>",
    "<｜tool▁call▁end｜>",
    "<｜tool▁calls▁end｜>",
    "\n```json\n",
    "{}",
    "\"",
    "<|python_tag|>",
    "<|python_start|>",
    "<|python_end|>",
];

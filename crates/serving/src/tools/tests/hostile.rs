//! Answers made to hurt: deep, long, never ending. None may panic or take more than linear work.

use super::*;

/// Reads an answer in pieces of a few characters; work that is not linear would not end.
fn in_small_pieces(family: &'static Family, how: How, answer: &str) -> (Vec<Out>, Ended) {
    let tools = tools();
    let mut pieces = Vec::new();
    let mut rest = answer;
    while !rest.is_empty() {
        let at = rest.floor_char_boundary(7).max(1);
        let (piece, after) = rest.split_at(at);
        pieces.push(piece);
        rest = after;
    }
    read(family, how, &tools, &pieces)
}

#[test]
fn endless_answers_lose_nothing_and_keep_their_order() {
    const BYTES: usize = 1 << 17;
    for unit in [
        "\n",
        " ",
        "{",
        "[",
        "<",
        "`",
        "<tool_call>",
        "</tool_call>\n",
        "```json\n{",
        "{\"name\": ",
        "{\"name\": \"now\", ",
        "[now(",
        "[TOOL_CALLS]",
        "<|tool_call_begin|>",
        "<think>",
        "{\"name\": \"now\", \"arguments\": {}}\n",
        "<function=now>",
        ";",
        "print(",
        "a",
    ] {
        let tail = unit.repeat(BYTES / unit.len());
        for family in FAMILIES {
            for constrained in [false, true] {
                in_small_pieces(family, How { constrained, ..HELD }, &tail);
            }
        }
    }
}

#[test]
fn long_arguments_stay_open_until_their_end() {
    const BYTES: usize = 1 << 20;
    let starts = [
        ("hermes", "<tool_call>\n{\"name\": \"edit\", \"arguments\": {\"text\": \""),
        ("hermes", "{\"name\": \"edit\", \"arguments\": {\"text\": \""),
        ("mistral-named", "[TOOL_CALLS]edit[ARGS]{\"text\": \""),
        ("pythonic", "[edit(text=\""),
        ("qwen3-coder", "<tool_call>\n<function=edit>\n<parameter=text>\n"),
    ];
    for (family, start) in starts {
        for unit in ["x", "\\n", "</parameter>", "</function>", "</tool_call>", "   "] {
            for constrained in [false, true] {
                let answer = format!("{start}{}", unit.repeat(BYTES / unit.len()));
                let (_, ended) = in_small_pieces(named(family), How { constrained, ..HELD }, &answer);
                assert!(ended.open || unit.starts_with("</"), "{family} {unit}");
            }
        }
    }
}

#[test]
fn deep_arguments_are_malformed_and_no_deeper_than_history_takes() {
    let arguments = |depth: usize| format!("{}1{}", "{\"a\": ".repeat(depth), "}".repeat(depth));
    for (depth, good) in [(90, true), (120, false), (100_000, false)] {
        let answer =
            format!("<tool_call>\n{{\"name\": \"now\", \"arguments\": {}}}\n</tool_call>", arguments(depth));
        let (out, _) = read(named("hermes"), HELD, &tools(), &[&answer]);
        if good {
            assert_eq!(out, [call("now", &arguments(depth))]);
        } else {
            assert_eq!(out, [Out::Malformed, text(&answer)], "{depth}");
        }
    }
}

//! What bounds calls beyond their form: strict schemas where no grammar holds, one call at most, and the white space
//! that stays between the texts around calls.

use super::*;

const ONE: How = How { parallel: Some(false), ..HELD };

/// `get_weather` as a strict tool that takes a city alone, and `now`.
fn strict() -> Vec<Tool> {
    let schema = json!({"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"],
                        "additionalProperties": false});
    vec![Tool { strict: Some(true), ..tool("get_weather", schema) }, tool("now", json!({"type": "object"}))]
}

fn loose() -> Vec<Tool> {
    strict().into_iter().map(|tool| Tool { strict: None, ..tool }).collect()
}

/// Calls of `get_weather` with these arguments as the families write them without a grammar.
fn written(arguments: &str) -> Vec<(&'static str, String)> {
    let object = format!("{{\"name\": \"get_weather\", \"arguments\": {arguments}}}");
    let town = if arguments.contains("city") { "city='Paris'" } else { "town=5" };
    vec![
        ("hermes", object.clone()),
        ("hermes", format!("```json\n{object}\n```")),
        ("hermes", format!("```\n[{object}]\n```")),
        ("hermes", format!("<tools>\n{object}\n</tools>")),
        ("hermes", format!("<tool_call>\n{object}\n</tool_call>")),
        ("hermes", format!("{{\"type\": \"function\", \"function\": {object}}}")),
        ("plain", object.clone()),
        ("llama-3", object.replace("arguments", "parameters")),
        ("mistral", format!("[TOOL_CALLS] [{object}]")),
        ("mistral-named", format!("[TOOL_CALLS]get_weather[ARGS]{arguments}")),
        (
            "kimi",
            format!(
                "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
            ),
        ),
        ("pythonic", format!("[get_weather({town})]")),
        ("gemma", format!("```tool_code\nprint(get_weather({town}))\n```")),
    ]
}

#[test]
fn calls_of_strict_tools_that_no_grammar_held_are_held_to_the_schema() {
    for (family, answer) in written("{\"town\": 5}") {
        let (out, ended) = outcome(family, HELD, &strict(), &answer);
        assert_eq!(out, [Out::Malformed, text(&answer)], "{family}");
        assert_eq!(ended, Ended::default(), "{family}: it is whole, not cut");
        // Without `strict` it is a call as long as it parses.
        let (out, ended) = outcome(family, HELD, &loose(), &answer);
        assert!(matches!(&out[..], [Out::Call(name, _)] if name == "get_weather"), "{family}: {out:?}");
        assert_eq!(ended.calls, 1);
    }
    for (family, answer) in written("{\"city\": \"Paris\"}") {
        let (out, ended) = outcome(family, HELD, &strict(), &answer);
        assert!(matches!(&out[..], [Out::Call(name, _)] if name == "get_weather"), "{family}: {out:?}");
        assert_eq!(ended, Ended { calls: 1, open: false }, "{family}");
    }
}

#[test]
fn habits_beside_a_grammar_are_held_to_the_schema_too() {
    let object = "{\"name\": \"get_weather\", \"arguments\": {\"town\": 5}}";
    for answer in [object.to_owned(), format!("```json\n{object}\n```"), format!("<tools>{object}</tools>")] {
        let (out, _) = outcome("hermes", LIVE, &strict(), &answer);
        assert_eq!(out, [Out::Malformed, text(&answer)]);
    }
}

#[test]
fn a_bad_call_of_several_leaves_the_others() {
    let now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let bad = "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {}}\n</tool_call>";
    let (out, _) = outcome("hermes", HELD, &strict(), &format!("{bad}\n{now}\n{bad}"));
    let expected = [Out::Malformed, text(bad), call("now", "{}"), text("\n"), Out::Malformed, text(bad)];
    assert_eq!(out, expected);
    // The only call that is allowed is the first good one.
    let (out, ended) = outcome("hermes", ONE, &strict(), &format!("{bad}\n{now}\n{now} and {bad}"));
    assert_eq!(out, [Out::Malformed, text(bad), call("now", "{}")]);
    assert_eq!(ended, Ended { calls: 1, open: false });
    let (begin, end) = ("<|tool_call_begin|>functions.", "<|tool_call_end|>");
    let (middle, close) = ("<|tool_call_argument_begin|>{}", "<|tool_calls_section_end|>");
    let first = format!("<|tool_calls_section_begin|>{begin}get_weather:0{middle}{end}");
    let (out, _) = outcome("kimi", HELD, &strict(), &format!("{first}{begin}now:1{middle}{end}{close}"));
    assert_eq!(out[..3], [Out::Malformed, text(&first), call("now", "{}")]);
}

#[test]
fn the_answer_ends_at_the_only_call_that_is_allowed() {
    let now = "{\"name\": \"now\", \"arguments\": {}}";
    let tagged = format!("<tool_call>\n{now}\n</tool_call>");
    let mistral = "[TOOL_CALLS]now[ARGS]{}";
    let kimi = "<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>";
    let llama = now.replace("arguments", "parameters");
    for (family, answer) in [
        ("hermes", format!("{now}\n{now}")),
        ("hermes", format!("{now} and so on")),
        ("hermes", format!("[{now}, {now}]")),
        ("hermes", format!("[{now}, {{\"name\": ")),
        ("hermes", format!("```json\n{now}\n{now}\n```\nDone.")),
        ("hermes", format!("```json\n{now}\n```\n```json\n{now}\n```")),
        ("hermes", format!("<tool_call>\n{now}\n{now}\n</tool_call>")),
        ("hermes", format!("{tagged}\n{tagged}\nDone.\n")),
        ("hermes", format!("{tagged}\n<tool_call>\n{{\"name\": \"no")),
        ("plain", format!("{tagged}\n{tagged}")),
        ("llama-3", format!("{llama}; {llama}")),
        ("pythonic", "[now(), now()] then [now()]".to_owned()),
        ("gemma", "```tool_code\nnow()\nnow()\n```\nDone.".to_owned()),
        ("mistral", format!("[TOOL_CALLS] [{now}, {now}]")),
        ("mistral-named", format!("{mistral}{mistral}")),
        ("kimi", format!("<|tool_calls_section_begin|>{kimi}{kimi}<|tool_calls_section_end|>")),
        ("qwen3-coder", format!("{0}\n{0}", "<tool_call>\n<function=now>\n</function>\n</tool_call>")),
    ] {
        let called = ToolChoice::Named("now".into());
        for (choice, parallel) in [
            (&ToolChoice::Auto, Some(false)),
            (&called, None),
            (&called, Some(true)),
            (&ToolChoice::Required, None),
        ] {
            let mut tools = tools();
            tools.push(tool("later", json!({"type": "object"})));
            for constrained in [false, true] {
                let asked = Ask { choice, parallel, constrained, ..ask(HELD, &tools) };
                let mut out = Vec::new();
                let mut parser = named(family).parser(&asked);
                let mut over = None;
                for (i, c) in answer.char_indices() {
                    parser.push(c.encode_utf8(&mut [0; 4]), &mut out);
                    over = over.or(parser.is_over().then_some(i));
                }
                let ended = parser.finish(&mut out);
                assert_eq!(merge(out), [call("now", "{}")], "{family} {choice:?} {constrained}: {answer:?}");
                assert_eq!(ended, Ended { calls: 1, open: false }, "{family}: {answer:?}");
                assert!(over.is_some(), "{family}: {answer:?} is over before its end");
            }
        }
        // However it is cut.
        let (out, _) = outcome(family, ONE, &tools(), &answer);
        assert_eq!(out, [call("now", "{}")], "{family}: {answer:?}");
        // And not where several are allowed.
        let (out, _) = outcome(family, HELD, &tools(), &answer);
        assert_ne!(out, [call("now", "{}")], "{family}: {answer:?}");
    }
    // Without a call it goes on.
    let (out, _) = outcome("hermes", ONE, &tools(), "No <tool> here.\n");
    assert_eq!(out, [text("No <tool> here.\n")]);
}

#[test]
fn white_space_stays_between_the_texts_around_calls() {
    let now = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let made = || call("now", "{}");
    for (answer, after) in [
        (format!("Before it.\n{now}\nAfter it."), "\nAfter it."),
        (format!("Before it.\n\n{now}\nAfter it.\n"), "\n\nAfter it.\n"),
        (format!("Before it.{now}\n\nAfter it."), "\n\nAfter it."),
        (format!("Before it. {now}After it."), " After it."),
        (format!("Before it.{now}        \n\n\n  After it."), "    After it."),
    ] {
        both("hermes", &answer, &[text("Before it."), made(), text(after)]);
    }
    both("hermes", &format!("A.\n{now}\n\n\n{now}\nB."), &[text("A."), made(), made(), text("\nB.")]);
    both(
        "hermes",
        &format!("A.\n{now}\nB.{now}\n\nC."),
        &[text("A."), made(), text("\nB."), made(), text("\n\nC.")],
    );
    // No stray lines where no text stands on one of the sides.
    both("hermes", &format!("A.\n\n{now}\n\n"), &[text("A."), made()]);
    both("hermes", &format!("\n{now}\n\nB."), &[made(), text("B.")]);
    both("hermes", &format!("A.\n{now}\n{now}\n"), &[text("A."), made(), made()]);
    // A call that cannot be read is text too.
    let bad = "<tool_call>\nnow\n</tool_call>";
    let (out, _) = outcome("hermes", HELD, &tools(), &format!("A.\n{now}\n{bad}"));
    assert_eq!(out, [text("A."), made(), text("\n"), Out::Malformed, text(bad)]);
}

#[test]
fn a_limit_inside_a_call_is_told_as_a_cut() {
    let answer = "<tool_call>\n{\"na";
    for (limited, expected) in
        [(true, "the answer was cut inside a call"), (false, "the answer ends inside a call")]
    {
        let tools = tools();
        let mut parser = named("hermes").parser(&Ask { choice: &ToolChoice::Required, ..ask(LIVE, &tools) });
        let mut out = Vec::new();
        parser.push(answer, &mut out);
        if limited {
            parser.limit();
        }
        assert!(parser.finish(&mut out).open);
        assert_eq!(out[0], Piece::Malformed { why: expected.into() });
    }
}

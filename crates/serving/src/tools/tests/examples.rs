//! Answers in the manner of real ones, by family.

use super::*;

const PARIS: &str = r#"{"city": "Paris"}"#;

#[test]
fn hermes() {
    let paris = call("get_weather", PARIS);
    let tagged =
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";
    both("hermes", tagged, std::slice::from_ref(&paris));
    both("hermes", "Hello.\n\nHow are you?\n", &[text("Hello.\n\nHow are you?\n")]);
    let around = format!("Let me look.\n{tagged}\n{tagged}\nThat was it.\n{tagged}\n");
    let looked = [text("Let me look."), paris.clone(), paris.clone(), text("\nThat was it."), paris.clone()];
    both("hermes", &around, &looked);
    both("hermes", "<tool_call>{\"name\":\"now\"}</tool_call>", &[call("now", "{}")]);
    both(
        "hermes",
        "<tool_call>{\"arguments\": {\"a\": [{}]}, \"name\": \"now\"}</tool_call>",
        &[call("now", "{\"a\": [{}]}")],
    );
    both(
        "hermes",
        "<tool_call>{\"name\": \"now\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
        &[call("now", "{\"a\": 1}")],
    );
    // Braces, quotes, markers, escapes and more in texts.
    let nasty = r#"{"path": "a/{b}.rs", "text": "</tool_call> \"}\\\" <tool_call> é😀 \u00e9\n"}"#;
    both(
        "hermes",
        &format!("<tool_call>\n{{\"name\": \"edit\", \"arguments\": {nasty}}}\n</tool_call>"),
        &[call("edit", nasty)],
    );
    // White space as models write it, several objects in one tag, an array, the end missing.
    both(
        "hermes",
        "<tool_call> { \"name\" : \"now\" , \"arguments\" : { } } </tool_call>",
        &[call("now", "{ }")],
    );
    both(
        "hermes",
        "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
        &[call("now", "{}"), paris.clone()],
    );
    check(
        "hermes",
        HELD,
        "<tool_call>[{\"name\": \"now\", \"arguments\": {}}]</tool_call>",
        &[call("now", "{}")],
    );
    both("hermes", tagged.trim_end_matches("</tool_call>"), std::slice::from_ref(&paris));
    both("hermes", tagged.trim_end_matches("ol_call>"), std::slice::from_ref(&paris));
    // A bracket too many.
    both("hermes", &tagged.replace("}}\n", "}}}\n"), std::slice::from_ref(&paris));
}

#[test]
fn habits_of_qwen_count_as_calls_to_declared_tools() {
    let paris = call("get_weather", PARIS);
    let object = format!("{{\"name\": \"get_weather\", \"arguments\": {PARIS}}}");
    for answer in [
        object.clone(),
        format!("\n{object}\n"),
        format!("```json\n{object}\n```"),
        format!("```\n{object}\n```"),
        format!("<tools>\n{object}\n</tools>"),
        format!("{object}\n</tool_call>"),
        format!("[{object}]"),
        format!("```json\n[{object}]\n```\n"),
        format!("{{\"type\": \"function\", \"function\": {object}}}"),
    ] {
        both("hermes", &answer, std::slice::from_ref(&paris));
        both("plain", &answer, std::slice::from_ref(&paris));
    }
    both(
        "hermes",
        &format!("I look.\n```json\n{object}\n```\nDone."),
        &[text("I look."), paris.clone(), text("\nDone.")],
    );
    both("hermes", &format!("{object}\n{object}"), &[paris.clone(), paris.clone()]);
    // What only looks so stays text, as it was written, without a flag.
    for answer in [
        "{\"name\": \"Bob\", \"arguments\": {}}".to_owned(),
        "{\"city\": \"Paris\"}\n".to_owned(),
        "```json\n{\"answer\": 1}\n```\n".to_owned(),
        "```rust\nfn main() {}\n```".to_owned(),
        format!("Such as {object}"),
        "<tools> is a tag. [1] {x}".to_owned(),
        "a < b, a <t b, `x`, ``, [".to_owned(),
        "[]".to_owned(),
    ] {
        both("hermes", &answer, &[text(&answer)]);
    }
    // A declared tool without arguments, or half a call, is flagged.
    for answer in ["{\"name\": \"now\"}", "```json\n{\"name\": \"now\", \"x\": }\n```"] {
        both("hermes", answer, &[Out::Malformed, text(answer)]);
    }
}

#[test]
fn doubled_braces_count_where_the_template_shows_them_so() {
    let paris = call("get_weather", PARIS);
    let one = format!("{{\"name\": \"get_weather\", \"arguments\": {PARIS}}}");
    // Doubled at both ends, there and at the arguments' end, at the start alone, at the end alone.
    for object in [format!("{{{one}}}"), format!("{{{one}}}}}"), format!("{{{one}"), format!("{one}}}")] {
        for answer in [
            object.clone(),
            format!("\n{object}\n"),
            format!("```json\n{object}\n```"),
            format!("<tool_call>\n{object}\n</tool_call>"),
            format!("<tool_call>\n{object}"),
            format!("<tools>{object}</tools>"),
        ] {
            both("hermes", &answer, std::slice::from_ref(&paris));
            both("hermes-thinking", &answer, std::slice::from_ref(&paris));
        }
        both("hermes", &format!("{object}\n{object}"), &[paris.clone(), paris.clone()]);
        both("hermes", &format!("{object}\nSo."), &[paris.clone(), text("So.")]);
        let fence = format!("I look.\n\n```json\n{object}\n```\n\nDone.");
        both("hermes", &fence, &[text("I look."), paris.clone(), text("\n\nDone.")]);
    }
    // What stands around a call is its own; a third brace is text.
    both("hermes", &format!("{one}}}}}}}"), &[paris.clone(), text("}")]);
    let nested = r#"{{"name": "now", "arguments": {"a": {"b": {}}}}}"#.to_owned();
    both("hermes", &nested, &[call("now", "{\"a\": {\"b\": {}}}")]);
    // Undeclared names and templates' variables stay text, unflagged.
    for answer in [
        "{{\"name\": \"say_hello\", \"arguments\": {}}}",
        "{{ name }}",
        "{{\"city\": \"Paris\"}}",
        "{{",
        "```json\n{{\"name\": \"Bob\"}}\n```",
    ] {
        both("hermes", answer, &[text(answer)]);
    }
    let three = format!("{{{{{one}}}}}");
    both("hermes", &three, &[text(&three)]);
    // What does not parse comes back as it was, with a flag.
    for answer in ["{{\"name\": \"now\", \"arguments\": {x}}}", "{{\"name\": \"now\"}}"] {
        both("hermes", answer, &[Out::Malformed, text(answer)]);
    }
    // Other families do not write so.
    let strange = format!("{{{one}}}");
    both("plain", &strange, &[text(&strange)]);
}

#[test]
fn answers_that_qwen_coder_gave() {
    let paris = call("get_weather", r#"{"city": "Paris", "unit": "celsius"}"#);
    let object = r#"{"name": "get_weather", "arguments": {"city": "Paris", "unit": "celsius"}}"#;
    both("hermes", &format!("{{{object}"), std::slice::from_ref(&paris));
    // A result of its own making after the call.
    let made_up = "{\"temp\": 21, \"sky\": \"clear\"}";
    both("hermes", &format!("{object}\n{made_up}"), &[paris.clone(), text(made_up)]);
    let edit = call("edit", r#"{"path": "main.py", "text": "hello {there}"}"#);
    let line = r#"{"name": "edit", "arguments": {"path": "main.py", "text": "hello {there}"}}"#;
    let lines = format!("{object}\n{line}\n{line}");
    both("hermes", &lines, &[paris.clone(), edit.clone(), edit]);
    let spread = "{\n    \"city\": \"Paris\",\n    \"unit\": \"celsius\"\n  }";
    let fence = format!("```json\n{{\n  \"name\": \"get_weather\",\n  \"arguments\": {spread}\n}}\n```");
    both("hermes", &fence, &[call("get_weather", spread)]);
    let told = format!("Here is how:\n\n{fence}\n\nThis will read it.");
    both(
        "hermes",
        &told,
        &[text("Here is how:"), call("get_weather", spread), text("\n\nThis will read it.")],
    );
    for answer in [
        "```json\n{\n  \"name\": \"say_hello\",\n  \"arguments\": {\n    \"language\": \"French\"\n  }\n}\n```",
        "{\"name\": \"say_hello\", \"arguments\": {\"message\": \"Bonjour\"}}",
        "Use this:\n\n```bash\npytest\n```\n\nIt runs the tests.",
        "```python\nprint(primes[:10])\n```",
    ] {
        both("hermes", answer, &[text(answer)]);
    }
}

#[test]
fn thoughts_are_told_apart() {
    let may = How { thinking: Thinking::May, ..HELD };
    let open = How { thinking: Thinking::Open, ..HELD };
    let tagged = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let family = "hermes-thinking";
    check(family, may, "<think>\nHm. <b>\n\n</think>\n\nFour.", &[thought("Hm. <b>"), text("Four.")]);
    check(family, may, "\n<think>Hm.</think>Four.", &[thought("Hm."), text("Four.")]);
    check(family, may, "<think>\n\n</think>\n\nFour.\n", &[text("Four.\n")]);
    check(family, may, "Four <think>", &[text("Four <think>")]);
    check(family, may, "\n\nFour", &[text("\n\nFour")]);
    check(family, open, "\nHm.\n\nWell.\n</think>\n\nFour.", &[thought("Hm.\n\nWell."), text("Four.")]);
    check(family, open, &format!("Hm.\n</think>\n\n{tagged}"), &[thought("Hm."), call("now", "{}")]);
    check(family, open, "Hm. </thin", &[thought("Hm. </thin")]);
    check(family, open, &format!("{tagged} maybe\n"), &[thought(&format!("{tagged} maybe"))]);
    check(family, HELD, "<think>\nx</think>", &[text("<think>\nx</think>")]);
    check(family, open, "x</think>\n \n\n y", &[thought("x"), text(" \n\n y")]);
    let document = How { format: &ResponseFormat::JsonObject, ..open };
    check(
        family,
        document,
        "Hm.</think>\n\n{\"name\": \"now\"}",
        &[thought("Hm."), text("{\"name\": \"now\"}")],
    );
    check("mistral-named", may, "[THINK]Hm.[/THINK]Four.", &[thought("Hm."), text("Four.")]);
    // Kimi may go from thoughts to calls without a word.
    let section = "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>";
    check("kimi", open, &format!("Hm.{section}"), &[thought("Hm."), call("now", "{}")]);
    check(
        "kimi",
        open,
        &format!("Hm.</think>Yes.{section}"),
        &[thought("Hm."), text("Yes."), call("now", "{}")],
    );
}

#[test]
fn llama() {
    let paris = call("get_weather", PARIS);
    let object = format!("{{\"name\": \"get_weather\", \"parameters\": {PARIS}}}");
    both("llama-3", &object, std::slice::from_ref(&paris));
    both("llama-3", &format!("<|python_tag|>{object}"), std::slice::from_ref(&paris));
    both("llama-3", &format!("I look: {object}\n"), &[text("I look:"), paris.clone()]);
    both("llama-3", &format!("{object}; {object}"), &[paris.clone(), paris.clone()]);
    both("llama-3", &format!("{object}; then"), &[paris.clone(), text("; then")]);
    both(
        "llama-3",
        &format!("{{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": {PARIS}}}"),
        std::slice::from_ref(&paris),
    );
    for answer in ["{\"name\": \"Bob\"}", "{\"a\": 1} and {", "Dear {name}, [x]"] {
        both("llama-3", answer, &[text(answer)]);
    }
    both(
        "llama-4",
        "[get_weather(city=\"Paris\"), now()]",
        &[call("get_weather", "{\"city\":\"Paris\"}"), call("now", "{}")],
    );
    both(
        "llama-4",
        "<|python_start|>[get_weather(city='it\\'s (x]', days=3)]<|python_end|>",
        &[call("get_weather", "{\"city\":\"it's (x]\",\"days\":3}")],
    );
    both("pythonic", "See [1] and [now]: [now()]\n", &[text("See [1] and [now]:"), call("now", "{}")]);
    let unknown = "[now(), later()]";
    both("pythonic", unknown, &[Out::Malformed, text(unknown)]);
}

#[test]
fn mistral() {
    let paris = call("get_weather", PARIS);
    let list = format!(
        "[TOOL_CALLS] [{{\"name\": \"get_weather\", \"arguments\": {PARIS}}}, {{\"name\": \"now\", \"arguments\": {{}}, \"id\": \"bbc5b7ede\"}}]"
    );
    both("mistral", &list, &[paris.clone(), call("now", "{}")]);
    both("mistral", &format!("Well.\n{list}\n"), &[text("Well."), paris.clone(), call("now", "{}")]);
    both("mistral", &list.replace("] [", "]["), &[paris.clone(), call("now", "{}")]);
    let named = format!("[TOOL_CALLS]get_weather[ARGS]{PARIS}[TOOL_CALLS]now[CALL_ID]abc123def[ARGS]{{}}");
    both("mistral-named", &named, &[paris.clone(), call("now", "{}")]);
    both("mistral", &named, &[paris.clone(), call("now", "{}")]);
    // Version 11 has nothing between name and arguments.
    both("mistral-named", &format!("[TOOL_CALLS]get_weather{PARIS}"), std::slice::from_ref(&paris));
    both("mistral-named", "[TOOL_CALL", &[text("[TOOL_CALL")]);
}

#[test]
fn deepseek_and_kimi() {
    let paris = call("get_weather", PARIS);
    let v3 = format!(
        "Ok.\n<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n{PARIS}\n```<｜tool▁call▁end｜>\n<｜tool▁call▁begin｜>function<｜tool▁sep｜>now\n```json\n{{}}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    );
    let v31 = format!(
        "Ok.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{PARIS}<｜tool▁call▁end｜><｜tool▁call▁begin｜>now<｜tool▁sep｜>{{}}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    );
    let expected = [text("Ok."), paris.clone(), call("now", "{}")];
    both("deepseek-v3", &v3, &expected);
    for family in ["deepseek-v3", "deepseek-v3.1"] {
        both(family, &v31, &expected);
        both(family, &v31.replace("<｜tool▁calls▁end｜>", ""), &expected);
        both(family, &v31.replace("<｜tool▁calls▁begin｜>", ""), &expected);
    }
    let kimi = format!(
        "Ok.<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{PARIS}<|tool_call_end|><|tool_call_begin|>functions.now:1<|tool_call_argument_begin|>{{}}<|tool_call_end|><|tool_calls_section_end|>"
    );
    both("kimi", &kimi, &expected);
}

#[test]
fn gemma() {
    let paris = call("get_weather", PARIS);
    let object = format!("{{\"name\": \"get_weather\", \"parameters\": {PARIS}}}");
    both("gemma", &object, std::slice::from_ref(&paris));
    both("gemma", &format!("```json\n{object}\n```"), std::slice::from_ref(&paris));
    both(
        "gemma",
        "Sure!\n```tool_code\nprint(get_weather(city=\"Paris\"))\nnow()\n```",
        &[text("Sure!"), call("get_weather", "{\"city\":\"Paris\"}"), call("now", "{}")],
    );
    both(
        "gemma",
        "```tool_code\n[get_weather(\"Paris\")]\n```",
        &[call("get_weather", "{\"city\":\"Paris\"}")],
    );
    both("gemma", "```tool_code\nnow()\n", &[call("now", "{}")]);
    both("gemma", "```python\nprint(1)\n```", &[text("```python\nprint(1)\n```")]);
}

#[test]
fn qwen3_coder() {
    let answer = "I edit.\n\n<tool_call>\n<function=edit>\n<parameter=path>\nsrc/a.rs\n</parameter>\n<parameter=text>\nfn a() {\n    // </parameter> \"x\"\n}\n\n</parameter>\n<parameter=all>\ntrue\n</parameter>\n</function>\n</tool_call>";
    let edit =
        call("edit", r#"{"path":"src/a.rs","text":"fn a() {\n    // </parameter> \"x\"\n}\n","all":true}"#);
    both("qwen3-coder", answer, &[text("I edit."), edit.clone()]);
    both(
        "qwen3-coder",
        &answer.replace("<tool_call>\n", "").replace("\n</tool_call>", ""),
        &[text("I edit."), edit.clone()],
    );
    both("qwen3-coder", "<tool_call>\n<function=now>\n</function>\n</tool_call>\n", &[call("now", "{}")]);
    both(
        "qwen3-coder",
        "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>",
        &[call("now", "{}")],
    );
}

#[test]
fn what_cannot_be_read_comes_back_whole_and_flagged_once() {
    for (family, answer) in [
        ("hermes", "<tool_call>\n{\"name\": \"later\", \"arguments\": {}}\n</tool_call>"),
        ("hermes", "<tool_call>\nget_weather(Paris)\n</tool_call>"),
        ("hermes", "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": True}}\n</tool_call>"),
        ("hermes", "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": 1}\n</tool_call>"),
        ("hermes", "<tool_call>\n{\"name\": \"now\", \"arguments\": [1]}\n</tool_call>"),
        ("hermes", "<tool_call>\n{\"name\": \"now\", \"arguments\": {\"a\": \"\\ud83d\"}}\n</tool_call>"),
        ("hermes", "<tool_call> is a tag"),
        ("mistral", "[TOOL_CALLS] [{\"name\": \"later\", \"arguments\": {}}]"),
        ("mistral", "[TOOL_CALLS] []"),
        ("mistral-named", "[TOOL_CALLS]later[ARGS]{}"),
        ("kimi", "<|tool_calls_section_begin|><|tool_calls_section_end|>"),
        ("kimi", "<|tool_call_begin|>functions.later:0<|tool_call_argument_begin|>{}<|tool_call_end|>"),
        ("deepseek-v3.1", "<｜tool▁calls▁begin｜>and so on"),
        ("qwen3-coder", "<tool_call>\n<function=later>\n</function>\n</tool_call>"),
        ("qwen3-coder", "<tool_call>\n<function=now>\nx\n</function>\n</tool_call>"),
        ("pythonic", "[get_weather(city=Paris)]"),
        ("llama-3", "{\"name\": \"now\", \"parameters\": {x}}"),
    ] {
        check(family, HELD, answer, &[Out::Malformed, text(answer)]);
        let before = format!("Well: \n{answer}");
        check(family, HELD, &before, &[text("Well: \n"), Out::Malformed, text(answer)]);
    }
    // Good calls around a bad one stand.
    let good = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>";
    let bad = "<tool_call>\n{\"name\": \"later\"}\n</tool_call>";
    let now = call("now", "{}");
    check(
        "hermes",
        HELD,
        &format!("{good}\n{bad}\n{good}"),
        &[now.clone(), Out::Malformed, text(bad), now.clone()],
    );
    check(
        "mistral",
        HELD,
        "[TOOL_CALLS] [{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"x\"}]",
        &[now, Out::Malformed, text(", {\"name\": \"x\"}]")],
    );
}

#[test]
fn an_answer_cut_inside_a_call_says_so() {
    for (family, answer) in [
        ("hermes", "Well.\n<tool_call>\n{\"name\": \"edit\", \"arguments\": {\"path\": \"a\""),
        ("hermes", "{\"name\": \"edit\", \"arguments\": {\"path\": \"a\""),
        ("hermes", "```json\n{\"name\": \"edit\", \"arguments\": {\"path\": \"a\""),
        ("llama-3", "{\"name\": \"edit\", \"parameters\": {\"path\": \"a\""),
        ("pythonic", "[edit(path=\"a\""),
        ("mistral", "[TOOL_CALLS] [{\"name\": \"edit\", \"arguments\": {\"path\": \"a\""),
        ("mistral-named", "[TOOL_CALLS]edit[ARGS]{\"path\": \"a\""),
        ("kimi", "<|tool_call_begin|>functions.edit:0<|tool_call_argument_begin|>{\"path\": \"a\""),
        ("qwen3-coder", "<tool_call>\n<function=edit>\n<parameter=path>\na"),
    ] {
        let (out, ended) = outcome(family, HELD, &tools(), answer);
        assert_eq!(ended, Ended { calls: 0, open: true }, "{family}");
        let all: String =
            out.iter().map(|out| if let Out::Text(text) = out { text.as_str() } else { "" }).collect();
        assert_eq!(all, answer, "{family}");
        assert!(out.contains(&Out::Malformed), "{family}: {out:?}");
        let (out, ended) = outcome(family, LIVE, &tools(), answer);
        assert_eq!(ended, Ended { calls: 0, open: true }, "{family}");
        if matches!(family, "mistral" | "mistral-named" | "kimi") {
            assert_eq!(out, [call("edit", "{\"path\": \"a\"")], "{family}");
        }
    }
    // Cut before anything tells a call, it is text.
    let (out, ended) = outcome("hermes", HELD, &tools(), "{\"na");
    assert_eq!((out, ended), (vec![text("{\"na")], Ended::default()));
}

#[test]
fn arguments_come_as_they_are_made_where_they_can_be_trusted() {
    let tools = tools();
    let mut out = Vec::new();
    let mut parser = named("hermes").parser(&ask(LIVE, &tools));
    parser.push("<tool_call>\n{\"name\": \"edit\", \"arguments\": {\"pa", &mut out);
    let begun = [
        Piece::CallStart { index: 0, name: "edit".into() },
        Piece::Arguments { index: 0, text: "{\"pa".into() },
    ];
    assert_eq!(out, begun);
    out.clear();
    parser.push("th\": \"a\"}}", &mut out);
    assert_eq!(out, [Piece::Arguments { index: 0, text: "th\": \"a\"}".into() }]);
    // And are held where they cannot.
    out.clear();
    let mut parser = named("hermes").parser(&ask(HELD, &tools));
    parser.push("<tool_call>\n{\"name\": \"edit\", \"arguments\": {\"path\": \"a\"}}", &mut out);
    assert_eq!(out, []);
    // Text that may be markup no longer is given at once.
    parser = named("hermes").parser(&ask(HELD, &tools));
    parser.push("{\"city\": ", &mut out);
    assert_eq!(out, [Piece::Text { text: "{\"city\":".into(), source_end: 8 }]);
}

#[test]
fn nothing_is_a_call_where_none_is_asked_for() {
    let answer = "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n";
    for family in FAMILIES.iter().map(|family| family.name) {
        check(family, How { choice: &ToolChoice::None, ..HELD }, answer, &[text(answer)]);
        let (out, ended) = outcome(family, HELD, &[], answer);
        assert_eq!((out, ended), (vec![text(answer)], Ended::default()));
    }
}

#[test]
fn a_document_is_no_call_though_it_looks_like_one() {
    let document = How { format: &ResponseFormat::JsonObject, ..LIVE };
    let answer = "{\"name\": \"now\", \"arguments\": {}}";
    check("hermes", document, answer, &[text(answer)]);
    let tagged = format!("<tool_call>\n{answer}\n</tool_call>");
    check("hermes", document, &tagged, &[call("now", "{}")]);
    let bare = "{\"name\": \"now\", \"parameters\": {}}";
    check("llama-3", document, bare, &[call("now", "{}")]);
    check("llama-3", document, "{\"name\": \"Bob\"}", &[text("{\"name\": \"Bob\"}")]);
}

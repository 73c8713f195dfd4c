//! What a rule lets stand is read as calls.

use super::*;
use crate::grammar::Rule;

/// A text of the rule. `pick` chooses among alternatives and repeats.
fn sample(rule: &Rule, pick: &mut dyn FnMut(usize) -> usize, out: &mut String) {
    match rule {
        Rule::Literal(text) | Rule::Marker(text) => out.push_str(text),
        Rule::Json { schema, .. } => out.push_str(&value(schema)),
        Rule::Regex { .. } => out.push('7'),
        Rule::Lark { .. } => out.push_str("lark"),
        Rule::Text { .. } => out.push_str(["", "Some text.", "\n"][pick(3)]),
        Rule::Sequence(rules) => rules.iter().for_each(|rule| sample(rule, pick, out)),
        Rule::OneOf(rules) => sample(&rules[pick(rules.len())], pick, out),
        Rule::Repeat { rule, least, most } => {
            let most = most.unwrap_or(3).min(least + 3);
            let times = *least + pick((most - least) as usize + 1) as u32;
            (0..times).for_each(|_| sample(rule, pick, out));
        }
    }
}

fn value(schema: &Value) -> String {
    match schema.get("type").and_then(Value::as_str) {
        Some("string") => "\"</tool_call> {\"".replace(" {", "").clone(),
        Some("integer") => "3".into(),
        Some("boolean") => "true".into(),
        Some("object") => {
            let fields = schema.get("properties").and_then(Value::as_object);
            let fields = fields.into_iter().flatten();
            let fields: Vec<_> =
                fields.map(|(name, schema)| format!("\"{name}\": {}", value(schema))).collect();
            format!("{{{}}}", fields.join(", "))
        }
        _ => "\"c\"".into(),
    }
}

fn samples(rule: &Rule) -> Vec<String> {
    let mut all = Vec::new();
    for seed in 0..40usize {
        let mut state = seed;
        let mut pick = |n: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) % n
        };
        let mut out = String::new();
        sample(rule, &mut pick, &mut out);
        all.push(out);
    }
    all
}

#[test]
fn forced_calls_are_read_whole_and_nothing_else_is() {
    let tools = tools();
    for family in FAMILIES {
        for (choice, parallel) in [
            (&ToolChoice::Required, None),
            (&ToolChoice::Required, Some(true)),
            (&ToolChoice::Required, Some(false)),
            (&ToolChoice::Named("edit".into()), Some(true)),
        ] {
            for thinking in [Thinking::No, Thinking::Open, Thinking::May] {
                let ask = Ask {
                    tools: &tools,
                    choice,
                    parallel,
                    format: &ResponseFormat::Text,
                    thinking,
                    constrained: true,
                };
                let rule = family.rule(&ask).unwrap();
                for answer in samples(&rule) {
                    let mut parser = family.parser(&ask);
                    let mut out = Vec::new();
                    parser.push(&answer, &mut out);
                    let ended = parser.finish(&mut out);
                    let out = merge(out);
                    assert!(ended.calls >= 1 && !ended.open, "{}: {answer:?} {out:?}", family.name);
                    for out in &out {
                        match out {
                            Out::Call(name, arguments) => {
                                serde_json::from_str::<serde_json::Map<String, Value>>(arguments).unwrap();
                                assert!(*choice == ToolChoice::Required || name == "edit");
                            }
                            Out::Thought(_) => assert!(family.think.is_some()),
                            Out::Text(_) | Out::Malformed => panic!("{}: {answer:?} {out:?}", family.name),
                        }
                    }
                    let one = parallel != Some(true) || *choice != ToolChoice::Required;
                    assert!(ended.calls <= if one { 1 } else { 16 }, "{}: {answer:?}", family.name);
                }
            }
        }
    }
}

#[test]
fn free_answers_are_read_without_a_fault() {
    let tools = tools();
    let mut calls = 0;
    for family in FAMILIES {
        for parallel in [None, Some(false)] {
            let ask = Ask { parallel, ..ask(LIVE, &tools) };
            let rule = family.rule(&ask).unwrap();
            for answer in samples(&rule) {
                let mut parser = family.parser(&ask);
                let mut out = Vec::new();
                parser.push(&answer, &mut out);
                let ended = parser.finish(&mut out);
                let out = merge(out);
                assert!(!ended.open && !out.contains(&Out::Malformed), "{}: {answer:?} {out:?}", family.name);
                assert!(parallel.is_none() || ended.calls <= 1);
                calls += ended.calls;
            }
        }
    }
    assert!(calls > 300, "{calls}");
}

#[test]
fn nothing_is_constrained_where_nothing_is_asked() {
    let tools = tools();
    for family in FAMILIES {
        assert_eq!(family.rule(&ask(HELD, &[])), None);
        assert_eq!(family.rule(&ask(How { choice: &ToolChoice::None, ..HELD }, &tools)), None);
    }
}

#[test]
fn a_format_alone_is_the_rule_and_with_tools_one_of_two() {
    let format = ResponseFormat::JsonSchema { name: None, schema: json!({"type": "array"}), strict: None };
    let document = Rule::Json {
        schema: json!({"type": "array"}),
        at: "response_format.json_schema.schema".into(),
        exact: true,
    };
    let tools = tools();
    let asked = Ask { format: &format, ..ask(HELD, &[]) };
    assert_eq!(named("hermes").rule(&asked), Some(document.clone()));
    let asked = Ask { format: &format, ..ask(HELD, &tools) };
    let Some(Rule::OneOf(two)) = named("hermes").rule(&asked) else { panic!("no choice") };
    assert_eq!(two[1], document);
    let asked = Ask { format: &format, choice: &ToolChoice::Required, ..ask(HELD, &tools) };
    assert!(!matches!(named("hermes").rule(&asked), Some(Rule::OneOf(_))));
}

#[test]
fn rules_name_where_schemas_stand() {
    let tools = tools();
    let places = |family: &str| {
        fn find(rule: &Rule, out: &mut Vec<String>) {
            match rule {
                Rule::Json { at, .. } => out.push(at.clone()),
                Rule::Sequence(rules) | Rule::OneOf(rules) => rules.iter().for_each(|rule| find(rule, out)),
                Rule::Repeat { rule, .. } => find(rule, out),
                _ => {}
            }
        }
        let mut out = Vec::new();
        find(&named(family).rule(&ask(HELD, &tools)).unwrap(), &mut out);
        out.sort();
        out.dedup();
        out
    };
    let whole = [0, 1, 2].map(|i| format!("tools[{i}].function.parameters"));
    assert_eq!(places("hermes"), whole);
    assert!(places("pythonic").contains(&"tools[0].function.parameters/properties/city".to_owned()));
}

#[test]
fn a_form_tells_which_schemas_it_can_hold_arguments_to() {
    let tool = |schema: Value| Tool { parameters: Some(schema), ..tools().remove(0) };
    let plain = tool(
        json!({"type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}, "b": {"type": "integer", "minimum": 1}}}),
    );
    let bounded = tool(json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 3}}}));
    let either = tool(json!({"anyOf": [{"type": "object"}, {"type": "object", "properties": {}}]}));
    for (family, told) in
        [("qwen3-coder", [true, false, false]), ("hermes", [true; 3]), ("pythonic", [true; 3])]
    {
        let family = named(family);
        assert_eq!([&plain, &bounded, &either].map(|tool| family.enforces(tool)), told, "{}", family.name);
    }
}

#[test]
fn names_that_a_form_cannot_say_are_known_and_what_clients_use_is_fit_everywhere() {
    for family in FAMILIES {
        for name in ["f", "get_weather", "mcp__fs-server__read.file", "ns/tool", "wetter_für_köln", "天气"]
        {
            assert!(family.can_call(name), "{} {name}", family.name);
        }
    }
    for (family, name) in [
        ("qwen3-coder", "a>b"),
        ("qwen3-coder", ""),
        ("pythonic", "f(x)"),
        ("deepseek-v3", "a\nb"),
        ("kimi", "a<|b"),
        ("mistral-named", "a{"),
    ] {
        assert!(!named(family).can_call(name), "{family} {name:?}");
    }
    assert!(named("hermes").can_call("a\"\n{>}"));
}

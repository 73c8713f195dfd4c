//! Families are told from templates, by what these say in their own words.

use super::super::registry::recognised;
use super::*;

#[test]
fn families_are_told_from_templates() {
    let cases = [
        ("hermes", "{%- if tools %}<tools>{{ tools | tojson }} <tool_call>{% endif %}"),
        ("hermes-thinking", "{%- if tools %}<tool_call>{% endif %}{{ '<think>' }}"),
        ("hermes-thinking", "{%- if xml_tools %}<tool_call>{% endif %}<think>"),
        ("plain", "{%- if tools %}<tool_call><arg_key>{% endif %}"),
        ("plain", "{{ '<tool_call> tools' }}"),
        ("plain", "{{ message.tools }}{{ my_tools }}<tool_call>"),
        ("plain-thinking", "{{ '<think>' }}"),
        ("qwen3-coder", "{% for tool in tools %}<tool_call><function=x><parameter=y>{% endfor %}"),
        (
            "llama-3",
            "{% if tools is not none %}<|start_header_id|> {\"name\": x, \"parameters\": y}{% endif %}",
        ),
        ("llama-4", "{% if tools %}<|header_start|>[func_name1(a)]{% endif %}"),
        ("pythonic", "{% if tools %}<start_of_turn>[func_name1(a)]{% endif %}"),
        ("mistral", "{% if tools is not none %}[AVAILABLE_TOOLS][TOOL_CALLS] [{% endif %}"),
        ("mistral-nemo", "{% if tools is not none %}[AVAILABLE_TOOLS]{{ '[TOOL_CALLS][' }}{% endif %}"),
        // Words of these families in the forms of others.
        ("plain", "{% if tools %}<my:tool_call><function=x><parameter=y>{% endif %}"),
        ("plain", "{% if tools %}]<tool_call><invoke name=x>{% endif %}"),
        ("plain", "{% if tools %}in <tool_call></tool_call>{% endif %}<tool_calls>[{}]"),
        ("plain", "{% if tools %}<|start_header_id|><function=f>{parameters}{% endif %}"),
        (
            "llama-3",
            "{% if tools %}{{ \"<|start_header_id|>{\\\"name\\\": x, \\\"parameters\\\": y}\" }}{% endif %}",
        ),
        ("mistral-named", "{% if tools %}[TOOL_CALLS]x[ARGS]y{% endif %}"),
        ("gemma", "<start_of_turn>user"),
        ("deepseek-v3", "{% if tools %}<｜tool▁calls▁begin｜>```json{% endif %}"),
        ("deepseek-v3.1", "{% if tools %}<｜tool▁calls▁begin｜>{% endif %}"),
        // Renders calls and no tools, so that the model must be told of them.
        ("plain-thinking", "<｜tool▁calls▁begin｜>```json{{ message['tool_calls'] }}<think>"),
        ("kimi", "{%- if tools -%}<|tool_calls_section_begin|>{% endif %}"),
        ("plain", ""),
    ];
    for (name, template) in cases {
        assert_eq!(recognised(template, &|_| false).name, name, "{template}");
    }
    assert_eq!(recognised("", &|text| text == "<think>").name, "plain-thinking");
}

#[test]
fn our_own_fixtures_are_recognised() {
    let read = |name: &str| {
        let path = format!("{}/../../fixtures/templates/{name}.jinja", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(path).unwrap()
    };
    for (file, name) in [("chatml", "plain"), ("chatml_tools", "hermes"), ("turns", "gemma")] {
        assert_eq!(recognised(&read(file), &|_| false).name, name, "{file}");
    }
}

#[test]
fn think_blocks_are_told_from_the_end_of_the_prompt() {
    let family = named("hermes-thinking");
    assert_eq!(family.thinking("<|im_start|>assistant\n<think>\n"), Thinking::Open);
    assert_eq!(family.thinking("<|im_start|>assistant\n<think>\n\n</think>\n\n"), Thinking::No);
    assert_eq!(family.thinking("<|im_start|>assistant\n"), Thinking::May);
    assert_eq!(named("hermes").thinking("<think>"), Thinking::No);
}

#[test]
fn markers_are_what_tokens_may_be_hidden_for() {
    assert_eq!(
        named("plain-thinking").markers(),
        ["</think>", "</tool_call>", "</tools>", "<think>", "<tool_call>", "<tools>"]
    );
    let markers = named("deepseek-v3").markers();
    for marker in [
        "<｜tool▁calls▁begin｜>",
        "<｜tool▁call▁begin｜>",
        "<｜tool▁sep｜>",
        "<｜tool▁call▁end｜>",
        "<｜tool▁calls▁end｜>",
    ] {
        assert!(markers.contains(&marker), "{marker}");
    }
    assert!(named("mistral-named").markers().contains(&"[ARGS]"));
}

#[test]
fn the_fallback_prompt_says_tools_calls_and_results() {
    let family = named("plain");
    let tools = vec![tool("f\"\n", json!({"type": "object", "properties": {"a": {"type": "string"}}}))];
    let said = family.instructions(&tools);
    assert!(said.contains(
        r#"{"name": "f\"\n", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}"#
    ));
    assert!(said.contains("<tool_call>"), "{said}");
    assert!(named("gemma").instructions(&tools).contains("\"parameters\": {ARGUMENT_NAME"));
    assert_eq!(family.instructions(&[]), "");
    let made = protocol::ToolCall { id: "i".into(), name: "f".into(), arguments: "{\"a\": 1}".into() };
    let both = family.calls_text(&[made.clone(), made]);
    let one = "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>";
    assert_eq!(both, format!("{one}\n{one}"));
    assert_eq!(family.calls_text(&[]), "");
    assert_eq!(family.result_text(Some("f"), "4"), "<tool_response>\nResult of \"f\":\n4\n</tool_response>");
}

//! Proofs of thoughts on their way through every surface and back: to the service that gave them, and to no other.

use crate::openai::responses::{self, Responding};
use crate::openai::upstream::Speaker;
use crate::openai::{self, Head, chat};
use crate::{
    Delta, FinishReason, GenerateRequest, Maker, StreamWriter, Thought, Usage, anthropic, bedrock, gemini,
};
use serde_json::{Value, json};
use std::collections::HashMap;

const CLAUDE: &str = "anthropic.claude-sonnet-4-5-20250929-v1:0";

/// An answer that thinks, seals a thought, and calls a tool.
fn thoughtful(maker: &Maker) -> Vec<Delta> {
    let call = Delta::ToolCallStart { choice: 0, index: 0, id: "call_1".into(), name: "look".into() };
    let signed =
        Thought::Signed { text: "I think 語.".into(), signature: "SIG+abc/==".into(), maker: maker.clone() };
    let sealed = Thought::Redacted { data: "SEALED==".into(), maker: maker.clone() };
    vec![
        Delta::Reasoning { choice: 0, text: "I think 語.".into() },
        Delta::Thought { choice: 0, thought: signed },
        Delta::Thought { choice: 0, thought: sealed },
        call,
        Delta::ToolCallArguments { choice: 0, index: 0, arguments: "{}".into() },
        Delta::Finish { choice: 0, reason: FinishReason::ToolCalls, stop_text: None },
        Delta::Usage(Usage::default()),
    ]
}

/// The next turn as a client of chat completions sends it.
fn over_chat(maker: &Maker) -> GenerateRequest {
    let mut answer = crate::Answer::new(1);
    thoughtful(maker).into_iter().for_each(|delta| answer.push(delta));
    let head = Head { id: "x".into(), created: 0, model: "m".into() };
    let asked = chat::Asked { choices: 1, logprobs: false, include_usage: true };
    let answer: Value = serde_json::from_str(&chat::completion(&head, &asked, &answer)).unwrap();
    let body = json!({"model": "m", "reasoning_effort": "low",
        "tools": [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}],
        "messages": [{"role": "user", "content": "q"}, answer["choices"][0]["message"],
            {"role": "tool", "tool_call_id": "call_1", "content": "found"}]});
    chat::parse(body.to_string().as_bytes()).unwrap().request
}

/// The same of Messages.
fn over_messages(maker: &Maker) -> GenerateRequest {
    let head = anthropic::Head { id: "msg_1f".into(), model: "m".into(), thoughts: true };
    let mut writer = anthropic::MessageWriter::new(head);
    thoughtful(maker).into_iter().for_each(|delta| writer.push(delta));
    let answer: Value = serde_json::from_str(&writer.finish()).unwrap();
    let body = json!({"model": "m", "max_tokens": 4096, "thinking": {"type": "enabled", "budget_tokens": 1024},
        "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        "messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": answer["content"]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "found"}]}]});
    anthropic::parse(body.to_string().as_bytes()).unwrap().request
}

fn response(maker: &Maker, more: Value) -> Responding {
    let mut body = json!({"model": "m", "input": "q"});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let form = responses::parse(body.to_string().as_bytes()).unwrap().form;
    let head = Head { id: "resp_0123456789abcdef0123456789abcdef".into(), created: 0, model: "m".into() };
    let mut responding = Responding::new(head, form, 1, true);
    thoughtful(maker).into_iter().for_each(|delta| drop(responding.delta(0, delta)));
    responding
}

/// The same of Responses; `kept`: items that the server keeps.
fn next(kept: Vec<Value>, mut input: Vec<Value>) -> GenerateRequest {
    input.push(json!({"type": "function_call_output", "call_id": "call_1", "output": "found"}));
    let body = json!({"model": "m", "input": input, "reasoning": {"effort": "low"},
        "tools": [{"type": "function", "name": "look", "parameters": {"type": "object"}}]});
    let mut asked = responses::parse(body.to_string().as_bytes()).unwrap();
    asked.converse(kept, &HashMap::new()).unwrap();
    asked.request
}

fn over_responses(maker: &Maker) -> GenerateRequest {
    let made = response(maker, json!({"include": ["reasoning.encrypted_content"], "store": false}));
    let mut input = vec![json!({"role": "user", "content": "q"})];
    input.extend(made.object()["output"].as_array().unwrap().clone());
    next(Vec::new(), input)
}

/// What of these proofs stands in the body that goes to each dialect.
fn told(request: &GenerateRequest) -> [[bool; 2]; 4] {
    let router = openai::upstream::write(request, "m", &Speaker::ROUTER, true).unwrap();
    let bodies = [
        anthropic::upstream::write(request, "m").unwrap(),
        bedrock::upstream::write(request, CLAUDE).unwrap(),
        gemini::upstream::write(request, "gemini-3.1-pro").unwrap(),
        router,
    ];
    bodies.map(|body| ["SIG+abc/==", "SEALED=="].map(|proof| body.contains(proof)))
}

#[test]
fn a_proof_goes_back_to_its_maker_from_every_surface_and_to_no_other() {
    let (yes, no) = ([true, true], [false, false]);
    // The first of Google's proofs stands at the first call, and there is one call.
    let (claude, gemini) = ([yes, yes, no, yes], [no, no, [true, false], yes]);
    let other = Maker::Other("openai-responses-v1".into());
    for (maker, expected) in [(Maker::Anthropic, claude), (Maker::Google, gemini), (other, [no, no, no, yes])]
    {
        for (surface, request) in [
            ("chat completions", over_chat(&maker)),
            ("messages", over_messages(&maker)),
            ("responses", over_responses(&maker)),
        ] {
            assert_eq!(told(&request), expected, "{surface} {maker:?}");
        }
    }
}

#[test]
fn anthropics_dialect_thinks_on_behind_a_call_only_with_proofs_of_its_own() {
    for (maker, thinks) in [(Maker::Anthropic, true), (Maker::Google, false)] {
        let body = anthropic::upstream::write(&over_chat(&maker), "m").unwrap();
        assert_eq!(body.contains(r#""thinking":{"type":"enabled""#), thinks, "{body}");
    }
}

#[test]
fn proofs_of_other_makers_begin_as_what_is_taken_out_of_what_goes_to_anthropic() {
    let head = anthropic::Head { id: "msg_1f".into(), model: "m".into(), thoughts: true };
    let mut writer = anthropic::MessageWriter::new(head);
    thoughtful(&Maker::Google).into_iter().for_each(|delta| writer.push(delta));
    let answer: Value = serde_json::from_str(&writer.finish()).unwrap();
    for proof in [&answer["content"][0]["signature"], &answer["content"][1]["data"]] {
        assert!(proof.as_str().unwrap().starts_with("bXNnX"), "{answer}");
    }
}

#[test]
fn responses_keep_the_proofs_whether_the_client_or_the_server_keeps_the_conversation() {
    let of = |request: &GenerateRequest| {
        let crate::Input::Chat(messages) = &request.input else { panic!("no chat") };
        (messages[1].reasoning.clone(), messages[1].thoughts.clone())
    };
    let maker = Maker::Anthropic;
    let mut answer = crate::Answer::new(1);
    thoughtful(&maker).into_iter().for_each(|delta| answer.push(delta));
    let expected = (Some("I think 語.".to_owned()), answer.choices.remove(0).thoughts);
    assert_eq!(of(&over_responses(&maker)), expected);
    // Kept here, nothing asked for: the client is not shown what it did not ask for.
    for more in [json!({}), json!({"reasoning": {"summary": "auto"}})] {
        let made = response(&maker, more);
        let shown = made.object()["output"].clone();
        assert!(shown[0].get("encrypted_content").is_none(), "{shown}");
        let mut kept = vec![json!({"role": "user", "content": "q"})];
        kept.extend(made.items());
        assert_eq!(of(&next(kept, Vec::new())), expected);
    }
}

#[test]
fn thoughts_that_may_not_be_read_are_an_item_without_parts() {
    let body = json!({"model": "m", "input": "q", "include": ["reasoning.encrypted_content"]});
    let form = responses::parse(body.to_string().as_bytes()).unwrap().form;
    let head = Head { id: "resp_0123456789abcdef0123456789abcdef".into(), created: 0, model: "m".into() };
    let mut responding = Responding::new(head, form, 1, true);
    let sealed = Thought::Redacted { data: "SEALED==".into(), maker: Maker::Anthropic };
    let mut events = responding.delta(0, Delta::Thought { choice: 0, thought: sealed.clone() });
    events.extend(responding.delta(0, Delta::Text { choice: 0, text: "a".into(), logprobs: Vec::new() }));
    let names: Vec<_> = events.iter().filter_map(|event| event.name).skip(2).take(3).collect();
    let expected = ["response.output_item.added", "response.output_item.done", "response.output_item.added"];
    assert_eq!(names, expected);
    let item = responding.object()["output"][0].clone();
    assert_eq!((&item["type"], &item["content"]), (&json!("reasoning"), &json!([])));
    let next = next(
        vec![json!({"role": "user", "content": "q"}), item],
        vec![json!({"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"})],
    );
    let crate::Input::Chat(messages) = &next.input else { panic!("no chat") };
    assert_eq!((&messages[1].reasoning, messages[1].thoughts.as_slice()), (&None, [sealed].as_slice()));
}

#[test]
fn what_another_service_sealed_is_left_out_of_a_conversation_that_moves() {
    let input = vec![
        json!({"role": "user", "content": "q"}),
        json!({"type": "reasoning", "id": "rs_1", "encrypted_content": "gAAAAABo",
            "summary": [{"type": "summary_text", "text": "Hm."}]}),
        json!({"type": "function_call", "call_id": "call_1", "name": "look", "arguments": "{}"}),
    ];
    let request = next(Vec::new(), input);
    let crate::Input::Chat(messages) = &request.input else { panic!("no chat") };
    assert_eq!((messages[1].reasoning.as_deref(), messages[1].thoughts.len()), (Some("Hm."), 0));
}

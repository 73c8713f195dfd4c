//! Script models from end to end: the right turn for each request, through the real engine, template and parsers.

#![allow(clippy::unwrap_used, clippy::print_stderr)]

mod common;

use base::{Bytes, SystemClock};
use common::until;
use futures::StreamExt;
use protocol::{
    Answer, Backend, Choice, Delta, Error, ErrorKind, FinishReason, GenerateRequest, Input, Message, Prompt,
    ReasoningEffort, ResponseFormat, Role, Sampling, Tool, ToolCall, ToolChoice,
};
use serde_json::json;
use serving::{Local, LocalConfig, ModelSource};
use std::path::Path;
use std::sync::Arc;

fn source(path: &Path) -> ModelSource {
    ModelSource { path: path.to_owned(), ..common::source("m") }
}

struct Stage {
    local: Arc<Local>,
    _folder: tempfile::TempDir,
}

fn stage_with(script: &serde_json::Value, config: LocalConfig) -> Stage {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.json");
    std::fs::write(&path, script.to_string()).unwrap();
    let config = LocalConfig { threads: Some(1), kv_memory: Some(Bytes(8 << 20)), ..config };
    let local = Local::new(config, Arc::new(SystemClock::default())).unwrap();
    local.load_script(source(&path)).unwrap();
    Stage { local, _folder: folder }
}

fn stage(script: serde_json::Value) -> Stage {
    stage_with(&script, LocalConfig::default())
}

fn refused(script: &str, expected: &[&str]) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.json");
    std::fs::write(&path, script).unwrap();
    let local = Local::new(
        LocalConfig { threads: Some(1), ..LocalConfig::default() },
        Arc::new(SystemClock::default()),
    )
    .unwrap();
    let error = local.load_script(source(&path)).unwrap_err().to_string();
    for part in expected {
        assert!(error.contains(part), "{part:?} is not in: {error}");
    }
}

fn chat(messages: Vec<Message>) -> GenerateRequest {
    GenerateRequest {
        model: "m".into(),
        input: Input::Chat(messages),
        choices: 1,
        ..GenerateRequest::default()
    }
}

fn user(text: &str) -> Message {
    Message::text(Role::User, text)
}

impl Stage {
    async fn ask(&self, request: GenerateRequest) -> Result<Answer, Error> {
        let mut answer = Answer::new(request.choices);
        let mut deltas = self.local.generate(request).await?;
        while let Some(delta) = deltas.next().await {
            answer.push(delta?);
        }
        assert!(answer.is_complete());
        Ok(answer)
    }

    async fn one(&self, request: GenerateRequest) -> Choice {
        self.ask(request).await.unwrap().choices.remove(0)
    }
}

fn said(choice: &Choice) -> Message {
    Message {
        tool_calls: choice.tool_calls.clone(),
        reasoning: Some(choice.reasoning.clone()).filter(|reasoning| !reasoning.is_empty()),
        ..Message::text(Role::Assistant, choice.text.clone())
    }
}

fn result(call: &ToolCall, text: &str) -> Message {
    Message { tool_call_id: Some(call.id.clone()), ..Message::text(Role::Tool, text) }
}

fn tool(name: &str, parameters: serde_json::Value) -> Tool {
    Tool {
        name: name.into(),
        description: Some("Does it.".into()),
        parameters: Some(parameters),
        strict: None,
        cache: None,
    }
}

fn path_tools() -> Vec<Tool> {
    let schema = json!({
        "type": "object",
        "properties": {"path": {"type": "string"}, "line": {"type": "integer"}},
        "required": ["path"],
        "additionalProperties": false,
    });
    vec![tool("read", schema)]
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_follow_the_conversation_and_the_second_prompt_is_found_in_the_cache() {
    let stage = stage(json!({"turns": [{"text": "Good day! 🌍 Zażółć"}, {"text": "And good night."}]}));
    let mut messages = vec![Message::text(Role::System, "Be polite. ".repeat(30)), user("Hello")];
    let first = stage.ask(chat(messages.clone())).await.unwrap();
    let choice = &first.choices[0];
    assert_eq!((choice.text.as_str(), choice.finish), ("Good day! 🌍 Zażółć", Some(FinishReason::Stop)));
    messages.extend([said(choice), user("Bye")]);
    let second = stage.ask(chat(messages)).await.unwrap();
    assert_eq!(second.choices[0].text, "And good night.");
    let (first, second) = (first.usage.unwrap(), second.usage.unwrap());
    assert_eq!(first.cached_tokens, 0);
    // All that was computed then is found now: prompt and answer but for its last token, whose KV nobody needed.
    assert!(
        second.cached_tokens >= first.prompt_tokens + first.completion_tokens - 2,
        "{first:?} {second:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn every_max_tokens_cuts_the_same_answer() {
    let text = "One two three, four five: six; {\"seven\": 8}.";
    let stage = stage(json!({"turns": [{"text": text}]}));
    let whole = stage.ask(chat(vec![user("Count")])).await.unwrap().usage.unwrap().completion_tokens;
    for most in 0..=whole + 1 {
        let request = GenerateRequest { max_tokens: Some(most), ..chat(vec![user("Count")]) };
        let answer = stage.ask(request).await.unwrap();
        let choice = &answer.choices[0];
        assert!(text.starts_with(&choice.text), "{most}: {choice:?}");
        let cut = most < whole;
        let expected = if cut { FinishReason::Length } else { FinishReason::Stop };
        assert_eq!(
            (choice.text.len() < text.len(), choice.finish),
            (cut && most + 1 < whole, Some(expected)),
            "{most}"
        );
        assert_eq!(answer.usage.unwrap().completion_tokens, most.min(whole), "{most}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sampling_does_not_lead_astray_and_logprobs_and_choices_work() {
    let stage = stage(json!({"turns": [{"text": "The same each time."}]}));
    let request = GenerateRequest {
        choices: 3,
        logprobs: Some(2),
        sampling: Sampling { temperature: Some(1.5), seed: Some(7), ..Sampling::default() },
        ..chat(vec![user("Go")])
    };
    let answer = stage.ask(request).await.unwrap();
    for choice in &answer.choices {
        assert_eq!(choice.text, "The same each time.");
        assert!(!choice.logprobs.is_empty());
        assert!(choice.logprobs.iter().all(|token| token.chosen.logprob > -0.01 && token.top.len() == 2));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sessions_at_different_turns_run_at_once() {
    let turns: Vec<_> =
        (0..6).map(|i| json!({"text": format!("This is turn {i}, and it goes on. ").repeat(9)})).collect();
    let stage = stage_with(
        &json!({"context": 2048, "turns": turns}),
        // Too little for all of them: some are preempted and read again.
        LocalConfig { kv_memory: Some(Bytes(16 * 48 * 100)), ..LocalConfig::default() },
    );
    let ask = |session: usize| {
        let stage = &stage;
        async move {
            let mut messages = vec![user(&format!("Session {session} begins here."))];
            for turn in 0..6 {
                let choice = stage.one(chat(messages.clone())).await;
                assert_eq!(
                    choice.text,
                    format!("This is turn {turn}, and it goes on. ").repeat(9),
                    "{session}"
                );
                messages.extend([said(&choice), user(&format!("Go on, {session}."))]);
            }
        }
    };
    futures::future::join_all((0..8).map(ask)).await;
    let idle = || stage.local.stats()[0].engine.as_ref().is_some_and(|engine| engine.running == 0);
    until(idle).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_the_context_ends_by_length_or_is_refused() {
    let stage = stage(json!({"context": 64, "turns": [{"text": "long ".repeat(100)}]}));
    let choice = stage.one(chat(vec![user("Go")])).await;
    assert_eq!(choice.finish, Some(FinishReason::Length));
    assert!(choice.text.starts_with("long long") && choice.text.len() < 500);
    let error = stage.ask(chat(vec![user(&"word ".repeat(200))])).await.unwrap_err();
    assert_eq!(error.kind, ErrorKind::ContextLength);
}

#[tokio::test(flavor = "multi_thread")]
async fn conditions_pick_turns_and_what_no_turn_answers_is_told() {
    let script = json!({"turns": [
        {"text": "first"},
        {"when": {"system": "title"}, "text": "A title"},
        {"when": {"user": "again", "turn": 1}, "text": "again"},
    ]});
    let stage = stage(script.clone());
    let title = vec![Message::text(Role::System, "You write a title."), user("Hello")];
    assert_eq!(stage.one(chat(title)).await.text, "A title");
    let mut messages = vec![user("Hello")];
    let first = stage.one(chat(messages.clone())).await;
    assert_eq!(first.text, "first");
    messages.extend([said(&first), user("And again, please")]);
    assert_eq!(stage.one(chat(messages.clone())).await.text, "again");
    messages.pop();
    messages.push(user("Something else"));
    let error = stage.ask(chat(messages.clone())).await.unwrap_err();
    assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::InvalidRequest, Some("messages")));
    assert!(error.message.contains("no turn for this request"), "{error:?}");
    let mut script = script;
    script["otherwise"] = json!({"text": "Pardon?"});
    let stage = self::stage(script);
    assert_eq!(stage.one(chat(messages)).await.text, "Pardon?");
    let raw = GenerateRequest { input: Input::Prompt(Prompt::Text("Once".into())), ..chat(Vec::new()) };
    assert_eq!(stage.one(raw).await.text, "first");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_bias_that_takes_the_script_away_still_comes_to_an_end() {
    let stage = stage(json!({"turns": [{"text": "go on and on and on"}]}));
    let other = stage.local.tokenize(protocol::TokenizeRequest {
        model: "m".into(),
        text: "z".into(),
        add_special: false,
    });
    let other = other.await.unwrap()[0].id;
    let request = GenerateRequest {
        sampling: Sampling {
            logit_bias: vec![(other, 100.0)],
            temperature: Some(0.0),
            ..Sampling::default()
        },
        ..chat(vec![user("Go")])
    };
    // The bias wins over the script as over any model, and again over the end: only the limit is left.
    let biased = stage.one(GenerateRequest { max_tokens: Some(5), ..request }).await;
    assert!(biased.text.contains('z'), "{biased:?}");
    assert_eq!(stage.one(chat(vec![user("Go")])).await.text, "go on and on and on");
}

#[tokio::test(flavor = "multi_thread")]
async fn thoughts_come_apart_and_are_left_out_when_none_are_wanted() {
    let stage = stage(json!({"turns": [{"reasoning": "Let me see.", "text": "Four."}]}));
    let answer = stage.ask(chat(vec![user("2+2?")])).await.unwrap();
    let choice = &answer.choices[0];
    assert_eq!((choice.reasoning.trim(), choice.text.as_str()), ("Let me see.", "Four."));
    assert!(answer.usage.unwrap().reasoning_tokens > 0);
    let effort = Some(ReasoningEffort::None);
    let plain =
        stage.ask(GenerateRequest { reasoning_effort: effort, ..chat(vec![user("2+2?")]) }).await.unwrap();
    assert_eq!((plain.choices[0].reasoning.as_str(), plain.choices[0].text.as_str()), ("", "Four."));
    assert_eq!(plain.usage.unwrap().reasoning_tokens, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tool_loop_is_played_with_calls_that_the_real_parser_reads() {
    let arguments = json!({"path": "src/ü {\"x\"}.rs", "line": 3});
    let stage = stage(json!({"turns": [
        {"text": "I look.", "calls": [{"name": "read", "arguments": arguments}, {"name": "read", "arguments": {"path": "b"}}]},
        {"when": {"result": "not found"}, "text": "It is gone."},
        {"text": "It says hello."},
    ]}));
    let ask = |messages: &[Message]| GenerateRequest { tools: path_tools(), ..chat(messages.to_vec()) };
    let mut messages = vec![user("What is in it?")];
    let first = stage.ask(ask(&messages)).await.unwrap();
    let choice = &first.choices[0];
    assert_eq!((choice.text.trim(), choice.finish), ("I look.", Some(FinishReason::ToolCalls)));
    let calls: Vec<_> =
        choice.tool_calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
    let expected = [("read", r#"{"path": "src/ü {\"x\"}.rs", "line": 3}"#), ("read", r#"{"path": "b"}"#)];
    assert_eq!(calls, expected);
    messages.push(said(choice));
    let mut failed = messages.clone();
    messages.extend([result(&choice.tool_calls[0], "hello"), result(&choice.tool_calls[1], "world")]);
    let second = stage.ask(ask(&messages)).await.unwrap();
    assert_eq!(second.choices[0].text, "It says hello.");
    assert_eq!(second.choices[0].finish, Some(FinishReason::Stop));
    // The turn's calls, rendered again, are the tokens that were said.
    let (first, second) = (first.usage.unwrap(), second.usage.unwrap());
    assert!(
        second.cached_tokens + 2 >= first.prompt_tokens + first.completion_tokens,
        "{first:?} {second:?}"
    );
    failed.extend([result(&choice.tool_calls[0], "not found"), result(&choice.tool_calls[1], "not found")]);
    assert_eq!(stage.one(ask(&failed)).await.text, "It is gone.");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_malformed_call_can_be_said_where_grammars_are_off() {
    let raw = "<tool_call>\n{\"name\": \"read\", \"arguments\": {\"path\": \n</tool_call>";
    let stage = stage(json!({"turns": [{"raw": raw, "constrained": false}]}));
    for choice in [ToolChoice::Auto, ToolChoice::Required] {
        let request = GenerateRequest { tools: path_tools(), tool_choice: choice, ..chat(vec![user("Go")]) };
        let said = stage.one(request).await;
        assert!(said.tool_calls.is_empty() && said.malformed_calls.len() == 1, "{said:?}");
        assert!(said.text.contains("\"arguments\": {\"path\":"), "{said:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_grammar_that_forbids_the_script_wins_and_the_answer_ends() {
    let schema = json!({
        "type": "object",
        "properties": {"a": {"type": "integer"}, "next": {"type": ["object", "null"]}},
        "required": ["a"],
        "additionalProperties": false,
    });
    let format = ResponseFormat::JsonSchema { name: None, schema, strict: None };
    for (text, same) in
        [("{\"a\":12}", true), ("{ \"a\" : 12,\n \"next\" : null }", true), ("No JSON at all", false)]
    {
        let stage = stage(json!({"turns": [{"text": text}]}));
        for temperature in [0.0, 1.0] {
            let request = GenerateRequest {
                response_format: format.clone(),
                sampling: Sampling { temperature: Some(temperature), seed: Some(1), ..Sampling::default() },
                max_tokens: Some(600),
                ..chat(vec![user("Go")])
            };
            let choice = stage.one(request).await;
            assert_eq!(choice.finish, Some(FinishReason::Stop), "{choice:?}");
            let document: serde_json::Value = serde_json::from_str(&choice.text).unwrap();
            assert!(document["a"].is_i64(), "{document}");
            if same {
                assert_eq!(document, serde_json::from_str::<serde_json::Value>(text).unwrap());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn parameters_that_allow_no_object_are_refused_where_they_stand() {
    let stage = stage(json!({"turns": [{"text": "Hm."}]}));
    for schema in [json!({"type": "string"}), json!({"anyOf": [{"type": "null"}, {"const": 1}]})] {
        let tools = [path_tools(), vec![tool("odd", schema)]].concat();
        let error = stage.ask(GenerateRequest { tools, ..chat(vec![user("Go")]) }).await.unwrap_err();
        assert_eq!(error.param.as_deref(), Some("tools[1].function.parameters"), "{error}");
        assert!(error.message.contains("must be an object"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_schema_true_takes_any_value_and_false_is_refused() {
    let stage = stage(json!({"turns": [{"text": "[1,{\"a\":null}]"}]}));
    let asked = |schema: bool, strict: Option<bool>| {
        let format = ResponseFormat::JsonSchema { name: None, schema: schema.into(), strict };
        GenerateRequest { response_format: format, ..chat(vec![user("Go.")]) }
    };
    for strict in [None, Some(true)] {
        let said = stage.one(asked(true, strict)).await.text;
        assert_eq!(serde_json::from_str::<serde_json::Value>(&said).unwrap(), json!([1, {"a": null}]));
        let error = stage.ask(asked(false, strict)).await.expect_err("refused");
        assert_eq!(error.param.as_deref(), Some("response_format.json_schema.schema"), "{error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_choice_of_texts_with_signs_of_patterns_is_said_as_it_is() {
    let texts = ["1+1 (a|b)\\n", "#x ~y &z -w", "{\"$\": [^/]}", "zwei\nZeilen ü."];
    for text in texts {
        let body =
            json!({"model": "m", "messages": [{"role": "user", "content": "Go."}], "guided_choice": texts});
        let read = protocol::openai::chat::parse(body.to_string().as_bytes()).unwrap();
        let stage = stage(json!({"turns": [{"text": text}]}));
        assert_eq!(stage.one(read.request).await.text, text);
    }
    let stage = stage(json!({"turns": [{"text": "neither"}]}));
    let body =
        json!({"model": "m", "messages": [{"role": "user", "content": "Go."}], "guided_choice": texts});
    let read = protocol::openai::chat::parse(body.to_string().as_bytes()).unwrap();
    assert!(texts.contains(&stage.one(read.request).await.text.as_str()));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_a_forced_call_forbids_is_lost_and_the_call_ends_without_a_limit() {
    for raw in [
        "{\"name\": \"read\", \"arguments\": {\"line\": 5}}",
        "No call.",
        "<think>\nI muse.",
        "<think>\n\n</think>\n\nNo.",
    ] {
        let stage = stage(json!({"turns": [{"raw": raw}]}));
        for seed in 0..4 {
            let request = GenerateRequest {
                tools: path_tools(),
                tool_choice: ToolChoice::Required,
                sampling: Sampling { temperature: Some(1.0), seed: Some(seed), ..Sampling::default() },
                ..chat(vec![user("Go")])
            };
            let answer = stage.ask(request).await.unwrap();
            assert_eq!(answer.choices[0].finish, Some(FinishReason::ToolCalls), "{raw} {answer:?}");
            assert_eq!(answer.choices[0].tool_calls.len(), 1, "{raw}");
            let tokens = answer.usage.unwrap().completion_tokens;
            assert!(tokens < 200, "{raw}: {tokens} tokens");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_pace_holds_back_each_token_and_a_reader_that_leaves_ends_it() {
    let stage = stage(json!({"pace": 50, "turns": [{"text": "slow ".repeat(2000)}]}));
    let mut deltas = stage.local.generate(chat(vec![user("Go")])).await.unwrap();
    while let Some(delta) = deltas.next().await {
        if let Delta::Text { text, .. } = delta.unwrap() {
            assert!(text.len() < 20, "pieces come one by one: {text:?}");
            break;
        }
    }
    drop(deltas);
    let idle = || stage.local.stats()[0].engine.as_ref().is_some_and(|engine| engine.running == 0);
    until(idle).await;
}

#[test]
fn a_bad_script_is_refused_with_its_place() {
    refused("{\"turns\": [{\"tex\": \"a\"}]}", &["s.json", "unknown field `tex`", "line 1"]);
    refused("{\"turns\": [{\"text\": \"a\"}], \"template\": \"none.jinja\"}", &["cannot read", "none.jinja"]);
    refused("{\"turns\": [{\"text\": \"a\"}], \"model\": \"none.gguf\"}", &["none.gguf"]);
    refused("{\"turns\": [{\"raw\": \"a<|im_end|>b\"}]}", &["turns[0]", "goes on after a token that ends"]);
}

#[test]
fn a_template_that_cannot_show_a_turn_is_told() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("t.jinja"), common::TEMPLATE).unwrap();
    let path = folder.path().join("s.json");
    let script = json!({"template": "t.jinja", "turns": [{"text": "a"}, {"calls": [{"name": "f"}]}]});
    std::fs::write(&path, script.to_string()).unwrap();
    let config = LocalConfig { threads: Some(1), ..LocalConfig::default() };
    let local = Local::new(config, Arc::new(SystemClock::default())).unwrap();
    let error = local.load_script(source(&path)).unwrap_err().to_string();
    assert!(error.contains("turns[1]") && error.contains("knows no tool calls"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_real_models_tokenizer_and_template_can_be_borrowed() {
    let Some(models) = std::env::var_os("HEARTH_TEST_MODELS") else {
        eprintln!(
            "skipped: a_real_models_tokenizer_and_template_can_be_borrowed (HEARTH_TEST_MODELS is not set)"
        );
        return;
    };
    let model = Path::new(&models).join("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf");
    let stage = stage(json!({"model": model, "turns": [
        {"text": "Zażółć 🌍"}, {"text": "I look.", "calls": [{"name": "read", "arguments": {"path": "a"}}]},
    ]}));
    let mut messages = vec![user("Hello")];
    let first = stage.one(chat(messages.clone())).await;
    assert_eq!((first.text.as_str(), first.finish), ("Zażółć 🌍", Some(FinishReason::Stop)));
    messages.extend([said(&first), user("Look")]);
    let second = stage.one(GenerateRequest { tools: path_tools(), ..chat(messages) }).await;
    assert_eq!(second.tool_calls[0].arguments, "{\"path\": \"a\"}");
}

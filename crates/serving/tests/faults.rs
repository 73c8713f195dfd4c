//! Faults that other servers were reported for, one test each, through the whole crate: calls cut at every token, calls
//! that are none, text and call at once, emoji and stop texts inside arguments, one end for each answer.

#![allow(clippy::unwrap_used)]

mod common;

use base::{Bytes, SystemClock};
use common::replay::{MARKS, gather, replay};
use common::{chat, until};
use futures::StreamExt;
use protocol::{Backend, Choice, Delta, FinishReason, GenerateRequest, Role, Sampling, Tool, ToolChoice};
use serde_json::{Value, json};
use serving::{Local, LocalConfig, ModelSource};
use std::path::Path;
use std::sync::Arc;

const HI: &[(Role, &str)] = &[(Role::User, "hi")];

fn tool(name: &str, argument: &str) -> Tool {
    let parameters = json!({
        "type": "object", "properties": {(argument): {"type": "string"}}, "required": [argument],
        "additionalProperties": false,
    });
    Tool {
        name: name.into(),
        description: Some("It.".into()),
        parameters: Some(parameters),
        strict: None,
        cache: None,
    }
}

fn with_tool(request: GenerateRequest) -> GenerateRequest {
    GenerateRequest { tools: vec![tool("look", "at")], ..request }
}

fn call(at: &str) -> String {
    format!("<tool_call>\n{{\"name\": \"look\", \"arguments\": {{\"at\": \"{at}\"}}}}\n</tool_call>")
}

/// Tokens that the replaying model takes to say a text: a mark is one, a byte is one.
fn said(text: &str) -> u32 {
    let marks: usize = MARKS.iter().map(|mark| text.matches(mark).count() * (mark.len() - 1)).sum();
    (text.len() - marks) as u32
}

/// The odd answers of the fixtures, said as fast as they can be.
fn odd_answers() -> (Arc<Local>, tempfile::TempDir) {
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/scripts/odd-answers.json");
    let mut script: Value = serde_json::from_str(&std::fs::read_to_string(fixture).unwrap()).unwrap();
    script.as_object_mut().unwrap().remove("pace");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s.json");
    std::fs::write(&path, script.to_string()).unwrap();
    let config = LocalConfig { threads: Some(1), kv_memory: Some(Bytes(8 << 20)), ..LocalConfig::default() };
    let local = Local::new(config, Arc::new(SystemClock::default())).unwrap();
    local.load_script(ModelSource { path, ..common::source("m") }).unwrap();
    (local, folder)
}

/// What every answer must be, however it came about: its end says what it holds.
fn sound(what: &str, choice: &Choice) {
    let whole = |arguments: &str| serde_json::from_str::<Value>(arguments).is_ok_and(|v| v.is_object());
    let calls = &choice.tool_calls;
    match choice.finish.unwrap() {
        FinishReason::ToolCalls => {
            assert!(
                !calls.is_empty() && calls.iter().all(|call| whole(&call.arguments)),
                "{what}: {choice:?}"
            );
        }
        FinishReason::Stop => assert!(calls.is_empty(), "{what}: {choice:?}"),
        FinishReason::Length => {
            let before = calls.split_last().map_or(&[][..], |(_, before)| before);
            assert!(before.iter().all(|call| whole(&call.arguments)), "{what}: {choice:?}");
        }
        reason => panic!("{what}: {reason:?}"),
    }
    let mut ids: Vec<&str> = calls.iter().map(|call| call.id.as_str()).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), calls.len(), "{what}: ids differ");
    for text in [&choice.text, &choice.reasoning] {
        // The raw text of what is no call is shown, flagged; else no mark is.
        let marked = MARKS.iter().any(|mark| text.contains(mark));
        assert!(!marked || !choice.malformed_calls.is_empty(), "{what}: {choice:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_answers_are_sound_at_every_limit() {
    let (local, _folder) = odd_answers();
    let weather = vec![tool("get_weather", "city")];
    for (word, calls, flags) in [
        ("EMPTY", 0, 0),
        ("THOUGHT", 0, 0),
        ("EMOJI", 0, 0),
        ("MALFORMED", 0, 1),
        ("UNCLOSED", 1, 0),
        ("UNKNOWN", 0, 1),
        ("BARE", 1, 0),
        ("FENCED", 1, 0),
        ("AROUND", 1, 0),
        ("TWO", 2, 0),
    ] {
        let ask = |most: Option<u32>| GenerateRequest {
            tools: weather.clone(),
            max_tokens: most,
            sampling: Sampling { temperature: Some(0.0), ..Sampling::default() },
            ..chat(&[(Role::User, word)])
        };
        let (answer, deltas) = gather(&*local, ask(None)).await.unwrap();
        let whole = &answer.choices[0];
        sound(word, whole);
        assert_eq!(
            (whole.tool_calls.len(), whole.malformed_calls.len()),
            (calls, flags),
            "{word}: {deltas:?}"
        );
        let expected = if calls > 0 { FinishReason::ToolCalls } else { FinishReason::Stop };
        assert_eq!(whole.finish, Some(expected), "{word}: {deltas:?}");
        let tokens = answer.usage.unwrap().completion_tokens;
        for most in 0..=tokens + 1 {
            let at = format!("{word} {most}");
            let (answer, _) = gather(&*local, ask(Some(most))).await.unwrap();
            let cut = &answer.choices[0];
            sound(&at, cut);
            assert_eq!(answer.usage.unwrap().completion_tokens, most.min(tokens), "{at}");
            if most >= tokens {
                assert_eq!((&cut.text, cut.finish), (&whole.text, whole.finish), "{at}");
            }
            if cut.finish == Some(FinishReason::Stop) {
                assert!(most >= tokens, "{at}: {cut:?}");
            }
            // What was told of calls stays so.
            for (early, late) in cut.tool_calls.iter().zip(&whole.tool_calls) {
                assert_eq!(early.name, late.name, "{at}");
                assert!(late.arguments.starts_with(&early.arguments), "{at}: {early:?} {late:?}");
            }
            assert!(cut.tool_calls.len() <= calls, "{at}: {cut:?}");
        }
    }
    until(|| local.stats()[0].engine.unwrap().pages.held == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_model_that_ends_inside_a_call_has_stopped_and_one_that_is_cut_there_has_not() {
    for half in [
        "{\"name\": \"look\", \"arguments\": {\"at\": \"th",
        "```json\n{\"name\": \"look\", \"arguments\": {",
    ] {
        let world = replay("chatml_tools.jinja", &[half]);
        let (answer, deltas) = gather(&*world.local, with_tool(chat(HI))).await.unwrap();
        let choice = &answer.choices[0];
        assert_eq!((choice.text.as_str(), choice.tool_calls.len()), (half, 0), "{deltas:?}");
        assert_eq!(choice.malformed_calls.len(), 1, "{deltas:?}");
        assert_eq!(choice.finish, Some(FinishReason::Stop), "{half}");
        let cut = GenerateRequest { max_tokens: Some(said(half)), ..with_tool(chat(HI)) };
        let (answer, _) = gather(&*world.local, cut).await.unwrap();
        assert_eq!(answer.choices[0].text, half);
        assert_eq!(answer.choices[0].finish, Some(FinishReason::Length), "{half}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn emoji_quotes_and_stop_texts_inside_arguments_come_through_whole() {
    let at = "👩‍👩‍👧‍👦 \\\"STOP\\\" \\\\ {[}] \\n </tool_call Zażółć 東京 🗼";
    let text = format!("Look. 🗼\n{}", call(at));
    let world = replay("chatml_tools.jinja", &[&text]);
    for choice in [ToolChoice::Auto, ToolChoice::Required] {
        // What comes before a forced call is not said.
        let told = if choice == ToolChoice::Auto { text.clone() } else { call(at) };
        let world = if choice == ToolChoice::Auto { &world } else { &replay("chatml_tools.jinja", &[&told]) };
        let request = GenerateRequest {
            tool_choice: choice,
            stop: vec!["STOP".into(), "}".into(), "</tool".into(), "👧".into()],
            ..with_tool(chat(HI))
        };
        let (answer, deltas) = gather(&*world.local, request).await.unwrap();
        let said = &answer.choices[0];
        assert_eq!(said.finish, Some(FinishReason::ToolCalls), "{deltas:?}");
        assert_eq!(said.tool_calls.len(), 1);
        let arguments: Value = serde_json::from_str(&said.tool_calls[0].arguments).unwrap();
        let expected: Value = serde_json::from_str(&format!("\"{at}\"")).unwrap();
        assert_eq!(arguments, json!({"at": expected}));
        for delta in &deltas {
            if let Delta::ToolCallArguments { arguments, .. } | Delta::Text { text: arguments, .. } = delta {
                assert!(!arguments.contains('\u{fffd}'), "a character comes whole: {arguments:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn quotes_breaks_and_unicode_in_names_come_through_whole() {
    for template in ["chatml_tools.jinja", "chatml.jinja", "tools+thinking.jinja"] {
        for name in ["say \"é\"", "東京 🗼", "a\nb\t\\c", "</tool_call>", "<|im_end|>", "{{ x }} {% y %}"]
        {
            let parameters = json!({
                "type": "object", "properties": {"a \"q\"\n🗼": {"enum": ["\"é\"\n{"]}}, "required": ["a \"q\"\n🗼"],
                "additionalProperties": false,
            });
            let odd = Tool {
                name: name.into(),
                description: Some(format!("Does {name}.\n\"Quoted\" \\ 漢字 {{")),
                parameters: Some(parameters),
                strict: Some(true),
                cache: None,
            };
            let world = replay(template, &["No."]);
            let request = GenerateRequest {
                tools: vec![odd, tool("look", "at")],
                tool_choice: ToolChoice::Named(name.into()),
                sampling: Sampling { temperature: Some(0.0), ..Sampling::default() },
                ..chat(HI)
            };
            let prompt = world.local.prompt(request.clone()).await.unwrap();
            let ids = prompt.iter().map(|token| token.id).collect();
            let shown = world.local.detokenize("m".into(), ids).await.unwrap();
            assert!(shown.contains(&serde_json::to_string(name).unwrap()), "{template} {name}: {shown}");
            let (answer, deltas) = gather(&*world.local, request).await.unwrap();
            let choice = &answer.choices[0];
            assert_eq!(choice.finish, Some(FinishReason::ToolCalls), "{template} {name}: {deltas:?}");
            assert_eq!(choice.tool_calls[0].name, name, "{template}: {deltas:?}");
            let arguments: Value = serde_json::from_str(&choice.tool_calls[0].arguments).unwrap();
            assert_eq!(arguments, json!({"a \"q\"\n🗼": "\"é\"\n{"}));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn several_answers_with_tools_have_one_end_each_and_calls_of_their_own() {
    let text = format!("{}\n{}", call("a"), call("b"));
    for (text, calls, finish) in
        [(text.as_str(), 2, FinishReason::ToolCalls), ("No call.", 0, FinishReason::Stop)]
    {
        let world = replay("chatml_tools.jinja", &[text]);
        let request = GenerateRequest { choices: 3, ..with_tool(chat(HI)) };
        // Reading to the end checks that each answer ends once.
        let (answer, deltas) = gather(&*world.local, request).await.unwrap();
        let mut ids = Vec::new();
        for choice in &answer.choices {
            assert_eq!((choice.tool_calls.len(), choice.finish), (calls, Some(finish)), "{deltas:?}");
            ids.extend(choice.tool_calls.iter().map(|call| call.id.as_str()));
        }
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), 3 * calls, "no two calls share an id");
        // Indexes count each answer's calls, and a call's arguments follow its start.
        let mut begun = [0u32; 3];
        for delta in &deltas {
            match delta {
                Delta::ToolCallStart { choice, index, .. } => {
                    assert_eq!(*index, begun[*choice as usize], "{deltas:?}");
                    begun[*choice as usize] += 1;
                }
                Delta::ToolCallArguments { choice, index, .. } => {
                    assert_eq!(*index + 1, begun[*choice as usize], "{deltas:?}");
                }
                _ => {}
            }
        }
        assert_eq!(answer.usage.unwrap().completion_tokens, 3 * (said(text) + 1));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_leaves_at_any_delta_leaves_no_page_held() {
    let text = format!("Well.\n{}\n{}", call("a"), call("b"));
    let world = replay("chatml_tools.jinja", &[&text]);
    let request = || GenerateRequest { choices: 2, stop: vec!["zzz".into()], ..with_tool(chat(HI)) };
    let (_, deltas) = gather(&*world.local, request()).await.unwrap();
    for after in (0..deltas.len()).step_by(7) {
        let mut stream = world.local.generate(request()).await.unwrap();
        for _ in 0..after {
            stream.next().await.unwrap().unwrap();
        }
        drop(stream);
        until(|| {
            let stats = world.local.stats()[0].engine.unwrap();
            stats.pages.held == 0 && stats.running + stats.waiting == 0
        })
        .await;
    }
    let (answer, _) = gather(&*world.local, request()).await.unwrap();
    assert_eq!(answer.choices[0].finish, Some(FinishReason::ToolCalls));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_does_not_read_holds_up_neither_the_engine_nor_others() {
    let text = "slow ".repeat(400);
    let world = replay("chatml_tools.jinja", &[&text]);
    let request = || GenerateRequest {
        stop: vec!["STOP".into()],
        logprobs: Some(5),
        max_tokens: Some(1500),
        ..with_tool(chat(HI))
    };
    let mut stuck = Vec::new();
    for _ in 0..4 {
        stuck.push(world.local.generate(request()).await.unwrap());
    }
    let (answer, _) = gather(&*world.local, request()).await.unwrap();
    assert_eq!(answer.choices[0].text.len(), 1500);
    until(|| world.local.stats()[0].engine.unwrap().pages.held == 0).await;
    // What was said meanwhile is there when they do read.
    for stream in stuck {
        let deltas: Vec<_> = stream.collect().await;
        let text: String = deltas
            .iter()
            .filter_map(|delta| match delta {
                Ok(Delta::Text { text, .. }) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        assert_eq!(text, answer.choices[0].text);
        assert!(matches!(deltas.last(), Some(Ok(Delta::Usage(_)))));
    }
}

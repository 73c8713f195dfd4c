//! The crate on real models, where there are any: exact reuse over turns, a crowd, cancellation, embeddings.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

mod common;

use base::{Bytes, SystemClock, Tokens};
use common::{chat, say, until};
use futures::StreamExt;
use models::checkpoint::GenerationDefaults;
use protocol::{
    Backend, Delta, EmbeddingInput, EmbeddingRequest, ErrorKind, GenerateRequest, Role, Sampling,
};
use serving::{KvFormat, LoadFormat, Local, LocalConfig, ModelSource};
use std::path::PathBuf;
use std::sync::Arc;

fn model(test: &str, file: &str) -> Option<PathBuf> {
    let Some(folder) = std::env::var_os("HEARTH_TEST_MODELS") else {
        println!("skipped: {test} (HEARTH_TEST_MODELS is not set)");
        return None;
    };
    Some(PathBuf::from(folder).join(file))
}

fn local(path: PathBuf) -> Arc<Local> {
    local_keeping(path, KvFormat::F16)
}

fn local_keeping(path: PathBuf, kv_format: KvFormat) -> Arc<Local> {
    let config = LocalConfig {
        threads: Some(2),
        kv_memory: Some(Bytes(512 << 20)),
        context: Some(Tokens(2048)),
        kv_format,
        ..LocalConfig::default()
    };
    let local = Local::new(config, Arc::new(SystemClock::default())).unwrap();
    let source = ModelSource {
        id: "m".into(),
        aliases: Vec::new(),
        path,
        format: LoadFormat::AsStored,
        price: None,
        description: String::new(),
        defaults: GenerationDefaults::default(),
    };
    local.load(source, &mut |_, _| ()).unwrap();
    local
}

fn sampled(messages: &[(Role, &str)], seed: u64, max_tokens: u32) -> GenerateRequest {
    let sampling = Sampling { temperature: Some(1.5), seed: Some(seed), ..Sampling::default() };
    GenerateRequest { sampling, max_tokens: Some(max_tokens), ..chat(messages) }
}

async fn turns_reuse(local: &Local) {
    for seed in 0..3 {
        let question = format!("Question {seed}: what do you see from the window? Use odd words, emoji too.");
        let mut history = vec![(Role::User, question)];
        let mut before: Option<u32> = None;
        for turn in 0..3 {
            let messages: Vec<(Role, &str)> =
                history.iter().map(|(role, text)| (*role, text.as_str())).collect();
            let said = say(local, sampled(&messages, seed * 10 + turn, 16)).await.unwrap();
            let usage = said.usage();
            if let Some(whole) = before {
                assert_eq!(usage.cached_tokens, whole, "seed {seed} turn {turn}");
            }
            // A stop token, and the last token of an answer that was cut, have no place in the cache.
            before = Some(usage.prompt_tokens + usage.completion_tokens - 1);
            history.push((Role::Assistant, said.texts[0].clone()));
            history.push((Role::User, format!("And then? ({turn})")));
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_kv_format_that_is_set_is_what_pages_are_made_of() {
    // 30 layers of 3 heads of 64 elements, keys and values, 16 tokens.
    for (format, element, scale) in [(KvFormat::Bf16, 2, 0), (KvFormat::Int8, 1, 4)] {
        let file = "SmolLM2-135M-Instruct.Q4_1.gguf";
        let Some(path) = model("the KV formats", file) else { return };
        let local = local_keeping(path, format);
        turns_reuse(&local).await;
        let stats = local.stats().pop().unwrap().engine.unwrap();
        assert_eq!(stats.pages.bytes, Bytes(30 * 3 * 2 * 16 * (64 * element + scale)), "{format:?}");
        assert!(stats.pages.cached > 0, "{format:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn turns_reuse_prompt_and_answer_to_the_token() {
    for file in ["SmolLM2-135M-Instruct.Q4_1.gguf", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"] {
        let Some(path) = model("turns_reuse_prompt_and_answer_to_the_token", file) else { return };
        turns_reuse(&local(path)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sixteen_sessions_at_once_say_what_each_says_alone() {
    let Some(path) =
        model("sixteen_sessions_at_once_say_what_each_says_alone", "SmolLM2-135M-Instruct.Q4_1.gguf")
    else {
        return;
    };
    let local = local(path);
    let question = |i: u64| format!("Session {i}: name a colour and an animal.");
    let ask = async |i: u64| {
        let question = question(i);
        say(&*local, sampled(&[(Role::User, &question)], i, 12)).await.unwrap().texts.remove(0)
    };
    let crowd = futures::future::join_all((0..16).map(&ask)).await;
    for (i, text) in crowd.iter().enumerate().step_by(5) {
        assert_eq!(*text, ask(i as u64).await, "session {i}");
    }
    until(|| local.stats()[0].engine.unwrap().pages.held == 0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn readers_that_go_away_leave_no_page_held() {
    let Some(path) = model("readers_that_go_away_leave_no_page_held", "SmolLM2-135M-Instruct.Q4_1.gguf")
    else {
        return;
    };
    let local = local(path);
    for tokens in 0..8 {
        let request = GenerateRequest {
            ignore_eos: true,
            choices: 1 + tokens % 2,
            ..sampled(&[(Role::User, "Count to a thousand.")], 1, 500)
        };
        let mut stream = local.generate(request).await.unwrap();
        for _ in 0..tokens {
            assert!(!matches!(stream.next().await, None | Some(Err(_) | Ok(Delta::Usage(_)))));
        }
        drop(stream);
    }
    until(|| local.stats()[0].engine.is_some_and(|e| e.pages.held == 0 && e.counters.cancelled == 8)).await;
    assert_eq!(local.stats()[0].engine.unwrap().running, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn embeddings_have_unit_length_and_long_inputs_are_refused() {
    let Some(path) = model("embeddings_have_unit_length_and_long_inputs_are_refused", "all-MiniLM-L6-v2")
    else {
        return;
    };
    let local = local(path);
    let text = |text: &str| EmbeddingInput::Text(text.into());
    let embed = |inputs| local.embed(EmbeddingRequest { model: "m".into(), inputs });
    let inputs =
        vec![text("a cat sits"), text("a kitten sat down"), text("tax law of 1974"), text("a cat sits")];
    let answer = embed(inputs).await.unwrap();
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| x * y).sum::<f32>();
    let v = &answer.vectors;
    assert!(v.iter().all(|v| (dot(v, v) - 1.0).abs() < 1e-3 && v.len() == 384));
    assert_eq!(v[0], v[3]);
    assert!(dot(&v[0], &v[1]) > dot(&v[0], &v[2]) + 0.2);
    assert_eq!(answer.prompt_tokens, 5 + 6 + 6 + 5);
    let info = local.models().remove(0);
    assert_eq!(info.dimensions, Some(384));

    let long = "word ".repeat(2000);
    let error = embed(vec![text("short"), text(&long)]).await.unwrap_err();
    assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::ContextLength, Some("input[1]")));
    assert!(error.message.contains("2002") && error.message.contains(&info.context.to_string()), "{error}");
    let error = embed(vec![EmbeddingInput::Tokens(vec![u32::MAX])]).await.unwrap_err();
    assert_eq!(error.param.as_deref(), Some("input[0]"));
    let error = say(&*local, chat(&[(Role::User, "hi")])).await.unwrap_err();
    assert_eq!(error.param.as_deref(), Some("model"));
}

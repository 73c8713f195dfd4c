//! The prefix cache under models with sliding windows.

use base::{Bytes, Namespace, RequestId, Tokens, rng};
use engine::{Activity, Config, Engine, EventKind, KvBudget, Request, Sampling};
use kernels::{Cpu, CpuConfig};
use models::{Checkpoint, Loaded};
use std::path::Path;
use std::sync::Arc;

/// Gemma 3 with random weights; every other layer sees 16 tokens.
fn engine() -> Engine {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models/gemma3");
    let checkpoint = Checkpoint::open(&path).expect("the fixture opens");
    let cpu = Cpu::new(CpuConfig { threads: Some(1), ..CpuConfig::default() }).expect("a CPU");
    let loaded = models::load(&checkpoint, cpu, models::LoadFormat::AsStored, &mut |_, _| ());
    let Loaded::Language(model) = loaded.expect("the fixture loads") else { panic!("a language model") };
    let budget = Arc::new(KvBudget::new(Bytes(model.spec().kv.page_bytes().0 * 64)));
    Engine::new(model, budget, Config::default()).expect("the budget holds a sequence")
}

/// How many tokens were cached, and the answer.
fn ask(engine: &mut Engine, prompt: &[u32]) -> (Tokens, Vec<u32>) {
    let request = Request {
        id: RequestId(1),
        namespace: Namespace(0),
        prompt: prompt.to_vec(),
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        choices: 1,
        max_tokens: Tokens(11),
        stop_tokens: Vec::new(),
        ignore_eos: true,
        logprobs: None,
        prompt_logprobs: None,
        constraints: Vec::new(),
        prediction: Vec::new(),
    };
    engine.submit(request).expect("it is taken");
    let mut events = Vec::new();
    while engine.step(&mut events) == Activity::Worked {}
    let (mut cached, mut answer) = (Tokens(0), Vec::new());
    for event in events {
        match event.kind {
            EventKind::Started { cached: found } => cached = found,
            EventKind::Token { id, .. } => answer.push(id),
            _ => {}
        }
    }
    (cached, answer)
}

// https://github.com/ggml-org/llama.cpp/issues/21831: with a sliding window the whole prompt is read again each turn.
#[test]
fn turns_far_beyond_a_sliding_window_are_found_to_the_token_and_answered_as_if_they_were_not() {
    let mut warm = engine();
    let mut history: Vec<u32> = (0..40).map(|p| rng::bits(1, 0, p) as u32 % 160).collect();
    let mut known = 0;
    for turn in 0..7 {
        let (cached, answer) = ask(&mut warm, &history);
        assert_eq!(cached, Tokens(known), "turn {turn}");
        assert_eq!(ask(&mut engine(), &history), (Tokens(0), answer.clone()), "turn {turn}");
        history.extend(answer);
        // The last token of an answer was never an input.
        known = history.len() as u32 - 1;
        history.extend((0..15).map(|p| rng::bits(2, turn, p) as u32 % 160));
    }
    assert!(known > 10 * 16);
}

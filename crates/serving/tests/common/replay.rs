//! A model that says given texts, byte by byte and mark by mark, whatever its logits are limited to, and what tests of
//! calls and thoughts need around it.

use super::{CONTEXT, World, source, tokenizer_with};
use base::{Bytes, SystemClock, Tokens};
use device::{Batch, DeviceError, KvGroup, KvReach, KvSpec, PAGE_TOKENS, PageId};
use futures::StreamExt;
use models::checkpoint::GenerationDefaults;
use models::{LanguageModel, ModelSpec};
use protocol::{Answer, Backend, Delta, Error, GenerateRequest};
use serving::{Local, LocalConfig, TextParts};
use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;
use tokenizer::Tokenizer;

pub const MARKS: [&str; 4] = ["<tool_call>", "</tool_call>", "<think>", "</think>"];

/// A template of the fixtures. `tools+NAME` is the same with tools in front.
pub fn template(name: &str) -> String {
    if let Some(name) = name.strip_prefix("tools+") {
        let tools = "{%- if tools %}{{- '<|im_start|>system\\n' + (tools | tojson) + '<|im_end|>\\n' }}{%- endif %}\n";
        return format!("{tools}{}", template(name));
    }
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/templates");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

/// Says its first text after the first header of an assistant, its second after the second, and so on.
struct Replay {
    spec: ModelSpec,
    tokenizer: Tokenizer,
    turns: Vec<String>,
    slots: HashMap<PageId, [u32; PAGE_TOKENS]>,
    logits: Vec<f32>,
}

impl Replay {
    fn new(turns: &[&str]) -> Self {
        let tokenizer = tokenizer_with(&MARKS);
        let group = KvGroup { reach: KvReach::Full, layers: vec![0], kv_heads: 1, head_dim: 1 };
        Self {
            spec: ModelSpec {
                architecture: "replay".into(),
                vocab: tokenizer.vocab_size(),
                context: Tokens(8 * CONTEXT),
                kv: KvSpec { groups: vec![group], ..KvSpec::default() },
            },
            tokenizer,
            turns: turns.iter().map(|turn| (*turn).to_owned()).collect(),
            slots: HashMap::new(),
            logits: Vec::new(),
        }
    }

    fn next(&self, ids: &[u32]) -> u32 {
        let bytes: Vec<u8> = ids.iter().flat_map(|id| self.tokenizer.token_bytes(*id)).copied().collect();
        let header = b"<|im_start|>assistant\n";
        let end = self.tokenizer.token_id("<|im_end|>").unwrap();
        let places: Vec<usize> =
            (header.len()..=bytes.len()).filter(|at| bytes[..*at].ends_with(header)).collect();
        let Some(at) = places.last() else { return end };
        let turn = self.turns[places.len().min(self.turns.len()) - 1].as_bytes();
        // A thought that the prompt closed is not said.
        let said = bytes[*at..].strip_prefix(b"<think>\n\n</think>\n\n").unwrap_or(&bytes[*at..]);
        let Some(rest) = turn.strip_prefix(said) else { return end };
        let mark = MARKS.iter().find(|mark| rest.starts_with(mark.as_bytes()));
        match (mark, rest.first()) {
            (Some(mark), _) => self.tokenizer.token_id(mark).unwrap(),
            (None, Some(byte)) => u32::from(*byte),
            (None, None) => end,
        }
    }
}

impl LanguageModel for Replay {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn ensure_page(&mut self, _: PageId) -> Result<(), DeviceError> {
        Ok(())
    }

    fn drop_page(&mut self, page: PageId) {
        self.slots.remove(&page);
    }

    fn forward(&mut self, batch: &Batch) -> &[f32] {
        batch.check();
        for copy in &batch.copies {
            let tokens = self.slots[&copy.from];
            self.slots.insert(copy.to, tokens);
        }
        let mut next = HashMap::new();
        for sequence in &batch.sequences {
            let pages = batch.pages(sequence);
            for row in sequence.rows.clone() {
                let position = batch.positions[row] as usize;
                let page = self.slots.entry(pages[position / PAGE_TOKENS]).or_insert([0; PAGE_TOKENS]);
                page[position % PAGE_TOKENS] = batch.ids[row];
            }
            for row in sequence.rows.clone().filter(|row| batch.logit_rows.contains(&(*row as u32))) {
                let ids: Vec<u32> = (0..=batch.positions[row] as usize)
                    .map(|p| self.slots[&pages[p / PAGE_TOKENS]][p % PAGE_TOKENS])
                    .collect();
                next.insert(row as u32, self.next(&ids));
            }
        }
        let vocab = self.spec.vocab as usize;
        self.logits.clear();
        for row in &batch.logit_rows {
            let start = self.logits.len();
            self.logits.resize(start + vocab, 0.0);
            self.logits[start + next[row] as usize] = 30.0;
        }
        &self.logits
    }
}

/// A process with one model, `m`, that speaks a template of the fixtures and says these texts.
pub fn replay(template_name: &str, turns: &[&str]) -> World {
    let config = LocalConfig { threads: Some(1), kv_memory: Some(Bytes(1 << 20)), ..LocalConfig::default() };
    let local = Local::new(config, Arc::new(SystemClock::default())).unwrap();
    let turns: Vec<String> = turns.iter().map(|turn| (*turn).to_owned()).collect();
    let make = move || Replay::new(&turns.iter().map(String::as_str).collect::<Vec<_>>());
    let parts = TextParts {
        tokenizer: tokenizer_with(&MARKS),
        template: Some(template(template_name)),
        defaults: GenerationDefaults::default(),
        model: Box::new(make()),
        reload: Box::new(move || Ok(Box::new(make()))),
    };
    local.attach(source("m"), parts).unwrap();
    World { local, controls: Arc::default() }
}

/// Reads an answer to its end: the whole, and how it came.
pub async fn gather(backend: &dyn Backend, request: GenerateRequest) -> Result<(Answer, Vec<Delta>), Error> {
    let mut answer = Answer::new(request.choices);
    let mut deltas = Vec::new();
    let mut finished = vec![0; request.choices as usize];
    let mut stream = backend.generate(request).await?;
    while let Some(delta) = stream.next().await {
        let delta = delta?;
        assert!(!answer.is_complete(), "nothing comes after usage");
        if let Delta::Finish { choice, .. } = &delta {
            finished[*choice as usize] += 1;
        }
        answer.push(delta.clone());
        deltas.push(delta);
    }
    assert!(answer.is_complete() && finished.iter().all(|n| *n == 1), "one finish per choice: {deltas:?}");
    Ok((answer, deltas))
}

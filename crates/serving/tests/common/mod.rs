//! A small world for the tests of this crate: a model that says what a table tells it, and a tokenizer over bytes with
//! a few merges, so that a model's own tokens differ from those a tokenizer would choose.
#![allow(dead_code, clippy::unwrap_used)]

pub mod replay;

use base::{Bytes, Clock, SystemClock, Tokens};
use device::{Batch, DeviceError, KvGroup, KvReach, KvSpec, PageId};
use futures::StreamExt;
use models::checkpoint::GenerationDefaults;
use models::{LanguageModel, ModelSpec};
use protocol::{Backend, Delta, Error, FinishReason, GenerateRequest, Input, Message, Role, Usage};
use serving::{LoadFormat, Local, LocalConfig, ModelSource, TextParts};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use tokenizer::{GgufVocab, Tokenizer};

pub const CONTEXT: u32 = 512;
const CONTROLS: [&str; 3] = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"];
const MERGES: [&str; 4] = ["h e", "l p", "he lp", "a b"];

/// The 256 byte tokens of byte-level BPE as GPT-2 writes them, then merges, then control tokens.
pub fn tokenizer() -> Tokenizer {
    tokenizer_with(&[])
}

/// The same with more control tokens.
pub fn tokenizer_with(marks: &[&str]) -> Tokenizer {
    let printable = |b: u32| matches!(b, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
    let mut beyond = 0x100;
    let bytes = (0..256u32).map(|b| {
        let c = if printable(b) { b } else { beyond };
        beyond += u32::from(c == beyond);
        char::from_u32(c).unwrap().to_string()
    });
    let mut tokens: Vec<String> = bytes.collect();
    tokens.extend(MERGES.map(|merge| merge.replace(' ', "")));
    let ordinary = tokens.len();
    tokens.extend(marks.iter().chain(&CONTROLS).map(|text| (*text).to_owned()));
    let types = (0..tokens.len()).map(|id| if id < ordinary { 1 } else { 3 }).collect();
    let end = (tokens.len() - 2) as u32;
    Tokenizer::from_gguf(GgufVocab {
        model: "gpt2",
        pre: Some("gpt-2"),
        tokens: tokens.iter().map(|t| t.as_bytes()).collect(),
        types,
        merges: MERGES.to_vec(),
        eos: Some(end),
        ..GgufVocab::default()
    })
    .unwrap()
}

pub const TEMPLATE: &str = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + \
message['content'] + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}\
{{ '<|im_start|>assistant\\n' }}{% endif %}";

/// Looks at a step's batch.
pub type Watch = Box<dyn Fn(&Batch) + Send + Sync>;

/// What tests do to the model while it runs.
#[derive(Default)]
pub struct Controls {
    pub panic: AtomicBool,
    /// The next reload finds another model in the files.
    pub exchanged: AtomicBool,
    pub reloads: AtomicU32,
    pub steps: AtomicU32,
    /// Is shown each step's batch.
    pub watch: OnceLock<Watch>,
    /// Steps that may run; `None`: all.
    permits: Mutex<Option<u32>>,
    changed: Condvar,
}

impl Controls {
    /// From now on a step runs only when allowed.
    pub fn hold(&self) {
        *self.permits.lock().unwrap() = Some(0);
    }

    /// Allows so many more steps.
    pub fn allow(&self, steps: u32) {
        if let Some(permits) = &mut *self.permits.lock().unwrap() {
            *permits += steps;
        }
        self.changed.notify_all();
    }

    /// All steps run again.
    pub fn release(&self) {
        *self.permits.lock().unwrap() = None;
        self.changed.notify_all();
    }

    fn step(&self) {
        let mut permits = self.permits.lock().unwrap();
        while *permits == Some(0) {
            permits = self.changed.wait(permits).unwrap();
        }
        if let Some(permits) = &mut *permits {
            *permits -= 1;
        }
        drop(permits);
        self.steps.fetch_add(1, Ordering::SeqCst);
        if self.panic.swap(false, Ordering::SeqCst) {
            panic!("told to panic");
        }
    }
}

/// Says the token that follows the last one in its table; the end token where the table has none.
pub struct Scripted {
    spec: ModelSpec,
    next: HashMap<u32, u32>,
    end: u32,
    logits: Vec<f32>,
    controls: Arc<Controls>,
}

impl Scripted {
    /// After a line break the model spells `script` byte by byte; its bytes must differ.
    pub fn new(script: &str, controls: Arc<Controls>) -> Self {
        let tokenizer = tokenizer();
        let mut next = HashMap::new();
        let mut last = u32::from(b'\n');
        // Byte tokens have the ids of their bytes, see `tokenizer`.
        for byte in script.bytes() {
            assert!(next.insert(last, u32::from(byte)).is_none(), "the bytes of a script differ");
            last = u32::from(byte);
        }
        let group = KvGroup { reach: KvReach::Full, layers: vec![0], kv_heads: 1, head_dim: 1 };
        Self {
            spec: ModelSpec {
                architecture: "scripted".into(),
                vocab: tokenizer.vocab_size(),
                context: Tokens(CONTEXT),
                kv: KvSpec { groups: vec![group], ..KvSpec::default() },
            },
            next,
            end: tokenizer.token_id("<|im_end|>").unwrap(),
            logits: Vec::new(),
            controls,
        }
    }
}

impl Scripted {
    /// The same with another context, and so another model.
    pub fn with_context(mut self, context: u32) -> Self {
        self.spec.context = Tokens(context);
        self
    }
}

impl LanguageModel for Scripted {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn ensure_page(&mut self, _: PageId) -> Result<(), DeviceError> {
        Ok(())
    }

    fn drop_page(&mut self, _: PageId) {}

    fn forward(&mut self, batch: &Batch) -> &[f32] {
        batch.check();
        self.controls.step();
        if let Some(watch) = self.controls.watch.get() {
            watch(batch);
        }
        let vocab = self.spec.vocab as usize;
        self.logits.clear();
        for row in &batch.logit_rows {
            let last = batch.ids[*row as usize];
            let next = self.next.get(&last).copied().unwrap_or(self.end);
            let start = self.logits.len();
            self.logits.resize(start + vocab, 0.0);
            self.logits[start + next as usize] = 30.0;
        }
        &self.logits
    }
}

pub struct World {
    pub local: Arc<Local>,
    pub controls: Arc<Controls>,
}

pub fn source(id: &str) -> ModelSource {
    ModelSource {
        id: id.into(),
        aliases: vec![format!("{id}-alias")],
        path: "nowhere".into(),
        format: LoadFormat::AsStored,
        price: None,
        description: String::new(),
        defaults: GenerationDefaults::default(),
    }
}

/// A process with one scripted model, `m`.
pub fn world(script: &'static str, config: LocalConfig) -> World {
    world_with_clock(script, config, Arc::new(SystemClock::default()))
}

pub fn world_with_clock(script: &'static str, config: LocalConfig, clock: Arc<dyn Clock>) -> World {
    let config = LocalConfig { threads: Some(1), kv_memory: Some(Bytes(1 << 20)), ..config };
    let local = Local::new(config, clock).unwrap();
    let controls = Arc::new(Controls::default());
    let parts = TextParts {
        tokenizer: tokenizer(),
        template: Some(TEMPLATE.into()),
        defaults: GenerationDefaults::default(),
        model: Box::new(Scripted::new(script, Arc::clone(&controls))),
        reload: {
            let controls = Arc::clone(&controls);
            Box::new(move || {
                controls.reloads.fetch_add(1, Ordering::SeqCst);
                let model = Scripted::new(script, Arc::clone(&controls));
                let exchanged = controls.exchanged.swap(false, Ordering::SeqCst);
                Ok(Box::new(if exchanged { model.with_context(CONTEXT + 1) } else { model }))
            })
        },
    };
    local.attach(source("m"), parts).unwrap();
    World { local, controls }
}

pub fn chat(messages: &[(Role, &str)]) -> GenerateRequest {
    GenerateRequest {
        model: "m".into(),
        input: Input::Chat(messages.iter().map(|(role, text)| Message::text(*role, *text)).collect()),
        choices: 1,
        ..GenerateRequest::default()
    }
}

/// A whole answer.
#[derive(Debug, Default)]
pub struct Said {
    pub texts: Vec<String>,
    pub finishes: Vec<Vec<FinishReason>>,
    pub logprobs: Vec<protocol::Logprobs>,
    pub prompt_logprobs: Vec<protocol::Logprobs>,
    pub usage: Option<Usage>,
    pub error: Option<Error>,
}

impl Said {
    pub fn usage(&self) -> Usage {
        self.usage.expect("the answer is complete")
    }
}

/// Reads an answer to its end and checks the order of its deltas.
pub async fn say(backend: &dyn Backend, request: GenerateRequest) -> Result<Said, Error> {
    let choices = request.choices as usize;
    let mut stream = backend.generate(request).await?;
    let mut said =
        Said { texts: vec![String::new(); choices], finishes: vec![Vec::new(); choices], ..Said::default() };
    while let Some(delta) = stream.next().await {
        assert!(said.usage.is_none() && said.error.is_none(), "nothing comes after the end");
        match delta {
            Err(error) => said.error = Some(error),
            Ok(Delta::Started { .. }) => {
                assert!(said.texts.iter().all(String::is_empty), "started comes first")
            }
            Ok(Delta::PromptLogprobs(entries)) => said.prompt_logprobs.extend(entries),
            Ok(Delta::Text { choice, text, logprobs }) => {
                assert!(said.finishes[choice as usize].is_empty(), "no text after the finish");
                said.texts[choice as usize] += &text;
                said.logprobs.extend(logprobs);
            }
            Ok(Delta::Finish { choice, reason, .. }) => said.finishes[choice as usize].push(reason),
            Ok(Delta::Usage(usage)) => said.usage = Some(usage),
            Ok(other) => panic!("unexpected {other:?}"),
        }
    }
    if said.error.is_none() {
        assert!(said.finishes.iter().all(|f| f.len() == 1), "one finish per choice: {said:?}");
        assert!(said.usage.is_some(), "usage comes last");
    }
    Ok(said)
}

/// Gives way until something is so; other threads make it so.
pub async fn until(mut so: impl FnMut() -> bool) {
    while !so() {
        tokio::task::yield_now().await;
    }
}

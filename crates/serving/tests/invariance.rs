//! Bitwise invariance, whole stack: the logits after a prefix are the same bits whatever the schedule.
//!
//! A recording model stands between engine and device. It follows which token lies in which slot of which page, so for
//! each row of logits it knows the exact prefix they follow, read back through the page table as attention reads it.
//! All schedules (threads, step sizes, crowds, preemption, warm and cold cache, shared and copied pages, drafts) report into
//! one table from prefix to hash of logits: two different hashes for one prefix fail the test. Requests of one kind
//! must also be answered alike, however long they were let run: that a row follows the wrong prefix would show there.

use base::{Bytes, Namespace, RequestId, Tokens, rng};
use device::{Batch, DeviceError, KvFormat, PAGE_TOKENS, PageId};
use engine::{
    Activity, Config, Counters, DraftCost, Engine, Event, EventKind, FinishReason, KvBudget, Request,
    Sampling,
};
use kernels::{Cpu, CpuConfig};
use models::{Checkpoint, LanguageModel, LoadOptions, Loaded, ModelSpec};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

/// What all schedules of one model have in common.
#[derive(Default)]
struct Ledger {
    /// Prefix hash to logits hash.
    logits: HashMap<u64, u64>,
    /// Rows of logits that were compared or noted.
    rows: u64,
    /// The longest answer seen, by kind of request and choice.
    answers: HashMap<(u64, u32), Vec<u32>>,
}

impl Ledger {
    /// Of two answers to one kind of request the shorter begins the longer.
    fn note(&mut self, kind: u64, choice: u32, answer: Vec<u32>) {
        let known = self.answers.entry((kind, choice)).or_default();
        let (short, long) = if known.len() < answer.len() { (&*known, &answer) } else { (&answer, &*known) };
        assert!(long.starts_with(short), "request kind {kind}, choice {choice}: {short:?} and {long:?}");
        if known.len() < answer.len() {
            *known = answer;
        }
    }
}

struct Recording {
    inner: Box<dyn LanguageModel>,
    slots: HashMap<PageId, [u32; PAGE_TOKENS]>,
    ledger: Arc<Mutex<Ledger>>,
}

fn hash(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

impl LanguageModel for Recording {
    fn spec(&self) -> &ModelSpec {
        self.inner.spec()
    }

    fn ensure_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        self.inner.ensure_page(page)
    }

    fn drop_page(&mut self, page: PageId) {
        self.slots.remove(&page);
        self.inner.drop_page(page);
    }

    fn forward(&mut self, batch: &Batch) -> &[f32] {
        batch.check();
        for copy in &batch.copies {
            let tokens = self.slots[&copy.from];
            self.slots.insert(copy.to, tokens);
        }
        let mut prefixes = Vec::new();
        for sequence in &batch.sequences {
            let pages = batch.pages(sequence);
            for row in sequence.rows.clone() {
                let position = batch.positions[row] as usize;
                let slots =
                    self.slots.entry(pages[position / PAGE_TOKENS]).or_insert([u32::MAX; PAGE_TOKENS]);
                slots[position % PAGE_TOKENS] = batch.ids[row];
            }
            for row in sequence.rows.clone().filter(|row| batch.logit_rows.contains(&(*row as u32))) {
                let seen: Vec<u32> = (0..=batch.positions[row] as usize)
                    .map(|p| self.slots[&pages[p / PAGE_TOKENS]][p % PAGE_TOKENS])
                    .collect();
                prefixes.push(hash(seen));
            }
        }
        let vocab = self.inner.spec().vocab as usize;
        let logits = self.inner.forward(batch);
        let mut ledger = self.ledger.lock().expect("no test thread panicked");
        for (prefix, row) in prefixes.into_iter().zip(logits.chunks(vocab)) {
            let bits = hash(row.iter().map(|x| x.to_bits()).collect::<Vec<_>>());
            let known = *ledger.logits.entry(prefix).or_insert(bits);
            assert_eq!(known, bits, "one prefix has two different rows of logits");
            ledger.rows += 1;
        }
        logits
    }
}

fn load(path: &Path, kv: KvFormat, threads: usize, ledger: &Arc<Mutex<Ledger>>) -> Box<dyn LanguageModel> {
    let checkpoint = Checkpoint::open(path).expect("the model opens");
    let cpu = Cpu::new(CpuConfig { threads: Some(threads), ..CpuConfig::default() }).expect("a CPU");
    let options = LoadOptions { kv, ..LoadOptions::default() };
    match models::load(&checkpoint, cpu, options, &mut |_, _| ()).expect("the model loads") {
        Loaded::Language(inner) => {
            Box::new(Recording { inner, slots: HashMap::new(), ledger: ledger.clone() })
        }
        Loaded::Embedding(_) | Loaded::Rerank(_) => panic!("a language model"),
    }
}

/// Kinds of requests; two of one kind differ in nothing but their length.
const KINDS: u64 = 8;

/// Prompts that share prefixes, some to the middle of a page; sampling is seeded by the prompt alone.
fn request(number: u64, vocab: u32, longest: u32) -> Request {
    let kind = number % KINDS;
    let length = 3 + rng::bits(kind, 1, 0) as u32 % longest;
    let shared = length * 2 / 3;
    let prompt = (0..length)
        .map(|p| if p < shared { rng::bits(kind % 2, 2, p) } else { rng::bits(kind, 3, p) } as u32 % vocab)
        .collect();
    Request {
        id: RequestId(number),
        namespace: Namespace(0),
        prompt,
        sampling: Sampling { temperature: 0.9, seed: kind, ..Sampling::default() },
        choices: 1 + u32::from(kind.is_multiple_of(3)),
        // Long enough that answers outgrow a tight pool.
        max_tokens: Tokens(4 + number as u32 * 5 % 29),
        stop_tokens: Vec::new(),
        ignore_eos: true,
        logprobs: (kind == 5).then_some(1),
        // Logits inside the prompt, too.
        prompt_logprobs: (kind == 6).then_some(0),
        constraints: Vec::new(),
        // Chance seldom follows it.
        prediction: if kind == 2 {
            (0..40).map(|p| rng::bits(kind, 4, p) as u32 % vocab).collect()
        } else {
            Vec::new()
        },
    }
}

/// One schedule: requests arrive at random steps, some are cancelled.
fn run(engine: &mut Engine, seed: u64, vocab: u32, longest: u32, ledger: &Mutex<Ledger>) {
    const REQUESTS: u64 = 2 * KINDS;
    let mut answers: HashMap<(RequestId, u32), Vec<u32>> = HashMap::new();
    let (mut next, mut step, mut events) = (0u64, 0u32, Vec::<Event>::new());
    loop {
        while next < REQUESTS && rng::uniform(seed, 0, step + next as u32) < 0.6 {
            engine.submit(request(next, vocab, longest)).expect("room in the queue");
            next += 1;
        }
        let chosen = RequestId(rng::bits(seed, 1, step) % REQUESTS);
        if rng::uniform(seed, 2, step) < 0.03 {
            engine.cancel(chosen);
        }
        let activity = engine.step(&mut events);
        engine.check();
        step += 1;
        for event in events.drain(..) {
            match event.kind {
                EventKind::Token { choice, id, .. } => {
                    answers.entry((event.request, choice)).or_default().push(id);
                }
                EventKind::Finished { reason, .. } => assert_eq!(reason, FinishReason::Length),
                EventKind::Started { .. }
                | EventKind::PromptLogprobs { .. }
                | EventKind::Predicted { .. }
                | EventKind::Done(_) => {}
            }
        }
        assert_ne!(activity, Activity::WaitingForMemory, "there is no other engine");
        if next == REQUESTS && activity == Activity::Idle {
            break;
        }
    }
    let mut ledger = ledger.lock().expect("no test thread panicked");
    for ((request, choice), answer) in answers {
        ledger.note(request.0 % KINDS, choice, answer);
    }
}

#[track_caller]
fn check(path: &Path, kv: KvFormat, longest: u32, schedules: &[(usize, u32, u64)]) {
    let ledger = Arc::new(Mutex::new(Ledger::default()));
    let mut total = Counters::default();
    for (seed, (threads, step_tokens, pages)) in schedules.iter().enumerate() {
        let model = load(path, kv, *threads, &ledger);
        let (vocab, page) = (model.spec().vocab, model.spec().kv.page_bytes());
        let budget = Arc::new(KvBudget::new(Bytes(page.0 * pages)));
        let speculation = seed % 2 == 0;
        let config = Config { step_tokens: Tokens(*step_tokens), speculation, ..Config::default() };
        let mut engine = Engine::new(model, budget, config).expect("the budget holds a sequence");
        // Long drafts, right or wrong.
        engine.set_draft_cost(DraftCost { first: 0.0, row: 0.0 });
        // Twice over: the second time finds a warm cache.
        for round in 0..2 {
            run(&mut engine, (seed * 2 + round) as u64, vocab, longest, &ledger);
        }
        let stats = engine.stats();
        assert_eq!(stats.pages.held, 0, "pages are given back");
        total.preemptions += stats.counters.preemptions;
        total.cached_tokens += stats.counters.cached_tokens;
        total.evicted_pages += stats.counters.evicted_pages;
        total.cancelled += stats.counters.cancelled;
        total.drafted_tokens += stats.counters.drafted_tokens;
        total.accepted_tokens += stats.counters.accepted_tokens;
    }
    let Counters { preemptions, cached_tokens, evicted_pages, cancelled, .. } = total;
    let Counters { drafted_tokens, accepted_tokens, .. } = total;
    let dropped = drafted_tokens - accepted_tokens;
    let all = [preemptions, cached_tokens, evicted_pages, cancelled, accepted_tokens, dropped];
    assert!(all.iter().all(|count| *count > 0), "each of these is to happen: {total:?}");
    let ledger = ledger.lock().expect("no test thread panicked");
    assert!(ledger.rows > 2 * ledger.logits.len() as u64, "prefixes were seen under several schedules");
}

/// Threads, rows per step, pages: from one lone row at a time to everything at once, and pools that force preemption.
const SCHEDULES: [(usize, u32, u64); 6] =
    [(1, 512, 400), (2, 1, 400), (3, 7, 400), (2, 16, 12), (1, 512, 9), (3, 33, 20)];

#[test]
fn tiny_models_give_the_same_bits_under_every_schedule() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models");
    let mut seen = 0;
    let mut folders: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("fixtures").filter_map(|e| Some(e.ok()?.path())).collect();
    folders.sort();
    for path in folders.into_iter().filter(|p| p.join("config.json").exists()) {
        let config = std::fs::read_to_string(path.join("config.json")).expect("a config");
        if !config.contains("CausalLM") {
            continue;
        }
        check(&path, KvFormat::F16, 60, &SCHEDULES);
        seen += 1;
    }
    assert!(seen >= 4, "a fixture per architecture");
}

#[test]
fn the_other_kv_formats_give_the_same_bits_under_every_schedule() {
    // One with plain layers, and one with windows and wide heads.
    for name in ["qwen2", "gemma3"] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name);
        for kv in [KvFormat::Bf16, KvFormat::Int8] {
            check(&path, kv, 60, &SCHEDULES);
        }
    }
}

#[test]
fn smollm2_gives_the_same_bits_under_every_schedule() {
    let Some(folder) = std::env::var_os("HEARTH_TEST_MODELS").map(PathBuf::from) else {
        assert!(std::env::var_os("CI").is_none(), "HEARTH_TEST_MODELS is not set in CI");
        println!("skipped: invariance of SmolLM2 (HEARTH_TEST_MODELS is not set)");
        return;
    };
    check(
        &folder.join("SmolLM2-135M-Instruct.Q4_1.gguf"),
        KvFormat::F16,
        120,
        &[(2, 512, 400), (1, 7, 400), (3, 64, 14), (2, 1, 40)],
    );
}

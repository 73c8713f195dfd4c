//! A language model with behaviour but no arithmetic, and helpers to run requests on it.
//!
//! The fake stores a token and its position in each slot of each page, and its logits are a hash of the
//! whole visible prefix, read back through the page table. So a page that is shared, copied, evicted or
//! freed wrongly changes the logits of everything after it.

#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "these are tests")]

use base::{Bytes, Namespace, RequestId, Tokens, rng};
use device::{Batch, DeviceError, KvGroup, KvReach, KvSpec, PAGE_TOKENS, PageId};
use engine::{
    Activity, Config, Constraint, Engine, Event, EventKind, FinishReason, KvBudget, Request, Sampling,
    Standing, TokenLogprobs, TokenMask, Usage,
};
use models::{LanguageModel, ModelSpec};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

pub const VOCAB: u32 = 40;
/// Bytes of one of the fake's pages.
pub const PAGE_BYTES: u64 = 64;

/// What the fake counts, for tests to read while the engine owns it.
#[derive(Default)]
pub struct Seen {
    pub rows: AtomicUsize,
    pub most_rows: AtomicUsize,
    pub most_logit_rows: AtomicUsize,
    pub pages: AtomicUsize,
}

/// What an echoing model repeats lies so many places back.
pub const ECHO: usize = 9;
/// What its logit gains: the token is nearly always the best, and at temperature 1 often enough not the one.
const ECHO_GAIN: f32 = 7.5;

pub struct FakeModel {
    spec: ModelSpec,
    pages: Vec<Option<[(u32, u32); PAGE_TOKENS]>>,
    logits: Vec<f32>,
    seen: Arc<Seen>,
    /// Makes the token that stood this many places before the next one likelier than the hash does.
    pub echo: Option<usize>,
    /// The device refuses more pages than this.
    pub most_pages: usize,
    /// A prefix that ends in this token has NaN for logits.
    pub poison: Option<u32>,
    /// Panics at a prefix that ends in this token.
    pub bomb: Option<u32>,
}

impl FakeModel {
    pub fn new(context: u32) -> Self {
        let group = KvGroup { reach: KvReach::Full, layers: vec![0], kv_heads: 1, head_dim: 1 };
        let kv = KvSpec { groups: vec![group], ..KvSpec::default() };
        assert_eq!(kv.page_bytes(), Bytes(PAGE_BYTES));
        Self {
            spec: ModelSpec { architecture: "fake".to_owned(), vocab: VOCAB, context: Tokens(context), kv },
            pages: Vec::new(),
            logits: Vec::new(),
            seen: Arc::default(),
            echo: None,
            most_pages: usize::MAX,
            poison: None,
            bomb: None,
        }
    }

    /// The same with pages this many times larger.
    pub fn scaled(mut self, times: usize) -> Self {
        self.spec.kv.groups[0].kv_heads = times;
        self
    }

    /// The same with answers that repeat themselves more often than not.
    pub fn echoing(mut self) -> Self {
        self.echo = Some(ECHO);
        self
    }

    pub fn seen(&self) -> Arc<Seen> {
        Arc::clone(&self.seen)
    }
}

/// The hash of a prefix, given its slots.
fn absorb(hash: u64, token: u32, position: u32) -> u64 {
    rng::mix(hash ^ rng::mix(u64::from(token) << 32 | u64::from(position)))
}

fn logit(hash: u64, id: u32) -> f32 {
    (rng::bits(hash, id, 0) >> 40) as f32 / (1u64 << 21) as f32 - 4.0
}

/// The logits after a prefix, from its tokens alone.
pub fn logits_after(tokens: &[u32]) -> Vec<f32> {
    let hash = tokens.iter().zip(0..).fold(1, |hash, (token, position)| absorb(hash, *token, position));
    (0..VOCAB).map(|id| logit(hash, id)).collect()
}

impl LanguageModel for FakeModel {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn ensure_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        if self.seen.pages.load(Ordering::Relaxed) >= self.most_pages {
            return Err(DeviceError::OutOfMemory(Bytes(PAGE_BYTES)));
        }
        let i = page.0 as usize;
        if self.pages.len() <= i {
            self.pages.resize(i + 1, None);
        }
        assert!(self.pages[i].is_none(), "{page:?} has memory already");
        self.pages[i] = Some([(u32::MAX, page.0); PAGE_TOKENS]);
        self.seen.pages.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn drop_page(&mut self, page: PageId) {
        if self.pages.get_mut(page.0 as usize).and_then(Option::take).is_some() {
            self.seen.pages.fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn forward(&mut self, batch: &Batch) -> &[f32] {
        batch.check();
        self.seen.rows.fetch_add(batch.rows(), Ordering::Relaxed);
        self.seen.most_rows.fetch_max(batch.rows(), Ordering::Relaxed);
        self.seen.most_logit_rows.fetch_max(batch.logit_rows.len(), Ordering::Relaxed);
        for copy in &batch.copies {
            let from = self.pages[copy.from.0 as usize].expect("the source has memory");
            *self.pages[copy.to.0 as usize].as_mut().expect("the target has memory") = from;
        }
        for sequence in &batch.sequences {
            for row in sequence.rows.clone() {
                let position = batch.positions[row];
                let page = batch.pages(sequence)[position as usize / PAGE_TOKENS];
                let slots = self.pages[page.0 as usize].as_mut().expect("the page has memory");
                slots[position as usize % PAGE_TOKENS] = (batch.ids[row], position);
            }
        }
        self.logits.clear();
        let mut wanted = batch.logit_rows.iter().peekable();
        for sequence in &batch.sequences {
            for row in sequence.rows.clone() {
                if wanted.next_if(|w| **w as usize == row).is_none() {
                    continue;
                }
                let mut hash = 1;
                let echoed = self.echo.and_then(|back| (batch.positions[row] as usize + 1).checked_sub(back));
                let mut echo = None;
                for position in 0..=batch.positions[row] as usize {
                    let page = batch.pages(sequence)[position / PAGE_TOKENS];
                    let slots = self.pages[page.0 as usize].expect("the page has memory");
                    let (token, stored) = slots[position % PAGE_TOKENS];
                    hash = absorb(hash, token, stored);
                    if echoed == Some(position) {
                        echo = Some(token);
                    }
                }
                assert!(self.bomb != Some(batch.ids[row]), "the bomb went off");
                let nan = self.poison == Some(batch.ids[row]);
                let gain = |id| if echo == Some(id) { ECHO_GAIN } else { 0.0 };
                let of = |id| if nan { f32::NAN } else { logit(hash, id) + gain(id) };
                self.logits.extend((0..VOCAB).map(of));
            }
        }
        &self.logits
    }
}

/// A constraint with state: tokens alternate between two classes, and each fifth one forces two or three
/// more.
#[derive(Default)]
pub struct Alternate {
    pub accepted: Vec<u32>,
    pub due: Vec<u32>,
    /// Ends after this many tokens.
    pub end: usize,
    /// Force these before anything else.
    pub lead: Vec<u32>,
}

impl Constraint for Alternate {
    fn mask(&mut self, allowed: &mut TokenMask) -> Standing {
        if self.accepted.len() >= self.end {
            return Standing::Ended;
        }
        let class = self.accepted.len() as u32 % 2;
        (0..VOCAB).filter(|id| id % 2 == class).for_each(|id| allowed.allow(id));
        Standing::Open
    }

    fn accept(&mut self, token: u32) {
        if self.lead.first() == Some(&token) {
            self.lead.remove(0);
        } else if self.due.first() == Some(&token) {
            self.due.remove(0);
        } else if token.is_multiple_of(5) {
            self.due = vec![11, 12, 13][..2 + token as usize % 2].to_vec();
        }
        self.accepted.push(token);
    }

    fn forced(&mut self, out: &mut Vec<u32>) {
        out.extend(&self.lead);
        out.extend(&self.due);
    }
}

/// A run of tokens that depends on `stream` alone.
pub fn text(stream: u64, len: usize) -> Vec<u32> {
    (0..len as u32).map(|i| (rng::bits(stream, 0, i) % u64::from(VOCAB)) as u32).collect()
}

pub fn request(id: u64, prompt: Vec<u32>, max_tokens: u32) -> Request {
    Request {
        id: RequestId(id),
        namespace: Namespace(0),
        prompt,
        sampling: Sampling { temperature: 0.0, ..Sampling::default() },
        choices: 1,
        max_tokens: Tokens(max_tokens),
        stop_tokens: vec![],
        ignore_eos: false,
        logprobs: None,
        prompt_logprobs: None,
        constraints: vec![],
        prediction: vec![],
    }
}

pub fn engine(pages: u64, config: Config) -> Engine {
    engine_of(FakeModel::new(4096), pages, config)
}

pub fn engine_of(model: FakeModel, pages: u64, config: Config) -> Engine {
    let budget = Arc::new(KvBudget::new(Bytes(pages * PAGE_BYTES)));
    Engine::new(Box::new(model), budget, config).unwrap()
}

/// One answer as its events told it.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answer {
    pub tokens: Vec<(u32, Option<TokenLogprobs>)>,
    pub finished: Option<FinishReason>,
}

impl Answer {
    pub fn ids(&self) -> Vec<u32> {
        self.tokens.iter().map(|(id, _)| *id).collect()
    }
}

/// What a request's events told.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    pub cached: Option<Tokens>,
    pub prompt: Vec<TokenLogprobs>,
    pub answers: Vec<Answer>,
    pub usage: Option<Usage>,
    /// Tokens of the prediction that were drafted and held, and those that did not.
    pub predicted: (u32, u32),
}

impl Outcome {
    pub fn ids(&self) -> Vec<u32> {
        self.answers[0].ids()
    }

    /// The same but for what the cache may change.
    pub fn without_cache(mut self) -> Self {
        self.cached = None;
        if let Some(usage) = &mut self.usage {
            usage.cached = Tokens(0);
        }
        self
    }
}

/// Gathers events and checks their order.
#[derive(Default)]
pub struct Listener {
    pub outcomes: HashMap<RequestId, Outcome>,
}

impl Listener {
    pub fn hear(&mut self, events: &mut Vec<Event>) {
        for Event { request, kind } in events.drain(..) {
            let outcome = self.outcomes.entry(request).or_default();
            assert!(outcome.usage.is_none(), "nothing follows Done");
            match kind {
                EventKind::Started { cached } => {
                    assert_eq!(*outcome, Outcome::default(), "Started comes first, once");
                    outcome.cached = Some(cached);
                }
                EventKind::PromptLogprobs { first, entries } => {
                    assert!(outcome.cached.is_some() && outcome.answers.is_empty());
                    assert_eq!(first as usize, outcome.prompt.len() + 1, "positions follow each other");
                    outcome.prompt.extend(entries);
                }
                EventKind::Token { choice, id, logprobs } => {
                    assert!(outcome.cached.is_some());
                    let answer = outcome.answer(choice);
                    assert!(answer.finished.is_none(), "a token after the end");
                    answer.tokens.push((id, logprobs));
                }
                EventKind::Predicted { accepted, rejected } => {
                    assert!(outcome.cached.is_some() && accepted.0 + rejected.0 > 0);
                    outcome.predicted.0 += accepted.0;
                    outcome.predicted.1 += rejected.0;
                }
                EventKind::Finished { choice, reason } => {
                    let answer = outcome.answer(choice);
                    assert!(answer.finished.is_none(), "an answer ends once");
                    answer.finished = Some(reason);
                }
                EventKind::Done(usage) => {
                    assert!(outcome.answers.iter().all(|a| a.finished.is_some()), "all answers ended");
                    outcome.usage = Some(usage);
                }
            }
        }
    }
}

impl Outcome {
    fn answer(&mut self, choice: u32) -> &mut Answer {
        let choice = choice as usize;
        if self.answers.len() <= choice {
            self.answers.resize_with(choice + 1, Answer::default);
        }
        &mut self.answers[choice]
    }
}

/// Steps until nothing is in flight.
pub fn drain(engine: &mut Engine, listener: &mut Listener) {
    let mut events = Vec::new();
    for _ in 0..20_000 {
        let activity = engine.step(&mut events);
        engine.check();
        listener.hear(&mut events);
        match activity {
            Activity::Worked => {}
            Activity::Idle => return,
            Activity::WaitingForMemory => panic!("a single engine has nobody to wait for"),
        }
    }
    panic!("the engine does not come to an end: {:?}", engine.stats());
}

/// Runs one request and gives its outcome.
pub fn run(engine: &mut Engine, request: Request) -> Outcome {
    let id = request.id;
    engine.submit(request).unwrap();
    let mut listener = Listener::default();
    drain(engine, &mut listener);
    listener.outcomes.remove(&id).unwrap()
}

/// The outcome of a request that runs alone, without drafts, with all the memory it may need.
pub fn alone(model: FakeModel, request: Request, context: Tokens) -> Outcome {
    let config = Config { context: Some(context), speculation: false, ..Config::default() };
    run(&mut engine_of(model, 4096, config), request).without_cache()
}

/// No pages in use, and none lost.
pub fn assert_at_rest(engine: &Engine, pages: usize) {
    engine.check();
    let stats = engine.stats();
    assert_eq!((stats.running, stats.waiting, stats.queued), (0, 0, 0));
    assert_eq!(stats.pages.held, 0, "{stats:?}");
    assert_eq!(stats.pages.free + stats.pages.cached, pages, "{stats:?}");
}

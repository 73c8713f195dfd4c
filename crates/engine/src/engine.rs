//! The engine: requests in, events out, one step at a time.
//!
//! One thread owns it. It knows token ids only and has no clock; whoever drives it calls `step` while
//! there is work, and again when the waker says so.
//!
//! Invariant (`check`): each sequence is either running or waiting and belongs to a request in flight; no
//! waiting sequence has pages; the pages add up (see `memory`).

use crate::budget::Waker;
use crate::cost::{StepLimit, Work};
use crate::draft::Drafter;
use crate::memory::Memory;
use crate::pool::PagePool;
use crate::publish::sample;
use crate::radix::Match;
use crate::sampler::Sampler;
use crate::scheduler::Turn;
use crate::sequence::{Arrival, InFlight, Sequence};
use crate::stats::{Counters, PageStats, Stats};
use crate::{AdmitError, DraftCost, Event, FinishReason, KvBudget, Request};
use base::{Bytes, RequestId, Tokens};
use device::{Batch, PAGE_TOKENS};
use models::LanguageModel;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::sync::Arc;

/// Pages without which no useful sequence runs.
const LEAST_PAGES: u64 = 4;

/// Limits of an engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Most rows per step. All running decodes run in each step; prompts get the rest of these rows, and
    /// fewer where the step's time is bounded ([`Engine::set_step_limit`]).
    pub step_tokens: Tokens,
    /// Most sequences that run at a time.
    pub max_running: usize,
    /// Most requests that wait for their admission.
    pub queue: usize,
    /// A lower limit on a sequence's tokens than the model's own.
    pub context: Option<Tokens>,
    /// Whether tokens are drafted. It changes no answer, only how soon it comes.
    pub speculation: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self { step_tokens: Tokens(512), max_running: 64, queue: 1024, context: None, speculation: true }
    }
}

/// Why an engine cannot be made.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The KV budget holds too little of this model's cache to be of any use.
    #[error("the KV memory of {budget} is too small: this model needs at least {least}")]
    BudgetTooSmall {
        /// The whole budget.
        budget: Bytes,
        /// The least budget for this model.
        least: Bytes,
    },
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activity {
    /// Nothing: no request is in flight. Step again after a `submit` or when woken.
    Idle,
    /// It ran rows, or made room for others; step again.
    Worked,
    /// Requests are in flight, but the memory they need is with other engines. Step again when woken.
    WaitingForMemory,
}

/// Runs requests on one language model.
pub struct Engine {
    pub(crate) model: Box<dyn LanguageModel>,
    pub(crate) memory: Memory,
    pub(crate) page_bytes: u64,
    pub(crate) config: Config,
    pub(crate) step_limit: Option<StepLimit>,
    context: Tokens,
    /// In order of arrival.
    pub(crate) running: Vec<Sequence>,
    /// In order of arrival.
    pub(crate) waiting: VecDeque<Sequence>,
    /// By slot.
    pub(crate) requests: Vec<Option<InFlight>>,
    slots: FxHashMap<RequestId, usize>,
    vacant: Vec<usize>,
    arrivals: u64,
    /// Requests not admitted yet.
    pub(crate) queued: usize,
    /// Set while the claim on the budget is this engine's.
    pub(crate) turn: Option<Turn>,
    pub(crate) counters: Counters,
    /// Of the last step.
    pub(crate) work: Work,
    /// `None` without speculation.
    pub(crate) drafter: Option<Drafter>,
    // Kept from step to step so that a step allocates nothing.
    pub(crate) batch: Batch,
    pub(crate) found: Match,
    sampler: Sampler,
    forced: Vec<u32>,
}

impl Engine {
    /// An engine for this model whose KV pages come out of `budget`.
    pub fn new(model: Box<dyn LanguageModel>, budget: Arc<KvBudget>, config: Config) -> Result<Self, Error> {
        let spec = model.spec();
        let page_bytes = spec.kv.page_bytes();
        let pages = budget.total().0.checked_div(page_bytes.0).unwrap_or(u64::MAX);
        if pages < LEAST_PAGES {
            let least = Bytes(page_bytes.0 * LEAST_PAGES);
            return Err(Error::BudgetTooSmall { budget: budget.total(), least });
        }
        let held = u32::try_from(pages.saturating_mul(PAGE_TOKENS as u64)).unwrap_or(u32::MAX);
        let context = spec.context.min(Tokens(held)).min(config.context.unwrap_or(Tokens(u32::MAX)));
        let config = Config {
            step_tokens: config.step_tokens.max(Tokens(1)),
            max_running: config.max_running.max(1),
            ..config
        };
        let drafter = config.speculation.then(Drafter::default);
        Ok(Self {
            memory: Memory::new(PagePool::new(budget.open(page_bytes))),
            page_bytes: page_bytes.0,
            config,
            step_limit: None,
            context,
            running: Vec::new(),
            waiting: VecDeque::new(),
            requests: Vec::new(),
            slots: FxHashMap::default(),
            vacant: Vec::new(),
            arrivals: 0,
            queued: 0,
            turn: None,
            counters: Counters::default(),
            work: Work::default(),
            drafter,
            batch: Batch::default(),
            found: Match::default(),
            sampler: Sampler::new(spec.vocab),
            forced: Vec::new(),
            model,
        })
    }

    /// Whom to call when the engine should run a step although nobody submitted anything: memory came
    /// back, or other engines have a right to some of this one's. See [`Waker`] for what it may do.
    pub fn set_waker(&mut self, waker: Waker) {
        self.memory.pool.account.set_waker(waker);
    }

    /// Bounds the time of a step in which answers are decoded; `None` leaves only `step_tokens`.
    pub fn set_step_limit(&mut self, limit: Option<StepLimit>) {
        self.step_limit = limit;
    }

    /// What the last step computed.
    #[must_use]
    pub fn work(&self) -> Work {
        self.work
    }

    /// Tells what drafts cost; by that it is judged how many drafted tokens pay. Until then, and where it is
    /// told what is no cost, a guess stands.
    pub fn set_draft_cost(&mut self, cost: DraftCost) {
        if let Some(drafter) = &mut self.drafter
            && [cost.first, cost.row].iter().all(|cost| cost.is_finite() && *cost >= 0.0)
        {
            drafter.cost = cost;
        }
    }

    /// Most tokens of one sequence, prompt and answer: what the model, the configuration and the whole KV
    /// budget allow.
    #[must_use]
    pub fn context(&self) -> Tokens {
        self.context
    }

    /// Takes a request in. It must keep what [`Request`] says of its fields.
    pub fn submit(&mut self, request: Request) -> Result<(), AdmitError> {
        let prompt = Tokens::from(request.prompt.len());
        assert!(prompt > Tokens(0), "a prompt has at least one token");
        assert!(request.choices > 0, "a request wants at least one answer");
        let constraints = request.constraints.len();
        assert!(constraints == 0 || constraints == request.choices as usize, "a constraint per choice");
        assert!(!self.slots.contains_key(&request.id), "the id of a request in flight is used again");
        let vocab = self.model.spec().vocab;
        assert!(request.prompt.iter().all(|id| *id < vocab), "a token is outside the vocabulary");
        if prompt >= self.context {
            return Err(AdmitError::PromptTooLong { prompt, limit: self.context });
        }
        if self.queued >= self.config.queue {
            return Err(AdmitError::Overloaded { depth: self.queued });
        }
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() - 1
        });
        self.slots.insert(request.id, slot);
        self.arrivals += 1;
        let (request, first) = InFlight::new(request, slot, self.arrivals, self.context.get());
        self.requests[slot] = Some(request);
        self.waiting.push_back(first);
        self.queued += 1;
        Ok(())
    }

    /// Ends a request without any further event and frees what it holds. An unknown id is ignored.
    pub fn cancel(&mut self, id: RequestId) {
        if let Some(&slot) = self.slots.get(&id) {
            self.drop_sequences(slot);
            self.end_turn();
            let request = self.forget(slot);
            self.counters.cancelled += 1;
            self.counters.completion_tokens += u64::from(request.usage.completion.0);
        }
    }

    /// Ends one answer now, as at a stop token: for a stop text that was found in it. An unknown id, and an
    /// answer that has ended or has no token yet, are left as they are.
    pub fn finish_choice(&mut self, id: RequestId, choice: u32, events: &mut Vec<Event>) {
        let Some(&slot) = self.slots.get(&id) else { return };
        let request = self.requests[slot].as_ref().expect("a listed request is in flight");
        // Until then the first answer's sequence is what the others are made from.
        if !request.spawned || request.finished.get(choice as usize) != Some(&false) {
            return;
        }
        let this = |sequence: &Sequence| {
            sequence.slot == slot && sequence.choice() == choice && sequence.tokens.len() > sequence.prompt
        };
        if let Some(i) = self.running.iter().position(this) {
            let mut sequence = self.running.remove(i);
            self.leave(&mut sequence);
            self.remember(&sequence);
        } else if let Some(i) = self.waiting.iter().position(this) {
            let sequence = self.waiting.remove(i).expect("the index is in range");
            self.remember(&sequence);
        } else {
            return;
        }
        self.end_turn();
        self.end_choice(slot, choice, FinishReason::Stop, events);
    }

    /// Runs one step and appends what happened to `events`.
    pub fn step(&mut self, events: &mut Vec<Event>) -> Activity {
        self.memory.pool.account.set_idle(self.running.is_empty() && self.waiting.is_empty());
        self.relieve();
        self.admit(events);
        self.begin_turn();
        self.plan(events);
        let activity = if self.batch.rows() == 0 {
            self.rest()
        } else {
            let logits = self.model.forward(&self.batch);
            let (sampler, forced) = (&mut self.sampler, &mut self.forced);
            let counters = &mut self.counters;
            sample(&mut self.running, &mut self.requests, sampler, forced, logits, counters, events);
            self.publish(events);
            self.counters.steps += 1;
            self.counters.rows += self.batch.rows() as u64;
            Activity::Worked
        };
        self.end_turn();
        self.memory.pool.account.settle();
        activity
    }

    /// Nothing could run: gives other engines what they wait for.
    fn rest(&mut self) -> Activity {
        let idle = self.running.is_empty() && self.waiting.is_empty();
        self.memory.pool.account.set_idle(idle);
        self.relieve();
        if idle {
            Activity::Idle
        } else if self.running.is_empty() && !self.memory.pool.account.yields() {
            // What ran had to go, so nothing here waits for anything: the next step admits again.
            Activity::Worked
        } else {
            Activity::WaitingForMemory
        }
    }

    /// Ends everything in flight as failed and forgets all pages, whatever state a panic left behind.
    pub fn fail_all(&mut self, events: &mut Vec<Event>) {
        self.running.clear();
        self.waiting.clear();
        for slot in 0..self.requests.len() {
            if self.requests[slot].is_some() {
                self.end_request(slot, FinishReason::Failed, events);
            }
        }
        self.queued = 0;
        self.memory.reset(&mut *self.model);
        self.sampler = Sampler::new(self.model.spec().vocab);
        self.turn = None;
        self.memory.pool.account.unclaim();
    }

    /// The engine's state in numbers.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let queued = self.requests.iter().flatten().filter(|request| !request.started);
        Stats {
            queued: self.queued,
            waiting: self.waiting.len(),
            running: self.running.len(),
            queued_tokens: queued.map(|request| request.usage.prompt).sum(),
            pages: PageStats {
                free: self.memory.pool.free() + self.memory.pool.account.left(),
                cached: self.memory.cached(),
                held: self.memory.held(),
                bytes: Bytes(self.page_bytes),
            },
            counters: Counters { evicted_pages: self.memory.evicted, ..self.counters },
        }
    }

    /// Checks the module invariant; tests call it after each operation, a driver when idle.
    pub fn check(&self) {
        let sequences = || self.running.iter().chain(&self.waiting);
        self.memory.check(sequences().map(|sequence| &sequence.table));
        for sequence in sequences() {
            assert!(self.requests[sequence.slot].is_some(), "a sequence has a request");
            let copied = if sequence.table.is_to_copy() { PAGE_TOKENS } else { 0 };
            let room = sequence.table.pages.len() * PAGE_TOKENS + copied;
            assert!(sequence.computed <= room, "pages hold what is computed");
            assert_eq!(sequence.planned, 0, "nothing is planned between steps");
            assert!(sequence.drafting.rows().is_empty(), "no draft outlives its step");
            assert!(sequence.computed <= sequence.target(), "what is computed stands in the answer");
        }
        assert!(self.waiting.iter().all(|s| s.table.pages.is_empty()), "a waiting sequence has no pages");
        assert!(self.running.is_sorted_by(|a, b| a.arrival < b.arrival), "running in order of arrival");
        let arrivals: Vec<Arrival> = self.waiting.iter().map(|s| s.arrival).collect();
        assert!(arrivals.is_sorted_by(|a, b| a < b), "waiting in order of arrival");
        let in_flight = self.requests.iter().flatten();
        assert_eq!(in_flight.clone().count(), self.slots.len(), "requests are listed");
        assert_eq!(in_flight.filter(|r| !r.started).count(), self.queued, "queued requests are counted");
    }

    /// Takes a request's sequences out and frees their pages.
    pub(crate) fn drop_sequences(&mut self, slot: usize) {
        let mut i = 0;
        while i < self.running.len() {
            if self.running[i].slot == slot {
                let mut sequence = self.running.remove(i);
                self.leave(&mut sequence);
            } else {
                i += 1;
            }
        }
        self.waiting.retain(|sequence| sequence.slot != slot);
    }

    /// Takes a request out.
    pub(crate) fn forget(&mut self, slot: usize) -> InFlight {
        let request = self.requests[slot].take().expect("the request is in flight");
        self.slots.remove(&request.id);
        self.vacant.push(slot);
        self.queued -= usize::from(!request.started);
        request
    }
}

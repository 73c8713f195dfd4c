//! Several engines over one budget: each gets its share, all come to an end, and all bytes come back.

#![allow(clippy::unwrap_used, reason = "these are tests")]

mod common;

use base::{Bytes, RequestId, Tokens};
use common::*;
use engine::{Activity, Config, Engine, KvBudget};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

fn engines(n: usize, pages: u64) -> (Arc<KvBudget>, Vec<Engine>) {
    engines_of(&vec![1; n], pages)
}

/// Engines whose pages are so many times larger than the smallest ones.
fn engines_of(scales: &[usize], pages: u64) -> (Arc<KvBudget>, Vec<Engine>) {
    let budget = Arc::new(KvBudget::new(Bytes(pages * PAGE_BYTES)));
    let engines = scales.iter().map(|scale| engine_on(&budget, *scale)).collect();
    (budget, engines)
}

fn engine_on(budget: &Arc<KvBudget>, scale: usize) -> Engine {
    let config = Config { step_tokens: Tokens(48), ..Config::default() };
    let model = Box::new(FakeModel::new(4096).scaled(scale));
    Engine::new(model, Arc::clone(budget), config).unwrap()
}

/// Steps only engines that have work or were woken, until none has.
struct Threads {
    engines: Vec<Engine>,
    awake: Vec<Arc<AtomicBool>>,
    listeners: Vec<Listener>,
}

impl Threads {
    fn new(engines: Vec<Engine>) -> Self {
        let mut this = Self { engines: vec![], awake: vec![], listeners: vec![] };
        for mut engine in engines {
            this.awake.push(wake_by(&mut engine));
            this.engines.push(engine);
            this.listeners.push(Listener::default());
        }
        this
    }

    /// Another engine takes the place of one that is dropped with all it has in flight.
    fn replace(&mut self, i: usize, mut engine: Engine) {
        self.awake[i] = wake_by(&mut engine);
        self.engines[i] = engine;
        self.listeners[i] = Listener::default();
    }

    fn submit(&mut self, i: usize, request: engine::Request) {
        self.engines[i].submit(request).unwrap();
        self.awake[i].store(true, Ordering::Relaxed);
    }

    /// One step of an engine, if its thread would run now.
    fn step(&mut self, i: usize) {
        if self.awake[i].swap(false, Ordering::Relaxed) {
            let mut events = Vec::new();
            if self.engines[i].step(&mut events) == Activity::Worked {
                self.awake[i].store(true, Ordering::Relaxed);
            }
            self.engines[i].check();
            self.listeners[i].hear(&mut events);
        }
    }

    /// Runs all until all sleep; then nothing may be in flight any more.
    fn drain(&mut self) {
        for _ in 0..20_000 {
            if !self.awake.iter().any(|awake| awake.load(Ordering::Relaxed)) {
                let stats: Vec<_> = self.engines.iter().map(Engine::stats).collect();
                let left = stats.iter().any(|stats| stats.running + stats.waiting > 0);
                assert!(!left, "asleep with work left: {stats:#?}");
                return;
            }
            (0..self.engines.len()).for_each(|i| self.step(i));
        }
        panic!("no end: {:?}", self.engines.iter().map(Engine::stats).collect::<Vec<_>>());
    }
}

/// What an engine's waker sets.
fn wake_by(engine: &mut Engine) -> Arc<AtomicBool> {
    let awake = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&awake);
    engine.set_waker(Arc::new(move || flag.store(true, Ordering::Relaxed)));
    awake
}

#[test]
fn an_idle_engine_gives_its_cache_to_a_busy_one() {
    let (budget, engines) = engines(2, 20);
    let mut threads = Threads::new(engines);
    for id in 0..8 {
        threads.submit(0, request(id, text(id, 40), 5));
    }
    threads.drain();
    assert_eq!(threads.engines[0].stats().pages.cached, 20, "it may use all while the other needs nothing");
    threads.submit(1, request(0, text(9, 150), 100));
    threads.drain();
    assert_eq!(threads.listeners[1].outcomes[&RequestId(0)].ids().len(), 100);
    assert!(threads.engines[1].stats().pages.cached > 10);
    budget.check();
    drop(threads);
    assert_eq!(budget.used(), Bytes(0));
}

#[test]
fn a_busy_engine_above_its_share_makes_room_for_one_below() {
    let (_, engines) = engines(2, 20);
    let mut threads = Threads::new(engines);
    for id in 0..6 {
        threads.submit(0, request(id, text(id, 40), 60));
    }
    for _ in 0..20 {
        threads.step(0);
    }
    assert!(threads.engines[0].stats().pages.held > 12);
    threads.submit(1, request(0, text(9, 100), 40));
    for _ in 0..60 {
        (0..2).for_each(|i| threads.step(i));
    }
    assert_eq!(
        threads.listeners[1].outcomes[&RequestId(0)].ids().len(),
        40,
        "it does not wait for the other's end"
    );
    assert!(threads.engines[0].stats().counters.preemptions > 0);
    threads.drain();
    for id in 0..6 {
        let expected = alone(FakeModel::new(4096), request(id, text(id, 40), 60), Tokens(320));
        assert_eq!(threads.listeners[0].outcomes[&RequestId(id)].clone().without_cache(), expected);
    }
}

#[test]
fn sequences_that_each_need_nearly_all_of_it_take_turns() {
    let (_, engines) = engines(3, 20);
    let mut threads = Threads::new(engines);
    for i in 0..3 {
        for id in 0..2 {
            threads.submit(i, request(id, text(id + 10 * i as u64, 150), 150));
        }
    }
    threads.drain();
    for i in 0..3 {
        for id in 0..2 {
            assert_eq!(threads.listeners[i].outcomes[&RequestId(id)].ids().len(), 150);
        }
    }
}

#[test]
fn one_long_answer_above_its_share_does_not_stall_another_engine() {
    let (_, engines) = engines(2, 40);
    let mut threads = Threads::new(engines);
    // It needs all but one of the pages.
    let long = || request(0, text(7, 20), 600);
    threads.submit(0, long());
    let mut steps = 0;
    let mut id = 0;
    let mut overtaken = 0;
    while threads.engines[0].stats().running + threads.engines[0].stats().waiting > 0 || id == 0 {
        threads.submit(1, request(id, text(id, 60), 20));
        let answer = RequestId(id);
        let submitted = steps;
        while threads.listeners[1].outcomes.get(&answer).is_none_or(|outcome| outcome.usage.is_none()) {
            (0..2).for_each(|i| threads.step(i));
            steps += 1;
            assert!(steps - submitted <= 150, "the short request {id} waits for the end of the long one");
        }
        overtaken += usize::from(threads.engines[0].stats().running + threads.engines[0].stats().waiting > 0);
        id += 1;
        assert!(steps < 5_000, "the long answer starves");
    }
    assert!(overtaken >= 8, "only {overtaken}");
    assert!(threads.engines[0].stats().counters.rows < 2 * 620, "what was evicted stays in proportion");
    threads.drain();
    assert_eq!(
        threads.listeners[0].outcomes[&RequestId(0)].clone().without_cache(),
        alone(FakeModel::new(4096), long(), Tokens(640))
    );
    for id in 0..id {
        let expected = alone(FakeModel::new(4096), request(id, text(id, 60), 20), Tokens(640));
        assert_eq!(threads.listeners[1].outcomes[&RequestId(id)].clone().without_cache(), expected);
    }
}

#[test]
fn engines_on_their_own_threads_come_to_an_end() {
    let (budget, engines) = engines(3, 24);
    let handles: Vec<_> = engines
        .into_iter()
        .zip(0u64..)
        .map(|(mut engine, i)| {
            std::thread::spawn(move || {
                let thread = std::thread::current();
                engine.set_waker(Arc::new(move || thread.unpark()));
                let mut listener = Listener::default();
                let mut events = Vec::new();
                for id in 0..30 {
                    let len = 20 + (id * 37 + i * 11) as usize % 200;
                    engine.submit(request(id, text(id % 5 + 10 * i, len), 60)).unwrap();
                }
                loop {
                    match engine.step(&mut events) {
                        Activity::Worked => {}
                        Activity::WaitingForMemory => std::thread::park(),
                        Activity::Idle => break,
                    }
                    listener.hear(&mut events);
                }
                listener.hear(&mut events);
                engine.check();
                assert!(listener.outcomes.values().all(|outcome| outcome.ids().len() == 60));
                assert_eq!(listener.outcomes.len(), 30);
            })
        })
        .collect();
    handles.into_iter().for_each(|handle| handle.join().unwrap());
    assert_eq!(budget.used(), Bytes(0));
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_interleaving_of_engines_gets_stuck(
        scales in prop::collection::vec(1usize..4, 2..4),
        pages in 12u64..40,
        ops in prop::collection::vec((0u8..8, 0usize..3, 1usize..120, prop_oneof![0u32..60, 0u32..300]), 1..80),
    ) {
        let n = scales.len();
        let (budget, engines) = engines_of(&scales, pages);
        let contexts: Vec<Tokens> = engines.iter().map(Engine::context).collect();
        let mut threads = Threads::new(engines);
        let mut submitted = vec![Vec::new(); n];
        for (op, i, len, max_tokens) in ops {
            let i = i % n;
            match op {
                0 | 1 => {
                    let id = submitted[i].len() as u64;
                    let plan = (len as u64 % 3, len.min(contexts[i].get() - 1), max_tokens);
                    threads.submit(i, request(id, text(plan.0, plan.1), plan.2));
                    submitted[i].push((plan, false));
                }
                2 if !submitted[i].is_empty() => {
                    let which = len % submitted[i].len();
                    threads.engines[i].cancel(RequestId(which as u64));
                    threads.awake[i].store(true, Ordering::Relaxed);
                    submitted[i][which].1 = true;
                }
                // A model is taken out, and another of its size comes in.
                3 if len % 8 == 0 => {
                    threads.replace(i, engine_on(&budget, scales[i]));
                    submitted[i].clear();
                }
                _ => threads.step(i),
            }
            budget.check();
        }
        threads.drain();
        for (i, plans) in submitted.iter().enumerate() {
            for (id, ((stream, len, max_tokens), cancelled)) in plans.iter().enumerate() {
                let outcome = threads.listeners[i].outcomes.remove(&RequestId(id as u64)).unwrap_or_default();
                if outcome.usage.is_none() {
                    prop_assert!(*cancelled);
                    continue;
                }
                let expected = alone(FakeModel::new(4096), request(0, text(*stream, *len), *max_tokens), contexts[i]);
                prop_assert_eq!(outcome.without_cache(), expected);
            }
        }
        drop(threads);
        prop_assert_eq!(budget.used(), Bytes(0));
    }
}

//! One entry, from its opening to its end.
//!
//! Invariant: an entry that was opened ends exactly once. Who holds an [`Entry`] ends it, and one that is dropped is
//! interrupted with what was seen. Until [`Entry::asked`] nobody was asked, and nothing is owed.

use super::{Ledger, PATIENCE, PAUSES, REFUSALS};
use crate::caller::counted;
use crate::log::{Finder, Finding, Outcome};
use crate::metrics::CUSTOM;
use crate::policy::Rule;
use crate::policy::spend::{self, Hold};
use crate::price::{Cost, CustomCost, Price};
use crate::{Action, Caller, Gateway, Usage, outcome, unavailable};
use base::NanoUsd;
use protocol::{Error, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use store::{Value, Work};

/// How long a request of an open server waits for the store before it goes on without.
const OPEN_PATIENCE: Duration = Duration::from_millis(250);

/// What is known when a request begins.
#[derive(Clone, Debug)]
pub struct Opening {
    /// The request's id, unique for ever (a UUID of version 7). Opening the same request again changes nothing.
    pub request: String,
    /// Who asks.
    pub caller: Caller,
    /// The provider's slug, or `local`.
    pub provider: String,
    /// The model, by the name that goes to the provider.
    pub model: String,
    /// Its price, where there is one.
    pub price: Option<Price>,
    /// The most tokens of prompt and of answer that it can take, where that is known.
    pub most: Option<(u64, u64)>,
}

impl Opening {
    fn worst(&self) -> Option<NanoUsd> {
        match &self.caller.custom_cost {
            Some(CustomCost::Total(total)) => return Some(*total),
            Some(CustomCost::Rates(price)) => Some(price),
            None => self.price.as_ref(),
        }
        .zip(self.most)
        .and_then(|(price, (input, output))| price.worst(input, output))
    }

    fn cost(&self, usage: Option<&Usage>) -> Option<Cost> {
        match (&self.caller.custom_cost, &self.price) {
            (Some(custom), _) => custom.cost(usage),
            (None, Some(price)) => price.cost(usage?),
            (None, None) => None,
        }
    }
}

/// What is set aside for a request under one limit.
#[derive(Clone, Debug)]
struct Reserved {
    hold: Hold,
    amount: i64,
}

/// All that the row of an open entry says.
#[derive(Clone)]
struct Opened {
    values: Vec<Value>,
    metadata: Vec<(String, String)>,
    reserved: Vec<Reserved>,
    /// Limits that only report and have no room, a bit for each of the reserved.
    beyond: Arc<AtomicU64>,
}

/// What became of writing it.
enum Written {
    New,
    /// It was there.
    Again,
    /// This limit has no room.
    NoRoom(usize),
}

/// The status of an entry that lost against another one.
const CANCELLED: u16 = 499;

const AGAIN: &str = "the entry is there";
const NO_ROOM: &str = "no room under the limit ";

impl Opened {
    fn of(
        opening: &Opening,
        process: &str,
        created: i64,
        worst: Option<NanoUsd>,
        reserved: Vec<Reserved>,
    ) -> Self {
        let Opening { request, caller, provider, model, .. } = opening;
        Self {
            values: vec![
                request.as_str().into(),
                process.into(),
                (&*caller.account).into(),
                (&*caller.gateway).into(),
                caller.key.as_ref().map(|key| &*key.0).into(),
                provider.as_str().into(),
                (&*counted(model)).into(),
                created.into(),
                worst.map(|worst| worst.0).into(),
                i64::from(caller.custom_cost.is_some()).into(),
            ],
            metadata: caller
                .metadata
                .entries()
                .map(|(name, value)| (name.to_owned(), value.to_string()))
                .collect(),
            reserved,
            beyond: Arc::default(),
        }
    }

    /// What has no room is found out before anything was changed, mostly: undoing that costs nothing.
    fn write(&self, work: &Work<'_>) -> Result<(), store::Error> {
        for (number, Reserved { hold, amount }) in self.reserved.iter().enumerate() {
            if hold.reserve(work, *amount)? {
                continue;
            }
            if hold.shadow.is_some() {
                hold.reserve_beyond(work, *amount)?;
                self.beyond.fetch_or(1 << (number % 64), Ordering::Relaxed);
            } else {
                return Err(store::Error::Undone(format!("{NO_ROOM}{number}")));
            }
        }
        let sql = "INSERT INTO gateway_ledger
            (request, process, account, gateway, key_id, provider, model, state, created, reserved, custom)
            VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, 'open', ?8, ?9, ?10) ON CONFLICT (request) DO NOTHING";
        if work.execute(sql, &self.values)? == 0 {
            return Err(store::Error::Undone(AGAIN.to_owned()));
        }
        for (name, value) in &self.metadata {
            work.execute(
                "INSERT INTO gateway_ledger_metadata (request, name, value) VALUES (?1, ?2, ?3)",
                &[self.values[0].clone(), name.as_str().into(), value.as_str().into()],
            )?;
        }
        Ok(())
    }

    /// Tells the ways apart in which writing it gives up.
    fn outcome(written: Result<(), store::Error>) -> Result<Written, store::Error> {
        match written {
            Ok(()) => Ok(Written::New),
            Err(store::Error::Undone(why)) if why == AGAIN => Ok(Written::Again),
            Err(store::Error::Undone(why)) => match why.strip_prefix(NO_ROOM).map(str::parse) {
                Some(Ok(number)) => Ok(Written::NoRoom(number)),
                _ => Err(store::Error::Undone(why)),
            },
            Err(error) => Err(error),
        }
    }
}

/// How an entry ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Settled,
    Failed(u16),
    Interrupted,
    /// As interrupted, by ourselves: another request was answered first.
    Cancelled,
}

/// All that an end says.
#[derive(Clone)]
struct End {
    request: String,
    state: State,
    ended: i64,
    usage: Option<Usage>,
    cost: Option<Cost>,
    reserved: Vec<Reserved>,
}

impl End {
    fn write(&self, work: &Work<'_>) -> Result<(), store::Error> {
        let tokens = |number: Option<u64>| Value::from(number.map(crate::account::number));
        let usage = self.usage.as_ref();
        let (name, status) = match self.state {
            State::Settled => ("settled", None),
            State::Failed(status) => ("failed", Some(i64::from(status))),
            State::Interrupted => ("interrupted", None),
            State::Cancelled => ("interrupted", Some(i64::from(CANCELLED))),
        };
        // Another process may have taken this one for dead; it knows better. Written twice, it changes nothing.
        let from = if matches!(self.state, State::Interrupted | State::Cancelled) {
            "'open'"
        } else {
            "'open', 'interrupted'"
        };
        let sql = format!(
            "UPDATE gateway_ledger SET state = ?2, ended = ?3, input = ?4, cached_input = ?5, cache_write = ?6,
             output = ?7, reasoning = ?8, cost = ?9, saved = ?10, status = ?11
             WHERE request = ?1 AND state IN ({from})"
        );
        let touched = work.execute(
            &sql,
            &[
                self.request.as_str().into(),
                name.into(),
                self.ended.into(),
                tokens(usage.map(|usage| usage.input)),
                tokens(usage.and_then(|usage| usage.cached_input)),
                tokens(usage.and_then(|usage| usage.cache_write)),
                tokens(usage.map(|usage| usage.output)),
                tokens(usage.and_then(|usage| usage.reasoning)),
                self.cost.map(|cost| cost.cost.0).into(),
                self.cost.and_then(|cost| cost.saved).map(|saved| saved.0).into(),
                status.into(),
            ],
        )?;
        // What is not known counts with its worst case.
        if let (1.., Some(cost)) = (touched, self.cost) {
            for Reserved { hold, amount } in &self.reserved {
                let sql = "UPDATE gateway_spend SET spent = spent + ?3 WHERE key_id = ?1 AND start = ?2";
                let less = cost.cost.0.saturating_sub(*amount).into();
                work.execute(sql, &[hold.name.as_str().into(), hold.start.into(), less])?;
            }
        }
        Ok(())
    }
}

/// An open entry.
pub struct Entry {
    ledger: Ledger,
    opening: Opening,
    reserved: Vec<Reserved>,
    /// Who counts the tokens.
    tokens: Option<(Gateway, String, Rule)>,
    seen: Option<Usage>,
    /// Whether somebody was asked for an answer.
    asked: bool,
    /// What the store has not taken yet.
    unwritten: Option<Opened>,
    /// Whether the account made the provider.
    own: bool,
    ended: bool,
}

impl Ledger {
    pub(super) async fn open(&self, opening: Opening, holds: Vec<Hold>, own: bool) -> Result<Entry, Error> {
        let running =
            self.running().map_err(|error| unavailable("The request could not be entered", &error))?;
        let created = self.now();
        let worst = opening.worst();
        let reserved = reserve(holds, &opening, worst)?;
        let opened = Opened::of(&opening, &running.process, created, worst, reserved.clone());
        let must = opening.caller.key.is_some() || reserved.iter().any(|kept| kept.hold.shadow.is_none());
        // From here on, whoever stops waiting leaves an entry that interrupts itself.
        let mut entry = Entry {
            ledger: self.clone(),
            opening,
            reserved,
            tokens: None,
            seen: None,
            asked: false,
            unwritten: None,
            own,
            ended: false,
        };
        let (again, beyond) = (opened.clone(), Arc::clone(&opened.beyond));
        let write = self.0.store.write(move |work| opened.write(work));
        let written = if must {
            write.await
        } else {
            tokio::time::timeout(OPEN_PATIENCE, write).await.unwrap_or(Err(store::Error::Busy))
        };
        match Opened::outcome(written) {
            Ok(Written::New | Written::Again) => {
                entry.begin();
                entry.report(beyond.load(Ordering::Relaxed));
                Ok(entry)
            }
            Ok(Written::NoRoom(number)) => {
                entry.ended = true;
                let Reserved { hold, amount } = entry.reserved.swap_remove(number);
                // Little may be spent: it is the worst case that finds no room.
                let spent = spend::spent(&self.0.store, &hold.name, hold.since).await.unwrap_or(hold.limit);
                let (may, left) = (NanoUsd(amount), NanoUsd(hold.limit.saturating_sub(spent).max(0)));
                let message = format!(
                    "{}: {left} of {} is left, and this request may cost up to {may}",
                    hold.refusal.message,
                    NanoUsd(hold.limit)
                );
                Err(Error { message, ..hold.refusal })
            }
            Err(error) if must => {
                // Where it is not sure that nothing was written, the entry is interrupted, if it is there.
                entry.ended = !matches!(error, store::Error::Unsure);
                Err(unavailable("The request could not be entered in the ledger", &error))
            }
            Err(error) => {
                tracing::warn!(%error, "the ledger takes a request only when it ends");
                entry.unwritten = Some(again);
                entry.begin();
                Ok(entry)
            }
        }
    }
}

/// What is set aside for a request.
fn reserve(holds: Vec<Hold>, opening: &Opening, worst: Option<NanoUsd>) -> Result<Vec<Reserved>, Error> {
    let Some(first) = holds.iter().find(|hold| hold.shadow.is_none()) else {
        // Those that only report count what can be counted.
        let amount = worst.map(|worst| worst.0);
        let kept = holds.into_iter().filter_map(|hold| Some(Reserved { hold, amount: amount? }));
        return Ok(kept.collect());
    };
    // Who may name the cost could spend without end.
    if opening.caller.custom_cost.is_some() {
        let message = format!("{}, so requests cannot say what they cost", first.whose);
        return Err(Error::new(ErrorKind::Forbidden, message).at("cf-aig-custom-cost"));
    }
    let Some(worst) = worst else {
        let message =
            format!("{}, and what the request may cost is not known: the model has no price", first.whose);
        return Err(Error::new(ErrorKind::Forbidden, message));
    };
    Ok(holds.into_iter().map(|hold| Reserved { hold, amount: worst.0 }).collect())
}

impl Entry {
    /// The request's id.
    #[must_use]
    pub fn request(&self) -> &str {
        &self.opening.request
    }

    /// Has its tokens counted under a limit when it ends.
    pub(super) fn counting(mut self, gateway: Gateway, name: String, rule: Rule) -> Self {
        self.tokens = Some((gateway, name, rule));
        self
    }

    /// Tells those around the handler that this provider is asked.
    fn begin(&self) {
        let Opening { request, provider, model, caller, .. } = &self.opening;
        if let Some(trace) = &caller.trace {
            trace.step(request, provider, model);
        }
        if let Some(outcome) = &caller.outcome {
            outcome.opened(request, provider, model);
        }
    }

    /// Tells which limits that only report had no room; a bit for each that is reserved.
    fn report(&self, beyond: u64) {
        if beyond == 0 {
            return;
        }
        let rules = self.reserved.iter().enumerate().filter(|(number, _)| beyond >> (number % 64) & 1 == 1);
        let names: Vec<String> = rules.filter_map(|(_, kept)| kept.hold.shadow.clone()).collect();
        self.ledger.0.metrics.reported(Finder::Spend);
        if let Some(trace) = &self.opening.caller.trace {
            trace.found(Finding { by: Finder::Spend, action: Action::Flag, names });
        }
    }

    /// The request goes out: from now on it may cost something, whether an answer comes or not.
    pub fn asked(&mut self) {
        self.asked = true;
    }

    /// Remembers what was used so far, for the case that no end comes.
    pub fn see(&mut self, usage: Usage) {
        self.asked();
        self.seen = Some(usage);
    }

    /// The answer is whole. Resolves when that is durable, or the store has not taken it for [`PATIENCE`]; it is
    /// written later then. Gives what it cost, where that is known. `None`: no usage was reported.
    pub async fn settle(mut self, usage: Option<Usage>) -> Option<Cost> {
        let cost = self.opening.cost(usage.as_ref());
        self.end(State::Settled, usage, cost).await;
        cost
    }

    /// There is no answer, or no whole one, and nothing is owed; `status` is what the client was told, `why` is for the
    /// log.
    pub async fn fail(mut self, status: u16, why: &str) {
        if let Some(trace) = &self.opening.caller.trace {
            trace.step_failed(self.request(), why);
        }
        let nothing = Cost { cost: NanoUsd(0), saved: Some(NanoUsd(0)) };
        let seen = self.seen;
        self.end(State::Failed(status), seen, Some(nothing)).await;
    }

    /// Another request for the same was answered first, and this one is closed. What it costs is not known, unless
    /// it was told.
    pub fn cancel(mut self, other: Option<&Self>) {
        if let (Some(outcome), Some(other)) = (&self.opening.caller.outcome, other) {
            let (provider, model) = (&other.opening.provider, &other.opening.model);
            outcome.withdrawn(self.request(), (other.request(), provider, model));
        }
        let seen = self.seen;
        // A total that the caller named is owed once, for the other one.
        let cost = seen.and_then(|seen| self.opening.cost(Some(&seen)));
        self.write_end(State::Cancelled, seen, cost);
    }

    async fn end(&mut self, state: State, usage: Option<Usage>, cost: Option<Cost>) {
        if let Some(writing) = self.write_end(state, usage, cost) {
            // It goes on when nobody waits any more.
            let _ = tokio::time::timeout(PATIENCE, writing).await;
        }
    }

    /// Tells log and counters how it ended.
    fn tell(&self, state: State, usage: Option<Usage>, cost: Option<Cost>) {
        let outcome = match state {
            State::Settled => Outcome::Whole,
            State::Failed(status) => Outcome::Failed(status),
            State::Interrupted | State::Cancelled => Outcome::Left,
        };
        let Opening { request, provider, model, caller, .. } = &self.opening;
        let label = if self.own { CUSTOM } else { provider };
        self.ledger.0.metrics.count(label, model, outcome, usage.as_ref(), cost);
        if let Some(trace) = &caller.trace {
            trace.step_ended(request, outcome, usage, cost);
        }
    }

    /// Has the end written, by a task of its own, however often that takes.
    fn write_end(
        &mut self,
        state: State,
        usage: Option<Usage>,
        cost: Option<Cost>,
    ) -> Option<tokio::task::JoinHandle<()>> {
        self.ended = true;
        self.tell(state, usage, cost);
        let end = match state {
            State::Settled => Some(outcome::End::Settled),
            State::Failed(_) => Some(outcome::End::Failed),
            State::Interrupted => Some(outcome::End::Interrupted),
            // The request goes on with the other one.
            State::Cancelled => None,
        };
        if let (Some(outcome), Some(end)) = (&self.opening.caller.outcome, end) {
            outcome.ended(end, usage.as_ref(), cost.map(|cost| cost.cost));
        }
        let ledger = self.ledger.clone();
        let runtime = ledger.running().ok()?.runtime.clone();
        let end = End {
            request: self.opening.request.clone(),
            state,
            ended: ledger.now(),
            usage,
            cost,
            reserved: std::mem::take(&mut self.reserved),
        };
        if let (Some((gateway, name, rule)), Some(usage)) = (self.tokens.take(), &usage)
            && gateway.charge(&name, rule, usage.input.saturating_add(usage.output))
        {
            runtime.spawn(async move { gateway.pay(name, rule).await });
        }
        let unwritten = self.unwritten.take();
        let waiting = Waiting::new(ledger);
        Some(runtime.spawn(write(waiting, unwritten.map(Arc::new), Arc::new(end))))
    }
}

impl Drop for Entry {
    fn drop(&mut self) {
        if !self.ended {
            let nothing = Cost { cost: NanoUsd(0), saved: Some(NanoUsd(0)) };
            let seen = self.seen;
            let cost = if self.asked { self.opening.cost(seen.as_ref()) } else { Some(nothing) };
            self.write_end(State::Interrupted, seen, cost);
        }
    }
}

impl Ledger {
    /// Enters a request that the cache answered: it cost nothing, and saved what the answer had cost. Nobody waits for
    /// that to be written.
    pub(super) fn hit(&self, opening: Opening, saved: Option<NanoUsd>) -> Result<(), Error> {
        let running =
            self.running().map_err(|error| unavailable("The request could not be entered", &error))?;
        let now = self.now();
        let opened = Opened::of(&opening, running.process.as_str(), now, Some(NanoUsd(0)), Vec::new());
        let cost = Cost { cost: NanoUsd(0), saved };
        if let Some(trace) = &opening.caller.trace {
            trace.step(&opening.request, &opening.provider, &opening.model);
            trace.step_ended(&opening.request, Outcome::Whole, None, Some(cost));
        }
        if let Some(outcome) = &opening.caller.outcome {
            outcome.opened(&opening.request, &opening.provider, &opening.model);
            outcome.ended(outcome::End::Settled, None, Some(cost.cost));
        }
        let end = End {
            request: opening.request,
            state: State::Settled,
            ended: now,
            usage: None,
            cost: Some(cost),
            reserved: Vec::new(),
        };
        let waiting = Waiting::new(self.clone());
        running.runtime.spawn(write(waiting, Some(Arc::new(opened)), Arc::new(end)));
        Ok(())
    }
}

/// Counts an end that waits for the store.
struct Waiting(Ledger);

impl Waiting {
    fn new(ledger: Ledger) -> Self {
        ledger.0.waiting.fetch_add(1, Ordering::AcqRel);
        Self(ledger)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if self.0.0.waiting.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.0.drained.notify_waiters();
        }
    }
}

/// Writes an end until the store takes it, with its beginning where that was not taken. One that it would never take is
/// given up, or nothing could be entered any more once there are many.
async fn write(waiting: Waiting, unwritten: Option<Arc<Opened>>, end: Arc<End>) {
    let (mut pause, longest) = PAUSES;
    let mut refusals = 0;
    loop {
        let store = &waiting.0.0.store;
        let written = async {
            if let Some(opened) = unwritten.clone() {
                Opened::outcome(store.write(move |work| opened.write(work)).await)?;
            }
            let end = Arc::clone(&end);
            store.write(move |work| end.write(work)).await
        };
        match written.await {
            Ok(()) => return,
            Err(error @ store::Error::Failed(_)) if refusals == REFUSALS => {
                tracing::error!(%error, request = end.request, "the end of a request is lost: the store refuses it");
                return;
            }
            Err(error) => {
                refusals += u32::from(matches!(error, store::Error::Failed(_)));
                tracing::warn!(%error, request = end.request, "the end of a request waits for the store");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(longest);
            }
        }
    }
}

//! The second half of a step: from logits to tokens and events, and from rows to cached pages.

use crate::draft::Settled;
use crate::engine::Engine;
use crate::sampler::{Choice, History, Sampler, logprobs};
use crate::sequence::{InFlight, NEVER, Sequence};
use crate::stats::Counters;
use crate::{Event, EventKind, FinishReason, Standing, TokenLogprobs};
use base::Tokens;
use device::PAGE_TOKENS;

/// Chooses tokens for all sequences of the step and reports them. `logits` are the wanted rows, in order.
///
/// A row of a draft counts if and only if its token is the one that was chosen for its place; from the first other
/// one on the rows are dropped: `planned` then has only those before it.
pub(crate) fn sample(
    running: &mut [Sequence],
    requests: &mut [Option<InFlight>],
    sampler: &mut Sampler,
    forced: &mut Vec<u32>,
    logits: &[f32],
    counters: &mut Counters,
    events: &mut Vec<Event>,
) {
    let mut rows = logits.chunks_exact(sampler.vocab());
    for sequence in running.iter_mut().filter(|s| s.planned > 0) {
        let request = requests[sequence.slot].as_mut().expect("a sequence has a request");
        let first_event = events.len();
        let mut answer = Answer { sequence, request, events, prompt: Vec::new() };
        let start = answer.sequence.computed;
        let end = start + answer.sequence.planned;
        let drafted = end - answer.sequence.drafting.rows().len();
        let known = answer.sequence.tokens.len();
        for i in start..end {
            let is_draft = i >= drafted;
            if is_draft && !answer.holds(i, i - drafted) {
                answer.sequence.planned = i - start;
                // Each row of a draft has logits.
                rows.nth(end - i - 1).expect("rows of logits were asked for");
                break;
            }
            let chooses = answer.sequence.chooses(i);
            if chooses || is_draft || answer.sequence.reports(i) {
                let row = rows.next().expect("a row of logits was asked for");
                if chooses {
                    answer.extend(row, sampler, forced);
                }
                if answer.sequence.reports(i) {
                    answer.report(i + 1, row);
                }
            }
        }
        answer.flush();
        let came = &answer.sequence.tokens[known..];
        let Settled { ran, right, predicted } = answer.sequence.drafting.settle(came);
        counters.drafted_tokens += ran as u64;
        counters.accepted_tokens += right as u64;
        if predicted && ran > 0 {
            let kind =
                EventKind::Predicted { accepted: Tokens::from(right), rejected: Tokens::from(ran - right) };
            events.insert(first_event, Event { request: request.id, kind });
        }
    }
    assert!(rows.next().is_none(), "each row of logits belongs to a sequence");
}

/// A sequence while its tokens are chosen and reported.
struct Answer<'a> {
    sequence: &'a mut Sequence,
    request: &'a mut InFlight,
    events: &'a mut Vec<Event>,
    /// Reports of the prompt that were not sent yet.
    prompt: Vec<TokenLogprobs>,
}

impl Answer<'_> {
    /// Whether the row of token `i` was computed for the token that now stands there, and is still needed.
    fn holds(&self, i: usize, of_draft: usize) -> bool {
        i < self.sequence.target() && self.sequence.tokens[i] == self.sequence.drafting.rows()[of_draft]
    }

    /// Appends what comes after the last token: tokens that the constraint forces, or else a chosen one
    /// and what it forces.
    fn extend(&mut self, logits: &[f32], sampler: &mut Sampler, forced: &mut Vec<u32>) {
        if self.extend_forced(forced) || self.ends_here() {
            return;
        }
        let position = self.sequence.tokens.len();
        let uniform = base::rng::uniform(self.request.sampling.seed, self.sequence.choice(), position as u32);
        let history = History { tokens: &self.sequence.tokens, prompt: self.sequence.prompt };
        let constraint = self.sequence.constraint.as_deref_mut();
        match sampler.choose(logits, &self.request.sampling, history, constraint, uniform) {
            Choice::Token(id) => {
                self.push(id);
                self.extend_forced(forced);
            }
            Choice::Nothing => self.sequence.ending = Some(FinishReason::Complete),
            Choice::Stuck => self.sequence.ending = Some(FinishReason::ConstraintFailed),
            Choice::Invalid => self.sequence.ending = Some(FinishReason::Failed),
        }
    }

    /// Appends forced tokens, if there are any.
    fn extend_forced(&mut self, forced: &mut Vec<u32>) -> bool {
        let mut any = false;
        while self.sequence.ending.is_none() {
            let Some(constraint) = &mut self.sequence.constraint else { break };
            forced.clear();
            constraint.forced(forced);
            if forced.is_empty() {
                break;
            }
            any = true;
            for &id in forced.iter() {
                if self.sequence.ending.is_none() {
                    self.push(id);
                }
            }
        }
        any
    }

    /// Whether the answer ends without a further token, since its constraint says so.
    fn ends_here(&mut self) -> bool {
        let standing = self.sequence.constraint.as_mut().map_or(Standing::Open, |c| c.standing());
        let reason = match standing {
            Standing::Open => return false,
            Standing::Ended => FinishReason::Complete,
            Standing::Failed => FinishReason::ConstraintFailed,
        };
        self.sequence.ending = Some(reason);
        true
    }

    /// Appends a token of the answer.
    fn push(&mut self, id: u32) {
        self.request.usage.completion += Tokens(1);
        if self.request.stops_at(id) {
            self.sequence.ending = Some(FinishReason::Stop);
            return;
        }
        self.sequence.tokens.push(id);
        if let Some(constraint) = &mut self.sequence.constraint {
            constraint.accept(id);
        }
        if self.sequence.owed == NEVER {
            self.send(id, None);
        }
        // A whole answer is whole even where it has all the tokens it may have.
        if !self.ends_here() && self.sequence.tokens.len() >= self.sequence.limit {
            self.sequence.ending = Some(FinishReason::Length);
        }
    }

    /// Reports token `index` with its log-probability, from the logits of the row before it.
    fn report(&mut self, index: usize, logits: &[f32]) {
        let id = self.sequence.tokens[index];
        let prompt = self.sequence.prompt;
        if index < prompt {
            let top = self.request.prompt_logprobs.unwrap_or(0);
            self.prompt.push(logprobs(logits, id, top));
        } else {
            self.flush();
            let top = self.request.logprobs.unwrap_or(0);
            self.send(id, Some(logprobs(logits, id, top)));
        }
        self.sequence.owed = index + 1;
        if self.sequence.owed == prompt {
            self.flush();
            self.sequence.owed = self.request.owed_after_prompt(prompt);
        }
    }

    /// Sends the reports of the prompt that were gathered.
    fn flush(&mut self) {
        if !self.prompt.is_empty() {
            let entries = std::mem::take(&mut self.prompt);
            let first = (self.sequence.owed.min(self.sequence.prompt) - entries.len()) as u32;
            self.events
                .push(Event { request: self.request.id, kind: EventKind::PromptLogprobs { first, entries } });
        }
    }

    fn send(&mut self, id: u32, logprobs: Option<TokenLogprobs>) {
        let choice = self.sequence.choice();
        self.events.push(Event { request: self.request.id, kind: EventKind::Token { choice, id, logprobs } });
    }
}

impl Engine {
    /// Notes what the step has computed, caches it, and ends what is done.
    pub(crate) fn publish(&mut self, events: &mut Vec<Event>) {
        let mut i = 0;
        while i < self.running.len() {
            let sequence = &mut self.running[i];
            let planned = std::mem::take(&mut sequence.planned);
            if planned > 0 {
                self.memory.drop_copy(&mut sequence.table);
                let before = sequence.computed;
                sequence.computed += planned;
                let of_prompt = sequence.prompt.clamp(before, sequence.computed) - before;
                self.counters.prompt_tokens_computed += of_prompt as u64;
                let computed = &sequence.tokens[..sequence.computed];
                if of_prompt > 0 {
                    self.memory.publish_all(&mut sequence.table, sequence.namespace, computed);
                } else {
                    self.memory.publish(&mut sequence.table, sequence.namespace, computed);
                }
                // A draft that did not hold may leave pages behind.
                if sequence.computed + 1 >= sequence.tokens.len() {
                    let pages = sequence.tokens.len().div_ceil(PAGE_TOKENS);
                    self.memory.cut(&mut sequence.table, pages);
                }
                if sequence.computed >= sequence.prompt {
                    self.spawn(i);
                }
            }
            if self.running[i].is_done() {
                let mut sequence = self.running.remove(i);
                self.leave(&mut sequence);
                self.remember(&sequence);
                let reason = sequence.ending.expect("a sequence that is done has a reason");
                self.end_choice(sequence.slot, sequence.choice(), reason, events);
            } else {
                i += 1;
            }
        }
    }

    /// Keeps an answer that has ended, for drafts of later ones.
    pub(crate) fn remember(&mut self, sequence: &Sequence) {
        if let Some(drafter) = &mut self.drafter {
            drafter.remember(sequence.namespace, &sequence.tokens[sequence.prompt..]);
        }
    }

    /// Makes the sequences of the further choices, once the first one's prompt is cached for them.
    fn spawn(&mut self, i: usize) {
        let slot = self.running[i].slot;
        let request = self.requests[slot].as_mut().expect("a sequence has a request");
        if std::mem::replace(&mut request.spawned, true) {
            return;
        }
        for choice in 1..request.finished.len() as u32 {
            let request = self.requests[slot].as_mut().expect("a sequence has a request");
            let sibling = request.sibling(&self.running[i], choice);
            self.wait(sibling);
        }
    }

    /// Ends one answer, and its request with the last one.
    pub(crate) fn end_choice(
        &mut self,
        slot: usize,
        choice: u32,
        reason: FinishReason,
        events: &mut Vec<Event>,
    ) {
        let request = self.requests[slot].as_mut().expect("a sequence has a request");
        request.finished[choice as usize] = true;
        events.push(Event { request: request.id, kind: EventKind::Finished { choice, reason } });
        if request.finished.iter().all(|finished| *finished) {
            self.finish(slot, events);
        }
    }

    /// Ends all answers of a request that have not ended yet.
    pub(crate) fn end_request(&mut self, slot: usize, reason: FinishReason, events: &mut Vec<Event>) {
        self.drop_sequences(slot);
        let request = self.requests[slot].as_ref().expect("the request is in flight");
        let id = request.id;
        let open = request.finished.iter().zip(0u32..).filter(|(finished, _)| !**finished);
        events.extend(
            open.map(|(_, choice)| Event { request: id, kind: EventKind::Finished { choice, reason } }),
        );
        self.finish(slot, events);
    }

    /// Forgets a request whose answers have all ended.
    fn finish(&mut self, slot: usize, events: &mut Vec<Event>) {
        let request = self.forget(slot);
        self.counters.finished += 1;
        self.counters.completion_tokens += u64::from(request.usage.completion.0);
        events.push(Event { request: request.id, kind: EventKind::Done(request.usage) });
    }
}

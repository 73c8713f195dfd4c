//! Who runs in a step: admission, the plan, preemption, and what to do when memory runs out.
//!
//! `running` and `waiting` are in order of arrival. First come, first served, but for two things. A prompt
//! that needs much less than the oldest one does not wait for all of it: such prompts share up to half of a
//! step, so that the oldest is at most twice as long under way. And the time of a step in which answers are
//! decoded is bounded ([`crate::StepLimit`]). A sequence for which there is no memory holds back those
//! behind it. When pages run out, the youngest running sequence gives its pages to the
//! older ones and waits again; what it computed stays cached until the room is needed. So the oldest
//! sequence can always go on, and admission cannot deadlock. What other engines of the process hold is the
//! business of [`crate::KvBudget`].
//!
//! A sequence whose prompt begins like one that is just being computed waits for that one, and then finds
//! the common part in the prefix cache: nothing is computed twice at the same time.
//!
//! The plan ([`device::Batch`]) is plain data. Nothing here looks at logits.

use crate::cost::Work;
use crate::draft::{LONGEST_DRAFT, Yield};
use crate::engine::Engine;
use crate::pool::Shortage;
use crate::radix::common;
use crate::sequence::{Arrival, Sequence};
use crate::{Event, EventKind, FinishReason};
use base::Tokens;
use device::PAGE_TOKENS;

/// Rows per step whose logits are wanted only to report known tokens. They bound the memory for logits:
/// a prompt of which log-probabilities are wanted would otherwise need `step_tokens * vocab` of them.
const REPORT_ROWS: usize = 32;
/// Most rows of drafts in a step; they too bound the memory for logits.
const STEP_DRAFTS: usize = 32;
/// Waiting sequences that are looked at for admission in one step.
const LOOK_AHEAD: usize = 64;
/// A prompt goes beside the oldest one if it needs at most one in so many of its rows: from a half on, what
/// the one gains is more than what the other loses.
const MUCH_SHORTER: usize = 2;
/// Where nothing decodes yet, a step in which a prompt ends has no more rows than this, if it can: they
/// suffice to keep the machine busy, and the answer's first token comes with the step's end.
const FIRST_ROWS: usize = 128;
/// Rows that the oldest prompt gets in each step, whatever they take.
const LEAST_ROWS: usize = 4;

/// Least tokens of a turn with the claim on the budget.
const TURN_TOKENS: usize = 4 * PAGE_TOKENS;
/// A turn has at least one token for so many that may have to be recomputed for it.
const RECOMPUTED_PER_TOKEN: usize = 8;

/// A turn with the claim on the budget: it is over when this sequence is not the oldest running one any
/// more, or has so many tokens.
pub(crate) struct Turn {
    arrival: Arrival,
    until: usize,
}

/// What a step has left for prompts.
#[derive(Clone, Copy)]
struct Room {
    rows: usize,
    /// Rows that were planned.
    used: usize,
    /// Rows of known tokens to report.
    reports: usize,
    /// Infinite where the time is not bounded.
    seconds: f64,
}

impl Room {
    /// Half of what is there, unused.
    fn half(&self) -> Self {
        Self { rows: self.rows / 2, used: 0, reports: self.reports / 2, seconds: self.seconds / 2.0 }
    }

    /// Takes off what was used of its half.
    fn take(&mut self, half: Self) {
        let whole = *self;
        self.rows -= whole.rows / 2 - half.rows;
        self.used += half.used;
        self.reports -= whole.reports / 2 - half.reports;
        if self.seconds.is_finite() {
            self.seconds -= whole.seconds / 2.0 - half.seconds;
        }
    }

    /// Leaves no more rows than lead to `rows` in all.
    fn end_at(&mut self, rows: usize) {
        self.rows = self.rows.min(rows.saturating_sub(self.used));
    }
}

/// How many of the rows asked for have pages.
enum Grown {
    /// All.
    Full,
    /// Fewer, or none; the sequence keeps what it has. The oldest one is short only where memory must come
    /// from other engines, which will wake this one, or from a device that refuses it.
    Short(Shortage),
    /// The sequence itself was preempted.
    Gone,
}

impl Engine {
    /// Moves waiting sequences to the running ones, as far as the next step has rows for them.
    pub(crate) fn admit(&mut self, events: &mut Vec<Event>) {
        if self.waiting.is_empty() {
            return;
        }
        if self.memory.pool.account.yields() {
            self.memory.pool.account.claim();
            return;
        }
        let prompts = self.running.iter().filter(|sequence| sequence.wants_prompt_rows());
        let mut rows: usize = prompts.map(Sequence::remaining).sum();
        let most_rows = self.prompt_rows();
        let mut i = 0;
        while i < self.waiting.len().min(LOOK_AHEAD) && self.running.len() < self.config.max_running {
            let next = &self.waiting[i];
            let reusable = &next.tokens[..next.reusable()];
            self.memory.lookup(next.namespace, reusable, &mut self.found);
            let needed = next.target() - self.found.tokens();
            let goes_beside = || self.oldest_prompt().is_some_and(|s| needed <= s.remaining() / MUCH_SHORTER);
            if self.follows(next, self.found.tokens()) || rows >= most_rows && !goes_beside() {
                i += 1;
                continue;
            }
            if !self.running.is_empty() && !self.fits(next) {
                break;
            }
            let mut next = self.waiting.remove(i).expect("the index is in range");
            next.computed = self.memory.attach(&mut next.table, &self.found);
            rows += next.remaining();
            self.start(&next, events);
            let place = self.running.partition_point(|other| other.arrival < next.arrival);
            self.running.insert(place, next);
        }
    }

    /// The oldest running prompt of which the step that is planned has no rows yet.
    fn oldest_prompt(&self) -> Option<&Sequence> {
        self.running.iter().find(|sequence| sequence.wants_prompt_rows())
    }

    /// Begins a turn if the claim counts now; after admission, so that there is a sequence to go on.
    pub(crate) fn begin_turn(&mut self) {
        if self.turn.is_none() && self.memory.pool.account.has_turn() {
            self.turn = self.running.first().map(|oldest| {
                let len = oldest.tokens.len();
                Turn { arrival: oldest.arrival, until: len + Self::turn_tokens(len) }
            });
        }
    }

    /// Tokens of a turn for a sequence that has `len` tokens.
    fn turn_tokens(len: usize) -> usize {
        TURN_TOKENS.max(len / RECOMPUTED_PER_TOKEN)
    }

    /// Gives the claim up when the turn is over, and all wishes when there is nothing to run.
    pub(crate) fn end_turn(&mut self) {
        let oldest = self.running.first();
        let is_over = |turn: &mut Turn| {
            oldest.is_none_or(|s| s.arrival != turn.arrival || s.tokens.len() >= turn.until)
        };
        if self.turn.take_if(is_over).is_some() {
            self.memory.pool.account.unclaim();
        }
        if self.running.is_empty() && self.waiting.is_empty() {
            self.memory.pool.account.set_idle(true);
            self.memory.pool.account.settle();
        }
    }

    /// Rows that a step has for prompts: what the decodes leave, and never so few that prompts starve.
    fn prompt_rows(&self) -> usize {
        let rows = self.config.step_tokens.get();
        let decodes = self.running.iter().filter(|sequence| sequence.decodes()).count();
        rows.saturating_sub(decodes).max(rows.div_ceil(8))
    }

    /// Whether a running sequence is about to compute a page or more of this one's prefix that the cache
    /// does not have. One that computes slowly, for the sake of its prompt's log-probabilities, is not
    /// waited for.
    fn follows(&self, next: &Sequence, cached: usize) -> bool {
        let reusable = &next.tokens[..next.reusable()];
        let least = cached + PAGE_TOKENS;
        self.running.iter().any(|leader| {
            leader.namespace == next.namespace
                && leader.remaining() > 1
                && leader.owed >= leader.prompt
                && common(&leader.tokens[..leader.target()], reusable) >= least.max(leader.computed + 1)
        })
    }

    /// Whether the pages that a sequence will need for its next token can be had, beside those that the
    /// running ones will need for theirs.
    fn fits(&self, next: &Sequence) -> bool {
        let pages = |sequence: &Sequence| (sequence.tokens.len() + 1).div_ceil(PAGE_TOKENS);
        let promised = self.running.iter().map(|s| pages(s).saturating_sub(s.table.pages.len()));
        let needed = pages(next) - self.found.nodes.len() + promised.sum::<usize>();
        needed + self.memory.idle_among(&self.found) <= self.memory.obtainable()
    }

    /// Notes a first admission.
    fn start(&mut self, sequence: &Sequence, events: &mut Vec<Event>) {
        let request = self.requests[sequence.slot].as_mut().expect("a sequence has a request");
        if !std::mem::replace(&mut request.started, true) {
            let cached = Tokens::from(sequence.computed);
            request.usage.cached = cached;
            self.counters.cached_tokens += u64::from(cached.0);
            self.queued -= 1;
            events.push(Event { request: request.id, kind: EventKind::Started { cached } });
        }
    }

    /// Decides which rows run in this step, gets their pages, and writes the batch.
    pub(crate) fn plan(&mut self, events: &mut Vec<Event>) {
        self.batch.clear();
        let rows = self.prompt_rows();
        let mut decodes = Work::default();
        let mut i = 0;
        while i < self.running.len() {
            if self.running[i].decodes() {
                let start = self.running[i].computed;
                let planned = self.plan_rows(i, 1, events);
                decodes.add_decode(start, planned);
            }
            i += 1;
        }
        let mut room = Room { rows, used: 0, reports: REPORT_ROWS, seconds: f64::INFINITY };
        let nothing_decodes = decodes.decode_rows == 0;
        if let Some(limit) = &self.step_limit
            && !nothing_decodes
        {
            room.seconds = limit.left_for_prompts(&decodes);
        }
        if self.plan_beside(&mut room, events) && nothing_decodes {
            // The oldest has a right to half of the step.
            room.end_at(FIRST_ROWS.max(2 * room.used));
        }
        let mut least = LEAST_ROWS;
        let mut i = 0;
        while i < self.running.len() && room.rows > 0 {
            if self.running[i].wants_prompt_rows() {
                let remaining = self.running[i].remaining();
                let planned = self.plan_prompt(i, std::mem::take(&mut least), &mut room, events);
                if planned == remaining && nothing_decodes {
                    room.end_at(FIRST_ROWS);
                }
            }
            i += 1;
        }
        self.draft();
        self.write_batch();
    }

    /// Plans prompts that need much less than the oldest one, the shortest first, in half of the room.
    /// Returns whether one ends.
    fn plan_beside(&mut self, room: &mut Room, events: &mut Vec<Event>) -> bool {
        let Some(oldest) = self.oldest_prompt() else { return false };
        let (arrival, most) = (oldest.arrival, oldest.remaining() / MUCH_SHORTER);
        let mut half = room.half();
        let mut ends = false;
        while half.rows > 0 {
            let beside = self.running.iter().enumerate().filter(|(_, sequence)| {
                sequence.wants_prompt_rows() && sequence.arrival != arrival && sequence.remaining() <= most
            });
            let Some((i, shortest)) = beside.min_by_key(|(_, sequence)| sequence.remaining()) else { break };
            let remaining = shortest.remaining();
            let planned = self.plan_prompt(i, 0, &mut half, events);
            if planned == 0 {
                break;
            }
            ends |= planned == remaining;
        }
        room.take(half);
        ends
    }

    /// Plans as many rows of prompt `i` as there is room for, and `least` if they need only time.
    fn plan_prompt(&mut self, i: usize, least: usize, room: &mut Room, events: &mut Vec<Event>) -> usize {
        let sequence = &self.running[i];
        let start = sequence.computed;
        let silent = sequence.owed.saturating_sub(start + 1);
        let mut rows = sequence.remaining().min(room.rows).min(silent.saturating_add(room.reports));
        let prices = self.step_limit.as_ref().map(|limit| limit.prices).filter(|_| room.seconds.is_finite());
        if let Some(prices) = &prices {
            rows = prices.rows_within(room.seconds, start, rows).max(least.min(rows));
        }
        let planned = self.plan_rows(i, rows, events);
        room.rows -= planned;
        room.used += planned;
        room.reports -= planned.saturating_sub(silent);
        room.seconds -= prices.map_or(0.0, |prices| prices.of_prompt(start, planned));
        planned
    }

    /// Adds rows of drafts to a step that does nothing but decode: a step with prompts is long enough. No sequence
    /// loses a page to a draft.
    fn draft(&mut self) {
        let Some(drafter) = &self.drafter else { return };
        let decodes = self.running.iter().filter(|sequence| sequence.planned > 0).count();
        if self.running.iter().any(|sequence| sequence.remaining() > 1) {
            return;
        }
        let mut step = Yield::new(decodes, drafter.cost);
        let mut left = STEP_DRAFTS;
        for sequence in self.running.iter_mut().filter(|sequence| sequence.planned == 1) {
            let most = sequence.draftable().min(LONGEST_DRAFT).min(left);
            let Sequence { drafting, namespace, tokens, table, .. } = sequence;
            let mut rows = drafter.propose(drafting, *namespace, tokens, most, &mut step);
            while rows > 0 && table.pages.len() * PAGE_TOKENS < tokens.len() + rows {
                if !self.memory.extend_if_idle(table, &mut *self.model) {
                    rows = table.pages.len() * PAGE_TOKENS - tokens.len();
                }
            }
            drafting.run(rows);
            sequence.planned += rows;
            left -= rows;
        }
    }

    /// Gives sequence `i` pages for up to `rows` rows; returns for how many there are.
    fn plan_rows(&mut self, i: usize, rows: usize, events: &mut Vec<Event>) -> usize {
        match self.grow(i, rows) {
            Grown::Full => {}
            Grown::Gone => return 0,
            Grown::Short(Shortage::Device) if i == 0 && self.room(0) == 0 => {
                // No other engine can help: the machine has less memory than the budget says.
                let slot = self.running[0].slot;
                self.end_request(slot, FinishReason::Failed, events);
                return 0;
            }
            Grown::Short(_) => {}
        }
        let planned = rows.min(self.room(i));
        self.running[i].planned = planned;
        planned
    }

    /// Rows for which sequence `i` has pages.
    fn room(&self, i: usize) -> usize {
        let sequence = &self.running[i];
        // What is still to be copied counts as computed before it has a page.
        (sequence.table.pages.len() * PAGE_TOKENS).saturating_sub(sequence.computed)
    }

    /// Appends pages to sequence `i` until it can run `rows` rows, preempting younger sequences if need be.
    fn grow(&mut self, i: usize, rows: usize) -> Grown {
        loop {
            let sequence = &mut self.running[i];
            let wanted = (sequence.computed + rows).div_ceil(PAGE_TOKENS);
            let missing = wanted.saturating_sub(sequence.table.pages.len());
            if missing == 0 {
                return Grown::Full;
            }
            let Err(shortage) = self.memory.extend(&mut sequence.table, &mut *self.model, missing) else {
                continue;
            };
            if shortage == Shortage::Budget && self.memory.pool.account.is_owed() {
                return Grown::Short(shortage);
            }
            if i + 1 < self.running.len() {
                self.preempt();
            } else if i == 0 && self.memory.drop_copy(&mut self.running[0].table) {
                // The page to copy from is the last one that is not its own; it computes that part instead.
                let sequence = &mut self.running[0];
                sequence.computed -= sequence.computed % PAGE_TOKENS;
            } else if i == 0 && self.memory.pool.account.yields() {
                self.memory.pool.account.claim();
                self.preempt();
                return Grown::Gone;
            } else if i == 0 && shortage == Shortage::Budget && self.memory.pool.account.claim() {
                // Only other engines can help. With the claim it may get what was kept for them.
            } else {
                return Grown::Short(shortage);
            }
        }
    }

    /// Makes the youngest running sequence wait again, at its old place in the order of arrival. Its
    /// tokens, constraint and reports stay as they are, so its answer does not change.
    pub(crate) fn preempt(&mut self) {
        let mut sequence = self.running.pop().expect("there is a sequence to preempt");
        self.leave(&mut sequence);
        sequence.computed = 0;
        sequence.planned = 0;
        self.counters.preemptions += 1;
        self.wait(sequence);
    }

    /// Puts a sequence among the waiting ones, in order of arrival.
    pub(crate) fn wait(&mut self, sequence: Sequence) {
        let place = self.waiting.partition_point(|other| other.arrival < sequence.arrival);
        self.waiting.insert(place, sequence);
    }

    /// Takes the pages from a sequence that no longer runs.
    pub(crate) fn leave(&mut self, sequence: &mut Sequence) {
        let computed = &sequence.tokens[..sequence.computed];
        self.memory.release(&mut sequence.table, sequence.namespace, computed);
    }

    /// Turns the plan into plain data.
    fn write_batch(&mut self) {
        self.work = Work::default();
        for sequence in self.running.iter().filter(|s| s.planned > 0) {
            let (start, end) = (sequence.computed, sequence.computed + sequence.planned);
            match sequence.decodes() {
                true => self.work.add_decode(start, sequence.planned),
                false => self.work.add_prompt(start, sequence.planned),
            }
            let draft = sequence.drafting.rows();
            let known = end - draft.len();
            let first_row = self.batch.rows();
            self.batch.copies.extend(self.memory.copy(&sequence.table));
            let pages = &sequence.table.pages[..end.div_ceil(PAGE_TOKENS)];
            self.batch.push(&sequence.tokens[start..known], start as u32, pages);
            self.batch.extend(draft);
            let wanted = |i: &usize| *i >= known || sequence.chooses(*i) || sequence.reports(*i);
            let wanted = (start..end).filter(wanted);
            self.batch.logit_rows.extend(wanted.map(|i| (first_row + i - start) as u32));
        }
    }

    /// Gives back what other engines of the process have a right to.
    pub(crate) fn relieve(&mut self) {
        if !self.memory.pool.account.pressed() {
            return;
        }
        let owed = self.memory.pool.account.owed();
        let unit = self.page_bytes.max(1);
        let pages = |bytes: u64| bytes.div_ceil(unit) as usize;
        let mut given = self.memory.give_back(&mut *self.model, pages(owed.cached));
        while given < pages(owed.held) && !self.running.is_empty() {
            self.preempt();
            given += self.memory.give_back(&mut *self.model, pages(owed.held) - given);
        }
    }
}

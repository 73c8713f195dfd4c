//! One limit in bytes on the KV pages of all engines of a process.
//!
//! Memory is not divided up front: an engine may use all of it while the others need none. When there is
//! too little, three rules decide, strongest first:
//!
//! 1. *Claim.* An engine whose oldest sequence cannot go on, although nothing else of that engine runs,
//!    claims the budget. Claims queue, and the oldest one counts: the other engines admit nothing new, give
//!    up cached pages, and give up everything once they cannot go on themselves. It counts for one *turn*
//!    only: until the oldest running sequence of that engine has a number of tokens more than when the turn
//!    began, or has ended. An engine that a claim keeps from going on, or from admitting, queues a claim of
//!    its own, and one that waits for part of its share at the time of a claim is queued before it.
//! 2. *Fair share* (`total / engines`). An engine below its share gets memory from those above theirs,
//!    which evict cached pages and, if that is not enough, preempt sequences.
//! 3. Idle engines give up cached pages to whoever needs them for running sequences.
//!
//! Memory that is wanted under a stronger rule is not handed out under a weaker one.
//!
//! Why all come to an end:
//!
//! - *No deadlock.* The engine whose claim counts gives nothing up, and its oldest sequence takes from
//!   all its others and, in the end, from all other engines. One sequence fits into the budget, so it goes
//!   on. An engine with nothing in flight has no claim. Whenever another claim begins to count, its engine
//!   is woken.
//! - *No livelock.* A turn is measured in tokens that are known, which preemption does not take away: what
//!   must be recomputed first makes the turn longer, not its yield smaller. So the turns of a sequence are
//!   finite in number. They grow with the sequence, so that recomputing stays in proportion to them
//!   (`Engine::turn_tokens`); and an engine loses no more pages between turns than others want.
//! - *No starving.* Tickets rise, so a claim waits for at most one turn of each other engine, however often
//!   those claim again.
//!
//! Invariant (`check`): the engines' bytes add up to `used`, and `used <= total`.
//!
//! Engines live on their own threads. The lock is taken when a page's memory comes or goes and under
//! pressure, never for each token. An engine that has to react is told through its waker.

use base::Bytes;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Called, from any thread, when an engine should run a step: memory came back, or is wanted from it.
/// It must not block, must not call the engine, and must not be lost if the engine is not asleep yet (as
/// with `Thread::unpark` or a channel).
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// The memory for KV pages that the engines of a process share.
pub struct KvBudget {
    total: u64,
    /// How many members want memory; lets an engine look for pressure without the lock.
    wanting: AtomicU32,
    /// Id of the member with the oldest claim; 0 when there is none.
    claimant: AtomicU64,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    used: u64,
    last_id: u64,
    last_ticket: u64,
    members: Vec<Member>,
}

struct Member {
    id: u64,
    /// Bytes of one page: memory comes and goes in this unit.
    unit: u64,
    used: u64,
    /// Bytes it was refused and still needs.
    want: u64,
    /// It runs nothing, so all it holds is cached.
    idle: bool,
    /// Ticket of its claim; lower is older. It keeps its place in the queue whatever is preempted.
    claim: Option<u64>,
    waker: Option<Waker>,
}

/// By which rule a member gets memory; a higher rank goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    AboveShare,
    BelowShare,
    Claimant,
}

/// How much an engine needs a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Urgency {
    /// It has cached pages to evict, so it only insists on its fair share.
    Spare,
    /// It has nothing left to evict.
    Urgent,
    /// It takes what nobody has a use for, and else does without.
    Optional,
}

/// What an engine should give back now, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Owed {
    /// From free and cached pages, as far as there are any.
    pub cached: u64,
    /// Even if sequences must be preempted for it; at most `cached`.
    pub held: u64,
}

impl KvBudget {
    /// A budget of this size.
    #[must_use]
    pub fn new(total: Bytes) -> Self {
        Self {
            total: total.0,
            wanting: AtomicU32::new(0),
            claimant: AtomicU64::new(0),
            state: Mutex::default(),
        }
    }

    /// The limit.
    #[must_use]
    pub fn total(&self) -> Bytes {
        Bytes(self.total)
    }

    /// Bytes of all pages that have memory now.
    #[must_use]
    pub fn used(&self) -> Bytes {
        Bytes(self.lock().used)
    }

    /// Checks the module invariant.
    pub fn check(&self) {
        let state = self.lock();
        assert_eq!(state.used, state.members.iter().map(|m| m.used).sum::<u64>(), "bytes add up");
        assert!(state.used <= self.total, "the budget is kept");
    }

    /// Adds an engine whose pages have this size.
    pub(crate) fn open(self: &Arc<Self>, unit: Bytes) -> Account {
        let mut state = self.lock();
        state.last_id += 1;
        let id = state.last_id;
        state.members.push(Member {
            id,
            unit: unit.0.max(1),
            used: 0,
            want: 0,
            idle: true,
            claim: None,
            waker: None,
        });
        // Each share is smaller now, so what some waited for may never come.
        let others = state.wakers(|_, member| member.want > 0);
        drop(state);
        wake(others);
        Account { budget: Arc::clone(self), id, wants: false, refused: false, idle: true }
    }

    /// A panic elsewhere cannot leave the counts half changed, so poison is ignored.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Refreshes what engines read without the lock.
    fn note(&self, state: &State) {
        let wanting = state.members.iter().filter(|m| m.want > 0).count();
        self.wanting.store(wanting as u32, Ordering::Release);
        self.claimant.store(state.claimant(), Ordering::Release);
    }
}

impl State {
    fn index(&self, id: u64) -> usize {
        self.members.iter().position(|m| m.id == id).expect("an account is a member until it is dropped")
    }

    fn claimant(&self) -> u64 {
        let claims = self.members.iter().filter_map(|m| m.claim.map(|ticket| (ticket, m.id)));
        claims.min().map_or(0, |(_, id)| id)
    }

    fn share(&self, total: u64) -> u64 {
        total / self.members.len().max(1) as u64
    }

    fn rank(&self, i: usize, total: u64) -> Rank {
        let member = &self.members[i];
        if member.claim.is_some() && member.id == self.claimant() {
            Rank::Claimant
        } else if member.used + member.unit <= self.share(total) {
            Rank::BelowShare
        } else {
            Rank::AboveShare
        }
    }

    /// What a member wants under the rule of its rank: below its share, no more than the share.
    fn wanted(&self, i: usize, total: u64) -> u64 {
        let member = &self.members[i];
        match self.rank(i, total) {
            Rank::BelowShare => member.want.min(self.share(total) - member.used),
            Rank::AboveShare | Rank::Claimant => member.want,
        }
    }

    /// What the other members want under stronger rules than this rank's.
    fn reserved(&self, i: usize, total: u64) -> u64 {
        let rank = self.rank(i, total);
        let others = (0..self.members.len()).filter(|o| *o != i && self.rank(*o, total) > rank);
        others.map(|o| self.wanted(o, total)).sum()
    }

    fn owed(&self, i: usize, total: u64) -> Owed {
        let me = &self.members[i];
        if self.rank(i, total) == Rank::Claimant {
            return Owed::default();
        }
        let (mut claimed, mut below, mut rest) = (0, 0, 0);
        for other in (0..self.members.len()).filter(|o| *o != i) {
            match self.rank(other, total) {
                Rank::Claimant => claimed += self.wanted(other, total),
                Rank::BelowShare => below += self.wanted(other, total),
                Rank::AboveShare => rest += self.wanted(other, total),
            }
        }
        let left = total - self.used;
        let excess = me.used.saturating_sub(self.share(total));
        let held = (claimed + below).saturating_sub(left).min(excess);
        let cached = if me.idle {
            (claimed + below + rest).saturating_sub(left)
        } else {
            claimed.saturating_sub(left).max(held)
        };
        Owed { cached: cached.min(me.used), held }
    }

    /// Queues a claim of member `i`, unless it has one.
    fn queue(&mut self, i: usize) {
        let claim = &mut self.members[i].claim;
        if claim.is_none() {
            self.last_ticket += 1;
            *claim = Some(self.last_ticket);
        }
    }

    /// Wakers of the other members that want memory.
    fn waiting(&self, me: usize) -> Vec<Waker> {
        self.wakers(|i, member| i != me && member.want > 0)
    }

    /// Wakers of the members for which `which` holds.
    fn wakers(&self, which: impl Fn(usize, &Member) -> bool) -> Vec<Waker> {
        let chosen = self.members.iter().enumerate().filter(|(i, member)| which(*i, member));
        chosen.filter_map(|(_, member)| member.waker.clone()).collect()
    }
}

fn wake(wakers: Vec<Waker>) {
    for waker in wakers {
        waker();
    }
}

/// One engine's side of the budget. Dropping it gives all its bytes back.
pub(crate) struct Account {
    budget: Arc<KvBudget>,
    id: u64,
    /// A want stands in the budget.
    wants: bool,
    /// A request for memory was refused since the last `settle`.
    refused: bool,
    idle: bool,
}

impl Account {
    /// Whom to call when this engine should run a step.
    pub fn set_waker(&mut self, waker: Waker) {
        let mut state = self.budget.lock();
        let me = state.index(self.id);
        state.members[me].waker = Some(waker);
    }

    /// Takes the memory of one page. If it is refused and the rules give a right to it, the wish for
    /// `pages` more is kept in the budget and those who owe are woken.
    pub fn take(&mut self, pages: usize, urgency: Urgency) -> bool {
        let total = self.budget.total;
        let mut state = self.budget.lock();
        let me = state.index(self.id);
        let unit = state.members[me].unit;
        if total - state.used >= state.reserved(me, total).saturating_add(unit) {
            state.used += unit;
            state.members[me].used += unit;
            if std::mem::take(&mut self.wants) {
                self.drop_want(state);
            }
            return true;
        }
        let insists = match urgency {
            Urgency::Urgent => true,
            Urgency::Spare => state.rank(me, total) > Rank::AboveShare,
            Urgency::Optional => false,
        };
        if insists {
            state.members[me].want = unit.saturating_mul(pages.max(1) as u64);
            self.wants = true;
            self.refused = true;
            self.budget.note(&state);
            let debtors = state.wakers(|i, _| i != me && state.owed(i, total).cached > 0);
            drop(state);
            wake(debtors);
        }
        false
    }

    /// Gives the memory of pages back.
    pub fn give(&mut self, pages: usize) {
        if pages > 0 {
            self.give_bytes(|member| member.unit * pages as u64);
        }
    }

    /// Gives all memory back.
    pub fn give_all(&mut self) {
        self.give_bytes(|member| member.used);
    }

    fn give_bytes(&mut self, bytes: impl Fn(&Member) -> u64) {
        let mut state = self.budget.lock();
        let me = state.index(self.id);
        let bytes = bytes(&state.members[me]);
        state.members[me].used -= bytes;
        state.used -= bytes;
        let waiting = state.waiting(me);
        drop(state);
        wake(waiting);
    }

    /// Pages that could be had now or as soon as other engines have given back what they owe.
    pub fn obtainable(&self) -> usize {
        let total = self.budget.total;
        let state = self.budget.lock();
        let me = state.index(self.id);
        let now = (total - state.used).saturating_sub(state.reserved(me, total));
        ((now + Self::due(&state, me, total)) / state.members[me].unit) as usize
    }

    /// Pages that fit into what nobody uses.
    pub fn left(&self) -> usize {
        let state = self.budget.lock();
        let unit = state.members[state.index(self.id)].unit;
        ((self.budget.total - state.used) / unit) as usize
    }

    /// Whether other engines owe memory to this one, so that waiting is better than preempting.
    pub fn is_owed(&self) -> bool {
        let state = self.budget.lock();
        Self::due(&state, state.index(self.id), self.budget.total) > 0
    }

    fn due(state: &State, me: usize, total: u64) -> u64 {
        let share = state.share(total);
        let rank = state.rank(me, total);
        let others = (0..state.members.len()).filter(|o| *o != me);
        let due = others.map(|o| {
            let other = &state.members[o];
            match state.rank(o, total) {
                Rank::Claimant => 0,
                _ if other.idle => other.used,
                _ if rank > Rank::AboveShare => other.used.saturating_sub(share),
                _ => 0,
            }
        });
        due.sum()
    }

    /// Whether any engine wants memory. Cheap: no lock.
    pub fn pressed(&self) -> bool {
        self.budget.wanting.load(Ordering::Acquire) > 0
    }

    /// What this engine should give back now.
    pub fn owed(&self) -> Owed {
        let state = self.budget.lock();
        state.owed(state.index(self.id), self.budget.total)
    }

    /// Tells whether the engine has anything to run; with nothing, it loses its claim.
    pub fn set_idle(&mut self, idle: bool) {
        if self.idle != idle {
            self.idle = idle;
            let mut state = self.budget.lock();
            let me = state.index(self.id);
            state.members[me].idle = idle;
            if idle {
                drop(state);
                self.unclaim();
            } else {
                // Those who counted on the cache of an idle engine must think again.
                let waiting = state.waiting(me);
                drop(state);
                wake(waiting);
            }
        }
    }

    /// Queues a claim, unless this engine has one; see the module's rules. Returns whether it had none.
    pub fn claim(&mut self) -> bool {
        let total = self.budget.total;
        let mut state = self.budget.lock();
        let me = state.index(self.id);
        if state.members[me].claim.is_some() {
            return false;
        }
        for i in 0..state.members.len() {
            let other = &state.members[i];
            let waits = i != me && other.want > 0 && !other.idle;
            if waits && state.rank(i, total) == Rank::BelowShare {
                state.queue(i);
            }
        }
        state.queue(me);
        self.budget.note(&state);
        let others = state.wakers(|i, _| i != me);
        drop(state);
        wake(others);
        true
    }

    /// Gives the claim up, if there is one.
    pub fn unclaim(&mut self) {
        let mut state = self.budget.lock();
        let me = state.index(self.id);
        if state.members[me].claim.take().is_some() {
            self.budget.note(&state);
            let others = state.wakers(|i, _| i != me);
            drop(state);
            wake(others);
        }
    }

    /// Whether another engine's claim goes first. Cheap: no lock.
    pub fn yields(&self) -> bool {
        let claimant = self.budget.claimant.load(Ordering::Acquire);
        claimant != 0 && claimant != self.id
    }

    /// Whether this engine's claim counts. Cheap: no lock.
    pub fn has_turn(&self) -> bool {
        self.budget.claimant.load(Ordering::Acquire) == self.id
    }

    /// Called after each step: drops a wish that the step did not repeat.
    pub fn settle(&mut self) {
        if !std::mem::take(&mut self.refused) && std::mem::take(&mut self.wants) {
            self.drop_want(self.budget.lock());
        }
    }

    /// Withdraws the wish, so that what was kept for it may go to others.
    fn drop_want(&self, mut state: MutexGuard<'_, State>) {
        let me = state.index(self.id);
        state.members[me].want = 0;
        self.budget.note(&state);
        let waiting = state.waiting(me);
        drop(state);
        wake(waiting);
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let mut state = self.budget.lock();
        let me = state.index(self.id);
        let member = state.members.remove(me);
        state.used -= member.used;
        self.budget.note(&state);
        let others = state.wakers(|_, _| true);
        drop(state);
        wake(others);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn budget(pages: u64) -> Arc<KvBudget> {
        Arc::new(KvBudget::new(Bytes(pages * 10)))
    }

    fn fill(account: &mut Account) -> usize {
        std::iter::from_fn(|| account.take(1, Urgency::Spare).then_some(())).count()
    }

    #[test]
    fn one_engine_may_use_all_of_it() {
        let budget = budget(7);
        let mut a = budget.open(Bytes(10));
        let _b = budget.open(Bytes(10));
        assert_eq!(fill(&mut a), 7);
        budget.check();
    }

    #[test]
    fn an_engine_below_its_share_is_owed_by_one_above() {
        let budget = budget(8);
        let (mut a, mut b) = (budget.open(Bytes(10)), budget.open(Bytes(10)));
        a.set_idle(false);
        assert_eq!(fill(&mut a), 8);
        assert!(!b.take(6, Urgency::Spare));
        assert_eq!(a.owed(), Owed { cached: 40, held: 40 });
        a.give(2);
        assert!(!a.take(1, Urgency::Urgent), "what b wants is not handed to a");
        assert!(b.take(1, Urgency::Spare) && b.take(1, Urgency::Spare));
    }

    #[test]
    fn an_idle_engine_owes_its_cache_to_an_urgent_one_above_its_share() {
        let budget = budget(8);
        let (mut a, mut b) = (budget.open(Bytes(10)), budget.open(Bytes(10)));
        (0..4).for_each(|_| assert!(a.take(1, Urgency::Spare)));
        b.set_idle(false);
        assert_eq!(fill(&mut b), 4);
        assert_eq!(a.owed(), Owed::default());
        assert!(!b.take(3, Urgency::Urgent));
        assert_eq!(a.owed(), Owed { cached: 30, held: 0 });
        a.set_idle(false);
        assert_eq!(a.owed(), Owed::default(), "a running engine keeps its share");
    }

    #[test]
    fn the_oldest_claim_counts_until_it_is_given_up() {
        let budget = budget(8);
        let (mut a, mut b) = (budget.open(Bytes(10)), budget.open(Bytes(10)));
        a.claim();
        b.claim();
        assert!(b.yields() && !a.yields());
        a.unclaim();
        assert!(a.yields() && !b.yields());
        assert!(a.claim(), "the next one queues");
        assert!(!a.claim(), "once");
        assert!(b.has_turn() && !a.has_turn());
        b.set_idle(false);
        b.set_idle(true);
        assert!(a.has_turn(), "who runs nothing has no claim");
        assert!(b.claim());
        drop(a);
        assert!(b.has_turn());
    }

    #[test]
    fn who_waits_for_its_share_is_queued_before_a_claim() {
        let budget = budget(9);
        let (mut a, mut b) = (budget.open(Bytes(10)), budget.open(Bytes(10)));
        let c = budget.open(Bytes(10));
        a.set_idle(false);
        b.set_idle(false);
        assert_eq!(fill(&mut a), 9);
        assert!(!b.take(1, Urgency::Urgent));
        assert!(a.claim());
        assert!(b.has_turn() && a.yields() && c.yields());
        b.unclaim();
        assert!(a.has_turn(), "not c, which wants nothing");
    }

    #[test]
    fn a_dropped_engine_gives_all_its_bytes_back_and_wakes_the_others() {
        let budget = budget(8);
        let woken = Arc::new(AtomicU32::new(0));
        let (mut a, mut b) = (budget.open(Bytes(10)), budget.open(Bytes(10)));
        let count = Arc::clone(&woken);
        a.set_waker(Arc::new(move || {
            count.fetch_add(1, Ordering::Relaxed);
        }));
        fill(&mut b);
        drop(b);
        assert_eq!(budget.used(), Bytes(0));
        assert_eq!(woken.load(Ordering::Relaxed), 1);
        budget.check();
    }
}

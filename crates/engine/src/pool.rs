//! The page pool: hands out page ids and takes them back. A page gets memory from the model when it is
//! first needed, under the shared budget, and loses it when the budget asks for it.
//!
//! Invariant (`check`): each page id is in exactly one of vacant (no memory), free (memory, unused) or
//! used; `free + used` pages are what the budget has been charged for.
//!
//! Who uses a page (the prefix cache or a sequence) is not known here: see `memory`.

use crate::budget::{Account, Urgency};
use device::PageId;
use models::LanguageModel;

/// Why there is no page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shortage {
    /// The budget is used up.
    Budget,
    /// The device refused memory that the budget allows.
    Device,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Vacant,
    Free,
    Used,
}

/// Page ids and their state.
pub(crate) struct PagePool {
    pub account: Account,
    states: Vec<State>,
    free: Vec<PageId>,
    vacant: Vec<PageId>,
}

impl PagePool {
    pub fn new(account: Account) -> Self {
        Self { account, states: Vec::new(), free: Vec::new(), vacant: Vec::new() }
    }

    /// A page with memory, of undefined content. `need` pages are needed in all, for the budget to know.
    pub fn take(
        &mut self,
        model: &mut dyn LanguageModel,
        need: usize,
        urgency: Urgency,
    ) -> Result<PageId, Shortage> {
        if let Some(page) = self.free.pop() {
            self.states[page.0 as usize] = State::Used;
            return Ok(page);
        }
        if !self.account.take(need, urgency) {
            return Err(Shortage::Budget);
        }
        let page = self.vacant.pop().unwrap_or_else(|| {
            self.states.push(State::Vacant);
            PageId(self.states.len() as u32 - 1)
        });
        if model.ensure_page(page).is_err() {
            self.vacant.push(page);
            self.account.give(1);
            return Err(Shortage::Device);
        }
        self.states[page.0 as usize] = State::Used;
        Ok(page)
    }

    /// Takes a page back; it keeps its memory. Panics on a double free: that is our bug.
    pub fn put(&mut self, page: PageId) {
        let state = &mut self.states[page.0 as usize];
        assert_eq!(*state, State::Used, "double free of {page:?}");
        *state = State::Free;
        self.free.push(page);
    }

    /// Gives the memory of up to `pages` free pages back; returns how many.
    pub fn shrink(&mut self, model: &mut dyn LanguageModel, pages: usize) -> usize {
        let given = pages.min(self.free.len());
        for _ in 0..given {
            let page = self.free.pop().expect("counted above");
            model.drop_page(page);
            self.states[page.0 as usize] = State::Vacant;
            self.vacant.push(page);
        }
        self.account.give(given);
        given
    }

    /// Gives the memory of all pages back, whoever uses them and whatever a panic left behind.
    pub fn reset(&mut self, model: &mut dyn LanguageModel) {
        for id in 0..self.states.len() {
            model.drop_page(PageId(id as u32));
        }
        self.states.clear();
        self.free.clear();
        self.vacant.clear();
        self.account.give_all();
    }

    /// Pages with memory that nobody uses.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Pages that somebody uses.
    pub fn used(&self) -> usize {
        self.states.len() - self.free.len() - self.vacant.len()
    }

    /// Whether a page is in use.
    pub fn is_used(&self, page: PageId) -> bool {
        self.states[page.0 as usize] == State::Used
    }

    /// Checks the module invariant.
    pub fn check(&self) {
        let count = |state| self.states.iter().filter(|s| **s == state).count();
        assert_eq!(count(State::Free), self.free.len(), "free pages are listed once");
        assert_eq!(count(State::Vacant), self.vacant.len(), "vacant pages are listed once");
        let of = |page: &PageId| self.states[page.0 as usize];
        assert!(self.free.iter().all(|p| of(p) == State::Free), "a free page is free");
        assert!(self.vacant.iter().all(|p| of(p) == State::Vacant), "a vacant page is vacant");
    }
}

//! The KV pages of an engine: pool and prefix cache together, and the page tables of its sequences.
//!
//! The pages of a sequence, over its tokens `[0, computed)`:
//!
//! ```text
//! [0, nodes * 16)            whole pages, each a node of the tree that the table references
//! [nodes * 16, computed)     private pages; the first of them may be a tail node of the tree, which only
//!                            the sequence that made it may go on filling
//! ```
//!
//! Invariant (`check`): each used page is either in the tree or private to exactly one table, so
//! `free + cached + held == all`.
//!
//! A sequence that matches the beginning of a page copies the page before it writes to it (`copy`).

use crate::budget::Urgency;
use crate::eviction::{Lru, NodeId};
use crate::pool::{PagePool, Shortage};
use crate::radix::{Inserted, Match, RadixCache};
use base::Namespace;
use device::{PAGE_TOKENS, PageId};
use models::LanguageModel;

/// The pages of one sequence.
#[derive(Debug, Default)]
pub(crate) struct PageTable {
    /// Page `i` holds positions `[i * PAGE_TOKENS, (i + 1) * PAGE_TOKENS)`.
    pub pages: Vec<PageId>,
    /// Tree nodes of `pages[..nodes.len()]`.
    nodes: Vec<NodeId>,
    /// The tree node of `pages[nodes.len()]`, a part-filled page that this sequence made.
    tail: Option<NodeId>,
    /// The node whose page must be copied over `pages[nodes.len()]` before that page is written to.
    copy: Option<NodeId>,
}

impl PageTable {
    /// Whether its first private page must be filled by a copy, and may not even be there yet.
    pub fn is_to_copy(&self) -> bool {
        self.copy.is_some()
    }
}

/// Pool and prefix cache.
pub(crate) struct Memory {
    pub pool: PagePool,
    cache: RadixCache<Lru>,
    /// Pages evicted so far.
    pub evicted: u64,
}

impl Memory {
    pub fn new(pool: PagePool) -> Self {
        Self { pool, cache: RadixCache::new(Lru::default()), evicted: 0 }
    }

    /// Finds the longest cached prefix of `tokens`.
    pub fn lookup(&self, namespace: Namespace, tokens: &[u32], found: &mut Match) {
        self.cache.lookup(namespace, tokens, found);
    }

    /// Gives what was found to an empty table; returns the tokens it now holds.
    pub fn attach(&mut self, table: &mut PageTable, found: &Match) -> usize {
        debug_assert!(table.pages.is_empty() && table.nodes.is_empty(), "an empty table");
        for &node in &found.nodes {
            self.cache.retain(node);
            table.nodes.push(node);
            table.pages.push(self.cache.page(node));
        }
        if let Some((node, _)) = found.part {
            self.cache.retain(node);
            table.copy = Some(node);
        }
        found.tokens()
    }

    /// How many of the pages that were found are only cached so far.
    pub fn idle_among(&self, found: &Match) -> usize {
        let nodes = found.nodes.iter().copied().chain(found.part.map(|(node, _)| node));
        nodes.filter(|node| self.cache.refs(*node) == 0).count()
    }

    /// Pages that can be had without taking one from a running sequence of this engine.
    pub fn obtainable(&self) -> usize {
        self.pool.free() + self.cache.cached() + self.pool.account.obtainable()
    }

    /// Appends a page to a table that needs `need` more: a free one, else new memory, else the least
    /// recently used cached one.
    pub fn extend(
        &mut self,
        table: &mut PageTable,
        model: &mut dyn LanguageModel,
        need: usize,
    ) -> Result<(), Shortage> {
        let page = match self.pool.take(model, need, Urgency::Spare) {
            Ok(page) => page,
            Err(_) => match self.cache.evict() {
                Some(page) => {
                    self.evicted += 1;
                    page
                }
                None => self.pool.take(model, need, Urgency::Urgent)?,
            },
        };
        table.pages.push(page);
        Ok(())
    }

    /// Appends a page to a table if that takes none from anybody: a free one, else new memory, else the least
    /// recently used cached one. Returns whether it did.
    pub fn extend_if_idle(&mut self, table: &mut PageTable, model: &mut dyn LanguageModel) -> bool {
        let page = self.pool.take(model, 1, Urgency::Optional).ok().or_else(|| {
            let page = self.cache.evict()?;
            self.evicted += 1;
            Some(page)
        });
        table.pages.extend(page);
        page.is_some()
    }

    /// Frees the pages of a table beyond the first `pages`, which nothing was computed into.
    pub fn cut(&mut self, table: &mut PageTable, pages: usize) {
        let own = table.nodes.len() + usize::from(table.tail.is_some());
        debug_assert!(own <= pages, "what is cached is computed");
        while table.pages.len() > pages.max(own) {
            let page = table.pages.pop().expect("there are more");
            self.pool.put(page);
        }
    }

    /// The copy that has to be made before the table's first private page is written to.
    pub fn copy(&self, table: &PageTable) -> Option<device::PageCopy> {
        let from = self.cache.page(table.copy?);
        Some(device::PageCopy { from, to: table.pages[table.nodes.len()] })
    }

    /// The copy has been made, or is given up: the source may go. Returns whether there was one.
    pub fn drop_copy(&mut self, table: &mut PageTable) -> bool {
        let copy = table.copy.take();
        if let Some(node) = copy {
            self.cache.release(node);
        }
        copy.is_some()
    }

    /// Puts the whole pages of `tokens` (all of them computed) into the tree. Where the tree has one with
    /// the same tokens already, the table changes over to that and its own page is freed.
    pub fn publish(&mut self, table: &mut PageTable, namespace: Namespace, tokens: &[u32]) {
        debug_assert!(table.copy.is_none(), "a page is complete before it is published");
        while table.nodes.len() < tokens.len() / PAGE_TOKENS {
            let i = table.nodes.len();
            let page_tokens = &tokens[i * PAGE_TOKENS..(i + 1) * PAGE_TOKENS];
            let parent = table.nodes.last().copied();
            let tail = table.tail.take();
            let inserted = match tail {
                Some(tail) => self.cache.grow(tail, page_tokens),
                None => self.cache.insert(namespace, parent, page_tokens, table.pages[i]),
            };
            let node = match inserted {
                Inserted::New(node) => node,
                Inserted::Present(node) => {
                    self.cache.retain(node);
                    match tail {
                        Some(tail) => self.cache.release(tail),
                        None => self.pool.put(table.pages[i]),
                    }
                    table.pages[i] = self.cache.page(node);
                    node
                }
            };
            table.nodes.push(node);
            self.drop_superseded(node);
        }
    }

    /// As `publish`, and the part-filled last page too.
    pub fn publish_all(&mut self, table: &mut PageTable, namespace: Namespace, tokens: &[u32]) {
        self.publish(table, namespace, tokens);
        let i = table.nodes.len();
        let rest = &tokens[i * PAGE_TOKENS..];
        if rest.is_empty() {
            return;
        }
        let inserted = match table.tail {
            Some(tail) => self.cache.grow(tail, rest),
            None => self.cache.insert(namespace, table.nodes.last().copied(), rest, table.pages[i]),
        };
        if let Inserted::New(node) = inserted {
            table.tail = Some(node);
            self.drop_superseded(node);
        }
    }

    /// Frees a tail whose tokens another node now has as well.
    fn drop_superseded(&mut self, node: NodeId) {
        if let Some(tail) = self.cache.superseded(node) {
            let page = self.cache.remove(tail);
            self.pool.put(page);
        }
    }

    /// Empties a table. What it has computed (`tokens`) stays cached until it is evicted.
    pub fn release(&mut self, table: &mut PageTable, namespace: Namespace, tokens: &[u32]) {
        if !self.drop_copy(table) {
            self.publish_all(table, namespace, tokens);
        }
        let mut owned = table.nodes.len();
        if let Some(tail) = table.tail.take() {
            owned += 1;
            self.cache.release(tail);
        }
        for page in table.pages.drain(..).skip(owned) {
            self.pool.put(page);
        }
        for node in table.nodes.drain(..).rev() {
            self.cache.release(node);
        }
    }

    /// Gives the memory of `pages` free or cached pages back to the budget, as far as there are any;
    /// returns how many.
    pub fn give_back(&mut self, model: &mut dyn LanguageModel, pages: usize) -> usize {
        while self.pool.free() < pages {
            let Some(page) = self.cache.evict() else { break };
            self.evicted += 1;
            self.pool.put(page);
        }
        self.pool.shrink(model, pages)
    }

    /// Forgets all pages and gives their memory back. Tables are left to the caller.
    pub fn reset(&mut self, model: &mut dyn LanguageModel) {
        self.cache.clear();
        self.pool.reset(model);
    }

    /// Pages that are cached and used by no sequence.
    pub fn cached(&self) -> usize {
        self.cache.cached()
    }

    /// Pages that sequences use.
    pub fn held(&self) -> usize {
        self.pool.used() - self.cache.cached()
    }

    /// Checks the module invariant over all tables there are.
    pub fn check<'a>(&self, tables: impl Iterator<Item = &'a PageTable>) {
        self.pool.check();
        self.cache.check();
        let mut used: Vec<PageId> = self.cache.each_page().collect();
        let mut references = 0;
        for table in tables {
            let shared = table.nodes.len() + usize::from(table.tail.is_some());
            for (page, node) in table.pages.iter().zip(table.nodes.iter().chain(&table.tail)) {
                assert_eq!(*page, self.cache.page(*node), "a table and its nodes agree");
            }
            references += shared + usize::from(table.copy.is_some());
            used.extend(table.pages.iter().skip(shared));
        }
        assert_eq!(references as u64, self.cache.references(), "each reference has a holder");
        assert_eq!(used.len(), self.pool.used(), "a page leaked or is used twice");
        used.sort_unstable();
        assert!(used.windows(2).all(|w| w[0] != w[1]), "a page has two owners");
        assert!(used.iter().all(|page| self.pool.is_used(*page)), "a page is used after it was freed");
    }
}

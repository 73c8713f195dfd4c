//! The prefix cache: a radix tree from token prefixes to KV pages.
//!
//! A node stands for one page: [`PAGE_TOKENS`] tokens, or fewer for a leaf that is a part-filled *tail*.
//! Each namespace has its own root, so nothing is found across namespaces. A node's children are kept in
//! token order: one binary search finds the exact child, and the child with the longest common prefix is a
//! neighbour of that place, so matching is exact to the token without looking at each child. (Chained
//! hashes would name a prefix across machines; inside one tree the order does more for less.)
//!
//! Sequences hold references on all nodes of their path. Nodes without references are *cached*: they may
//! be evicted, leaves first.
//!
//! Invariants (`check`): a child's references never exceed its parent's, apart from readers of a page that
//! is about to be copied; an unreferenced node has only unreferenced children; only whole pages have
//! children; siblings are in strict token order; no page is in two nodes; the first victim is a leaf.
//!
//! What a page holds is not known here; nor are sequences.

use crate::eviction::{Eviction, Lru, NodeId};
use base::Namespace;
use device::{PAGE_TOKENS, PageId};
use rustc_hash::FxHashMap;

struct Node {
    parent: Option<NodeId>,
    namespace: Namespace,
    tokens: [u32; PAGE_TOKENS],
    len: usize,
    page: PageId,
    refs: u32,
    /// In order of their tokens.
    children: Vec<NodeId>,
    /// In the tree, not in the list of vacant nodes.
    live: bool,
}

impl Node {
    fn tokens(&self) -> &[u32] {
        &self.tokens[..self.len]
    }
}

/// The longest cached prefix of a sequence.
#[derive(Debug, Default)]
pub(crate) struct Match {
    /// Nodes of its whole pages, from the root.
    pub nodes: Vec<NodeId>,
    /// A further node of whose page the first tokens match, and how many.
    pub part: Option<(NodeId, usize)>,
}

impl Match {
    /// Tokens matched.
    pub fn tokens(&self) -> usize {
        self.nodes.len() * PAGE_TOKENS + self.part.map_or(0, |(_, len)| len)
    }
}

/// What became of tokens that should go into the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Inserted {
    /// They stand in this node, over the given page, with one reference for the caller.
    New(NodeId),
    /// A node with these tokens (or more) is there already; it was not touched.
    Present(NodeId),
}

/// The tree.
pub(crate) struct RadixCache<E = Lru> {
    nodes: Vec<Node>,
    vacant: Vec<NodeId>,
    roots: FxHashMap<Namespace, Vec<NodeId>>,
    eviction: E,
    /// Nodes without references.
    cached: usize,
}

impl<E: Eviction> RadixCache<E> {
    pub fn new(eviction: E) -> Self {
        Self { nodes: Vec::new(), vacant: Vec::new(), roots: FxHashMap::default(), eviction, cached: 0 }
    }

    /// Pages in the tree.
    pub fn pages(&self) -> usize {
        self.nodes.len() - self.vacant.len()
    }

    /// Pages in the tree that nobody references; all of them can be evicted.
    pub fn cached(&self) -> usize {
        self.cached
    }

    pub fn page(&self, node: NodeId) -> PageId {
        self.node(node).page
    }

    pub fn refs(&self, node: NodeId) -> u32 {
        self.node(node).refs
    }

    /// Finds the longest cached prefix of `tokens`. Changes nothing.
    pub fn lookup(&self, namespace: Namespace, tokens: &[u32], found: &mut Match) {
        found.nodes.clear();
        found.part = None;
        let mut rest = tokens;
        loop {
            let children = self.children(namespace, found.nodes.last().copied());
            let wanted = &rest[..rest.len().min(PAGE_TOKENS)];
            let place = self.place(children, wanted);
            // In token order the longest common prefix is with a neighbour of the place.
            let neighbours = children[place.saturating_sub(1)..].iter().take(2);
            let best = neighbours.map(|child| (common(self.node(*child).tokens(), wanted), *child));
            match best.max_by_key(|(len, _)| *len) {
                Some((PAGE_TOKENS, child)) => {
                    found.nodes.push(child);
                    rest = &rest[PAGE_TOKENS..];
                }
                Some((len, child)) if len > 0 => {
                    found.part = Some((child, len));
                    return;
                }
                _ => return,
            }
        }
    }

    /// Puts `tokens` (at most a page) below `parent`. The caller references the parent.
    pub fn insert(
        &mut self,
        namespace: Namespace,
        parent: Option<NodeId>,
        tokens: &[u32],
        page: PageId,
    ) -> Inserted {
        let place = match self.find(namespace, parent, tokens) {
            Ok(present) => return Inserted::Present(present),
            Err(place) => place,
        };
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(Node {
                parent: None,
                namespace,
                tokens: [0; PAGE_TOKENS],
                len: 0,
                page,
                refs: 0,
                children: Vec::new(),
                live: false,
            });
            NodeId(self.nodes.len() as u32 - 1)
        });
        let node = &mut self.nodes[id.0 as usize];
        debug_assert!(node.children.is_empty() && !node.live, "a vacant node is empty");
        node.parent = parent;
        node.namespace = namespace;
        node.tokens[..tokens.len()].copy_from_slice(tokens);
        node.len = tokens.len();
        node.page = page;
        node.refs = 1;
        node.live = true;
        self.siblings(namespace, parent).insert(place, id);
        Inserted::New(id)
    }

    /// Lets a tail that the caller references stand for `tokens`, which continue its own.
    pub fn grow(&mut self, tail: NodeId, tokens: &[u32]) -> Inserted {
        let node = self.node(tail);
        debug_assert!(tokens.starts_with(node.tokens()), "a tail only grows");
        if node.len == tokens.len() {
            return Inserted::New(tail);
        }
        let (namespace, parent) = (node.namespace, node.parent);
        if let Ok(present) = self.find(namespace, parent, tokens) {
            return Inserted::Present(present);
        }
        self.detach(tail);
        let place = self.place(self.children(namespace, parent), tokens);
        self.siblings(namespace, parent).insert(place, tail);
        let node = &mut self.nodes[tail.0 as usize];
        node.tokens[..tokens.len()].copy_from_slice(tokens);
        node.len = tokens.len();
        Inserted::New(tail)
    }

    /// Adds a reference.
    pub fn retain(&mut self, node: NodeId) {
        let refs = &mut self.nodes[node.0 as usize].refs;
        *refs += 1;
        if *refs == 1 {
            self.cached -= 1;
            self.eviction.retain(node);
        }
    }

    /// Takes a reference away. A path is released from its leaf to its root.
    pub fn release(&mut self, node: NodeId) {
        let refs = &mut self.nodes[node.0 as usize].refs;
        *refs = refs.checked_sub(1).expect("a released node was referenced");
        if *refs == 0 {
            self.cached += 1;
            self.eviction.release(node);
        }
    }

    /// Removes the node that the policy names; its page is the caller's.
    pub fn evict(&mut self) -> Option<PageId> {
        let victim = self.eviction.victim()?;
        Some(self.remove(victim))
    }

    /// Removes an unreferenced leaf before its turn; its page is the caller's.
    pub fn remove(&mut self, id: NodeId) -> PageId {
        let node = self.node(id);
        assert!(node.refs == 0 && node.children.is_empty(), "only an unreferenced leaf is removed");
        self.eviction.retain(id);
        self.cached -= 1;
        self.detach(id);
        let node = &mut self.nodes[id.0 as usize];
        node.live = false;
        let (parent, namespace, page) = (node.parent, node.namespace, node.page);
        self.vacant.push(id);
        if parent.is_none() && self.roots.get(&namespace).is_some_and(Vec::is_empty) {
            self.roots.remove(&namespace);
        }
        page
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.nodes.clear();
        self.vacant.clear();
        self.roots.clear();
        self.eviction.clear();
        self.cached = 0;
    }

    /// Takes the node out of its parent's list.
    fn detach(&mut self, id: NodeId) {
        let node = self.node(id);
        let (namespace, parent) = (node.namespace, node.parent);
        let place = self.place(self.children(namespace, parent), node.tokens());
        let removed = self.siblings(namespace, parent).remove(place);
        debug_assert_eq!(removed, id, "a node stands at its place");
    }

    fn node(&self, id: NodeId) -> &Node {
        &self.nodes[id.0 as usize]
    }

    fn children(&self, namespace: Namespace, parent: Option<NodeId>) -> &[NodeId] {
        match parent {
            Some(parent) => &self.node(parent).children,
            None => self.roots.get(&namespace).map_or(&[], Vec::as_slice),
        }
    }

    fn siblings(&mut self, namespace: Namespace, parent: Option<NodeId>) -> &mut Vec<NodeId> {
        match parent {
            Some(parent) => &mut self.nodes[parent.0 as usize].children,
            None => self.roots.entry(namespace).or_default(),
        }
    }

    /// Where `tokens` stand or would stand among these children.
    fn place(&self, children: &[NodeId], tokens: &[u32]) -> usize {
        children.partition_point(|child| self.node(*child).tokens() < tokens)
    }

    /// The child that begins with `tokens`, or where it would stand.
    fn find(&self, namespace: Namespace, parent: Option<NodeId>, tokens: &[u32]) -> Result<NodeId, usize> {
        let children = self.children(namespace, parent);
        let place = self.place(children, tokens);
        match children.get(place) {
            Some(child) if self.node(*child).tokens().starts_with(tokens) => Ok(*child),
            _ => Err(place),
        }
    }

    /// The tail that a longer sibling at `node` makes superfluous: unreferenced, and its tokens begin the
    /// node's. Only the neighbour is looked at; another one is left to eviction.
    pub fn superseded(&self, node: NodeId) -> Option<NodeId> {
        let longer = self.node(node);
        let children = self.children(longer.namespace, longer.parent);
        let place = self.place(children, longer.tokens());
        let before = *children.get(place.checked_sub(1)?)?;
        let tail = self.node(before);
        (tail.refs == 0 && longer.tokens().starts_with(tail.tokens())).then_some(before)
    }

    /// The pages of all nodes.
    pub fn each_page(&self) -> impl Iterator<Item = PageId> {
        self.nodes.iter().filter(|n| n.live).map(|n| n.page)
    }

    /// References on all nodes together.
    pub fn references(&self) -> u64 {
        self.nodes.iter().filter(|n| n.live).map(|n| u64::from(n.refs)).sum()
    }

    /// Checks the module invariants.
    pub fn check(&self) {
        let live = || self.nodes.iter().enumerate().filter(|(_, n)| n.live);
        assert_eq!(live().count(), self.pages(), "vacant nodes are listed");
        assert_eq!(live().filter(|(_, n)| n.refs == 0).count(), self.cached, "cached nodes are counted");
        let mut pages: Vec<PageId> = live().map(|(_, n)| n.page).collect();
        pages.sort_unstable();
        assert!(pages.windows(2).all(|w| w[0] != w[1]), "a page is in two nodes");
        for (i, node) in live() {
            let siblings = self.children(node.namespace, node.parent);
            let listed = siblings.iter().filter(|c| c.0 as usize == i).count();
            assert_eq!(listed, 1, "a node is its parent's child once");
            assert!(
                node.len > 0 && (node.len == PAGE_TOKENS || node.children.is_empty()),
                "tails are leaves"
            );
            for child in &node.children {
                assert!(node.refs > 0 || self.node(*child).refs == 0, "a held node has a cached parent");
                assert!(self.node(*child).live && self.node(*child).namespace == node.namespace);
            }
        }
        let lists = self.nodes.iter().map(|n| &n.children).chain(self.roots.values());
        for list in lists {
            let ordered = list.windows(2).all(|w| self.node(w[0]).tokens() < self.node(w[1]).tokens());
            assert!(ordered, "siblings are in order and differ");
        }
        match self.eviction.victim() {
            Some(victim) => {
                let node = self.node(victim);
                assert!(node.live && node.refs == 0 && node.children.is_empty(), "the victim is a leaf");
            }
            None => assert_eq!(self.cached, 0, "a cached node can be evicted"),
        }
    }
}

/// Tokens that two runs have in common at their beginnings.
pub(crate) fn common(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// A path that a sequence holds, as the memory does it.
    struct Path {
        namespace: Namespace,
        tokens: Vec<u32>,
        nodes: Vec<NodeId>,
    }

    fn lookup(cache: &RadixCache, namespace: Namespace, tokens: &[u32]) -> Match {
        let mut found = Match::default();
        cache.lookup(namespace, tokens, &mut found);
        found
    }

    /// Inserts all of `tokens`, over new pages where the tree has none, and holds the path.
    fn hold(cache: &mut RadixCache, namespace: Namespace, tokens: &[u32], next_page: &mut u32) -> Path {
        let mut nodes: Vec<NodeId> = Vec::new();
        for chunk in tokens.chunks(PAGE_TOKENS) {
            let page = PageId(*next_page);
            let node = match cache.insert(namespace, nodes.last().copied(), chunk, page) {
                Inserted::New(node) => {
                    *next_page += 1;
                    node
                }
                Inserted::Present(node) => {
                    cache.retain(node);
                    node
                }
            };
            nodes.push(node);
        }
        Path { namespace, tokens: tokens.to_vec(), nodes }
    }

    fn release(cache: &mut RadixCache, path: Path) {
        path.nodes.into_iter().rev().for_each(|node| cache.release(node));
    }

    /// Tokens over few values, so that prefixes are shared.
    fn tokens() -> impl Strategy<Value = Vec<u32>> {
        (prop::collection::vec(0u32..2, 0..4), 1usize..50).prop_map(|(head, len)| {
            let tail = std::iter::repeat(head.iter().copied().max().unwrap_or(0));
            head.into_iter().flat_map(|t| [t; 9]).chain(tail).take(len).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn finds_the_longest_prefix_of_a_naive_twin(
            ops in prop::collection::vec((0u8..6, 0u64..2, tokens()), 1..60),
        ) {
            let mut cache = RadixCache::new(Lru::default());
            let (mut held, mut next_page): (Vec<Path>, u32) = (Vec::new(), 0);
            // Until something is evicted, the twin knows each prefix that was ever inserted.
            let mut twin: BTreeSet<(u64, Vec<u32>)> = BTreeSet::new();
            let mut evicted = false;
            for (op, space, tokens) in ops {
                let namespace = Namespace(space);
                match op {
                    0 | 1 => {
                        held.push(hold(&mut cache, namespace, &tokens, &mut next_page));
                        (1..=tokens.len()).for_each(|n| { twin.insert((space, tokens[..n].to_vec())); });
                    }
                    2 if !held.is_empty() => {
                        let path = held.remove(tokens.len() % held.len());
                        release(&mut cache, path);
                    }
                    3 => evicted |= cache.evict().is_some(),
                    4 if !held.is_empty() => {
                        // The holder of a tail goes on to fill it.
                        let path = held.pop().unwrap();
                        let last = *path.nodes.last().unwrap();
                        let begun = path.tokens.len() % PAGE_TOKENS;
                        let mut page = path.tokens[path.tokens.len() - begun..].to_vec();
                        page.extend(&tokens);
                        page.truncate(PAGE_TOKENS);
                        if begun > 0 && cache.refs(last) == 1 && cache.node(last).len == begun {
                            let mut longer = path.tokens[..path.tokens.len() - begun].to_vec();
                            longer.extend(&page);
                            if let Inserted::New(node) = cache.grow(last, &page) {
                                prop_assert_eq!(node, last);
                                let first = path.tokens.len();
                                (first..=longer.len()).for_each(|n| {
                                    twin.insert((path.namespace.0, longer[..n].to_vec()));
                                });
                            }
                        }
                        release(&mut cache, path);
                    }
                    _ => {}
                }
                cache.check();
                let found = lookup(&cache, namespace, &tokens).tokens();
                let known = (0..=tokens.len()).rev().find(|n| *n == 0 || twin.contains(&(space, tokens[..*n].to_vec())));
                if evicted {
                    prop_assert!(found <= known.unwrap());
                } else {
                    prop_assert_eq!(found, known.unwrap());
                }
                for path in &held {
                    let found = lookup(&cache, path.namespace, &path.tokens).tokens();
                    prop_assert_eq!(found, path.tokens.len(), "what is held is not evicted");
                }
            }
            held.drain(..).for_each(|path| release(&mut cache, path));
            prop_assert_eq!(cache.cached(), cache.pages());
            while cache.evict().is_some() {
                cache.check();
            }
            prop_assert_eq!(cache.pages(), 0);
        }
    }

    #[test]
    fn the_least_recently_used_leaf_goes_first() {
        let mut cache = RadixCache::new(Lru::default());
        let (space, mut next) = (Namespace(0), 0);
        let (a, b): (Vec<u32>, Vec<u32>) = ((0..40).collect(), (100..140).collect());
        for tokens in [&a, &b, &a] {
            let path = hold(&mut cache, space, tokens, &mut next);
            release(&mut cache, path);
        }
        let pages: Vec<u32> = std::iter::from_fn(|| cache.evict().map(|page| page.0)).collect();
        assert_eq!(pages, [5, 4, 3, 2, 1, 0], "b before a, each from its end");
    }
}

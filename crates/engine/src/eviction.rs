//! Which cached page goes first.
//!
//! The prefix cache tells a policy when a node becomes unreferenced and when it is used again; the policy
//! names the next victim. Nodes are released from the leaf to the root, so a policy that keeps their order
//! never names a node that still has children.

/// A node of the prefix cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NodeId(pub u32);

/// A policy of eviction.
pub(crate) trait Eviction {
    /// The node may be evicted from now on. A node's children have been released before it.
    fn release(&mut self, node: NodeId);
    /// The node is used again, or gone.
    fn retain(&mut self, node: NodeId);
    /// The node to evict next: one that has no children.
    fn victim(&self) -> Option<NodeId>;
    /// Forgets all nodes.
    fn clear(&mut self);
}

const NONE: u32 = u32::MAX;

/// Least recently used first: a doubly linked list through an array indexed by node, O(1) each.
#[derive(Debug)]
pub(crate) struct Lru {
    links: Vec<Link>,
    /// Least recently used.
    head: u32,
    tail: u32,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    before: u32,
    after: u32,
}

impl Default for Lru {
    fn default() -> Self {
        Self { links: Vec::new(), head: NONE, tail: NONE }
    }
}

impl Eviction for Lru {
    fn release(&mut self, node: NodeId) {
        let i = node.0 as usize;
        if self.links.len() <= i {
            self.links.resize(i + 1, Link { before: NONE, after: NONE });
        }
        self.links[i] = Link { before: self.tail, after: NONE };
        match self.tail {
            NONE => self.head = node.0,
            tail => self.links[tail as usize].after = node.0,
        }
        self.tail = node.0;
    }

    fn retain(&mut self, node: NodeId) {
        let Link { before, after } = self.links[node.0 as usize];
        match before {
            NONE => self.head = after,
            before => self.links[before as usize].after = after,
        }
        match after {
            NONE => self.tail = before,
            after => self.links[after as usize].before = before,
        }
    }

    fn victim(&self) -> Option<NodeId> {
        (self.head != NONE).then_some(NodeId(self.head))
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

//! A byte trie: all entered texts that a text begins with, in one walk.

const NO_NODE: u32 = 0;

#[derive(Clone, Copy)]
struct Node {
    byte: u8,
    value: u32,
    child: u32,
    sibling: u32,
}

/// A byte trie from text to a number below `u32::MAX`. Children are linked lists: compact, and quick to
/// build; the root has a table.
pub(crate) struct Trie {
    roots: Box<[u32; 256]>,
    /// Node 0 is never used, so 0 means none.
    nodes: Vec<Node>,
}

const NO_VALUE: u32 = u32::MAX;

impl Default for Trie {
    fn default() -> Self {
        let unused = Node { byte: 0, value: NO_VALUE, child: NO_NODE, sibling: NO_NODE };
        Self { roots: Box::new([NO_NODE; 256]), nodes: vec![unused] }
    }
}

impl Trie {
    /// Enters a text; a later value replaces an earlier one. The empty text is not entered.
    pub(crate) fn insert(&mut self, text: &[u8], value: u32) {
        let mut parent = NO_NODE;
        for byte in text {
            let first = if parent == NO_NODE {
                self.roots[usize::from(*byte)]
            } else {
                self.nodes[parent as usize].child
            };
            let mut node = first;
            while node != NO_NODE && self.nodes[node as usize].byte != *byte {
                node = self.nodes[node as usize].sibling;
            }
            if node == NO_NODE {
                node = u32::try_from(self.nodes.len()).expect("fewer than 4 G nodes");
                self.nodes.push(Node { byte: *byte, value: NO_VALUE, child: NO_NODE, sibling: first });
                if parent == NO_NODE {
                    self.roots[usize::from(*byte)] = node;
                } else {
                    self.nodes[parent as usize].child = node;
                }
            }
            parent = node;
        }
        if parent != NO_NODE {
            self.nodes[parent as usize].value = value;
        }
    }

    /// Whether some entered text begins with this byte.
    #[inline]
    pub(crate) fn begins_with(&self, byte: u8) -> bool {
        self.roots[usize::from(byte)] != NO_NODE
    }

    /// Calls `found(length, value)` for each entered text that `text` begins with, short ones first.
    #[inline]
    pub(crate) fn walk(&self, text: &[u8], mut found: impl FnMut(usize, u32)) {
        let Some((first, rest)) = text.split_first() else { return };
        let mut node = self.roots[usize::from(*first)];
        let mut len = 1;
        let mut rest = rest.iter();
        while node != NO_NODE {
            let Node { value, mut child, .. } = self.nodes[node as usize];
            if value != NO_VALUE {
                found(len, value);
            }
            let Some(byte) = rest.next() else { return };
            while child != NO_NODE && self.nodes[child as usize].byte != *byte {
                child = self.nodes[child as usize].sibling;
            }
            node = child;
            len += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_finds_every_prefix_and_the_last_value_of_each() {
        let mut trie = Trie::default();
        for (value, text) in (0..).zip(["a", "abc", "ab", "b", "abc", ""]) {
            trie.insert(text.as_bytes(), value);
        }
        let mut found = Vec::new();
        trie.walk(b"abcd", |len, value| found.push((len, value)));
        assert_eq!(found, [(1, 0), (2, 2), (3, 4)]);
        assert!(trie.begins_with(b'b') && !trie.begins_with(b'c'));
    }
}

//! Bytes in memory that others hold too, such as a mapped file.

use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// A part of some bytes, which live as long as it does. Clones share them.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// `range` of the owner's bytes, where that lies within them.
    #[must_use]
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Option<Self> {
        (*owner).as_ref().get(range.clone())?;
        Some(Self { owner, range })
    }
}

impl Deref for SharedBytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({:?})", self.range)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_lies_within_its_owner() {
        let owner: Arc<dyn AsRef<[u8]> + Send + Sync> = Arc::new(vec![1, 2, 3]);
        assert_eq!(SharedBytes::new(Arc::clone(&owner), 1..3).as_deref(), Some(&[2, 3][..]));
        assert!(SharedBytes::new(Arc::clone(&owner), 1..4).is_none());
        assert!(SharedBytes::new(owner, 4..4).is_none());
    }
}

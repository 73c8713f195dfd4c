//! Ids that cross crate borders.

use std::fmt;

/// One request inside this process; unique until the process ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RequestId(pub u64);

impl fmt::Display for RequestId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Whose prefixes may be shared: a request hits only what its own namespace cached.
///
/// Made from an account or a caller's cache salt; the default is the one shared namespace of a
/// server without accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Namespace(pub u64);

//! The life of a request through the gateway: authenticate, limit, look in the cache, route, retry, fail over,
//! account, log; and the providers it may go to.
//!
//! Nothing here serves HTTP and nothing here runs a model: `hearth` wires both to it.

mod caller;
pub mod price;
mod usage;

pub use caller::{Caller, DEFAULT, KeyId, Metadata};
pub use usage::Usage;

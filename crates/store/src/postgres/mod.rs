//! A Postgres database, which several processes may share.
//!
//! Writes are done alone, as SQLite's are: a transaction that writes holds one advisory lock of the database, whichever
//! process it is in, so none of them fails because of another. Each commit also counts in a row of its own writer; when
//! the answer to a commit is lost, that row tells whether it was done. Reads see the moment of their first statement.

mod address;
mod reader;
mod server;
mod session;
pub(crate) mod translate;
mod values;
mod writer;

pub use address::Address;
pub(crate) use reader::Reader;
pub(crate) use server::Server;
pub(crate) use writer::Writer;

use crate::migrate::Part;

/// The advisory lock of writes: `hearth` in ASCII.
const LOCK: i64 = 0x6865_6172_7468;

/// The store's own tables.
const TABLES: Part = Part {
    name: "store",
    steps: &["CREATE TABLE store_writers (
        id TEXT PRIMARY KEY,
        -- The last of its commits.
        commits INTEGER NOT NULL,
        -- Seconds since 1970.
        used INTEGER NOT NULL
    ) STRICT"],
};

/// Keeps others from writing until it is dropped.
#[cfg(test)]
pub(crate) fn hold(address: &Address) -> impl std::any::Any + Send + use<> {
    let session = session::Session::open(address).map_err(|refused| refused.error).expect("connects");
    session.batch(&writer::begin("")).expect("the lock is free");
    session
}

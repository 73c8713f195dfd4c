//! The store of a server's state: the database that the settings name, else a file in the data folder.

use crate::config::Settings;
use crate::kept;
use store::{Part, Store};

/// All that have tables.
const PARTS: &[Part] = &[kept::TABLES];

/// Opens the store and brings its tables up to date. The thread waits for it.
///
/// # Errors
/// When the database or the folder cannot be used, or has tables of a newer version.
pub fn open(settings: &Settings) -> Result<Store, store::Error> {
    match &settings.database {
        Some(address) => Store::connect(address, PARTS),
        None => Store::open(&settings.data_dir, PARTS),
    }
}

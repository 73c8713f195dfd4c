//! The store of a server's state: the database that is named, else a file in the data folder.

use crate::kept;
use anyhow::Context;
use base::SystemClock;
use gateway::Gateway;
use gateway::byok::SecretPlace;
use gateway::price::{Book, import};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use store::{Address, Durability, Part, Store};

/// All that have tables.
pub(crate) fn parts() -> Vec<Part> {
    [&[kept::TABLES][..], &gateway::PARTS].concat()
}

/// Opens the store and brings its tables up to date. The thread waits for it.
///
/// # Errors
/// When the database or the folder cannot be used, or has tables of a newer version.
pub fn open(
    database: Option<&Address>,
    data_dir: &Path,
    durability: Durability,
) -> Result<Store, store::Error> {
    match database {
        Some(address) => Store::connect(address, &parts()),
        None => Store::open_with(data_dir, &parts(), durability),
    }
}

/// The price book: the prices that come with the program, and those of these files over them.
///
/// # Errors
/// When a file cannot be read or is none of prices.
pub fn prices(files: &[PathBuf]) -> anyhow::Result<Book> {
    let mut book = Book::shipped();
    for file in files {
        let text =
            std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
        let imported = import(&text).map_err(anyhow::Error::msg);
        book.add(imported.with_context(|| format!("{} is no file of prices", file.display()))?);
    }
    Ok(book)
}

/// Where the keys lie with which providers' keys are sealed: in the environment, else in the data folder.
#[must_use]
pub fn secrets(data_dir: &Path) -> SecretPlace {
    SecretPlace { folder: data_dir.to_owned(), environment: std::env::var("HEARTH_SECRET_KEY").ok() }
}

/// Accounts, keys, gateways and the ledger of a store.
///
/// # Errors
/// When the store fails.
pub async fn gateway(store: Store, book: Book) -> Result<Gateway, store::Error> {
    Gateway::open(store, Arc::new(SystemClock::default()), book).await
}

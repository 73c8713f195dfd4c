//! Accounts: who pays, and whose data is whose.

use crate::directory::changed;
use crate::{DEFAULT, Gateway, Settings, settings, unavailable};
use protocol::{Error, ErrorKind};
use store::Work;

/// An account.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// Its id, as it stands in paths.
    pub id: String,
    /// Its name, for people.
    pub name: String,
    /// Seconds since 1970.
    pub created: u64,
}

/// Ids that stand where accounts do in a path and mean something else there, here or in the APIs of OpenAI and Anthropic.
pub const RESERVED: &[&str] = &[
    "assistants",
    "audio",
    "batches",
    "chat",
    "completions",
    "containers",
    "conversations",
    "detokenize",
    "embeddings",
    "evals",
    "files",
    "fine_tuning",
    "images",
    "messages",
    "models",
    "moderations",
    "organization",
    "organizations",
    "realtime",
    "rerank",
    "responses",
    "runs",
    "skills",
    "threads",
    "tokenize",
    "uploads",
    "vector_stores",
    "videos",
];

/// Longest id.
const LENGTH: usize = 64;

/// Holds an id to what can stand in a path: letters, digits, `-`, `_` and `.`.
pub(crate) fn check_id(field: &str, id: &str) -> Result<(), Error> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    if id.is_empty() || id.len() > LENGTH || !id.chars().all(fine) || !id.starts_with(|c: char| c != '.') {
        let message = format!(
            "Invalid value for '{field}': expected 1 to {LENGTH} letters, digits, '-', '_' or '.', not a '.' first"
        );
        return Err(Error::invalid(field, message));
    }
    Ok(())
}

/// Inserts an account with its default gateway; tells whether it is new.
pub(crate) fn insert(work: &Work<'_>, id: &str, name: &str, now: i64) -> Result<bool, store::Error> {
    let sql =
        "INSERT INTO gateway_accounts (id, name, created) VALUES (?1, ?2, ?3) ON CONFLICT (id) DO NOTHING";
    if work.execute(sql, &[id.into(), name.into(), now.into()])? == 0 {
        return Ok(false);
    }
    settings::insert(work, id, DEFAULT, &Settings::default(), now)?;
    changed(work)?;
    Ok(true)
}

/// The error for an account that is not there.
pub(crate) fn no_account(id: &str) -> Error {
    let shown: String = id.chars().take(LENGTH).collect();
    Error::new(ErrorKind::NotFound, format!("There is no account '{shown}'"))
}

impl Gateway {
    /// All accounts, by id.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn accounts(&self) -> Result<Vec<Account>, Error> {
        let mut accounts: Vec<Account> = self.directory().await?.accounts.values().cloned().collect();
        accounts.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(accounts)
    }

    /// Makes an account, with a gateway `default`.
    ///
    /// # Errors
    /// When the id cannot be one or is taken, or the store fails.
    pub async fn create_account(&self, id: &str, name: &str) -> Result<Account, Error> {
        check_id("id", id)?;
        if RESERVED.contains(&id) {
            let message = format!("Invalid value for 'id': '{id}' would be mistaken for a part of a path");
            return Err(Error::invalid("id", message));
        }
        let account = Account { id: id.to_owned(), name: name.to_owned(), created: self.now() };
        let new = account.clone();
        let inserted = self.write("The account could not be made", move |work| {
            insert(work, &new.id, &new.name, number(new.created))
        });
        if !inserted.await? {
            return Err(Error::invalid("id", format!("There is an account '{id}' already")));
        }
        Ok(account)
    }

    /// Whether an account is there, else an error that names it.
    ///
    /// # Errors
    /// When it is not there, or the store fails.
    pub async fn check_account(&self, id: &str) -> Result<(), Error> {
        if self.directory().await?.accounts.contains_key(id) {
            return Ok(());
        }
        Err(no_account(id))
    }

    /// Changes something, all or nothing, and makes this process see it at once.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        what: &str,
        work: impl Fn(&Work<'_>) -> Result<T, store::Error> + Send + 'static,
    ) -> Result<T, Error> {
        let done = self.store().write(work).await.map_err(|error| unavailable(what, &error))?;
        self.forget().await;
        Ok(done)
    }

    /// A change of what is there already. `work` reads that in its own transaction, so that nothing that others changed
    /// meanwhile is lost; what it refuses it has not begun to change.
    pub(crate) async fn change<T: Send + 'static>(
        &self,
        what: &str,
        work: impl Fn(&Work<'_>) -> Result<Result<T, Error>, store::Error> + Send + 'static,
    ) -> Result<T, Error> {
        self.write(what, work).await?
    }
}

/// A count or time as the store keeps it.
pub(crate) fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

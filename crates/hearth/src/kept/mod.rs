//! Responses that are kept, so that a later request can go on from one, over [`store`].
//!
//! A turn is a response with its own input; it names the turn before it. Turns that follow from one another are a
//! conversation, which is kept until nobody has added to it for the retention time, or until newer ones need its
//! room: a conversation is kept whole or not at all, save for turns that a caller deletes and for old branches of one
//! that needs all the room. Invariant: what is kept never has more than its room. Expired conversations are never given
//! back, though they are swept only now and then. A turn made with a cache salt is found with that salt only.
//!
//! Not here: what a turn's items mean (that is the dialect's), and who may ask.

use base::{Bytes, Clock};
use gateway::unavailable;
use protocol::{Error, ErrorKind};
use serde_json::Value;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;
use store::{Part, Row, Store, Work};

/// The tables.
pub const TABLES: Part =
    Part { name: "responses", steps: &[include_str!("tables_1.sql"), include_str!("tables_2.sql")] };

/// What a turn costs besides its text, so that many small ones count too.
const ROW: usize = 512;

/// Text of a conversation that a request may go on from.
const CONVERSATION: i64 = 64 << 20;

/// Time between two sweeps.
const SWEEP: Duration = Duration::from_secs(3600);

/// Rows that are deleted in one go, so that writes between have their turn.
const BATCH: i64 = 64;

/// The turns from the oldest to the named one, as long as each is there.
const CHAIN: &str = "WITH RECURSIVE chain (id, previous, depth) AS (
    SELECT turns.id, turns.previous, 0 FROM responses_turns AS turns
      JOIN responses_conversations AS conversations ON conversations.id = turns.conversation
      WHERE turns.id = ?1 AND turns.salt = ?2 AND conversations.used >= ?3
    UNION ALL
    SELECT turns.id, turns.previous, chain.depth + 1 FROM chain
      JOIN responses_turns AS turns ON turns.id = chain.previous AND turns.salt = ?2
)";

/// Deletes turns of a conversation that a turn does not go on from, the oldest first, until so many bytes are freed.
const BRANCHES: &str = "WITH RECURSIVE chain (id, previous) AS (
    SELECT id, previous FROM responses_turns WHERE id = ?2
    UNION ALL
    SELECT turns.id, turns.previous FROM chain JOIN responses_turns AS turns ON turns.id = chain.previous
)
DELETE FROM responses_turns WHERE id IN (
    SELECT id FROM (
        SELECT id, bytes, sum(bytes) OVER (ORDER BY number) AS freed FROM responses_turns
          WHERE conversation = ?1 AND id NOT IN (SELECT id FROM chain)
    ) AS branches WHERE freed - bytes < ?3
)";

/// How long and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long a conversation is kept after its last turn.
    pub retention: Duration,
    /// Room for all of them.
    pub size: Bytes,
}

/// What is kept, or why nothing is.
pub struct Kept {
    store: Result<Store, String>,
    limits: Limits,
    clock: Arc<dyn Clock>,
}

/// One response to keep.
#[derive(Clone, Debug, PartialEq)]
pub struct Turn {
    /// The response's id.
    pub id: String,
    /// The response before it.
    pub previous: Option<String>,
    /// The salt of its request.
    pub salt: Option<String>,
    /// Its own input, as written items.
    pub input: Vec<Value>,
    /// Its output.
    pub output: Vec<Value>,
    /// The response object, its `output` empty: that stands beside it.
    pub response: Value,
}

/// Items of one turn.
#[derive(Clone, Debug, PartialEq)]
pub struct Items {
    /// What went in.
    pub input: Vec<Value>,
    /// What came out.
    pub output: Vec<Value>,
}

/// A conversation up to some turn.
#[derive(Clone, Debug, PartialEq)]
pub enum History {
    /// All its turns, the oldest first.
    Whole(Vec<Items>),
    /// The turn is not here.
    Unknown,
    /// An earlier turn, this one, was deleted.
    Broken(String),
}

impl Kept {
    /// Keeps in a store that has [`TABLES`].
    #[must_use]
    pub fn new(store: Store, limits: Limits, clock: Arc<dyn Clock>) -> Self {
        Self { store: Ok(store), limits, clock }
    }

    /// Keeps nothing, for this reason.
    #[must_use]
    pub fn nothing(why: impl Into<String>, clock: Arc<dyn Clock>) -> Self {
        let limits = Limits { retention: Duration::ZERO, size: Bytes(0) };
        Self { store: Err(why.into()), limits, clock }
    }

    /// Why nothing is kept, where that is so.
    #[must_use]
    pub fn off(&self) -> Option<&str> {
        self.store.as_ref().err().map(String::as_str)
    }

    /// Conversations that were last used before this are gone.
    fn cutoff(&self) -> i64 {
        number(self.clock.unix_seconds().saturating_sub(self.limits.retention.as_secs()))
    }

    /// Keeps a turn. It is committed when this is answered.
    ///
    /// # Errors
    /// When it cannot be kept.
    pub async fn keep(&self, turn: Turn) -> Result<(), Error> {
        let Ok(store) = &self.store else { return Ok(()) };
        let (now, size) = (number(self.clock.unix_seconds()), self.limits.size);
        let written = store.write(move |work| {
            let conversation = insert(work, &turn, now)?;
            if make_room(work, number(size.0), conversation, &turn.id)? {
                return Ok(());
            }
            Err(store::Error::Undone(format!(
                "it and what it goes on from need more room than all of {size}"
            )))
        });
        written.await.map_err(|error| unavailable("The response could not be kept", &error))
    }

    /// Deletes what has expired, now and every hour from now on, as long as it is polled.
    pub async fn sweep(&self) {
        loop {
            if let Err(error) = self.sweep_once().await {
                tracing::warn!(%error, "expired responses could not be deleted");
            }
            tokio::time::sleep(SWEEP).await;
        }
    }

    async fn sweep_once(&self) -> Result<(), store::Error> {
        let Ok(store) = &self.store else { return Ok(()) };
        let cutoff = self.cutoff();
        let sql = "DELETE FROM responses_conversations WHERE id IN
            (SELECT id FROM responses_conversations WHERE used < ?1 LIMIT ?2)";
        while store.write(move |work| work.execute(sql, &[cutoff.into(), BATCH.into()])).await? > 0 {}
        Ok(())
    }

    /// The response object.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn response(&self, id: &str, salt: Option<&str>) -> Result<Option<Value>, Error> {
        let sql = "SELECT turns.response, turns.output FROM responses_turns AS turns
            JOIN responses_conversations AS conversations ON conversations.id = turns.conversation
            WHERE turns.id = ?1 AND turns.salt = ?2 AND conversations.used >= ?3";
        self.read(id, salt, move |work, values| {
            let rows = work.query(sql, values)?;
            let Some(row) = rows.first() else { return Ok(None) };
            let mut response = json(row.text(0)?)?;
            response["output"] = json(row.text(1)?)?;
            Ok(Some(response))
        })
        .await
        .map(Option::flatten)
    }

    /// Bytes of text of the conversation up to a turn and of these single turns, of what is here.
    ///
    /// # Errors
    /// When it is more than a request may go on from, or the store fails.
    pub async fn size(
        &self,
        last: Option<&str>,
        single: Vec<String>,
        salt: Option<&str>,
    ) -> Result<u64, Error> {
        let read = self.read(last.unwrap_or_default(), salt, |work, values| {
            let sum = |sql: &str, values: &[store::Value]| {
                work.query(sql, values)?.first().map_or(Ok(0), |row| row.integer(0))
            };
            let chain =
                "SELECT coalesce(sum(turns.bytes), 0) FROM chain JOIN responses_turns AS turns USING (id)";
            let mut bytes = sum(&format!("{CHAIN} {chain}"), values)?;
            for id in single.into_iter().filter(|id| can_be(id)) {
                let values = [id.into(), values[1].clone()];
                let turn = "SELECT bytes FROM responses_turns WHERE id = ?1 AND salt = ?2";
                bytes += sum(turn, &values)?;
            }
            Ok(bytes)
        });
        let bytes = read.await?.unwrap_or_default();
        if bytes <= CONVERSATION {
            return Ok(bytes.unsigned_abs());
        }
        let (bytes, most) = (Bytes(bytes.unsigned_abs()), Bytes(CONVERSATION.unsigned_abs()));
        let message = format!(
            "What is kept of the conversation has {bytes} of text, at most {most} can be gone on from"
        );
        Err(Error::new(ErrorKind::ContextLength, message))
    }

    /// The conversation up to a turn, this one included. What it takes is told by [`Kept::size`].
    ///
    /// # Errors
    /// When the store fails.
    pub async fn history(&self, id: &str, salt: Option<&str>) -> Result<History, Error> {
        let read = self.read(id, salt, |work, values| {
            let all = "SELECT turns.input, turns.output, turns.previous FROM chain
                JOIN responses_turns AS turns USING (id) ORDER BY depth DESC";
            let rows = work.query(&format!("{CHAIN} {all}"), values)?;
            let Some(oldest) = rows.first() else { return Ok(History::Unknown) };
            if let Some(missing) = oldest.optional_text(2)? {
                return Ok(History::Broken(missing.to_owned()));
            }
            Ok(History::Whole(rows.iter().map(items).collect::<Result<_, _>>()?))
        });
        Ok(read.await?.unwrap_or(History::Unknown))
    }

    /// The items of these turns, of those that are here.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn turns(&self, ids: Vec<String>, salt: Option<&str>) -> Result<HashMap<String, Items>, Error> {
        let sql = "SELECT turns.input, turns.output FROM responses_turns AS turns
            JOIN responses_conversations AS conversations ON conversations.id = turns.conversation
            WHERE turns.id = ?1 AND turns.salt = ?2 AND conversations.used >= ?3";
        let read = self.read("", salt, move |work, values| {
            let mut found = HashMap::new();
            for id in ids.into_iter().filter(|id| can_be(id)) {
                let mut values = values.to_vec();
                values[0] = id.as_str().into();
                if let Some(row) = work.query(sql, &values)?.first() {
                    found.insert(id, items(row)?);
                }
            }
            Ok(found)
        });
        read.await.map(Option::unwrap_or_default)
    }

    /// Deletes a turn; tells whether it was there. What goes on from it cannot be gone on from any more.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn delete(&self, id: &str, salt: Option<&str>) -> Result<bool, Error> {
        let Ok(store) = &self.store else { return Ok(false) };
        if !can_be(id) {
            return Ok(false);
        }
        let values = [id.into(), salted(salt).into()];
        let deleted = store.write(move |work| {
            let sql = "DELETE FROM responses_turns WHERE id = ?1 AND salt = ?2 RETURNING conversation";
            let deleted = work.query(sql, &values)?;
            let Some(row) = deleted.first() else { return Ok(false) };
            let empty = "DELETE FROM responses_conversations WHERE id = ?1
                AND NOT EXISTS (SELECT 1 FROM responses_turns WHERE conversation = ?1)";
            work.execute(empty, &[row.integer(0)?.into()])?;
            Ok(true)
        });
        deleted.await.map_err(|error| unavailable("The response could not be deleted", &error))
    }

    async fn read<T: Send + 'static>(
        &self,
        id: &str,
        salt: Option<&str>,
        read: impl FnOnce(&Work<'_>, &[store::Value]) -> Result<T, store::Error> + Send + 'static,
    ) -> Result<Option<T>, Error> {
        let Ok(store) = &self.store else { return Ok(None) };
        if !can_be(id) {
            return Ok(None);
        }
        let values = [id.into(), salted(salt).into(), self.cutoff().into()];
        let found = store.read(move |work| read(work, &values)).await;
        found.map(Some).map_err(|error| unavailable("Kept responses cannot be read", &error))
    }
}

/// Puts a turn into its conversation, whose number it gives.
fn insert(work: &Work<'_>, turn: &Turn, now: i64) -> Result<i64, store::Error> {
    let salt = salted(turn.salt.as_deref());
    let found = match &turn.previous {
        None => Vec::new(),
        Some(previous) => work.query(
            "SELECT conversation FROM responses_turns WHERE id = ?1 AND salt = ?2",
            &[previous.as_str().into(), salt.as_str().into()],
        )?,
    };
    let conversation = match found.first() {
        Some(row) => {
            let conversation = row.integer(0)?;
            work.execute(
                "UPDATE responses_conversations SET used = ?2 WHERE id = ?1",
                &[conversation.into(), now.into()],
            )?;
            conversation
        }
        None => {
            let sql = "INSERT INTO responses_conversations (used) VALUES (?1) RETURNING id";
            let rows = work.query(sql, &[now.into()])?;
            rows.first().ok_or_else(|| store::Error::Failed("no number was given".to_owned()))?.integer(0)?
        }
    };
    let texts = [text(&turn.input), text(&turn.output), turn.response.to_string()];
    let bytes = ROW + texts.iter().map(String::len).sum::<usize>();
    let [input, output, response] = texts.map(store::Value::from);
    work.execute(
        "INSERT INTO responses_turns (id, conversation, previous, salt, bytes, input, output, response, number)
         SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, coalesce(max(number), 0) + 1
           FROM responses_turns WHERE conversation = ?2",
        &[
            turn.id.as_str().into(),
            conversation.into(),
            turn.previous.as_deref().into(),
            salt.into(),
            number(bytes as u64).into(),
            input,
            output,
            response,
        ],
    )?;
    Ok(conversation)
}

/// Deletes the conversations that were not used for the longest time until the others fit, `but` the last; then of this
/// one the oldest turns that the named one does not go on from. Tells whether all fits.
fn make_room(work: &Work<'_>, size: i64, but: i64, turn: &str) -> Result<bool, store::Error> {
    let too_much = || {
        let bytes = work.query("SELECT bytes FROM responses_size", &[])?;
        Ok::<_, store::Error>(bytes.first().map_or(Ok(0), |row| row.integer(0))? - size)
    };
    while too_much()? > 0 {
        let deleted = work.execute(
            "DELETE FROM responses_conversations WHERE id =
             (SELECT id FROM responses_conversations WHERE id != ?1 ORDER BY used, id LIMIT 1)",
            &[but.into()],
        )?;
        if deleted == 0 {
            work.execute(BRANCHES, &[but.into(), turn.into(), too_much()?.into()])?;
            return Ok(too_much()? <= 0);
        }
    }
    Ok(true)
}

fn items(row: &Row) -> Result<Items, store::Error> {
    let list = |column| match json(row.text(column)?)? {
        Value::Array(items) => Ok(items),
        _ => Err(store::Error::Failed("kept items are no list".to_owned())),
    };
    Ok(Items { input: list(0)?, output: list(1)? })
}

fn json(text: &str) -> Result<Value, store::Error> {
    serde_json::from_str(text).map_err(|error| store::Error::Failed(format!("kept text is no JSON: {error}")))
}

fn text(items: &[Value]) -> String {
    serde_json::to_string(items).expect("JSON values can be written")
}

/// What stands for a salt: nothing of it can be read from the file.
fn salted(salt: Option<&str>) -> String {
    salt.map_or_else(String::new, |salt| {
        Sha256::digest(salt.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
    })
}

/// Whether a response can have this id; the store looks for no text with a NUL character.
fn can_be(id: &str) -> bool {
    !id.contains('\0')
}

fn number(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;

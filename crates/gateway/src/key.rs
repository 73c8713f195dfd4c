//! API keys: `hearth_` and 43 characters that hold 256 random bits.
//!
//! A key is shown once, when it is made; what is kept is its SHA-256, by which it is found again, so that neither the
//! store nor the time a look-up takes tells anything about it. A key is rotated under its own id: its history and
//! limits stay.

use crate::account::number;
use crate::directory::changed;
use crate::{Gateway, KeyId};
use base::NanoUsd;
use protocol::{Error, ErrorKind};
use sha2::{Digest, Sha256};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use store::{Row, Value};

/// What keys begin with, so that they are known for what they are where they leak.
pub const PREFIX: &str = "hearth_";

/// Characters after the prefix: 62^43 is more than 2^256.
const CHARACTERS: usize = 43;

/// Characters of a key that are kept for people.
const SHOWN: usize = PREFIX.len() + 5;

/// Fewest characters of a key or its id by which it is found.
const FIRST: usize = PREFIX.len() + 1;

/// Most characters of a key's name.
const NAME: usize = 100;

/// The last second that people write with four digits for the year.
const LAST: u64 = 253_402_300_799;

/// What a key may be used for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scopes {
    /// To ask models.
    pub inference: bool,
    /// To manage its account: gateways, usage.
    pub admin: bool,
}

impl Scopes {
    /// Reads names with commas or spaces between.
    ///
    /// # Errors
    /// When there is none, or one that is no scope.
    pub fn parse(text: &str) -> Result<Self, Error> {
        let mut scopes = Self::default();
        for word in text.split([',', ' ']).filter(|word| !word.is_empty()) {
            match word {
                "inference" => scopes.inference = true,
                "admin" => scopes.admin = true,
                _ => {
                    let message =
                        format!("Invalid value for 'scopes': '{word}' is neither inference nor admin");
                    return Err(Error::invalid("scopes", message));
                }
            }
        }
        if scopes == Self::default() {
            return Err(Error::invalid(
                "scopes",
                "Invalid value for 'scopes': expected inference, admin or both",
            ));
        }
        Ok(scopes)
    }
}

impl fmt::Display for Scopes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match (self.inference, self.admin) {
            (true, true) => "inference admin",
            (true, false) => "inference",
            (false, true) => "admin",
            (false, false) => "",
        })
    }
}

/// What a key may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Budget {
    /// The most.
    pub amount: NanoUsd,
    /// In each period of so many seconds, counted from 1970; `None`: in all.
    pub period: Option<u64>,
}

/// How much a key may be used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests in a minute.
    pub requests_per_minute: Option<u32>,
    /// Tokens of prompts and answers in a minute.
    pub tokens_per_minute: Option<u32>,
    /// Money.
    pub budget: Option<Budget>,
    /// Whether a request beyond those of a minute is only reported.
    pub shadow: bool,
}

/// What is known of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its id.
    pub id: KeyId,
    /// The account it belongs to.
    pub account: String,
    /// Its name, for people.
    pub name: String,
    /// The first characters of the key.
    pub shown: String,
    /// What it may be used for.
    pub scopes: Scopes,
    /// How much.
    pub limits: Limits,
    /// Seconds since 1970.
    pub created: u64,
    /// From when on it is not taken any more.
    pub expires: Option<u64>,
    /// Since when it is not taken any more.
    pub revoked: Option<u64>,
}

/// A wish for a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewKey {
    /// The account it is to belong to.
    pub account: String,
    /// Its name.
    pub name: String,
    /// What it may be used for.
    pub scopes: Scopes,
    /// How much.
    pub limits: Limits,
    /// When it ends.
    pub expires: Option<u64>,
}

impl NewKey {
    /// Holds a wish to what a key can be. `now` is in seconds since 1970.
    fn check(&self, now: u64) -> Result<(), Error> {
        let wrong = |field: &str, expected: &str| {
            Err(Error::invalid(field, format!("Invalid value for '{field}': expected {expected}")))
        };
        let limits = &self.limits;
        if self.name.trim().is_empty()
            || self.name.chars().count() > NAME
            || self.name.contains(|c: char| c.is_control())
        {
            return wrong("name", &format!("1 to {NAME} characters, not only spaces, in one line"));
        }
        if self.expires.is_some_and(|ends| ends <= now || ends > LAST) {
            return wrong("expires", "a time to come, before the year 10000");
        }
        if limits.requests_per_minute == Some(0) {
            return wrong("requests_per_minute", "at least 1");
        }
        if limits.tokens_per_minute == Some(0) {
            return wrong("tokens_per_minute", "at least 1");
        }
        if limits.budget.is_some_and(|budget| budget.amount.0 < 0 || budget.period == Some(0)) {
            return wrong("budget", "nothing below zero, and no empty period");
        }
        Ok(())
    }
}

/// A key that was just made; the only time it is seen.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(pub String);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

impl Secret {
    fn new() -> Self {
        const DIGITS: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
        let mut text = PREFIX.to_owned();
        let mut bytes = [0; CHARACTERS];
        while text.len() < PREFIX.len() + CHARACTERS {
            getrandom::fill(&mut bytes).expect("the system gives random bytes");
            let left = PREFIX.len() + CHARACTERS - text.len();
            // A byte that would favour some characters is thrown away.
            let even = bytes.iter().filter(|byte| **byte < 248).take(left);
            text.extend(even.map(|byte| char::from(DIGITS[usize::from(*byte % 62)])));
        }
        Self(text)
    }

    fn shown(&self) -> String {
        self.0.chars().take(SHOWN).collect()
    }
}

/// By what a key is found.
pub(crate) fn hash(key: &[u8]) -> String {
    Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The columns that [`read`] reads.
pub(crate) const COLUMNS: &str = "id, account, name, shown, scopes, created, expires, revoked, requests_per_minute, \
     budget, budget_period, hash, old_hash, old_until";

/// A row of [`COLUMNS`].
pub(crate) fn read(row: &Row) -> Result<Key, store::Error> {
    let time = |column| Ok::<_, store::Error>(row.optional_integer(column)?.map(i64::unsigned_abs));
    let period = time(10)?;
    let budget = row.optional_integer(9)?.map(|amount| Budget { amount: NanoUsd(amount), period });
    Ok(Key {
        id: KeyId(row.text(0)?.into()),
        account: row.text(1)?.to_owned(),
        name: row.text(2)?.to_owned(),
        shown: row.text(3)?.to_owned(),
        scopes: Scopes::parse(row.text(4)?).map_err(|error| store::Error::Failed(error.message))?,
        created: row.integer(5)?.unsigned_abs(),
        expires: time(6)?,
        revoked: time(7)?,
        limits: Limits {
            requests_per_minute: time(8)?.map(|limit| u32::try_from(limit).unwrap_or(u32::MAX)),
            tokens_per_minute: None,
            budget,
            shadow: false,
        },
    })
}

impl Gateway {
    /// All keys of an account, or of all, the oldest first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn keys(&self, account: Option<&str>) -> Result<Vec<Key>, Error> {
        let directory = self.directory().await?;
        let mut keys: Vec<Key> = directory
            .keys
            .values()
            .filter(|key| account.is_none_or(|account| key.account == account))
            .map(|key| Key::clone(key))
            .collect();
        keys.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
        Ok(keys)
    }

    /// Makes a key. It is seen here and never again.
    ///
    /// # Errors
    /// When there is no such account, the wish is none a key can have, or the store fails.
    pub async fn create_key(&self, new: NewKey) -> Result<(Key, Secret), Error> {
        self.check_account(&new.account).await.map_err(|error| error.at("account"))?;
        new.check(self.now())?;
        let secret = Secret::new();
        let key = Key {
            id: KeyId(uuid::Uuid::now_v7().simple().to_string().into()),
            account: new.account,
            name: new.name,
            shown: secret.shown(),
            scopes: new.scopes,
            limits: new.limits,
            created: self.now(),
            expires: new.expires,
            revoked: None,
        };
        let (kept, hash) = (key.clone(), hash(secret.0.as_bytes()));
        let inserted = self.write("The key could not be made", move |work| {
            let sql = format!(
                "INSERT INTO gateway_keys ({COLUMNS})
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)"
            );
            let optional = |time: Option<u64>| Value::from(time.map(number));
            work.execute(
                &sql,
                &[
                    (&*kept.id.0).into(),
                    kept.account.as_str().into(),
                    kept.name.as_str().into(),
                    kept.shown.as_str().into(),
                    kept.scopes.to_string().into(),
                    number(kept.created).into(),
                    optional(kept.expires),
                    Value::Null,
                    optional(kept.limits.requests_per_minute.map(u64::from)),
                    kept.limits.budget.map(|budget| budget.amount.0).into(),
                    optional(kept.limits.budget.and_then(|budget| budget.period)),
                    hash.as_str().into(),
                    Value::Null,
                    Value::Null,
                ],
            )?;
            let Limits { tokens_per_minute, shadow, .. } = kept.limits;
            if tokens_per_minute.is_some() || shadow {
                let sql = "INSERT INTO policy_keys (key_id, tokens_per_minute, shadow) VALUES (?1, ?2, ?3)";
                let tokens = tokens_per_minute.map(i64::from);
                work.execute(sql, &[(&*kept.id.0).into(), tokens.into(), i64::from(shadow).into()])?;
            }
            changed(work)
        });
        inserted.await?;
        Ok((key, secret))
    }

    /// Gives a key a new secret; the old one is taken for so long still.
    ///
    /// # Errors
    /// When the key is not there or revoked, or the store fails.
    pub async fn rotate_key(&self, id: &str, overlap: Duration) -> Result<(Key, Secret), Error> {
        let key = self.key(id).await?;
        if key.revoked.is_some() {
            return Err(Error::invalid("key", format!("The key '{}' is revoked", key.id)));
        }
        let secret = Secret::new();
        let key = Key { shown: secret.shown(), ..key };
        let until = self.now().saturating_add(overlap.as_secs());
        let values: [Value; 4] = [
            (&*key.id.0).into(),
            hash(secret.0.as_bytes()).into(),
            key.shown.as_str().into(),
            number(until).into(),
        ];
        let gone = Error::invalid("key", format!("The key '{}' is revoked", key.id));
        let rotated = self.change("The key could not be rotated", move |work| {
            let sql = "UPDATE gateway_keys SET old_hash = hash, old_until = ?4, hash = ?2, shown = ?3
                WHERE id = ?1 AND revoked IS NULL";
            if work.execute(sql, &values)? == 0 {
                return Ok(Err(gone.clone()));
            }
            changed(work).map(Ok)
        });
        rotated.await?;
        Ok((key, secret))
    }

    /// Ends a key: this process takes it no more at once, others within a second.
    ///
    /// # Errors
    /// When the key is not there, or the store fails.
    pub async fn revoke_key(&self, id: &str) -> Result<Key, Error> {
        let key = self.key(id).await?;
        let now = self.now();
        let values: [Value; 2] = [(&*key.id.0).into(), number(now).into()];
        let revoked = self.write("The key could not be revoked", move |work| {
            work.execute("UPDATE gateway_keys SET revoked = ?2 WHERE id = ?1 AND revoked IS NULL", &values)?;
            changed(work)
        });
        revoked.await?;
        Ok(Key { revoked: key.revoked.or(Some(now)), ..key })
    }

    /// A key by its id or by itself, or by its name or the first characters of either. A key that is taken goes before
    /// those that ended, so that a name can be given again.
    ///
    /// # Errors
    /// When none or several are meant, or the store fails.
    pub async fn key(&self, named: &str) -> Result<Key, Error> {
        let directory = self.directory().await?;
        let whole = || directory.secrets.get(&hash(named.as_bytes())).map(|(key, _)| key);
        if let Some(key) = directory.keys.get(&KeyId(named.into())).or_else(whole) {
            return Ok(Key::clone(key));
        }
        // What is told of a key that was given whole must not hold it.
        let told: String = named.chars().take(SHOWN.max(NAME)).collect();
        let told = if named.starts_with(PREFIX) { told.chars().take(SHOWN).collect() } else { told };
        let begins = |text: &str| named.len() >= FIRST && text.starts_with(named);
        let of = |key: &&Arc<Key>| {
            !named.is_empty() && (key.name == named || begins(&key.shown) || begins(&key.id.0))
        };
        let now = self.now();
        let taken = |key: &Key| key.revoked.is_none() && key.expires.is_none_or(|ends| now < ends);
        let (living, ended): (Vec<_>, Vec<_>) =
            directory.keys.values().filter(of).partition(|key| taken(key));
        let mut found = if living.is_empty() { ended } else { living };
        match found.as_slice() {
            [key] => Ok(Key::clone(key)),
            [] => Err(Error::new(ErrorKind::NotFound, format!("There is no key '{told}'"))),
            _ => {
                found.sort_by(|a, b| (a.created, &a.id).cmp(&(b.created, &b.id)));
                let ids: Vec<&str> = found.iter().rev().take(5).map(|key| &*key.id.0).collect();
                let message = format!(
                    "More than one key is called '{told}' or begins so; give an id, of the latest: {}",
                    ids.join(", ")
                );
                Err(Error::invalid("key", message))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_secret_has_256_bits_in_characters_that_need_no_quoting() {
        let secrets: Vec<Secret> = (0..200).map(|_| Secret::new()).collect();
        let mut counts = HashSet::new();
        for Secret(text) in &secrets {
            let rest = text.strip_prefix(PREFIX).unwrap();
            assert_eq!(rest.len(), CHARACTERS);
            assert!(rest.chars().all(|c| c.is_ascii_alphanumeric()), "{text}");
            counts.extend(rest.chars());
        }
        assert_eq!(counts.len(), 62);
        let different: HashSet<&str> = secrets.iter().map(|secret| secret.0.as_str()).collect();
        assert_eq!(different.len(), secrets.len());
        assert_eq!(format!("{:?}", secrets[0]), "Secret(…)");
    }

    #[test]
    fn scopes_are_words_and_none_is_no_answer() {
        assert_eq!(Scopes::parse("admin,inference").unwrap().to_string(), "inference admin");
        assert_eq!(Scopes::parse("admin").unwrap(), Scopes { inference: false, admin: true });
        assert!(Scopes::parse("").is_err());
        assert!(Scopes::parse("root").is_err());
    }
}

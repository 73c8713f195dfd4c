//! So many in a window of time, over all processes on one store, without a write for each.
//!
//! A process takes a share of a limit from the store, a twentieth of it and at least one, and spends it alone. Shares are
//! counted in the store when they are taken, so all processes together never let through more than the limit. What is
//! left of a share is given back with the next; until then, other processes may be refused that much too early.
//!
//! A *fixed* window begins at a multiple of its length since 1970. A *sliding* one is cut into tenths (of a second at
//! least): what was taken in a tenth counts until all of that tenth has left the window, so never more than the limit is let
//! through in any stretch of its length, and what left the window at most a tenth of it ago may still count.
//!
//! Tokens are counted when an answer ends ([`Gateway::charge`]), so requests that run when the limit is reached go beyond it by
//! what they use. While the store does not answer, nothing is counted and everything passes: the ledger, which needs the
//! store too, decides then.

use crate::account::number;
use crate::log::Finder;
use crate::{Gateway, KeyId, Limits};
use protocol::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use store::Work;

/// How windows follow each other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Technique {
    /// One begins where the other ends.
    #[default]
    Fixed,
    /// Each moment ends one.
    Sliding,
}

impl Technique {
    /// Reads a setting; null is the default.
    ///
    /// # Errors
    /// Names the setting when it is neither.
    pub fn read(name: &str, value: &Value) -> Result<Self, Error> {
        match value {
            Value::Null => Ok(Self::default()),
            _ => serde_json::from_value(value.clone()).map_err(|_| {
                Error::invalid(name, format!("Invalid value for '{name}': expected fixed or sliding"))
            }),
        }
    }
}

/// A limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The most.
    pub limit: u64,
    /// In so many seconds; at least one.
    pub window: u64,
    /// How windows follow each other.
    pub technique: Technique,
}

/// Parts of a sliding window.
const PARTS: u64 = 10;

/// Shares of a limit.
const SHARES: u64 = 20;

/// Names whose shares are remembered before old ones are forgotten.
const NAMES: usize = 4096;

impl Rule {
    /// So many in a minute, minute by minute.
    #[must_use]
    pub const fn minute(limit: u64) -> Self {
        Self { limit, window: 60, technique: Technique::Fixed }
    }

    /// Length of what is counted together.
    pub(crate) fn part(&self) -> u64 {
        match self.technique {
            Technique::Fixed => self.window.max(1),
            Technique::Sliding => (self.window / PARTS).max(1),
        }
    }

    /// When the part of a moment begins.
    pub(crate) fn start(&self, now: u64) -> u64 {
        now - now % self.part()
    }

    /// When the first part begins that counts at a moment.
    pub(crate) fn since(&self, now: u64) -> u64 {
        match self.technique {
            Technique::Fixed => self.start(now),
            // The first that has not wholly left.
            Technique::Sliding => {
                let left = (now + 1).saturating_sub(self.window + self.part());
                left.div_ceil(self.part()) * self.part()
            }
        }
    }

    /// When a part that begins at `start` does not count any more.
    pub(crate) fn leaves(&self, start: u64) -> u64 {
        match self.technique {
            Technique::Fixed => start + self.part(),
            Technique::Sliding => start + self.part() + self.window,
        }
    }

    fn share(&self) -> u64 {
        (self.limit / SHARES).max(1)
    }
}

/// A limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Refused {
    /// Which.
    pub rule: Rule,
    /// What is counted: requests or tokens.
    pub unit: &'static str,
    /// When something is free again, as far as that is known.
    pub after: Duration,
}

impl Refused {
    fn new(rule: Rule, seconds: u64) -> Self {
        Self { rule, unit: "requests", after: Duration::from_secs(seconds.max(1)) }
    }

    /// The error for the client.
    #[must_use]
    pub fn error(&self, message: String) -> Error {
        Error::new(ErrorKind::Limited, message).retry_after(self.after)
    }
}

/// What a process has of one limit.
#[derive(Default)]
struct Share {
    /// The part of the window it is of.
    start: u64,
    left: u64,
    /// Used beyond what it had; not in the store yet.
    owed: u64,
    /// Nothing is free before this second, as long as the limit is this.
    none_until: u64,
    rule: Option<Rule>,
    /// When all of it is forgotten.
    ends: u64,
}

/// What this process has of all limits.
#[derive(Default)]
pub(crate) struct Rates(Mutex<HashMap<Arc<str>, Place>>);

#[derive(Clone, Default)]
struct Place {
    share: Arc<Mutex<Share>>,
    /// Held by the one who asks the store.
    asking: Arc<tokio::sync::Mutex<()>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Rates {
    fn place(&self, name: &str, now: u64) -> Place {
        let mut places = lock(&self.0);
        if let Some(place) = places.get(name) {
            return place.clone();
        }
        if places.len() >= NAMES {
            places.retain(|_, place| lock(&place.share).ends > now);
        }
        let place = Place::default();
        places.insert(name.into(), place.clone());
        place
    }
}

impl Share {
    /// Takes from it; nothing where the store must be asked.
    fn take(&mut self, rule: Rule, amount: u64, now: u64) -> Option<Result<(), Refused>> {
        if now < self.none_until && self.rule == Some(rule) {
            return Some(Err(Refused::new(rule, self.none_until - now)));
        }
        if self.start != rule.start(now) || self.owed > 0 || self.left < amount.max(1) {
            return None;
        }
        self.left -= amount;
        Some(Ok(()))
    }
}

/// What is asked of the store.
#[derive(Clone)]
struct Ask {
    name: String,
    rule: Rule,
    now: u64,
    /// What is left of an earlier share, and when its part began.
    back: (u64, u64),
    owed: u64,
    /// At least this much; a share is more.
    amount: u64,
}

impl Ask {
    /// Gives what is had now, and when there is more where that is too little.
    fn ask(&self, work: &Work<'_>) -> Result<(u64, u64), store::Error> {
        let Self { rule, now, .. } = *self;
        let (start, name) = (rule.start(now), || store::Value::from(self.name.as_str()));
        work.execute("DELETE FROM policy_rates WHERE ends <= ?1", &[number(now).into()])?;
        if self.back.1 > 0 {
            let sql = "UPDATE policy_rates SET used = used - ?3 WHERE name = ?1 AND start = ?2";
            work.execute(sql, &[name(), number(self.back.0).into(), number(self.back.1).into()])?;
        }
        let sql = "SELECT start, used FROM policy_rates WHERE name = ?1 AND start >= ?2 ORDER BY start";
        let rows = work.query(sql, &[name(), number(rule.since(now)).into()])?;
        let parts =
            rows.iter().map(|row| Ok((row.integer(0)?.unsigned_abs(), row.integer(1)?.unsigned_abs())));
        let parts: Vec<(u64, u64)> = parts.collect::<Result<_, store::Error>>()?;
        let used = parts.iter().map(|part| part.1).sum::<u64>().saturating_add(self.owed);
        let free = rule.limit.saturating_sub(used);
        let granted = if free < self.amount { 0 } else { free.min(rule.share().max(self.amount)) };
        if granted + self.owed > 0 {
            let sql = "INSERT INTO policy_rates (name, start, used, ends) VALUES (?1, ?2, ?3, ?4)
                ON CONFLICT (name, start) DO UPDATE SET used = policy_rates.used + ?3";
            let more = number(granted + self.owed).into();
            work.execute(sql, &[name(), number(start).into(), more, number(rule.leaves(start)).into()])?;
        }
        // How long until enough has left the window.
        let mut left = used;
        let mut free_at = rule.leaves(start);
        for (start, part) in parts {
            left = left.saturating_sub(part);
            if left.saturating_add(self.amount) <= rule.limit {
                free_at = rule.leaves(start);
                break;
            }
        }
        Ok((granted, free_at))
    }
}

/// The name under which tokens of a key are counted.
pub(crate) fn tokens_of(key: &KeyId) -> String {
    format!("tokens:{key}")
}

impl Gateway {
    /// Counts a request of a key, and looks whether tokens are left to it. Gives what is beyond limits that only report.
    ///
    /// # Errors
    /// When the key has had all of its minute; says when the next one begins.
    pub async fn count(&self, key: &KeyId) -> Result<Option<&'static str>, Refused> {
        // Without what is known of keys nobody came as far as here.
        let Ok(directory) = self.directory().await else { return Ok(None) };
        let Some(limits) = directory.keys.get(key).map(|key| key.limits) else { return Ok(None) };
        match self.count_under(key, &limits).await {
            Err(refused) if limits.shadow => {
                self.report(Finder::Key);
                Ok(Some(refused.unit))
            }
            counted => counted.map(|()| None),
        }
    }

    /// Says that a limit that only reports would have refused a request.
    pub fn report(&self, limit: Finder) {
        self.0.metrics.reported(limit);
    }

    async fn count_under(&self, key: &KeyId, limits: &Limits) -> Result<(), Refused> {
        if let Some(limit) = limits.tokens_per_minute {
            let looked = self.look(&tokens_of(key), Rule::minute(limit.into())).await;
            looked.map_err(|refused| Refused { unit: "tokens", ..refused })?;
        }
        if let Some(limit) = limits.requests_per_minute {
            self.take(&format!("key:{key}"), Rule::minute(limit.into())).await?;
        }
        Ok(())
    }

    /// Takes one of a limit that goes by this name, for instance of a route's step; names of others begin with `key:`,
    /// `gateway:` and `tokens:`.
    ///
    /// # Errors
    /// When the limit is reached; says when to come back.
    pub async fn take(&self, name: &str, rule: Rule) -> Result<(), Refused> {
        self.take_of(name, rule, 1).await
    }

    /// Asks whether anything of a limit is left, and takes nothing; what is used is counted with [`Gateway::charge`].
    ///
    /// # Errors
    /// When the limit is reached.
    pub async fn look(&self, name: &str, rule: Rule) -> Result<(), Refused> {
        self.take_of(name, rule, 0).await
    }

    async fn take_of(&self, name: &str, rule: Rule, amount: u64) -> Result<(), Refused> {
        let place = self.rates().place(name, self.now());
        if let Some(taken) = lock(&place.share).take(rule, amount, self.now()) {
            return taken;
        }
        let _asking = place.asking.lock().await;
        let now = self.now();
        let ask = {
            let mut share = lock(&place.share);
            if let Some(taken) = share.take(rule, amount, now) {
                return taken;
            }
            let back = (share.start, std::mem::take(&mut share.left));
            let owed = std::mem::take(&mut share.owed);
            Ask { name: name.to_owned(), rule, now, back, owed, amount: amount.max(1) }
        };
        let owed = ask.owed;
        let asked = self.store().write(move |work| ask.ask(work)).await;
        let mut share = lock(&place.share);
        match asked {
            Ok((granted, free_at)) => {
                share.start = rule.start(now);
                share.left += granted;
                share.ends = rule.leaves(share.start);
                share.rule = Some(rule);
                if granted == 0 {
                    // What is free at the end of this part is not known before.
                    share.none_until = free_at.min(share.start + rule.part()).max(now + 1);
                    return Err(Refused::new(rule, free_at.saturating_sub(now)));
                }
                share.left -= amount;
                Ok(())
            }
            Err(error) => {
                share.owed += owed;
                tracing::warn!(%error, name, "a limit cannot be counted, and lets through");
                Ok(())
            }
        }
    }

    /// Counts what was used of a limit, also beyond it.
    pub(crate) fn charge(&self, name: &str, rule: Rule, amount: u64) -> bool {
        let now = self.now();
        let place = self.rates().place(name, now);
        let mut share = lock(&place.share);
        let own = if share.start == rule.start(now) { share.left.min(amount) } else { 0 };
        share.left -= own;
        share.owed += amount - own;
        share.ends = share.ends.max(rule.leaves(rule.start(now)));
        share.owed >= rule.share()
    }

    /// Tells the store what is owed, so that other processes see it.
    pub(crate) async fn pay(&self, name: String, rule: Rule) {
        let place = self.rates().place(&name, self.now());
        let _asking = place.asking.lock().await;
        let owed = std::mem::take(&mut lock(&place.share).owed);
        if owed == 0 {
            return;
        }
        let ask = Ask { name, rule, now: self.now(), back: (0, 0), owed, amount: u64::MAX };
        if let Err(error) = self.store().write(move |work| ask.ask(work)).await {
            tracing::warn!(%error, "used tokens cannot be counted yet");
            lock(&place.share).owed += owed;
        }
    }
}

#[cfg(test)]
mod tests;

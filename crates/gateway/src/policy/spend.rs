//! What may be spent: the budget of a key, the rules of a gateway, the limit and the credit of an account. Each that a
//! request falls under sets the request's worst case aside, in the transaction that enters it in the ledger; so
//! requests in parallel, of several processes too, never go beyond one. What an answer did cost takes its place when the
//! entry ends.
//!
//! What is counted stands in `gateway_spend` under a name: a key's id, or `rule:`, `limit:` or `credit:` and what it is of.
//! A sliding window has parts as in [`super::rate`].

use super::rate::{Rule, Technique};
use crate::directory::Directory;
use crate::ledger::Opening;
use crate::settings::{Match, SpendRule};
use crate::{Caller, Gateway, unavailable};
use base::NanoUsd;
use protocol::{Error, ErrorKind};
use std::time::Duration;
use store::{Store, Value, Work};

/// Money that is set aside before a request runs.
#[derive(Clone, Debug)]
pub(crate) struct Hold {
    /// Under which name it is counted.
    pub(crate) name: String,
    /// The part of the window that it is counted in.
    pub(crate) start: i64,
    /// The first part that counts now.
    pub(crate) since: i64,
    /// When this part counts no more; none: it always does.
    pub(crate) ends: Option<i64>,
    /// The most.
    pub(crate) limit: i64,
    /// What the client is told where there is no room.
    pub(crate) refusal: Error,
    /// Whose it is, for the error where the cost is not known.
    pub(crate) whose: &'static str,
    /// The id of a rule that only reports, under which a request is never refused.
    pub(crate) shadow: Option<String>,
}

/// What a request is asked by.
struct Asked<'a> {
    caller: &'a Caller,
    provider: &'a str,
    model: &'a str,
}

impl Hold {
    fn of(name: String, rule: Rule, limit: NanoUsd, now: u64, whose: &'static str, message: String) -> Self {
        let number = crate::account::number;
        let start = rule.start(now);
        let after = match rule.technique {
            Technique::Fixed => rule.leaves(start) - now,
            Technique::Sliding => rule.part(),
        };
        let refusal = Error::new(ErrorKind::Limited, message).retry_after(Duration::from_secs(after.max(1)));
        let (since, ends) = (number(rule.since(now)), Some(number(rule.leaves(start))));
        Self { name, start: number(start), since, ends, limit: limit.0, refusal, whose, shadow: None }
    }

    fn for_ever(name: String, limit: NanoUsd, whose: &'static str, refusal: Error) -> Self {
        Self { name, start: 0, since: 0, ends: None, limit: limit.0, refusal, whose, shadow: None }
    }

    /// Sets an amount aside; `false` where there is no room for it.
    pub(crate) fn reserve(&self, work: &Work<'_>, amount: i64) -> Result<bool, store::Error> {
        if self.add(work, amount)? {
            return Ok(true);
        }
        let name = || Value::from(self.name.as_str());
        let sql = "INSERT INTO gateway_spend (key_id, start, spent, ends) VALUES (?1, ?2, 0, ?3)
            ON CONFLICT (key_id, start) DO NOTHING";
        if work.execute(sql, &[name(), self.start.into(), self.ends.into()])? == 0 {
            return Ok(false);
        }
        // Of a window that goes on, nobody asks for what has left it.
        if self.since < self.start {
            let sql = "DELETE FROM gateway_spend WHERE key_id = ?1 AND start < ?2";
            work.execute(sql, &[name(), self.since.into()])?;
        }
        self.add(work, amount)
    }

    /// Sets an amount aside whether there is room for it or not.
    pub(crate) fn reserve_beyond(&self, work: &Work<'_>, amount: i64) -> Result<(), store::Error> {
        Self { limit: i64::MAX, ..self.clone() }.reserve(work, amount).map(|_| ())
    }

    /// Adds to this part of the window where all its parts have room, and this one is there.
    fn add(&self, work: &Work<'_>, amount: i64) -> Result<bool, store::Error> {
        let mut values = vec![self.name.as_str().into(), self.start.into(), amount.into(), self.limit.into()];
        let sql = if self.since == self.start {
            "UPDATE gateway_spend SET spent = spent + ?3 WHERE key_id = ?1 AND start = ?2 AND spent + ?3 <= ?4"
        } else {
            values.push(self.since.into());
            "UPDATE gateway_spend SET spent = spent + ?3 WHERE key_id = ?1 AND start = ?2
                AND (SELECT CAST(coalesce(sum(parts.spent), 0) AS BIGINT) FROM gateway_spend AS parts
                    WHERE parts.key_id = ?1 AND parts.start >= ?5) + ?3 <= ?4"
        };
        Ok(work.execute(sql, &values)? > 0)
    }
}

/// All that hold a request.
pub(crate) fn holds(directory: &Directory, opening: &Opening, now: u64) -> Vec<Hold> {
    let Opening { caller, provider, model, .. } = opening;
    let mut holds = Vec::new();
    let key = caller.key.as_ref().and_then(|key| directory.keys.get(key));
    if let (Some(key), Some(budget)) = (key, key.and_then(|key| key.limits.budget)) {
        let (name, message) = (key.id.0.to_string(), "The budget of this key has no room".to_owned());
        let whose = "This key has a budget";
        holds.push(match budget.period {
            Some(window) => {
                let rule = Rule { limit: 0, window, technique: Technique::Fixed };
                Hold::of(name, rule, budget.amount, now, whose, message)
            }
            None => Hold::for_ever(name, budget.amount, whose, Error::new(ErrorKind::Limited, message)),
        });
    }
    let asked = Asked { caller, provider, model };
    holds.extend(rules(directory, &asked, now));
    if let Some(billing) = directory.billing.get(&*caller.account) {
        holds.extend(billing.holds(&caller.account, now));
    }
    holds
}

/// Those of the gateway's rules that a request falls under.
fn rules(directory: &Directory, asked: &Asked<'_>, now: u64) -> Vec<Hold> {
    let Caller { account, gateway, .. } = asked.caller;
    if directory.spending == 0 {
        return Vec::new();
    }
    let named = directory.gateways.get(&(account.to_string(), gateway.to_string()));
    let limits = named.and_then(|named| named.settings.spend.spend_limits.as_ref());
    let Some(limits) = limits.filter(|limits| limits.enabled) else { return Vec::new() };
    let of_rule = |rule: &SpendRule| {
        let mut name = format!("rule:{account}/{gateway}/{}", rule.id);
        for part in partitions(rule, asked)? {
            name.push('\u{1f}');
            // No store keeps a NUL character.
            name.push_str(&part.replace('\0', "\u{fffd}"));
        }
        let window = Rule { limit: 0, window: rule.window, technique: rule.technique };
        let message =
            format!("The gateway's spend limit of {} in {} seconds is reached", rule.limit, rule.window);
        let hold = Hold::of(name, window, rule.limit, now, "This gateway has a spend limit", message);
        Some(Hold { shadow: rule.shadow.then(|| rule.id.clone()), ..hold })
    };
    limits.rules.iter().filter(|rule| rule.enabled).filter_map(of_rule).collect()
}

/// The values that a rule counts apart; nothing where it is not about the request.
fn partitions(rule: &SpendRule, asked: &Asked<'_>) -> Option<Vec<String>> {
    let mut parts = Vec::new();
    let full = format!("{}/{}", asked.provider, asked.model);
    let key = asked.caller.key.as_ref().map(|key| &*key.0);
    for (wanted, value, other) in [
        (&rule.key, key, None),
        (&rule.model, Some(asked.model), Some(full.as_str())),
        (&rule.provider, Some(asked.provider), None),
    ] {
        match wanted {
            None => {}
            Some(Match::Partition) => parts.push(value.unwrap_or_default().to_owned()),
            Some(Match::Filter { values }) => {
                let is = |wanted: &String| Some(wanted.as_str()) == value || Some(wanted.as_str()) == other;
                values.iter().any(is).then_some(())?;
            }
        }
    }
    for (name, wanted) in &rule.metadata {
        let found = asked.caller.metadata.entries().find(|(entry, _)| entry == name);
        // A text stands without its quotes, as the rules have it.
        let value = found.map(|(_, value)| value.as_str().map_or_else(|| value.to_string(), str::to_owned));
        match wanted {
            Match::Partition => parts.push(value.unwrap_or_default()),
            Match::Filter { values } => values.contains(&value?).then_some(())?,
        }
    }
    Some(parts)
}

impl Gateway {
    /// Whether a request of this caller to this model would find a spend limit of its gateway reached, so that a route
    /// may ask another. Sets nothing aside.
    ///
    /// # Errors
    /// The refusal that the request would get; also when the store fails.
    pub async fn check_spend(&self, caller: &Caller, provider: &str, model: &str) -> Result<(), Error> {
        let directory = self.directory().await?;
        let holds = rules(&directory, &Asked { caller, provider, model }, self.now());
        for hold in holds.into_iter().filter(|hold| hold.shadow.is_none()) {
            if self.spent(&hold.name, hold.since).await? >= hold.limit {
                return Err(hold.refusal);
            }
        }
        Ok(())
    }

    /// What is spent and set aside under a name.
    pub(crate) async fn spent(&self, name: &str, since: i64) -> Result<i64, Error> {
        let read = spent(self.store(), name, since).await;
        read.map_err(|error| unavailable("What was spent cannot be read", &error))
    }
}

/// What is spent and set aside under a name.
pub(crate) async fn spent(store: &Store, name: &str, since: i64) -> Result<i64, store::Error> {
    let values = [name.into(), since.into()];
    let read = store.read(move |work| {
        let sql = "SELECT CAST(coalesce(sum(spent), 0) AS BIGINT) FROM gateway_spend
            WHERE key_id = ?1 AND start >= ?2";
        work.query(sql, &values)?.first().map_or(Ok(0), |row| row.integer(0))
    });
    read.await
}

#[cfg(test)]
mod tests;

//! Money that an account paid in advance, and what it may spend in a day, a week or a month.
//!
//! Credit is off for an account until it was first given some; from then on a request needs room for its worst case in what
//! is left. What was paid is a list of entries, what was spent is counted as for every limit ([`super::spend`]).

use super::rate::{Rule, Technique};
use super::spend::Hold;
use crate::account::number;
use crate::directory::changed;
use crate::{Gateway, unavailable};
use base::NanoUsd;
use protocol::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use std::time::Duration;
use store::Work;

const DAY: u64 = 86_400;

/// The most that an account can have paid in advance, and the most that can be taken from it: a billion dollars.
pub const CREDIT_MAX: NanoUsd = NanoUsd(1_000_000_000_000_000_000);

/// How long a spending limit is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Period {
    /// From midnight UTC, or 24 hours.
    Daily,
    /// From Monday, or seven days.
    Weekly,
    /// From the first, or 30 days.
    Monthly,
}

/// What an account may spend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpendingLimit {
    /// The most.
    pub amount: NanoUsd,
    /// In which time.
    pub duration: Period,
    /// From its beginning, or at any moment back.
    pub strategy: Technique,
}

/// What is known of an account's money.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Billing {
    /// All that it ever paid in advance; none: it never did.
    pub(crate) credit: Option<NanoUsd>,
    pub(crate) limit: Option<SpendingLimit>,
}

impl Billing {
    pub(crate) fn holds(&self, account: &str, now: u64) -> Vec<Hold> {
        let mut holds = Vec::new();
        if let Some(credit) = self.credit {
            let refusal = Error::new(ErrorKind::Unpaid, "The credit of this account is used up");
            let whose = "This account pays in advance";
            let number = number(0);
            let name = credit_name(account);
            holds.push(Hold {
                name,
                start: number,
                since: number,
                ends: None,
                limit: credit.0,
                refusal,
                whose,
                shadow: None,
            });
        }
        if let Some(limit) = self.limit {
            holds.push(limit.hold(account, now));
        }
        holds
    }
}

fn credit_name(account: &str) -> String {
    format!("credit:{account}")
}

impl SpendingLimit {
    fn hold(&self, account: &str, now: u64) -> Hold {
        let window = match self.duration {
            Period::Daily => DAY,
            Period::Weekly => 7 * DAY,
            Period::Monthly => 30 * DAY,
        };
        let rule = Rule { limit: 0, window, technique: Technique::Sliding };
        let (start, since, ends, after) = match self.strategy {
            Technique::Sliding => {
                let start = rule.start(now);
                (start, rule.since(now), rule.leaves(start), rule.part())
            }
            Technique::Fixed => {
                let (start, end) = self.duration.around(now);
                (start, start, end, end - now)
            }
        };
        let message = format!("The account's spending limit of {} is reached", self.amount);
        let refusal = Error::new(ErrorKind::Limited, message).retry_after(Duration::from_secs(after.max(1)));
        Hold {
            name: format!("limit:{account}"),
            start: number(start),
            since: number(since),
            ends: Some(number(ends)),
            limit: self.amount.0,
            refusal,
            whose: "This account has a spending limit",
            shadow: None,
        }
    }
}

impl Period {
    /// Its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Daily => "daily",
            Self::Weekly => "weekly",
            Self::Monthly => "monthly",
        }
    }

    /// When the one around a moment begins and ends, in UTC.
    #[must_use]
    pub fn around(self, now: u64) -> (u64, u64) {
        let day = now / DAY;
        let (first, last) = match self {
            Self::Daily => (day, day + 1),
            // 1970 began on a Thursday.
            Self::Weekly => {
                let monday = day - (day + 3) % 7;
                (monday, monday + 7)
            }
            Self::Monthly => {
                let of_month = day_of_month(day);
                let first = day - (of_month - 1);
                // Some day of the next month.
                let next = first + 31;
                (first, next - (day_of_month(next) - 1))
            }
        };
        (first * DAY, last * DAY)
    }
}

/// The day of the month, from 1, of a day counted from 1970 (Hinnant, "chrono-Compatible Low-Level Date Algorithms").
const fn day_of_month(day: u64) -> u64 {
    let day = day + 719_468;
    let of_era = day % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    of_year - (153 * ((5 * of_year + 2) / 153) + 2) / 5 + 1
}

/// What of an account's money is read for [`crate::directory`].
pub(crate) fn read(work: &Work<'_>, billing: &mut HashMap<String, Billing>) -> Result<(), store::Error> {
    let mut each =
        |account: &str, set: &dyn Fn(&mut Billing)| set(billing.entry(account.to_owned()).or_default());
    let sql = "SELECT account, CAST(sum(amount) AS BIGINT) FROM policy_credits GROUP BY account";
    for row in work.query(sql, &[])? {
        let credit = Some(NanoUsd(row.integer(1)?));
        each(row.text(0)?, &|billing| billing.credit = credit);
    }
    let sql = "SELECT account, amount, duration, technique FROM policy_spending_limits";
    for row in work.query(sql, &[])? {
        let amount = NanoUsd(row.integer(1)?);
        let duration = match row.text(2)? {
            "daily" => Period::Daily,
            "weekly" => Period::Weekly,
            _ => Period::Monthly,
        };
        let strategy = if row.text(3)? == "sliding" { Technique::Sliding } else { Technique::Fixed };
        let limit = Some(SpendingLimit { amount, duration, strategy });
        each(row.text(0)?, &|billing| billing.limit = limit);
    }
    Ok(())
}

impl Gateway {
    /// Adds to the credit of an account, or takes from it where the amount is below zero; from the first time on the account
    /// pays in advance. Gives its balance. A server that runs sees it within half a second.
    ///
    /// # Errors
    /// When the account is not there, all that it paid would go beyond [`CREDIT_MAX`], or the store fails.
    pub async fn credit(&self, account: &str, amount: NanoUsd, note: &str) -> Result<NanoUsd, Error> {
        self.check_account(account).await.map_err(|error| error.at("account"))?;
        let of = [account.into()];
        let values = [
            uuid::Uuid::now_v7().simple().to_string().into(),
            account.into(),
            amount.0.into(),
            number(self.now()).into(),
            note.replace('\0', "").into(),
        ];
        let written = self.write("The credit could not be changed", move |work| {
            let sql =
                "SELECT CAST(coalesce(sum(amount), 0) AS BIGINT) FROM policy_credits WHERE account = ?1";
            let paid = work.query(sql, &of)?.first().map_or(Ok(0), |row| row.integer(0))?;
            // A sum that overflows could not be read, and with it nothing of any account.
            if paid.saturating_add(amount.0).unsigned_abs() > CREDIT_MAX.0.unsigned_abs() {
                return Ok(false);
            }
            let sql =
                "INSERT INTO policy_credits (id, account, amount, created, note) VALUES (?1, ?2, ?3, ?4, ?5)";
            work.execute(sql, &values)?;
            changed(work).map(|()| true)
        });
        if !written.await? {
            let message = format!("Invalid value for 'amount': an account's credit is at most {CREDIT_MAX}");
            return Err(Error::invalid("amount", message));
        }
        Ok(self.balance(account).await?.unwrap_or_default())
    }

    /// What is left of an account's credit, without what running requests have set aside; none where it never had any.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn balance(&self, account: &str) -> Result<Option<NanoUsd>, Error> {
        let directory = self.directory().await?;
        let Some(credit) = directory.billing.get(account).and_then(|billing| billing.credit) else {
            return Ok(None);
        };
        let spent = self.spent(&credit_name(account), 0).await?;
        Ok(Some(NanoUsd(credit.0.saturating_sub(spent))))
    }

    /// What an account may spend.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn spending_limit(&self, account: &str) -> Result<Option<SpendingLimit>, Error> {
        let directory = self.directory().await?;
        Ok(directory.billing.get(account).and_then(|billing| billing.limit))
    }

    /// Sets what an account may spend, or takes the limit away. What was spent before it was first set does not count.
    ///
    /// # Errors
    /// When the account is not there, or the store fails.
    pub async fn set_spending_limit(&self, account: &str, limit: Option<SpendingLimit>) -> Result<(), Error> {
        self.check_account(account).await?;
        let account = account.to_owned();
        let written = self.write("The limit could not be changed", move |work| {
            work.execute(
                "DELETE FROM policy_spending_limits WHERE account = ?1",
                &[account.as_str().into()],
            )?;
            if let Some(limit) = limit {
                let technique = match limit.strategy {
                    Technique::Fixed => "fixed",
                    Technique::Sliding => "sliding",
                };
                let sql = "INSERT INTO policy_spending_limits (account, amount, duration, technique)
                    VALUES (?1, ?2, ?3, ?4)";
                let duration = limit.duration.name();
                let values =
                    [account.as_str().into(), limit.amount.0.into(), duration.into(), technique.into()];
                work.execute(sql, &values)?;
            }
            changed(work)
        });
        written.await
    }
}

/// A payment in advance.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payment {
    /// Its id.
    pub id: String,
    /// How much.
    pub amount: NanoUsd,
    /// Seconds since 1970.
    pub created: u64,
    /// What was written beside it.
    pub note: String,
}

impl Gateway {
    /// What an account paid in advance, the oldest first.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn payments(&self, account: &str) -> Result<Vec<Payment>, Error> {
        let values = [account.into()];
        let read = self.store().read(move |work| {
            let sql = "SELECT id, amount, created, note FROM policy_credits WHERE account = ?1 ORDER BY created, id";
            let rows = work.query(sql, &values)?;
            let payment = |row: &store::Row| {
                Ok(Payment {
                    id: row.text(0)?.to_owned(),
                    amount: NanoUsd(row.integer(1)?),
                    created: row.integer(2)?.unsigned_abs(),
                    note: row.text(3)?.to_owned(),
                })
            };
            rows.iter().map(payment).collect()
        });
        read.await.map_err(|error| unavailable("Payments cannot be read", &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_weeks_and_months_begin_where_the_calendar_says() {
        // 2024-02-29 12:00 UTC, a Thursday.
        let now = 1_709_208_000;
        assert_eq!(Period::Daily.around(now), (1_709_164_800, 1_709_251_200));
        assert_eq!(Period::Weekly.around(now), (1_708_905_600, 1_709_510_400));
        assert_eq!(Period::Monthly.around(now), (1_706_745_600, 1_709_251_200));
        // 2026-12-31.
        assert_eq!(Period::Monthly.around(1_798_718_400), (1_796_083_200, 1_798_761_600));
    }
}

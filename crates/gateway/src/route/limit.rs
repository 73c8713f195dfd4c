//! Whether a rate of a route lets a request pass: counted in the store, so that several servers count together.

use super::facts::{Fact, Facts, shown};
use super::graph::{Limit, Rate};
use crate::account::number;
use crate::key::hash;
use crate::{Gateway, unavailable};
use base::NanoUsd;
use protocol::Error;
use std::time::Duration;
use store::{Value, Work};

/// What a rate said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Passed {
    /// Whether the request may pass.
    pub passes: bool,
    /// Why, for people.
    pub why: String,
    /// Until the window ends.
    pub after: Duration,
}

/// Where a window stands: its start, that of the one before, and how much of that one counts, in thousandths.
fn window(now: i64, length: i64, sliding: bool) -> (i64, i64, i64) {
    let start = now - now.rem_euclid(length);
    let weight = if sliding { 1000 - (now - start) * 1000 / length } else { 0 };
    (start, start - length, weight)
}

/// How many requests passed in the window at `start`.
fn used(work: &Work<'_>, place: &[Value; 3], start: i64) -> Result<i64, store::Error> {
    let [route, element, value] = place.clone();
    let sql = "SELECT used FROM gateway_route_counts WHERE route = ?1 AND element = ?2 AND value = ?3 AND start = ?4";
    let rows = work.query(sql, &[route, element, value, start.into()])?;
    rows.first().map_or(Ok(0), |row| row.integer(0))
}

/// Takes a place in a window, unless the limit leaves none; gives how many had passed.
fn take(
    work: &Work<'_>,
    place: &[Value; 3],
    windows: (i64, i64, i64),
    limit: i64,
) -> Result<(bool, i64), store::Error> {
    let (start, before, weight) = windows;
    let earlier = if weight > 0 { used(work, place, before)? } else { 0 };
    // Rounded up: a request that may not have left the window yet counts.
    let earlier = (earlier * weight + 999) / 1000;
    let now = used(work, place, start)?;
    if earlier + now >= limit {
        return Ok((false, earlier + now));
    }
    let [route, element, value] = place.clone();
    if now == 0 {
        let sql = "DELETE FROM gateway_route_counts WHERE route = ?1 AND element = ?2 AND start < ?3";
        work.execute(sql, &[route.clone(), element.clone(), before.into()])?;
    }
    let sql =
        "INSERT INTO gateway_route_counts (route, element, value, start, used) VALUES (?1, ?2, ?3, ?4, 1)
        ON CONFLICT (route, element, value, start) DO UPDATE SET used = gateway_route_counts.used + 1";
    work.execute(sql, &[route, element, value, start.into()])?;
    Ok((true, earlier + now))
}

impl Gateway {
    /// Whether a rate lets a request pass; with `counts` it takes a place, without it nothing changes.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn pass_rate(
        &self,
        route: &str,
        element: &str,
        rate: &Rate,
        facts: &Facts,
        counts: bool,
    ) -> Result<Passed, Error> {
        let value = facts.get(&rate.key).map(std::borrow::Cow::into_owned);
        let whose = format!("{} is {}", rate.key, shown(value.as_ref()));
        let now = number(self.now());
        let length = number(rate.window.as_secs()).max(1);
        let windows = window(now, length, rate.sliding);
        let after = Duration::from_secs((windows.0 + length - now).unsigned_abs());
        let failed = |error: store::Error| unavailable("A rate of the route cannot be counted", &error);
        match rate.limit {
            Limit::Count(limit) => {
                let value = value.map_or_else(String::new, |value| value.to_string());
                // Callers say what it is, and how long; only whether it is the same counts.
                let place: [Value; 3] = [route.into(), element.into(), hash(value.as_bytes()).into()];
                let limit = number(limit);
                let (passes, used) = if counts {
                    self.store()
                        .write(move |work| take(work, &place, windows, limit))
                        .await
                        .map_err(failed)?
                } else {
                    let read = move |work: &Work<'_>| {
                        let earlier = if windows.2 > 0 { used(work, &place, windows.1)? } else { 0 };
                        Ok((earlier * windows.2 + 999) / 1000 + used(work, &place, windows.0)?)
                    };
                    let used = self.store().read(read).await.map_err(failed)?;
                    (used < limit, used)
                };
                Ok(Passed {
                    passes,
                    after,
                    why: format!("{used} of {limit} requests passed in {length} s where {whose}"),
                })
            }
            Limit::Cost(_) if facts.custom_cost => Ok(Passed {
                passes: false,
                after,
                why: "the request says itself what it costs, which a limit of money does not take".to_owned(),
            }),
            Limit::Cost(limit) => {
                let from = if rate.sliding { now - length } else { windows.0 };
                let spent = self.spent_by(&rate.key, value, facts, from).await.map_err(failed)?;
                let why = format!(
                    "${} of ${} was spent in {length} s where {whose}",
                    dollars(spent),
                    dollars(limit)
                );
                Ok(Passed { passes: spent < limit, why, after })
            }
        }
    }

    /// What requests of a gateway cost since a moment; what is not known counts with its worst case, and what callers
    /// said does not.
    async fn spent_by(
        &self,
        key: &Fact,
        value: Option<serde_json::Value>,
        facts: &Facts,
        from: i64,
    ) -> Result<NanoUsd, store::Error> {
        let (clause, more): (&str, Vec<Value>) = match key {
            Fact::Metadata(name) => {
                let Some(value) = value else { return Ok(NanoUsd(0)) };
                let clause =
                    " AND EXISTS (SELECT 1 FROM gateway_ledger_metadata m WHERE m.request = l.request
                    AND m.name = ?4 AND m.value = ?5)";
                (clause, vec![name.as_str().into(), value.to_string().into()])
            }
            Fact::Key => (" AND l.key_id IS NOT DISTINCT FROM ?4", vec![facts.key.as_deref().into()]),
            Fact::Account | Fact::Gateway | Fact::Header(_) | Fact::Body(_) => ("", Vec::new()),
        };
        let sql = format!(
            "SELECT CAST(coalesce(sum(coalesce(l.cost, l.reserved, 0)), 0) AS BIGINT) FROM gateway_ledger l
             WHERE l.account = ?1 AND l.gateway = ?2 AND l.created >= ?3 AND l.custom = 0{clause}"
        );
        let mut values: Vec<Value> =
            vec![facts.account.as_str().into(), facts.gateway.as_str().into(), from.into()];
        values.extend(more);
        let read =
            move |work: &Work<'_>| work.query(&sql, &values)?.first().map_or(Ok(0), |row| row.integer(0));
        self.store().read(read).await.map(NanoUsd)
    }
}

fn dollars(amount: NanoUsd) -> f64 {
    amount.0 as f64 / 1e9
}

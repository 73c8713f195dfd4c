//! What accounts have paid in advance, have spent and may spend, as Cloudflare's clients ask for it. Amounts are in cents
//! there, and stand beside in whole billionths of a dollar, which no float rounds.
//!
//! Not here: invoices (`invoices.rs`), and paying. What was paid is written down by who has the server's own key.

use super::App;
use super::gateways::{Named1, enveloped, fields, find, gateway, path};
use super::refusal::Answered;
use super::workers_ai::{Parameters, parameters};
use axum::extract::{Request, State};
use base::NanoUsd;
use gateway::Caller;
use gateway::ledger::{Filter, Group, Question};
use gateway::policy::Technique;
use gateway::policy::credit::{Period, SpendingLimit};
use protocol::{Error, ErrorKind};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use std::sync::Arc;

/// Billionths of a dollar in a cent.
const CENT: i64 = 10_000_000;

pub(super) fn cents(amount: NanoUsd) -> f64 {
    amount.0 as f64 / CENT as f64
}

/// `GET …/billing/credit-balance`.
pub(super) async fn balance(State(app): State<Arc<App>>, account: Named1) -> Answered {
    let (gateway, account) = (gateway(&app)?, path(account)?);
    gateway.check_account(&account).await?;
    let balance = gateway.balance(&account).await?;
    let (shown, payments) = (balance.unwrap_or_default(), gateway.payments(&account).await?);
    let payments: Vec<Value> = payments
        .iter()
        .map(|paid| {
            json!({"id": paid.id, "amount": cents(paid.amount), "amount_nano_usd": paid.amount.0,
                "created_at": paid.created, "note": paid.note})
        })
        .collect();
    let result = json!({
        "balance": cents(shown), "balance_nano_usd": shown.0, "enabled": balance.is_some(),
        "has_default_payment_method": false, "payment_method": null, "topup_config": {}, "topups": payments,
    });
    Ok(enveloped(&result, None))
}

/// `GET …/billing/usage-history?value_grouping_window=day|hour&start_time=…&end_time=…`; times in milliseconds.
pub(super) async fn history(State(app): State<Arc<App>>, account: Named1, query: Parameters) -> Answered {
    let (gateway, account, query) = (gateway(&app)?, path(account)?, parameters(query)?);
    gateway.check_account(&account).await?;
    let (group, seconds) = match find(&query, "value_grouping_window") {
        Some("day") => (Group::Day, 86_400),
        Some("hour") => (Group::Hour, 3600),
        _ => {
            let name = "value_grouping_window";
            return Err(
                Error::invalid(name, format!("Invalid value for '{name}': expected day or hour")).into()
            );
        }
    };
    let time = |name: &str| match find(&query, name).map(str::parse::<f64>) {
        None => Ok(None),
        Some(Ok(ms)) if ms >= 0.0 => Ok(Some((ms / 1000.0) as u64)),
        Some(_) => {
            Err(Error::invalid(name, format!("Invalid value for '{name}': expected milliseconds since 1970")))
        }
    };
    let filter = Filter {
        account: Some(account),
        from: time("start_time")?,
        to: time("end_time")?,
        ..Filter::default()
    };
    let lines = gateway.usage(Question { filter, groups: vec![group] }).await?;
    let history: Vec<Value> = lines
        .iter()
        .filter_map(|line| {
            let start = line.groups[0].as_u64()?;
            Some(json!({
                "id": start.to_string(), "start_time": start * 1000, "end_time": (start + seconds) * 1000,
                "aggregated_value": cents(line.cost), "aggregated_value_nano_usd": line.cost.0,
            }))
        })
        .collect();
    Ok(enveloped(&json!({"history": history}), None))
}

/// `GET …/billing/spending-limit`.
pub(super) async fn limit(State(app): State<Arc<App>>, account: Named1) -> Answered {
    let (gateway, account) = (gateway(&app)?, path(account)?);
    gateway.check_account(&account).await?;
    let limit = gateway.spending_limit(&account).await?;
    let config = limit.map_or_else(Map::new, |limit| {
        let mut config = Map::new();
        config.insert("amount".into(), json!(cents(limit.amount)));
        config.insert("duration".into(), json!(limit.duration));
        config.insert("strategy".into(), json!(limit.strategy));
        config
    });
    Ok(enveloped(&json!({"enabled": limit.is_some(), "config": config}), None))
}

/// `POST …/billing/spending-limit` with `amount` in cents, `duration` and `strategy`.
pub(super) async fn set_limit(State(app): State<Arc<App>>, account: Named1, request: Request) -> Answered {
    let account = path(account)?;
    let fields = fields(&app, request).await?;
    let limit = SpendingLimit {
        amount: amount(&fields)?,
        duration: one_of::<Period>(&fields, "duration", "daily, weekly or monthly")?,
        strategy: one_of::<Technique>(&fields, "strategy", "fixed or sliding")?,
    };
    gateway(&app)?.set_spending_limit(&account, Some(limit)).await?;
    self::limit(State(app), Ok(axum::extract::Path(account))).await
}

/// `DELETE …/billing/spending-limit`.
pub(super) async fn remove_limit(State(app): State<Arc<App>>, account: Named1) -> Answered {
    let account = path(account)?;
    gateway(&app)?.set_spending_limit(&account, None).await?;
    self::limit(State(app), Ok(axum::extract::Path(account))).await
}

/// `POST …/billing/topup` with `amount` in cents, and a `note`.
pub(super) async fn topup(State(app): State<Arc<App>>, account: Named1, request: Request) -> Answered {
    let account = path(account)?;
    if request.extensions().get::<Caller>().is_none_or(|caller| caller.key.is_some()) {
        let message =
            "Credit is added by who has the server's own key (--api-key), or with 'hearth accounts credit'";
        return Err(Error::new(ErrorKind::Forbidden, message).into());
    }
    let fields = fields(&app, request).await?;
    if fields.get("payment_method_id").is_some_and(|method| !method.is_null()) {
        let message = "'payment_method_id' names a card, and no card can be charged here; what was paid is written down";
        return Err(Error::new(ErrorKind::Unsupported, message).at("payment_method_id").into());
    }
    let note = fields.get("note").and_then(Value::as_str).unwrap_or_default();
    let gateway = gateway(&app)?;
    let balance = gateway.credit(&account, amount(&fields)?, note).await?;
    let id = gateway.payments(&account).await?.pop().map(|paid| paid.id);
    let result = json!({
        "payment_intent_id": id, "onboarding": true, "client_secret": null,
        "balance": cents(balance), "balance_nano_usd": balance.0,
    });
    Ok(enveloped(&result, None))
}

/// `POST …/billing/topup/status` with a `payment_intent_id`. What was written down is there at once.
pub(super) async fn topup_status(State(app): State<Arc<App>>, account: Named1, request: Request) -> Answered {
    let account = path(account)?;
    let fields = fields(&app, request).await?;
    let gateway = gateway(&app)?;
    gateway.check_account(&account).await?;
    let Some(id) = fields.get("payment_intent_id").and_then(Value::as_str) else {
        return Err(Error::invalid("payment_intent_id", "'payment_intent_id' is missing").into());
    };
    if !gateway.payments(&account).await?.iter().any(|paid| paid.id == id) {
        let shown: String = id.chars().take(64).collect();
        return Err(Error::new(ErrorKind::NotFound, format!("There is no payment '{shown}'")).into());
    }
    Ok(enveloped(&json!({"payment_intent_id": id, "status": "completed"}), None))
}

/// `GET` and `DELETE …/billing/topup/config`: nothing tops up by itself here.
pub(super) async fn no_auto_topup(State(app): State<Arc<App>>, account: Named1) -> Answered {
    gateway(&app)?.check_account(&path(account)?).await?;
    Ok(enveloped(&json!({}), None))
}

/// `POST …/billing/topup/config`, which asks for something that would need a card.
pub(super) async fn refuse_auto_topup(account: Named1) -> Answered {
    path(account)?;
    let message = "Credit cannot top up by itself: no card can be charged here. Who has the server's own key adds it with billing/topup";
    Err(Error::new(ErrorKind::Unsupported, message).at("amount").into())
}

fn amount(fields: &Map<String, Value>) -> Result<NanoUsd, Error> {
    let amount =
        fields.get("amount").and_then(Value::as_f64).and_then(|cents| NanoUsd::from_dollars(cents / 100.0));
    amount.filter(|amount| amount.0 > 0).ok_or_else(|| {
        Error::invalid("amount", "Invalid value for 'amount': expected an amount in cents, more than 0")
    })
}

fn one_of<T: DeserializeOwned>(fields: &Map<String, Value>, name: &str, expected: &str) -> Result<T, Error> {
    let value = fields.get(name).cloned().unwrap_or_default();
    serde_json::from_value(value)
        .map_err(|_| Error::invalid(name, format!("Invalid value for '{name}': expected {expected}")))
}

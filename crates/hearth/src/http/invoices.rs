//! What an account spent, month by month and model by model, in the form of Cloudflare's invoices: those of the months that
//! have ended, and the draft of this one. They are sums of the ledger, and nothing is charged by them. Amounts are in
//! cents, with whole billionths of a dollar beside; times are seconds since 1970, months those of UTC.
//!
//! An account that pays in advance has paid them from its credit; of others they stay open.

use super::App;
use super::billing::cents;
use super::gateways::{Named1, enveloped, find, gateway, path};
use super::refusal::Answered;
use super::workers_ai::{Parameters, parameters};
use axum::extract::State;
use base::NanoUsd;
use gateway::Gateway;
use gateway::ledger::{Filter, Group, Line, Question};
use gateway::policy::credit::Period;
use protocol::Error;
use protocol::workers_ai::catalog::timestamp;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What was used of each provider's model.
type Models = BTreeMap<(String, String), Line>;

/// The months in which something was used, by their beginning.
async fn months(gateway: &Gateway, filter: Filter) -> Result<BTreeMap<u64, Models>, Error> {
    let groups = vec![Group::Day, Group::Provider, Group::Model];
    Ok(by_month(gateway.usage(Question { filter, groups }).await?))
}

fn by_month(days: Vec<Line>) -> BTreeMap<u64, Models> {
    let mut months: BTreeMap<u64, Models> = BTreeMap::new();
    for line in days {
        let Some(day) = line.groups[0].as_u64() else { continue };
        let name = |place: usize| line.groups[place].as_str().unwrap_or_default().to_owned();
        let model = months.entry(Period::Monthly.around(day).0).or_default().entry((name(1), name(2)));
        let sum = model.or_default();
        sum.requests += line.requests;
        sum.unpriced += line.unpriced;
        sum.input += line.input;
        sum.output += line.output;
        sum.cost = NanoUsd(sum.cost.0.saturating_add(line.cost.0));
    }
    months
}

fn total(models: &Models) -> NanoUsd {
    NanoUsd(models.values().fold(0, |sum, line| sum.saturating_add(line.cost.0)))
}

fn lines(models: &Models, (start, end): (u64, u64)) -> Vec<Value> {
    let line = |((provider, model), line): (&(String, String), &Line)| {
        json!({
            "amount": cents(line.cost), "amount_nano_usd": line.cost.0, "currency": "usd",
            "description": format!("{provider}/{model}"), "period": {"start": start, "end": end},
            "pricing": {"unit_amount_decimal": null}, "quantity": line.requests, "pretax_credit_amounts": [],
            "tokens_in": line.input, "tokens_out": line.output, "unpriced": line.unpriced,
        })
    };
    models.iter().map(line).collect()
}

/// What all invoices have.
fn invoice(models: &Models, start: u64, paid: bool) -> Value {
    let (amount, (_, end)) = (total(models), Period::Monthly.around(start));
    let (of_paid, of_open) = if paid { (amount, NanoUsd(0)) } else { (NanoUsd(0), amount) };
    // As 2026-11.
    let month = timestamp(start).chars().take(7).collect::<String>();
    json!({
        "id": month, "amount_due": cents(amount), "amount_due_nano_usd": amount.0,
        "amount_paid": cents(of_paid), "amount_remaining": cents(of_open), "currency": "usd",
        "invoice_lines": lines(models, (start, end)), "period_start": start, "period_end": end,
    })
}

/// `GET …/billing/invoice-history?type=auto|manual|all`: months that have ended, the newest first (`auto`, and where nothing
/// is said); what was paid in advance (`manual`).
pub(super) async fn history(State(app): State<Arc<App>>, account: Named1, query: Parameters) -> Answered {
    let (gateway, account, query) = (gateway(&app)?, path(account)?, parameters(query)?);
    gateway.check_account(&account).await?;
    let (of_months, of_payments) = match find(&query, "type") {
        None | Some("auto") => (true, false),
        Some("manual") => (false, true),
        Some("all") => (true, true),
        Some(_) => {
            return Err(
                Error::invalid("type", "Invalid value for 'type': expected auto, manual or all").into()
            );
        }
    };
    let mut invoices = Vec::new();
    if of_months {
        let (this_month, _) = Period::Monthly.around(app.clock.unix_seconds());
        let paid = gateway.balance(&account).await?.is_some();
        let filter = Filter { account: Some(account.clone()), to: Some(this_month), ..Filter::default() };
        for (start, models) in months(gateway, filter).await? {
            let mut month = invoice(&models, start, paid);
            month["created"] = month["period_end"].clone();
            month["status"] = json!(if paid { "paid" } else { "open" });
            month["invoice_origin"] = json!("auto");
            month["description"] = json!(format!("Usage in {}", month["id"].as_str().unwrap_or_default()));
            invoices.push(month);
        }
    }
    if of_payments {
        invoices.extend(gateway.payments(&account).await?.into_iter().map(|payment| {
            json!({
                "id": payment.id, "amount_due": cents(payment.amount), "amount_due_nano_usd": payment.amount.0,
                "amount_paid": cents(payment.amount), "amount_remaining": 0.0, "currency": "usd",
                "created": payment.created, "status": "paid", "invoice_origin": "manual",
                "description": payment.note,
            })
        }));
    }
    invoices.sort_by_key(|invoice| std::cmp::Reverse(invoice["created"].as_u64()));
    let count = invoices.len();
    let pagination = json!({"has_more": false, "page": 1, "per_page": count, "total_count": count});
    Ok(enveloped(&json!({"invoices": invoices, "pagination": pagination}), None))
}

/// `GET …/billing/invoice-preview`: this month until now.
pub(super) async fn preview(State(app): State<Arc<App>>, account: Named1) -> Answered {
    let (gateway, account) = (gateway(&app)?, path(account)?);
    gateway.check_account(&account).await?;
    let (start, _) = Period::Monthly.around(app.clock.unix_seconds());
    let paid = gateway.balance(&account).await?.is_some();
    let filter = Filter { account: Some(account), from: Some(start), ..Filter::default() };
    let models = months(gateway, filter).await?.remove(&start).unwrap_or_default();
    let mut preview = invoice(&models, start, paid);
    preview["status"] = json!("draft");
    Ok(enveloped(&preview, None))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_summed_by_month_and_model_and_paid_where_the_account_pays_in_advance() {
        // 2026-10-31, 2026-11-01 and 2026-11-30.
        let day = |day: u64, model: &str, cost| Line {
            groups: vec![json!(day * 86_400), json!("openai"), json!(model)],
            requests: 1,
            cost: NanoUsd(cost),
            ..Line::default()
        };
        let days = vec![
            day(20_757, "a", 5_000_000),
            day(20_758, "a", 10_000_000),
            day(20_787, "a", 20_000_000),
            day(20_787, "b", 3),
        ];
        let months = by_month(days);
        assert_eq!(months.keys().copied().collect::<Vec<_>>(), [20_727 * 86_400, 20_758 * 86_400]);
        let (start, models) = months.last_key_value().unwrap();
        let open = invoice(models, *start, false);
        assert_eq!((&open["id"], &open["period_end"]), (&json!("2026-11"), &json!(20_788 * 86_400)));
        assert_eq!(open["amount_due_nano_usd"], json!(30_000_003));
        assert_eq!((&open["amount_paid"], &open["amount_remaining"]), (&json!(0.0), &open["amount_due"]));
        let lines = open["invoice_lines"].as_array().unwrap();
        assert_eq!((lines.len(), &lines[0]["description"]), (2, &json!("openai/a")));
        assert_eq!((&lines[0]["amount"], &lines[0]["quantity"]), (&json!(3.0), &json!(2)));
        assert_eq!(invoice(models, *start, true)["amount_remaining"], json!(0.0));
    }
}

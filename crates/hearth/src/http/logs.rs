//! The control plane of logs, as Cloudflare's clients call it, and what a Worker's AI binding asks of one log.

use super::App;
use super::body::read;
use super::gateways::{Named2, enveloped, fields, find, gateway, path};
use super::refusal::{Answered, json};
use super::workers_ai::{Parameters, parameters};
use crate::moment;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use gateway::Caller;
use gateway::log::{Direction, Query, Record};
use protocol::{Error, ErrorKind};
use serde_json::{Map, Value, json as value};
use std::sync::Arc;

/// Logs of a page where the caller sets none, and the most.
const PER_PAGE: (u64, u64) = (20, 500);

type Named3 = Result<Path<(String, String, String)>, PathRejection>;

/// A moment as AI Gateway writes it, in milliseconds since 1970.
pub(crate) fn time_text(millis: u64) -> String {
    moment::text(millis)
}

fn one(record: &Record) -> Response {
    enveloped(&record.object(time_text), None)
}

fn wrong(name: &str, expected: &str) -> Error {
    Error::invalid(name, format!("Invalid value for '{name}': expected {expected}"))
}

/// Parameters that are filters of their own: the filter's key and operator.
const SHORT: &[(&str, &str, &str)] = &[
    ("cached", "cached", "eq"),
    ("end_date", "created_at", "lt"),
    ("max_cost", "cost", "most"),
    ("max_duration", "duration", "most"),
    ("max_tokens_in", "tokens_in", "most"),
    ("max_tokens_out", "tokens_out", "most"),
    ("max_total_tokens", "tokens", "most"),
    ("min_cost", "cost", "least"),
    ("min_duration", "duration", "least"),
    ("min_tokens_in", "tokens_in", "least"),
    ("min_tokens_out", "tokens_out", "least"),
    ("min_total_tokens", "tokens", "least"),
    ("model", "model", "eq"),
    ("model_type", "model_type", "eq"),
    ("provider", "provider", "eq"),
    ("request_content_type", "request_content_type", "eq"),
    ("response_content_type", "response_content_type", "eq"),
    ("start_date", "created_at", "least"),
    ("success", "success", "eq"),
];

/// Parameters that say how to show what is found.
const SHOWN: &[&str] = &[
    "direction",
    "limit",
    "meta_info",
    "order",
    "order_by",
    "order_by_direction",
    "page",
    "per_page",
    "search",
];

/// One filter as it comes in: `filters.key=…&filters.operator=…&filters.value=…&filters.value=…`, again for the next.
#[derive(Default)]
struct Part {
    key: Option<String>,
    operator: Option<String>,
    values: Vec<String>,
}

/// The filters among parameters. Clients send one after the other (a part that the one before has already begins the
/// next), or all keys, then all operators, then all values, in which case each filter has one value.
fn parts(parameters: &[(String, String)]) -> Result<Vec<Part>, Error> {
    let fields = parameters.iter().filter_map(|(name, text)| Some((name.strip_prefix("filters.")?, text)));
    let fields: Vec<(&str, &String)> = fields.collect();
    if let Some((name, _)) = fields.iter().find(|(name, _)| !["key", "operator", "value"].contains(name)) {
        return Err(Error::invalid(*name, format!("There is no parameter 'filters.{name}' here")));
    }
    let all = |wanted: &'static str| {
        fields.iter().filter(move |(name, _)| *name == wanted).map(|(_, text)| (*text).clone())
    };
    let groups = fields.chunk_by(|one, next| one.0 == next.0).count();
    let count = all("key").count();
    if count > 1 && groups == 3 {
        if all("operator").count() != count || all("value").count() != count {
            let expected = "one operator and one value for each key, where keys stand together";
            return Err(wrong("filters.value", expected));
        }
        let zipped = all("key").zip(all("operator")).zip(all("value"));
        return Ok(zipped
            .map(|((key, operator), value)| Part {
                key: Some(key),
                operator: Some(operator),
                values: vec![value],
            })
            .collect());
    }
    let mut parts: Vec<Part> = Vec::new();
    for (field, text) in fields {
        let taken = parts.last().is_none_or(|part| match field {
            "key" => part.key.is_some(),
            "operator" => part.operator.is_some(),
            _ => false,
        });
        if taken {
            parts.push(Part::default());
        }
        let Some(part) = parts.last_mut() else { continue };
        match field {
            "key" => part.key = Some(text.clone()),
            "operator" => part.operator = Some(text.clone()),
            _ => part.values.push(text.clone()),
        }
    }
    Ok(parts)
}

/// The question that parameters ask.
fn query(account: &str, id: &str, parameters: &[(String, String)]) -> Result<Query, Error> {
    let mut query = Query::new(account, id);
    for Part { key, operator, values } in parts(parameters)? {
        let key = key.ok_or_else(|| wrong("filters.key", "a key for each filter"))?;
        let operator = operator.ok_or_else(|| wrong("filters.operator", "an operator for each filter"))?;
        query.filter(&key, &operator, &values, moment::millis)?;
    }
    for (name, text) in parameters {
        if name.starts_with("filters.") || SHOWN.contains(&name.as_str()) {
            continue;
        }
        if name == "feedback" {
            // 0 is what nobody liked.
            let feedback = if text == "0" { "-1" } else { text.as_str() };
            let found = query.filter("feedback", "eq", &[feedback.to_owned()], moment::millis);
            found.map_err(|error| Query::said_of(error, name))?;
            continue;
        }
        let Some((_, key, operator)) = SHORT.iter().find(|short| short.0 == name) else {
            let shown: String = name.chars().take(64).collect();
            return Err(Error::invalid(&shown, format!("There is no parameter '{shown}' here")));
        };
        let value = [text.clone()];
        let found = match *operator {
            "least" => query.least(key, text, moment::millis),
            "most" => query.most(key, text, moment::millis),
            operator => query.filter(key, operator, &value, moment::millis),
        };
        found.map_err(|error| Query::said_of(error, name))?;
    }
    if let Some(text) = find(parameters, "search") {
        query.search(text);
    }
    let direction =
        ["order_by_direction", "direction", "order"].iter().find_map(|name| find(parameters, name));
    let direction = match direction {
        None | Some("desc") => Direction::Descending,
        Some("asc") => Direction::Ascending,
        Some(_) => return Err(wrong("order_by_direction", "asc or desc")),
    };
    query.order(find(parameters, "order_by").unwrap_or("created_at"), direction)?;
    Ok(query)
}

fn number(parameters: &[(String, String)], name: &str, most: u64) -> Result<Option<u64>, Error> {
    let Some(text) = find(parameters, name) else { return Ok(None) };
    let number = text.parse().ok().filter(|number| (1..=most).contains(number));
    number.map(Some).ok_or_else(|| wrong(name, &format!("a number from 1 to {most}")))
}

/// `GET …/gateways/{id}/logs`. A page past the end is empty: clients ask until they see one.
pub(super) async fn list(State(app): State<Arc<App>>, named: Named2, query_in: Parameters) -> Answered {
    let (gateway, (account, id), parameters) = (gateway(&app)?, path(named)?, parameters(query_in)?);
    gateway.gateway(&account, &id).await?;
    let query = query(&account, &id, &parameters)?;
    let page = number(&parameters, "page", u64::from(u32::MAX))?.unwrap_or(1);
    let per_page = number(&parameters, "per_page", PER_PAGE.1)?.unwrap_or(PER_PAGE.0);
    let ranges = find(&parameters, "meta_info") == Some("true");
    let records = gateway.list_logs(&query, (page - 1) * per_page, per_page).await?;
    let totals = gateway.count_logs(&query, ranges).await?;
    let shown: Vec<Value> = records.iter().map(|record| record.object(time_text)).collect();
    let mut info = value!({
        "page": page, "per_page": per_page, "count": shown.len(), "total_count": totals.count,
        "total_pages": totals.count.div_ceil(per_page),
    });
    for (name, least, most) in totals.ranges {
        let shown = |figure: Option<i64>| match name {
            "cost" => value!(figure.map(|cost| base::NanoUsd(cost).dollars())),
            _ => value!(figure),
        };
        info[format!("min_{name}")] = shown(least);
        info[format!("max_{name}")] = shown(most);
    }
    Ok(enveloped(&Value::Array(shown), Some(info)))
}

/// `DELETE …/gateways/{id}/logs`: those that the filters find, in the order and up to the limit that are named.
pub(super) async fn delete(State(app): State<Arc<App>>, named: Named2, query_in: Parameters) -> Answered {
    let (gateway, (account, id), parameters) = (gateway(&app)?, path(named)?, parameters(query_in)?);
    gateway.gateway(&account, &id).await?;
    let query = query(&account, &id, &parameters)?;
    let limit = number(&parameters, "limit", u64::from(u32::MAX))?;
    let deleted = gateway.delete_logs(&query, limit).await?;
    Ok(enveloped(&value!({"deleted": deleted}), None))
}

/// `GET …/gateways/{id}/logs/{log}`.
pub(super) async fn get(State(app): State<Arc<App>>, named: Named3) -> Answered {
    let (account, id, log) = path(named)?;
    Ok(one(&gateway(&app)?.log(&account, &id, &log).await?))
}

/// `PATCH …/gateways/{id}/logs/{log}`.
pub(super) async fn judge(State(app): State<Arc<App>>, named: Named3, request: Request) -> Answered {
    let (account, id, log) = path(named)?;
    let fields = fields(&app, request).await?;
    Ok(one(&gateway(&app)?.judge_log(&account, &id, &log, &fields).await?))
}

/// `GET …/gateways/{id}/logs/{log}/request`.
pub(super) async fn request(State(app): State<Arc<App>>, named: Named3) -> Answered {
    payload(&app, named, "request").await
}

/// `GET …/gateways/{id}/logs/{log}/response`.
pub(super) async fn response(State(app): State<Arc<App>>, named: Named3) -> Answered {
    payload(&app, named, "response").await
}

/// A payload as it was: JSON as JSON, anything else as a string, since clients read JSON whatever it is.
async fn payload(app: &App, named: Named3, side: &'static str) -> Answered {
    let (account, id, log) = path(named)?;
    let found = gateway(app)?.log_payload(&account, &id, &log, side).await?;
    let (form, text) = found
        .ok_or_else(|| Error::new(ErrorKind::NotFound, format!("The {side} of this log is not stored")))?;
    if form == "text" && serde_json::from_str::<Value>(&text).is_ok() {
        return Ok(json(text));
    }
    let mut response = Response::new(Body::from(Value::from(text).to_string()));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(
        "x-log-payload-form",
        HeaderValue::from_str(&form).unwrap_or(HeaderValue::from_static("text")),
    );
    Ok(response)
}

/// The log that the binding names. A key sees those of its own requests: managing others' is for the control plane.
async fn own(app: &App, caller: &Caller, id: &str, log: &str) -> Result<Record, Error> {
    let record = gateway(app)?.log(&caller.account, id, log).await?;
    if caller.key.is_some() && caller.key != record.key {
        return Err(Error::new(ErrorKind::NotFound, "Log not found"));
    }
    Ok(record)
}

/// `GET /ai-gateway/gateways/{id}/logs/{log}`: the binding's `getLog`.
pub(super) async fn get_own(State(app): State<Arc<App>>, named: Named2, request: Request) -> Answered {
    let (id, log) = path(named)?;
    let (head, _) = read(&app, request).await?;
    Ok(one(&own(&app, &head.caller, &id, &log).await?))
}

/// `PATCH /ai-gateway/gateways/{id}/logs/{log}`: the binding's `patchLog`.
pub(super) async fn judge_own(State(app): State<Arc<App>>, named: Named2, request: Request) -> Answered {
    let (id, log) = path(named)?;
    let (head, body) = read(&app, request).await?;
    let fields: Map<String, Value> = body
        .parse(|bytes| {
            serde_json::from_slice(bytes).map_err(|error| {
                Error::new(ErrorKind::Malformed, format!("The body is no JSON object: {error}"))
            })
        })
        .await?;
    own(&app, &head.caller, &id, &log).await?;
    Ok(one(&gateway(&app)?.judge_log(&head.caller.account, &id, &log, &fields).await?))
}

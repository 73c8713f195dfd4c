//! The control plane of gateways, as Cloudflare's clients call it, and what was used in an account.

use super::App;
use super::body::read;
use super::refusal::{Answered, Refusal, json};
use super::workers_ai::{Parameters, parameters};
use crate::moment;
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::Response;
use gateway::ledger::{Filter, Group, Line, Question};
use gateway::{Gateway, Named};
use protocol::workers_ai::catalog::timestamp;
use protocol::{Error, ErrorKind};
use serde_json::{Map, Value, json as value};
use std::sync::Arc;

/// Entries of a page where the caller sets none, and the most.
const PER_PAGE: (usize, usize) = (20, 100);

/// Parameters of the list of gateways.
const LISTED: &[&str] = &["page", "per_page", "search"];

/// Parameters of a path.
pub(super) type Named1 = Result<Path<String>, PathRejection>;
pub(super) type Named2 = Result<Path<(String, String)>, PathRejection>;

pub(super) fn path<T>(path: Result<Path<T>, PathRejection>) -> Result<T, Error> {
    path.map(|Path(path)| path).map_err(|error| Error::new(ErrorKind::RouteNotFound, error.body_text()))
}

pub(super) fn gateway(app: &App) -> Result<&Gateway, Error> {
    app.gateway.as_ref().ok_or_else(|| {
        Error::new(ErrorKind::Unavailable, "This server cannot use its data folder, where gateways are kept")
    })
}

pub(super) fn enveloped(result: &Value, info: Option<Value>) -> Response {
    let mut envelope = value!({"result": result, "success": true, "errors": [], "messages": []});
    if let Some(info) = info {
        envelope["result_info"] = info;
    }
    json(envelope.to_string())
}

/// A moment as AI Gateway writes it.
pub(super) fn time_text(seconds: u64) -> String {
    format!("{}Z", timestamp(seconds).replace(' ', "T"))
}

fn one(named: &Arc<Named>) -> Response {
    enveloped(&named.object(time_text), None)
}

/// Which part of a list is asked for.
pub(super) struct Page {
    pub(super) page: usize,
    pub(super) per_page: usize,
}

impl Page {
    pub(super) fn of(query: &[(String, String)]) -> Result<Self, Error> {
        let number = |name: &str, otherwise: usize, most: usize| match find(query, name) {
            None => Ok(otherwise),
            Some(text) => text.parse().ok().filter(|number| (1..=most).contains(number)).ok_or_else(|| {
                Error::invalid(
                    name,
                    format!("Invalid value for '{name}': expected a number from 1 to {most}"),
                )
            }),
        };
        Ok(Self {
            page: number("page", 1, usize::MAX)?,
            per_page: number("per_page", PER_PAGE.0, PER_PAGE.1)?,
        })
    }

    /// That part, and what is told about it.
    pub(super) fn cut(&self, all: Vec<Value>) -> (Vec<Value>, Value) {
        let Self { page, per_page } = *self;
        let total = all.len();
        let shown: Vec<Value> =
            all.into_iter().skip((page - 1).saturating_mul(per_page)).take(per_page).collect();
        let info = value!({
            "page": page, "per_page": per_page, "count": shown.len(), "total_count": total,
            "total_pages": total.div_ceil(per_page),
        });
        (shown, info)
    }
}

/// `GET …/gateways`. A page past the end is empty: clients ask until they see one.
pub(super) async fn list(State(app): State<Arc<App>>, account: Named1, query: Parameters) -> Answered {
    let (gateway, account, query) = (gateway(&app)?, path(account)?, parameters(query)?);
    gateway.check_account(&account).await?;
    if let Some((name, _)) = query.iter().find(|(name, _)| !LISTED.contains(&name.as_str())) {
        let shown: String = name.chars().take(64).collect();
        let there = LISTED.join(", ");
        let message = format!("There is no parameter '{shown}' here; there are: {there}");
        return Err(Error::invalid(&shown, message).into());
    }
    let mut found = gateway.gateways(&account).await?;
    if let Some(wanted) = find(&query, "search") {
        found.retain(|named| named.id.contains(wanted));
    }
    page(&query, found.iter().map(|named| named.object(time_text)))
}

/// A page of a list, as the query asks for it.
pub(super) fn page(
    query: &[(String, String)],
    found: impl ExactSizeIterator<Item = Value>,
) -> Result<Response, Refusal> {
    let (shown, info) = Page::of(query)?.cut(found.collect());
    Ok(enveloped(&Value::Array(shown), Some(info)))
}

/// `POST …/gateways`.
pub(super) async fn create(State(app): State<Arc<App>>, account: Named1, request: Request) -> Answered {
    let account = path(account)?;
    let fields = fields(&app, request).await?;
    let id = fields.get("id").and_then(Value::as_str);
    let id = id.ok_or_else(|| Error::invalid("id", "'id' must be the gateway's id, a text"))?;
    Ok(one(&gateway(&app)?.create_gateway(&account, id, &fields).await?))
}

/// `GET …/gateways/{id}`.
pub(super) async fn get(State(app): State<Arc<App>>, named: Named2) -> Answered {
    let (account, id) = path(named)?;
    Ok(one(&gateway(&app)?.gateway(&account, &id).await?))
}

/// `PUT …/gateways/{id}`.
pub(super) async fn update(State(app): State<Arc<App>>, named: Named2, request: Request) -> Answered {
    let (account, id) = path(named)?;
    let fields = fields(&app, request).await?;
    if fields.get("id").is_some_and(|other| *other != *id) {
        return Err(Error::invalid("id", format!("The id of a gateway stays as it is, '{id}'")).into());
    }
    Ok(one(&gateway(&app)?.update_gateway(&account, &id, &fields).await?))
}

/// `DELETE …/gateways/{id}`.
pub(super) async fn delete(State(app): State<Arc<App>>, named: Named2) -> Answered {
    let (account, id) = path(named)?;
    Ok(one(&gateway(&app)?.delete_gateway(&account, &id).await?))
}

/// `GET …/usage?group_by=key,metadata.team,day&from=…&to=…&model=…&format=csv`.
pub(super) async fn usage(State(app): State<Arc<App>>, account: Named1, query: Parameters) -> Answered {
    let (gateway, account, query) = (gateway(&app)?, path(account)?, parameters(query)?);
    gateway.check_account(&account).await?;
    let mut question =
        Question { filter: Filter { account: Some(account), ..Filter::default() }, groups: Vec::new() };
    let mut csv = false;
    for (name, text) in &query {
        let filter = &mut question.filter;
        match name.as_str() {
            "group_by" => {
                for word in text.split(',').filter(|word| !word.is_empty()) {
                    question.groups.push(Group::parse(word)?);
                }
            }
            "from" => filter.from = Some(time("from", text)?),
            "to" => filter.to = Some(time("to", text)?),
            "key" => filter.key = Some(text.clone()),
            "model" => filter.model = Some(text.clone()),
            "provider" => filter.provider = Some(text.clone()),
            "gateway" => filter.gateway = Some(text.clone()),
            "format" if text == "csv" => csv = true,
            "format" if text == "json" => csv = false,
            "format" => {
                return Err(
                    Error::invalid("format", "Invalid value for 'format': expected json or csv").into()
                );
            }
            _ => {
                let shown: String = name.chars().take(64).collect();
                return Err(Error::invalid(&shown, format!("There is no parameter '{shown}' here")).into());
            }
        }
    }
    let groups = question.groups.clone();
    let lines = gateway.usage(question).await?;
    if csv {
        let mut response = Response::new(Body::from(Line::csv(&lines, &groups)));
        let kind = HeaderValue::from_static("text/csv; charset=utf-8");
        response.headers_mut().insert(header::CONTENT_TYPE, kind);
        return Ok(response);
    }
    let lines: Vec<Value> = lines.iter().map(|line| line.object(&groups)).collect();
    Ok(enveloped(&Value::Array(lines), None))
}

fn time(name: &str, text: &str) -> Result<u64, Error> {
    moment::parse(text).ok_or_else(|| {
        let expected =
            "expected seconds since 1970, a day such as 2026-11-30, or a time such as 2026-11-30T12:00:00Z";
        Error::invalid(name, format!("Invalid value for '{name}': {expected}"))
    })
}

pub(super) fn find<'a>(query: &'a [(String, String)], name: &str) -> Option<&'a str> {
    query.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
}

/// The body, an object.
pub(super) async fn fields(app: &App, request: Request) -> Result<Map<String, Value>, Error> {
    let (_, body) = read(app, request).await?;
    body.parse(|bytes| {
        serde_json::from_slice(bytes)
            .map_err(|error| Error::new(ErrorKind::Malformed, format!("The body is no JSON object: {error}")))
    })
    .await
}

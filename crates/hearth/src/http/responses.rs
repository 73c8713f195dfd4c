//! OpenAI's Responses API, also under Workers AI's prefix.
//!
//! A response that the caller has seen completed is kept: it is committed before the last event, or the body, leaves.
//! Where it cannot be kept, a caller who asked for that is told so; one who did not, and only has the default, gets the
//! answer with `store` false.

use super::body::{Held, aside, read};
use super::openai::{placed, session};
use super::providers::{Task, divert};
use super::refusal::{Answered, Dialect, json};
use super::{App, fresh_id, sse};
use crate::kept::{History, Items, Turn};
use axum::Extension;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use futures::StreamExt;
use futures::future::BoxFuture;
use gateway::Caller;
use protocol::openai::Head;
use protocol::openai::responses::{self, Asked, Responding, place_of, response_id, written_input};
use protocol::{Delta, Error, ErrorKind, Event, StreamWriter, cut_short};
use serde_json::{Value, json as value};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Parameters of a path: `id`, and under Workers AI's prefix `account`.
type Named = Result<Path<HashMap<String, String>>, PathRejection>;

/// What stands behind the path.
type Asking = Result<Query<HashMap<String, String>>, QueryRejection>;

/// The id of the path and the parameters of the query.
fn parameters(path: Named, query: Asking) -> Result<(String, HashMap<String, String>), Error> {
    let Path(mut path) = path.map_err(|error| Error::new(ErrorKind::RouteNotFound, error.body_text()))?;
    let Query(query) = query.map_err(|error| Error::new(ErrorKind::InvalidRequest, error.body_text()))?;
    Ok((path.remove("id").unwrap_or_default(), query))
}

/// What a response was kept with: the caller's account, and the salt of the request.
fn salt(caller: &Caller, query: &HashMap<String, String>) -> Option<String> {
    caller.salt(query.get("cache_salt").map(String::as_str).filter(|salt| !salt.is_empty()))
}

/// `POST /v1/responses`.
pub(super) async fn create(State(app): State<Arc<App>>, request: Request) -> Answered {
    let dialect = Dialect::of(request.uri().path());
    let (asking, body) = read(&app, request).await?;
    if let Some(answer) = divert(&app, &asking, &body, Task::Responses).await? {
        return Ok(answer);
    }
    let large = body.is_large();
    let asked = body.parse(responses::parse).await?;
    let keep = keeps(&app, asked.store)?;
    let mut asked = recall(&app, &asking.caller, asked, large).await?;
    let mut request = std::mem::take(&mut asked.request);
    request.session = session(&asking.headers).or(request.session);
    let head = Head {
        id: response_id(&fresh_id()),
        created: app.clock.unix_seconds(),
        model: app.model_id(&request.model),
    };
    let items = std::mem::take(&mut asked.input);
    let count = items.len();
    let keeping = if keep {
        let id = head.id.clone();
        let written = move || Ok(written_input(&id, &items));
        Some(Keeping {
            id: head.id.clone(),
            previous: asked.previous.clone(),
            salt: asking.caller.salt(request.cache_salt.as_deref()),
            input: if large { aside(written).await? } else { written()? },
            must: asked.store == Some(true),
        })
    } else {
        None
    };
    let responding = Responding::new(head, std::mem::take(&mut asked.form), count, keep);
    let mut answering = Answering { app: Arc::clone(&app), responding, keeping };
    let stream = asked.stream;
    let mut answer = placed(app.generate(&asking, request).await, move |error| asked.locate(error))?;
    if stream {
        return Ok(sse::settled(&app, dialect, vec![answer], answering));
    }
    loop {
        let delta = answer.next().await.ok_or_else(cut_short)??;
        let last = matches!(delta, Delta::Usage(_));
        answering.delta(0, delta);
        if last {
            break;
        }
    }
    sse::Settle::settle(&mut answering).await?;
    Ok(json(answering.responding.object().to_string()))
}

/// Whether a response will be kept.
fn keeps(app: &App, asked: Option<bool>) -> Result<bool, Error> {
    match (asked, app.kept.off()) {
        (Some(false), _) | (None, Some(_)) => Ok(false),
        (_, None) => Ok(true),
        (Some(true), Some(why)) => Err(off("store", why)),
    }
}

/// Nothing is kept here, which a field asks for.
fn off(field: &str, why: &str) -> Error {
    let message = format!("'{field}' cannot be had: this server keeps no responses ({why})");
    Error::new(ErrorKind::Unsupported, message).at(field)
}

/// Puts the conversation together, with what is kept of it, which has room as a body has. `large`: it takes long even
/// without that.
async fn recall(app: &App, caller: &Caller, mut asked: Asked, large: bool) -> Result<Asked, Error> {
    const FIELD: &str = "previous_response_id";
    let salt = caller.salt(asked.request.cache_salt.as_deref());
    let salt = salt.as_deref();
    let places: HashMap<String, (String, usize)> =
        asked.references().filter_map(|id| Some((id.to_owned(), place_of(id)?))).collect();
    let single: HashSet<String> = places.values().map(|(turn, _)| turn.clone()).collect();
    let single: Vec<String> = single.into_iter().collect();
    if let (Some(_), Some(why)) = (&asked.previous, app.kept.off()) {
        return Err(off(FIELD, why));
    }
    let mut held = Held::default();
    if asked.previous.is_some() || !single.is_empty() {
        let size = app.kept.size(asked.previous.as_deref(), single.clone(), salt).await;
        let size = size.map_err(|error| match error.kind {
            ErrorKind::ContextLength => error.at(if asked.previous.is_some() { FIELD } else { "input" }),
            _ => error,
        })?;
        held = app.room.hold(&app.config, size).await?;
    }
    let mut kept = Vec::new();
    if let Some(id) = &asked.previous {
        let shown: String = id.chars().take(128).collect();
        match app.kept.history(id, salt).await? {
            History::Whole(turns) => {
                kept = turns.into_iter().flat_map(|turn| turn.input.into_iter().chain(turn.output)).collect();
            }
            History::Unknown => {
                return Err(Error::invalid(FIELD, format!("Previous response with id '{shown}' not found.")));
            }
            History::Broken(missing) => {
                let message = format!(
                    "Previous response with id '{missing}' not found; the response '{shown}' goes on from it."
                );
                return Err(Error::invalid(FIELD, message));
            }
        }
    }
    let mut referenced = HashMap::new();
    if !single.is_empty() {
        let turns = app.kept.turns(single, salt).await?;
        for (id, (turn, number)) in places {
            // Ids differ in what stands before the place, too.
            let item = turns.get(&turn).and_then(|items| nth(items, number)).filter(|item| item["id"] == *id);
            if let Some(item) = item {
                referenced.insert(id, item.clone());
            }
        }
    }
    let large = large || asked.previous.is_some() || !referenced.is_empty();
    let converse = move || {
        asked.converse(kept, &referenced)?;
        drop(held);
        Ok(asked)
    };
    if large { aside(converse).await } else { converse() }
}

/// An item by its number in its turn.
fn nth(items: &Items, number: usize) -> Option<&Value> {
    items.input.iter().chain(&items.output).nth(number)
}

/// What keeping a response needs besides the response.
struct Keeping {
    id: String,
    previous: Option<String>,
    salt: Option<String>,
    input: Vec<Value>,
    /// Whether the caller asked for it, rather than left it open.
    must: bool,
}

/// A response on its way out.
struct Answering {
    app: Arc<App>,
    responding: Responding,
    keeping: Option<Keeping>,
}

impl StreamWriter for Answering {
    fn delta(&mut self, source: usize, delta: Delta) -> Vec<Event> {
        self.responding.delta(source, delta)
    }

    fn finish(&mut self) -> Vec<Event> {
        self.responding.finish()
    }

    fn fail(&mut self, error: &Error) -> Option<Vec<Event>> {
        self.responding.fail(error)
    }
}

impl sse::Settle for Answering {
    fn settle(&mut self) -> BoxFuture<'_, Result<(), Error>> {
        Box::pin(async move {
            self.responding.completed(self.app.clock.unix_seconds());
            let Some(keeping) = self.keeping.take() else { return Ok(()) };
            let Keeping { id, previous, salt, input, must } = keeping;
            let output = self.responding.items();
            let mut response = self.responding.object();
            response["output"] = Value::Array(Vec::new());
            let kept = self.app.kept.keep(Turn { id, previous, salt, input, output, response });
            match kept.await {
                Err(error) if must => return Err(error),
                // The store has logged the cause.
                Err(_) => self.responding.not_kept(),
                Ok(()) => {}
            }
            Ok(())
        })
    }
}

/// The response of the path, or that it is not there.
async fn named(app: &App, id: &str, salt: Option<&str>) -> Result<Value, Error> {
    app.kept.response(id, salt).await?.ok_or_else(|| not_found(app, id))
}

fn not_found(app: &App, id: &str) -> Error {
    let shown: String = id.chars().take(128).collect();
    let why =
        app.kept.off().map(|why| format!(" This server keeps no responses ({why}).")).unwrap_or_default();
    Error::new(ErrorKind::NotFound, format!("Response with id '{shown}' not found.{why}"))
}

/// `GET /v1/responses/{id}`.
pub(super) async fn get(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    path: Named,
    query: Asking,
) -> Answered {
    let (id, query) = parameters(path, query)?;
    if query.get("stream").is_some_and(|stream| stream != "false") {
        let message = "'stream' is not supported here: only responses made in the background can be followed";
        return Err(Error::new(ErrorKind::Unsupported, message).at("stream").into());
    }
    let response = named(&app, &id, salt(&caller, &query).as_deref()).await?;
    Ok(json(response.to_string()))
}

/// `DELETE /v1/responses/{id}`.
pub(super) async fn delete(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    path: Named,
    query: Asking,
) -> Answered {
    let (id, query) = parameters(path, query)?;
    if !app.kept.delete(&id, salt(&caller, &query).as_deref()).await? {
        return Err(not_found(&app, &id).into());
    }
    Ok(json(value!({"id": id, "object": "response", "deleted": true}).to_string()))
}

/// `POST /v1/responses/{id}/cancel`. What is kept has ended, so there is nothing to cancel.
pub(super) async fn cancel(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    path: Named,
    query: Asking,
) -> Answered {
    let (id, query) = parameters(path, query)?;
    named(&app, &id, salt(&caller, &query).as_deref()).await?;
    Err(Error::new(ErrorKind::InvalidRequest, "Cannot cancel a synchronous response.").into())
}

/// `GET /v1/responses/{id}/input_items`: all that the response was made from, in pages.
pub(super) async fn input_items(
    State(app): State<Arc<App>>,
    Extension(caller): Extension<Caller>,
    path: Named,
    query: Asking,
) -> Answered {
    let (id, query) = parameters(path, query)?;
    let salt = salt(&caller, &query);
    let salt = salt.as_deref();
    let limit = match query.get("limit").map(|limit| limit.parse::<usize>()) {
        None => 20,
        Some(Ok(limit @ 1..=100)) => limit,
        Some(_) => {
            return Err(Error::invalid("limit", "Invalid value for 'limit': expected 1 to 100").into());
        }
    };
    // All of the conversation is read for a page of it, and has room as a body has.
    let size = app.kept.size(Some(&id), Vec::new(), salt).await?;
    let _held = app.room.hold(&app.config, size).await?;
    let mut turns = match app.kept.history(&id, salt).await? {
        History::Whole(turns) => turns,
        History::Unknown => return Err(not_found(&app, &id).into()),
        // What went before was deleted; the response's own input is still there.
        History::Broken(_) => app.kept.turns(vec![id.clone()], salt).await?.into_values().collect(),
    };
    if let Some(last) = turns.last_mut() {
        last.output.clear();
    }
    let mut items: Vec<Value> =
        turns.into_iter().flat_map(|turn| turn.input.into_iter().chain(turn.output)).collect();
    match query.get("order").map(String::as_str) {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => {
            let message = "Invalid value for 'order': supported are 'asc' and 'desc'";
            return Err(Error::invalid("order", message).into());
        }
    }
    if let Some(after) = query.get("after") {
        let Some(place) = items.iter().position(|item| item["id"] == **after) else {
            let shown: String = after.chars().take(128).collect();
            let message = format!("Invalid value for 'after': there is no item '{shown}' here");
            return Err(Error::invalid("after", message).into());
        };
        items.drain(..=place);
    }
    let has_more = items.len() > limit;
    items.truncate(limit);
    let id_of = |item: Option<&Value>| item.map_or_else(|| value!(""), |item| item["id"].clone());
    let list = value!({
        "object": "list", "first_id": id_of(items.first()), "last_id": id_of(items.last()), "has_more": has_more,
        "data": items,
    });
    Ok(json(list.to_string()))
}

//! Anthropic's routes, also under Workers AI's prefix, and the list of models, which clients of two dialects ask for
//! at one path.

use super::body::read;
use super::openai::{located, placed, session};
use super::providers::{Task, divert};
use super::refusal::{Answered, Dialect, json};
use super::{App, counting, fresh_id, openai, sse};
use axum::Extension;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::HeaderMap;
use futures::StreamExt;
use gateway::Caller;
use protocol::anthropic::{self, EventWriter, Head, MessageWriter, MessagesRequest};
use protocol::{Error, ErrorKind, cut_short};
use std::sync::Arc;

/// The header in which Claude Code names its session.
const CLAUDE_CODE_SESSION: &str = "x-claude-code-session-id";

/// `POST /v1/messages`.
pub(super) async fn messages(State(app): State<Arc<App>>, request: Request) -> Answered {
    let (asking, body) = read(&app, request).await?;
    if let Some(answer) = divert(&app, &asking, &body, Task::Messages).await? {
        return Ok(answer);
    }
    let asked = body.parse(anthropic::parse).await?;
    let MessagesRequest { mut request, stream, thoughts, layout } = asked;
    request.session = named_session(&asking.headers).or(request.session);
    let head = Head { id: format!("msg_{}", fresh_id()), model: app.model_id(&request.model), thoughts };
    let answer = app.generate(&asking, request).await;
    let mut answer = placed(answer, move |error| layout.locate(located(error, "messages")))?;
    if stream {
        return Ok(sse::response(&app, Dialect::Anthropic, vec![answer], EventWriter::new(head)));
    }
    let mut message = MessageWriter::new(head);
    while !message.is_complete() {
        message.push(answer.next().await.ok_or_else(cut_short)??);
    }
    Ok(json(message.finish()))
}

/// `POST /v1/messages/count_tokens`.
pub(super) async fn count_tokens(State(app): State<Arc<App>>, request: Request) -> Answered {
    let (asking, body) = read(&app, request).await?;
    if let Some(answer) = counting::divert(&app, &asking, &body).await? {
        return Ok(answer);
    }
    let MessagesRequest { request, layout, .. } = body.parse(anthropic::parse_count).await?;
    let tokens = app.backend.count(request).await;
    let tokens = tokens.map_err(|error| layout.locate(located(error, "messages")))?;
    Ok(json(anthropic::count(tokens)))
}

/// `GET /v1/models`, as the caller's dialect has it.
pub(super) async fn models(
    state: State<Arc<App>>,
    headers: HeaderMap,
    query: Result<Query<Vec<(String, String)>>, QueryRejection>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answered {
    if Dialect::spoken(request.uri().path(), &headers) != Dialect::Anthropic {
        return openai::models(state, &caller).await;
    }
    let Query(query) = query.map_err(|error| Error::new(ErrorKind::InvalidRequest, error.body_text()))?;
    let page = anthropic::models::parse(&query)?;
    Ok(json(anthropic::models::list(&page, &state.backend.models())?))
}

/// `GET /v1/models/{model}`; ids may hold slashes.
pub(super) async fn model(
    state: State<Arc<App>>,
    headers: HeaderMap,
    path: Result<Path<String>, PathRejection>,
    Extension(caller): Extension<Caller>,
    request: Request,
) -> Answered {
    if Dialect::spoken(request.uri().path(), &headers) != Dialect::Anthropic {
        return openai::model(state, &caller, path).await;
    }
    let Path(name) = path.map_err(|error| Error::new(ErrorKind::RouteNotFound, error.body_text()))?;
    Ok(json(anthropic::models::one(&state.model(&name)?)))
}

/// The session that headers name; they go before what the body says.
fn named_session(headers: &HeaderMap) -> Option<String> {
    session(headers).or_else(|| {
        let value = headers.get(CLAUDE_CODE_SESSION)?.to_str().ok()?.trim();
        (!value.is_empty()).then(|| value.to_owned())
    })
}

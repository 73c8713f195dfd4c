//! Counting tokens for models of providers: in Anthropic's dialect as the bytes came, else translated. Nothing is entered
//! in the ledger, since nobody charges for it. Not here: models of this server (`anthropic.rs`).

use super::App;
use super::body::{Body, Head};
use super::openai::located;
use super::providers::{Aim, Task, ask, call, proxy, target};
use super::refusal::json;
use axum::http::Method;
use axum::response::Response;
use gateway::call::Target;
use gateway::dialect::Dialect;
use gateway::scan::Field;
use protocol::anthropic::{self, MessagesRequest};
use protocol::{Error, ErrorKind};
use std::sync::Arc;

/// The answer for a model that is not here; nothing where it is, or nobody has it.
///
/// # Errors
/// When no provider that has the model counts tokens, and as [`gateway::call::Proxy::fetch`].
pub(super) async fn divert(app: &App, asking: &Head, body: &Body) -> Result<Option<Response>, Error> {
    let bytes = body.bytes().clone();
    // What cannot be read is refused by the parser behind, in more words.
    let Ok(found) = body.scan().await else { return Ok(None) };
    let Ok(Some(model)) = found.string(&bytes, Field::Model) else { return Ok(None) };
    let offers = app.elsewhere(&asking.caller.account, &model).await?;
    let Some((first, _)) = offers.first() else { return Ok(None) };
    let slug = Arc::clone(&first.slug);
    let ways = offers.into_iter().filter_map(|(provider, name)| {
        let (dialect, way) = provider.counting(&name)?;
        Some((provider, dialect, way))
    });
    let (spoken, others): (Vec<_>, Vec<_>) = ways.partition(|(_, dialect, _)| *dialect == Dialect::Anthropic);
    if !spoken.is_empty() {
        let targets = spoken
            .into_iter()
            .map(|(provider, _, way)| {
                target(Aim::by_name(provider, &way, Task::Messages, &model), &bytes, Some(&found))
            })
            .collect::<Result<Vec<_>, _>>()?;
        return ask(app, proxy(app)?, asking, Method::POST, targets).await.map(Some);
    }
    if others.is_empty() {
        let message = format!("{slug} does not count tokens, and nobody else has this model");
        return Err(Error::new(ErrorKind::Unsupported, message).at("model"));
    }
    let MessagesRequest { request, layout, .. } = body.clone().parse(anthropic::parse_count).await?;
    let mut dialects = Vec::with_capacity(others.len());
    let mut targets = Vec::with_capacity(others.len());
    for (provider, dialect, way) in others {
        let written = dialect.write_count(&provider, &way.model, &request);
        let body = written.map_err(|error| layout.locate(located(error, "messages")))?;
        let not_there = || Error::new(ErrorKind::RouteNotFound, "This path cannot be sent to a provider");
        let url = provider.url(&way.path, way.query.as_deref()).ok_or_else(not_there)?;
        dialects.push(dialect);
        targets.push(Target {
            provider,
            dialect,
            model: way.model,
            url,
            body: body.into(),
            strip_usage: false,
            most: None,
        });
    }
    let call = call(app, asking, Method::POST, targets).await?;
    let counted = Box::pin(proxy(app)?.fetch(app.gateway.as_ref(), call)).await?;
    asking.trail.answered(counted.step, counted.entry);
    Ok(Some(json(anthropic::count(dialects[counted.step].read_count(&counted.body)?))))
}

//! Rerank in the form of Jina, Cohere and vLLM.

use super::body::read;
use super::openai::located;
use super::refusal::{Answered, json};
use super::{App, fresh_id};
use axum::extract::{Request, State};
use protocol::rerank;
use protocol::{Error, ModelTask};
use std::sync::Arc;

/// `POST /v1/rerank`, `/v2/rerank` and `/rerank`: Cohere's second version reads the same answer.
pub(super) async fn rerank(State(app): State<Arc<App>>, request: Request) -> Answered {
    let (asking, body) = read(&app, request).await?;
    let asked = body.parse(rerank::parse).await?;
    let model = app.model(&asked.request.model)?;
    if model.task != ModelTask::Rerank {
        let message = format!("The model '{}' is not one that reranks", model.id);
        return Err(Error::invalid("model", message).into());
    }
    let form = rerank::Form::from(&asked);
    let scores = app.rerank(&asking.caller, asked.request).await.map_err(|error| located(error, "query"))?;
    Ok(json(rerank::ranking(&format!("rerank-{}", fresh_id()), &model.id, &form, &scores)))
}

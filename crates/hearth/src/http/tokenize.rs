//! Tokens of texts and conversations, and back.

use super::App;
use super::body::read;
use super::openai::located;
use super::refusal::{Answered, json};
use axum::extract::{Request, State};
use protocol::openai::tokenize::{self, Of};
use std::sync::Arc;

/// `POST /v1/tokenize` and `/tokenize`.
pub(super) async fn tokenize(State(app): State<Arc<App>>, request: Request) -> Answered {
    let (_, body) = read(&app, request).await?;
    let asked = body.parse(tokenize::parse).await?;
    let model = app.model(asked.of.model())?;
    let tokens = match asked.of {
        Of::Text(request) => app.backend.tokenize(request).await,
        Of::Chat(request) => app.backend.prompt(*request).await,
    };
    let tokens = tokens.map_err(|error| asked.places.locate(located(error, "messages")))?;
    Ok(json(tokenize::tokens(&tokens, asked.texts, model.context)))
}

/// `POST /v1/detokenize` and `/detokenize`.
pub(super) async fn detokenize(State(app): State<Arc<App>>, request: Request) -> Answered {
    let (_, body) = read(&app, request).await?;
    let (model, tokens) = body.parse(tokenize::parse_tokens).await?;
    app.model(&model)?;
    let text = app.backend.detokenize(model, tokens).await?;
    Ok(json(tokenize::text(&text)))
}

//! Workers AI's native routes. The account in the path is not looked at: there is one.

use super::body::read;
use super::openai::{gather, located, session};
use super::refusal::{Answered, Dialect, json};
use super::{App, sse};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::HeaderMap;
use protocol::workers_ai::{InputAt, catalog, embeddings, generation, parse_input, parse_run};
use protocol::{Error, ErrorKind, ModelTask};
use serde_json::Value;
use std::sync::Arc;

type Parameters = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// `POST /ai/run/{model}`: the body is the input.
pub(super) async fn run(
    State(app): State<Arc<App>>,
    path: Result<Path<(String, String)>, PathRejection>,
    query: Parameters,
    request: Request,
) -> Answered {
    let Path((_, model)) = path.map_err(|error| Error::new(ErrorKind::RouteNotFound, error.body_text()))?;
    not_queued(query)?;
    let (headers, body) = read(&app, request).await?;
    let input = body.parse(parse_input).await?;
    answer(&app, &headers, &model, input, InputAt::Root).await
}

/// `POST /ai/run`: the body names the model beside its input.
pub(super) async fn run_named(State(app): State<Arc<App>>, query: Parameters, request: Request) -> Answered {
    not_queued(query)?;
    let (headers, body) = read(&app, request).await?;
    let run = body.parse(parse_run).await?;
    answer(&app, &headers, &run.model, run.input, InputAt::Field).await
}

/// `GET /ai/models/search`.
pub(super) async fn search(State(app): State<Arc<App>>, query: Parameters) -> Answered {
    let search = catalog::parse(&parameters(query)?)?;
    Ok(json(catalog::page(&search, &app.backend.models())))
}

fn parameters(query: Parameters) -> Result<Vec<(String, String)>, Error> {
    let Query(parameters) =
        query.map_err(|error| Error::new(ErrorKind::InvalidRequest, error.body_text()))?;
    Ok(parameters)
}

/// Queued requests would be answered later, which is not built.
fn not_queued(query: Parameters) -> Result<(), Error> {
    let queued = parameters(query)?.iter().any(|(name, value)| name == "queueRequest" && value != "false");
    if queued {
        let message = "'queueRequest' is not supported by this server";
        return Err(Error::new(ErrorKind::Unsupported, message).at("queueRequest"));
    }
    Ok(())
}

/// The model's task decides what an input may be.
async fn answer(app: &Arc<App>, headers: &HeaderMap, model: &str, input: Value, at: InputAt) -> Answered {
    let info = app.model(model).map_err(|error| {
        let shown: String = model.chars().take(200).collect();
        Error { message: format!("No such model {shown} or task"), ..error }
    })?;
    match info.task {
        ModelTask::TextGeneration => {
            let prompt = if input["prompt"].is_null() { "messages" } else { "prompt" };
            let mut asked = generation::parse(model, input, at)?;
            asked.request.session = session(headers).or(asked.request.session);
            let format = asked.request.response_format.clone();
            let deltas = app.backend.generate(asked.request).await;
            let deltas =
                deltas.map_err(|error| as_written(located(error, prompt), at, "messages", prompt))?;
            if asked.stream {
                let writer = generation::FrameWriter::default();
                return Ok(sse::response(app, Dialect::WorkersNative, vec![deltas], writer));
            }
            Ok(json(generation::result(&format, &gather(deltas, 1).await?)))
        }
        ModelTask::Rerank => {
            let message = "rerank models are asked at /v1/rerank";
            Err(Error::new(ErrorKind::Unsupported, message).at("model").into())
        }
        ModelTask::TextEmbeddings => {
            let request = embeddings::parse(model, input, at)?;
            let vectors = app.backend.embed(request).await;
            let vectors = vectors.map_err(|error| as_written(located(error, "text"), at, "input", "text"))?;
            Ok(json(embeddings::result(&vectors)))
        }
    }
}

/// Names the field at fault as the caller wrote it. The backend knows the names of canonical requests, which are
/// OpenAI's: `canonical` is that of the field called `written` here.
fn as_written(mut error: Error, at: InputAt, canonical: &str, written: &str) -> Error {
    // The model is named beside the input or in the path.
    if let Some(param) = error.param.take_if(|param| param != "model") {
        let rest = param.strip_prefix(canonical).filter(|rest| rest.is_empty() || rest.starts_with('['));
        let path = at.path(&rest.map_or_else(|| param.clone(), |rest| format!("{written}{rest}")));
        // Native errors have no place for it but their text.
        error.message.push_str(&format!(" (at '{path}')"));
        error.param = Some(path);
    }
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_the_backend_names_are_told_as_written() {
        let path = |at, param: &str, canonical, written| {
            as_written(Error::invalid(param, "wrong"), at, canonical, written).param.unwrap()
        };
        for (param, canonical, written, told) in [
            ("tools", "messages", "messages", "tools"),
            ("response_format", "messages", "prompt", "response_format"),
            ("messages[0].tool_calls", "messages", "messages", "messages[0].tool_calls"),
            ("messages", "messages", "prompt", "prompt"),
            ("prompt", "messages", "prompt", "prompt"),
            ("input[3]", "input", "text", "text[3]"),
            ("inputs", "input", "text", "inputs"),
        ] {
            assert_eq!(path(InputAt::Root, param, canonical, written), told);
            assert_eq!(path(InputAt::Field, param, canonical, written), format!("input.{told}"));
        }
        assert_eq!(path(InputAt::Field, "model", "messages", "messages"), "model");
    }
}

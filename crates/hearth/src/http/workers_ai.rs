//! Workers AI's native routes, and what the AI binding shares with them. The front has looked at the account in the
//! path.

use super::body::{Head, read};
use super::openai::{gather, head, located, placed, session};
use super::refusal::{Answered, Dialect, json};
use super::{App, sse};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, Request, State};
use axum::http::StatusCode;
use protocol::openai::chat;
use protocol::workers_ai::generation::{Shape, TextRequest};
use protocol::workers_ai::{
    InputAt, catalog, embeddings, enveloped, error, generated, generation, parse_input, parse_run, rerank,
};
use protocol::{Error, ErrorKind, ModelTask};
use serde_json::Value;
use std::sync::Arc;

pub(super) type Parameters = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// `POST /ai/run/{model}`: the body is the input.
pub(super) async fn run(
    State(app): State<Arc<App>>,
    path: Result<Path<(String, String)>, PathRejection>,
    query: Parameters,
    request: Request,
) -> Answered {
    let Path((_, model)) = path.map_err(|error| Error::new(ErrorKind::RouteNotFound, error.body_text()))?;
    not_queued(query)?;
    let (asking, body) = read(&app, request).await?;
    let input = body.parse(parse_input).await?;
    answer(&app, &asking, &model, input, Form::Rest(InputAt::Root)).await
}

/// `POST /ai/run`: the body names the model beside its input.
pub(super) async fn run_named(State(app): State<Arc<App>>, query: Parameters, request: Request) -> Answered {
    not_queued(query)?;
    let (asking, body) = read(&app, request).await?;
    let run = body.parse(parse_run).await?;
    answer(&app, &asking, &run.model, run.input, Form::Rest(InputAt::Field)).await
}

/// `GET /ai/models/search`.
pub(super) async fn search(State(app): State<Arc<App>>, query: Parameters) -> Answered {
    let search = catalog::parse(&parameters(query)?)?;
    Ok(json(catalog::page(&search, &app.backend.models())))
}

pub(super) fn parameters(query: Parameters) -> Result<Vec<(String, String)>, Error> {
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

/// Who asks, and so how results and errors are wrapped.
#[derive(Clone, Copy)]
pub(super) enum Form {
    /// The REST API: results stand in an envelope.
    Rest(InputAt),
    /// The AI binding: results stand bare.
    Binding,
}

impl Form {
    fn at(self) -> InputAt {
        match self {
            Self::Rest(at) => at,
            Self::Binding => InputAt::Root,
        }
    }

    fn dialect(self) -> Dialect {
        match self {
            Self::Rest(_) => Dialect::WorkersNative,
            Self::Binding => Dialect::Binding,
        }
    }

    fn wrap(self, result: String) -> String {
        match self {
            Self::Rest(_) => enveloped(result),
            Self::Binding => result,
        }
    }

    fn unmet_json_mode(self, why: &str) -> String {
        match self {
            Self::Rest(_) => error::unmet_json_mode(why),
            Self::Binding => error::unmet_json_mode_for_binding(why),
        }
    }
}

/// The model's task decides what an input may be.
pub(super) async fn answer(app: &Arc<App>, asking: &Head, model: &str, input: Value, form: Form) -> Answered {
    let task = match app.model(model) {
        Ok(info) => info.task,
        // Only the input tells what a provider's model is for.
        Err(_) if !app.elsewhere(&asking.caller.account, model).await?.is_empty() => {
            match input.get("text") {
                Some(_) => ModelTask::TextEmbeddings,
                None => ModelTask::TextGeneration,
            }
        }
        Err(error) => {
            let shown: String = model.chars().take(200).collect();
            return Err(Error { message: format!("No such model {shown} or task"), ..error }.into());
        }
    };
    match task {
        ModelTask::TextGeneration => {
            let asked = generation::parse(model, input, form.at())?;
            text(app, asking, asked, form).await
        }
        ModelTask::Rerank => {
            let rerank::Rerank { request, top, places } = rerank::parse(model, input, form.at())?;
            let scores = app.rerank(&asking.caller, request).await;
            let scores = scores.map_err(|error| told(places.locate(located(error, "query"))))?;
            Ok(json(form.wrap(rerank::result(top, &scores))))
        }
        ModelTask::TextEmbeddings => {
            let mut places = form.at().places();
            places.input_is("text");
            let request = embeddings::parse(model, input, form.at())?;
            let vectors = app.embed(asking, request).await;
            let vectors = vectors.map_err(|error| told(places.locate(located(error, "input"))))?;
            Ok(json(form.wrap(embeddings::result(&vectors))))
        }
    }
}

async fn text(app: &Arc<App>, asking: &Head, asked: TextRequest, form: Form) -> Answered {
    let TextRequest { mut request, stream, include_usage, shape, places } = asked;
    request.session = session(&asking.headers).or(request.session);
    let format = request.response_format.clone();
    let choices = request.choices;
    let openai = (shape == Shape::OpenAi).then(|| {
        let logprobs = request.logprobs.is_some();
        (head(app, "chatcmpl", &request.model), chat::Asked { choices, logprobs, include_usage })
    });
    let deltas = app.generate(asking, request).await;
    let deltas = placed(deltas, move |error| told(places.locate(located(error, "messages"))))?;
    Ok(match (stream, openai) {
        (true, None) => sse::response(app, form.dialect(), vec![deltas], generated::FrameWriter::default()),
        (true, Some((head, asked))) => {
            let writer = generated::ChunkFrameWriter::new(chat::ChunkWriter::new(head, asked));
            sse::response(app, form.dialect(), vec![deltas], writer)
        }
        (false, Some((head, asked))) => {
            let answer = gather(deltas, choices).await?;
            json(form.wrap(chat::completion(&head, &asked, &answer)))
        }
        (false, None) => match generated::result(&format, &gather(deltas, choices).await?) {
            Ok(result) => json(form.wrap(result)),
            Err(why) => {
                let mut response = json(form.unmet_json_mode(&why));
                *response.status_mut() = StatusCode::BAD_REQUEST;
                response
            }
        },
    })
}

/// Native errors have no place for the field at fault but their text.
pub(super) fn told(mut error: Error) -> Error {
    if let Some(param) = error.param.as_ref().filter(|param| *param != "model") {
        error.message.push_str(&format!(" (at '{param}')"));
    }
    error
}

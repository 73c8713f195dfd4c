//! OpenAI's routes, also under Workers AI's prefix.

use super::body::read;
use super::providers::{Task, divert};
use super::refusal::{Answered, Dialect, json};
use super::{App, fresh_id, sse};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::HeaderMap;
use futures::StreamExt;
use futures::future::try_join_all;
use gateway::Caller;
use protocol::openai::models::Elsewhere;
use protocol::openai::{self, Head, chat, completions, embeddings};
use protocol::{Answer, DeltaStream, Error, ErrorKind, GenerateRequest, ModelTask, cut_short};
use std::sync::Arc;

/// `POST /v1/chat/completions`.
pub(super) async fn chat(State(app): State<Arc<App>>, request: Request) -> Answered {
    let dialect = Dialect::of(request.uri().path());
    let (asking, body) = read(&app, request).await?;
    if let Some(answer) = divert(&app, &asking, &body, Task::Chat).await? {
        return Ok(answer);
    }
    let mut asked = body.parse(chat::parse).await?;
    asked.request.session = session(&asking.headers).or(asked.request.session);
    let form = chat::Asked::from(&asked);
    let head = head(&app, "chatcmpl", &asked.request.model);
    let choices = asked.request.choices;
    let places = asked.places;
    let answer = app.generate(&asking, asked.request).await;
    let answer = placed(answer, move |error| places.locate(located(error, "messages")))?;
    if asked.stream {
        return Ok(sse::response(&app, dialect, vec![answer], chat::ChunkWriter::new(head, form)));
    }
    Ok(json(chat::completion(&head, &form, &gather(answer, choices).await?)))
}

/// `POST /v1/completions`.
pub(super) async fn completions(State(app): State<Arc<App>>, request: Request) -> Answered {
    let dialect = Dialect::of(request.uri().path());
    let (asking, body) = read(&app, request).await?;
    if let Some(answer) = divert(&app, &asking, &body, Task::Completions).await? {
        return Ok(answer);
    }
    let asked = body.parse(completions::parse).await?;
    let form = completions::Asked::from(&asked);
    let session = session(&asking.headers);
    let Some(first) = asked.requests.first() else { unreachable!("a completion has at least one prompt") };
    let head = head(&app, "cmpl", &first.model);
    let choices = first.choices;
    let generate = async |request: GenerateRequest| {
        let session = session.clone().or(request.session);
        let answer = app.generate(&asking, GenerateRequest { session, ..request }).await;
        placed(answer, |error| located(error, "prompt"))
    };
    let answers = try_join_all(asked.requests.into_iter().map(generate)).await?;
    if asked.stream {
        let writer = completions::ChunkWriter::new(head, form, answers.len());
        return Ok(sse::response(&app, dialect, answers, writer));
    }
    // Together, because answers that are not read stop when their buffers are full.
    let answers = try_join_all(answers.into_iter().map(|answer| gather(answer, choices))).await?;
    Ok(json(completions::completion(&head, &form, &answers)))
}

/// `POST /v1/embeddings`.
pub(super) async fn embeddings(State(app): State<Arc<App>>, request: Request) -> Answered {
    let (asking, body) = read(&app, request).await?;
    if let Some(answer) = divert(&app, &asking, &body, Task::Embeddings).await? {
        return Ok(answer);
    }
    let asked = body.parse(embeddings::parse).await?;
    let model = app.model(&asked.request.model)?;
    if model.task != ModelTask::TextEmbeddings {
        let message = format!("The model '{}' does not make embeddings", model.id);
        return Err(Error::invalid("model", message).into());
    }
    asked.check_dimensions(&model)?;
    let vectors = app.embed(&asking, asked.request).await.map_err(|error| located(error, "input"))?;
    Ok(json(embeddings::list(&model.id, asked.encoding, &vectors)))
}

/// `GET /v1/models`: the models here, and those that settings name for providers.
pub(super) async fn models(State(app): State<Arc<App>>, caller: &Caller) -> Answered {
    Ok(json(openai::models::list(&app.backend.models(), &elsewhere(&app, caller).await?)))
}

/// The models that providers are set to have and that are not here.
async fn elsewhere(app: &App, caller: &Caller) -> Result<Vec<Elsewhere>, Error> {
    let mut models: Vec<Elsewhere> = Vec::new();
    let Some(providers) = app.providers(&caller.account).await? else { return Ok(models) };
    for provider in providers.iter() {
        for model in &provider.models {
            if app.model(model).is_err() && !models.iter().any(|known| known.id == *model) {
                models.push(Elsewhere { id: model.clone(), owner: provider.slug.to_string() });
            }
        }
    }
    Ok(models)
}

/// `GET /v1/models/{model}`; ids may hold slashes.
pub(super) async fn model(
    State(app): State<Arc<App>>,
    caller: &Caller,
    path: Result<Path<String>, PathRejection>,
) -> Answered {
    let Path(name) = path.map_err(|error| Error::new(ErrorKind::RouteNotFound, error.body_text()))?;
    if let Some(model) = elsewhere(&app, caller).await?.iter().find(|model| model.id == name) {
        return Ok(json(openai::models::elsewhere(model)));
    }
    match app.model(&name) {
        Ok(model) => Ok(json(openai::models::one(&model))),
        // One that is named with its provider is taken, whether a list has it or not.
        Err(error) => match app.elsewhere(&caller.account, &name).await?.first() {
            Some((provider, _)) => {
                let owner = provider.slug.to_string();
                Ok(json(openai::models::elsewhere(&Elsewhere { id: name, owner })))
            }
            None => Err(error.into()),
        },
    }
}

pub(super) fn head(app: &App, prefix: &str, model: &str) -> Head {
    Head {
        id: format!("{prefix}-{}", fresh_id()),
        created: app.clock.unix_seconds(),
        model: app.model_id(model),
    }
}

/// The session that headers name; they go before what the body says.
pub(super) fn session(headers: &HeaderMap) -> Option<String> {
    ["x-session-affinity", "x-session-id"].into_iter().find_map(|name| {
        let value = headers.get(name)?.to_str().ok()?.trim();
        (!value.is_empty()).then(|| value.to_owned())
    })
}

/// Names the field that holds the prompt where the backend, which knows no dialect, could not.
pub(super) fn located(error: Error, prompt: &str) -> Error {
    match (&error.param, error.kind) {
        (None, ErrorKind::ContextLength) => error.at(prompt),
        (None, ErrorKind::ModelNotFound) => error.at("model"),
        _ => error,
    }
}

/// An answer, or why there is none. Errors, also those in the middle of it, name fields as `locate` has them.
pub(super) fn placed(
    answer: Result<DeltaStream, Error>,
    locate: impl Fn(Error) -> Error + Send + 'static,
) -> Result<DeltaStream, Error> {
    let answer = answer.map_err(&locate)?;
    Ok(answer.map(move |delta| delta.map_err(&locate)).boxed())
}

/// The whole answer.
pub(super) async fn gather(mut deltas: DeltaStream, choices: u32) -> Result<Answer, Error> {
    let mut answer = Answer::new(choices);
    while !answer.is_complete() {
        answer.push(deltas.next().await.ok_or_else(cut_short)??);
    }
    Ok(answer)
}

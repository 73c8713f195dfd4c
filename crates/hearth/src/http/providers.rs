//! Requests that go to a provider: by the model's name on the routes of OpenAI and Anthropic, and on AI Gateway's routes
//! by the path.
//!
//! The client's bytes go on as they came but for a declared list of edits: the model's name without its provider,
//! `stream_options.include_usage` where a stream tells its usage only then (and the chunk that it adds is taken out again
//! where the client did not ask for it), thoughts that were made here (`gateway::dialect`), and headers (`gateway::call`). A model that an engine here has is never sent
//! away. Providers that speak the client's dialect are asked first. Of the others the handlers know nothing: they read
//! the request as for a model here and ask `App::generate`, which has it translated ([`generate`]).

use super::App;
use super::body::{Body, Head, read};
use super::refusal::{Answered, Refusal};
use super::workers_ai::Form;
use super::{anthropic, openai, responses, workers_ai};
use axum::body::Body as Sent;
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use axum::response::Response;
use bytes::Bytes;
use gateway::call::retry::{Policy, is_passing};
use gateway::call::{AnswerBody, Asking, Call, KeyOf, Proxy, Target};
use gateway::dialect::{Dialect, without_carried, without_stand_ins};
use gateway::elsewhere::longest_prompt;
use gateway::provider::{Configured, Place, Way};
use gateway::scan::{Edits, Field, Pieces, Scan, scan};
use protocol::openai::upstream;
use protocol::workers_ai::{InputAt, parse_input};
use protocol::{DeltaStream, EmbeddingRequest, Embeddings, Error, ErrorKind, GenerateRequest};
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

/// Tokens that are set aside for an answer whose length nobody limits.
const UNLIMITED: u64 = 32_768;

/// What is asked of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Task {
    Chat,
    Completions,
    Responses,
    Embeddings,
    Messages,
}

impl Task {
    /// The path behind a provider's base.
    const fn path(self) -> &'static str {
        match self {
            Self::Chat => "chat/completions",
            Self::Completions => "completions",
            Self::Responses => "responses",
            Self::Embeddings => "embeddings",
            Self::Messages => "messages",
        }
    }

    /// How a provider is asked with the client's bytes; nothing where it does not take them.
    fn way(self, provider: &Configured, model: &str, stream: bool) -> Option<Way> {
        let way = provider.way(self.dialect(), self.path(), model, stream)?;
        (self != Self::Responses || provider.responses).then_some(way)
    }

    /// Whether a request can be translated: a bare prompt has no words in other dialects.
    const fn translates(self) -> bool {
        !matches!(self, Self::Embeddings | Self::Completions)
    }

    const fn dialect(self) -> Dialect {
        match self {
            Self::Chat | Self::Completions | Self::Responses | Self::Embeddings => Dialect::OpenAi,
            Self::Messages => Dialect::Anthropic,
        }
    }

    /// Whether its streams tell usage only where they are asked to.
    const fn hides_usage(self) -> bool {
        matches!(self, Self::Chat | Self::Completions)
    }

    /// The task of a provider's own path.
    fn of(path: &str) -> Option<Self> {
        let path = path.trim_end_matches('/');
        [Self::Chat, Self::Completions, Self::Responses, Self::Embeddings, Self::Messages]
            .into_iter()
            .find(|task| path == task.path() || path.ends_with(&format!("/{}", task.path())))
    }
}

/// The answer of a provider to a request whose model names one; nothing where the request is for this server.
pub(super) async fn divert(
    app: &App,
    asking: &Head,
    body: &Body,
    task: Task,
) -> Result<Option<Response>, Error> {
    let Some(proxy) = &app.config.proxy else { return Ok(None) };
    let bytes = body.bytes().clone();
    let found = match body.scan().await {
        Ok(found) => found,
        // Which of two is meant nobody can say: the parser behind would take the last one, and write the body anew.
        Err(error) if error.kind == ErrorKind::InvalidRequest => return Err(error),
        // What cannot be read is refused by the parser behind, in more words.
        Err(_) => return Ok(None),
    };
    let Ok(Some(model)) = found.string(&bytes, Field::Model) else { return Ok(None) };
    if app.model(&model).is_ok() {
        return Ok(None);
    }
    let Some(providers) = app.providers(&asking.caller.account).await? else { return Ok(None) };
    let offers = providers.of_model(&model);
    let Some((first, _)) = offers.first() else { return Ok(None) };
    let slug = Arc::clone(&first.slug);
    let stream = found.flag(&bytes, Field::Stream)?;
    let (mut spoken, mut others) = (Vec::new(), false);
    for (provider, name) in offers {
        match task.way(&provider, name, stream) {
            Some(way) => spoken.push((provider, way)),
            None => others = true,
        }
    }
    if spoken.is_empty() {
        return if task.translates() {
            Ok(None)
        } else {
            let path = task.path();
            let message = format!("{slug} has no {path} in OpenAI's dialect, and others are not translated");
            Err(Error::new(ErrorKind::Unsupported, message).at("model"))
        };
    }
    let proven = provable(&bytes, Some(task));
    let proven = match proven {
        Some(bytes) => Some((scan(&bytes)?, bytes)),
        None => None,
    };
    let targets: Vec<_> = spoken
        .into_iter()
        .map(|(provider, way)| {
            let proven = proven.as_ref().filter(|_| wants_proofs(&provider, Some(task)));
            let (found, bytes) = proven.map_or((&found, &bytes), |(found, bytes)| (found, bytes));
            target(Aim::by_name(provider, &way, task, &model), bytes, Some(found))
        })
        .collect::<Result<_, _>>()?;
    let slugs: Vec<_> = targets.iter().map(|target| Arc::clone(&target.provider.slug)).collect();
    let answered = ask(app, proxy, asking, Method::POST, targets).await;
    let passing = match &answered {
        Ok(response) => is_passing(response.status()),
        Err(error) => error.kind.retryable(),
    };
    if passing && task.translates() && others {
        // The next ones speak otherwise.
        asking.trail.in_vain(slugs, answered);
        return Ok(None);
    }
    answered.map(Some)
}

/// The body without thoughts that nobody elsewhere can prove or read; nothing where there are no such.
fn provable(body: &[u8], task: Option<Task>) -> Option<Bytes> {
    match task {
        Some(Task::Responses) => without_carried(body),
        Some(Task::Messages) | None => without_stand_ins(body),
        Some(_) => None,
    }
}

/// Whether the maker's own API stands behind, which wants a proof of each thought. Engines of one's own, and who speaks
/// Anthropic's dialect beside OpenAI's, as another Hearth does, take what stands in for one.
fn wants_proofs(provider: &Configured, task: Option<Task>) -> bool {
    match task {
        Some(Task::Responses) => !provider.speaker.engine,
        _ => provider.dialect != Dialect::OpenAi,
    }
}

/// Who may answer, each with the name by which it knows the model.
type Offers = Vec<(Arc<Configured>, String)>;

pub(super) fn proxy(app: &App) -> Result<&Proxy, Error> {
    app.config.proxy.as_deref().ok_or_else(|| Error::new(ErrorKind::Internal, "Nobody asks providers here"))
}

/// Asks the providers of a model that is not here, each in its own dialect.
pub(super) async fn generate(
    app: &App,
    offers: Offers,
    asking: &Head,
    request: GenerateRequest,
) -> Result<DeltaStream, Error> {
    let mut headers = asking.headers.clone();
    if offers.iter().any(|(provider, _)| asking.trail.has_asked(&provider.slug)) {
        // A client's key is meant for who was asked first.
        for name in ["authorization", "x-api-key", "api-key", "x-goog-api-key"] {
            headers.remove(name);
        }
    }
    let offers = offers.into_iter().filter(|(provider, _)| !asking.trail.has_asked(&provider.slug));
    let asked = Asking {
        policy: policy(app, asking).await?,
        caller: asking.caller.clone(),
        headers,
        key_of: key_of(app, asking),
        offers: offers.collect(),
        request,
        unlimited: UNLIMITED,
    };
    let generated = Box::pin(proxy(app)?.generate(app.gateway.as_ref(), asked)).await?;
    asking.trail.answered(generated.step, generated.entry);
    Ok(generated.deltas)
}

/// Asks a provider of OpenAI's dialect for vectors.
pub(super) async fn embed(
    app: &App,
    offers: Offers,
    asking: &Head,
    request: EmbeddingRequest,
) -> Result<Embeddings, Error> {
    let mut targets = Vec::new();
    for (provider, name) in offers {
        let Some(way) = Task::Embeddings.way(&provider, &name, false) else { continue };
        let body = Bytes::from(upstream::write_embeddings(&request, &way.model));
        targets.push(target(
            Aim::by_name(provider, &way, Task::Embeddings, &way.model),
            &body,
            Some(&scan(&body)?),
        )?);
    }
    if targets.is_empty() {
        let message =
            "The provider of this model has no embeddings in OpenAI's dialect, and others are not translated";
        return Err(Error::new(ErrorKind::Unsupported, message).at("model"));
    }
    let body =
        proxy(app)?.fetch(app.gateway.as_ref(), call(app, asking, Method::POST, targets).await?).await?;
    asking.trail.answered(body.step, body.entry);
    upstream::read_embeddings(&body.body, request.inputs.len())
}

/// `ANY /v1/{account}/{gateway}/{provider}/{*path}`: AI Gateway's way to a provider, and its `compat`.
pub(super) async fn pass(State(app): State<Arc<App>>, request: Request) -> Answered {
    let uri = request.uri().clone();
    let method = request.method().clone();
    // As it was sent: a slash that is written %2F is no slash.
    let mut segments = uri.path().splitn(6, '/').skip(4);
    let (slug, path) = (segments.next().unwrap_or_default(), segments.next().unwrap_or_default());
    let (mut asking, body) = read(&app, request).await?;
    if slug == "compat" {
        return compat(app, asking, &body, &uri, path).await;
    }
    if slug == "workers-ai" {
        return workers(app, asking, body, &uri, path).await;
    }
    let Some(proxy) = &app.config.proxy else { return Err(no_provider(slug).into()) };
    let providers = app.providers(&asking.caller.account).await?;
    let provider = providers.as_ref().and_then(|providers| providers.get(slug));
    let provider = provider.ok_or_else(|| no_provider(slug))?;
    let query = without_key(uri.query(), provider.place, &mut asking.headers);
    let task = Task::of(path);
    let asked = provider.asked(path);
    let is_task = task.is_some() || (asked.model.is_some() && provider.place != Place::Azure);
    let reading = reading(is_task && method == Method::POST, &asking.headers, body.bytes());
    let proves = reading != Reading::Never && wants_proofs(provider, task);
    let proven = if proves { provable(body.bytes(), task) } else { None };
    let body = proven.map_or(body.clone(), |bytes| body.edited(bytes));
    let bytes = body.bytes().clone();
    let found = match reading {
        Reading::Must => Some(body.scan().await?),
        Reading::May => body.scan().await.ok(),
        Reading::Never => None,
    };
    let model = match &found {
        Some(found) => found.string(&bytes, Field::Model).map_err(Error::from)?.map(Cow::into_owned),
        None => None,
    };
    // What the path says goes before; what the body says beside it is the provider's to judge.
    let model = asked.model.or(model).unwrap_or_default();
    let aim = Aim {
        provider: Arc::clone(provider),
        dialect: asked.dialect.or(task.map(Task::dialect)).unwrap_or(provider.dialect),
        task,
        path,
        query: query.as_deref(),
        written: &model.clone(),
        model,
        instead: None,
    };
    let target = target(aim, &bytes, found.as_ref())?;
    Ok(ask(&app, proxy, &asking, method, vec![target]).await?)
}

/// `POST /v1/{account}/{gateway}/compat/…`: OpenAI's dialect in front of every provider, and of the models here as
/// `workers-ai/MODEL`. The version may stand before the path or not.
async fn compat(app: Arc<App>, asking: Head, body: &Body, uri: &Uri, path: &str) -> Answered {
    let task = Task::of(path.trim_start_matches("v1/"));
    let Some(task) = task.filter(|task| task.dialect() == Dialect::OpenAi && *task != Task::Responses) else {
        return Err(no_path(uri));
    };
    let bytes = body.bytes().clone();
    let found = body.scan().await?;
    let mut edits = Edits::none();
    if let Some(model) = found.string(&bytes, Field::Model).map_err(Error::from)?
        && let Some(name) = model.strip_prefix("workers-ai/")
    {
        edits.set(&found, Field::Model, &Value::from(name).to_string());
    }
    let body = body.edited(edits.apply(&bytes).0.concat().into());
    here(app, asking, body, uri, task).await
}

/// `POST /v1/{account}/{gateway}/workers-ai/…`: Workers AI's own routes, native (`run/MODEL`, or `MODEL` alone) and
/// OpenAI's (`v1/…`).
async fn workers(app: Arc<App>, asking: Head, body: Body, uri: &Uri, path: &str) -> Answered {
    if let Some(path) = path.strip_prefix("v1/") {
        let task = Task::of(path).ok_or_else(|| no_path(uri))?;
        return here(app, asking, body, uri, task).await;
    }
    let model = percent_decoded(path.strip_prefix("run/").unwrap_or(path));
    let model = model.filter(|model| !model.is_empty()).ok_or_else(|| no_path(uri))?;
    let input = body.parse(parse_input).await?;
    workers_ai::answer(&app, &asking, &model, input, Form::Rest(InputAt::Root)).await
}

/// A query without the key that Google's clients may write there: it goes where other keys do, so that it is one of
/// ours, which goes nowhere, or the client's own, and never beside another. At other providers `key` may mean anything,
/// and only what looks like a key of ours is taken out.
fn without_key(query: Option<&str>, place: Place, headers: &mut HeaderMap) -> Option<String> {
    const NAME: &str = "x-goog-api-key";
    let google = matches!(place, Place::Gemini | Place::Vertex);
    let stays = |part: &&str| match part.strip_prefix("key=") {
        None => true,
        Some(key) if google => {
            let key = percent_decoded(key).and_then(|key| HeaderValue::from_str(&key).ok());
            if let Some(key) = key.filter(|_| !headers.contains_key(NAME)) {
                headers.insert(NAME, key);
            }
            false
        }
        Some(key) => !key.starts_with(gateway::KEY_PREFIX),
    };
    let kept: Vec<&str> = query?.split('&').filter(stays).collect();
    (!kept.is_empty()).then(|| kept.join("&"))
}

/// A path whose `%XX` are what they stand for; nothing where that is no text.
pub(super) fn percent_decoded(path: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(path.len());
    let mut rest = path.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let digit = |at: usize| more.get(at).and_then(|digit| char::from(*digit).to_digit(16));
        match (first, digit(0), digit(1)) {
            (b'%', Some(high), Some(low)) => {
                bytes.push(u8::try_from(high * 16 + low).expect("two hexadecimal digits are a byte"));
                rest = &more[2..];
            }
            _ => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// Answers as the route of this dialect does.
async fn here(app: Arc<App>, asking: Head, body: Body, uri: &Uri, task: Task) -> Answered {
    let mut request = Request::new(Sent::empty());
    *request.uri_mut() = uri.clone();
    *request.headers_mut() = asking.headers;
    request.headers_mut().remove(header::CONTENT_LENGTH);
    request.extensions_mut().insert(asking.caller);
    request.extensions_mut().insert(asking.trail);
    request.extensions_mut().insert(body);
    match task {
        Task::Chat => openai::chat(State(app), request).await,
        Task::Completions => openai::completions(State(app), request).await,
        Task::Embeddings => openai::embeddings(State(app), request).await,
        Task::Responses => responses::create(State(app), request).await,
        Task::Messages => anthropic::messages(State(app), request).await,
    }
}

fn no_path(uri: &Uri) -> Refusal {
    let shown: String = uri.path().chars().take(200).collect();
    Refusal(Error::new(ErrorKind::RouteNotFound, format!("No route for that URI ({shown})")))
}

fn no_provider(slug: &str) -> Error {
    let shown: String = slug.chars().take(100).collect();
    Error::invalid("provider", format!("Invalid provider: there is no {shown:?} here"))
}

/// Whether a body is read for what it asks.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// It is an object of JSON, or is refused.
    Must,
    /// If it is one.
    May,
    Never,
}

/// How a body is read that goes to a provider's own path. A `task` is a path whose price and limits depend on the body:
/// there it is read whatever its type says, since who is asked may read it so too.
fn reading(task: bool, headers: &HeaderMap, body: &[u8]) -> Reading {
    let kind = headers.get(header::CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    let says_json = kind.windows(4).any(|part| part.eq_ignore_ascii_case(b"json"));
    if task || (says_json && !body.is_empty()) {
        Reading::Must
    } else if body.trim_ascii_start().starts_with(b"{") {
        Reading::May
    } else {
        Reading::Never
    }
}

/// Where a request goes.
pub(super) struct Aim<'a> {
    provider: Arc<Configured>,
    /// What is spoken there.
    dialect: Dialect,
    task: Option<Task>,
    path: &'a str,
    query: Option<&'a str>,
    /// The model as the body names it.
    written: &'a str,
    /// The model's name there.
    model: String,
    /// What stands in the body for the model, where the path names it.
    instead: Option<(&'static str, &'static str)>,
}

impl<'a> Aim<'a> {
    /// At a model by its name.
    pub(super) fn by_name(provider: Arc<Configured>, way: &'a Way, task: Task, written: &'a str) -> Self {
        Self {
            provider,
            dialect: task.dialect(),
            task: Some(task),
            path: &way.path,
            query: way.query.as_deref(),
            written,
            model: way.model.clone(),
            instead: way.instead,
        }
    }
}

/// One who may answer, with the body edited for it.
pub(super) fn target(aim: Aim<'_>, bytes: &Bytes, found: Option<&Scan>) -> Result<Target, Error> {
    let Aim { provider, dialect, task, path, query, written, model, instead } = aim;
    let not_there = || Error::new(ErrorKind::RouteNotFound, "This path cannot be sent to a provider");
    let url = provider.url(path, query).ok_or_else(not_there)?;
    let mut edits = Edits::none();
    let mut strip_usage = false;
    let mut most = None;
    if let Some(found) = found {
        if let Some((name, json)) = instead {
            edits.replace(found, Field::Model, name, json);
        } else if model != written {
            edits.set(found, Field::Model, &Value::from(model.as_str()).to_string());
        }
        let hides = provider.asks_usage && task.is_some_and(Task::hides_usage);
        if hides && found.flag(bytes, Field::Stream)? {
            strip_usage = ask_usage(found, bytes, &mut edits);
        }
        let longest = if task == Some(Task::Embeddings) {
            0
        } else {
            let longest = dialect.longest(found, bytes)?.unwrap_or(UNLIMITED);
            longest.saturating_mul(dialect.answers(found, bytes)?)
        };
        most = Some((longest_prompt(bytes), longest));
    }
    let body = if found.is_some() { edits.apply(bytes) } else { Pieces::from(bytes.clone()) };
    Ok(Target { provider, dialect, model, url, body, strip_usage, most })
}

/// Has a stream tell its usage; whether the client did not ask for that.
fn ask_usage(found: &Scan, bytes: &Bytes, edits: &mut Edits) -> bool {
    let options = found.raw(bytes, Field::StreamOptions);
    let Ok(mut options) = options.map_or(Ok(Map::new()), serde_json::from_slice::<Map<String, Value>>) else {
        // The provider says what is wrong with it.
        return false;
    };
    if options.get("include_usage") == Some(&Value::Bool(true)) {
        return false;
    }
    options.insert("include_usage".to_owned(), true.into());
    edits.set(found, Field::StreamOptions, &Value::from(options).to_string());
    true
}

/// How often each is asked: as the gateway has it, and before that the caller.
async fn policy(app: &App, asking: &Head) -> Result<Policy, Error> {
    let caller = &asking.caller;
    let mut policy = Policy::default();
    if let Some(gateway) = &app.gateway
        && let Ok(named) = gateway.gateway(&caller.account, &caller.gateway).await
    {
        let settings = &named.settings.retry;
        policy.attempts = settings.retry_max_attempts.map_or(policy.attempts, u32::from);
        policy.delay = settings.retry_delay.map_or(policy.delay, |ms| Duration::from_millis(ms.into()));
        policy.backoff = settings.retry_backoff.unwrap_or(policy.backoff);
    }
    policy.asked(&asking.headers)
}

/// Who had to show a key here means another one for the provider; else what stands there may be anything.
fn key_of(app: &App, asking: &Head) -> KeyOf {
    let keyed = asking.caller.key.is_some() || app.config.api_key.is_some();
    if keyed { KeyOf::Client } else { KeyOf::Settings }
}

pub(super) async fn call(
    app: &App,
    asking: &Head,
    method: Method,
    targets: Vec<Target>,
) -> Result<Call, Error> {
    Ok(Call {
        policy: policy(app, asking).await?,
        method,
        headers: asking.headers.clone(),
        key_of: key_of(app, asking),
        targets,
        caller: asking.caller.clone(),
    })
}

pub(super) async fn ask(
    app: &App,
    proxy: &Proxy,
    asking: &Head,
    method: Method,
    targets: Vec<Target>,
) -> Result<Response, Error> {
    let call = call(app, asking, method, targets).await?;
    // A large future, which would be a part of every handler's.
    let (head, body) = Box::pin(proxy.call(app.gateway.as_ref(), call)).await?.into_parts();
    let body = match body {
        AnswerBody::Whole(body) => Sent::from(body),
        AnswerBody::Stream(pieces) => Sent::from_stream(pieces),
    };
    Ok(Response::from_parts(head, body))
}

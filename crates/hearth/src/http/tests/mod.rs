//! The server over real sockets, before a backend that behaves as told.
//!
//! Tests speak HTTP by hand, so that they see what is on the wire: which bytes, cut into which chunks.

mod anthropic;
mod binding;
mod counting;
mod cut;
mod dialects;
mod dlp;
mod faults;
mod gateways;
mod logs;
mod metering;
mod openai;
mod own_providers;
mod policy;
mod providers;
mod rerank;
mod responses;
mod routed;
mod runs;
mod socket;
mod translation;
mod transport;
mod universal;
mod why;
mod workers_ai;

use super::{Config, ModelHealth, ModelState, Status, serve};
use crate::kept::Kept;
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt};
use gateway::Gateway;
use protocol::{
    Backend, Delta, DeltaStream, EmbeddingInput, EmbeddingRequest, Embeddings, Error, ErrorKind,
    FinishReason, GenerateRequest, Input, Logprobs, ModelInfo, ModelTask, Prompt, RerankRequest, Scores,
    Token, TokenLogprob, TokenizeRequest, Usage,
};
use serde_json::Value;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinHandle;

/// Answers with the words of the prompt. Some prompts make it behave otherwise: `full`, `long`, `schema`, `toolless`, `panic`, `panic later`,
/// `fail later`, `cut`, `hang` (one word, then nothing for ever), `told` (what the test sends).
struct Fake {
    models: Vec<ModelInfo>,
    ready: AtomicBool,
    requests: Mutex<Vec<GenerateRequest>>,
    told: Mutex<Option<mpsc::Receiver<Result<Delta, Error>>>>,
    dropped: AtomicUsize,
    drop_seen: Notify,
}

/// Counts a stream that is dropped.
struct Watched(Arc<Fake>);

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.dropped.fetch_add(1, Ordering::SeqCst);
        self.0.drop_seen.notify_one();
    }
}

/// The handle that the server gets.
struct Handle(Arc<Fake>);

/// What an answer that the test tells begins with.
const STARTED: Delta = Delta::Started { prompt_tokens: 1, cached_tokens: 1 };

fn text(choice: u32, text: &str) -> Delta {
    Delta::Text { choice, text: text.to_owned(), logprobs: Vec::new() }
}

fn token(text: &str) -> Logprobs {
    let chosen =
        TokenLogprob { token: text.to_owned(), bytes: text.as_bytes().to_vec(), id: 7, logprob: -0.5 };
    Logprobs { top: vec![chosen.clone()], chosen }
}

fn usage(prompt_tokens: u32, completion_tokens: u32) -> Delta {
    Delta::Usage(Usage { prompt_tokens, cached_tokens: 1, completion_tokens, ..Usage::default() })
}

/// The words of a text, each with the space before it.
fn words(prompt: &str) -> Vec<String> {
    let first = prompt.split(' ').next().map(str::to_owned);
    first.into_iter().chain(prompt.split(' ').skip(1).map(|word| format!(" {word}"))).collect()
}

impl Backend for Handle {
    fn models(&self) -> Vec<ModelInfo> {
        self.0.models.clone()
    }

    fn generate(&self, request: GenerateRequest) -> BoxFuture<'_, Result<DeltaStream, Error>> {
        let fake = Arc::clone(&self.0);
        Box::pin(async move {
            fake.requests.lock().unwrap().push(request.clone());
            if request.model != "echo" && request.model != "@cf/test/echo" {
                return Err(Error::new(ErrorKind::ModelNotFound, "no such model"));
            }
            let prompt = match &request.input {
                Input::Chat(messages) => messages.last().unwrap().content.joined_text(),
                Input::Prompt(Prompt::Text(text)) => text.clone(),
                Input::Prompt(Prompt::Tokens(ids)) => ids.iter().map(|id| format!("t{id}")).collect(),
            };
            let watched = Watched(Arc::clone(&fake));
            let answer: DeltaStream = match prompt.as_str() {
                "full" => {
                    let error = Error::new(ErrorKind::Overloaded, "the queue is full at 3 requests");
                    return Err(error.retry_after(Duration::from_millis(1500)));
                }
                "toolless" => return Err(Error::new(ErrorKind::Unsupported, "no tools here").at("tools")),
                "schema" => {
                    let at = "tools[0].function.parameters/properties/x";
                    return Err(Error::invalid(at, format!("{at}: this keyword is not supported")));
                }
                "long" => return Err(Error::new(ErrorKind::ContextLength, "10 tokens, at most 5")),
                "panic" => panic!("told to"),
                "panic later" => {
                    stream::iter([Ok(STARTED)]).chain(stream::once(async { panic!("told to") })).boxed()
                }
                "fail later" => {
                    let error = Error::new(ErrorKind::Unavailable, "the engine failed");
                    stream::iter([Ok(STARTED), Ok(text(0, "one")), Err(error)]).boxed()
                }
                "cut" => stream::iter([Ok(STARTED), Ok(text(0, "one"))]).boxed(),
                "hang" => stream::iter([Ok(STARTED), Ok(text(0, "one"))]).chain(stream::pending()).boxed(),
                "told" => {
                    let receiver = fake.told.lock().unwrap().take().unwrap();
                    stream::unfold(receiver, |mut receiver| async {
                        Some((receiver.recv().await?, receiver))
                    })
                    .boxed()
                }
                _ => stream::iter(echo(&request, &prompt).into_iter().map(Ok)).boxed(),
            };
            Ok(answer
                .map(move |delta| {
                    let _ = &watched;
                    delta
                })
                .boxed())
        })
    }

    fn count(&self, request: GenerateRequest) -> BoxFuture<'_, Result<u32, Error>> {
        Box::pin(async move {
            if request.model != "echo" {
                return Err(Error::new(ErrorKind::ModelNotFound, "no such model"));
            }
            let Input::Chat(messages) = &request.input else { return Ok(1) };
            Ok(messages.iter().map(|message| words(&message.content.joined_text()).len() as u32).sum())
        })
    }

    fn prompt(&self, request: GenerateRequest) -> BoxFuture<'_, Result<Vec<Token>, Error>> {
        let Input::Chat(messages) = &request.input else { panic!("a conversation") };
        let text: Vec<String> = messages.iter().map(|message| message.content.joined_text()).collect();
        let tokens = words(&text.join(" ")).into_iter().map(|text| Token { id: text.len() as u32, text });
        let tokens = tokens.collect();
        Box::pin(async move { Ok(tokens) })
    }

    fn tokenize(&self, request: TokenizeRequest) -> BoxFuture<'_, Result<Vec<Token>, Error>> {
        let special = request.add_special.then(|| Token { id: 1, text: "<s>".to_owned() });
        let tokens = words(&request.text).into_iter().map(|text| Token { id: text.len() as u32, text });
        let tokens = special.into_iter().chain(tokens).collect();
        Box::pin(async move { Ok(tokens) })
    }

    fn detokenize(&self, _model: String, ids: Vec<u32>) -> BoxFuture<'_, Result<String, Error>> {
        Box::pin(async move { Ok(ids.iter().map(|id| format!("t{id}")).collect()) })
    }

    fn rerank(&self, request: RerankRequest) -> BoxFuture<'_, Result<Scores, Error>> {
        Box::pin(async move {
            if request.query == "long" {
                return Err(Error::new(ErrorKind::ContextLength, "10 tokens, at most 5").at("query"));
            }
            if let Some(index) = request.documents.iter().position(|document| document == "odd") {
                let at = format!("documents[{index}]");
                return Err(Error::invalid(&at, format!("{at} is odd")));
            }
            let score = |document: &String| 1.0 / (1.0 + document.len() as f32);
            Ok(Scores { scores: request.documents.iter().map(score).collect(), prompt_tokens: 5 })
        })
    }

    fn embed(&self, request: EmbeddingRequest) -> BoxFuture<'_, Result<Embeddings, Error>> {
        Box::pin(async move {
            let vector = |input: &EmbeddingInput| match input {
                EmbeddingInput::Text(text) => vec![text.len() as f32, 0.5],
                EmbeddingInput::Tokens(ids) => vec![ids.len() as f32, -0.5],
            };
            Ok(Embeddings { vectors: request.inputs.iter().map(vector).collect(), prompt_tokens: 5 })
        })
    }
}

fn echo(request: &GenerateRequest, prompt: &str) -> Vec<Delta> {
    let mut deltas = vec![Delta::Started { prompt_tokens: words(prompt).len() as u32, cached_tokens: 1 }];
    if request.prompt_logprobs.is_some() {
        deltas.push(Delta::PromptLogprobs(words(prompt).iter().map(|word| token(word)).collect()));
    }
    let words = words(prompt);
    let most = request.max_tokens.unwrap_or(u32::MAX) as usize;
    let reason = if most < words.len() { FinishReason::Length } else { FinishReason::Stop };
    let mut completion_tokens = 0;
    for choice in 0..request.choices {
        for word in words.iter().take(most) {
            completion_tokens += 1;
            let logprobs = request.logprobs.map(|_| token(word)).into_iter().collect();
            deltas.push(Delta::Text { choice, text: word.clone(), logprobs });
        }
        deltas.push(Delta::Finish { choice, reason, stop_text: None });
    }
    deltas.push(usage(words.len() as u32, completion_tokens));
    deltas
}

impl Status for Handle {
    fn metrics(&self) -> String {
        "fake_metric 1\n".to_owned()
    }

    fn health(&self) -> Vec<ModelHealth> {
        let state = if self.0.ready.load(Ordering::SeqCst) { ModelState::Ready } else { ModelState::Loading };
        vec![ModelHealth { id: "echo".to_owned(), state, detail: None }]
    }
}

fn model(id: &str, alias: &str, task: ModelTask) -> ModelInfo {
    ModelInfo {
        id: id.to_owned(),
        aliases: vec![alias.to_owned()],
        task,
        description: "For tests".to_owned(),
        context: 2048,
        dimensions: (task == ModelTask::TextEmbeddings).then_some(2),
        tools: false,
        price: None,
        created: 1_770_026_400,
        ready: true,
    }
}

/// A running server.
struct Server {
    address: SocketAddr,
    fake: Arc<Fake>,
    stop: oneshot::Sender<()>,
    running: JoinHandle<anyhow::Result<()>>,
}

impl Server {
    async fn start() -> Self {
        Self::with(Config::default()).await
    }

    async fn with(config: Config) -> Self {
        let clock = Arc::new(base::SystemClock::default());
        Self::keeping(config, Kept::nothing("it is a test", clock)).await
    }

    async fn keeping(config: Config, kept: Kept) -> Self {
        Self::behind(config, kept, None).await
    }

    async fn behind(config: Config, kept: Kept, gateway: Option<Gateway>) -> Self {
        let fake = Arc::new(Fake {
            models: vec![
                model("echo", "@cf/test/echo", ModelTask::TextGeneration),
                model("vectors", "@cf/test/vectors", ModelTask::TextEmbeddings),
                model("ranker", "@cf/test/ranker", ModelTask::Rerank),
            ],
            ready: AtomicBool::new(true),
            requests: Mutex::default(),
            told: Mutex::default(),
            dropped: AtomicUsize::new(0),
            drop_seen: Notify::new(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let backend = Arc::new(Handle(Arc::clone(&fake)));
        let status = Arc::new(Handle(Arc::clone(&fake)));
        let running = tokio::spawn(serve(config, backend, status, kept, gateway, listener, stopped));
        Self { address, fake, stop, running }
    }

    /// Lets the test say the deltas of the prompt `told`.
    fn tell(&self) -> mpsc::Sender<Result<Delta, Error>> {
        let (sender, receiver) = mpsc::channel(1);
        *self.fake.told.lock().unwrap() = Some(receiver);
        sender
    }

    async fn connect(&self) -> Wire {
        Wire(BufReader::new(TcpStream::connect(self.address).await.unwrap()))
    }

    /// One request on a connection of its own.
    async fn send(&self, method: &str, path: &str, headers: &[&str], body: &[u8]) -> Reply {
        let mut wire = self.connect().await;
        wire.request(method, path, headers, body).await;
        wire.reply().await
    }

    async fn get(&self, path: &str) -> Reply {
        self.send("GET", path, &[], b"").await
    }

    async fn post(&self, path: &str, body: impl AsRef<[u8]>) -> Reply {
        self.send("POST", path, &[], body.as_ref()).await
    }

    /// The request the backend saw last.
    fn seen(&self) -> GenerateRequest {
        self.fake.requests.lock().unwrap().last().unwrap().clone()
    }

    async fn stop(self) {
        self.stop.send(()).unwrap();
        self.running.await.unwrap().unwrap();
    }
}

/// One connection, spoken by hand.
struct Wire(BufReader<TcpStream>);

/// A whole response.
#[derive(Debug)]
struct Reply {
    status: u16,
    headers: Vec<(String, String)>,
    body: String,
}

impl Reply {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    #[track_caller]
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|_| panic!("no JSON: {self:?}"))
    }

    /// The data of the events of a stream.
    fn events(&self) -> Vec<&str> {
        self.body.split("\n\n").filter_map(|event| event.strip_prefix("data: ")).collect()
    }
}

impl Wire {
    async fn write(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).await.unwrap();
    }

    async fn request(&mut self, method: &str, path: &str, headers: &[&str], body: &[u8]) {
        let mut head = format!("{method} {path} HTTP/1.1\r\n");
        if !headers.iter().any(|header| header.to_lowercase().starts_with("host:")) {
            head.push_str("host: localhost\r\n");
        }
        for header in headers {
            head.push_str(&format!("{header}\r\n"));
        }
        head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
        self.write(&[head.as_bytes(), body].concat()).await;
    }

    async fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).await.unwrap();
        line.trim_end().to_owned()
    }

    async fn head(&mut self) -> (u16, Vec<(String, String)>) {
        let status = self.line().await;
        let status =
            status.split(' ').nth(1).unwrap_or_else(|| panic!("no status: {status:?}")).parse().unwrap();
        let mut headers = Vec::new();
        loop {
            let line = self.line().await;
            let Some((name, value)) = line.split_once(": ") else { return (status, headers) };
            headers.push((name.to_owned(), value.to_owned()));
        }
    }

    /// One chunk of a chunked body; empty at the end.
    async fn chunk(&mut self) -> String {
        let size = usize::from_str_radix(&self.line().await, 16).unwrap();
        let mut chunk = vec![0; size + 2];
        self.0.read_exact(&mut chunk).await.unwrap();
        chunk.truncate(size);
        String::from_utf8(chunk).unwrap()
    }

    async fn reply(&mut self) -> Reply {
        let (status, headers) = self.head().await;
        let mut reply = Reply { status, headers, body: String::new() };
        if let Some(length) = reply.header("content-length") {
            let mut body = vec![0; length.parse().unwrap()];
            self.0.read_exact(&mut body).await.unwrap();
            reply.body = String::from_utf8(body).unwrap();
        } else if reply.header("transfer-encoding") == Some("chunked") {
            loop {
                let chunk = self.chunk().await;
                if chunk.is_empty() {
                    break;
                }
                reply.body.push_str(&chunk);
            }
        }
        reply
    }
}

/// A chat body with one user message.
fn chat(prompt: &str, more: &str) -> String {
    format!(r#"{{"model":"echo","messages":[{{"role":"user","content":"{prompt}"}}]{more}}}"#)
}

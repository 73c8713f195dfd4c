//! All models of this process behind one [`Backend`]: loading, finding by id, health, shutting down.
//!
//! Models share one device (one pool of threads) and one budget of KV memory. Each has a thread that owns it.

use crate::driver::{Driver, Rebuild};
use crate::embed::{Embedder, VectorModel};
use crate::grammar::Grammars;
use crate::inbox::{Inbox, unavailable};
use crate::memory::TurnMemory;
use crate::metrics::{Metrics, RequestStats};
use crate::pace::StepTime;
use crate::rerank::{PairModel, Pairs, Reranker};
use crate::script::{Cues, Script, ScriptError};
use crate::template::{ChatTemplate, ControlTexts};
use crate::text::TextModel;
use crate::worker::{Computes as _, Reload};
use crate::{machine, source, tools};
use base::{Bytes, Clock, Price, RequestId, Tokens};
use engine::{Engine, KvBudget};
use futures::FutureExt as _;
use futures::future::BoxFuture;
use kernels::{Cpu, CpuConfig};
use models::checkpoint::GenerationDefaults;
use models::{
    Checkpoint, KvFormat, LanguageModel, LoadFormat, LoadOptions, Loaded, PackedFolder, PackedWrite,
};
use protocol::{
    Backend, DeltaStream, EmbeddingRequest, Embeddings, Error, GenerateRequest, ModelInfo, ModelTask,
    RerankRequest, Scores, Token, TokenizeRequest, no_such_model,
};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread::JoinHandle;
use std::time::Duration;
use tokenizer::Tokenizer;

/// Memory for the answers that a model remembers, and the same for those with calls and thoughts.
const TURN_MEMORY: Bytes = Bytes(16 << 20);
/// How long a thread may take to end after its work was taken from it: one step of a slow model.
const LAST_STEP: Duration = Duration::from_secs(10);
/// Why a model that failed is not loaded again.
const OTHER_TASK: &str = "the files now hold a model of another task";

/// Settings that hold for all models.
#[derive(Clone, Debug)]
pub struct LocalConfig {
    /// Threads that compute; `None` takes what the machine has.
    pub threads: Option<usize>,
    /// Memory for the KV pages of all models; `None` takes half of what is available.
    pub kv_memory: Option<Bytes>,
    /// How keys and values are kept.
    pub kv_format: KvFormat,
    /// A lower limit on a sequence's tokens than the models' own.
    pub context: Option<Tokens>,
    /// Most requests that wait, per model.
    pub queue: usize,
    /// Rows that a step computes at most.
    pub step_tokens: Tokens,
    /// Where packed weights are kept for the next start; `None` packs at every start.
    pub packed: Option<PackedFolder>,
    /// How long a step with rows of prompts may take while answers are being written.
    pub step_time: StepTime,
    /// Whether tokens are drafted from what was said before.
    pub speculation: bool,
}

impl Default for LocalConfig {
    fn default() -> Self {
        let engine = engine::Config::default();
        Self {
            threads: None,
            kv_memory: None,
            kv_format: KvFormat::default(),
            context: None,
            queue: engine.queue,
            step_tokens: engine.step_tokens,
            packed: None,
            step_time: StepTime::Auto,
            speculation: engine.speculation,
        }
    }
}

/// A model to load.
#[derive(Clone, Debug)]
pub struct ModelSource {
    /// The id callers use.
    pub id: String,
    /// Other ids that mean it.
    pub aliases: Vec<String>,
    /// A GGUF file, a safetensors file, or a folder as Hugging Face lays them out.
    pub path: PathBuf,
    /// Whether float weights are quantised while they are loaded.
    pub format: LoadFormat,
    /// What it costs, where a price is set.
    pub price: Option<Price>,
    /// One line about it.
    pub description: String,
    /// Sampling settings that go before the checkpoint's own.
    pub defaults: GenerationDefaults,
}

/// A language model made elsewhere, for [`Local::attach`].
pub struct TextParts {
    /// Its tokenizer.
    pub tokenizer: Tokenizer,
    /// Its chat template.
    pub template: Option<String>,
    /// Its makers' sampling settings.
    pub defaults: GenerationDefaults,
    /// The model.
    pub model: Box<dyn LanguageModel>,
    /// Makes the model again after a failure that it did not survive.
    pub reload: Box<dyn FnMut() -> Result<Box<dyn LanguageModel>, String> + Send>,
}

/// Why a model could not be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// More KV memory was asked for than there can be.
    #[error("the KV memory of {asked} is more than this machine has ({machine})")]
    KvMemory {
        /// What was asked for.
        asked: Bytes,
        /// What there is in all, for this process.
        machine: Bytes,
    },
    /// The device could not be made.
    #[error(transparent)]
    Device(#[from] kernels::CpuError),
    /// The files could not be read.
    #[error(transparent)]
    Checkpoint(#[from] models::CheckpointError),
    /// The model in them does not run.
    #[error(transparent)]
    Model(#[from] models::LoadError),
    /// The tokenizer could not be read.
    #[error("the tokenizer: {0}")]
    Tokenizer(#[from] tokenizer::Error),
    /// There is none.
    #[error("the model comes without a tokenizer (tokenizer.json, or tokenizer.ggml.* in GGUF)")]
    NoTokenizer,
    /// The script cannot be replayed.
    #[error(transparent)]
    Script(#[from] ScriptError),
    /// The KV budget is too small for the model.
    #[error(transparent)]
    Engine(#[from] engine::Error),
    /// It reranks, and its tokenizer does not say how.
    #[error("the tokenizer does not say how a query and a document are put together (post_processor)")]
    NoPairs,
    /// A thread could not be started.
    #[error("a thread could not be started: {0}")]
    Thread(#[from] std::io::Error),
    /// The name is taken.
    #[error("there is a model with the id or alias {0:?} already")]
    Duplicate(String),
}

/// What one model is doing.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelStats {
    /// The model's id.
    pub id: String,
    /// Whether it can answer.
    pub ready: bool,
    /// Its engine, for a language model: queue, running, pages, token counts.
    pub engine: Option<engine::Stats>,
    /// Its requests.
    pub requests: RequestStats,
}

/// All models of this process.
pub struct Local {
    config: LocalConfig,
    cpu: Cpu,
    budget: Arc<KvBudget>,
    clock: Arc<dyn Clock>,
    models: RwLock<Vec<Entry>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    next_id: AtomicU64,
    closing: AtomicBool,
}

#[derive(Clone)]
struct Entry {
    info: Arc<ModelInfo>,
    model: Model,
    metrics: Arc<Metrics>,
}

#[derive(Clone)]
enum Model {
    Text(Arc<TextModel>),
    Embedding(Arc<Embedder>),
    Rerank(Arc<Reranker>),
}

impl Local {
    /// Starts the device; no model is loaded yet.
    pub fn new(config: LocalConfig, clock: Arc<dyn Clock>) -> Result<Arc<Self>, LoadError> {
        let cpu = Cpu::new(CpuConfig { threads: config.threads, isa: None })?;
        // Pages are taken when they are needed: a promise that cannot be kept would be found out hours later.
        if let (Some(asked), Some(machine)) = (config.kv_memory, machine::memory())
            && asked > machine
        {
            return Err(LoadError::KvMemory { asked, machine });
        }
        let budget = Arc::new(KvBudget::new(config.kv_memory.unwrap_or_else(machine::kv_memory)));
        Ok(Arc::new(Self {
            config,
            cpu,
            budget,
            clock,
            models: RwLock::default(),
            threads: Mutex::default(),
            next_id: AtomicU64::new(1),
            closing: AtomicBool::new(false),
        }))
    }

    /// What a person should read about the device.
    #[must_use]
    pub fn describe(&self) -> String {
        let threads = self.cpu.threads();
        format!(
            "{} with {threads} thread{}, {} for KV pages",
            self.cpu.isa().name(),
            if threads == 1 { "" } else { "s" },
            self.budget.total()
        )
    }

    /// The memory that all models' KV pages share.
    #[must_use]
    pub fn kv_budget(&self) -> &KvBudget {
        &self.budget
    }

    /// Loads a model and answers for it from then on. `progress` is told bytes done and in all.
    pub fn load(&self, source: ModelSource, progress: &mut dyn FnMut(u64, u64)) -> Result<(), LoadError> {
        self.check_names(&source)?;
        let checkpoint = Checkpoint::open(&source.path)?;
        let options = LoadOptions { weights: source.format, kv: self.config.kv_format };
        // Neither needs the other, and reading a large vocabulary takes about as long as mapping the weights.
        let (tokenizer, loaded) = std::thread::scope(|scope| {
            let tokenizer = scope.spawn(|| source::tokenizer_of(&checkpoint));
            let loaded = load_weights(&checkpoint, &self.cpu, options, self.config.packed.as_ref(), progress);
            let tokenizer = tokenizer.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            (tokenizer, loaded)
        });
        let (tokenizer, (loaded, write)) = (tokenizer?, loaded?);
        if let Some(write) = write {
            self.keep_packed(&source.id, write)?;
        }
        let again = {
            let (path, cpu) = (source.path.clone(), self.cpu.clone());
            let packed = self.config.packed.clone();
            move || load_again(&path, &cpu, options, packed.as_ref())
        };
        match loaded {
            Loaded::Language(model) => {
                let parts = TextParts {
                    tokenizer,
                    template: checkpoint.chat_template(),
                    defaults: source.defaults.clone().over(checkpoint.generation_defaults()?),
                    model,
                    reload: Box::new(move || match again()? {
                        Loaded::Language(model) => Ok(model),
                        Loaded::Embedding(_) | Loaded::Rerank(_) => Err(OTHER_TASK.to_owned()),
                    }),
                };
                drop(checkpoint);
                self.attach(source, parts)
            }
            Loaded::Embedding(model) => {
                let reload: Reload<VectorModel> = Box::new(move || match again()? {
                    Loaded::Embedding(model) => Ok(VectorModel(model)),
                    Loaded::Language(_) | Loaded::Rerank(_) => Err(OTHER_TASK.to_owned()),
                });
                drop(checkpoint);
                self.attach_embedding(source, VectorModel(model), reload, tokenizer)
            }
            Loaded::Rerank(model) => {
                let reload: Reload<PairModel> = Box::new(move || match again()? {
                    Loaded::Rerank(model) => Ok(PairModel(model)),
                    Loaded::Language(_) | Loaded::Embedding(_) => Err(OTHER_TASK.to_owned()),
                });
                drop(checkpoint);
                self.attach_reranker(source, PairModel(model), reload, tokenizer)
            }
        }
    }

    /// Reads a script (`docs/scripts.md`) and answers for its model from then on; `source.path` is the file.
    pub fn load_script(&self, source: ModelSource) -> Result<(), LoadError> {
        self.check_names(&source)?;
        let script = Script::open(&source.path)?;
        let mut again = script.models();
        let parts = TextParts {
            defaults: source.defaults.clone().over(script.defaults),
            template: Some(script.template),
            tokenizer: script.tokenizer,
            model: again(),
            reload: Box::new(move || Ok(again())),
        };
        self.attach_with(source, parts, Some(script.cues))
    }

    /// Answers for a language model that was made elsewhere; `source.path` is not read.
    pub fn attach(&self, source: ModelSource, parts: TextParts) -> Result<(), LoadError> {
        self.attach_with(source, parts, None)
    }

    fn attach_with(
        &self,
        source: ModelSource,
        parts: TextParts,
        cues: Option<Arc<Cues>>,
    ) -> Result<(), LoadError> {
        self.check_names(&source)?;
        let TextParts { tokenizer, template, defaults, model, mut reload } = parts;
        let spec = model.spec().clone();
        let vocab = spec.vocab;
        let config = engine::Config {
            step_tokens: self.config.step_tokens,
            queue: self.config.queue,
            context: self.config.context,
            speculation: self.config.speculation,
            ..engine::Config::default()
        };
        let in_flight = config.queue.saturating_add(config.max_running);
        let engine = Engine::new(model, Arc::clone(&self.budget), config.clone())?;
        let context = engine.context();
        let budget = Arc::clone(&self.budget);
        let rebuild: Rebuild = Box::new(move || {
            let model = reload()?;
            // Tokenizer, template and requests are the old one's.
            if *model.spec() != spec {
                return Err("the files now hold another model".to_owned());
            }
            Engine::new(model, Arc::clone(&budget), config.clone()).map_err(|error| error.to_string())
        });
        let family = tools::family(template.as_deref(), &tokenizer);
        let marks = family.markers().into_iter().filter_map(|mark| tokenizer.token_id(mark));
        let shown: Arc<[u32]> = marks.filter(|id| tokenizer.is_control(*id)).collect();
        let template = match template {
            Some(text) => chat_template(&text, &tokenizer),
            None => {
                Err("this model has no chat template; use /v1/completions with a whole prompt".to_owned())
            }
        };
        // Where the template knows no tools, the family's prompt tells them.
        let takes_tools = template.is_ok();
        let ends = tokenizer.end_tokens().iter().chain(&defaults.end_tokens).copied();
        let mut stop_tokens: Vec<u32> = ends.filter(|id| *id < vocab).collect();
        stop_tokens.sort_unstable();
        stop_tokens.dedup();
        let inbox = Inbox::new(in_flight);
        let metrics = Arc::new(Metrics::default());
        let driver = Driver {
            model: source.id.clone(),
            engine,
            step_time: self.config.step_time,
            rebuild,
            inbox: Arc::clone(&inbox),
            metrics: Arc::clone(&metrics),
            clock: Arc::clone(&self.clock),
        };
        let name = format!("engine {}", source.id);
        self.keep(std::thread::Builder::new().name(name).spawn(move || driver.run())?);
        let model = TextModel {
            grammars: Grammars::new(tokenizer.clone(), vocab, stop_tokens.clone()),
            tokenizer,
            template,
            family,
            shown,
            defaults,
            stop_tokens,
            vocab,
            context,
            memory: Arc::new(TurnMemory::new(TURN_MEMORY)),
            inbox,
            aside: crate::aside::Aside::default(),
            metrics: Arc::clone(&metrics),
            clock: Arc::clone(&self.clock),
            salts: std::hash::RandomState::new(),
            cues,
        };
        self.publish(source, Model::Text(Arc::new(model)), metrics, takes_tools);
        Ok(())
    }

    /// Answers for an embedding model.
    fn attach_embedding(
        &self,
        source: ModelSource,
        model: VectorModel,
        reload: Reload<VectorModel>,
        tokenizer: Tokenizer,
    ) -> Result<(), LoadError> {
        let metrics = Arc::new(Metrics::default());
        let queue = self.config.queue;
        let (embedder, thread) =
            Embedder::start(&source.id, model, reload, tokenizer, queue, Arc::clone(&metrics))?;
        self.keep(thread);
        self.publish(source, Model::Embedding(Arc::new(embedder)), metrics, false);
        Ok(())
    }

    /// Answers for a reranker.
    fn attach_reranker(
        &self,
        source: ModelSource,
        model: PairModel,
        reload: Reload<PairModel>,
        tokenizer: Tokenizer,
    ) -> Result<(), LoadError> {
        let metrics = Arc::new(Metrics::default());
        let pairs = Pairs::new(tokenizer, model.spec()).ok_or(LoadError::NoPairs)?;
        let (reranker, thread) =
            Reranker::start(&source.id, model, reload, pairs, self.config.queue, Arc::clone(&metrics))?;
        self.keep(thread);
        self.publish(source, Model::Rerank(Arc::new(reranker)), metrics, false);
        Ok(())
    }

    /// Writes packed weights while the model already answers: a start need not wait for its successor's sake.
    fn keep_packed(&self, model: &str, write: PackedWrite) -> Result<(), LoadError> {
        let name = model.to_owned();
        let work = move || {
            let path = write.path().display().to_string();
            match write.run() {
                Ok(Some(size)) => tracing::info!(model = %name, %path, %size, "kept the packed weights"),
                Ok(None) => tracing::info!(model = %name, %path, "another process keeps the packed weights"),
                Err(error) => {
                    tracing::warn!(model = %name, %path, %error, "the packed weights cannot be kept");
                }
            }
        };
        self.keep(std::thread::Builder::new().name(format!("packed {model}")).spawn(work)?);
        Ok(())
    }

    fn publish(&self, source: ModelSource, model: Model, metrics: Arc<Metrics>, tools: bool) {
        let (task, context, dimensions) = match &model {
            Model::Text(text) => (ModelTask::TextGeneration, text.context, None),
            Model::Embedding(embedder) => {
                let spec = embedder.spec();
                (ModelTask::TextEmbeddings, spec.context, Some(spec.dimensions))
            }
            Model::Rerank(reranker) => (ModelTask::Rerank, reranker.spec().context, None),
        };
        let info = ModelInfo {
            id: source.id,
            aliases: source.aliases,
            task,
            description: source.description,
            context: context.0,
            dimensions,
            tools,
            price: source.price,
            created: self.clock.unix_seconds(),
            ready: true,
        };
        let entry = Entry { info: Arc::new(info), model, metrics };
        self.models.write().unwrap_or_else(PoisonError::into_inner).push(entry);
    }

    fn check_names(&self, source: &ModelSource) -> Result<(), LoadError> {
        let mut names = std::iter::once(&source.id).chain(&source.aliases);
        match names.find(|name| self.find(name).is_some()) {
            Some(name) => Err(LoadError::Duplicate(name.clone())),
            None => Ok(()),
        }
    }

    fn keep(&self, thread: JoinHandle<()>) {
        self.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
    }

    fn entries(&self) -> Vec<Entry> {
        self.models.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn find(&self, name: &str) -> Option<Entry> {
        let models = self.models.read().unwrap_or_else(PoisonError::into_inner);
        let named =
            |entry: &&Entry| entry.info.id == name || entry.info.aliases.iter().any(|alias| alias == name);
        models.iter().find(named).cloned()
    }

    fn require(&self, name: &str) -> Result<Entry, Error> {
        if self.closing.load(Ordering::Acquire) {
            return Err(unavailable("the server is shutting down"));
        }
        self.find(name).ok_or_else(|| {
            let entries = self.entries();
            let here: Vec<&str> = entries.iter().map(|entry| entry.info.id.as_str()).collect();
            no_such_model(name, &here)
        })
    }

    fn text(&self, name: &str) -> Result<Arc<TextModel>, Error> {
        match self.require(name)?.model {
            Model::Text(text) => Ok(text),
            Model::Embedding(_) => Err(Error::invalid(
                "model",
                format!("{name} is an embedding model and does not generate text"),
            )),
            Model::Rerank(_) => {
                Err(Error::invalid("model", format!("{name} is a reranker and does not generate text")))
            }
        }
    }

    /// What each model is doing.
    #[must_use]
    pub fn stats(&self) -> Vec<ModelStats> {
        let stats = |entry: Entry| ModelStats {
            id: entry.info.id.clone(),
            ready: entry.model.is_ready(),
            engine: entry.model.engine(),
            requests: entry.metrics.stats(),
        };
        self.entries().into_iter().map(stats).collect()
    }

    /// Takes no new requests, gives those in flight so long to end, then ends them and all threads.
    pub async fn shutdown(&self, limit: Duration) {
        self.closing.store(true, Ordering::Release);
        let entries = self.entries();
        let inboxes: Vec<Arc<Inbox>> = entries.iter().filter_map(|entry| entry.model.inbox()).collect();
        let quiet = futures::future::join_all(inboxes.iter().map(|inbox| inbox.idle()));
        let _ = tokio::time::timeout(limit, quiet).await;
        for inbox in &inboxes {
            inbox.close();
        }
        // The thread of an embedding model or a reranker ends when its last handle is gone.
        drop(entries);
        self.models.write().unwrap_or_else(PoisonError::into_inner).clear();
        let threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        let joined =
            tokio::task::spawn_blocking(move || threads.into_iter().for_each(|thread| drop(thread.join())));
        let _ = tokio::time::timeout(LAST_STEP, joined).await;
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        for inbox in self.entries().iter().filter_map(|entry| entry.model.inbox()) {
            inbox.close();
        }
    }
}

impl Model {
    fn inbox(&self) -> Option<Arc<Inbox>> {
        match self {
            Self::Text(text) => Some(Arc::clone(&text.inbox)),
            Self::Embedding(_) | Self::Rerank(_) => None,
        }
    }

    fn engine(&self) -> Option<engine::Stats> {
        self.inbox().map(|inbox| inbox.stats())
    }

    fn is_ready(&self) -> bool {
        match self {
            Self::Text(text) => text.inbox.is_ready(),
            Self::Embedding(embedder) => embedder.is_ready(),
            Self::Rerank(reranker) => reranker.is_ready(),
        }
    }
}

impl Backend for Local {
    fn models(&self) -> Vec<ModelInfo> {
        let closing = self.closing.load(Ordering::Acquire);
        let info =
            |entry: Entry| ModelInfo { ready: !closing && entry.model.is_ready(), ..(*entry.info).clone() };
        self.entries().into_iter().map(info).collect()
    }

    fn generate(&self, request: GenerateRequest) -> BoxFuture<'_, Result<DeltaStream, Error>> {
        async move {
            let text = self.text(&request.model)?;
            let id = RequestId(self.next_id.fetch_add(1, Ordering::Relaxed));
            text.generate(id, request).await
        }
        .boxed()
    }

    fn count(&self, request: GenerateRequest) -> BoxFuture<'_, Result<u32, Error>> {
        async move { self.text(&request.model)?.count(request).await }.boxed()
    }

    fn prompt(&self, request: GenerateRequest) -> BoxFuture<'_, Result<Vec<Token>, Error>> {
        async move { self.text(&request.model)?.prompt(request).await }.boxed()
    }

    fn tokenize(&self, request: TokenizeRequest) -> BoxFuture<'_, Result<Vec<Token>, Error>> {
        async move { self.text(&request.model)?.tokenize(request).await }.boxed()
    }

    fn detokenize(&self, model: String, ids: Vec<u32>) -> BoxFuture<'_, Result<String, Error>> {
        async move { self.text(&model)?.detokenize(&ids) }.boxed()
    }

    fn rerank(&self, request: RerankRequest) -> BoxFuture<'_, Result<Scores, Error>> {
        async move {
            match self.require(&request.model)?.model {
                Model::Rerank(reranker) => reranker.rerank(request).await,
                // How near two vectors are is another question than whether a text answers a query.
                Model::Text(_) | Model::Embedding(_) => {
                    let message = format!("{} is not a model that reranks", request.model);
                    Err(Error::invalid("model", message))
                }
            }
        }
        .boxed()
    }

    fn embed(&self, request: EmbeddingRequest) -> BoxFuture<'_, Result<Embeddings, Error>> {
        async move {
            match self.require(&request.model)?.model {
                Model::Embedding(embedder) => embedder.embed(request).await,
                Model::Text(_) => {
                    let message = format!("{} generates text and does not make embeddings", request.model);
                    Err(Error::invalid("model", message))
                }
                Model::Rerank(_) => {
                    let message = format!("{} is a reranker and does not make embeddings", request.model);
                    Err(Error::invalid("model", message))
                }
            }
        }
        .boxed()
    }
}

fn load_weights(
    checkpoint: &Checkpoint,
    cpu: &Cpu,
    options: LoadOptions,
    packed: Option<&PackedFolder>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(Loaded, Option<PackedWrite>), models::LoadError> {
    match packed {
        Some(folder) => models::load_kept(checkpoint, cpu.clone(), options, folder, progress),
        None => models::load(checkpoint, cpu.clone(), options, progress).map(|loaded| (loaded, None)),
    }
}

/// Loads a model that failed once more. What its packed weights lack now is for the next start to write.
fn load_again(
    path: &Path,
    cpu: &Cpu,
    options: LoadOptions,
    packed: Option<&PackedFolder>,
) -> Result<Loaded, String> {
    let checkpoint = Checkpoint::open(path).map_err(|error| error.to_string())?;
    let loaded = load_weights(&checkpoint, cpu, options, packed, &mut |_, _| ());
    loaded.map(|(loaded, _)| loaded).map_err(|error| error.to_string())
}

/// A model's chat template over its tokenizer's control tokens.
pub(crate) fn chat_template(source: &str, tokenizer: &Tokenizer) -> Result<ChatTemplate, String> {
    let text = |id: Option<u32>| id.map(|id| String::from_utf8_lossy(tokenizer.token_bytes(id)).into_owned());
    let controls = Arc::new(ControlTexts::new(tokenizer.control_texts()));
    ChatTemplate::new(source, text(tokenizer.bos()), text(tokenizer.eos()), controls)
        .map_err(|error| error.to_string())
}

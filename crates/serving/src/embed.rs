//! The thread that owns an embedding model, and what it takes to get vectors from it.
//!
//! One request after the other; a request whose caller is gone is skipped. A panic fails the request that it
//! happened in and the model is loaded anew. Inputs are never cut: one that is too long is refused by name.

use crate::inbox::{overloaded, unavailable};
use crate::metrics::{Metrics, Outcome};
use models::{EmbeddingModel, EmbeddingSpec};
use protocol::{EmbeddingInput, EmbeddingRequest, Embeddings, Error, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokenizer::{Piece, Tokenizer};
use tokio::sync::{mpsc, oneshot};

/// Inputs of one request that are computed without a look at whether its caller is still there.
const CHUNK: usize = 16;
/// Texts up to this many bytes are tokenised to their end, to tell how long they are.
const COUNTED: usize = 1 << 20;

const FIRST_PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// A pause is cut into these, to see whether the model is still wanted.
const SLICE: Duration = Duration::from_millis(250);

/// Makes the model again, from its files.
pub(crate) type Reload = Box<dyn FnMut() -> Result<Box<dyn EmbeddingModel>, String> + Send>;

struct Job {
    inputs: Vec<Vec<u32>>,
    answer: oneshot::Sender<Result<Vec<Vec<f32>>, Error>>,
}

/// A handle on an embedding model's thread. The thread ends when the handle is gone.
pub(crate) struct Embedder {
    jobs: mpsc::Sender<Job>,
    spec: EmbeddingSpec,
    tokenizer: Tokenizer,
    ready: Arc<AtomicBool>,
    metrics: Arc<Metrics>,
}

impl Embedder {
    /// Starts the thread; at most `queue` requests wait.
    pub fn start(
        name: &str,
        model: Box<dyn EmbeddingModel>,
        reload: Reload,
        tokenizer: Tokenizer,
        queue: usize,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<(Self, std::thread::JoinHandle<()>)> {
        let (jobs, inbox) = mpsc::channel(queue.max(1));
        let ready = Arc::new(AtomicBool::new(true));
        let spec = model.spec().clone();
        let thread = std::thread::Builder::new().name(format!("embed {name}")).spawn({
            let (ready, metrics) = (Arc::clone(&ready), Arc::clone(&metrics));
            move || run(inbox, model, reload, &ready, &metrics)
        })?;
        Ok((Self { jobs, spec, tokenizer, ready, metrics }, thread))
    }

    pub fn spec(&self) -> &EmbeddingSpec {
        &self.spec
    }

    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Answers a request.
    pub async fn embed(self: Arc<Self>, request: EmbeddingRequest) -> Result<Embeddings, Error> {
        let result = self.answer(request).await;
        self.metrics.ended(match &result {
            Ok(_) => Outcome::Finished,
            Err(error) if error.kind == ErrorKind::Overloaded => Outcome::Overloaded,
            Err(error) if error.kind.retryable() => Outcome::Failed,
            Err(_) => Outcome::Refused,
        });
        result
    }

    async fn answer(self: &Arc<Self>, request: EmbeddingRequest) -> Result<Embeddings, Error> {
        let this = Arc::clone(self);
        let inputs = tokio::task::spawn_blocking(move || this.tokens(&request.inputs));
        let inputs = inputs.await.map_err(|_| Error::new(ErrorKind::Internal, "tokenising failed"))??;
        let prompt_tokens = inputs.iter().map(Vec::len).sum::<usize>();
        let (answer, vectors) = oneshot::channel();
        if !self.is_ready() {
            return Err(unavailable("the model is not ready; try again soon"));
        }
        match self.jobs.try_send(Job { inputs, answer }) {
            Ok(()) => {}
            Err(mpsc::error::TrySendError::Full(_)) => return Err(overloaded(self.jobs.max_capacity())),
            Err(mpsc::error::TrySendError::Closed(_)) => return Err(unavailable("the model is gone")),
        }
        let vectors = vectors.await.map_err(|_| unavailable("the model went away; try again"))??;
        self.metrics.embedded(prompt_tokens as u64);
        Ok(Embeddings { vectors, prompt_tokens: u32::try_from(prompt_tokens).unwrap_or(u32::MAX) })
    }

    fn tokens(&self, inputs: &[EmbeddingInput]) -> Result<Vec<Vec<u32>>, Error> {
        let limit = self.spec.context.get();
        let around = self.tokenizer.add_special(Vec::new()).len();
        let too_long = |i: usize, at_least: &str, n: usize| {
            let message = format!("input[{i}] has {at_least}{n} tokens; this model takes at most {limit}");
            Error::new(ErrorKind::ContextLength, message).at(format!("input[{i}]"))
        };
        let tokens = |(i, input): (usize, &EmbeddingInput)| {
            let name = || format!("input[{i}]");
            let ids = match input {
                EmbeddingInput::Text(text) => {
                    let bound = (text.len() > COUNTED).then_some(limit.saturating_sub(around));
                    let ids = self.tokenizer.encode(&[Piece::Untrusted(text)], bound);
                    let ids = ids.map_err(|long| too_long(i, "at least ", long.at_least + around))?;
                    self.tokenizer.add_special(ids)
                }
                EmbeddingInput::Tokens(ids) => ids.clone(),
            };
            if let Some(id) = ids.iter().find(|id| **id >= self.spec.vocab) {
                let vocab = self.spec.vocab;
                let message = format!("token {id} is not in this model's vocabulary of {vocab} tokens");
                return Err(Error::invalid(name(), message));
            }
            if ids.is_empty() {
                return Err(Error::invalid(name(), format!("{} is empty", name())));
            }
            if ids.len() > limit { Err(too_long(i, "", ids.len())) } else { Ok(ids) }
        };
        inputs.iter().enumerate().map(tokens).collect()
    }
}

fn run(
    mut inbox: mpsc::Receiver<Job>,
    model: Box<dyn EmbeddingModel>,
    mut reload: Reload,
    ready: &AtomicBool,
    metrics: &Metrics,
) {
    let mut model = Some(model);
    while let Some(loaded) = &mut model {
        let Some(Job { inputs, answer }) = inbox.blocking_recv() else { break };
        let mut vectors = Vec::with_capacity(inputs.len());
        let computed = catch_unwind(AssertUnwindSafe(|| {
            for chunk in inputs.chunks(CHUNK).take_while(|_| !answer.is_closed()) {
                let chunk: Vec<&[u32]> = chunk.iter().map(Vec::as_slice).collect();
                vectors.extend(loaded.embed(&chunk));
            }
        }));
        if computed.is_ok() {
            let _ = answer.send(Ok(vectors));
            continue;
        }
        ready.store(false, Ordering::Release);
        metrics.restarted();
        tracing::error!("the embedding model panicked");
        let _ = answer.send(Err(unavailable("the model failed and is being loaded again; try again")));
        let broken = model.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(broken)));
        model = load_again(&mut inbox, &mut reload);
        ready.store(model.is_some(), Ordering::Release);
    }
    ready.store(false, Ordering::Release);
}

/// Loads the model until that succeeds, with growing pauses, or until nobody wants it any more.
fn load_again(inbox: &mut mpsc::Receiver<Job>, reload: &mut Reload) -> Option<Box<dyn EmbeddingModel>> {
    let mut pause = FIRST_PAUSE;
    loop {
        match catch_unwind(AssertUnwindSafe(&mut *reload)) {
            Ok(Ok(model)) => return Some(model),
            Ok(Err(error)) => tracing::error!(%error, "the embedding model could not be loaded again"),
            Err(_) => tracing::error!("loading the embedding model again panicked"),
        }
        let mut left = pause;
        while !left.is_zero() {
            while let Ok(Job { answer, .. }) = inbox.try_recv() {
                let _ = answer.send(Err(unavailable("the model is being loaded again; try again")));
            }
            if inbox.is_closed() {
                return None;
            }
            let slice = left.min(SLICE);
            std::thread::park_timeout(slice);
            left -= slice;
        }
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

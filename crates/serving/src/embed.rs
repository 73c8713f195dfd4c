//! The thread that owns an embedding model, and what it takes to get vectors from it.
//!
//! One request after the other; a request whose caller is gone is skipped. At most `queue` wait beside the one that
//! is computed, those included whose inputs are still being tokenised. A panic fails the request that it
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
use tokio::sync::{Semaphore, mpsc, oneshot};

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
    /// Places for requests, one more than may wait.
    places: Arc<Semaphore>,
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
        let queue = queue.clamp(1, Semaphore::MAX_PERMITS - 1);
        let (jobs, inbox) = mpsc::channel(queue);
        let places = Arc::new(Semaphore::new(queue + 1));
        let ready = Arc::new(AtomicBool::new(true));
        let spec = model.spec().clone();
        let thread = std::thread::Builder::new().name(format!("embed {name}")).spawn({
            let (ready, metrics) = (Arc::clone(&ready), Arc::clone(&metrics));
            move || run(inbox, model, reload, &ready, &metrics)
        })?;
        Ok((Self { jobs, places, spec, tokenizer, ready, metrics }, thread))
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
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else {
            return Err(overloaded(self.jobs.max_capacity()));
        };
        // The place goes along: a caller that leaves cannot end the work, which must not pile up unseen.
        let inputs = tokio::task::spawn_blocking(move || (this.tokens(&request.inputs), place));
        let (inputs, _place) =
            inputs.await.map_err(|_| Error::new(ErrorKind::Internal, "tokenising failed"))?;
        let inputs = inputs?;
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
    let spec = model.spec().clone();
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
        model = load_again(&mut inbox, &mut reload, &spec);
        ready.store(model.is_some(), Ordering::Release);
    }
    ready.store(false, Ordering::Release);
}

/// Loads the model until that succeeds, with growing pauses, or until nobody wants it any more.
fn load_again(
    inbox: &mut mpsc::Receiver<Job>,
    reload: &mut Reload,
    spec: &EmbeddingSpec,
) -> Option<Box<dyn EmbeddingModel>> {
    let mut pause = FIRST_PAUSE;
    loop {
        match catch_unwind(AssertUnwindSafe(&mut *reload)) {
            // Tokenizer and requests are the old one's.
            Ok(Ok(model)) if *model.spec() == *spec => return Some(model),
            Ok(Ok(_)) => tracing::error!("the embedding model's files now hold another model"),
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

#[cfg(test)]
mod tests {
    use super::*;
    use base::Tokens;
    use std::sync::atomic::AtomicU32;
    use tokenizer::GgufVocab;

    /// Gives vectors of an input's length; panics over an input that begins with id 0.
    struct Lengths(EmbeddingSpec);

    impl EmbeddingModel for Lengths {
        fn spec(&self) -> &EmbeddingSpec {
            &self.0
        }

        fn embed(&mut self, inputs: &[&[u32]]) -> Vec<Vec<f32>> {
            assert!(inputs.iter().all(|input| input[0] != 0), "told to panic");
            inputs.iter().map(|input| vec![input.len() as f32]).collect()
        }
    }

    fn lengths() -> Box<dyn EmbeddingModel> {
        let spec =
            EmbeddingSpec { architecture: "lengths".into(), vocab: 2, context: Tokens(8), dimensions: 1 };
        Box::new(Lengths(spec))
    }

    fn start(queue: usize, reload: Reload) -> (Arc<Embedder>, std::thread::JoinHandle<()>) {
        let vocab = GgufVocab {
            model: "gpt2",
            pre: Some("gpt-2"),
            tokens: vec![b"a", b"b"],
            types: vec![1, 1],
            ..GgufVocab::default()
        };
        let tokenizer = Tokenizer::from_gguf(vocab).unwrap();
        let metrics = Arc::new(Metrics::default());
        let (embedder, thread) = Embedder::start("m", lengths(), reload, tokenizer, queue, metrics).unwrap();
        (Arc::new(embedder), thread)
    }

    fn request(ids: &[u32]) -> EmbeddingRequest {
        EmbeddingRequest { model: "m".into(), inputs: vec![EmbeddingInput::Tokens(ids.to_vec())] }
    }

    #[tokio::test]
    async fn a_panic_fails_its_request_and_the_model_is_loaded_anew() {
        let reloads = Arc::new(AtomicU32::new(0));
        let (embedder, thread) = start(4, {
            let reloads = Arc::clone(&reloads);
            Box::new(move || {
                reloads.fetch_add(1, Ordering::SeqCst);
                Ok(lengths())
            })
        });
        let embed = |ids: &'static [u32]| Arc::clone(&embedder).embed(request(ids));
        assert_eq!(embed(&[1, 1]).await.unwrap().vectors, [[2.0]]);
        let error = embed(&[0]).await.unwrap_err();
        assert!(error.kind == ErrorKind::Unavailable && error.retry_after.is_some(), "{error}");
        while !embedder.is_ready() {
            tokio::task::yield_now().await;
        }
        assert_eq!(embed(&[1]).await.unwrap().vectors, [[1.0]]);
        assert_eq!((reloads.load(Ordering::SeqCst), embedder.metrics.stats().restarts), (1, 1));
        drop(embedder);
        thread.join().unwrap();
    }

    #[tokio::test]
    async fn requests_count_from_before_their_inputs_are_tokenised() {
        let (embedder, thread) = start(1, Box::new(|| Err("not asked for".into())));
        let embed = || Arc::clone(&embedder).embed(request(&[1]));
        let places: Vec<_> =
            (0..2).map(|_| Arc::clone(&embedder.places).try_acquire_owned().unwrap()).collect();
        assert_eq!(embed().await.unwrap_err().kind, ErrorKind::Overloaded);
        drop(places);
        assert!(embed().await.is_ok());
        drop(embedder);
        thread.join().unwrap();
    }
}

//! Embedding models: from inputs to tokens to vectors, on a thread of their own ([`crate::worker`]).
//!
//! Inputs are never cut: one that is too long is refused by name.

use crate::metrics::Metrics;
use crate::worker::{Computes, Inputs, Reload, Worker};
use models::{EmbeddingModel, EmbeddingSpec};
use protocol::{EmbeddingInput, EmbeddingRequest, Embeddings, Error, ErrorKind};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokenizer::{Piece, Tokenizer};

/// Texts up to this many bytes are tokenised to their end, to tell how long they are.
const COUNTED: usize = 1 << 20;

/// A model as its thread has it.
pub(crate) struct VectorModel(pub Box<dyn EmbeddingModel>);

impl Computes for VectorModel {
    type Input = Vec<u32>;
    type Output = Vec<f32>;
    type Spec = EmbeddingSpec;
    const KIND: &'static str = "embedding model";

    fn spec(&self) -> &EmbeddingSpec {
        self.0.spec()
    }

    fn compute(&mut self, inputs: &[Vec<u32>]) -> Vec<Vec<f32>> {
        let inputs: Vec<&[u32]> = inputs.iter().map(Vec::as_slice).collect();
        self.0.embed(&inputs)
    }
}

/// A handle on an embedding model's thread. The thread ends when the handle is gone.
pub(crate) struct Embedder {
    worker: Worker<VectorModel>,
    spec: EmbeddingSpec,
    tokenizer: Tokenizer,
}

impl Embedder {
    /// Starts the thread; at most `queue` requests wait.
    pub fn start(
        name: &str,
        model: VectorModel,
        reload: Reload<VectorModel>,
        tokenizer: Tokenizer,
        queue: usize,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let spec = model.spec().clone();
        let (worker, thread) = Worker::start(&format!("embed {name}"), model, reload, queue, metrics)?;
        Ok((Self { worker, spec, tokenizer }, thread))
    }

    pub fn spec(&self) -> &EmbeddingSpec {
        &self.spec
    }

    pub fn is_ready(&self) -> bool {
        self.worker.is_ready()
    }

    /// Answers a request.
    pub async fn embed(self: Arc<Self>, request: EmbeddingRequest) -> Result<Embeddings, Error> {
        let this = Arc::clone(&self);
        let (vectors, prompt_tokens) = self.worker.answer(move || this.tokens(&request.inputs)).await?;
        Ok(Embeddings { vectors, prompt_tokens })
    }

    fn tokens(&self, inputs: &[EmbeddingInput]) -> Result<Inputs<Vec<u32>>, Error> {
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
        let inputs = inputs.iter().enumerate().map(tokens).collect::<Result<Vec<_>, Error>>()?;
        Ok(Inputs { tokens: inputs.iter().map(Vec::len).sum(), inputs })
    }
}

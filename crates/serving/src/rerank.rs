//! Rerankers: from a query and documents to pairs of them to scores, on a thread of their own ([`crate::worker`]).
//!
//! A pair is put together as the model's tokenizer says. A document is cut where its pair would not fit, as rerankers
//! are used everywhere; a query is never cut: one that leaves no room for a document is refused. A score is the
//! logistic function of the model's logit, whatever a checkpoint's own configuration prefers, so that all scores are
//! between 0 and 1 and the order is the logits'. It depends on its own pair alone.

use crate::metrics::Metrics;
use crate::worker::{Computes, Inputs, Reload, Worker};
use models::{PairIds, RerankModel, RerankSpec};
use protocol::{Error, ErrorKind, RerankRequest, Scores};
use std::sync::Arc;
use std::thread::JoinHandle;
use tokenizer::{Tokenizer, TypedIds};

/// A model as its thread has it.
pub(crate) struct PairModel(pub Box<dyn RerankModel>);

impl Computes for PairModel {
    type Input = TypedIds;
    type Output = f32;
    type Spec = RerankSpec;
    const KIND: &'static str = "reranker";

    fn spec(&self) -> &RerankSpec {
        self.0.spec()
    }

    fn compute(&mut self, pairs: &[TypedIds]) -> Vec<f32> {
        let pairs: Vec<_> = pairs.iter().map(|pair| PairIds { ids: &pair.ids, types: &pair.types }).collect();
        self.0.score(&pairs)
    }
}

/// Most tokens of a request's pairs in all: work and memory for one caller.
const MOST_TOKENS: usize = 1 << 20;

/// How a model's pairs are made.
pub(crate) struct Pairs {
    tokenizer: Tokenizer,
    /// Tokens that stand around the two texts.
    around: usize,
    limit: usize,
    vocab: u32,
    types: u32,
}

impl Pairs {
    /// `None` where the tokenizer does not know how pairs are made, or the model is too small for any.
    pub fn new(tokenizer: Tokenizer, spec: &RerankSpec) -> Option<Self> {
        let around = tokenizer.pair(&[], &[])?.ids.len();
        Some(Self { tokenizer, around, limit: spec.context.get(), vocab: spec.vocab, types: spec.types })
    }

    /// A pair for each document.
    fn of(&self, request: &RerankRequest) -> Result<Inputs<TypedIds>, Error> {
        let room = self.limit.saturating_sub(self.around);
        let query = self.tokenizer.encode_ordinary(&request.query);
        let Some(room) = room.checked_sub(query.len()).filter(|room| *room > 0) else {
            let message = format!(
                "The query has {} tokens, which leave no room for a document: this model takes {} for both, {} of \
                 them special",
                query.len(),
                self.limit,
                self.around
            );
            return Err(Error::new(ErrorKind::ContextLength, message).at("query"));
        };
        if query.is_empty() {
            return Err(Error::invalid("query", "Invalid value for 'query': the text has no tokens"));
        }
        let mut all = Inputs { inputs: Vec::with_capacity(request.documents.len()), tokens: 0 };
        for (index, text) in request.documents.iter().enumerate() {
            let mut document = self.tokenizer.encode_ordinary(text);
            document.truncate(room);
            let pair = self.pair(&query, &document);
            let pair = pair.map_err(|error| error.at(format!("documents[{index}]")))?;
            all.tokens += pair.ids.len();
            if all.tokens > MOST_TOKENS {
                let message = format!(
                    "Invalid value for 'documents': with documents[{index}] the query and the documents have {} \
                     tokens in all, at most {MOST_TOKENS} are allowed; ask in several requests",
                    all.tokens
                );
                return Err(Error::invalid("documents", message));
            }
            all.inputs.push(pair);
        }
        Ok(all)
    }

    fn pair(&self, query: &[u32], document: &[u32]) -> Result<TypedIds, Error> {
        let mut pair = self.tokenizer.pair(query, document).unwrap_or_default();
        // A model with one type is not told of others, as its makers' own code has it.
        pair.types.iter_mut().for_each(|kind| *kind = (*kind).min(self.types - 1));
        match pair.ids.iter().find(|id| **id >= self.vocab) {
            None => Ok(pair),
            Some(id) => {
                let vocab = self.vocab;
                let message = format!("token {id} is not in this model's vocabulary of {vocab} tokens");
                Err(Error::new(ErrorKind::InvalidRequest, message))
            }
        }
    }
}

/// A handle on a reranker's thread. The thread ends when the handle is gone.
pub(crate) struct Reranker {
    worker: Worker<PairModel>,
    spec: RerankSpec,
    pairs: Pairs,
}

impl Reranker {
    /// Starts the thread; at most `queue` requests wait.
    pub fn start(
        name: &str,
        model: PairModel,
        reload: Reload<PairModel>,
        pairs: Pairs,
        queue: usize,
        metrics: Arc<Metrics>,
    ) -> std::io::Result<(Self, JoinHandle<()>)> {
        let spec = model.spec().clone();
        let (worker, thread) = Worker::start(&format!("rerank {name}"), model, reload, queue, metrics)?;
        Ok((Self { worker, spec, pairs }, thread))
    }

    pub fn spec(&self) -> &RerankSpec {
        &self.spec
    }

    pub fn is_ready(&self) -> bool {
        self.worker.is_ready()
    }

    /// Answers a request.
    pub async fn rerank(self: Arc<Self>, request: RerankRequest) -> Result<Scores, Error> {
        let this = Arc::clone(&self);
        let (logits, prompt_tokens) = self.worker.answer(move || this.pairs.of(&request)).await?;
        Ok(Scores { scores: logits.into_iter().map(logistic).collect(), prompt_tokens })
    }
}

fn logistic(logit: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_between_0_and_1_and_in_the_logits_order() {
        let logits = [f32::MIN, -90.0, -10.0, -0.5, 0.0, 0.5, 10.0, f32::MAX];
        let scores = logits.map(logistic);
        assert!(scores.is_sorted() && scores[0] == 0.0 && scores[4] == 0.5 && scores[7] == 1.0, "{scores:?}");
        assert!((logistic(1.0) - 0.731_058_6).abs() < 1e-7);
    }
}

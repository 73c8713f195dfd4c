//! What everything that answers requests implements: engines in process, replicas, providers.

use crate::{Delta, Error, ErrorKind, GenerateRequest};
use base::Price;
use futures::future::BoxFuture;
use futures::stream::BoxStream;

/// An answer as it is made. Dropping it cancels the work.
pub type DeltaStream = BoxStream<'static, Result<Delta, Error>>;

/// What a model is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelTask {
    /// Generates text.
    TextGeneration,
    /// Turns text into vectors.
    TextEmbeddings,
}

/// The error of a request for a model that is not there; `here` are the ids of those that are.
#[must_use]
pub fn no_such_model(name: &str, here: &[&str]) -> Error {
    let shown: String = name.chars().take(200).collect();
    let here = if here.is_empty() {
        "no model is loaded".to_owned()
    } else {
        format!("models here: {}", here.join(", "))
    };
    Error::new(ErrorKind::ModelNotFound, format!("there is no model {shown:?}; {here}")).at("model")
}

/// A model that a backend answers for.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelInfo {
    /// The id callers use.
    pub id: String,
    /// Other ids that mean the same model.
    pub aliases: Vec<String>,
    /// What it is for.
    pub task: ModelTask,
    /// One line about it.
    pub description: String,
    /// Tokens a sequence may have.
    pub context: u32,
    /// Width of its vectors, for embedding models.
    pub dimensions: Option<u32>,
    /// Whether its chat template knows tools.
    pub tools: bool,
    /// What it costs, where a price is set.
    pub price: Option<Price>,
    /// Seconds since 1970 when it was loaded.
    pub created: u64,
    /// Whether it can answer now.
    pub ready: bool,
}

/// A request for vectors.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingRequest {
    /// The model's id as the caller wrote it.
    pub model: String,
    /// One vector each.
    pub inputs: Vec<EmbeddingInput>,
}

/// One input of an embedding request.
#[derive(Clone, Debug, PartialEq)]
pub enum EmbeddingInput {
    /// Text.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// One vector.
pub type Embedding = Vec<f32>;

/// The answer to an embedding request.
#[derive(Clone, Debug, PartialEq)]
pub struct Embeddings {
    /// One per input, in order, of length 1 in the Euclidean norm.
    pub vectors: Vec<Embedding>,
    /// Tokens of all inputs.
    pub prompt_tokens: u32,
}

/// Answers requests. Handlers, gateways and jobs know nothing else of what stands behind.
pub trait Backend: Send + Sync {
    /// The models this backend answers for.
    fn models(&self) -> Vec<ModelInfo>;
    /// Generates text. Resolves once the request is accepted or refused.
    fn generate(&self, request: GenerateRequest) -> BoxFuture<'_, Result<DeltaStream, Error>>;
    /// Computes embeddings.
    fn embed(&self, request: EmbeddingRequest) -> BoxFuture<'_, Result<Embeddings, Error>>;
}

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
    /// Tells how well texts answer a query.
    Rerank,
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
    /// Whether tools can be offered to it and its calls are told apart, in whatever form.
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

/// A request for tokens of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenizeRequest {
    /// The model's id as the caller wrote it.
    pub model: String,
    /// The text.
    pub text: String,
    /// Whether the tokens that the model puts around a prompt are added.
    pub add_special: bool,
}

/// A token of a text.
#[derive(Clone, Debug, PartialEq)]
pub struct Token {
    /// Its id.
    pub id: u32,
    /// Its text; bytes that are no whole character show as U+FFFD.
    pub text: String,
}

/// A request to say how well texts answer a query.
#[derive(Clone, Debug, PartialEq)]
pub struct RerankRequest {
    /// The model's id as the caller wrote it.
    pub model: String,
    /// The query.
    pub query: String,
    /// The texts; one score each.
    pub documents: Vec<String>,
}

/// The answer to a rerank request.
#[derive(Clone, Debug, PartialEq)]
pub struct Scores {
    /// One per document, in order, between 0 and 1.
    pub scores: Vec<f32>,
    /// Tokens of all pairs of query and document.
    pub prompt_tokens: u32,
}

/// Answers requests. Handlers, gateways and jobs know nothing else of what stands behind.
pub trait Backend: Send + Sync {
    /// The models this backend answers for.
    fn models(&self) -> Vec<ModelInfo>;
    /// Generates text. Resolves once the request is accepted or refused.
    fn generate(&self, request: GenerateRequest) -> BoxFuture<'_, Result<DeltaStream, Error>>;
    /// Tokens of the prompt that this request would make.
    fn count(&self, request: GenerateRequest) -> BoxFuture<'_, Result<u32, Error>>;
    /// The prompt that this request would make.
    fn prompt(&self, request: GenerateRequest) -> BoxFuture<'_, Result<Vec<Token>, Error>>;
    /// The tokens of a text.
    fn tokenize(&self, request: TokenizeRequest) -> BoxFuture<'_, Result<Vec<Token>, Error>>;
    /// The text of tokens of a model, control tokens included.
    fn detokenize(&self, model: String, ids: Vec<u32>) -> BoxFuture<'_, Result<String, Error>>;
    /// Computes embeddings.
    fn embed(&self, request: EmbeddingRequest) -> BoxFuture<'_, Result<Embeddings, Error>>;
    /// Scores texts against a query.
    fn rerank(&self, request: RerankRequest) -> BoxFuture<'_, Result<Scores, Error>>;
}

//! The canonical request, delta and usage, the dialects' wire types and their translation, and the
//! [`Backend`] trait that everything which answers requests implements.
//!
//! One canonical form inside; each dialect is one module with a translation in and out.

mod backend;
mod delta;
mod error;
mod request;

pub use backend::{
    Backend, DeltaStream, Embedding, EmbeddingInput, EmbeddingRequest, Embeddings, ModelInfo, ModelTask,
};
pub use delta::{Delta, FinishReason, Logprobs, TokenLogprob, Usage};
pub use error::{Error, ErrorKind};
pub use request::{
    Content, GenerateRequest, Input, Message, Part, Prompt, ReasoningEffort, ResponseFormat, Role, Sampling, Tool,
    ToolCall, ToolChoice,
};

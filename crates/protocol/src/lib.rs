//! The canonical request, delta and usage, the dialects' wire types and their translation, and the
//! [`Backend`] trait that everything which answers requests implements.
//!
//! One canonical form inside; each dialect is one module with a translation in and out.

mod answer;
pub mod anthropic;
mod backend;
pub mod bedrock;
pub mod counts;
mod delta;
mod error;
mod event;
mod fields;
pub mod gemini;
mod json;
pub mod openai;
mod places;
mod reader;
mod request;
pub mod rerank;
mod thought;
mod upstream;
pub mod workers_ai;

pub use answer::{Answer, Choice, cut_short};
pub use backend::{
    Backend, DeltaStream, Embedding, EmbeddingInput, EmbeddingRequest, Embeddings, ModelInfo, ModelTask,
    RerankRequest, Scores, Token, TokenizeRequest, no_such_model,
};
pub use delta::{Delta, FinishReason, Logprobs, TokenLogprob, Usage};
pub use error::{Error, ErrorKind};
pub use event::{Event, StreamWriter};
pub use json::plain;
pub use places::Places;
pub use reader::AnswerReader;
pub use request::{
    CacheFor, CacheMark, Content, GenerateRequest, Input, Message, Part, Prompt, ReasoningEffort,
    ResponseFormat, Role, Sampling, Tool, ToolCall, ToolChoice,
};
pub use thought::{Maker, Thought};
pub use upstream::broken_off;

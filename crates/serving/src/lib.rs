//! Chat request to tokens to answer: templates, stop strings, remembered turns; drives an engine for a request
//! and gives back deltas.
//!
//! ```text
//! GenerateRequest -> prompt (template, turn memory, tokenizer) -> inbox -> driver (the engine's thread)
//!                                          deltas <- answer (detokenizer, stop texts) <- events
//! ```
//!
//! [`Local`] is the way in. One thread per model owns what is mutable; requests run in their callers' tasks. Must be
//! used inside a tokio runtime.

mod answer;
mod aside;
mod draft_cost;
mod driver;
mod embed;
mod grammar;
mod inbox;
mod local;
mod machine;
pub mod memory;
pub mod metrics;
mod pace;
mod prompt;
mod rerank;
mod script;
mod source;
pub mod stop;
pub mod template;
mod text;
mod tools;
mod worker;

pub use local::{LoadError, Local, LocalConfig, ModelSource, ModelStats, TextParts};
pub use models::{KvFormat, LoadFormat, PackedFolder};
pub use pace::StepTime;
pub use script::{ScriptError, open_script_tokenizer};
pub use source::open_tokenizer;

//! OpenAI's dialect: chat completions, completions, embeddings, models and errors.
//!
//! Requests are translated in full, also where a backend cannot yet do what they ask (it says so itself); what
//! the canonical form cannot hold is refused here by name. Nothing that would change the answer is ignored.

pub mod chat;
pub mod completions;
pub mod embeddings;
pub mod error;
pub(crate) mod format;
pub(crate) mod local;
mod logprobs;
pub(crate) mod messages;
pub mod models;
pub(crate) mod parameters;
pub mod responses;
mod thoughts;
pub mod tokenize;
pub(crate) mod tools;
pub mod upstream;
mod usage;

pub(crate) use usage::WireUsage;

/// What every object of one answer begins with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The answer's id, with its prefix (`chatcmpl-`, `cmpl-`).
    pub id: String,
    /// Seconds since 1970.
    pub created: u64,
    /// The model's id.
    pub model: String,
}

/// Names the build that answered: the same fingerprint, seed and request give the same answer.
pub(crate) const SYSTEM_FINGERPRINT: &str = concat!("fp_hearth_", env!("CARGO_PKG_VERSION"));

/// Writes a value that cannot fail to serialise.
pub(crate) fn to_json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).expect("wire types have string keys and no failing fields")
}

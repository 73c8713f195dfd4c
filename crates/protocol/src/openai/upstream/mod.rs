//! Chat completions from the other side: asking a provider that speaks them, and reading its answer.
//!
//! Many speak this dialect, and no two alike; what a request may hold for one is its [`Speaker`]. Answers are read
//! in all their forms at once: usage in any chunk, thoughts under either name, a call in one chunk or in many.

mod count;
mod embeddings;
mod reader;
mod request;

pub use count::{read_count, write_count};
pub use embeddings::{read_embeddings, write_embeddings};
pub use reader::Reader;
pub use request::write;

/// What one speaker of the dialect takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Speaker {
    /// What only OpenAI's own API has: `max_completion_tokens`, the role `developer`, `prompt_cache_key`, `prediction`.
    pub openai: bool,
    /// Whether text may stand in parts in every role's messages; else only in the user's.
    pub parts: bool,
    /// What engines of open models take: `top_k`, `min_p`, `repetition_penalty`, `ignore_eos`, `chat_template_kwargs`.
    pub engine: bool,
    /// The field in which earlier thoughts go back.
    pub reasoning: Option<&'static str>,
    /// Whether `cache_control` and `reasoning_details` may stand in messages, as OpenRouter has them.
    pub router: bool,
    /// Whether it takes `user`, the caller's own user; some refuse what they do not know.
    pub user: bool,
    /// Whether ids of calls have nine letters or digits, as Mistral wants them.
    pub short_ids: bool,
}

impl Speaker {
    /// What all of them take.
    pub const PLAIN: Self = Self {
        openai: false,
        parts: false,
        engine: false,
        reasoning: None,
        router: false,
        user: false,
        short_ids: false,
    };
    /// OpenAI itself.
    pub const OPENAI: Self = Self { openai: true, parts: true, user: true, ..Self::PLAIN };
    /// An engine of open models.
    pub const ENGINE: Self =
        Self { parts: true, engine: true, user: true, reasoning: Some("reasoning_content"), ..Self::PLAIN };
    /// A router to many providers.
    pub const ROUTER: Self =
        Self { parts: true, router: true, user: true, reasoning: Some("reasoning"), ..Self::PLAIN };
}

//! What an engine is asked and what it answers.

use crate::Constraint;
use base::{Namespace, RequestId, Tokens};

/// How the next token is chosen.
///
/// Order: penalties, `logit_bias`, constraint; then `temperature`, `top_k`, `top_p`, `min_p`. Random numbers
/// are counter-based on (seed, choice, position), so an answer can be repeated.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the most likely token (ties: lowest id).
    pub temperature: f32,
    /// Keep the `k` most likely; `None` keeps all.
    pub top_k: Option<u32>,
    /// Keep the most likely whose probabilities sum to `top_p`; 1 keeps all.
    pub top_p: f32,
    /// Keep those at least `min_p` times as likely as the most likely; 0 keeps all.
    pub min_p: f32,
    /// Divides (or multiplies, when negative) the logit of each token of prompt or answer; 1 is off.
    pub repetition_penalty: f32,
    /// Subtracted from a token's logit for each time the answer has it; 0 is off.
    pub frequency_penalty: f32,
    /// Subtracted once from the logit of each token the answer has; 0 is off.
    pub presence_penalty: f32,
    /// Added to the logits of these ids.
    pub logit_bias: Vec<(u32, f32)>,
    /// Seed of the request.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            temperature: 1.0,
            top_k: None,
            top_p: 1.0,
            min_p: 0.0,
            repetition_penalty: 1.0,
            frequency_penalty: 0.0,
            presence_penalty: 0.0,
            logit_bias: Vec::new(),
            seed: 0,
        }
    }
}

/// One request: a prompt and how to go on from it.
pub struct Request {
    /// Unique while the request lives.
    pub id: RequestId,
    /// Whose cached prefixes it may use.
    pub namespace: Namespace,
    /// At least one token; all ids are below the vocabulary.
    pub prompt: Vec<u32>,
    /// How tokens are chosen.
    pub sampling: Sampling,
    /// Answers wanted, each its own sequence over the shared prompt; at least 1.
    pub choices: u32,
    /// Most tokens per answer; the room left in the context is a further limit. 0 computes the prompt only.
    pub max_tokens: Tokens,
    /// Ids that end an answer (not part of its text).
    pub stop_tokens: Vec<u32>,
    /// Go on past stop tokens, for benches.
    pub ignore_eos: bool,
    /// Report the log-probability of each answer token and of this many most likely alternatives.
    pub logprobs: Option<u32>,
    /// Report the same for the tokens of the prompt.
    pub prompt_logprobs: Option<u32>,
    /// A limit on the answer; one per choice, or none at all.
    pub constraints: Vec<Box<dyn Constraint>>,
    /// What the answers are expected to be like, a source of drafts: it changes no answer, only how soon it comes.
    /// Empty where nothing is expected.
    pub prediction: Vec<u32>,
}

/// A token and its log-probability (natural logarithm) under the model's own distribution, before
/// temperature, penalties and bias.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TokenChoice {
    /// The token.
    pub id: u32,
    /// Its log-probability.
    pub logprob: f32,
}

/// What was likely at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprobs {
    /// The token that stands there.
    pub chosen: TokenChoice,
    /// The most likely ones, best first; ties by id.
    pub top: Vec<TokenChoice>,
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// A stop token, which counts as one of the answer.
    Stop,
    /// Nothing can follow: the constraint says that the answer is whole. There was no stop token.
    Complete,
    /// `max_tokens` or the context's end.
    Length,
    /// The engine failed; the same request may be tried again.
    Failed,
    /// The constraint could not say what may follow, or all that it allows is banned. Trying again does not
    /// help.
    ConstraintFailed,
}

/// What a request has used, over all its choices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt, counted once.
    pub prompt: Tokens,
    /// Of these, found in the prefix cache when the request was first admitted.
    pub cached: Tokens,
    /// Tokens of all answers, stop tokens included.
    pub completion: Tokens,
}

/// Something that happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    /// The request.
    pub request: RequestId,
    /// What happened.
    pub kind: EventKind,
}

/// What happened to a request.
#[derive(Clone, Debug, PartialEq)]
pub enum EventKind {
    /// First admission; comes before all else.
    Started {
        /// Prompt tokens found in the prefix cache.
        cached: Tokens,
    },
    /// Log-probabilities of prompt positions from `first` on (position 0 has none).
    PromptLogprobs {
        /// Position of the first entry.
        first: u32,
        /// One entry per position.
        entries: Vec<TokenLogprobs>,
    },
    /// A token of an answer.
    Token {
        /// Which answer.
        choice: u32,
        /// The token.
        id: u32,
        /// Present when the request asked for it.
        logprobs: Option<TokenLogprobs>,
    },
    /// Tokens of the request's prediction ran as a draft. Comes before the tokens of its step.
    Predicted {
        /// How many of them the answer goes on with.
        accepted: Tokens,
        /// How many were computed in vain.
        rejected: Tokens,
    },
    /// An answer has ended. A stop token that ended it was not sent as a token.
    Finished {
        /// Which answer.
        choice: u32,
        /// Why.
        reason: FinishReason,
    },
    /// All answers have ended; nothing more comes for this request.
    Done(Usage),
}

/// Why an engine refuses a request.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdmitError {
    /// The caller must shorten the prompt; retrying cannot help.
    #[error("the prompt has {prompt}; this model holds {limit}")]
    PromptTooLong {
        /// Tokens of the prompt.
        prompt: Tokens,
        /// Most tokens a sequence may have, the first answer token included.
        limit: Tokens,
    },
    /// The queue is full; the caller may retry later.
    #[error("the queue is full at {depth} requests")]
    Overloaded {
        /// Requests waiting.
        depth: usize,
    },
}

impl AdmitError {
    /// Whether the same request may be taken later.
    #[must_use]
    pub const fn retryable(&self) -> bool {
        match self {
            Self::Overloaded { .. } => true,
            Self::PromptTooLong { .. } => false,
        }
    }
}

//! The canonical answer: a stream of deltas.
//!
//! Order per choice: any number of `Text`, `Reasoning`, `Thought`, `ToolCall*`, `MalformedCall`, then exactly one
//! `Finish`. `Started` comes first, where its numbers are known so early; `Usage` comes once and last. A stream that ends without `Usage` was cut. `PromptLogprobs` may come in several
//! pieces, all of them before the first delta of a choice. A call's arguments all come before anything else of its choice
//! begins, so that a dialect can write one thing after the other.

use crate::Thought;

/// A piece of an answer.
#[derive(Clone, Debug, PartialEq)]
pub enum Delta {
    /// The request was admitted and its prompt is being read.
    Started {
        /// Tokens of the prompt.
        prompt_tokens: u32,
        /// Of these, found in the prefix cache.
        cached_tokens: u32,
    },
    /// Log-probabilities of the prompt's tokens, one entry each. The first token has an entry too, whose
    /// `logprob` is NaN and whose `top` is empty: nothing stands before it.
    PromptLogprobs(Vec<Logprobs>),
    /// Text of an answer.
    Text {
        /// Which answer.
        choice: u32,
        /// Whole characters.
        text: String,
        /// One entry per token that ended in this piece, when asked for.
        logprobs: Vec<Logprobs>,
    },
    /// Text the model thinks before it answers.
    Reasoning {
        /// Which answer.
        choice: u32,
        /// Whole characters.
        text: String,
    },
    /// What the service that thinks wants to have back in the next request: the proof of the thoughts since the last
    /// one, or some that may not be read.
    Thought {
        /// Which answer.
        choice: u32,
        /// The text of a signed one came before as `Reasoning`, and stands here again.
        thought: Thought,
    },
    /// A tool call begins.
    ToolCallStart {
        /// Which answer.
        choice: u32,
        /// Index of the call in the answer.
        index: u32,
        /// The call's id.
        id: String,
        /// The tool's name.
        name: String,
    },
    /// More of a tool call's arguments.
    ToolCallArguments {
        /// Which answer.
        choice: u32,
        /// Index of the call in the answer.
        index: u32,
        /// JSON text.
        arguments: String,
    },
    /// What the model meant as a tool call and cannot be read as one comes back as text: the next `Text` of
    /// this answer begins with it.
    MalformedCall {
        /// Which answer.
        choice: u32,
        /// What is wrong with it.
        why: String,
    },
    /// An answer has ended.
    Finish {
        /// Which answer.
        choice: u32,
        /// Why.
        reason: FinishReason,
        /// The stop text that ended it, where one did.
        stop_text: Option<String>,
    },
    /// What the whole request used.
    Usage(Usage),
}

/// Why an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinishReason {
    /// The model's end, or a stop text.
    Stop,
    /// `max_tokens` or the end of the context.
    Length,
    /// The model called a tool.
    ToolCalls,
    /// A policy cut the answer.
    ContentFilter,
}

impl FinishReason {
    /// The reason's name in OpenAI's dialect.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::ToolCalls => "tool_calls",
            Self::ContentFilter => "content_filter",
        }
    }
}

/// A token with its log-probability.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The token's text; bytes that are no whole character show as U+FFFD.
    pub token: String,
    /// The token's bytes.
    pub bytes: Vec<u8>,
    /// The token's id.
    pub id: u32,
    /// Natural logarithm of its probability.
    pub logprob: f32,
}

/// What was likely at one position.
#[derive(Clone, Debug, PartialEq)]
pub struct Logprobs {
    /// The token that stands there.
    pub chosen: TokenLogprob,
    /// The most likely ones, best first.
    pub top: Vec<TokenLogprob>,
}

/// What a request used. Cached tokens are part of `prompt_tokens`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Tokens of the prompt.
    pub prompt_tokens: u32,
    /// Of these, found in the prefix cache.
    pub cached_tokens: u32,
    /// Of these, written to a cache that charges for that.
    pub cache_write_tokens: u32,
    /// Of those written, kept for an hour.
    pub cache_write_1h_tokens: u32,
    /// Tokens of all answers.
    pub completion_tokens: u32,
    /// Of these, spent on thinking.
    pub reasoning_tokens: u32,
    /// Of these, drafted from the request's prediction.
    pub accepted_prediction_tokens: u32,
    /// Drafted from the prediction and not the answer's; no part of `completion_tokens`.
    pub rejected_prediction_tokens: u32,
}

impl Usage {
    /// Prompt and answers together.
    #[must_use]
    pub const fn total_tokens(&self) -> u32 {
        self.prompt_tokens + self.completion_tokens
    }
}

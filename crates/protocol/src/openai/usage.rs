//! Usage as OpenAI writes it. Cached tokens are part of the prompt's.

use crate::Usage;
use serde::Serialize;

#[derive(Clone, Copy, Debug, Serialize)]
pub(crate) struct WireUsage {
    prompt_tokens: u32,
    completion_tokens: u32,
    total_tokens: u32,
    prompt_tokens_details: PromptDetails,
    completion_tokens_details: CompletionDetails,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct PromptDetails {
    cached_tokens: u32,
    audio_tokens: u32,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct CompletionDetails {
    reasoning_tokens: u32,
    audio_tokens: u32,
    accepted_prediction_tokens: u32,
    rejected_prediction_tokens: u32,
}

impl From<Usage> for WireUsage {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.total_tokens(),
            prompt_tokens_details: PromptDetails { cached_tokens: usage.cached_tokens, audio_tokens: 0 },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: usage.reasoning_tokens,
                audio_tokens: 0,
                accepted_prediction_tokens: usage.accepted_prediction_tokens,
                rejected_prediction_tokens: usage.rejected_prediction_tokens,
            },
        }
    }
}

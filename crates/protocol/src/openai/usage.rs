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
    // Not OpenAI's: as OpenRouter tells it. Models here write for nothing.
    #[serde(skip_serializing_if = "is_nothing")]
    cache_write_tokens: u32,
    audio_tokens: u32,
}

#[derive(Clone, Copy, Debug, Serialize)]
struct CompletionDetails {
    reasoning_tokens: u32,
    audio_tokens: u32,
    accepted_prediction_tokens: u32,
    rejected_prediction_tokens: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde's form")]
const fn is_nothing(count: &u32) -> bool {
    *count == 0
}

impl From<Usage> for WireUsage {
    fn from(usage: Usage) -> Self {
        Self {
            prompt_tokens: usage.prompt_tokens,
            completion_tokens: usage.completion_tokens,
            total_tokens: usage.total_tokens(),
            prompt_tokens_details: PromptDetails {
                cached_tokens: usage.cached_tokens,
                cache_write_tokens: usage.cache_write_tokens,
                audio_tokens: 0,
            },
            completion_tokens_details: CompletionDetails {
                reasoning_tokens: usage.reasoning_tokens,
                audio_tokens: 0,
                accepted_prediction_tokens: usage.accepted_prediction_tokens,
                rejected_prediction_tokens: usage.rejected_prediction_tokens,
            },
        }
    }
}

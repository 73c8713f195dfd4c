//! The providers that are known by name: where they are, how they want their key, what they speak.
//!
//! Base URLs are those of `ai-gateway-provider` 4.0.1 (what its clients cut off a URL) and of LiteLLM 1.106.12
//! (`litellm/llms/*`), read in November 2026. None of the remote ones was tried live from here; `docs/providers.md`
//! says so for each.

use super::{Auth, Place, Provider};
use crate::dialect::Dialect;
use protocol::openai::upstream::Speaker;

/// Every provider, in the order in which documents show them.
pub const PROVIDERS: &[Provider] = &[
    Provider { responses: true, speaker: Speaker::OPENAI, ..openai("openai", "https://api.openai.com/v1") },
    Provider {
        slug: "anthropic",
        base_url: "https://api.anthropic.com/v1",
        auth: Auth::Header("x-api-key"),
        dialect: Dialect::Anthropic,
        messages: true,
        asks_usage: false,
        ..openai("", "")
    },
    Provider {
        auth: Auth::Header("x-goog-api-key"),
        dialect: Dialect::Gemini,
        place: Place::Gemini,
        door: Some("v1beta/openai"),
        ..openai("google-ai-studio", "https://generativelanguage.googleapis.com")
    },
    // The address is that of the path's region, or of the region that is set.
    Provider {
        auth: Auth::Google,
        dialect: Dialect::Gemini,
        place: Place::Vertex,
        ..openai("google-vertex-ai", "https://aiplatform.googleapis.com")
    },
    // Each resource has an address of its own.
    Provider {
        auth: Auth::Header("api-key"),
        place: Place::Azure,
        responses: true,
        speaker: Speaker::OPENAI,
        ..openai("azure-openai", "https://openai.azure.com")
    },
    Provider {
        auth: Auth::Aws("bedrock"),
        dialect: Dialect::Bedrock,
        place: Place::Bedrock,
        asks_usage: false,
        ..openai("aws-bedrock", "https://bedrock-runtime.us-east-1.amazonaws.com")
    },
    // Tells usage unasked.
    Provider {
        asks_usage: false,
        speaker: Speaker { short_ids: true, ..Speaker::PLAIN },
        ..openai("mistral", "https://api.mistral.ai/v1")
    },
    openai("groq", "https://api.groq.com/openai/v1"),
    Provider { speaker: THINKS, ..openai("deepseek", "https://api.deepseek.com") },
    Provider { responses: true, ..openai("grok", "https://api.x.ai/v1") },
    Provider { speaker: Speaker::ROUTER, ..openai("openrouter", "https://openrouter.ai/api/v1") },
    openai("fireworks", "https://api.fireworks.ai/inference/v1"),
    openai("cerebras", "https://api.cerebras.ai/v1"),
    // Tells usage unasked, in every chunk.
    Provider { asks_usage: false, ..openai("perplexity-ai", "https://api.perplexity.ai") },
    Provider { speaker: THINKS, ..openai("moonshot", "https://api.moonshot.ai/v1") },
    openai("alibaba", "https://dashscope-intl.aliyuncs.com/compatible-mode/v1"),
    openai("minimax", "https://api.minimax.io/v1"),
    openai("baseten", "https://inference.baseten.co/v1"),
    // Its own chat by its paths; by a model's name in OpenAI's dialect.
    Provider {
        dialect: Dialect::Cohere,
        door: Some("compatibility/v1"),
        ..openai("cohere", "https://api.cohere.com")
    },
    openai("parallel", "https://api.parallel.ai"),
    Provider {
        dialect: Dialect::Other,
        asks_usage: false,
        ..openai("replicate", "https://api.replicate.com/v1")
    },
    openai("huggingface", "https://router.huggingface.co/v1"),
    local("vllm", "http://127.0.0.1:8000/v1"),
    local("sglang", "http://127.0.0.1:30000/v1"),
    local("llamacpp", "http://127.0.0.1:8080/v1"),
    Provider { messages: true, responses: true, ..local("hearth", "") },
];

/// Names that `AI.run` has for some.
pub(super) const ALIASES: &[(&str, &str)] = &[("google", "google-ai-studio"), ("xai", "grok")];

/// Wants the thoughts of its earlier turns back.
const THINKS: Speaker = Speaker { reasoning: Some("reasoning_content"), ..Speaker::PLAIN };

/// A remote provider that speaks as OpenAI does.
const fn openai(slug: &'static str, base_url: &'static str) -> Provider {
    Provider {
        slug,
        base_url,
        auth: Auth::Bearer,
        dialect: Dialect::OpenAi,
        place: Place::Base,
        door: None,
        messages: false,
        asks_usage: true,
        local: false,
        responses: false,
        speaker: Speaker::PLAIN,
    }
}

/// An engine of one's own, which may need no key.
const fn local(slug: &'static str, base_url: &'static str) -> Provider {
    Provider { local: true, speaker: Speaker::ENGINE, ..openai(slug, base_url) }
}

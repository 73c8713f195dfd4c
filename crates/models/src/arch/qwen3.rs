//! Qwen3 (dense): a norm on each query and key head, no biases.

use super::{Architecture, Build, qwen2};
use crate::config::{GgufConfig, HfConfig};
use crate::load::LoadError;
use crate::names::{self, DecoderNames};
use crate::spec::{DecoderSpec, scale};

pub(super) const QWEN3: Architecture = Architecture {
    name: "qwen3",
    gguf: &["qwen3"],
    hugging_face: &["qwen3"],
    build: Build::Decoder { gguf, hugging_face },
};

fn gguf(config: &GgufConfig<'_>) -> Result<DecoderSpec, LoadError> {
    let head_norms =
        DecoderNames { query_norm: Some("attn_q_norm"), key_norm: Some("attn_k_norm"), ..names::GGUF };
    DecoderSpec::gguf(config, head_norms)
}

fn hugging_face(config: &HfConfig<'_>) -> Result<DecoderSpec, LoadError> {
    let head_norms = DecoderNames {
        query_norm: Some("self_attn.q_norm"),
        key_norm: Some("self_attn.k_norm"),
        ..names::HUGGING_FACE
    };
    let mut spec = DecoderSpec::hugging_face(config, head_norms)?;
    spec.head_dim = config.size("head_dim")?.unwrap_or(128);
    spec.attention_scale = scale(spec.head_dim as f64);
    qwen2::slide(&mut spec, config)?;
    Ok(spec)
}

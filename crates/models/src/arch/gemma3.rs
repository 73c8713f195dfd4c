//! Gemma 3, the text model: norms on both sides of each half block, head norms, scaled embeddings, five
//! sliding layers to each full one with a rotary base of their own.

use super::{Architecture, Build};
use crate::config::{GgufConfig, HfConfig};
use crate::load::LoadError;
use crate::names::{self, DecoderNames};
use crate::rope::{Rope, RopeScaling, SLIDING};
use crate::spec::{DecoderSpec, layer_types, scale};
use device::Activation;
use serde_json::{Value, json};

pub(super) const GEMMA3: Architecture = Architecture {
    name: "gemma3",
    gguf: &["gemma3"],
    hugging_face: &["gemma3_text", "gemma3"],
    build: Build::Decoder { gguf, hugging_face },
};

/// Every so many layers one sees all positions.
const PATTERN: usize = 6;
/// Rotary base of the sliding layers.
const LOCAL_THETA: f64 = 10_000.0;
/// The 27B model scales scores by `width / heads`, the others by a head's size; GGUF does not say, and
/// only that model has this many layers.
const LAYERS_27B: usize = 62;

const GGUF: DecoderNames = DecoderNames {
    query_norm: Some("attn_q_norm"),
    key_norm: Some("attn_k_norm"),
    attention_post_norm: Some("post_attention_norm"),
    mlp_post_norm: Some("post_ffw_norm"),
    ..names::GGUF
};

const HUGGING_FACE: DecoderNames = DecoderNames {
    // The larger models are text models inside multimodal ones.
    prefixes: &["model.", "language_model.model.", "model.language_model.", ""],
    query_norm: Some("self_attn.q_norm"),
    key_norm: Some("self_attn.k_norm"),
    attention_post_norm: Some("post_attention_layernorm"),
    mlp_norm: "pre_feedforward_layernorm",
    mlp_post_norm: Some("post_feedforward_layernorm"),
    inert: &[
        "rotary_emb.inv_freq",
        "vision_tower.",
        "multi_modal_projector.",
        "model.vision_tower.",
        "model.multi_modal_projector.",
    ],
    ..names::HUGGING_FACE
};

fn common(mut spec: DecoderSpec) -> DecoderSpec {
    spec.embedding_scale = (spec.width as f32).sqrt();
    spec.activation = Activation::GeluTanh;
    spec
}

fn gguf(config: &GgufConfig<'_>) -> Result<DecoderSpec, LoadError> {
    let mut spec = common(DecoderSpec::gguf(config, GGUF)?);
    if spec.layers.len() == LAYERS_27B && !config.has("attention.scale") {
        spec.attention_scale = scale(spec.width as f64 / spec.heads as f64);
    }
    if !config.has("rope.freq_base") {
        spec.ropes[0].theta = 1_000_000.0;
    }
    let local = config.float("rope.freq_base_swa")?.unwrap_or(LOCAL_THETA);
    spec.ropes.push(Rope { theta: local, scaling: RopeScaling::None });
    let pattern = config.size("attention.sliding_window_pattern")?.unwrap_or(PATTERN).max(1);
    let window = config.size_required("attention.sliding_window")?;
    spec.slide(window, 1, |layer| (layer + 1) % pattern != 0)?;
    Ok(spec)
}

fn hugging_face(config: &HfConfig<'_>) -> Result<DecoderSpec, LoadError> {
    let merged = with_defaults(config.section("text_config"));
    let config = HfConfig(&merged);
    let mut spec = common(DecoderSpec::hugging_face(&config, HUGGING_FACE)?);
    spec.activation = config.activation("hidden_activation", Activation::GeluTanh)?;
    spec.norm_offset = 1.0;
    let scalar = config.float("query_pre_attn_scalar")?.filter(|scalar| *scalar > 0.0);
    spec.attention_scale = scale(scalar.ok_or_else(|| LoadError::missing("query_pre_attn_scalar"))?);
    spec.ropes.push(Rope::hugging_face(&config, SLIDING, "rope_local_base_freq", LOCAL_THETA)?);
    let window = config.size_required("sliding_window")?;
    match layer_types(&config, spec.layers.len())? {
        Some(slides) => spec.slide(window, 1, |layer| slides[layer])?,
        None => {
            let pattern = config.size("sliding_window_pattern")?.unwrap_or(PATTERN).max(1);
            spec.slide(window, 1, |layer| (layer + 1) % pattern != 0)?;
        }
    }
    Ok(spec)
}

/// The description with what transformers assumes where it says nothing: the text part of a
/// multimodal description leaves out whatever equals these.
fn with_defaults(config: HfConfig<'_>) -> Value {
    let mut merged = json!({
        "head_dim": 256,
        "hidden_size": 2304,
        "intermediate_size": 9216,
        "max_position_embeddings": 131_072,
        "num_attention_heads": 8,
        "num_hidden_layers": 26,
        "num_key_value_heads": 4,
        "query_pre_attn_scalar": 256,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "sliding_window": 4096,
        "tie_word_embeddings": true,
    });
    for (key, value) in config.0.as_object().into_iter().flatten() {
        merged[key] = value.clone();
    }
    merged
}

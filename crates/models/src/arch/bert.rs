//! BERT as a sentence encoder (all-MiniLM and its kin) and as a reranker (ms-marco-MiniLM and its kin).

use super::{Architecture, Build};
use crate::checkpoint::HuggingFace;
use crate::config::{GgufConfig, HfConfig};
use crate::cross_encoder::CrossEncoderSpec;
use crate::encoder::{EncoderNames, EncoderSpec, Pooling};
use crate::load::LoadError;
use crate::sentence;
use crate::spec::scale;
use device::Activation;

pub(super) const BERT: Architecture = Architecture {
    name: "bert",
    gguf: &["bert"],
    hugging_face: &["bert"],
    build: Build::Encoder { gguf, hugging_face },
};

pub(super) const RERANKER: Architecture = Architecture {
    name: "bert-reranker",
    gguf: &[],
    hugging_face: &["BertForSequenceClassification"],
    build: Build::CrossEncoder { hugging_face: reranker },
};

const GGUF: EncoderNames = EncoderNames {
    prefixes: &[""],
    token_embedding: "token_embd",
    position_embedding: "position_embd",
    type_embedding: "token_types",
    embedding_norm: "token_embd_norm",
    layer: "blk.",
    query: "attn_q",
    key: "attn_k",
    value: "attn_v",
    attention_output: "attn_output",
    attention_norm: "attn_output_norm",
    up: "ffn_up",
    down: "ffn_down",
    mlp_norm: "layer_output_norm",
    inert: &["cls."],
};

pub(super) const HUGGING_FACE: EncoderNames = EncoderNames {
    prefixes: &["", "bert."],
    token_embedding: "embeddings.word_embeddings",
    position_embedding: "embeddings.position_embeddings",
    type_embedding: "embeddings.token_type_embeddings",
    embedding_norm: "embeddings.LayerNorm",
    layer: "encoder.layer.",
    query: "attention.self.query",
    key: "attention.self.key",
    value: "attention.self.value",
    attention_output: "attention.output.dense",
    attention_norm: "attention.output.LayerNorm",
    up: "intermediate.dense",
    down: "output.dense",
    mlp_norm: "output.LayerNorm",
    // Heads for training, and an index that some files carry.
    inert: &["pooler.", "bert.pooler.", "cls.", "embeddings.position_ids"],
};

fn gguf(config: &GgufConfig<'_>) -> Result<EncoderSpec, LoadError> {
    let width = config.size_required("embedding_length")?;
    let heads = config.size_required("attention.head_count")?;
    let pooling = match config.size("pooling_type")? {
        None | Some(1) => Pooling::Mean,
        Some(2) => Pooling::First,
        Some(other) => return Err(LoadError::unsupported("pooling_type", format!("value {other}"))),
    };
    EncoderSpec {
        width,
        hidden: config.size_required("feed_forward_length")?,
        heads,
        layers: config.size_required("block_count")?,
        context: config.size_required("context_length")?,
        first_position: 0,
        norm_eps: config.float_required("attention.layer_norm_epsilon")? as f32,
        attention_scale: scale(width as f64 / heads as f64),
        activation: Activation::GeluErf,
        pooling,
        names: GGUF,
    }
    .checked()
}

fn hugging_face(folder: &HuggingFace) -> Result<EncoderSpec, LoadError> {
    let mut spec = trunk(&HfConfig(folder.config()), HUGGING_FACE)?;
    sentence::amend(&mut spec, folder)?;
    spec.checked()
}

fn reranker(config: &HfConfig<'_>) -> Result<CrossEncoderSpec, LoadError> {
    // The pooler is the first half of the head.
    let names =
        EncoderNames { prefixes: &["bert."], inert: &["cls.", "embeddings.position_ids"], ..HUGGING_FACE };
    let trunk = trunk(config, names)?.checked()?;
    Ok(CrossEncoderSpec { trunk, dense: "bert.pooler.dense", output: "classifier" })
}

/// What a `config.json` of BERT's kind says.
pub(super) fn trunk(config: &HfConfig<'_>, names: EncoderNames) -> Result<EncoderSpec, LoadError> {
    config.refuse_unless(&["position_embedding_type"], |value| value.as_str() == Some("absolute"))?;
    config.refuse_unless(&["is_decoder", "add_cross_attention"], |value| value.as_bool() == Some(false))?;
    let width = config.size_required("hidden_size")?;
    let heads = config.size_required("num_attention_heads")?;
    Ok(EncoderSpec {
        width,
        hidden: config.size_required("intermediate_size")?,
        heads,
        layers: config.size_required("num_hidden_layers")?,
        context: config.size_required("max_position_embeddings")?,
        first_position: 0,
        norm_eps: config.float("layer_norm_eps")?.unwrap_or(1e-12) as f32,
        attention_scale: scale(width as f64 / heads as f64),
        activation: config.activation("hidden_act", Activation::GeluErf)?,
        pooling: Pooling::Mean,
        names,
    })
}

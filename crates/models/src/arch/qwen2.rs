//! Qwen2 and Qwen2.5: biases on query, key and value.

use super::{Architecture, Build};
use crate::config::{GgufConfig, HfConfig};
use crate::load::LoadError;
use crate::names;
use crate::spec::{DecoderSpec, layer_types};

pub(super) const QWEN2: Architecture = Architecture {
    name: "qwen2",
    gguf: &["qwen2"],
    hugging_face: &["qwen2"],
    build: Build::Decoder { gguf, hugging_face },
};

fn gguf(config: &GgufConfig<'_>) -> Result<DecoderSpec, LoadError> {
    Ok(DecoderSpec { qkv_bias: true, ..DecoderSpec::gguf(config, names::GGUF)? })
}

fn hugging_face(config: &HfConfig<'_>) -> Result<DecoderSpec, LoadError> {
    let mut spec = DecoderSpec::hugging_face(config, names::HUGGING_FACE)?;
    spec.qkv_bias = true;
    slide(&mut spec, config)?;
    Ok(spec)
}

/// The Qwen way to say which layers slide: a switch, then a list or the first layer that does.
pub(super) fn slide(spec: &mut DecoderSpec, config: &HfConfig<'_>) -> Result<(), LoadError> {
    if !config.bool("use_sliding_window")?.unwrap_or(false) {
        return Ok(());
    }
    let Some(window) = config.size("sliding_window")?.filter(|window| *window > 0) else { return Ok(()) };
    match layer_types(config, spec.layers.len())? {
        Some(slides) => spec.slide(window, 0, |layer| slides[layer]),
        None => {
            let first = config.size("max_window_layers")?.unwrap_or(28);
            spec.slide(window, 0, |layer| layer >= first);
        }
    }
    Ok(())
}

//! Qwen2 and Qwen2.5: biases on query, key and value.

use super::{Architecture, Build};
use crate::config::{GgufConfig, HfConfig};
use crate::load::LoadError;
use crate::names;
use crate::spec::{DEFAULT_WINDOW, DecoderSpec, layer_types};

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
    let Some(window) = config.size_or("sliding_window", DEFAULT_WINDOW)? else { return Ok(()) };
    match layer_types(config, spec.layers.len())? {
        Some(slides) => spec.slide(window, 0, |layer| slides[layer]),
        None => {
            let first = config.size("max_window_layers")?.unwrap_or(28);
            spec.slide(window, 0, |layer| layer >= first)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_switched_on_window_that_is_not_mentioned_is_the_formats_own() {
        let mut config = json!({"hidden_size": 64, "num_attention_heads": 4, "num_hidden_layers": 2,
            "intermediate_size": 64, "max_position_embeddings": 64, "max_window_layers": 1});
        let windows = |config: &serde_json::Value| {
            let layers = hugging_face(&HfConfig(config)).unwrap().layers;
            layers.iter().map(|layer| layer.window).collect::<Vec<_>>()
        };
        assert_eq!(windows(&config), [None, None]);
        config["use_sliding_window"] = json!(true);
        assert_eq!(windows(&config), [None, Some(4096)]);
        config["sliding_window"] = json!(8);
        assert_eq!(windows(&config), [None, Some(8)]);
        config["sliding_window"] = json!(null);
        assert_eq!(windows(&config), [None, None]);
    }
}

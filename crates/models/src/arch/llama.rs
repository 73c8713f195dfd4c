//! Llama and its kin without changes to the block: SmolLM2, Llama 3.x, Mistral.

use super::{Architecture, Build};
use crate::config::{GgufConfig, HfConfig};
use crate::load::LoadError;
use crate::names;
use crate::spec::{DEFAULT_WINDOW, DecoderSpec};
use device::RopeStyle;

pub(super) const LLAMA: Architecture = Architecture {
    name: "llama",
    gguf: &["llama"],
    hugging_face: &["llama", "mistral"],
    build: Build::Decoder { gguf, hugging_face },
};

fn gguf(config: &GgufConfig<'_>) -> Result<DecoderSpec, LoadError> {
    let mut spec = DecoderSpec::gguf(config, names::GGUF)?;
    // Converters reorder the query and key rows of this family so that partners stand side by side.
    spec.rope_style = RopeStyle::Pairs;
    if let Some(window) = config.size("attention.sliding_window")?.filter(|window| *window > 0) {
        spec.slide(window, 0, |_| true)?;
    }
    Ok(spec)
}

fn hugging_face(config: &HfConfig<'_>) -> Result<DecoderSpec, LoadError> {
    let mut spec = DecoderSpec::hugging_face(config, names::HUGGING_FACE)?;
    // Only Mistral's first release has a window; later ones say null. To say nothing is to have one.
    let window = match config.str("model_type")? {
        Some("mistral") => config.size_or("sliding_window", DEFAULT_WINDOW)?,
        _ => config.size("sliding_window")?,
    };
    if let Some(window) = window.filter(|window| *window > 0) {
        spec.slide(window, 0, |_| true)?;
    }
    Ok(spec)
}

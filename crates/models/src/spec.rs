//! What a decoder is, as plain data: sizes, norms, rotary kinds, layer pattern and tensor names.
//!
//! An architecture fills a [`DecoderSpec`] from a checkpoint's description, starting from what all
//! descriptions of this family share; `decoder` runs it. Nothing here names an architecture.

use crate::config::{GgufConfig, HfConfig};
use crate::load::LoadError;
use crate::names::DecoderNames;
use crate::rope::{FULL, Rope, SLIDING};
use device::{Activation, KvFormat, KvGroup, KvReach, KvSpec, QUERY_GROUP_MAX, RopeStyle};

/// The window of Mistral and Qwen descriptions that do not mention it, as transformers has it.
pub(crate) const DEFAULT_WINDOW: usize = 4096;

/// Most layers that a description may claim; the largest models have about a hundred.
const MAX_LAYERS: usize = 4096;

/// One layer's own choices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LayerSpec {
    /// Positions that a row sees, its own included; `None` is all.
    pub window: Option<u32>,
    /// Index into [`DecoderSpec::ropes`].
    pub rope: usize,
}

/// Whether the output matrix is the embedding table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tied {
    Yes,
    No,
    /// It is where the checkpoint has no output matrix (GGUF).
    IfAbsent,
}

/// A decoder over which the shared forward pass runs.
#[derive(Clone, Debug)]
pub(crate) struct DecoderSpec {
    /// Elements of the residual stream.
    pub width: usize,
    /// Elements between the two halves of the gated MLP.
    pub hidden: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Longest sequence the model was made for.
    pub context: usize,
    pub norm_eps: f32,
    /// Added to every norm weight when it is loaded (Gemma stores them less one).
    pub norm_offset: f32,
    /// Factor on token embeddings.
    pub embedding_scale: f32,
    /// Factor on attention scores.
    pub attention_scale: f32,
    pub activation: Activation,
    pub rope_style: RopeStyle,
    /// Rotary kinds; layers name them by index.
    pub ropes: Vec<Rope>,
    pub layers: Vec<LayerSpec>,
    pub tied: Tied,
    /// Whether query, key and value biases must be there; elsewhere a bias is used if it is.
    pub qkv_bias: bool,
    pub names: DecoderNames,
}

impl DecoderSpec {
    /// What Hugging Face descriptions of this family share. `head_dim` is the default where the file
    /// does not say.
    pub fn hugging_face(config: &HfConfig<'_>, names: DecoderNames) -> Result<Self, LoadError> {
        refuse(config)?;
        let width = config.size_required("hidden_size")?;
        let heads = config.size_required("num_attention_heads")?;
        let head_dim = config.size("head_dim")?.unwrap_or(width / heads.max(1));
        let layers = count_layers(config.size_required("num_hidden_layers")?)?;
        Self {
            width,
            hidden: config.size_required("intermediate_size")?,
            heads,
            kv_heads: config.size("num_key_value_heads")?.unwrap_or(heads),
            head_dim,
            context: config.size_required("max_position_embeddings")?,
            norm_eps: config.float("rms_norm_eps")?.unwrap_or(1e-6) as f32,
            norm_offset: 0.0,
            embedding_scale: 1.0,
            attention_scale: scale(head_dim as f64),
            activation: config.activation("hidden_act", Activation::Silu)?,
            rope_style: RopeStyle::Halves,
            ropes: vec![Rope::hugging_face(config, FULL, "rope_theta", 10_000.0)?],
            layers: vec![LayerSpec { window: None, rope: 0 }; layers],
            tied: if config.bool("tie_word_embeddings")?.unwrap_or(false) { Tied::Yes } else { Tied::No },
            qkv_bias: false,
            names,
        }
        .checked()
    }

    /// What GGUF descriptions of this family share.
    pub fn gguf(config: &GgufConfig<'_>, names: DecoderNames) -> Result<Self, LoadError> {
        config.refuse(&[
            "attn_logit_softcapping",
            "final_logit_softcapping",
            "expert_count",
            "logit_scale",
            "residual_scale",
            "embedding_scale",
            "attention.clamp_kqv",
            "attention.max_alibi_bias",
            "attention.temperature_scale",
            "attention.shared_kv_layers",
        ])?;
        let width = config.size_required("embedding_length")?;
        let heads = config.size_required("attention.head_count")?;
        let head_dim = config.size("attention.key_length")?.unwrap_or(width / heads.max(1));
        for key in ["attention.value_length", "rope.dimension_count"] {
            if config.size(key)?.is_some_and(|size| size != head_dim) {
                return Err(LoadError::unsupported(key, "a size other than a head's".to_owned()));
            }
        }
        let layers = count_layers(config.size_required("block_count")?)?;
        let attention_scale = match config.float("attention.scale")? {
            Some(scale) if scale != 0.0 => scale as f32,
            _ => scale(head_dim as f64),
        };
        Self {
            width,
            hidden: config.size_required("feed_forward_length")?,
            heads,
            kv_heads: config.size("attention.head_count_kv")?.unwrap_or(heads),
            head_dim,
            context: config.size_required("context_length")?,
            norm_eps: config.float_required("attention.layer_norm_rms_epsilon")? as f32,
            norm_offset: 0.0,
            embedding_scale: 1.0,
            attention_scale,
            activation: Activation::Silu,
            rope_style: RopeStyle::Halves,
            ropes: vec![Rope::gguf(config)?],
            layers: vec![LayerSpec { window: None, rope: 0 }; layers],
            tied: Tied::IfAbsent,
            qkv_bias: false,
            names,
        }
        .checked()
    }

    /// Gives the layers named by `sliding` this window and rotary kind.
    pub fn slide(
        &mut self,
        window: usize,
        rope: usize,
        sliding: impl Fn(usize) -> bool,
    ) -> Result<(), LoadError> {
        if window == 0 {
            // A row would see nothing, not even itself.
            return Err(LoadError::config("the sliding window", "must not be zero".to_owned()));
        }
        let window = Some(u32::try_from(window).unwrap_or(u32::MAX));
        for (index, layer) in self.layers.iter_mut().enumerate() {
            if sliding(index) {
                *layer = LayerSpec { window, rope };
            }
        }
        Ok(())
    }

    /// The KV layout: one group for each reach among the layers.
    pub fn kv(&self, format: KvFormat) -> KvSpec {
        let mut groups: Vec<KvGroup> = Vec::new();
        for (index, layer) in self.layers.iter().enumerate() {
            let reach = layer.window.map_or(KvReach::Full, KvReach::Window);
            match groups.iter_mut().find(|group| group.reach == reach) {
                Some(group) => group.layers.push(index),
                None => groups.push(KvGroup {
                    reach,
                    layers: vec![index],
                    kv_heads: self.kv_heads,
                    head_dim: self.head_dim,
                }),
            }
        }
        KvSpec { groups, format }
    }

    /// Elements of a layer's matrices.
    pub fn layer_elements(&self) -> u64 {
        let (query, key) = (self.heads * self.head_dim, self.kv_heads * self.head_dim);
        (self.width * (2 * query + 2 * key + 3 * self.hidden)) as u64
    }

    fn checked(self) -> Result<Self, LoadError> {
        let sizes = [
            ("the width", self.width),
            ("the MLP's width", self.hidden),
            ("the number of heads", self.heads),
            ("the number of key and value heads", self.kv_heads),
            ("a head's size", self.head_dim),
            ("the number of layers", self.layers.len()),
            ("the context length", self.context),
        ];
        if let Some((name, _)) = sizes.iter().find(|(_, size)| *size == 0) {
            return Err(LoadError::config(name, "must not be zero".to_owned()));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            let reason = format!("{} are not a multiple of {} key heads", self.heads, self.kv_heads);
            return Err(LoadError::config("the number of heads", reason));
        }
        if self.heads / self.kv_heads > QUERY_GROUP_MAX {
            let reason = format!("{} for {} key heads are not supported", self.heads, self.kv_heads);
            return Err(LoadError::config("the number of heads", reason));
        }
        if !self.head_dim.is_multiple_of(2) {
            return Err(LoadError::config("a head's size", format!("{} is odd", self.head_dim)));
        }
        Ok(self)
    }
}

/// Checks a number of layers before anything is made for each.
fn count_layers(layers: usize) -> Result<usize, LoadError> {
    if layers > MAX_LAYERS {
        return Err(LoadError::config("the number of layers", format!("cannot be {layers}")));
    }
    Ok(layers)
}

/// `1 / sqrt(size)`, the usual factor on attention scores.
pub(crate) fn scale(size: f64) -> f32 {
    (1.0 / size.sqrt()) as f32
}

/// Which layers slide by the `layer_types` of a description, where it has them.
pub(crate) fn layer_types(config: &HfConfig<'_>, layers: usize) -> Result<Option<Vec<bool>>, LoadError> {
    let Some(types) = config.strings("layer_types")? else { return Ok(None) };
    if types.len() != layers {
        let reason = format!("{} entries for {layers} layers", types.len());
        return Err(LoadError::config("layer_types", reason));
    }
    let slides = |kind: &str| match kind {
        FULL => Ok(false),
        SLIDING => Ok(true),
        other => Err(LoadError::unsupported("layer_types", format!("kind {other:?}"))),
    };
    types.into_iter().map(slides).collect::<Result<Vec<_>, _>>().map(Some)
}

/// Fields that change the arithmetic of some relative of these models and are not built.
fn refuse(config: &HfConfig<'_>) -> Result<(), LoadError> {
    config.refuse_unless(&["attn_logit_softcapping", "final_logit_softcapping", "clip_qkv"], |_| false)?;
    config.refuse_unless(
        &["use_bidirectional_attention", "qk_layernorm", "use_qk_norm", "rope_interleaved", "alibi"],
        |value| value.as_bool() == Some(false),
    )?;
    config.refuse_unless(&["num_experts", "num_local_experts", "n_routed_experts"], |value| {
        value.as_u64().is_some_and(|n| n == 0)
    })?;
    config.refuse_unless(
        &[
            "attention_multiplier",
            "embedding_multiplier",
            "logit_scale",
            "logits_scaling",
            "partial_rotary_factor",
            "residual_multiplier",
        ],
        |value| value.as_f64() == Some(1.0),
    )
}

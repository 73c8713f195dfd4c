//! Tensor names of decoders: the two schemes that checkpoints use, which architectures amend.

/// Where a decoder's tensors are. Names of modules: `.weight` or `.bias` is added to each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DecoderNames {
    /// What may stand before every name but `output`; the first under which the embedding is found.
    pub prefixes: &'static [&'static str],
    pub embedding: &'static str,
    pub output_norm: &'static str,
    /// The output matrix where it is not the embedding table; whole, without prefix.
    pub output: &'static str,
    /// Comes before a layer's number.
    pub layer: &'static str,
    pub attention_norm: &'static str,
    pub query: &'static str,
    pub key: &'static str,
    pub value: &'static str,
    /// Norm of each query head; a model either has both head norms or none.
    pub query_norm: Option<&'static str>,
    pub key_norm: Option<&'static str>,
    pub attention_output: &'static str,
    /// Norm of what attention adds to the residual stream.
    pub attention_post_norm: Option<&'static str>,
    pub mlp_norm: &'static str,
    pub gate: &'static str,
    pub up: &'static str,
    pub down: &'static str,
    /// Norm of what the MLP adds to the residual stream.
    pub mlp_post_norm: Option<&'static str>,
    /// Divisors of the rotary frequencies, used where the checkpoint has them; whole, with `.weight`.
    pub rope_divisors: Option<&'static str>,
    /// Tensors whose names begin or end so are known to carry nothing that the text model needs.
    pub inert: &'static [&'static str],
}

/// The names that transformers gives.
pub(crate) const HUGGING_FACE: DecoderNames = DecoderNames {
    prefixes: &["model.", ""],
    embedding: "embed_tokens",
    output_norm: "norm",
    output: "lm_head",
    layer: "layers.",
    attention_norm: "input_layernorm",
    query: "self_attn.q_proj",
    key: "self_attn.k_proj",
    value: "self_attn.v_proj",
    query_norm: None,
    key_norm: None,
    attention_output: "self_attn.o_proj",
    attention_post_norm: None,
    mlp_norm: "post_attention_layernorm",
    gate: "mlp.gate_proj",
    up: "mlp.up_proj",
    down: "mlp.down_proj",
    mlp_post_norm: None,
    rope_divisors: None,
    inert: &["rotary_emb.inv_freq"],
};

/// The names of the GGUF specification.
pub(crate) const GGUF: DecoderNames = DecoderNames {
    prefixes: &[""],
    embedding: "token_embd",
    output_norm: "output_norm",
    output: "output",
    layer: "blk.",
    attention_norm: "attn_norm",
    query: "attn_q",
    key: "attn_k",
    value: "attn_v",
    query_norm: None,
    key_norm: None,
    attention_output: "attn_output",
    attention_post_norm: None,
    mlp_norm: "ffn_norm",
    gate: "ffn_gate",
    up: "ffn_up",
    down: "ffn_down",
    mlp_post_norm: None,
    rope_divisors: Some("rope_freqs.weight"),
    inert: &[],
};

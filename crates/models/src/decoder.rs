//! The one forward pass of decoders: from a batch to logits, on any device, by the data of a
//! `DecoderSpec`.
//!
//! What differs between architectures was settled when the layers were loaded: a bias or norm is there
//! or not. The work tensors live in the model, so a step allocates nothing once they have grown.
//! Does not choose tokens, and does not know which pages are whose.

use crate::forward::{LanguageModel, ModelSpec, TokenCost};
use crate::load::LoadError;
use crate::names::DecoderNames;
use crate::packed::Backing;
use crate::spec::{DecoderSpec, Tied};
use crate::weights::{Linear, Loader, Use, WeightSource};
use base::{Bytes, Tokens};
use device::{Activation, AttentionSpec, Batch, Device, DeviceError, KvFormat, PageId, Product, RopeStyle};
use std::mem;

/// A language model on a device.
pub(crate) struct Model<D: Device> {
    device: D,
    spec: ModelSpec,
    token_cost: TokenCost,
    weights: Weights<D>,
    backing: Backing,
    kv: D::Kv,
    work: Work<D>,
}

/// The device's copy of a model, and the numbers that its operations want.
struct Weights<D: Device> {
    embedding: D::Matrix,
    embedding_scale: f32,
    layers: Vec<Layer<D>>,
    output_norm: D::Vector,
    output: D::Matrix,
    ropes: Vec<D::Vector>,
    rope_style: RopeStyle,
    norm_eps: f32,
    activation: Activation,
}

struct Layer<D: Device> {
    attention_norm: D::Vector,
    query: Linear<D>,
    key: Linear<D>,
    value: Linear<D>,
    /// Norms of each query and each key head.
    head_norms: Option<(D::Vector, D::Vector)>,
    rope: usize,
    attention: AttentionSpec,
    attention_output: Linear<D>,
    attention_post_norm: Option<D::Vector>,
    mlp_norm: D::Vector,
    gate: Linear<D>,
    up: Linear<D>,
    down: Linear<D>,
    mlp_post_norm: Option<D::Vector>,
}

/// Activations, named by what they hold.
struct Work<D: Device> {
    /// The residual stream.
    stream: D::Tensor,
    /// The residual stream of the rows whose logits are wanted.
    wanted: D::Tensor,
    normed: D::Tensor,
    query: D::Tensor,
    key: D::Tensor,
    value: D::Tensor,
    attended: D::Tensor,
    attended_wanted: D::Tensor,
    gate: D::Tensor,
    up: D::Tensor,
    /// What half a block adds to the stream, where a norm comes between.
    branch: D::Tensor,
    logits: D::Tensor,
}

impl<D: Device> Model<D> {
    /// Loads the checkpoint's tensors by the spec's names; keys and values are kept in `kv_format`.
    pub fn load(
        architecture: &str,
        spec: DecoderSpec,
        source: WeightSource<'_>,
        kv_format: KvFormat,
        device: D,
    ) -> Result<Self, LoadError> {
        let mut loader = Loader::new(source, &device);
        let (weights, vocab) = load_weights(&spec, &mut loader)?;
        let backing = loader.finish(spec.names.inert)?;
        let kv_spec = spec.kv(kv_format);
        let kv = device.kv(&kv_spec);
        let work = Work::new(&spec, vocab, &device);
        let token_cost = TokenCost {
            weights: weights.bytes(&device),
            layers: spec.layer_elements() * spec.layers.len() as u64,
            output: (vocab * spec.width) as u64,
        };
        let spec = ModelSpec {
            architecture: architecture.to_owned(),
            vocab: vocab as u32,
            context: Tokens::from(spec.context),
            kv: kv_spec,
        };
        Ok(Self { device, spec, token_cost, weights, backing, kv, work })
    }

    /// Runs the layers; afterwards `work.stream` holds the rows of `batch.logit_rows`, if any.
    fn layers(&mut self, batch: &Batch) {
        let Self { device, weights, kv, work, .. } = self;
        let last = weights.layers.len() - 1;
        let eps = weights.norm_eps;
        device.embed(&weights.embedding, &batch.ids, weights.embedding_scale, &mut work.stream);
        for (index, layer) in weights.layers.iter().enumerate() {
            device.rms_norm(&work.stream, &layer.attention_norm, eps, &mut work.normed);
            device.matmul(
                &work.normed,
                &mut [
                    layer.query.product(&mut work.query),
                    layer.key.product(&mut work.key),
                    layer.value.product(&mut work.value),
                ],
            );
            if let Some((query_norm, key_norm)) = &layer.head_norms {
                device.head_norm(&mut work.query, query_norm, eps);
                device.head_norm(&mut work.key, key_norm, eps);
            }
            let head_dim = layer.attention.head_dim;
            let rope = &weights.ropes[layer.rope];
            device.rope(&mut work.query, head_dim, rope, weights.rope_style, &batch.positions);
            device.rope(&mut work.key, head_dim, rope, weights.rope_style, &batch.positions);
            device.store_kv(kv, index, &work.key, &work.value, batch);
            if index == last && batch.logit_rows.is_empty() {
                return;
            }
            device.attention(kv, index, &work.query, batch, &layer.attention, &mut work.attended);
            if index == last {
                // From here on only the rows whose logits are wanted matter.
                device.select_rows(&work.stream, &batch.logit_rows, &mut work.wanted);
                device.select_rows(&work.attended, &batch.logit_rows, &mut work.attended_wanted);
                mem::swap(&mut work.stream, &mut work.wanted);
                mem::swap(&mut work.attended, &mut work.attended_wanted);
            }
            add_branch(
                device,
                &work.attended,
                &layer.attention_output,
                layer.attention_post_norm.as_ref().map(|norm| (norm, eps)),
                (&mut work.stream, &mut work.branch, &mut work.normed),
            );
            device.rms_norm(&work.stream, &layer.mlp_norm, eps, &mut work.normed);
            device.matmul(
                &work.normed,
                &mut [layer.gate.product(&mut work.gate), layer.up.product(&mut work.up)],
            );
            device.gate(&mut work.gate, &work.up, weights.activation);
            add_branch(
                device,
                &work.gate,
                &layer.down,
                layer.mlp_post_norm.as_ref().map(|norm| (norm, eps)),
                (&mut work.stream, &mut work.branch, &mut work.normed),
            );
        }
    }
}

/// `stream += norm(x * weight^T + bias)`, the norm where there is one.
///
/// The products of both halves of a block end here, which is where a tensor-parallel group sums: each
/// rank holds a part of the columns. Without a norm the first rank's part carries the residual stream.
fn add_branch<D: Device>(
    device: &mut D,
    x: &D::Tensor,
    linear: &Linear<D>,
    norm: Option<(&D::Vector, f32)>,
    (stream, branch, normed): (&mut D::Tensor, &mut D::Tensor, &mut D::Tensor),
) {
    match norm {
        None => {
            let accumulate = device.leads();
            device.matmul(x, &mut [Product { accumulate, ..linear.product(stream) }]);
            device.all_reduce(stream);
        }
        Some((norm, eps)) => {
            device.matmul(x, &mut [linear.product(branch)]);
            device.all_reduce(branch);
            device.rms_norm(branch, norm, eps, normed);
            device.add(stream, normed);
        }
    }
}

impl<D: Device> Weights<D> {
    /// Bytes that every step reads: the layers and the output.
    fn bytes(&self, device: &D) -> Bytes {
        let layer = |layer: &Layer<D>| {
            let attention = [&layer.query, &layer.key, &layer.value, &layer.attention_output];
            let mlp = [&layer.gate, &layer.up, &layer.down];
            attention.into_iter().chain(mlp).map(|linear| linear.bytes(device)).sum::<u64>()
        };
        Bytes(self.layers.iter().map(layer).sum::<u64>() + device.matrix_bytes(&self.output).0)
    }
}

impl<D: Device> Work<D> {
    fn new(spec: &DecoderSpec, vocab: usize, device: &D) -> Self {
        let tensor = |width: usize| device.tensor(width);
        let (query, key) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
        Self {
            stream: tensor(spec.width),
            wanted: tensor(spec.width),
            normed: tensor(spec.width),
            query: tensor(query),
            key: tensor(key),
            value: tensor(key),
            attended: tensor(query),
            attended_wanted: tensor(query),
            gate: tensor(spec.hidden),
            up: tensor(spec.hidden),
            branch: tensor(spec.width),
            logits: tensor(vocab),
        }
    }
}

/// All tensors of a decoder, and the rows of its vocabulary.
fn load_weights<D: Device>(
    spec: &DecoderSpec,
    loader: &mut Loader<'_, D>,
) -> Result<(Weights<D>, usize), LoadError> {
    let names = &spec.names;
    let prefix = loader.prefix(names.prefixes, names.embedding);
    let table = format!("{prefix}{}", names.embedding);
    // The table's rows are the vocabulary: descriptions are known to be off by their padding.
    let vocab = loader.rows(&format!("{table}.weight"))?;
    if vocab == 0 || u32::try_from(vocab).is_err() {
        return Err(LoadError::config("the vocabulary", format!("cannot have {vocab} entries")));
    }
    let embedding = loader.matrix(&table, vocab, spec.width, Use::Vocabulary)?;

    let ropes = load_ropes(spec, loader)?;
    let layers = (0..spec.layers.len())
        .map(|index| load_layer(spec, loader, index, &format!("{prefix}{}{index}.", names.layer)))
        .collect::<Result<Vec<_>, _>>()?;
    let output_norm = format!("{prefix}{}.weight", names.output_norm);
    let output_norm = loader.vector(&output_norm, spec.width, spec.norm_offset)?;

    let output_name = format!("{}.weight", names.output);
    let tied = match spec.tied {
        Tied::Yes => true,
        Tied::No => false,
        Tied::IfAbsent => !loader.has(&output_name),
    };
    let output = if tied {
        // Some files keep a copy although the description says that there is none.
        loader.ignore(&output_name);
        embedding.clone()
    } else {
        loader.matrix(names.output, vocab, spec.width, Use::Vocabulary)?
    };
    let weights = Weights {
        embedding,
        embedding_scale: spec.embedding_scale,
        layers,
        output_norm,
        output,
        ropes,
        rope_style: spec.rope_style,
        norm_eps: spec.norm_eps,
        activation: spec.activation,
    };
    Ok((weights, vocab))
}

fn load_ropes<D: Device>(
    spec: &DecoderSpec,
    loader: &mut Loader<'_, D>,
) -> Result<Vec<D::Vector>, LoadError> {
    let divisors = match spec.names.rope_divisors.filter(|name| loader.has(name)) {
        Some(name) => Some(loader.host_vector(name, spec.head_dim / 2)?),
        None => None,
    };
    if divisors.iter().flatten().any(|d| !d.is_finite() || *d <= 0.0) {
        return Err(LoadError::config("the rotary divisors", "must be positive numbers".to_owned()));
    }
    let frequencies = spec.ropes.iter().map(|rope| rope.frequencies(spec.head_dim, divisors.as_deref()));
    Ok(frequencies.map(|frequencies| loader.upload(&frequencies)).collect())
}

fn load_layer<D: Device>(
    spec: &DecoderSpec,
    loader: &mut Loader<'_, D>,
    index: usize,
    prefix: &str,
) -> Result<Layer<D>, LoadError> {
    let DecoderNames { query_norm, key_norm, attention_post_norm, mlp_post_norm, .. } = spec.names;
    let names = &spec.names;
    let (width, hidden) = (spec.width, spec.hidden);
    let (query_width, key_width) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
    let module = |name: &str| format!("{prefix}{name}");
    let norm = |loader: &mut Loader<'_, D>, name: &str, len: usize| {
        loader.vector(&format!("{prefix}{name}.weight"), len, spec.norm_offset)
    };
    let head_norms = match (query_norm, key_norm) {
        (Some(query), Some(key)) => {
            Some((norm(loader, query, spec.head_dim)?, norm(loader, key, spec.head_dim)?))
        }
        _ => None,
    };
    let bias = spec.qkv_bias;
    Ok(Layer {
        attention_norm: norm(loader, names.attention_norm, width)?,
        query: Linear::load(loader, &module(names.query), query_width, width, bias)?,
        key: Linear::load(loader, &module(names.key), key_width, width, bias)?,
        value: Linear::load(loader, &module(names.value), key_width, width, bias)?,
        head_norms,
        rope: spec.layers[index].rope,
        attention: AttentionSpec {
            heads: spec.heads,
            kv_heads: spec.kv_heads,
            head_dim: spec.head_dim,
            scale: spec.attention_scale,
            window: spec.layers[index].window,
        },
        attention_output: Linear::load(loader, &module(names.attention_output), width, query_width, false)?,
        attention_post_norm: attention_post_norm.map(|name| norm(loader, name, width)).transpose()?,
        mlp_norm: norm(loader, names.mlp_norm, width)?,
        gate: Linear::load(loader, &module(names.gate), hidden, width, false)?,
        up: Linear::load(loader, &module(names.up), hidden, width, false)?,
        down: Linear::load(loader, &module(names.down), width, hidden, false)?,
        mlp_post_norm: mlp_post_norm.map(|name| norm(loader, name, width)).transpose()?,
    })
}

impl<D: Device> LanguageModel for Model<D> {
    fn spec(&self) -> &ModelSpec {
        &self.spec
    }

    fn token_cost(&self) -> Option<TokenCost> {
        Some(self.token_cost)
    }

    fn ensure_page(&mut self, page: PageId) -> Result<(), DeviceError> {
        self.device.ensure_page(&mut self.kv, page)
    }

    fn drop_page(&mut self, page: PageId) {
        self.device.drop_page(&mut self.kv, page);
    }

    fn forward(&mut self, batch: &Batch) -> &[f32] {
        if cfg!(debug_assertions) {
            batch.check();
            assert!(batch.ids.iter().all(|id| *id < self.spec.vocab), "an id beyond the vocabulary");
        }
        for copy in &batch.copies {
            self.device.copy_page(&mut self.kv, *copy);
        }
        if batch.rows() == 0 {
            return &[];
        }
        self.layers(batch);
        if batch.logit_rows.is_empty() {
            self.backing.check();
            return &[];
        }
        let Self { device, weights, work, .. } = self;
        device.rms_norm(&work.stream, &weights.output_norm, weights.norm_eps, &mut work.normed);
        let output =
            Product { weight: &weights.output, bias: None, out: &mut work.logits, accumulate: false };
        device.matmul(&work.normed, &mut [output]);
        self.backing.check();
        device.host(&work.logits)
    }
}

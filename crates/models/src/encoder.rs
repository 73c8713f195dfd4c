//! The one forward pass of encoders (the trunk), and sentence encoders: whole texts in, one vector of unit length
//! each out.
//!
//! Post-norm blocks with learned positions, as BERT has them. Inputs are packed row after row without
//! padding, and a vector depends on its own input alone. Does not cut inputs: the caller keeps to
//! `EmbeddingSpec::context`.

use crate::load::LoadError;
use crate::packed::Backing;
use crate::weights::{Linear, Loader, Use, WeightSource};
use base::Tokens;
use device::{Activation, AttentionSpec, Device, Product};

/// Rows that are worked on at once; more inputs are done in several passes, to bound memory.
const PASS_ROWS: usize = 1024;

/// The facts of an embedding model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EmbeddingSpec {
    /// Name in the architecture registry, for example `bert`.
    pub architecture: String,
    /// Entries of the vocabulary; ids are below this.
    pub vocab: u32,
    /// Longest input, special tokens included.
    pub context: Tokens,
    /// Elements of a vector.
    pub dimensions: u32,
}

/// A model that turns texts into vectors.
pub trait EmbeddingModel: Send {
    /// What the model is.
    fn spec(&self) -> &EmbeddingSpec;
    /// One vector of unit length for each input, in order. Each input holds at least one id and at most
    /// `spec().context`; anything else is the caller's bug and panics.
    fn embed(&mut self, inputs: &[&[u32]]) -> Vec<Vec<f32>>;
}

/// How an input's rows become one vector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pooling {
    /// The mean of all rows.
    Mean,
    /// The first row (`[CLS]`).
    First,
}

/// An encoder as plain data.
#[derive(Clone, Debug)]
pub(crate) struct EncoderSpec {
    pub width: usize,
    pub hidden: usize,
    pub heads: usize,
    pub layers: usize,
    pub context: usize,
    /// Rows of the position table before that of a text's first token.
    pub first_position: usize,
    pub norm_eps: f32,
    pub attention_scale: f32,
    pub activation: Activation,
    pub pooling: Pooling,
    pub names: EncoderNames,
}

impl EncoderSpec {
    /// Refuses sizes that no model has.
    pub fn checked(self) -> Result<Self, LoadError> {
        let sizes = [self.width, self.hidden, self.heads, self.layers, self.context];
        if sizes.contains(&0) || !self.width.is_multiple_of(self.heads) {
            let reason = format!("do not fit together: width {}, {} heads", self.width, self.heads);
            return Err(LoadError::config("the encoder's sizes", reason));
        }
        Ok(self)
    }
}

/// Where an encoder's tensors are. Names of modules: `.weight` and `.bias` are added to each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncoderNames {
    /// What may stand before every name; the first under which the token table is found.
    pub prefixes: &'static [&'static str],
    pub token_embedding: &'static str,
    pub position_embedding: &'static str,
    pub type_embedding: &'static str,
    pub embedding_norm: &'static str,
    /// Comes before a layer's number.
    pub layer: &'static str,
    pub query: &'static str,
    pub key: &'static str,
    pub value: &'static str,
    pub attention_output: &'static str,
    pub attention_norm: &'static str,
    pub up: &'static str,
    pub down: &'static str,
    pub mlp_norm: &'static str,
    /// Tensors that are known to carry nothing that an embedding needs.
    pub inert: &'static [&'static str],
}

/// A sentence encoder on a device.
pub(crate) struct Encoder<D: Device> {
    spec: EmbeddingSpec,
    pooling: Pooling,
    device: D,
    trunk: Trunk<D>,
    backing: Backing,
}

/// An encoder without what it is used for: tokens in, a state for each token out.
pub(crate) struct Trunk<D: Device> {
    /// Entries of the vocabulary.
    pub vocab: u32,
    /// Token types.
    pub types: u32,
    /// Longest input.
    pub context: Tokens,
    width: usize,
    weights: Weights<D>,
    work: Work<D>,
}

/// An input of a trunk.
#[derive(Clone, Copy)]
pub(crate) struct Row<'a> {
    pub ids: &'a [u32],
    /// The type of each token; all are of the first where there are none.
    pub types: Option<&'a [u32]>,
}

struct Weights<D: Device> {
    tokens: D::Matrix,
    positions: D::Matrix,
    types: D::Matrix,
    embedding_norm: Norm<D>,
    layers: Vec<Layer<D>>,
    norm_eps: f32,
    activation: Activation,
    attention: AttentionSpec,
}

struct Norm<D: Device> {
    weight: D::Vector,
    bias: D::Vector,
}

struct Layer<D: Device> {
    query: Linear<D>,
    key: Linear<D>,
    value: Linear<D>,
    attention_output: Linear<D>,
    attention_norm: Norm<D>,
    up: Linear<D>,
    down: Linear<D>,
    mlp_norm: Norm<D>,
}

struct Work<D: Device> {
    stream: D::Tensor,
    query: D::Tensor,
    key: D::Tensor,
    value: D::Tensor,
    attended: D::Tensor,
    hidden: D::Tensor,
    first_position: u32,
    /// The pass's rows as plain data: ids, positions, token types, and the inputs' lengths.
    ids: Vec<u32>,
    positions: Vec<u32>,
    types: Vec<u32>,
    segments: Vec<u32>,
}

impl<D: Device> Encoder<D> {
    /// Loads the checkpoint's tensors by the spec's names.
    pub fn load(
        architecture: &str,
        spec: &EncoderSpec,
        source: WeightSource<'_>,
        device: D,
    ) -> Result<Self, LoadError> {
        let mut loader = Loader::new(source, &device);
        let trunk = Trunk::load(spec, &mut loader)?;
        let backing = loader.finish(spec.names.inert)?;
        let embedding = EmbeddingSpec {
            architecture: architecture.to_owned(),
            vocab: trunk.vocab,
            context: trunk.context,
            dimensions: spec.width as u32,
        };
        Ok(Self { spec: embedding, pooling: spec.pooling, device, trunk, backing })
    }

    /// Embeds as many of `inputs` as one pass takes, at least one.
    fn pass(&mut self, inputs: &[&[u32]], vectors: &mut Vec<Vec<f32>>) {
        let Self { device, trunk, pooling, backing, .. } = self;
        trunk.pass(device, inputs.iter().map(|ids| Row { ids, types: None }));
        backing.check();
        let mut rows = device.host(trunk.states());
        for len in trunk.lengths() {
            let (own, rest) = rows.split_at(*len as usize * trunk.width);
            vectors.push(pool(own, trunk.width, *pooling));
            rows = rest;
        }
    }
}

impl<D: Device> Trunk<D> {
    /// Loads a trunk's tensors by the spec's names.
    pub fn load(spec: &EncoderSpec, loader: &mut Loader<'_, D>) -> Result<Self, LoadError> {
        let prefix = loader.prefix(spec.names.prefixes, spec.names.token_embedding);
        let rows = |loader: &Loader<'_, D>, name: &str| loader.rows(&format!("{prefix}{name}.weight"));
        let vocab = rows(loader, spec.names.token_embedding)?;
        let positions = rows(loader, spec.names.position_embedding)?;
        let types = rows(loader, spec.names.type_embedding)?;
        let small = |rows: usize| u32::try_from(rows).ok().filter(|rows| *rows > 0);
        let fits = spec.context.saturating_add(spec.first_position) <= positions;
        let (Some(vocab_rows), Some(type_rows), true) = (small(vocab), small(types), fits) else {
            let reason = format!(
                "{vocab} tokens, {positions} positions from {} on and {types} types for {} tokens",
                spec.first_position, spec.context
            );
            return Err(LoadError::config("the embedding tables", reason));
        };
        let weights = load_weights(spec, loader, prefix, [vocab, positions, types])?;
        let work = Work::new(spec, loader.device());
        Ok(Self {
            vocab: vocab_rows,
            types: type_rows,
            context: Tokens::from(spec.context),
            width: spec.width,
            weights,
            work,
        })
    }

    /// Panics unless an input is one that a pass may have.
    pub fn check(&self, ids: &[u32]) {
        assert!(!ids.is_empty(), "an input holds at least one id");
        assert!(ids.len() <= self.context.get(), "an input keeps to the model's context");
        assert!(ids.iter().all(|id| *id < self.vocab), "an id beyond the vocabulary");
    }

    /// Runs as many inputs as one pass takes, at least one. Their states are then in [`Trunk::states`].
    pub fn pass<'a>(&mut self, device: &mut D, inputs: impl Iterator<Item = Row<'a>>) {
        let work = &mut self.work;
        work.clear();
        for input in inputs {
            let fits = work.segments.is_empty() || work.ids.len() + input.ids.len() <= PASS_ROWS;
            if !fits {
                break;
            }
            work.push(input);
        }
        self.layers(device);
    }

    /// The lengths of the last pass's inputs.
    pub fn lengths(&self) -> &[u32] {
        &self.work.segments
    }

    /// The states that the last pass ended with, row after row.
    pub fn states(&self) -> &D::Tensor {
        &self.work.stream
    }

    /// Runs the rows that `work` describes; their last states are then in `work.stream`.
    fn layers(&mut self, device: &mut D) {
        let Self { weights, work, .. } = self;
        let eps = weights.norm_eps;
        device.embed(&weights.tokens, &work.ids, 1.0, &mut work.stream);
        device.embed_add(&weights.positions, &work.positions, &mut work.stream);
        device.embed_add(&weights.types, &work.types, &mut work.stream);
        weights.embedding_norm.apply(device, &mut work.stream, eps);
        for layer in &weights.layers {
            device.matmul(
                &work.stream,
                &mut [
                    layer.query.product(&mut work.query),
                    layer.key.product(&mut work.key),
                    layer.value.product(&mut work.value),
                ],
            );
            device.attention_full(
                &work.query,
                &work.key,
                &work.value,
                &work.segments,
                &weights.attention,
                &mut work.attended,
            );
            let accumulate = device.leads();
            let output = Product { accumulate, ..layer.attention_output.product(&mut work.stream) };
            device.matmul(&work.attended, &mut [output]);
            device.all_reduce(&mut work.stream);
            layer.attention_norm.apply(device, &mut work.stream, eps);
            device.matmul(&work.stream, &mut [layer.up.product(&mut work.hidden)]);
            device.activate(&mut work.hidden, weights.activation);
            let down = Product { accumulate, ..layer.down.product(&mut work.stream) };
            device.matmul(&work.hidden, &mut [down]);
            device.all_reduce(&mut work.stream);
            layer.mlp_norm.apply(device, &mut work.stream, eps);
        }
    }
}

/// One vector of unit length from an input's rows.
fn pool(rows: &[f32], width: usize, pooling: Pooling) -> Vec<f32> {
    let mut sum = vec![0.0f64; width];
    let rows = match pooling {
        Pooling::Mean => rows,
        Pooling::First => &rows[..width],
    };
    for row in rows.chunks_exact(width) {
        sum.iter_mut().zip(row).for_each(|(sum, x)| *sum += f64::from(*x));
    }
    // The mean's divisor falls away with the length.
    let length = sum.iter().map(|x| x * x).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    sum.into_iter().map(|x| (x * scale) as f32).collect()
}

impl<D: Device> Norm<D> {
    fn apply(&self, device: &mut D, x: &mut D::Tensor, eps: f32) {
        device.layer_norm(x, &self.weight, &self.bias, eps);
    }

    fn load(loader: &mut Loader<'_, D>, module: &str, len: usize) -> Result<Self, LoadError> {
        let weight = loader.vector(&format!("{module}.weight"), len, 0.0)?;
        Ok(Self { weight, bias: loader.vector(&format!("{module}.bias"), len, 0.0)? })
    }
}

impl<D: Device> Work<D> {
    fn new(spec: &EncoderSpec, device: &D) -> Self {
        let tensor = |width: usize| device.tensor(width);
        Self {
            stream: tensor(spec.width),
            query: tensor(spec.width),
            key: tensor(spec.width),
            value: tensor(spec.width),
            attended: tensor(spec.width),
            hidden: tensor(spec.hidden),
            first_position: spec.first_position as u32,
            ids: Vec::new(),
            positions: Vec::new(),
            types: Vec::new(),
            segments: Vec::new(),
        }
    }

    fn clear(&mut self) {
        self.ids.clear();
        self.positions.clear();
        self.types.clear();
        self.segments.clear();
    }

    fn push(&mut self, input: Row<'_>) {
        let len = input.ids.len() as u32;
        self.ids.extend_from_slice(input.ids);
        self.positions.extend(self.first_position..self.first_position + len);
        self.types.extend_from_slice(input.types.unwrap_or_default());
        self.types.resize(self.ids.len(), 0);
        self.segments.push(len);
    }
}

fn load_weights<D: Device>(
    spec: &EncoderSpec,
    loader: &mut Loader<'_, D>,
    prefix: &str,
    [vocab, positions, types]: [usize; 3],
) -> Result<Weights<D>, LoadError> {
    let names = &spec.names;
    let (width, hidden) = (spec.width, spec.hidden);
    let table = |loader: &mut Loader<'_, D>, name: &str, rows: usize| {
        loader.matrix(&format!("{prefix}{name}"), rows, width, Use::Vocabulary)
    };
    let tokens = table(loader, names.token_embedding, vocab)?;
    let positions = table(loader, names.position_embedding, positions)?;
    let types = table(loader, names.type_embedding, types)?;
    let embedding_norm = Norm::load(loader, &format!("{prefix}{}", names.embedding_norm), width)?;
    let layers = (0..spec.layers).map(|index| {
        let module = |name: &str| format!("{prefix}{}{index}.{name}", names.layer);
        Ok(Layer {
            query: Linear::load(loader, &module(names.query), width, width, true)?,
            key: Linear::load(loader, &module(names.key), width, width, true)?,
            value: Linear::load(loader, &module(names.value), width, width, true)?,
            attention_output: Linear::load(loader, &module(names.attention_output), width, width, true)?,
            attention_norm: Norm::load(loader, &module(names.attention_norm), width)?,
            up: Linear::load(loader, &module(names.up), hidden, width, true)?,
            down: Linear::load(loader, &module(names.down), width, hidden, true)?,
            mlp_norm: Norm::load(loader, &module(names.mlp_norm), width)?,
        })
    });
    let layers = layers.collect::<Result<Vec<_>, LoadError>>()?;
    Ok(Weights {
        tokens,
        positions,
        types,
        embedding_norm,
        layers,
        norm_eps: spec.norm_eps,
        activation: spec.activation,
        attention: AttentionSpec {
            heads: spec.heads,
            kv_heads: spec.heads,
            head_dim: width / spec.heads,
            scale: spec.attention_scale,
            window: None,
        },
    })
}

impl<D: Device> EmbeddingModel for Encoder<D> {
    fn spec(&self) -> &EmbeddingSpec {
        &self.spec
    }

    fn embed(&mut self, inputs: &[&[u32]]) -> Vec<Vec<f32>> {
        inputs.iter().for_each(|input| self.trunk.check(input));
        let mut vectors = Vec::with_capacity(inputs.len());
        while vectors.len() < inputs.len() {
            self.pass(&inputs[vectors.len()..], &mut vectors);
        }
        vectors
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pooled_vectors_have_unit_length() {
        let rows = [3.0, 0.0, 3.0, 8.0];
        assert_eq!(pool(&rows, 2, Pooling::First), [1.0, 0.0]);
        assert_eq!(pool(&rows, 2, Pooling::Mean), [0.6, 0.8]);
        assert_eq!(pool(&[0.0, 0.0], 2, Pooling::Mean), [0.0, 0.0]);
    }
}

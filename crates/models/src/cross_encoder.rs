//! Rerankers: a trunk over a query and a document together, and a head that makes one number of the first row.
//!
//! The number is the head's logit; what a caller makes of it is not known here. It depends on its own pair alone,
//! whatever is scored beside it. Heads with several labels, which classify and do not rank, are refused. Does not cut
//! pairs: the caller keeps to `RerankSpec::context`.

use crate::encoder::{EncoderSpec, Row, Trunk};
use crate::load::LoadError;
use crate::packed::Backing;
use crate::weights::{Linear, Loader, WeightSource};
use base::Tokens;
use device::Device;

/// The facts of a reranker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RerankSpec {
    /// Name in the architecture registry, for example `bert-reranker`.
    pub architecture: String,
    /// Entries of the vocabulary; ids are below this.
    pub vocab: u32,
    /// Token types that the model tells apart; types are below this.
    pub types: u32,
    /// Longest pair, special tokens included.
    pub context: Tokens,
}

/// A query and a document as one row of tokens.
#[derive(Clone, Copy, Debug)]
pub struct PairIds<'a> {
    /// The tokens, special ones included.
    pub ids: &'a [u32],
    /// The type of each.
    pub types: &'a [u32],
}

/// A model that says how well documents answer queries.
pub trait RerankModel: Send {
    /// What the model is.
    fn spec(&self) -> &RerankSpec;
    /// One logit for each pair, in order. A pair has at least one id and at most `spec().context`, and as many
    /// types; anything else is the caller's bug and panics.
    fn score(&mut self, pairs: &[PairIds<'_>]) -> Vec<f32>;
}

/// A cross-encoder as plain data.
#[derive(Clone, Debug)]
pub(crate) struct CrossEncoderSpec {
    pub trunk: EncoderSpec,
    /// The module before the hyperbolic tangent.
    pub dense: &'static str,
    /// The module after it, with one row for each label.
    pub output: &'static str,
}

/// A cross-encoder on a device.
pub(crate) struct CrossEncoder<D: Device> {
    spec: RerankSpec,
    device: D,
    trunk: Trunk<D>,
    dense: Linear<D>,
    backing: Backing,
    /// The one row of the output matrix and its bias. One product a pair is not worth a device's while.
    output: Vec<f32>,
    bias: f32,
    /// First row of each pair.
    first: D::Tensor,
    pooled: D::Tensor,
}

impl<D: Device> CrossEncoder<D> {
    /// Loads the checkpoint's tensors by the spec's names.
    pub fn load(
        architecture: &str,
        spec: &CrossEncoderSpec,
        source: WeightSource<'_>,
        device: D,
    ) -> Result<Self, LoadError> {
        let width = spec.trunk.width;
        let inert = spec.trunk.names.inert;
        let output = format!("{}.weight", spec.output);
        let (first, pooled) = (device.tensor(width), device.tensor(width));
        let mut loader = Loader::new(source, &device);
        let labels = loader.rows(&output)?;
        if labels != 1 {
            let reason = format!("{labels} labels; a reranker has one");
            return Err(LoadError::unsupported(&output, reason));
        }
        let dense = Linear::load(&mut loader, spec.dense, width, width, true)?;
        let output = loader.host_vector(&output, width)?;
        let bias = loader.host_vector(&format!("{}.bias", spec.output), 1)?;
        let trunk = Trunk::load(&spec.trunk, &mut loader)?;
        let backing = loader.finish(inert)?;
        let spec = RerankSpec {
            architecture: architecture.to_owned(),
            vocab: trunk.vocab,
            types: trunk.types,
            context: trunk.context,
        };
        let bias = bias.first().copied().unwrap_or(0.0);
        Ok(Self { spec, device, trunk, dense, backing, output, bias, first, pooled })
    }

    /// Scores as many of `pairs` as one pass takes, at least one.
    fn pass(&mut self, pairs: &[PairIds<'_>], logits: &mut Vec<f32>) {
        let Self { device, trunk, first, pooled, .. } = self;
        trunk.pass(device, pairs.iter().map(|pair| Row { ids: pair.ids, types: Some(pair.types) }));
        let starts = trunk.lengths().iter().scan(0, |next, len| {
            let start = *next;
            *next += len;
            Some(start)
        });
        device.select_rows(trunk.states(), &starts.collect::<Vec<u32>>(), first);
        device.matmul(first, &mut [self.dense.product(pooled)]);
        self.backing.check();
        let pooled = device.host(pooled);
        logits.extend(pooled.chunks_exact(self.output.len()).map(|row| {
            let products = row.iter().zip(&self.output).map(|(x, w)| f64::from(*x).tanh() * f64::from(*w));
            (products.sum::<f64>() + f64::from(self.bias)) as f32
        }));
    }
}

impl<D: Device> RerankModel for CrossEncoder<D> {
    fn spec(&self) -> &RerankSpec {
        &self.spec
    }

    fn score(&mut self, pairs: &[PairIds<'_>]) -> Vec<f32> {
        for pair in pairs {
            self.trunk.check(pair.ids);
            assert_eq!(pair.ids.len(), pair.types.len(), "every token of a pair has a type");
            assert!(pair.types.iter().all(|kind| *kind < self.spec.types), "a type beyond the model's");
        }
        let mut logits = Vec::with_capacity(pairs.len());
        while logits.len() < pairs.len() {
            self.pass(&pairs[logits.len()..], &mut logits);
        }
        logits
    }
}

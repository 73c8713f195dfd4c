//! How near a speed comes to the machine's limits: bytes that must be read, and products that must be made, over what
//! the probe says the machine can read and multiply.
//!
//! A step is taken to read all weights once, and the keys and values of each sequence once. Attention's products and
//! all else are not counted, so that a share says how much of a limit is used, not how much time is lost to what.

use super::model::{BATCHED, What};
use super::probe::Probe;
use device::{KvReach, KvSpec};
use models::TokenCost;
use serde_json::Value;

/// What tokens of a model cost.
pub(super) struct Roofline {
    cost: TokenCost,
    /// Bytes of a token's keys and values in each group of layers, and how many tokens back these look.
    groups: Vec<(f64, f64)>,
}

impl Roofline {
    pub fn new(cost: TokenCost, kv: &KvSpec) -> Self {
        let group = |group: &device::KvGroup| {
            let mut alone = kv.clone();
            alone.groups = vec![group.clone()];
            let reach = match group.reach {
                KvReach::Full => f64::INFINITY,
                KvReach::Window(tokens) => f64::from(tokens),
            };
            (alone.token_bytes().0 as f64, reach)
        };
        Self { cost, groups: kv.groups.iter().map(group).collect() }
    }

    /// What a token costs, in the names that a report shows.
    pub fn settings(&self) -> Vec<(String, Value)> {
        let millions = |count: u64| Value::from((count as f64 / 1e5).round() / 10.0);
        vec![
            ("weights-read-a-step-MB".to_owned(), millions(self.cost.weights.0)),
            ("multiply-adds-a-token-M".to_owned(), millions(self.cost.layers + self.cost.output)),
        ]
    }

    /// Percent of the memory's speed at so many tokens a second; `None` where a step's rows share what it reads in ways
    /// that are not known here.
    pub fn memory_share(&self, what: What, rate: f64, probe: &Probe) -> Option<f64> {
        let weights = self.cost.weights.0 as f64;
        let bytes = match what {
            What::Prefill { .. } => return None,
            What::Decode { depth, tokens } => weights + self.kv(f64::from(depth) + f64::from(tokens) / 2.0),
            What::Batched { sequences } => {
                weights / f64::from(sequences) + self.kv(f64::from(BATCHED) + f64::from(BATCHED) / 2.0)
            }
        };
        Some(bytes * rate / probe.weights_rate() * 100.0)
    }

    /// Percent of the 8-bit products at so many tokens a second.
    pub fn int8_share(&self, what: What, rate: f64, probe: &Probe) -> Option<f64> {
        let (layers, output) = (self.cost.layers as f64, self.cost.output as f64);
        let multiply_adds = match what {
            // Only the last row's logits are wanted.
            What::Prefill { prompt } => layers + output / f64::from(prompt),
            What::Decode { .. } | What::Batched { .. } => layers + output,
        };
        Some(2.0 * multiply_adds * rate / (probe.int8_gop_s * 1e9) * 100.0)
    }

    /// Bytes of keys and values that a row after so many tokens reads.
    fn kv(&self, tokens: f64) -> f64 {
        self.groups.iter().map(|(bytes, reach)| bytes * tokens.min(*reach)).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::super::probe::tests::example;
    use super::*;
    use base::Bytes;
    use device::KvGroup;

    fn roofline() -> Roofline {
        let group =
            |reach, layers: &[usize]| KvGroup { reach, layers: layers.to_vec(), kv_heads: 1, head_dim: 4 };
        let kv = KvSpec {
            groups: vec![group(KvReach::Full, &[0]), group(KvReach::Window(10), &[1, 2])],
            ..KvSpec::default()
        };
        Roofline::new(TokenCost { weights: Bytes(1000), layers: 900, output: 100 }, &kv)
    }

    fn close(found: Option<f64>, wanted: f64) {
        let found = found.expect("a share");
        assert!((found / wanted - 1.0).abs() < 1e-9, "{found} is not {wanted}");
    }

    #[test]
    fn decoding_reads_weights_and_what_each_layer_sees_of_the_context() {
        let (roofline, probe) = (roofline(), example(1.0, 1.0));
        // A layer keeps 16 bytes a token; two layers look 10 tokens back.
        let rate = 1e6;
        close(
            roofline.memory_share(What::Decode { depth: 100, tokens: 8 }, rate, &probe),
            (1000 + 104 * 16 + 320) as f64 / 10.0,
        );
        close(
            roofline.memory_share(What::Batched { sequences: 4 }, rate, &probe),
            (250 + 48 * 16 + 320) as f64 / 10.0,
        );
        assert_eq!(roofline.memory_share(What::Prefill { prompt: 9 }, rate, &probe), None);
    }

    #[test]
    fn the_speed_of_memory_is_that_of_the_weights_size_where_it_was_probed() {
        let mut probe = example(1.0, 1.0);
        probe.weights_gb_s = Some(2.0);
        let decode = What::Decode { depth: 0, tokens: 0 };
        close(roofline().memory_share(decode, 1e6, &probe), 50.0);
    }

    #[test]
    fn a_prompt_needs_the_output_once() {
        let (roofline, probe) = (roofline(), example(1.0, 1.0));
        close(roofline.int8_share(What::Prefill { prompt: 10 }, 1e6, &probe), 2.0 * 910.0 / 10.0);
        close(roofline.int8_share(What::Batched { sequences: 10 }, 1e6, &probe), 2.0 * 1000.0 / 10.0);
    }
}

//! Rotary frequencies: from a description's base and scaling to one angle per position step and pair.
//!
//! Computed in `f64` and rounded once. Scalings whose frequencies depend on the sequence length
//! (dynamic, longrope) or that also rescale attention (yarn) are refused where the description is read.

use crate::config::{GgufConfig, HfConfig};
use crate::load::LoadError;
use std::f64::consts::TAU;

/// How the plain frequencies are stretched for contexts longer than the model was first trained on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RopeScaling {
    None,
    /// All frequencies divided by a factor (position interpolation).
    Linear(f64),
    /// Llama 3.1: long wavelengths divided by `factor`, short ones kept, a ramp between.
    Llama3 {
        factor: f64,
        low: f64,
        high: f64,
        original_context: f64,
    },
}

/// One kind of rotary embedding; a model may use several, by layer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Rope {
    pub theta: f64,
    pub scaling: RopeScaling,
}

impl Rope {
    /// Angles per position step of `dims / 2` pairs. `divisors` (GGUF's `rope_freqs`) divide them
    /// pair by pair and stand for a scaling that the converter already worked out.
    pub fn frequencies(&self, dims: usize, divisors: Option<&[f32]>) -> Vec<f32> {
        let scaled = |i: usize| {
            let plain = self.theta.powf(-((2 * i) as f64) / dims as f64);
            let divided = plain / divisors.map_or(1.0, |d| f64::from(d[i]));
            match self.scaling {
                RopeScaling::None => divided,
                RopeScaling::Linear(factor) => divided / factor,
                RopeScaling::Llama3 { factor, low, high, original_context } => {
                    let turns = original_context * divided / TAU;
                    let keep = ((turns - low) / (high - low)).clamp(0.0, 1.0);
                    divided * (keep + (1.0 - keep) / factor)
                }
            }
        };
        (0..dims / 2).map(|i| scaled(i) as f32).collect()
    }

    /// From `config.json`. `layers` is the kind of layer (`full_attention`, `sliding_attention`) where
    /// the description tells kinds apart; `theta_key` is where older files keep the base.
    pub fn hugging_face(
        config: &HfConfig<'_>,
        layers: &str,
        theta_key: &str,
        default_theta: f64,
    ) -> Result<Self, LoadError> {
        // Since transformers 5 everything is in `rope_parameters`; before, scaling was apart and only
        // ever meant the full layers.
        let parameters = config.get("rope_parameters").map(|p| HfConfig(p).section(layers));
        let theta = parameters.map_or(Ok(None), |p| p.float("rope_theta"))?;
        let theta = match theta {
            Some(theta) => theta,
            None => config.float(theta_key)?.unwrap_or(default_theta),
        };
        let scaling = match (parameters, config.get("rope_scaling")) {
            (Some(parameters), _) => hugging_face_scaling(&parameters)?,
            (None, Some(scaling)) if layers == FULL => hugging_face_scaling(&HfConfig(scaling))?,
            (None, _) => RopeScaling::None,
        };
        Self { theta, scaling }.checked("rope_theta")
    }

    /// From GGUF metadata, for the layers that see every position.
    pub fn gguf(config: &GgufConfig<'_>) -> Result<Self, LoadError> {
        let theta = config.float("rope.freq_base")?.unwrap_or(10_000.0);
        let factor = match config.float("rope.scaling.factor")? {
            Some(factor) => Some(factor),
            None => config.float("rope.scale_linear")?,
        };
        let scaling = match (config.str("rope.scaling.type")?, factor) {
            (Some("none"), _) | (None | Some("linear"), None) => RopeScaling::None,
            (None | Some("linear"), Some(0.0)) => RopeScaling::None,
            (None | Some("linear"), Some(factor)) => RopeScaling::Linear(factor),
            (Some(other), _) => return Err(unsupported(other)),
        };
        Self { theta, scaling }.checked("rope.freq_base")
    }

    fn checked(self, key: &str) -> Result<Self, LoadError> {
        let fault = |what: &str| Err(LoadError::config(key, format!("{what} must be a positive number")));
        let good = |x: f64| x.is_finite() && x > 0.0;
        match self.scaling {
            _ if !good(self.theta) => fault("the rotary base"),
            RopeScaling::Linear(factor) if !good(factor) => fault("the scaling factor"),
            RopeScaling::Llama3 { factor, low, high, original_context }
                if ![factor, low, high, original_context].into_iter().all(good) || high <= low =>
            {
                fault("each number of the llama3 scaling")
            }
            _ => Ok(self),
        }
    }
}

/// The layers that see every position.
pub(crate) const FULL: &str = "full_attention";
/// The layers that see a window.
pub(crate) const SLIDING: &str = "sliding_attention";

fn unsupported(kind: &str) -> LoadError {
    LoadError::unsupported("rope scaling", format!("type {kind:?}"))
}

fn hugging_face_scaling(config: &HfConfig<'_>) -> Result<RopeScaling, LoadError> {
    config.refuse_unless(&["partial_rotary_factor"], |v| v.as_f64() == Some(1.0))?;
    let required = |key: &str| config.float(key)?.ok_or_else(|| LoadError::missing(key));
    let kind = match config.str("rope_type")? {
        Some(kind) => Some(kind),
        None => config.str("type")?,
    };
    match kind {
        None | Some("default") => Ok(RopeScaling::None),
        Some("linear") => Ok(RopeScaling::Linear(required("factor")?)),
        Some("llama3") => Ok(RopeScaling::Llama3 {
            factor: required("factor")?,
            low: required("low_freq_factor")?,
            high: required("high_freq_factor")?,
            original_context: required("original_max_position_embeddings")?,
        }),
        Some(other) => Err(unsupported(other)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read(config: serde_json::Value, layers: &str) -> Result<Rope, LoadError> {
        Rope::hugging_face(&HfConfig(&config), layers, "rope_theta", 10_000.0)
    }

    #[test]
    fn old_and_new_spellings_of_a_scaling_mean_the_same() {
        let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0,
            "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
        let mut new = scaling.clone();
        new["rope_theta"] = json!(500_000.0);
        let old = read(json!({"rope_theta": 500_000.0, "rope_scaling": scaling}), FULL).unwrap();
        assert_eq!(old, read(json!({"rope_parameters": new}), FULL).unwrap());
    }

    #[test]
    fn a_scaling_that_is_not_built_is_refused_by_name() {
        for kind in ["yarn", "longrope", "dynamic"] {
            let error = read(json!({"rope_scaling": {"type": kind, "factor": 2.0}}), FULL).unwrap_err();
            assert!(error.to_string().contains(kind), "{error}");
        }
    }

    #[test]
    fn old_files_scale_only_the_full_layers() {
        let config = json!({"rope_scaling": {"rope_type": "linear", "factor": 8.0}});
        assert_eq!(read(config.clone(), FULL).unwrap().scaling, RopeScaling::Linear(8.0));
        assert_eq!(read(config, SLIDING).unwrap().scaling, RopeScaling::None);
    }

    #[test]
    fn llama3_scaling_keeps_short_wavelengths_and_divides_long_ones() {
        let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original_context: 8192.0 };
        let plain = Rope { theta: 500_000.0, scaling: RopeScaling::None }.frequencies(128, None);
        let scaled = Rope { theta: 500_000.0, scaling }.frequencies(128, None);
        assert_eq!(plain[0], scaled[0]);
        assert!((plain[63] / scaled[63] - 8.0).abs() < 1e-5);
        assert!(plain.iter().zip(&scaled).all(|(p, s)| *s <= *p && *s >= p / 8.01));
    }

    #[test]
    fn nonsense_numbers_are_refused() {
        assert!(read(json!({"rope_theta": -1.0}), FULL).is_err());
        assert!(read(json!({"rope_scaling": {"type": "linear", "factor": 0.0}}), FULL).is_err());
    }
}

//! What sentence-transformers files beside a `config.json` say about an encoder: which modules follow
//! the transformer, how rows become one vector, and how long an input may be.
//!
//! Any module but pooling and normalisation would change the vectors and is refused.

use crate::checkpoint::HuggingFace;
use crate::config::HfConfig;
use crate::encoder::{EncoderSpec, Pooling};
use crate::load::LoadError;
use serde_json::Value;

const MODULES: &str = "modules.json";
const POOLING: &str = "1_Pooling/config.json";
const LIMITS: &str = "sentence_bert_config.json";

/// Amends the spec by the files that are there; a bare transformer stays as it is.
pub(crate) fn amend(spec: &mut EncoderSpec, folder: &HuggingFace) -> Result<(), LoadError> {
    if let Some(modules) = read(folder, MODULES)? {
        check_modules(&modules)?;
    }
    if let Some(config) = read(folder, POOLING)? {
        spec.pooling = pooling(&HfConfig(&config))?;
    }
    if let Some(config) = read(folder, LIMITS)?
        && let Some(limit) = HfConfig(&config).size("max_seq_length")?
    {
        spec.context = spec.context.min(limit);
    }
    Ok(())
}

fn read(folder: &HuggingFace, name: &str) -> Result<Option<Value>, LoadError> {
    let parse = |bytes: Vec<u8>| {
        serde_json::from_slice(&bytes)
            .map_err(|error| LoadError::config(name, format!("is not JSON: {error}")))
    };
    folder.file(name).map(parse).transpose()
}

fn check_modules(modules: &Value) -> Result<(), LoadError> {
    for module in modules.as_array().into_iter().flatten() {
        let kind = module.get("type").and_then(Value::as_str).unwrap_or_default();
        if !["Transformer", "Pooling", "Normalize"].contains(&kind.rsplit('.').next().unwrap_or_default()) {
            return Err(LoadError::unsupported(MODULES, format!("module {kind:?}")));
        }
    }
    Ok(())
}

fn pooling(config: &HfConfig<'_>) -> Result<Pooling, LoadError> {
    const KINDS: [(&str, &str, Option<Pooling>); 6] = [
        ("pooling_mode_mean_tokens", "mean", Some(Pooling::Mean)),
        ("pooling_mode_cls_token", "cls", Some(Pooling::First)),
        ("pooling_mode_max_tokens", "max", None),
        ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens", None),
        ("pooling_mode_weightedmean_tokens", "weightedmean", None),
        ("pooling_mode_lasttoken", "lasttoken", None),
    ];
    let named = config.str("pooling_mode")?;
    let mut chosen = Vec::new();
    for (key, name, pooling) in KINDS {
        if named == Some(name) || config.bool(key)?.unwrap_or(false) {
            chosen.push((name, pooling));
        }
    }
    match chosen[..] {
        [(_, Some(pooling))] => Ok(pooling),
        [] if named.is_none() => Ok(Pooling::Mean),
        _ => {
            let names: Vec<&str> = chosen.iter().map(|(name, _)| *name).chain(named).collect();
            Err(LoadError::unsupported(POOLING, format!("pooling by {}", names.join(" and "))))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn read_pooling(config: Value) -> Result<Pooling, LoadError> {
        pooling(&HfConfig(&config))
    }

    #[test]
    fn pooling_is_read_in_both_spellings() {
        let old = json!({"pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true});
        assert_eq!(read_pooling(old).unwrap(), Pooling::Mean);
        assert_eq!(read_pooling(json!({"pooling_mode_cls_token": true})).unwrap(), Pooling::First);
        assert_eq!(read_pooling(json!({"pooling_mode": "cls"})).unwrap(), Pooling::First);
    }

    #[test]
    fn pooling_that_is_not_built_is_refused_by_name() {
        let error = read_pooling(json!({"pooling_mode_max_tokens": true})).unwrap_err().to_string();
        assert!(error.contains("max"), "{error}");
        let both = json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true});
        assert!(read_pooling(both).is_err());
        assert!(read_pooling(json!({"pooling_mode": "novel"})).is_err());
    }

    #[test]
    fn a_module_that_would_change_the_vectors_is_refused() {
        let module = |kind: &str| json!([{"type": format!("sentence_transformers.models.{kind}")}]);
        assert!(check_modules(&module("Normalize")).is_ok());
        assert!(check_modules(&module("Dense")).is_err());
    }
}

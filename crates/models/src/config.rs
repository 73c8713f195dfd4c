//! Typed reading of a checkpoint's description: Hugging Face `config.json` and GGUF metadata.
//!
//! A value that is missing or of the wrong kind is an error that names its key. What a field means is
//! not known here; the architectures know.

use crate::checkpoint::{Gguf, Value};
use crate::load::LoadError;
use device::Activation;
use serde_json::Value as Json;

/// Most layers, heads or elements of a dimension that a description may claim; beyond it the file is
/// damaged or hostile.
const LIMIT: u64 = 1 << 24;

/// A Hugging Face `config.json`, or the part of it that describes the text model.
#[derive(Clone, Copy)]
pub(crate) struct HfConfig<'a>(pub &'a Json);

impl<'a> HfConfig<'a> {
    /// The value of a key; absent and `null` are the same.
    pub fn get(&self, key: &str) -> Option<&'a Json> {
        self.0.get(key).filter(|value| !value.is_null())
    }

    /// The object under a key, or this one where there is none.
    pub fn section(&self, key: &str) -> Self {
        self.get(key).map_or(*self, HfConfig)
    }

    pub fn size(&self, key: &str) -> Result<Option<usize>, LoadError> {
        self.get(key).map(|value| json_size(key, value)).transpose()
    }

    pub fn size_required(&self, key: &str) -> Result<usize, LoadError> {
        self.size(key)?.ok_or_else(|| LoadError::missing(key))
    }

    /// A size for which the makers of the format have a default: where the key is absent. `null` is an
    /// answer, too: none.
    pub fn size_or(&self, key: &str, default: usize) -> Result<Option<usize>, LoadError> {
        if self.0.get(key).is_none() { Ok(Some(default)) } else { self.size(key) }
    }

    pub fn float(&self, key: &str) -> Result<Option<f64>, LoadError> {
        self.get(key).map(|value| json_float(key, value)).transpose()
    }

    pub fn bool(&self, key: &str) -> Result<Option<bool>, LoadError> {
        let parse = |value: &Json| {
            value.as_bool().ok_or_else(|| LoadError::config(key, format!("{value} is not true or false")))
        };
        self.get(key).map(parse).transpose()
    }

    pub fn str(&self, key: &str) -> Result<Option<&'a str>, LoadError> {
        let parse = |value: &'a Json| {
            value.as_str().ok_or_else(|| LoadError::config(key, format!("{value} is not a text")))
        };
        self.get(key).map(parse).transpose()
    }

    /// A list of texts, such as `layer_types`.
    pub fn strings(&self, key: &str) -> Result<Option<Vec<&'a str>>, LoadError> {
        let wrong = |value: &Json| LoadError::config(key, format!("{value} is not a list of texts"));
        let parse = |value: &'a Json| {
            let items = value.as_array().ok_or_else(|| wrong(value))?;
            items.iter().map(|item| item.as_str().ok_or_else(|| wrong(value))).collect()
        };
        self.get(key).map(parse).transpose()
    }

    /// The activation named by a key.
    pub fn activation(&self, key: &str, default: Activation) -> Result<Activation, LoadError> {
        match self.str(key)? {
            None => Ok(default),
            Some("silu" | "swish") => Ok(Activation::Silu),
            Some("gelu_pytorch_tanh" | "gelu_new" | "gelu_fast") => Ok(Activation::GeluTanh),
            Some("gelu") => Ok(Activation::GeluErf),
            Some(other) => Err(LoadError::unsupported(key, format!("activation {other:?}"))),
        }
    }

    /// Refuses what would change the arithmetic and is not built: `neutral` says which value of a key
    /// asks for nothing.
    pub fn refuse_unless(&self, keys: &[&str], neutral: impl Fn(&Json) -> bool) -> Result<(), LoadError> {
        for key in keys {
            if let Some(value) = self.get(key)
                && !neutral(value)
            {
                return Err(LoadError::unsupported(key, format!("value {value}")));
            }
        }
        Ok(())
    }
}

fn json_size(key: &str, value: &Json) -> Result<usize, LoadError> {
    match value.as_u64() {
        Some(n) if n <= LIMIT => Ok(n as usize),
        _ => Err(LoadError::config(key, format!("{value} is not a size"))),
    }
}

fn json_float(key: &str, value: &Json) -> Result<f64, LoadError> {
    value.as_f64().ok_or_else(|| LoadError::config(key, format!("{value} is not a number")))
}

/// A GGUF file's metadata; keys are given without the architecture's prefix.
#[derive(Clone, Copy)]
pub(crate) struct GgufConfig<'a> {
    /// The file.
    pub file: &'a Gguf,
    /// `general.architecture`, which prefixes the keys.
    pub architecture: &'a str,
}

impl GgufConfig<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.architecture)
    }

    /// Whether the key is there at all, of whatever kind.
    pub fn has(&self, key: &str) -> bool {
        self.file.get(&self.key(key)).is_some()
    }

    pub fn size(&self, key: &str) -> Result<Option<usize>, LoadError> {
        let key = self.key(key);
        match self.file.find_u32(&key)? {
            Some(n) if u64::from(n) > LIMIT => {
                Err(LoadError::config(&key, format!("{n} is beyond all sizes")))
            }
            size => Ok(size.map(|n| n as usize)),
        }
    }

    pub fn size_required(&self, key: &str) -> Result<usize, LoadError> {
        self.size(key)?.ok_or_else(|| LoadError::missing(&self.key(key)))
    }

    pub fn float(&self, key: &str) -> Result<Option<f64>, LoadError> {
        Ok(self.file.find_f32(&self.key(key))?.map(f64::from))
    }

    pub fn float_required(&self, key: &str) -> Result<f64, LoadError> {
        self.float(key)?.ok_or_else(|| LoadError::missing(&self.key(key)))
    }

    pub fn str(&self, key: &str) -> Result<Option<&str>, LoadError> {
        Ok(self.file.find_str(&self.key(key))?)
    }

    /// Refuses keys that would change the arithmetic and are not built. Zero, and one for a factor,
    /// ask for nothing.
    pub fn refuse(&self, keys: &[&str]) -> Result<(), LoadError> {
        for key in keys {
            let key = self.key(key);
            let neutral = match self.file.get(&key) {
                None | Some(Value::Unsigned(0) | Value::Signed(0) | Value::Bool(false)) => true,
                Some(Value::Float(x)) => *x == 0.0 || *x == 1.0,
                Some(
                    Value::Unsigned(_)
                    | Value::Signed(_)
                    | Value::Bool(true)
                    | Value::String(_)
                    | Value::Array(_),
                ) => false,
            };
            if !neutral {
                return Err(LoadError::unsupported(&key, "which is set".to_owned()));
            }
        }
        Ok(())
    }
}

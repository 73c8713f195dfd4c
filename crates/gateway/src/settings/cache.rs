//! Which answers are kept and given again.

use super::{Group, flag};
use protocol::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The cache of answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cache {
    /// Whether a change of settings empties the cache.
    pub cache_invalidate_on_update: bool,
}

impl Default for Cache {
    fn default() -> Self {
        Self { cache_invalidate_on_update: true }
    }
}

impl Group for Cache {
    fn set(&mut self, name: &str, value: &Value) -> Result<bool, Error> {
        match name {
            "cache_invalidate_on_update" => self.cache_invalidate_on_update = flag(name, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn show(&self, object: &mut Map<String, Value>) {
        object.insert("cache_invalidate_on_update".into(), self.cache_invalidate_on_update.into());
    }
}

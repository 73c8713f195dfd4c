//! Which answers are kept and given again.

use super::{Group, flag, wrong};
use protocol::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The cache of answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cache {
    /// Seconds for which an answer is given again; 0: none is.
    pub cache_ttl: u32,
    /// Whether a change of settings empties the cache.
    pub cache_invalidate_on_update: bool,
}

impl Cache {
    /// The shortest and the longest time, in seconds: a minute, and a month of 31 days.
    pub const TTL: (u32, u32) = (60, 31 * 86_400);

    /// A time in seconds, 0 for none; nothing where it is out of bounds.
    #[must_use]
    pub fn ttl(seconds: u64) -> Option<u32> {
        let seconds = u32::try_from(seconds).ok()?;
        (seconds == 0 || (Self::TTL.0..=Self::TTL.1).contains(&seconds)).then_some(seconds)
    }
}

impl Default for Cache {
    fn default() -> Self {
        Self { cache_ttl: 0, cache_invalidate_on_update: true }
    }
}

impl Group for Cache {
    fn set(&mut self, name: &str, value: &Value) -> Result<bool, Error> {
        match name {
            "cache_ttl" if value.is_null() => self.cache_ttl = 0,
            "cache_ttl" => match value.as_u64().and_then(Self::ttl) {
                Some(ttl) => self.cache_ttl = ttl,
                None => return wrong(name, "0, or 60 to 2678400 seconds"),
            },
            "cache_invalidate_on_update" => self.cache_invalidate_on_update = flag(name, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn show(&self, object: &mut Map<String, Value>) {
        object.insert("cache_ttl".into(), self.cache_ttl.into());
        object.insert("cache_invalidate_on_update".into(), self.cache_invalidate_on_update.into());
    }
}

//! How often a gateway may be asked.

use super::{Group, flag, wrong};
use crate::policy::{Rule, Technique};
use protocol::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Requests in an interval.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Rates {
    /// Seconds; 0: no limit.
    pub rate_limiting_interval: u32,
    /// Requests in each; 0: no limit.
    pub rate_limiting_limit: u32,
    /// How intervals follow each other.
    pub rate_limiting_technique: Technique,
    /// Whether a request beyond it is only reported.
    pub rate_limiting_shadow: bool,
}

impl Rates {
    /// The limit, where there is one.
    #[must_use]
    pub fn rule(&self) -> Option<Rule> {
        let Self { rate_limiting_interval: window, rate_limiting_limit: limit, .. } = *self;
        (window > 0 && limit > 0).then(|| Rule {
            limit: limit.into(),
            window: window.into(),
            technique: self.rate_limiting_technique,
        })
    }
}

impl Group for Rates {
    fn set(&mut self, name: &str, value: &Value) -> Result<bool, Error> {
        let number = |most: u32| match value.as_u64().and_then(|number| u32::try_from(number).ok()) {
            _ if value.is_null() => Ok(0),
            Some(number) if number <= most => Ok(number),
            _ => wrong(name, &format!("a whole number up to {most}")),
        };
        match name {
            "rate_limiting_interval" => self.rate_limiting_interval = number(366 * 86_400)?,
            "rate_limiting_limit" => self.rate_limiting_limit = number(u32::MAX)?,
            "rate_limiting_technique" => self.rate_limiting_technique = Technique::read(name, value)?,
            "rate_limiting_shadow" => self.rate_limiting_shadow = !value.is_null() && flag(name, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn show(&self, object: &mut Map<String, Value>) {
        object.insert("rate_limiting_interval".into(), self.rate_limiting_interval.into());
        object.insert("rate_limiting_limit".into(), self.rate_limiting_limit.into());
        let technique = serde_json::json!(self.rate_limiting_technique);
        object.insert("rate_limiting_technique".into(), technique);
        object.insert("rate_limiting_shadow".into(), self.rate_limiting_shadow.into());
    }
}

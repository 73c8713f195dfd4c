//! What may be spent through a gateway.

use super::Group;
use crate::policy::Technique;
use base::NanoUsd;
use protocol::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Limits of money.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Spend {
    /// None where there are none.
    pub spend_limits: Option<SpendLimits>,
}

/// Rules that hold all together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpendLimits {
    /// Whether they hold.
    pub enabled: bool,
    /// The rules, at most [`SpendLimits::MOST`].
    pub rules: Vec<SpendRule>,
}

impl SpendLimits {
    /// Most rules.
    pub const MOST: usize = 20;
}

/// So much in a window, for the requests that it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SpendRule {
    /// Its id; made where the client gives none. What was spent is counted under it.
    #[serde(default)]
    pub id: String,
    /// Whether it holds.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// The most, in dollars on the wire.
    #[serde(with = "dollars")]
    pub limit: NanoUsd,
    /// What is counted.
    #[serde(rename = "limitType")]
    pub limit_type: LimitType,
    /// Seconds.
    pub window: u64,
    /// How windows follow each other.
    #[serde(default)]
    pub technique: Technique,
    /// Whether a request beyond it is only reported.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shadow: bool,
    /// Which keys, by their ids.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<Match>,
    /// Which models.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<Match>,
    /// Which providers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<Match>,
    /// Which values of metadata.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub metadata: BTreeMap<String, Match>,
}

/// What is counted: money.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LimitType {
    /// What requests cost.
    Cost,
}

/// How a rule takes one property of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "mode", rename_all = "lowercase", deny_unknown_fields)]
pub enum Match {
    /// Each value is counted by itself.
    Partition,
    /// Only these values are counted, all together.
    Filter {
        /// The values, as texts.
        values: Vec<String>,
    },
}

const fn yes() -> bool {
    true
}

mod dollars {
    use base::NanoUsd;
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    pub(super) fn serialize<S: Serializer>(amount: &NanoUsd, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(amount.dollars())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<NanoUsd, D::Error> {
        let amount = NanoUsd::from_dollars(f64::deserialize(deserializer)?).filter(|amount| amount.0 >= 0);
        amount.ok_or_else(|| D::Error::custom("a limit is an amount of dollars, not below zero"))
    }
}

fn wrong_rule(index: usize, why: &str) -> Error {
    Error::invalid("spend_limits", format!("Invalid value for 'spend_limits.rules[{index}]': {why}"))
}

impl Group for Spend {
    fn set(&mut self, name: &str, value: &Value) -> Result<bool, Error> {
        if name != "spend_limits" {
            return Ok(false);
        }
        let wrong = |why: String| Error::invalid(name, format!("Invalid value for '{name}': {why}"));
        // One after the other, so that an error names the rule.
        for (index, rule) in value.get("rules").and_then(Value::as_array).into_iter().flatten().enumerate() {
            if let Err(error) = serde_json::from_value::<SpendRule>(rule.clone()) {
                return Err(wrong_rule(index, &protocol::plain(&error.to_string())));
            }
        }
        let mut limits: Option<SpendLimits> = serde_json::from_value(value.clone())
            .map_err(|error| wrong(protocol::plain(&error.to_string())))?;
        if let Some(limits) = &mut limits {
            if limits.rules.len() > SpendLimits::MOST {
                return Err(wrong(format!("at most {} rules", SpendLimits::MOST)));
            }
            for (index, rule) in limits.rules.iter_mut().enumerate() {
                if !(1..=366 * 86_400).contains(&rule.window) {
                    return Err(wrong_rule(index, "a window is 1 second to 366 days"));
                }
                if rule.id.is_empty() {
                    rule.id = uuid::Uuid::now_v7().simple().to_string();
                }
                if rule.id.len() > 64 || rule.id.contains('\0') {
                    return Err(wrong_rule(index, "an id has at most 64 characters"));
                }
            }
            let mut ids: Vec<&str> = limits.rules.iter().map(|rule| rule.id.as_str()).collect();
            ids.sort_unstable();
            if ids.windows(2).any(|pair| pair[0] == pair[1]) {
                return Err(wrong("two rules have the same id".to_owned()));
            }
        }
        self.spend_limits = limits;
        Ok(true)
    }

    fn show(&self, object: &mut Map<String, Value>) {
        object.insert("spend_limits".into(), json!(self.spend_limits));
    }
}

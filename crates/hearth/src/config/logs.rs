//! Logs in `hearth.toml`: `[logs]`, what holds for gateways that set nothing of their own.

use super::Size;
use gateway::log::{Defaults, Strategy};
use serde::Deserialize;
use std::time::Duration;

/// What is set for logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct LogsArg {
    /// Whether raw requests and answers are stored.
    pub payloads: Option<bool>,
    /// Most bytes of each.
    #[serde(alias = "payload_limit")]
    pub payload_limit: Option<Size>,
    /// Most logs of a gateway.
    pub most: Option<u64>,
    /// What is done when there are as many: `STOP_INSERTING` or `DELETE_OLDEST`.
    pub strategy: Option<Strategy>,
    /// Days that logs are kept; 0 is for ever.
    #[serde(alias = "retention_days")]
    pub retention_days: Option<u64>,
    /// Whether secrets and personal data are taken out of what is stored.
    pub redaction: Option<bool>,
    /// Collectors of spans that gateways may name wherever they are.
    pub collectors: Vec<String>,
}

impl LogsArg {
    /// With what nobody set.
    #[must_use]
    pub fn defaults(&self) -> Defaults {
        let otherwise = Defaults::default();
        Defaults {
            payloads: self.payloads.unwrap_or(otherwise.payloads),
            payload_limit: self.payload_limit.map_or(otherwise.payload_limit, |size| size.0),
            most: self.most.unwrap_or(otherwise.most),
            strategy: self.strategy.unwrap_or(otherwise.strategy),
            retention: match self.retention_days {
                None => otherwise.retention,
                Some(0) => None,
                Some(days) => Some(Duration::from_secs(days.saturating_mul(86_400))),
            },
            redaction: self.redaction.unwrap_or(otherwise.redaction),
        }
    }
}

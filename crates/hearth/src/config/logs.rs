//! Logs in `hearth.toml`: `[logs]`, what holds for gateways that set nothing of their own.

use super::Size;
use axum::http::Uri;
use gateway::log::{Defaults, MOST, Strategy};
use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::ops::RangeInclusive;
use std::time::Duration;

/// What is set for logs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct LogsArg {
    /// Whether raw requests and answers are stored.
    pub payloads: Option<bool>,
    /// Most bytes of each.
    #[serde(alias = "payload_limit", deserialize_with = "payload_limit")]
    pub payload_limit: Option<Size>,
    /// Most logs of a gateway.
    #[serde(deserialize_with = "most")]
    pub most: Option<u64>,
    /// What is done when there are as many: `STOP_INSERTING` or `DELETE_OLDEST`.
    pub strategy: Option<Strategy>,
    /// Days that logs are kept; 0 is for ever.
    #[serde(alias = "retention_days", deserialize_with = "days")]
    pub retention_days: Option<u64>,
    /// Whether secrets and personal data are taken out of what is stored.
    pub redaction: Option<bool>,
    /// Collectors of spans that gateways may name wherever they are.
    #[serde(deserialize_with = "collectors")]
    pub collectors: Vec<String>,
}

/// A whole number of a range, which a gateway's own setting has too.
fn within<'de, D: Deserializer<'de>>(from: D, range: RangeInclusive<u64>) -> Result<Option<u64>, D::Error> {
    let number = u64::deserialize(from)?;
    if range.contains(&number) {
        return Ok(Some(number));
    }
    Err(D::Error::custom(format!("expected {} to {}, not {number}", range.start(), range.end())))
}

fn most<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    within(from, 1..=MOST.logs)
}

fn days<'de, D: Deserializer<'de>>(from: D) -> Result<Option<u64>, D::Error> {
    within(from, 0..=MOST.days)
}

fn payload_limit<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Size>, D::Error> {
    let size = Size::deserialize(from)?;
    if (1..=MOST.payload.0).contains(&size.0.0) {
        return Ok(Some(size));
    }
    Err(D::Error::custom(format!("expected 1 byte to {}", MOST.payload)))
}

fn collectors<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<String>, D::Error> {
    let list = Vec::<String>::deserialize(from)?;
    let fits = |url: &&String| {
        let uri = url.parse::<Uri>().ok();
        uri.is_some_and(|uri| matches!(uri.scheme_str(), Some("http" | "https")) && uri.authority().is_some())
    };
    match list.iter().find(|url| !fits(url)) {
        Some(wrong) => {
            Err(D::Error::custom(format!("{wrong:?} is no address that begins with http:// or https://")))
        }
        None => Ok(list),
    }
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

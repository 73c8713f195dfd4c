//! Which requests are logged, with what, for how long, and where else their spans go.

use super::{Group, flag, wrong};
use crate::log::{Defaults, Endpoint, Endpoints, MOST, Strategy};
use base::Bytes;
use protocol::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::time::Duration;

/// Most places that spans go to.
const ENDPOINTS: usize = 4;

/// Logs. What is `None` is left to the server's own settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Logs {
    /// Whether logs are wanted.
    pub collect_logs: bool,
    /// Most logs that are kept.
    pub log_management: Option<u64>,
    /// What is done when there are as many.
    pub log_management_strategy: Option<Strategy>,
    /// Whether raw requests and answers are stored.
    pub log_payloads: Option<bool>,
    /// Most bytes of each.
    pub log_payload_limit: Option<u64>,
    /// Days that logs are kept; 0 is for ever.
    pub log_retention_days: Option<u64>,
    /// Whether secrets and personal data are taken out of payloads.
    pub log_redaction: Option<bool>,
    /// Where spans go.
    pub otel: Endpoints,
}

impl Default for Logs {
    fn default() -> Self {
        Self {
            collect_logs: true,
            log_management: None,
            log_management_strategy: None,
            log_payloads: None,
            log_payload_limit: None,
            log_retention_days: None,
            log_redaction: None,
            otel: Endpoints::default(),
        }
    }
}

impl Logs {
    /// Whether payloads are stored.
    pub(crate) fn payloads(&self, defaults: &Defaults) -> bool {
        self.log_payloads.unwrap_or(defaults.payloads)
    }

    /// Most bytes of a payload.
    pub(crate) fn payload_limit(&self, defaults: &Defaults) -> Bytes {
        self.log_payload_limit.map_or(defaults.payload_limit, Bytes)
    }

    /// Most logs.
    pub(crate) fn most(&self, defaults: &Defaults) -> u64 {
        self.log_management.unwrap_or(defaults.most)
    }

    /// What is done then.
    pub(crate) fn strategy(&self, defaults: &Defaults) -> Strategy {
        self.log_management_strategy.unwrap_or(defaults.strategy)
    }

    /// How long logs are kept; nothing is for ever.
    pub(crate) fn retention(&self, defaults: &Defaults) -> Option<Duration> {
        match self.log_retention_days {
            None => defaults.retention,
            Some(0) => None,
            Some(days) => Some(Duration::from_secs(days.saturating_mul(86_400))),
        }
    }

    /// Whether payloads are redacted.
    pub(crate) fn redaction(&self, defaults: &Defaults) -> bool {
        self.log_redaction.unwrap_or(defaults.redaction)
    }
}

/// A number of a range, or nothing.
fn count(name: &str, value: &Value, least: u64, most: u64) -> Result<Option<u64>, Error> {
    match (value, value.as_u64()) {
        (Value::Null, _) => Ok(None),
        (_, Some(count)) if (least..=most).contains(&count) => Ok(Some(count)),
        _ => wrong(name, &format!("{least} to {most}, or null")),
    }
}

impl Group for Logs {
    fn set(&mut self, name: &str, value: &Value) -> Result<bool, Error> {
        let maybe = |value: &Value| if value.is_null() { Ok(None) } else { flag(name, value).map(Some) };
        match name {
            "collect_logs" => self.collect_logs = flag(name, value)?,
            "log_management" => self.log_management = count(name, value, 1, MOST.logs)?,
            "log_management_strategy" => match serde_json::from_value(value.clone()) {
                Ok(strategy) => self.log_management_strategy = strategy,
                Err(_) => return wrong(name, "STOP_INSERTING, DELETE_OLDEST or null"),
            },
            "log_payloads" => self.log_payloads = maybe(value)?,
            "log_payload_limit" => self.log_payload_limit = count(name, value, 1, MOST.payload.0)?,
            "log_retention_days" => self.log_retention_days = count(name, value, 0, MOST.days)?,
            "log_redaction" => self.log_redaction = maybe(value)?,
            "otel" => self.otel = endpoints(value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn show(&self, object: &mut Map<String, Value>) {
        object.insert("collect_logs".into(), self.collect_logs.into());
        object.insert("log_management".into(), self.log_management.into());
        object.insert("log_management_strategy".into(), serde_json::json!(self.log_management_strategy));
        object.insert("log_payloads".into(), self.log_payloads.into());
        object.insert("log_payload_limit".into(), self.log_payload_limit.into());
        object.insert("log_retention_days".into(), self.log_retention_days.into());
        object.insert("log_redaction".into(), self.log_redaction.into());
        object.insert("otel".into(), self.otel.0.iter().map(Endpoint::object).collect());
    }
}

fn endpoints(value: &Value) -> Result<Endpoints, Error> {
    match value {
        Value::Null => Ok(Endpoints::default()),
        Value::Array(list) if list.len() <= ENDPOINTS => {
            let list = list.iter().enumerate().map(|(number, value)| Endpoint::parse(number, value));
            list.collect::<Result<Vec<_>, _>>().map(Endpoints::from)
        }
        _ => wrong("otel", &format!("a list of at most {ENDPOINTS} objects with a url")),
    }
}

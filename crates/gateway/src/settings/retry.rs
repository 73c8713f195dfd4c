//! How often a request that fails at a provider is sent again.

use super::{Group, wrong};
use protocol::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// How waiting between attempts grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Backoff {
    /// It does not.
    Constant,
    /// By the same each time.
    Linear,
    /// It doubles.
    Exponential,
}

/// Retries.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Retry {
    /// Attempts of a request that fails at the provider; `None`: two.
    pub retry_max_attempts: Option<u8>,
    /// Milliseconds between two attempts.
    pub retry_delay: Option<u32>,
    /// How that grows.
    pub retry_backoff: Option<Backoff>,
}

impl Group for Retry {
    fn set(&mut self, name: &str, value: &Value) -> Result<bool, Error> {
        match name {
            "retry_max_attempts" => match (value, value.as_u64()) {
                (Value::Null, _) => self.retry_max_attempts = None,
                (_, Some(attempts @ 1..=5)) => self.retry_max_attempts = u8::try_from(attempts).ok(),
                _ => return wrong(name, "1 to 5"),
            },
            "retry_delay" => match (value, value.as_u64()) {
                (Value::Null, _) => self.retry_delay = None,
                (_, Some(delay @ 0..=60_000)) => self.retry_delay = u32::try_from(delay).ok(),
                _ => return wrong(name, "0 to 60000 milliseconds"),
            },
            "retry_backoff" => match serde_json::from_value(value.clone()) {
                Ok(backoff) => self.retry_backoff = backoff,
                Err(_) => return wrong(name, "constant, linear or exponential"),
            },
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn show(&self, object: &mut Map<String, Value>) {
        let Self { retry_max_attempts, retry_delay, retry_backoff } = self;
        object.insert("retry_max_attempts".into(), (*retry_max_attempts).into());
        object.insert("retry_delay".into(), (*retry_delay).into());
        object.insert("retry_backoff".into(), serde_json::json!(retry_backoff));
    }
}

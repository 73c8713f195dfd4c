//! Which requests are logged.

use super::{Group, flag};
use protocol::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Logs {
    /// Whether logs are wanted.
    pub collect_logs: bool,
}

impl Default for Logs {
    fn default() -> Self {
        Self { collect_logs: true }
    }
}

impl Group for Logs {
    fn set(&mut self, name: &str, value: &Value) -> Result<bool, Error> {
        match name {
            "collect_logs" => self.collect_logs = flag(name, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn show(&self, object: &mut Map<String, Value>) {
        object.insert("collect_logs".into(), self.collect_logs.into());
    }
}

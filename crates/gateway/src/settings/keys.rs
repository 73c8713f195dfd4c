//! Whose keys go to providers.

use super::{Group, flag};
use protocol::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Keys.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Keys {
    /// Whether keys of the server's own are not used: only those that the account keeps, or a request brings.
    pub byok_only: bool,
}

impl Group for Keys {
    fn set(&mut self, name: &str, value: &Value) -> Result<bool, Error> {
        match name {
            "byok_only" => self.byok_only = flag(name, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn show(&self, object: &mut Map<String, Value>) {
        object.insert("byok_only".into(), self.byok_only.into());
    }
}

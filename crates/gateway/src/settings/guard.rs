//! What prompts and answers are judged for, and what nobody may keep.

use super::{Group, flag};
use protocol::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Guardrails and zero retention.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Guard {
    /// None where nothing is judged.
    pub guardrails: Option<Guardrails>,
    /// Whether nobody may keep anything of what is asked and answered.
    pub zdr: bool,
}

/// What is judged.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Guardrails {
    /// Of prompts.
    pub prompt: Hazards,
    /// Of answers.
    pub response: Hazards,
    /// The model that judges, where it is not the server's judge; webhooks are for the operator to set, since they are
    /// asked from inside.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub judge: Option<String>,
}

/// Hazards, by the names of Llama Guard 3 (`S1` to `S14`) or those that a webhook gives, and what is done about each.
pub type Hazards = BTreeMap<String, Action>;

/// What is done about a hazard, or about data that may not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Action {
    /// It is written down, and the request goes on, also where nobody could judge it.
    Flag,
    /// The request ends, also where nobody could judge it.
    Block,
}

impl Action {
    /// Its name on the wire.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flag => "FLAG",
            Self::Block => "BLOCK",
        }
    }

    /// The one of this name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        [Self::Flag, Self::Block].into_iter().find(|action| action.name() == name)
    }
}

/// Most hazards of one kind.
const HAZARDS: usize = 64;

/// Looks at each hazard, so that an error names the one that is wrong.
fn checked(rails: &Value) -> Result<(), Error> {
    let wrong = |place: &str, expected: &str| {
        let message = format!("Invalid value for 'guardrails.{place}': expected {expected}");
        Err(Error::invalid("guardrails", message))
    };
    for side in ["prompt", "response"] {
        let Some(Value::Object(hazards)) = rails.get(side) else { continue };
        if hazards.len() > HAZARDS {
            return wrong(side, &format!("at most {HAZARDS} hazards"));
        }
        for (hazard, action) in hazards {
            let shown: String = hazard.chars().take(32).collect();
            let place = format!("{side}.{shown}");
            let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
            if !(1..=32).contains(&hazard.len()) || !hazard.bytes().all(fits) {
                return wrong(&place, "a hazard such as S1: 1 to 32 letters, digits, '-', '_' or '.'");
            }
            if action.as_str().and_then(Action::named).is_none() {
                return wrong(&place, "FLAG or BLOCK");
            }
        }
    }
    Ok(())
}

impl Group for Guard {
    fn set(&mut self, name: &str, value: &Value) -> Result<bool, Error> {
        match name {
            "guardrails" => {
                let wrong = |why: String| Error::invalid(name, format!("Invalid value for '{name}': {why}"));
                checked(value)?;
                let rails: Option<Guardrails> = serde_json::from_value(value.clone())
                    .map_err(|error| wrong(protocol::plain(&error.to_string())))?;
                if rails
                    .as_ref()
                    .and_then(|rails| rails.judge.as_deref())
                    .is_some_and(|judge| judge.is_empty() || judge.len() > 256 || judge.contains("://"))
                {
                    return Err(wrong(
                        "a judge is the id of a model; webhooks are set for the whole server".to_owned(),
                    ));
                }
                self.guardrails = rails.filter(|rails| *rails != Guardrails::default());
            }
            "zdr" => self.zdr = flag(name, value)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn show(&self, object: &mut Map<String, Value>) {
        object.insert("guardrails".into(), json!(self.guardrails));
        object.insert("zdr".into(), self.zdr.into());
    }
}

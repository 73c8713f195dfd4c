//! Data that may not pass: which kinds, on which way, and what is done about it. Both shapes of AI Gateway's setting.

use super::{Action, Group};
use crate::policy::dlp::{check_profile, profiles};
use protocol::Error;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

/// Data loss prevention.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Loss {
    /// None where nothing is looked for.
    pub dlp: Option<Dlp>,
}

/// What is looked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Dlp {
    /// By policies.
    Policies(Policies),
    /// The same on both ways.
    Both(Both),
}

/// Several policies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policies {
    /// Whether any holds.
    pub enabled: bool,
    /// All of them hold together.
    pub policies: Vec<Policy>,
}

/// One rule for requests and answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Both {
    /// Whether it holds.
    pub enabled: bool,
    /// What is done.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub action: Option<Action>,
    /// What is looked for.
    #[serde(default)]
    pub profiles: Vec<String>,
}

/// One policy.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Policy {
    /// By what findings name it.
    pub id: String,
    /// Whether it holds.
    pub enabled: bool,
    /// What is done.
    pub action: Action,
    /// Where it is looked.
    pub check: Vec<Check>,
    /// What is looked for.
    pub profiles: Vec<String>,
}

/// Where something is looked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Check {
    /// In what is asked.
    Request,
    /// In the answer.
    Response,
}

/// A policy that holds.
#[derive(Clone, Copy, Debug)]
pub struct Holding<'a> {
    /// Its id; none in the shape without policies.
    pub id: Option<&'a str>,
    /// What is done.
    pub action: Action,
    /// What is looked for.
    pub profiles: &'a [String],
}

/// Most policies, and most profiles of one.
const MOST: usize = 32;

impl Dlp {
    /// The policies that hold on a way.
    pub fn holding(&self, way: Check) -> impl Iterator<Item = Holding<'_>> {
        let (policies, both) = match self {
            Self::Policies(some) => (if some.enabled { &*some.policies } else { &[] }, None),
            Self::Both(both) => (&[][..], Some(both).filter(|both| both.enabled)),
        };
        let policies = policies.iter().filter(move |policy| policy.enabled && policy.check.contains(&way));
        let policies = policies.map(|policy| Holding {
            id: Some(&policy.id),
            action: policy.action,
            profiles: &policy.profiles,
        });
        let both = both.into_iter().map(|both| Holding {
            id: None,
            action: both.action.unwrap_or(Action::Flag),
            profiles: &both.profiles,
        });
        policies.chain(both)
    }

    /// Whether it asks for anything.
    #[must_use]
    pub fn is_on(&self) -> bool {
        [Check::Request, Check::Response].into_iter().any(|way| self.holding(way).next().is_some())
    }

    /// Whether something is blocked on a way.
    #[must_use]
    pub fn blocks(&self, way: Check) -> bool {
        self.holding(way).any(|holding| holding.action == Action::Block)
    }
}

impl Group for Loss {
    fn set(&mut self, name: &str, value: &Value) -> Result<bool, Error> {
        if name != "dlp" {
            return Ok(false);
        }
        let wrong = |why: String| Error::invalid(name, format!("Invalid value for '{name}': {why}"));
        let of_serde = |error: serde_json::Error| wrong(error.to_string());
        if value.is_null() || *value == json!({}) || *value == json!([]) {
            self.dlp = None;
            return Ok(true);
        }
        let dlp = if value.get("policies").is_some() {
            Dlp::Policies(serde_json::from_value(value.clone()).map_err(of_serde)?)
        } else {
            let both: Both = serde_json::from_value(value.clone()).map_err(of_serde)?;
            if both.enabled && (both.action.is_none() || both.profiles.is_empty()) {
                return Err(wrong("expected 'action' (FLAG or BLOCK) and 'profiles'".to_owned()));
            }
            Dlp::Both(both)
        };
        if let Dlp::Policies(some) = &dlp
            && (some.policies.len() > MOST
                || some.policies.iter().any(|policy| policy.id.is_empty() || policy.id.len() > 64))
        {
            return Err(wrong(format!("at most {MOST} policies, with ids of 1 to 64 bytes")));
        }
        for way in [Check::Request, Check::Response] {
            for holding in dlp.holding(way) {
                let unknown = holding.profiles.iter().find(|profile| !check_profile(profile));
                if let Some(unknown) = unknown {
                    let shown: String = unknown.chars().take(64).collect();
                    let known = profiles().collect::<Vec<_>>().join(", ");
                    return Err(wrong(format!("there is no profile '{shown}'; those here are {known}")));
                }
                if holding.profiles.len() > MOST {
                    return Err(wrong(format!("at most {MOST} profiles")));
                }
            }
        }
        self.dlp = Some(dlp);
        Ok(true)
    }

    fn show(&self, object: &mut Map<String, Value>) {
        object.insert("dlp".into(), json!(self.dlp));
    }
}

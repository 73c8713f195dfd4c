//! What was found out about a request beside its answer: by guardrails, and by limits that only report.

use crate::Action;
use serde::{Deserialize, Serialize};

/// Most that are kept of one request.
pub(super) const MOST: usize = 32;

/// Who found something.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Finder {
    /// The guardrail before the prompt; the names are hazards.
    #[serde(rename = "guardrail.prompt")]
    Prompt,
    /// The guardrail before the answer.
    #[serde(rename = "guardrail.response")]
    Response,
    /// A limit of a key that only reports; the name is what is limited.
    #[serde(rename = "limit.key")]
    Key,
    /// That of a gateway.
    #[serde(rename = "limit.gateway")]
    Gateway,
    /// A rule of what may be spent; the name is the rule's id.
    #[serde(rename = "limit.spend")]
    Spend,
}

impl Finder {
    /// Those that are limits, with their label in metrics.
    pub(crate) const LIMITS: [(Self, &'static str); 3] =
        [(Self::Gateway, "gateway"), (Self::Key, "key"), (Self::Spend, "spend")];
}

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Finding {
    /// Who found it.
    pub by: Finder,
    /// What was done: with FLAG the request went on.
    pub action: Action,
    /// What it is.
    pub names: Vec<String>,
}

//! What a route may know of a request: `metadata.NAME`, `headers.NAME`, `body.PATH`, `key`, `account` and `gateway`.
//!
//! Not what is secret: headers that hold a key are not among the facts.

use crate::Caller;
use protocol::Error;
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Headers that hold keys.
const SECRET: &[&str] = &[
    "api-key",
    "authorization",
    "cf-aig-authorization",
    "cookie",
    "sec-websocket-protocol",
    "x-api-key",
    "x-goog-api-key",
];

/// Where a fact stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fact {
    /// An entry of the request's metadata.
    Metadata(String),
    /// A header, its name in lower case.
    Header(String),
    /// A member of the body; names with dots between, numbers for places in lists.
    Body(String),
    /// The id of the key that asks.
    Key,
    /// The account.
    Account,
    /// The gateway.
    Gateway,
}

impl Fact {
    /// Reads the name of a fact; `at` is its place, for errors.
    ///
    /// # Errors
    /// When there is no such fact.
    pub fn parse(name: &str, at: &str) -> Result<Self, Error> {
        let rest = |prefix: &str| name.strip_prefix(prefix).filter(|rest| !rest.is_empty());
        if let Some(name) = rest("metadata.") {
            return Ok(Self::Metadata(name.to_owned()));
        }
        if let Some(name) = rest("headers.") {
            let name = name.to_ascii_lowercase();
            if SECRET.contains(&name.as_str()) {
                return Err(Error::invalid(at, format!("{at}: a route cannot look at the header '{name}'")));
            }
            return Ok(Self::Header(name));
        }
        if let Some(path) = rest("body.") {
            return Ok(Self::Body(path.to_owned()));
        }
        match name {
            "key" => Ok(Self::Key),
            "account" => Ok(Self::Account),
            "gateway" => Ok(Self::Gateway),
            _ => {
                let shown: String = name.chars().take(64).collect();
                let known = "metadata.NAME, headers.NAME, body.PATH, key, account, gateway";
                Err(Error::invalid(at, format!("{at}: '{shown}' is none of {known}")))
            }
        }
    }
}

/// The facts of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// `cf-aig-metadata`.
    pub metadata: Map<String, Value>,
    /// Headers by lower-case names; without those of keys.
    pub headers: Map<String, Value>,
    /// The body, where the route looks at it.
    pub body: Value,
    /// The id of the key that asks.
    pub key: Option<String>,
    /// The account.
    pub account: String,
    /// The gateway.
    pub gateway: String,
    /// Whether the request says itself what it costs.
    pub custom_cost: bool,
    /// What percentages are drawn by: the session, or the request where there is none.
    pub session: String,
}

impl Facts {
    /// Those of a caller, without headers, body and session.
    #[must_use]
    pub fn of(caller: &Caller) -> Self {
        Self {
            metadata: caller
                .metadata
                .entries()
                .map(|(name, value)| (name.to_owned(), value.clone()))
                .collect(),
            key: caller.key.as_ref().map(ToString::to_string),
            account: caller.account.to_string(),
            gateway: caller.gateway.to_string(),
            custom_cost: caller.custom_cost.is_some(),
            ..Self::default()
        }
    }

    /// Adds a header, unless it holds a key.
    pub fn header(&mut self, name: &str, value: &str) {
        let name = name.to_ascii_lowercase();
        if !SECRET.contains(&name.as_str()) {
            self.headers.insert(name, value.into());
        }
    }

    /// A fact, where the request has it.
    #[must_use]
    pub fn get(&self, fact: &Fact) -> Option<Cow<'_, Value>> {
        let text = |text: &str| Some(Cow::Owned(Value::from(text)));
        match fact {
            Fact::Metadata(name) => self.metadata.get(name).map(Cow::Borrowed),
            Fact::Header(name) => self.headers.get(name).map(Cow::Borrowed),
            Fact::Body(path) => path
                .split('.')
                .try_fold(&self.body, |value, name| match value {
                    Value::Array(list) => list.get(name.parse::<usize>().ok()?),
                    value => value.get(name),
                })
                .map(Cow::Borrowed),
            Fact::Key => self.key.as_deref().and_then(text),
            Fact::Account => text(&self.account),
            Fact::Gateway => text(&self.gateway),
        }
    }
}

/// A value as it stands in texts for people, and as what counters count by.
#[must_use]
pub(super) fn shown(value: Option<&Value>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(value) => {
            let text = value.to_string();
            if text.chars().count() > 80 { text.chars().take(80).chain(['…']).collect() } else { text }
        }
    }
}

impl std::fmt::Display for Fact {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Metadata(name) => write!(f, "metadata.{name}"),
            Self::Header(name) => write!(f, "headers.{name}"),
            Self::Body(path) => write!(f, "body.{path}"),
            Self::Key => f.write_str("key"),
            Self::Account => f.write_str("account"),
            Self::Gateway => f.write_str("gateway"),
        }
    }
}

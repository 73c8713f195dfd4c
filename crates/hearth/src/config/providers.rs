//! The providers of `hearth.toml`: `[providers.SLUG]`, with their keys, which may stand in the environment.

use super::ApiKey;
use gateway::dialect::Dialect;
use gateway::provider::{ProviderKey, Timeouts, Wishes};
use serde::Deserialize;
use std::time::Duration;

/// What is set for one provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
pub struct ProviderArg {
    /// Where its API begins, if not where everybody's does.
    #[serde(alias = "base_url")]
    pub base_url: Option<String>,
    /// What a provider of one's own speaks.
    pub dialect: Option<Spoken>,
    /// The region, for Vertex AI and Bedrock.
    pub region: Option<String>,
    /// The project, for Vertex AI.
    pub project: Option<String>,
    /// The version of Azure's API, for deployments that are asked in the older way.
    #[serde(alias = "api_version")]
    pub api_version: Option<String>,
    /// The variable of the environment that holds its key.
    #[serde(alias = "api_key_env")]
    pub api_key_env: Option<String>,
    /// Several keys, used in turn.
    pub keys: Vec<KeyArg>,
    /// Models that callers name without the provider; several providers may list one, and stand in for each other.
    pub models: Vec<String>,
    /// Seconds to the first byte of an answer.
    #[serde(alias = "first_byte_timeout")]
    pub first_byte_timeout: Option<u64>,
    /// Longest silence within an answer, in seconds.
    #[serde(alias = "idle_timeout")]
    pub idle_timeout: Option<u64>,
    /// Whether it keeps nothing of what it is sent, by a contract that only the operator knows.
    #[serde(alias = "zero_retention")]
    pub zero_retention: bool,
}

/// A dialect by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Spoken {
    /// OpenAI's.
    OpenAi,
    /// Anthropic's.
    Anthropic,
    /// Gemini's.
    Gemini,
}

/// One of several keys: itself, or where it stands.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table: { env = \"VARIABLE\" } or { key = \"KEY\" }")]
pub struct KeyArg {
    /// The variable of the environment that holds it.
    pub env: Option<String>,
    /// The key.
    pub key: Option<ApiKey>,
    /// Its share of the requests.
    #[serde(default = "one", deserialize_with = "weight")]
    pub weight: u32,
}

/// At least 1: a key that is never used may as well not be there.
fn weight<'de, D: serde::Deserializer<'de>>(from: D) -> Result<u32, D::Error> {
    let weight = u32::deserialize(from)?;
    if weight > 0 { Ok(weight) } else { Err(serde::de::Error::custom("a weight is at least 1")) }
}

const fn one() -> u32 {
    1
}

/// Keys that cannot be had.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// The environment has no such variable.
    #[error("providers.{slug}: the environment has no variable {name}, which should hold its key")]
    NotSet {
        /// The provider.
        slug: String,
        /// The variable.
        name: String,
    },
    /// Neither or both of the ways.
    #[error("providers.{0}: each of its keys has either env or key")]
    Unclear(String),
}

impl ProviderArg {
    /// With the keys; `environment` looks up a variable.
    ///
    /// # Errors
    /// When a key cannot be had.
    pub fn wishes(
        &self,
        slug: &str,
        environment: impl Fn(&str) -> Option<String>,
    ) -> Result<Wishes, KeyError> {
        let from = |name: &str| {
            let not_set = || KeyError::NotSet { slug: slug.to_owned(), name: name.to_owned() };
            environment(name).ok_or_else(not_set)
        };
        let mut keys = Vec::new();
        if let Some(name) = &self.api_key_env {
            keys.push(ProviderKey { secret: from(name)?, weight: 1 });
        }
        for arg in &self.keys {
            let secret = match (&arg.env, &arg.key) {
                (Some(name), None) => from(name)?,
                (None, Some(key)) => key.secret().to_owned(),
                _ => return Err(KeyError::Unclear(slug.to_owned())),
            };
            keys.push(ProviderKey { secret, weight: arg.weight });
        }
        let or = |seconds: Option<u64>, otherwise| seconds.map_or(otherwise, Duration::from_secs);
        let usual = Timeouts::default();
        Ok(Wishes {
            base_url: self.base_url.clone(),
            dialect: self.dialect.map(|spoken| match spoken {
                Spoken::OpenAi => Dialect::OpenAi,
                Spoken::Anthropic => Dialect::Anthropic,
                Spoken::Gemini => Dialect::Gemini,
            }),
            region: self.region.clone(),
            project: self.project.clone(),
            api_version: self.api_version.clone(),
            keys,
            models: self.models.clone(),
            timeouts: Timeouts {
                first_byte: or(self.first_byte_timeout, usual.first_byte),
                idle: or(self.idle_timeout, usual.idle),
            },
            zero_retention: self.zero_retention,
            ..Wishes::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Layer;
    use super::*;

    fn arg(text: &str) -> ProviderArg {
        let layer: Layer = toml::from_str(&format!("[providers.openai]\n{text}")).unwrap();
        layer.providers.unwrap().remove("openai").unwrap()
    }

    fn environment(name: &str) -> Option<String> {
        (name == "A").then(|| "a".to_owned())
    }

    #[test]
    fn keys_come_from_the_environment_or_the_file_with_their_weights() {
        let arg =
            arg("api_key_env = 'A'\nkeys = [{ key = 'b', weight = 3 }, { env = 'A' }]\nidle-timeout = 7");
        let wishes = arg.wishes("openai", environment).unwrap();
        let keys: Vec<_> = wishes.keys.iter().map(|key| (key.secret.as_str(), key.weight)).collect();
        assert_eq!(keys, [("a", 1), ("b", 3), ("a", 1)]);
        assert_eq!(wishes.timeouts, Timeouts { idle: Duration::from_secs(7), ..Timeouts::default() });
        assert!(!format!("{arg:?}").contains("\"b\""));
    }

    #[test]
    fn a_wrong_value_beside_a_key_is_told_without_it() {
        let text = "[providers.openai]\nkeys = [{ key = 's3cret', weight = 'many' }]";
        let error = super::super::file::parse(text, std::path::Path::new("hearth.toml")).unwrap_err();
        assert!(!error.to_string().contains("s3cret"), "{error}");
    }

    #[test]
    fn a_weight_of_nothing_is_refused_and_a_key_is_a_table() {
        let parse = |keys: &str| {
            let text = format!("[providers.openai]\nkeys = [{keys}]");
            super::super::file::parse(&text, std::path::Path::new("hearth.toml")).unwrap_err().to_string()
        };
        assert!(parse("{ env = 'A', weight = 0 }").contains("at least 1"));
        let error = parse("3");
        assert!(error.contains("{ env = \"VARIABLE\" }") && !error.contains("KeyArg"), "{error}");
    }

    #[test]
    fn a_key_that_is_not_there_is_named() {
        let error = arg("api-key-env = 'B'").wishes("openai", environment).unwrap_err();
        assert_eq!(
            error.to_string(),
            "providers.openai: the environment has no variable B, which should hold its key"
        );
        assert!(arg("keys = [{ weight = 2 }]").wishes("openai", environment).is_err());
    }
}

//! Gateways: named settings inside an account, in the words of AI Gateway's control plane.
//!
//! A setting that asks for something this server does not do is refused by its name, so that nobody relies on it; the
//! harmless value of each is taken and given back.

mod cache;
mod dlp;
mod guard;
mod keys;
mod logs;
mod rates;
mod retry;
mod spend;

pub use cache::Cache;
pub use dlp::{Check, Dlp};
pub use guard::{Action, Guard, Guardrails, Hazards};
pub use keys::Keys;
pub use logs::Logs;
pub use rates::Rates;
pub use retry::{Backoff, Retry};
pub use spend::{Match, Spend, SpendRule};

use crate::account::{check_id, no_account, number};
use crate::directory::changed;
use crate::{DEFAULT, Gateway, byok, route};
use dlp::Loss;
use protocol::{Error, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::sync::Arc;
use store::{Row, Work};

/// What holds for requests through a gateway: groups, each in a file of its own.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Settings {
    /// How often a failed request is sent again.
    #[serde(flatten)]
    pub retry: Retry,
    /// Which requests are logged.
    #[serde(flatten)]
    pub logs: Logs,
    /// Which answers are kept.
    #[serde(flatten)]
    pub cache: Cache,
    /// How often it may be asked.
    #[serde(flatten)]
    pub rates: Rates,
    /// What may be spent.
    #[serde(flatten)]
    pub spend: Spend,
    /// What is judged, and what nobody may keep.
    #[serde(flatten)]
    pub guard: Guard,
    /// Whose keys go to providers.
    #[serde(flatten)]
    pub keys: Keys,
    /// Data that may not pass.
    #[serde(flatten)]
    pub loss: Loss,
}

/// Settings of one kind.
trait Group {
    /// Takes a field of a request; false where it is none of these.
    ///
    /// # Errors
    /// Names the field when its value is wrong.
    fn set(&mut self, name: &str, value: &Value) -> Result<bool, Error>;
    /// Writes the fields as clients read them.
    fn show(&self, object: &mut Map<String, Value>);
}

fn wrong<T>(name: &str, expected: &str) -> Result<T, Error> {
    Err(Error::invalid(name, format!("Invalid value for '{name}': expected {expected}")))
}

fn flag(name: &str, value: &Value) -> Result<bool, Error> {
    value.as_bool().map_or_else(|| wrong(name, "true or false"), Ok)
}

/// A gateway.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// Whose it is.
    pub account: String,
    /// Its id.
    pub id: String,
    /// What holds.
    pub settings: Settings,
    /// Seconds since 1970.
    pub created: u64,
    /// Seconds since 1970.
    pub modified: u64,
}

/// What is not built, the values that do not ask for it, and what there is instead.
const NOT_BUILT: &[(&str, &[Harmless], &str)] = &[
    (
        "authentication",
        &[Harmless::Yes],
        "an account whose server has keys is asked with one, through each gateway",
    ),
    (
        "log_classification",
        &[Harmless::No, Harmless::Off, Harmless::Empty],
        "nothing sorts logs by their topic",
    ),
    ("logpush", &[Harmless::No], "spans go to collectors with 'otel', and logs are read from their routes"),
    ("logpush_public_key", &[Harmless::Empty], "payloads can be redacted, and not encrypted, in logs"),
    ("store_id", &[Harmless::Empty], "providers' keys are kept sealed here, with provider_configs"),
    ("stripe", &[Harmless::Empty], "nobody is charged here; what was used is read with usage and billing"),
    (
        "workers_ai_billing_mode",
        &[Harmless::Postpaid],
        "models here cost what their price says, as others do",
    ),
];

/// Fields that the server sets; a client may send back what it was given.
const OURS: &[&str] =
    &["account_id", "account_tag", "created_at", "id", "internal_id", "is_default", "modified_at"];

/// A value that asks for nothing.
#[derive(Clone, Copy)]
enum Harmless {
    No,
    Yes,
    Empty,
    /// `enabled` is false.
    Off,
    Postpaid,
}

impl Harmless {
    fn is(self, value: &Value) -> bool {
        match self {
            Self::No => *value == false,
            Self::Yes => *value == true,
            Self::Empty => {
                value == ""
                    || value.as_array().is_some_and(Vec::is_empty)
                    || value.as_object().is_some_and(Map::is_empty)
            }
            Self::Off => value["enabled"] == false,
            Self::Postpaid => *value == "postpaid",
        }
    }
}

impl Settings {
    /// Whether nothing of what is said may be kept.
    pub(crate) const fn zero_retention(&self) -> bool {
        self.guard.zdr
    }

    /// Reads the fields of a request over what holds already.
    ///
    /// # Errors
    /// Names the field that is wrong, unknown, or asks for what is not built.
    pub fn parse(&self, fields: &Map<String, Value>) -> Result<Self, Error> {
        let mut settings = self.clone();
        for (name, value) in fields {
            let Self { retry, logs, cache, rates, spend, guard, keys, loss } = &mut settings;
            let groups: [&mut dyn Group; 8] = [retry, logs, cache, rates, spend, guard, keys, loss];
            let mut taken = OURS.contains(&name.as_str());
            for group in groups {
                taken = taken || group.set(name, value)?;
            }
            if !taken {
                not_built(name, value)?;
            }
        }
        Ok(settings)
    }
}

/// Refuses what is not known, and what is known and asks for something that is not built.
fn not_built(name: &str, value: &Value) -> Result<(), Error> {
    let Some((_, harmless, instead)) = NOT_BUILT.iter().find(|known| known.0 == name) else {
        return Err(Error::invalid(name, format!("There is no setting '{name}'")));
    };
    if value.is_null() || harmless.iter().any(|harmless| harmless.is(value)) {
        return Ok(());
    }
    let message = format!("'{name}' asks for something that this server does not do: {instead}");
    Err(Error::new(ErrorKind::Unsupported, message).at(name))
}

impl Named {
    /// The gateway as AI Gateway's clients read it; times are texts.
    #[must_use]
    pub fn object(&self, time: impl Fn(u64) -> String) -> Value {
        let mut object = serde_json::json!({
            "id": self.id, "is_default": self.id == DEFAULT, "authentication": true, "log_classification": false, "stripe": null,
            "created_at": time(self.created), "logpush": false, "logpush_public_key": null,
            "modified_at": time(self.modified), "store_id": null, "workers_ai_billing_mode": "postpaid",
        });
        if let Value::Object(object) = &mut object {
            let Settings { retry, logs, cache, rates, spend, guard, keys, loss } = &self.settings;
            let groups: [&dyn Group; 8] = [retry, logs, cache, rates, spend, guard, keys, loss];
            groups.iter().for_each(|group| group.show(object));
        }
        object
    }
}

/// The columns that [`read`] reads.
pub(crate) const COLUMNS: &str = "account, id, settings, created, modified";

/// A row of [`COLUMNS`].
pub(crate) fn read(row: &Row) -> Result<Named, store::Error> {
    let settings = serde_json::from_str(row.text(2)?)
        .map_err(|error| store::Error::Failed(format!("kept settings cannot be read: {error}")))?;
    Ok(Named {
        account: row.text(0)?.to_owned(),
        id: row.text(1)?.to_owned(),
        settings,
        created: row.integer(3)?.unsigned_abs(),
        modified: row.integer(4)?.unsigned_abs(),
    })
}

/// A gateway as it is at this moment, which a change of it goes by.
fn find(work: &Work<'_>, account: &str, id: &str) -> Result<Option<Named>, store::Error> {
    let sql = format!("SELECT {COLUMNS} FROM gateway_gateways WHERE account = ?1 AND id = ?2");
    work.query(&sql, &[account.into(), id.into()])?.first().map(read).transpose()
}

/// Inserts a gateway; tells whether it is new.
pub(crate) fn insert(
    work: &Work<'_>,
    account: &str,
    id: &str,
    settings: &Settings,
    now: i64,
) -> Result<bool, store::Error> {
    let sql =
        "INSERT INTO gateway_gateways (account, id, settings, created, modified) VALUES (?1, ?2, ?3, ?4, ?4)
        ON CONFLICT (account, id) DO NOTHING";
    Ok(work.execute(sql, &[account.into(), id.into(), text(settings).into(), now.into()])? > 0)
}

fn text(settings: &Settings) -> String {
    serde_json::to_string(settings).expect("settings have no failing fields")
}

/// The error for a gateway that is not there.
fn missing(id: &str) -> Error {
    let shown: String = id.chars().take(64).collect();
    Error::new(ErrorKind::NotFound, format!("There is no gateway '{shown}'"))
}

impl Gateway {
    /// The gateways of an account, by id.
    ///
    /// # Errors
    /// When the store fails.
    pub async fn gateways(&self, account: &str) -> Result<Vec<Arc<Named>>, Error> {
        let directory = self.directory().await?;
        let mut found: Vec<Arc<Named>> =
            directory.gateways.values().filter(|named| named.account == account).cloned().collect();
        found.sort_by(|a, b| a.id.cmp(&b.id));
        Ok(found)
    }

    /// One gateway.
    ///
    /// # Errors
    /// When it is not there, or the store fails.
    pub async fn gateway(&self, account: &str, id: &str) -> Result<Arc<Named>, Error> {
        let directory = self.directory().await?;
        let found = directory.gateways.get(&(account.to_owned(), id.to_owned()));
        found.cloned().ok_or_else(|| match directory.accounts.contains_key(account) {
            true => missing(id),
            false => no_account(account),
        })
    }

    /// Makes a gateway.
    ///
    /// # Errors
    /// When the account is not there, the id cannot be one or is taken, a setting is wrong, or the store fails.
    pub async fn create_gateway(
        &self,
        account: &str,
        id: &str,
        fields: &Map<String, Value>,
    ) -> Result<Arc<Named>, Error> {
        self.check_account(account).await?;
        check_id("id", id)?;
        let settings = Settings::default().parse(fields)?;
        self.logs().check(&settings.logs.otel)?;
        let (owner, name, now) = (account.to_owned(), id.to_owned(), number(self.now()));
        let inserted = self.write("The gateway could not be made", move |work| {
            let new = insert(work, &owner, &name, &settings, now)?;
            changed(work)?;
            Ok(new)
        });
        if !inserted.await? {
            return Err(Error::invalid("id", format!("There is a gateway '{id}' already")));
        }
        self.gateway(account, id).await
    }

    /// Changes what is named of a gateway's settings.
    ///
    /// # Errors
    /// As [`Gateway::create_gateway`], and when it is not there.
    pub async fn update_gateway(
        &self,
        account: &str,
        id: &str,
        fields: &Map<String, Value>,
    ) -> Result<Arc<Named>, Error> {
        let (account, id, now) = (account.to_owned(), id.to_owned(), self.now());
        let (logs, fields) = (self.logs().clone(), fields.clone());
        let updated = self.change("The gateway could not be changed", move |work| {
            let Some(old) = find(work, &account, &id)? else { return Ok(Err(missing(&id))) };
            let settings = old.settings.parse(&fields);
            let settings = settings.and_then(|new| logs.check(&new.logs.otel).map(|()| new));
            let settings = match settings {
                Ok(settings) => settings,
                Err(refused) => return Ok(Err(refused)),
            };
            let named = Named { settings, modified: now, ..old };
            let values: [store::Value; 4] = [
                account.as_str().into(),
                id.as_str().into(),
                text(&named.settings).into(),
                number(now).into(),
            ];
            let sql =
                "UPDATE gateway_gateways SET settings = ?3, modified = ?4 WHERE account = ?1 AND id = ?2";
            work.execute(sql, &values)?;
            changed(work)?;
            Ok(Ok(Arc::new(named)))
        });
        updated.await
    }

    /// Removes a gateway; what the ledger says of it stays. Gives back what it was.
    ///
    /// # Errors
    /// When it is not there, is the default one, or the store fails.
    pub async fn delete_gateway(&self, account: &str, id: &str) -> Result<Arc<Named>, Error> {
        let (account, id) = (account.to_owned(), id.to_owned());
        let deleted = self.change("The gateway could not be deleted", move |work| {
            let Some(named) = find(work, &account, &id)? else { return Ok(Err(missing(&id))) };
            if id == DEFAULT {
                return Ok(Err(Error::invalid("id", "The default gateway cannot be deleted")));
            }
            let values = [account.as_str().into(), id.as_str().into()];
            work.execute("DELETE FROM gateway_gateways WHERE account = ?1 AND id = ?2", &values)?;
            byok::remove_of_gateway(work, &values)?;
            route::remove_of_gateway(work, &values)?;
            changed(work)?;
            Ok(Ok(Arc::new(named)))
        });
        deleted.await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(json: &str) -> Result<Settings, Error> {
        Settings::default().parse(&serde_json::from_str(json).unwrap())
    }

    #[test]
    fn what_a_client_was_given_can_be_sent_back() {
        let settings = Settings {
            retry: Retry {
                retry_max_attempts: Some(3),
                retry_backoff: Some(Backoff::Linear),
                ..Retry::default()
            },
            ..Settings::default()
        };
        let named = Named {
            account: "a".into(),
            id: "g".into(),
            settings: settings.clone(),
            created: 1,
            modified: 2,
        };
        let object = named.object(|time| time.to_string());
        assert_eq!(Settings::default().parse(object.as_object().unwrap()), Ok(settings));
    }

    #[test]
    fn limits_guardrails_and_caches_come_back_as_they_were_given() {
        let json = r#"{"cache_ttl":300,"cache_invalidate_on_update":false,"rate_limiting_interval":60,
            "rate_limiting_limit":10,"rate_limiting_technique":"sliding","zdr":true,"byok_only":true,
            "dlp":{"enabled":true,"policies":[{"id":"p","enabled":true,"action":"FLAG","check":["REQUEST"],
            "profiles":["contact","card"]}]},
            "guardrails":{"prompt":{"S1":"BLOCK","P1":"FLAG"},"response":{"S2":"FLAG"},"judge":"guard"},
            "spend_limits":{"enabled":true,"rules":[{"id":"r","limit":0.25,"limitType":"cost","window":86400,
            "technique":"sliding","enabled":true,"model":{"mode":"filter","values":["m"]},
            "metadata":{"team":{"mode":"partition"}}}]}}"#;
        let named = Named {
            account: "a".into(),
            id: "g".into(),
            settings: parse(json).unwrap(),
            created: 1,
            modified: 2,
        };
        let kept: Settings = serde_json::from_str(&text(&named.settings)).unwrap();
        assert_eq!(kept, named.settings);
        let object = named.object(|time| time.to_string());
        let given: Map<String, Value> = serde_json::from_str(json).unwrap();
        for (name, value) in &given {
            assert_eq!(object[name], *value, "{name}");
        }
        assert_eq!(Settings::default().parse(object.as_object().unwrap()), Ok(named.settings));
    }

    #[test]
    fn a_setting_that_is_not_built_is_refused_by_name_when_it_asks_for_something() {
        let harmless = r#"{"cache_ttl":0,"dlp":{},"guardrails":null,"zdr":false}"#;
        assert_eq!(parse(harmless), Ok(Settings::default()));
        for (field, json) in [
            ("authentication", r#"{"authentication":false}"#),
            ("workers_ai_billing_mode", r#"{"workers_ai_billing_mode":"unified"}"#),
        ] {
            let error = parse(json).unwrap_err();
            assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::Unsupported, Some(field)));
        }
    }

    #[test]
    fn a_wrong_rule_or_hazard_is_told_by_its_place() {
        for (json, place) in [
            (
                r#"{"guardrails":{"prompt":{"S1":"BLOCK","S2":"WARN"}}}"#,
                "'guardrails.prompt.S2': expected FLAG or BLOCK",
            ),
            (r#"{"guardrails":{"response":{"S 1":"FLAG"}}}"#, "'guardrails.response.S 1'"),
            (
                r#"{"spend_limits":{"rules":[{"limit":1,"limitType":"cost","window":60},
                {"limit":1,"limitType":"cost","window":"day"}]}}"#,
                "'spend_limits.rules[1]': invalid type: string \"day\", expected a whole number",
            ),
            (
                r#"{"spend_limits":{"rules":[{"limit":1,"limitType":"cost","window":0}]}}"#,
                "'spend_limits.rules[0]'",
            ),
        ] {
            let error = parse(json).unwrap_err();
            assert!(error.message.contains(place), "{error}");
        }
    }

    #[test]
    fn a_wrong_or_unknown_setting_is_refused_by_name() {
        for (field, json) in [
            ("retry_max_attempts", r#"{"retry_max_attempts":6}"#),
            ("retry_delay", r#"{"retry_delay":-1}"#),
            ("retry_backoff", r#"{"retry_backoff":"random"}"#),
            ("collect_logs", r#"{"collect_logs":"yes"}"#),
            ("colect_logs", r#"{"colect_logs":true}"#),
            ("cache_ttl", r#"{"cache_ttl":59}"#),
            ("cache_ttl", r#"{"cache_ttl":2678401}"#),
            ("rate_limiting_limit", r#"{"rate_limiting_limit":-1}"#),
            ("rate_limiting_technique", r#"{"rate_limiting_technique":"leaky"}"#),
            (
                "spend_limits",
                r#"{"spend_limits":{"enabled":true,"rules":[{"limit":-1,"limitType":"cost","window":60}]}}"#,
            ),
            (
                "spend_limits",
                r#"{"spend_limits":{"rules":[{"limit":1,"limitType":"cost","window":60,"colour":1}]}}"#,
            ),
            ("spend_limits", r#"{"spend_limits":{"rules":[{"limit":1,"limitType":"tokens","window":60}]}}"#),
            ("spend_limits", r#"{"spend_limits":{"rules":[{"limit":1,"limitType":"cost","window":0}]}}"#),
            ("guardrails", r#"{"guardrails":{"prompt":{"S1":"WARN"}}}"#),
            ("guardrails", r#"{"guardrails":{"prompt":{"S 1":"FLAG"}}}"#),
            ("zdr", r#"{"zdr":1}"#),
            ("byok_only", r#"{"byok_only":"yes"}"#),
            ("dlp", r#"{"dlp":{"enabled":true,"action":"BLOCK"}}"#),
            ("dlp", r#"{"dlp":{"enabled":true,"action":"WARN","profiles":["email"]}}"#),
            ("dlp", r#"{"dlp":{"enabled":true,"action":"BLOCK","profiles":["everything"]}}"#),
            ("dlp", r#"{"dlp":{"enabled":true,"policies":[{"id":"a"}]}}"#),
            (
                "dlp",
                r#"{"dlp":{"enabled":true,"policies":[{"id":"a","enabled":true,"action":"FLAG","check":["BOTH"],
                "profiles":["email"]}]}}"#,
            ),
        ] {
            let error = parse(json).unwrap_err();
            assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::InvalidRequest, Some(field)));
        }
    }
}

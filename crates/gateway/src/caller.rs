//! Who asks: the account, the key, the gateway, and the metadata a request carries.
//!
//! The front of the HTTP server makes a [`Caller`] and puts it into the request's extensions; everything behind reads
//! it there. It holds nothing secret.

use crate::log::Trace;
use crate::outcome::Outcome;
use crate::price::CustomCost;
use serde_json::{Map, Value};
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

/// The account of a server without keys, and the gateway of a request that names none.
pub const DEFAULT: &str = "default";

/// Most entries of metadata that a request may carry; the rest is dropped.
const ENTRIES: usize = 5;

/// Most characters of a model's name that are counted by: callers make such names up.
const MODEL_NAME: usize = 128;

/// A model's name as the ledger and the metrics have it: a long one is cut, and says so.
pub(crate) fn counted(model: &str) -> Cow<'_, str> {
    match model.char_indices().nth(MODEL_NAME) {
        Some((end, _)) => format!("{}…", &model[..end]).into(),
        None => model.into(),
    }
}

/// The public id of an API key; not the key.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct KeyId(pub Arc<str>);

impl fmt::Display for KeyId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The account that pays.
    pub account: Arc<str>,
    /// The key that was shown; `None` on a server without keys, and for the server's own admin key.
    pub key: Option<KeyId>,
    /// The gateway, that is, the settings that hold for the request.
    pub gateway: Arc<str>,
    /// What the caller wants to find the request by.
    pub metadata: Metadata,
    /// What the caller says that the request costs.
    pub custom_cost: Option<CustomCost>,
    /// What the request's log is made from; none where nothing follows it.
    pub trace: Option<Trace>,
    /// Whether nobody may keep anything of the request: no cache, no log of what is said, and only providers that keep
    /// nothing.
    pub zdr: bool,
    /// Whether keys of providers that the server has are not for this request (`byok_only`).
    pub own_keys_only: bool,
    /// What a limit of the key's that only reports would have refused it for: requests or tokens.
    pub over: Option<&'static str>,
    /// Where the ledger tells what becomes of the request, for those around its handler.
    pub outcome: Option<Outcome>,
    /// The number of the first provider that is asked, where others were asked for the same request before.
    pub step: u32,
}

impl Caller {
    /// What separates the caller's prefixes and kept answers from those of others: the account, and within it the salt
    /// that the request brings. The default account's own salts stay what they are, and none of them can be mistaken
    /// for another account: no account's id begins with the character that stands before it.
    #[must_use]
    pub fn salt(&self, salt: Option<&str>) -> Option<String> {
        const MARK: char = '\u{1}';
        match (&*self.account, salt) {
            (DEFAULT, None) => None,
            (DEFAULT, Some(salt)) if salt.starts_with(MARK) => Some(format!("{MARK}{MARK}{salt}")),
            (DEFAULT, Some(salt)) => Some(salt.to_owned()),
            (account, None) => Some(format!("{MARK}{account}")),
            (account, Some(salt)) => Some(format!("{MARK}{account}{MARK}{salt}")),
        }
    }
}

impl Default for Caller {
    /// The caller of a server without keys.
    fn default() -> Self {
        Self {
            account: DEFAULT.into(),
            key: None,
            gateway: DEFAULT.into(),
            metadata: Metadata::default(),
            custom_cost: None,
            trace: None,
            zdr: false,
            own_keys_only: false,
            over: None,
            outcome: None,
            step: 0,
        }
    }
}

/// The entries of `cf-aig-metadata`: at most five, each a string, a number or a truth value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata(Vec<(String, Value)>);

impl Metadata {
    /// Reads the header's JSON object. Keys that begin with `cf.` are the server's own and are dropped, as are entries
    /// past the fifth and values that are neither string, number nor truth value; so is everything when it is no
    /// object, because metadata never costs a caller the answer.
    #[must_use]
    pub fn parse(json: &str) -> Self {
        Self::read(json).unwrap_or_default()
    }

    /// The same; nothing where it is no object.
    #[must_use]
    pub fn read(json: &str) -> Option<Self> {
        let object = serde_json::from_str::<Map<String, Value>>(json).ok()?;
        Some(Self(
            object
                .into_iter()
                .filter(|(key, value)| {
                    // No store keeps a text with a NUL character.
                    !key.starts_with("cf.")
                        && !key.contains('\0')
                        && (value.is_string() || value.is_number() || value.is_boolean())
                })
                .take(ENTRIES)
                .collect(),
        ))
    }

    /// The entries, in the caller's order.
    pub fn entries(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(json: &str, expected: &[&str]) {
        let metadata = Metadata::parse(json);
        let found: Vec<String> = metadata.entries().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(found, expected, "{json}");
    }

    #[test]
    fn five_entries_of_plain_values_are_kept_in_order() {
        check(r#"{"z":1,"a":"x","b":true}"#, &["z=1", r#"a="x""#, "b=true"]);
        check(r#"{"a":1,"b":2,"c":3,"d":4,"e":5,"f":6}"#, &["a=1", "b=2", "c=3", "d=4", "e=5"]);
    }

    #[test]
    fn reserved_keys_and_nested_values_are_dropped_and_take_no_room() {
        check(
            r#"{"cf.user":1,"n":null,"l":[1],"o":{},"a":1,"b":2,"c":3,"d":4,"e":5}"#,
            &["a=1", "b=2", "c=3", "d=4", "e=5"],
        );
    }

    #[test]
    fn no_two_accounts_or_salts_share_what_separates_them() {
        let mut seen = std::collections::HashSet::new();
        for account in [DEFAULT, "a", "b", "ab"] {
            let caller = Caller { account: account.into(), ..Caller::default() };
            for salt in [
                None,
                Some(""),
                Some("a"),
                Some("b"),
                Some("\u{1}a"),
                Some("\u{1}a\u{1}b"),
                Some("\u{1}\u{1}a"),
            ] {
                assert!(seen.insert(caller.salt(salt)), "{account} {salt:?}");
            }
        }
        assert_eq!(Caller::default().salt(None), None);
        assert_eq!(Caller::default().salt(Some("s")), Some("s".to_owned()));
    }

    #[test]
    fn a_made_up_name_of_a_model_takes_little_room_in_the_ledger() {
        assert_eq!(counted("gpt-5"), "gpt-5");
        assert_eq!(counted(&"é".repeat(5000)), format!("{}…", "é".repeat(128)));
    }

    #[test]
    fn what_is_no_object_is_no_metadata() {
        for json in ["", "[]", "1", "{", "null"] {
            check(json, &[]);
        }
    }
}

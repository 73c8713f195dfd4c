//! Data that may not pass: kinds of secrets and personal data, in profiles, and what follows where some are found.
//!
//! What is found is what redaction finds (`log::redact`): known forms with check digits where there are some, in one pass.
//! Profiles are groups of those kinds, and each kind alone. Not here: HTTP, and what is done about an answer.

use crate::log::redact::{self, text};
use crate::settings::{Action, Check, Dlp};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Kinds, and the word that stands for one in redacted texts.
const ENTRIES: &[(&str, &str)] = &[
    ("secret", text::SECRET),
    ("private-key", text::PRIVATE_KEY),
    ("card", text::CARD),
    ("iban", text::IBAN),
    ("email", text::EMAIL),
    ("phone", text::PHONE),
    ("ip-address", text::ADDRESS),
];

/// Groups of kinds.
const PROFILES: &[(&str, &[&str])] = &[
    ("credentials", &["secret", "private-key"]),
    ("financial", &["card", "iban"]),
    ("contact", &["email", "phone"]),
    ("network", &["ip-address"]),
];

/// The names of all profiles.
pub(crate) fn profiles() -> impl Iterator<Item = &'static str> {
    PROFILES.iter().map(|(name, _)| *name).chain(ENTRIES.iter().map(|(name, _)| *name))
}

/// Whether there is a profile of this name.
pub(crate) fn check_profile(name: &str) -> bool {
    profiles().any(|known| known == name)
}

/// The kinds of a profile.
fn entries_of(profile: &str) -> Vec<&'static str> {
    match PROFILES.iter().find(|(name, _)| *name == profile) {
        Some((_, entries)) => entries.to_vec(),
        None => ENTRIES.iter().map(|(name, _)| *name).filter(|name| *name == profile).collect(),
    }
}

/// What was found of one profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The profile.
    pub profile: String,
    /// The kinds of it that were found.
    pub entries: Vec<&'static str>,
    /// The policies that look for it.
    pub policies: Vec<String>,
    /// Where.
    pub check: Check,
}

/// What was found of a request and its answer, and what is done.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// By profile.
    pub found: Vec<Finding>,
    /// The strictest; none where nothing was found.
    pub action: Option<Action>,
}

impl Findings {
    /// Looks at a payload; says whether it is blocked. One byte that is no UTF-8 hides nothing of the rest.
    pub fn look(&mut self, dlp: &Dlp, check: Check, payload: &[u8], content_type: Option<&str>) -> bool {
        let words = redact::found(&String::from_utf8_lossy(payload), content_type);
        if words.is_empty() { false } else { self.add(dlp, check, &words) }
    }

    fn add(&mut self, dlp: &Dlp, check: Check, words: &BTreeSet<&'static str>) -> bool {
        let is_found =
            |entry: &&str| ENTRIES.iter().any(|(name, word)| name == entry && words.contains(word));
        let mut blocked = false;
        for holding in dlp.holding(check) {
            for profile in holding.profiles {
                let mut entries = entries_of(profile);
                entries.retain(is_found);
                if entries.is_empty() {
                    continue;
                }
                let blocks = holding.action == Action::Block;
                blocked |= blocks;
                if blocks || self.action.is_none() {
                    self.action = Some(holding.action);
                }
                let known = self.found.iter_mut().find(|one| one.profile == *profile && one.check == check);
                let policies = holding.id.map(str::to_owned);
                match known {
                    Some(known) => known.policies.extend(policies),
                    None => self.found.push(Finding {
                        profile: profile.clone(),
                        entries,
                        policies: policies.into_iter().collect(),
                        check,
                    }),
                }
            }
        }
        blocked
    }

    /// The kinds that were found on a way, for people.
    #[must_use]
    pub fn entries(&self, check: Check) -> Vec<&'static str> {
        let of_way = self.found.iter().filter(|finding| finding.check == check);
        let entries: BTreeSet<&'static str> = of_way.flat_map(|finding| finding.entries.clone()).collect();
        entries.into_iter().collect()
    }

    /// What `cf-aig-dlp` says; nothing where nothing was found.
    #[must_use]
    pub fn header(&self) -> Option<String> {
        let action = self.action?;
        let findings = self.found.iter().map(|finding| {
            json!({
                "profile": {"context": {}, "entry_ids": finding.entries, "profile_id": finding.profile},
                "policy_ids": finding.policies, "check": finding.check,
            })
        });
        let findings: Value = findings.collect();
        Some(json!({"findings": findings, "action": action}).to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Settings;

    fn dlp(value: Value) -> Dlp {
        let fields = serde_json::Map::from_iter([("dlp".to_owned(), value)]);
        Settings::default().parse(&fields).unwrap().loss.dlp.unwrap()
    }

    #[test]
    fn each_word_that_redaction_writes_is_a_kind_and_in_a_group() {
        let body = "a@b.org, +49 30 901820, 4111 1111 1111 1111, GB82WEST12345698765432 10.1.2.3 \
            AKIAIOSFODNN7EXAMPLE -----BEGIN PRIVATE KEY-----";
        let words = redact::found(body, None);
        assert_eq!(words.len(), ENTRIES.len(), "{words:?}");
        for (entry, word) in ENTRIES {
            assert!(words.contains(word) && PROFILES.iter().any(|(_, entries)| entries.contains(entry)));
        }
    }

    #[test]
    fn findings_name_profiles_kinds_policies_and_ways_and_the_strictest_action() {
        let policies = dlp(json!({"enabled": true, "policies": [
            {"id": "a", "enabled": true, "action": "FLAG", "check": ["REQUEST", "RESPONSE"],
             "profiles": ["contact", "credentials"]},
            {"id": "b", "enabled": true, "action": "BLOCK", "check": ["RESPONSE"], "profiles": ["contact"]},
            {"id": "c", "enabled": false, "action": "BLOCK", "check": ["REQUEST"], "profiles": ["contact"]},
        ]}));
        let mut findings = Findings::default();
        assert!(!findings.look(&policies, Check::Request, b"nothing", None));
        assert_eq!(findings.header(), None);
        assert!(!findings.look(&policies, Check::Request, b"ada@example.com", None));
        let said: Value = serde_json::from_str(&findings.header().unwrap()).unwrap();
        assert_eq!(
            said,
            json!({"findings": [{"profile": {"context": {}, "entry_ids": ["email"],
            "profile_id": "contact"}, "policy_ids": ["a"], "check": "REQUEST"}], "action": "FLAG"})
        );
        assert!(findings.look(&policies, Check::Response, b"+49 30 901820", None));
        let said: Value = serde_json::from_str(&findings.header().unwrap()).unwrap();
        assert_eq!(
            (&said["action"], &said["findings"][1]["policy_ids"]),
            (&json!("BLOCK"), &json!(["a", "b"]))
        );
        assert_eq!(findings.entries(Check::Response), ["phone"]);
        assert!(Findings::default().look(&policies, Check::Response, b"\xff ada@example.com", None));
    }

    #[test]
    fn the_shape_without_policies_looks_at_both_ways_and_a_kind_is_a_profile_too() {
        let both = dlp(json!({"enabled": true, "action": "BLOCK", "profiles": ["email"]}));
        for check in [Check::Request, Check::Response] {
            assert!(Findings::default().look(&both, check, b"ada@example.com", None));
            assert!(!Findings::default().look(&both, check, b"+49 30 901820", None));
        }
        let off = dlp(json!({"enabled": false, "action": "BLOCK", "profiles": ["email"]}));
        assert!(!off.is_on() && !off.blocks(Check::Response) && both.is_on());
    }
}

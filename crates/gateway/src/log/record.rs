//! One log: its fields, as the store keeps them and as AI Gateway's clients read them.

use super::capture::Payload;
use super::finding::Finding;
use crate::{Action, KeyId, Metadata};
use base::NanoUsd;
use serde_json::{Map, Value, json};
use std::sync::Arc;
use store::Row;

/// Characters of a payload that stand in the record itself.
const HEAD: usize = 2000;

/// A log.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    /// The id, that of the ledger's entry where there is one.
    pub id: String,
    /// The account.
    pub account: String,
    /// The gateway.
    pub gateway: String,
    /// Milliseconds since 1970.
    pub created: u64,
    /// The provider's slug, or `local`; empty where none was chosen.
    pub provider: String,
    /// The model by the name that went there.
    pub model: String,
    /// What kind of model answers such a request.
    pub model_type: String,
    /// The path that was called; for a provider's own API what stands behind its slug.
    pub path: String,
    /// The kind of request.
    pub request_type: String,
    /// Milliseconds to the end of the answer.
    pub duration: u64,
    /// Milliseconds to its first byte.
    pub first_byte: Option<u64>,
    /// The HTTP status; 499 where the client left.
    pub status: u16,
    /// Whether it was answered from the cache.
    pub cached: bool,
    /// The number of the provider among those that were asked, from 0.
    pub step: u32,
    /// Tokens of the prompt, where they are known.
    pub tokens_in: Option<u64>,
    /// Of these, read from a cache.
    pub tokens_cached: Option<u64>,
    /// Tokens of the answer.
    pub tokens_out: Option<u64>,
    /// What it cost, where that is known.
    pub cost: Option<NanoUsd>,
    /// Whether the caller named the cost.
    pub custom_cost: bool,
    /// Media type of the request.
    pub request_content_type: Option<String>,
    /// Media type of the answer.
    pub response_content_type: Option<String>,
    /// Bytes of the request's body.
    pub request_size: u64,
    /// Bytes of the answer's body.
    pub response_size: u64,
    /// The beginning of the request, where payloads are stored.
    pub request_head: Head,
    /// The beginning of the answer.
    pub response_head: Head,
    /// The client's name for itself.
    pub user_agent: Option<String>,
    /// The key that was shown.
    pub key: Option<KeyId>,
    /// What the client calls the request.
    pub event_id: Option<String>,
    /// Whether a key was shown.
    pub authentication: bool,
    /// Whether it came in by `compat`.
    pub compatibility: bool,
    /// What was done where data was found that may not pass.
    pub dlp_action: Option<Action>,
    /// What guardrails found, and limits that only report.
    pub findings: Vec<Finding>,
    /// Why there was no answer.
    pub error: Option<String>,
    /// A person's judgement: -1 or 1.
    pub feedback: Option<i64>,
    /// A judgement as a number.
    pub score: Option<f64>,
    /// What the caller wants to find it by: names and JSON values.
    pub metadata: Vec<(String, Value)>,
}

/// The beginning of a payload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Head {
    /// The text; nothing where the payload is not stored, or is no text.
    pub text: Option<String>,
    /// Whether that is all of it.
    pub complete: bool,
}

impl Head {
    pub(super) fn of(body: &str, cut: bool) -> Self {
        let end = body.char_indices().nth(HEAD).map(|(at, _)| at);
        Self { text: Some(body[..end.unwrap_or(body.len())].to_owned()), complete: end.is_none() && !cut }
    }
}

/// A record on its way to the store, with the payloads it may have.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) record: Record,
    pub(super) request: Option<Payload>,
    pub(super) response: Option<Payload>,
    /// Whether secrets and personal data are taken out of the payloads first.
    pub(super) redact: bool,
    pub(super) keep: Keep,
}

/// How many logs of a gateway are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Keep {
    pub(super) most: u64,
    pub(super) strategy: super::Strategy,
}

impl Pending {
    /// Bytes of its payloads.
    pub(super) fn size(&self) -> usize {
        [&self.request, &self.response].into_iter().flatten().map(|payload| payload.bytes.len()).sum()
    }

    /// Lets the payloads go; gives how many there were.
    pub(super) fn strip(&mut self) -> u64 {
        u64::from(self.request.take().is_some()) + u64::from(self.response.take().is_some())
    }
}

/// The columns, in the order of [`Record::values`] and [`Record::read`].
pub(super) const COLUMNS: [&str; 38] = [
    "id",
    "account",
    "gateway",
    "created",
    "provider",
    "model",
    "model_type",
    "path",
    "request_type",
    "duration",
    "first_byte",
    "status",
    "success",
    "cached",
    "step",
    "tokens_in",
    "tokens_cached",
    "tokens_out",
    "cost",
    "custom_cost",
    "request_content_type",
    "response_content_type",
    "request_size",
    "response_size",
    "request_head",
    "request_head_complete",
    "response_head",
    "response_head_complete",
    "user_agent",
    "key_id",
    "event_id",
    "authentication",
    "compatibility",
    "error",
    "feedback",
    "score",
    "dlp_action",
    "findings",
];

/// A text that both databases take.
pub(super) fn clean(text: &str) -> String {
    text.replace('\0', "\u{fffd}")
}

fn number(number: u64) -> i64 {
    crate::account::number(number)
}

impl Record {
    /// Whether there was an answer.
    #[must_use]
    pub const fn success(&self) -> bool {
        self.status < 400
    }

    pub(super) fn values(&self) -> [store::Value; 38] {
        let text = |text: &str| store::Value::from(clean(text));
        let maybe = |text: &Option<String>| store::Value::from(text.as_deref().map(clean));
        let flag = |flag: bool| store::Value::from(i64::from(flag));
        let count = |count: Option<u64>| store::Value::from(count.map(number));
        [
            text(&self.id),
            text(&self.account),
            text(&self.gateway),
            number(self.created).into(),
            text(&self.provider),
            text(&self.model),
            text(&self.model_type),
            text(&self.path),
            text(&self.request_type),
            number(self.duration).into(),
            count(self.first_byte),
            i64::from(self.status).into(),
            flag(self.success()),
            flag(self.cached),
            i64::from(self.step).into(),
            count(self.tokens_in),
            count(self.tokens_cached),
            count(self.tokens_out),
            self.cost.map(|cost| cost.0).into(),
            flag(self.custom_cost),
            maybe(&self.request_content_type),
            maybe(&self.response_content_type),
            number(self.request_size).into(),
            number(self.response_size).into(),
            maybe(&self.request_head.text),
            flag(self.request_head.complete),
            maybe(&self.response_head.text),
            flag(self.response_head.complete),
            maybe(&self.user_agent),
            self.key.as_ref().map(|key| &*key.0).into(),
            maybe(&self.event_id),
            flag(self.authentication),
            flag(self.compatibility),
            maybe(&self.error),
            self.feedback.into(),
            self.score.map(|score| json!(score).to_string()).into(),
            self.dlp_action.map(Action::name).into(),
            (!self.findings.is_empty()).then(|| clean(&json!(self.findings).to_string())).into(),
        ]
    }

    /// A row of [`COLUMNS`], without metadata.
    pub(super) fn read(row: &Row) -> Result<Self, store::Error> {
        let text = |column: usize| row.text(column).map(str::to_owned);
        let maybe = |column: usize| row.optional_text(column).map(|text| text.map(str::to_owned));
        let flag = |column: usize| row.integer(column).map(|number| number != 0);
        let count = |column: usize| row.integer(column).map(i64::unsigned_abs);
        let counted =
            |column: usize| row.optional_integer(column).map(|number| number.map(i64::unsigned_abs));
        Ok(Self {
            id: text(0)?,
            account: text(1)?,
            gateway: text(2)?,
            created: count(3)?,
            provider: text(4)?,
            model: text(5)?,
            model_type: text(6)?,
            path: text(7)?,
            request_type: text(8)?,
            duration: count(9)?,
            first_byte: counted(10)?,
            status: u16::try_from(row.integer(11)?).unwrap_or_default(),
            cached: flag(13)?,
            step: u32::try_from(row.integer(14)?).unwrap_or_default(),
            tokens_in: counted(15)?,
            tokens_cached: counted(16)?,
            tokens_out: counted(17)?,
            cost: row.optional_integer(18)?.map(NanoUsd),
            custom_cost: flag(19)?,
            request_content_type: maybe(20)?,
            response_content_type: maybe(21)?,
            request_size: count(22)?,
            response_size: count(23)?,
            request_head: Head { text: maybe(24)?, complete: flag(25)? },
            response_head: Head { text: maybe(26)?, complete: flag(27)? },
            user_agent: maybe(28)?,
            key: row.optional_text(29)?.map(|key| KeyId(Arc::from(key))),
            event_id: maybe(30)?,
            authentication: flag(31)?,
            compatibility: flag(32)?,
            error: maybe(33)?,
            feedback: row.optional_integer(34)?,
            score: row.optional_text(35)?.and_then(|score| score.parse().ok()),
            dlp_action: row.optional_text(36)?.and_then(Action::named),
            findings: row
                .optional_text(37)?
                .and_then(|json| serde_json::from_str(json).ok())
                .unwrap_or_default(),
            metadata: Vec::new(),
        })
    }

    /// The log as AI Gateway's clients read it; `time` writes milliseconds since 1970.
    #[must_use]
    pub fn object(&self, time: impl Fn(u64) -> String) -> Value {
        let metadata: Map<String, Value> = self.metadata.iter().cloned().collect();
        let metadata = (!metadata.is_empty()).then(|| Value::Object(metadata).to_string());
        json!({
            "id": self.id, "created_at": time(self.created), "provider": self.provider, "model": self.model,
            "model_type": self.model_type, "path": self.path, "request_type": self.request_type,
            "duration": self.duration, "first_byte": self.first_byte, "status_code": self.status,
            "success": self.success(), "cached": self.cached, "step": self.step, "tokens_in": self.tokens_in,
            "tokens_out": self.tokens_out, "tokens_cached": self.tokens_cached,
            "cost": self.cost.map(NanoUsd::dollars), "cost_nano_usd": self.cost.map(|cost| cost.0),
            "custom_cost": self.custom_cost, "metadata": metadata,
            "request_content_type": self.request_content_type, "request_size": self.request_size,
            "request_head": self.request_head.text, "request_head_complete": self.request_head.complete,
            "response_content_type": self.response_content_type, "response_size": self.response_size,
            "response_head": self.response_head.text, "response_head_complete": self.response_head.complete,
            "user_agent": self.user_agent, "key_id": self.key.as_ref().map(|key| &*key.0),
            "gateway": self.gateway, "event_id": self.event_id, "authentication": self.authentication,
            "compatibilityMode": self.compatibility, "wholesale": false, "dlp_action": self.dlp_action,
            "findings": self.findings, "error": self.error,
            "feedback": self.feedback, "score": self.score,
        })
    }
}

/// The entries of a request's metadata.
pub(super) fn entries(metadata: &Metadata) -> Vec<(String, Value)> {
    metadata.entries().map(|(name, value)| (name.to_owned(), value.clone())).collect()
}

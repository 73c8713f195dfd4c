//! What a gateway reads of the wire dialects: usage, errors inside answers, the end of a stream.
//!
//! Same dialect on both sides means that bytes pass; here they are only looked at, and only where a cheap search finds
//! that there is something to see. Usage is the same whether an answer is streamed or not: both ways end in one reader of
//! the dialect's usage object. Where the dialects differ, `translate.rs` says who writes and who reads; how is
//! `protocol`'s.

mod anthropic;
mod bedrock;
mod cohere;
mod form;
mod gemini;
mod openai;
mod thoughts;
mod translate;

pub use form::Form;
pub use thoughts::{without_carried, without_stand_ins};

use crate::scan::{Field, Scan, ScanError, scan};
use crate::sse;
use crate::usage::{Tier, Usage};
use memchr::memmem::Finder;
use protocol::counts::{self, Told};
use serde::de::IgnoredAny;
use serde_json::{Map, Value};

/// How a provider speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Dialect {
    /// Chat completions, completions, responses, embeddings, as OpenAI has them.
    OpenAi,
    /// Anthropic's Messages.
    Anthropic,
    /// Gemini's `generateContent` and what stands beside it, on Google AI Studio and Vertex AI.
    Gemini,
    /// Amazon Bedrock's Converse, and what its other paths tell in its own words.
    Bedrock,
    /// Cohere's own chat.
    Cohere,
    /// Something that nothing is read of.
    Other,
}

/// A usage with the JSON it was read from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reported {
    /// The counts.
    pub usage: Usage,
    /// The provider's own words; of a stream that tells it in parts, the parts merged.
    pub raw: String,
}

impl Reported {
    /// The tier may stand beside the usage.
    fn new(usage: Usage, tier: Option<Tier>, raw: String) -> Self {
        Self { usage: Usage { tier: tier.unwrap_or(usage.tier), ..usage }, raw }
    }
}

/// An error that came where an answer should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The status that the provider means, where it says so.
    pub status: Option<u16>,
    /// In its words.
    pub message: String,
}

/// Letters of an answer that cannot be used which are shown: it may say why in words of its own.
const SHOWN: usize = 200;

/// Why an answer is none, though its status said that all was well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bad {
    /// It is an error, in the provider's words.
    Told(Fault),
    /// It is not what it should be; what is wrong with it.
    Unreadable(String),
}

/// Longest message that is taken from a provider's error.
const MESSAGE_MAX: usize = 1000;

impl Dialect {
    fn usage(self, raw: &Told) -> Option<Usage> {
        let (counts, tier) = match self {
            Self::OpenAi => (counts::openai(raw), Tier::Standard),
            Self::Anthropic => (counts::anthropic(raw), anthropic::tier(raw)),
            Self::Gemini => (counts::gemini(raw), Tier::Standard),
            Self::Bedrock => (bedrock::counts(raw), Tier::Standard),
            Self::Cohere => (counts::cohere(raw), Tier::Standard),
            Self::Other => return None,
        };
        Usage::reported(&counts, tier)
    }

    /// The member of an answer that tells usage.
    const fn usage_field(self) -> Field {
        match self {
            Self::OpenAi | Self::Anthropic | Self::Bedrock | Self::Cohere | Self::Other => Field::Usage,
            Self::Gemini => Field::UsageMetadata,
        }
    }

    /// The most tokens that a request's answers may have, where it sets a limit.
    ///
    /// # Errors
    /// Names the member that is no count.
    pub fn longest(self, found: &Scan, body: &[u8]) -> Result<Option<u64>, ScanError> {
        match self {
            Self::Gemini => return Ok(gemini::longest(found, body)),
            Self::Bedrock => return Ok(bedrock::longest(found, body)),
            Self::OpenAi | Self::Anthropic | Self::Cohere | Self::Other => {}
        }
        let mut most = None;
        for field in [Field::MaxTokens, Field::MaxCompletionTokens, Field::MaxOutputTokens] {
            most = most.max(found.count(body, field)?);
        }
        Ok(most)
    }

    /// How many answers a request asks for; of several prompts, those to all of them.
    ///
    /// # Errors
    /// Names the member that is no count.
    pub fn answers(self, found: &Scan, body: &[u8]) -> Result<u64, ScanError> {
        let answers = match self {
            Self::Gemini => gemini::answers(found, body),
            Self::Bedrock | Self::Cohere | Self::Other => None,
            Self::OpenAi | Self::Anthropic => {
                let each = found.count(body, Field::N)?.max(found.count(body, Field::BestOf)?);
                Some(each.unwrap_or(1).max(1).saturating_mul(openai::prompts(found, body)))
            }
        };
        Ok(answers.unwrap_or(1).max(1))
    }

    /// The usage that a whole answer tells.
    #[must_use]
    pub fn usage_of_body(self, body: &[u8]) -> Option<Reported> {
        match scan(body) {
            Ok(members) => self.usage_among(&members, body),
            // A stream of Gemini's that was not asked for as events is a list of the same objects.
            Err(_) if self == Self::Gemini => gemini::usage_of_list(body),
            Err(_) => None,
        }
    }

    fn usage_among(self, members: &Scan, body: &[u8]) -> Option<Reported> {
        let Some(raw) = members.raw(body, self.usage_field()) else {
            return match self {
                Self::Bedrock => bedrock::usage_beside(body),
                Self::OpenAi => {
                    let raw = openai::usage_of(members, body)?;
                    let tier = openai::tier(members, body);
                    Some(Reported::new(self.usage(&raw)?, tier, serde_json::to_string(&raw).ok()?))
                }
                Self::Anthropic | Self::Gemini | Self::Cohere | Self::Other => None,
            };
        };
        let raw = raw.to_owned();
        let usage = self.usage(&serde_json::from_slice(&raw).ok()?)?;
        let tier = if self == Self::OpenAi { openai::tier(members, body) } else { None };
        Some(Reported::new(usage, tier, String::from_utf8(raw).ok()?))
    }

    /// Reads a whole answer whose status said that all was well: the usage that it tells. `form` is what it should be,
    /// where that is known.
    ///
    /// # Errors
    /// When it is an error, or nothing of the kind.
    pub fn answer_of_body(self, form: Option<Form>, body: &[u8]) -> Result<Option<Reported>, Bad> {
        if self == Self::Other {
            return Ok(None);
        }
        let unreadable = |why: String| Err(Bad::Unreadable(why));
        let trimmed = body.trim_ascii_start();
        if trimmed.is_empty() {
            return unreadable("its answer is empty".to_owned());
        }
        let members = match scan(body) {
            Ok(members) => members,
            Err(error) => {
                // JSON too, and for the caller to make sense of.
                let other = match form {
                    None => trimmed.starts_with(b"[") || trimmed.starts_with(b"\""),
                    Some(Form::Gemini) => {
                        trimmed.starts_with(b"[")
                            && serde_json::from_slice::<IgnoredAny>(body).is_ok()
                            && gemini::is_closing(body)
                    }
                    Some(_) => false,
                };
                return if other { Ok(self.usage_of_body(body)) } else { unreadable(told_of(&error)) };
            }
        };
        // A response that failed is an answer, which says why.
        if members.span(Field::Object).is_none()
            && let Some(error) = members.raw(body, Field::Error)
        {
            return Err(Bad::Told(fault(error)));
        }
        if form.is_some_and(|form| !form.is_answer(body)) {
            let shown: String = String::from_utf8_lossy(body).chars().take(SHOWN).collect();
            return unreadable(format!("its answer is JSON, but no answer to this request: {shown}"));
        }
        Ok(self.usage_among(&members, body))
    }
}

/// What is wrong with an answer that is no JSON object, in words about an answer.
fn told_of(error: &ScanError) -> String {
    match error {
        ScanError::Syntax { at, found: None, .. } => {
            format!("its answer ends after {at} bytes, in the middle")
        }
        ScanError::Syntax { at, .. } => format!("its answer is no JSON object (at byte {at})"),
        other => format!("its answer cannot be read: {other}"),
    }
}

/// Reads an `error` member of any form: a text, or an object with `message` and perhaps a status as `code`.
fn fault(raw: &[u8]) -> Fault {
    let value: Value = serde_json::from_slice(raw).unwrap_or(Value::Null);
    let status = ["code", "status", "status_code"].into_iter().find_map(|name| match &value[name] {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => text.parse().ok(),
        _ => None,
    });
    let named = match value["type"].as_str() {
        // Anthropic's errors in streams name a type only.
        Some("overloaded_error") => Some(529),
        Some("rate_limit_error") => Some(429),
        Some("invalid_request_error") => Some(400),
        Some("authentication_error") => Some(401),
        _ => None,
    };
    let status =
        status.and_then(|status| u16::try_from(status).ok()).filter(|status| (400..600).contains(status));
    let message = value.as_str().or_else(|| value["message"].as_str());
    let message =
        message.map_or_else(|| value.to_string(), str::to_owned).chars().take(MESSAGE_MAX).collect();
    Fault { status: status.or(named), message }
}

/// What a frame of a stream is to a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// It is a chunk that holds usage and nothing of the answer, as `stream_options.include_usage` asks for.
    pub usage_only: bool,
    /// It tells usage.
    pub usage: bool,
    /// It holds a piece of an answer whose usage may be told before its end.
    pub piece: bool,
    /// It is the last of an answer: what comes before it is all.
    pub last: bool,
    /// It may be the last: only the end of the stream, or another frame, tells.
    pub closing: bool,
    /// It is none that such an answer could have.
    pub rubbish: bool,
}

/// Watches a stream, frame by frame.
#[derive(Clone, Debug)]
pub struct Watcher {
    dialect: Dialect,
    /// What is known of the answer's form.
    form: Option<Form>,
    /// Whether something said that the answer is all there.
    whole: bool,
    /// The usage object, of several told the merged one.
    raw: Map<String, Value>,
    /// Where it stands beside the usage.
    tier: Option<Tier>,
    fault: Option<Fault>,
    usage: Finder<'static>,
    error: Finder<'static>,
}

impl Watcher {
    /// A watcher of a stream in this dialect.
    #[must_use]
    pub fn new(dialect: Dialect) -> Self {
        let finder = Finder::new;
        let told = match dialect {
            Dialect::OpenAi | Dialect::Anthropic | Dialect::Bedrock | Dialect::Cohere | Dialect::Other => {
                "\"usage\""
            }
            Dialect::Gemini => "\"usageMetadata\"",
        };
        let (usage, error) = (finder(told), finder("\"error\""));
        Self { dialect, form: None, whole: false, raw: Map::new(), tier: None, fault: None, usage, error }
    }

    /// The same, of an answer of this form.
    #[must_use]
    pub fn of(self, form: Option<Form>) -> Self {
        Self { form, ..self }
    }

    /// Whether an answer whose stream ends here is all there, as far as its form tells.
    #[must_use]
    pub const fn is_whole(&self) -> bool {
        self.whole || self.form.is_none()
    }

    /// Looks at a frame.
    pub fn frame(&mut self, frame: &[u8]) -> Seen {
        let mut seen = Seen::default();
        if self.dialect == Dialect::Bedrock {
            self.message(frame, &mut seen);
            return seen;
        }
        if self.dialect == Dialect::Other {
            return seen;
        }
        let usage = self.usage.find(frame).is_some();
        if usage || self.error.find(frame).is_some() {
            self.read(frame, usage, &mut seen);
        }
        seen.last = match self.dialect {
            Dialect::OpenAi => openai::is_last(frame),
            Dialect::Anthropic => anthropic::is_last(frame),
            Dialect::Cohere => cohere::is_last(frame),
            Dialect::Gemini | Dialect::Bedrock | Dialect::Other => false,
        };
        seen.piece = match self.dialect {
            Dialect::Anthropic => anthropic::is_piece(frame),
            Dialect::Gemini => gemini::is_piece(frame),
            Dialect::OpenAi | Dialect::Cohere | Dialect::Bedrock | Dialect::Other => false,
        };
        seen.closing = self.dialect == Dialect::Gemini && gemini::is_closing(frame);
        if let Some(form) = self.form {
            self.whole = self.whole || seen.last || seen.closing || form.ends(frame);
            seen.rubbish = Form::is_rubbish(frame);
        }
        seen
    }

    /// Looks at a message of Amazon's.
    fn message(&mut self, frame: &[u8], seen: &mut Seen) {
        let Some(message) = crate::eventstream::decode(frame) else { return };
        self.whole = self.whole || message.name == bedrock::STOP;
        if message.is_error {
            self.fault.get_or_insert_with(|| bedrock::fault(&message));
        } else if let Some(told) = bedrock::usage_of_event(&message) {
            self.raw = told;
            seen.usage = true;
            // What tells usage ends the answer.
            seen.last = true;
            self.whole = true;
        }
    }

    /// Reads the data of a frame that has a member of one of the names somewhere.
    fn read(&mut self, frame: &[u8], usage: bool, seen: &mut Seen) {
        let Some(data) = sse::data(frame) else { return };
        let Ok(members) = scan(&data) else { return };
        if self.fault.is_none()
            && let Some(error) = members.raw(&data, Field::Error)
        {
            self.fault = Some(fault(error));
        }
        if self.fault.is_none() && sse::name(frame) == Some(openai::FAILED) {
            self.fault = Some(openai::fault_of_failed(&data));
        }
        if self.fault.is_none() && self.dialect == Dialect::OpenAi && sse::name(frame) == Some(openai::ERROR)
        {
            // A response's error is the event itself.
            self.fault = Some(fault(&data));
        }
        if !usage {
            return;
        }
        let told = match self.dialect {
            Dialect::OpenAi => openai::usage_of(&members, &data),
            Dialect::Anthropic => anthropic::usage_of_event(&members, &data),
            Dialect::Cohere => cohere::usage_of_event(&data),
            Dialect::Gemini | Dialect::Bedrock | Dialect::Other => members
                .raw(&data, self.dialect.usage_field())
                .and_then(|raw| serde_json::from_slice(raw).ok()),
        };
        if let Some(told) = told {
            if self.dialect == Dialect::OpenAi {
                self.tier = openai::tier(&members, &data).or(self.tier);
            }
            match self.dialect {
                // Each report is of all so far.
                Dialect::OpenAi | Dialect::Gemini | Dialect::Bedrock | Dialect::Cohere | Dialect::Other => {
                    self.raw = told
                }
                Dialect::Anthropic => anthropic::merge(&mut self.raw, told),
            }
            seen.usage = true;
            seen.usage_only = self.dialect == Dialect::OpenAi && openai::is_usage_only(&data);
        }
    }

    /// The usage as far as it was told.
    #[must_use]
    pub fn reported(&self) -> Option<Reported> {
        let usage = self.dialect.usage(&self.raw)?;
        Some(Reported::new(usage, self.tier, serde_json::to_string(&self.raw).ok()?))
    }

    /// The first error that the stream told.
    #[must_use]
    pub const fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod translate_tests;
#[cfg(test)]
mod usage_tests;

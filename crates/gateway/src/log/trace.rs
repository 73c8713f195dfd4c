//! What goes along with a request, so that its log can be written when all of it has ended.
//!
//! ```text
//! HTTP server   asked -> … -> first byte -> pieces -> ended
//! ledger              step begins -> step ends        (one for each provider that is asked)
//! ```
//!
//! Invariant: each step is logged once, when both it and the response have ended, in whichever order; a request whose
//! response ends without any step is logged once too. So an answer that goes on after its client left is logged when
//! it is over.

use super::capture::Capture;
use super::finding::{Finding, MOST};
use super::otel::{Endpoint, Span};
use super::record::{Keep, Pending, Record, entries};
use super::redact::redacted;
use super::{Head, Logs, redact};
use crate::price::Cost;
use crate::{Action, Caller, KeyId, Metadata, Named, Usage};
use bytes::Bytes;
use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The status of a request whose client left.
const LEFT: u16 = 499;

/// Longest text that is taken from a client's header or path.
const TEXT: usize = 512;

/// What a request says of itself.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The path; for a provider's own API what stands behind its slug.
    pub path: String,
    /// The kind of request, such as `chat`.
    pub request_type: &'static str,
    /// What kind of model answers it.
    pub model_type: &'static str,
    /// The provider that the path names, where it does.
    pub provider: Option<String>,
    /// Media type of its body.
    pub content_type: Option<String>,
    /// The client's name for itself.
    pub user_agent: Option<String>,
    /// What the client calls the request.
    pub event_id: Option<String>,
    /// The span that it is a part of (`traceparent`, W3C Trace Context).
    pub parent: Option<String>,
    /// Whether it came in by `compat`.
    pub compatibility: bool,
    /// What it wants of its log.
    pub collect: Collect,
}

/// What a request wants of its log; `None` leaves it to the gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collect {
    /// Whether there is one.
    pub log: Option<bool>,
    /// Whether it has payloads.
    pub payloads: Option<bool>,
    /// Whether nothing of what was said may be kept.
    pub zero_retention: bool,
}

/// How the response went out.
#[derive(Clone, Debug, Default)]
pub struct Answered {
    /// Its status.
    pub status: u16,
    /// Media type of its body.
    pub content_type: Option<String>,
    /// Whether it came from the cache.
    pub cached: bool,
    /// Why there was no answer.
    pub error: Option<String>,
}

/// A request on its way. Clones are the same.
#[derive(Clone)]
pub struct Trace(Arc<Inner>);

struct Inner {
    logs: Logs,
    id: uuid::Uuid,
    asked: Asked,
    account: Arc<str>,
    gateway: Arc<str>,
    key: Option<KeyId>,
    metadata: Metadata,
    custom_cost: bool,
    first_step: u32,
    /// How it is kept; nothing where it is not logged.
    keep: Option<Keep>,
    redact: bool,
    /// Whether nothing of what was said may be kept.
    silent: bool,
    export: Arc<[Endpoint]>,
    began: Duration,
    state: Mutex<State>,
}

struct State {
    steps: Vec<Step>,
    /// The provider and the model that were asked for, where nobody was asked.
    named: Option<(String, String)>,
    answered: Option<Answered>,
    first_byte: Option<Duration>,
    ended: Option<Duration>,
    request: Capture,
    response: Capture,
    /// What was done about data that may not pass.
    dlp: Option<Action>,
    findings: Vec<Finding>,
    /// Whether the response's part was logged.
    logged: bool,
}

/// One provider that was asked.
struct Step {
    id: String,
    provider: String,
    model: String,
    began: Duration,
    end: Option<End>,
    /// Why there is no answer of it.
    error: Option<String>,
    logged: bool,
}

struct End {
    at: Duration,
    /// Nothing: the status is that of the response.
    status: Option<u16>,
    usage: Option<Usage>,
    cost: Option<Cost>,
}

/// How a step ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The answer is whole.
    Whole,
    /// There is none; the status.
    Failed(u16),
    /// The client left.
    Left,
}

impl PartialEq for Trace {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Trace {}

impl fmt::Debug for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Trace").field(&self.0.id).finish()
    }
}

/// A client's text, cut to what a log holds.
fn short(text: String) -> String {
    match text.char_indices().nth(TEXT) {
        Some((end, _)) => text[..end].to_owned(),
        None => text,
    }
}

impl Logs {
    /// Begins to follow a request through this gateway.
    #[must_use]
    pub fn trace(&self, caller: &Caller, named: &Named, asked: Asked) -> Trace {
        let settings = &named.settings.logs;
        let defaults = self.defaults();
        let log = asked.collect.log.unwrap_or(settings.collect_logs);
        let silent = asked.collect.zero_retention || named.settings.zero_retention();
        let payloads = asked.collect.payloads.unwrap_or_else(|| settings.payloads(&defaults));
        let limit = (log && payloads && !silent).then(|| settings.payload_limit(&defaults).0);
        let keep =
            log.then(|| Keep { most: settings.most(&defaults), strategy: settings.strategy(&defaults) });
        let asked = Asked {
            path: short(asked.path),
            provider: asked.provider.map(short),
            content_type: asked.content_type.map(short),
            user_agent: asked.user_agent.map(short),
            event_id: asked.event_id.map(short),
            ..asked
        };
        Trace(Arc::new(Inner {
            id: uuid::Uuid::now_v7(),
            account: Arc::clone(&caller.account),
            gateway: Arc::clone(&caller.gateway),
            key: caller.key.clone(),
            metadata: caller.metadata.clone(),
            custom_cost: caller.custom_cost.is_some(),
            first_step: caller.step,
            keep,
            redact: settings.redaction(&defaults),
            silent,
            export: Arc::clone(&settings.otel.0),
            began: self.0.clock.now(),
            state: Mutex::new(State {
                steps: Vec::new(),
                named: None,
                answered: None,
                first_byte: None,
                ended: None,
                request: Capture::new(&self.0.room, limit),
                response: Capture::new(&self.0.room, limit),
                dlp: None,
                findings: Vec::new(),
                logged: false,
            }),
            logs: self.clone(),
            asked,
        }))
    }
}

impl Trace {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self) -> Duration {
        self.0.logs.0.clock.now()
    }

    /// What the client calls the request.
    #[must_use]
    pub fn event_id(&self) -> Option<&str> {
        self.0.asked.event_id.as_deref()
    }

    /// The id of the log of the step that was begun last.
    #[must_use]
    pub fn log_id(&self) -> Option<String> {
        self.state().steps.last().map(|step| step.id.clone())
    }

    /// The id of the log where nobody is asked.
    #[must_use]
    pub fn id(&self) -> String {
        self.0.id.to_string()
    }

    /// The provider that the path names.
    #[must_use]
    pub fn provider(&self) -> Option<&str> {
        self.0.asked.provider.as_deref()
    }

    /// Which provider and model were asked for, for the log of a request that comes to none.
    pub fn named(&self, provider: Option<&str>, model: &str) {
        let provider = provider.or(self.provider()).map(str::to_owned);
        self.state().named = Some((provider.unwrap_or_default(), short(model.to_owned())));
    }

    /// The request's body.
    pub fn request(&self, body: &Bytes) {
        self.state().request.push(body);
    }

    /// The response's head.
    pub fn answered(&self, answered: Answered) {
        let mut state = self.state();
        // It may be what a provider said.
        let error = answered.error.filter(|_| !self.0.silent || state.steps.is_empty());
        let error = error.map(short).map(|why| if self.0.redact { redacted(&why, None) } else { why });
        state.answered = Some(Answered { error, ..answered });
    }

    /// Data was found that may not pass, and this was done.
    pub fn found_data(&self, action: Action) {
        self.state().dlp = Some(action);
    }

    /// Something was found out about the request.
    pub fn found(&self, finding: Finding) {
        let mut state = self.state();
        if state.findings.len() < MOST {
            state.findings.push(finding);
        }
    }

    /// The next piece of the response's body.
    pub fn piece(&self, piece: &Bytes) {
        let now = self.now();
        let mut state = self.state();
        state.first_byte.get_or_insert(now);
        state.response.push(piece);
    }

    /// Nothing more goes out. `left`: because nobody reads it any more.
    pub fn ended(&self, left: bool) {
        let now = self.now();
        let mut state = self.state();
        if state.ended.is_some() {
            return;
        }
        state.ended = Some(now);
        let answered = state.answered.get_or_insert_default();
        if left || answered.status == 0 {
            answered.status = LEFT;
        }
        let first = state.first_byte.unwrap_or(now);
        let since = |moment: Duration| moment.saturating_sub(self.0.began);
        self.0.logs.0.metrics.answered(since(first), since(now));
        self.log(&mut state);
    }

    /// A provider is asked.
    pub(crate) fn step(&self, id: &str, provider: &str, model: &str) {
        let began = self.now();
        let (id, provider, model) = (id.to_owned(), provider.to_owned(), short(model.to_owned()));
        self.state().steps.push(Step { id, provider, model, began, end: None, error: None, logged: false });
    }

    /// Why a step fails that will end now. Where nothing of what was said may be kept, that is not said either.
    pub(crate) fn step_failed(&self, id: &str, why: &str) {
        if self.0.silent {
            return;
        }
        let why = short(why.to_owned());
        let why = if self.0.redact { redacted(&why, None) } else { why };
        let mut state = self.state();
        if let Some(step) = state.steps.iter_mut().rev().find(|step| step.id == id) {
            step.error = Some(why);
        }
    }

    /// A step ended.
    pub(crate) fn step_ended(&self, id: &str, outcome: Outcome, usage: Option<Usage>, cost: Option<Cost>) {
        let at = self.now();
        let mut state = self.state();
        let Some(step) = state.steps.iter_mut().rev().find(|step| step.id == id) else { return };
        let status = match outcome {
            Outcome::Whole => None,
            Outcome::Failed(status) => Some(status),
            Outcome::Left => Some(LEFT),
        };
        step.end = Some(End { at, status, usage, cost });
        self.log(&mut state);
    }

    /// Logs what has ended.
    fn log(&self, state: &mut State) {
        let Some(ended) = state.ended else { return };
        if state.steps.is_empty() {
            if !std::mem::replace(&mut state.logged, true) {
                let record = self.refused(state, ended);
                self.push(state, record, true);
            }
            return;
        }
        if state.steps.iter().any(|step| step.end.is_none()) {
            return;
        }
        // The one whose answer the client got: that which is whole, else the last.
        let whole = |step: &Step| step.end.as_ref().is_some_and(|end| end.status.is_none());
        let last = state.steps.iter().rposition(whole).unwrap_or(state.steps.len() - 1);
        for number in 0..state.steps.len() {
            if std::mem::replace(&mut state.steps[number].logged, true) {
                continue;
            }
            let answers = number == last && !std::mem::replace(&mut state.logged, true);
            let record = self.record(state, number, answers, ended);
            self.push(state, record, answers);
        }
    }

    /// The log of a request that no provider was asked for.
    fn refused(&self, state: &State, ended: Duration) -> Record {
        let asked = &self.0.asked;
        let answered = state.answered.clone().unwrap_or_default();
        let by_path = || (asked.provider.clone().unwrap_or_default(), String::new());
        let (provider, model) = state.named.clone().unwrap_or_else(by_path);
        let (seconds, nanos) = self.0.id.get_timestamp().map_or((0, 0), |time| time.to_unix());
        Record {
            id: self.0.id.to_string(),
            account: self.0.account.to_string(),
            gateway: self.0.gateway.to_string(),
            created: seconds * 1000 + u64::from(nanos) / 1_000_000,
            provider,
            model,
            model_type: asked.model_type.to_owned(),
            path: asked.path.clone(),
            request_type: asked.request_type.to_owned(),
            duration: millis(ended.saturating_sub(self.0.began)),
            first_byte: state.first_byte.map(|first| millis(first.saturating_sub(self.0.began))),
            status: answered.status,
            cached: answered.cached,
            step: self.0.first_step,
            tokens_in: None,
            tokens_cached: None,
            tokens_out: None,
            cost: None,
            custom_cost: self.0.custom_cost,
            request_content_type: asked.content_type.clone(),
            response_content_type: answered.content_type.map(short),
            request_size: state.request.size,
            response_size: state.response.size,
            request_head: Head::default(),
            response_head: Head::default(),
            user_agent: asked.user_agent.clone(),
            key: self.0.key.clone(),
            event_id: asked.event_id.clone(),
            authentication: self.0.key.is_some(),
            compatibility: asked.compatibility,
            dlp_action: state.dlp,
            findings: state.findings.clone(),
            error: answered.error,
            feedback: None,
            score: None,
            metadata: entries(&self.0.metadata),
        }
    }

    /// The log of a step. `answers`: whether what the client got is its answer.
    fn record(&self, state: &State, number: usize, answers: bool, ended: Duration) -> Record {
        let step = &state.steps[number];
        let whole = self.refused(state, ended);
        let Some(end) = &step.end else { return whole };
        let usage = end.usage.as_ref();
        let until = if answers { ended.max(end.at) } else { end.at };
        let first = |first: Duration| millis(first.saturating_sub(step.began));
        Record {
            id: step.id.clone(),
            created: whole.created + millis(step.began.saturating_sub(self.0.began)),
            provider: step.provider.clone(),
            model: step.model.clone(),
            duration: millis(until.saturating_sub(step.began)),
            first_byte: state.first_byte.filter(|_| answers).map(first),
            // A client that left after all was told made no difference to the answer.
            status: end.status.unwrap_or(if whole.status == LEFT { 200 } else { whole.status }),
            cached: answers && whole.cached,
            step: u32::try_from(number).unwrap_or(u32::MAX).saturating_add(self.0.first_step),
            tokens_in: usage.map(|usage| usage.input),
            tokens_cached: usage.and_then(|usage| usage.cached_input),
            tokens_out: usage.map(|usage| usage.output),
            cost: end.cost.map(|cost| cost.cost),
            response_content_type: whole.response_content_type.filter(|_| answers),
            response_size: if answers { whole.response_size } else { 0 },
            error: step.error.clone().or_else(|| whole.error.filter(|_| answers)),
            ..whole
        }
    }

    fn push(&self, state: &mut State, record: Record, answers: bool) {
        let span = (!self.0.export.is_empty()).then(|| {
            let mut shown = Cow::Borrowed(&record);
            if self.0.redact && !record.metadata.is_empty() {
                redact::redact_metadata(&mut shown.to_mut().metadata);
            }
            Span::of(&shown, self.0.asked.parent.as_deref())
        });
        if let Some(span) = span {
            self.0.logs.0.exporter.push(&self.0.export, span);
        }
        let Some(keep) = self.0.keep else { return };
        if answers {
            let lost = u64::from(state.request.dropped) + u64::from(state.response.dropped);
            self.0.logs.0.dropped.payloads.fetch_add(lost, Ordering::Relaxed);
        }
        let (mut request, mut response) = (None, None);
        if answers {
            let is_there = |payload: &super::capture::Payload| !payload.bytes.is_empty();
            request = state.request.take().filter(is_there);
            response = state.response.take().filter(is_there);
        }
        // An answer that broke off is not all of it.
        if let Some(response) = &mut response {
            let began = state.answered.as_ref().is_some_and(|answered| answered.status < 400);
            response.cut |= record.status == LEFT || (began && !record.success());
        }
        let redact = self.0.redact;
        self.0.logs.push(Pending { record, request, response, redact, keep });
    }
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

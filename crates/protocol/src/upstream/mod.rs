//! What readers and writers of the providers' dialects have in common.

mod conversation;

pub(crate) use conversation::{arguments, id_of, is_blank, object_schema, turns};

use crate::{Delta, Error, ErrorKind, FinishReason, GenerateRequest, ReasoningEffort};
use serde_json::{Map, Number, Value};

/// Budgets of thought, in tokens, by effort: those of LiteLLM 1.106.12 (`litellm/constants.py`).
const BUDGETS: [(ReasoningEffort, u32); 4] = [
    (ReasoningEffort::High, 4096),
    (ReasoningEffort::Medium, 2048),
    (ReasoningEffort::Low, 1024),
    (ReasoningEffort::Minimal, 128),
];

/// How long the model should think, where the caller wants that it does: as an effort, whatever the caller wrote.
pub(crate) fn effort(request: &GenerateRequest) -> Option<ReasoningEffort> {
    if request.reasoning_effort.is_some() {
        return request.reasoning_effort;
    }
    let named = named_effort(request);
    // Anthropic's effort stands beside its switch, or alone.
    let alone = request.reasoning_unsaid && named.is_some();
    if request.thinks() != Some(true) && !alone {
        return None;
    }
    let by_budget = request.reasoning_budget.map(|budget| {
        let found = BUDGETS.iter().find(|(_, least)| budget >= *least);
        found.map_or(ReasoningEffort::Minimal, |(effort, _)| *effort)
    });
    Some(named.or(by_budget).unwrap_or(ReasoningEffort::Medium))
}

/// The effort of Anthropic's dialect, where the caller names one there.
pub(crate) fn named_effort(request: &GenerateRequest) -> Option<ReasoningEffort> {
    match request.template_variables.get("reasoning_effort")?.as_str()? {
        "low" => Some(ReasoningEffort::Low),
        "medium" => Some(ReasoningEffort::Medium),
        "high" => Some(ReasoningEffort::High),
        _ => None,
    }
}

/// The field that says how long to think, by its canonical name.
pub(crate) const fn effort_field(request: &GenerateRequest) -> &'static str {
    if request.reasoning_effort.is_some() || request.reasoning_unsaid {
        "reasoning_effort"
    } else {
        "chat_template_kwargs"
    }
}

/// The budget of thought that leaves room for an answer: an effort gets at most half of `max_tokens`, a budget that the
/// caller wrote all but one; nothing where that is less than `least`.
pub(crate) fn with_room(request: &GenerateRequest, budget: u32, least: u32) -> Option<u32> {
    let wrote = request.thinks() == Some(true) && request.reasoning_budget.is_some();
    let room = request.max_tokens.map(|most| if wrote { most.saturating_sub(1) } else { most / 2 });
    Some(budget.max(least).min(room.unwrap_or(u32::MAX))).filter(|budget| *budget >= least)
}

/// Most tokens of thought, where the caller wants that the model thinks; 0 where it shall not.
pub(crate) fn budget(request: &GenerateRequest) -> Option<u32> {
    if request.thinks() == Some(true) && request.reasoning_budget.is_some() {
        return request.reasoning_budget;
    }
    let effort = effort(request)?;
    Some(BUDGETS.iter().find(|(known, _)| *known == effort).map_or(0, |(_, budget)| *budget))
}

/// A number in its shortest decimal form, as the caller wrote it most likely.
pub(crate) fn number(value: f32) -> Value {
    value.to_string().parse().ok().and_then(Number::from_f64).map_or(Value::Null, Value::Number)
}

/// The error of a request that a provider's dialect has no words for.
pub(crate) fn wordless(field: &str, dialect: &str) -> Error {
    let message = format!("'{field}' has no counterpart in {dialect}, which this model's provider speaks");
    Error::new(ErrorKind::Unsupported, message).at(field)
}

/// The error of an answer that is none of the dialect.
pub(crate) fn unreadable(why: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Upstream, format!("The provider's answer cannot be read: {why}"))
}

/// The error of an answer that ended since the model made no sense: a caller who took it for whole would stop there, and
/// the same request may well be answered the next time.
pub(crate) fn malformed(why: &str) -> Error {
    Error::new(ErrorKind::Upstream, format!("The model's answer is malformed: {why}"))
}

/// The error of an answer that broke off.
#[must_use]
pub fn broken_off() -> Error {
    Error::new(ErrorKind::Upstream, "its answer broke off")
}

/// Tokens that a provider counted, where they stand in a member of its answer.
pub(crate) fn counted(body: &[u8], name: &str) -> Result<u32, Error> {
    let told: Value = serde_json::from_slice(body).map_err(unreadable)?;
    let tokens = told[name].as_u64().and_then(|tokens| u32::try_from(tokens).ok());
    tokens.ok_or_else(|| unreadable(format_args!("it has no {name}")))
}

/// An object, whatever else stands there counting as an empty one.
pub(crate) fn object(value: &Value) -> Map<String, Value> {
    value.as_object().cloned().unwrap_or_default()
}

/// Why an answer ended, by what the provider said and what it did: where it called tools, the caller's turn it is,
/// whatever the word.
pub(crate) const fn finish(said: FinishReason, called: bool) -> FinishReason {
    match said {
        FinishReason::Stop if called => FinishReason::ToolCalls,
        FinishReason::ToolCalls if !called => FinishReason::Stop,
        said => said,
    }
}

/// Follows JSON text and knows whether an object or array that began in it is whole.
#[derive(Clone, Debug, Default)]
pub(crate) struct Whole {
    depth: u32,
    in_string: bool,
    escaped: bool,
    begun: bool,
}

impl Whole {
    pub(crate) fn push(&mut self, text: &str) {
        for byte in text.bytes() {
            if self.in_string {
                match byte {
                    _ if self.escaped => self.escaped = false,
                    b'\\' => self.escaped = true,
                    b'"' => self.in_string = false,
                    _ => {}
                }
                continue;
            }
            match byte {
                b'"' => self.in_string = true,
                b'{' | b'[' => {
                    self.depth += 1;
                    self.begun = true;
                }
                b'}' | b']' => self.depth = self.depth.saturating_sub(1),
                _ => {}
            }
        }
    }

    pub(crate) const fn is_whole(&self) -> bool {
        self.begun && self.depth == 0 && !self.in_string
    }
}

/// Puts what a provider says at once into the order of the canonical form: what begins while a call's arguments are
/// not whole waits for them.
#[derive(Debug, Default)]
pub(crate) struct InOrder {
    /// The call whose arguments come in.
    open: Option<(u32, Whole)>,
    /// What waits.
    held: Vec<Delta>,
}

impl InOrder {
    /// Takes a delta of one choice; gives what may go on.
    pub(crate) fn push(&mut self, delta: Delta, out: &mut Vec<Delta>) {
        let waits = match (&mut self.open, &delta) {
            (Some((open, whole)), Delta::ToolCallArguments { index, arguments, .. }) if open == index => {
                whole.push(arguments);
                out.push(delta);
                if whole.is_whole() && !self.held.is_empty() {
                    self.release(out);
                }
                return;
            }
            (Some((_, whole)), _) => !whole.is_whole(),
            (None, _) => false,
        };
        if waits {
            self.held.push(delta);
            return;
        }
        match &delta {
            Delta::ToolCallStart { index, .. } => self.open = Some((*index, Whole::default())),
            // Of a call that is over: the canonical form has no place for it, and most such are empty.
            Delta::ToolCallArguments { .. } => return,
            _ => self.open = None,
        }
        out.push(delta);
    }

    fn release(&mut self, out: &mut Vec<Delta>) {
        for delta in std::mem::take(&mut self.held) {
            self.push(delta, out);
        }
    }

    /// Nothing more comes: what waits goes on, whole or not.
    pub(crate) fn end(&mut self, out: &mut Vec<Delta>) {
        self.open = None;
        while !self.held.is_empty() {
            self.release(out);
            self.open = None;
        }
    }
}

#[cfg(test)]
mod fields_tests;
#[cfg(test)]
mod litellm_tests;
#[cfg(test)]
mod order_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod thinking_tests;
#[cfg(test)]
mod thoughts_tests;

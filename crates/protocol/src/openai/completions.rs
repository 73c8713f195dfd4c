//! Legacy completions: one or many raw prompts, continued.
//!
//! Each prompt becomes a canonical request of its own ("source"); choice `c` of prompt `p` has index `p * n + c`.

use super::local::{self, Limit};
use super::logprobs::{self, LegacyLogprobs, characters};
use super::parameters as shared;
use super::{Head, SYSTEM_FINGERPRINT, WireUsage, to_json};
use crate::fields::{self, Object, element, missing, wrong_type};
use crate::{
    Answer, Delta, Error, Event, FinishReason, GenerateRequest, Input, Logprobs, Prompt, StreamWriter, Usage,
    json,
};
use indexmap::IndexMap;
use serde::Serialize;
use serde_json::Value;

/// Most prompts of one request.
const MAX_PROMPTS: usize = 512;

/// A completion as asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct CompletionRequest {
    /// What to generate, one for each prompt.
    pub requests: Vec<GenerateRequest>,
    /// Whether the answer begins with the prompt.
    pub echo: bool,
    /// Whether the caller wants log-probabilities.
    pub logprobs: bool,
    /// Whether the answer is wanted as it is made.
    pub stream: bool,
    /// Whether a last chunk tells the usage.
    pub include_usage: bool,
}

/// Reads a body.
pub fn parse(body: &[u8]) -> Result<CompletionRequest, Error> {
    let mut fields = Object::root(json::parse(body)?)?;
    let model = shared::model(&mut fields)?;
    let prompts = prompts(&mut fields)?;
    let echo = fields.boolean("echo")?.unwrap_or(false);
    let stream = shared::stream(&mut fields)?;
    let choices = shared::choices(&mut fields)?;
    if fields.integer("best_of", 1..=128)?.is_some_and(|best_of| best_of != i64::from(choices)) {
        return Err(Error {
            message: "'best_of' must equal 'n' on this server".to_owned(),
            ..fields::unsupported("best_of")
        });
    }
    if fields.string("suffix")?.is_some_and(|suffix| !suffix.is_empty()) {
        return Err(fields::unsupported("suffix"));
    }
    let max_tokens = shared::max_tokens(&mut fields, 0)?;
    if max_tokens == Limit::Tokens(0) && !echo {
        return Err(Error::invalid(
            "max_tokens",
            "Invalid value for 'max_tokens': 0 is only allowed with 'echo'",
        ));
    }
    let logprobs = fields.integer("logprobs", 0..=20)?.map(|count| count as u32);
    let prompt_logprobs = fields.integer("prompt_logprobs", 0..=20)?.map(|count| count as u32);
    if prompt_logprobs.is_some() && stream.on {
        return Err(Error::invalid("prompt_logprobs", "'prompt_logprobs' is not available when streaming"));
    }
    let request = GenerateRequest {
        model,
        sampling: shared::sampling(&mut fields, 2.0)?,
        // What OpenAI does without a limit.
        max_tokens: max_tokens.or(Some(16)),
        stop: shared::stop(&mut fields)?,
        choices,
        logprobs,
        prompt_logprobs: if echo { prompt_logprobs.max(logprobs) } else { prompt_logprobs },
        ignore_eos: fields.boolean("ignore_eos")?.unwrap_or(false),
        session: shared::label(&mut fields, "prompt_cache_key")?,
        cache_salt: shared::label(&mut fields, "cache_salt")?,
        stream: stream.on,
        ..GenerateRequest::default()
    };
    super::chat::options(&mut fields)?;
    local::pass_over(&mut fields)?;
    fields.finish()?;
    let requests = prompts
        .into_iter()
        .map(|prompt| {
            // The text of echoed token ids comes back with their log-probabilities.
            let by_tokens = echo && matches!(prompt, Prompt::Tokens(_));
            GenerateRequest {
                prompt_logprobs: request.prompt_logprobs.or(by_tokens.then_some(0)),
                input: Input::Prompt(prompt),
                ..request.clone()
            }
        })
        .collect();
    Ok(CompletionRequest {
        requests,
        echo,
        logprobs: logprobs.is_some(),
        stream: stream.on,
        include_usage: stream.include_usage,
    })
}

fn prompts(fields: &mut Object) -> Result<Vec<Prompt>, Error> {
    let values = match fields.take("prompt") {
        None => return Err(missing("prompt")),
        Some(Value::String(text)) => return Ok(vec![Prompt::Text(text)]),
        Some(Value::Array(values)) => values,
        Some(other) => return Err(wrong_type("prompt", "a string or an array", &other)),
    };
    if values.is_empty() {
        return Err(Error::invalid("prompt", "Invalid value for 'prompt': at least one prompt is needed"));
    }
    if values[0].is_number() {
        return token_ids("prompt", &values).map(|ids| vec![Prompt::Tokens(ids)]);
    }
    if values.len() > MAX_PROMPTS {
        let count = values.len();
        return Err(Error::invalid(
            "prompt",
            format!("Too many prompts: {count}, at most {MAX_PROMPTS} are allowed"),
        ));
    }
    values
        .into_iter()
        .enumerate()
        .map(|(index, value)| {
            let path = element("prompt", index);
            match value {
                Value::String(text) => Ok(Prompt::Text(text)),
                Value::Array(ids) if ids.is_empty() => {
                    Err(Error::invalid(&path, format!("Invalid value for '{path}': the prompt is empty")))
                }
                Value::Array(ids) => token_ids(&path, &ids).map(Prompt::Tokens),
                other => Err(wrong_type(&path, "a string or an array of token ids", &other)),
            }
        })
        .collect()
}

/// A list of token ids.
pub(crate) fn token_ids(path: &str, values: &[Value]) -> Result<Vec<u32>, Error> {
    values.iter().enumerate().map(|(index, id)| fields::token(&element(path, index), id)).collect()
}

#[derive(Serialize)]
struct Completion<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    model: &'a str,
    choices: Vec<WireChoice<'a>>,
    // `None` leaves it out; `Some(None)` says `null`, in chunks of a stream that will tell its usage.
    #[serde(skip_serializing_if = "Option::is_none")]
    usage: Option<Option<WireUsage>>,
    system_fingerprint: &'static str,
}

#[derive(Serialize)]
struct WireChoice<'a> {
    text: &'a str,
    index: u32,
    logprobs: Option<LegacyLogprobs>,
    finish_reason: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<Vec<Option<IndexMap<u32, logprobs::PromptEntry<'a>>>>>,
}

/// What an answer's form depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    /// For each prompt what to echo; empty without `echo`.
    echo: Vec<Prompt>,
    choices: u32,
    logprobs: bool,
    prompt_logprobs: bool,
    include_usage: bool,
}

impl From<&CompletionRequest> for Asked {
    fn from(completion: &CompletionRequest) -> Self {
        let echo = |request: &GenerateRequest| match &request.input {
            Input::Prompt(prompt) => prompt.clone(),
            Input::Chat(_) => unreachable!("completions have raw prompts"),
        };
        let requests = &completion.requests;
        Self {
            echo: if completion.echo { requests.iter().map(echo).collect() } else { Vec::new() },
            choices: requests.first().map_or(1, |request| request.choices),
            logprobs: completion.logprobs,
            prompt_logprobs: !completion.echo
                && requests.iter().any(|request| request.prompt_logprobs.is_some()),
            include_usage: completion.include_usage,
        }
    }
}

/// The text of one choice and where its next token begins.
#[derive(Clone, Default)]
struct Offsets {
    characters: usize,
}

impl Offsets {
    /// The legacy form of these tokens, which follow each other in the answer.
    fn list(&mut self, logprobs: &[Logprobs], into: &mut LegacyLogprobs) {
        for entry in logprobs {
            into.push(entry, self.characters);
            self.characters += characters(&entry.chosen.bytes);
        }
    }

    /// The same for a prompt given as text, in which some tokens (a begin token, a space that the tokenizer
    /// puts in front) do not stand.
    fn list_prompt(&mut self, text: &str, logprobs: &[Logprobs], into: &mut LegacyLogprobs) {
        let mut rest = text.as_bytes();
        for entry in logprobs {
            into.push(entry, self.characters);
            let token = entry.chosen.bytes.as_slice();
            let found = [token, token.strip_prefix(b" ").unwrap_or(token)]
                .into_iter()
                .find(|token| !token.is_empty() && rest.starts_with(token));
            if let Some(token) = found {
                self.characters += characters(token);
                rest = &rest[token.len()..];
            }
        }
        self.characters = text.chars().count();
    }
}

/// The echo of a prompt: its text, and its tokens' log-probabilities where wanted.
fn echo(prompt: &Prompt, entries: &[Logprobs], offsets: &mut Offsets, list: &mut LegacyLogprobs) -> String {
    match prompt {
        Prompt::Text(text) => {
            offsets.list_prompt(text, entries, list);
            text.clone()
        }
        Prompt::Tokens(_) => {
            offsets.list(entries, list);
            let bytes: Vec<u8> =
                entries.iter().flat_map(|entry| entry.chosen.bytes.iter().copied()).collect();
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }
}

/// Raw prompts call no tools.
fn finish_reason(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::ToolCalls | FinishReason::Stop => "stop",
        FinishReason::Length => "length",
        FinishReason::ContentFilter => "content_filter",
    }
}

fn add(sum: &mut Usage, usage: Usage) {
    sum.prompt_tokens = sum.prompt_tokens.saturating_add(usage.prompt_tokens);
    sum.cached_tokens = sum.cached_tokens.saturating_add(usage.cached_tokens);
    sum.completion_tokens = sum.completion_tokens.saturating_add(usage.completion_tokens);
    sum.reasoning_tokens = sum.reasoning_tokens.saturating_add(usage.reasoning_tokens);
}

/// The whole answer as one object; one [`Answer`] for each prompt.
#[must_use]
pub fn completion(head: &Head, asked: &Asked, answers: &[Answer]) -> String {
    let mut texts = Vec::new();
    let mut usage = Usage::default();
    for (source, answer) in answers.iter().enumerate() {
        let prompt_logprobs = answer.prompt_logprobs.as_deref().unwrap_or_default();
        for choice in &answer.choices {
            let mut list = LegacyLogprobs::default();
            let mut offsets = Offsets::default();
            let mut text = asked
                .echo
                .get(source)
                .map_or_else(String::new, |prompt| echo(prompt, prompt_logprobs, &mut offsets, &mut list));
            text.push_str(&choice.text);
            offsets.list(&choice.logprobs, &mut list);
            texts.push((text, list, choice.finish, source));
        }
        add(&mut usage, answer.usage.unwrap_or_default());
    }
    let mut choices = Vec::new();
    let mut lists = Vec::new();
    for (text, list, finish, source) in texts {
        lists.push(text);
        choices.push((list, finish, source));
    }
    let choices = choices
        .into_iter()
        .zip(&lists)
        .enumerate()
        .map(|(index, ((list, finish, source), text))| WireChoice {
            text,
            index: index as u32,
            logprobs: asked.logprobs.then_some(list),
            finish_reason: Some(finish_reason(finish.unwrap_or(FinishReason::Stop))),
            prompt_logprobs: asked
                .prompt_logprobs
                .then(|| logprobs::prompt(answers[source].prompt_logprobs.as_deref().unwrap_or_default())),
        })
        .collect();
    to_json(&Completion {
        id: &head.id,
        object: "text_completion",
        created: head.created,
        model: &head.model,
        choices,
        usage: Some(Some(usage.into())),
        system_fingerprint: SYSTEM_FINGERPRINT,
    })
}

/// Writes a completion as chunks.
pub struct ChunkWriter {
    head: Head,
    asked: Asked,
    usage: Usage,
    /// Prompt log-probabilities gathered for the echo, by source.
    prompts: Vec<Vec<Logprobs>>,
    /// By index of the choice over all prompts.
    offsets: Vec<Offsets>,
    /// Whether the echo of a source was sent.
    echoed: Vec<bool>,
}

impl ChunkWriter {
    /// A writer for the answers to so many prompts.
    #[must_use]
    pub fn new(head: Head, asked: Asked, prompts: usize) -> Self {
        Self {
            offsets: vec![Offsets::default(); prompts * asked.choices as usize],
            prompts: vec![Vec::new(); prompts],
            echoed: vec![asked.echo.is_empty(); prompts],
            usage: Usage::default(),
            head,
            asked,
        }
    }

    fn chunk(&self, choices: Vec<WireChoice<'_>>, usage: Option<WireUsage>) -> Event {
        Event::data(to_json(&Completion {
            id: &self.head.id,
            object: "text_completion",
            created: self.head.created,
            model: &self.head.model,
            choices,
            usage: self.asked.include_usage.then_some(usage),
            system_fingerprint: SYSTEM_FINGERPRINT,
        }))
    }

    fn one(
        &self,
        index: u32,
        text: &str,
        list: Option<LegacyLogprobs>,
        finish: Option<FinishReason>,
    ) -> Event {
        let finish_reason = finish.map(finish_reason);
        self.chunk(
            vec![WireChoice { text, index, logprobs: list, finish_reason, prompt_logprobs: None }],
            None,
        )
    }

    fn index(&self, source: usize, choice: u32) -> u32 {
        source as u32 * self.asked.choices + choice
    }

    /// The prompt, once, before the first delta of any of its choices.
    fn echo(&mut self, source: usize) -> Vec<Event> {
        if self.echoed.get(source).is_none_or(|echoed| *echoed) {
            return Vec::new();
        }
        self.echoed[source] = true;
        let entries = std::mem::take(&mut self.prompts[source]);
        (0..self.asked.choices)
            .map(|choice| {
                let index = self.index(source, choice);
                let mut list = LegacyLogprobs::default();
                let offsets = &mut self.offsets[index as usize];
                let text = echo(&self.asked.echo[source], &entries, offsets, &mut list);
                self.one(index, &text, self.asked.logprobs.then_some(list), None)
            })
            .collect()
    }
}

impl StreamWriter for ChunkWriter {
    fn delta(&mut self, source: usize, delta: Delta) -> Vec<Event> {
        match delta {
            // Raw prompts have neither thoughts nor tool calls.
            Delta::Started { .. }
            | Delta::Reasoning { .. }
            | Delta::Thought { .. }
            | Delta::ToolCallStart { .. }
            | Delta::ToolCallArguments { .. }
            | Delta::MalformedCall { .. } => Vec::new(),
            Delta::PromptLogprobs(logprobs) => {
                if let Some(prompt) = self.prompts.get_mut(source).filter(|_| !self.asked.echo.is_empty()) {
                    prompt.extend(logprobs);
                }
                Vec::new()
            }
            Delta::Usage(usage) => {
                add(&mut self.usage, usage);
                Vec::new()
            }
            Delta::Text { choice, text, logprobs } => {
                let mut events = self.echo(source);
                let index = self.index(source, choice);
                let mut list = LegacyLogprobs::default();
                if let Some(offsets) = self.offsets.get_mut(index as usize) {
                    offsets.list(&logprobs, &mut list);
                }
                events.push(self.one(index, &text, self.asked.logprobs.then_some(list), None));
                events
            }
            Delta::Finish { choice, reason, .. } => {
                let mut events = self.echo(source);
                events.push(self.one(self.index(source, choice), "", None, Some(reason)));
                events
            }
        }
    }

    fn finish(&mut self) -> Vec<Event> {
        let mut events = Vec::new();
        if self.asked.include_usage {
            events.push(self.chunk(Vec::new(), Some(self.usage.into())));
        }
        events.push(Event::data("[DONE]"));
        events
    }
}

#[cfg(test)]
mod tests;

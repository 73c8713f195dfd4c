//! Chat templates: a conversation to the text that a model was trained on, with what callers wrote kept
//! apart from what the template wrote.
//!
//! Templates are written for Python's Jinja2 as `transformers` sets it up (`trim_blocks`, `lstrip_blocks`,
//! loop controls, `raise_exception`, `strftime_now`, `tojson`, `{% generation %}`) and lean on Python's string
//! methods; [`ChatTemplate`] gives them all of that over minijinja. Rendering is bounded in work and output.
//!
//! How spans are found: the conversation is rendered plainly, and again with markers (see [`guard`]). Where
//! the second rendering without its markers equals the first, the brackets tell which text is whose. Where it
//! does not (the template looked into a string), a third rendering has breaks alone, which change only strings
//! that hold control text (their length and slices are then off by the breaks, which is the lesser evil).
//! Either way no control text of a caller is wholly inside trusted text.
//!
//! Does not tokenise and does not know requests of any dialect.

pub mod guard;
mod json;
mod python;
mod time;

pub use guard::{ControlTexts, Origin, Span};

use guard::Markers;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment, UndefinedBehavior, Value};
use serde_json::{Map, Value as Json};
use std::collections::HashSet;
use std::io;
use std::sync::Arc;

/// Work a rendering may do whatever its size; a unit is about one instruction.
const FUEL: u64 = 5_000_000;
/// More work for each byte of the conversation.
const FUEL_PER_BYTE: u64 = 4;
/// Output beyond four times the conversation, in bytes.
const OUTPUT_SLACK: usize = 1 << 20;
/// Name of the one template of an environment.
const NAME: &str = "chat";

/// Why a conversation was not rendered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The template is not Jinja.
    #[error("the model's chat template cannot be read: {0}")]
    Syntax(String),
    /// The template refused the conversation by `raise_exception`.
    #[error("{0}")]
    Raised(String),
    /// The template failed on this conversation.
    #[error("the model's chat template cannot render this conversation: {0}")]
    Failed(String),
    /// The rendering would take too much work or room.
    #[error("the conversation is too large for the model's chat template")]
    TooLarge,
}

/// A model's chat template, ready to render. Cheap to share.
pub struct ChatTemplate {
    env: Environment<'static>,
    source: String,
    bos: Option<String>,
    eos: Option<String>,
    controls: Arc<ControlTexts>,
    /// Variables that it asks for.
    takes: HashSet<String>,
}

impl std::fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ChatTemplate").field("bytes", &self.source.len()).finish_non_exhaustive()
    }
}

/// What a rendering starts from. Strings inside are the caller's unless said otherwise.
#[derive(Clone, Debug, Default)]
pub struct Conversation {
    /// Messages as templates know them: objects with `role` (ours), `content`, `name`, `tool_calls`, ...
    pub messages: Vec<Map<String, Json>>,
    /// Tools in OpenAI's form; `None` where there are none.
    pub tools: Option<Vec<Json>>,
    /// Extra variables.
    pub variables: Map<String, Json>,
    /// Whether the rendering ends where the assistant is to speak.
    pub add_generation_prompt: bool,
    /// Seconds since 1970, for `strftime_now`.
    pub now: u64,
}

/// A conversation as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rendering {
    /// The text in stretches, none empty.
    pub spans: Vec<Span>,
    /// Whether each message's content is a span of its own; otherwise only control texts are kept apart.
    pub exact: bool,
}

impl Rendering {
    /// The whole text.
    #[must_use]
    pub fn text(&self) -> String {
        self.spans.iter().map(|s| s.text.as_str()).collect()
    }
}

/// Carries the text of `raise_exception` through minijinja's error.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct Raised(String);

impl ChatTemplate {
    /// Reads a template. `bos` and `eos` are the texts of the model's tokens; `controls` are all texts that
    /// its tokenizer takes as control tokens.
    pub fn new(
        source: &str,
        bos: Option<String>,
        eos: Option<String>,
        controls: Arc<ControlTexts>,
    ) -> Result<Self, TemplateError> {
        let mut env = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        env.set_syntax(syntax.map_err(|error| TemplateError::Syntax(error.to_string()))?);
        env.set_auto_escape_callback(|_| AutoEscape::None);
        env.set_undefined_behavior(UndefinedBehavior::Lenient);
        python::install(&mut env);
        env.add_filter("tojson", json::tojson);
        env.add_function("raise_exception", |message: String| -> Result<Value, minijinja::Error> {
            Err(minijinja::Error::new(minijinja::ErrorKind::InvalidOperation, message.clone())
                .with_source(Raised(message)))
        });
        let readable = without_generation_tags(&python::with_plain_newlines(source));
        env.add_template_owned(NAME, readable).map_err(|error| TemplateError::Syntax(describe(&error)))?;
        let takes = env.get_template(NAME).map(|template| template.undeclared_variables(false));
        let takes = takes.map_err(|error| TemplateError::Syntax(describe(&error)))?;
        Ok(Self { env, source: source.to_owned(), bos, eos, controls, takes })
    }

    /// Whether the template's text has this word in it, for example `tools` or `enable_thinking`.
    #[must_use]
    pub fn mentions(&self, word: &str) -> bool {
        self.source.contains(word)
    }

    /// Whether the template asks for a variable of this name.
    #[must_use]
    pub fn takes(&self, name: &str) -> bool {
        self.takes.contains(name)
    }

    /// Renders a conversation.
    pub fn render(&self, conversation: &Conversation) -> Result<Rendering, TemplateError> {
        let plain = self.run(conversation)?;
        let mut taken = HashSet::new();
        conversation.visit(&mut |text| taken.extend(text.chars().filter(|c| is_private(*c))));
        taken.extend(self.source.chars().filter(|c| is_private(*c)));
        let Some(markers) = Markers::choose(&mut |c| taken.contains(&c) || self.controls.uses(c)) else {
            return Err(TemplateError::TooLarge);
        };
        if let Ok(marked) = self.run(&self.marked(conversation, &markers, true))
            && markers.strip(&marked) == plain
            && let Some(spans) = guard::cut(&marked, &markers)
        {
            return Ok(Rendering { spans, exact: true });
        }
        let marked = self.run(&self.marked(conversation, &markers, false))?;
        let spans = guard::cut(&marked, &markers).unwrap_or_default();
        Ok(Rendering { spans, exact: false })
    }

    fn run(&self, conversation: &Conversation) -> Result<String, TemplateError> {
        let mut bytes = 0;
        conversation.visit(&mut |text| bytes += text.len());
        let mut env = self.env.clone();
        env.set_fuel(Some(FUEL + FUEL_PER_BYTE * bytes as u64));
        let template = env.get_template(NAME).map_err(|error| TemplateError::Syntax(describe(&error)))?;
        let now = conversation.now;
        let strftime = move |format: String| time::strftime(&format, now);
        let mut own = vec![
            ("messages", Value::from(Serde(&conversation.messages))),
            ("tools", conversation.tools.as_ref().map_or(Value::from(()), |tools| Value::from(Serde(tools)))),
            ("documents", Value::from(())),
            ("add_generation_prompt", Value::from(conversation.add_generation_prompt)),
            ("strftime_now", Value::from_function(strftime)),
        ];
        own.extend(self.bos.as_deref().map(|bos| ("bos_token", Value::from(bos))));
        own.extend(self.eos.as_deref().map(|eos| ("eos_token", Value::from(eos))));
        // Callers cannot replace the conversation.
        let free = |name: &str| own.iter().all(|(taken, _)| *taken != name);
        let extra = conversation.variables.iter().filter(|(name, _)| free(name));
        let all: Vec<(&str, Value)> = extra
            .map(|(name, value)| (name.as_str(), Value::from(Serde(value))))
            .chain(own.iter().cloned())
            .collect();
        let mut out =
            Bounded { bytes: Vec::new(), limit: bytes.saturating_mul(4) + OUTPUT_SLACK, full: false };
        let rendered = template.render_captured_to(Value::from_pairs(all), &mut out).map(drop);
        match rendered {
            Ok(()) => String::from_utf8(out.bytes).map_err(|error| TemplateError::Failed(error.to_string())),
            Err(_) if out.full => Err(TemplateError::TooLarge),
            Err(error) => Err(failure(&error)),
        }
    }

    /// The conversation with markers in every string of the caller's.
    fn marked(&self, conversation: &Conversation, markers: &Markers, bracketed: bool) -> Conversation {
        let content = |text: &str| self.controls.mark(text, markers, bracketed);
        // Names, arguments and variables are compared and looked up by templates more than printed, so they are
        // left alone unless control text could come of them.
        let other = |text: &str| {
            if self.controls.touches(text) {
                self.controls.mark(text, markers, bracketed)
            } else {
                text.to_owned()
            }
        };
        let messages = conversation.messages.iter().map(|message| {
            let fields = message.iter().map(|(key, value)| {
                let value = match (key.as_str(), value) {
                    ("role", value) => value.clone(),
                    ("content" | "reasoning_content" | "reasoning" | "thinking", Json::String(text)) => {
                        Json::String(content(text))
                    }
                    (_, value) => mapped(value, &other),
                };
                (key.clone(), value)
            });
            fields.collect()
        });
        Conversation {
            messages: messages.collect(),
            tools: conversation.tools.as_ref().map(|tools| tools.iter().map(|t| mapped(t, &other)).collect()),
            variables: conversation.variables.iter().map(|(k, v)| (k.clone(), mapped(v, &other))).collect(),
            add_generation_prompt: conversation.add_generation_prompt,
            now: conversation.now,
        }
    }
}

impl Conversation {
    /// Shows every string of the caller's, keys included.
    fn visit(&self, seen: &mut dyn FnMut(&str)) {
        fn value(json: &Json, seen: &mut dyn FnMut(&str)) {
            match json {
                Json::String(text) => seen(text),
                Json::Array(items) => items.iter().for_each(|item| value(item, seen)),
                Json::Object(fields) => object(fields, seen),
                Json::Null | Json::Bool(_) | Json::Number(_) => {}
            }
        }
        fn object(fields: &Map<String, Json>, seen: &mut dyn FnMut(&str)) {
            for (key, field) in fields {
                seen(key);
                value(field, seen);
            }
        }
        self.messages.iter().for_each(|message| object(message, seen));
        self.tools.iter().flatten().for_each(|tool| value(tool, seen));
        object(&self.variables, seen);
    }
}

/// A value with each string, keys included, put through `change`.
fn mapped(json: &Json, change: &dyn Fn(&str) -> String) -> Json {
    match json {
        Json::String(text) => Json::String(change(text)),
        Json::Array(items) => items.iter().map(|item| mapped(item, change)).collect(),
        Json::Object(fields) => {
            // A key is looked up by the template; one that is a plain word is left as it is.
            let name = |key: &str| if is_word(key) { key.to_owned() } else { change(key) };
            Json::Object(fields.iter().map(|(key, value)| (name(key), mapped(value, change))).collect())
        }
        Json::Null | Json::Bool(_) | Json::Number(_) => json.clone(),
    }
}

fn is_word(text: &str) -> bool {
    text.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')
}

fn is_private(c: char) -> bool {
    matches!(c, '\u{e000}'..='\u{f8ff}' | '\u{f0000}'..='\u{ffffd}')
}

/// `{% generation %}` marks the assistant's text for training and prints nothing; it opens a scope.
fn without_generation_tags(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at);
        out.push_str(before);
        let inner = tag[2..].trim_start_matches(['-', '+']).trim_start();
        let mut swap = None;
        for (word, instead) in [("generation", "with"), ("endgeneration", "endwith")] {
            if let Some(after) = inner.strip_prefix(word)
                && after.trim_start().trim_start_matches(['-', '+']).starts_with("%}")
            {
                swap = Some((after, instead));
            }
        }
        if let Some((after, instead)) = swap {
            let sign = tag[2..].chars().next().filter(|c| matches!(c, '-' | '+'));
            out.push_str("{%");
            out.extend(sign);
            out.push(' ');
            out.push_str(instead);
            rest = after;
        } else {
            out.push_str("{%");
            rest = &tag[2..];
        }
    }
    out.push_str(rest);
    out
}

fn failure(error: &minijinja::Error) -> TemplateError {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(cause) = source {
        if let Some(Raised(message)) = cause.downcast_ref() {
            return TemplateError::Raised(message.clone());
        }
        source = cause.source();
    }
    if error.kind() == minijinja::ErrorKind::OutOfFuel {
        return TemplateError::TooLarge;
    }
    TemplateError::Failed(describe(error))
}

/// An error in one line.
fn describe(error: &minijinja::Error) -> String {
    let what = error.detail().map_or_else(|| error.kind().to_string(), str::to_owned);
    error.line().map_or_else(|| what.clone(), |line| format!("{what} (line {line})"))
}

/// A writer with a limit.
struct Bounded {
    bytes: Vec<u8>,
    limit: usize,
    full: bool,
}

impl io::Write for Bounded {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if buf.len() > self.limit - self.bytes.len() {
            self.full = true;
            return Err(io::Error::other("the rendering is too long"));
        }
        self.bytes.extend_from_slice(buf);
        Ok(buf.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;

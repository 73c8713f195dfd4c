//! The canonical request. Dialects translate to it; backends read nothing else.

use crate::Thought;
use indexmap::IndexMap;
use serde_json::Value;

/// A request for generated text, in canonical form.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct GenerateRequest {
    /// The model's id as the caller wrote it.
    pub model: String,
    /// Conversation or raw prompt.
    pub input: Input,
    /// Tools the model may call.
    pub tools: Vec<Tool>,
    /// Which of them it must call.
    pub tool_choice: ToolChoice,
    /// Whether one answer may hold several calls; `None` leaves it to the model.
    pub parallel_tool_calls: Option<bool>,
    /// What the answer's text must look like.
    pub response_format: ResponseFormat,
    /// How tokens are chosen; `None` takes the model's own default.
    pub sampling: Sampling,
    /// Most tokens of each answer, reasoning included; `None` is as many as fit, 0 reads the prompt only.
    pub max_tokens: Option<u32>,
    /// Texts that end an answer and are not part of it.
    pub stop: Vec<String>,
    /// Text that the answers are expected to be like; it changes no answer, only how soon it comes.
    pub prediction: Option<String>,
    /// Answers wanted; at least 1.
    pub choices: u32,
    /// Log-probabilities wanted for the answer's tokens: how many alternatives each (0: the chosen alone).
    pub logprobs: Option<u32>,
    /// The same for the prompt's tokens.
    pub prompt_logprobs: Option<u32>,
    /// Go on past the model's end token, for benches.
    pub ignore_eos: bool,
    /// How long the model should think, where it can.
    pub reasoning_effort: Option<ReasoningEffort>,
    /// Most tokens of thought, where the caller says; a wish, which models here pass over.
    pub reasoning_budget: Option<u32>,
    /// Whether the caller's dialect has a switch for thinking that the caller left alone: models here do not think then,
    /// and those of providers do as they are wont to.
    pub reasoning_unsaid: bool,
    /// Extra variables for the chat template.
    pub template_variables: IndexMap<String, Value>,
    /// The session this request belongs to, for affinity.
    pub session: Option<String>,
    /// Who of the caller's own users asks, as the caller calls them; providers want it against abuse.
    pub user: Option<String>,
    /// Keeps this caller's cached prefixes apart from all others'.
    pub cache_salt: Option<String>,
    /// Whether the caller reads the answer as it is made; who can do no better may then give it at once.
    pub stream: bool,
}

impl GenerateRequest {
    /// Whether the model should think, where the caller says: by an effort, or by the switches that templates have.
    #[must_use]
    pub fn thinks(&self) -> Option<bool> {
        if let Some(effort) = self.reasoning_effort {
            return Some(effort != ReasoningEffort::None);
        }
        ["enable_thinking", "thinking"].iter().find_map(|name| self.template_variables.get(*name)?.as_bool())
    }
}

/// What the model goes on from.
#[derive(Clone, Debug, PartialEq)]
pub enum Input {
    /// A conversation, rendered by the model's chat template.
    Chat(Vec<Message>),
    /// A prompt, taken as it is.
    Prompt(Prompt),
}

impl Default for Input {
    fn default() -> Self {
        Self::Chat(Vec::new())
    }
}

/// A raw prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum Prompt {
    /// Text, which may name control tokens: the caller writes the whole prompt.
    Text(String),
    /// Token ids.
    Tokens(Vec<u32>),
}

/// Who speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Role {
    System,
    Developer,
    User,
    Assistant,
    Tool,
}

impl Role {
    /// The role's name on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Developer => "developer",
            Self::User => "user",
            Self::Assistant => "assistant",
            Self::Tool => "tool",
        }
    }
}

/// One message of a conversation.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    /// Who speaks.
    pub role: Role,
    /// What is said.
    pub content: Content,
    /// The speaker's name, where the caller gave one.
    pub name: Option<String>,
    /// What the assistant thought before it spoke.
    pub reasoning: Option<String>,
    /// The same as the service wrote it down that thought it, which wants it back so. Models here read `reasoning`.
    pub thoughts: Vec<Thought>,
    /// Calls the assistant made.
    pub tool_calls: Vec<ToolCall>,
    /// The call that a tool message answers.
    pub tool_call_id: Option<String>,
    /// Where caches of providers should keep what stands before; models here keep everything.
    pub cache_marks: Vec<CacheMark>,
}

/// A mark in a message: what stands up to here is worth caching.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CacheMark {
    /// The part of the content behind which it stands; `None`: it stands behind the whole message, calls included.
    pub part: Option<usize>,
    /// For how long.
    pub keep: CacheFor,
}

/// How long a provider's cache should keep what stands before a mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheFor {
    /// Five minutes, the usual time.
    Minutes,
    /// An hour.
    Hour,
}

impl Message {
    /// A message of plain text.
    #[must_use]
    pub fn text(role: Role, text: impl Into<String>) -> Self {
        Self {
            role,
            content: Content(vec![Part::Text(text.into())]),
            name: None,
            reasoning: None,
            thoughts: Vec::new(),
            tool_calls: Vec::new(),
            tool_call_id: None,
            cache_marks: Vec::new(),
        }
    }
}

/// A message's content: parts in order.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Content(pub Vec<Part>);

impl Content {
    /// The text of all text parts, joined as they stand.
    #[must_use]
    pub fn joined_text(&self) -> String {
        self.0
            .iter()
            .filter_map(|part| if let Part::Text(text) = part { Some(text.as_str()) } else { None })
            .collect()
    }
}

/// A piece of content.
#[derive(Clone, Debug, PartialEq)]
pub enum Part {
    /// Text.
    Text(String),
    /// An image.
    Image {
        /// `data:` or `https:` URL.
        url: String,
        /// The caller's wish for resolution.
        detail: Option<String>,
    },
}

/// A tool the model may call.
#[derive(Clone, Debug, PartialEq)]
pub struct Tool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub description: Option<String>,
    /// JSON Schema of its arguments.
    pub parameters: Option<Value>,
    /// Whether arguments must obey the schema to the letter.
    pub strict: Option<bool>,
    /// Whether a provider's cache should keep the tools up to this one, and for how long.
    pub cache: Option<CacheFor>,
}

/// A call of a tool.
#[derive(Clone, Debug, PartialEq)]
pub struct ToolCall {
    /// Id that the tool's answer refers to.
    pub id: String,
    /// The tool's name.
    pub name: String,
    /// Arguments as JSON text.
    pub arguments: String,
}

/// Which tool the model must call.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ToolChoice {
    /// The model decides.
    #[default]
    Auto,
    /// None.
    None,
    /// At least one, whichever.
    Required,
    /// This one.
    Named(String),
}

/// What the answer's text must look like.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum ResponseFormat {
    /// Anything.
    #[default]
    Text,
    /// A JSON object.
    JsonObject,
    /// JSON that obeys a schema.
    JsonSchema {
        /// The schema's name, where the caller gave one.
        name: Option<String>,
        /// The schema.
        schema: Value,
        /// Whether it must be obeyed to the letter.
        strict: Option<bool>,
    },
    /// Text that matches a regular expression from end to end.
    Regex(String),
    /// Text that a grammar in Lark's notation derives from `start`.
    Lark(String),
}

/// How tokens are chosen. `None` leaves a value at the model's own default. `top_k` 0 keeps all tokens.
#[derive(Clone, Debug, Default, PartialEq)]
#[allow(missing_docs)]
pub struct Sampling {
    pub temperature: Option<f32>,
    pub top_k: Option<u32>,
    pub top_p: Option<f32>,
    pub min_p: Option<f32>,
    pub repetition_penalty: Option<f32>,
    pub frequency_penalty: Option<f32>,
    pub presence_penalty: Option<f32>,
    pub logit_bias: Vec<(u32, f32)>,
    pub seed: Option<u64>,
}

/// How long a reasoning model should think.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum ReasoningEffort {
    None,
    Minimal,
    Low,
    Medium,
    High,
}

impl ReasoningEffort {
    /// Its word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Minimal => "minimal",
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

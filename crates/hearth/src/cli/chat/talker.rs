//! Who answers: a server, or a model in this process; one form of answer for both.

use super::remote::Remote;
use crate::catalog::Catalog;
use crate::cli::serve::{backend, load_all};
use crate::config::Settings;
use anyhow::{Context, anyhow};
use futures::StreamExt;
use protocol::{Backend, Delta, FinishReason, GenerateRequest, Input, Message, ModelTask, Sampling, Usage};
use serving::Local;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the person asked for about all answers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Params {
    pub temperature: Option<f32>,
    pub max_tokens: Option<u32>,
    pub seed: Option<u64>,
}

/// What a piece of an answer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Thought,
    Text,
}

/// Less than this is no time to tell a speed from.
const SHORTEST: Duration = Duration::from_millis(5);

/// What is known after an answer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answer {
    pub usage: Usage,
    /// Until the first text.
    pub first: Duration,
    /// Until the end.
    pub total: Duration,
    /// Whether it ended at a limit of length.
    pub cut: bool,
}

impl Answer {
    /// Speed of the tokens after the first; `None` without any, or where they all came at once.
    pub fn tokens_per_second(&self) -> Option<f64> {
        let steps = self.usage.completion_tokens.checked_sub(1).filter(|steps| *steps > 0)?;
        let time = self.total.checked_sub(self.first).filter(|time| *time >= SHORTEST)?;
        Some(f64::from(steps) / time.as_secs_f64())
    }
}

/// Takes pieces of an answer as they come.
pub(super) type Sink<'a> = &'a mut dyn FnMut(Kind, &str) -> io::Result<()>;

/// Measures an answer while it comes.
pub(super) struct Stopwatch {
    start: Instant,
    first: Option<Duration>,
}

impl Stopwatch {
    #[allow(clippy::disallowed_methods, reason = "shown to a person, decides nothing")]
    pub fn start() -> Self {
        Self { start: Instant::now(), first: None }
    }

    pub fn text_came(&mut self) {
        let elapsed = self.start.elapsed();
        self.first.get_or_insert(elapsed);
    }

    pub fn stop(self, usage: Usage, cut: bool) -> Answer {
        let total = self.start.elapsed();
        Answer { usage, first: self.first.unwrap_or(total), total, cut }
    }
}

/// Who answers.
pub(super) enum Talker {
    /// A server.
    Remote(Remote),
    /// A model in this process.
    InProcess { local: Arc<Local>, model: String },
}

impl Talker {
    /// The model's id.
    pub fn model(&self) -> &str {
        match self {
            Self::Remote(remote) => &remote.model,
            Self::InProcess { model, .. } => model,
        }
    }

    /// Where it is.
    pub fn place(&self) -> String {
        match self {
            Self::Remote(remote) => format!("at {}", remote.url),
            Self::InProcess { .. } => "in this process".into(),
        }
    }

    /// The next answer of the conversation. Dropping the future cancels it.
    pub async fn answer(
        &self,
        messages: &[Message],
        params: &Params,
        sink: Sink<'_>,
    ) -> anyhow::Result<Answer> {
        match self {
            Self::Remote(remote) => remote.answer(messages, params, sink).await,
            Self::InProcess { local, model } => {
                let request = GenerateRequest {
                    model: model.clone(),
                    input: Input::Chat(messages.to_vec()),
                    sampling: Sampling {
                        temperature: params.temperature,
                        seed: params.seed,
                        ..Sampling::default()
                    },
                    max_tokens: params.max_tokens,
                    choices: 1,
                    ..GenerateRequest::default()
                };
                generate(&*backend(local), request, sink).await
            }
        }
    }

    /// Ends what was started for the conversation.
    pub async fn close(self) {
        if let Self::InProcess { local, .. } = self {
            local.shutdown(Duration::from_secs(1)).await;
        }
    }
}

async fn generate(backend: &dyn Backend, request: GenerateRequest, sink: Sink<'_>) -> anyhow::Result<Answer> {
    let mut stopwatch = Stopwatch::start();
    let mut deltas = backend.generate(request).await?;
    let (mut usage, mut cut) = (None, false);
    while let Some(delta) = deltas.next().await {
        match delta? {
            Delta::Reasoning { text, .. } => {
                stopwatch.text_came();
                sink(Kind::Thought, &text)?;
            }
            Delta::Text { text, .. } => {
                stopwatch.text_came();
                sink(Kind::Text, &text)?;
            }
            Delta::Finish { reason, .. } => cut = reason == FinishReason::Length,
            Delta::Usage(told) => usage = Some(told),
            Delta::Started { .. }
            | Delta::PromptLogprobs(_)
            | Delta::ToolCallStart { .. }
            | Delta::Thought { .. }
            | Delta::MalformedCall { .. }
            | Delta::ToolCallArguments { .. } => {}
        }
    }
    let usage = usage.ok_or_else(|| anyhow!("the answer was cut off"))?;
    Ok(stopwatch.stop(usage, cut))
}

/// Loads the settings' first model in this process.
pub(super) async fn load(settings: &Settings, catalog: &Catalog) -> anyhow::Result<Talker> {
    let local = load_all(settings, catalog).await?;
    let model = backend(&local)
        .models()
        .into_iter()
        .find(|model| model.task == ModelTask::TextGeneration)
        .context("this model makes vectors of text and cannot talk")?;
    Ok(Talker::InProcess { local, model: model.id })
}

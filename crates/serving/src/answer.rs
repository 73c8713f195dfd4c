//! From an engine's events to deltas: text, thoughts, calls, stop texts, log-probabilities, usage.
//!
//! Runs wherever the answer is read, not on the engine's thread. Invariant: per choice, the deltas' text is the
//! answer's text up to its first stop text; exactly one `Finish` per choice, one `Usage` and nothing after
//! it, or one error and nothing after it. Tokens past a stop text, or past the only call that is allowed, are neither
//! shown nor counted. Why an answer ended follows from its tokens alone: cut by a limit inside a call, `length`; else any call, `tool_calls`;
//! else what ended it.

mod choice;

pub(crate) use choice::CallIds;

use crate::inbox::{Message, Ticket, unavailable};
use crate::memory::{PrefixHash, RenderedPrompt, TurnMemory};
use crate::metrics::{Metrics, Outcome};
use crate::tools::AnswerParser;
use base::Namespace;
use choice::{Choice, Fed};
use engine::{EventKind, TokenChoice, TokenLogprobs};
use futures::Stream;
use protocol::{Delta, Error, FinishReason, Logprobs, TokenLogprob, Usage};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokenizer::Tokenizer;
use tokio::sync::mpsc;

/// What an answer is remembered by.
pub(crate) struct Remember {
    pub memory: Arc<TurnMemory>,
    pub namespace: Namespace,
    pub prefix: PrefixHash,
    pub prompt: RenderedPrompt,
}

/// An answer as it is made. Dropping it cancels the request.
pub(crate) struct Answer {
    events: mpsc::Receiver<Message>,
    ticket: Ticket,
    tokenizer: Tokenizer,
    metrics: Arc<Metrics>,
    remember: Option<Remember>,
    choices: Vec<Choice>,
    usage: Usage,
    /// The prompt's first token, where its log-probabilities are wanted and none was sent yet.
    first_of_prompt: Option<u32>,
    ready: VecDeque<Delta>,
    /// Comes after all that is ready.
    failed: Option<Error>,
    shown: Arc<[u32]>,
    over: bool,
}

/// How to make an [`Answer`].
pub(crate) struct Parts<'a> {
    pub events: mpsc::Receiver<Message>,
    pub ticket: Ticket,
    pub tokenizer: Tokenizer,
    pub metrics: Arc<Metrics>,
    pub remember: Option<Remember>,
    pub choices: u32,
    pub stop: &'a [String],
    /// Control tokens that mark an answer's parts.
    pub shown: Arc<[u32]>,
    /// Makes the parser of an answer; `None` where answers are plain text.
    pub parser: Option<&'a dyn Fn() -> AnswerParser>,
    /// Whether a grammar says what answers may be.
    pub constrained: bool,
    pub call_ids: CallIds,
    pub prompt_tokens: u32,
    /// The prompt's first token, where the prompt's log-probabilities are wanted.
    pub first_of_prompt: Option<u32>,
}

impl Answer {
    pub fn new(parts: Parts<'_>) -> Self {
        let choice = |index| {
            let detokenizer = match parts.parser {
                Some(_) => parts.tokenizer.detokenizer_showing(Arc::clone(&parts.shown)),
                None => parts.tokenizer.detokenizer(),
            };
            let parser = parts.parser.map(|make| make());
            Choice::new(index, parts.call_ids, detokenizer, parser, parts.constrained, parts.stop)
        };
        Self {
            choices: (0..parts.choices).map(choice).collect(),
            events: parts.events,
            ticket: parts.ticket,
            tokenizer: parts.tokenizer,
            metrics: parts.metrics,
            remember: parts.remember,
            usage: Usage { prompt_tokens: parts.prompt_tokens, ..Usage::default() },
            first_of_prompt: parts.first_of_prompt,
            ready: VecDeque::new(),
            failed: None,
            shown: parts.shown,
            over: false,
        }
    }

    fn take(&mut self, event: EventKind) {
        match event {
            EventKind::Started { cached } => {
                self.usage.cached_tokens = cached.0;
                let Usage { prompt_tokens, cached_tokens, .. } = self.usage;
                self.ready.push_back(Delta::Started { prompt_tokens, cached_tokens });
            }
            EventKind::PromptLogprobs { entries, .. } => self.prompt_logprobs(&entries),
            EventKind::Token { choice, id, logprobs } => {
                self.prompt_logprobs(&[]);
                self.token(choice, id, logprobs);
            }
            EventKind::Predicted { accepted, rejected } => {
                self.usage.accepted_prediction_tokens += accepted.0;
                self.usage.rejected_prediction_tokens += rejected.0;
            }
            EventKind::Finished { choice, reason } => {
                self.prompt_logprobs(&[]);
                match reason {
                    engine::FinishReason::Stop => {
                        // The stop token, which is not sent.
                        self.usage.completion_tokens += u32::from(!self.choices[choice as usize].finished);
                        self.finished(choice, FinishReason::Stop);
                    }
                    engine::FinishReason::Complete => self.finished(choice, FinishReason::Stop),
                    engine::FinishReason::Length => self.finished(choice, FinishReason::Length),
                    engine::FinishReason::Failed => self.fail(unavailable("the engine failed; try again")),
                    engine::FinishReason::ConstraintFailed => self.fail(Error::new(
                        protocol::ErrorKind::InvalidRequest,
                        "the answer could not go on: its grammar became too complex here, or logit_bias \
                         bans all that it allows",
                    )),
                }
            }
            EventKind::Done(_) => self.ticket.is_over(),
        }
    }

    fn prompt_logprobs(&mut self, entries: &[TokenLogprobs]) {
        // Nothing stands before the first token: its entry says so.
        let first = self.first_of_prompt.take().map(|id| Logprobs {
            chosen: token_logprob(&self.tokenizer, &TokenChoice { id, logprob: f32::NAN }),
            top: Vec::new(),
        });
        let all: Vec<Logprobs> =
            first.into_iter().chain(entries.iter().map(|entry| logprobs(&self.tokenizer, entry))).collect();
        if !all.is_empty() {
            self.ready.push_back(Delta::PromptLogprobs(all));
        }
    }

    fn token(&mut self, index: u32, id: u32, entry: Option<TokenLogprobs>) {
        let choice = &mut self.choices[index as usize];
        if choice.finished {
            return;
        }
        self.usage.completion_tokens += 1;
        let entry = entry.map(|entry| logprobs(&self.tokenizer, &entry));
        let stop = match choice.token(id, entry, &mut self.ready) {
            Fed::On => return,
            Fed::Stopped(stop) => Some(stop),
            Fed::Called => None,
        };
        self.ticket.finish_choice(index);
        self.end(index, FinishReason::Stop, stop);
    }

    /// The engine has ended an answer.
    fn finished(&mut self, index: u32, reason: FinishReason) {
        let choice = &mut self.choices[index as usize];
        if choice.finished {
            return;
        }
        match choice.finish(reason == FinishReason::Length, &mut self.ready) {
            (_, Fed::Stopped(stop)) => self.end(index, FinishReason::Stop, Some(stop)),
            // A model that ends by itself inside a call was not cut: what it said came back as text.
            (ended, Fed::On) if ended.open && reason == FinishReason::Length => {
                self.close_choice(index, reason, None);
            }
            (_, Fed::On | Fed::Called) => self.end(index, reason, None),
        }
    }

    /// An answer ends at a stop text, at its only call or where the engine ended it, and not cut inside a call.
    fn end(&mut self, index: u32, reason: FinishReason, stop_text: Option<String>) {
        if self.choices[index as usize].calls > 0 {
            self.close_choice(index, FinishReason::ToolCalls, None);
        } else {
            self.close_choice(index, reason, stop_text);
        }
    }

    fn close_choice(&mut self, index: u32, reason: FinishReason, stop_text: Option<String>) {
        let choice = &mut self.choices[index as usize];
        choice.finished = true;
        self.usage.reasoning_tokens += choice.reasoning_tokens;
        self.keep(index as usize);
        self.ready.push_back(Delta::Finish { choice: index, reason, stop_text });
        if self.choices.iter().all(|choice| choice.finished) {
            self.ready.push_back(Delta::Usage(self.usage));
            self.close(Outcome::Finished);
        }
    }

    /// Remembers an answer for the next turn.
    fn keep(&self, index: usize) {
        if let Some(Remember { memory, namespace, prefix, prompt }) = &self.remember {
            let choice = &self.choices[index];
            // Nothing is found of an answer that does not begin with its text.
            memory.remember(&self.tokenizer, *namespace, *prefix, &choice.text, &choice.ids);
            if !choice.is_plain() {
                memory.remember_whole(&self.tokenizer, *namespace, prompt, &self.shown, &choice.ids);
            }
        }
    }

    fn fail(&mut self, error: Error) {
        if !self.over {
            self.failed = Some(error);
            self.close(Outcome::Failed);
        }
    }

    fn close(&mut self, outcome: Outcome) {
        self.over = true;
        self.metrics.ended(outcome);
    }
}

impl Stream for Answer {
    type Item = Result<Delta, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(item) = this.ready.pop_front() {
                return Poll::Ready(Some(Ok(item)));
            }
            if let Some(error) = this.failed.take() {
                return Poll::Ready(Some(Err(error)));
            }
            if this.over {
                return Poll::Ready(None);
            }
            match this.events.poll_recv(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Some(Message::Event(event))) => this.take(event),
                Poll::Ready(Some(Message::Failed(error))) => {
                    this.ticket.is_over();
                    this.fail(error);
                }
                Poll::Ready(None) => this.fail(unavailable("the engine went away; try again")),
            }
        }
    }
}

impl Drop for Answer {
    fn drop(&mut self) {
        if !self.over {
            // What was shown may come back as history.
            for index in 0..self.choices.len() {
                if !self.choices[index].finished {
                    self.keep(index);
                }
            }
            self.metrics.ended(Outcome::Cancelled);
        }
    }
}

fn logprobs(tokenizer: &Tokenizer, entry: &TokenLogprobs) -> Logprobs {
    Logprobs {
        chosen: token_logprob(tokenizer, &entry.chosen),
        top: entry.top.iter().map(|choice| token_logprob(tokenizer, choice)).collect(),
    }
}

fn token_logprob(tokenizer: &Tokenizer, choice: &TokenChoice) -> TokenLogprob {
    let bytes = tokenizer.token_bytes(choice.id).to_vec();
    let token = String::from_utf8_lossy(&bytes).into_owned();
    TokenLogprob { token, bytes, id: choice.id, logprob: choice.logprob }
}

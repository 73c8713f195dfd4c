//! From an engine's events to deltas: text, stop texts, log-probabilities, usage.
//!
//! Runs wherever the answer is read, not on the engine's thread. Invariant: per choice, the deltas' text is the
//! decoded answer up to its first stop text; exactly one `Finish` per choice, one `Usage` and nothing after
//! it, or one error and nothing after it. Tokens past a stop text are neither shown nor counted.

use crate::inbox::{Message, Ticket, unavailable};
use crate::memory::{PrefixHash, TurnMemory};
use crate::metrics::{Metrics, Outcome};
use crate::stop::{Matched, StopMatcher};
use base::Namespace;
use engine::{EventKind, TokenChoice, TokenLogprobs};
use futures::Stream;
use protocol::{Delta, Error, FinishReason, Logprobs, TokenLogprob, Usage};
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokenizer::{Detokenizer, Tokenizer};
use tokio::sync::mpsc;

/// What an answer is remembered by.
pub(crate) struct Remember {
    pub memory: Arc<TurnMemory>,
    pub namespace: Namespace,
    pub prefix: PrefixHash,
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
    ready: VecDeque<Result<Delta, Error>>,
    over: bool,
}

struct Choice {
    detokenizer: Detokenizer,
    stop: StopMatcher,
    ids: Vec<u32>,
    /// Text that was delivered.
    text: String,
    /// Bytes of text that the detokenizer has given.
    decoded: usize,
    /// Log-probabilities that wait for their token's text, with where that begins and ends.
    waiting: VecDeque<(usize, usize, Logprobs)>,
    finished: bool,
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
    pub prompt_tokens: u32,
    /// The prompt's first token, where the prompt's log-probabilities are wanted.
    pub first_of_prompt: Option<u32>,
}

impl Answer {
    pub fn new(parts: Parts<'_>) -> Self {
        let choice = |_| Choice {
            detokenizer: parts.tokenizer.detokenizer(),
            stop: StopMatcher::new(parts.stop),
            ids: Vec::new(),
            text: String::new(),
            decoded: 0,
            waiting: VecDeque::new(),
            finished: false,
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
            over: false,
        }
    }

    fn take(&mut self, event: EventKind) {
        match event {
            EventKind::Started { cached } => {
                self.usage.cached_tokens = cached.0;
                let Usage { prompt_tokens, cached_tokens, .. } = self.usage;
                self.ready.push_back(Ok(Delta::Started { prompt_tokens, cached_tokens }));
            }
            EventKind::PromptLogprobs { entries, .. } => self.prompt_logprobs(&entries),
            EventKind::Token { choice, id, logprobs } => {
                self.prompt_logprobs(&[]);
                self.token(choice, id, logprobs);
            }
            EventKind::Finished { choice, reason } => {
                self.prompt_logprobs(&[]);
                match reason {
                    engine::FinishReason::Stop => self.finished(choice, FinishReason::Stop),
                    engine::FinishReason::Length => self.finished(choice, FinishReason::Length),
                    engine::FinishReason::Failed => self.fail(unavailable("the engine failed; try again")),
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
            self.ready.push_back(Ok(Delta::PromptLogprobs(all)));
        }
    }

    fn token(&mut self, index: u32, id: u32, entry: Option<TokenLogprobs>) {
        let choice = &mut self.choices[index as usize];
        if choice.finished {
            return;
        }
        self.usage.completion_tokens += 1;
        choice.ids.push(id);
        let piece = choice.detokenizer.push(id);
        let begin = choice.decoded;
        choice.decoded += piece.len();
        if let Some(entry) = entry {
            choice.waiting.push_back((begin, choice.decoded, logprobs(&self.tokenizer, &entry)));
        }
        match choice.stop.push(piece) {
            Matched::No(text) => self.ready.extend(choice.deliver(index, text, false).map(Ok)),
            Matched::Stop(text) => {
                self.ready.extend(choice.deliver(index, text, true).map(Ok));
                self.ticket.finish_choice(index);
                self.end(index, FinishReason::Stop);
            }
        }
    }

    /// The engine has ended an answer.
    fn finished(&mut self, index: u32, mut reason: FinishReason) {
        let choice = &mut self.choices[index as usize];
        if choice.finished {
            return;
        }
        if reason == FinishReason::Stop {
            // The stop token, which is not sent.
            self.usage.completion_tokens += 1;
        }
        let rest = choice.detokenizer.finish();
        choice.decoded += rest.len();
        let text = match choice.stop.push(rest) {
            Matched::No(text) => text + &choice.stop.finish(),
            Matched::Stop(text) => {
                reason = FinishReason::Stop;
                text
            }
        };
        self.ready.extend(choice.deliver(index, text, true).map(Ok));
        self.end(index, reason);
    }

    fn end(&mut self, index: u32, reason: FinishReason) {
        self.choices[index as usize].finished = true;
        self.keep(index as usize);
        self.ready.push_back(Ok(Delta::Finish { choice: index, reason, stop_text: None }));
        if self.choices.iter().all(|choice| choice.finished) {
            self.ready.push_back(Ok(Delta::Usage(self.usage)));
            self.close(Outcome::Finished);
        }
    }

    /// Remembers an answer for the next turn.
    fn keep(&self, index: usize) {
        if let Some(Remember { memory, namespace, prefix }) = &self.remember {
            let choice = &self.choices[index];
            memory.remember(&self.tokenizer, *namespace, *prefix, &choice.text, &choice.ids);
        }
    }

    fn fail(&mut self, error: Error) {
        if !self.over {
            self.ready.push_back(Err(error));
            self.close(Outcome::Failed);
        }
    }

    fn close(&mut self, outcome: Outcome) {
        self.over = true;
        self.metrics.ended(outcome);
    }
}

impl Choice {
    /// A delta with this text and the log-probabilities that belong to it. The `last` delta takes those of
    /// all tokens that begin before its end.
    fn deliver(&mut self, index: u32, text: String, last: bool) -> Option<Delta> {
        self.text.push_str(&text);
        let shown = self.text.len();
        let mut logprobs = Vec::new();
        while let Some((begin, end, _)) = self.waiting.front() {
            let ended = *end <= shown;
            let cut = last && (*begin < shown || shown == self.decoded);
            if !ended && !cut {
                break;
            }
            logprobs.extend(self.waiting.pop_front().map(|(_, _, entry)| entry));
        }
        let something = !text.is_empty() || !logprobs.is_empty();
        something.then_some(Delta::Text { choice: index, text, logprobs })
    }
}

impl Stream for Answer {
    type Item = Result<Delta, Error>;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = self.get_mut();
        loop {
            if let Some(item) = this.ready.pop_front() {
                return Poll::Ready(Some(item));
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

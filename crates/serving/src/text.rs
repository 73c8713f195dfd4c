//! A loaded language model: takes a canonical request, gives a stream of deltas.

use crate::answer::{Answer, CallIds, Parts, Remember};
use crate::aside::Aside;
use crate::grammar::Grammars;
use crate::inbox::{Inbox, Submission, Ticket, unavailable};
use crate::memory::{PrefixHash, RenderedPrompt, TurnMemory};
use crate::metrics::{Metrics, Outcome};
use crate::prompt;
use crate::script::Cues;
use crate::template::ChatTemplate;
use crate::tools::{AnswerParser, Ask, Family, Thinking};
use base::{Clock, Namespace, RequestId, Tokens, rng};
use futures::StreamExt as _;
use models::checkpoint::GenerationDefaults;
use protocol::{DeltaStream, Error, ErrorKind, GenerateRequest, Token, TokenizeRequest};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use tokenizer::{Piece, Specials, Tokenizer};
use tokio::sync::{mpsc, oneshot};

/// See the module. All of it is set when the model is loaded.
pub(crate) struct TextModel {
    pub tokenizer: Tokenizer,
    /// `Err` says why there is none.
    pub template: Result<ChatTemplate, String>,
    /// How it writes calls and thoughts.
    pub family: &'static Family,
    /// Control tokens of the family's marks, which answers show.
    pub shown: Arc<[u32]>,
    pub grammars: Grammars,
    pub defaults: GenerationDefaults,
    pub stop_tokens: Vec<u32>,
    pub vocab: u32,
    pub context: Tokens,
    pub memory: Arc<TurnMemory>,
    pub inbox: Arc<Inbox>,
    /// Where prompts and texts are tokenised that no answer follows.
    pub aside: Aside,
    pub metrics: Arc<Metrics>,
    pub clock: Arc<dyn Clock>,
    /// Makes namespaces of cache salts; the keys are this process's own.
    pub salts: RandomState,
    /// Of a script's model: which turn answers a request, and whether grammars hold for it.
    pub cues: Option<Arc<Cues>>,
}

/// Deltas that wait for a slow reader where each holds many log-probabilities, written out: two KiB a token. Where they
/// do not, a delta is about as large as the event it is made of, and all of an answer's may wait.
const AHEAD: usize = 4096;

/// A request on its way, and what its answer needs.
struct Prepared {
    request: engine::Request,
    prefix: PrefixHash,
    rendered: Option<RenderedPrompt>,
    thinking: Thinking,
    constrained: bool,
    /// Most events it may produce.
    events: usize,
    call_ids: CallIds,
}

impl TextModel {
    /// Answers a request. `id` is unique in this process.
    pub async fn generate(
        self: Arc<Self>,
        id: RequestId,
        request: GenerateRequest,
    ) -> Result<DeltaStream, Error> {
        let metrics = Arc::clone(&self.metrics);
        let result = self.start(id, request).await;
        if let Err(error) = &result {
            metrics.ended(match error.kind {
                ErrorKind::Overloaded | ErrorKind::Unavailable => Outcome::Overloaded,
                _ => Outcome::Refused,
            });
        }
        result
    }

    /// Tokens of the prompt that a request would make.
    pub async fn count(self: Arc<Self>, request: GenerateRequest) -> Result<u32, Error> {
        let count = self.with_prompt(request, |_, ids| Tokens::from(ids.len()).0);
        count.await
    }

    /// The prompt that a request would make.
    pub async fn prompt(self: Arc<Self>, request: GenerateRequest) -> Result<Vec<Token>, Error> {
        self.with_prompt(request, |this, ids| this.shown(ids)).await
    }

    async fn with_prompt<T: Send + 'static>(
        self: Arc<Self>,
        request: GenerateRequest,
        then: impl FnOnce(&Self, Vec<u32>) -> T + Send + 'static,
    ) -> Result<T, Error> {
        let this = Arc::clone(&self);
        let made = self.aside.run(move || {
            prompt::check(&request)?;
            let namespace = this.namespace(&request);
            let made = prompt::make(&request, &this.prompt_model(), namespace, this.clock.unix_seconds())?;
            Ok(then(&this, made.ids))
        });
        made.await
    }

    /// The tokens of a text.
    pub async fn tokenize(self: Arc<Self>, request: TokenizeRequest) -> Result<Vec<Token>, Error> {
        let this = Arc::clone(&self);
        let tokens = self.aside.run(move || {
            let ids = this.tokenizer.encode(&[Piece::Trusted(&request.text)], None).unwrap_or_default();
            Ok(this.shown(if request.add_special { this.tokenizer.add_special(ids) } else { ids }))
        });
        tokens.await
    }

    /// Tokens with their texts.
    fn shown(&self, ids: Vec<u32>) -> Vec<Token> {
        let text = |id| String::from_utf8_lossy(self.tokenizer.token_bytes(id)).into_owned();
        ids.into_iter().map(|id| Token { id, text: text(id) }).collect()
    }

    /// The text of tokens, control tokens included.
    pub fn detokenize(&self, ids: &[u32]) -> Result<String, Error> {
        let size = self.tokenizer.vocab_size();
        if let Some(i) = ids.iter().position(|id| *id >= size) {
            let message = format!("token {} is not in this model's vocabulary of {size} tokens", ids[i]);
            return Err(Error::invalid(format!("tokens[{i}]"), message));
        }
        Ok(self.tokenizer.decode(ids, Specials::Show))
    }

    fn prompt_model(&self) -> prompt::Model<'_> {
        prompt::Model {
            tokenizer: &self.tokenizer,
            template: self.template.as_ref().map_err(String::as_str),
            family: self.family,
            memory: &self.memory,
            vocab: self.vocab,
            context: self.context,
        }
    }

    async fn start(self: Arc<Self>, id: RequestId, request: GenerateRequest) -> Result<DeltaStream, Error> {
        let ticket = self.inbox.ticket(id)?;
        let this = Arc::clone(&self);
        let at = self.clock.now();
        // The ticket goes along: a caller that leaves cannot end the work, which must not pile up unseen.
        let prepared = tokio::task::spawn_blocking(move || (this.prepare(id, &request), request, ticket));
        let (prepared, request, mut ticket) =
            prepared.await.map_err(|_| Error::new(ErrorKind::Internal, "preparing the prompt failed"))?;
        let Prepared { request: submitted, prefix, rendered, thinking, constrained, events, call_ids } =
            prepared?;
        let (out, received) = mpsc::channel(events);
        let prompt_tokens = Tokens::from(submitted.prompt.len()).0;
        let first_of_prompt = submitted.prompt_logprobs.and_then(|_| submitted.prompt.first().copied());
        let namespace = submitted.namespace;
        let (accepted, answer) = oneshot::channel();
        ticket.submit(Submission { request: submitted, out, accepted, at });
        accept(&mut ticket, answer).await?;
        let ask = ask(&request, thinking, constrained);
        let (fresh, single) = (self.family.parser(&ask), ask.is_single());
        let parser: &dyn Fn() -> AnswerParser = &|| fresh.clone();
        let answer = Answer::new(Parts {
            events: received,
            ticket,
            tokenizer: self.tokenizer.clone(),
            metrics: Arc::clone(&self.metrics),
            shown: Arc::clone(&self.shown),
            // What follows a raw prompt is text, whatever it says.
            parser: rendered.is_some().then_some(parser),
            constrained,
            call_ids,
            remember: rendered.map(|prompt| Remember {
                memory: Arc::clone(&self.memory),
                namespace,
                prefix,
                prompt,
            }),
            choices: request.choices,
            stop: &request.stop,
            prompt_tokens,
            first_of_prompt,
        });
        // Stop texts and only calls end an answer early, which must not wait for a slow reader.
        let deltas = if request.logprobs.is_some() { AHEAD } else { events };
        Ok(if request.stop.is_empty() && !single { answer.boxed() } else { read_ahead(answer, deltas) })
    }

    fn prepare(&self, id: RequestId, request: &GenerateRequest) -> Result<Prepared, Error> {
        prompt::check(request)?;
        let namespace = self.namespace(request);
        let chance =
            rng::mix(id.0 ^ rng::mix(self.clock.unix_seconds() ^ self.clock.now().as_nanos() as u64));
        let sampling = prompt::sampling(request, &self.defaults, self.vocab, chance)?;
        let cue = self.cues.as_ref().map(|cues| cues.choose(request)).transpose()?;
        let made = prompt::make(request, &self.prompt_model(), namespace, self.clock.unix_seconds())?;
        let prompt::Made { ids: prompt, rendered, thinking } = made;
        // A script may say what no grammar lets through, to see what comes of it.
        let free = cue.as_ref().is_some_and(|cue| !cue.constrained);
        let constraints = match self.family.rule(&ask(request, thinking, true)) {
            Some(_) if free => Vec::new(),
            None => Vec::new(),
            Some(rule) => {
                let compiled = self.grammars.compile(&rule).map_err(|error| prompt::whose(error, request))?;
                (0..request.choices).map(|_| compiled.constraint()).collect()
            }
        };
        if let (Some(cues), Some(cue)) = (&self.cues, cue) {
            cues.give(cue, &prompt);
        }
        let room = self.context - Tokens::from(prompt.len());
        let max_tokens = request.max_tokens.map_or(room, |most| room.min(Tokens(most)));
        let prediction = self.prediction(request);
        // A step tells what became of its draft before its first token.
        let per_choice = max_tokens.get() * (1 + usize::from(!prediction.is_empty())) + 2;
        let reports = request.prompt_logprobs.map_or(0, |_| prompt.len());
        Ok(Prepared {
            prefix: PrefixHash::of(&prompt),
            rendered,
            thinking,
            constrained: !constraints.is_empty(),
            call_ids: CallIds(chance),
            events: (request.choices as usize).saturating_mul(per_choice).saturating_add(reports + 4),
            request: engine::Request {
                id,
                namespace,
                prompt,
                sampling,
                choices: request.choices,
                max_tokens,
                stop_tokens: self.stop_tokens.clone(),
                ignore_eos: request.ignore_eos,
                logprobs: request.logprobs,
                prompt_logprobs: request.prompt_logprobs,
                constraints,
                prediction,
            },
        })
    }

    /// The tokens of the predicted answer; none where it is longer than any answer can be.
    fn prediction(&self, request: &GenerateRequest) -> Vec<u32> {
        let Some(text) = &request.prediction else { return Vec::new() };
        let limit = Some(self.context.get());
        self.tokenizer.encode(&[Piece::Untrusted(text)], limit).unwrap_or_default()
    }

    fn namespace(&self, request: &GenerateRequest) -> Namespace {
        // 0 is the namespace of requests without a salt.
        request
            .cache_salt
            .as_ref()
            .map_or(Namespace::default(), |salt| Namespace(self.salts.hash_one(salt).max(1)))
    }
}

/// What a request asks of each of its answers.
fn ask(request: &GenerateRequest, thinking: Thinking, constrained: bool) -> Ask<'_> {
    Ask {
        tools: &request.tools,
        choice: &request.tool_choice,
        parallel: request.parallel_tool_calls,
        format: &request.response_format,
        thinking,
        constrained,
    }
}

/// Waits for the engine's word on a request.
async fn accept(ticket: &mut Ticket, answer: oneshot::Receiver<Result<(), Error>>) -> Result<(), Error> {
    let answer =
        answer.await.unwrap_or_else(|_| Err(unavailable("the engine failed or is going away; try again")));
    if answer.is_err() {
        ticket.is_over();
    }
    answer
}

/// Reads an answer in a task of its own, at most so many deltas ahead. The task ends when the reader is gone.
fn read_ahead(mut answer: Answer, deltas: usize) -> DeltaStream {
    let (out, received) = mpsc::channel(deltas);
    tokio::spawn(async move {
        loop {
            let delta = tokio::select! {
                biased;
                () = out.closed() => return,
                delta = answer.next() => delta,
            };
            let Some(delta) = delta else { return };
            if out.send(delta).await.is_err() {
                return;
            }
        }
    });
    futures::stream::unfold(received, |mut received| async move { Some((received.recv().await?, received)) })
        .boxed()
}

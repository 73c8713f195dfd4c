//! A request in flight and its sequences.
//!
//! A sequence is a run of tokens of which the first `computed` have their KV in pages. Each step runs the
//! rows `[computed, computed + planned)`; that one primitive serves prompts, single decodes, forced tokens, drafts
//! and the recomputation after preemption. Rows past the tokens are those of a draft. The row of token `i` gives the logits of token `i + 1`: they
//! are wanted where token `i + 1` must be chosen, or is known but its log-probability is still owed.
//!
//! ```text
//! [0, prompt)            prompt
//! [prompt, tokens.len()) answer
//! [owed, tokens.len())   tokens that are known but not reported yet, for want of their log-probability
//! ```

use crate::draft::Drafting;
use crate::memory::PageTable;
use crate::{Constraint, FinishReason, Request, Sampling, Usage};
use base::{Namespace, RequestId, Tokens};

/// Order of arrival: of the request, then of the choice.
pub(crate) type Arrival = (u64, u32);

/// Nothing is owed.
pub(crate) const NEVER: usize = usize::MAX;

/// One answer in the making.
pub(crate) struct Sequence {
    /// Slot of its request.
    pub slot: usize,
    pub arrival: Arrival,
    pub namespace: Namespace,
    /// Prompt and answer.
    pub tokens: Vec<u32>,
    /// Tokens of the prompt.
    pub prompt: usize,
    /// It ends when it has this many tokens.
    pub limit: usize,
    /// Tokens whose KV is in the pages.
    pub computed: usize,
    /// Rows it has in the step that is planned.
    pub planned: usize,
    /// First token whose log-probability has to be reported and was not yet; `NEVER` if none will be.
    pub owed: usize,
    /// Set once no token will follow.
    pub ending: Option<FinishReason>,
    pub table: PageTable,
    pub constraint: Option<Box<dyn Constraint>>,
    pub drafting: Drafting,
}

impl Sequence {
    pub fn choice(&self) -> u32 {
        self.arrival.1
    }

    /// Rows are needed up to here: the last token of an ended answer leads nowhere.
    pub fn target(&self) -> usize {
        self.tokens.len() - usize::from(self.ending.is_some() && self.tokens.len() > self.prompt)
    }

    /// Rows still to compute.
    pub fn remaining(&self) -> usize {
        self.target() - self.computed
    }

    /// Whether the next step computes one token only and then chooses the next.
    pub fn decodes(&self) -> bool {
        self.remaining() == 1
    }

    /// Whether the step that is planned may give it rows of a prompt, and has not yet.
    pub fn wants_prompt_rows(&self) -> bool {
        self.planned == 0 && !self.decodes()
    }

    /// Most tokens that may be drafted: one more is chosen after them, and that may be the last.
    pub fn draftable(&self) -> usize {
        if self.ending.is_some() { 0 } else { self.limit.saturating_sub(self.tokens.len() + 1) }
    }

    /// Whether the logits after token `i` have to be reported for a known token.
    pub fn reports(&self, i: usize) -> bool {
        i + 1 >= self.owed && i + 1 < self.tokens.len()
    }

    /// Whether the next token has to be chosen from the logits after token `i`.
    pub fn chooses(&self, i: usize) -> bool {
        i + 1 == self.tokens.len() && self.ending.is_none()
    }

    /// Most tokens that may come from the prefix cache: one is always computed, and so is each whose
    /// logits are owed.
    pub fn reusable(&self) -> usize {
        self.target().min(self.owed).saturating_sub(1)
    }

    /// Whether everything has been computed and reported.
    pub fn is_done(&self) -> bool {
        self.ending.is_some() && self.computed >= self.prompt && self.owed >= self.tokens.len()
    }
}

/// A request in flight.
pub(crate) struct InFlight {
    pub id: RequestId,
    pub sampling: Sampling,
    pub stop_tokens: Vec<u32>,
    pub ignore_eos: bool,
    pub logprobs: Option<u32>,
    pub prompt_logprobs: Option<u32>,
    /// By choice; taken when the choice's sequence is made.
    pub constraints: Vec<Option<Box<dyn Constraint>>>,
    pub usage: Usage,
    pub arrival: u64,
    /// It has been admitted.
    pub started: bool,
    /// The sequences of the further choices have been made.
    pub spawned: bool,
    /// By choice.
    pub finished: Vec<bool>,
}

impl InFlight {
    /// Takes a request in and makes its first sequence, which may have `context` tokens.
    pub fn new(request: Request, slot: usize, arrival: u64, context: usize) -> (Self, Sequence) {
        let prompt = request.prompt.len();
        let limit = prompt.saturating_add(request.max_tokens.get()).min(context);
        let constraints = request.constraints.into_iter().map(Some).collect();
        let drafting = Drafting::new(&request.prompt, &request.prediction);
        let mut this = Self {
            id: request.id,
            sampling: request.sampling,
            stop_tokens: request.stop_tokens,
            ignore_eos: request.ignore_eos,
            logprobs: request.logprobs,
            prompt_logprobs: request.prompt_logprobs,
            constraints,
            usage: Usage { prompt: Tokens::from(prompt), ..Usage::default() },
            arrival,
            started: false,
            spawned: request.choices == 1,
            finished: vec![false; request.choices as usize],
        };
        let mut first = Sequence {
            slot,
            arrival: (arrival, 0),
            namespace: request.namespace,
            tokens: request.prompt,
            prompt,
            limit,
            computed: 0,
            planned: 0,
            owed: this.owed_after_prompt(prompt),
            ending: (limit == prompt).then_some(FinishReason::Length),
            table: PageTable::default(),
            constraint: this.take_constraint(0),
            drafting,
        };
        // The first token has no log-probability; a prompt of one token owes nothing.
        if this.prompt_logprobs.is_some() && prompt > 1 {
            first.owed = 1;
        }
        (this, first)
    }

    /// The sequence of a further choice over the prompt of the first.
    pub fn sibling(&mut self, first: &Sequence, choice: u32) -> Sequence {
        Sequence {
            slot: first.slot,
            arrival: (self.arrival, choice),
            namespace: first.namespace,
            tokens: first.tokens[..first.prompt].to_vec(),
            prompt: first.prompt,
            limit: first.limit,
            computed: 0,
            planned: 0,
            owed: self.owed_after_prompt(first.prompt),
            ending: (first.limit == first.prompt).then_some(FinishReason::Length),
            table: PageTable::default(),
            constraint: self.take_constraint(choice),
            drafting: first.drafting.sibling(),
        }
    }

    /// What `Sequence::owed` is once the prompt's log-probabilities are reported.
    pub fn owed_after_prompt(&self, prompt: usize) -> usize {
        if self.logprobs.is_some() { prompt } else { NEVER }
    }

    /// Whether a token ends an answer.
    pub fn stops_at(&self, token: u32) -> bool {
        !self.ignore_eos && self.stop_tokens.contains(&token)
    }

    fn take_constraint(&mut self, choice: u32) -> Option<Box<dyn Constraint>> {
        self.constraints.get_mut(choice as usize).and_then(Option::take)
    }
}

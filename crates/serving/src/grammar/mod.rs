//! Grammars: what an answer may be, compiled for one model's vocabulary, as the engine's constraints.

mod rule;

pub(crate) use rule::Rule;

use std::sync::Arc;
use tokenizer::Tokenizer;

/// The grammars of one model.
pub(crate) struct Grammars {
    tokenizer: Tokenizer,
    vocab: u32,
    stop_tokens: Vec<u32>,
}

impl Grammars {
    /// Grammars over this vocabulary; `stop_tokens` end an answer.
    pub fn new(tokenizer: Tokenizer, vocab: u32, stop_tokens: Vec<u32>) -> Self {
        Self { tokenizer, vocab, stop_tokens }
    }

    /// Compiles a rule, or finds it compiled. Blocks: call it off the async threads.
    ///
    /// # Errors
    /// Something in the rule came from the request and is wrong; `param` names it.
    pub fn compile(&self, rule: &Rule) -> Result<Arc<Compiled>, protocol::Error> {
        let _ = (&self.tokenizer, self.vocab, &self.stop_tokens, rule);
        Err(protocol::Error::new(protocol::ErrorKind::Unsupported, "grammars are not built yet"))
    }
}

/// A rule, ready to constrain answers.
pub(crate) struct Compiled {}

impl Compiled {
    /// A constraint for one answer from its first token on.
    pub fn constraint(self: &Arc<Self>) -> Box<dyn engine::Constraint> {
        unreachable!("nothing is compiled yet")
    }
}

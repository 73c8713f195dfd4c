//! Grammars: what an answer may be, compiled for one model's vocabulary, as the engine's constraints.
//!
//! ```text
//! Rule -> lark (schema: lowered and checked) -> library's parser -> Compiled, cached by its rule
//! Compiled -> constraint, one per answer -> the engine; masks are computed on one thread per model
//! ```
//!
//! What came from a request and cannot be enforced is refused with the place where it stands (keywords that no
//! grammar can enforce only where the schema is to be held exactly); the outcome is never an unconstrained text. Everything is bounded: sizes of schemas and grammars, the work of compiling
//! (the library counts it), one compilation at a time, entries and bytes of the cache.

mod cache;
mod compiled;
mod constraint;
mod lark;
mod locate;
mod rule;
mod schema;
#[cfg(test)]
mod tests;
mod vocabulary;

pub(crate) use compiled::Compiled;
pub(crate) use rule::Rule;

use cache::Cache;
use constraint::Desk;
use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{ParserFactory, TokenParser};
use protocol::{Error, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use tokenizer::Tokenizer;
use vocabulary::Vocabulary;

/// The library descends into grammars by recursion, a rule for a frame; this holds the deepest that is let in.
const STACK: usize = 256 << 20;

/// The grammars of one model.
pub(crate) struct Grammars {
    tokenizer: Tokenizer,
    vocab: u32,
    stop_tokens: Vec<u32>,
    /// Made on first use, which takes a few tenths of a second.
    factory: OnceLock<Result<Factory, String>>,
    cache: Mutex<Cache>,
    /// Held while compiling.
    compiling: Mutex<()>,
}

/// What parsers are made with, and where masks are asked for.
struct Factory {
    parsers: ParserFactory,
    masks: Sender<Arc<Desk>>,
}

impl Grammars {
    /// Grammars over this vocabulary; `vocab` is the size of the model's rows of logits, `stop_tokens` end an
    /// answer. Cheap: the work is done on first use.
    pub fn new(tokenizer: Tokenizer, vocab: u32, stop_tokens: Vec<u32>) -> Self {
        Self {
            tokenizer,
            vocab,
            stop_tokens,
            factory: OnceLock::new(),
            cache: Mutex::default(),
            compiling: Mutex::default(),
        }
    }

    /// Compiles a rule, or finds it compiled. Blocks: call it off the async threads.
    ///
    /// # Errors
    /// Something in the rule came from the request and is wrong; `param` names it.
    pub fn compile(&self, rule: &Rule) -> Result<Arc<Compiled>, Error> {
        let slot = self.cache.lock().unwrap_or_else(PoisonError::into_inner).slot(rule);
        let outcome = slot.get_or_init(|| {
            let _one_at_a_time = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
            self.build(rule).map(Arc::new)
        });
        if let Ok(compiled) = outcome {
            self.cache.lock().unwrap_or_else(PoisonError::into_inner).weigh(rule, compiled.bytes);
        }
        outcome.clone()
    }

    /// Compiles a rule on a thread of its own, for its stack's sake.
    fn build(&self, rule: &Rule) -> Result<Compiled, Error> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK);
            let built = thread.spawn_scoped(scope, || self.build_here(rule));
            match built.map(|built| built.join()) {
                Ok(Ok(built)) => built,
                Ok(Err(_)) => Err(unsupported("this grammar could not be compiled")),
                Err(error) => {
                    tracing::error!(%error, "no thread to compile a grammar");
                    Err(Error::new(
                        ErrorKind::Unavailable,
                        "the grammar could not be compiled now; try again",
                    ))
                }
            }
        })
    }

    fn build_here(&self, rule: &Rule) -> Result<Compiled, Error> {
        let factory =
            self.factory.get_or_init(|| self.make_factory()).as_ref().map_err(|why| unsupported(why))?;
        let grammar = lark::grammar(rule, &self.tokenizer)?;
        let size: usize = grammar.grammars.iter().map(weight).sum();
        let parser = match factory.parser(grammar) {
            Ok(parser) => parser,
            Err(why) => return Err(locate::fault(rule, &why, &|grammar| factory.parser(grammar).map(drop))),
        };
        let bytes = (128 << 10) + 16 * size + parser.parser.lexer_stats().num_bytes;
        Ok(Compiled::new(Box::new(parser), bytes, factory.masks.clone()))
    }

    fn make_factory(&self) -> Result<Factory, String> {
        let made = catch_unwind(AssertUnwindSafe(|| {
            let vocabulary = Vocabulary::new(self.tokenizer.clone(), self.vocab, &self.stop_tokens);
            let env: TokEnv = Arc::new(vocabulary);
            let caps = InferenceCapabilities { ff_tokens: true, ..InferenceCapabilities::default() };
            ParserFactory::new(&env, caps, &SlicedBiasComputer::general_slices()).map_err(|e| e.to_string())
        }));
        let mut parsers =
            made.unwrap_or_else(|_| Err("this model's vocabulary".to_owned())).map_err(|why| {
                tracing::error!(why, "a vocabulary is unfit for grammars");
                "this model's vocabulary does not allow constrained answers".to_owned()
            })?;
        parsers.quiet();
        parsers.limits_mut().verbose_errors = false;
        let (masks, asked) = channel::<Arc<Desk>>();
        let serve = move || asked.iter().for_each(|desk| desk.serve());
        // Without the thread, masks are computed where they are needed.
        if let Err(error) = std::thread::Builder::new().name("masks".to_owned()).spawn(serve) {
            tracing::warn!(%error, "no thread to compute masks ahead");
        }
        Ok(Factory { parsers, masks })
    }
}

impl Factory {
    /// A parser that stands at the beginning, and has shown that it can tell what may come first.
    fn parser(&self, grammar: TopLevelGrammar) -> Result<TokenParser, String> {
        let made = catch_unwind(AssertUnwindSafe(|| {
            let mut parser = self.parsers.create_parser(grammar).map_err(|error| error.to_string())?;
            parser.start_without_prompt();
            let whole = parser.check_stop().map_err(|error| error.to_string())?;
            if !whole {
                let mut trial = parser.deep_clone();
                trial.compute_mask().map_err(|error| error.to_string())?;
            }
            Ok(parser)
        }));
        made.unwrap_or_else(|_| Err("it is too complex".to_owned()))
    }
}

/// The size of a grammar's text.
fn weight(grammar: &llguidance::api::GrammarWithLexer) -> usize {
    let schema = grammar.json_schema.as_ref().map_or(0, |schema| schema.to_string().len());
    schema + grammar.lark_grammar.as_ref().map_or(0, String::len)
}

fn unsupported(message: &str) -> Error {
    Error::new(ErrorKind::Unsupported, message)
}

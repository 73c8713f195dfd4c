//! Grammars: what an answer may be, compiled for one model's vocabulary, as the engine's constraints.
//!
//! ```text
//! Rule -> lark (schema: lowered and checked) -> library's parser -> Compiled, cached by its rule
//! Compiled -> constraint, one per answer -> the engine; masks are computed on one thread per model
//! ```
//!
//! What came from a request and cannot be enforced is refused with the place where it stands (keywords that no
//! grammar can enforce only where the schema is to be held exactly); the outcome is never an unconstrained text.
//!
//! Everything is bounded: sizes of schemas and grammars, the work of compiling (the library counts most of it, and
//! beyond [`PATIENCE`] nobody waits), one compilation at a time, entries and bytes of the cache.

mod cache;
mod compiled;
mod constraint;
mod endless;
mod lark;
mod locate;
mod rule;
mod schema;
#[cfg(test)]
mod tests;
mod vocabulary;

pub(crate) use compiled::Compiled;
pub(crate) use rule::Rule;
pub(crate) use schema::{escaped, may_be_object};

use cache::{Cache, Keys};
use constraint::Desk;
use llguidance::api::TopLevelGrammar;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{ParserFactory, TokenParser};
use protocol::{Error, ErrorKind};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;
use tokenizer::Tokenizer;
use vocabulary::Vocabulary;

/// The library descends into grammars by recursion, a rule for a frame; this holds the deepest that is let in.
const STACK: usize = 256 << 20;

/// A rule that takes longer to compile is refused. What people write takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// So many compilations may be left to themselves; while they run nothing is compiled.
const MOST_ABANDONED: usize = 2;

/// The grammars of one model.
pub(crate) struct Grammars {
    works: Arc<Works>,
    keys: Keys,
    cache: Mutex<Cache>,
    /// Held while waiting for a compilation.
    compiling: Mutex<()>,
    patience: Duration,
}

/// What compiling needs; it outlives whoever waits for it.
struct Works {
    tokenizer: Tokenizer,
    vocab: u32,
    stop_tokens: Vec<u32>,
    /// Made on first use, which takes a few tenths of a second.
    factory: OnceLock<Result<Factory, String>>,
    /// Compilations that nobody waits for any more.
    abandoned: AtomicUsize,
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
        let factory = OnceLock::new();
        let works = Works { tokenizer, vocab, stop_tokens, factory, abandoned: AtomicUsize::new(0) };
        Self {
            works: Arc::new(works),
            keys: Keys::default(),
            cache: Mutex::default(),
            compiling: Mutex::default(),
            patience: PATIENCE,
        }
    }

    /// Compiles a rule, or finds it compiled. Blocks: call it off the async threads.
    ///
    /// # Errors
    /// Something in the rule came from the request and is wrong; `param` names it.
    pub fn compile(&self, rule: &Rule) -> Result<Arc<Compiled>, Error> {
        let key = self.keys.of(rule);
        let slot = self.cache.lock().unwrap_or_else(PoisonError::into_inner).slot(key);
        let outcome = slot.get_or_init(|| {
            let _one_at_a_time = self.compiling.lock().unwrap_or_else(PoisonError::into_inner);
            self.build(rule).map(Arc::new)
        });
        let mut cache = self.cache.lock().unwrap_or_else(PoisonError::into_inner);
        match outcome {
            Ok(compiled) => cache.weigh(key, compiled.bytes),
            // May succeed another time.
            Err(error) if error.kind == ErrorKind::Unavailable => cache.forget(key),
            Err(_) => {}
        }
        outcome.clone()
    }

    /// Compiles a rule on a thread of its own, for its stack's sake and so that it can be left.
    fn build(&self, rule: &Rule) -> Result<Compiled, Error> {
        let busy = || Error::new(ErrorKind::Unavailable, "the grammar could not be compiled now; try again");
        if self.works.abandoned.load(Ordering::Acquire) >= MOST_ABANDONED {
            return Err(busy());
        }
        let (works, copy) = (Arc::clone(&self.works), rule.clone());
        let (done, built) = channel();
        // Set by the thread when it is done and by who waits when it goes: the second of them counts off.
        let over = Arc::new(AtomicBool::new(false));
        let done_too = Arc::clone(&over);
        let thread = std::thread::Builder::new().name("grammar".to_owned()).stack_size(STACK);
        let spawned = thread.spawn(move || {
            let outcome = catch_unwind(AssertUnwindSafe(|| works.build(&copy)));
            let outcome = outcome.unwrap_or_else(|_| Err(unsupported("this grammar could not be compiled")));
            // Nobody may listen any more.
            let _ = done.send(outcome);
            if done_too.swap(true, Ordering::AcqRel) {
                works.abandoned.fetch_sub(1, Ordering::AcqRel);
            }
        });
        if let Err(error) = spawned {
            tracing::error!(%error, "no thread to compile a grammar");
            return Err(busy());
        }
        match built.recv_timeout(self.patience) {
            Ok(outcome) => outcome,
            Err(RecvTimeoutError::Disconnected) => Err(unsupported("this grammar could not be compiled")),
            Err(RecvTimeoutError::Timeout) => {
                self.works.abandoned.fetch_add(1, Ordering::AcqRel);
                if over.swap(true, Ordering::AcqRel) {
                    self.works.abandoned.fetch_sub(1, Ordering::AcqRel);
                }
                let seconds = self.patience.as_secs();
                tracing::warn!(seconds, "a grammar takes too long to compile");
                let message = format!("this grammar takes more than {seconds} s to compile; make it simpler");
                Err(locate::somewhere(rule, Error::new(ErrorKind::InvalidRequest, message)))
            }
        }
    }
}

impl Works {
    fn build(&self, rule: &Rule) -> Result<Compiled, Error> {
        let factory =
            self.factory.get_or_init(|| self.make_factory()).as_ref().map_err(|why| unsupported(why))?;
        let grammar = lark::grammar(rule, &self.tokenizer)?;
        let size: usize = grammar.grammars.iter().map(weight).sum();
        let parser = match factory.parser(grammar, rule.has_lark()) {
            Ok(parser) => parser,
            Err(why) => {
                let alone = |grammar: TopLevelGrammar| {
                    let everywhere = grammar.grammars.iter().any(|part| part.lark_grammar.is_some());
                    factory.parser(grammar, everywhere).map(drop)
                };
                return Err(locate::fault(rule, &why, &alone));
            }
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
    /// A parser that stands at the beginning, and has shown that it can tell what may come first. `everywhere`: all
    /// that may be begun can be ended; schemas see to that themselves.
    fn parser(&self, grammar: TopLevelGrammar, everywhere: bool) -> Result<TokenParser, String> {
        let made = catch_unwind(AssertUnwindSafe(|| {
            let mut parser = self.parsers.create_parser(grammar).map_err(|error| error.to_string())?;
            if let Some(why) = endless::why(parser.parser.grammar(), everywhere) {
                return Err(why);
            }
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

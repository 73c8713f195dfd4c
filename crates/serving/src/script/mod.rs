//! Script models: a file of turns that is replayed through the real engine, tokenizer, template and parsers, for tests
//! of what talks to a server. `docs/scripts.md` tells people how to write one.
//!
//! ```text
//! file (what was written) -> lines (each turn as tokens, by the model's own template)
//! request -> cues: which line answers it -> prompt's tokens -> [engine, pages] -> model: the line's next token
//! ```
//!
//! A language model sees tokens alone, so serving gives a cue with each prompt: under the hash of the prompt's tokens
//! stands the line that answers it. The model keeps that hash, the line and how much of it was said in its KV pages, so
//! that it goes on from what the engine really gave it: paging, prefix cache, preemption and re-prefill are those of
//! any model, and a wrong page would be seen at once.
//!
//! Invariant: the answer to a request depends on the request and the file alone.

mod choice;
mod cues;
mod file;
mod line;
mod model;

pub(crate) use cues::Cues;
pub use file::ScriptError;

use crate::local::chat_template;
use crate::{LoadError, source};
use choice::Choice;
use file::File;
use line::{Line, Writer};
use models::checkpoint::GenerationDefaults;
use models::{Checkpoint, LanguageModel};
use std::path::Path;
use std::sync::Arc;
use tokenizer::Tokenizer;

/// The tokenizer of script models that name no other.
const TOKENIZER: &[u8] = include_bytes!("hermes/tokenizer.json");
const TOKENIZER_CONFIG: &[u8] = include_bytes!("hermes/tokenizer_config.json");
/// Their template: ChatML with tools as Hermes models call them, and thinking.
const TEMPLATE: &str = include_str!("hermes/template.jinja");

/// A script that was read, with all that its model needs.
pub(crate) struct Script {
    pub tokenizer: Tokenizer,
    pub template: String,
    pub defaults: GenerationDefaults,
    pub cues: Arc<Cues>,
    spec: model::Spec,
}

/// Tokenizer, template and sampling defaults that a script is spoken with.
struct Voice {
    tokenizer: Tokenizer,
    template: String,
    defaults: GenerationDefaults,
}

impl Script {
    /// Reads a script and renders its turns.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let file = File::open(path)?;
        let voice = voice(path, &file)?;
        let template = chat_template(&voice.template, &voice.tokenizer)
            .map_err(|reason| ScriptError::at(path, "template", reason))?;
        let mut writer =
            Writer::new(&voice.tokenizer, &template, &voice.defaults.end_tokens).map_err(|reason| {
                let field = if file.model.is_some() { "model" } else { "template" };
                ScriptError::at(path, field, reason)
            })?;
        let mut choices = Vec::new();
        let otherwise = file.otherwise.iter().map(|turn| ("otherwise".to_owned(), turn));
        let turns = file.turns.iter().enumerate().map(|(i, turn)| (format!("turns[{i}]"), turn));
        for (at, turn) in turns.chain(otherwise) {
            let written = writer.write(turn).map_err(|reason| ScriptError::at(path, &at, reason))?;
            let constrained = turn.constrained.unwrap_or(file.constrained);
            choices.push(Choice {
                when: turn.when.clone(),
                constrained,
                thinking: written.0,
                plain: written.1,
            });
        }
        let otherwise = file.otherwise.is_some().then(|| choices.len() - 1);
        let lines: Arc<[Line]> = writer.lines().into();
        let think = crate::tools::family(Some(&voice.template), &voice.tokenizer).think_marks();
        let spec = model::Spec {
            vocab: voice.tokenizer.vocab_size(),
            context: file.context(),
            pace: file.pace(),
            tokens: Arc::new(model::Tokens::new(&voice.tokenizer, think)),
            lines,
        };
        Ok(Self {
            tokenizer: voice.tokenizer,
            template: voice.template,
            defaults: voice.defaults,
            cues: Arc::new(Cues::new(choices, otherwise)),
            spec,
        })
    }

    /// Makes the model that replays it, with empty pages, as often as it is needed.
    pub fn models(&self) -> impl FnMut() -> Box<dyn LanguageModel> + Send + use<> {
        let (spec, cues) = (self.spec.clone(), Arc::clone(&self.cues));
        move || Box::new(model::ScriptModel::new(spec.clone(), Arc::clone(&cues)))
    }
}

/// Opens the tokenizer that a script is spoken with.
pub fn open_script_tokenizer(path: &Path) -> Result<Tokenizer, LoadError> {
    Ok(voice(path, &File::open(path)?)?.tokenizer)
}

fn voice(path: &Path, file: &File) -> Result<Voice, LoadError> {
    let folder = path.parent().unwrap_or(Path::new(""));
    let mut voice = match &file.model {
        None => Voice {
            tokenizer: Tokenizer::from_json(TOKENIZER, Some(TOKENIZER_CONFIG))?,
            template: TEMPLATE.to_owned(),
            defaults: GenerationDefaults::default(),
        },
        Some(model) => {
            let checkpoint = Checkpoint::open(&folder.join(model))?;
            let template = match (checkpoint.chat_template(), &file.template) {
                (Some(template), _) => template,
                (None, Some(_)) => String::new(),
                (None, None) => {
                    let reason = "this model has no chat template; name a file with `template`".to_owned();
                    return Err(ScriptError::at(path, "model", reason).into());
                }
            };
            Voice {
                tokenizer: source::tokenizer_of(&checkpoint)?,
                template,
                defaults: checkpoint.generation_defaults()?,
            }
        }
    };
    if let Some(name) = &file.template {
        voice.template = file::read(&folder.join(name))?;
    }
    Ok(voice)
}

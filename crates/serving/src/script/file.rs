//! A script as it stands in its file: JSON, read strictly.
//!
//! A field that is none, a wrong type and a turn that says nothing are errors that name line or field; nothing is
//! guessed. Does not know templates or tokens.

use base::Tokens;
use serde::Deserialize;
use serde_json::{Map, Value};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Largest file that is read.
const MAX_BYTES: u64 = 64 << 20;
/// Tokens of a sequence when the script does not say.
const CONTEXT: u32 = 32_768;
/// Most that a script may ask for.
const MAX_CONTEXT: u32 = 1 << 20;
/// Tokens a second, from one in ten seconds to what no timer can tell from none.
const PACES: std::ops::RangeInclusive<f64> = 0.1..=10_000.0;

/// Why a script cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub enum ScriptError {
    /// The file, or one that it names, cannot be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// It is no JSON, or not of a script's form.
    #[error("{}: {message}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong, with line and column.
        message: String,
    },
    /// A field's value cannot be used.
    #[error("{}: {field}: {reason}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// Where, such as `turns[2].calls[0]`.
        field: String,
        /// What is wrong there.
        reason: String,
    },
}

impl ScriptError {
    pub(super) fn at(path: &Path, field: &str, reason: String) -> Self {
        Self::Field { path: path.to_owned(), field: field.to_owned(), reason }
    }
}

/// Which built-in tokenizer, template and form of calls a script is spoken with.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum BuiltIn {
    /// ChatML with `<tool_call>` and `<think>`.
    #[default]
    Hermes,
}

/// The whole file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    /// Free text for people.
    #[serde(default, rename = "note")]
    pub(super) _note: Option<String>,
    family: Option<BuiltIn>,
    /// A GGUF file or Hugging Face folder whose tokenizer and template are used.
    pub model: Option<PathBuf>,
    /// A file with a chat template that goes before all others.
    pub template: Option<PathBuf>,
    context: Option<u32>,
    pace: Option<f64>,
    /// What turns without a word on it do.
    #[serde(default = "yes")]
    pub constrained: bool,
    pub turns: Vec<Turn>,
    /// What is said when no turn fits.
    pub otherwise: Option<Turn>,
}

/// What is said once.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Turn {
    #[serde(default, rename = "note")]
    pub(super) _note: Option<String>,
    pub when: Option<When>,
    pub text: Option<String>,
    pub reasoning: Option<String>,
    #[serde(default)]
    pub calls: Vec<Call>,
    /// All of the answer, verbatim; texts of control tokens in it are control tokens.
    pub raw: Option<String>,
    /// Whether grammars hold for this answer.
    pub constrained: Option<bool>,
}

/// A tool call.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Call {
    pub name: String,
    #[serde(default)]
    pub arguments: Map<String, Value>,
}

/// What a request must be for a turn to answer it; all that is given must hold.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct When {
    /// The last user message (or the raw prompt) has this text in it.
    pub user: Option<String>,
    /// Some system message has this text in it.
    pub system: Option<String>,
    /// The conversation ends with a tool's result that has this text in it.
    pub result: Option<String>,
    /// Whether tools are offered.
    pub tools: Option<bool>,
    /// Assistant messages before this answer.
    pub turn: Option<usize>,
}

const fn yes() -> bool {
    true
}

impl File {
    /// Reads and checks a script.
    pub fn open(path: &Path) -> Result<Self, ScriptError> {
        Self::parse(&read(path)?, path)
    }

    /// The same of a text; `path` names it in errors.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ScriptError> {
        let file: Self = serde_json::from_str(text)
            .map_err(|error| ScriptError::Malformed { path: path.to_owned(), message: error.to_string() })?;
        file.check().map_err(|(field, reason)| ScriptError::at(path, &field, reason))?;
        Ok(file)
    }

    /// Tokens of a sequence.
    pub fn context(&self) -> Tokens {
        Tokens(self.context.unwrap_or(CONTEXT))
    }

    /// Time that a step with an answer's token takes.
    pub fn pace(&self) -> Option<Duration> {
        self.pace.map(|pace| Duration::from_secs_f64(1.0 / pace))
    }

    fn check(&self) -> Result<(), (String, String)> {
        let fault = |field: &str, reason: &str| Err((field.to_owned(), reason.to_owned()));
        if self.family.is_some() && self.model.is_some() {
            return fault("family", "a model brings its own family; leave one of the two out");
        }
        if self.context.is_some_and(|context| !(16..=MAX_CONTEXT).contains(&context)) {
            return fault("context", &format!("must be from 16 to {MAX_CONTEXT} tokens"));
        }
        if self.pace.is_some_and(|pace| !PACES.contains(&pace)) {
            return fault("pace", "must be from 0.1 to 10000 tokens per second");
        }
        if self.turns.is_empty() && self.otherwise.is_none() {
            return fault("turns", "there are none, so there is nothing to say");
        }
        for (i, turn) in self.turns.iter().enumerate() {
            turn.check().map_err(|(field, reason)| (format!("turns[{i}]{field}"), reason.to_owned()))?;
        }
        let Some(otherwise) = &self.otherwise else { return Ok(()) };
        if otherwise.when.is_some() {
            return fault("otherwise.when", "it is said whenever no turn fits, so it takes no condition");
        }
        otherwise.check().map_err(|(field, reason)| (format!("otherwise{field}"), reason.to_owned()))
    }
}

impl Turn {
    /// The place in the turn, and what is wrong there.
    fn check(&self) -> Result<(), (String, &'static str)> {
        let written = self.text.is_some() || self.reasoning.is_some() || !self.calls.is_empty();
        if self.raw.is_some() && written {
            return Err((
                ".raw".into(),
                "is the whole answer; text, reasoning and calls cannot stand beside it",
            ));
        }
        if self.raw.is_none() && !written {
            return Err((String::new(), "says nothing; give it text, reasoning, calls or raw"));
        }
        if let Some(i) = self.calls.iter().position(|call| call.name.is_empty()) {
            return Err((format!(".calls[{i}].name"), "is empty"));
        }
        Ok(())
    }
}

/// The text of a file.
pub(super) fn read(path: &Path) -> Result<String, ScriptError> {
    let fault = |error| ScriptError::Read { path: path.to_owned(), error };
    let mut text = String::new();
    let file = std::fs::File::open(path).map_err(fault)?;
    file.take(MAX_BYTES + 1).read_to_string(&mut text).map_err(fault)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(fault(io::Error::new(io::ErrorKind::FileTooLarge, "the file is larger than 64 MiB")));
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn fails(text: &str, expected: &str) {
        let error = File::parse(text, Path::new("s.json")).map(|_| ()).unwrap_err().to_string();
        assert!(error.starts_with("s.json: ") && error.contains(expected), "{error}");
    }

    #[test]
    fn what_a_script_cannot_have_is_told_with_its_place() {
        fails("{", "line 1 column 1");
        fails("{\n \"turn\": []}", "unknown field `turn`");
        fails("{\n \"turn\": []}", "line 2");
        fails("{\"turns\": [{\n\"says\": \"x\"}]}", "unknown field `says`");
        fails("{\"turns\": [{\"when\": {\"role\": \"user\"}}]}", "unknown field `role`");
        fails("{\"turns\": [{\"calls\": [{\"name\": \"f\", \"arguments\": \"{}\"}]}]}", "expected a map");
        fails("{\"turns\": [{\"text\": \"a\"}, {}]}", "turns[1]: says nothing");
        fails("{\"turns\": [{\"text\": \"a\", \"raw\": \"b\"}]}", "turns[0].raw: is the whole answer");
        fails("{\"turns\": [{\"calls\": [{\"name\": \"\"}]}]}", "turns[0].calls[0].name: is empty");
        fails("{\"turns\": []}", "turns: there are none");
        fails("{\"turns\": [], \"otherwise\": {\"text\": \"a\", \"when\": {}}}", "otherwise.when");
        fails("{\"turns\": [], \"otherwise\": {\"reasoning\": 1}}", "invalid type");
        fails("{\"turns\": [{\"text\": \"\"}], \"pace\": 0}", "pace: must be");
        fails("{\"turns\": [{\"text\": \"\"}], \"context\": 4}", "context: must be");
        fails("{\"turns\": [{\"text\": \"\"}], \"family\": \"qwen\"}", "unknown variant `qwen`");
        fails(
            "{\"turns\": [{\"text\": \"\"}], \"family\": \"hermes\", \"model\": \"m\"}",
            "family: a model brings",
        );
    }
}

//! Token to bytes. Every supported decoder comes down to a table of bytes per token, a rule for the start
//! of the text, and for WordPiece a rule for tokens that follow another.

use crate::pretokenizer::VISIBLE_SPACE;
use crate::vocab::{Kind, Strings};

/// What happens at the start of a text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Start {
    Keep,
    /// Drops up to `count` times the character.
    Strip {
        content: char,
        count: usize,
    },
    /// The first token loses all its (visible) spaces.
    FirstTokenLosesSpaces,
    /// The first token is written without the space that others get; the table holds their plain form.
    FirstTokenIsBare,
}

/// The table and the rule.
pub(crate) struct Decoder {
    /// By token: what it stands for inside a text.
    pub(crate) bytes: Strings,
    pub(crate) start: Start,
    /// With [`Start::FirstTokenIsBare`]: what each token is as the first of a text.
    pub(crate) bare: Option<Strings>,
}

/// How far a decoded text has come.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// A token was seen.
    started: bool,
    /// Characters stripped from the start so far; meaningful until `settled`.
    stripped: usize,
    /// No more can be stripped.
    settled: bool,
}

impl Decoder {
    /// Appends what `id` adds to a text.
    pub(crate) fn write(&self, id: u32, progress: &mut Progress, out: &mut Vec<u8>) {
        let first = !std::mem::replace(&mut progress.started, true);
        let bytes = self.bytes.get(id);
        match &self.start {
            Start::Keep => out.extend_from_slice(bytes),
            Start::FirstTokenIsBare if first => {
                out.extend_from_slice(self.bare.as_ref().map_or(bytes, |bare| bare.get(id)));
            }
            Start::FirstTokenLosesSpaces if first => {
                out.extend(bytes.iter().filter(|byte| **byte != b' '));
            }
            Start::FirstTokenIsBare | Start::FirstTokenLosesSpaces => out.extend_from_slice(bytes),
            Start::Strip { content, count } => {
                let mut rest = bytes;
                let mut buffer = [0; 4];
                let content = content.encode_utf8(&mut buffer).as_bytes();
                while !progress.settled && progress.stripped < *count && !rest.is_empty() {
                    match rest.strip_prefix(content) {
                        Some(behind) => {
                            rest = behind;
                            progress.stripped += 1;
                        }
                        None => progress.settled = true,
                    }
                }
                out.extend_from_slice(rest);
            }
        }
    }
}

/// WordPiece: joins continuing tokens, puts a space before others, and tidies punctuation if asked.
pub(crate) fn wordpiece(texts: &Strings, prefix: &str, tidy: bool) -> Decoder {
    let mut bytes = Strings::with_capacity(texts.len(), 0);
    let mut bare = Strings::with_capacity(texts.len(), 0);
    let finish = |text: String| if tidy { cleanup(&text) } else { text };
    for id in 0..texts.len() as u32 {
        let text = texts.text(id);
        bare.push(finish(text.to_owned()).as_bytes());
        let inside = match text.strip_prefix(prefix) {
            Some(rest) if !prefix.is_empty() => rest.to_owned(),
            _ => format!(" {text}"),
        };
        bytes.push(finish(inside).as_bytes());
    }
    Decoder { bytes, start: Start::FirstTokenIsBare, bare: Some(bare) }
}

/// The reference's tidying of English, applied to a token with its space.
pub(crate) fn cleanup(text: &str) -> String {
    if !text.contains(['.', '?', '!', ',', '\'']) && !text.contains("do not") {
        return text.to_owned();
    }
    [
        (" .", "."),
        (" ?", "?"),
        (" !", "!"),
        (" ,", ","),
        (" ' ", "'"),
        (" n't", "n't"),
        (" 'm", "'m"),
        (" do not", " don't"),
        (" 's", "'s"),
        (" 've", "'ve"),
        (" 're", "'re"),
    ]
    .iter()
    .fold(text.to_owned(), |text, (from, to)| text.replace(from, to))
}

/// SentencePiece: visible spaces become spaces, byte tokens their byte; special texts stay as they are.
pub(crate) fn sentencepiece(texts: &Strings, kinds: &[Kind]) -> Strings {
    let mut bytes = Strings::with_capacity(texts.len(), 0);
    for (id, kind) in (0u32..).zip(kinds) {
        let text = texts.get(id);
        match kind {
            Kind::Byte => match crate::vocab::byte_of(text) {
                Some(byte) => bytes.push(&[byte]),
                None => bytes.push(text),
            },
            Kind::Normal => match std::str::from_utf8(text) {
                Ok(text) => bytes.push(text.replace(VISIBLE_SPACE, " ").as_bytes()),
                Err(_) => bytes.push(text),
            },
            _ => bytes.push(text),
        }
    }
    bytes
}

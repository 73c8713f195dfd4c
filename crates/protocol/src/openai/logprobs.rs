//! Log-probabilities in the two shapes of OpenAI (chat, legacy completions) and the one of `prompt_logprobs`.

use crate::{Logprobs, TokenLogprob};
use indexmap::IndexMap;
use serde::Serialize;

/// What stands for minus infinity, which JSON cannot write.
const FLOOR: f32 = -9999.0;

/// A log-probability for the wire; NaN (there is none) becomes `null`.
fn wire(logprob: f32) -> Option<f32> {
    (!logprob.is_nan()).then_some(logprob.max(FLOOR))
}

/// `choices[].logprobs` of chat completions.
#[derive(Debug, Serialize)]
pub(crate) struct ChatLogprobs<'a> {
    content: Vec<ChatToken<'a>>,
    refusal: Option<()>,
}

#[derive(Debug, Serialize)]
struct ChatToken<'a> {
    #[serde(flatten)]
    chosen: ChatEntry<'a>,
    top_logprobs: Vec<ChatEntry<'a>>,
}

#[derive(Debug, Serialize)]
struct ChatEntry<'a> {
    token: &'a str,
    logprob: f32,
    bytes: &'a [u8],
}

impl<'a> From<&'a TokenLogprob> for ChatEntry<'a> {
    fn from(token: &'a TokenLogprob) -> Self {
        Self { token: &token.token, logprob: wire(token.logprob).unwrap_or(FLOOR), bytes: &token.bytes }
    }
}

impl<'a> ChatLogprobs<'a> {
    pub(crate) fn new(logprobs: &'a [Logprobs]) -> Self {
        Self { content: logprobs.iter().map(Into::into).collect(), refusal: None }
    }
}

impl<'a> From<&'a Logprobs> for ChatToken<'a> {
    fn from(entry: &'a Logprobs) -> Self {
        Self { chosen: (&entry.chosen).into(), top_logprobs: entry.top.iter().map(Into::into).collect() }
    }
}

/// The same tokens as a plain list, as responses write them.
pub(crate) fn chat_tokens(logprobs: &[Logprobs]) -> serde_json::Value {
    let tokens: Vec<ChatToken<'_>> = logprobs.iter().map(Into::into).collect();
    serde_json::to_value(tokens).expect("wire types have string keys and no failing fields")
}

/// `prompt_logprobs`, an extension that other servers share: for each token a map from id to its values, and
/// `null` for the first.
pub(crate) fn prompt(logprobs: &[Logprobs]) -> Vec<Option<IndexMap<u32, PromptEntry<'_>>>> {
    logprobs
        .iter()
        .map(|entry| {
            let chosen_logprob = wire(entry.chosen.logprob)?;
            let mut map = IndexMap::new();
            for (rank, token) in entry.top.iter().enumerate() {
                let entry = PromptEntry {
                    logprob: wire(token.logprob).unwrap_or(FLOOR),
                    rank: Some(rank + 1),
                    decoded_token: &token.token,
                };
                map.insert(token.id, entry);
            }
            map.entry(entry.chosen.id).or_insert(PromptEntry {
                logprob: chosen_logprob,
                rank: None,
                decoded_token: &entry.chosen.token,
            });
            Some(map)
        })
        .collect()
}

/// One token of [`prompt`]. The rank is known only of those among the most likely.
#[derive(Debug, Serialize)]
pub(crate) struct PromptEntry<'a> {
    logprob: f32,
    rank: Option<usize>,
    decoded_token: &'a str,
}

/// `choices[].logprobs` of legacy completions: parallel lists.
#[derive(Debug, Default, Serialize)]
pub(crate) struct LegacyLogprobs {
    tokens: Vec<String>,
    token_logprobs: Vec<Option<f32>>,
    top_logprobs: Vec<Option<IndexMap<String, f32>>>,
    text_offset: Vec<usize>,
}

impl LegacyLogprobs {
    pub(crate) fn push(&mut self, entry: &Logprobs, text_offset: usize) {
        self.tokens.push(legacy_name(&entry.chosen));
        let chosen = wire(entry.chosen.logprob);
        self.token_logprobs.push(chosen);
        self.top_logprobs.push(chosen.map(|chosen| {
            let mut top: IndexMap<String, f32> = IndexMap::new();
            for token in &entry.top {
                // Two tokens may show the same text; the more likely one stands first.
                top.entry(legacy_name(token)).or_insert(wire(token.logprob).unwrap_or(FLOOR));
            }
            top.entry(legacy_name(&entry.chosen)).or_insert(chosen);
            top
        }));
        self.text_offset.push(text_offset);
    }
}

/// A token's text, or its bytes spelled out where they are no text.
fn legacy_name(token: &TokenLogprob) -> String {
    if std::str::from_utf8(&token.bytes).is_ok() {
        return token.token.clone();
    }
    let hex: String = token.bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    format!("bytes:{hex}")
}

/// Counts the characters that began in `bytes`, so that a character cut over several tokens counts once.
pub(crate) fn characters(bytes: &[u8]) -> usize {
    bytes.iter().filter(|byte| **byte & 0xc0 != 0x80).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(bytes: &[u8], id: u32, logprob: f32) -> TokenLogprob {
        TokenLogprob {
            token: String::from_utf8_lossy(bytes).into_owned(),
            bytes: bytes.to_vec(),
            id,
            logprob,
        }
    }

    #[test]
    fn chat_shape_has_bytes_and_alternatives() {
        let entry = Logprobs {
            chosen: token(b"hi", 1, -0.25),
            top: vec![token(b"hi", 1, -0.25), token(b"\xc3", 2, f32::NEG_INFINITY)],
        };
        assert_eq!(
            serde_json::to_string(&ChatLogprobs::new(&[entry])).unwrap(),
            concat!(
                r#"{"content":[{"token":"hi","logprob":-0.25,"bytes":[104,105],"top_logprobs":["#,
                r#"{"token":"hi","logprob":-0.25,"bytes":[104,105]},"#,
                "{\"token\":\"\u{fffd}\",\"logprob\":-9999.0,\"bytes\":[195]}]}],\"refusal\":null}"
            )
        );
    }

    #[test]
    fn the_first_prompt_token_has_no_value() {
        let first = Logprobs { chosen: token(b"a", 7, f32::NAN), top: Vec::new() };
        let second = Logprobs { chosen: token(b"b", 8, -2.0), top: vec![token(b"c", 9, -1.0)] };
        assert_eq!(
            serde_json::to_string(&prompt(&[first.clone(), second.clone()])).unwrap(),
            r#"[null,{"9":{"logprob":-1.0,"rank":1,"decoded_token":"c"},"8":{"logprob":-2.0,"rank":null,"decoded_token":"b"}}]"#
        );
        let mut legacy = LegacyLogprobs::default();
        legacy.push(&first, 0);
        legacy.push(&second, 1);
        assert_eq!(
            serde_json::to_string(&legacy).unwrap(),
            r#"{"tokens":["a","b"],"token_logprobs":[null,-2.0],"top_logprobs":[null,{"c":-1.0,"b":-2.0}],"text_offset":[0,1]}"#
        );
    }
}

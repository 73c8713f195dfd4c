//! What a judge says of a text, and what follows from it.
//!
//! A judge is a model that answers as Llama Guard does (`safe`, or `unsafe` and a line of categories; Meta, "Llama Guard 3"
//! model card), or a webhook. Not here: asking one.

use crate::settings::{Action, Hazards};
use serde::Deserialize;
use serde_json::{Map, Value};

/// What a judge said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the text may stand.
    pub safe: bool,
    /// What it is, where it may not.
    pub categories: Vec<String>,
}

/// What follows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Pass,
    /// It is written down.
    Flag(Vec<String>),
    /// The request ends.
    Block(Vec<String>),
}

impl Verdict {
    /// Reads the answer of a model; nothing where it says neither.
    #[must_use]
    pub fn of_model(text: &str) -> Option<Self> {
        let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
        let safe = match lines.next()?.to_ascii_lowercase().as_str() {
            "safe" => true,
            "unsafe" => false,
            _ => return None,
        };
        let categories = lines.next().unwrap_or_default().split(',').map(str::trim);
        let categories = categories.filter(|name| !safe && !name.is_empty()).map(str::to_owned).collect();
        Some(Self { safe, categories })
    }

    /// Reads the answer of a webhook: `{"verdict":"safe"}`, or `{"verdict":"unsafe","categories":["S1"]}`.
    #[must_use]
    pub fn of_webhook(body: &[u8]) -> Option<Self> {
        #[derive(Deserialize)]
        struct Said {
            verdict: String,
            #[serde(default)]
            categories: Vec<String>,
        }
        let said: Said = serde_json::from_slice(body).ok()?;
        match said.verdict.as_str() {
            "safe" => Some(Self { safe: true, categories: Vec::new() }),
            "unsafe" => Some(Self { safe: false, categories: said.categories }),
            _ => None,
        }
    }
}

impl Decision {
    /// Of a verdict, or of none: what would end a request ends it then, and what would be written down passes.
    #[must_use]
    pub fn of(hazards: &Hazards, verdict: Option<&Verdict>) -> Self {
        let blocks = hazards.values().any(|action| *action == Action::Block);
        let Some(verdict) = verdict else {
            return if blocks { Self::Block(Vec::new()) } else { Self::Pass };
        };
        if verdict.safe {
            return Self::Pass;
        }
        let action = |name: &String| hazards.iter().find(|(hazard, _)| hazard.eq_ignore_ascii_case(name));
        let found: Vec<_> = verdict.categories.iter().filter_map(action).collect();
        let names = || found.iter().map(|(name, _)| (*name).clone()).collect();
        // A judge that does not say what it found means all of it.
        if found.iter().any(|(_, action)| **action == Action::Block)
            || (verdict.categories.is_empty() && blocks)
        {
            return Self::Block(names());
        }
        if found.is_empty() && !verdict.categories.is_empty() {
            return Self::Pass;
        }
        Self::Flag(names())
    }
}

/// Members of an answer under which there are words, in any dialect.
const ROOTS: &[&str] = &[
    "candidates",
    "choices",
    "completion",
    "content",
    "delta",
    "generation",
    "message",
    "output",
    "response",
    "result",
    "results",
    "text",
];

/// Members whose text is not said to anybody.
const NOT_WORDS: &[&str] = &[
    "call_id",
    "data",
    "detail",
    "encrypted_content",
    "finish_reason",
    "format",
    "id",
    "media_type",
    "mimeType",
    "mime_type",
    "model",
    "object",
    "role",
    "signature",
    "status",
    "stop_reason",
    "tool_call_id",
    "tool_use_id",
    "type",
    "url",
];

/// Members of what a tool is called with and gives, whose names are anybody's: all text under them is words.
const FREE: &[&str] = &["args", "arguments", "input", "json", "response"];

/// Members where a file or a picture may stand as a data URL.
const FILES: &[&str] = &["audio", "file", "file_data", "image", "image_url", "images", "uri", "video_url"];

/// All words of a request's body, in their order: those of every member, since providers read more than we know.
#[must_use]
pub fn words_of_request(body: &Value) -> Vec<&str> {
    let mut words = Vec::new();
    match body {
        Value::Object(members) => members.iter().for_each(|(name, value)| {
            if !is_silent(members, name, value) {
                gather(name, value, false, &mut words);
            }
        }),
        other => gather("", other, false, &mut words),
    }
    words
}

/// All words of an answer's body, or of an event, in their order.
#[must_use]
pub fn words(body: &Value) -> Vec<&str> {
    let Value::Object(members) = body else { return words_of_request(body) };
    let mut words = Vec::new();
    for (name, value) in members.iter().filter(|(name, _)| ROOTS.contains(&name.as_str())) {
        gather(name, value, false, &mut words);
    }
    words
}

fn gather<'a>(name: &str, value: &'a Value, free: bool, words: &mut Vec<&'a str>) {
    match value {
        Value::String(text) if !(text.is_empty() || FILES.contains(&name) && is_data_url(text)) => {
            words.push(text);
        }
        Value::Array(items) => items.iter().for_each(|item| gather(name, item, free, words)),
        Value::Object(members) => {
            for (name, value) in members {
                if free || !is_silent(members, name, value) {
                    gather(name, value, free || FREE.contains(&name.as_str()), words);
                }
            }
        }
        _ => {}
    }
}

/// Whether a member is a text that nobody is told. A document may be text too.
fn is_silent(members: &Map<String, Value>, name: &str, value: &Value) -> bool {
    let is_text = name == "data" && members.get("type").is_some_and(|kind| kind == "text");
    value.is_string() && NOT_WORDS.contains(&name) && !is_text
}

/// Whether a text is `data:TYPE;base64,BYTES` and nothing else.
fn is_data_url(text: &str) -> bool {
    let parts = text.strip_prefix("data:").and_then(|rest| rest.split_once(";base64,"));
    parts.is_some_and(|(kind, bytes)| {
        let is_of_kind = |byte: u8| byte.is_ascii_alphanumeric() || b"/+-.;=_".contains(&byte);
        let is_of_bytes = |byte: u8| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte);
        kind.bytes().all(is_of_kind) && bytes.bytes().all(is_of_bytes)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn hazards(actions: &[(&str, Action)]) -> Hazards {
        actions.iter().map(|(name, action)| ((*name).to_owned(), *action)).collect()
    }

    #[test]
    fn a_models_answer_is_safe_or_unsafe_with_categories_or_nothing() {
        let verdict = |safe, names: &[&str]| {
            Some(Verdict { safe, categories: names.iter().map(|name| (*name).to_owned()).collect() })
        };
        assert_eq!(Verdict::of_model("\n\nsafe"), verdict(true, &[]));
        assert_eq!(Verdict::of_model("unsafe\nS1, S10\n"), verdict(false, &["S1", "S10"]));
        assert_eq!(Verdict::of_model("Unsafe"), verdict(false, &[]));
        for text in ["", "I cannot help with that", "safety first"] {
            assert_eq!(Verdict::of_model(text), None, "{text}");
        }
        assert_eq!(
            Verdict::of_webhook(br#"{"verdict":"unsafe","categories":["x"]}"#),
            verdict(false, &["x"])
        );
        assert_eq!(Verdict::of_webhook(b"{}"), None);
    }

    #[test]
    fn block_fails_closed_and_flag_fails_open() {
        let (block, flag) = (hazards(&[("S1", Action::Block)]), hazards(&[("S1", Action::Flag)]));
        assert_eq!(Decision::of(&block, None), Decision::Block(vec![]));
        assert_eq!(Decision::of(&flag, None), Decision::Pass);
    }

    #[test]
    fn the_strictest_of_what_was_found_counts_and_the_rest_does_not() {
        let hazards = hazards(&[("S1", Action::Block), ("S2", Action::Flag)]);
        let of = |names: &[&str]| {
            let categories = names.iter().map(|name| (*name).to_owned()).collect();
            Decision::of(&hazards, Some(&Verdict { safe: false, categories }))
        };
        assert_eq!(of(&["S2", "s1"]), Decision::Block(vec!["S2".into(), "S1".into()]));
        assert_eq!(of(&["S2"]), Decision::Flag(vec!["S2".into()]));
        assert_eq!(of(&["S9"]), Decision::Pass);
        assert_eq!(of(&[]), Decision::Block(vec![]));
    }

    #[test]
    fn words_are_found_in_every_dialect_and_names_and_data_are_not() {
        for (body, expected) in [
            (
                json!({"model": "m", "messages": [{"role": "user", "content": "a"},
                {"role": "user", "content": [{"type": "text", "text": "b"},
                {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}}]}]}),
                vec!["a", "b"],
            ),
            (json!({"system": "s", "max_tokens": 9, "messages": [{"content": "a"}]}), vec!["a", "s"]),
            (
                json!({"instructions": "i", "input": [{"type": "message", "content": [{"text": "t"}]}]}),
                vec!["t", "i"],
            ),
            (json!({"contents": [{"parts": [{"text": "g"}]}]}), vec!["g"]),
            (json!({"inputs": {"prompt": "p"}}), vec!["p"]),
        ] {
            let mut found = words_of_request(&body);
            let mut expected = expected;
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{body}");
        }
    }

    #[test]
    fn an_answer_is_its_words_without_what_stands_around_them() {
        let body = json!({"id": "x", "system_fingerprint": "fp",
            "choices": [{"delta": {"content": "d"}, "finish_reason": "stop"}]});
        assert_eq!(words(&body), ["d"]);
    }

    #[test]
    fn no_place_in_a_request_hides_words_from_the_judge() {
        let call =
            |name: &str| json!({"messages": [{"content": [{"type": "tool_use", "input": {name: "w"}}]}]});
        let bodies = [
            json!({"messages": [{"content": "w"}]}),
            json!({"messages": [{"content": [{"type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "w"}}]}]}),
            json!({"functions": [{"description": "w"}]}),
            json!({"prediction": {"type": "content", "content": "w"}}),
            json!({"suffix": "w"}),
            json!({"systemInstruction": {"parts": [{"text": "w"}]}}),
            json!({"contents": [{"parts": [{"functionCall": {"args": {"status": "w"}}}]}]}),
            json!({"contents": [{"parts": [{"functionResponse": {"response": {"data": "w"}}}]}]}),
            json!({"text": {"format": {"schema": {"properties": {"status": {"description": "w"}}}}}}),
            json!({"tools": [{"parameters": {"properties": {"url": {"description": "w"}}}}]}),
        ];
        for body in bodies.into_iter().chain(["data", "url", "status", "format", "object"].map(call)) {
            assert!(words_of_request(&body).contains(&"w"), "{body}");
        }
        for text in ["data: w", "data:text;base64,say it", "data:image/png;base64,AAAA"] {
            assert_eq!(words_of_request(&json!({"messages": [{"content": text}]})), [text]);
        }
        assert_eq!(words_of_request(&json!({"image_url": "data:image/png;base64,say it"})).len(), 1);
        let picture = json!([{"type": "input_image", "image_url": "data:image/png;base64,AA+/="}]);
        assert!(words_of_request(&json!({"input": picture})).is_empty());
    }
}

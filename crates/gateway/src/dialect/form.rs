//! What a whole answer is, by the path that is asked: which member its JSON has, and what ends its stream.
//!
//! | path | whole JSON has | its stream is whole with |
//! |---|---|---|
//! | `chat/completions`, `completions` | `choices` | a `finish_reason`, or `[DONE]` |
//! | `responses` | `output` | `response.completed`, `.incomplete` or `.failed`, or `error` |
//! | `embeddings` | `data` or `embedding…` | |
//! | `messages`, `…:rawPredict` of Anthropic's | `content` | `message_stop` |
//! | `…:generateContent`, `…:streamGenerateContent` | `candidates`, `promptFeedback` or `usageMetadata` | a `finishReason` or `blockReason` |
//! | `converse`, `converse-stream` | `output` | `messageStop`, or the usage behind it |
//!
//! It is as lenient as servers are: some send no `[DONE]`, some no names of events, some `finish_reason: ""` in each chunk.
//! Of other paths (files, sound, batches, a model's own words on Bedrock) nothing is asked.

use super::Dialect;
use crate::sse;
use memchr::memmem;

/// The form of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// Chat completions and completions.
    Chat,
    /// Responses.
    Responses,
    /// Embeddings.
    Embeddings,
    /// Anthropic's Messages.
    Messages,
    /// Gemini's.
    Gemini,
    /// Bedrock's Converse.
    Converse,
}

/// Events that end a response.
pub(super) const ENDS_OF_A_RESPONSE: [&[u8]; 4] =
    [b"response.completed", b"response.incomplete", super::openai::FAILED, super::openai::ERROR];

impl Form {
    /// The form of what is answered to a `POST` to this path; nothing where it is none of these.
    #[must_use]
    pub fn of(dialect: Dialect, path: &str) -> Option<Self> {
        let path = path.trim_end_matches('/');
        let last = path.rsplit('/').next().unwrap_or_default();
        let verb = last.rsplit_once(':').map(|(_, verb)| verb);
        match (dialect, last, verb) {
            (Dialect::OpenAi, "completions", _) => Some(Self::Chat),
            (Dialect::OpenAi, "responses", _) => Some(Self::Responses),
            (Dialect::OpenAi, "embeddings", _) => Some(Self::Embeddings),
            (Dialect::Anthropic, "messages", _)
            | (Dialect::Anthropic, _, Some("rawPredict" | "streamRawPredict")) => Some(Self::Messages),
            (Dialect::Gemini, _, Some("generateContent" | "streamGenerateContent")) => Some(Self::Gemini),
            (Dialect::Bedrock, "converse" | "converse-stream", _) => Some(Self::Converse),
            _ => None,
        }
    }

    /// Whether JSON has what an answer of this form has.
    #[must_use]
    pub fn is_answer(self, body: &[u8]) -> bool {
        let members: &[&str] = match self {
            Self::Chat => &["\"choices\""],
            Self::Responses | Self::Converse => &["\"output\""],
            Self::Embeddings => &["\"data\"", "\"embedding"],
            Self::Messages => &["\"content\""],
            Self::Gemini => &["\"candidates\"", "\"promptFeedback\"", "\"usageMetadata\""],
        };
        members.iter().any(|member| memmem::find(body, member.as_bytes()).is_some())
    }

    /// Whether a frame of server-sent events, which [`Watcher`](super::Watcher) does not know for the last, ends the
    /// answer all the same.
    pub(super) fn ends(self, frame: &[u8]) -> bool {
        match self {
            Self::Chat => has_value(frame, "\"finish_reason\""),
            // Who names no event has its name in the data.
            Self::Responses => {
                sse::name(frame).is_none() && ENDS_OF_A_RESPONSE[..3].iter().any(|name| has_type(frame, name))
            }
            Self::Messages => sse::name(frame).is_none() && has_type(frame, b"message_stop"),
            Self::Gemini => super::gemini::is_closing(frame),
            Self::Embeddings | Self::Converse => false,
        }
    }

    /// Whether a frame has data that is neither JSON nor an end.
    pub(super) fn is_rubbish(frame: &[u8]) -> bool {
        let Some(data) = sse::data(frame) else { return false };
        let data = data.trim_ascii();
        let is_object = data.first() == Some(&b'{') && data.last() == Some(&b'}');
        !is_object && !data.is_empty() && data != b"[DONE]"
    }
}

/// Whether a member of this name, in quotes, stands somewhere with a value that says something.
fn has_value(frame: &[u8], name: &str) -> bool {
    memmem::find_iter(frame, name).any(|at| {
        let rest = frame[at + name.len()..].trim_ascii_start();
        let value = rest.strip_prefix(b":").map(<[u8]>::trim_ascii_start);
        value.is_some_and(|value| !value.starts_with(b"null") && !value.starts_with(b"\"\""))
    })
}

/// Whether the data of a frame is an event of this type, which stands before all that is long.
fn has_type(frame: &[u8], kind: &[u8]) -> bool {
    #[derive(serde::Deserialize)]
    struct Event<'a> {
        #[serde(borrow, rename = "type")]
        kind: std::borrow::Cow<'a, str>,
    }
    let quoted = [b"\"", kind, b"\""].concat();
    memmem::find(frame, &quoted).is_some()
        && sse::data(frame).is_some_and(|data| {
            serde_json::from_slice::<Event<'_>>(&data).is_ok_and(|event| event.kind.as_bytes() == kind)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_and_the_dialect_say_what_a_whole_answer_is() {
        for (dialect, path, form) in [
            (Dialect::OpenAi, "/v1/chat/completions", Some(Form::Chat)),
            (Dialect::OpenAi, "/openai/deployments/d/chat/completions", Some(Form::Chat)),
            (Dialect::OpenAi, "/v1/completions", Some(Form::Chat)),
            (Dialect::OpenAi, "/v1/responses", Some(Form::Responses)),
            (Dialect::OpenAi, "/v1/responses/resp_1/cancel", None),
            (Dialect::OpenAi, "/v1/audio/transcriptions", None),
            (Dialect::OpenAi, "/v1/files", None),
            (Dialect::OpenAi, "/v1/batches", None),
            (Dialect::Anthropic, "/v1/messages", Some(Form::Messages)),
            (Dialect::Anthropic, "/v1/messages/count_tokens", None),
            (Dialect::Anthropic, "/v1/messages/batches", None),
            (Dialect::Anthropic, "/v1/publishers/anthropic/models/c:streamRawPredict", Some(Form::Messages)),
            (Dialect::Gemini, "/v1beta/models/g:streamGenerateContent", Some(Form::Gemini)),
            (Dialect::Gemini, "/v1beta/models/g:embedContent", None),
            (Dialect::Bedrock, "/model/m/converse-stream", Some(Form::Converse)),
            (Dialect::Bedrock, "/model/m/invoke", None),
            (Dialect::Other, "/v1/chat/completions", None),
        ] {
            assert_eq!(Form::of(dialect, path), form, "{path}");
        }
    }

    #[test]
    fn a_reason_to_finish_ends_chat_and_none_or_one_in_the_text_does_not() {
        for (data, ends) in [
            (r#"{"choices":[{"delta":{},"finish_reason":"stop"}]}"#, true),
            (r#"{"choices":[{"finish_reason" : "length"}]}"#, true),
            (r#"{"choices":[{"finish_reason":null},{"finish_reason":"stop"}]}"#, true),
            (r#"{"choices":[{"delta":{"content":"a"},"finish_reason":null}]}"#, false),
            (r#"{"choices":[{"delta":{"content":"a"},"finish_reason":""}]}"#, false),
            (r#"{"choices":[{"delta":{"content":"{\"finish_reason\":\"stop\"}"}}]}"#, false),
        ] {
            assert_eq!(Form::Chat.ends(format!("data: {data}\n\n").as_bytes()), ends, "{data}");
        }
    }

    #[test]
    fn events_without_names_end_by_their_type() {
        let done = "data: {\"type\":\"response.completed\",\"response\":{}}\n\n";
        assert!(Form::Responses.ends(done.as_bytes()));
        let text =
            "data: {\"type\":\"response.output_text.delta\",\"delta\":\"\\\"response.completed\\\"\"}\n\n";
        assert!(!Form::Responses.ends(text.as_bytes()));
        assert!(Form::Messages.ends(b"data: {\"type\": \"message_stop\"}\n\n"));
    }

    #[test]
    fn what_is_no_object_is_rubbish_and_comments_and_ends_are_not() {
        for frame in ["data: <html>\n\n", "data: {\"choices\":[\n\n", "data: \u{0}\u{1}\n\n"] {
            assert!(Form::is_rubbish(frame.as_bytes()), "{frame:?}");
        }
        for frame in [": ping\n\n", "data: [DONE]\n\n", "data:\n\n", "data: {\ndata: }\n\n", "event: x\n\n"] {
            assert!(!Form::is_rubbish(frame.as_bytes()), "{frame:?}");
        }
    }
}

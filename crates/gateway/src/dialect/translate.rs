//! Translation between the canonical form and a provider's dialect: how a request is written, and
//! who reads the answer. One arm for each dialect.

use super::Dialect;
use crate::provider::Configured;
use bytes::Bytes;
use memchr::memmem;
use protocol::{AnswerReader, Error, ErrorKind, GenerateRequest, anthropic, bedrock, gemini, openai};

impl Dialect {
    /// The path of a request that is translated, where a provider has one for all models.
    #[must_use]
    pub const fn task(self) -> &'static str {
        match self {
            Self::OpenAi => "chat/completions",
            Self::Anthropic => "messages",
            Self::Gemini | Self::Bedrock | Self::Cohere | Self::Other => "",
        }
    }

    /// Writes a request for a model of a provider that speaks this dialect, as the body that goes there.
    ///
    /// # Errors
    /// When the request holds what the dialect has no words for, by the canonical name of the field.
    pub fn write(
        self,
        provider: &Configured,
        model: &str,
        request: &GenerateRequest,
    ) -> Result<Bytes, Error> {
        let body = match self {
            Self::OpenAi => openai::upstream::write(request, model, &provider.speaker, provider.asks_usage)?,
            Self::Anthropic => anthropic::upstream::write(request, model)?,
            Self::Gemini => gemini::upstream::write(request, model)?,
            Self::Bedrock => bedrock::upstream::write(request, model)?,
            Self::Cohere | Self::Other => {
                let slug = &provider.slug;
                let message =
                    format!("{slug} is not translated; ask it at AI Gateway's path of this provider");
                return Err(Error::new(ErrorKind::Unsupported, message).at("model"));
            }
        };
        // These take no turn without a part, and none without a text is left out of the others by itself.
        let none = match self {
            Self::Gemini => &b"\"contents\":[]"[..],
            Self::Bedrock => b"\"messages\":[]",
            Self::OpenAi | Self::Anthropic | Self::Cohere | Self::Other => return Ok(body.into()),
        };
        if memmem::find(body.as_bytes(), none).is_some() {
            let message =
                format!("{} wants a message with something in it, and all of these are empty", provider.slug);
            return Err(Error::invalid("messages", message));
        }
        Ok(body.into())
    }

    /// What reads the answer to such a request.
    #[must_use]
    pub fn reader(self, request: &GenerateRequest) -> Box<dyn AnswerReader> {
        match self {
            // Nothing is written in the last two, so nothing of them is read.
            Self::OpenAi | Self::Cohere | Self::Other => {
                Box::new(openai::upstream::Reader::new(request.choices))
            }
            Self::Anthropic => Box::new(anthropic::upstream::Reader::new()),
            Self::Gemini => Box::new(gemini::upstream::Reader::new(request.choices)),
            Self::Bedrock => Box::new(bedrock::upstream::Reader::new()),
        }
    }
}

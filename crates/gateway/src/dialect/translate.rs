//! Translation between the canonical form and a provider's dialect: how a request is written, and
//! who reads the answer. One arm for each dialect.

use super::Dialect;
use crate::provider::{Configured, Place};
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

    /// Writes a request to count a prompt's tokens, as the body that goes to a provider of this dialect.
    ///
    /// # Errors
    /// When the request holds what the dialect has no words for.
    ///
    /// # Panics
    /// For a dialect in which nobody counts what was asked in another.
    pub fn write_count(
        self,
        provider: &Configured,
        model: &str,
        request: &GenerateRequest,
    ) -> Result<Bytes, Error> {
        let body = match self {
            Self::OpenAi => openai::upstream::write_count(request, model)?,
            Self::Gemini => gemini::upstream::write_count(request, model, provider.place == Place::Vertex)?,
            Self::Bedrock => bedrock::upstream::write_count(request, model)?,
            Self::Anthropic | Self::Cohere | Self::Other => unreachable!("nobody counts so: {self:?}"),
        };
        Ok(body.into())
    }

    /// Reads the tokens that were counted.
    ///
    /// # Errors
    /// When the answer tells none.
    ///
    /// # Panics
    /// As [`Dialect::write_count`].
    pub fn read_count(self, body: &[u8]) -> Result<u32, Error> {
        match self {
            Self::OpenAi => openai::upstream::read_count(body),
            Self::Gemini => gemini::upstream::read_count(body),
            Self::Bedrock => bedrock::upstream::read_count(body),
            Self::Anthropic | Self::Cohere | Self::Other => unreachable!("nobody counts so: {self:?}"),
        }
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

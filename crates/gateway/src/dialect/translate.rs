//! Translation between the canonical form and a provider's dialect: where a request goes, how it is written there, and
//! who reads the answer. One arm for each dialect.

use super::Dialect;
use crate::provider::Configured;
use bytes::Bytes;
use protocol::{AnswerReader, Error, GenerateRequest, anthropic, openai};

/// A request as a provider has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The path behind the provider's base.
    pub path: String,
    /// What stands behind the path.
    pub query: Option<&'static str>,
    /// The body.
    pub body: Bytes,
}

impl Dialect {
    /// Writes a request for a model of a provider that speaks this dialect.
    ///
    /// # Errors
    /// When the request holds what the dialect has no words for, by the canonical name of the field.
    pub fn write(
        self,
        provider: &Configured,
        model: &str,
        request: &GenerateRequest,
    ) -> Result<Written, Error> {
        let (path, query, body) = match self {
            Self::OpenAi => {
                let body = openai::upstream::write(request, model, &provider.speaker, provider.asks_usage)?;
                ("chat/completions".to_owned(), None, body.into())
            }
            Self::Anthropic => {
                ("messages".to_owned(), None, anthropic::upstream::write(request, model)?.into())
            }
        };
        Ok(Written { path, query, body })
    }

    /// What reads the answer to such a request.
    #[must_use]
    pub fn reader(self, request: &GenerateRequest) -> Box<dyn AnswerReader> {
        match self {
            Self::OpenAi => Box::new(openai::upstream::Reader::new(request.choices)),
            Self::Anthropic => Box::new(anthropic::upstream::Reader::new()),
        }
    }
}

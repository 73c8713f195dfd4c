//! What can go wrong with a request, in canonical form; each dialect writes it in its own words.

use std::time::Duration;

/// Why a request was not answered, or not to its end.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{message}")]
pub struct Error {
    /// The kind decides status and codes.
    pub kind: ErrorKind,
    /// For the caller: what is wrong and what would be right.
    pub message: String,
    /// The field at fault, as the caller wrote it, for example `messages[0].role`.
    pub param: Option<String>,
    /// When to try again.
    pub retry_after: Option<Duration>,
    /// The status that a provider answered with, which goes before that of the kind.
    pub status: Option<u16>,
}

/// Kinds of error. Each has one HTTP status; see [`ErrorKind::status`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ErrorKind {
    /// A field is wrong or missing.
    InvalidRequest,
    /// The body is no JSON of the wanted shape, or not UTF-8.
    Malformed,
    /// Prompt longer than the context.
    ContextLength,
    /// No such model.
    ModelNotFound,
    /// No such route.
    RouteNotFound,
    /// Something kept that the caller names, such as an earlier response, is not here.
    NotFound,
    /// The route exists but not for this method.
    MethodNotAllowed,
    /// Something the caller asked for is not built.
    Unsupported,
    /// No key, or a wrong one.
    Unauthorized,
    /// There is no key for the provider, or it does not take the one there is.
    KeyRefused,
    /// The caller may not do this (foreign host or origin).
    Forbidden,
    /// The body did not arrive in time.
    Timeout,
    /// The body is larger than the limit.
    TooLarge,
    /// The body is compressed or encoded in a way this server does not read.
    UnsupportedEncoding,
    /// The queue, or the memory for bodies, is full.
    Overloaded,
    /// The caller has asked, or spent, as much as it may for now.
    Limited,
    /// What was paid in advance is used up.
    Unpaid,
    /// A guardrail does not let the prompt through.
    PromptBlocked,
    /// A guardrail does not let the answer through.
    AnswerBlocked,
    /// What is asked holds data that may not leave (data loss prevention).
    PromptWithheld,
    /// The answer holds data that may not leave.
    AnswerWithheld,
    /// The engine failed; the same request may be tried again.
    Unavailable,
    /// The provider could not be reached, broke off, or sent no answer.
    Upstream,
    /// The provider did not answer in time.
    UpstreamTimeout,
    /// A bug of ours.
    Internal,
}

impl ErrorKind {
    /// The HTTP status.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            Self::InvalidRequest
            | Self::Malformed
            | Self::ContextLength
            | Self::Unsupported
            | Self::PromptBlocked
            | Self::AnswerBlocked
            | Self::PromptWithheld
            | Self::AnswerWithheld => 400,
            Self::Unauthorized | Self::KeyRefused => 401,
            Self::Unpaid => 402,
            Self::Forbidden => 403,
            Self::ModelNotFound | Self::RouteNotFound | Self::NotFound => 404,
            Self::MethodNotAllowed => 405,
            Self::Timeout => 408,
            Self::TooLarge => 413,
            Self::UnsupportedEncoding => 415,
            Self::Overloaded | Self::Limited => 429,
            Self::Internal => 500,
            Self::Upstream => 502,
            Self::Unavailable => 503,
            Self::UpstreamTimeout => 504,
        }
    }

    /// Whether the same request may succeed later.
    #[must_use]
    pub const fn retryable(self) -> bool {
        matches!(
            self,
            Self::Overloaded
                | Self::Limited
                | Self::Unavailable
                | Self::Timeout
                | Self::Upstream
                | Self::UpstreamTimeout
        )
    }
}

impl Error {
    /// An error of this kind.
    #[must_use]
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), param: None, retry_after: None, status: None }
    }

    /// A field is wrong; `param` is its path.
    #[must_use]
    pub fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::new(ErrorKind::InvalidRequest, message).at(param)
    }

    /// Names the field at fault.
    #[must_use]
    pub fn at(mut self, param: impl Into<String>) -> Self {
        self.param = Some(param.into());
        self
    }

    /// Says when to try again.
    #[must_use]
    pub fn retry_after(mut self, after: Duration) -> Self {
        self.retry_after = Some(after);
        self
    }
}

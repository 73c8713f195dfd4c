//! Thoughts as the service wrote them down that thought them: with a proof that only it can check, or sealed so that only
//! it can read them. Whose they are goes with them, since one service refuses what another has signed.

/// A thought in the form in which only the service that thought it can check or read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Thought {
    /// Its text, with the proof that it is unchanged.
    Signed {
        /// The text.
        text: String,
        /// The proof.
        signature: String,
        /// Whose proof it is.
        maker: Maker,
    },
    /// What may not be read.
    Redacted {
        /// As it is sealed.
        data: String,
        /// Who can read it.
        maker: Maker,
    },
}

/// Whose models think and prove it. Claude's proofs hold wherever Claude is served, and Gemini's likewise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Maker {
    /// Anthropic, whose own API, Vertex AI and Bedrock take the same proofs.
    Anthropic,
    /// Google, whose AI Studio and Vertex AI do.
    Google,
    /// Anybody else, by the name of the form in `reasoning_details`.
    Other(Box<str>),
}

/// OpenRouter's names for the forms of `reasoning_details`.
const ANTHROPIC: &str = "anthropic-claude-v1";
const GOOGLE: &str = "google-gemini-v1";

impl Maker {
    /// The name of the form in `reasoning_details`.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Anthropic => ANTHROPIC,
            Self::Google => GOOGLE,
            Self::Other(name) => name,
        }
    }

    /// Who has this name.
    #[must_use]
    pub fn named(name: &str) -> Self {
        match name {
            ANTHROPIC => Self::Anthropic,
            GOOGLE => Self::Google,
            other => Self::Other(other.into()),
        }
    }
}

impl Thought {
    /// Whose it is.
    #[must_use]
    pub const fn maker(&self) -> &Maker {
        match self {
            Self::Signed { maker, .. } | Self::Redacted { maker, .. } => maker,
        }
    }
}

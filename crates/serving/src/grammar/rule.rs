//! What a text may be: the tree that tools, reasoning and `response_format` build and [`super::Grammars`] compiles.
//!
//! Plain data: it knows neither tokens nor the grammar library. Two equal trees have one compiled grammar.

use std::hash::{Hash, Hasher};

/// What a text may be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// These characters.
    Literal(String),
    /// A family's marker: the one token of this text where the vocabulary has one (control or added), else
    /// its characters.
    Marker(String),
    /// JSON of this schema.
    Json {
        /// The schema.
        schema: serde_json::Value,
        /// Where it stands in the canonical request, for example `tools[2].function.parameters`.
        at: String,
        /// Whether a keyword that no grammar can enforce is an error; it is left out otherwise.
        exact: bool,
    },
    /// A text that this regular expression matches as a whole.
    Regex {
        /// The expression, in the syntax of Rust's `regex` crate.
        pattern: String,
        /// Where it stands in the canonical request.
        at: String,
    },
    /// A text of this Lark grammar, from its rule `start`.
    Lark {
        /// The grammar.
        grammar: String,
        /// Where it stands in the canonical request.
        at: String,
    },
    /// Any text, also none, in which none of these markers occurs.
    Text {
        /// The markers.
        before: Vec<String>,
    },
    /// All of these, in order.
    Sequence(Vec<Rule>),
    /// One of these.
    OneOf(Vec<Rule>),
    /// The rule again and again.
    Repeat {
        /// What is repeated.
        rule: Box<Rule>,
        /// At least so often.
        least: u32,
        /// At most so often.
        most: Option<u32>,
    },
}

impl Rule {
    /// Whether a Lark grammar is a part of it.
    pub(super) fn has_lark(&self) -> bool {
        match self {
            Self::Lark { .. } => true,
            Self::Sequence(rules) | Self::OneOf(rules) => rules.iter().any(Self::has_lark),
            Self::Repeat { rule, .. } => rule.has_lark(),
            Self::Literal(_)
            | Self::Marker(_)
            | Self::Json { .. }
            | Self::Regex { .. }
            | Self::Text { .. } => false,
        }
    }
}

impl Hash for Rule {
    fn hash<H: Hasher>(&self, state: &mut H) {
        std::mem::discriminant(self).hash(state);
        match self {
            Self::Literal(text) | Self::Marker(text) => text.hash(state),
            Self::Json { schema, at, exact } => {
                // The order of properties matters (answers follow it), and this form keeps it.
                schema.to_string().hash(state);
                (at, exact).hash(state);
            }
            Self::Regex { pattern: text, at } | Self::Lark { grammar: text, at } => {
                text.hash(state);
                at.hash(state);
            }
            Self::Text { before } => before.hash(state),
            Self::Sequence(rules) | Self::OneOf(rules) => rules.hash(state),
            Self::Repeat { rule, least, most } => {
                rule.hash(state);
                least.hash(state);
                most.hash(state);
            }
        }
    }
}

//! Why a tokenizer could not be made. Encoding and decoding themselves cannot fail (but see `TooLong`).

/// What is wrong with a vocabulary or a `tokenizer.json`. All are the file's fault; none is retryable.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `tokenizer.ggml.model` names a kind of tokenizer that is not built.
    #[error("tokenizer model `{model}` is not supported (supported: gpt2, llama, bert)")]
    UnknownModel {
        /// The name in the file.
        model: String,
    },
    /// `tokenizer.ggml.pre` names a pre-tokenizer that is not built; guessing would give wrong tokens.
    #[error("pre-tokenizer `{pre}` is not supported (supported: {supported})")]
    UnknownPre {
        /// The name in the file, or `(none)`.
        pre: String,
        /// The names that are.
        supported: String,
    },
    /// A component of `tokenizer.json` is not built.
    #[error("tokenizer.json: {part} `{name}` is not supported")]
    Unsupported {
        /// Which part of the pipeline: normalizer, pre_tokenizer, model, ...
        part: &'static str,
        /// The component, with the option at fault where it is an option.
        name: String,
    },
    /// The JSON does not parse or lacks a field.
    #[error("{file}: {source}")]
    Json {
        /// `tokenizer.json` or `tokenizer_config.json`.
        file: &'static str,
        /// What the parser said, with line and column.
        source: serde_json::Error,
    },
    /// Two lists that must have one entry per token differ in length.
    #[error("the vocabulary has {tokens} tokens but {found} {what}")]
    Mismatch {
        /// `scores` or `types`.
        what: &'static str,
        /// Tokens in the vocabulary.
        tokens: usize,
        /// Entries in the other list.
        found: usize,
    },
    /// A token id that is named somewhere is not in the vocabulary.
    #[error("{what} has id {id}, but the vocabulary has {size} tokens")]
    IdOutOfRange {
        /// Who named the id.
        what: String,
        /// The id.
        id: u32,
        /// Tokens in the vocabulary.
        size: usize,
    },
    /// Something is larger than any real tokenizer needs, and would cost memory or time.
    #[error("{what} is {found}, the limit is {limit}")]
    TooLarge {
        /// What is too large.
        what: String,
        /// Its size.
        found: usize,
        /// The most that is accepted.
        limit: usize,
    },
    /// A merge rule does not have two parts, or names a token that is not in the vocabulary.
    #[error("merge {index} (`{merge}`) {problem}")]
    Merge {
        /// Its place in the list, from 0.
        index: usize,
        /// The rule as in the file.
        merge: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A regular expression does not compile.
    #[error("pattern `{pattern}` does not compile: {problem}")]
    Pattern {
        /// The expression.
        pattern: String,
        /// What the compiler said.
        problem: String,
    },
    /// A part that the tokenizer cannot do without is not there.
    #[error("the tokenizer has no {what}")]
    Missing {
        /// What is missing.
        what: String,
    },
    /// Two different tokens have one id, or the entries of the file contradict each other.
    #[error("{what} contradicts the rest of the vocabulary")]
    Contradiction {
        /// The entry at fault.
        what: String,
    },
}

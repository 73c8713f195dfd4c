//! Embeddings from a provider that speaks OpenAI's dialect.

use crate::openai::to_json;
use crate::upstream::unreadable;
use crate::{EmbeddingInput, EmbeddingRequest, Embeddings, Error};
use serde::Deserialize;
use serde_json::{Value, json};

/// The body that asks `model` for these vectors.
#[must_use]
pub fn write_embeddings(request: &EmbeddingRequest, model: &str) -> String {
    let input = |input: &EmbeddingInput| match input {
        EmbeddingInput::Text(text) => json!(text),
        EmbeddingInput::Tokens(ids) => json!(ids),
    };
    let input: Value = request.inputs.iter().map(input).collect();
    to_json(&json!({"model": model, "input": input, "encoding_format": "float"}))
}

/// The vectors of an answer to so many inputs.
///
/// # Errors
/// When it is no such answer.
pub fn read_embeddings(body: &[u8], count: usize) -> Result<Embeddings, Error> {
    #[derive(Deserialize)]
    struct Answer {
        data: Vec<One>,
        usage: Option<Spent>,
    }
    #[derive(Deserialize)]
    struct One {
        index: Option<usize>,
        embedding: Vec<f32>,
    }
    #[derive(Deserialize)]
    struct Spent {
        prompt_tokens: Option<u32>,
    }
    let answer: Answer = serde_json::from_slice(body).map_err(unreadable)?;
    let mut data = answer.data;
    if data.iter().all(|one| one.index.is_some()) {
        data.sort_by_key(|one| one.index);
    }
    if data.len() != count {
        let message = format_args!("it has {} vectors for {count} inputs", data.len()).to_string();
        return Err(unreadable(message));
    }
    let prompt_tokens = answer.usage.and_then(|usage| usage.prompt_tokens).unwrap_or(0);
    Ok(Embeddings { vectors: data.into_iter().map(|one| one.embedding).collect(), prompt_tokens })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vectors_are_those_of_the_inputs_whatever_order_they_come_in() {
        let body = br#"{"data":[{"index":1,"embedding":[2]},{"index":0,"embedding":[1]}],"usage":{"prompt_tokens":5}}"#;
        let read = read_embeddings(body, 2).unwrap();
        assert_eq!((read.vectors, read.prompt_tokens), (vec![vec![1.0], vec![2.0]], 5));
        assert!(read_embeddings(body, 3).is_err());
    }
}

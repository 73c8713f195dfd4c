//! Native embeddings: `{"text": ...}` in, `{"shape", "data"}` out.

use super::{InputAt, input_object};
use crate::fields::{missing, wrong_type};
use crate::openai::embeddings::texts;
use crate::openai::to_json;
use crate::{EmbeddingRequest, Embeddings, Error};
use serde::Serialize;
use serde_json::Value;

/// Reads an input for a model. How vectors are pooled is the model's own and cannot be chosen.
pub fn parse(model: &str, input: Value, at: InputAt) -> Result<EmbeddingRequest, Error> {
    let mut fields = input_object(input, at)?;
    let path = fields.path("text");
    let text = fields.take("text").ok_or_else(|| missing(&path))?;
    let inputs = texts(&path, text, |path, other| Err(wrong_type(path, "a string", &other)))?;
    fields.refuse(&["pooling", "requests"])?;
    crate::openai::chat::options(&mut fields)?;
    fields.finish()?;
    Ok(EmbeddingRequest { model: model.to_owned(), inputs })
}

#[derive(Serialize)]
struct Embedded<'a> {
    shape: [usize; 2],
    data: &'a [Vec<f32>],
    usage: EmbeddedUsage,
}

#[derive(Serialize)]
struct EmbeddedUsage {
    prompt_tokens: u32,
    total_tokens: u32,
}

/// The answer, without an envelope.
#[must_use]
pub fn result(embeddings: &Embeddings) -> String {
    let vectors = &embeddings.vectors;
    let tokens = embeddings.prompt_tokens;
    let embedded = Embedded {
        shape: [vectors.len(), vectors.first().map_or(0, Vec::len)],
        data: vectors,
        usage: EmbeddedUsage { prompt_tokens: tokens, total_tokens: tokens },
    };
    to_json(&embedded)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn texts_come_back_as_a_matrix() {
        let request = parse("m", json!({"text": ["a", "b"]}), InputAt::Root).unwrap();
        assert_eq!(request.inputs.len(), 2);
        let embeddings = Embeddings { vectors: vec![vec![1.0, 0.0], vec![0.0, 1.0]], prompt_tokens: 4 };
        assert!(result(&embeddings).starts_with(r#"{"shape":[2,2],"data":[[1.0,0.0],[0.0,1.0]],"#));
    }

    #[test]
    fn wrong_inputs_are_named() {
        for (input, param) in [
            (json!({}), "text"),
            (json!({"text": 3}), "text"),
            (json!({"text": ["a", 3]}), "text[1]"),
            (json!({"text": "a", "pooling": "cls"}), "pooling"),
            (json!({"text": "a", "texts": "b"}), "texts"),
        ] {
            let error = parse("m", input.clone(), InputAt::Root).unwrap_err();
            assert_eq!(error.param.as_deref(), Some(param), "{input}");
        }
    }
}

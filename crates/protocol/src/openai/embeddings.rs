//! Embeddings: texts or token ids to vectors, as floats or base64.

use super::completions::token_ids;
use super::parameters as shared;
use super::{local, to_json};
use crate::fields::{self, Object, element, missing, wrong_type};
use crate::{EmbeddingInput, EmbeddingRequest, Embeddings, Error, ModelInfo, json};
use base64::Engine as _;
use serde::Serialize;
use serde_json::Value;

/// Most inputs of one request, as OpenAI limits them.
pub(crate) const MAX_INPUTS: usize = 2048;

/// How vectors are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Encoding {
    /// As a list of numbers.
    #[default]
    Float,
    /// As base64 of little-endian 32-bit floats.
    Base64,
}

/// Embeddings as asked for.
#[derive(Clone, Debug, PartialEq)]
pub struct EmbeddingsRequest {
    /// What to embed.
    pub request: EmbeddingRequest,
    /// How to write the vectors.
    pub encoding: Encoding,
    /// The width the caller wants.
    pub dimensions: Option<u32>,
}

impl EmbeddingsRequest {
    /// Vectors are not shortened: the width asked for must be the model's own.
    pub fn check_dimensions(&self, model: &ModelInfo) -> Result<(), Error> {
        let (Some(wanted), Some(own)) = (self.dimensions, model.dimensions) else { return Ok(()) };
        if wanted == own {
            return Ok(());
        }
        Err(Error::invalid(
            "dimensions",
            format!("Invalid value for 'dimensions': {wanted}; vectors of this model have {own}"),
        ))
    }
}

/// Reads a body.
pub fn parse(body: &[u8]) -> Result<EmbeddingsRequest, Error> {
    let mut fields = Object::root(json::parse(body)?)?;
    let model = shared::model(&mut fields)?;
    let inputs = inputs(&mut fields)?;
    let encoding = match fields.string("encoding_format")?.as_deref() {
        None | Some("float") => Encoding::Float,
        Some("base64") => Encoding::Base64,
        Some(_) => {
            return Err(Error::invalid(
                "encoding_format",
                "Invalid value for 'encoding_format': supported are 'float' and 'base64'",
            ));
        }
    };
    let dimensions = fields.integer("dimensions", 1..=i64::from(u32::MAX))?.map(|width| width as u32);
    local::pass_over(&mut fields)?;
    fields.finish()?;
    Ok(EmbeddingsRequest { request: EmbeddingRequest { model, inputs }, encoding, dimensions })
}

fn inputs(fields: &mut Object) -> Result<Vec<EmbeddingInput>, Error> {
    match fields.take("input") {
        None => Err(missing("input")),
        Some(Value::Array(values)) if values.first().is_some_and(Value::is_number) => {
            token_ids("input", &values).map(|ids| vec![EmbeddingInput::Tokens(ids)])
        }
        Some(value) => texts("input", value, |path, value| match value {
            Value::Array(ids) if !ids.is_empty() => token_ids(path, &ids).map(EmbeddingInput::Tokens),
            Value::Array(_) => {
                Err(Error::invalid(path, format!("Invalid value for '{path}': the input is empty")))
            }
            other => Err(wrong_type(path, "a string or an array of token ids", &other)),
        }),
    }
}

/// One text or many; `other` reads elements that are no text.
pub(crate) fn texts(
    path: &str,
    value: Value,
    other: impl Fn(&str, Value) -> Result<EmbeddingInput, Error>,
) -> Result<Vec<EmbeddingInput>, Error> {
    let text = |path: &str, text: String| {
        if text.is_empty() {
            return Err(Error::invalid(path, format!("Invalid value for '{path}': the text is empty")));
        }
        Ok(EmbeddingInput::Text(text))
    };
    let values = match value {
        Value::String(one) => return text(path, one).map(|input| vec![input]),
        Value::Array(values) => values,
        wrong => return Err(fields::wrong_type(path, "a string or an array", &wrong)),
    };
    if values.is_empty() || values.len() > MAX_INPUTS {
        let count = values.len();
        return Err(Error::invalid(
            path,
            format!("Invalid value for '{path}': {count} inputs, 1 to {MAX_INPUTS} are allowed"),
        ));
    }
    values
        .into_iter()
        .enumerate()
        .map(|(index, value)| {
            let path = element(path, index);
            match value {
                Value::String(one) => text(&path, one),
                value => other(&path, value),
            }
        })
        .collect()
}

#[derive(Serialize)]
struct List<'a> {
    object: &'static str,
    data: Vec<Entry<'a>>,
    model: &'a str,
    usage: EmbeddingUsage,
}

#[derive(Serialize)]
struct Entry<'a> {
    object: &'static str,
    index: usize,
    embedding: Vector<'a>,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Vector<'a> {
    Float(&'a [f32]),
    Base64(String),
}

#[derive(Serialize)]
struct EmbeddingUsage {
    prompt_tokens: u32,
    total_tokens: u32,
}

/// The answer; `model` is the model's id.
#[must_use]
pub fn list(model: &str, encoding: Encoding, embeddings: &Embeddings) -> String {
    let vector = |vector: &'_ Vec<f32>| {
        let bytes: Vec<u8> = vector.iter().flat_map(|value| value.to_le_bytes()).collect();
        base64::engine::general_purpose::STANDARD.encode(bytes)
    };
    to_json(&List {
        object: "list",
        data: embeddings
            .vectors
            .iter()
            .enumerate()
            .map(|(index, values)| Entry {
                object: "embedding",
                index,
                embedding: match encoding {
                    Encoding::Float => Vector::Float(values),
                    Encoding::Base64 => Vector::Base64(vector(values)),
                },
            })
            .collect(),
        model,
        usage: EmbeddingUsage {
            prompt_tokens: embeddings.prompt_tokens,
            total_tokens: embeddings.prompt_tokens,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn inputs_of(input: Value) -> Result<Vec<EmbeddingInput>, Error> {
        parse(json!({"model": "m", "input": input}).to_string().as_bytes())
            .map(|parsed| parsed.request.inputs)
    }

    #[test]
    fn inputs_are_texts_or_token_ids_one_or_many() {
        let text = |text: &str| EmbeddingInput::Text(text.to_owned());
        assert_eq!(inputs_of(json!("a")), Ok(vec![text("a")]));
        assert_eq!(inputs_of(json!(["a", "b"])), Ok(vec![text("a"), text("b")]));
        assert_eq!(inputs_of(json!([1, 2])), Ok(vec![EmbeddingInput::Tokens(vec![1, 2])]));
        assert_eq!(
            inputs_of(json!([[1], [2, 3]])),
            Ok(vec![EmbeddingInput::Tokens(vec![1]), EmbeddingInput::Tokens(vec![2, 3])])
        );
    }

    #[test]
    fn wrong_inputs_are_named() {
        for (input, param) in [
            (json!(""), "input"),
            (json!([]), "input"),
            (json!(null), "input"),
            (json!(3), "input"),
            (json!(["a", ""]), "input[1]"),
            (json!(["a", 3]), "input[1]"),
            (json!([3, "a"]), "input[1]"),
            (json!([3, -1]), "input[1]"),
            (json!([[]]), "input[0]"),
            (json!([[1, 2.5]]), "input[0][1]"),
            (json!(vec!["a"; MAX_INPUTS + 1]), "input"),
        ] {
            assert_eq!(inputs_of(input.clone()).unwrap_err().param.as_deref(), Some(param), "{input}");
        }
    }

    #[test]
    fn vectors_are_written_as_floats_or_base64() {
        let embeddings = Embeddings { vectors: vec![vec![0.5, -1.0]], prompt_tokens: 3 };
        assert_eq!(
            list("m", Encoding::Float, &embeddings),
            concat!(
                r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.5,-1.0]}],"#,
                r#""model":"m","usage":{"prompt_tokens":3,"total_tokens":3}}"#
            )
        );
        assert!(list("m", Encoding::Base64, &embeddings).contains(r#""embedding":"AAAAPwAAgL8=""#));
    }
}

//! `countTokens`: how many tokens a request's prompt has, without an answer.

use super::write;
use crate::openai::to_json;
use crate::upstream::counted;
use crate::{Error, GenerateRequest};
use serde_json::{Map, Value, json};

/// The body that has `model` count. The Gemini API takes a whole request; Vertex AI (`of_vertex`) what of it is a prompt.
///
/// # Errors
/// When the request holds what the dialect has no words for.
pub fn write_count(request: &GenerateRequest, model: &str, of_vertex: bool) -> Result<String, Error> {
    let asked = write(request, model)?;
    let mut asked: Map<String, Value> =
        serde_json::from_str(&asked).expect("what is written here is an object");
    if of_vertex {
        // "CountTokensRequest" of Vertex AI has these and no more that we write.
        asked.retain(|name, _| {
            ["contents", "systemInstruction", "tools", "generationConfig"].contains(&name.as_str())
        });
        return Ok(to_json(&asked));
    }
    let mut whole = Map::from_iter([("model".to_owned(), format!("models/{model}").into())]);
    whole.extend(asked);
    Ok(to_json(&json!({"generateContentRequest": whole})))
}

/// The tokens that were counted.
///
/// # Errors
/// When the body tells none.
pub fn read_count(body: &[u8]) -> Result<u32, Error> {
    counted(body, "totalTokens")
}

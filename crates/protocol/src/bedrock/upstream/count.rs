//! CountTokens: how many tokens a request's prompt has, without an answer.

use super::write;
use crate::openai::to_json;
use crate::upstream::counted;
use crate::{Error, GenerateRequest};
use serde_json::{Map, Value, json};

/// What of a request for an answer counts (`ConverseTokensRequest` of the service model).
const COUNTED: [&str; 4] = ["messages", "system", "toolConfig", "additionalModelRequestFields"];

/// The body that has `model` count.
///
/// # Errors
/// When the request holds what the dialect, or the model's maker, has no words for.
pub fn write_count(request: &GenerateRequest, model: &str) -> Result<String, Error> {
    let asked = write(request, model)?;
    let mut asked: Map<String, Value> =
        serde_json::from_str(&asked).expect("what is written here is an object");
    asked.retain(|name, _| COUNTED.contains(&name.as_str()));
    Ok(to_json(&json!({"input": {"converse": asked}})))
}

/// The tokens that were counted.
///
/// # Errors
/// When the body tells none.
pub fn read_count(body: &[u8]) -> Result<u32, Error> {
    counted(body, "inputTokens")
}

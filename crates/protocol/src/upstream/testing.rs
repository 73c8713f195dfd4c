//! What tests of translation have in common.

use crate::{Answer, Delta, GenerateRequest, openai};
use serde_json::Value;

/// The canonical form of a chat completion's body.
pub(crate) fn asked(body: &Value) -> GenerateRequest {
    openai::chat::parse(body.to_string().as_bytes()).unwrap().request
}

/// The answer of one choice that these deltas add up to.
pub(crate) fn gathered(deltas: Vec<Delta>) -> Answer {
    let mut answer = Answer::new(1);
    deltas.into_iter().for_each(|delta| answer.push(delta));
    answer
}

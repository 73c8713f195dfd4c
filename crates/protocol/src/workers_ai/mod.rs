//! Workers AI's dialect: native text generation, embeddings and rerank, the catalog, envelopes and error codes.
//!
//! Its OpenAI-compatible routes (`/ai/v1/*`) speak [`crate::openai`], except that their errors carry both shapes.

pub mod binding;
pub mod catalog;
pub mod embeddings;
pub mod error;
pub mod generated;
pub mod generation;
pub mod rerank;

use crate::fields::Object;
use crate::openai::to_json;
use crate::{Error, Places, json};
use serde::Serialize;
use serde_json::Value;
use serde_json::value::RawValue;

/// What a result is wrapped in.
#[derive(Serialize)]
struct Envelope<'a> {
    result: &'a RawValue,
    success: bool,
    errors: [(); 0],
    messages: [(); 0],
    #[serde(skip_serializing_if = "Option::is_none")]
    result_info: Option<catalog::ResultInfo>,
}

/// A result, which is JSON text, in the envelope of the REST API.
#[must_use]
pub fn enveloped(result: String) -> String {
    envelope(result, None)
}

/// Wraps a result, which is JSON text.
pub(crate) fn envelope(result: String, result_info: Option<catalog::ResultInfo>) -> String {
    let result = RawValue::from_string(result).expect("the result was written by serde_json");
    to_json(&Envelope { result: &result, success: true, errors: [], messages: [], result_info })
}

/// The body of `POST /ai/run`: the model's name beside its input.
#[derive(Clone, Debug, PartialEq)]
pub struct Run {
    /// The model's id as the caller wrote it.
    pub model: String,
    /// The input as it stands inside the body.
    pub input: Value,
}

/// Reads the body of `POST /ai/run`.
pub fn parse_run(body: &[u8]) -> Result<Run, Error> {
    let mut fields = Object::root(json::parse(body)?)?;
    let model = crate::openai::parameters::model(&mut fields)?;
    let input = fields.take("input").ok_or_else(|| crate::fields::missing("input"))?;
    crate::openai::chat::options(&mut fields)?;
    fields.finish()?;
    Ok(Run { model, input })
}

/// Reads the body of `POST /ai/run/{model}`: the input alone.
pub fn parse_input(body: &[u8]) -> Result<Value, Error> {
    json::parse(body)
}

/// The input as an object whose fields are named as the caller wrote them.
pub(crate) fn input_object(input: Value, at: InputAt) -> Result<Object, Error> {
    match at {
        InputAt::Root => Object::root(input),
        InputAt::Field => Object::at("input".to_owned(), input),
    }
}

/// Where in the body an input stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputAt {
    /// The body is the input.
    Root,
    /// It is the field `input`.
    Field,
}

impl InputAt {
    /// Where the fields of a canonical request stand, before any is moved.
    #[must_use]
    pub fn places(self) -> Places {
        match self {
            Self::Root => Places::default(),
            Self::Field => Places::inside("input"),
        }
    }
}

//! The list of models.

use super::to_json;
use crate::{ModelInfo, ModelTask};
use serde::Serialize;

#[derive(Serialize)]
struct WireModel<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'a str,
    /// Not OpenAI's: other servers tell the context by this name, and clients read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_model_len: Option<u32>,
    /// Not OpenAI's: what the model is for, so that a client can pick one that talks.
    #[serde(skip_serializing_if = "Option::is_none")]
    task: Option<&'static str>,
}

/// A model that a provider has, of which no more is known than its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Elsewhere {
    /// The name that callers use.
    pub id: String,
    /// The provider.
    pub owner: String,
}

impl<'a> From<&'a Elsewhere> for WireModel<'a> {
    fn from(model: &'a Elsewhere) -> Self {
        let (id, owned_by) = (&model.id, &model.owner);
        Self { id, object: "model", created: 0, owned_by, max_model_len: None, task: None }
    }
}

impl<'a> From<&'a ModelInfo> for WireModel<'a> {
    fn from(model: &'a ModelInfo) -> Self {
        Self {
            id: &model.id,
            object: "model",
            created: model.created,
            owned_by: "hearth",
            max_model_len: Some(model.context),
            task: Some(match model.task {
                ModelTask::TextGeneration => "text-generation",
                ModelTask::TextEmbeddings => "text-embeddings",
                ModelTask::Rerank => "rerank",
            }),
        }
    }
}

/// All models: those here, and those that providers have.
#[must_use]
pub fn list(models: &[ModelInfo], elsewhere: &[Elsewhere]) -> String {
    #[derive(Serialize)]
    struct List<'a> {
        object: &'static str,
        data: Vec<WireModel<'a>>,
    }
    to_json(&List {
        object: "list",
        data: models.iter().map(Into::into).chain(elsewhere.iter().map(Into::into)).collect(),
    })
}

/// One model.
#[must_use]
pub fn one(model: &ModelInfo) -> String {
    to_json(&WireModel::from(model))
}

/// One that a provider has.
#[must_use]
pub fn elsewhere(model: &Elsewhere) -> String {
    to_json(&WireModel::from(model))
}

//! The list of models.

use super::to_json;
use crate::{ModelInfo, ModelTask};
use serde::Serialize;

#[derive(Serialize)]
struct WireModel<'a> {
    id: &'a str,
    object: &'static str,
    created: u64,
    owned_by: &'static str,
    /// Not OpenAI's: other servers tell the context by this name, and clients read it.
    max_model_len: u32,
    /// Not OpenAI's: what the model is for, so that a client can pick one that talks.
    task: &'static str,
}

impl<'a> From<&'a ModelInfo> for WireModel<'a> {
    fn from(model: &'a ModelInfo) -> Self {
        Self {
            id: &model.id,
            object: "model",
            created: model.created,
            owned_by: "hearth",
            max_model_len: model.context,
            task: match model.task {
                ModelTask::TextGeneration => "text-generation",
                ModelTask::TextEmbeddings => "text-embeddings",
                ModelTask::Rerank => "rerank",
            },
        }
    }
}

/// All models.
#[must_use]
pub fn list(models: &[ModelInfo]) -> String {
    #[derive(Serialize)]
    struct List<'a> {
        object: &'static str,
        data: Vec<WireModel<'a>>,
    }
    to_json(&List { object: "list", data: models.iter().map(Into::into).collect() })
}

/// One model.
#[must_use]
pub fn one(model: &ModelInfo) -> String {
    to_json(&WireModel::from(model))
}

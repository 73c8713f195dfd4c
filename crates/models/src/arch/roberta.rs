//! RoBERTa and XLM-RoBERTa as rerankers (bge-reranker-base, bge-reranker-v2-m3 and their kin).

use super::{Architecture, Build, bert};
use crate::config::HfConfig;
use crate::cross_encoder::CrossEncoderSpec;
use crate::encoder::EncoderNames;
use crate::load::LoadError;

pub(super) const RERANKER: Architecture = Architecture {
    name: "roberta-reranker",
    gguf: &[],
    hugging_face: &["XLMRobertaForSequenceClassification", "RobertaForSequenceClassification"],
    build: Build::CrossEncoder { hugging_face },
};

const NAMES: EncoderNames = EncoderNames {
    prefixes: &["roberta."],
    // A head for training that the classifier does without, and an index that some files carry.
    inert: &["lm_head.", "roberta.pooler.", "embeddings.position_ids"],
    ..bert::HUGGING_FACE
};

fn hugging_face(config: &HfConfig<'_>) -> Result<CrossEncoderSpec, LoadError> {
    let mut trunk = bert::trunk(config, NAMES)?;
    // Positions count from behind the one that padding has.
    trunk.first_position = config.size("pad_token_id")?.unwrap_or(1) + 1;
    if trunk.first_position >= trunk.context {
        let reason = format!("{} leaves none of {} positions", trunk.first_position - 1, trunk.context);
        return Err(LoadError::config("pad_token_id", reason));
    }
    trunk.context -= trunk.first_position;
    Ok(CrossEncoderSpec { trunk: trunk.checked()?, dense: "classifier.dense", output: "classifier.out_proj" })
}

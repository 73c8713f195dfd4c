//! Rerankers from their files to scores, on the committed tiny models.

#![allow(clippy::unwrap_used)]

use base::{Bytes, SystemClock, Tokens};
use models::checkpoint::GenerationDefaults;
use protocol::{
    Backend, EmbeddingRequest, ErrorKind, GenerateRequest, ModelTask, RerankRequest, TokenizeRequest,
};
use serde_json::Value;
use serving::{LoadFormat, Local, LocalConfig, ModelSource};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const RERANKERS: [&str; 2] = ["bert-reranker", "roberta-reranker"];

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(name)
}

fn local(names: &[&str]) -> Arc<Local> {
    let config = LocalConfig { threads: Some(2), kv_memory: Some(Bytes(16 << 20)), ..LocalConfig::default() };
    let local = Local::new(config, Arc::new(SystemClock::default())).unwrap();
    for name in names {
        let source = ModelSource {
            id: (*name).into(),
            aliases: Vec::new(),
            path: fixture(name),
            format: LoadFormat::AsStored,
            price: None,
            description: String::new(),
            defaults: GenerationDefaults::default(),
        };
        local.load(source, &mut |_, _| ()).unwrap();
    }
    local
}

fn request(model: &str, query: &str, documents: &[&str]) -> RerankRequest {
    let documents = documents.iter().map(|text| (*text).to_owned()).collect();
    RerankRequest { model: model.into(), query: query.into(), documents }
}

/// Query, document, number of tokens and logit of each golden case.
fn golden(name: &str) -> Vec<(String, String, u32, f32)> {
    let file: Value =
        serde_json::from_slice(&std::fs::read(fixture(name).join("golden.json")).unwrap()).unwrap();
    let bytes = std::fs::read(fixture(name).join("golden.f32")).unwrap();
    let logits = bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
    let cases = file["variants"][0]["cases"].as_array().unwrap().iter();
    let text = |case: &Value, key: &str| case[key].as_str().unwrap().to_owned();
    cases
        .zip(logits)
        .map(|(case, logit)| {
            let tokens = case["ids"].as_array().unwrap().len() as u32;
            (text(case, "query"), text(case, "document"), tokens, logit)
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn scores_are_the_logistic_function_of_the_reference_s_logits() {
    let local = local(&RERANKERS);
    for name in RERANKERS {
        for (query, document, tokens, logit) in golden(name) {
            let answer = local.rerank(request(name, &query, &[&document])).await.unwrap();
            let expected = 1.0 / (1.0 + (-logit).exp());
            assert!((answer.scores[0] - expected).abs() < 1e-5, "{name} {query:?} {document:?}");
            // The longest document was cut as the reference cut it.
            assert_eq!(answer.prompt_tokens, tokens, "{name} {query:?} {document:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_score_is_the_same_whatever_is_scored_beside_it() {
    let local = local(&RERANKERS);
    let long = "the dog runs after the fox ".repeat(20);
    let documents = ["", "a", "the fox", &long, "Paris is the capital of France.", "the fox", "東京"];
    for name in RERANKERS {
        let together = local.rerank(request(name, "the fox", &documents)).await.unwrap().scores;
        for (document, score) in documents.iter().zip(&together) {
            let alone = local.rerank(request(name, "the fox", &[document])).await.unwrap().scores;
            assert_eq!(alone, [*score], "{name} {document:?}");
        }
        assert!(together.iter().all(|score| (0.0..=1.0).contains(score)));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_query_without_room_for_a_document_is_refused() {
    let local = local(&RERANKERS);
    for name in RERANKERS {
        let long = "the fox ".repeat(200);
        let error = local.rerank(request(name, &long, &["a"])).await.unwrap_err();
        assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::ContextLength, Some("query")), "{name}");
        assert!(error.message.contains("64"), "{error}");
        // A thousand words that the vocabulary has no characters for are still a document.
        let strange = "\u{10ffff} ".repeat(1000);
        assert!(local.rerank(request(name, "the fox", &[&strange])).await.is_ok(), "{name}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn models_of_other_tasks_do_not_rerank_and_rerankers_do_nothing_else() {
    let local = local(&["qwen2", "bert-reranker"]);
    let info = local.models().into_iter().find(|info| info.id == "bert-reranker").unwrap();
    assert_eq!((info.task, info.context, info.dimensions), (ModelTask::Rerank, 64, None));
    let error = local.rerank(request("qwen2", "q", &["a"])).await.unwrap_err();
    assert!(error.param.as_deref() == Some("model") && error.message.contains("not a model that reranks"));
    let model = || "bert-reranker".to_owned();
    let embed = EmbeddingRequest { model: model(), inputs: Vec::new() };
    let generate = GenerateRequest { model: model(), ..GenerateRequest::default() };
    let tokenize = TokenizeRequest { model: model(), text: "a".into(), add_special: true };
    for error in [
        local.embed(embed).await.err(),
        local.generate(generate).await.err(),
        local.tokenize(tokenize).await.err(),
    ] {
        let error = error.unwrap();
        assert_eq!((error.kind, error.param.as_deref()), (ErrorKind::InvalidRequest, Some("model")));
    }
    assert_eq!(Tokens(64), Tokens(info.context));
}

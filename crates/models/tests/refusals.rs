//! What a checkpoint asks for and is not built is refused by name; what is only sloppy loads.
#![allow(clippy::unwrap_used, reason = "helpers of tests may end the test")]

mod support;

use device::{KvReach, LoadFormat};
use models::{Checkpoint, LoadError, Loaded, load};
use serde_json::{Value, json};
use std::path::Path;
use support::naive::{KvPrecision, Naive};
use support::{amended, embedding, fixture, logits};

fn open(path: &Path) -> Result<Loaded, LoadError> {
    let device = Naive { kv: KvPrecision::Single };
    load(&Checkpoint::open(path).unwrap(), device, LoadFormat::AsStored, &mut |_, _| {})
}

fn with(architecture: &str, amendments: Value) -> Result<Loaded, LoadError> {
    let Value::Object(amendments) = amendments else { panic!("amendments are an object") };
    open(amended(architecture, &amendments).path())
}

/// The error's text names all `parts`.
#[track_caller]
fn refused(architecture: &str, amendments: Value, parts: &[&str]) {
    let Err(error) = with(architecture, amendments) else { panic!("{architecture} loaded") };
    let text = error.to_string();
    assert!(parts.iter().all(|part| text.contains(part)), "{text}");
}

#[test]
fn arithmetic_that_is_not_built_is_refused_by_name() {
    refused("llama", json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}), &["rope", "yarn"]);
    refused("llama", json!({"quantization_config": {"bits": 4}}), &["quantization_config"]);
    refused("llama", json!({"hidden_act": "relu"}), &["hidden_act", "relu"]);
    refused("llama", json!({"partial_rotary_factor": 0.5}), &["partial_rotary_factor"]);
    refused("qwen3", json!({"num_experts": 8}), &["num_experts", "8"]);
    refused("gemma3", json!({"final_logit_softcapping": 30.0}), &["final_logit_softcapping"]);
    refused("gemma3", json!({"use_bidirectional_attention": true}), &["use_bidirectional_attention"]);
    refused("gemma3", json!({"layer_types": ["full_attention"]}), &["layer_types", "1", "3"]);
    refused("bert", json!({"position_embedding_type": "relative_key"}), &["position_embedding_type"]);
}

#[test]
fn an_unknown_architecture_is_refused_with_the_known_ones() {
    refused("llama", json!({"model_type": "mamba"}), &["mamba", "llama", "qwen3", "gemma3_text", "bert"]);
    refused("llama", json!({"model_type": null}), &["model_type", "missing"]);
}

#[test]
fn sizes_that_do_not_fit_the_tensors_are_refused_with_the_tensor() {
    refused("llama", json!({"intermediate_size": 96}), &["mlp.gate_proj.weight", "[96, 64]", "[64, 64]"]);
    refused("llama", json!({"hidden_size": 128}), &["embed_tokens.weight", "128"]);
    refused("llama", json!({"num_attention_heads": 0}), &["zero"]);
    refused("llama", json!({"num_attention_heads": 3, "head_dim": 16}), &["multiple"]);
    refused("llama", json!({"head_dim": 15}), &["odd"]);
    refused("llama", json!({"num_attention_heads": 64, "num_key_value_heads": 1}), &["64 for 1 key heads"]);
    refused("gemma3", json!({"sliding_window": 0}), &["sliding window", "zero"]);
    refused("qwen2", json!({"use_sliding_window": true, "sliding_window": 0}), &["sliding window", "zero"]);
    refused("llama", json!({"num_hidden_layers": -1}), &["num_hidden_layers", "-1"]);
    refused("llama", json!({"num_hidden_layers": 10_000_000}), &["layers", "10000000"]);
    refused("llama", json!({"num_hidden_layers": 1e30}), &["num_hidden_layers"]);
}

#[test]
fn tensors_left_out_or_left_over_are_refused_by_name() {
    refused("llama", json!({"num_hidden_layers": 3}), &["model.layers.2."]);
    refused("llama", json!({"num_hidden_layers": 1}), &["9 tensor", "model.layers.1.", "…"]);
    // Read as Llama, Qwen3's head norms would be left out.
    refused("qwen3", json!({"model_type": "llama"}), &["_norm.weight"]);
    // Read as Qwen2, Llama lacks biases.
    refused("llama", json!({"model_type": "qwen2"}), &["q_proj.bias"]);
}

#[test]
fn a_vocabulary_that_the_description_misstates_is_the_tables_own() {
    let Ok(Loaded::Language(model)) = with("llama", json!({"vocab_size": 999})) else {
        panic!("the table says how large it is");
    };
    assert_eq!(model.spec().vocab, 320);
}

#[test]
fn a_kept_copy_of_a_tied_output_is_not_used() {
    let Ok(Loaded::Language(mut tied)) = with("llama", json!({"tie_word_embeddings": true})) else {
        panic!("a copy does no harm");
    };
    let Ok(Loaded::Language(mut untied)) = with("llama", json!({})) else { panic!("the fixture loads") };
    assert_ne!(logits(&mut *tied, &[5, 6], &[1]), logits(&mut *untied, &[5, 6], &[1]));
}

/// A copy of a reranker whose output matrix has as many rows as the fixture's has columns.
fn with_labels(architecture: &str, output: &str) -> tempfile::TempDir {
    let folder = amended(architecture, &serde_json::Map::new());
    let path = folder.path().join("model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let find =
        |bytes: &[u8], text: &str| bytes.windows(text.len()).position(|at| at == text.as_bytes()).unwrap();
    let entry = find(&bytes, &format!("\"{output}\""));
    let shape = entry + find(&bytes[entry..], "[1,32]");
    bytes[shape..shape + 6].copy_from_slice(b"[32,1]");
    std::fs::write(&path, bytes).unwrap();
    folder
}

#[test]
fn rerankers_that_would_not_rank_are_refused_by_name() {
    for (architecture, output) in
        [("bert-reranker", "classifier.weight"), ("roberta-reranker", "classifier.out_proj.weight")]
    {
        let Err(error) = open(with_labels(architecture, output).path()) else {
            panic!("{architecture} loaded")
        };
        let text = error.to_string();
        assert!(text.contains(output) && text.contains("32 labels; a reranker has one"), "{text}");
    }
    // Of another family, the head is elsewhere.
    let bert = json!({"architectures": ["BertForSequenceClassification"], "model_type": "bert"});
    refused("roberta-reranker", bert, &["classifier.weight"]);
    refused(
        "bert-reranker",
        json!({"position_embedding_type": "relative_key"}),
        &["position_embedding_type"],
    );
    // Padding has the last position: none is left.
    refused("roberta-reranker", json!({"pad_token_id": 65}), &["pad_token_id", "66 positions"]);
    refused("roberta-reranker", json!({"pad_token_id": -1}), &["pad_token_id", "-1"]);
}

#[test]
fn an_encoders_limit_is_the_shorter_of_its_files() {
    let path = fixture("bert");
    let model = embedding(&path, Naive { kv: KvPrecision::Single });
    assert_eq!((model.spec().context.0, model.spec().dimensions, model.spec().vocab), (48, 64, 96));
    let bare = amended("bert", &serde_json::Map::new());
    let model = embedding(bare.path(), Naive { kv: KvPrecision::Single });
    assert_eq!(model.spec().context.0, 64);
}

#[test]
fn progress_grows_to_its_total() {
    let checkpoint = Checkpoint::open(&fixture("qwen2")).unwrap();
    let mut seen = Vec::new();
    let device = Naive { kv: KvPrecision::Single };
    load(&checkpoint, device, LoadFormat::AsStored, &mut |done, total| seen.push((done, total))).unwrap();
    assert!(seen.is_sorted());
    let (first, last) = (seen[0], seen[seen.len() - 1]);
    assert_eq!(first.0, 0);
    assert!(last.0 == last.1 && last.1 == first.1 && last.1 > 0);
}

#[test]
fn a_sliding_window_off_by_one_would_be_noticed() {
    for (architecture, window) in [("gemma3", 15), ("gemma3", 17)] {
        let Ok(Loaded::Language(mut off)) = with(architecture, json!({"sliding_window": window})) else {
            panic!("any window loads");
        };
        let Ok(Loaded::Language(mut right)) = with(architecture, json!({})) else {
            panic!("the fixture loads")
        };
        let ids: Vec<u32> = (0..20).map(|i| i * 7 % 160).collect();
        // Rows whose whole past fits both windows are equal, the first beyond is not.
        let first = window.min(16);
        let row = |model: &mut dyn models::LanguageModel, at: u32| logits(model, &ids, &[at]);
        assert_eq!(row(&mut *off, first - 1), row(&mut *right, first - 1));
        assert_ne!(row(&mut *off, first), row(&mut *right, first));
    }
}

#[test]
fn a_window_that_is_not_mentioned_is_the_formats_own() {
    let reach = |architecture, amendments| {
        let Ok(Loaded::Language(model)) = with(architecture, amendments) else { panic!("it loads") };
        model.spec().kv.groups.iter().map(|group| group.reach).collect::<Vec<_>>()
    };
    let (full, window) = (KvReach::Full, KvReach::Window(4096));
    assert_eq!(reach("llama", json!({"model_type": "mistral"})), [window]);
    assert_eq!(reach("llama", json!({"model_type": "mistral", "sliding_window": null})), [full]);
    assert_eq!(reach("llama", json!({})), [full]);
    let null = json!({"use_sliding_window": true, "sliding_window": null, "max_window_layers": 1});
    assert_eq!(reach("qwen2", null), [full]);
    assert_eq!(reach("qwen2", json!({"use_sliding_window": false})), [full]);
}

#[test]
fn without_wanted_rows_nothing_is_answered_and_the_cache_is_filled() {
    let mut model = support::language(&fixture("llama"), Naive { kv: KvPrecision::Single });
    let whole = logits(&mut *model, &[5, 6, 7], &[2]);
    assert!(logits(&mut *model, &[5, 6], &[]).is_empty());
    let mut batch = device::Batch::default();
    batch.push(&[7], 2, &[device::PageId(0)]);
    batch.logit_rows.push(0);
    assert_eq!(model.forward(&batch), whole);
    assert!(model.forward(&device::Batch::default()).is_empty());
}

//! The files of real models, where they are on this machine.

use std::path::{Path, PathBuf};

use models::Checkpoint;

/// The folder of test models, or a note that the test is skipped.
fn models_folder(test: &str) -> Option<PathBuf> {
    let folder = std::env::var_os("HEARTH_TEST_MODELS").map(PathBuf::from);
    if folder.is_none() {
        println!("skipped: {test} (HEARTH_TEST_MODELS is not set)");
    }
    folder
}

fn each(folder: &Path) -> Vec<Checkpoint> {
    let files = [
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        "gemma-3-270m-q4_k_m.gguf",
        "all-MiniLM-L6-v2",
    ];
    let here = files.iter().map(|file| folder.join(file)).filter(|path| path.exists());
    here.map(|path| Checkpoint::open(&path).unwrap()).collect()
}

#[test]
fn every_tensor_of_a_real_model_has_the_bytes_of_its_shape() {
    let Some(folder) = models_folder("every_tensor_of_a_real_model_has_the_bytes_of_its_shape") else {
        return;
    };
    for checkpoint in each(&folder) {
        let mut count = 0;
        for name in checkpoint.tensor_names() {
            let Ok(tensor) = checkpoint.tensor(name) else {
                assert_eq!(name, "embeddings.position_ids", "only this is no weight");
                continue;
            };
            let row = tensor.dtype.row_bytes(*tensor.shape.last().unwrap()).unwrap();
            let rows: usize = tensor.shape[..tensor.shape.len() - 1].iter().product();
            assert_eq!(tensor.bytes.len(), rows * row, "{name}");
            assert!(tensor.shape.len() <= 2, "{name}");
            count += 1;
        }
        assert!(count > 90, "{}: {count} tensors", checkpoint.path().display());
        checkpoint.verify().unwrap();
    }
}

#[test]
fn real_models_say_what_they_are() {
    let Some(folder) = models_folder("real_models_say_what_they_are") else { return };
    for checkpoint in each(&folder) {
        let summary = checkpoint.summary().unwrap();
        println!("{}: {summary:?}", checkpoint.path().display());
        println!("  {:?}", checkpoint.generation_defaults().unwrap());
        assert!(summary.parameters > 20_000_000);
        assert!(summary.context.is_some());
        let embeds = matches!(checkpoint, Checkpoint::HuggingFace(_));
        assert!(summary.has_chat_template || embeds || summary.architecture == "gemma3");
    }
}

#[test]
fn real_vocabularies_are_complete() {
    let Some(folder) = models_folder("real_vocabularies_are_complete") else { return };
    for checkpoint in each(&folder) {
        let Checkpoint::Gguf(gguf) = &checkpoint else { continue };
        let vocabulary = gguf.vocabulary().unwrap();
        let embedding = gguf.tensor("token_embd.weight").unwrap();
        assert_eq!(vocabulary.tokens.len(), embedding.shape[0]);
        assert_eq!(vocabulary.types.len(), vocabulary.tokens.len());
        assert!(vocabulary.eos.is_some());
        assert!(vocabulary.tokens.iter().all(|token| std::str::from_utf8(token).is_ok()));
        match vocabulary.model {
            "gpt2" => assert!(!vocabulary.merges.is_empty()),
            "llama" => assert_eq!(vocabulary.scores.len(), vocabulary.tokens.len()),
            other => panic!("unexpected tokenizer {other}"),
        }
    }
}

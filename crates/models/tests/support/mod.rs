//! What the tests of this crate share: the fixtures and a way to run a model over a sequence.
//! Not every test file uses all of it.
#![allow(dead_code)]

pub mod naive;
pub mod schedule;

use device::{Batch, Device, LoadFormat, PAGE_TOKENS, PageId};
use models::{Checkpoint, EmbeddingModel, LanguageModel, Loaded, PairIds, RerankModel, load};
use serde::Deserialize;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// `golden.json` of a fixture.
#[derive(Deserialize)]
pub struct Golden {
    pub width: usize,
    pub variants: Vec<Variant>,
}

/// Amendments to the fixture's configuration, and what the reference answers then.
#[derive(Deserialize)]
pub struct Variant {
    pub name: String,
    pub config: serde_json::Map<String, Value>,
    /// Whether the GGUF file of the fixture is of this variant.
    pub gguf: bool,
    pub cases: Vec<Case>,
}

#[derive(Deserialize)]
pub struct Case {
    pub ids: Vec<u32>,
    /// Whose logits are in the golden file; absent for encoders, which have one vector.
    #[serde(default)]
    pub positions: Vec<u32>,
    /// Types of a pair's tokens; absent for other models than rerankers.
    #[serde(default)]
    pub types: Vec<u32>,
}

impl Case {
    pub fn rows(&self) -> usize {
        self.positions.len().max(1)
    }

    pub fn pair(&self) -> PairIds<'_> {
        PairIds { ids: &self.ids, types: &self.types }
    }
}

pub fn fixture(architecture: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/models").join(architecture)
}

/// A fixture's cases and the rows that belong to them, in order.
pub fn golden(architecture: &str) -> (Golden, Vec<f32>) {
    let folder = fixture(architecture);
    let golden = std::fs::read(folder.join("golden.json"))
        .unwrap_or_else(|error| panic!("architecture {architecture} has no golden fixture: {error}"));
    let bytes = std::fs::read(folder.join("golden.f32")).unwrap();
    let rows = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    (serde_json::from_slice(&golden).unwrap(), rows)
}

/// The fixture with an amended configuration, in a folder of its own.
pub fn amended(architecture: &str, amendments: &serde_json::Map<String, Value>) -> tempfile::TempDir {
    let from = fixture(architecture);
    let folder = tempfile::tempdir().unwrap();
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    for (key, value) in amendments {
        config[key] = value.clone();
    }
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::copy(from.join("model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    folder
}

pub fn loaded(path: &Path, device: impl Device) -> Loaded {
    let checkpoint = Checkpoint::open(path).unwrap();
    load(&checkpoint, device, LoadFormat::AsStored, &mut |_, _| {}).unwrap()
}

pub fn language(path: &Path, device: impl Device) -> Box<dyn LanguageModel> {
    match loaded(path, device) {
        Loaded::Language(model) => model,
        Loaded::Embedding(_) | Loaded::Rerank(_) => panic!("{} is an encoder", path.display()),
    }
}

pub fn embedding(path: &Path, device: impl Device) -> Box<dyn EmbeddingModel> {
    match loaded(path, device) {
        Loaded::Embedding(model) => model,
        Loaded::Language(_) | Loaded::Rerank(_) => panic!("{} makes no vectors", path.display()),
    }
}

pub fn reranker(path: &Path, device: impl Device) -> Box<dyn RerankModel> {
    match loaded(path, device) {
        Loaded::Rerank(model) => model,
        Loaded::Language(_) | Loaded::Embedding(_) => panic!("{} does not rerank", path.display()),
    }
}

/// Pages `first..` for this many tokens, each with memory.
pub fn pages(model: &mut dyn LanguageModel, first: u32, tokens: usize) -> Vec<PageId> {
    let pages: Vec<PageId> =
        (0..tokens.div_ceil(PAGE_TOKENS) as u32).map(|page| PageId(first + page)).collect();
    pages.iter().for_each(|page| model.ensure_page(*page).unwrap());
    pages
}

/// Logits at `positions` of a sequence that is worked on in one go.
pub fn logits(model: &mut dyn LanguageModel, ids: &[u32], positions: &[u32]) -> Vec<f32> {
    let pages = pages(model, 0, ids.len());
    let mut batch = Batch::default();
    batch.push(ids, 0, &pages);
    batch.logit_rows.extend(positions);
    model.forward(&batch).to_vec()
}

pub fn argmax(row: &[f32]) -> usize {
    (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]).then(b.cmp(a))).unwrap()
}

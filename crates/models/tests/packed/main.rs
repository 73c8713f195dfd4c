//! Packed weights kept on disk: the same bits as packing anew, and never believed where they should not be.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "helpers of tests may end the test"
)]

#[path = "../../../kernels/tests/common/mod.rs"]
mod blocks;
mod damage;
mod processes;
#[path = "../support/mod.rs"]
mod support;
#[allow(dead_code)]
#[path = "../checkpoint/writer.rs"]
mod writer;

use device::{DType, Device, LoadFormat};
use kernels::{Cpu, CpuConfig};
use models::{
    Checkpoint, KeptState, Loaded, PackedFolder, PackedWrite, PairIds, architectures, load, load_kept,
};
use std::path::{Path, PathBuf};
use support::naive::{KvPrecision, Naive};

const WIDTH: u64 = 256;
/// No multiple of a panel's sixteen rows.
const VOCAB: u64 = 39;

fn cpu() -> Cpu {
    Cpu::new(CpuConfig { threads: Some(2), isa: None }).unwrap()
}

fn gguf_type(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q4_1 => 3,
        DType::Q5_0 => 6,
        DType::Q5_1 => 7,
        DType::Q8_0 => 8,
        DType::Q2K => 10,
        DType::Q3K => 11,
        DType::Q4K => 12,
        DType::Q5K => 13,
        DType::Q6K => 14,
        DType::Iq4Nl => 20,
        DType::Bf16 => 30,
    }
}

/// A model of one layer with random weights of one format.
fn write_model(path: &Path, dtype: DType, seed: u64) {
    let mut file = writer::GgufWriter::default()
        .str("general.architecture", "llama")
        .u32("llama.context_length", 64)
        .u32("llama.embedding_length", WIDTH as u32)
        .u32("llama.block_count", 1)
        .u32("llama.feed_forward_length", WIDTH as u32)
        .u32("llama.attention.head_count", 4)
        .u32("llama.attention.head_count_kv", 2)
        .f32("llama.attention.layer_norm_rms_epsilon", 1e-5);
    let ones: Vec<u8> = (0..WIDTH).flat_map(|_| 1f32.to_le_bytes()).collect();
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        file = file.tensor(&format!("{name}.weight"), &[WIDTH], 0, &ones);
    }
    let matrices = [
        ("token_embd", VOCAB),
        ("blk.0.attn_q", WIDTH),
        ("blk.0.attn_k", WIDTH / 2),
        ("blk.0.attn_v", WIDTH / 2),
        ("blk.0.attn_output", WIDTH),
        ("blk.0.ffn_gate", WIDTH),
        ("blk.0.ffn_up", WIDTH),
        ("blk.0.ffn_down", WIDTH),
    ];
    for (number, (name, rows)) in (seed..).zip(matrices) {
        let data = blocks::weights(dtype, rows as usize, WIDTH as usize, number);
        file = file.tensor(&format!("{name}.weight"), &[WIDTH, rows], gguf_type(dtype), &data);
    }
    std::fs::write(path, file.bytes()).unwrap();
}

/// What a model answers, as bits.
fn answers(loaded: &mut Loaded) -> Vec<u32> {
    let ids: Vec<u32> = (0..20).map(|i| i * 7 % 30).collect();
    match loaded {
        Loaded::Language(model) => blocks::bits(&support::logits(&mut **model, &ids, &[0, 7, 19])),
        Loaded::Embedding(model) => blocks::bits(&model.embed(&[&ids, &ids[..3]]).concat()),
        Loaded::Rerank(model) => {
            blocks::bits(&model.score(&[PairIds { ids: &ids[..5], types: &[0, 0, 0, 0, 0] }]))
        }
    }
}

/// A model beside a folder for its packed weights.
struct World {
    folder: tempfile::TempDir,
    model: PathBuf,
    packed: PackedFolder,
}

impl World {
    fn new(dtype: DType) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let model = folder.path().join("model.gguf");
        write_model(&model, dtype, 1);
        Self::of(folder, model)
    }

    fn of(folder: tempfile::TempDir, model: PathBuf) -> Self {
        let packed = PackedFolder::new(folder.path().join("packed"));
        Self { folder, model, packed }
    }

    fn start(&self, format: LoadFormat) -> (Loaded, Option<PackedWrite>) {
        let checkpoint = Checkpoint::open(&self.model).unwrap();
        load_kept(&checkpoint, cpu(), format, &self.packed, &mut |_, _| {}).unwrap()
    }

    /// A start that must find nothing to believe, and keeps what it packed.
    #[track_caller]
    fn cold(&self) -> Vec<u32> {
        let (mut loaded, write) = self.start(LoadFormat::AsStored);
        write.expect("nothing was believed").run().unwrap().expect("nobody else writes");
        answers(&mut loaded)
    }

    /// A start that must not pack anything.
    #[track_caller]
    fn warm(&self) -> Vec<u32> {
        let (mut loaded, write) = self.start(LoadFormat::AsStored);
        assert!(write.is_none(), "the packed weights were not used");
        answers(&mut loaded)
    }

    /// The only file of the folder.
    #[track_caller]
    fn file(&self) -> PathBuf {
        let files = self.packed.list(Cpu::packing()).unwrap();
        assert_eq!(files.len(), 1, "{files:?}");
        files[0].path.clone()
    }

    fn states(&self) -> Vec<KeptState> {
        self.packed.list(Cpu::packing()).unwrap().iter().map(|file| file.state).collect()
    }
}

#[test]
fn a_warm_start_gives_the_bits_of_a_cold_one_in_every_weight_format() {
    for dtype in DType::ALL {
        let world = World::new(dtype);
        let checkpoint = Checkpoint::open(&world.model).unwrap();
        let mut plain = load(&checkpoint, cpu(), LoadFormat::AsStored, &mut |_, _| {}).unwrap();
        let expected = answers(&mut plain);
        assert_eq!(world.cold(), expected, "{}", dtype.name());
        assert_eq!(world.warm(), expected, "{}", dtype.name());
    }
}

#[test]
fn every_architecture_and_load_format_starts_warm_from_files_of_their_own() {
    let folder = tempfile::tempdir().unwrap();
    let packed = PackedFolder::new(folder.path().join("packed"));
    let mut files = 0;
    for architecture in architectures() {
        for format in [LoadFormat::AsStored, LoadFormat::Int8, LoadFormat::Int4] {
            let start = || {
                let checkpoint = Checkpoint::open(&support::fixture(architecture.name)).unwrap();
                load_kept(&checkpoint, cpu(), format, &packed, &mut |_, _| {}).unwrap()
            };
            let (mut cold, write) = start();
            write.expect("a first start").run().unwrap().unwrap();
            let (mut warm, write) = start();
            assert!(write.is_none(), "{} {format:?}", architecture.name);
            assert_eq!(answers(&mut warm), answers(&mut cold), "{} {format:?}", architecture.name);
            files += 1;
        }
    }
    assert_eq!(packed.list(Cpu::packing()).unwrap().len(), files);
}

#[test]
fn a_device_that_has_no_packed_form_keeps_nothing() {
    let world = World::new(DType::F32);
    let checkpoint = Checkpoint::open(&world.model).unwrap();
    let naive = Naive { kv: KvPrecision::Half };
    let (_, write) =
        load_kept(&checkpoint, naive, LoadFormat::AsStored, &world.packed, &mut |_, _| {}).unwrap();
    assert!(write.is_none());
    assert_eq!(world.states(), []);
}

#[test]
fn a_list_tells_which_files_no_start_will_use() {
    let world = World::new(DType::Q4_0);
    assert_eq!(world.states(), [], "a folder that is not there is empty");
    world.cold();
    assert_eq!(world.states(), [KeptState::Current]);
    let file = &world.packed.list(Cpu::packing()).unwrap()[0];
    assert!(file.is_of(&world.model) && file.is_of(world.folder.path()));
    assert!(!file.is_of(Path::new("/elsewhere")));
    assert!(file.size.0 > 100_000);

    let other = world.packed.list(Some("another packer")).unwrap();
    assert_eq!(other[0].state, KeptState::Stale);
    write_model(&world.model, DType::Q8_0, 1);
    assert_eq!(world.states(), [KeptState::Stale]);
    std::fs::remove_file(&world.model).unwrap();
    assert_eq!(world.states(), [KeptState::Gone]);
    std::fs::write(world.file(), "nonsense").unwrap();
    assert_eq!(world.states(), [KeptState::Unreadable]);
}

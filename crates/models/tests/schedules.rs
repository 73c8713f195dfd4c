//! What a row answers does not depend on how the work is cut, ordered or shared: bit for bit.
#![allow(clippy::unwrap_used, reason = "helpers of tests may end the test")]

mod support;

use device::{Device, KvFormat, LoadFormat};
use kernels::{Cpu, CpuConfig, Isa};
use models::{Checkpoint, LoadOptions, Loaded, PairIds, Task, architectures, load};
use support::naive::{KvPrecision, Naive};
use support::{embedding, fixture, language, reranker, schedule};

fn cpu(threads: usize, isa: Isa) -> Cpu {
    Cpu::new(CpuConfig { threads: Some(threads), isa: Some(isa) }).unwrap()
}

fn loaded_as(architecture: &str, device: impl Device, options: impl Into<LoadOptions>) -> Loaded {
    load(&Checkpoint::open(&fixture(architecture)).unwrap(), device, options, &mut |_, _| {}).unwrap()
}

#[test]
fn no_schedule_changes_a_logit_on_the_exact_device() {
    for architecture in architectures().iter().filter(|entry| entry.task() == Task::Generation) {
        let load = || language(&fixture(architecture.name), Naive { kv: KvPrecision::Single });
        schedule::check_against(&mut *load(), &mut *load(), 1);
    }
}

/// The number of threads changes between the answer alone and the schedules, too.
fn check_cpu(options: impl Into<LoadOptions>, isa: Isa) {
    let options = options.into();
    for architecture in architectures() {
        let load = |threads| loaded_as(architecture.name, cpu(threads, isa), options);
        let Loaded::Language(mut alone) = load(1) else { continue };
        for threads in 1..=3 {
            let Loaded::Language(mut model) = load(threads) else { unreachable!("loaded before") };
            schedule::check_against(&mut *alone, &mut *model, threads as u64);
        }
    }
}

#[test]
fn no_schedule_or_number_of_threads_changes_a_logit_on_the_cpu() {
    Cpu::isas().into_iter().for_each(|isa| check_cpu(LoadFormat::AsStored, isa));
}

#[test]
fn no_schedule_or_number_of_threads_changes_a_logit_of_quantised_weights() {
    let best = *Cpu::isas().last().unwrap();
    check_cpu(LoadFormat::Int8, best);
    check_cpu(LoadFormat::Int4, best);
}

#[test]
fn no_schedule_or_number_of_threads_changes_a_logit_in_any_format_of_keys_and_values() {
    let best = *Cpu::isas().last().unwrap();
    for kv in [KvFormat::Bf16, KvFormat::Int8] {
        check_cpu(LoadOptions { kv, ..LoadOptions::default() }, best);
    }
}

#[test]
fn a_vector_does_not_depend_on_neighbours_or_threads_on_the_cpu() {
    let inputs: Vec<Vec<u32>> = (1..48).map(|len| (0..len).map(|i| (i * 7 + len) % 96).collect()).collect();
    let inputs: Vec<&[u32]> = inputs.iter().map(Vec::as_slice).collect();
    for architecture in architectures() {
        for isa in Cpu::isas() {
            let load = |threads| loaded_as(architecture.name, cpu(threads, isa), LoadFormat::AsStored);
            let Loaded::Embedding(mut alone) = load(1) else { continue };
            let expected: Vec<Vec<f32>> = inputs.iter().flat_map(|input| alone.embed(&[input])).collect();
            for threads in 1..=3 {
                let Loaded::Embedding(mut model) = load(threads) else { unreachable!("loaded before") };
                assert_eq!(model.embed(&inputs), expected);
            }
        }
    }
}

#[test]
fn a_vector_does_not_depend_on_the_inputs_beside_it() {
    let inputs: Vec<Vec<u32>> = (1..48).map(|len| (0..len).map(|i| (i * 7 + len) % 96).collect()).collect();
    let inputs: Vec<&[u32]> = inputs.iter().map(Vec::as_slice).collect();
    for architecture in architectures().iter().filter(|entry| entry.task() == Task::Embedding) {
        let mut model = embedding(&fixture(architecture.name), Naive { kv: KvPrecision::Single });
        // Together they are more rows than one pass takes.
        let together = model.embed(&inputs);
        let alone: Vec<Vec<f32>> = inputs.iter().flat_map(|input| model.embed(&[input])).collect();
        assert_eq!(together, alone);
    }
}

#[test]
fn a_score_does_not_depend_on_the_pairs_beside_it_or_on_threads() {
    let pairs: Vec<(Vec<u32>, Vec<u32>)> = (2..64)
        .map(|len| {
            let ids = (0..len).map(|i| 2 + (i * 7 + len) % 50).collect();
            (ids, (0..len).map(|i| u32::from(i > len / 3)).collect())
        })
        .collect();
    for architecture in architectures().iter().filter(|entry| entry.task() == Task::Rerank) {
        let types = reranker(&fixture(architecture.name), Naive { kv: KvPrecision::Single }).spec().types;
        let nothing = vec![0; 64];
        let pairs: Vec<PairIds<'_>> = pairs
            .iter()
            .map(|(ids, kinds)| PairIds { ids, types: if types > 1 { kinds } else { &nothing[..ids.len()] } })
            .collect();
        let mut exact = reranker(&fixture(architecture.name), Naive { kv: KvPrecision::Single });
        let alone: Vec<f32> = pairs.iter().flat_map(|pair| exact.score(&[*pair])).collect();
        // Together they are more rows than one pass takes.
        assert_eq!(exact.score(&pairs), alone, "{}", architecture.name);
        for isa in Cpu::isas() {
            let load = |threads| reranker(&fixture(architecture.name), cpu(threads, isa));
            let mut model = load(1);
            let alone: Vec<f32> = pairs.iter().flat_map(|pair| model.score(&[*pair])).collect();
            assert_eq!(model.score(&pairs), alone, "{} {}", architecture.name, isa.name());
            for threads in 2..=3 {
                assert_eq!(load(threads).score(&pairs), alone, "{} {}", architecture.name, isa.name());
            }
        }
    }
}

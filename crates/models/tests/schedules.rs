//! What a row answers does not depend on how the work is cut, ordered or shared: bit for bit.

mod support;

use models::{Task, architectures};
use support::naive::{KvPrecision, Naive};
use support::{embedding, fixture, language, schedule};

#[test]
fn no_schedule_changes_a_logit_on_the_exact_device() {
    for architecture in architectures().iter().filter(|entry| entry.task() == Task::Generation) {
        let mut model = language(&fixture(architecture.name), Naive { kv: KvPrecision::Single });
        schedule::check(&mut *model, 1);
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

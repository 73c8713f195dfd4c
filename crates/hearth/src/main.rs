//! Hearth: serves large language models on your own machines.

fn main() {}

//! Hearth: serves large language models on your own machines.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    hearth::cli::main()
}

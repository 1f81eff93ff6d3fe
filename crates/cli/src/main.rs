//! The `windlass` binary: every role, every model that comes with it.

use std::process::ExitCode;

use windlass::models::{Autoencoder, Linear, Mnist, Seq2Seq, SpatialTransformer};

/// Training allocates and frees large buffers every step; the system's allocator gives them back to the kernel
/// each time, which doubles the time of a small network's step.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    windlass::Program::new()
        .with::<Linear>()
        .with::<Mnist>()
        .with::<Autoencoder>()
        .with::<SpatialTransformer>()
        .with::<Seq2Seq>()
        .run()
}

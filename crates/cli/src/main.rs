//! The `windlass` binary: every role, every model that comes with it.

use std::process::ExitCode;

use windlass::models::{Autoencoder, Linear, Mnist, Seq2Seq, SpatialTransformer};

fn main() -> ExitCode {
    windlass::Program::new()
        .with::<Linear>()
        .with::<Mnist>()
        .with::<Autoencoder>()
        .with::<SpatialTransformer>()
        .with::<Seq2Seq>()
        .with_tools()
        .run()
}

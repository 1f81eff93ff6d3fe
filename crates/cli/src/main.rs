//! The `windlass` binary: every role, and every built-in model.

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

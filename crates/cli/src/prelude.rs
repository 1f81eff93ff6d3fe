//! Everything that a file with a custom model needs: `use windlass::prelude::*;`
//!
//! The derive macros of Burn and clap refer to those crates by name, so the crates are re-exported here, too.

pub use anyhow;
pub use burn;
pub use burn::module::Module;
pub use burn::tensor::{Device, Int, Tensor, TensorData};
pub use clap;
pub use rand::rngs::StdRng;

pub use crate::{Defaults, Metrics, Model, Program, Setup, accuracy};

//! What a file with a model of one's own needs: `use windlass::prelude::*;`
//!
//! The derives of Burn and clap look for those crates by their names, so these are here too.

pub use anyhow;
pub use burn;
pub use burn::module::Module;
pub use burn::tensor::{Device, Int, Tensor, TensorData};
pub use clap;
pub use rand::rngs::StdRng;

pub use crate::{Defaults, Metrics, Model, Program, Setup, accuracy};

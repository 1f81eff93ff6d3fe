//! Event files that TensorBoard reads: scalars, histograms, text, images and hyperparameters, by step and wall time.
//!
//! [`RunBoard`] is what a training run needs: train and eval curves side by side, which a resumed run continues.
//! [`EventWriter`] is one event file. This crate only writes files: it must not know the cluster or tensors, nor decide
//! how often to write.

mod error;
mod histogram;
mod hparams;
mod png;
mod proto;
mod record;
mod run;
pub mod tag;
mod writer;

pub use error::BoardError;
pub use hparams::HParam;
pub use run::{Description, RunBoard, worker_curves};
pub use writer::{EventWriter, LONGEST_TAG, Moment};

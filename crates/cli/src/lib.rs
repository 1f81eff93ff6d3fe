//! Windlass as a library: the whole program, for a binary with custom models.
//!
//! ```no_run
//! # use windlass::models::Linear as MyModel;
//! fn main() -> std::process::ExitCode {
//!     windlass::Program::new().with::<MyModel>().run()
//! }
//! ```
//! That binary has every role, mode and flag of `windlass` itself, under the name of its own file; see
//! `examples/own_model.rs`.

pub mod prelude;

mod args;
mod bench;
mod checkpoint;
mod compare;
mod completions;
mod config;
mod data;
mod decode;
mod devices;
mod eval;
mod failure;
mod finished;
mod health;
mod in_graph;
mod join;
mod launch;
mod listening;
mod logging;
mod man;
mod manifest;
mod misuse;
mod model_flags;
mod optimizer_options;
mod output;
mod placement;
mod processor;
mod program;
mod progress;
mod resume;
mod run_file;
mod runs;
mod settings;
mod signals;
mod stage_placement;
mod status;
mod stopping;
mod store_location;
mod terminal;
mod termination;
mod tied;
mod top;
mod train;
mod trained;
mod verbosity;
mod version;

pub use anyhow;
pub use burn;
pub use clap;
pub use program::Program;
pub use rand;
pub use trained::{Trained, TrainedParameter};
pub use windlass_core::optimizer;
pub use windlass_models as models;
pub use windlass_worker::dataset::DatasetBatches;
pub use windlass_worker::event;
pub use windlass_worker::metrics::accuracy;
pub use windlass_worker::model::{Defaults, Fingerprint, FlagRole, Metric, MetricKind, Metrics, Model, Reports, Setup};
pub use windlass_worker::report;
pub use windlass_worker::stages::{Activation, Feeds, Stage, StageInput, Staged, Staging};
pub use windlass_worker::summary::Summary;
pub use windlass_worker::{travel, travels};

/// Training allocates and frees large buffers every step. The system allocator returns them to the kernel each time,
/// which doubles the step time of a small network.
#[cfg(feature = "mimalloc")]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

//! A parameter server task: its shard of the parameters, and in ps 0 the coordinator of the run.
//!
//! This crate sees parameters as sequences of numbers: nothing here depends on a tensor library or on a model.

/// The target of log events that `launch` also shows to its user.
pub const NOTICE: &str = "windlass_server::notice";

/// The beginning of the notice that a restarted ps 0 cannot open the checkpoints yet. Nothing can be saved until it
/// can.
pub const CANNOT_CONTINUE: &str = "ps 0 cannot continue the run yet";

mod background;
mod checkpoint;
mod connection;
pub mod coordinator;
#[cfg(test)]
mod fixtures;
mod records;
mod server_machine;
mod shard;
mod task;

pub use checkpoint::{CheckpointConfig, Part, Resume, before_generation, generation_of};
pub use records::{RunRecords, judge_end};
pub use server_machine::{Holding, LAST_WORDS, ServerEffect, ServerEvent, ServerMachine};
pub use shard::{CutError, ParameterShard, Snapshot};
pub use task::{Server, ServerConfig};
